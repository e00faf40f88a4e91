"""Memory mode under attack."""

from __future__ import annotations

from fix_memory import MemoryMode
from oqron_core.testing.contracts.mode_adversity import AdversityContract
from oqron_core.testing.contracts.mode_adversity_jobs import JobsAdversityContract


class TestMemoryAdversity(MemoryMode, AdversityContract):
    """One in-process store serves both planes."""


class TestMemoryJobsAdversity(MemoryMode, JobsAdversityContract):
    """Jobs, in one in-process store."""
