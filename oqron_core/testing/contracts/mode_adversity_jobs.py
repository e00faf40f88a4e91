"""The contract of a mode under attack: jobs that others lose, double, hold up or misplace."""

from __future__ import annotations

import asyncio
import time

from contextlib import AsyncExitStack
from typing import Any, Final

import attrs
import pytest

from oqron_core.exceptions import InvalidValueError, LeaseLostError, UnavailableError
from oqron_core.models import Backoff, Job, JobSpec
from oqron_core.planes import DurablePlane, Entry, Order, Patch
from oqron_core.protocol.claims import Claim
from oqron_core.protocol.lanes import queue_of
from oqron_core.storage import Storage
from oqron_core.testing.contracts.base import gather
from oqron_core.testing.contracts.mode import LAPSE
from oqron_core.testing.contracts.mode_adversity import AdversityBase
from oqron_core.testing.crashpoints import _mortal, _until_dead
from oqron_core.testing.faults import Faults, FaultyDurable, When


__all__ = ["JobsAdversityContract"]

_A_SWEEP: Final = 11
"""So many passes of maintenance look at everything that is looked at in turn."""
_TEN_MINUTES: Final = 600_000
"""By how many milliseconds a clock is wrong here."""
_ROW: Final = {"type": "exponential", "delay": 1.0, "factor": 2.0, "cap": 300.0, "jitter": 0.0}
_ODD_RULES: Final[dict[str, Any]] = {
    "no rule": {},
    "null": {"backoff": None},
    "text": {"backoff": "soon"},
    "list": {"backoff": [1, 2]},
    "negative": {"backoff": _ROW | {"delay": -5}},
    "endless": {"backoff": _ROW | {"delay": 1e30, "cap": 1e300}},
    "huge factor": {"backoff": _ROW | {"factor": 1e300}},
    "type is a list": {"backoff": _ROW | {"type": ["fixed"]}},
    "type is unknown": {"backoff": _ROW | {"type": "fibonacci"}},
    "numbers are texts": {"backoff": dict.fromkeys(_ROW, "1")},
    "numbers are truths": {"backoff": _ROW | {"delay": True, "jitter": True}},
    "grows beyond all numbers": {"backoff": _ROW | {"factor": 1000, "cap": 366 * 86400.0}},
    "spreads beyond the longest": {
        "backoff": Backoff.fixed(366 * 86400.0, jitter=1.0).to_wire(),
    },
}
"""Rules of a backoff as somebody else may have stored them."""


class _Elsewhere(FaultyDurable):
    """A durable plane on a machine whose clock is wrong."""

    def __init__(self, inner: DurablePlane, faults: Faults, ahead: int) -> None:
        super().__init__(inner, faults)
        self._ahead = ahead

    async def now(self) -> int:
        """Read that clock."""
        return await super().now() + self._ahead


