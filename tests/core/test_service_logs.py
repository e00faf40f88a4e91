"""Module logs, in memory."""

from __future__ import annotations

from fix_memory import MemoryMode
from oqron_core.testing.contracts.mode_logs import ModeLogsContract


class TestLogsInMemory(MemoryMode, ModeLogsContract):
    """Several storages share one store, whose clock stands still."""
