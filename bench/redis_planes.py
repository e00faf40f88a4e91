"""
What the Redis planes cost the client: CPU per job of each step of a job's life.

Starts a server of its own. Prints one line per step: microseconds of this process's
CPU per job, and jobs per second.

    python bench/redis_planes.py [--jobs 20000] [--batch 100] [--uvloop]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from oqron_core.planes import Entry, Insert, Patch, PlaneContext, Scope, encode
from oqron_core.testing import servers
from oqron_redis import BACKEND, RedisSettings, open_durable, open_hot


QUEUE = "emails"
JOBS = f"queue_job:{QUEUE}"
PAYLOAD = {
    "to": "someone@example.com",
    "subject": "Your order has been shipped",
    "lines": [{"sku": f"SKU-{n:05}", "count": n, "price": n * 1.25} for n in range(9)],
    "notes": "x" * 130,
}


def job(id_: str, now: int, data: Any) -> dict[str, Any]:
    """Give a job as the protocol writes it: 24 fields."""
    return {
        "id": id_, "queueName": QUEUE, "status": "waiting", "data": data,
        "opts": {"backoff": {"kind": "exponential", "delay": 1000}}, "attemptMade": 0,
        "maxAttempts": 3, "priority": 0, "runAt": None, "createdAt": now,
        "processedOn": None, "startedAt": None, "finishedAt": None, "workerId": None,
        "leaseToken": None, "leaseMs": None, "runId": None, "progressPercent": 0,
        "returnValue": None, "error": None, "stacktrace": None, "tags": [],
        "correlationId": None, "version": 1,
    }  # fmt: skip


def run(id_: str, now: int, data: Any) -> dict[str, Any]:
    """Give a run as the protocol writes it: 20 fields."""
    return {
        "id": f"r{id_}", "name": QUEUE, "module": "queue", "status": "completed",
        "trigger": "queue", "input": data, "output": {"delivered": True}, "attempts": 1,
        "progressPercent": 100, "logs": [], "timeline": [{"ts": now, "from": "waiting", "to": "running"}],
        "error": None, "app": "bench", "environment": "bench", "workerId": "w1",
        "startedAt": now, "endedAt": now + 5, "durationMs": 5, "jobId": id_, "queueName": QUEUE,
    }  # fmt: skip


async def measure(
    name: str, jobs: int, step: Callable[[], Awaitable[Any]], total: dict[str, float]
) -> None:
    """Run one step of all jobs and print what it took."""
    cpu, wall = time.process_time(), time.perf_counter()
    await step()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    total["cpu"] += cpu
    total["wall"] += wall
    sys.stdout.write(f"{name:<34}{cpu / jobs * 1e6:8.1f} µs/job {jobs / wall:10.0f} jobs/s\n")


async def life(jobs: int, batch: int) -> None:
    """Take jobs through their life, step by step."""
    with servers.redis_server() as server:
        settings = RedisSettings(url=server.url)
        context = PlaneContext(Scope("bench", "bench"))
        async with (
            BACKEND.connect(settings) as store,
            open_hot(store, context) as hot,
            open_durable(store, context) as durable,
        ):
            now = await hot.now()
            ids = [f"0192f0c0-0000-7000-8000-{n:012}" for n in range(jobs)]
            payloads: list[Any] = []
            total = {"cpu": 0.0, "wall": 0.0}

            def memory() -> int:
                info = str(server.command("INFO", "memory"))
                return int(info.split("used_memory:")[1].split()[0])

            empty = memory()

            async def insert() -> None:
                for start in range(0, jobs, 1000):
                    step = ids[start : start + 1000]
                    writes = [Insert(JOBS, id_, job(id_, now, encode(PAYLOAD))) for id_ in step]
                    assert all(await durable.write(writes, returning=()))

            async def publish() -> None:
                for start in range(0, jobs, 1000):
                    await hot.broker.publish(QUEUE, [Entry(i) for i in ids[start : start + 1000]])

            await measure("insert jobs (1000 a call)", jobs, insert, total)
            await measure("publish (1000 a call)", jobs, publish, total)
            waiting = memory() - empty
            leases: list[Any] = []

            async def claim() -> None:
                while found := await hot.broker.claim(
                    QUEUE, owner="w1", lease_for=60.0, limit=batch
                ):
                    leases.extend(found)

            await measure(f"claim ({batch} a call)", jobs, claim, total)

            async def start() -> None:
                for first in range(0, jobs, batch):
                    writes = [
                        Patch(
                            JOBS, lease.id,
                            set={"status": "active", "leaseToken": str(lease.token), "workerId": "w1",
                                 "runId": "r" + lease.id, "startedAt": now, "leaseMs": 60000},
                            increment={"attemptMade": 1},
                            expect={"status": "waiting"},
                        )
                        for lease in leases[first : first + batch]
                    ]  # fmt: skip
                    for result in await durable.write(writes):
                        record = result.record
                        assert record is not None
                        assert record.field("status") == "active"
                        payloads.append(record.encoded("data"))

            await measure("patch to active, whole record back", jobs, start, total)

            async def finish() -> None:
                for first in range(0, jobs, batch):
                    writes = [
                        Patch(
                            JOBS, lease.id,
                            set={"status": "completed", "finishedAt": now, "returnValue": {"delivered": True}},
                            expect={"status": "active", "leaseToken": str(lease.token)},
                            expires_at=now + 3_600_000,
                        )
                        for lease in leases[first : first + batch]
                    ]  # fmt: skip
                    assert all(await durable.write(writes, returning=()))

            await measure("patch to completed", jobs, finish, total)

            async def ack() -> None:
                for first in range(0, jobs, batch):
                    assert all(await hot.broker.ack(leases[first : first + batch]))

            await measure("ack", jobs, ack, total)
            before_runs = memory()

            async def record() -> None:
                for first in range(0, jobs, batch):
                    writes = [
                        Insert("runs", f"r{lease.id}", run(lease.id, now, payload))
                        for lease, payload in zip(
                            leases[first : first + batch],
                            payloads[first : first + batch],
                            strict=True,
                        )
                    ]
                    assert all(await durable.write(writes, returning=()))

            await measure(f"insert runs ({batch} a call)", jobs, record, total)
            finished, run_size = before_runs - empty, memory() - before_runs
            sys.stdout.write(
                f"{'all':<34}{total['cpu'] / jobs * 1e6:8.1f} µs/job "
                f"{jobs / total['wall']:10.0f} jobs/s\n"
                f"memory: {waiting // jobs} bytes per waiting job, {finished // jobs} per "
                f"finished job, {run_size // jobs} per run\n"
            )

            async def adds() -> None:
                queue = iter(range(jobs))

                async def one() -> None:
                    for n in queue:
                        key = f"s{ids[n]}"
                        value = job(key, now, encode(PAYLOAD))
                        await durable.write([Insert("queue_job:s", key, value)], returning=())
                        await hot.broker.publish("s", [Entry(key)])

                await asyncio.gather(*(one() for _ in range(20)))

            await measure("single adds, 20 tasks", jobs, adds, total)


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--uvloop", action="store_true")
    arguments = parser.parse_args()
    factory = uvloop.new_event_loop if arguments.uvloop else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(life(arguments.jobs, arguments.batch))


if __name__ == "__main__":
    main()
