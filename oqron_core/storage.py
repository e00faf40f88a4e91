"""Opening: pick two backends, connect each once, compose, close cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any, Final, NoReturn, TypeAlias

from oqron_core._plugins import KNOWN_BACKENDS, Plugins, discover
from oqron_core.config import Mode, Settings, load_settings, structure_section
from oqron_core.exceptions import StorageError
from oqron_core.hookspecs import Backend
from oqron_core.planes.durable import DurablePlane
from oqron_core.planes.hot import HotPlane
from oqron_core.planes.values import PlaneContext, Scope
from oqron_core.protocol.orders import Orders
from oqron_core.protocol.recovery import Recovery
from oqron_core.protocol.retaining import Retaining
from oqron_core.protocol.session import Session
from oqron_core.services.breakers import Breakers
from oqron_core.services.cache import Cache
from oqron_core.services.controls import Controls
from oqron_core.services.dead_letters import DeadLetters
from oqron_core.services.definitions import Definitions
from oqron_core.services.jobs import Jobs
from oqron_core.services.limits import Limits
from oqron_core.services.locks import Locks
from oqron_core.services.logs import Logs
from oqron_core.services.maintenance import Maintenance
from oqron_core.services.retention import Retention
from oqron_core.services.runs import Runs
from oqron_core.services.schedules import Schedules
from oqron_core.services.topics import Topics


__all__ = ["Storage", "open_storage"]

log: logging.Logger = logging.getLogger("oqron.storage")

_LAST_WORDS: Final = 0.1

WrapHot: TypeAlias = Callable[[HotPlane], HotPlane]
WrapDurable: TypeAlias = Callable[[DurablePlane], DurablePlane]


class Storage:
    """
    An opened storage, bound to one scope. Made by `open_storage`.

    Attributes:
        hot: The hot plane.
        durable: The durable plane.
        settings: What it was opened with.
        jobs: Work orders.
        dead_letters: Jobs whose attempts are exhausted.
        runs: Run history.
        controls: Pause state.
        topics: Messages for every group.
        schedules: Pointers into time: what is due next.
        definitions: What is defined, for boards.
        locks: Locks and leaders.
        cache: Values that expire.
        limits: Rates, slots, bans.
        breakers: Circuit breakers.
        logs: Logs of modules.
        retention: How long what has ended is kept.
        maintenance: Repairs.
        unwritten: After closing: how many finished runs and lines of logs could not
            be written.
    """

    def __init__(self, hot: HotPlane, durable: DurablePlane, settings: Settings) -> None:
        self.hot = hot
        self.durable = durable
        self.settings = settings
        self.unwritten: int = 0
        self._session = session = Session(hot, durable, settings)
        orders = Orders(session)
        self._recovery = Recovery(session)
        retaining = Retaining(session)
        self.jobs: Jobs = Jobs(session, orders)
        self.dead_letters: DeadLetters = DeadLetters(session, orders)
        self.runs: Runs = Runs(session)
        self.controls: Controls = Controls(session)
        self.topics: Topics = Topics(session, orders)
        self.schedules: Schedules = Schedules(session)
        self.definitions: Definitions = Definitions(session)
        self.locks: Locks = Locks(session)
        self.cache: Cache = Cache(session)
        self.limits: Limits = Limits(session)
        self.breakers: Breakers = Breakers(session)
        self.logs: Logs = Logs(session)
        self.retention: Retention = Retention(session, retaining)
        self.maintenance: Maintenance = Maintenance(session, self._recovery, retaining)

    @property
    def scope(self) -> Scope:
        """The scope that both planes are bound to."""
        return self.durable.scope

    async def _open(self) -> None:
        await self._session.open()
        try:
            batch = self.settings.maintenance.batch
            await self._recovery.rebuild_if_lost(batch=batch, opening=True)
        except StorageError as error:
            if not self.settings.start_degraded:
                raise
            log.warning("opened without the hot plane: %s", error)

    async def _close(self, budget: _Budget) -> None:
        lines = await self.logs.close(budget.left() / 4)
        self.unwritten = lines + await self._session.close(budget.left() * 0.75)

    def __reduce__(self) -> NoReturn:
        msg = "a storage cannot be pickled; open one in the process that needs it"
        raise TypeError(msg)

    def __repr__(self) -> str:
        settings = self.settings
        return (
            f"<Storage {settings.hot}/{settings.durable} "
            f"project={settings.project!r} environment={settings.environment!r}>"
        )


@contextlib.asynccontextmanager
async def open_storage(
    settings: Settings | None = None,
    *,
    mode: Mode | str | None = None,
    hot: str | None = None,
    durable: str | None = None,
    project: str | None = None,
    environment: str | None = None,
    wrap_hot: WrapHot | None = None,
    wrap_durable: WrapDurable | None = None,
    plugins: Plugins | None = None,
    **more: Any,
) -> AsyncIterator[Storage]:
    """
    Open a storage: an async context manager.

    Settings come from the arguments, the environment and the configuration files,
    in this order. Where the hot plane is found empty it is rebuilt from the
    durable one. Leaving the context writes what is buffered, for up to
    ``close_timeout`` seconds, and closes every connection; whatever fails while
    opening closes what was opened before it.

    Args:
        settings: Ready settings; not together with those below.
        mode: ``memory``, ``redis`` or ``redis-postgres``: shorthand for the next two.
        hot: The backend of the hot plane.
        durable: The backend of the durable plane; the same as *hot* is connected
            once.
        project: The project of the scope.
        environment: The environment of the scope.
        wrap_hot: Puts a proxy of the same ABC around the hot plane, for metrics,
            tracing or faults.
        wrap_durable: The same for the durable plane.
        plugins: Where backends are looked up; None discovers the installed ones.
        **more: Any other setting of `load_settings`, sections of backends included:
            ``redis={"url": …}``.

    Raises:
        ConfigError: The settings are wrong; all problems at once.
        PluginError: A backend is not installed, or cannot be used.
        UnavailableError: A plane does not answer; for the hot one not with
            ``start_degraded``.
        SchemaError: The durable plane's tables are not as they must be.
    """
    if settings is None:
        found = discover(only=()) if plugins is None else plugins
        try:
            settings = load_settings(
                plugins=found,
                mode=mode,
                hot=hot,
                durable=durable,
                project=project,
                environment=environment,
                **more,
            )
        finally:
            # What may hold a secret does not stay in a frame that an error shows.
            more.clear()
    else:
        given = {"mode": mode, "hot": hot, "durable": durable, "project": project}
        named = [
            n for n, v in (given | {"environment": environment} | more).items() if v is not None
        ]
        if named:
            msg = f"give either settings or {', '.join(named)}, not both"
            raise TypeError(msg)
        found = discover(only=()) if plugins is None else plugins
    budget = _Budget(settings.close_timeout)
    async with AsyncExitStack() as stack:
        planes = await _open_planes(stack, found, settings, budget)
        storage = Storage(*_wrapped(planes, wrap_hot, wrap_durable), settings)
        _warn_of_gaps(settings, storage.durable)
        _warn_of_memory(settings)
        try:
            await storage._open()
            yield storage
        finally:
            budget.start()
            await storage._close(budget)


def _wrapped(
    planes: tuple[HotPlane, DurablePlane],
    wrap_hot: WrapHot | None,
    wrap_durable: WrapDurable | None,
) -> tuple[HotPlane, DurablePlane]:
    hot, durable = planes
    return (
        hot if wrap_hot is None else wrap_hot(hot),
        durable if wrap_durable is None else wrap_durable(durable),
    )


def _warn_of_gaps(settings: Settings, durable: DurablePlane) -> None:
    can = durable.capabilities
    if not can.atomic or can.atomic_scope != "scope":
        log.warning(
            "the durable backend %r has no atomic batches over all records: dead letters, "
            "requeues, schedules and topics will be refused; only simple queues can rely on it",
            settings.durable,
        )


def _warn_of_memory(settings: Settings) -> None:
    """Nothing falls back to memory by itself, but forgetting the mode looks like it."""
    if settings.durable != "memory" or not settings.sources.keys().isdisjoint({"hot", "durable"}):
        return
    unused = [name for name in KNOWN_BACKENDS if settings.section_for(name)]
    if unused:
        log.warning(
            "settings of %s are given and not used: no mode is chosen, so both planes are in "
            "memory and gone with the process; set mode",
            " and ".join(unused),
        )


async def _open_planes(
    stack: AsyncExitStack, plugins: Plugins, settings: Settings, budget: _Budget
) -> tuple[HotPlane, DurablePlane]:
    hot_backend, open_hot = plugins.hot(settings.hot)
    durable_backend, open_durable = plugins.durable(settings.durable)
    context = PlaneContext(
        Scope(settings.project, settings.environment),
        max_value_bytes=settings.max_value_bytes,
        start_degraded=settings.start_degraded,
    )
    # Opening needs the durable plane; it comes first.
    durable_side = await _connect(stack, durable_backend, settings, budget)
    hot_side = (
        durable_side
        if hot_backend.name == durable_backend.name
        else await _connect(stack, hot_backend, settings, budget)
    )
    durable = await _enter(stack, open_durable(durable_side, context), budget, "durable plane")
    hot = await _enter(stack, open_hot(hot_side, context), budget, "hot plane")
    return hot, durable


async def _connect(
    stack: AsyncExitStack, backend: Backend, settings: Settings, budget: _Budget
) -> Any:
    section = structure_section(backend, settings.section_for(backend.name), backend.name)
    return await _enter(stack, backend.connect(section), budget, f"connection of {backend.name}")


class _Budget:
    """The time that closing may take, shared by everything that is closed."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._deadline: float | None = None

    def start(self) -> None:
        """Count from now."""
        self._deadline = time.monotonic() + self._timeout

    def left(self) -> float:
        """Give the seconds that are left; a little also where there are none."""
        if self._deadline is None:
            return self._timeout
        return max(_LAST_WORDS, self._deadline - time.monotonic())


async def _enter(stack: AsyncExitStack, manager: Any, budget: _Budget, what: str) -> Any:
    """Enter *manager*; leaving it later takes no longer than the budget allows."""
    value = await manager.__aenter__()

    async def leave(*error: Any) -> None:
        allowed = budget.left()
        try:
            async with asyncio.timeout(allowed):
                await manager.__aexit__(*error)
        except TimeoutError:
            # A frozen server must not keep the process from ending.
            log.warning("the %s did not close within %.1f seconds", what, allowed)
        except StorageError as problem:
            log.warning("closing the %s: %s", what, problem)

    stack.push_async_exit(leave)
    return value
