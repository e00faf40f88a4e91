"""One step over both planes: what is written is claimable, and nothing else is."""

from __future__ import annotations

import asyncio
import contextlib

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from oqron_core import JobSpec, open_storage
from oqron_core.exceptions import InvalidValueError, UnavailableError
from oqron_core.planes import Counts, Entry, Insert, JoinedPlanes, WriteResult
from oqron_core.testing.contracts.base import fresh_scope
from oqron_core.testing.servers import RedisServer


def options(url: str, **more: Any) -> dict[str, Any]:
    """Give what opens a storage of its own."""
    scope = fresh_scope("joined")
    return {
        "mode": "redis",
        "project": scope.project,
        "environment": scope.environment,
        "redis": {"url": url},
        **more,
    }


@contextlib.asynccontextmanager
async def opened(url: str, **more: Any) -> AsyncIterator[Any]:
    """Open a storage whose planes are joined."""
    async with open_storage(**options(url, **more)) as storage:
        assert storage.durable.joined(storage.hot) is not None
        yield storage


class Unsure(JoinedPlanes):
    """Planes whose answer is lost, before or after the step was taken."""

    def __init__(self, inner: JoinedPlanes, when: str, times: int) -> None:
        self.inner = inner
        self.when = when
        self.times = times

    async def add(
        self, queue: str, inserts: Sequence[Insert], entries: Sequence[Entry], *, token: str
    ) -> Sequence[WriteResult]:
        """Forward, and lose some answers."""
        fails = self.times > 0
        self.times -= 1
        if fails and self.when == "before":
            raise UnavailableError("no answer")
        results = await self.inner.add(queue, inserts, entries, token=token)
        if fails:
            raise UnavailableError("no answer")
        return results


def test_what_was_taken_is_neither_written_nor_published(redis: RedisServer) -> None:
    """Of each pair both or none: an id in use keeps its job and its place in the queue."""

    async def main() -> None:
        async with opened(redis.url) as storage:
            joined = storage.durable.joined(storage.hot)
            inserts = [
                Insert("queue_job:q", id_, {"id": id_, "n": n})
                for n, id_ in enumerate(["a", "b", "a", "c"])
            ]
            entries = [Entry(insert.id, priority=n) for n, insert in enumerate(inserts)]
            first = await joined.add("q", inserts, entries, token="1")
            assert [result.applied for result in first] == [True, True, False, True]
            again = await joined.add("q", inserts[:2], [Entry("a", 99), Entry("b", 99)], token="2")
            assert [result.applied for result in again] == [False, False]
            leases = await storage.hot.broker.claim("q", owner="w", lease_for=60, limit=9)
            assert [(lease.id, lease.priority) for lease in leases] == [
                ("a", 0),
                ("b", 1),
                ("c", 3),
            ]
            kept = await storage.durable.get("queue_job:q", ["a", "b", "c"])
            assert [record.value["n"] for record in kept] == [0, 1, 3]

    asyncio.run(main())


def test_many_are_claimed_in_their_order(redis: RedisServer) -> None:
    """Several steps of the server, several chunks, and two callers at a time."""

    async def main() -> None:
        async with opened(redis.url) as storage:
            jobs = storage.jobs
            await asyncio.gather(
                jobs.add_many("q", [*range(5000)]), jobs.add_many("other", [*range(3000)])
            )
            for queue, count in (("q", 5000), ("other", 3000)):
                found: list[int] = []
                while claims := await jobs.claim(queue, limit=700, lease_for=60):
                    found += [claim.data for claim in claims]
                assert found == [*range(count)]

    asyncio.run(main())


