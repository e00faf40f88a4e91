"""The contract of a mode under attack: clients, processes, leases, cancels, cleaning."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import pickle
import random
import signal
import sys
import threading
import time
import warnings

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import pytest

from oqron_core.exceptions import ClosedError, LeaseLostError, OqronError, UnavailableError
from oqron_core.models import JobSpec
from oqron_core.planes import FixedWindow, Put, Scope
from oqron_core.protocol.claims import Claim
from oqron_core.storage import Storage
from oqron_core.sync import SyncStorage, open_sync_storage
from oqron_core.testing.clock import ManualClock
from oqron_core.testing.contracts.base import fresh_scope
from oqron_core.testing.contracts.mode import LAPSE
from oqron_core.testing.contracts.services import ServiceContract
from oqron_core.testing.faults import Faults


__all__ = ["ClientAdversityContract"]

_T = TypeVar("_T")

Waiting = Literal["waiting", "delayed", "paused", "claimed", "lapsed", "retried"]
_WAITING: Final[tuple[Waiting, ...]] = (
    "waiting", "delayed", "paused", "claimed", "lapsed", "retried",
)  # fmt: skip
_ENDS: Final = ("complete", "complete many", "retry", "die", "release")
_ROUNDS: Final = 50
"""How many calls are interrupted."""
_CHILDS_TIME: Final = 30
"""Seconds after which a forked child that hangs is ended."""


class ClientAdversityContract(ServiceContract):
    """What happens to those who use a storage, in any mode."""

    # --- helpers ------------------------------------------------------------------------

    async def one_job(self, state: Waiting) -> Claim | None:
        """Make the job ``a`` as it may be before it is called off."""
        jobs = self.storage.jobs
        await jobs.add("q", 1, id="a", delay=0.1 if state == "delayed" else None)
        if state == "paused":
            await jobs.pause("q")
        if state in {"waiting", "delayed", "paused"}:
            return None
        [claim] = await jobs.claim("q", lease_for=LAPSE if state == "lapsed" else 600.0)
        if state == "lapsed":
            await self.elapse(LAPSE + 0.2)
        if state == "retried":
            await jobs.fail(claim, "x", retry_in=0.1)
        return claim

    async def end_attempt(self, how: str, claim: Claim) -> bool:
        """End a claim one way or another; False where it is refused as a batch is."""
        jobs = self.storage.jobs
        if how == "complete many":
            return (await jobs.complete_many([(claim, "out")]))[0]
        if how == "complete":
            await jobs.complete(claim, "out")
        elif how == "release":
            await jobs.release(claim)
        else:
            await jobs.fail(claim, "x", retry_in=0.0, retry=how == "retry")
        return True

    async def is_cancelled_for_good(self, storage: Storage) -> None:
        """See that the job ``a`` is cancelled, and that nothing brings it back."""
        await storage.jobs.resume("q")
        await self.elapse(0.4)
        await storage.maintenance.run_once()
        assert [] == await storage.jobs.claim("q", limit=10)
        job = await storage.jobs.get("q", "a")
        assert job is not None
        assert ("cancelled", None) == (job.status, job.return_value)
        assert [] == list(await storage.dead_letters.query("q"))
        counts = await storage.jobs.counts("q")
        assert {"cancelled": 1} == {status: n for status, n in counts.items() if n}

    def begin_alone(self) -> dict[str, Any]:
        """Give the options of a storage to a test that opens it without a loop."""
        self.clock: ManualClock = ManualClock()
        self.scope: Scope = fresh_scope("clients")
        options: dict[str, Any] = {
            "project": self.scope.project,
            "environment": self.scope.environment,
            **dict(self.settings()),
        }
        if self.mode:
            options["mode"] = self.mode
        return options

    # --- cancels ------------------------------------------------------------------------

    @pytest.mark.parametrize("state", _WAITING)
    async def test_a_cancel_without_a_hot_plane_is_not_forgotten(self, state: Waiting) -> None:
        """No worker need run: the record has it, over the loss of the hot plane and restarts."""
        await self.one_job(state)
        faults = Faults()
        async with self.open(faults) as other:
            faults.down("hot.*")
            assert await other.jobs.cancel("q", "a") is True
            faults.heal()
        await self.lose_hot(self.storage.hot)

        async with self.open() as later:
            await later.maintenance.rebuild_hot()
            assert await later.jobs.cancel("q", "a") is True
            await self.is_cancelled_for_good(later)

    @pytest.mark.parametrize("how", _ENDS)
    async def test_a_cancelled_attempt_has_no_other_end(self, how: str) -> None:
        """Whatever its handler does then is refused, and nothing is tried again."""
        claim = await self.one_job("claimed")
        assert claim is not None
        async with self.open() as other:
            assert await other.jobs.cancel("q", "a") is True
            try:
                assert await self.end_attempt(how, claim) is False
            except LeaseLostError as error:
                assert "cancelled" in str(error)  # noqa: PT017 - a batch raises nothing
            await self.storage.runs.flush()

            await self.is_cancelled_for_good(other)
            assert ["cancelled"] == [run.status for run in await other.runs.query(job_id="a")]

    @pytest.mark.parametrize("broken", ["hot.signals.publish", "hot.broker.remove"])
    async def test_a_cancel_of_which_a_step_fails_reaches_the_worker(self, broken: str) -> None:
        """By the signal or by its next renewal: either is enough."""
        await self.storage.jobs.add("q", 1, id="a")
        [claim] = await self.storage.jobs.claim("q", lease_for=self.brief)
        await self.settle()
        faults = Faults()
        async with (
            self.open(faults) as other,
            self.storage.jobs.keep([claim], lease_for=self.brief),
        ):
            faults.down(broken)
            assert await other.jobs.cancel("q", "a") is True
            await self.until(lambda: claim.cancelled or claim.lost)

    # --- leases -------------------------------------------------------------------------

    async def test_keeping_a_lease_survives_renewals_that_fail(self) -> None:
        """Calls may be refused and answers lost, as long as one comes in time."""
        await self.storage.jobs.add("q", 1, id="a")
        lease_for = self.brief * 4
        [claim] = await self.storage.jobs.claim("q", lease_for=lease_for)
        self.faults.fail("hot.broker.renew", times=2)
        self.faults.fail("hot.broker.renew", nth=3, when="after")
        async with self.storage.jobs.keep([claim], lease_for=lease_for, every=0.02):
            await self.until(lambda: len(self.faults.names("hot.broker.renew")) >= 5)
            assert not claim.lost

        await self.storage.jobs.complete(claim, "out")
        job = await self.storage.jobs.get("q", "a")
        assert job is not None
        assert ("completed", 1) == (job.status, job.attempt_made)

    async def test_who_cannot_renew_is_told_when_the_lease_is_over(self) -> None:
        """Not before, and also where no renewal is ever answered."""
        await self.storage.jobs.add("q", 1, id="a")
        [claim] = await self.storage.jobs.claim("q", lease_for=self.brief)
        self.faults.down("hot.broker.renew")
        async with self.storage.jobs.keep([claim], lease_for=self.brief, every=0.02):
            await self.until(lambda: claim.lost)

        assert time.monotonic() >= claim.deadline

    async def test_leases_are_renewed_beside_a_durable_plane_that_is_jammed(self) -> None:
        """Whatever waits for it, and however much: a renewal does not."""
        jobs = self.storage.jobs
        await jobs.add_many("q", [1, 2, 3])
        claims = await jobs.claim("q", limit=3, lease_for=60.0)
        lock = await self.storage.locks.acquire("k", lease_for=60.0)
        assert lock is not None
        pauses = [self.faults.pause("durable.*", nth=n) for n in range(1, 100)]
        stuck = [asyncio.create_task(jobs.add("q", n, id=f"{n}")) for n in range(40)]
        stuck += [asyncio.create_task(jobs.get("q", "x")) for _ in range(40)]  # type: ignore[arg-type]
        await asyncio.wait_for(pauses[0].reached.wait(), 20)
        await self.settle()

        for _ in range(3):
            assert [True] * 3 == await jobs.renew(claims, lease_for=60.0)
            assert await self.storage.locks.renew(lock)
        for pause in pauses:
            pause.release()
        await asyncio.gather(*stuck)
        assert 40 == (await jobs.counts("q"))["waiting"]

    # --- reports ------------------------------------------------------------------------

    async def test_a_report_that_is_not_written_hides_no_error(self) -> None:
        """What the handler raised is what is stored, whatever became of its progress."""
        await self.storage.jobs.add("q", 1, id="a")
        [claim] = await self.storage.jobs.claim("q")
        self.faults.down("hot.live.*")
        claim.run.progress(object())  # type: ignore[arg-type]
        claim.run.progress(50, "half")
        claim.run.log("info", "on it")
        await self.settle()
        await self.storage.jobs.fail(claim, KeyError("the reason"), retry=False)
        await self.storage.runs.flush()

        letter = await self.storage.dead_letters.get("q", "a")
        run = await self.storage.runs.get(claim.run.id)
        assert letter is not None
        assert run is not None
        assert ["KeyError: 'the reason'"] * 2 == [letter.error, run.error]
        assert ["on it"] == [line["msg"] for line in run.logs if line["level"] == "info"]

    # --- processes and loops ------------------------------------------------------------------

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
    async def test_a_forked_child_gets_no_answer_of_its_parents(self) -> None:
        """Each of its calls is refused, and those of the parent go on meanwhile."""
        jobs = self.storage.jobs
        await jobs.add("q", 1, id="a")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            _end_child(self.storage)
        ended = asyncio.create_task(asyncio.to_thread(os.waitpid, child, 0))
        for number in range(50):
            await jobs.add("q", number, id=f"{number}")
            job = await jobs.get("q", f"{number}")
            assert job is not None
            assert number == job.data
        _, status = await ended

        assert 0 == os.waitstatus_to_exitcode(status)
        assert 51 == (await jobs.counts("q"))["waiting"]

    async def test_an_open_storage_does_not_travel_to_another_process(self) -> None:
        """Pickling it is an error that says what to do, never half a copy."""
        with pytest.raises(TypeError, match="open one in the process"):
            pickle.dumps({"storage": self.storage})
        for part in (self.storage.jobs, self.storage.hot, self.storage.durable):
            with pytest.raises((TypeError, pickle.PicklingError)):
                pickle.dumps(part)

    def test_a_loop_that_ends_without_a_close_is_quiet(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing complains when it is collected, and another storage finds the jobs."""
        self.begin_alone()
        unheard: list[Any] = []
        monkeypatch.setattr(sys, "unraisablehook", unheard.append)
        kept: list[Any] = []

        async def leave_open() -> None:
            opened = self.open()
            storage = await opened.__aenter__()
            kept.extend([opened, storage])
            await storage.jobs.add("q", 1, id="a")
            [claim] = await storage.jobs.claim("q", lease_for=0.05)
            claim.run.log("info", "x")
            (await storage.runs.start("r")).finish()

        async def look() -> str | None:
            async with self.open() as storage:
                job = await storage.jobs.get("q", "a")
                return None if job is None else job.status

        with caplog.at_level(logging.WARNING), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            asyncio.run(leave_open())
            kept.clear()
            gc.collect()
            pending = [record for record in caplog.records if "destroyed" in record.getMessage()]
            assert "active" == asyncio.run(look())
            gc.collect()

        assert [] == pending
        assert [] == unheard
        # A call that the end of the loop has cut off may say so, once.
        others = [str(one.message) for one in warned if "asyncgens" not in str(one.message)]
        assert [] == others

    async def test_an_opening_that_fails_leaves_nothing(self) -> None:
        """At whatever step, and the next opening works."""
        faults = Faults()
        async with self.open(faults):
            steps = len(faults.calls)
        assert steps > 0
        before = (0, 0, 0)
        # The first time round, what is opened once and for all may be.
        for _ in range(2):
            before = _held()
            for nth in range(steps):
                for error in (UnavailableError("a fault of the test"), asyncio.CancelledError()):
                    faults = Faults()
                    faults.fail("*", nth=nth + 1, error=error)
                    said: BaseException | None = None
                    try:
                        async with self.open(faults):
                            pass
                    except (OqronError, asyncio.CancelledError) as stopped:
                        said = stopped
                    assert faults.calls, said
        for wrap in ("wrap_hot", "wrap_durable"):
            broken: dict[str, Any] = {wrap: lambda _: 1 // 0}
            with pytest.raises(ZeroDivisionError):
                async with self.open(**broken):
                    raise AssertionError("opened")

        # A thread or a connection may be on its way out.
        await self.until(lambda: _is_no_more(_held(), before))
        async with self.open() as storage:
            await storage.jobs.add("q", 1, id="a")
            assert ["a"] == [claim.id for claim in await storage.jobs.claim("q")]

    async def test_closing_waits_for_a_durable_plane_that_comes_back(self) -> None:
        """No end is lost where it is away for a moment."""
        faults = Faults()
        async with self.open(faults) as other:
            faults.fail("durable.write", times=4)
            faults.fail("durable.write", nth=5, when="after")
            runs = [await other.runs.start("r") for _ in range(100)]
            for number, run in enumerate(runs):
                run.finish(number)
        assert 0 == other.unwritten

        records = await self.storage.durable.get("runs", [run.id for run in runs])
        assert [*range(100)] == [record and record.value["output"] for record in records]

    # --- interrupts -----------------------------------------------------------------------------

    @pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="this system sends no signals")
    def test_an_interrupted_call_spoils_no_later_one(self) -> None:
        """Ctrl-C in the middle of calls: the next answer is its own, and no job is lost."""
        dice = random.Random(7)
        options = self.begin_alone()
        with open_sync_storage(**options) as storage, _interrupts() as interrupted:
            jobs = storage.jobs
            for number in range(_ROUNDS):
                name = f"{number}"
                after = dice.uniform(0.0, 0.003)
                interrupted(lambda: jobs.add("q", number, id=name, max_attempts=1000), after)  # noqa: B023
                assert number == jobs.add("q", number, id=name, max_attempts=1000).data
                interrupted(lambda: jobs.get("q", f"{dice.randrange(number + 1)}"), after)  # noqa: B023
                job = jobs.get("q", name)
                assert job is not None
                assert number == job.data
                claims = interrupted(lambda: jobs.claim("q", lease_for=0.5), after)
                for claim in claims or ():
                    interrupted(lambda: jobs.complete(claim, claim.data), after)  # noqa: B023
                    with contextlib.suppress(LeaseLostError):
                        jobs.complete(claim, claim.data)
            self._work_off(storage)
            found = [jobs.get("q", f"{number}") for number in range(_ROUNDS)]

            assert [*range(_ROUNDS)] == [job and job.return_value for job in found]
            assert 0 == storage.call(storage.hot.broker.counts, "q").leased

    def _work_off(self, storage: SyncStorage) -> None:
        """Complete everything; maintenance and leases bring back what an interrupt took along."""
        for _ in range(1000):
            storage.maintenance.reconcile()
            for claim in storage.jobs.claim("q", limit=100, lease_for=60.0):
                storage.jobs.complete(claim, claim.data)
            if storage.jobs.counts("q")["completed"] == _ROUNDS:
                return
            if self.manual_clock:
                self.clock.advance(0.1)
            else:
                time.sleep(0.05)
        raise AssertionError("a job never came back")

    # --- cleaning ---------------------------------------------------------------------------------

    async def old_runs(self, count: int) -> None:
        """Write runs that ended long ago, and a rule that keeps ten of them."""
        ended = await self.storage.durable.now() - 60_000
        value = {"status": "failed", "endedAt": ended}
        writes = [Put("runs", f"r{n:03d}", {"id": f"r{n:03d}", **value}) for n in range(count)]
        await self.storage.durable.write(writes, returning=())
        await self.storage.retention.set("run", keep=10)

    async def test_a_prune_that_breaks_off_is_finished_by_the_next(self) -> None:
        """Wherever it was; nothing is deleted beyond the rule."""
        await self.old_runs(90)
        faults = Faults()
        async with self.open(faults, maintenance={"batch": 20}) as other:
            for nth in range(1, 8):
                faults.reset()
                faults.fail("durable.prune", nth=nth, when="after" if nth % 2 else "before")
                with contextlib.suppress(UnavailableError):
                    await other.retention.prune()
            faults.reset()
            await other.retention.prune()
            assert 0 == await other.retention.prune()

        runs = await self.storage.runs.query(limit=1000)
        assert {f"r{n:03d}" for n in range(80, 90)} == {run.id for run in runs}

    async def test_one_prunes_at_a_time(self) -> None:
        """Whoever comes meanwhile deletes nothing and does not wait."""
        await self.old_runs(30)
        faults = Faults()
        async with self.open(faults) as other:
            pause = self.faults.pause("durable.prune")
            first = asyncio.create_task(self.storage.retention.prune())
            await pause.reached.wait()
            assert 0 == await other.retention.prune()
            assert [] == faults.names("durable.prune")
            pause.release()
            assert 20 == await first
            assert 0 == await other.retention.prune()

            assert faults.names("durable.prune")

    # --- closing ----------------------------------------------------------------------------------

    @pytest.mark.parametrize("call", ["hot.broker.claim", "durable.write"])
    @pytest.mark.parametrize("gone", [True, False])
    @pytest.mark.parametrize("count", [1, 70])
    async def test_a_claim_on_its_way_when_its_storage_closes_is_given_back(
        self, call: str, *, gone: bool, count: int
    ) -> None:
        """Whether or not its caller has gone: the jobs come again, with their attempts."""
        faults = Faults()
        closed = asyncio.Event()

        async def close(opened: Any, reached: asyncio.Event) -> None:
            await reached.wait()
            await opened.__aexit__(None, None, None)
            closed.set()

        specs = [JobSpec(n, max_attempts=1) for n in range(count)]
        await self.storage.jobs.add_many("q", specs)
        opened = self.open(faults)
        other = await opened.__aenter__()
        pause = faults.pause(call, when="after")
        claiming = asyncio.ensure_future(other.jobs.claim("q", limit=100, lease_for=300.0))
        closing = asyncio.ensure_future(close(opened, pause.reached))
        await asyncio.wait_for(pause.reached.wait(), 20)
        await asyncio.sleep(0)
        if gone:
            claiming.cancel()
        await asyncio.sleep(0.02)
        assert not closed.is_set()
        pause.release()
        await asyncio.wait_for(closing, 20)
        with pytest.raises(asyncio.CancelledError if gone else ClosedError):
            await claiming

        claims = await self.storage.jobs.claim("q", limit=100)
        assert [*range(count)] == sorted(claim.data for claim in claims)
        assert {1} == {claim.attempt for claim in claims}

    # --- rates ------------------------------------------------------------------------------------

    async def test_asking_at_twice_the_rate_gets_the_rate(self) -> None:
        """Window after window: refusals push nothing forward, and none is left out."""
        per = 0.2 if self.manual_clock else 1.0
        limit = FixedWindow(4, per=per)
        allowed: dict[int, int] = {}
        seen: set[int] = set()
        while len(seen) < 6:
            decision = await self.storage.limits.take("k", limit)
            seen.add(decision.reset_at)
            allowed[decision.reset_at] = allowed.get(decision.reset_at, 0) + bool(decision)
            await self.elapse(per / 8.5)
        whole = sorted(seen)[1:-1]

        assert 4 == len(whole)
        assert all(0 < allowed[end] <= 4 for end in whole), allowed
        if self.manual_clock:
            assert [4] * 4 == [allowed[end] for end in whole]


