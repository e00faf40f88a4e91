"""
How quickly work is picked up from Redis, and what single calls reach, beside bare redis-py.

Starts a server of its own. Two comparisons in one run: publish to claim (through
`Broker.wait`) beside RPUSH to BLPOP, and the calls of 20 tasks beside one bare SET
each over a pool.

    python bench/redis_latency.py [--rounds 500] [--calls 10000] [--uvloop]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import uvloop

from pickups import Popped, in_one_process
from redis.asyncio import Redis

from oqron_core.planes import Entry, Insert, PlaneContext, Scope
from oqron_core.testing import servers
from oqron_redis import BACKEND, RedisSettings, open_durable, open_hot


TASKS = 20


def show(name: str, took: Sequence[float]) -> None:
    """Print the median and the 99th percentile."""
    ordered = sorted(took)
    p50, p99 = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
    sys.stdout.write(f"{name:<44}p50 {p50 * 1e3:6.2f} ms   p99 {p99 * 1e3:6.2f} ms\n")


async def pickup(url: str, rounds: int) -> None:
    """Publish by one store, wait and claim by another."""
    context = PlaneContext(Scope("bench", "bench"))
    took: list[float] = []
    async with (
        BACKEND.connect(RedisSettings(url=url)) as one,
        BACKEND.connect(RedisSettings(url=url)) as two,
        open_hot(one, context) as producer,
        open_hot(two, context) as consumer,
    ):

        async def take() -> None:
            assert await consumer.broker.wait(["q"], timeout=5.0)
            leases = await consumer.broker.claim("q", owner="w", lease_for=30.0)
            took.append(time.perf_counter() - started)
            assert await consumer.broker.ack(leases) == [True]

        for n in range(rounds):
            started = 0.0
            waiting = asyncio.ensure_future(take())
            await asyncio.sleep(0.002)
            started = time.perf_counter()
            await producer.broker.publish("q", [Entry(str(n))])
            await waiting
    show("publish to claim, through wait", took)


async def rate(name: str, calls: int, call: Callable[[int], Awaitable[Any]]) -> None:
    """Let the tasks make *calls* calls, one after the other each."""
    numbers = iter(range(calls))

    async def task() -> None:
        for n in numbers:
            await call(n)

    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(task() for _ in range(TASKS)))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    sys.stdout.write(f"{name:<44}{calls / wall:8.0f} /s {cpu / calls * 1e6:8.1f} µs CPU\n")


async def singles(url: str, calls: int) -> None:
    """Single calls of 20 tasks."""
    context = PlaneContext(Scope("bench", "singles"))
    async with Redis.from_url(url) as bare:
        await rate("bare SET over a pool", calls, lambda n: bare.set(f"k{n}", b"x" * 600))
    async with (
        BACKEND.connect(RedisSettings(url=url)) as store,
        open_hot(store, context) as hot,
        open_durable(store, context) as durable,
    ):
        value = {f"f{n}": None for n in range(22)} | {"status": "waiting", "data": "x" * 600}

        async def add(n: int) -> None:
            await durable.write([Insert("queue_job:q", str(n), value)], returning=())
            await hot.broker.publish("q", [Entry(str(n))])

        await rate("counters.increment", calls, lambda _: hot.counters.increment("c"))
        await rate(
            "broker.publish of one id", calls, lambda n: hot.broker.publish("p", [Entry(str(n))])
        )
        await rate("insert of a job and publish of its id", calls, add)


async def run(rounds: int, calls: int) -> None:
    """Do both."""
    with servers.redis_server() as server:
        show("RPUSH to BLPOP", await in_one_process(Popped(server.url), rounds))
        await pickup(server.url, rounds)
        await singles(server.url, calls)


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--uvloop", action="store_true")
    arguments = parser.parse_args()
    factory = uvloop.new_event_loop if arguments.uvloop else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run(arguments.rounds, arguments.calls))


if __name__ == "__main__":
    main()