def test_delays_priorities_and_queues_side_by_side(redis: RedisServer) -> None:
    """Single calls of one moment: each does what it would alone."""

    async def main() -> None:
        async with opened(redis.url) as storage:
            jobs = storage.jobs
            made = await asyncio.gather(
                *(jobs.add("q", n, priority=-n) for n in range(20)),
                *(jobs.add("r", n) for n in range(20)),
                *(jobs.add("q", n, delay=3600) for n in range(5)),
            )
            assert all(job.published for job in made)
            counts = storage.hot.broker.counts
            assert await counts("q") == Counts(20, 5, 0, paused=False)
            assert await counts("r") == Counts(20, 0, 0, paused=False)
            first = await jobs.claim("q", limit=3)
            assert [claim.data for claim in first] == [19, 18, 17]

    asyncio.run(main())


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("times", [1, 3])
def test_a_lost_answer_neither_loses_nor_doubles(redis: RedisServer, when: str, times: int) -> None:
    """The second try finds what the first has done, and the caller sees one job."""

    async def main() -> None:
        async with opened(redis.url) as storage:
            session = storage._session
            session.joined = Unsure(session.joined, when, times)
            one = await storage.jobs.add("q", "one")
            session.joined.times = times
            many = await storage.jobs.add_many("q", [*range(30)])
            assert not one.duplicate
            assert not any(job.duplicate for job in many)
            claims = await storage.jobs.claim("q", limit=99)
            assert [claim.id for claim in claims] == [one.id, *(job.id for job in many)]

    asyncio.run(main())


class Worked(Unsure):
    """Planes whose answer comes so late that the jobs are worked and gone by then."""

    def __init__(self, inner: JoinedPlanes, storage: Any, *, fail: bool) -> None:
        super().__init__(inner, "after", 1)
        self.storage = storage
        self.fail = fail

    async def add(
        self, queue: str, inserts: Sequence[Insert], entries: Sequence[Entry], *, token: str
    ) -> Sequence[WriteResult]:
        """Forward; work what was added before the answer is lost."""
        try:
            return await super().add(queue, inserts, entries, token=token)
        except UnavailableError:
            for claim in await self.storage.jobs.claim(queue, limit=999):
                if self.fail:
                    await self.storage.jobs.fail(claim, "x", retry=False)
                else:
                    await self.storage.jobs.complete(claim)
            raise


@pytest.mark.parametrize("fail", [True, False])
@pytest.mark.parametrize("count", [1, 300])
def test_what_was_worked_before_the_answer_came_does_not_come_again(
    redis: RedisServer, fail: bool, count: int
) -> None:
    """It is a dead letter, or deleted, when the call is made once more."""

    async def main() -> None:
        retention = {"completed_for": 0}
        async with opened(redis.url, retention=retention) as storage:
            session = storage._session
            session.joined = Worked(session.joined, storage, fail=fail)
            if count == 1:
                jobs = [await storage.jobs.add("q", 1)]
            else:
                jobs = await storage.jobs.add_many("q", [*range(count)])
            assert not any(job.duplicate for job in jobs)
            assert await storage.jobs.claim("q", limit=999) == []
            letters = await storage.dead_letters.query("q", limit=999)
            assert len(letters) == (count if fail else 0)

    asyncio.run(main())


def test_an_id_of_the_callers_own_is_added_in_two_steps(redis: RedisServer) -> None:
    """Adding it again after an error is safe, as nobody works it before it is published."""

    async def main() -> None:
        async with opened(redis.url) as storage:
            session = storage._session
            session.joined = Unsure(session.joined, "before", 99)
            assert not (await storage.jobs.add("q", 1, id="a")).duplicate
            made = await storage.jobs.add_many("q", [1, JobSpec(2, id="b"), 3])
            assert not any(job.duplicate for job in made)
            assert session.joined.times == 99
            assert len(await storage.jobs.claim("q", limit=9)) == 4

    asyncio.run(main())


def test_marks_of_calls_are_forgotten(own_redis: RedisServer) -> None:
    """Those that were answered with the next calls, and all of them in time."""

    async def main() -> None:
        async with opened(own_redis.url) as storage:
            for n in range(50):
                await storage.jobs.add("q", n)
            await storage.jobs.add_many("q", [*range(2000)])
            await storage.jobs.add("q", 1)
            await storage.jobs.add("q", 1)
        marks = [str(key) for key in own_redis.command("KEYS", "*added*")]
        assert 0 < len(marks) <= 8
        for key in marks:
            assert 0 < int(str(own_redis.command("PTTL", key))) <= 60_000

    asyncio.run(main())


