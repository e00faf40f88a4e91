"""Clients of memory mode under attack."""

from __future__ import annotations

from fix_memory import MemoryMode
from oqron_core.testing.contracts.mode_adversity_clients import ClientAdversityContract


class TestMemoryClients(MemoryMode, ClientAdversityContract):
    """One in-process store serves both planes."""
