"""One step over both planes: what is written is claimable, and nothing else is."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import warnings

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import attrs
import pytest

from fix_redis import options

from oqron_core import JobSpec, open_storage
from oqron_core._ids import uuid7_block
from oqron_core.exceptions import (
    ClosedError,
    ConflictError,
    InvalidValueError,
    TimedOutError,
    UnavailableError,
)
from oqron_core.planes import (
    Counts,
    Delete,
    Entry,
    Insert,
    JoinedPlanes,
    Lease,
    Mark,
    Order,
    Patch,
    Query,
    Settled,
    Taken,
    Write,
    WriteResult,
)
from oqron_core.protocol.taking import Take
from oqron_core.testing.servers import RedisServer


T = TypeVar("T")


@contextlib.asynccontextmanager
async def opened(url: str, **more: Any) -> AsyncIterator[Any]:
    """Open a storage whose planes are joined."""
    async with open_storage(**options(url, **more)) as storage:
        assert storage.durable.joined(storage.hot) is not None
        yield storage


class Unsure(JoinedPlanes):
    """Planes whose answer is lost, before or after the step was taken, or known at once to be."""

    def __init__(self, inner: Any, when: str, times: int) -> None:
        self.inner = inner
        self.when = when
        self.times = times

    async def add(
        self, queue: str, inserts: Sequence[Insert], entries: Sequence[Entry], *, token: str
    ) -> Sequence[WriteResult]:
        """Forward, and lose some answers."""
        return await self._unsure(lambda: self.inner.add(queue, inserts, entries, token=token))

    def claim(self, queue: str, mark: Mark, **options: Any) -> Awaitable[Taken]:
        """Likewise."""
        if self.when == "at once" and self.times > 0:
            self.times -= 1
            raise UnavailableError("no answer")
        return self._unsure(lambda: self.inner.claim(queue, mark, **options))

    async def settle(
        self, queue: str, writes: Sequence[Write], leases: Sequence[Lease], *, atomic: bool = False
    ) -> Settled:
        """Likewise."""
        return await self._unsure(lambda: self.inner.settle(queue, writes, leases, atomic=atomic))

    async def _unsure(self, call: Callable[[], Awaitable[T]]) -> T:
        fails = self.times > 0
        self.times -= 1
        if fails and self.when == "before":
            raise UnavailableError("no answer")
        results = await call()
        if fails:
            # Where an answer is lost on its way, nothing is known to be answered.
            self.inner._doubt([*self.inner._spent])
            self.inner._spent.clear()
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
@pytest.mark.parametrize(("count", "tag"), [(1, 9), (300, 9), (250, 1000), (250, 6000)])
def test_what_was_worked_before_the_answer_came_does_not_come_again(
    redis: RedisServer, fail: bool, count: int, tag: int
) -> None:
    """It is a dead letter, or deleted, when the call is made once more; large tags or small."""

    async def main() -> None:
        retention = {"completed_for": 0}
        async with opened(redis.url, retention=retention) as storage:
            session = storage._session
            session.joined = Worked(session.joined, storage, fail=fail)
            if count == 1:
                jobs = [await storage.jobs.add("q", 1)]
            else:
                jobs = await storage.jobs.add_many("q", [*range(count)], tags=["x" * tag])
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
            session.joined = session.joined.inner
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


# --- claiming ----------------------------------------------------------------------

MARK = Mark(
    "queue_job:q",
    token_field="token",
    name_field="name",
    now_fields=("at", "first"),
    set={"status": "active", "who": "me", "n": None},
    increment={"tries": 1},
    expect={"status": "waiting"},
)


async def put(storage: Any, *ids: str, publish: Sequence[str] = (), **more: Any) -> None:
    """Write records that wait, and publish their ids and others."""
    value = {"status": "waiting", "tries": 2, "n": 1, "kept": [1, {"a": "\u00e4"}], **more}
    await storage.durable.write([Insert("queue_job:q", id_, value) for id_ in ids])
    await storage.hot.broker.publish("q", [Entry(id_) for id_ in (*ids, *publish)])


async def take(storage: Any, names: str, **more: Any) -> Taken:
    """Claim with the mark of these tests."""
    joined = storage.durable.joined(storage.hot)
    said = {"owner": "w", "lease_for": 60, "limit": 9, "order": "fifo", **more}
    return await joined.claim("q", MARK, names=names, now=await storage.durable.now(), **said)


def test_what_is_leased_is_marked(redis: RedisServer) -> None:
    """With its token, a name of its own and the instant; what refuses it is leased alone."""

    async def main() -> None:
        async with opened(redis.url) as storage:
            await put(storage, "a", "b", "c", publish=["gone"])
            odd = Patch("queue_job:q", "b", set={"status": "cancelled"})
            worse = Patch("queue_job:q", "c", set={"tries": "many"})
            await storage.durable.write([odd, worse])
            taken = await take(storage, "run-")
            assert [lease.id for lease in taken.leases] == ["a", "b", "c", "gone"]
            assert taken.names == ["run-0000", "run-0001", "run-0002", "run-0003"]
            assert [bool(result) for result in taken.results] == [True, False, False, False]
            for lease in taken.leases:
                assert lease.owner == "w"
                assert 0 < lease.expires_at - taken.now <= 60_000
            marked, other, odd_one, gone = (result.record for result in taken.results)
            assert marked.value == {
                "status": "active",
                "who": "me",
                "n": None,
                "tries": 3,
                "kept": [1, {"a": "\u00e4"}],
                "token": taken.leases[0].token,
                "name": "run-0000",
                "at": taken.now,
                "first": taken.now,
            }
            assert marked.value == (await storage.durable.get("queue_job:q", ["a"]))[0].value
            assert other.value["status"] == "cancelled"
            assert odd_one.value["tries"] == "many"
            assert gone is None
            by_status = await storage.durable.count(Query(namespace="queue_job:q"), by="status")
            assert by_status == {"active": 1, "cancelled": 1, "waiting": 1}
            held = await storage.hot.broker.renew(taken.leases, lease_for=60)
            assert held == [True] * 4
            assert (await take(storage, "run2-")).leases == []

    asyncio.run(main())


def test_a_claim_that_is_made_again_gives_what_it_took(redis: RedisServer) -> None:
    """And nothing more; the records are given as they are by then."""

    async def main() -> None:
        async with opened(redis.url) as storage:
            await put(storage, "a", "b")
            first = await take(storage, "run-", limit=1)
            again = await take(storage, "run-", limit=1)
            assert again.leases == first.leases
            assert again.names == first.names
            assert [result.applied for result in again.results] == [True]
            assert again.results[0].record == first.results[0].record
            (lease,) = first.leases
            await storage.hot.broker.nack([lease])
            await storage.durable.write([Patch("queue_job:q", "a", set={"name": "other"})])
            last = await take(storage, "run-", limit=0)
            assert last.leases == first.leases
            assert [result.applied for result in last.results] == [False]
            assert last.results[0].record.value["name"] == "other"
            # One that took nothing is over as well once it was asked after.
            assert (await take(storage, "other-", limit=0)).leases == []
            assert (await take(storage, "other-")).leases == []
            assert [x.id for x in (await take(storage, "third-")).leases] == ["a", "b"]

    asyncio.run(main())


def test_bad_claims_are_refused_before_anything_is_taken(redis: RedisServer) -> None:
    """Names, limits, and guards that no mark may have."""

    async def main() -> None:
        async with opened(redis.url) as storage:
            await put(storage, "a")
            for bad in (
                {"owner": ""},
                {"lease_for": 0},
                {"limit": -1},
                {"limit": 1001},
                {"order": "any"},
            ):
                with pytest.raises(InvalidValueError):
                    await take(storage, "run-", **bad)
            joined = storage.durable.joined(storage.hot)
            said = {"owner": "w", "lease_for": 60, "limit": 1, "order": "fifo"}
            for mark in (
                attrs.evolve(MARK, expect={"kept": [1]}),
                attrs.evolve(MARK, set={"n": float("inf")}),
                attrs.evolve(MARK, namespace=""),
            ):
                with pytest.raises(InvalidValueError):
                    await joined.claim("q", mark, names="run-", now=0, **said)
            with pytest.raises(InvalidValueError):
                await joined.claim("", MARK, names="run-", now=0, **said)
            assert (await storage.hot.broker.counts("q")).leased == 0

    asyncio.run(main())


def test_a_clock_that_is_behind_takes_all_the_same(redis: RedisServer) -> None:
    """The answer is there, so somebody waits for it."""

    async def main() -> None:
        async with opened(redis.url) as storage:
            await put(storage, "a")
            joined = storage.durable.joined(storage.hot)
            said = {"owner": "w", "lease_for": 60, "limit": 1, "order": "fifo"}
            taken = await joined.claim("q", MARK, names="run-", now=1000, **said)
            assert [lease.id for lease in taken.leases] == ["a"]

    asyncio.run(main())


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("when", ["before", "after", "at once"])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("count", [1, 120])
def test_a_claim_whose_answer_is_lost_loses_no_attempt(
    redis: RedisServer, when: str, times: int, count: int, known: bool
) -> None:
    """The next try has the same jobs, and a job with one attempt is worked."""

    async def main() -> None:
        async with opened(redis.url) as storage:
            await storage.jobs.add_many("q", [JobSpec(n, max_attempts=1) for n in range(count)])
            session = storage._session
            if known:
                # Where the time is known the first call goes out before anybody waits.
                await session.durable_time.now()
            else:
                assert await storage.jobs.claim("q", limit=0) == []
            session.joined = Unsure(session.joined, when, times)
            claims = await storage.jobs.claim("q", limit=500)
            assert [claim.data for claim in claims] == [*range(count)]
            assert {claim.attempt for claim in claims} == {1}
            assert len({claim.run.id for claim in claims}) == count
            await storage.jobs.complete_many([(claim, None) for claim in claims])
            await storage.runs.flush()
            kept = await storage.durable.count(
                Query(kind="run", where=[("status", "=", "completed")])
            )
            assert kept == count

    asyncio.run(main())


@pytest.mark.parametrize("when", ["before", "at once"])
def test_a_part_that_is_refused_costs_the_one_before_nothing(
    redis: RedisServer, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a claim in parts: what was taken is worked, though the next part has no answer."""

    async def main() -> None:
        async with opened(redis.url) as storage:
            await storage.jobs.add_many("q", [*range(120)])
            session = storage._session
            unsure = session.joined = Unsure(session.joined, when, 0)
            begin = Take.begin
            begun: list[int] = []

            def counted(take: Take) -> None:
                begun.append(1)
                unsure.times = 9 if len(begun) == 2 else 0
                begin(take)

            monkeypatch.setattr(Take, "begin", counted)
            claims = await storage.jobs.claim("q", limit=120)
            assert len(claims) == 40
            unsure.times = 0
            assert len(await storage.jobs.claim("q", limit=120)) == 80

    asyncio.run(main())


