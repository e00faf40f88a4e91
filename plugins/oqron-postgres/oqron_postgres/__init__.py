"""
The PostgreSQL backend of oqron: the durable plane in three tables.

Light: SQLAlchemy and psycopg are imported when a storage is opened, not before.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from oqron_core.hookspecs import (
    Backend,
    DoctorReport,
    RegisterDurablePlane,
    hookimpl,
)
from oqron_core.planes import DurablePlane, PlaneContext
from oqron_postgres.settings import PostgresSettings


__all__ = [
    "BACKEND",
    "PostgresSettings",
    "connect",
    "open_durable",
    "oqron_doctor",
    "oqron_register_durable_planes",
]


def connect(settings: PostgresSettings) -> AbstractAsyncContextManager[Any]:
    """
    Open the pool, and see that the schema is one this version understands.

    Args:
        settings: Where the server is and how to use it.

    Returns:
        An async context manager of the connection that planes are opened on.

    Raises:
        SchemaError: On entering: the tables are missing, older, newer, or of the
            v1 layout; says what to run.
        UnavailableError: On entering: the server did not answer.
    """
    from oqron_postgres._connection import open_connection  # noqa: PLC0415 - lazy

    return open_connection(settings)


def open_durable(
    connection: Any, context: PlaneContext
) -> AbstractAsyncContextManager[DurablePlane]:
    """
    Open the durable plane of one scope.

    Args:
        connection: What `connect` gave.
        context: The scope, and the limit of a value.
    """
    from oqron_postgres.plane import open_plane  # noqa: PLC0415 - lazy

    return open_plane(connection, context)


BACKEND = Backend(
    name="postgres",
    contract_version=1,
    settings=PostgresSettings,
    connect=connect,
)
"""What this distribution ships: settings, a pool, and the durable plane."""


@hookimpl
def oqron_register_durable_planes(register: RegisterDurablePlane) -> None:
    """Register the durable plane."""
    register(BACKEND, open_durable)


@hookimpl
def oqron_doctor(report: DoctorReport) -> None:
    """Add the checks of the server, the schema and the v1 layout."""

    async def server(settings: PostgresSettings) -> tuple[bool | None, str]:
        from oqron_postgres import _doctor  # noqa: PLC0415 - lazy

        return await _doctor.server(settings)

    async def schema(settings: PostgresSettings) -> tuple[bool, str]:
        from oqron_postgres import _doctor  # noqa: PLC0415 - lazy

        return await _doctor.schema(settings)

    report("postgres server", server)
    report("postgres schema", schema)
