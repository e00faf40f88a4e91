"""What broke others on PostgreSQL: poolers, pools that are empty, locked rows, half openings."""

from __future__ import annotations

import asyncio
import gc
import time

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fix_pooler import pooler
from fix_postgres import opened, run

from oqron_core import JobSpec, Storage, open_storage
from oqron_core.exceptions import ConfigError, ConflictError, TimedOutError, UnavailableError
from oqron_core.planes import Insert, Patch, PlaneContext, Put, Query, Scope
from oqron_core.testing.servers import PostgresServer
from oqron_postgres import PostgresSettings, connect, open_durable


@pytest.fixture(scope="module")
def server(postgres_server_factory: Callable[..., PostgresServer]) -> PostgresServer:
    """Give a server that tests of this module may stop."""
    return postgres_server_factory()


# --- a pooler in transaction mode -----------------------------------------------------


async def _work(storage: Storage, count: int) -> None:
    """Let jobs come and end in every way, several at a time."""
    jobs = storage.jobs
    await jobs.add_many("q", [JobSpec(n, id=f"{n}", max_attempts=2) for n in range(count)])

    async def worker() -> None:
        while claims := await jobs.claim("q", limit=3):
            for claim in claims:
                if claim.data % 5 == 0:
                    await jobs.fail(claim, "x", retry_in=0.0)
                elif claim.data % 7 == 0:
                    await jobs.fail(claim, "x", retry=False)
                else:
                    await jobs.complete(claim, claim.data)

    await asyncio.gather(*(worker() for _ in range(6)))


def test_transactions_may_each_have_another_backend(postgres_url: str, prefix: str) -> None:
    """Nothing is kept in a session, so all of a storage works behind a pooler."""

    async def main() -> None:
        section = {"table_prefix": prefix, "prepared_statements": False, "pool_size": 6}
        async with pooler(postgres_url) as pool:
            async with open_storage(
                hot="memory", durable="postgres", postgres={"url": pool.url, **section}
            ) as storage:
                await _work(storage, 60)
                counts = await storage.jobs.counts("q")
                letters = await storage.dead_letters.query("q", limit=100)
                dead = {f"{n}" for n in range(60) if n % 5 == 0 or n % 7 == 0}
                assert 60 - len(dead) == counts["completed"]
                assert dead == {letter.id for letter in letters}
                assert await storage.dead_letters.requeue("q", "0") is not None
                plane = storage.durable
                many = [Insert("n", f"{n}", {"n": n}) for n in range(300)]
                mixed = [Put("runs", "r", {}), *[Patch("n", "1", increment={"n": 1})] * 3]
                assert all(await plane.write(many))
                await asyncio.gather(
                    *(plane.write(mixed, atomic=True) for _ in range(8)),
                    plane.write(many),
                    plane.count(Query(kind="job")),
                )
                [record] = await plane.get("n", ["1"])
                assert record is not None
                assert {"n": 25} == record.value
                with pytest.raises(ConflictError):
                    await plane.write([*many[:1], Put("n", "x", {})], atomic=True)
                assert [None] == list(await plane.get("n", ["x"]))
                await storage.maintenance.run_once()
            assert pool.moved > 50
            assert [] == pool.kept

    run(main())


def test_a_pooler_that_refuses_session_settings_is_told_at_opening(
    postgres_url: str, prefix: str
) -> None:
    """By the setting that mends it, and not as a server that is away."""

    async def main() -> None:
        async with pooler(postgres_url) as pool:
            with pytest.raises(ConfigError, match="prepared_statements = false"):
                async with opened(pool.url, prefix):
                    pass

    run(main())


# --- a pool that is empty ---------------------------------------------------------------


