"""Memory mode, dying everywhere."""

from __future__ import annotations

import pytest

from fix_memory import MemoryMode
from oqron_core.testing.contracts.crashes import CrashContract, OperationsContract


class TestMemoryCrashes(MemoryMode, CrashContract):
    """Every crash point, over one store that survives its storages."""


@pytest.mark.slow
@pytest.mark.timeout(300)
class TestMemoryOperations(MemoryMode, OperationsContract):
    """Every crash point of every operation that a storage offers."""
