"""The contract of retention, in memory mode."""

from __future__ import annotations

from fix_memory import MemoryMode
from oqron_core.testing.contracts.mode_retention import RetentionContract


class TestMemoryRetention(MemoryMode, RetentionContract):
    """Several processes are several storages over one store."""
