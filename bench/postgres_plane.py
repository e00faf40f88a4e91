"""
What the durable plane on PostgreSQL costs, beside the driver alone, in one run.

.. code-block:: text

    python bench/postgres_plane.py [--url URL] [--rows 20000] [--rounds 3]

Without ``--url`` a throwaway server is started. Every figure is the best of the
rounds, so that a noisy neighbour counts less; CPU is this process's own. The floor
writes the same rows to tables of the same shape, indexes and storage settings.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import time
import uuid

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import orjson
import psycopg

from oqron_core.planes import Delete, Insert, Patch, PlaneContext, Query, Scope
from oqron_core.testing.servers import postgres_server
from oqron_postgres import PostgresSettings, connect, open_durable


PAYLOAD = {"to": "a@x.com", "body": "x" * 560}


def job(id_: str) -> dict[str, Any]:
    """Make a job record of the usual size."""
    return {
        "id": id_,
        "queueName": "emails",
        "status": "waiting",
        "data": PAYLOAD,
        "opts": {},
        "attemptMade": 0,
        "maxAttempts": 3,
        "priority": 0,
        "runAt": None,
        "createdAt": 1751587201000,
    }


_moments = itertools.count()


def run_record(id_: str) -> dict[str, Any]:
    """Make a finished run with five log lines."""
    at = 1751587201000 + next(_moments)
    return {
        "id": id_,
        "name": "emails",
        "module": "queue",
        "status": "completed",
        "trigger": "queue",
        "input": PAYLOAD,
        "output": {"delivered": True},
        "attempts": 1,
        "progressPercent": 100,
        "logs": [{"level": "info", "msg": f"line {n}", "ts": at + n} for n in range(5)],
        "timeline": [{"ts": at, "from": "waiting", "to": "running", "reason": "claimed"}],
        "error": None,
        "app": "bench",
        "environment": "e",
        "workerId": "w",
        "startedAt": at,
        "endedAt": at + 2000,
        "durationMs": 2000,
    }


_counter = int(time.time() * 1_000_000) << 56


def fresh_ids(number: int) -> list[str]:
    """Make ids that sort by time."""
    global _counter
    first, _counter = _counter, _counter + number
    return [str(uuid.UUID(int=first + n)) for n in range(number)]


class Figures:
    """Collects and prints."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    async def take(self, name: str, number: int, work: Callable[[], Awaitable[None]]) -> float:
        """Run *work* and give its best rate."""
        best, cpu = 0.0, 0.0
        for _ in range(self._rounds):
            wall, own = time.perf_counter(), time.process_time()
            await work()
            wall, own = time.perf_counter() - wall, time.process_time() - own
            if number / wall > best:
                best, cpu = number / wall, own / number * 1e6
        print(f"{name:<58} {best:>10,.0f}/s {cpu:>8.1f} µs CPU")
        return best


@contextlib.asynccontextmanager
async def server(url: str | None) -> AsyncIterator[str]:
    """Give a server to measure on."""
    if url is not None:
        yield url
        return
    settings = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
    with postgres_server(settings=settings, durable=True) as running:
        yield running.url()


async def copy_rows(
    connection: psycopg.AsyncConnection[Any], table: str, rows: Sequence[tuple[Any, ...]]
) -> None:
    """Write rows with COPY, a thousand at a time: what a hand-written loader does."""
    sql = (
        f"COPY public.{table} (project, environment, namespace, record_kind, id, value, "
        "inserted_at) FROM STDIN"
    )
    for start in range(0, len(rows), 1000):
        async with connection.cursor() as cursor, cursor.copy(sql.encode()) as copy:
            for row in rows[start : start + 1000]:
                await copy.write_row(row)


async def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    prefix = f"bench{uuid.uuid4().hex[:8]}"
    async with server(options.url) as url:
        settings = PostgresSettings(url=url, table_prefix=prefix)
        async with (
            connect(settings) as connection,
            open_durable(connection, PlaneContext(Scope("bench", "e"))) as plane,
            await psycopg.AsyncConnection.connect(url, autocommit=True) as floor,
        ):
            await measure(plane, floor, prefix, options.rows, Figures(options.rounds))
            for table in ("records", "jobs", "runs", "meta"):
                await floor.execute(f"DROP TABLE public.{prefix}_{table}".encode())


