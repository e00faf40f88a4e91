"""Adding a large batch: chunks side by side, and what the failure of one leaves."""

from __future__ import annotations

import asyncio

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oqron_core import JobSpec, Query, Storage, open_storage
from oqron_core.exceptions import ConflictError, InvalidValueError, UnavailableError
from oqron_core.testing.faults import Faults


def _run(body: Callable[[Storage, Faults], Awaitable[None]]) -> None:
    async def main() -> None:
        faults = Faults()
        async with open_storage(
            mode="memory", wrap_hot=faults.wrap_hot, wrap_durable=faults.wrap_durable
        ) as storage:
            await body(storage, faults)

    asyncio.run(main())


async def _written(storage: Storage) -> int:
    return await storage.durable.count(Query(namespace="queue_job:q"))


async def _claimable(storage: Storage) -> list[object]:
    return [claim.data for claim in await storage.jobs.claim("q", limit=10_000)]


def test_a_chunk_is_written_while_another_is() -> None:
    """The durable plane need not wait for the client, and the order is that of the batch."""

    async def body(storage: Storage, faults: Faults) -> None:
        held = faults.pause("durable.write")
        adding = asyncio.create_task(storage.jobs.add_many("q", range(2500)))
        await held.reached.wait()
        async with asyncio.timeout(10):
            while len(faults.names("durable.write")) < 3:
                await asyncio.sleep(0.001)

        assert 1500 == await _written(storage)
        assert [] == faults.names("hot.broker.publish")
        held.release()
        jobs = await adding
        assert [*range(2500)] == [job.data for job in jobs]
        assert [*range(2500)] == await _claimable(storage)

    _run(body)


def test_no_more_than_three_chunks_are_under_way() -> None:
    """However large the batch is, the planes hold little of it at a time."""

    async def body(storage: Storage, faults: Faults) -> None:
        held = faults.pause("durable.write")
        adding = asyncio.create_task(storage.jobs.add_many("q", range(9000)))
        await held.reached.wait()
        for _ in range(300):
            await asyncio.sleep(0)

        assert 3 == len(faults.names("durable.write"))
        held.release()
        assert 9000 == len(await adding)

    _run(body)


def test_a_chunk_that_fails_costs_the_others_nothing() -> None:
    """What was under way is written and claimable; nothing more is begun."""

    async def body(storage: Storage, faults: Faults) -> None:
        held = faults.pause("durable.write", nth=2)
        faults.fail("durable.write", nth=2, error=ConflictError("a fault of the test"))
        adding = asyncio.create_task(storage.jobs.add_many("q", range(6000)))
        await held.reached.wait()
        for _ in range(300):
            await asyncio.sleep(0)
        held.release()
        with pytest.raises(ConflictError, match="a fault of the test"):
            await adding

        assert [*range(1000), *range(2000, 4000)] == await _claimable(storage)
        assert 3000 == await _written(storage)

    _run(body)


def test_a_plane_that_is_down_is_said_once() -> None:
    """Of several chunks that fail the error of the first is raised, and none is lost sight of."""

    async def body(storage: Storage, faults: Faults) -> None:
        faults.down("durable.write")
        with pytest.raises(UnavailableError):
            await storage.jobs.add_many("q", range(5000))
        faults.heal()

        assert 0 == await _written(storage)
        assert [] == await _claimable(storage)

    _run(body)


def test_of_one_id_in_two_chunks_the_first_is_the_job() -> None:
    """Also where the chunk of the second would have been quicker."""

    async def body(storage: Storage, faults: Faults) -> None:
        held = faults.pause("durable.write")
        specs = [JobSpec("first", id="x"), *range(1500), JobSpec("second", id="x")]
        adding = asyncio.create_task(storage.jobs.add_many("q", specs))
        await held.reached.wait()
        for _ in range(300):
            await asyncio.sleep(0)
        held.release()
        jobs = await adding

        assert [False, True] == [jobs[0].duplicate, jobs[-1].duplicate]
        assert ["first", "first"] == [jobs[0].data, jobs[-1].data]

    _run(body)


def test_a_caller_that_gives_up_stops_the_batch() -> None:
    """No chunk goes on behind its back."""

    async def body(storage: Storage, faults: Faults) -> None:
        held = faults.pause("durable.write")
        adding = asyncio.create_task(storage.jobs.add_many("q", range(9000)))
        await held.reached.wait()
        adding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adding
        begun = len(faults.names("durable.write"))
        held.release()
        await asyncio.sleep(0.01)

        assert begun == len(faults.names("durable.write"))
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "oqron-add"]

    _run(body)


@pytest.mark.parametrize("one", [5, None, "ab", b"ab", {"a": 1}])
def test_one_thing_is_no_list_of_its_parts(one: Any) -> None:
    """Neither a bare TypeError, nor a job for each letter; what is iterated once is ended."""

    async def main() -> None:
        async with open_storage(mode="memory", project="p", environment="e") as storage:
            jobs, cache = storage.jobs, storage.cache
            calls: list[Callable[[], Any]] = [
                lambda: jobs.add_many("q", one),
                lambda: jobs.complete_many(one),
                lambda: jobs.renew(one),
                lambda: storage.topics.publish_many("t", one),
                lambda: cache.set("k", 1, ttl=5.0, tags=one),
                lambda: cache.invalidate_tags(one),
                lambda: cache.get_many(one),
                lambda: cache.delete_many(one),
            ]
            for number, call in enumerate(calls):
                with pytest.raises(InvalidValueError, match="must be a list of"):
                    raise AssertionError((number, await call()))
            assert (await jobs.query("q")).items == []
            added = await jobs.add_many("q", (n for n in range(3)))
            claims = await jobs.claim("q", limit=3)
            assert await jobs.complete_many((claim, None) for claim in claims) == [True] * 3  # type: ignore[arg-type]
            assert {(await jobs.get("q", job.id)).status for job in added} == {"completed"}

    asyncio.run(main())
