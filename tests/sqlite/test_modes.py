"""SQLite in whole modes: alone, in two files, and behind a hot plane in memory."""

from __future__ import annotations

import asyncio

from pathlib import Path
from typing import Any, ClassVar

import pytest

from oqron_core.storage import open_storage
from oqron_core.testing.contracts.crashes import CrashContract
from oqron_core.testing.contracts.lives import LivesContract
from oqron_core.testing.contracts.mode import ModeBase, ModeContract
from oqron_core.testing.contracts.mode_topics import TopicsContract
from oqron_memory import MemoryStore


class _InAFile(ModeBase):
    """Gives every storage of a test the same file."""

    more: ClassVar[dict[str, Any]] = {}
    folder = Path()

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def settings(self) -> dict[str, Any]:
        """Use a file of the test's own."""
        return {"sqlite": {"path": str(self.folder / "oqron.db"), **self.more}}


class TestSqliteMode(_InAFile, ModeContract):
    """One file serves both planes."""

    mode = "sqlite"


class TestSqliteTopics(_InAFile, TopicsContract):
    """Topics, in one file."""

    mode = "sqlite"


class TestSqliteCrashes(_InAFile, CrashContract):
    """Every crash point, in one file."""

    mode = "sqlite"


class TestSqliteLives(_InAFile, LivesContract):
    """Random lives of two storages over one file."""

    mode = "sqlite"


class TestMemoryBeforeSqlite(_InAFile, ModeContract):
    """A hot plane in memory, and history in a file."""

    backend = "memory-sqlite"
    report_as = "mode memory + sqlite"
    store: MemoryStore | None = None

    def settings(self) -> dict[str, Any]:
        """Share the store in memory as well."""
        if self.store is None:
            self.store = MemoryStore()
        return {
            "hot": "memory",
            "durable": "sqlite",
            "memory": {"store": self.store},
            **super().settings(),
        }


def test_two_files_keep_the_planes_apart(tmp_path: Path) -> None:
    """With hot_path, records are in one file and claims in the other."""
    cold, hot = tmp_path / "cold.db", tmp_path / "hot.db"

    async def work() -> int:
        section = {"path": str(cold), "hot_path": str(hot)}
        async with open_storage(mode="sqlite", sqlite=section) as storage:
            await storage.jobs.add("q", {"n": 1})
            [claim] = await storage.jobs.claim("q")
            await storage.jobs.complete(claim)
            return (await storage.jobs.counts("q"))["completed"]

    assert 1 == asyncio.run(work())
    assert b"oqron_hot_entries" not in cold.read_bytes()
    assert b"oqron_jobs" not in hot.read_bytes()
