"""The contract of a whole mode: two backends behind `open_storage`."""

from __future__ import annotations

import asyncio
import functools

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar

import attrs
import pytest

from oqron_core._plugins import Plugins, discover
from oqron_core.exceptions import (
    ClosedError,
    ConflictError,
    InvalidValueError,
    LeaseLostError,
    UnavailableError,
)
from oqron_core.models import Backoff, Job, JobSpec, Run
from oqron_core.planes import Capabilities, HotPlane, Query, Scope
from oqron_core.protocol.claims import Claim
from oqron_core.protocol.recovery import EPOCH
from oqron_core.storage import Storage, open_storage
from oqron_core.testing.contracts.base import Contract, fresh_scope, gather
from oqron_core.testing.faults import Faults
from oqron_core.testing.hostile import BAD_NAMES, BAD_VALUES, NAMES, VALUES, same, stable_id


__all__ = ["ModeBase", "ModeContract"]

LAPSE = 0.3
"""A lease that is left to lapse; long enough for one call on a busy machine."""


@functools.cache
def _installed() -> Plugins:
    return discover(only=())


class ModeBase(Contract):
    """
    Opens whole storages for the contracts of a mode.

    Attributes:
        mode: The mode; empty where `settings` names the two backends.
    """

    mode: ClassVar[str] = ""
    report_as: ClassVar[str] = ""

    backend: ClassVar[str]
    storage: Storage
    faults: Faults

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "mode" in vars(cls):
            cls.backend = cls.mode
            cls.report_as = f"mode {cls.mode}"

    @asynccontextmanager
    async def open(self, faults: Faults | None = None, **more: Any) -> AsyncIterator[Storage]:
        """Open a storage over the same stores, as a process of its own would."""
        options: dict[str, Any] = {
            "project": self.scope.project,
            "environment": self.scope.environment,
            **dict(self.settings()),
            **more,
        }
        if self.mode:
            options.setdefault("mode", self.mode)
        # Not looked for by each of the storages that a run of the tests opens.
        options.setdefault("plugins", _installed())
        if faults is not None:
            options |= {"wrap_hot": faults.wrap_hot, "wrap_durable": faults.wrap_durable}
        async with open_storage(**options) as storage:
            yield storage

    async def lose_hot(self, hot: HotPlane) -> None:
        """
        Lose everything that the hot plane holds for the scope.

        A backend with a server of its own may empty it instead.
        """
        for queue in await hot.broker.queues():
            await hot.broker.purge(queue)
            await hot.broker.resume(queue)
        await hot.live.drop(await hot.live.active(limit=100_000))
        await hot.counters.reset(EPOCH)

    def declared(self, capability: str) -> bool:
        """Say whether the mode's backend declares a capability."""
        plane, _, flag = capability.partition(".")
        capabilities: Capabilities = getattr(self.storage, plane).capabilities
        return bool(getattr(capabilities, flag))

    async def prepare(self, stack: AsyncExitStack) -> None:
        """Open the storage that the test uses."""
        self.scope: Scope = fresh_scope("mode")
        self.faults = Faults()
        self.storage = await stack.enter_async_context(self.open(self.faults))


