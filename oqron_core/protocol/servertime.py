"""What time it is on a plane, without asking it for every call."""

from __future__ import annotations

import time

from typing import Final

from oqron_core.planes.durable import DurablePlane
from oqron_core.planes.hot import HotPlane


__all__ = ["ServerTime"]

_FRESH_FOR: Final = 30.0
_NEVER: Final = float("-inf")


class ServerTime:
    """
    Follows the clock of a plane by the local monotonic clock.

    The local time of day plays no part, so a client whose clock is wrong or
    jumps still writes right instants. The offset is measured anew when it is
    older than 30 seconds; a plane with a clock in this process is asked each
    time, which costs nothing.
    """

    __slots__ = ("_always", "_base", "_measured", "_plane")

    def __init__(self, plane: HotPlane | DurablePlane) -> None:
        self._plane = plane
        self._always = plane.capabilities.clock == "process"
        self._base = 0
        self._measured = _NEVER

    async def now(self) -> int:
        """
        Give milliseconds since the epoch, as the plane counts them.

        Raises:
            UnavailableError: The plane did not answer.
        """
        known = self.known()
        if known is not None:
            return known
        local = time.monotonic()
        server = await self._plane.now()
        # The server read its clock somewhere between the two instants.
        self._measured = (local + time.monotonic()) / 2
        self._base = server
        return server

    def known(self) -> int | None:
        """Give the same where it is known; None where the plane must be asked."""
        since = time.monotonic() - self._measured
        if self._always or since > _FRESH_FOR:
            return None
        return self._base + int(since * 1000)

    def estimate(self) -> int:
        """Give the same without asking; what `now` gave last, carried on."""
        measured = self._measured
        if measured == _NEVER:
            return time.time_ns() // 1_000_000
        return self._base + int((time.monotonic() - measured) * 1000)
