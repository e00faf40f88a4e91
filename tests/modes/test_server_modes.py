"""Modes that need servers: everything a storage offers, on each of them."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from oqron_core.testing.contracts.mode import ModeContract
from oqron_core.testing.contracts.mode_adversity import AdversityContract
from oqron_core.testing.contracts.mode_adversity_clients import ClientAdversityContract
from oqron_core.testing.contracts.mode_adversity_jobs import JobsAdversityContract
from oqron_core.testing.contracts.mode_adversity_values import AdverseValuesContract
from oqron_core.testing.contracts.mode_breakers import ModeBreakersContract
from oqron_core.testing.contracts.mode_cache import ModeCacheContract
from oqron_core.testing.contracts.mode_controls import ControlsContract
from oqron_core.testing.contracts.mode_definitions import DefinitionsContract
from oqron_core.testing.contracts.mode_limits import ModeLimitsContract
from oqron_core.testing.contracts.mode_locks import ModeLocksContract
from oqron_core.testing.contracts.mode_logs import ModeLogsContract
from oqron_core.testing.contracts.mode_places import PlacesContract
from oqron_core.testing.contracts.mode_retention import RetentionContract
from oqron_core.testing.contracts.mode_schedules import SchedulesContract
from oqron_core.testing.contracts.mode_topics import TopicsContract
from oqron_memory import MemoryStore


class OnRedis:
    """Redis serves both planes."""

    mode: ClassVar[str] = "redis"
    _sections: dict[str, Any]

    @pytest.fixture(autouse=True)
    def _servers(self, redis_url: str) -> None:
        self._sections = {"redis": {"url": redis_url}}

    def settings(self) -> dict[str, Any]:
        """Point at the servers of the run."""
        return self._sections


class OnRedisPostgres(OnRedis):
    """Redis is hot, PostgreSQL is durable."""

    mode: ClassVar[str] = "redis-postgres"

    @pytest.fixture(autouse=True)
    def _servers(self, redis_url: str, postgres_url: str) -> None:
        self._sections = {
            "redis": {"url": redis_url},
            "postgres": {"url": postgres_url, "create_schema": True},
        }


class TestRedisMode(OnRedis, ModeContract):
    """Jobs, dead letters, runs, maintenance."""


class TestRedisTopics(OnRedis, TopicsContract):
    """A log, groups, order per key."""


class TestRedisSchedules(OnRedis, SchedulesContract):
    """Pointers, one winner a slot."""


class TestRedisControls(OnRedis, ControlsContract):
    """Pauses, and what arrives meanwhile."""


class TestRedisDefinitions(OnRedis, DefinitionsContract):
    """What is defined."""


class TestRedisRetention(OnRedis, RetentionContract):
    """What goes, and when."""


class TestRedisLocks(OnRedis, ModeLocksContract):
    """Locks and leaders."""


class TestRedisCache(OnRedis, ModeCacheContract):
    """Values that expire."""


class TestRedisLimits(OnRedis, ModeLimitsContract):
    """Rates, slots, bans."""


class TestRedisBreakers(OnRedis, ModeBreakersContract):
    """Circuit breakers."""


class TestRedisLogs(OnRedis, ModeLogsContract):
    """Logs of modules."""


class TestRedisAdversity(OnRedis, AdversityContract):
    """What broke once."""


class TestRedisJobsAdversity(OnRedis, JobsAdversityContract):
    """What broke jobs of others."""


class TestRedisValues(OnRedis, AdverseValuesContract):
    """Times, values and names that broke others."""


class TestRedisClients(OnRedis, ClientAdversityContract):
    """What broke clients of others."""


class TestRedisPlaces(OnRedis, PlacesContract):
    """What lives where."""


class TestRedisPostgresPlaces(OnRedisPostgres, PlacesContract):
    """What lives where."""


class TestRedisPostgresMode(OnRedisPostgres, ModeContract):
    """Jobs, dead letters, runs, maintenance."""


class TestRedisPostgresTopics(OnRedisPostgres, TopicsContract):
    """A log, groups, order per key."""


class TestRedisPostgresSchedules(OnRedisPostgres, SchedulesContract):
    """Pointers, one winner a slot."""


class TestRedisPostgresControls(OnRedisPostgres, ControlsContract):
    """Pauses, and what arrives meanwhile."""


class TestRedisPostgresDefinitions(OnRedisPostgres, DefinitionsContract):
    """What is defined."""


class TestRedisPostgresRetention(OnRedisPostgres, RetentionContract):
    """What goes, and when."""


class TestRedisPostgresBreakers(OnRedisPostgres, ModeBreakersContract):
    """Circuit breakers."""


class TestRedisPostgresLogs(OnRedisPostgres, ModeLogsContract):
    """Logs of modules."""


class TestRedisPostgresAdversity(OnRedisPostgres, AdversityContract):
    """What broke once."""


class TestRedisPostgresJobsAdversity(OnRedisPostgres, JobsAdversityContract):
    """What broke jobs of others."""


class TestRedisPostgresValues(OnRedisPostgres, AdverseValuesContract):
    """Times, values and names that broke others."""


class TestRedisPostgresClients(OnRedisPostgres, ClientAdversityContract):
    """What broke clients of others."""


class TestMemoryPostgresMode(ModeContract):
    """One process with a durable history: memory is hot, PostgreSQL is durable."""

    backend = "memory+postgres"
    report_as = "mode memory+postgres"
    _url = ""
    store: MemoryStore | None = None

    @pytest.fixture(autouse=True)
    def _server(self, postgres_url: str) -> None:
        self._url = postgres_url

    def settings(self) -> dict[str, Any]:
        """Give every storage of a test the same hot store."""
        if self.store is None:
            self.store = MemoryStore()
        return {
            "hot": "memory",
            "durable": "postgres",
            "memory": {"store": self.store},
            "postgres": {"url": self._url, "create_schema": True},
        }
