"""The memory backend meets the contract of both planes."""

from __future__ import annotations

from typing import Any

from oqron_core.testing.contracts import DurablePlaneContract, HotPlaneContract


class TestMemory(HotPlaneContract, DurablePlaneContract):
    """Both planes, on a clock that nobody waits for."""

    backend = "memory"
    manual_clock = True

    def settings(self) -> dict[str, Any]:
        """Hand the test's clock to the store."""
        return {"clock": self.clock}
