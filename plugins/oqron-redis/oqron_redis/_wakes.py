"""Who waits for which queue in this process."""

from __future__ import annotations

import asyncio

from collections.abc import Sequence
from typing import Final, final

from oqron_core.exceptions import ClosedError, OqronError
from oqron_redis._session import Session


__all__ = ["Wakes"]

_LOOK_EVERY: Final = 5.0
"""
Seconds after which a waiter looks again though nobody called: a call may be lost
with the server, and a server that was flushed has forgotten who waits.
"""
_SLACK_MS: Final = 5000


@final
class _Waiter:
    """
    Who waits, and which of its queues were called.

    Attributes:
        queues: Those that have something, by name.
    """

    __slots__ = ("_called", "_future", "queues")

    def __init__(self) -> None:
        self.queues: set[bytes] = set()
        self._called = False
        self._future: asyncio.Future[None] | None = None

    def call(self) -> None:
        """Have it look again."""
        self._called = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def forget(self) -> None:
        """Forget what came until now."""
        self.queues.clear()
        self._called = False

    async def pause(self, seconds: float) -> None:
        """Return when it was called since `forget`, or when the time is over."""
        if self._called:
            return
        loop = asyncio.get_running_loop()
        self._future = loop.create_future()
        timer = loop.call_later(seconds, self.call)
        try:
            await self._future
        finally:
            timer.cancel()
            self._future = None


@final
class Wakes:
    """
    Waiting without polling.

    A waiter leaves a mark at the queue, which expires; whoever changes a queue that
    is marked takes the mark away and publishes the queue's name once. So queues that
    nobody waits for cost nothing, and a busy one does not flood its consumers.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiters: dict[bytes, list[_Waiter]] = {}
        self._joining = asyncio.Lock()
        self._listens = False
        session.closing.append(self._tell_all)

    async def wait(self, queues: Sequence[str], timeout: float) -> list[str]:
        """Give the queues that may have work; empty when the time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        called = _Waiter()
        names = [queue.encode() for queue in queues]
        if timeout > 0:
            await self._join()
        for name in names:
            self._waiters.setdefault(name, []).append(called)
        try:
            while True:
                called.forget()
                left = deadline - loop.time()
                found, soonest = await self._look(queues, left)
                if found or left <= 0:
                    return found
                await called.pause(min(left, soonest, _LOOK_EVERY))
                self._session.check_open()
                if called.queues:
                    # What was published by name need not be looked for.
                    return [queue for queue in queues if queue.encode() in called.queues]
        finally:
            for name in names:
                waiters = self._waiters[name]
                waiters.remove(called)
                if not waiters:
                    del self._waiters[name]

    async def _look(self, queues: Sequence[str], left: float) -> tuple[list[str], float]:
        mark = int(min(left, _LOOK_EVERY) * 1000) + _SLACK_MS if left > 0 else 0
        session = self._session
        calls = []
        for queue in queues:
            keys = session.keys.queue(queue)
            places = (keys.ready, keys.delayed, keys.leased, keys.paused, keys.wake)
            calls.append(session.run("look", places, (mark,), again=True))
        answers = await session.gather(calls)
        found = [queue for queue, answer in zip(queues, answers, strict=True) if answer[0]]
        # A millisecond more: the server judges with whole ones.
        soon = [(answer[1] + 1) / 1000 for answer in answers if answer[1] >= 0]
        return found, min(soon, default=_LOOK_EVERY)

    async def _join(self) -> None:
        if self._listens:
            return
        async with self._joining:
            if not self._listens:
                listener = self._session.store.listener()
                await listener.subscribe(self._session.keys.wake_channel, self._told)
                self._listens = True
                self._session.closing.append(self._leave)

    def _told(self, queue: bytes | None) -> None:
        if queue is None:
            self._tell_all()
            return
        look_again = queue.startswith(b"\0")
        for called in self._waiters.get(queue[look_again:], ()):
            if not look_again:
                called.queues.add(queue)
            called.call()

    def _tell_all(self) -> None:
        for waiters in self._waiters.values():
            for called in waiters:
                called.call()

    def _leave(self) -> None:
        try:
            listener = self._session.store.listener()
        except (ClosedError, OqronError):
            return
        listener.unsubscribe(self._session.keys.wake_channel, self._told)
