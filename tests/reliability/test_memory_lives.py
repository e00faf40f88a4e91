"""Memory mode, through random lives."""

from __future__ import annotations

from fix_memory import MemoryMode
from oqron_core.testing.contracts.lives import LivesContract


class TestMemoryLives(MemoryMode, LivesContract):
    """Two storages over one store, on a clock that jumps."""
