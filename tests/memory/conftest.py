"""Async tests run in a loop of their own, on planes of a store with a manual clock."""

from __future__ import annotations

import asyncio
import inspect

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import attrs
import pytest

import oqron_memory

from oqron_core.planes import Clock, DurablePlane, HotPlane, PlaneContext, Scope
from oqron_core.testing.clock import ManualClock
from oqron_memory import MemorySettings, MemoryStore


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine function to its end."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@attrs.frozen
class Planes:
    """Both planes of one scope, and their store."""

    hot: HotPlane
    durable: DurablePlane
    store: MemoryStore


Opened = Callable[..., AbstractAsyncContextManager[Planes]]


@pytest.fixture
def clock() -> ManualClock:
    """Stand still until it is moved."""
    return ManualClock()


@pytest.fixture
def opened(clock: ManualClock) -> Opened:
    """Open both planes; of a store that is given, or of one with the manual clock."""

    @asynccontextmanager
    async def open_planes(
        store: MemoryStore | None = None,
        *,
        environment: str = "test",
        max_bytes: int | None = None,
        on: Clock = clock,
    ) -> AsyncIterator[Planes]:
        settings = (
            MemorySettings(clock=on, max_bytes=max_bytes)
            if store is None
            else MemorySettings(store=store)
        )
        context = PlaneContext(Scope("memory", environment))
        async with (
            oqron_memory.connect(settings) as connected,
            oqron_memory.open_hot(connected, context) as hot,
            oqron_memory.open_durable(connected, context) as durable,
        ):
            yield Planes(hot, durable, connected)

    return open_planes
