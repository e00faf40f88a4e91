"""Modes with servers, dying at a sample of their crash points, or at all of them."""

from __future__ import annotations

import asyncio
import os

from typing import ClassVar

import pytest

from fix_modes import MemoryPostgres, Redis, RedisPostgres, depth, seed

from oqron_core.testing.contracts.crashes import OperationsContract, Worlds
from oqron_core.testing.crashpoints import SCENARIOS, Explorer, Scenario


ALL = os.environ.get("OQRON_TEST_CRASH_POINTS") == "all"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if ALL else 300)]


class Crashes(Worlds):
    """What must hold wherever a process dies or a plane does not answer."""

    __test__ = False
    hang_after: ClassVar[float] = 3500.0 if ALL else 290.0

    async def test_crash_points_leave_the_invariants_whole(self) -> None:
        """Died before, died after, refused, or done with the answer lost."""
        gate = asyncio.Semaphore(6)
        explorer = Explorer(
            self.world,
            parallel=2,
            patience=120.0,
            sample=None if ALL else depth(4),
            seed=seed(),
        )

        async def explore(scenario: Scenario) -> str | None:
            async with gate:
                try:
                    tried = await explorer.explore(scenario)
                except AssertionError as error:
                    return str(error)
                return None if tried >= 4 else f"{scenario.name}: has only {tried} points"

        # Most of the time is waiting for leases to lapse, so do it side by side.
        found = await asyncio.gather(*map(explore, SCENARIOS))
        assert not (broken := [text for text in found if text]), "\n".join(broken)


class TestRedisCrashes(Redis, Crashes):
    """Redis is the truth."""

    __test__ = True
    mode = "redis"


class TestRedisPostgresCrashes(RedisPostgres, Crashes):
    """Two servers that fail apart."""

    __test__ = True
    mode = "redis-postgres"


class TestMemoryPostgresCrashes(MemoryPostgres, Crashes):
    """The hot plane goes with the process in reality; here it outlives it."""

    __test__ = True


class Operations(OperationsContract):
    """A sample of every operation, or all of it."""

    __test__ = False
    hang_after: ClassVar[float] = 3500.0 if ALL else 290.0
    sample = None if ALL else depth(2)
    seed = seed()


class TestRedisOperations(Redis, Operations):
    """Redis is the truth."""

    __test__ = True
    mode = "redis"


class TestRedisPostgresOperations(RedisPostgres, Operations):
    """Two servers that fail apart."""

    __test__ = True
    mode = "redis-postgres"
    # Opening and repairing cost several times as much here.
    share = 1.0 if ALL else min(1.0, depth(1) / 4)
