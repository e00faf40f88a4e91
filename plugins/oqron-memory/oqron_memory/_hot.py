"""The hot plane in memory."""

from __future__ import annotations

from oqron_core.planes import Capabilities, Health, HotPlane, PlaneContext, Scope
from oqron_memory._broker import MemoryBroker
from oqron_memory._cache import MemoryCache
from oqron_memory._counters import MemoryCounters
from oqron_memory._durable import capabilities, health
from oqron_memory._live import MemoryLiveRuns
from oqron_memory._locks import MemoryLocks
from oqron_memory._signals import MemorySignals
from oqron_memory._store import MemoryStore, ScopeState
from oqron_memory._wake import Gate


__all__ = ["MemoryHotPlane"]


class MemoryHotPlane(HotPlane):
    """The hot plane of one scope."""

    __slots__ = (
        "_capabilities",
        "_gate",
        "_scope",
        "_store",
        "broker",
        "cache",
        "counters",
        "live",
        "locks",
        "signals",
    )

    def __init__(
        self, store: MemoryStore, state: ScopeState, gate: Gate, context: PlaneContext
    ) -> None:
        most = context.max_value_bytes
        self._store = store
        self._gate = gate
        self._scope = context.scope
        self._capabilities = capabilities(context)
        self.broker = MemoryBroker(store, state, gate)
        self.locks = MemoryLocks(store, state, gate)
        self.counters = MemoryCounters(store, state, gate)
        self.cache = MemoryCache(store, state, gate, most)
        self.live = MemoryLiveRuns(store, state, gate, most)
        self.signals = MemorySignals(store, state, gate, most)

    @property
    def scope(self) -> Scope:
        return self._scope

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def now(self) -> int:
        self._gate.check()
        return self._store.clock.now()

    async def check(self) -> Health:
        self._gate.check()
        return health(self._store)
