"""Memory mode, through random lives."""

from __future__ import annotations

from typing import Any

from oqron_core.testing.contracts.lives import LivesContract
from oqron_memory import MemoryStore


class TestMemoryLives(LivesContract):
    """Two storages over one store, on a clock that jumps."""

    mode = "memory"
    manual_clock = True
    store: MemoryStore | None = None

    def settings(self) -> dict[str, Any]:
        """Give every storage of a test the same store."""
        if self.store is None:
            self.store = MemoryStore(clock=self.clock)
        return {"memory": {"store": self.store}}
