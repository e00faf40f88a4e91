"""Where the files of these tests are."""

from __future__ import annotations

import os
import tempfile

from collections.abc import Iterator
from pathlib import Path

import pytest


MEMORY = Path("/dev/shm")  # noqa: S108 - a folder below it is made for each test


@pytest.fixture
def folder() -> Iterator[Path]:
    """
    Give an empty folder; in memory where there is such a place.

    A busy disk may take seconds for a flush, and leases of tests are shorter.
    """
    base = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="oqron-test-", dir=base) as name:
        yield Path(name)
