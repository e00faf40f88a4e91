"""Counters and rate limits."""

from __future__ import annotations

from typing import Final

import attrs

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import (
    Counters,
    Decision,
    FixedWindow,
    RateLimit,
    SlidingWindow,
    TokenBucket,
    check_key,
    check_limit,
    ttl_ms,
)
from oqron_memory._store import Counter, LimitState, MemoryStore, ScopeState
from oqron_memory._wake import Gate


__all__ = ["MemoryCounters"]

_INT_MIN: Final = -(2**63)
_INT_MAX: Final = 2**63 - 1
_TYPES: Final = (FixedWindow, SlidingWindow, TokenBucket)


@attrs.frozen
class _Outcome:
    """A decision, and the state to keep; without one, nothing is remembered."""

    decision: Decision
    state: tuple[int, int, int] | None
    forget_at: int


class MemoryCounters(Counters):
    """The counters and limits of one scope."""

    __slots__ = ("_counters", "_gate", "_limits", "_store")

    def __init__(self, store: MemoryStore, state: ScopeState, gate: Gate) -> None:
        self._store = store
        self._counters = state.counters
        self._limits = state.limits
        self._gate = gate

    async def increment(self, key: str, *, by: int = 1, expires_in: float | None = None) -> int:
        self._gate.check()
        check_key(key)
        if type(by) is not int or not _INT_MIN <= by <= _INT_MAX:
            raise InvalidValueError("by", "must be an int of at most 64 bits")
        lasts = ttl_ms(expires_in, "expires_in")
        store = self._store
        with store.lock:
            now = store.clock.now()
            store.sweep(now)
            counter = self._counters.get(key, now)
            total = by if counter is None else counter.value + by
            if not _INT_MIN <= total <= _INT_MAX:
                raise InvalidValueError("by", "would take the counter beyond 64 bits")
            expires_at = None if lasts is None else now + lasts
            if counter is None:
                self._counters.pop(key)
                self._counters.put(key, Counter(total), expires_at)
                return total
            counter.value = total
            if counter.at is None and expires_at is not None:
                self._counters.move(counter, expires_at)
            return total

    async def get(self, key: str) -> int | None:
        self._gate.check()
        check_key(key)
        with self._store.lock:
            counter = self._counters.get(key, self._store.clock.now())
            return None if counter is None else counter.value

    async def reset(self, key: str) -> bool:
        self._gate.check()
        check_key(key)
        with self._store.lock:
            now = self._store.clock.now()
            was = self._counters.get(key, now) is not None
            self._counters.pop(key)
            for kind in _TYPES:
                address = (kind, key)
                was = self._limits.get(address, now) is not None or was
                self._limits.pop(address)
            return was

    async def take(self, key: str, limit: RateLimit, *, cost: int = 1) -> Decision:
        self._gate.check()
        check_key(key)
        check_limit(cost, "cost")
        if type(limit) not in _TYPES:
            reason = f"must be FixedWindow, SlidingWindow or TokenBucket, not {limit!r}"
            raise InvalidValueError("limit", reason)
        most = limit.capacity if isinstance(limit, TokenBucket) else limit.limit
        if cost > most:
            reason = f"must be at most {most}, which is all the limit ever allows"
            raise InvalidValueError("cost", reason)
        store = self._store
        with store.lock:
            now = store.clock.now()
            store.sweep(now)
            address = (type(limit), key)
            state = self._limits.get(address, now)
            outcome = _decide(limit, state, cost, now)
            self._remember(address, state, outcome)
            return outcome.decision

    def _remember(
        self, address: tuple[type, str], state: LimitState | None, outcome: _Outcome
    ) -> None:
        if outcome.state is None:
            self._limits.pop(address)
        elif state is None:
            # What is there may have expired.
            self._limits.pop(address)
            self._limits.put(address, LimitState(*outcome.state), outcome.forget_at)
        else:
            state.first, state.second, state.third = outcome.state
            self._limits.move(state, outcome.forget_at)


def _decide(limit: RateLimit, state: LimitState | None, cost: int, now: int) -> _Outcome:
    per = max(1, round(limit.per * 1000))
    if isinstance(limit, FixedWindow):
        return _fixed(limit.limit, per, state, cost, now)
    if isinstance(limit, SlidingWindow):
        return _sliding(limit.limit, per, state, cost, now)
    return _bucket(limit, per, state, cost, now)


def _fixed(limit: int, per: int, state: LimitState | None, cost: int, now: int) -> _Outcome:
    """State: the start of the window, what was taken in it, the window's length."""
    start = now - now % per
    end = start + per
    taken = 0
    if state is not None and (state.first, state.third) == (start, per):
        taken = state.second
    allowed = taken + max(cost, 1) <= limit
    if allowed:
        taken += cost
    decision = Decision(
        allowed,
        max(0, limit - taken),
        0.0 if allowed else (end - now) / 1000,
        end if taken else now,
    )
    return _Outcome(decision, (start, taken, per) if taken else None, end)


def _sliding(limit: int, per: int, state: LimitState | None, cost: int, now: int) -> _Outcome:
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
    return _Outcome(decision, kept, whole_at)


def _windows(state: LimitState | None, start: int, per: int) -> tuple[int, int]:
    """What was taken in the window from *start*, and in the one before."""
    if state is None:
        return 0, 0
    if state.first == start:
        return state.second, state.third
    if state.first == start - per:
        return 0, state.second
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
) -> _Outcome:
    """
    State: when it was looked at, how full it was, and the period.

    A token has *per* parts and *limit* parts flow in each millisecond, so that
    nothing is rounded.
    """
    rate = limit.limit
    full = limit.capacity * per
    level = full
    if state is not None:
        then, level, was_per = state.first, state.second, state.third
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
    return _Outcome(decision, None if level == full else (now, level, per), whole_at)
