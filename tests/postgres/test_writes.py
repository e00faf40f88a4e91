"""Batches of writes on PostgreSQL: locks, sizes, hot fields, what is shipped."""

from __future__ import annotations

import asyncio
import random

from collections.abc import Callable
from itertools import product
from typing import Any

import psycopg
import pytest

from fix_postgres import opened, run

from oqron_core.exceptions import ConflictError, InvalidValueError
from oqron_core.planes import (
    Delete,
    Insert,
    Json,
    Patch,
    Put,
    Query,
    Write,
)


def _deadlocks(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_clear_snapshot()")
        row = connection.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert row is not None
    return int(row[0])


def _some_write(random_: random.Random, id_: str) -> Write:
    namespace = random_.choice(("queue_job:q", "runs", "custom"))
    return random_.choice(
        (
            Put(namespace, id_, {"n": 0}),
            Insert(namespace, id_, {"n": 0}),
            Patch(namespace, id_, increment={"n": 1}),
            Patch(namespace, id_, set={"m": [1]}, expect={"n": 1}),
            Delete(namespace, id_),
        )
    )


@pytest.mark.parametrize("atomic", [False, True])
def test_writers_of_overlapping_ids_never_deadlock(
    postgres_url: str, prefix: str, atomic: bool
) -> None:
    """Sixteen of them, mixed kinds, every order: nobody is told, and hardly any occurs."""
    before = _deadlocks(postgres_url)

    async def main() -> None:
        async with opened(
            postgres_url, prefix, pool_size=16, pool_timeout=50.0, statement_timeout=50.0
        ) as plane:

            async def writer(seed: int) -> None:
                random_ = random.Random(seed)
                ids = [f"{number:04}" for number in range(400)]
                for _ in range(3):
                    random_.shuffle(ids)
                    writes = [_some_write(random_, id_) for id_ in ids]
                    try:
                        results = await plane.write(writes, atomic=atomic)
                    except ConflictError:
                        assert atomic
                    else:
                        assert 400 == len(results)

            await asyncio.gather(*(writer(seed) for seed in range(16)))

    run(main())
    assert _deadlocks(postgres_url) - before <= 2


def test_every_increment_of_overlapping_batches_counts(postgres_url: str, prefix: str) -> None:
    """Sixteen writers of 2,000 ids in random order lose none."""

    async def main() -> None:
        async with opened(postgres_url, prefix, pool_size=16) as plane:
            ids = [f"{number:04}" for number in range(2000)]
            await plane.write([Put("queue_job:q", id_, {"n": 0}) for id_ in ids])

            async def writer(seed: int) -> int:
                order = ids.copy()
                random.Random(seed).shuffle(order)
                writes = [Patch("queue_job:q", id_, increment={"n": 1}) for id_ in order]
                return sum(map(bool, await plane.write(writes, returning=())))

            done = await asyncio.gather(*(writer(seed) for seed in range(16)))
            assert [2000] * 16 == done
            assert 2000 == await plane.count(Query(kind="job", where=[("n", "=", 16)]))

    run(main())


def test_one_delete_of_many_wins(postgres_url: str, prefix: str) -> None:
    """While others change the rows; every row is deleted exactly once."""

    async def main() -> None:
        async with opened(postgres_url, prefix, pool_size=12) as plane:
            ids = [f"{number:04}" for number in range(500)]
            await plane.write([Put("queue_job:q", id_, {"n": 0}) for id_ in ids])
            patches = [Patch("queue_job:q", id_, increment={"n": 1}) for id_ in ids]
            deletes = [Delete("queue_job:q", id_) for id_ in ids]
            batches = [patches, deletes] * 6
            answers = await asyncio.gather(*(plane.write(batch) for batch in batches))
            deleted = sum(sum(map(bool, answer)) for answer in answers[1::2])
            assert 500 == deleted
            assert 0 == await plane.count(Query(kind="job"))

    run(main())


def test_large_batches_are_split_and_exact(postgres_url: str, prefix: str) -> None:
    """By number and by size; results stay in the order of the batch."""

    async def main() -> None:
        async with opened(postgres_url, prefix) as plane:
            ids = [f"{number:05}" for number in range(12_345)]
            random.Random(1).shuffle(ids)
            results = await plane.write([Insert("queue_job:q", id_, {"i": id_}) for id_ in ids])
            assert ids == [result.record.value["i"] for result in results if result.record]
            assert 12_345 == await plane.count(Query(kind="job"))
            big = [Put("queue_job:big", f"{number}", {"d": "x" * 900_000}) for number in range(30)]
            assert all(await plane.write(big, atomic=True))
            assert 30 == await plane.count(Query(namespace="queue_job:big"))

    run(main())


def test_only_what_is_asked_for_comes_back(postgres_url: str, prefix: str) -> None:
    """Of the new record and of the one that stood in the way."""

    async def main() -> None:
        async with opened(postgres_url, prefix) as plane:
            value = {"a": 1, "b": [1], "c": None}
            for returning, expected in (
                (("b", "c", "z"), {"b": [1], "c": None}),
                ((), {}),
                (None, value),
            ):
                id_ = f"{returning}"
                for write in (
                    Insert("n", id_, value),
                    Insert("n", id_, {}),
                    Put("n", id_, value),
                    Patch("n", id_, set={"a": 1}),
                    Patch("n", id_, expect={"a": 2}),
                    Delete("n", id_, expect={"a": 2}),
                ):
                    [result] = await plane.write([write], returning=returning)
                    assert expected == result.value, write
                    assert result.record is not None
                    assert result.record.inserted_at > 0

    run(main())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("startedAt", "soon"),
        ("startedAt", True),
        ("startedAt", [1]),
        ("endedAt", "1751587201000"),
        ("durationMs", {}),
        ("publishedAt", ""),
        ("status", "x" * 513),
        ("name", "é" * 257),
        ("module", ["x" * 300]),
        ("startedAt", Json(b'"x"')),
    ],
    ids=repr,
)
@pytest.mark.parametrize("namespace", ["runs", "topic_msg:t"])
def test_a_hot_field_that_breaks_dashboards_is_refused(
    postgres_url: str, prefix: str, namespace: str, field: str, value: Any
) -> None:
    """Before anything is written, by every kind of write, naming the field."""

    async def main() -> None:
        async with opened(postgres_url, prefix) as plane:
            await plane.write([Put(namespace, "there", {field: None})])
            for write in (
                Put(namespace, "a", {field: value}),
                Insert(namespace, "a", {field: value}),
                Patch(namespace, "there", set={field: value}),
                Patch(namespace, "there", append={field: [1]}),
            ):
                with pytest.raises(InvalidValueError, match=field):
                    await plane.write([Put(namespace, "b", {}), write])
            assert 1 == await plane.count(Query(namespace=namespace))
            # Elsewhere it is data like any other.
            await plane.write([Put("queue_job:q", "a", {field: value})])

    run(main())