def test_a_claim_that_nobody_waits_for_is_quiet(redis: RedisServer) -> None:
    """All tasks are cancelled in the turn after it began, as at the end of a loop."""

    async def main() -> None:
        odd: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, said: odd.append(said))
        async with opened(redis.url) as storage:
            await storage.jobs.claim("q")
            session = storage._session
            inner = session.joined

            class Lazy(Unsure):
                """Sends when it is awaited."""

                async def claim(self, *args: Any, **said: Any) -> Taken:
                    """Forward."""
                    return await inner.claim(*args, **said)

            for joined in (inner, Lazy(inner, "after", 0)):
                session.joined = joined
                before = asyncio.all_tasks()
                waiting = asyncio.ensure_future(storage.jobs.claim("q"))
                await asyncio.sleep(0)
                for task in asyncio.all_tasks() - before:
                    task.cancel()
                with pytest.raises((asyncio.CancelledError, ClosedError)):
                    await waiting
            del waiting
            gc.collect()
        assert odd == []

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(main())


@pytest.mark.parametrize("order", ["fifo", "lifo"])
@pytest.mark.parametrize("case", ["empty", "paused", "nothing"])
def test_a_claim_is_made_again_while_memory_is_short(
    own_redis: RedisServer, order: Order, case: str
) -> None:
    """Where there is nothing to take, and where it is only asked what was taken."""

    async def main() -> None:
        async with opened(own_redis.url) as storage:
            joined: Any = storage.durable.joined(storage.hot)
            if case != "empty":
                await storage.jobs.add("q", 1)
            if case == "paused":
                await storage.jobs.pause("q")
            own_redis.command("CONFIG", "SET", "maxmemory", "1")
            names = uuid7_block()
            # As the plane does where the first answer was lost.
            joined._doubt([joined._session.keys.taken(names)])
            taken = await joined.claim(
                "q",
                MARK,
                owner="w",
                lease_for=60,
                limit=0 if case == "nothing" else 5,
                order=order,
                names=names,
                now=await storage.durable.now(),
            )
            assert taken.leases == []
            # An elder call of these names takes nothing any more.
            assert own_redis.command("EXISTS", joined._session.keys.taken(names).decode()) == 1

    try:
        asyncio.run(main())
    finally:
        own_redis.command("CONFIG", "SET", "maxmemory", "0")


