"""The contract of a whole mode, as random lives compared with a model."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar

from oqron_core.planes import HotPlane, Scope
from oqron_core.storage import Storage
from oqron_core.testing.clock import ManualClock
from oqron_core.testing.contracts.base import fresh_scope
from oqron_core.testing.contracts.mode import ModeBase


__all__ = ["LivesContract"]


class LivesContract(ModeBase):
    """
    What must hold whatever happens, in whatever order.

    Attributes:
        examples: How many lives are tried.
        steps: How many steps each has at most.
        repeatable: Whether the same lives are tried every time.
    """

    examples: ClassVar[int] = 60
    steps: ClassVar[int] = 40
    repeatable: ClassVar[bool] = True

    def test_a_random_life_is_as_the_model_says(self) -> None:
        """Workers, time jumps, cancels, lost hot planes and restarts, in any order."""
        # Not at the top: the contracts need no hypothesis, but this one does.
        from hypothesis import HealthCheck, Phase, settings  # noqa: PLC0415 - as said above
        from hypothesis.stateful import run_state_machine_as_test  # noqa: PLC0415 - as said above

        from oqron_core.testing.stateful import JobsMachine  # noqa: PLC0415 - as said above

        self.clock: ManualClock = ManualClock()
        contract = self

        class Scoped:
            """One empty scope."""

            manual_clock = contract.manual_clock

            def __init__(self) -> None:
                self._scope = fresh_scope("life")

            def open(self) -> AbstractAsyncContextManager[Storage]:
                return contract.open(project=self._scope.project, environment="test")

            async def elapse(self, seconds: float) -> None:
                await contract.elapse(seconds)

            async def lose_hot(self, hot: HotPlane) -> None:
                await contract.lose_hot(hot)

        self.scope: Scope = fresh_scope("life")
        options: dict[str, Any] = {
            "max_examples": self.examples,
            "stateful_step_count": self.steps,
            "deadline": None,
            "suppress_health_check": list(HealthCheck),
            "database": None,
            # Shrinking a failure may take minutes; the example is readable as it is.
            "phases": [Phase.generate],
            "derandomize": self.repeatable,
        }

        class Machine(JobsMachine):
            """One life, in a scope of its own."""

            def __init__(self) -> None:
                super().__init__(Scoped())

        run_state_machine_as_test(Machine, settings=settings(**options))
