"""The SQLite backend meets the contract of both planes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import uvloop

from oqron_core.testing.contracts import (
    BrokerContract,
    DurablePlaneContract,
    HotPlaneContract,
    RecordsContract,
)
from oqron_core.testing.contracts.base import Contract


class TestSqlite(HotPlaneContract, DurablePlaneContract):
    """Both planes in one file."""

    backend = "sqlite"
    path = ""

    @pytest.fixture(autouse=True)
    def _path(self, folder: Path) -> None:
        self.path = str(folder / "oqron.db")

    def settings(self) -> dict[str, Any]:
        """Use a file of the test's own."""
        return {"path": self.path}


class _TwoFilesFlushed(Contract):
    """Two files, each commit flushed to the disk, under the loop that is chosen for speed."""

    backend = "sqlite"
    loop_factory = staticmethod(uvloop.new_event_loop)
    paths: ClassVar[dict[str, str]] = {}

    @pytest.fixture(autouse=True)
    def _paths(self, folder: Path) -> None:
        self.paths = {"path": str(folder / "cold.db"), "hot_path": str(folder / "hot.db")}  # type: ignore[misc]  # of this test

    def settings(self) -> dict[str, Any]:
        """Keep the planes apart, and every commit safe from a power cut."""
        return {**self.paths, "synchronous": "full"}


@pytest.mark.slow
class TestTwoFilesFlushed(_TwoFilesFlushed, BrokerContract, RecordsContract):
    """What each file is there for: handing out work, and keeping records."""


@pytest.mark.slow
@pytest.mark.matrix
class TestAllOfTwoFilesFlushed(_TwoFilesFlushed, HotPlaneContract, DurablePlaneContract):
    """All of it."""
