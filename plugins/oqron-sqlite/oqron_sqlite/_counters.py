"""Counters and rate limits."""

from __future__ import annotations

from typing import Any, Final

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import (
    INT_MAX,
    INT_MIN,
    Counters,
    Decision,
    FixedWindow,
    LimitState,
    RateLimit,
    SlidingWindow,
    TokenBucket,
    check_key,
    check_take,
    decide_limit,
    ttl_ms,
)
from oqron_sqlite._facet import Place
from oqron_sqlite._lane import Transaction


__all__ = ["SqliteCounters"]

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


class SqliteCounters(Counters):
    """The counters and limits of one scope."""

    __slots__ = ("_place",)

    def __init__(self, place: Place) -> None:
        self._place = place

    async def increment(self, key: str, *, by: int = 1, expires_in: float | None = None) -> int:
        self._place.gate.check()
        check_key(key)
        if type(by) is not int or not INT_MIN <= by <= INT_MAX:
            raise InvalidValueError("by", "must be an int of at most 64 bits")
        lasts = ttl_ms(expires_in, "expires_in")
        params: dict[str, Any] = {"scope": self._place.number, "key": key}

        def work(step: Transaction) -> int:
            found = step.driver.execute(_GET, params | {"now": step.now}).fetchone()
            value, at = found or (0, None)
            value += by
            if not INT_MIN <= value <= INT_MAX:
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
        check_take(limit, cost)
        params = {"scope": self._place.number, "kind": type(limit).__name__, "key": key}

        def work(step: Transaction) -> Decision:
            found = step.driver.execute(_STATE, params | {"now": step.now}).fetchone()
            state = None if found is None else _loaded(found[0])
            outcome = decide_limit(limit, state, cost, step.now)
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


def _loaded(text: str) -> LimitState:
    first, second, third = map(int, text.split(","))
    return first, second, third
