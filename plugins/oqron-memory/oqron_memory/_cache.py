"""Values that expire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from oqron_core.planes import (
    MISSING,
    Cache,
    Json,
    Missing,
    check_key,
    check_keys,
    encode,
    ttl_ms,
)
from oqron_memory._store import CacheEntry, MemoryStore, ScopeState
from oqron_memory._wake import Gate


__all__ = ["MemoryCache"]


class MemoryCache(Cache):
    """The cache of one scope."""

    __slots__ = ("_cache", "_gate", "_max_bytes", "_store")

    def __init__(self, store: MemoryStore, state: ScopeState, gate: Gate, max_bytes: int) -> None:
        self._store = store
        self._cache = state.cache
        self._gate = gate
        self._max_bytes = max_bytes

    async def get_many(self, keys: Sequence[str]) -> Sequence[Any | Missing]:
        self._gate.check()
        check_keys(keys)
        if not keys:
            return []
        with self._store.lock:
            now = self._store.clock.now()
            self._store.sweep(now)
            found = [self._cache.get(key, now) for key in keys]
        # Encoded values never change, so they are decoded outside the lock.
        return [MISSING if entry is None else entry.data.load() for entry in found]

    async def set_many(self, entries: Mapping[str, Any], *, ttl: float | None = None) -> None:
        self._gate.check()
        lasts = ttl_ms(ttl)
        encoded = {key: self._encode(key, value) for key, value in entries.items()}
        if not encoded:
            return
        store = self._store
        with store.lock:
            now = store.clock.now()
            store.sweep(now)
            if store.max_bytes is not None:
                self._charge(encoded, now)
            for key, data in encoded.items():
                self._put(key, data, None if lasts is None else now + lasts)

    async def add(self, key: str, value: Any, *, ttl: float | None = None) -> bool:
        self._gate.check()
        lasts = ttl_ms(ttl)
        data = self._encode(key, value)
        store = self._store
        with store.lock:
            now = store.clock.now()
            store.sweep(now)
            if self._cache.get(key, now) is not None:
                return False
            if store.max_bytes is not None:
                self._charge({key: data}, now)
            self._put(key, data, None if lasts is None else now + lasts)
            return True

    async def delete_many(self, keys: Sequence[str]) -> Sequence[bool]:
        self._gate.check()
        check_keys(keys)
        if not keys:
            return []
        results = []
        with self._store.lock:
            now = self._store.clock.now()
            self._store.sweep(now)
            for key in keys:
                results.append(self._cache.get(key, now) is not None)
                entry = self._cache.pop(key)
                if entry is not None:
                    self._store.used -= entry.size
        return results

    def _encode(self, key: str, value: Any) -> Json:
        check_key(key)
        return encode(value, "value", max_bytes=self._max_bytes)

    def _charge(self, encoded: Mapping[str, Json], now: int) -> None:
        """Account for all entries at once, so that all are written or none."""

        def growth() -> int:
            old = sum(self._cache.size_of(key) for key in encoded)
            return sum(map(_size, encoded, encoded.values())) - old

        self._store.charge_or_make_room(growth, now)

    def _put(self, key: str, data: Json, expires_at: int | None) -> None:
        self._cache.pop(key)
        entry = CacheEntry(data)
        if self._store.max_bytes is not None:
            entry.size = _size(key, data)
        self._cache.put(key, entry, expires_at)


def _size(key: str, data: Json) -> int:
    return len(key) + len(data.data)