def test_a_caller_may_give_up_waiting_for_a_connection(postgres_url: str, prefix: str) -> None:
    """At its own time limit and not at the pool's, and no connection is lost by it."""

    async def main() -> None:
        settings = PostgresSettings(
            url=postgres_url, table_prefix=prefix, pool_size=2, pool_timeout=50.0
        )
        context = PlaneContext(Scope("p", "e"))
        async with connect(settings) as connection, open_durable(connection, context) as plane:
            async with connection.acquire(), connection.acquire():

                async def give_up(number: int) -> None:
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.05 + number % 5 / 50):
                            await plane.write([Put("n", f"{number}", {})])

                started = time.monotonic()
                await asyncio.gather(*(give_up(number) for number in range(30)))
                assert time.monotonic() - started < 25.0
            answers = await asyncio.gather(
                *(plane.write([Put("n", f"{number}", {})]) for number in range(50))
            )
            assert all(answer[0] for answer in answers)
            stats = connection.stats()
            assert (2, 2) == (stats["pool_size"], stats["pool_available"])
            assert not stats.get("requests_waiting", 0)

    run(main())


# --- cleaning -----------------------------------------------------------------------------


def test_a_row_that_somebody_holds_keeps_no_prune_waiting(postgres_url: str, prefix: str) -> None:
    """It is left out, and goes with the next one."""

    async def main() -> None:
        async with opened(postgres_url, prefix, statement_timeout=20.0) as plane:
            await plane.write([Put("runs", f"{n}", {"status": "failed"}) for n in range(10)])
            query = Query(kind="run", where=[("status", "=", "failed")])
            with psycopg.connect(postgres_url) as other:
                other.execute(
                    f"SELECT 1 FROM public.{prefix}_runs WHERE id < '3' FOR UPDATE".encode()
                ).fetchall()
                assert 7 == await plane.prune(query)
                assert 0 == await plane.prune(query)
            assert 3 == await plane.prune(query)

    run(main())


# --- half openings ------------------------------------------------------------------------


def _files() -> int:
    gc.collect()
    folder = Path("/proc/self/fd")
    return len([*folder.iterdir()]) if folder.is_dir() else 0


async def _as_few(before: tuple[int, int]) -> None:
    """Return when no more tasks and files are there than before; sockets close by and by."""
    deadline = time.monotonic() + 20
    while not (len(asyncio.all_tasks()) <= before[0] and _files() <= before[1]):
        assert time.monotonic() < deadline, (before, len(asyncio.all_tasks()), _files())
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("away", ["durable", "hot"])
def test_an_opening_without_one_of_the_servers_fails_and_leaves_nothing(
    redis_url: str, server: PostgresServer, prefix: str, project: str, away: str
) -> None:
    """No other store stands in; and when the server is there, the same opening works."""
    nowhere = {"durable": "postgresql://nobody@127.0.0.1:1/x", "hot": "redis://127.0.0.1:1/0"}

    def options(missing: str | None) -> dict[str, Any]:
        postgres = nowhere["durable"] if missing == "durable" else server.url()
        redis = nowhere["hot"] if missing == "hot" else redis_url
        return {
            "mode": "redis-postgres",
            "project": project,
            "redis": {"url": redis, "retries": 0},
            "postgres": {"url": postgres, "table_prefix": prefix},
        }

    async def main() -> None:
        async with open_storage(**options(None)) as storage:
            await storage.jobs.add("q", 1, id="a")
        before = len(asyncio.all_tasks()), _files()
        for _ in range(5):
            with pytest.raises(UnavailableError):
                async with open_storage(**options(away)):
                    raise AssertionError("opened")
        await _as_few(before)
        async with open_storage(**options(None)) as storage:
            assert ["a"] == [claim.id for claim in await storage.jobs.claim("q")]
        await _as_few(before)

    run(main())


def test_an_opening_is_possible_again_when_the_server_is_back(
    redis_url: str, server: PostgresServer, prefix: str, project: str
) -> None:
    """Stopped between two openings, and started: the second one finds what the first wrote."""
    options: dict[str, Any] = {
        "mode": "redis-postgres",
        "project": project,
        "redis": {"url": redis_url},
        "postgres": {"url": server.url(), "table_prefix": prefix, "pool_timeout": 2.0},
    }

    async def main() -> None:
        async with open_storage(**options) as storage:
            await storage.jobs.add("q", 1, id="a")
        await asyncio.to_thread(server.stop)
        try:
            with pytest.raises((UnavailableError, TimedOutError)):
                async with open_storage(**options):
                    raise AssertionError("opened")
        finally:
            await asyncio.to_thread(server.start)
        async with open_storage(**options) as storage:
            assert ["a"] == [claim.id for claim in await storage.jobs.claim("q")]

    run(main())
