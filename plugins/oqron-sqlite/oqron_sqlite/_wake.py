"""
Waking who waits: at once for what this process did, by looking for what others did.

SQLite tells nobody of a commit. What is cheap is to ask whether another connection
has committed anything (`PRAGMA data_version`), so that is asked, quickly at first and
then every ``poll_interval``, for as long as somebody waits.
"""

from __future__ import annotations

import asyncio
import sqlite3

from collections.abc import Hashable, Iterable
from typing import Any, Final

from oqron_core.exceptions import ClosedError, OqronError
from oqron_sqlite._lane import Lane


__all__ = ["Gate", "Hub", "Waker"]

_CLOSED: Final = "the plane was closed; open a storage again"
_FIRST_LOOK: Final = 0.002
_SLOWER: Final = 1.5


class Waker:
    """
    One coroutine that sleeps until something that it names is told of.

    Attributes:
        topics: What wakes it.
    """

    __slots__ = ("_event", "topics")

    def __init__(self, topics: Iterable[Hashable]) -> None:
        self.topics = frozenset(topics)
        self._event = asyncio.Event()

    def wake(self) -> None:
        """Wake it, now or before it falls asleep."""
        self._event.set()

    def rest(self) -> None:
        """Forget what woke it last; to be called before looking."""
        self._event.clear()

    async def sleep(self, seconds: float | None) -> None:
        """Sleep until woken, *seconds* at most; None for ever."""
        if seconds is None:
            await self._event.wait()
            return
        loop = asyncio.get_running_loop()
        timer = loop.call_later(seconds, self._event.set)
        try:
            await self._event.wait()
        finally:
            timer.cancel()


class Gate:
    """Whether a plane may still be used, and who sleeps in it."""

    __slots__ = ("_closed", "wakers")

    def __init__(self) -> None:
        self._closed = False
        self.wakers: set[Waker] = set()

    @property
    def closed(self) -> bool:
        """Whether the plane was closed."""
        return self._closed

    def check(self) -> None:
        """
        Pass, or refuse.

        Raises:
            ClosedError: The plane was closed.
        """
        if self._closed:
            raise ClosedError(_CLOSED)

    def close(self) -> None:
        """Refuse from now on, and wake who sleeps so that they hear of it."""
        self._closed = True
        for waker in [*self.wakers]:
            waker.wake()


class Hub:
    """Who waits for what in one file, and the looks on their behalf."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        lane.tell = self.tell
        self._loop = asyncio.get_running_loop()
        self._wakers: set[Waker] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._looking = False
        self._version: int | None = None
        self._pause = _FIRST_LOOK

    def enter(self, gate: Gate, waker: Waker) -> None:
        """Let *waker* hear of what is told from now on."""
        gate.wakers.add(waker)
        self._wakers.add(waker)
        self._pause = _FIRST_LOOK
        if self._timer is None and not self._looking:
            self._timer = self._loop.call_later(self._pause, self._look)

    def leave(self, gate: Gate, waker: Waker) -> None:
        """Let *waker* hear of nothing any more."""
        gate.wakers.discard(waker)
        self._wakers.discard(waker)
        if not self._wakers and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def tell(self, topics: Iterable[Hashable]) -> None:
        """Wake who waits for one of *topics*; in the loop."""
        told = frozenset(topics)
        for waker in [*self._wakers]:
            if not waker.topics.isdisjoint(told):
                waker.wake()

    def _look(self) -> None:
        self._timer = None
        self._looking = True
        try:
            answer = self._lane.ask_writer(_data_version)
        except OqronError:
            # The file was closed; who waits is told by its gate.
            self._looking = False
            return
        answer.add_done_callback(self._seen)

    def _seen(self, answer: asyncio.Future[Any]) -> None:
        self._looking = False
        if not answer.cancelled() and answer.exception() is None:
            version: int = answer.result()
            if version != self._version:
                self._version = version
                self._pause = _FIRST_LOOK
                for waker in [*self._wakers]:
                    waker.wake()
        if self._wakers:
            most = self._lane.settings.poll_interval
            self._pause = min(self._pause * _SLOWER, most)
            self._timer = self._loop.call_later(self._pause, self._look)


def _data_version(driver: sqlite3.Connection) -> int:
    return int(driver.execute("PRAGMA data_version").fetchone()[0])
