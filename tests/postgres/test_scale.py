"""Large batches and long histories on PostgreSQL: exact, bounded, in nobody's way."""

from __future__ import annotations

import asyncio
import re
import tracemalloc

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from oqron_core import Storage, open_storage
from oqron_core.planes import Query
from oqron_core.testing.servers import PostgresServer
from oqron_memory import MemoryStore


RUNS = 20_000
"""How many have expired."""
FINISHED = 4_000
"""How many jobs have."""
WORKERS = 4
BATCH = 500
"""How many records maintenance deletes in one step."""

# As the server writes down a wait for a lock: whose, for what, and who holds it.
_WAIT = re.compile(
    r"^(\S*) .*process \d+ still waiting for (.+?) after .*\n"
    r".*DETAIL:  Process(?:es)? holding the lock: ([\d, ]+)\.",
    re.MULTILINE,
)

# The id is the key of the row, and of the record as well.
_MULTIPLY = """
INSERT INTO oqron_{table}
  (project, environment, namespace, record_kind, id, value, inserted_at, expires_at)
SELECT project, environment, namespace, record_kind, id || '-' || n,
  value || jsonb_build_object('id', id || '-' || n), inserted_at, 1
FROM oqron_{table} CROSS JOIN generate_series(1, %s) AS n
"""


@pytest.fixture(scope="module")
def watching(postgres_server_factory: Callable[..., PostgresServer]) -> PostgresServer:
    """Give a server that writes down every wait for a lock of a millisecond or more."""
    settings = {"log_lock_waits": "on", "deadlock_timeout": "1ms", "log_line_prefix": "%a "}
    return postgres_server_factory(settings=settings)


def lock_waits(server: PostgresServer, name: str, holders: set[int]) -> list[str]:
    """Give for which locks of *holders* the application *name* has waited."""
    text = server.log.read_text("utf-8", errors="replace")
    return [
        match[2]
        for match in _WAIT.finditer(text)
        if match[1] == name and holders & {int(pid) for pid in match[3].split(",")}
    ]


def backends(server: PostgresServer, name: str) -> set[int]:
    """Give the processes of the server that serve an application now."""
    with psycopg.connect(server.url()) as connection:
        rows = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = %s", (name,)
        ).fetchall()
    return {pid for (pid,) in rows}


