"""Memory mode, where two things go wrong: in one operation, or in it and its repair."""

from __future__ import annotations

import contextlib
import os

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from fix_memory import MemoryMode
from oqron_core.exceptions import OqronError
from oqron_core.testing.contracts.crashes import Worlds
from oqron_core.testing.crashpoints import (
    SCENARIOS,
    CrashPoint,
    Scenario,
    World,
    _mortal,
    _until_dead,
    recover,
)
from oqron_core.testing.faults import Call, Faults


ALL = os.environ.get("OQRON_TEST_CRASH_POINTS") == "all"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if ALL else 300)]

DEATHS = ("die before", "die after")
TROUBLES = ("refuse", "lose the answer")
PAIRED = (
    "complete",
    "fail with attempts left",
    "fail the last attempt",
    "requeue a dead letter",
)


def _arm(faults: Faults, point: CrashPoint) -> None:
    when: Any = "after" if point.end in {"die after", "lose the answer"} else "before"
    if point.end in DEATHS:
        faults.crash(point.call, nth=point.nth, when=when)
    else:
        faults.fail(point.call, nth=point.nth, when=when)


def _points(scenario: Scenario, calls: Sequence[Call], ends: Sequence[str]) -> list[CrashPoint]:
    return [CrashPoint(scenario.name, call.name, call.nth, end) for call in calls for end in ends]


def _ends(points: Sequence[CrashPoint], turn: int) -> Sequence[CrashPoint]:
    """Give one end of each call, another one with every turn; all where that was asked for."""
    if ALL:
        return points
    several = len(DEATHS + TROUBLES)
    return [
        point
        for number, point in enumerate(points)
        if number % several == (number // several + turn) % several
    ]


class TestPairs(MemoryMode, Worlds):
    """Pairs of points, over one store that survives its storages."""

    hang_after: ClassVar[float] = 3500.0 if ALL else 290.0

    async def go_wrong(
        self, world: World, scenario: Scenario, points: Sequence[CrashPoint]
    ) -> list[Call]:
        """Let things go wrong in one operation; gives the calls that it made."""
        faults = world.faults
        async with _mortal(world.open(faults), faults) as storage:
            given = await scenario.prepare(world, storage, None)
            await storage.runs.flush()
            faults.reset()
            for point in points:
                _arm(faults, point)
            await _until_dead(scenario.act(world, storage, given), faults)
            calls = [*faults.calls]
            faults.heal()
        return calls

    async def repair(self, world: World, point: CrashPoint | None) -> list[Call]:
        """Repair with one thing going wrong there too; gives the calls that it made."""
        faults = Faults()
        async with _mortal(world.open(faults), faults) as storage:
            faults.reset()
            if point is not None:
                _arm(faults, point)
            # What is cut short is left to whoever comes next.
            with contextlib.suppress(OqronError):
                await _until_dead(storage.maintenance.run_once(), faults)
            calls = [*faults.calls]
            faults.heal()
        return calls

    async def check(self, world: World, *points: CrashPoint) -> str | None:
        """Recover in peace, and look; gives what does not hold."""
        try:
            await recover(world)
        except AssertionError as error:
            return f"{' and '.join(map(str, points))}: {error}"
        return None

    @pytest.mark.parametrize("name", PAIRED)
    async def test_two_troubles_in_one_operation(self, name: str) -> None:
        """An answer is lost or a call refused, and then anything else goes wrong."""
        [scenario] = [found for found in SCENARIOS if found.name == name]
        broken: list[str | None] = []
        tried = 0
        plain = await self.go_wrong(self.world(), scenario, [])
        for first in _points(scenario, plain, TROUBLES):
            # What it does after the first trouble is what may go wrong next.
            calls = await self.go_wrong(self.world(), scenario, [first])
            at = [call.name for call in calls].index(first.call) + first.nth - 1
            for second in _points(scenario, calls[at + 1 :], DEATHS + TROUBLES):
                world = self.world()
                await self.go_wrong(world, scenario, [first, second])
                broken.append(await self.check(world, first, second))
                tried += 1

        assert [] == [text for text in broken if text]
        assert tried > 20

    @pytest.mark.parametrize("name", PAIRED)
    async def test_a_death_and_a_trouble_in_its_repair(self, name: str) -> None:
        """
        Whoever repairs dies too, or a plane does not answer it.

        At every call of every repair: in one of the four ways, which go round.
        """
        [scenario] = [found for found in SCENARIOS if found.name == name]
        broken: list[str | None] = []
        tried = 0
        plain = await self.go_wrong(self.world(), scenario, [])
        for turn, first in enumerate(_points(scenario, plain, DEATHS)):
            world = self.world()
            await self.go_wrong(world, scenario, [first])
            calls = await self.repair(world, None)
            for second in _ends(_points(scenario, calls, DEATHS + TROUBLES), turn):
                world = self.world()
                await self.go_wrong(world, scenario, [first])
                await self.repair(world, second)
                broken.append(await self.check(world, first, second))
                tried += 1

        assert [] == [text for text in broken if text]
        assert tried > 50
