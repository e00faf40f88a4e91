"""SQLite in whole modes: alone, in two files, and behind a hot plane in memory."""

from __future__ import annotations

import asyncio
import logging
import os

from pathlib import Path
from typing import Any

import pytest

from oqron_core.protocol.recovery import EPOCH
from oqron_core.storage import open_storage
from oqron_core.testing.contracts.crashes import CrashContract, OperationsContract
from oqron_core.testing.contracts.lives import LivesContract
from oqron_core.testing.contracts.mode import ModeBase, ModeContract
from oqron_core.testing.contracts.mode_adversity_clients import ClientAdversityContract
from oqron_core.testing.contracts.mode_adversity_jobs import JobsAdversityContract
from oqron_core.testing.contracts.mode_adversity_values import AdverseValuesContract
from oqron_core.testing.contracts.mode_breakers import ModeBreakersContract
from oqron_core.testing.contracts.mode_cache import ModeCacheContract
from oqron_core.testing.contracts.mode_controls import ControlsContract
from oqron_core.testing.contracts.mode_definitions import DefinitionsContract
from oqron_core.testing.contracts.mode_limits import ModeLimitsContract
from oqron_core.testing.contracts.mode_locks import ModeLocksContract
from oqron_core.testing.contracts.mode_logs import ModeLogsContract
from oqron_core.testing.contracts.mode_retention import RetentionContract
from oqron_core.testing.contracts.mode_schedules import SchedulesContract
from oqron_core.testing.contracts.mode_topics import TopicsContract
from oqron_memory import MemoryStore


ALL = os.environ.get("OQRON_TEST_CRASH_POINTS") == "all"
SEED = os.environ.get("OQRON_TEST_SEED", "0")


class _InAFile(ModeBase):
    """Gives every storage of a test the same file."""

    path = ""

    @pytest.fixture(autouse=True)
    def _path(self, folder: Path) -> None:
        self.path = str(folder / "oqron.db")

    def settings(self) -> dict[str, Any]:
        """Use a file of the test's own."""
        # However slow the disk is.
        return {"sqlite": {"path": self.path, "busy_timeout": 120.0}}


class TestSqliteMode(_InAFile, ModeContract):
    """One file serves both planes."""

    mode = "sqlite"


class TestSqliteTopics(_InAFile, TopicsContract):
    """Topics, in one file."""

    mode = "sqlite"


class TestSqliteSchedules(_InAFile, SchedulesContract):
    """Pointers, one winner a slot, in one file."""

    mode = "sqlite"


class TestSqliteControls(_InAFile, ControlsContract):
    """Pauses, and what arrives meanwhile, in one file."""

    mode = "sqlite"


class TestSqliteDefinitions(_InAFile, DefinitionsContract):
    """What is defined, in one file."""

    mode = "sqlite"


class TestSqliteRetention(_InAFile, RetentionContract):
    """What goes, and when, in one file."""

    mode = "sqlite"


class TestSqliteLocks(_InAFile, ModeLocksContract):
    """Locks and leaders, in one file."""

    mode = "sqlite"


class TestSqliteCache(_InAFile, ModeCacheContract):
    """Values that expire, in one file."""

    mode = "sqlite"


class TestSqliteLimits(_InAFile, ModeLimitsContract):
    """Rates, slots, bans, in one file."""

    mode = "sqlite"


class TestSqliteBreakers(_InAFile, ModeBreakersContract):
    """Circuit breakers, in one file."""

    mode = "sqlite"


class TestSqliteLogs(_InAFile, ModeLogsContract):
    """Logs of modules, in one file."""

    mode = "sqlite"


class TestSqliteValues(_InAFile, AdverseValuesContract):
    """Times, values and names that broke others, in one file."""

    mode = "sqlite"


class TestSqliteJobsAdversity(_InAFile, JobsAdversityContract):
    """What broke jobs of others, in one file."""

    mode = "sqlite"


class TestSqliteClients(_InAFile, ClientAdversityContract):
    """What broke clients of others, in one file."""

    mode = "sqlite"


@pytest.mark.slow
@pytest.mark.timeout(3600 if ALL else 300)
class TestSqliteCrashes(_InAFile, CrashContract):
    """A sample of every scenario's crash points, or all of them, in one file."""

    mode = "sqlite"
    hang_after = 3500.0 if ALL else 290.0
    parallel = 6
    sample = None if ALL else 5
    seed = SEED


@pytest.mark.slow
@pytest.mark.timeout(3600 if ALL else 300)
class TestSqliteOperations(_InAFile, OperationsContract):
    """A sample of every operation that a storage offers, or all of it, in one file."""

    mode = "sqlite"
    hang_after = 3500.0 if ALL else 290.0
    sample = None if ALL else 2
    seed = SEED


@pytest.mark.slow
@pytest.mark.timeout(300)
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


def test_two_files_keep_the_planes_apart(folder: Path) -> None:
    """With hot_path, records are in one file and claims in the other."""
    cold, hot = folder / "cold.db", folder / "hot.db"

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


def test_a_hot_plane_that_starts_empty_was_not_lost(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each process that opens fills it; only what goes while it is open is worth a warning."""
    caplog.set_level(logging.INFO, "oqron")
    settings = {"hot": "memory", "durable": "sqlite", "sqlite": {"path": str(folder / "a.db")}}

    async def scenario() -> None:
        async with open_storage(**settings) as storage:
            await storage.jobs.add("q", 1)
        caplog.clear()
        async with open_storage(**settings) as storage:
            (told,) = [record for record in caplog.records if "put in" in record.getMessage()]
            assert (logging.INFO, True) == (told.levelno, "1 jobs" in told.getMessage())
            assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
            await storage.hot.broker.purge("q")
            await storage.hot.counters.reset(EPOCH)
            await storage.maintenance.run_once()

    asyncio.run(scenario())
    assert "the hot plane was lost or is new; 1 jobs were put into it" in caplog.text
