"""
The blocking facade: the same storage for programs without an event loop.

.. code-block:: python

    with open_sync_storage(mode="memory") as storage:
        job = storage.jobs.add("emails", {"to": "a@x.com"})

Every coroutine of a service blocks here, every async context manager is a context
manager, and everything else is what it was: ``claim.run.log(…)`` does not wait in
either world. A private event loop in a thread of its own does the work, from
opening to closing, so a storage may be shared by the threads of one process.

One rule for what is refused: a call from a thread in which an event loop runs is a
`BlockingCallError`; a call after closing, or in a forked child, is a `ClosedError`.
Ctrl-C in a call cancels it, waits until it has given back what it held, and goes on
as ``KeyboardInterrupt``; the outcome of such a call is unknown.
"""

from __future__ import annotations

import contextlib

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from oqron_core._plugins import Plugins
from oqron_core._portal import Portal
from oqron_core._sync_services import (
    SyncBreakers,
    SyncCache,
    SyncControls,
    SyncDeadLetters,
    SyncDefinitions,
    SyncJobs,
    SyncLimits,
    SyncLocks,
    SyncLogs,
    SyncMaintenance,
    SyncRetention,
    SyncRuns,
    SyncSchedules,
    SyncTopics,
)
from oqron_core.config import Mode, Settings
from oqron_core.exceptions import BlockingCallError
from oqron_core.planes.durable import DurablePlane
from oqron_core.planes.hot import HotPlane
from oqron_core.planes.values import Scope
from oqron_core.storage import Storage, WrapDurable, WrapHot, open_storage


__all__ = ["BlockingCallError", "SyncStorage", "open_sync_storage"]

P = ParamSpec("P")
T = TypeVar("T")


class SyncStorage:
    """
    An opened storage for blocking callers. Made by `open_sync_storage`.

    Safe to use from several threads.

    Attributes:
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
    """

    def __init__(self, portal: Portal, storage: Storage) -> None:
        self._portal = portal
        self._storage = storage
        self.jobs: SyncJobs = SyncJobs(portal, storage.jobs)
        self.dead_letters: SyncDeadLetters = SyncDeadLetters(portal, storage.dead_letters)
        self.runs: SyncRuns = SyncRuns(portal, storage.runs)
        self.controls: SyncControls = SyncControls(portal, storage.controls)
        self.topics: SyncTopics = SyncTopics(portal, storage.topics)
        self.schedules: SyncSchedules = SyncSchedules(portal, storage.schedules)
        self.definitions: SyncDefinitions = SyncDefinitions(portal, storage.definitions)
        self.locks: SyncLocks = SyncLocks(portal, storage.locks)
        self.cache: SyncCache = SyncCache(portal, storage.cache)
        self.limits: SyncLimits = SyncLimits(portal, storage.limits)
        self.breakers: SyncBreakers = SyncBreakers(portal, storage.breakers)
        self.logs: SyncLogs = SyncLogs(portal, storage.logs)
        self.retention: SyncRetention = SyncRetention(portal, storage.retention)
        self.maintenance: SyncMaintenance = SyncMaintenance(portal, storage.maintenance)

    @property
    def settings(self) -> Settings:
        """What it was opened with."""
        return self._storage.settings

    @property
    def scope(self) -> Scope:
        """The scope that both planes are bound to."""
        return self._storage.scope

    @property
    def hot(self) -> HotPlane:
        """The hot plane itself; its coroutines are run with `call`."""
        return self._storage.hot

    @property
    def durable(self) -> DurablePlane:
        """The durable plane itself; its coroutines are run with `call`."""
        return self._storage.durable

    @property
    def unwritten(self) -> int:
        """After closing: how many finished runs could not be written."""
        return self._storage.unwritten

    def call(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """
        Run any coroutine function in the storage's loop, and wait for it.

        For what has no blocking twin: ``storage.call(storage.durable.query, query)``.

        Raises:
            ClosedError: The storage is closed, or this process was forked off.
            BlockingCallError: An event loop runs in this thread.
            Exception: Whatever the coroutine raises.
        """
        return self._portal.call(function, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<Sync{repr(self._storage).removeprefix('<')}"


@contextlib.contextmanager
def open_sync_storage(
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
) -> Iterator[SyncStorage]:
    """
    Open a storage for blocking callers: a context manager.

    Leaving it writes what is buffered, closes every connection, and ends the
    thread.

    Args:
        settings: As `open_storage`, as are all others.
        mode: As `open_storage`.
        hot: As `open_storage`.
        durable: As `open_storage`.
        project: As `open_storage`.
        environment: As `open_storage`.
        wrap_hot: As `open_storage`.
        wrap_durable: As `open_storage`.
        plugins: As `open_storage`.
        **more: As `open_storage`.

    Raises:
        BlockingCallError: An event loop runs in this thread; use `open_storage`.
        OqronError: Whatever `open_storage` raises.
    """
    portal = Portal()
    try:
        opening = open_storage(
            settings,
            mode=mode,
            hot=hot,
            durable=durable,
            project=project,
            environment=environment,
            wrap_hot=wrap_hot,
            wrap_durable=wrap_durable,
            plugins=plugins,
            **more,
        )
        # What may hold a secret does not stay in a frame that an error shows.
        more.clear()
        with portal.hold(opening) as storage:
            yield SyncStorage(portal, storage)
    finally:
        portal.close()