def test_what_a_lost_claim_took_is_given_back(redis: RedisServer) -> None:
    """Where no try is answered: the jobs come again soon, with their attempts."""

    async def main() -> None:
        async with opened(redis.url) as storage:
            await storage.jobs.add_many("q", [JobSpec(n, max_attempts=1) for n in range(5)])
            session = storage._session
            session.joined = Unsure(session.joined, "after", 6)
            with pytest.raises(UnavailableError):
                await storage.jobs.claim("q", limit=9, lease_for=300)
            async with asyncio.timeout(30):
                claims: list[Any] = []
                while len(claims) < 5:
                    claims += await storage.jobs.claim("q", limit=9, wait=5)
            assert sorted(claim.data for claim in claims) == [*range(5)]
            assert {claim.attempt for claim in claims} == {1}

    asyncio.run(main())


def test_a_server_that_was_frozen_takes_nothing_for_those_who_have_gone(
    own_redis: RedisServer,
) -> None:
    """A claim that it finds in its socket later costs no attempt and no lease."""

    async def main() -> None:
        said = options(own_redis.url, redis={"url": own_redis.url, "timeout": 0.5})
        with contextlib.ExitStack() as stack:
            async with open_storage(**said) as storage:
                await storage.jobs.add("q", 1, max_attempts=1)
                await storage.durable.now()
                stack.enter_context(own_redis.paused())
                asked = [asyncio.ensure_future(storage.jobs.claim("q")) for _ in range(3)]
                failed = await asyncio.gather(*asked, return_exceptions=True)
                assert all(isinstance(error, UnavailableError) for error in failed)
            await asyncio.sleep(1)
        async with open_storage(**said) as storage:
            (claim,) = await storage.jobs.claim("q")
            assert claim.attempt == 1

    asyncio.run(main())