def _end_child(storage: Storage) -> None:
    """Try everything in a forked child, and end it: 0 where all was refused."""
    status = 1
    with contextlib.suppress(BaseException):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_CHILDS_TIME)
        for call in (
            lambda: storage.jobs.counts("q"),
            lambda: storage.jobs.add("q", 2, id="b"),
            lambda: storage.jobs.claim("q"),
            lambda: storage.locks.acquire("k"),
            lambda: storage.cache.get("k"),
            lambda: storage.durable.get("n", ["a"]),
            lambda: storage.hot.broker.counts("q"),
        ):
            try:
                asyncio.run(call())
            except ClosedError:
                continue
            break
        else:
            status = 0
    os._exit(status)


def _held() -> tuple[int, int, int]:
    """Count tasks, threads and descriptors; 0 of these where the system does not tell."""
    gc.collect()
    folder = Path("/proc/self/fd")
    files = len([*folder.iterdir()]) if folder.is_dir() else 0
    return len(asyncio.all_tasks()), threading.active_count(), files


def _is_no_more(now: tuple[int, ...], before: tuple[int, ...]) -> bool:
    return all(one <= other for one, other in zip(now, before, strict=True))


@contextlib.contextmanager
def _interrupts() -> Iterator[Callable[[Callable[[], _T], float], _T | None]]:
    """Give what makes a call and raises `KeyboardInterrupt` in the middle of it."""
    inside = threading.Event()

    def handle(_number: int, _frame: object) -> None:
        if inside.is_set():
            inside.clear()
            raise KeyboardInterrupt

    def interrupted(call: Callable[[], _T], after: float) -> _T | None:
        main = threading.get_ident()
        timer = threading.Timer(after, signal.pthread_kill, (main, signal.SIGUSR1))
        try:
            inside.set()
            timer.start()
            try:
                return call()
            finally:
                inside.clear()
        except KeyboardInterrupt:
            return None
        finally:
            timer.join()

    old = signal.signal(signal.SIGUSR1, handle)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGUSR1, old)
