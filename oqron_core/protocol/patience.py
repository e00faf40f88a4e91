"""Calling a plane again where no answer came."""

from __future__ import annotations

import asyncio
import math
import time

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from oqron_core.exceptions import ClosedError, UnavailableError


__all__ = ["UNFINISHED", "outlived", "patiently"]

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


async def outlived(task: asyncio.Task[_T]) -> _T:
    """
    Wait for a task that goes on where its caller is cancelled.

    Raises:
        ClosedError: The storage ended the task when it closed. Its caller was not
            cancelled, and must not look as if it were.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        caller = asyncio.current_task()
        if task.cancelled() and (caller is None or not caller.cancelling()):
            raise ClosedError(UNFINISHED) from None
        raise
