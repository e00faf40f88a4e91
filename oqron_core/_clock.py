"""The one place that reads a clock."""

from __future__ import annotations

import asyncio
import time

from typing import Protocol, runtime_checkable


__all__ = ["Clock", "SystemClock"]


@runtime_checkable
class Clock(Protocol):
    """A clock that never runs backward."""

    def now(self) -> int:
        """Milliseconds since the epoch; never less than a value given before."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return once *seconds* have passed on this clock."""
        ...


class SystemClock:
    """
    The time of day at construction, carried on by the monotonic clock.

    A jump of the wall clock neither freezes nor fires what is waiting.
    """

    __slots__ = ("_offset",)

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> int:
        """Milliseconds since the epoch; never less than a value given before."""
        return int((self._offset + time.monotonic()) * 1000)

    async def sleep(self, seconds: float) -> None:
        """Return once *seconds* have passed."""
        await asyncio.sleep(seconds)
