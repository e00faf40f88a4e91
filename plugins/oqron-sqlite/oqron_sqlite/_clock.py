"""The one place that reads a clock."""

from __future__ import annotations

import time

from collections.abc import Callable


__all__ = ["WallClock"]


class WallClock:
    """
    The machine's time of day, which every process that shares the file reads alike.

    It never runs backward within a process. Set forward, leases lapse early, which
    fencing tokens make harmless; set back, it stands still here until the time is
    reached again, and what is held lasts longer by that much.
    """

    __slots__ = ("_last", "_read")

    def __init__(self, read: Callable[[], int] = time.time_ns) -> None:
        self._read = read
        self._last = 0

    def now(self) -> int:
        """Milliseconds since the epoch; never less than a value given before."""
        # Two threads that race here may both go by the smaller of two equal truths.
        now = max(self._last, self._read() // 1_000_000)
        self._last = now
        return now
