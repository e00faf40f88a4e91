"""
The Redis backend of oqron: both planes on Redis or Valkey.

Light on purpose: finding this plugin imports no Redis client. What serves is
imported when a plane is opened.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final

from oqron_core.hookspecs import (
    Backend,
    DoctorReport,
    RegisterDurablePlane,
    RegisterHotPlane,
    hookimpl,
)
from oqron_core.planes import DurablePlane, HotPlane, PlaneContext
from oqron_redis._settings import RedisSettings


if TYPE_CHECKING:
    from oqron_redis._store import Store


__all__ = [
    "BACKEND",
    "RedisSettings",
    "connect",
    "open_durable",
    "open_hot",
    "oqron_doctor",
    "oqron_register_durable_planes",
    "oqron_register_hot_planes",
]


def connect(settings: RedisSettings) -> AbstractAsyncContextManager[Store]:
    """
    Make what both planes share: connections, scripts and a listener.

    Does not wait for the server: whether it answers is asked by whoever opens a
    plane.
    """
    from oqron_redis._store import open_store  # noqa: PLC0415 - discovery stays light

    return open_store(settings)


def open_hot(connection: Any, context: PlaneContext) -> AbstractAsyncContextManager[HotPlane]:
    """
    Open the hot plane of a scope.

    Raises:
        UnavailableError: The server does not answer, unless
            ``context.start_degraded``.
        ConfigError: The server may evict keys, or is too old.
    """
    from oqron_redis._hot import open_hot_plane  # noqa: PLC0415 - discovery stays light

    return open_hot_plane(connection, context)


def open_durable(
    connection: Any, context: PlaneContext
) -> AbstractAsyncContextManager[DurablePlane]:
    """
    Open the durable plane of a scope.

    Raises:
        UnavailableError: The server does not answer.
        ConfigError: The server may evict keys, or is too old.
    """
    from oqron_redis._durable import open_durable_plane  # noqa: PLC0415 - discovery stays light

    return open_durable_plane(connection, context)


BACKEND: Final = Backend(name="redis", contract_version=1, settings=RedisSettings, connect=connect)


@hookimpl
def oqron_register_hot_planes(register: RegisterHotPlane) -> None:
    """Register the hot plane."""
    register(BACKEND, open_hot)


@hookimpl
def oqron_register_durable_planes(register: RegisterDurablePlane) -> None:
    """Register the durable plane."""
    register(BACKEND, open_durable)


@hookimpl
def oqron_doctor(report: DoctorReport) -> None:
    """Add the checks of a Redis server."""
    from oqron_redis._checks import add_checks  # noqa: PLC0415 - discovery stays light

    add_checks(report)