class ModeContract(ModeBase):
    """What every mode must do, whatever backends it is made of."""

    # --- helpers ------------------------------------------------------------------------

    async def claim(self, queue: str = "q", **options: Any) -> Claim:
        """Claim one job, which must be there."""
        claims = await self.storage.jobs.claim(queue, **options)
        assert 1 == len(claims), "nothing could be claimed"
        return claims[0]

    async def idle(self, queue: str = "q", storage: Storage | None = None) -> bool:
        """Say whether nothing can be claimed."""
        return not await (storage or self.storage).jobs.claim(queue, limit=100)

    async def job(self, id: str, queue: str = "q") -> Job:  # noqa: A002
        """Read a job, which must be there."""
        job = await self.storage.jobs.get(queue, id)
        assert job is not None
        return job

    async def runs_of(self, id: str) -> list[Run]:  # noqa: A002
        """List the runs of a job, in the order of their starts."""
        page = await self.storage.runs.query(job_id=id)
        return sorted(page.items, key=lambda run: run.id)

    async def dead_letter(self, id: str = "a", data: Any = None) -> Job:  # noqa: A002
        """Make a dead letter."""
        await self.storage.jobs.add("q", data, id=id, max_attempts=1)
        return await self.storage.jobs.fail(await self.claim(), error="boom")

    async def lapsed_claim(self, id: str = "a", **options: Any) -> Claim:  # noqa: A002
        """Add and claim a job, and let the lease lapse."""
        await self.storage.jobs.add("q", {"n": 1}, id=id, **options)
        claim = await self.claim(lease_for=LAPSE, worker="w1")
        await self.elapse(LAPSE + 0.2)
        return claim

    async def check_counts(self, queue: str = "q") -> dict[str, int]:
        """Counts and lists must agree; gives what is not zero."""
        counts = await self.storage.jobs.counts(queue)
        for status, count in counts.items():
            if status == "failed":
                found = len(await self.storage.dead_letters.query(queue, limit=10_000))
                assert count in {0, found}
                continue
            page = await self.storage.jobs.query(queue, status=status, limit=10_000)
            assert count == len(page), status
        return {status: count for status, count in counts.items() if count}

    # --- adding --------------------------------------------------------------------------

    async def test_an_added_job_is_durable_and_claimable(self) -> None:
        """It says what was asked, and has no run yet."""
        job = await self.storage.jobs.add(
            "q",
            {"to": "a@x.com"},
            priority=3,
            max_attempts=5,
            backoff=Backoff.exponential(2.0, cap=60.0),
            tags=["b", "a"],
            correlation_id="c-1",
        )
        read = await self.job(job.id)

        assert (False, True) == (job.duplicate, job.published)
        assert job == read
        assert ("waiting", "q", {"to": "a@x.com"}) == (read.status, read.queue_name, read.data)
        assert (0, 5, 3) == (read.attempt_made, read.max_attempts, read.priority)
        assert (["b", "a"], "c-1", None) == (read.tags, read.correlation_id, read.run_at)
        assert [] == await self.runs_of(job.id)
        assert {"waiting": 1} == await self.check_counts()
        assert job.id == (await self.claim()).job.id

    async def test_an_id_is_added_once(self) -> None:
        """In every state of the job, the second add gives the first job."""
        states = ("waiting", "delayed", "active", "completed", "cancelled")
        for number, state in enumerate(states):
            queue = f"q{number}"
            delay = 60.0 if state == "delayed" else None
            await self.storage.jobs.add(queue, {"n": 1}, id="a", delay=delay)
            if state in {"active", "completed"}:
                claim = await self.claim(queue)
                if state == "completed":
                    await self.storage.jobs.complete(claim)
            elif state == "cancelled":
                assert await self.storage.jobs.cancel(queue, "a")
            again = await self.storage.jobs.add(queue, {"n": 2}, id="a", priority=-5)
            assert (True, state, {"n": 1}, 0) == (
                again.duplicate, again.status, again.data, again.priority,
            )  # fmt: skip
            assert 1 == sum((await self.check_counts(queue)).values())
            assert await self.idle(queue) is (state != "waiting")

    async def test_ids_that_are_made_sort_by_time(self) -> None:
        """And no two are the same, also among concurrent adds."""
        ids = [(await self.storage.jobs.add("q", n)).id for n in range(20)]
        assert sorted(set(ids)) == ids
        jobs = await gather(self.storage.jobs.add("q", n) for n in range(50))

        assert 50 == len({job.id for job in jobs})
        assert 70 == (await self.storage.jobs.counts("q"))["waiting"]

    async def test_a_batch_is_added_in_order(self) -> None:
        """Payloads and specs, with the defaults of the batch."""
        jobs = await self.storage.jobs.add_many(
            "q",
            [
                {"n": 0},
                JobSpec({"n": 1}, id="x", priority=-1),
                [2],
                JobSpec({"n": 3}, id="x"),
                JobSpec({"n": 4}, delay=60.0, max_attempts=1),
            ],
            priority=5,
            max_attempts=7,
            tags=["t"],
        )

        assert [False, False, False, True, False] == [job.duplicate for job in jobs]
        assert [5, -1, 5, -1, 5] == [job.priority for job in jobs]
        assert [7, 7, 7, 7, 1] == [job.max_attempts for job in jobs]
        claims = await self.storage.jobs.claim("q", limit=10)
        assert [{"n": 1}, {"n": 0}, [2]] == [claim.job.data for claim in claims]
        assert {"active": 3, "delayed": 1} == await self.check_counts()

    async def test_a_large_batch_is_added_whole(self) -> None:
        """The count is exact and the order is kept."""
        jobs = await self.storage.jobs.add_many("q", ({"n": n} for n in range(2300)))

        assert 2300 == len({job.id for job in jobs})
        assert 2300 == (await self.storage.jobs.counts("q"))["waiting"]
        claims = await self.storage.jobs.claim("q", limit=2300)
        assert [*range(2300)] == [claim.job.data["n"] for claim in claims]

    async def test_a_batch_with_a_bad_payload_adds_nothing(self) -> None:
        """All are checked before the first is written."""
        with pytest.raises(InvalidValueError, match=r"\[1\]"):
            await self.storage.jobs.add_many("q", [{"n": 1}, {"n": float("nan")}, {"n": 2}])

        assert {} == await self.check_counts()
        assert await self.idle()

    async def test_a_delayed_job_waits(self) -> None:
        """A delay and an instant hold it back; zero is at once."""
        # Longer than the calls before the first claim take on a busy machine.
        delay = 0.4 if self.manual_clock else 3.0
        now = await self.storage.durable.now()
        await self.storage.jobs.add("q", 1, id="delay", delay=delay)
        await self.storage.jobs.add("q", 2, id="run_at", run_at=now + round(delay * 1000))
        await self.storage.jobs.add("q", 3, id="zero", delay=0.0)
        await self.storage.jobs.add("q", 4, id="past", run_at=now - 60_000)
        await self.storage.jobs.add("q", 5, id="late", delay=3600.0)
        assert {"delayed": 3, "waiting": 2} == await self.check_counts()
        first = await self.storage.jobs.claim("q", limit=10)
        assert ["zero", "past"] == [claim.job.id for claim in first]
        await self.elapse(delay + 0.4)

        second = await self.storage.jobs.claim("q", limit=10)
        assert ["delay", "run_at"] == [claim.job.id for claim in second]

    async def test_priority_decides_then_age(self) -> None:
        """A lower number is sooner, also after a retry."""
        for id, priority in (("c", 5), ("b", 0), ("d", 5), ("a", -5)):  # noqa: A001
            await self.storage.jobs.add("q", None, id=id, priority=priority)
        claim = await self.claim()
        await self.storage.jobs.fail(claim, "again", retry_in=0.0)
        order = [claim.job.id for claim in await self.storage.jobs.claim("q", limit=10)]

        assert ["a", "b", "c", "d"] == order

    @pytest.mark.parametrize("number", range(len(BAD_VALUES)))
    async def test_a_payload_that_is_not_portable_is_refused(self, number: int) -> None:
        """At the call, and nothing is written."""
        with pytest.raises(InvalidValueError):
            await self.storage.jobs.add("q", {"deep": [BAD_VALUES[number]]})

        assert {} == await self.check_counts()

    @pytest.mark.parametrize("name", BAD_NAMES[:-4], ids=repr)
    async def test_a_bad_queue_or_id_is_refused(self, name: Any) -> None:
        """In every call."""
        storage = self.storage
        for call in (
            lambda: storage.jobs.add(name, 1),
            lambda: storage.jobs.add("q", 1, id=name),
            lambda: storage.jobs.claim(name),
            lambda: storage.jobs.get(name, "a"),
            lambda: storage.jobs.cancel("q", name),
            lambda: storage.jobs.counts(name),
            lambda: storage.jobs.pause(name),
            lambda: storage.dead_letters.requeue("q", name),
            lambda: storage.runs.start(name),
        ):
            with pytest.raises(InvalidValueError):
                await call()

    @pytest.mark.parametrize(
        "options",
        [
            {"delay": -1},
            {"delay": float("nan")},
            {"delay": 1.0, "run_at": 5},
            {"run_at": -1},
            {"run_at": 1.5},
            {"priority": 2**31},
            {"priority": 1.5},
            {"priority": True},
            {"max_attempts": 0},
            {"max_attempts": 1001},
            {"max_attempts": True},
            {"tags": "text"},
            {"tags": [1]},
        ],
        ids=str,
    )
    async def test_a_bad_option_of_a_job_is_refused(self, options: dict[str, Any]) -> None:
        """Never clamped, never ignored; nothing is written."""
        with pytest.raises(InvalidValueError):
            await self.storage.jobs.add("q", 1, **options)

        assert {} == await self.check_counts()

    # --- claiming and settling ---------------------------------------------------------------

    async def test_a_claimed_job_is_active_and_its_run_has_started(self) -> None:
        """The claim shows the attempt, the lease and the run."""
        await self.storage.jobs.add("q", {"n": 1}, id="a")
        claim = await self.claim(worker="w1", lease_for=30.0)
        job = await self.job("a")

        assert ("active", 1, "w1") == (job.status, job.attempt_made, job.worker_id)
        assert (claim.lease.token, claim.run.id) == (job.lease_token, job.run_id)
        assert (30_000, "active", {"n": 1}) == (job.lease_ms, claim.job.status, claim.job.data)
        run = await self.storage.runs.get(claim.run.id)
        assert run is not None
        assert ("running", "q", "queue", 1, "a") == (
            run.status, run.name, run.module, run.attempts, run.job_id,
        )  # fmt: skip
        assert {"n": 1} == run.input
        assert {"active": 1} == await self.check_counts()
        assert await self.idle()

    async def test_a_completed_job_is_done(self) -> None:
        """Its output is kept, its run is completed, and it never comes back."""
        await self.storage.jobs.add("q", {"n": 1}, id="a")
        claim = await self.claim()
        claim.run.log("info", "half way", step=1)
        claim.run.progress(50, "half")
        await self.storage.jobs.complete(claim, output={"delivered": True})
        job = await self.job("a")
        [run] = await self.runs_of("a")

        assert ("completed", {"delivered": True}) == (job.status, job.return_value)
        assert job.finished_at is not None
        assert ("completed", {"n": 1}, {"delivered": True}, 1, None, 100) == (
            run.status, run.input, run.output, run.attempts, run.error, run.progress_percent,
        )  # fmt: skip
        assert ["half way"] == [entry["msg"] for entry in run.logs]
        assert run.ended_at is not None
        assert run.started_at is not None
        assert run.ended_at - run.started_at == run.duration_ms
        assert (self.scope.project, self.scope.environment) == (run.app, run.environment)
        await self.elapse(0.1)
        assert await self.idle()
        assert {"completed": 1} == await self.check_counts()
        assert [False] == list(await self.storage.hot.broker.contains("q", ["a"]))

    async def test_a_job_that_fails_twice_has_three_runs(self) -> None:
        """One per attempt, each with its own end."""
        await self.storage.jobs.add("q", {"n": 1}, id="send-email-42")
        for attempt in (1, 2):
            claim = await self.claim()
            assert attempt == claim.attempt == claim.job.attempt_made
            job = await self.storage.jobs.fail(claim, f"SMTP 50{attempt}", retry_in=0.0)
            assert ("delayed", attempt) == (job.status, job.attempt_made)
        await self.storage.jobs.complete(await self.claim(), {"ok": True})
        runs = await self.runs_of("send-email-42")

        assert [1, 2, 3] == [run.attempts for run in runs]
        assert ["failed", "failed", "completed"] == [run.status for run in runs]
        assert ["SMTP 501", "SMTP 502", None] == [run.error for run in runs]
        assert [{"n": 1}] * 3 == [run.input for run in runs]
        assert 3 == len({run.id for run in runs})
        assert ("completed", 3) == (
            (await self.job("send-email-42")).status,
            (await self.job("send-email-42")).attempt_made,
        )

    async def test_a_failed_job_waits_for_its_retry(self) -> None:
        """As told, or by the backoff of the job; and it is not run before."""
        await self.storage.jobs.add("q", 1, id="told")
        await self.storage.jobs.fail(await self.claim(), "x", retry_in=60.0)
        await self.storage.jobs.add("q", 1, id="backoff", backoff=Backoff.exponential(50.0))
        now = await self.storage.durable.now()
        job = await self.storage.jobs.fail(await self.claim(), "x")

        assert job.run_at is not None
        assert now + 20_000 <= job.run_at <= now + 120_000
        assert await self.idle()
        assert {"delayed": 2} == await self.check_counts()
        await self.storage.jobs.add("q", 1, id="soon")
        await self.storage.jobs.fail(await self.claim(), "x", retry_in=0.3)
        await self.elapse(0.6)
        assert "soon" == (await self.claim()).job.id

    async def test_the_last_failure_makes_a_dead_letter(self) -> None:
        """With its reason; the job is gone and nothing can claim it."""
        dead = await self.dead_letter("a", {"n": 1})
        [letter] = await self.storage.dead_letters.query("q")

        assert letter == dead == await self.storage.dead_letters.get("q", "a")
        assert ("failed", {"n": 1}, "boom", 1) == (
            letter.status, letter.data, letter.error, letter.attempt_made,
        )  # fmt: skip
        assert letter.dead_at is not None
        assert letter.reason
        assert await self.storage.jobs.get("q", "a") is None
        assert await self.idle()
        assert ["failed"] == [run.status for run in await self.runs_of("a")]
        assert [] == list(await self.storage.hot.broker.queues())

    async def test_a_failure_without_retry_is_the_last(self) -> None:
        """However many attempts are left."""
        await self.storage.jobs.add("q", 1, id="a", max_attempts=10)
        await self.storage.jobs.fail(await self.claim(), "poison", retry=False)

        assert 1 == len(await self.storage.dead_letters.query("q"))
        assert await self.storage.jobs.get("q", "a") is None

    @pytest.mark.parametrize("bad", [-1, float("nan"), float("inf"), 1e30, "5"], ids=repr)
    async def test_a_bad_retry_time_loses_nothing(self, bad: Any) -> None:
        """It is refused, and the claim is still good."""
        await self.storage.jobs.add("q", 1, id="a")
        claim = await self.claim()
        with pytest.raises(InvalidValueError):
            await self.storage.jobs.fail(claim, "x", retry_in=bad)
        await self.storage.jobs.complete(claim)

        assert "completed" == (await self.job("a")).status

    async def test_what_is_no_claim_is_refused_before_anything_is_done(self) -> None:
        """By every call that takes claims, with the place of the first that is none."""
        jobs = self.storage.jobs
        await jobs.add("q", 1, id="a")
        claim = await self.claim()
        odd: Any = "x"
        for call in (
            lambda: jobs.complete(odd),
            lambda: jobs.fail(odd, "x"),
            lambda: jobs.release(odd),
            lambda: jobs.renew([claim, odd]),
            lambda: jobs.renew(odd),
            lambda: jobs.complete_many([(claim, None), odd]),
            lambda: jobs.complete_many([(claim, None), (odd, None)]),
            lambda: jobs.complete_many([(claim, None), claim]),  # type: ignore[list-item]  # on purpose
        ):
            with pytest.raises(InvalidValueError, match=r"^(claim|claims|pairs)\b"):
                await call()
        with pytest.raises(InvalidValueError):
            async with jobs.keep([odd]):
                pass
        assert "active" == (await self.job("a")).status
        await jobs.complete(claim)

    async def test_a_released_job_costs_no_attempt(self) -> None:
        """It is waiting again; its run is cancelled, not failed."""
        await self.storage.jobs.add("q", 1, id="a", max_attempts=1)
        for _ in range(5):
            claim = await self.claim()
            assert 1 == claim.attempt
            await self.storage.jobs.release(claim)
        job = await self.job("a")
        assert ("waiting", 0) == (job.status, job.attempt_made)
        await self.storage.jobs.release(await self.claim(), delay=60.0)

        assert "delayed" == (await self.job("a")).status
        assert await self.idle()
        assert ["cancelled"] * 6 == [run.status for run in await self.runs_of("a")]

    async def test_completing_again_changes_nothing(self) -> None:
        """The same claim may repeat itself; another end is refused."""
        await self.storage.jobs.add("q", 1, id="a")
        claim = await self.claim()
        await self.storage.jobs.complete(claim, {"n": 1})
        await self.storage.jobs.complete(claim, {"n": 2})
        with pytest.raises(LeaseLostError):
            await self.storage.jobs.fail(claim, "no")
        with pytest.raises(LeaseLostError):
            await self.storage.jobs.release(claim)

        assert ("completed", {"n": 1}) == (
            (await self.job("a")).status,
            (await self.job("a")).return_value,
        )
        assert 1 == len(await self.runs_of("a"))

    async def test_many_are_completed_in_one_call(self) -> None:
        """The answers are in order, lost leases among them."""
        await self.storage.jobs.add_many("q", range(5))
        claims = await self.storage.jobs.claim("q", limit=5)
        await self.storage.jobs.cancel("q", claims[2].job.id)
        answers = await self.storage.jobs.complete_many(
            [(claim, {"n": number}) for number, claim in enumerate(claims)]
        )

        assert [True, True, False, True, True] == list(answers)
        assert {"completed": 4, "cancelled": 1} == await self.check_counts()

    async def test_concurrent_workers_share_no_job(self) -> None:
        """Every job runs once."""
        await self.storage.jobs.add_many("q", range(120))

        async def work() -> list[int]:
            done: list[int] = []
            while claims := await self.storage.jobs.claim("q", limit=7):
                done += [claim.job.data for claim in claims]
                await gather(self.storage.jobs.complete(claim) for claim in claims)
            return done

        done = [number for part in await gather(work() for _ in range(6)) for number in part]

        assert [*range(120)] == sorted(done)
        assert {"completed": 120} == await self.check_counts()

    async def test_a_claim_waits_for_a_job(self) -> None:
        """It is woken by adding, without polling; and gives up in time."""
        task = asyncio.ensure_future(self.storage.jobs.claim("q", wait=20.0))
        await self.settle()
        await self.storage.jobs.add("q", 1, id="a")

        assert ["a"] == [claim.job.id for claim in await asyncio.wait_for(task, 10)]
        task = asyncio.ensure_future(self.storage.jobs.claim("q", wait=0.1))
        await self.settle()
        await self.elapse(0.3)
        assert [] == await asyncio.wait_for(task, 10)

    async def test_a_cancelled_claim_loses_no_job(self) -> None:
        """And costs no attempt."""
        await self.storage.jobs.add_many("q", [JobSpec(n, max_attempts=1) for n in range(20)])
        for steps in range(40):
            task = asyncio.ensure_future(self.storage.jobs.claim("q", lease_for=300.0))
            for _ in range(steps % 10):
                await asyncio.sleep(0)
            task.cancel()
            for claim in (await asyncio.gather(task, return_exceptions=True))[:1]:
                if isinstance(claim, list):
                    for one in claim:
                        await self.storage.jobs.release(one)
        # Each is given back behind the caller's back, not by a lease that lapses.
        claims: list[Claim] = []
        async with asyncio.timeout(60):
            while len(claims) < 20:
                await self.settle()
                claims += await self.storage.jobs.claim("q", limit=100, lease_for=300.0)

        assert [*range(20)] == sorted(claim.job.data for claim in claims)

    # --- leases --------------------------------------------------------------------------

    async def test_a_renewed_lease_is_kept(self) -> None:
        """A long job is not run twice."""
        await self.storage.jobs.add("q", 1, id="a")
        claim = await self.claim(lease_for=1.5)
        assert [True] == await self.storage.jobs.renew([claim], lease_for=30.0)
        await self.elapse(1.7)

        assert await self.idle()
        await self.storage.jobs.complete(claim)

    async def test_a_lapsed_job_is_taken_over(self) -> None:
        """With a larger token and another attempt; the lost run is closed."""
        old = await self.lapsed_claim()
        async with self.open() as other:
            [new] = await other.jobs.claim("q", worker="w2")
            assert (2, "w2") == (new.attempt, new.lease.owner)
            assert new.lease.token > old.lease.token
            await other.jobs.complete(new)
            await other.runs.flush()
        runs = await self.runs_of("a")

        assert ["failed", "completed"] == [run.status for run in runs]
        assert "lapsed" in (runs[0].error or "")
        assert "completed" == (await self.job("a")).status

    async def test_an_end_after_the_lapse_leaves_nothing_in_the_broker(self) -> None:
        """Where nobody took over, the late end counts, and its id does not stay ready."""
        await self.storage.jobs.add_many("q", [1, 2, 3])
        claims = await self.storage.jobs.claim("q", limit=3, lease_for=LAPSE)
        await self.elapse(LAPSE + 0.2)
        assert 3 == len(await self.storage.hot.broker.reap("q", limit=10))
        await self.storage.jobs.complete(claims[0])
        assert [True] == await self.storage.jobs.complete_many([(claims[1], None)])
        await self.storage.jobs.fail(claims[2], "broke", retry=False)

        counts = await self.storage.hot.broker.counts("q")
        assert (0, 0, 0) == (counts.ready, counts.delayed, counts.leased)

    @pytest.mark.parametrize("how", ["complete", "fail", "release", "renew"])
    async def test_a_stale_worker_changes_nothing(self, how: str) -> None:
        """Whatever it reports after someone took over is refused."""
        old = await self.lapsed_claim()
        async with self.open() as other:
            [new] = await other.jobs.claim("q", worker="w2")
            before = await self.job("a")
            if how == "complete":
                with pytest.raises(LeaseLostError):
                    await self.storage.jobs.complete(old, "stale")
            elif how == "fail":
                with pytest.raises(LeaseLostError):
                    await self.storage.jobs.fail(old, "stale")
            elif how == "release":
                with pytest.raises(LeaseLostError):
                    await self.storage.jobs.release(old)
            else:
                assert [False] == await self.storage.jobs.renew([old], lease_for=30.0)
            assert before == await self.job("a")
            await other.jobs.complete(new, "fresh")

        assert ("completed", "fresh") == (
            (await self.job("a")).status,
            (await self.job("a")).return_value,
        )

    async def test_there_is_one_end_per_attempt(self) -> None:
        """Two who hold the same claim, many times at once: one transition."""
        await self.storage.jobs.add("q", 1, id="a", max_attempts=1)
        claim = await self.claim()
        twin = Claim(claim.record, claim.lease, claim.run, claim.attempt, claim.deadline)
        results = await asyncio.gather(
            *(self.storage.jobs.fail(c, "x") for c in (claim, twin)),
            *(self.storage.jobs.complete(c, "y") for c in (claim, twin)),
            return_exceptions=True,
        )
        refused = [result for result in results if isinstance(result, LeaseLostError)]
        jobs = await self.check_counts()
        letters = len(await self.storage.dead_letters.query("q"))

        assert 2 <= len(refused) <= 3, results
        assert 1 == letters + jobs.get("completed", 0)

    @pytest.mark.parametrize("finder", ["claim", "reap"])
    async def test_a_lapse_of_the_last_attempt_makes_a_dead_letter(self, finder: str) -> None:
        """One attempt means at most once, whoever finds the lapse."""
        await self.lapsed_claim(max_attempts=1)
        async with self.open() as other:
            if finder == "claim":
                assert await self.idle(storage=other)
            else:
                await other.maintenance.reap()
            assert await self.idle(storage=other)
            [letter] = await other.dead_letters.query("q")

            assert "lapsed" in (letter.reason or "")
            assert await other.jobs.get("q", "a") is None
            page = await other.runs.query(job_id="a")
            assert ["failed"] == [run.status for run in page.items if run.status != "running"]

    async def test_reaping_returns_lapsed_jobs(self) -> None:
        """Also on a paused queue, which stays paused."""
        await self.lapsed_claim()
        await self.storage.jobs.pause("q")

        assert 1 == await self.storage.maintenance.reap()
        assert 0 == await self.storage.maintenance.reap()
        assert await self.idle()
        await self.storage.jobs.resume("q")
        assert 2 == (await self.claim()).attempt

    async def test_a_worker_name_that_returns_owns_nothing(self) -> None:
        """Ownership is the token, not the name of the worker."""
        old = await self.lapsed_claim()
        new = await self.claim(worker="w1")

        assert new.lease.token > old.lease.token
        with pytest.raises(LeaseLostError):
            await self.storage.jobs.complete(old)
        await self.storage.jobs.complete(new)

    # --- cancel --------------------------------------------------------------------------

    @pytest.mark.parametrize("state", ["waiting", "delayed", "active", "paused"])
    async def test_a_cancelled_job_never_runs(self, state: str) -> None:
        """Whatever it was doing; cancelling again changes nothing."""
        delay = 0.2 if state == "delayed" else None
        await self.storage.jobs.add("q", 1, id="a", delay=delay)
        claim = await self.claim() if state == "active" else None
        if state == "paused":
            await self.storage.jobs.pause("q")

        assert await self.storage.jobs.cancel("q", "a") is True
        assert await self.storage.jobs.cancel("q", "a") is True
        await self.storage.jobs.resume("q")
        await self.elapse(0.4)
        assert await self.idle()
        await self.storage.maintenance.rebuild_hot()
        assert await self.idle()
        assert "cancelled" == (await self.job("a")).status
        if claim is not None:
            with pytest.raises(LeaseLostError):
                await self.storage.jobs.complete(claim)
            assert ["cancelled"] == [run.status for run in await self.runs_of("a")]
        assert {"cancelled": 1} == await self.check_counts()

    async def test_what_has_ended_cannot_be_cancelled(self) -> None:
        """Completed, dead and unknown jobs stay what they are."""
        await self.storage.jobs.add("q", 1, id="done")
        await self.storage.jobs.complete(await self.claim())
        await self.dead_letter("dead")

        assert await self.storage.jobs.cancel("q", "done") is False
        assert await self.storage.jobs.cancel("q", "dead") is False
        assert await self.storage.jobs.cancel("q", "unknown") is False
        assert "completed" == (await self.job("done")).status

    async def test_a_cancel_reaches_the_worker(self) -> None:
        """In another storage, while it works."""
        await self.storage.jobs.add("q", 1, id="a")
        claim = await self.claim()
        await self.settle()
        async with self.open() as other:
            assert await other.jobs.cancel("q", "a")
            await asyncio.wait_for(claim.wait_cancelled(), 10)

        assert claim.cancelled

    async def test_a_cancelled_job_stays_cancelled_over_a_lapse(self) -> None:
        """A dead worker does not bring it back."""
        await self.lapsed_claim()
        await self.storage.jobs.cancel("q", "a")
        await self.storage.maintenance.run_once()

        assert await self.idle()
        assert "cancelled" == (await self.job("a")).status

    # --- dead letters ------------------------------------------------------------------

    async def test_a_requeued_job_starts_afresh(self) -> None:
        """With all its attempts and none of its old state."""
        await self.dead_letter("a", {"n": 1})
        job = await self.storage.dead_letters.requeue("q", "a")

        assert job is not None
        assert ("waiting", 0, {"n": 1}, None, None) == (
            job.status, job.attempt_made, job.data, job.error, job.dead_at,
        )  # fmt: skip
        assert job == attrs.evolve(await self.job("a"), published=job.published)
        assert 0 == len(await self.storage.dead_letters.query("q"))
        claim = await self.claim()
        assert 1 == claim.attempt
        await self.storage.jobs.complete(claim)
        assert ["failed", "completed"] == [run.status for run in await self.runs_of("a")]

    async def test_of_many_who_requeue_one_gets_the_job(self) -> None:
        """The others get None; there is one copy."""
        await self.dead_letter()
        got = await gather(self.storage.dead_letters.requeue("q", "a") for _ in range(10))

        assert 1 == sum(job is not None for job in got)
        assert {"waiting": 1} == await self.check_counts()
        assert await self.storage.dead_letters.requeue("q", "unknown") is None

    async def test_an_id_that_lives_again_is_not_overwritten(self) -> None:
        """Requeueing a dead letter whose id was added anew is a conflict."""
        await self.dead_letter("a", {"old": 1})
        await self.storage.jobs.add("q", {"new": 1}, id="a")
        with pytest.raises(ConflictError):
            await self.storage.dead_letters.requeue("q", "a")

        assert {"new": 1} == (await self.job("a")).data
        assert 1 == len(await self.storage.dead_letters.query("q"))

    async def test_a_dead_letter_can_be_thrown_away(self) -> None:
        """Once."""
        await self.dead_letter()

        assert await self.storage.dead_letters.delete("q", "a") is True
        assert await self.storage.dead_letters.delete("q", "a") is False
        assert {} == await self.storage.dead_letters.counts()

    async def test_dead_letters_are_counted_by_queue(self) -> None:
        """Those that have some."""
        for queue in ("p", "q", "q"):
            await self.storage.jobs.add(queue, 1, max_attempts=1)
            await self.storage.jobs.fail(await self.claim(queue), "x")

        assert {"p": 1, "q": 2} == await self.storage.dead_letters.counts()

    # --- pause ------------------------------------------------------------------------

    async def test_a_paused_queue_stays_paused(self) -> None:
        """Over reopening and over the loss of the hot plane."""
        await self.storage.jobs.add("q", 1, id="a")
        control = await self.storage.jobs.pause("q")
        assert control.paused
        assert await self.idle()
        await self.storage.jobs.add("q", 2, id="b")
        async with self.open() as other:
            assert await self.idle(storage=other)
            await self.lose_hot(other.hot)
            await other.maintenance.rebuild_hot()
            assert await self.idle(storage=other)
        assert {"waiting": 2} == await self.check_counts()
        control = await self.storage.jobs.resume("q")

        assert not control.paused
        claims = await self.storage.jobs.claim("q", limit=5)
        assert {"a", "b"} == {claim.job.id for claim in claims}

    async def test_pausing_touches_no_work_in_flight(self) -> None:
        """Who has a job may finish it."""
        await self.storage.jobs.add("q", 1, id="a")
        claim = await self.claim()
        await self.storage.jobs.pause("q")
        await self.storage.jobs.complete(claim)

        assert "completed" == (await self.job("a")).status

    # --- looking -----------------------------------------------------------------------

    async def test_counts_and_lists_agree(self) -> None:
        """In a queue with jobs in every state."""
        await self.storage.jobs.add_many("q", range(10))
        claims = await self.storage.jobs.claim("q", limit=7)
        await self.storage.jobs.complete(claims[0])
        await self.storage.jobs.fail(claims[1], "x", retry_in=60)
        await self.storage.jobs.fail(claims[2], "x", retry=False)
        await self.storage.jobs.release(claims[3])
        await self.storage.jobs.cancel("q", claims[4].job.id)
        await self.storage.jobs.cancel("q", claims[3].job.id)
        await self.storage.jobs.add("q", 1, delay=60.0)

        expected = {"waiting": 3, "delayed": 2, "active": 2, "completed": 1, "cancelled": 2}
        counts = await self.check_counts()
        counts.pop("failed", None)
        assert expected == counts
        broker = await self.storage.hot.broker.counts("q")
        assert (3, 2, 2) == (broker.ready, broker.delayed, broker.leased)

    async def test_lists_have_pages(self) -> None:
        """Each job once, by status and over all."""
        jobs = await self.storage.jobs.add_many("q", range(25))
        for status, expected in ((None, 25), ("waiting", 25), ("active", 0)):
            seen: list[str] = []
            after = None
            while True:
                page = await self.storage.jobs.query("q", status=status, limit=10, after=after)
                seen += [job.id for job in page]
                if page.next is None:
                    break
                after = page.next
            assert [job.id for job in jobs][:expected] == seen
        with pytest.raises(InvalidValueError):
            await self.storage.jobs.query("q", status="nonsense")

    async def test_every_legal_name_is_a_queue_and_an_id(self) -> None:
        """A whole life under names that have broken others."""
        for name in NAMES:
            await self.storage.jobs.add(name, {"name": name}, id=name)
        for name in NAMES:
            claim = await self.claim(name)
            assert (name, name, {"name": name}) == (
                claim.job.id, claim.job.queue_name, claim.job.data,
            )  # fmt: skip
            await self.storage.jobs.complete(claim)
            assert "completed" == (await self.job(name, name)).status
            assert await self.idle(name)

    # --- payloads -----------------------------------------------------------------------

    async def test_payloads_are_equal_wherever_they_are_read(self) -> None:
        """In the job, the claim, the run, the dead letter, after retry and requeue."""
        values = [*VALUES]
        await self.storage.jobs.add_many(
            "q", [JobSpec(v, id=f"{n:03}", max_attempts=2) for n, v in enumerate(values)]
        )
        for attempt in (1, 2):
            claims = await self.storage.jobs.claim("q", limit=200)
            assert len(values) == len(claims)
            for value, claim in zip(values, claims, strict=True):
                assert same(value, claim.job.data), repr(value)[:80]
                job = await self.storage.jobs.fail(claim, "x", retry_in=0.0)
                assert same(value, job.data), repr(value)[:80]
                assert attempt == job.attempt_made
        letters = {job.id: job for job in await self.storage.dead_letters.query("q", limit=200)}
        for number, value in enumerate(values):
            assert same(value, letters[f"{number:03}"].data), repr(value)[:80]
            requeued = await self.storage.dead_letters.requeue("q", f"{number:03}")
            assert requeued is not None
            assert same(value, requeued.data), repr(value)[:80]
            assert same(value, (await self.job(f"{number:03}")).data), repr(value)[:80]
        for claim in await self.storage.jobs.claim("q", limit=200):
            value = values[int(claim.job.id)]
            await self.storage.jobs.complete(claim, output=value)
            done = await self.job(claim.job.id)
            assert same(value, done.data), repr(value)[:80]
            assert same(value, done.return_value), repr(value)[:80]
            runs = await self.runs_of(claim.job.id)
            assert 3 == len(runs)
            assert all(same(value, run.input) for run in runs), repr(value)[:80]
            assert same(value, runs[-1].output), repr(value)[:80]

    async def test_a_payload_is_a_copy(self) -> None:
        """Changing it afterwards, on any side, changes no record."""
        data: dict[str, Any] = {"list": [1]}
        job = await self.storage.jobs.add("q", data, id="a")
        data["list"].append(2)
        (await self.job("a")).data["list"].append(3)
        claim = await self.claim()
        claim.job.data["list"].append(4)
        await self.storage.jobs.fail(claim, "x", retry_in=0.0)

        assert {"list": [1]} == (await self.job("a")).data
        assert {"list": [1]} == (await self.claim()).job.data
        assert job.id == "a"

    @pytest.mark.parametrize(
        "output", [float("nan"), b"bytes", {1: 2}, object(), "a\0", "\ud800", 2**64], ids=stable_id
    )
    async def test_an_output_that_cannot_be_stored_fails_no_job(self, output: Any) -> None:
        """A marker takes its place, and the run says so."""
        await self.storage.jobs.add("q", 1, id="a")
        await self.storage.jobs.complete(await self.claim(), output=output)
        [run] = await self.runs_of("a")

        assert "completed" == (await self.job("a")).status == run.status
        assert "__unstorable__" in run.output
        assert run.logs

    @pytest.mark.parametrize(
        "error", ["a\0b", "\ud800", ValueError("x\0"), None, "x" * 100_000, object()], ids=stable_id
    )
    async def test_an_error_is_made_portable(self, error: Any) -> None:
        """What a handler reports is never the reason that a job is lost."""
        await self.storage.jobs.add("q", 1, id="a", max_attempts=2)
        await self.storage.jobs.fail(await self.claim(), error, retry_in=0.0)
        claim = await self.claim()
        claim.run.log("info", error, extra=error)
        claim.run.progress(float("nan"), error)
        letter = await self.storage.jobs.fail(claim, error)

        assert "failed" == letter.status
        assert isinstance(letter.error, str)
        assert ["failed", "failed"] == [run.status for run in await self.runs_of("a")]

    # --- runs ---------------------------------------------------------------------------

    async def test_a_run_needs_no_job(self) -> None:
        """It is readable while it lasts, and durable when it has ended."""
        run = await self.storage.runs.start("heartbeat", module="cron", trigger="cron", input=[1])
        run.log("info", "tick")
        run.progress(50, "half")
        seen = await self.storage.runs.get(run.id)
        assert seen is not None
        assert ("running", [1], 50) == (seen.status, seen.input, seen.progress_percent)
        run.finish({"ok": True})
        await self.storage.runs.flush()
        [record] = await self.storage.durable.get("runs", [run.id])

        assert record is not None
        assert ("completed", "cron", "cron", "heartbeat", None, {"ok": True}) == tuple(
            record.value[key] for key in ("status", "module", "trigger", "name", "jobId", "output")
        )
        assert ["tick"] == [entry["msg"] for entry in record.value["logs"]]

    async def test_nothing_changes_a_run_that_has_ended(self) -> None:
        """Late reports are heard by nobody, and raise nothing."""
        run = await self.storage.runs.start("r")
        run.fail("first")
        run.finish("late")
        run.fail("late")
        run.log("info", "late")
        run.progress(10)
        await self.storage.runs.flush()
        run.log("info", "later")
        run.finish("later")
        await self.storage.runs.flush()
        seen = await self.storage.runs.get(run.id)

        assert seen is not None
        assert ("failed", "first", None) == (seen.status, seen.error, seen.output)
        assert not any("late" in entry["msg"] for entry in seen.logs)

    async def test_runs_can_be_asked_for(self) -> None:
        """By status, name, module and time; those that started last in front."""
        started = []
        for number in range(6):
            run = await self.storage.runs.start(f"n{number % 2}", module="cron")
            run.fail("x") if number % 3 == 0 else run.finish()
            started.append(run.id)
            await self.elapse(0.02)
        since = await self.storage.durable.now() + 60_000

        async def ids(**query: Any) -> list[str]:
            return [run.id for run in await self.storage.runs.query(**query)]

        assert started[::-1] == await ids()
        assert [started[3], started[0]] == await ids(status="failed")
        assert [started[5], started[3], started[1]] == await ids(name="n1")
        assert [started[3]] == await ids(name="n1", status="failed")
        assert [] == await ids(module="queue")
        assert [] == await ids(since=since)
        page = await self.storage.runs.query(limit=4)
        rest = await self.storage.runs.query(limit=4, after=page.next)
        assert started[::-1] == [run.id for run in (*page, *rest)]
        with pytest.raises(InvalidValueError):
            await self.storage.runs.query(status="nonsense")

    async def test_logs_are_capped(self) -> None:
        """With a marker, and however many lines come."""
        run = await self.storage.runs.start("chatty")
        for number in range(3000):
            run.log("info", f"line {number}")
        run.finish()
        await self.storage.runs.flush()
        seen = await self.storage.runs.get(run.id)

        assert seen is not None
        assert len(seen.logs) < 3000
        assert "line 0" == seen.logs[0]["msg"]
        assert "truncated" in seen.logs[-1]["msg"]

    async def test_closing_writes_what_has_ended(self) -> None:
        """A clean close loses no terminal state."""
        async with self.open() as other:
            ids = []
            for number in range(300):
                run = await other.runs.start("r")
                run.finish(number)
                ids.append(run.id)
        assert 0 == other.unwritten
        records = await self.storage.durable.get("runs", ids)

        assert [*range(300)] == [record and record.value["output"] for record in records]

    async def test_a_live_run_is_seen_by_others(self) -> None:
        """Within moments, with its logs; and in history when it goes on."""
        run = await self.storage.runs.start("slow", input={"n": 1})
        run.log("info", "working")
        async with self.open() as other:
            seen: Run | None = None
            for _ in range(200):
                seen = await other.runs.get(run.id)
                if seen is not None and seen.logs:
                    break
                await asyncio.sleep(0.05)
                await self.elapse(0.05)
            assert seen is not None
            assert ("running", {"n": 1}) == (seen.status, seen.input)
            assert ["working"] == [entry["msg"] for entry in seen.logs]
            run.finish()
            await self.storage.runs.flush()
            after = await other.runs.get(run.id)
            assert after is not None
            assert "completed" == after.status

    async def test_a_run_whose_worker_is_gone_is_closed(self) -> None:
        """As failed, worker lost; a living one is left alone."""
        faults = Faults()
        async with AsyncExitStack() as stack:
            # The one who dies closes last: its planes refuse everything by then.
            dying = await stack.enter_async_context(self.open(faults))
            run = await dying.runs.start("lost", input={"n": 1})
            run.log("info", "last words")
            for _ in range(200):
                if run.id in await self.storage.hot.live.active():
                    break
                await asyncio.sleep(0.05)
                await self.elapse(0.05)
            faults.down("*")
            living = await self.storage.runs.start("living")
            await self.elapse(1.5)
            async with self.open(runs={"stale_after": 1.0}) as leader:
                living.progress(1)
                for _ in range(200):
                    # It has to show life again: its writer does so far less often.
                    live = leader.hot.live
                    if living.id in await live.active() and living.id not in await live.stale(
                        older_than=0.5
                    ):
                        break
                    await asyncio.sleep(0.05)
                await leader.maintenance.close_stale_runs()
                seen = await leader.runs.get(run.id)
                assert seen is not None
                assert ("failed", {"n": 1}) == (seen.status, seen.input)
                assert "worker lost" in (seen.error or "")
                assert ["last words"] == [entry["msg"] for entry in seen.logs]
                assert run.id not in await leader.hot.live.active()
                alive = await leader.runs.get(living.id)
                assert alive is not None
                assert "running" == alive.status
            living.finish()

    # --- planes that fail ----------------------------------------------------------------

    async def test_adding_works_without_the_hot_plane(self) -> None:
        """The job is safe and says that it is not claimable yet; reconcile mends it."""
        self.faults.down("hot.*")
        job = await self.storage.jobs.add("q", 1, id="a")
        many = await self.storage.jobs.add_many("q", [2, 3])
        assert [False] * 3 == [job.published, *(one.published for one in many)]
        assert "waiting" == (await self.job("a")).status
        self.faults.heal()
        assert await self.idle()

        assert 3 == await self.storage.maintenance.reconcile()
        assert 0 == await self.storage.maintenance.reconcile()
        assert 3 == len(await self.storage.jobs.claim("q", limit=5))

    async def test_ending_a_job_works_without_the_hot_plane(self) -> None:
        """Its lease lapses, and nobody runs it again."""
        await self.storage.jobs.add_many("q", [JobSpec(1, id="a"), JobSpec(2, id="b")])
        claims = await self.storage.jobs.claim("q", limit=2, lease_for=1.0)
        self.faults.down("hot.broker.*")
        await self.storage.jobs.complete(claims[0])
        await self.storage.jobs.fail(claims[1], "x", retry=False)
        self.faults.heal()
        await self.elapse(1.3)

        assert await self.idle()
        assert [] == list(await self.storage.hot.broker.queues())
        assert "completed" == (await self.job("a")).status
        assert 1 == len(await self.storage.dead_letters.query("q"))

    async def test_a_retry_is_kept_when_the_hot_plane_fails(self) -> None:
        """It is not run before its time, and is run then."""
        await self.storage.jobs.add("q", 1, id="a")
        claim = await self.claim(lease_for=0.5)
        self.faults.down("hot.broker.nack")
        job = await self.storage.jobs.fail(claim, "x", retry_in=1.5)
        assert not job.published
        self.faults.heal()
        await self.elapse(0.8)
        assert await self.idle()
        await self.elapse(1.2)

        assert 2 == (await self.claim()).attempt

    async def test_nothing_runs_that_the_durable_plane_did_not_confirm(self) -> None:
        """A claim fails with a typed error, and the job is not lost."""
        await self.storage.jobs.add("q", 1, id="a", max_attempts=1)
        self.faults.down("durable.write")
        with pytest.raises(UnavailableError):
            await self.storage.jobs.claim("q", lease_for=LAPSE)
        with pytest.raises(UnavailableError):
            await self.storage.jobs.add("q", 2, id="b")
        self.faults.heal()
        await self.elapse(LAPSE + 0.2)

        assert 1 == (await self.claim()).attempt
        assert await self.storage.jobs.get("q", "b") is None

    @pytest.mark.parametrize("step", ["add", "complete", "fail", "bury", "release", "cancel"])
    async def test_a_lost_answer_is_understood(self, step: str) -> None:
        """The write took place; repeating it neither fails nor does it twice."""
        jobs = self.storage.jobs
        if step != "add":
            await jobs.add("q", 1, id="a", max_attempts=1 if step == "bury" else 3)
        claim = None if step in {"add", "cancel"} else await self.claim()
        self.faults.fail("durable.write", when="after")
        if step == "add":
            job = await jobs.add("q", 1, id="a")
            assert not job.duplicate
        elif step == "cancel":
            assert await jobs.cancel("q", "a")
        elif claim is not None:
            if step == "complete":
                await jobs.complete(claim, "out")
            elif step == "release":
                await jobs.release(claim)
            else:
                await jobs.fail(claim, "x", retry_in=0.0)
        self.faults.heal()
        expected = {
            "add": {"waiting": 1},
            "complete": {"completed": 1},
            "fail": {"delayed": 1},
            "bury": {},
            "release": {"waiting": 1},
            "cancel": {"cancelled": 1},
        }[step]
        counts = await self.check_counts()
        counts.pop("failed", None)

        assert expected == counts
        assert (step == "bury") == (1 == len(await self.storage.dead_letters.query("q")))
        assert await self.idle() is (step not in {"add", "fail", "release"})

    async def test_a_result_waits_for_the_durable_plane(self) -> None:
        """A handler that finished is not run again because its end was late."""
        await self.storage.jobs.add("q", 1, id="a")
        claim = await self.claim()
        self.faults.fail("durable.write", times=6)
        await asyncio.wait_for(self.storage.jobs.complete(claim, "out"), 30)

        assert "completed" == (await self.job("a")).status

    # --- recovery -----------------------------------------------------------------------

    async def test_a_lost_hot_plane_is_rebuilt(self) -> None:
        """Order, priority, delay, pause and leases with their tokens come back."""
        jobs = self.storage.jobs
        await jobs.add("q", 1, id="active")
        claim = await self.claim()
        await jobs.add_many("q", [JobSpec(n, id=f"w{n}") for n in range(5)])
        await jobs.add("q", 1, id="urgent", priority=-1)
        await jobs.add("q", 1, id="later", delay=60.0)
        await jobs.add("done", 1, id="done")
        await jobs.complete(await self.claim("done"))
        await jobs.pause("p")
        await jobs.add("p", 1, id="paused")
        await self.lose_hot(self.storage.hot)

        assert 9 == await self.storage.maintenance.rebuild_hot()
        assert 0 == await self.storage.maintenance.rebuild_hot()
        broker = await self.storage.hot.broker.counts("q")
        assert (6, 1, 1) == (broker.ready, broker.delayed, broker.leased)
        assert [True] == await jobs.renew([claim], lease_for=30.0)
        claims = await jobs.claim("q", limit=10)
        assert ["urgent", "w0", "w1", "w2", "w3", "w4"] == [one.job.id for one in claims]
        assert all(one.lease.token > claim.lease.token for one in claims)
        assert await self.idle("p")
        assert await self.idle("done")
        await jobs.complete(claim)

    async def test_a_storage_that_finds_the_hot_plane_lost_rebuilds_it(self) -> None:
        """Opening is enough."""
        await self.storage.jobs.add_many("q", range(3))
        await self.lose_hot(self.storage.hot)
        async with self.open() as other:
            assert 3 == len(await other.jobs.claim("q", limit=5))

    async def test_a_dead_workers_lease_lapses_after_a_rebuild(self) -> None:
        """It is put back for its full length, and then taken over."""
        await self.storage.jobs.add("q", 1, id="a")
        old = await self.claim(lease_for=LAPSE)
        await self.lose_hot(self.storage.hot)
        await self.storage.maintenance.rebuild_hot()
        await self.elapse(LAPSE + 0.3)
        new = await self.claim()

        assert 2 == new.attempt
        assert new.lease.token > old.lease.token

    async def test_reconcile_finds_single_losses(self) -> None:
        """Jobs that the broker forgot, of any open status."""
        await self.storage.jobs.add_many("q", [JobSpec(n, id=f"{n}") for n in range(10)])
        claim = await self.claim()
        await self.storage.jobs.add("q", 1, id="later", delay=60.0)
        await self.storage.hot.broker.remove("q", ["0", "3", "7", "later"])

        assert 4 == await self.storage.maintenance.reconcile()
        counts = await self.storage.hot.broker.counts("q")
        assert (9, 1, 1) == (counts.ready, counts.delayed, counts.leased)
        await self.storage.jobs.complete(claim)
        assert 0 == await self.storage.maintenance.reconcile()

    async def test_a_ghost_in_the_broker_is_dropped(self) -> None:
        """An id without a job is claimed by nobody and holds nobody up."""
        await self.storage.jobs.add("q", 1, id="ghost")
        await self.storage.jobs.add("q", 2, id="real")
        await self.storage.durable.prune(
            Query(namespace="queue_job:q", where=[("id", "=", "ghost")])
        )

        assert ["real"] == [c.job.id for c in await self.storage.jobs.claim("q", limit=5)]
        assert [False] == list(await self.storage.hot.broker.contains("q", ["ghost"]))

    async def test_maintenance_does_a_whole_pass(self) -> None:
        """And leaves alone what is in order."""
        await self.lapsed_claim()
        report = await self.storage.maintenance.run_once()
        assert (None, 1, 0) == (report.rebuilt, report.reaped, report.reconciled)
        assert {"active": 1} == await self.check_counts()

        report = await self.storage.maintenance.run_once()
        assert (None, 0, 0, 0) == (
            report.rebuilt, report.reaped, report.reconciled, report.pruned,
        )  # fmt: skip

    async def test_retention_takes_what_has_ended(self) -> None:
        """Never what waits; a run keeps the input of a job that is gone."""
        keep = {"completed_for": 0.4, "cancelled_for": 0.4, "dead_letters_for": 3600.0}
        async with self.open(retention=keep) as storage:
            await storage.jobs.add_many("q", [JobSpec({"n": n}, id=f"{n}") for n in range(5)])
            claims = await storage.jobs.claim("q", limit=3)
            await storage.jobs.complete(claims[0])
            await storage.jobs.fail(claims[1], "x", retry=False)
            await storage.jobs.cancel("q", "3")
            assert "completed" == getattr(await storage.jobs.get("q", "0"), "status", None)
            await self.elapse(0.7)

            assert await storage.jobs.get("q", "0") is None
            assert 2 == await storage.maintenance.prune()
            left = [job.id for job in await storage.jobs.query("q")]
            assert ["2", "4"] == left
            assert 1 == len(await storage.dead_letters.query("q"))
            page = await storage.runs.query(job_id="0")
            assert [{"n": 0}] == [run.input for run in page]
            await storage.jobs.complete(claims[2])

    async def test_retention_of_zero_deletes_at_once(self) -> None:
        """In the same write that ends the job; the id is free again."""
        async with self.open(retention={"completed_for": 0}) as storage:
            await storage.jobs.add("q", {"n": 1}, id="a")
            [claim] = await storage.jobs.claim("q")
            await storage.jobs.complete(claim)

            assert await storage.jobs.get("q", "a") is None
            again = await storage.jobs.add("q", {"n": 2}, id="a")
            assert (False, 0, {"n": 2}) == (again.duplicate, again.attempt_made, again.data)

    # --- storages -----------------------------------------------------------------------

    async def test_scopes_share_nothing(self) -> None:
        """The same queue and id in two projects are two jobs."""
        async with self.open(project=self.scope.project + ":x") as other:
            await self.storage.jobs.add("q", 1, id="a")
            await other.jobs.add("q", 2, id="a")
            await other.jobs.pause("q")
            assert 1 == (await self.claim()).job.data
            assert {} == await other.dead_letters.counts()
            assert 2 == getattr(await other.jobs.get("q", "a"), "data", None)

    async def test_a_closed_storage_refuses_every_call(self) -> None:
        """With one typed error."""
        async with self.open() as storage:
            await storage.jobs.add("q", 1, id="a")
            [claim] = await storage.jobs.claim("q")
        calls: tuple[Any, ...] = (
            lambda: storage.jobs.add("q", 1),
            lambda: storage.jobs.add_many("q", [1]),
            lambda: storage.jobs.claim("q"),
            lambda: storage.jobs.renew([claim], lease_for=30.0),
            lambda: storage.jobs.complete(claim),
            lambda: storage.jobs.fail(claim, "x"),
            lambda: storage.jobs.release(claim),
            lambda: storage.jobs.get("q", "a"),
            lambda: storage.jobs.cancel("q", "a"),
            lambda: storage.jobs.query("q"),
            lambda: storage.jobs.counts("q"),
            lambda: storage.jobs.pause("q"),
            lambda: storage.dead_letters.query("q"),
            lambda: storage.dead_letters.requeue("q", "a"),
            lambda: storage.runs.start("r"),
            lambda: storage.runs.get("r"),
            storage.runs.query,
            storage.runs.flush,
            lambda: storage.controls.get_queue("q"),
            storage.maintenance.reap,
            storage.maintenance.run_once,
        )
        for call in calls:
            with pytest.raises(ClosedError):
                await call()

    async def test_opening_and_closing_leaves_no_task_behind(self) -> None:
        """However often."""
        before = asyncio.all_tasks()
        for number in range(5):
            async with self.open() as storage:
                await storage.jobs.add("q", number)
                [claim] = await storage.jobs.claim("q")
                await storage.jobs.complete(claim)
        await self.settle()

        assert before == asyncio.all_tasks()

    async def test_a_random_life_keeps_its_books(self) -> None:
        """Hundreds of steps in random order: counts, lists and planes agree."""
        import random  # noqa: PLC0415 - only here

        dice = random.Random(20_260)
        held: list[Claim] = []
        for step in range(250):
            match dice.randrange(9):
                case 0 | 1:
                    await self.storage.jobs.add("q", step, priority=dice.randrange(3))
                case 2 | 3:
                    held += await self.storage.jobs.claim("q", limit=dice.randrange(3))
                case 4 if held:
                    await self.storage.jobs.complete(held.pop())
                case 5 if held:
                    retry_in = dice.choice([0.0, 60.0])
                    await self.storage.jobs.fail(held.pop(0), "x", retry_in=retry_in)
                case 6 if held:
                    await self.storage.jobs.release(held.pop())
                case 7 if held:
                    await self.storage.jobs.cancel("q", held.pop().job.id)
                case 8:
                    await self.storage.maintenance.reconcile()
            if step % 50 == 49:
                await self.check_counts()
        counts = await self.check_counts()
        broker = await self.storage.hot.broker.counts("q")

        assert len(held) == counts.get("active", 0) == broker.leased
        unclaimed = counts.get("waiting", 0) + counts.get("delayed", 0)
        assert unclaimed == broker.ready + broker.delayed