class JobsAdversityContract(AdversityBase):
    """What broke jobs of others, each kind of it, in any mode."""

    # --- helpers ------------------------------------------------------------------------

    async def die_in(self, match: str, when: When, step: Any, **options: Any) -> None:
        """Let a process die before or after a call, in the middle of *step*."""
        faults = Faults()
        async with _mortal(self.open(faults, close_timeout=1.0, **options), faults) as doomed:
            faults.crash(match, when=when)
            await _until_dead(step(doomed), faults)
        assert faults.dead, f"{match} was never called"

    async def next_claim(self, queue: str = "q", **options: Any) -> Claim:
        """Wait until one job can be claimed, and claim it."""
        taken: list[Claim] = []

        async def is_taken() -> bool:
            taken.extend(await self.storage.jobs.claim(queue, **options))
            return bool(taken)

        await self.until(is_taken)
        return taken[0]

    async def sweep(self) -> None:
        """Let maintenance look at everything."""
        for _ in range(_A_SWEEP):
            await self.storage.maintenance.run_once()

    async def amounts(self, queue: str = "q") -> dict[str, int]:
        """Count the jobs of a queue, without the zeros; lists must agree."""
        counts = await self.storage.jobs.counts(queue)
        for status, count in counts.items():
            if status != "failed":
                page = await self.storage.jobs.query(queue, status=status, limit=1000)
                assert count == len(page), status
        return {status: count for status, count in counts.items() if count}

    # --- jobs that others lose ------------------------------------------------------------

    async def test_a_small_batch_leaves_nothing_behind(self) -> None:
        """A step is bounded, a repair is not: it ends when nothing is left."""
        async with self.open(maintenance={"batch": 10}) as storage:
            ids = [f"{n:02}" for n in range(35)]
            await storage.jobs.add_many("q", [JobSpec(n, id=id_) for n, id_ in enumerate(ids)])
            # More than a step, and in front of what has lapsed.
            living = await storage.jobs.claim("q", limit=12, lease_for=600.0)
            await storage.jobs.claim("q", limit=23, lease_for=LAPSE)
            await self.lapse()
            assert 23 == await storage.maintenance.reap()
            assert 0 == await storage.maintenance.reap()
            counts = await storage.hot.broker.counts("q")
            assert (23, 12) == (counts.ready, counts.leased)
            await storage.hot.broker.remove("q", ids[12:])
            assert 23 == await storage.maintenance.reconcile()
            assert 0 == await storage.maintenance.reconcile()

            assert [True] * 12 == await storage.jobs.renew(living, lease_for=600.0)
            assert [True] * 35 == list(await storage.hot.broker.contains("q", ids))

    async def test_failing_in_a_crowd_destroys_nothing(self) -> None:
        """Whoever fails a job at once ends his own attempt and nobody else's."""
        specs = [JobSpec(id_, id=id_, max_attempts=1000) for id_ in "abc"]
        await self.storage.jobs.add_many("q", specs)

        async def churn(storage: Storage) -> int:
            failed = 0
            for _ in range(25):
                for claim in await storage.jobs.claim("q", lease_for=600.0):
                    await storage.jobs.fail(claim, "again", retry_in=0.0)
                    failed += 1
            return failed

        async with self.open() as other:
            failed = sum(await gather(churn(one) for one in (self.storage, other, other)))
        assert {"delayed": 3} == await self.amounts()
        made = [job.attempt_made for job in await self.storage.jobs.query("q")]

        assert failed == sum(made)
        claims = await self.storage.jobs.claim("q", limit=5)
        assert [*"abc"] == sorted(claim.id for claim in claims)

    async def test_a_worker_that_is_back_keeps_no_orphan_alive(self) -> None:
        """Its name is at work again; what it held in its last life is taken over."""
        await self.storage.jobs.add("q", 1, id="a")
        old = await self.hold(lease_for=LAPSE, worker="w1")
        async with self.open() as again:
            await again.jobs.add("other", 2)
            [claim] = await again.jobs.claim("other", worker="w1", lease_for=600.0)
            await self.lapse()
            assert [True] == await again.jobs.renew([claim], lease_for=600.0)
            assert 1 == await again.maintenance.reap()
            assert [True] == await again.jobs.renew([claim], lease_for=600.0)
            new = await self.hold(worker="w2")

            assert ("a", 2) == (new.id, new.attempt)
            assert new.lease.token > old.lease.token
            await again.jobs.complete(claim)

    async def test_what_another_application_lost_is_returned_to_it(self) -> None:
        """Who repairs knows neither its queues nor its handlers, and judges nothing."""
        async with self.open() as theirs:
            await theirs.jobs.add("theirs", {"n": 1}, id="a")
            [lost] = await theirs.jobs.claim("theirs", lease_for=LAPSE)
        await self.storage.jobs.add("mine", 1)
        await self.lapse()
        await self.sweep()
        assert {} == await self.storage.dead_letters.counts()
        job = await self.read("a", "theirs")
        assert ({"n": 1}, 1) == (job.data, job.attempt_made)
        async with self.open() as theirs:
            [claim] = await theirs.jobs.claim("theirs")

            assert ("a", 2) == (claim.id, claim.attempt)
            assert claim.lease.token > lost.lease.token
            await theirs.jobs.complete(claim)

    @pytest.mark.parametrize("name", _ODD_RULES)
    async def test_an_odd_backoff_loses_no_job(self, name: str) -> None:
        """A failure is written with some delay, whatever the stored rule says."""
        jobs = self.storage.jobs
        await jobs.add("q", 1, id="a")
        numbers = {"attemptMade": 998, "maxAttempts": 1000}
        await self.storage.durable.write(
            [Patch("queue_job:q", "a", set={"opts": _ODD_RULES[name], **numbers})]
        )
        job = await jobs.fail(await self.hold(), "boom")
        assert ("delayed", 999, "boom") == (job.status, job.attempt_made, job.error)
        assert job.run_at is not None
        assert await self.storage.durable.now() - 600_000 <= job.run_at
        assert await jobs.reschedule("q", "a") is True
        await jobs.fail(await self.hold(), "boom again")

        letter = await self.storage.dead_letters.get("q", "a")
        assert letter is not None
        assert ("boom again", 1000) == (letter.error, letter.attempt_made)

    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("call", ["durable.write", "hot.broker.publish"])
    async def test_an_add_that_was_cut_short_can_be_repeated(self, call: str, when: When) -> None:
        """Its id is neither taken without a job nor a job that no list shows."""

        async def add(storage: Storage) -> Job:
            return await storage.jobs.add("q", {"n": 1}, id="a")

        await self.die_in(call, when, add)
        again = await add(self.storage)
        assert again.duplicate is ((call, when) != ("durable.write", "before"))
        await self.storage.maintenance.reconcile()
        assert {"waiting": 1} == await self.amounts()
        assert [again.id] == [job.id for job in await self.storage.jobs.query("q")]
        assert 1 == (await self.storage.hot.broker.counts("q")).ready
        claim = await self.hold()

        assert (1, {"n": 1}) == (claim.attempt, claim.data)
        await self.storage.jobs.complete(claim)
        assert await self.nothing_claimable()

    # --- jobs that others double ------------------------------------------------------------

    @pytest.mark.parametrize("how", ["add", "retry", "release"])
    async def test_a_delay_of_many_leases_is_one_delivery(self, how: str) -> None:
        """What waits for its time holds no lease, so none lapses."""
        jobs = self.storage.jobs
        delay = 3 * LAPSE
        now = await self.storage.durable.now()
        await jobs.add("q", 1, id="a", delay=delay if how == "add" else None)
        if how == "retry":
            await jobs.fail(await self.hold(lease_for=600.0), "x", retry_in=delay)
        elif how == "release":
            await jobs.release(await self.hold(lease_for=600.0), delay=delay)
        assert 0 == (await self.storage.hot.broker.counts("q")).leased
        taken: list[Claim] = []
        async with self.open() as other:

            async def is_taken() -> bool:
                for storage in (self.storage, other):
                    await storage.maintenance.reap()
                    # Long enough not to lapse here on a busy machine.
                    taken.extend(await storage.jobs.claim("q", lease_for=600.0))
                return bool(taken)

            await self.until(is_taken)
            assert await self.storage.durable.now() >= now + delay * 1000 - 100
            await self.lapse()
            await is_taken()

        assert [2 if how == "retry" else 1] == [claim.attempt for claim in taken]
        await jobs.complete(taken[0])
        assert await self.nothing_claimable()

    @pytest.mark.parametrize("every", [1.01, 3.0, 30.0])
    async def test_a_renewal_that_may_come_too_late_is_refused(self, every: float) -> None:
        """Before anything is renewed: a lease must outlive a renewal that fails."""
        await self.storage.jobs.add("q", 1, id="a")
        claim = await self.hold(lease_for=600.0)
        with pytest.raises(InvalidValueError, match="a third"):
            async with self.storage.jobs.keep([claim], lease_for=3.0, every=every):
                raise AssertionError("entered")

        assert [] == self.faults.names("hot.broker.renew")
        await self.storage.jobs.complete(claim)

    async def test_a_sweep_beside_busy_workers_takes_nothing(self) -> None:
        """Between claim and lease there is no gap to find a job in."""
        await self.storage.jobs.add_many("q", range(120))
        done: list[tuple[int, int]] = []

        async def work(storage: Storage) -> None:
            while claims := await storage.jobs.claim("q", limit=3, lease_for=600.0):
                for claim in claims:
                    done.append((claim.data, claim.attempt))
                    await storage.jobs.complete(claim)

        async with self.open() as other:
            working = asyncio.ensure_future(gather(work(one) for one in [self.storage, other] * 2))
            while not working.done():
                assert 0 == await other.maintenance.reap()
                await asyncio.sleep(0)
            await working

        assert [(n, 1) for n in range(120)] == sorted(done)
        assert {"completed": 120} == await self.amounts()

    @pytest.mark.parametrize("ahead", [-_TEN_MINUTES, _TEN_MINUTES])
    async def test_the_time_of_day_of_a_process_decides_nothing(
        self, ahead: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Leases and delays go by the planes' clocks, wherever a worker thinks it is."""
        jobs = self.storage.jobs
        await jobs.add("q", 1, id="held")
        held = await self.hold(lease_for=120.0)
        await jobs.add("q", 1, id="late", delay=120.0)
        await jobs.add("q", 1, id="lapsed")
        await self.hold(lease_for=LAPSE)
        await self.lapse()
        day, day_ns = time.time, time.time_ns
        monkeypatch.setattr(time, "time", lambda: day() + ahead / 1000)
        monkeypatch.setattr(time, "time_ns", lambda: day_ns() + ahead * 1_000_000)
        async with self.open() as wrong:
            assert 1 == (await wrong.maintenance.run_once()).reaped
            before = await self.storage.durable.now()
            claims = await wrong.jobs.claim("q", limit=10, lease_for=120.0)
            assert [("lapsed", 2)] == [(claim.id, claim.attempt) for claim in claims]
            job = await wrong.jobs.fail(claims[0], "x", retry_in=120.0)
            added = await wrong.jobs.add("q", 1, delay=120.0)
            after = await self.storage.durable.now()
            for due in (job.run_at, added.run_at):
                assert due is not None
                assert before + 119_900 <= due <= after + 120_100
            began = (await self.read("lapsed")).processed_on
            assert began is not None
            assert before - 100 <= began <= after + 100
            await self.lose_hot(wrong.hot)
            assert 4 == await wrong.maintenance.rebuild_hot()
            assert [] == await wrong.jobs.claim("q", limit=10)
        assert await self.nothing_claimable()

        assert [True] == await jobs.renew([held], lease_for=120.0)
        await jobs.complete(held)

    @pytest.mark.parametrize("ahead", [-_TEN_MINUTES, _TEN_MINUTES])
    async def test_the_planes_need_not_agree_on_the_time(self, ahead: int) -> None:
        """Nothing comes early or is forgotten where two servers have two clocks."""

        def elsewhere(plane: DurablePlane) -> DurablePlane:
            return _Elsewhere(plane, Faults(), ahead)

        async with AsyncExitStack() as stack:
            storage = await stack.enter_async_context(self.open(wrap_durable=elsewhere))
            self.storage = storage
            jobs = storage.jobs
            await jobs.add("q", 1, id="held")
            held = await self.hold(lease_for=120.0)
            await jobs.add("q", 1, id="late", delay=120.0)
            await jobs.add("q", 1, id="failed")
            await jobs.fail(await self.hold(), "x", retry_in=120.0)
            await jobs.add("q", 1, id="put off")
            assert await jobs.reschedule("q", "put off", delay=120.0)
            await self.sweep()
            assert await self.nothing_claimable()
            await self.lose_hot(storage.hot)
            assert 4 == await storage.maintenance.rebuild_hot()
            assert await self.nothing_claimable()
            assert [True] == await jobs.renew([held], lease_for=120.0)
            await jobs.complete(held)

            await jobs.add("q", 1, id="soon", delay=0.1)
            claim = await self.next_claim(lease_for=600.0)
            assert "soon" == claim.id
            await jobs.fail(claim, "x", retry_in=0.1)
            claim = await self.next_claim(lease_for=LAPSE)
            assert ("soon", 2) == (claim.id, claim.attempt)
            claim = await self.next_claim(lease_for=600.0)
            assert ("soon", 3) == (claim.id, claim.attempt)
            await jobs.complete(claim)
            assert {"completed": 2, "delayed": 3} == await self.amounts()

    @pytest.mark.parametrize("call", ["durable.write", "hot.broker.publish"])
    @pytest.mark.parametrize("count", [1, 3])
    async def test_a_lost_answer_doubles_no_job_without_an_id(self, count: int, call: str) -> None:
        """Its id is made before the first try, so that the second finds it."""
        self.faults.fail(call, when="after", times=2)
        if count == 1:
            made = [await self.storage.jobs.add("q", 0)]
        else:
            made = await self.storage.jobs.add_many("q", range(count))
        self.faults.heal()
        await self.storage.maintenance.reconcile()

        assert [False] * count == [job.duplicate for job in made]
        assert {"waiting": count} == await self.amounts()
        assert count == (await self.storage.hot.broker.counts("q")).ready
        claims = await self.storage.jobs.claim("q", limit=10)
        assert [job.id for job in made] == [claim.id for claim in claims]

    @pytest.mark.parametrize("end", ["completed", "expired", "cancelled", "dead", "thrown away"])
    async def test_an_id_used_again_has_nothing_of_its_first_life(self, end: str) -> None:
        """No count, no error, no lease; and its last holder changes nothing."""
        kept = 0.4 if end == "expired" else 0
        async with self.open(retention={"completed_for": kept, "cancelled_for": 0}) as storage:
            jobs = storage.jobs
            await jobs.add(
                "q", {"old": 1}, id="a", priority=5, max_attempts=2, tags=["old"],
                correlation_id="old", backoff=Backoff.fixed(9.0),
            )  # fmt: skip
            [claim] = await jobs.claim("q", lease_for=600.0)
            await jobs.fail(claim, ValueError("old"), retry_in=0.0)
            [old] = await jobs.claim("q", lease_for=600.0)
            if end in {"completed", "expired"}:
                await jobs.complete(old, "old")
            elif end == "cancelled":
                assert await jobs.cancel("q", "a")
            else:
                await jobs.fail(old, "old")
            if end == "thrown away":
                assert await storage.dead_letters.delete("q", "a")
            elif end == "expired":
                await self.elapse(0.7)
            again = await jobs.add("q", {"new": 1}, id="a")
            fresh = await jobs.add("q", {"new": 1}, id="b")

            assert not again.duplicate
            first, second = await self.read("a"), await self.read("b")
            assert first == attrs.evolve(second, id="a", created_at=first.created_at)
            assert again == attrs.evolve(fresh, id="a", created_at=again.created_at)
            new, _ = await jobs.claim("q", limit=2, lease_for=600.0)
            before = await self.read("a")
            assert ("a", 1, {"new": 1}) == (new.id, new.attempt, new.data)
            with pytest.raises(LeaseLostError):
                await jobs.complete(old, "older")
            with pytest.raises(LeaseLostError):
                await jobs.fail(old, "older")
            assert [False] == await jobs.renew([old], lease_for=600.0)
            assert before == await self.read("a")
            assert [True] == await jobs.renew([new], lease_for=600.0)
            await jobs.complete(new)
            await storage.runs.flush()
            last = {"expired": "completed", "completed": "completed", "cancelled": "cancelled"}
            assert ["failed", last.get(end, "failed"), "completed"] == await self.runs_of("a")

    # --- jobs that others hold up -------------------------------------------------------------

    async def test_a_last_failure_that_was_not_heard_holds_up_no_key(self) -> None:
        """Its lease lapses, it is buried, and the next message of the key is handed out."""
        topics = self.storage.topics
        await topics.subscribe("t", "g", max_attempts=1)
        await topics.publish_many("t", [1, 2], key="k")
        [claim] = await topics.claim("t", "g", lease_for=LAPSE)
        self.faults.down("*")
        with pytest.raises(UnavailableError):
            await topics.fail(claim, "no")
        self.faults.heal()
        await self.lapse()
        await self.sweep()
        taken: list[Claim] = []

        async def is_taken() -> bool:
            taken.extend(await topics.claim("t", "g"))
            return bool(taken)

        await self.until(is_taken)
        assert [2] == [one.message.message for one in taken if one.message]
        letters = await self.storage.dead_letters.query(queue_of("t", "g"))
        assert [(1, "lease lapsed")] == [
            (letter.data["message"], letter.reason) for letter in letters
        ]

    @pytest.mark.parametrize("how", ["refused", "before", "after"])
    @pytest.mark.parametrize("delay", [None, 0.2])
    async def test_a_sooner_time_that_the_broker_was_not_told_is_carried_over(
        self, delay: float | None, how: Any
    ) -> None:
        """By maintenance, though the broker has lost nothing; not at the old time."""

        async def hurry(storage: Storage) -> bool:
            return await storage.jobs.reschedule("q", "a", delay=delay)

        await self.storage.jobs.add("q", 1, id="a", delay=3600.0)
        if how == "refused":
            self.faults.down("hot.broker.publish")
            assert await hurry(self.storage) is True
            self.faults.heal()
        else:
            await self.die_in("hot.broker.publish", how, hurry)
        assert ("waiting" if delay is None else "delayed") == await self.state("a")
        await self.sweep()
        began = await self.storage.durable.now()
        claim = await self.next_claim()

        assert ("a", 1) == (claim.id, claim.attempt)
        assert await self.storage.durable.now() < began + 3_000_000

    async def test_the_later_of_two_new_times_stands(self) -> None:
        """Also where the broker hears of the earlier one last."""
        jobs = self.storage.jobs
        await jobs.add("q", 1, id="a")
        pause = self.faults.pause("hot.broker.publish")
        slow = asyncio.create_task(jobs.reschedule("q", "a", delay=3600.0))
        await pause.reached.wait()
        async with self.open() as other:
            assert await other.jobs.reschedule("q", "a") is True
        pause.release()
        assert await slow is True

        assert "waiting" == await self.state("a")
        assert "a" == (await self.hold()).id

    async def test_a_sweep_undoes_no_new_time(self) -> None:
        """It was given after the sweep had read the old one."""
        await self.storage.jobs.add("q", 1, id="a", delay=3600.0)
        pause = self.faults.pause("hot.broker.publish")
        sweeping = asyncio.create_task(self.sweep())
        await pause.reached.wait()
        async with self.open() as other:
            assert await other.jobs.reschedule("q", "a") is True
        pause.release()
        await sweeping

        assert "a" == (await self.hold()).id

    async def test_a_claim_that_waits_gets_nothing_after_a_pause(self) -> None:
        """It began before, and what is added later stays; until the queue is resumed."""
        task = asyncio.create_task(self.storage.jobs.claim("q", wait=40.0))
        await self.settle()
        async with self.open() as other:
            await other.jobs.pause("q")
            await other.jobs.add("q", 1, id="a")
            await self.settle()
            assert not task.done()
            assert "waiting" == await self.state("a")
            await other.jobs.resume("q")

            assert ["a"] == [claim.id for claim in await asyncio.wait_for(task, 15)]

    async def test_a_held_job_that_looks_ready_holds_up_no_other(self) -> None:
        """The broker forgot its lease; those behind it are handed out at once."""
        jobs = self.storage.jobs
        await jobs.add("q", 1, id="held", priority=-1)
        held = await self.hold(lease_for=600.0)
        ids = [f"{n}" for n in range(10)]
        await jobs.add_many("q", [JobSpec(1, id=id_) for id_ in ids])
        await self.lose_hot(self.storage.hot)
        entries = [Entry("held", -1), *(Entry(id_) for id_ in ids)]
        await self.storage.hot.broker.publish("q", entries)
        [first] = await jobs.claim("q", limit=1)
        rest = await jobs.claim("q", limit=20)

        assert ids == [claim.id for claim in (first, *rest)]
        await jobs.complete(held)
        assert "completed" == await self.state("held")

    # --- jobs that others misplace ------------------------------------------------------------

    @pytest.mark.parametrize("order", ["fifo", "lifo"])
    async def test_every_job_is_within_reach_of_either_order(self, order: Order) -> None:
        """Whatever its priority is, and however it came to wait."""
        jobs = self.storage.jobs
        await jobs.add("q", 0, id="dead", priority=4, max_attempts=1)
        await jobs.fail(await self.hold(), "x")
        await jobs.add("q", 0, id="retried", priority=3)
        await jobs.fail(await self.hold(), "x", retry_in=0.0)
        await jobs.add("q", 0, id="released", priority=-3)
        await jobs.release(await self.hold())
        await jobs.add_many("q", [JobSpec(0, id="none"), JobSpec(0, id="zero", priority=0)])
        await jobs.add("q", 0, id="five", priority=5)
        await jobs.add("q", 0, id="minus", priority=-5, delay=3600.0)
        assert await jobs.reschedule("q", "minus")
        await self.storage.dead_letters.requeue("q", "dead")
        await self.storage.controls.pause("queue", "q", behaviour="hold")
        await jobs.add("q", 0, id="stopped", priority=9)
        await self.storage.controls.resume("queue", "q")
        claims = [claim for _ in range(8) for claim in await jobs.claim("q", order=order)]

        level = ["none", "zero"] if order == "fifo" else ["zero", "none"]
        expected = ["minus", "released", *level, "retried", "dead", "five", "stopped"]
        assert expected == [claim.id for claim in claims]
        assert await self.nothing_claimable()

    @pytest.mark.parametrize("finder", ["claim", "reap", "rebuild"])
    async def test_a_recovered_job_is_the_next_one(self, finder: str) -> None:
        """With its priority, and before those that came later, whoever recovers it."""
        jobs = self.storage.jobs
        await jobs.add("q", 0, id="high", priority=-5)
        await self.hold(lease_for=LAPSE)
        await self.elapse(0.01)
        await jobs.add_many("q", [JobSpec(n, id=f"{n}") for n in range(30)], priority=5)
        await jobs.add("q", 0, id="0-later", priority=-5)
        if finder == "rebuild":
            await self.lose_hot(self.storage.hot)
            assert 32 == await self.storage.maintenance.rebuild_hot()
        await self.lapse()
        if finder == "reap":
            assert 1 == await self.storage.maintenance.reap()
        claims = [await self.hold() for _ in range(3)]

        assert [("high", 2, -5), ("0-later", 1, -5), ("0", 1, 5)] == [
            (claim.id, claim.attempt, claim.job.priority) for claim in claims
        ]
