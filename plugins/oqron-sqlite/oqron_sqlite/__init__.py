"""
The SQLite backend of oqron: both planes in one file, without a server.

Several processes of one machine may share the file.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from oqron_core.hookspecs import (
    Backend,
    DoctorReport,
    RegisterDurablePlane,
    RegisterHotPlane,
    hookimpl,
)
from oqron_core.planes import DurablePlane, HotPlane, PlaneContext
from oqron_sqlite._settings import SqliteSettings


if TYPE_CHECKING:
    from oqron_sqlite._store import SqliteStore

__all__ = ["BACKEND", "SqliteSettings"]


@asynccontextmanager
async def connect(settings: SqliteSettings) -> AsyncIterator[SqliteStore]:
    """Open the file of *settings*; leaving closes it."""
    from oqron_sqlite._store import SqliteStore  # noqa: PLC0415 - discovery stays light

    store = SqliteStore(settings)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def open_hot(store: SqliteStore, context: PlaneContext) -> AsyncIterator[HotPlane]:
    """Open the hot plane of a scope; leaving closes the plane, not the file."""
    from oqron_sqlite._hot import SqliteHotPlane  # noqa: PLC0415 - as above

    plane = await SqliteHotPlane.open(store, context)
    try:
        yield plane
    finally:
        plane.close()


@asynccontextmanager
async def open_durable(store: SqliteStore, context: PlaneContext) -> AsyncIterator[DurablePlane]:
    """Open the durable plane of a scope; leaving closes the plane, not the file."""
    from oqron_sqlite._durable import SqliteDurablePlane  # noqa: PLC0415 - as above

    plane = SqliteDurablePlane(store, context)
    try:
        yield plane
    finally:
        plane.close()


BACKEND = Backend(name="sqlite", contract_version=1, settings=SqliteSettings, connect=connect)


@hookimpl
def oqron_register_hot_planes(register: RegisterHotPlane) -> None:
    """Serve the hot plane."""
    register(BACKEND, open_hot)


@hookimpl
def oqron_register_durable_planes(register: RegisterDurablePlane) -> None:
    """Serve the durable plane."""
    register(BACKEND, open_durable)


@hookimpl
def oqron_doctor(report: DoctorReport) -> None:
    """Add one check: whether the file opens, is whole and can be written."""
    from oqron_sqlite._doctor import check_file  # noqa: PLC0415 - as above

    report("sqlite file", check_file)
