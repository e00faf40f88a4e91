"""Memory mode, dying everywhere."""

from __future__ import annotations

from typing import Any

from oqron_core.testing.contracts.crashes import CrashContract
from oqron_memory import MemoryStore


class TestMemoryCrashes(CrashContract):
    """Every crash point, over one store that survives its storages."""

    mode = "memory"
    manual_clock = True
    store: MemoryStore | None = None

    def settings(self) -> dict[str, Any]:
        """Give every storage of a test the same store."""
        if self.store is None:
            self.store = MemoryStore(clock=self.clock)
        return {"memory": {"store": self.store}}