def test_lost_connections_do_not_change_the_order(own_redis: RedisServer) -> None:
    """A chunk that is tried again is not overtaken by the next one, nor one of its steps."""

    async def main() -> None:
        for round_ in range(6):
            async with opened(own_redis.url) as storage:
                adding = asyncio.create_task(storage.jobs.add_many("q", [*range(6000)]))
                for _ in range(1 + round_ % 3):
                    await asyncio.sleep(0.015 * (round_ + 1))
                    await asyncio.to_thread(
                        own_redis.command, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"
                    )
                jobs = await adding
                found: list[int] = []
                while claims := await storage.jobs.claim("q", limit=1000, lease_for=60):
                    found += [claim.data for claim in claims]
                assert len(jobs) == 6000
                assert found == [*range(6000)]

    asyncio.run(main())


def test_an_answer_that_was_lost_lets_nothing_overtake(redis: RedisServer) -> None:
    """The next chunk waits from the moment that one before it has failed."""

    async def main() -> None:
        async with opened(redis.url) as storage:
            session = storage._session
            session.joined = Unsure(session.joined, "before", 1)
            await storage.jobs.add_many("q", [*range(4500)])
            found: list[int] = []
            while claims := await storage.jobs.claim("q", limit=1000, lease_for=60):
                found += [claim.data for claim in claims]
            assert found == [*range(4500)]

    asyncio.run(main())


def test_a_refusal_comes_before_any_write(redis: RedisServer) -> None:
    """One value of many that is not portable: none is there, none is claimable."""

    async def main() -> None:
        async with opened(redis.url) as storage:
            joined = storage.durable.joined(storage.hot)
            inserts = [Insert("queue_job:q", f"{n}", {"n": n}) for n in range(600)]
            inserts[599] = Insert("queue_job:q", "599", {"n": float("nan")})
            with pytest.raises(InvalidValueError):
                await joined.add("q", inserts, [Entry(insert.id) for insert in inserts], token="1")
            assert await storage.durable.get("queue_job:q", ["0", "599"]) == [None, None]
            assert (await storage.hot.broker.counts("q")).ready == 0
            assert await joined.add("q", [], [], token="1") == []

    asyncio.run(main())


def test_a_waiter_is_called_and_a_pause_is_kept(redis: RedisServer) -> None:
    """It publishes as the broker does."""

    async def main() -> None:
        async with opened(redis.url) as storage, opened(redis.url) as stranger:
            jobs = storage.jobs
            waiting = asyncio.ensure_future(jobs.claim("q", wait=20.0))
            await asyncio.sleep(0.1)
            await stranger.jobs.add("q", "another scope")
            await jobs.add("q", 1)
            async with asyncio.timeout(4):
                (claim,) = await waiting
            assert claim.data == 1
            await jobs.pause("q")
            await jobs.add("q", 2)
            assert await jobs.claim("q") == []
            await jobs.resume("q")
            assert [claim.data for claim in await jobs.claim("q")] == [2]

    asyncio.run(main())


def test_planes_that_are_not_sisters_are_not_joined(redis: RedisServer, own_redis: Any) -> None:
    """Another server, another connection, or a proxy around either plane."""

    class Proxy:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    async def main() -> None:
        async with (
            opened(redis.url) as one,
            opened(own_redis.url) as other,
            open_storage(**options(redis.url, wrap_hot=Proxy)) as wrapped,
        ):
            assert one.durable.joined(other.hot) is None
            assert wrapped._session.joined is None
            job = await wrapped.jobs.add("q", 1)
            assert job.published
            assert [claim.id for claim in await wrapped.jobs.claim("q")] == [job.id]

    asyncio.run(main())
