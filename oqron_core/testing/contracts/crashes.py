"""The contract of recovery: no crash point of any mode breaks an invariant."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import ClassVar

import pytest

from oqron_core.storage import Storage
from oqron_core.testing.contracts.base import fresh_scope
from oqron_core.testing.contracts.mode import ModeBase
from oqron_core.testing.crashpoints import SCENARIOS, Explorer, Scenario, World
from oqron_core.testing.faults import Faults


__all__ = ["CrashContract"]


class CrashContract(ModeBase):
    """
    What must hold wherever a process dies or a plane does not answer.

    Attributes:
        parallel: How many crash points are tried at the same time, where time
            is real.
    """

    hang_after: ClassVar[float] = 300.0
    parallel: ClassVar[int] = 12

    def world(self) -> World:
        """Make an empty scope."""
        scope = fresh_scope("crash")

        def open_world(faults: Faults | None) -> AbstractAsyncContextManager[Storage]:
            return self.open(faults, project=scope.project, close_timeout=2.0)

        return World(open_world, self.elapse)

    @pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
    async def test_every_crash_point_leaves_the_invariants_whole(self, scenario: Scenario) -> None:
        """Died before, died after, refused, or done with the answer lost."""
        explorer = Explorer(self.world, parallel=1 if self.manual_clock else self.parallel)

        assert await explorer.explore(scenario) >= 4