def test_what_claims_took_is_forgotten(own_redis: RedisServer) -> None:
    """With the next calls, and all of it in time."""

    async def main() -> None:
        async with opened(own_redis.url) as storage:
            await storage.jobs.add_many("q", [*range(60)])
            for _ in range(60):
                await storage.jobs.claim("q")
        kept = [str(key) for key in own_redis.command("KEYS", "*taken*")]
        assert 0 < len(kept) <= 8
        for key in kept:
            assert 0 < int(str(own_redis.command("PTTL", key))) <= 120_000

    asyncio.run(main())


def test_a_later_step_that_fails_keeps_what_was_taken(redis: RedisServer) -> None:
    """Several steps of one claim: what the first ones took is delivered."""

    class Failing(Unsure):
        async def claim(self, queue: str, mark: Mark, **options: Any) -> Taken:
            self.when = "later"
            if self.times <= 0:
                raise UnavailableError("no answer")
            self.times -= 1
            return await self.inner.claim(queue, mark, **options)

    async def main() -> None:
        async with opened(redis.url) as storage:
            await storage.jobs.add_many("q", [*range(700)])
            session = storage._session
            inner = session.joined
            session.joined = Failing(inner, "later", 1)
            claims = await storage.jobs.claim("q", limit=1000, lease_for=60)
            session.joined = inner
            claims += await storage.jobs.claim("q", limit=1000, lease_for=60)
            assert [claim.data for claim in claims] == [*range(700)]

    asyncio.run(main())


