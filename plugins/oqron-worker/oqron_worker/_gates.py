"""What else must allow an attempt: rates and slots among all processes."""

from __future__ import annotations

import asyncio
import logging

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from oqron_core.exceptions import ConflictError, LeaseLostError, OqronError
from oqron_worker._context import Context
from oqron_worker._handlers import RateLimit


if TYPE_CHECKING:
    from oqron_worker._app import App


__all__ = ["Gate", "RateGate", "SlotGate"]

log = logging.getLogger("oqron.worker")

_SHORTEST: Final = 0.005


class Gate(ABC):
    """Says how many attempts may start."""

    @abstractmethod
    async def enter(self, want: int) -> int:
        """Ask for up to *want* attempts; gives how many may start now."""

    @abstractmethod
    def leave(self, count: int) -> None:
        """Give back what no attempt was found for."""

    @abstractmethod
    async def wait(self) -> None:
        """Return when `enter` may give more than 0."""

    def started(self, context: Context) -> None:  # noqa: B027 - a rate needs nothing
        """Bind one of what was entered to an attempt."""

    def give_back(self, context: Context) -> None:  # noqa: B027 - as above
        """Note that the attempt is over."""

    async def close(self) -> None:  # noqa: B027 - as above
        """Give back everything."""


class RateGate(Gate):
    """
    A rate among all processes.

    What was allowed and not used, because the queue was empty, is kept for the
    next attempts of this process: it was counted already.

    Args:
        app: The application.
        key: The key of the limit.
        limit: The limit.
    """

    def __init__(self, app: App, key: str, limit: RateLimit) -> None:
        self._app = app
        self._key = key
        self._limit = limit
        self._kept = 0
        self._retry_after = 0.0

    async def enter(self, want: int) -> int:
        """Take from the limit; one at a time where a batch is too much."""
        if self._kept:
            given = min(want, self._kept)
            self._kept -= given
            return given
        limits = self._app.storage.limits
        seen = await limits.peek(self._key, self._limit)
        cost = max(1, min(want, seen.remaining))
        decision = await limits.take(self._key, self._limit, cost=cost)
        if not decision and cost > 1:
            cost = 1
            decision = await limits.take(self._key, self._limit)
        if decision:
            return cost
        self._retry_after = decision.retry_after
        return 0

    def leave(self, count: int) -> None:
        """Keep what was counted and not used."""
        # No more than one attempt's worth: an idle process must not starve others.
        self._kept = min(1, self._kept + count)

    async def wait(self) -> None:
        """Sleep until the limit allows the next one."""
        await asyncio.sleep(max(_SHORTEST, self._retry_after))


class _Slot:
    """One slot among all processes, held by a task of its own."""

    __slots__ = ("_done", "context", "taken", "task")

    def __init__(self, app: App, key: str, count: int, *, wait: float | None) -> None:
        self._done = asyncio.Event()
        self.taken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.context: Context | None = None
        self.task = asyncio.create_task(self._hold(app, key, count, wait), name="oqron-slot")

    async def _hold(self, app: App, key: str, count: int, wait: float | None) -> None:
        try:
            async with app.storage.limits.slots(key, count, wait=wait):
                if not self.taken.done():
                    self.taken.set_result(True)
                await self._done.wait()
        except ConflictError:
            if not self.taken.done():
                self.taken.set_result(False)
        except LeaseLostError:
            if self.context is not None:
                self.context.stop("lease lost")
        except OqronError as error:
            if not self.taken.done():
                self.taken.set_exception(error)
        except asyncio.CancelledError:
            if not self.taken.done():
                self.taken.cancel()
            raise

    def free(self) -> None:
        """Give it back."""
        self._done.set()


class SlotGate(Gate):
    """
    At most so many attempts at the same time among all processes.

    A slot is taken before the claim, so that a job is never claimed to wait for
    one, and is given back with the attempt. That of a process that dies lapses.

    Args:
        app: The application.
        key: The key of the slots.
        count: How many there are.
    """

    def __init__(self, app: App, key: str, count: int) -> None:
        self._app = app
        self._key = key
        self._count = count
        self._free: list[_Slot] = []
        self._used: dict[Context, _Slot] = {}

    async def enter(self, want: int) -> int:
        """Take up to *want* slots that are free now."""
        # One after the other until one is refused: more would only be asked in vain.
        while len(self._free) < want:
            slot = _Slot(self._app, self._key, self._count, wait=0.0)
            try:
                taken = await slot.taken
            except BaseException:
                slot.task.cancel()
                raise
            if not taken:
                break
            self._free.append(slot)
        return min(want, len(self._free))

    def leave(self, count: int) -> None:
        """Give back what no attempt was found for."""
        for _ in range(count):
            self._free.pop().free()

    async def wait(self) -> None:
        """Wait for a slot, without polling, and keep it for the next attempt."""
        slot = _Slot(self._app, self._key, self._count, wait=None)
        try:
            if await slot.taken:
                self._free.append(slot)
        except BaseException:
            slot.task.cancel()
            raise

    def started(self, context: Context) -> None:
        """Bind a slot to an attempt."""
        slot = self._free.pop()
        slot.context = context
        self._used[context] = slot

    def give_back(self, context: Context) -> None:
        """Give back the slot of an attempt."""
        slot = self._used.pop(context, None)
        if slot is not None:
            slot.context = None
            slot.free()

    async def close(self) -> None:
        """Give back everything that is still held."""
        slots = [*self._free, *self._used.values()]
        self._free.clear()
        for slot in slots:
            slot.free()
        if slots:
            await asyncio.wait([slot.task for slot in slots], timeout=2.0)
