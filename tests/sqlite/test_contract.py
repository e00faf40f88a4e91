"""The SQLite backend meets the contract of both planes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import uvloop

from oqron_core.testing.contracts import DurablePlaneContract, HotPlaneContract


class TestSqlite(HotPlaneContract, DurablePlaneContract):
    """Both planes in one file."""

    backend = "sqlite"
    more: ClassVar[dict[str, Any]] = {}
    folder = Path()

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def settings(self) -> dict[str, Any]:
        """Use a file of the test's own."""
        return {"path": str(self.folder / "oqron.db"), **self.more}
