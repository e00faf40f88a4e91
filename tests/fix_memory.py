"""Mode ``memory``, as contracts of a mode are run in it."""

from __future__ import annotations

from typing import Any

from oqron_core.testing.contracts.mode import ModeBase
from oqron_memory import MemoryStore


class MemoryMode(ModeBase):
    """Several processes are several storages over one store, whose clock stands still."""

    mode = "memory"
    manual_clock = True
    store: MemoryStore | None = None

    def settings(self) -> dict[str, Any]:
        """Give every storage of a test the same store."""
        if self.store is None:
            self.store = MemoryStore(clock=self.clock)
        return {"memory": {"store": self.store}}