def test_hot_fields_at_their_limits_are_kept(postgres_url: str, prefix: str) -> None:
    """The longest names, odd numbers, null and absence."""

    async def main() -> None:
        async with opened(postgres_url, prefix, project="é" * 255) as plane:
            label = "é" * 255
            values: list[dict[str, Any]] = [
                {"status": label, "name": label, "module": label, "startedAt": 1.7e308},
                {"startedAt": None, "status": None},
                {"startedAt": 5e-324, "status": 5},
                {"startedAt": -1, "status": ["x"]},
                {},
            ]
            ids = [f"{number}" + "é" * 254 for number in range(len(values))]
            await plane.write(
                [Put("runs", id_, value) for id_, value in zip(ids, values, strict=True)]
            )
            page = await plane.query(Query(kind="run", order_by=[("startedAt", "desc")]))
            assert [ids[0], ids[2], ids[3], ids[1], ids[4]] == [item.id for item in page]
            page = await plane.query(Query(kind="run", where=[("status", "=", label)]))
            assert [ids[0]] == [item.id for item in page]

    run(main())


def test_a_row_that_somebody_else_wrote_cannot_break_a_dashboard(
    postgres_url: str, prefix: str
) -> None:
    """The table itself refuses a text where queries cast."""

    async def main() -> None:
        async with opened(postgres_url, prefix):
            pass

    run(main())
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for started in ('"soon"', '"NaN"', "true", "[]"):
            with pytest.raises((psycopg.errors.DataError, psycopg.errors.CheckViolation)):
                connection.execute(
                    f"INSERT INTO public.{prefix}_runs "
                    "VALUES ('p', 'e', 'runs', 'run', 'x', %s::jsonb, 1, NULL)",
                    ('{"startedAt": ' + started + "}",),
                )


@pytest.mark.parametrize("direction", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 5, 100])
def test_pages_by_the_time_of_start_add_up(
    postgres_url: str, prefix: str, direction: str, limit: int
) -> None:
    """Served by an index, with ties, and with those that have not started at the end."""

    async def main() -> None:
        async with opened(postgres_url, prefix) as plane:
            starts = [5, 5, None, 3, 7.5, 5, None, -2, 3]
            writes = [
                Put("runs", f"{number}", {"startedAt": start, "status": "failed"})
                for number, start in enumerate(starts)
            ]
            await plane.write([*writes, Put("runs", "absent", {"status": "failed"})])
            down = direction == "desc"
            numbered = sorted(
                ((number, start) for number, start in enumerate(starts) if start is not None),
                key=lambda pair: (-pair[1] if down else pair[1], pair[0]),
            )
            expected = [f"{number}" for number, _ in numbered] + ["2", "6", "absent"]
            walked: list[str] = []
            after = None
            while True:
                page = await plane.query(
                    Query(
                        kind="run",
                        where=[("status", "=", "failed")],
                        order_by=[("startedAt", direction)],
                        limit=limit,
                        after=after,
                    )
                )
                walked += [item.id for item in page]
                after = page.next
                if after is None:
                    break
            assert expected == walked

    run(main())


