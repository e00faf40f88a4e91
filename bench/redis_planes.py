"""
What the Redis planes cost the client: CPU per job of each step of a job's life.

Starts a server of its own. Prints one line per step: microseconds of this process's
CPU per job, and jobs per second.

    python bench/redis_planes.py [--jobs 20000] [--batch 100] [--uvloop] [--config …]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import uvloop

from oqron_core.planes import (
    DurablePlane,
    Entry,
    HotPlane,
    Insert,
    Json,
    Lease,
    Patch,
    PlaneContext,
    Scope,
    encode,
)
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
        "progressPercent": 100, "logs": [],
        "timeline": [{"ts": now, "from": "waiting", "to": "running"}],
        "error": None, "app": "bench", "environment": "bench", "workerId": "w1",
        "startedAt": now, "endedAt": now + 5, "durationMs": 5, "jobId": id_, "queueName": QUEUE,
    }  # fmt: skip


def used_memory(server: servers.RedisServer) -> int:
    """Give the bytes that the server uses."""
    info = str(server.command("INFO", "memory"))
    return int(info.partition("used_memory:")[2].split()[0])


class Life:
    """Jobs on their way, and what each step took."""

    def __init__(self, hot: HotPlane, durable: DurablePlane, jobs: int, batch: int) -> None:
        self.hot = hot
        self.durable = durable
        self.jobs = jobs
        self.batch = batch
        self.now = 0
        self.ids = [f"0192f0c0-0000-7000-8000-{n:012}" for n in range(jobs)]
        self.leases: list[Lease] = []
        self.payloads: list[Json] = []
        self.cpu = self.wall = 0.0

    async def measure(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        """Run one step of all jobs and print what it took."""
        cpu, wall = time.process_time(), time.perf_counter()
        await step()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        self.cpu += cpu
        self.wall += wall
        self.show(name, cpu, wall)

    def show(self, name: str, cpu: float, wall: float) -> None:
        """Print one line."""
        per_job = cpu / self.jobs * 1e6
        sys.stdout.write(f"{name:<36}{per_job:7.1f} µs/job {self.jobs / wall:9.0f} jobs/s\n")

    def steps(self) -> Iterator[Sequence[Lease]]:
        """Give the leases batch by batch."""
        for first in range(0, self.jobs, self.batch):
            yield self.leases[first : first + self.batch]

    async def insert(self) -> None:
        """Write the jobs, 1000 a call."""
        for first in range(0, self.jobs, 1000):
            ids = self.ids[first : first + 1000]
            writes = [Insert(JOBS, id_, job(id_, self.now, encode(PAYLOAD))) for id_ in ids]
            assert all(await self.durable.write(writes, returning=()))

    async def publish(self) -> None:
        """Make them claimable, 1000 a call."""
        for first in range(0, self.jobs, 1000):
            ids = self.ids[first : first + 1000]
            await self.hot.broker.publish(QUEUE, [Entry(id_) for id_ in ids])

    async def claim(self) -> None:
        """Lease all of them."""
        claim = self.hot.broker.claim
        while found := await claim(QUEUE, owner="w1", lease_for=60.0, limit=self.batch):
            self.leases.extend(found)

    async def start(self) -> None:
        """Mark them active, and get the whole records back."""
        for step in self.steps():
            writes = [
                Patch(
                    JOBS, lease.id,
                    set={"status": "active", "leaseToken": str(lease.token), "workerId": "w1",
                         "runId": "r" + lease.id, "startedAt": self.now, "leaseMs": 60000},
                    increment={"attemptMade": 1}, expect={"status": "waiting"},
                )
                for lease in step
            ]  # fmt: skip
            for result in await self.durable.write(writes):
                record = result.record
                assert record is not None
                assert record.field("status") == "active"
                self.payloads.append(record.encoded("data"))

    async def finish(self) -> None:
        """Mark them completed."""
        done = {"status": "completed", "finishedAt": self.now, "returnValue": {"delivered": True}}
        for step in self.steps():
            writes = [
                Patch(
                    JOBS,
                    lease.id,
                    set=done,
                    expect={"status": "active", "leaseToken": str(lease.token)},
                    expires_at=self.now + 3_600_000,
                )
                for lease in step
            ]
            assert all(await self.durable.write(writes, returning=()))

    async def ack(self) -> None:
        """Take them out of the queue."""
        for step in self.steps():
            assert all(await self.hot.broker.ack(step))

    async def record(self) -> None:
        """Write the runs."""
        payloads = iter(self.payloads)
        for step in self.steps():
            writes = [
                Insert("runs", f"r{lease.id}", run(lease.id, self.now, next(payloads)))
                for lease in step
            ]
            assert all(await self.durable.write(writes, returning=()))


async def life(jobs: int, batch: int, config: Sequence[str]) -> None:
    """Take jobs through their life, step by step."""
    context = PlaneContext(Scope("bench", "bench"))
    with servers.redis_server(args=config) as server:
        async with (
            BACKEND.connect(RedisSettings(url=server.url)) as store,
            open_hot(store, context) as hot,
            open_durable(store, context) as durable,
        ):
            all_of = Life(hot, durable, jobs, batch)
            all_of.now = await hot.now()
            empty = used_memory(server)
            await all_of.measure("insert jobs (1000 a call)", all_of.insert)
            await all_of.measure("publish (1000 a call)", all_of.publish)
            waiting = used_memory(server) - empty
            await all_of.measure(f"claim ({batch} a call)", all_of.claim)
            await all_of.measure("patch to active, whole record back", all_of.start)
            await all_of.measure("patch to completed", all_of.finish)
            await all_of.measure("ack", all_of.ack)
            finished = used_memory(server) - empty
            await all_of.measure(f"insert runs ({batch} a call)", all_of.record)
            runs = used_memory(server) - empty - finished
            all_of.show("all", all_of.cpu, all_of.wall)
            sys.stdout.write(
                f"bytes: {waiting // jobs} per waiting job, {finished // jobs} per finished "
                f"job, {runs // jobs} per run\n"
            )


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--uvloop", action="store_true")
    parser.add_argument("--config", nargs="*", default=[], help="name value … of the server")
    arguments = parser.parse_args()
    factory = uvloop.new_event_loop if arguments.uvloop else None
    with asyncio.Runner(loop_factory=factory) as runner:
        config = [word if place % 2 else f"--{word}" for place, word in enumerate(arguments.config)]
        runner.run(life(arguments.jobs, arguments.batch, config))


if __name__ == "__main__":
    main()
