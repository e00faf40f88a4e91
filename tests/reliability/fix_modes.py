"""The modes that need servers, for the tests of reliability."""

from __future__ import annotations

import os

from typing import Any, ClassVar, Final

import pytest

from oqron_core.testing.contracts.mode import ModeBase
from oqron_memory import MemoryStore


__all__ = ["MemoryPostgres", "Redis", "RedisPostgres", "depth", "seed"]


def depth(few: int) -> int:
    """
    Say how much to try: *few*, or ``OQRON_TEST_DEPTH`` times as much.

    What is tried in every run of the tests is a sample, as servers cost real time.
    """
    return few * max(1, int(os.environ.get("OQRON_TEST_DEPTH", "1")))


def seed() -> str:
    """Give the seed of samples: ``OQRON_TEST_SEED``, or always the same."""
    return os.environ.get("OQRON_TEST_SEED", "0")


# A machine that is busy with many tests is not a server that is away.
_PATIENCE: Final = 60.0


def _redis(url: str) -> dict[str, Any]:
    return {"url": url, "connect_timeout": _PATIENCE, "timeout": _PATIENCE}


def _postgres(url: str) -> dict[str, Any]:
    return {
        "url": url,
        "table_prefix": "reliability",
        "pool_size": 4,
        "connect_timeout": _PATIENCE,
        "pool_timeout": _PATIENCE,
        "statement_timeout": _PATIENCE,
    }


class Redis(ModeBase):
    """Redis serves both planes."""

    mode = "redis"
    redis_url: ClassVar[str] = ""

    @pytest.fixture(autouse=True)
    def _redis(self, redis_url: str) -> None:
        type(self).redis_url = redis_url

    def settings(self) -> dict[str, Any]:
        """Point at the server."""
        return {"redis": _redis(self.redis_url)}


class RedisPostgres(ModeBase):
    """Redis is hot, PostgreSQL is durable."""

    mode = "redis-postgres"
    redis_url: ClassVar[str] = ""
    postgres_url: ClassVar[str] = ""

    @pytest.fixture(autouse=True)
    def _servers(self, redis_url: str, postgres_url: str) -> None:
        type(self).redis_url = redis_url
        type(self).postgres_url = postgres_url

    def settings(self) -> dict[str, Any]:
        """Point at both servers, with few connections each."""
        return {"redis": _redis(self.redis_url), "postgres": _postgres(self.postgres_url)}


class MemoryPostgres(ModeBase):
    """One process with a durable history; the store is what its storages share."""

    report_as = "memory with postgres"
    postgres_url: ClassVar[str] = ""
    store: MemoryStore | None = None

    @pytest.fixture(autouse=True)
    def _server(self, postgres_url: str) -> None:
        type(self).postgres_url = postgres_url

    def settings(self) -> dict[str, Any]:
        """Share one memory, and point at the server."""
        if self.store is None:
            self.store = MemoryStore()
        return {
            "hot": "memory",
            "durable": "postgres",
            "memory": {"store": self.store},
            "postgres": _postgres(self.postgres_url),
        }
