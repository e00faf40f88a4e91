"""How tests of the PostgreSQL backend open it."""

from __future__ import annotations

import asyncio

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from oqron_core.planes import DEFAULT_MAX_VALUE_BYTES, PlaneContext, Scope
from oqron_postgres import PostgresSettings, connect, open_durable
from oqron_postgres.plane import PostgresPlane


@asynccontextmanager
async def opened(
    url: str,
    prefix: str,
    project: str = "p",
    environment: str = "e",
    *,
    max_value_bytes: int = DEFAULT_MAX_VALUE_BYTES,
    **more: Any,
) -> AsyncIterator[PostgresPlane]:
    """Open a plane as a process of its own would."""
    settings = PostgresSettings(url=url, table_prefix=prefix, **more)
    context = PlaneContext(Scope(project, environment), max_value_bytes)
    async with (
        connect(settings) as connection,
        open_durable(connection, context) as plane,
    ):
        assert isinstance(plane, PostgresPlane)
        yield plane


def run(coroutine: Any) -> Any:
    """Run a test's coroutine, at most a minute."""

    async def bounded() -> Any:
        async with asyncio.timeout(60):
            return await coroutine

    return asyncio.run(bounded())
