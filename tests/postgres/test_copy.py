"""Many new records by COPY: the same as one by one, whatever is in the way."""

from __future__ import annotations

import asyncio
import random
import uuid

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from fix_postgres import opened, run

from oqron_core.exceptions import InvalidValueError, UnavailableError
from oqron_core.planes import Insert, Json, Put, Query
from oqron_core.testing.hostile import NAMES
from oqron_core.testing.servers import PostgresServer
from oqron_postgres._connection import PooledLink
from oqron_postgres.plane import PostgresPlane


@pytest.fixture(scope="module")
def server(postgres_server_factory: Callable[..., PostgresServer]) -> PostgresServer:
    """Give a server whose connections a test may cut."""
    return postgres_server_factory()


NAMESPACES = ("queue_job:q", "runs", "custom")


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give the sizes, in bytes, of what was taken by COPY."""
    sizes: list[int] = []
    copy = PooledLink.copy

    async def counted(link: PooledLink, statement: bytes, data: bytes) -> None:
        await copy(link, statement, data)
        sizes.append(len(data))

    monkeypatch.setattr(PooledLink, "copy", counted)
    return sizes


def inserts(namespace: str, count: int, **more: Any) -> list[Insert]:
    """Make inserts of plain values."""
    return [Insert(namespace, f"{n:05}", {"n": n, **more}) for n in range(count)]


async def values(plane: PostgresPlane, namespace: str, count: int) -> list[Any]:
    """Read what is there."""
    found = await plane.get(namespace, [f"{n:05}" for n in range(count)])
    return [None if record is None else record.value for record in found]


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_copied_records_are_those_that_are_inserted(
    postgres_url: str, prefix: str, copied: list[int], namespace: str
) -> None:
    """Hostile ids, names of fields, texts and payloads, instants and expiry, in any order."""
    ids = [f"{n}\t\\N\\.\n'\"{NAMES[n % len(NAMES)]}"[:120] for n in range(200)]
    random.Random(1).shuffle(ids)

    def value(n: int) -> dict[str, Any]:
        return {
            "text": NAMES[n % len(NAMES)],
            "data": Json(b'{"b": 1, "a": ["\\\\", "\\t", 1.0, 1e5, -0.0, null]}'),
            "number": n - 100,
            "flag": n % 2 == 0,
            "none": None,
            'odd "\\ name': "\\x00 \\. \\N",
        }

    async def main() -> None:
        async with opened(postgres_url, prefix) as plane:
            batch = [
                Insert(namespace, id_, value(n), 10**14 if n % 3 else None)
                for n, id_ in enumerate(ids)
            ]
            before = await plane.now()
            results = await plane.write(batch, returning=())
            assert len(copied) == 1
            assert all(result.applied for result in results)
            after = await plane.now()
            found = await plane.get(namespace, ids)
            for write, result, record in zip(batch, results, found, strict=True):
                assert record is not None
                assert record.value == {**write.value, "data": write.value["data"].load()}
                assert (record.id, record.expires_at) == (write.id, write.expires_at)
                # The server's clock is followed, and may be half a round trip off.
                assert before - 10 <= record.inserted_at <= after + 10
                assert result.record is not None
                assert result.record.inserted_at == record.inserted_at
                assert (result.record.id, result.record.value) == (write.id, {})

    run(main())


def test_what_is_there_keeps_its_value_and_its_place(
    postgres_url: str, prefix: str, copied: list[int]
) -> None:
    """One of many is taken: it is said of that one, and the others are written once."""

    async def main() -> None:
        async with opened(postgres_url, prefix) as plane:
            await plane.write([Put("queue_job:q", "00077", {"old": True})])
            for _ in range(3):
                results = await plane.write(inserts("queue_job:q", 200), returning=())
                assert not copied
                refused = [n for n, result in enumerate(results) if not result.applied]
                assert refused in ([77], [*range(200)])
                assert results[77].record is not None
            found = await values(plane, "queue_job:q", 200)
            assert found[77] == {"old": True}
            assert [value for n, value in enumerate(found) if n != 77] == [
                {"n": n} for n in range(200) if n != 77
            ]
            # After a while it is tried again.
            for n in range(40):
                await plane.write(inserts(f"queue_job:{n}", 60), returning=())
            assert copied
            assert 200 + 40 * 60 == await plane.count(Query(kind="job"))

    run(main())


def test_what_has_expired_gives_way(postgres_url: str, prefix: str) -> None:
    """As if it were not there."""

    async def main() -> None:
        async with opened(postgres_url, prefix) as plane:
            await plane.write([Put("custom", "00003", {"old": True}, 1)])
            assert all(await plane.write(inserts("custom", 100), returning=()))
            assert [{"n": n} for n in range(100)] == await values(plane, "custom", 100)

    run(main())


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("n", float("nan")),
        ("n", 2**70),
        ("n", "a\0b"),
        ("n", "\ud800"),
        ("n", {1: 2}),
        ("n", object()),
        ("a\0b", 1),
        ("startedAt", "yesterday"),
        ("status", "x" * 1000),
        ("n", "x" * 2000),
    ],
)
def test_what_is_refused_is_named_before_any_write(
    postgres_url: str, prefix: str, copied: list[int], field: str, bad: object
) -> None:
    """The same error as of a small batch, and nothing is there."""

    async def main() -> None:
        async with opened(postgres_url, prefix, max_value_bytes=1500) as plane:
            batch = inserts("runs", 100)
            odd = Insert("runs", "odd", {**batch[60].value, field: bad})
            with pytest.raises(InvalidValueError) as alone:
                await plane.write([odd], returning=())
            batch[60] = odd
            with pytest.raises(InvalidValueError) as among:
                await plane.write(batch, returning=())
            assert str(among.value) == str(alone.value)
            assert not copied
            assert 0 == await plane.count(Query(kind="run"))

    run(main())


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param([*inserts("custom", 99), Put("custom", "x", {})], id="a-put"),
        pytest.param([*inserts("custom", 99), *inserts("other", 9)], id="two-namespaces"),
        pytest.param([*inserts("custom", 99), Insert("custom", "00001", {})], id="an-id-twice"),
        pytest.param(inserts("custom", 99, data=1.5), id="a-float"),
        pytest.param(inserts("custom", 1200), id="very-many"),
    ],
)
def test_other_batches_are_written_as_ever(postgres_url: str, prefix: str, batch: Any) -> None:
    """Whatever is not of one kind."""

    async def main() -> None:
        async with opened(postgres_url, prefix) as plane:
            results = await plane.write(batch, returning=())
            addresses = {(write.namespace, write.id) for write in batch}
            assert len(addresses) == sum(map(bool, results))
            assert len(addresses) == await plane.count(Query(kind="record"))

    run(main())


def test_adders_of_the_same_ids_share_them(postgres_url: str, prefix: str) -> None:
    """Twelve at once, every order: each id is inserted once, and nobody deadlocks."""

    async def main() -> None:
        async with opened(
            postgres_url, prefix, pool_size=12, statement_timeout=50.0, pool_timeout=50.0
        ) as plane:

            async def adder(seed: int) -> int:
                batch = [
                    Insert("queue_job:q", f"{n:05}", {"by": seed}) for n in range(seed % 3, 600)
                ]
                random.Random(seed).shuffle(batch)
                return sum(map(bool, await plane.write(batch, returning=())))

            done = await asyncio.gather(*(adder(seed) for seed in range(12)))
            assert 600 == sum(done)
            assert 600 == await plane.count(Query(kind="job"))

    run(main())


def test_a_role_that_row_security_holds_is_served(database: str, copied: list[int]) -> None:
    """COPY is not for it, so it inserts; the others of the same tables copy."""
    role = f"held_{uuid.uuid4().hex[:8]}"

    async def main() -> None:
        async with opened(database, "oqron") as plane:
            assert all(await plane.write(inserts("custom", 60), returning=()))
            assert len(copied) == 1
        with psycopg.connect(database, autocommit=True) as connection:
            for sql in (
                f"CREATE ROLE {role} LOGIN",
                f"GRANT USAGE ON SCHEMA public TO {role}",
                f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}",
                f"GRANT INSERT, UPDATE, DELETE ON oqron_records TO {role}",
                "ALTER TABLE oqron_records ENABLE ROW LEVEL SECURITY",
                f"CREATE POLICY own ON oqron_records TO {role} USING (true) WITH CHECK (true)",
            ):
                connection.execute(sql.encode())
        url = f"{database}{'&' if '?' in database else '?'}options=-c%20role%3D{role}"
        async with opened(url, "oqron") as plane:
            for n in range(3):
                assert all(await plane.write(inserts(f"held{n}", 60), returning=()))
            assert len(copied) == 1
            assert 4 * 60 == await plane.count(Query(kind="record"))

    try:
        run(main())
    finally:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(f"DROP OWNED BY {role} CASCADE".encode())
            connection.execute(f"DROP ROLE {role}".encode())


def test_a_strict_isolation_is_inserted_into(database: str, prefix: str, copied: list[int]) -> None:
    """Where transactions may be told to run again, statements of ours take care of it."""
    name = database.rsplit("/", 1)[1].partition("?")[0]
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            f'ALTER DATABASE "{name}" SET default_transaction_isolation = serializable'.encode()
        )

    async def main() -> None:
        async with opened(database, prefix) as plane:
            assert all(await plane.write(inserts("custom", 60), returning=()))
            assert not copied

    run(main())


def test_cancelling_anywhere_writes_all_or_nothing(postgres_url: str, prefix: str) -> None:
    """And the pool goes on with whole connections."""

    async def main() -> None:
        async with opened(postgres_url, prefix, pool_size=2) as plane:
            await plane.write(inserts("queue_job:first", 60), returning=())
            for n in range(120):
                task = asyncio.create_task(plane.write(inserts(f"queue_job:{n}", 60), returning=()))
                await asyncio.sleep((n % 40) * 0.0002)
                task.cancel()
                await asyncio.wait([task])
            counts = await plane.count(Query(kind="job"), by="namespace")
            assert {60} == {*counts.values()}
            assert all(await plane.write(inserts("queue_job:last", 60), returning=()))

    run(main())


def test_cut_connections_are_a_typed_error_and_no_half_batch(
    server: PostgresServer, prefix: str, copied: list[int]
) -> None:
    """What was answered is there, and of what was not, all or nothing."""

    async def main() -> None:
        async with opened(server.url(), prefix, pool_size=4) as plane:
            answered: list[str] = []

            async def add(n: int) -> None:
                try:
                    results = await plane.write(inserts(f"queue_job:{n}", 80), returning=())
                except UnavailableError:
                    return
                assert all(results)
                answered.append(f"queue_job:{n}")

            async def cut() -> None:
                for _ in range(20):
                    await asyncio.sleep(0.01)
                    with psycopg.connect(server.url(), autocommit=True) as connection:
                        connection.execute(
                            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                            "WHERE application_name = 'oqron' AND pid <> pg_backend_pid()"
                        )

            cutting = asyncio.create_task(cut())
            for start in range(0, 200, 4):
                await asyncio.gather(*(add(n) for n in range(start, start + 4)))
            await cutting
            counts = await plane.count(Query(kind="job"), by="namespace")
            assert {80} == {*counts.values()}
            assert {*answered} <= {*counts}
            assert copied

    run(main())
