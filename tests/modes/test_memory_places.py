"""What lives where, in memory mode."""

from __future__ import annotations

from fix_memory import MemoryMode
from oqron_core.testing.contracts.mode_places import PlacesContract


class TestMemoryPlaces(MemoryMode, PlacesContract):
    """One in-process store serves both planes."""
