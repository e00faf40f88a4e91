"""Counters and rate limits."""

from __future__ import annotations

from typing import Final

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import (
    INT_MAX,
    INT_MIN,
    Counters,
    Decision,
    FixedWindow,
    LimitOutcome,
    RateLimit,
    SlidingWindow,
    TokenBucket,
    check_key,
    check_take,
    decide_limit,
    ttl_ms,
)
from oqron_memory._store import Counter, KeptLimit, MemoryStore, ScopeState
from oqron_memory._wake import Gate


__all__ = ["MemoryCounters"]

_TYPES: Final = (FixedWindow, SlidingWindow, TokenBucket)


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
        if type(by) is not int or not INT_MIN <= by <= INT_MAX:
            raise InvalidValueError("by", "must be an int of at most 64 bits")
        lasts = ttl_ms(expires_in, "expires_in")
        store = self._store
        with store.lock:
            now = store.clock.now()
            store.sweep(now)
            counter = self._counters.get(key, now)
            total = by if counter is None else counter.value + by
            if not INT_MIN <= total <= INT_MAX:
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
        check_take(limit, cost)
        store = self._store
        with store.lock:
            now = store.clock.now()
            store.sweep(now)
            address = (type(limit), key)
            state = self._limits.get(address, now)
            outcome = decide_limit(limit, None if state is None else state.numbers, cost, now)
            self._remember(address, state, outcome)
            return outcome.decision

    def _remember(
        self, address: tuple[type, str], state: KeptLimit | None, outcome: LimitOutcome
    ) -> None:
        if outcome.state is None:
            self._limits.pop(address)
        elif state is None:
            # What is there may have expired.
            self._limits.pop(address)
            self._limits.put(address, KeptLimit(outcome.state), outcome.forget_at)
        else:
            state.numbers = outcome.state
            self._limits.move(state, outcome.forget_at)
