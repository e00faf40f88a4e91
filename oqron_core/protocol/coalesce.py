"""Group commit: concurrent single calls share a round trip."""

from __future__ import annotations

import asyncio
import logging

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from oqron_core.exceptions import ClosedError
from oqron_core.protocol.patience import UNFINISHED


__all__ = ["Coalescer"]

log: logging.Logger = logging.getLogger("oqron.protocol")

_WORTH_HALVING: Final = 16

T = TypeVar("T")
R = TypeVar("R")


class Coalescer(Generic[T, R]):
    """
    Collects items while a flush is in flight and sends them with the next one.

    There is no timer: an item that finds no flush in flight is sent on the next
    turn of the loop, together with what was submitted in the same turn; one that is
    sent `alone` goes at once. Each caller still waits for the flush that carried its
    own item, and a caller that is cancelled takes nobody else's flush down.

    Where several flushes may be in flight, another begins as soon as as many items wait
    for it as are in the smallest that is under way: so flushes overlap and stay large.

    Args:
        flush: Sends a batch, gives one result per item, in order. What it raises
            is raised to every caller of that batch.
        then: Called after each flush with its items and results, before they are
            given to the callers; the next flush does not wait for it. It must not
            raise.
        max_batch: The largest batch.
        at_once: How many flushes may be in flight. With more than one, of two items
            that wait at the same time the later may be flushed before the earlier.
    """

    __slots__ = (
        "_alone",
        "_at_once",
        "_flush",
        "_max_batch",
        "_pending",
        "_sizes",
        "_starting",
        "_tasks",
        "_then",
        "_trailing",
    )

    def __init__(
        self,
        flush: Callable[[list[T]], Awaitable[Sequence[R]]],
        *,
        then: Callable[[list[T], Sequence[R]], Awaitable[None]] | None = None,
        max_batch: int = 1000,
        at_once: int = 1,
    ) -> None:
        self._flush = flush
        self._then = then
        self._trailing: set[asyncio.Task[None]] = set()
        self._max_batch = max_batch
        self._at_once = at_once
        self._pending: list[tuple[T, asyncio.Future[R]]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        # A task that has not begun takes what is submitted until then.
        self._starting = False
        self._sizes: list[int] = []
        self._alone: asyncio.Future[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight and nothing waits."""
        return not (self._pending or self._tasks or self._sizes)

    async def alone(self, item: T) -> R:
        """
        Send one item at once, in the task of its caller; legal while `is_idle`.

        What others submit meanwhile goes with flushes beside it. A caller that is
        cancelled ends it: what was sent may be done.
        """
        over = self._alone = asyncio.get_running_loop().create_future()
        self._sizes.append(1)
        try:
            return (await self._flush([item]))[0]
        finally:
            self._sizes.remove(1)
            self._alone = None
            over.set_result(None)
            if self._pending and not self._starting and self._may_begin():
                self._start()

    def submit(self, item: T) -> asyncio.Future[R]:
        """Add one item; the future gives its result."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._pending.append((item, future))
        if not self._starting and self._may_begin():
            self._start()
        return future

    def _start(self) -> None:
        self._starting = True
        task = asyncio.create_task(self._run(), name="oqron-flush")
        self._tasks.add(task)

    def _may_begin(self) -> bool:
        """Whether a flush of what waits may begin beside those that are in flight."""
        sizes = self._sizes
        return not sizes or (len(sizes) < self._at_once and len(self._pending) >= min(sizes))

    def _next_size(self) -> int:
        waiting = len(self._pending)
        if self._at_once > 1 and not self._sizes and waiting >= _WORTH_HALVING:
            # Callers that were answered together come back together: in two groups one
            # is on its way while the other is made.
            waiting //= 2
        return min(waiting, self._max_batch)

    async def drain(self) -> None:
        """Return when everything submitted so far has been answered."""
        while under_way := {*self._tasks, *self._trailing, *self._lone()}:
            await asyncio.wait(under_way)

    def _lone(self) -> tuple[asyncio.Future[None], ...]:
        return () if self._alone is None else (self._alone,)

    async def close(self) -> None:
        """Stop at once: who still waits gets `ClosedError`; what was sent may be done."""
        tasks = [*self._trailing, *self._tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        # One that was cancelled before it began has said nothing of itself.
        self._starting = False
        self._tasks.difference_update(tasks)
        self._refuse_pending()

    def _refuse_pending(self) -> None:
        for _, future in self._pending:
            if not future.done():
                future.set_exception(ClosedError("the storage was closed; nothing was sent"))
        self._pending.clear()

    async def _run(self) -> None:
        self._starting = False
        task = asyncio.current_task()
        try:
            # What is left over here is taken by whoever is still in flight.
            while self._pending and self._may_begin():
                size = self._next_size()
                batch = self._pending[:size]
                del self._pending[:size]
                if self._pending and not self._starting and not self._sizes:
                    self._start()
                self._sizes.append(len(batch))
                try:
                    await self._send(batch)
                finally:
                    self._sizes.remove(len(batch))
                if 0 < len(self._pending) < len(batch):
                    # Those who were answered come back now: few would go alone, and the
                    # many behind them with nobody at work meanwhile.
                    await asyncio.sleep(0)
        finally:
            if task is not None:
                self._tasks.discard(task)
            if not self._tasks and self._alone is None:
                self._refuse_pending()

    async def _send(self, batch: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            results = await self._flush([item for item, _ in batch])
        except BaseException as error:
            _refuse(batch, error)
            if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt, SystemExit)):
                raise
            return
        if self._then is None:
            _answer(batch, results)
            return
        task = asyncio.create_task(self._trail(batch, results), name="oqron-flush-then")
        self._trailing.add(task)
        task.add_done_callback(self._trailing.discard)

    async def _trail(self, batch: list[tuple[T, asyncio.Future[R]]], results: Sequence[R]) -> None:
        try:
            if self._then is not None:
                await self._then([item for item, _ in batch], results)
        except Exception:
            # What was flushed is done, whatever became of the step after it.
            log.exception("a step after a flush failed")
            _answer(batch, results)
        except BaseException as error:
            _refuse(batch, error)
            if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt, SystemExit)):
                raise
        else:
            _answer(batch, results)


def _refuse(batch: list[tuple[T, asyncio.Future[R]]], error: BaseException) -> None:
    for _, future in batch:
        if future.done():
            continue
        # A flush that is cancelled leaves the outcome unknown to its callers, who are not
        # cancelled themselves.
        unknown = isinstance(error, asyncio.CancelledError)
        future.set_exception(ClosedError(UNFINISHED) if unknown else error)


def _answer(batch: list[tuple[T, asyncio.Future[R]]], results: Sequence[R]) -> None:
    for (_, future), result in zip(batch, results, strict=True):
        if not future.done():
            future.set_result(result)
