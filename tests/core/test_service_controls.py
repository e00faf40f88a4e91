"""The contract of controls, in memory mode."""

from __future__ import annotations

from fix_memory import MemoryMode
from oqron_core.testing.contracts.mode_controls import ControlsContract


class TestMemoryControls(MemoryMode, ControlsContract):
    """Several processes are several storages over one store."""
