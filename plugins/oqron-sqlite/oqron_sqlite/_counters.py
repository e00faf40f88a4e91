"""Counters and rate limits."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

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
from oqron_sqlite._facet import Place
from oqron_sqlite._lane import Transaction


__all__ = ["SqliteCounters", "decide"]

_INT_MIN: Final = -(2**63)
_INT_MAX: Final = 2**63 - 1
_TYPES: Final = (FixedWindow, SlidingWindow, TokenBucket)
_ALIVE: Final = "(expires_at IS NULL OR expires_at > :now)"
_GET: Final = f"""
SELECT value, expires_at FROM oqron_hot_counters
WHERE scope = :scope AND key = :key AND {_ALIVE}
"""  # noqa: S608 - of constants
_PUT: Final = """
INSERT INTO oqron_hot_counters VALUES (:scope, :key, :value, :at)
ON CONFLICT (scope, key) DO UPDATE
SET value = excluded.value, expires_at = excluded.expires_at
"""
_STATE: Final = """
SELECT state FROM oqron_hot_limits
WHERE scope = :scope AND kind = :kind AND key = :key AND expires_at > :now
"""
_REMEMBER: Final = """
INSERT INTO oqron_hot_limits VALUES (:scope, :kind, :key, :state, :at)
ON CONFLICT (scope, kind, key) DO UPDATE
SET state = excluded.state, expires_at = excluded.expires_at
"""
_FORGET: Final = "DELETE FROM oqron_hot_limits WHERE scope = :scope AND kind = :kind AND key = :key"
_RESETS: Final = tuple(
    f"DELETE FROM {table} WHERE scope = :scope AND key = :key {more} AND {_ALIVE}"  # noqa: S608 - of constants
    for table, more in (
        ("oqron_hot_counters", ""),
        *(("oqron_hot_limits", f"AND kind = '{kind.__name__}'") for kind in _TYPES),
    )
)

_State: TypeAlias = tuple[int, int, int] | None


@attrs.frozen
class Outcome:
    """
    A decision, and the state to keep; without one, nothing is remembered.

    Attributes:
        decision: The answer.
        state: Three numbers, whose meaning is the algorithm's.
        forget_at: From when they say nothing any more.
    """

    decision: Decision
    state: _State
    forget_at: int


class SqliteCounters(Counters):
    """The counters and limits of one scope."""

    __slots__ = ("_place",)

    def __init__(self, place: Place) -> None:
        self._place = place

    async def increment(self, key: str, *, by: int = 1, expires_in: float | None = None) -> int:
        self._place.gate.check()
        check_key(key)
        if type(by) is not int or not _INT_MIN <= by <= _INT_MAX:
            raise InvalidValueError("by", "must be an int of at most 64 bits")
        lasts = ttl_ms(expires_in, "expires_in")
        params: dict[str, Any] = {"scope": self._place.number, "key": key}

        def work(step: Transaction) -> int:
            found = step.driver.execute(_GET, params | {"now": step.now}).fetchone()
            value, at = found or (0, None)
            value += by
            if not _INT_MIN <= value <= _INT_MAX:
                raise InvalidValueError("by", "would take the counter beyond 64 bits")
            if at is None and lasts is not None:
                at = step.now + lasts
            step.driver.execute(_PUT, params | {"value": value, "at": at})
            return int(value)

        return await self._place.write(work)

    async def get(self, key: str) -> int | None:
        self._place.gate.check()
        check_key(key)
        params = {"scope": self._place.number, "key": key}
        found = await self._place.read(
            lambda driver, now: driver.execute(_GET, params | {"now": now}).fetchone()
        )
        return None if found is None else int(found[0])

    async def reset(self, key: str) -> bool:
        self._place.gate.check()
        check_key(key)
        params = {"scope": self._place.number, "key": key}

        def work(step: Transaction) -> bool:
            more = params | {"now": step.now}
            gone = [step.driver.execute(one, more).rowcount for one in _RESETS]
            return any(gone)

        return await self._place.write(work)

    async def take(self, key: str, limit: RateLimit, *, cost: int = 1) -> Decision:
        self._place.gate.check()
        check_key(key)
        check_limit(cost, "cost")
        if type(limit) not in _TYPES:
            reason = f"must be FixedWindow, SlidingWindow or TokenBucket, not {limit!r}"
            raise InvalidValueError("limit", reason)
        most = limit.capacity if isinstance(limit, TokenBucket) else limit.limit
        if cost > most:
            reason = f"must be at most {most}, which is all the limit ever allows"
            raise InvalidValueError("cost", reason)
        params = {"scope": self._place.number, "kind": type(limit).__name__, "key": key}

        def work(step: Transaction) -> Decision:
            found = step.driver.execute(_STATE, params | {"now": step.now}).fetchone()
            state = None if found is None else _loaded(found[0])
            outcome = decide(limit, state, cost, step.now)
            if outcome.state is None:
                if found is not None:
                    step.driver.execute(_FORGET, params)
            elif outcome.state != state:
                # Numbers of a bucket may be of more than 64 bits.
                text = ",".join(map(str, outcome.state))
                more = {"state": text, "at": outcome.forget_at}
                step.driver.execute(_REMEMBER, params | more)
            return outcome.decision

        return await self._place.write(work)


def _loaded(text: str) -> _State:
    first, second, third = map(int, text.split(","))
    return first, second, third


def decide(limit: RateLimit, state: _State, cost: int, now: int) -> Outcome:
    """Say whether *cost* may be taken, and what there is to remember."""
    per = max(1, round(limit.per * 1000))
    if isinstance(limit, FixedWindow):
        return _fixed(limit.limit, per, state, cost, now)
    if isinstance(limit, SlidingWindow):
        return _sliding(limit.limit, per, state, cost, now)
    return _bucket(limit, per, state, cost, now)


def _fixed(limit: int, per: int, state: _State, cost: int, now: int) -> Outcome:
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
    return Outcome(decision, (start, taken, per) if taken else None, end)


def _sliding(limit: int, per: int, state: _State, cost: int, now: int) -> Outcome:
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
    return Outcome(decision, kept, whole_at)


def _windows(state: _State, start: int, per: int) -> tuple[int, int]:
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


def _bucket(limit: TokenBucket, per: int, state: _State, cost: int, now: int) -> Outcome:
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
    return Outcome(decision, None if level == full else (now, level, per), whole_at)
