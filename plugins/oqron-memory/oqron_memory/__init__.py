"""
The in-process backend of oqron: both planes in memory.

Fast, complete and gone with the process: for tests, for one process, and as the
reference that other backends are compared with.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from oqron_core.hookspecs import (
    Backend,
    DoctorReport,
    RegisterDurablePlane,
    RegisterHotPlane,
    hookimpl,
)
from oqron_core.planes import DurablePlane, HotPlane, PlaneContext
from oqron_memory._settings import MemorySettings
from oqron_memory._store import MemoryStore


__all__ = ["BACKEND", "MemorySettings", "MemoryStore"]


@asynccontextmanager
async def connect(settings: MemorySettings) -> AsyncIterator[MemoryStore]:
    """Give the store of *settings*, or a fresh one."""
    if settings.store is not None:
        yield settings.store
    else:
        yield MemoryStore(clock=settings.clock, max_bytes=settings.max_bytes)


@asynccontextmanager
async def open_hot(store: MemoryStore, context: PlaneContext) -> AsyncIterator[HotPlane]:
    """Open the hot plane of a scope; leaving closes the plane, not the store."""
    from oqron_memory._hot import MemoryHotPlane  # noqa: PLC0415 - discovery stays light

    state, gate = store.open(context.scope)
    try:
        yield MemoryHotPlane(store, state, gate, context)
    finally:
        store.close(gate)


@asynccontextmanager
async def open_durable(store: MemoryStore, context: PlaneContext) -> AsyncIterator[DurablePlane]:
    """Open the durable plane of a scope; leaving closes the plane, not the store."""
    from oqron_memory._durable import MemoryDurablePlane  # noqa: PLC0415 - as above

    state, gate = store.open(context.scope)
    try:
        yield MemoryDurablePlane(store, state, gate, context)
    finally:
        store.close(gate)


BACKEND = Backend(name="memory", contract_version=1, settings=MemorySettings, connect=connect)


@hookimpl
def oqron_register_hot_planes(register: RegisterHotPlane) -> None:
    """Serve the hot plane."""
    register(BACKEND, open_hot)


@hookimpl
def oqron_register_durable_planes(register: RegisterDurablePlane) -> None:
    """Serve the durable plane."""
    register(BACKEND, open_durable)


async def _check(settings: MemorySettings) -> tuple[bool, str]:
    """Say what the store keeps; there is no server that could be down."""
    async with connect(settings) as store:
        limit = "no limit" if store.max_bytes is None else f"{store.max_bytes} bytes"
        return True, f"{store!r} lives and dies with the process; max_bytes: {limit}"


@hookimpl
def oqron_doctor(report: DoctorReport) -> None:
    """Add one check: what the store holds, and its limit."""
    report("memory store", _check)