def test_an_atomic_batch_is_bounded(postgres_url: str, prefix: str) -> None:
    """By the capability, with a sentence."""

    async def main() -> None:
        async with opened(postgres_url, prefix) as plane:
            most = plane.capabilities.max_atomic_batch
            writes = [Insert("n", f"{number}", {}) for number in range(most + 1)]
            with pytest.raises(InvalidValueError, match="split"):
                await plane.write(writes, atomic=True)
            assert all(await plane.write(writes[:most], atomic=True, returning=()))
            assert most == await plane.count(Query(namespace="n"))

    run(main())


def test_an_update_of_a_job_touches_no_index(postgres_url: str, prefix: str) -> None:
    """Every claim mark is a heap-only tuple; that is what the fill factor is for."""

    async def main() -> None:
        async with opened(postgres_url, prefix) as plane:
            ids = [f"{number:04}" for number in range(1000)]
            value = {"status": "waiting", "data": "x" * 500}
            await plane.write([Insert("queue_job:q", id_, value) for id_ in ids])
            for status in ("active", "waiting"):
                await plane.write(
                    [Patch("queue_job:q", id_, set={"status": status}) for id_ in ids],
                    returning=(),
                )

    run(main())
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
        row = None
        for _ in range(100):
            row = connection.execute(
                "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = %s",
                (f"{prefix}_jobs",),
            ).fetchone()
            if row is not None and row[0] >= 2000:
                break
            connection.execute("SELECT pg_sleep(0.05)")
    assert row is not None
    assert row[0] == 2000
    assert row[1] >= 1900


_SHARED = {"a": 1, "b": "text", "c": None, "d": True, "e": [1, {"deep": []}], "f": Json(b'{"x":1}')}
_CHANGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "none": lambda value: value,
    "bool": lambda value: value | {"a": True},
    "float": lambda value: value | {"a": 1.0},
    "list": lambda value: value | {"e": [1, {"deep": []}, 2]},
    "more": lambda value: value | {"more": "field"},
    "less": lambda value: {name: field for name, field in value.items() if name != "c"},
    "names": lambda value: {"other": value["n"]} | dict.fromkeys(list(value)[:-1], 0),
}


@pytest.mark.parametrize("odd", [0, 4, 9], ids=["first", "middle", "last"])
@pytest.mark.parametrize("kind", [Insert, Put])
def test_what_a_batch_has_in_common_is_in_every_record(
    postgres_url: str, prefix: str, kind: Any, odd: int
) -> None:
    """It is sent once; a record that differs in anything keeps what is its own."""

    async def main() -> None:
        async with opened(postgres_url, prefix) as plane:
            for name, change in _CHANGES.items():
                values = [_SHARED | {"n": number} for number in range(10)]
                values[odd] = change(values[odd])
                place, ids = f"queue_job:{name}", [f"i{number}" for number in range(10)]
                results = await plane.write(
                    [kind(place, id_, value) for id_, value in zip(ids, values, strict=True)]
                )
                found = await plane.get(place, ids)

                plain = [
                    value | ({"f": {"x": 1}} if type(value["f"]) is Json else {})
                    for value in values
                ]
                # By their texts: True is no 1, and 1 no 1.0.
                wanted = [repr(sorted(value.items())) for value in plain]
                for records in ([result.record for result in results], found):
                    assert wanted == [
                        repr(sorted(record.value.items())) for record in records if record
                    ]

    run(main())


@pytest.mark.parametrize("everywhere", [False, True], ids=["one", "all"])
def test_a_bad_field_in_a_batch_is_named(postgres_url: str, prefix: str, everywhere: bool) -> None:
    """Also where it stands in what all have in common; nothing is written."""
    bad: list[Any] = [
        "nul \0", "\ud800", 2**63, float("nan"), {1: 2}, b"bytes", Json(b"no json"), "x" * 2000,
    ]  # fmt: skip

    async def main() -> None:
        async with opened(postgres_url, prefix, max_value_bytes=1000) as plane:
            # The names are known by now.
            await plane.write([Insert("q", "first", {**_SHARED, "n": 0, "bad": 0})])
            for field, where in product(bad, (0, 3, 9)):
                values = [_SHARED | {"n": number, "bad": 0} for number in range(10)]
                for number, value in enumerate(values):
                    if everywhere or number == where:
                        value["bad"] = field
                with pytest.raises(InvalidValueError, match=r"value\.bad"):
                    await plane.write([Insert("q", f"i{n}", v) for n, v in enumerate(values)])

            assert await plane.count(Query(namespace="q")) == 1

    run(main())
