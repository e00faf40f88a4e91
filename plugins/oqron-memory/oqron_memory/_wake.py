"""Waking coroutines of any loop, and ending those of a plane that is closed."""

from __future__ import annotations

import asyncio
import contextlib
import threading

from typing import Final

from oqron_core.exceptions import ClosedError
from oqron_core.planes import Clock, SystemClock


__all__ = ["NEVER", "Gate", "Waker", "sleep_until_woken"]

NEVER: Final = 2**63
"""A time that does not come."""

_CLOSED: Final = "the plane was closed; open a storage again"


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Waker:
    """
    One coroutine that sleeps in its own loop and may be woken from any thread.

    Attributes:
        wake_at: When it wakes by itself; what happens sooner must wake it.
    """

    __slots__ = ("_future", "_loop", "_thread", "wake_at")

    def __init__(self, wake_at: int = NEVER) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.get_ident()
        self.wake_at = wake_at

    @property
    def future(self) -> asyncio.Future[None]:
        """Done once it is woken."""
        return self._future

    def wake(self) -> None:
        """Wake it; from any thread, also under the store's lock."""
        self.wake_at = -1
        # A loop that was closed has nobody left to wake.
        with contextlib.suppress(RuntimeError):
            if threading.get_ident() == self._thread:
                _resolve(self._future)
            else:
                self._loop.call_soon_threadsafe(_resolve, self._future)


class Gate:
    """
    Whether a plane may still be used, and who sleeps in it.

    Attributes:
        wakers: Who is woken when the plane is closed.
    """

    __slots__ = ("__weakref__", "_reason", "wakers")

    def __init__(self) -> None:
        self._reason: str | None = None
        self.wakers: set[Waker] = set()

    @property
    def closed(self) -> bool:
        """Whether the plane was closed."""
        return self._reason is not None

    def check(self) -> None:
        """
        Pass, or refuse.

        Raises:
            ClosedError: The plane was closed.
        """
        if self._reason is not None:
            raise ClosedError(self._reason)

    def close(self, reason: str = _CLOSED) -> None:
        """Refuse from now on. Who sleeps is woken by the caller, under the lock."""
        if self._reason is None:
            self._reason = reason


async def sleep_until_woken(waker: Waker, clock: Clock, seconds: float | None) -> None:
    """
    Sleep until *waker* is woken or *seconds* have passed on *clock*.

    Leaves neither a timer nor a task behind, also when it is cancelled.

    Args:
        waker: Of the running loop.
        clock: Whose seconds.
        seconds: How long at most; None for ever.
    """
    future = waker.future
    if seconds is None:
        await future
    elif type(clock) is SystemClock:
        timer = asyncio.get_running_loop().call_later(seconds, _resolve, future)
        try:
            await future
        finally:
            timer.cancel()
    else:
        await _sleep_on(clock, seconds, future)


async def _sleep_on(clock: Clock, seconds: float, future: asyncio.Future[None]) -> None:
    sleeper: asyncio.Future[None] = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({future, sleeper}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not sleeper.done():
            sleeper.cancel()
            await asyncio.wait({sleeper})
    if not sleeper.cancelled():
        sleeper.result()
