"""Memory mode, as a whole."""

from __future__ import annotations

from fix_memory import MemoryMode
from oqron_core.testing.contracts.mode import ModeContract


class TestMemoryMode(MemoryMode, ModeContract):
    """One in-process store serves both planes."""
