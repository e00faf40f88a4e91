"""How rate limits are counted, for every backend that counts in Python."""

from __future__ import annotations

from typing import Final, TypeAlias

import attrs

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes.checks import check_limit
from oqron_core.planes.limits import (
    Decision,
    FixedWindow,
    RateLimit,
    SlidingWindow,
    TokenBucket,
)


__all__ = ["LimitOutcome", "LimitState", "check_take", "decide_limit"]

LimitState: TypeAlias = tuple[int, int, int]
"""
What a limit remembers of a key: three integers, whose meaning is the algorithm's.

Those of a token bucket may be of more than 64 bits.
"""

_TYPES: Final = (FixedWindow, SlidingWindow, TokenBucket)


@attrs.frozen
class LimitOutcome:
    """
    A decision, and the state to keep; without one, nothing is remembered.

    Attributes:
        decision: The answer.
        state: What to remember for this key and type of limit.
        forget_at: From when that says nothing any more, in epoch milliseconds.
    """

    decision: Decision
    state: LimitState | None
    forget_at: int


def check_take(limit: RateLimit, cost: int) -> None:
    """
    Check what `Counters.take` is asked for.

    Raises:
        InvalidValueError: *limit* is of no type that there is, or *cost* is no count
            or more than the limit can ever allow.
    """
    check_limit(cost, "cost")
    if type(limit) not in _TYPES:
        reason = f"must be FixedWindow, SlidingWindow or TokenBucket, not {limit!r}"
        raise InvalidValueError("limit", reason)
    most = limit.capacity if isinstance(limit, TokenBucket) else limit.limit
    if cost > most:
        reason = f"must be at most {most}, which is all the limit ever allows"
        raise InvalidValueError("cost", reason)


def decide_limit(limit: RateLimit, state: LimitState | None, cost: int, now: int) -> LimitOutcome:
    """
    Say whether *cost* may be taken, and what there is to remember.

    For backends that can do arithmetic where the state lies: the read of the state,
    this and the write of what it gives must be one atomic step.

    Args:
        limit: The limit; with *cost*, what `check_take` let through.
        state: What the call before gave for this key and type of limit; None where
            there was none, or where its `forget_at` is over.
        cost: How much to take, >= 0.
        now: The instant, in epoch milliseconds.
    """
    per = max(1, round(limit.per * 1000))
    if isinstance(limit, FixedWindow):
        return _fixed(limit.limit, per, state, cost, now)
    if isinstance(limit, SlidingWindow):
        return _sliding(limit.limit, per, state, cost, now)
    return _bucket(limit, per, state, cost, now)


def _fixed(limit: int, per: int, state: LimitState | None, cost: int, now: int) -> LimitOutcome:
    """State: the start of the window, what was taken in it, the window's length."""
    start = now - now % per
    end = start + per
    taken = 0
    if state is not None and (state[0], state[2]) == (start, per):
        taken = state[1]
    allowed = taken + max(cost, 1) <= limit
    if allowed:
        taken += cost
    decision = Decision(
        allowed,
        max(0, limit - taken),
        0.0 if allowed else (end - now) / 1000,
        end if taken else now,
    )
    return LimitOutcome(decision, (start, taken, per) if taken else None, end)


def _sliding(limit: int, per: int, state: LimitState | None, cost: int, now: int) -> LimitOutcome:
    """
    State: the start of the window, what was taken in it and in the one before.

    All is counted in takes times milliseconds, so that nothing is rounded.
    """
    start = now - now % per
    taken, before = _windows(state, start, per)
    spent = now - start
    need = max(cost, 1)
    room = (limit - taken) * per - before * (per - spent)
    allowed = need * per <= room
    retry_after = 0.0
    if allowed:
        taken += cost
        room -= cost * per
    else:
        retry_after = _sliding_wait(limit, per, taken, before, spent, need) / 1000
    whole_at = start + 2 * per if taken else start + per if before else now
    decision = Decision(allowed, max(0, room // per), retry_after, whole_at)
    kept = (start, taken, before) if taken or before else None
    return LimitOutcome(decision, kept, whole_at)


def _windows(state: LimitState | None, start: int, per: int) -> tuple[int, int]:
    """What was taken in the window from *start*, and in the one before."""
    if state is None:
        return 0, 0
    if state[0] == start:
        return state[1], state[2]
    if state[0] == start - per:
        return 0, state[1]
    return 0, 0


def _sliding_wait(limit: int, per: int, taken: int, before: int, spent: int, need: int) -> int:
    """Milliseconds until *need* fits, if nobody else takes any."""
    spare = limit - taken - need
    if spare >= 0 and before:
        # The window before fades until what is left of it fits.
        at = per - spare * per // before
        return max(1, at - spent)
    # Not in this window; in the next, it is this one that fades.
    at = max(0, per - (limit - need) * per // taken) if taken else 0
    return max(1, per - spent + at)


def _bucket(
    limit: TokenBucket, per: int, state: LimitState | None, cost: int, now: int
) -> LimitOutcome:
    """
    State: when it was looked at, how full it was, and the period.

    A token has *per* parts and *limit* parts flow in each millisecond, so that
    nothing is rounded.
    """
    rate = limit.limit
    full = limit.capacity * per
    level = full
    if state is not None:
        then, level, was_per = state[0], state[1], state[2]
        if was_per != per:
            level = level * per // was_per
        level = min(full, level + (now - then) * rate)
    need = max(cost, 1) * per
    allowed = level >= need
    retry_after = 0.0
    if allowed:
        level -= cost * per
    else:
        retry_after = -((level - need) // rate) / 1000
    whole_at = now - (level - full) // rate
    decision = Decision(allowed, level // per, retry_after, whole_at)
    return LimitOutcome(decision, None if level == full else (now, level, per), whole_at)
