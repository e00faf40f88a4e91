"""What lives where, as a dashboard sees it: three tables, plain SQL."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from oqron_core.testing.contracts.mode_places import KINDS, PlacesContract


class TestTables(PlacesContract):
    """Redis is hot, PostgreSQL is durable."""

    mode = "redis-postgres"
    report_as = "tables"
    _url = ""
    _sections: dict[str, Any]

    @pytest.fixture(autouse=True)
    def _servers(self, redis_url: str, postgres_url: str) -> None:
        self._url = postgres_url
        self._sections = {"redis": {"url": redis_url}, "postgres": {"url": postgres_url}}

    def settings(self) -> dict[str, Any]:
        """Point at the servers of the run."""
        return self._sections

    async def test_sql_finds_each_row_in_its_table(self) -> None:
        """One of each, by the columns of the model."""
        await self.one_of_each()
        scope = (self.scope.project, self.scope.environment)
        async with await psycopg.AsyncConnection.connect(self._url) as connection:
            for namespace, (kind, table) in KINDS.items():
                rows = await connection.execute(
                    f"SELECT record_kind, value FROM oqron_{table} "
                    "WHERE project = %s AND environment = %s AND namespace = %s",
                    (*scope, namespace),
                )
                found = await rows.fetchall()
                assert found, namespace
                assert {kind} == {row[0] for row in found}, namespace
