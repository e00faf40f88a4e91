"""Memory mode, dying everywhere."""

from __future__ import annotations

from fix_memory import MemoryMode
from oqron_core.testing.contracts.crashes import CrashContract


class TestMemoryCrashes(MemoryMode, CrashContract):
    """Every crash point, over one store that survives its storages."""
