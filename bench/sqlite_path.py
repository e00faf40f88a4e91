"""
The whole path of a job in one SQLite file, beside the same writes by hand.

    python bench/sqlite_path.py [--jobs 10000] [--rounds 3] [--folder DIR] [--profile]

Adds jobs in bulk, claims a hundred at a time, completes them and waits until the
full history of every run is in the file. The floor does the same writes with
nothing but sqlite3, on the same tables with the same indexes and settings: a row
for the job and one in the queue; a lease and an update for a claim; an update, the
end of the lease and a row of history for a completion, a transaction for each
hundred. It checks nothing, guards nothing and knows no types. Both run in turn, in
the same folder, so the ratio holds on a busy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import sqlite3
import statistics
import sys
import tempfile
import time

from collections.abc import Callable
from pathlib import Path

import attrs
import orjson

from oqron_core import Query, open_storage


PAYLOAD = {
    "to": "someone@example.com",
    "template": "welcome",
    "locale": "en",
    "attempt": 1,
    "ratio": 0.25,
    "tags": ["new", "trial"],
    "body": "x" * 430,
}
BULK = 1000
CLAIM = 100


@attrs.frozen
class Times:
    """
    What adding and working took.

    Attributes:
        add: Seconds.
        work: Seconds.
        cpu: Seconds of CPU of all threads, for both.
    """

    add: float
    work: float
    cpu: float


async def oqron(jobs: int, path: Path, *, one_by_one: bool) -> Times:
    """Give seconds for adding, and for working the jobs."""
    async with open_storage(
        mode="sqlite", project="bench", environment="bench", sqlite={"path": str(path)}
    ) as storage:
        start, cpu = time.perf_counter(), time.process_time()
        await storage.jobs.add_many("bench", [PAYLOAD] * jobs)
        added = time.perf_counter()
        done = 0
        while claims := await storage.jobs.claim("bench", limit=CLAIM):
            if one_by_one:
                await asyncio.gather(*[storage.jobs.complete(c, {"ok": True}) for c in claims])
            else:
                await storage.jobs.complete_many([(c, {"ok": True}) for c in claims])
            done += len(claims)
        await storage.runs.flush()
        end, cpu = time.perf_counter(), time.process_time() - cpu
        assert done == jobs, (done, jobs)
        history = Query(namespace="runs", where=[("status", "=", "completed")])
        found = await storage.durable.count(history)
        assert found == jobs, (found, jobs)
    return Times(added - start, end - added, cpu)


# --- by hand ---------------------------------------------------------------------


def _job(job_id: str, now: int) -> dict[str, object]:
    return {
        "id": job_id, "queueName": "bench", "status": "waiting", "data": PAYLOAD,
        "attemptMade": 0, "maxAttempts": 3, "priority": 0, "runAt": None,
        "createdAt": now, "processedOn": None, "startedAt": None, "finishedAt": None,
        "workerId": None, "leaseToken": None, "leaseMs": None, "runId": None,
        "progressPercent": 0, "returnValue": None, "error": None, "stacktrace": [],
        "tags": [], "correlationId": None,
    }  # fmt: skip


def _run(job: dict[str, object], now: int) -> dict[str, object]:
    return {
        "id": job["runId"], "name": "bench", "module": "queue", "status": "completed",
        "trigger": "queue", "input": job["data"], "output": {"ok": True}, "attempts": 1,
        "progressPercent": 100, "logs": [],
        "timeline": [{"ts": now, "to": "running"}, {"ts": now, "to": "completed"}],
        "error": None, "app": "bench", "environment": "bench", "workerId": "w",
        "startedAt": job["startedAt"], "endedAt": now, "durationMs": 0,
        "jobId": job["id"], "queueName": "bench",
    }  # fmt: skip


INSERT = "INSERT INTO {} VALUES ('bench', 'hand', ?, ?, ?, ?, ?, NULL)"
UPDATE = (
    "UPDATE oqron_jobs SET value = ? WHERE project = 'bench' AND environment = 'hand' "
    "AND namespace = 'queue_job:bench' AND id = ?"
)
PUBLISH = "INSERT INTO oqron_hot_entries VALUES (0, 'bench', ?, 0, 0, ?, NULL, 0, '', 0)"
READY = (
    "SELECT id FROM oqron_hot_entries WHERE scope = 0 AND queue = 'bench' AND at IS NULL "
    "ORDER BY priority, seq LIMIT ?"
)
LEASE = (
    "UPDATE oqron_hot_entries SET leased = 1, at = ?, token = ?, owner = 'w', "
    "deliveries = 1 WHERE scope = 0 AND queue = 'bench' AND id = ?"
)
GET = (
    "SELECT value FROM oqron_jobs WHERE project = 'bench' AND environment = 'hand' "
    "AND namespace = 'queue_job:bench' AND id = ?"
)
ACK = "DELETE FROM oqron_hot_entries WHERE scope = 0 AND queue = 'bench' AND id = ?"


def _text(value: object) -> str:
    return orjson.dumps(value).decode()


def floor(jobs: int, path: Path) -> Times:
    """Give the same for sqlite3 alone, on the tables that are there."""
    driver = sqlite3.connect(path, isolation_level=None)
    driver.execute("PRAGMA synchronous = normal")
    driver.execute("PRAGMA cache_size = -16384")
    start, cpu = time.perf_counter(), time.process_time()
    for first in range(0, jobs, BULK):
        _add(driver, first, min(first + BULK, jobs))
    added = time.perf_counter()
    token = 0
    while active := _claim(driver, token):
        token += len(active)
        _complete(driver, active)
    end, cpu = time.perf_counter(), time.process_time() - cpu
    where = "WHERE project = 'bench' AND environment = 'hand'"
    [found] = driver.execute(f"SELECT count(*) FROM oqron_runs {where}").fetchone()  # noqa: S608 - of constants
    assert found == jobs, (found, jobs)
    driver.close()
    return Times(added - start, end - added, cpu)


def _add(driver: sqlite3.Connection, first: int, end: int) -> None:
    now = time.time_ns() // 1_000_000
    ids = [f"job-{n:012d}" for n in range(first, end)]
    driver.execute("BEGIN IMMEDIATE")
    driver.executemany(
        INSERT.format("oqron_jobs"),
        [("queue_job:bench", "job", one, _text(_job(one, now)), now) for one in ids],
    )
    driver.executemany(PUBLISH, [(one, first + n) for n, one in enumerate(ids)])
    driver.execute("COMMIT")


def _claim(driver: sqlite3.Connection, token: int) -> list[dict[str, object]]:
    driver.execute("BEGIN IMMEDIATE")
    now = time.time_ns() // 1_000_000
    ids = [row[0] for row in driver.execute(READY, (CLAIM,))]
    leases = [(now + 30_000, token + n, one) for n, one in enumerate(ids, 1)]
    driver.executemany(LEASE, leases)
    active = []
    for _, mine, one in leases:
        job = orjson.loads(driver.execute(GET, (one,)).fetchone()[0])
        job |= {"status": "active", "leaseToken": mine, "workerId": "w"}
        job |= {"runId": f"run-{mine:012d}", "startedAt": now, "attemptMade": 1}
        active.append(job)
    driver.executemany(UPDATE, [(_text(job), job["id"]) for job in active])
    driver.execute("COMMIT")
    return active


def _complete(driver: sqlite3.Connection, active: list[dict[str, object]]) -> None:
    now = time.time_ns() // 1_000_000
    driver.execute("BEGIN IMMEDIATE")
    for job in active:
        job |= {"status": "completed", "returnValue": {"ok": True}, "finishedAt": now}
    driver.executemany(UPDATE, [(_text(job), job["id"]) for job in active])
    driver.executemany(ACK, [(job["id"],) for job in active])
    driver.executemany(
        INSERT.format("oqron_runs"),
        [("runs", "run", job["runId"], _text(_run(job, now)), now) for job in active],
    )
    driver.execute("COMMIT")


# --- figures ---------------------------------------------------------------------


def report(name: str, rows: list[Times], jobs: int) -> Times:
    """Print a line of medians, and give them back."""
    found = Times(
        statistics.median(row.add for row in rows) / jobs,
        statistics.median(row.work for row in rows) / jobs,
        statistics.median(row.cpu for row in rows) / jobs,
    )
    sys.stdout.write(
        f"{name:<36} {1 / found.add:9,.0f} added/s {1 / found.work:9,.0f} worked/s, "
        f"history included; {found.cpu * 1e6:5.0f} µs of CPU per job\n"
    )
    return found


def _in_turn(jobs: int, rounds: int, folder: str | None) -> None:
    single, batch, hand = [], [], []
    for number in range(rounds):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            paths = [Path(name, f"{number}-{way}.db") for way in "abc"]
            # The floor takes the tables as the backend makes them.
            asyncio.run(_make_tables(paths[0]))
            hand.append(floor(jobs, paths[0]))
            single.append(asyncio.run(oqron(jobs, paths[1], one_by_one=True)))
            batch.append(asyncio.run(oqron(jobs, paths[2], one_by_one=False)))
    base = report("sqlite3, by hand", hand, jobs)
    one = report("oqron, complete() a hundred at once", single, jobs)
    many = report("oqron, complete_many()", batch, jobs)
    sys.stdout.write(
        f"times the floor: adding {many.add / base.add:.1f}, working "
        f"{one.work / base.work:.1f} and {many.work / base.work:.1f}, CPU "
        f"{one.cpu / base.cpu:.1f} and {many.cpu / base.cpu:.1f}\n"
    )


async def _make_tables(path: Path) -> None:
    async with open_storage(mode="sqlite", sqlite={"path": str(path)}):
        pass


def _profiled(call: Callable[[], object]) -> None:
    profile = cProfile.Profile()
    profile.runcall(call)
    pstats.Stats(profile).sort_stats("tottime").print_stats(25)


def main() -> None:
    """Run both in turn and print medians and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where the files are; the disk matters")
    parser.add_argument("--profile", action="store_true", help="show where the loop's time goes")
    options = parser.parse_args()
    if options.profile:
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            path = Path(name, "oqron.db")
            _profiled(lambda: asyncio.run(oqron(options.jobs, path, one_by_one=False)))
        return
    _in_turn(options.jobs, options.rounds, options.folder)


if __name__ == "__main__":
    main()
