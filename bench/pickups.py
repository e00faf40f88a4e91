"""
How long a job takes from whoever adds it to whoever waits for one, in mode ``redis``.

    python bench/pickups.py [--rounds 5] [--times 200]

Beside ``RPUSH`` to ``BLPOP``, in turn, on a server of its own: with the two ends in two
processes, as an application and its worker are, and with both in one loop.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import multiprocessing
import statistics
import sys
import time

from collections.abc import AsyncIterator, Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any, Final, Protocol

import attrs

from redis.asyncio import Redis

from oqron_core import open_storage
from oqron_core.testing import servers


__all__ = ["OUTPUT", "QUEUE", "Oqron", "Popped", "Side", "between_processes", "in_one_process"]

QUEUE: Final = "bench"
OUTPUT: Final = {"ok": True}
_IDLE: Final = 0.004
"""Seconds until whoever waits waits indeed, and everything has grown cold."""


class Side(Protocol):
    """How one is added and taken."""

    def adder(self) -> contextlib.AbstractAsyncContextManager[Callable[[], Awaitable[Any]]]:
        """Open what adds one."""
        ...

    def taker(self) -> contextlib.AbstractAsyncContextManager[Callable[[], Awaitable[float]]]:
        """Open what waits for one, deals with it, and gives the instant at which it was there."""
        ...


@attrs.frozen
class Popped:
    """``RPUSH`` to ``BLPOP``."""

    url: str

    @contextlib.asynccontextmanager
    async def adder(self) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
        """Push."""
        async with Redis.from_url(self.url) as redis:
            yield lambda: redis.rpush("hand:bare", b"1")

    @contextlib.asynccontextmanager
    async def taker(self) -> AsyncIterator[Callable[[], Awaitable[float]]]:
        """Pop."""
        async with Redis.from_url(self.url) as redis:

            async def take() -> float:
                await redis.blpop(["hand:bare"], timeout=5)
                return time.perf_counter()

            yield take


@attrs.frozen
class Oqron:
    """`add` of one storage to `claim` of another."""

    settings: dict[str, Any]
    payload: Any

    @contextlib.asynccontextmanager
    async def adder(self) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
        """Add."""
        async with open_storage(**self.settings) as storage:
            yield lambda: storage.jobs.add(QUEUE, self.payload)

    @contextlib.asynccontextmanager
    async def taker(self) -> AsyncIterator[Callable[[], Awaitable[float]]]:
        """Claim, then complete."""
        async with open_storage(**self.settings) as storage:

            async def take() -> float:
                (claim,) = await storage.jobs.claim(QUEUE, wait=5.0)
                taken = time.perf_counter()
                await storage.jobs.complete(claim, OUTPUT)
                return taken

            yield take


async def in_one_process(side: Side, times: int) -> list[float]:
    """Give the seconds of each, where both ends are of one process and loop."""
    took: list[float] = []
    async with side.adder() as add, side.taker() as take:
        for _ in range(times):
            waiting = asyncio.ensure_future(take())
            await asyncio.sleep(_IDLE)
            start = time.perf_counter()
            adding = asyncio.ensure_future(add())
            took.append(await waiting - start)
            await adding
    return took


async def between_processes(side: Side, times: int) -> list[float]:
    """Do the same where whoever waits is another process, as a worker is."""
    took: list[float] = []
    loop = asyncio.get_running_loop()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    taker = context.Process(target=_take, args=(side, times, there, type(loop)))
    taker.start()
    try:
        async with side.adder() as add:
            await loop.run_in_executor(None, here.recv)
            for _ in range(times):
                await asyncio.sleep(_IDLE)
                start = time.perf_counter()
                await add()
                took.append(await loop.run_in_executor(None, here.recv) - start)
    finally:
        taker.join(10)
        taker.terminate()
    return took


def _take(side: Side, times: int, there: Connection, loop: type[asyncio.AbstractEventLoop]) -> None:
    # As in the process that measures: see `modes_path`.
    logging.getLogger("oqron").setLevel(logging.ERROR)
    gc.collect()
    gc.freeze()

    async def main() -> None:
        async with side.taker() as take:
            there.send(None)
            for _ in range(times):
                there.send(await take())

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


async def run(url: str, rounds: int, times: int) -> None:
    """Print the medians of each round."""
    settings = {
        "mode": "redis",
        "project": "bench",
        "environment": "pickups",
        "redis": {"url": url},
    }
    for _ in range(rounds):
        for words, measured in (("two", between_processes), ("one", in_one_process)):
            bare = statistics.median(await measured(Popped(url), times)) * 1e6
            ours = statistics.median(await measured(Oqron(settings, "x" * 600), times)) * 1e6
            line = f"{words}: {ours:6.0f} µs, a bare pop {bare:6.0f} µs, {ours / bare:.2f} times"
            sys.stdout.write(f"{line}\n")


def main() -> None:
    """Read the arguments and run."""
    logging.getLogger("oqron").setLevel(logging.ERROR)
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--times", type=int, default=200)
    arguments = parser.parse_args()
    gc.collect()
    gc.freeze()
    with servers.redis_server() as server:
        asyncio.run(run(server.url, arguments.rounds, arguments.times))


if __name__ == "__main__":
    main()
