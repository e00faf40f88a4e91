"""Limits, bans and slots, in memory."""

from __future__ import annotations

from fix_memory import MemoryMode
from oqron_core.testing.contracts.mode_limits import ModeLimitsContract


class TestLimitsInMemory(MemoryMode, ModeLimitsContract):
    """Several storages share one store, whose clock stands still."""
