"""What the contracts of the small services share."""

from __future__ import annotations

import asyncio
import contextlib

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from oqron_core.storage import Storage
from oqron_core.testing.contracts.mode import ModeBase
from oqron_core.testing.faults import Crash, Faults, When


__all__ = ["ServiceContract"]


class ServiceContract(ModeBase):
    """Opens several storages at once, each as a process of its own would."""

    @property
    def brief(self) -> float:
        """
        A lease that is renewed within moments.

        Its timers run by the local clock; a real server needs room for a pause of
        the machine, which a clock that stands still does not.
        """
        return 0.3 if self.manual_clock else 1.5

    @property
    def moment(self) -> float:
        """Seconds after which something expires, but not before the next call."""
        return 0.3 if self.manual_clock else 0.8

    async def pass_moment(self) -> None:
        """Let what expires after a moment expire."""
        await self.elapse(self.moment + 0.2)

    async def die(
        self, match: str, when: When, operation: Callable[[Storage], Awaitable[object]]
    ) -> None:
        """Let a process die before or after a call, in the middle of *operation*."""
        faults = Faults()
        # Closing is not reached by a process that dies; the planes are let go.
        with contextlib.suppress(Crash):
            async with self.open(faults) as doomed:
                faults.crash(match, when=when)
                await operation(doomed)
        assert faults.dead, f"{match} was never called"

    @asynccontextmanager
    async def crowd(self, count: int) -> AsyncIterator[list[Storage]]:
        """Open *count* storages over the same stores."""
        async with AsyncExitStack() as stack:
            yield [await stack.enter_async_context(self.open()) for _ in range(count)]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once *condition* holds; a test that waits in vain hangs."""
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.002)

    async def until_so(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Return once *condition*, which asks a store, holds."""
        while not await condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.002)
