"""Named locks with leases."""

from __future__ import annotations

from oqron_core.planes import Lease, Locks, check_key, check_name, lease_ms
from oqron_memory._store import Held, MemoryStore, ScopeState
from oqron_memory._wake import Gate


__all__ = ["MemoryLocks"]


class MemoryLocks(Locks):
    """The locks of one scope."""

    __slots__ = ("_gate", "_locks", "_store")

    def __init__(self, store: MemoryStore, state: ScopeState, gate: Gate) -> None:
        self._store = store
        self._locks = state.locks
        self._gate = gate

    async def acquire(self, key: str, *, owner: str, lease_for: float) -> Lease | None:
        self._gate.check()
        check_key(key)
        check_name("owner", owner)
        lasts = lease_ms(lease_for)
        store = self._store
        with store.lock:
            now = store.clock.now()
            store.sweep(now)
            if self._locks.get(key, now) is not None:
                return None
            self._locks.pop(key)
            held = Held(owner, store.next_token(now) + 1)
            self._locks.put(key, held, now + lasts)
            return Lease("", key, owner, held.token, now + lasts)

    async def renew(self, lease: Lease, *, lease_for: float) -> bool:
        self._gate.check()
        lasts = lease_ms(lease_for)
        with self._store.lock:
            now = self._store.clock.now()
            held = self._held(lease, now)
            if held is None:
                return False
            self._locks.move(held, now + lasts)
            return True

    async def release(self, lease: Lease) -> bool:
        self._gate.check()
        with self._store.lock:
            if self._held(lease, self._store.clock.now()) is None:
                return False
            self._locks.pop(lease.id)
            return True

    async def holder(self, key: str) -> Lease | None:
        self._gate.check()
        check_key(key)
        with self._store.lock:
            held = self._locks.get(key, self._store.clock.now())
            if held is None or held.at is None:
                return None
            return Lease("", key, held.owner, held.token, held.at)

    def _held(self, lease: Lease, now: int) -> Held | None:
        """Find what *lease* still holds; a lease of a queue holds no lock."""
        held = self._locks.get(lease.id, now)
        if held is None or lease.queue or held.token != lease.token:
            return None
        return held
