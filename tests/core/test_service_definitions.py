"""The contract of definitions, in memory mode."""

from __future__ import annotations

from fix_memory import MemoryMode
from oqron_core.testing.contracts.mode_definitions import DefinitionsContract


class TestMemoryDefinitions(MemoryMode, DefinitionsContract):
    """Several processes are several storages over one store."""
