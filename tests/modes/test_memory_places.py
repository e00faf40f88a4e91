"""What lives where, in memory mode."""

from __future__ import annotations

from typing import Any

from oqron_core.testing.contracts.mode_places import PlacesContract
from oqron_memory import MemoryStore


class TestMemoryPlaces(PlacesContract):
    """One in-process store serves both planes."""

    mode = "memory"
    manual_clock = True
    store: MemoryStore | None = None

    def settings(self) -> dict[str, Any]:
        """Give every storage of a test the same store."""
        if self.store is None:
            self.store = MemoryStore(clock=self.clock)
        return {"memory": {"store": self.store}}