def test_a_claim_that_fails_in_the_middle_gives_all_back(redis: RedisServer) -> None:
    """All that was begun, and what was on its way: these come again, with their attempts."""

    async def main() -> None:
        async with opened(redis.url) as storage:
            await storage.jobs.add_many("q", [JobSpec(n, max_attempts=1) for n in range(120)])
            recorder = storage._session.recorder
            start, begun = recorder.start, []

            def fail(**said: Any) -> Any:
                begun.append(said)
                if len(begun) == 50:
                    raise RuntimeError("a fault of ours")
                return start(**said)

            recorder.start = fail
            with pytest.raises(RuntimeError):
                await storage.jobs.claim("q", limit=120, lease_for=300)
            recorder.start = start
            claims: list[Any] = []
            async with asyncio.timeout(30):
                while len(claims) < 89:
                    claims += await storage.jobs.claim("q", limit=120, wait=5)
            # The part that failed is 40 to 79; what had not begun there has to lapse.
            assert sorted(claim.data for claim in claims) == [*range(49), *range(80, 120)]
            assert {claim.attempt for claim in claims} == {1}

    asyncio.run(main())


@pytest.mark.parametrize("cancelled", [True, False])
@pytest.mark.parametrize("count", [1, 120])
def test_a_claim_on_its_way_when_the_storage_closes_is_given_back(
    redis: RedisServer, cancelled: bool, count: int
) -> None:
    """Whether or not its caller has gone: nobody could end the jobs any more."""

    class Slow(Unsure):
        async def claim(self, queue: str, mark: Mark, **options: Any) -> Taken:
            taken = await self.inner.claim(queue, mark, **options)
            self.times += 1
            await asyncio.sleep(0.2)
            return taken

    async def main() -> None:
        said = options(redis.url)
        async with open_storage(**said) as storage:
            jobs = [JobSpec(n, max_attempts=1) for n in range(count)]
            await storage.jobs.add_many("q", jobs)
            session = storage._session
            session.joined = slow = Slow(session.joined, "later", 0)
            claiming = asyncio.ensure_future(storage.jobs.claim("q", limit=500, lease_for=300))
            while not slow.times:
                await asyncio.sleep(0.001)
            if cancelled:
                claiming.cancel()
        with pytest.raises(asyncio.CancelledError if cancelled else ClosedError):
            await claiming
        async with open_storage(**said) as storage:
            claims = await storage.jobs.claim("q", limit=500)
            assert sorted(claim.data for claim in claims) == [*range(count)]
            assert {claim.attempt for claim in claims} == {1}

    asyncio.run(main())


