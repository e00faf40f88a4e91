"""What the pytest plugin offers to applications: a storage in memory."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from oqron_core.planes import Clock
from oqron_core.storage import Storage, open_storage


__all__ = ["open_memory"]


def open_memory(clock: Clock) -> AbstractAsyncContextManager[Storage]:
    """Open a storage in memory mode that nothing outside the test configures."""
    return open_storage(mode="memory", project="test", environment="test", memory={"clock": clock})
