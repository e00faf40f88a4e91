"""The contract of recovery: no crash point of any mode breaks an invariant."""

from __future__ import annotations

import asyncio
import fnmatch
import math
import random

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any, ClassVar, cast

import attrs
import pytest

from oqron_core._plugins import Plugins, discover
from oqron_core.config import Settings, load_settings, structure_section
from oqron_core.hookspecs import Backend, OpenDurable, OpenHot
from oqron_core.storage import Storage, open_storage
from oqron_core.testing.contracts.base import fresh_scope
from oqron_core.testing.contracts.mode import ModeBase
from oqron_core.testing.crashpoints import SCENARIOS, Explorer, Scenario, World
from oqron_core.testing.faults import Faults
from oqron_core.testing.operations import (
    LOCAL,
    LOOKS,
    PARTS,
    READS,
    Case,
    Walk,
    unregistered,
)


__all__ = ["CrashContract", "OperationsContract", "Worlds"]


@attrs.frozen
class _Connected:
    """Plugins that are connected already: a storage has planes of its own, and no more."""

    plugins: Plugins
    connections: Mapping[str, Any]

    def hot(self, name: str) -> tuple[Backend, OpenHot]:
        """Give the hot plane of a backend."""
        backend, opener = self.plugins.hot(name)
        return self._shared(backend), opener

    def durable(self, name: str) -> tuple[Backend, OpenDurable]:
        """Give the durable plane of a backend."""
        backend, opener = self.plugins.durable(name)
        return self._shared(backend), opener

    def _shared(self, backend: Backend) -> Backend:
        connection = self.connections[backend.name]
        return attrs.evolve(backend, connect=lambda _: nullcontext(connection))


class Worlds(ModeBase):
    """Gives empty scopes, and opens storages over them that may suffer."""

    _found: tuple[Plugins, Settings] | None = None

    def world(self) -> World:
        """Make an empty scope."""
        scope = fresh_scope("crash")

        def open_world(faults: Faults | None) -> AbstractAsyncContextManager[Storage]:
            return self._open_world(scope.project, faults)

        return World(open_world, self.elapse)

    @asynccontextmanager
    async def _open_world(self, project: str, faults: Faults | None) -> AsyncIterator[Storage]:
        plugins, settings = self._prepared()
        wraps: dict[str, Any] = {}
        if faults is not None:
            wraps = {"wrap_hot": faults.wrap_hot, "wrap_durable": faults.wrap_durable}
        settings = attrs.evolve(settings, project=project)
        async with open_storage(settings, plugins=plugins, **wraps) as storage:
            yield storage

    def _prepared(self) -> tuple[Plugins, Settings]:
        # Found and read once: what is opened here is opened thousands of times.
        if self._found is None:
            self._found = (plugins := discover(only=())), self._load(plugins)
        return self._found

    def _load(self, plugins: Plugins) -> Settings:
        options: dict[str, Any] = {"environment": "test", "close_timeout": 2.0}
        if self.mode:
            options["mode"] = self.mode
        return load_settings(plugins=plugins, project="crash", **options, **dict(self.settings()))


class CrashContract(Worlds):
    """
    What must hold wherever a process dies or a plane does not answer.

    Attributes:
        parallel: How many crash points are tried at the same time, where time
            is real.
        sample: How many points of a scenario are tried; None for all.
        seed: Which ones.
    """

    hang_after: ClassVar[float] = 300.0
    parallel: ClassVar[int] = 12
    sample: ClassVar[int | None] = None
    seed: ClassVar[str] = "0"

    @pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
    async def test_every_crash_point_leaves_the_invariants_whole(self, scenario: Scenario) -> None:
        """Died before, died after, refused, or done with the answer lost."""
        explorer = Explorer(
            self.world,
            parallel=1 if self.manual_clock else self.parallel,
            sample=self.sample,
            seed=self.seed,
        )

        assert await explorer.explore(scenario) >= 4


class OperationsContract(Worlds):
    """
    What must hold wherever a process dies in any operation that a storage offers.

    Attributes:
        sample: How many crash points of an operation are tried; None for all.
        share: Which part of the operations is tried, from 0 to 1.
        seed: Which ones.
        at_once: How many operations are tried at the same time, where time is real.
    """

    hang_after: ClassVar[float] = 300.0
    sample: ClassVar[int | None] = None
    share: ClassVar[float] = 1.0
    seed: ClassVar[str] = "0"
    at_once: ClassVar[int] = 6

    async def prepare(self, stack: AsyncExitStack) -> None:
        """Open the storage of the test, and connect once for all the others."""
        await super().prepare(stack)
        plugins, settings = self._prepared()
        connections: dict[str, Any] = {}
        for backend in (plugins.durable(settings.durable)[0], plugins.hot(settings.hot)[0]):
            if backend.name not in connections:
                section = settings.section_for(backend.name)
                connect = backend.connect(structure_section(backend, section, backend.name))
                connections[backend.name] = await stack.enter_async_context(connect)
        self._found = cast("Plugins", _Connected(plugins, connections)), settings

    async def test_every_operation_is_registered(self) -> None:
        """A public method is walked, or known to look only; a new one is named here."""
        unknown, gone = unregistered(self.storage)

        assert not unknown, (
            f"nobody says what must hold where these are cut short: {', '.join(unknown)}; "
            "add a case in oqron_core.testing.operations, or name it among its reads"
        )
        assert not gone, f"registered, but not there: {', '.join(gone)}"

    async def test_what_only_looks_changes_nothing(self) -> None:
        """What is registered as a read makes no call that changes a plane."""
        wrong: list[str] = []
        for name, read in READS.items():
            await self.storage.runs.flush()
            self.faults.reset()
            await read(self.storage)
            wrong += [
                f"{name} calls {call.name}"
                for call in self.faults.calls
                if not any(fnmatch.fnmatchcase(call.name, look) for look in LOOKS)
                # What takes nothing from a limit looks at it.
                and not (call.name == "hot.counters.take" and call.kwargs.get("cost") == 0)
            ]

        assert [] == wrong
        assert not {*READS} & {*LOCAL}

    @pytest.mark.parametrize("part", PARTS)
    async def test_every_operation_survives_its_crash_points(self, part: str) -> None:
        """Cut short anywhere and called again: it comes to what it does when called once."""
        gate = asyncio.Semaphore(1 if self.manual_clock else self.at_once)
        walk = Walk(
            self.world,
            manual=self.manual_clock,
            parallel=1 if self.manual_clock else 2,
            sample=self.sample,
            seed=self.seed,
        )

        async def explore(case: Case) -> str | None:
            async with gate:
                try:
                    tried = await walk.explore(case)
                except AssertionError as error:
                    return str(error)
                return None if tried else f"{case.name}: calls no plane"

        # Most of the time, where it is real, is waiting: so do it side by side.
        chosen = random.Random(f"{self.seed}-{part}")
        cases = chosen.sample(PARTS[part], math.ceil(len(PARTS[part]) * self.share))
        found = await asyncio.gather(*map(explore, cases))
        assert not (broken := [text for text in found if text]), "\n".join(broken)
