"""Calling a plane again where no answer came."""

from __future__ import annotations

import asyncio
import math
import time

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from oqron_core.exceptions import ClosedError, UnavailableError


__all__ = ["UNFINISHED", "patiently", "to_the_end"]

_T = TypeVar("_T")

_TRIES: Final = 4
_FIRST_PAUSE: Final = 0.02

UNFINISHED: Final = "the storage was closed before there was an answer; it may have been done"


async def patiently(
    call: Callable[[int], Awaitable[_T]],
    *,
    within: float = math.inf,
    unanswered: Callable[[], Awaitable[None]] | None = None,
    over: Callable[[], bool] | None = None,
) -> _T:
    """
    Call until there is an answer: four times at most, with pauses that grow.

    Args:
        call: Takes how many tries had no answer before this one: what they wrote may be
            there, and is to be known as the caller's own.
        within: No other try begins when so many seconds have passed since the first.
        unanswered: Called after each try without an answer.
        over: Whether nobody needs the answer any more.

    Raises:
        UnavailableError: No answer to the last try.
    """
    started = time.monotonic()
    pause = _FIRST_PAUSE
    for tries in range(_TRIES):
        try:
            return await call(tries)
        except UnavailableError:
            if unanswered is not None:
                await unanswered()
            last = tries == _TRIES - 1 or time.monotonic() - started > within
            if last or (over is not None and over()):
                raise
            await asyncio.sleep(pause)
            pause *= 3
    raise AssertionError  # the loop returns or raises


async def to_the_end(
    step: Coroutine[Any, Any, _T],
    start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    *,
    unclaimed: Callable[[_T], None] | None = None,
) -> _T:
    """
    Run a step to its end, also where its caller is cancelled meanwhile.

    Args:
        step: The step.
        start: Starts the task that it runs in.
        unclaimed: Called with the result where the caller has gone.

    Raises:
        ClosedError: The storage ended the task when it closed. Its caller was not
            cancelled, and must not look as if it were.
    """
    running = _Step(step, unclaimed)
    start(running.run()).add_done_callback(running.ended)
    try:
        return await running.answer
    except asyncio.CancelledError:
        running.leave()
        raise


class _Step(Generic[_T]):
    """
    A step that outlives who waits for it.

    It hands its result over itself: whoever waits for a task is woken two turns of the
    loop after its end.
    """

    __slots__ = ("_step", "_unclaimed", "answer")

    def __init__(
        self, step: Coroutine[Any, Any, _T], unclaimed: Callable[[_T], None] | None
    ) -> None:
        self._step = step
        self._unclaimed = unclaimed
        self.answer: asyncio.Future[_T] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        try:
            result = await self._step
        except Exception as error:  # noqa: BLE001 - the caller's, who may have gone
            if not self.answer.done():
                self.answer.set_exception(error)
        else:
            if not self.answer.done():
                self.answer.set_result(result)
            elif self._unclaimed is not None:
                self._unclaimed(result)

    def ended(self, task: asyncio.Task[None]) -> None:
        """Answer where `run` could not, as it was ended from outside."""
        self._step.close()
        if not self.answer.done():
            error = None if task.cancelled() else task.exception()
            self.answer.set_exception(error or ClosedError(UNFINISHED))

    def leave(self) -> None:
        """Take back what came in the moment when the caller was cancelled."""
        answer = self.answer
        if not answer.done() or answer.cancelled() or answer.exception() is not None:
            return
        if self._unclaimed is not None:
            self._unclaimed(answer.result())
