"""
The hooks: who can serve which plane.

A plugin is a distribution with an entry point in the group ``oqron`` whose name
is the backend's and whose value is a light module with these functions, marked
with `hookimpl`. Hooks are called once, at opening, and do no work; what is
registered is used a million times without them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol, TypeAlias

import attrs
import pluggy

from oqron_core._names import check_name
from oqron_core.planes.durable import DurablePlane
from oqron_core.planes.hot import HotPlane
from oqron_core.planes.values import PlaneContext


__all__ = [
    "NAME",
    "Backend",
    "DoctorReport",
    "OpenDurable",
    "OpenHot",
    "RegisterDurablePlane",
    "RegisterHotPlane",
    "hookimpl",
    "hookspec",
]

NAME: Final = "oqron"
"""The pluggy project, the entry-point group, the hook prefix, the logger root."""

hookspec: pluggy.HookspecMarker = pluggy.HookspecMarker(NAME)
hookimpl: pluggy.HookimplMarker = pluggy.HookimplMarker(NAME)


@attrs.frozen(kw_only=True)
class Backend:
    """
    What a plugin ships: settings, a connection, and one or two planes.

    Attributes:
        name: The name of the entry point, as in ``hot = "<name>"``.
        contract_version: The `CONTRACT_VERSION` it was written for, as a literal
            number: the point is to notice when core's moves on.
        settings: An attrs class; its fields are the keys of the section
            ``[<name>]`` and of ``OQRON_<NAME>__<KEY>``. Secrets have
            ``repr=False``. Every field needs a default or is a required setting.
        connect: Takes the settings, gives an async context manager of whatever
            the planes share: a client, a pool, a store. Entered once per storage,
            also where the backend serves both planes.
    """

    name: str
    contract_version: int
    settings: type[Any]
    connect: Callable[[Any], AbstractAsyncContextManager[Any]]

    def __attrs_post_init__(self) -> None:
        check_name("backend", self.name)


OpenHot: TypeAlias = Callable[[Any, PlaneContext], AbstractAsyncContextManager[HotPlane]]
OpenDurable: TypeAlias = Callable[[Any, PlaneContext], AbstractAsyncContextManager[DurablePlane]]


class RegisterHotPlane(Protocol):
    """What `oqron_register_hot_planes` is handed."""

    def __call__(self, backend: Backend, open_hot: OpenHot) -> None:
        """
        Register.

        Args:
            backend: The backend.
            open_hot: Takes the connection and a `PlaneContext`, gives an async
                context manager of the plane. Leaving it closes the plane.
        """
        ...


class RegisterDurablePlane(Protocol):
    """What `oqron_register_durable_planes` is handed."""

    def __call__(self, backend: Backend, open_durable: OpenDurable) -> None:
        """
        Register.

        Args:
            backend: The backend.
            open_durable: As for the hot plane.
        """
        ...


class DoctorReport(Protocol):
    """What `oqron_doctor` is handed."""

    def __call__(
        self,
        name: str,
        check: Callable[[Any], Awaitable[tuple[bool | None, str]]],
        *,
        planes: Sequence[str] = ("hot", "durable"),
    ) -> None:
        """
        Add a check.

        Args:
            name: One or two words, such as ``postgres schema``.
            check: Takes the settings of the backend of this plugin, gives whether
                all is well and one sentence; None instead of a bool is a warning:
                it serves, and somebody should look. Run only by ``oqron doctor``.
            planes: Run it only where the backend of this plugin serves one of these.
        """
        ...


@hookspec
def oqron_register_hot_planes(register: RegisterHotPlane) -> None:
    """
    Register the hot planes that this plugin serves.

    Called once per discovery. What it raises is remembered, shown by ``oqron
    plugins`` and chained to the error of whoever asks for the backend; it breaks
    nobody else.
    """


@hookspec
def oqron_register_durable_planes(register: RegisterDurablePlane) -> None:
    """Register the durable planes that this plugin serves; otherwise as above."""


@hookspec
def oqron_doctor(report: DoctorReport) -> None:
    """
    Add checks to ``oqron doctor``; does not run them.

    Called by ``oqron doctor`` only. A check that raises is reported as failed.
    """
