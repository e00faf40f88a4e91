"""Who may take how many slots: fair over queues, by weight, without hoarding."""

from __future__ import annotations

import asyncio

import attrs


__all__ = ["Capacity", "Share"]


@attrs.define(eq=False)
class Share:
    """
    The part of one queue in the capacity of a worker.

    Attributes:
        name: The queue, for people.
        limit: How many slots it may have at most.
        weight: Its part where all are busy: twice the weight, twice the slots.
        used: How many it has now.
    """

    name: str
    limit: int
    weight: float = 1.0
    used: int = 0

    @property
    def load(self) -> float:
        """How much it has of what it may ask for."""
        return self.used / self.weight


@attrs.define(eq=False)
class _Waiter:
    share: Share
    want: int
    future: asyncio.Future[int]


class Capacity:
    """
    The slots of one worker.

    A loop takes slots right before it claims and gives back at once what the claim
    did not fill, so an empty queue holds none. Where several wait, each slot that
    becomes free goes to the one that has least for its weight.

    Args:
        total: How many handlers may run at the same time.
    """

    __slots__ = ("_due", "_waiters", "total", "used")

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._waiters: list[_Waiter] = []
        self._due = False

    async def take(self, share: Share, want: int) -> int:
        """
        Wait for at least one slot, and take up to *want*.

        Returns:
            How many were taken, >= 1. A caller that is cancelled took none.
        """
        if not self._waiters:
            granted = min(want, share.limit - share.used, self.total - self.used)
            if granted > 0:
                self.take_now(share, granted)
                return granted
        waiter = _Waiter(share, want, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self._wake()
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.future.done() and not waiter.future.cancelled():
                self.give(share, waiter.future.result())
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

    def take_now(self, share: Share, count: int) -> None:
        """Take slots without asking: for what is in hand already."""
        share.used += count
        self.used += count

    def give(self, share: Share, count: int = 1) -> None:
        """Give slots back."""
        share.used -= count
        self.used -= count
        if self._waiters:
            self._wake()

    def _wake(self) -> None:
        # Once per turn of the loop: slots that become free together are given
        # together, so that they are claimed together.
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._distribute)

    def _distribute(self) -> None:
        self._due = False
        free = self.total - self.used
        granted: dict[_Waiter, int] = {}
        asking = [w for w in self._waiters if not w.future.done()]
        while free > 0:
            able = [
                w for w in asking if w.share.used < w.share.limit and granted.get(w, 0) < w.want
            ]
            if not able:
                break
            poorest = min(able, key=lambda waiter: waiter.share.load)
            step = free if len(able) == 1 else 1
            step = min(
                step,
                poorest.share.limit - poorest.share.used,
                poorest.want - granted.get(poorest, 0),
            )
            self.take_now(poorest.share, step)
            granted[poorest] = granted.get(poorest, 0) + step
            free -= step
        for waiter, count in granted.items():
            waiter.future.set_result(count)
        self._waiters = [w for w in asking if w not in granted]
