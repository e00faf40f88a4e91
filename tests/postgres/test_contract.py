"""The PostgreSQL backend meets the contract, whatever the server is like."""

from __future__ import annotations

import os

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, ClassVar

import psycopg
import pytest

from oqron_core.testing.contracts import DurablePlaneContract
from oqron_core.testing.servers import PostgresServer


class _Postgres(DurablePlaneContract):
    """The durable plane on a server that a subclass names."""

    backend = "postgres"
    url: ClassVar[str] = ""
    more: ClassVar[dict[str, Any]] = {}

    def settings(self) -> dict[str, Any]:
        """Use the tables of the class: made once, kept apart by scopes."""
        return {"url": self.url, "table_prefix": "contract", **self.more}

    def begin(self) -> AbstractAsyncContextManager[Any]:
        """Begin with psycopg."""
        return self._begin()

    @asynccontextmanager
    async def _begin(self) -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(
            self.url, prepare_threshold=None
        ) as connection:
            yield connection


class TestPostgres15(_Postgres):
    """The oldest version that is at hand."""

    @pytest.fixture(autouse=True)
    def _server(self, postgres_of: Any) -> None:
        server: PostgresServer = postgres_of(15)
        self.url = server.url()  # type: ignore[misc]  # of this test


class TestPostgres18(_Postgres):
    """The newest version."""

    @pytest.fixture(autouse=True)
    def _server(self, postgres_of: Any) -> None:
        server: PostgresServer = postgres_of(18)
        self.url = server.url()  # type: ignore[misc]  # of this test


class TestPostgresGiven(_Postgres):
    """The server that the run is pointed at, as it is."""

    __test__ = "OQRON_TEST_POSTGRES_URL" in os.environ

    @pytest.fixture(autouse=True)
    def _server(self, postgres_url: str) -> None:
        self.url = postgres_url  # type: ignore[misc]  # of this test


class TestPostgresWithOddDefaults(_Postgres):
    """Tokyo time, serializable, an empty search path, no prepared statements."""

    more: ClassVar[dict[str, Any]] = {"prepared_statements": False, "schema": "oqron odd"}

    @pytest.fixture(autouse=True)
    def _server(self, odd_url: str) -> None:
        self.url = odd_url  # type: ignore[misc]  # of this test


@pytest.mark.matrix
class TestPostgresBehindAPooler(_Postgres):
    """PgBouncer in transaction mode."""

    more: ClassVar[dict[str, Any]] = {"prepared_statements": False}

    @pytest.fixture(autouse=True)
    def _server(self, pooled_url: str) -> None:
        self.url = pooled_url  # type: ignore[misc]  # of this test
