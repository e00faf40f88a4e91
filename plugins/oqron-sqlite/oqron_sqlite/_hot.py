"""The hot plane on SQLite."""

from __future__ import annotations

from oqron_core.exceptions import OqronError
from oqron_core.planes import Capabilities, Health, HotPlane, PlaneContext, Scope
from oqron_sqlite._broker import SqliteBroker
from oqron_sqlite._cache import SqliteCache
from oqron_sqlite._counters import SqliteCounters
from oqron_sqlite._facet import Place
from oqron_sqlite._lane import Transaction
from oqron_sqlite._live import SqliteLiveRuns
from oqron_sqlite._locks import SqliteLocks
from oqron_sqlite._signals import SqliteSignals
from oqron_sqlite._store import SqliteStore, capabilities
from oqron_sqlite._wake import Gate


__all__ = ["SqliteHotPlane"]

_FIND = "SELECT scope FROM oqron_hot_scopes WHERE project = ? AND environment = ?"
_MAKE = "INSERT INTO oqron_hot_scopes (project, environment) VALUES (?, ?)"


class SqliteHotPlane(HotPlane):
    """The hot plane of one scope."""

    __slots__ = (
        "_capabilities",
        "_place",
        "_scope",
        "_store",
        "broker",
        "cache",
        "counters",
        "live",
        "locks",
        "signals",
    )

    def __init__(self, store: SqliteStore, context: PlaneContext, number: int) -> None:
        place = Place(store.hot, store.hub, Gate(), number, context.max_value_bytes)
        self._store = store
        self._place = place
        self._scope = context.scope
        self._capabilities = capabilities(store.settings, context)
        self.broker = SqliteBroker(place)
        self.locks = SqliteLocks(place)
        self.counters = SqliteCounters(place)
        self.cache = SqliteCache(place)
        self.live = SqliteLiveRuns(place)
        self.signals = SqliteSignals(place)

    @classmethod
    async def open(cls, store: SqliteStore, context: PlaneContext) -> SqliteHotPlane:
        """Open the plane of a scope, which gets a number in the file."""
        scope = context.scope
        names = scope.project, scope.environment

        def work(step: Transaction) -> int:
            found = step.driver.execute(_FIND, names).fetchone()
            if found is not None:
                return int(found[0])
            return int(step.driver.execute(_MAKE, names).lastrowid or 0)

        return cls(store, context, await store.hot.write(work))

    def close(self) -> None:
        """Refuse from now on, and end who waits."""
        self._place.gate.close()

    @property
    def scope(self) -> Scope:
        return self._scope

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def now(self) -> int:
        self._place.gate.check()
        return self._store.clock.now()

    async def check(self) -> Health:
        self._place.gate.check()
        try:
            return await self._store.health(self._store.hot)
        except OqronError as error:
            return Health(ok=False, reasons=(str(error),))
