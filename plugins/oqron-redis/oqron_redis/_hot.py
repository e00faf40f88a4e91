"""The hot plane on Redis."""

from __future__ import annotations

import logging

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import final

from oqron_core.exceptions import UnavailableError
from oqron_core.planes import Capabilities, Durability, Health, HotPlane, PlaneContext, Scope
from oqron_redis._broker import RedisBroker
from oqron_redis._checks import health
from oqron_redis._live import RedisLiveRuns
from oqron_redis._session import Session
from oqron_redis._signals import RedisSignals
from oqron_redis._store import Store
from oqron_redis._timed import RedisCache, RedisCounters, RedisLocks


__all__ = ["RedisHotPlane", "open_hot_plane"]

_log = logging.getLogger("oqron.redis")


@final
class RedisHotPlane(HotPlane):
    """The six facets over one store."""

    __slots__ = (
        "_capabilities",
        "_session",
        "broker",
        "cache",
        "counters",
        "live",
        "locks",
        "signals",
    )

    def __init__(self, session: Session) -> None:
        self._session = session
        self.broker = RedisBroker(session)
        self.locks = RedisLocks(session)
        self.counters = RedisCounters(session)
        self.cache = RedisCache(session)
        self.live = RedisLiveRuns(session)
        self.signals = RedisSignals(session)
        facts = session.store.facts
        self._capabilities = Capabilities(
            backend="redis",
            durability=Durability.SERVER if facts is None else facts.durability,
            shared=True,
            max_value_bytes=session.context.max_value_bytes,
        )

    @property
    def scope(self) -> Scope:
        return self._session.context.scope

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def session_on(self, store: Store) -> Session | None:
        """Give what it runs its steps with; None where that is another connection."""
        return self._session if self._session.store is store else None

    async def now(self) -> int:
        return await self._session.now()

    async def check(self) -> Health:
        self._session.check_open()
        return await health(self._session.store, persistent=False)


@asynccontextmanager
async def open_hot_plane(store: Store, context: PlaneContext) -> AsyncIterator[RedisHotPlane]:
    """Open the hot plane, and close it on leaving."""
    try:
        await store.check_server(persistent=False)
    except UnavailableError:
        if not context.start_degraded:
            raise
        _log.warning("Redis does not answer; the hot plane starts degraded")
    session = Session(store, context, lane=0)
    try:
        yield RedisHotPlane(session)
    finally:
        session.close()
