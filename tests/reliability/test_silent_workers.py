"""A worker that could not renew for a while: what it says at the end still counts."""

from __future__ import annotations

import asyncio

from contextlib import AbstractAsyncContextManager

import pytest

from oqron_core import LeaseLostError, Storage, open_storage
from oqron_core.exceptions import UnavailableError
from oqron_core.protocol.claims import Claim
from oqron_core.testing.faults import Faults
from oqron_memory import MemoryStore


LEASE = 0.2


async def _go_quiet(storage: Storage) -> Claim:
    """Claim, let the lease lapse and the renewal fail, and wait for signs of life."""
    await storage.jobs.add("q", 1, id="a")
    [claim] = await storage.jobs.claim("q", lease_for=LEASE)
    await asyncio.sleep(LEASE + 0.1)
    claim.run.log("info", "working")
    assert [False] == await storage.jobs.renew([claim], lease_for=LEASE)
    assert claim.lost
    await asyncio.sleep(1.0)
    return claim


def _opened(faults: Faults, store: MemoryStore) -> AbstractAsyncContextManager[Storage]:
    return open_storage(
        mode="memory",
        project="silent",
        memory={"store": store},
        runs={"stale_after": 1.0, "durable_after": 3600.0},
        wrap_hot=faults.wrap_hot,
        wrap_durable=faults.wrap_durable,
    )


def test_a_completion_that_is_accepted_after_all_is_in_history() -> None:
    """Nobody took over, so the job is done, and so is its run."""

    async def main() -> None:
        async with _opened(Faults(), MemoryStore()) as storage:
            claim = await _go_quiet(storage)
            await storage.jobs.complete(claim, {"ok": True})
            await storage.runs.flush()

            run = await storage.runs.get(claim.run.id)
            assert run is not None
            assert ("completed", {"ok": True}) == (run.status, run.output)

    asyncio.run(main())


def test_a_completion_that_is_refused_is_in_history_too() -> None:
    """Somebody took over meanwhile, and could not close the run of the one before."""

    async def main() -> None:
        store = MemoryStore()
        async with _opened(Faults(), store) as storage, _opened(Faults(), store) as other:
            claim = await _go_quiet(storage)
            [taken] = await other.jobs.claim("q", wait=10.0)
            assert taken.lease.token > claim.lease.token
            with pytest.raises(LeaseLostError):
                await storage.jobs.complete(claim, {"ok": True})
            await storage.runs.flush()

            run = await other.runs.get(claim.run.id)
            assert run is not None
            assert "failed" == run.status
            await other.jobs.complete(taken)

    asyncio.run(main())


def test_a_settle_without_an_answer_leaves_a_row() -> None:
    """The worker gave up on it, but history does not forget the attempt."""

    async def main() -> None:
        faults = Faults()
        async with _opened(faults, MemoryStore()) as storage:
            claim = await _go_quiet(storage)
            run = claim.run.id
            faults.down("durable.write")
            with pytest.raises(UnavailableError):
                await storage.jobs.complete(claim, {"ok": True})
            del claim
            await asyncio.sleep(1.0)
            faults.heal()
            async with asyncio.timeout(20.0):
                while (found := await storage.runs.get(run)) is None:
                    await storage.maintenance.run_once()
                    await asyncio.sleep(0.1)
            assert "completed" != found.status

    asyncio.run(main())
