"""Times, values and names that broke others, in memory mode."""

from __future__ import annotations

import asyncio
import time

import pytest

from fix_memory import MemoryMode
from oqron_core.storage import open_storage
from oqron_core.testing.contracts.mode_adversity_values import AdverseValuesContract


class TestMemoryValues(MemoryMode, AdverseValuesContract):
    """One in-process store serves both planes."""


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_a_clock_that_is_set_anew_moves_nothing(
    monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    """Delays, leases and times to live take as long as was said."""

    async def main() -> None:
        async with open_storage(mode="memory") as storage:
            jobs = storage.jobs
            await jobs.add("q", 1, id="soon", delay=0.2)
            await jobs.add("q", 1, id="late", delay=600.0)
            await storage.cache.set("short", 1, ttl=0.2)
            await storage.cache.set("long", 1, ttl=600.0)
            read, read_ns = time.time, time.time_ns
            monkeypatch.setattr(time, "time", lambda: read() + jump)
            monkeypatch.setattr(time, "time_ns", lambda: read_ns() + int(jump * 1e9))
            first = await jobs.claim("q", limit=5, lease_for=0.2, wait=60.0)
            assert [("soon", 1)] == [(claim.id, claim.attempt) for claim in first]
            second = await jobs.claim("q", limit=5, lease_for=600.0, wait=60.0)
            assert [("soon", 2)] == [(claim.id, claim.attempt) for claim in second]
            assert [] == await jobs.claim("q", limit=5)

            assert [None, 1] == await storage.cache.get_many(["short", "long"])

    asyncio.run(main())
