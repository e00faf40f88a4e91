"""Memory mode under attack."""

from __future__ import annotations

from fix_memory import MemoryMode
from oqron_core.testing.contracts.mode_adversity import AdversityContract


class TestMemoryAdversity(MemoryMode, AdversityContract):
    """One in-process store serves both planes."""
