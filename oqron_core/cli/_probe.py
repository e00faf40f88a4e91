"""Opening the planes of a mode one by one, to look at them."""

from __future__ import annotations

import asyncio

from contextlib import AsyncExitStack
from typing import Any, Final

import attrs

from oqron_core._plugins import Plugins, one_line
from oqron_core.config import Settings, structure_section
from oqron_core.exceptions import ConfigError, InvalidValueError, OqronError, UnavailableError
from oqron_core.hookspecs import Backend
from oqron_core.models._wire import camel
from oqron_core.planes.capabilities import Capabilities
from oqron_core.planes.durable import DurablePlane
from oqron_core.planes.hot import HotPlane
from oqron_core.planes.values import Health, PlaneContext, Scope
from oqron_core.taxonomy import RecordKind


__all__ = ["Probe", "capabilities_document", "probe"]

_PATIENCE: Final = 15.0


@attrs.define(kw_only=True)
class Probe:
    """
    What was found of one plane.

    Attributes:
        plane: ``hot`` or ``durable``.
        backend: The name of its backend.
        capabilities: What it declares; None where it could not be opened.
        health: How it is; None where it could not be opened.
        emulated: Methods that fall back to the contract's own, slower way.
        error: Why it could not be opened, in one line; None where it was.
        misconfigured: Whether its settings are to blame.
        away: Whether it did not answer.
    """

    plane: str
    backend: str
    capabilities: Capabilities | None = None
    health: Health | None = None
    emulated: tuple[str, ...] = ()
    error: str | None = None
    misconfigured: bool = False
    away: bool = False


async def probe(plugins: Plugins, settings: Settings) -> tuple[Probe, Probe]:
    """
    Open each plane by itself, ask how it is, and close it. Writes nothing.

    Returns:
        The hot plane, then the durable one.
    """
    return (
        await _probe_one(plugins, settings, "hot", settings.hot),
        await _probe_one(plugins, settings, "durable", settings.durable),
    )


async def _probe_one(plugins: Plugins, settings: Settings, plane: str, name: str) -> Probe:
    found = Probe(plane=plane, backend=name)
    try:
        async with asyncio.timeout(_PATIENCE):
            await _look(plugins, settings, found)
    except TimeoutError:
        found.error = f"no answer within {_PATIENCE:g} seconds"
        found.away = True
    except OqronError as error:
        found.error = str(error)
        found.misconfigured = isinstance(error, (ConfigError, InvalidValueError))
        found.away = isinstance(error, UnavailableError)
    except Exception as error:  # noqa: BLE001 - a plugin may raise anything, and that is a finding
        found.error = one_line(error)
    return found


async def _look(plugins: Plugins, settings: Settings, found: Probe) -> None:
    serves = plugins.hot if found.plane == "hot" else plugins.durable
    backend, opens = serves(found.backend)
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(_connect(backend, settings))
        context = PlaneContext(
            Scope(settings.project, settings.environment),
            max_value_bytes=settings.max_value_bytes,
        )
        plane: Any = await stack.enter_async_context(opens(connection, context))
        found.capabilities = plane.capabilities
        found.emulated = _emulated(plane)
        found.health = await plane.check()


def _connect(backend: Backend, settings: Settings) -> Any:
    section = settings.section_for(backend.name)
    return backend.connect(structure_section(backend, section, backend.name))


def capabilities_document(capabilities: Capabilities) -> dict[str, Any]:
    """Give what a plane declares as JSON, with the durability of every record kind."""
    plain = attrs.asdict(capabilities, filter=lambda field, _: field.name != "kinds")
    made = {camel(name): value for name, value in plain.items()}
    made["kinds"] = {kind.value: capabilities.durability_of(kind) for kind in RecordKind}
    return made


_FACETS: Final = ("broker", "locks", "counters", "cache", "live", "signals")


def _emulated(plane: HotPlane | DurablePlane) -> tuple[str, ...]:
    """Name the methods that a backend leaves to the defaults of the contract."""
    parts = (
        {"": plane}
        if isinstance(plane, DurablePlane)
        else {f"{name}.": getattr(plane, name) for name in _FACETS}
    )
    return tuple(
        f"{prefix}{name}"
        for prefix, part in parts.items()
        for name in _inherited(type(part))
        # Not slower ways: the refusal of those who do not declare transactions, and a
        # step that only planes of one store can take.
        if name not in {"bind", "joined"}
    )


def _inherited(cls: type) -> list[str]:
    """Give the public methods that *cls* takes from the contract as they are."""
    contracts = [base for base in cls.__mro__ if base.__module__.startswith("oqron_core.planes.")]
    return [
        name
        for base in contracts
        for name, member in vars(base).items()
        if not name.startswith("_")
        and callable(member)
        and not getattr(member, "__isabstractmethod__", False)
        and getattr(cls, name) is member
    ]
