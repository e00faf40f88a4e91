"""
The whole path of a job in memory mode, beside the same loop on a dict and a heap.

    python bench/memory_path.py [--jobs 20000] [--rounds 5] [--profile]

Adds jobs in bulk, claims a hundred at a time, completes them and waits until the
full history of every run is durable. The floor does the same work by hand with
the same encoder: a job record, a lease, a result, a run record, all as JSON in a
dict, and a heap for the order; it has no expiry, guards, limits, queries, threads
or faults to think of. Both run in turn, so the ratio holds on a busy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import heapq
import pstats
import statistics
import sys
import time

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
CLAIM = 100


async def oqron(jobs: int, *, one_by_one: bool) -> tuple[float, float]:
    """Give CPU seconds for adding, and for working the jobs."""
    async with open_storage(mode="memory", project="bench", environment="bench") as storage:
        start = time.process_time()
        await storage.jobs.add_many("bench", [PAYLOAD] * jobs)
        added = time.process_time()
        done = 0
        while claims := await storage.jobs.claim("bench", limit=CLAIM):
            if one_by_one:
                await asyncio.gather(*[storage.jobs.complete(c, {"ok": True}) for c in claims])
            else:
                await storage.jobs.complete_many([(c, {"ok": True}) for c in claims])
            done += len(claims)
        await storage.runs.flush()
        end = time.process_time()
        assert done == jobs, (done, jobs)
        history = await storage.durable.count(_all_runs())
        assert history == jobs, (history, jobs)
    return added - start, end - added


def _all_runs() -> Query:
    return Query(namespace="runs", where=[("status", "=", "completed")])


def floor(jobs: int) -> tuple[float, float]:
    """Give the same for a dict and a heap."""
    records: dict[str, bytes] = {}
    runs: dict[str, bytes] = {}
    leases: dict[str, tuple[int, float]] = {}
    heap: list[tuple[int, int, str]] = []
    start = time.process_time()
    for n in range(jobs):
        job_id = f"job-{n:012d}"
        now = time.time_ns() // 1_000_000
        records[job_id] = orjson.dumps(
            {
                "id": job_id, "queueName": "bench", "status": "waiting", "data": PAYLOAD,
                "attemptMade": 0, "maxAttempts": 3, "priority": 0, "runAt": None,
                "createdAt": now, "processedOn": None, "startedAt": None,
                "finishedAt": None, "workerId": None, "leaseToken": None,
                "leaseMs": None, "runId": None, "progressPercent": 0,
                "returnValue": None, "error": None, "stacktrace": [], "tags": [],
                "correlationId": None,
            }
        )  # fmt: skip
        heapq.heappush(heap, (0, n, job_id))
    added = time.process_time()
    token = 0
    while heap:
        batch = []
        for _ in range(min(CLAIM, len(heap))):
            _, _, job_id = heapq.heappop(heap)
            token += 1
            leases[job_id] = (token, time.monotonic() + 30)
            job = orjson.loads(records[job_id])
            now = time.time_ns() // 1_000_000
            job |= {
                "status": "active", "leaseToken": token, "leaseMs": 30_000, "workerId": "w",
                "runId": f"run-{token}", "processedOn": now, "startedAt": now,
                "attemptMade": job["attemptMade"] + 1,
            }  # fmt: skip
            records[job_id] = orjson.dumps(job)
            batch.append(job)
        for job in batch:
            now = time.time_ns() // 1_000_000
            job |= {
                "status": "completed", "returnValue": {"ok": True}, "finishedAt": now,
                "progressPercent": 100,
            }  # fmt: skip
            records[job["id"]] = orjson.dumps(job)
            del leases[job["id"]]
            runs[job["runId"]] = orjson.dumps(
                {
                    "id": job["runId"], "name": "bench", "module": "queue",
                    "status": "completed", "trigger": "queue", "input": job["data"],
                    "output": {"ok": True}, "attempts": 1, "progressPercent": 100,
                    "logs": [], "timeline": [{"ts": job["processedOn"], "to": "running"},
                                             {"ts": now, "to": "completed"}],
                    "error": None, "app": "bench", "environment": "bench",
                    "workerId": "w", "startedAt": job["processedOn"], "endedAt": now,
                    "durationMs": now - job["processedOn"], "jobId": job["id"],
                    "queueName": "bench",
                }
            )  # fmt: skip
    end = time.process_time()
    assert len(runs) == jobs
    return added - start, end - added


def report(name: str, rows: list[tuple[float, float]], jobs: int) -> float:
    """Print a line; give the median CPU microseconds per job."""
    add = statistics.median(add for add, _ in rows) / jobs * 1e6
    work = statistics.median(work for _, work in rows) / jobs * 1e6
    total = statistics.median(add + work for add, work in rows) / jobs * 1e6
    sys.stdout.write(
        f"{name:<34} add {add:6.1f}  claim to history {work:6.1f}  "
        f"whole {total:6.1f} µs of CPU per job  {1e6 / total:9,.0f} jobs/s\n"
    )
    return total


def main() -> None:
    """Run both in turn and print medians and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="show where the time goes")
    options = parser.parse_args()
    if options.profile:
        profile = cProfile.Profile()
        profile.runcall(asyncio.run, oqron(options.jobs, one_by_one=True))
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    single, batch, hand = [], [], []
    for _ in range(options.rounds):
        hand.append(floor(options.jobs))
        single.append(asyncio.run(oqron(options.jobs, one_by_one=True)))
        batch.append(asyncio.run(oqron(options.jobs, one_by_one=False)))
    base = report("dict and heap, by hand", hand, options.jobs)
    one = report("oqron, complete() a hundred at once", single, options.jobs)
    many = report("oqron, complete_many()", batch, options.jobs)
    sys.stdout.write(f"ratio to the floor: {one / base:.1f} and {many / base:.1f}\n")


if __name__ == "__main__":
    main()