def a_wait_is_written_down(server: PostgresServer) -> None:
    """Let somebody wait for a row, and see that it is noticed: what is looked for exists."""
    update = (
        "UPDATE oqron_runs SET expires_at = expires_at WHERE id = (SELECT min(id) FROM oqron_runs)"
    )
    with (
        psycopg.connect(server.url(), application_name="holder") as holder,
        psycopg.connect(server.url(), application_name="control") as other,
    ):
        holder.execute(update)
        other.execute("SET lock_timeout = '200ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute(update)
        assert lock_waits(server, "control", {holder.info.backend_pid})
        holder.rollback()


class Workers:
    """
    Workers of one queue, each with a storage of its own.

    Args:
        storage: Opens one.
    """

    def __init__(self, storage: Callable[[], Any]) -> None:
        self._storage = storage
        self._stopping = False
        self._rounds = 0
        self.added: list[str] = []
        self.done: list[str] = []

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Let them work until the block ends, and then finish what is left."""
        tasks = [asyncio.create_task(self._one()) for _ in range(WORKERS)]
        try:
            yield
        finally:
            self._stopping = True
            await asyncio.gather(*tasks)

    async def some_rounds(self) -> None:
        """Wait until each has had time for a few."""
        enough = self._rounds + 3 * WORKERS
        while self._rounds < enough:
            await asyncio.sleep(0.01)

    async def _one(self) -> None:
        async with self._storage() as storage:
            claims: list[Any] = []
            while claims or not self._stopping:
                if not self._stopping:
                    jobs = await storage.jobs.add_many("q", [{"n": n} for n in range(5)])
                    self.added += [job.id for job in jobs]
                claims = await storage.jobs.claim("q", limit=7)
                assert all(await storage.jobs.complete_many([(claim, None) for claim in claims]))
                self.done += [claim.job.id for claim in claims]
                self._rounds += 1


def expire_many(server: PostgresServer) -> None:
    """Multiply the only run and the only job, as expired ones."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        for table, rows in (("runs", RUNS), ("jobs", FINISHED)):
            connection.execute(_MULTIPLY.format(table=table).encode(), (rows,))


async def finish_one(storage: Storage) -> None:
    """Work off one job."""
    await storage.jobs.add("q", {"n": 0})
    [claim] = await storage.jobs.claim("q")
    await storage.jobs.complete(claim)
    await storage.runs.flush()


@pytest.mark.timeout(600)
def test_pruning_beside_workers_makes_nobody_wait(watching: PostgresServer) -> None:
    """Jobs and runs go in small steps; no worker waits for a lock, and all counts are exact."""
    store = MemoryStore()

    def storage(name: str) -> Any:
        return open_storage(
            hot="memory",
            durable="postgres",
            project="p",
            environment="e",
            memory={"store": store},
            maintenance={"batch": BATCH},
            postgres={
                "url": watching.url(),
                "application_name": name,
                "pool_size": 3,
                "pool_timeout": 60.0,
                "statement_timeout": 60.0,
            },
        )

    async def main() -> None:
        workers = Workers(lambda: storage("worker"))
        async with storage("pruner") as mine:
            await finish_one(mine)
            expire_many(watching)
            a_wait_is_written_down(watching)
            async with workers.at_work():
                await workers.some_rounds()
                assert RUNS + FINISHED == await mine.retention.prune()
                await workers.some_rounds()
                holders = backends(watching, "pruner")
            assert holders
            assert [] == lock_waits(watching, "worker", holders)
            assert sorted(workers.added) == sorted(workers.done)
            for kind in ("job", "run"):
                query = Query(kind=kind, where=[("status", "=", "completed")])
                # Theirs, and the one that was multiplied.
                assert len(workers.done) + 1 == await mine.durable.count(query), kind

    asyncio.run(main())


def _peak(work: Callable[[], Any]) -> int:
    """Give the most memory that *work* had at a time beyond what was there before."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_hundred_thousand_are_added_exactly_and_in_bounded_memory(
    postgres_url: str, redis_url: str, project: str, prefix: str
) -> None:
    """Each once and in order; memory grows with the input and no faster."""

    async def add(queue: str, payloads: list[Any], ids: list[str]) -> None:
        async with open_storage(
            mode="redis-postgres",
            project=project,
            environment="e",
            redis={"url": redis_url, "timeout": 60.0},
            postgres={"url": postgres_url, "table_prefix": prefix, "statement_timeout": 60.0},
        ) as storage:
            ids += [job.id for job in await storage.jobs.add_many(queue, payloads)]

    def peak(count: int) -> float:
        """Add, and give the most memory that it took, for each job."""
        payloads = [{"to": f"{n}@example.com", "n": n} for n in range(count)]
        ids: list[str] = []
        most = _peak(lambda: asyncio.run(add(f"q{count}", payloads, ids)))
        with psycopg.connect(postgres_url) as connection:
            rows = connection.execute(
                f"SELECT id, (value -> 'data' ->> 'n')::int FROM {prefix}_jobs "
                "WHERE namespace = %s AND value ->> 'status' = 'waiting' ORDER BY id",
                (f"queue_job:q{count}",),
            ).fetchall()
        assert list(zip(ids, range(count), strict=True)) == rows
        return most / count

    # The first use compiles and connects, which is no job's doing.
    peak(1_000)
    few, many = peak(10_000), peak(100_000)
    assert many <= 1.1 * few
    # What is written and what is handed back; orjson makes no bytes of less than 4 KiB.
    assert many <= 8 * 1024