def test_what_an_unanswered_claim_took_is_known_until_it_expires(redis: RedisServer) -> None:
    """Its try that had no answer may be on its way for long, behind those that had one."""

    async def main() -> None:
        async with opened(redis.url) as storage:
            joined = storage.durable.joined(storage.hot)
            await put(storage, "a", "b")
            said = {"owner": "w", "lease_for": 60, "limit": 1, "order": "fifo"}

            now = await storage.durable.now()

            async def claim(names: str) -> list[str]:
                taken = await joined.claim("q", MARK, names=names, now=now, **said)
                return [lease.id for lease in taken.leases]

            lost = asyncio.ensure_future(claim("run-"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            lost.cancel()
            with pytest.raises(asyncio.CancelledError):
                await lost
            assert await claim("run-") == ["a"]
            assert await claim("other-") == ["b"]
            for _ in range(20):
                assert await claim(f"more{_}-") == []
            assert await claim("run-") == ["a"]

    asyncio.run(main())


def test_an_empty_claim_writes_nothing(own_redis: RedisServer) -> None:
    """Whoever asks an empty queue again and again fills no file of the server's."""

    async def main() -> None:
        async with opened(own_redis.url) as storage:
            await storage.jobs.claim("q")
            before = str(own_redis.command("INFO", "persistence"))
            for _ in range(20):
                assert await storage.jobs.claim("q") == []
            after = str(own_redis.command("INFO", "persistence"))

        def changes(info: str) -> str:
            return next(line for line in info.split() if line.startswith("rdb_changes"))

        assert changes(before) == changes(after)

    asyncio.run(main())


@pytest.mark.parametrize("max_attempts", [1, 3])
def test_a_claim_of_many_parts_does_not_take_its_own_jobs_again(
    redis: RedisServer, max_attempts: int
) -> None:
    """Its leases may be shorter than all of it takes."""

    async def main() -> None:
        async with opened(redis.url) as storage:
            jobs = [JobSpec("x" * 200_000, max_attempts=max_attempts) for _ in range(400)]
            await storage.jobs.add_many("q", jobs)
            claims: list[Any] = []
            # On a slow machine not even a part of it comes in time.
            with contextlib.suppress(TimedOutError):
                claims = await storage.jobs.claim("q", limit=400, lease_for=0.2)
            assert len({claim.id for claim in claims}) == len(claims)
            assert len(await storage.dead_letters.query("q")) == 0

    asyncio.run(main())


def test_a_claim_that_always_comes_too_late_ends(redis: RedisServer) -> None:
    """With an error that says what to do, and every job as it was."""

    class Late(Unsure):
        async def claim(self, queue: str, mark: Mark, **options: Any) -> Taken:
            taken = await self.inner.claim(queue, mark, **options)
            await asyncio.sleep(0.4)
            return taken

    async def main() -> None:
        said = options(redis.url)
        async with open_storage(**said) as one, open_storage(**said) as other:
            await one.jobs.add_many("q", range(3))
            session = one._session
            session.joined = Late(session.joined, "later", 0)
            with pytest.raises(TimedOutError, match="lease_for"):
                await one.jobs.claim("q", limit=3, lease_for=0.3)
            claims: list[Any] = []
            async with asyncio.timeout(20):
                while len(claims) < 3:
                    claims += await other.jobs.claim("q", limit=3, lease_for=60)
            assert all(await other.jobs.complete_many([(claim, None) for claim in claims]))

    asyncio.run(main())


def test_a_claim_that_comes_too_late_is_not_handed_out(redis: RedisServer) -> None:
    """Its lease is over: somebody else may have the job, or may get it."""

    class Late(Unsure):
        async def claim(self, queue: str, mark: Mark, **options: Any) -> Taken:
            taken = await self.inner.claim(queue, mark, **options)
            self.times += 1
            if self.times == 1:
                await asyncio.sleep(0.8)
            return taken

    async def main() -> None:
        said = options(redis.url)
        async with open_storage(**said) as one, open_storage(**said) as other:
            await one.jobs.add("q", 1, max_attempts=3)
            session = one._session
            session.joined = Late(session.joined, "later", 0)
            late = asyncio.ensure_future(one.jobs.claim("q", lease_for=0.3))
            async with asyncio.timeout(20):
                while not (mine := await other.jobs.claim("q", lease_for=60)):
                    await asyncio.sleep(0.05)
            assert await late == []
            await other.jobs.complete(mine[0], "done")

    asyncio.run(main())


# --- ends --------------------------------------------------------------------------


def end(id_: str, **more: Any) -> Patch:
    """Give the end of a record that is active."""
    return Patch("queue_job:q", id_, set={"status": "done", **more}, expect={"status": "active"})


def test_what_is_applied_is_acknowledged(redis: RedisServer) -> None:
    """Of each write and its lease both or none; other writes have no lease."""

    async def main() -> None:
        async with opened(redis.url) as storage:
            joined = storage.durable.joined(storage.hot)
            await put(storage, "a", "b", "c", "d")
            leases = (await take(storage, "run-")).leases
            await storage.durable.write([Patch("queue_job:q", "b", set={"status": "cancelled"})])
            await storage.hot.broker.ack([leases[2]])
            gone = Delete("queue_job:q", "d", expect={"status": "active"})
            extra = Insert("runs", "r", {"status": "completed", "startedAt": 1})
            writes = [end("a"), end("b"), end("c"), gone, extra]
            settled = await joined.settle("q", writes, leases)
            assert [result.applied for result in settled.results] == [True, False, True, True, True]
            assert list(settled.acknowledged) == [True, False, False, True]
            assert await storage.hot.broker.contains("q", ["a", "b", "c", "d"]) == [
                False,
                True,
                False,
                False,
            ]
            kept = await storage.durable.get("queue_job:q", ["a", "b", "c", "d"])
            assert [None if r is None else r.value["status"] for r in kept] == [
                "done",
                "cancelled",
                "done",
                None,
            ]
            assert (await storage.durable.get("runs", ["r"]))[0] is not None
            again = await joined.settle("q", writes, leases)
            assert not any(again.results)
            assert not any(again.acknowledged)
            assert (await joined.settle("q", [], [])).results == []

    asyncio.run(main())


def test_an_atomic_end_is_whole(redis: RedisServer) -> None:
    """One that is refused: nothing is written, nothing is acknowledged."""

    async def main() -> None:
        async with opened(redis.url) as storage:
            joined = storage.durable.joined(storage.hot)
            await put(storage, "a", "b")
            leases = (await take(storage, "run-")).leases
            run = Insert("runs", "r", {"status": "completed", "startedAt": 1})
            other = Patch("queue_job:q", "b", set={"status": "x"}, expect={"status": "waiting"})
            with pytest.raises(ConflictError) as caught:
                await joined.settle("q", [end("a"), other, run], leases, atomic=True)
            assert caught.value.index == 1
            assert (await storage.hot.broker.counts("q")).leased == 2
            kept = await storage.durable.get("queue_job:q", ["a", "b"])
            assert [record.value["status"] for record in kept] == ["active", "active"]
            assert await storage.durable.get("runs", ["r"]) == [None]
            settled = await joined.settle("q", [end("a"), end("b"), run], leases, atomic=True)
            assert all(settled.results)
            assert list(settled.acknowledged) == [True, True]
            assert (await storage.hot.broker.counts("q")).leased == 0

    asyncio.run(main())


def test_ends_of_many_steps(redis: RedisServer) -> None:
    """More than one script takes: each lease with its own write."""

    async def main() -> None:
        async with opened(redis.url) as storage:
            joined = storage.durable.joined(storage.hot)
            ids = [f"{n:04d}" for n in range(700)]
            await put(storage, *ids)
            leases = (await take(storage, "run-", limit=1000)).leases
            assert [lease.id for lease in leases] == ids
            writes = [end(id_, text="x" * (n % 7) * 1000) for n, id_ in enumerate(ids)]
            odd = Patch("queue_job:q", ids[333], set={"status": "cancelled"})
            await storage.durable.write([odd])
            settled = await joined.settle("q", writes, leases)
            expected = [n != 333 for n in range(700)]
            assert [result.applied for result in settled.results] == expected
            assert list(settled.acknowledged) == expected
            bad = [*writes[:699], end(ids[699], text=float("nan"))]
            with pytest.raises(InvalidValueError):
                await joined.settle("q", bad, leases)
            with pytest.raises(InvalidValueError, match=r"expect\.kept"):
                await joined.settle("q", [Delete("queue_job:q", "a", expect={"kept": [1]})], [])

    asyncio.run(main())


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("count", [1, 5, 120])
@pytest.mark.parametrize("completed_for", [0, 60])
def test_an_end_whose_answer_is_lost_is_an_end(
    redis: RedisServer, when: str, times: int, count: int, completed_for: float
) -> None:
    """The next try knows its own, the lease is gone, and there is one run."""

    async def main() -> None:
        async with opened(redis.url, retention={"completed_for": completed_for}) as storage:
            await storage.jobs.add_many("q", [*range(count)])
            claims = await storage.jobs.claim("q", limit=500)
            session = storage._session
            session.joined = Unsure(session.joined, when, times)
            if count == 1:
                await storage.jobs.complete(claims[0], "done")
            else:
                ended = await storage.jobs.complete_many([(claim, "done") for claim in claims])
                assert ended == [True] * count
            await storage.runs.flush()
            assert (await storage.hot.broker.counts("q")) == Counts(0, 0, 0, paused=False)
            query = Query(kind="run", where=[("status", "=", "completed")])
            assert await storage.durable.count(query) == count
            kept = await storage.durable.count(Query(kind="job"))
            assert kept == (count if completed_for else 0)

    asyncio.run(main())


@pytest.mark.parametrize("completed_for", [0, 60])
@pytest.mark.parametrize("many", [True, False])
def test_ends_that_a_frozen_server_has_written_are_ends(
    own_redis: RedisServer, many: bool, completed_for: float
) -> None:
    """It did so when nobody waited any more, and acknowledged the leases with it."""

    async def main() -> None:
        said = options(
            own_redis.url,
            redis={"url": own_redis.url, "timeout": 1.2},
            retention={"completed_for": completed_for},
        )
        async with open_storage(**said) as storage:
            await storage.jobs.add_many("q", [*range(40)])
            claims = await storage.jobs.claim("q", limit=40)
            with own_redis.paused():
                if many:
                    ends = [storage.jobs.complete_many([(claim, "x") for claim in claims])]
                else:
                    ends = [storage.jobs.complete(claim, "x") for claim in claims]
                ending = [asyncio.ensure_future(end) for end in ends]
                await asyncio.sleep(1.8)
            outcomes = await asyncio.gather(*ending, return_exceptions=True)
            if many and isinstance(outcomes[0], UnavailableError):
                # Said to be safe to repeat.
                outcomes = [await storage.jobs.complete_many([(c, "x") for c in claims])]
            assert outcomes == ([[True] * 40] if many else [None] * 40)
            await storage.runs.flush()
            query = Query(kind="run", where=[("status", "=", "completed")])
            assert await storage.durable.count(query) == 40
            assert await storage.durable.count(Query(kind="run")) == 40

    asyncio.run(main())


def test_few_are_completed_when_memory_is_short(own_redis: RedisServer) -> None:
    """Who finishes work goes on, also where a run is written with the job."""

    async def main() -> None:
        async with opened(own_redis.url) as storage:
            await storage.jobs.add_many("q", [*range(80)])
            claims = await storage.jobs.claim("q", limit=80)
            own_redis.command("CONFIG", "SET", "maxmemory", "1mb")
            await storage.jobs.complete(claims[0], "x")
            assert await storage.jobs.complete_many([(c, "x") for c in claims[1:10]]) == [True] * 9
            assert await storage.jobs.complete_many([(c, "x") for c in claims[10:]]) == [True] * 70
            own_redis.command("CONFIG", "SET", "maxmemory", "0")

    asyncio.run(main())