async def measure(  # noqa: C901, PLR0915 - one figure after the other
    plane: Any,
    floor: psycopg.AsyncConnection[Any],
    prefix: str,
    rows: int,
    figures: Figures,
) -> None:
    """Measure one figure after the other."""

    async def copy(table: str, namespace: str, kind: str, make: Any) -> None:
        now = int(time.time() * 1000)
        await copy_rows(
            floor,
            f"{prefix}_{table}",
            [
                ("bench", "e", namespace, kind, id_, orjson.dumps(make(id_)).decode(), now)
                for id_ in fresh_ids(rows)
            ],
        )

    async def insert(namespace: str, make: Any) -> None:
        for _ in range(rows // 1000):
            results = await plane.write(
                [Insert(namespace, id_, make(id_)) for id_ in fresh_ids(1000)], returning=()
            )
            assert all(results)

    for table, namespace, kind, make in (
        ("jobs", "queue_job:emails", "job", job),
        ("runs", "runs", "run", run_record),
    ):
        base = await figures.take(
            f"COPY of {table}, 1,000 rows a statement",
            rows,
            lambda: copy(table, namespace, kind, make),  # noqa: B023 - awaited at once
        )
        ours = await figures.take(
            f"Insert of {table}, batches of 1,000",
            rows,
            lambda: insert(namespace, make),  # noqa: B023 - awaited at once
        )
        print(f"{'  that is':<58} {ours / base:>10.0%} of COPY")

    async def claimed(size: int, number: int, fields: Sequence[str] | None) -> None:
        page = await plane.query(
            Query(
                namespace="queue_job:emails",
                where=[("status", "=", "waiting")],
                limit=number,
                fields=(),
            )
        )
        ids = [record.id for record in page]
        for start in range(0, len(ids), size):
            results = await plane.write(
                [
                    Patch(
                        "queue_job:emails",
                        id_,
                        set={"status": "active", "leaseToken": 1, "workerId": "w", "runId": id_},
                        increment={"attemptMade": 1},
                        expect={"status": "waiting"},
                    )
                    for id_ in ids[start : start + size]
                ],
                returning=fields,
            )
            assert all(results)

    for size, number in ((500, 5000), (50, 5000), (1, 500)):
        await figures.take(
            f"claim mark (guarded patch, whole value back), {size} a batch",
            number,
            lambda: claimed(size, number, None),  # noqa: B023 - awaited at once
        )

    async def completed(size: int, number: int) -> None:
        page = await plane.query(
            Query(namespace="queue_job:emails", where=[("leaseToken", "=", 1)], limit=number)
        )
        ids = [record.id for record in page]
        for start in range(0, len(ids), size):
            part = ids[start : start + size]
            results = await plane.write(
                [
                    Patch(
                        "queue_job:emails",
                        id_,
                        set={"status": "completed", "finishedAt": 1, "leaseToken": 2},
                        expect={"status": "active", "leaseToken": 1},
                        expires_at=4_000_000_000_000,
                    )
                    for id_ in part
                ],
                returning=(),
            )
            assert all(results)

    await figures.take(
        "completion (guarded patch with expiry), 50 a batch", 3000, lambda: completed(50, 3000)
    )

    async def dead(number: int) -> None:
        page = await plane.query(Query(namespace="queue_job:emails", limit=number))
        for record in page:
            await plane.write(
                [
                    Delete("queue_job:emails", record.id),
                    Insert("queue_dlq:emails", record.id, record.value),
                ],
                atomic=True,
                returning=(),
            )

    await figures.take("dead letter (atomic delete and insert), one by one", 300, lambda: dead(300))

    async def single(number: int, tasks: int) -> None:
        ids = iter(fresh_ids(number))

        async def one() -> None:
            for id_ in ids:
                await plane.write([Insert("queue_job:single", id_, job(id_))], returning=())

        await asyncio.gather(*(one() for _ in range(tasks)))

    for tasks in (1, 20):
        await figures.take(
            f"single inserts from {tasks} tasks, one statement each",
            1000,
            lambda: single(1000, tasks),  # noqa: B023 - awaited at once
        )

    async def one_row(number: int) -> None:
        for id_ in fresh_ids(number):
            await floor.execute(
                f"INSERT INTO public.{prefix}_jobs (project, environment, namespace, "  # noqa: S608 - our own prefix
                "record_kind, id, value, inserted_at) VALUES "
                "('bench', 'e', 'queue_job:floor', 'job', %s, %s, 1)".encode(),
                (id_, orjson.dumps(job(id_)).decode()),
            )

    await figures.take("  floor: one row at a time with psycopg", 1000, lambda: one_row(1000))

    async def get(number: int) -> None:
        page = await plane.query(Query(namespace="queue_job:emails", limit=number, fields=()))
        ids = [record.id for record in page]
        for start in range(0, number, 100):
            await plane.get("queue_job:emails", ids[start : start + 100])

    await figures.take("get, 100 ids a call, values not decoded", 5000, lambda: get(5000))

    async def pages(number: int) -> None:
        for _ in range(number):
            await plane.query(
                Query(
                    kind="run",
                    where=[("status", "=", "completed")],
                    order_by=[("startedAt", "desc")],
                )
            )

    await figures.take("page of 50 runs by status, latest first", 200, lambda: pages(200))


if __name__ == "__main__":
    asyncio.run(main())
