"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading


__all__ = ["ManualClock"]

_SETTLE_STEPS = 25


class ManualClock:
    """
    A clock for tests: nothing passes until it is told to.

    Safe to read from several threads; sleepers are woken in their own loops, in
    the order in which they are due.

    Args:
        at: Where it starts, milliseconds since the epoch.
    """

    def __init__(self, at: int = 1_750_000_000_000) -> None:
        self._micros = at * 1000
        self._lock = threading.Lock()
        self._order = itertools.count()
        self._sleepers: list[tuple[int, int, asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def now(self) -> int:
        """Milliseconds since the epoch."""
        return self._micros // 1000

    async def sleep(self, seconds: float) -> None:
        """Return once the clock has been moved by *seconds*."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        with self._lock:
            due = self._micros + round(seconds * 1_000_000)
            heapq.heappush(self._sleepers, (due, next(self._order), loop, woken))
        await woken

    def advance(self, seconds: float) -> None:
        """
        Move on at once; sleepers that are due run when their loop next does.

        Raises:
            ValueError: *seconds* is negative; time does not run backward.
        """
        if seconds < 0:
            msg = f"a clock does not run backward, but was moved by {seconds!r} seconds"
            raise ValueError(msg)
        self._move_to(self._micros + round(seconds * 1_000_000))

    def set(self, at: int) -> None:
        """
        Move on to an instant, milliseconds since the epoch.

        Raises:
            ValueError: It has passed already.
        """
        self.advance((at * 1000 - self._micros) / 1_000_000)

    async def elapse(self, seconds: float) -> None:
        """
        Move on by *seconds*, stopping wherever a sleeper is due to let it run.

        Whoever sleeps again meanwhile is woken again, as if time had passed.
        """
        end = self._micros + round(seconds * 1_000_000)
        await settle()
        while (due := self._next_due(end)) is not None:
            self._move_to(due)
            await settle()
        self._move_to(end)
        await settle()

    @property
    def sleepers(self) -> int:
        """How many sleep on this clock now."""
        with self._lock:
            return sum(1 for *_, woken in self._sleepers if not woken.done())

    def _next_due(self, end: int) -> int | None:
        with self._lock:
            while self._sleepers and self._sleepers[0][3].done():
                heapq.heappop(self._sleepers)
            if self._sleepers and self._sleepers[0][0] <= end:
                return self._sleepers[0][0]
        return None

    def _move_to(self, micros: int) -> None:
        with self._lock:
            self._micros = max(self._micros, micros)
            due = []
            while self._sleepers and self._sleepers[0][0] <= self._micros:
                due.append(heapq.heappop(self._sleepers))
        for _, _, loop, woken in due:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_wake, woken)


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


async def settle(steps: int = _SETTLE_STEPS) -> None:
    """Let everything run that is ready to, without time passing."""
    for _ in range(steps):
        await asyncio.sleep(0)
