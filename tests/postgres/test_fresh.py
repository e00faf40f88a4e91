"""A few new records of one form: the same as any others, whatever is in the way."""

from __future__ import annotations

import random

from collections.abc import Sequence
from typing import Any

import pytest

from fix_postgres import opened, run

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import Form, Insert, Json, Put
from oqron_core.testing.hostile import NAMES
from oqron_postgres._fresh import Fresh


FORM = Form(
    {"id": None, "status": "waiting", "data": None, "n": None, "100 % \u00e4": ["a", {"b": 1}]},
    ("id", "data", "n"),
)
PAYLOADS: tuple[Any, ...] = (
    Json(b'{"b": 1, "a": ["\\\\", "\\t", 1.0, 1e5, -0.0, null, "%b %% %s"]}'),
    Json(b"[]"),
    Json(b'"a scalar"'),
    Json(b"null"),
    "a text, encoded here",
    {"a": [1, 2.5, None]},
    [],
    True,
    None,
    2**63 - 1,
    0.1,
)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Say of each batch whether it was encoded together."""
    seen: list[bool] = []
    encode = Fresh.of.__func__  # type: ignore[attr-defined]  # a class method's

    def watched(cls: Any, *arguments: Any) -> Fresh | None:
        found: Fresh | None = encode(cls, *arguments)
        seen.append(found is not None)
        return found

    monkeypatch.setattr(Fresh, "of", classmethod(watched))
    return seen


def new(namespace: str, ids: Sequence[str], payloads: Sequence[Any] = PAYLOADS) -> list[Insert]:
    """Make inserts of the form, a payload each, of which a third expires."""
    return [
        Insert(
            namespace,
            id_,
            FORM.fill({"id": id_, "data": payloads[n % len(payloads)], "n": n - 3}),
            None if n % 3 else 10**14,
        )
        for n, id_ in enumerate(ids)
    ]


@pytest.mark.parametrize("count", [1, 2, 25])
@pytest.mark.parametrize("namespace", ["queue_job:\u00e4 'q'", "custom", "runs"])
def test_they_are_kept_as_others_are(
    postgres_url: str, prefix: str, namespace: str, count: int, encoded: list[bool]
) -> None:
    """Hostile ids and payloads of every type, in any order, by the server's clock."""
    ids = [f"{n}\t\\N%b\n'\"{NAMES[n % len(NAMES)]}"[:120] for n in range(count)]
    random.Random(1).shuffle(ids)

    async def main() -> None:
        async with opened(postgres_url, prefix) as plane:
            for payload in PAYLOADS:
                batch = new(namespace, [f"{payload}{id_}"[:250] for id_ in ids], [payload])
                before = await plane.now()
                results = await plane.write(batch, returning=())
                after = await plane.now()
                found = await plane.get(namespace, [write.id for write in batch])
                for write, result, record in zip(batch, results, found, strict=True):
                    assert result.applied
                    assert record is not None
                    wanted = dict(write.value)
                    if isinstance(wanted["data"], Json):
                        wanted["data"] = wanted["data"].load()
                    assert record.value == wanted
                    assert type(record.value["data"]) is type(wanted["data"])
                    assert (record.id, record.expires_at) == (write.id, write.expires_at)
                    assert before <= record.inserted_at <= after
                    assert result.record is not None
                    assert result.record.inserted_at == record.inserted_at
                    assert (result.record.id, result.record.value) == (write.id, {})
            assert any(encoded) == (namespace != "runs")

    run(main())


def test_what_is_in_the_way_stays(postgres_url: str, prefix: str, encoded: list[bool]) -> None:
    """It is said of that one; what has expired gives way, and the others are written once."""

    async def main() -> None:
        async with opened(postgres_url, prefix) as plane:
            ids = [f"{n:02}" for n in range(9)]
            await plane.write([Put("queue_job:q", "04", {"old": True})])
            await plane.write([Put("queue_job:q", "07", {"old": True}, 1)])
            results = await plane.write(new("queue_job:q", ids, ["text"]), returning=())
            assert [n for n, result in enumerate(results) if not result.applied] == [4]
            assert results[4].record is not None
            assert results[4].record.value == {}
            again = await plane.write(new("queue_job:q", ids, ["text"]), returning=())
            assert not any(again)
            assert encoded == [True, True]
            found = await plane.get("queue_job:q", ids)
            assert [record.value.get("old") for record in found if record] == [
                n == 4 or None for n in range(9)
            ]

    run(main())


def test_a_form_may_have_no_open_field(postgres_url: str, prefix: str, encoded: list[bool]) -> None:
    """Few of them or many: each is the form."""
    form = Form({"100 %": "%b", "n": 1}, ())

    async def main() -> None:
        async with opened(postgres_url, prefix) as plane:
            for count in (1, 3, 60):
                ids = [f"{count}-{n:02}" for n in range(count)]
                batch = [Insert("queue_job:q", id_, form.fill({})) for id_ in ids]
                assert all(await plane.write(batch, returning=()))
                found = await plane.get("queue_job:q", ids)
                assert [record and record.value for record in found] == [dict(form.fields)] * count
            assert encoded == [True, True]

    run(main())


def test_an_id_that_stands_twice_is_written_once(
    postgres_url: str, prefix: str, encoded: list[bool]
) -> None:
    """The first is; batches like that are looked at one by one."""

    async def main() -> None:
        async with opened(postgres_url, prefix) as plane:
            results = await plane.write(new("queue_job:q", ["a", "b", "a"], ["x"]), returning=())
            assert [result.applied for result in results] == [True, True, False]
            assert encoded == [False]
            (record,) = await plane.get("queue_job:q", ["a"])
            assert record is not None
            assert record.value["n"] == -3

    run(main())


@pytest.mark.parametrize(
    "bad", ["\ud800", "a\0b", float("nan"), 2**70, {1: 2}, object(), "x" * 3000, Json(b"1" * 3000)]
)
def test_what_is_refused_is_named_before_any_write(
    postgres_url: str, prefix: str, bad: object
) -> None:
    """And nothing is there."""

    async def main() -> None:
        async with opened(postgres_url, prefix, max_value_bytes=2000) as plane:
            batch = [*new("queue_job:q", ["a", "b"], [None]), *new("queue_job:q", ["c"], [bad])]
            with pytest.raises(InvalidValueError, match=r"value"):
                await plane.write(batch, returning=())
            assert await plane.get("queue_job:q", ["a", "b", "c"]) == [None] * 3

    run(main())
