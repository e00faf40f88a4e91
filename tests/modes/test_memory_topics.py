"""Topics, in memory mode."""

from __future__ import annotations

from fix_memory import MemoryMode
from oqron_core.testing.contracts.mode_topics import TopicsContract


class TestMemoryTopics(MemoryMode, TopicsContract):
    """One in-process store serves both planes."""
