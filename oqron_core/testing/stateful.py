"""
A random life of a queue, compared with a pure model of it.

Hypothesis picks the steps: several storages over the same stores add, claim,
settle, cancel and requeue, time jumps, the hot plane is lost, storages are
closed and opened anew. After every step the storage must say what the model says.
"""

from __future__ import annotations

import asyncio

from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, ClassVar, Final, Protocol

import attrs

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from oqron_core.exceptions import ConflictError, LeaseLostError
from oqron_core.planes import HotPlane
from oqron_core.protocol.claims import Claim
from oqron_core.storage import Storage


__all__ = ["Environment", "JobsMachine", "Model", "ModelJob"]

QUEUE: Final = "q"
_EVERYTHING: Final = 1000
_PATIENCE: Final = 30.0
_STATUSES: Final[tuple[str, ...]] = ("waiting", "delayed", "active", "completed", "cancelled")


# --- the model: no storage, no clock, no asyncio ------------------------------------------


@attrs.define
class ModelJob:
    """A job as it should be."""

    id: str
    place: int
    priority: int
    most: int
    status: str = "waiting"
    made: int = 0
    due: int = 0
    token: int = 0
    until: int = 0
    found: bool = False
    """Whether a claim has seen its lapse: it is ready then, and no lapsed lease."""


@attrs.define
class Model:
    """
    One queue as it should be.

    Attributes:
        jobs: Jobs by id, finished ones included.
        dead: Ids of dead letters, with the priority and attempts they had.
        paused: Whether nothing is handed out.
        ordered: Whether the order inside a priority is still known: a rebuild
            puts jobs back in the order of their ids.
    """

    jobs: dict[str, ModelJob] = attrs.Factory(dict)
    dead: dict[str, ModelJob] = attrs.Factory(dict)
    paused: bool = False
    ordered: bool = True
    places: int = 0

    def add(self, id: str, *, priority: int, most: int, due: int, now: int) -> bool:  # noqa: A002
        """Add a job; False where the id is taken."""
        if id in self.jobs:
            return False
        self.places += 1
        status = "delayed" if due > now else "waiting"
        self.jobs[id] = ModelJob(id, self.places, priority, most, status, due=due)
        return True

    def claimable(self, now: int) -> list[ModelJob]:
        """List what can be handed out, in order."""
        if self.paused:
            return []
        spent = {job.id for job in self.spent(now)}
        ready = [job for job in self.jobs.values() if self._is_ready(job, now)]
        ready.sort(key=lambda job: (job.priority, job.place))
        return [job for job in ready if job.id not in spent]

    @staticmethod
    def _is_ready(job: ModelJob, now: int) -> bool:
        if job.status == "active":
            return job.until <= now
        return job.status in {"waiting", "delayed"} and job.due <= now

    def start(self, id: str, token: int, *, now: int, until: int) -> int:  # noqa: A002
        """Hand a job out; gives which attempt it is."""
        for other in self.jobs.values():
            other.found |= other.status == "active" and other.until <= now
        job = self.jobs[id]
        job.status, job.made, job.until = "active", job.made + 1, until
        job.token, job.found = token, False
        return job.made

    def bury(self, job: ModelJob) -> None:
        """Make a dead letter."""
        del self.jobs[job.id]
        self.dead[job.id] = job

    def holds(self, id: str, token: int) -> ModelJob | None:  # noqa: A002
        """Give the job if that token may settle it."""
        job = self.jobs.get(id)
        return job if job is not None and (job.status, job.token) == ("active", token) else None

    def spent(self, now: int) -> list[ModelJob]:
        """List what has lapsed for the last time."""
        return [
            job
            for job in self.jobs.values()
            if job.status == "active" and job.until <= now and job.made >= job.most
        ]

    def requeue(self, id: str) -> str:  # noqa: A002
        """Bring a dead letter back; gives ``done``, ``absent`` or ``taken``."""
        if id not in self.dead:
            return "absent"
        if id in self.jobs:
            return "taken"
        old = self.dead.pop(id)
        self.places += 1
        self.jobs[id] = ModelJob(id, self.places, old.priority, old.most)
        return "done"

    def lose_hot(self, until: int) -> None:
        """Rebuild: every lease is given back for its full length."""
        self.ordered = False
        for job in self.jobs.values():
            if job.status == "active":
                job.until = until
                job.found = False

    def counts(self) -> dict[str, int]:
        """Count by status."""
        found: dict[str, int] = dict.fromkeys(_STATUSES, 0)
        for job in self.jobs.values():
            found[job.status] += 1
        return found


# --- the machine ------------------------------------------------------------------------


class Environment(Protocol):
    """What the machine is run on; a contract of a mode is one."""

    manual_clock: Any

    def open(self) -> AbstractAsyncContextManager[Storage]:
        """Open one more storage over the same stores."""
        ...

    async def elapse(self, seconds: float) -> None:
        """Let time pass."""
        ...

    async def lose_hot(self, hot: HotPlane) -> None:
        """Lose what the hot plane holds."""
        ...


class JobsMachine(RuleBasedStateMachine):
    """
    Steps of several workers on one queue.

    Args:
        environment: What it is run on; its scope must be empty.
    """

    def __init__(self, environment: Environment) -> None:
        super().__init__()
        self.environment = environment
        self.manual: bool = bool(environment.manual_clock)
        # Real time must not come between the model and the storage.
        self.lease_for: float = 10.0 if self.manual else 600.0
        self.delay: float = 5.0 if self.manual else 3600.0
        self.model: Model = Model()
        self.held: list[Claim] = []
        self.runner: asyncio.Runner = asyncio.Runner()
        self.stacks: list[AsyncExitStack] = []
        self.storages: list[Storage] = []
        for _ in range(2):
            self.open_one()

    def run(self, coroutine: Any) -> Any:
        """Run one call, which must not hang."""

        async def bounded() -> Any:
            async with asyncio.timeout(_PATIENCE):
                return await coroutine

        return self.runner.run(bounded())

    def open_one(self) -> None:
        """Open one more storage."""
        stack = AsyncExitStack()
        self.storages.append(self.run(stack.enter_async_context(self.environment.open())))
        self.stacks.append(stack)

    def now(self) -> int:
        """Read the clock that judges."""
        now: int = self.run(self.storages[0].durable.now())
        return now

    def until(self) -> int:
        """Say when a lease that is taken now lapses."""
        return self.now() + round(self.lease_for * 1000)

    workers: ClassVar[st.SearchStrategy[int]] = st.integers(0, 1)
    ids: ClassVar[st.SearchStrategy[str]] = st.sampled_from(
        [f"{number:02}" for number in range(12)]
    )
    new_jobs: ClassVar[st.SearchStrategy[tuple[str, int, int, bool]]] = st.tuples(
        ids, st.integers(-1, 1), st.integers(1, 3), st.sampled_from([False, False, False, True])
    )

    # --- adding and claiming ---

    @initialize(jobs=st.lists(new_jobs, min_size=2, max_size=6))
    def begin(self, jobs: list[tuple[str, int, int, bool]]) -> None:
        """Start with some jobs."""
        for job in jobs:
            self.add_one(0, *job)

    @rule(worker=workers, jobs=st.lists(new_jobs, min_size=1, max_size=3))
    def add(self, worker: int, jobs: list[tuple[str, int, int, bool]]) -> None:
        """Add jobs, perhaps some that are there."""
        for job in jobs:
            self.add_one(worker, *job)

    def add_one(self, worker: int, id: str, priority: int, most: int, delayed: bool) -> None:  # noqa: A002, FBT001
        """Add one job."""
        now = self.now()
        delay = self.delay if delayed else None
        due = now + round(self.delay * 1000) if delayed else 0
        new = self.model.add(id, priority=priority, most=most, due=due, now=now)
        job = self.run(
            self.storages[worker].jobs.add(
                QUEUE, {"id": id}, id=id, priority=priority, max_attempts=most, delay=delay
            )
        )

        assert new is not job.duplicate
        assert job.published

    @rule(worker=workers)
    def claim_one(self, worker: int) -> None:
        """Claim the first in the order."""
        self.claim(worker, 1)

    @rule(worker=workers, limit=st.integers(2, 5))
    def claim_some(self, worker: int, limit: int) -> None:
        """Claim several."""
        self.claim(worker, limit)

    def claim(self, worker: int, limit: int) -> None:
        """Claim, or claim everything where the order is not known any more."""
        limit = limit if self.model.ordered else _EVERYTHING
        now = self.now()
        allowed = [job.id for job in self.model.claimable(now)]
        claims = self.run(
            self.storages[worker].jobs.claim(QUEUE, limit=limit, lease_for=self.lease_for)
        )
        got = [claim.job.id for claim in claims]
        # An id that is dropped or put back unrun takes a place: fewer may come.
        assert len(got) <= limit
        assert got or not allowed, "something could be claimed, and nothing was"
        if self.model.ordered:
            assert allowed[: len(got)] == got
        else:
            assert sorted(allowed) == sorted(got)
        for claim in claims:
            assert claim.lease.token > self.model.jobs[claim.job.id].token, "tokens must grow"
            assert claim.job.data == {"id": claim.job.id}
            attempt = self.model.start(claim.job.id, claim.lease.token, now=now, until=self.until())
            assert attempt == claim.attempt
        self.held += claims
        self.see_what_was_buried(must=limit == _EVERYTHING and not self.model.paused)

    def see_what_was_buried(self, *, must: bool) -> None:
        """Bury in the model what may have been buried, and must where it must."""
        for job in self.model.spent(self.now()):
            gone = self.run(self.storages[0].jobs.get(QUEUE, job.id)) is None
            assert gone or not must, f"{job.id} has no attempt left, and was not buried"
            if gone:
                self.model.bury(job)
            else:
                job.found = True

    # --- settling ---

    @precondition(lambda self: self.held)
    @rule(
        data=st.data(),
        worker=workers,
        how=st.sampled_from(["complete", "fail", "fail at once", "give up", "release"]),
    )
    def settle(self, data: Any, worker: int, how: str) -> None:
        """End an attempt, perhaps one whose lease is lost."""
        claim = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        job = self.model.holds(claim.lease.id, claim.lease.token)
        jobs = self.storages[worker].jobs
        calls: dict[str, Any] = {
            "complete": lambda: jobs.complete(claim, {"done": True}),
            "fail": lambda: jobs.fail(claim, "x", retry_in=self.delay),
            "fail at once": lambda: jobs.fail(claim, "x", retry_in=0.0),
            "give up": lambda: jobs.fail(claim, "x", retry=False),
            "release": lambda: jobs.release(claim),
        }
        try:
            self.run(calls[how]())
        except LeaseLostError:
            assert job is None, "the lease was good, but was refused"
            return
        assert job is not None, "the lease was lost, but was accepted"
        if how == "complete":
            job.status = "completed"
        elif how == "release":
            job.status, job.made, job.due = "waiting", job.made - 1, 0
        elif how == "give up" or job.made >= job.most:
            self.model.bury(job)
        else:
            wait = round(self.delay * 1000) if how == "fail" else 0
            job.status, job.due = "delayed", self.now() + wait

    @precondition(lambda self: self.held)
    @rule(data=st.data(), worker=workers)
    def renew(self, data: Any, worker: int) -> None:
        """Renew a lease, perhaps one that is lost."""
        claim = data.draw(st.sampled_from(self.held))
        [kept] = self.run(self.storages[worker].jobs.renew([claim], lease_for=self.lease_for))
        job = self.model.holds(claim.lease.id, claim.lease.token)
        good = job is not None and job.until > self.now()
        assert good is kept
        if job is not None and good:
            job.until = self.until()

    @precondition(lambda self: self.held)
    @rule(data=st.data(), worker=workers)
    def cancel_what_is_worked_on(self, data: Any, worker: int) -> None:
        """Call off a job that someone has, or had."""
        self.cancel_one(worker, data.draw(st.sampled_from(self.held)).lease.id)

    @rule(worker=workers, id=ids)
    def cancel(self, worker: int, id: str) -> None:  # noqa: A002
        """Call a job off, perhaps one that is not there."""
        self.cancel_one(worker, id)

    def cancel_one(self, worker: int, id: str) -> None:  # noqa: A002
        """Call a job off."""
        job = self.model.jobs.get(id)
        can = job is not None and job.status != "completed"
        assert can is self.run(self.storages[worker].jobs.cancel(QUEUE, id))
        if job is not None and can:
            job.status = "cancelled"

    @rule(worker=workers, id=ids)
    def requeue(self, worker: int, id: str) -> None:  # noqa: A002
        """Bring a dead letter back."""
        outcome = self.model.requeue(id)
        try:
            job = self.run(self.storages[worker].dead_letters.requeue(QUEUE, id))
        except ConflictError:
            assert outcome == "taken"
        else:
            assert (outcome == "done") is (job is not None)
            assert outcome != "taken"

    # --- steering and repair ---

    @rule(worker=workers, paused=st.sampled_from([False, False, False, True]))
    def pause(self, worker: int, paused: bool) -> None:  # noqa: FBT001
        """Pause or, more often, resume."""
        jobs = self.storages[worker].jobs
        self.run(jobs.pause(QUEUE) if paused else jobs.resume(QUEUE))
        self.model.paused = paused

    @precondition(lambda self: self.manual)
    @rule(seconds=st.sampled_from([1.003, 4.007, 11.011]))
    def let_time_pass(self, seconds: float) -> None:
        """Jump; no sum of jumps is a lease or a delay."""
        self.run(self.environment.elapse(seconds))

    @rule(worker=workers, what=st.sampled_from(["reap", "reconcile", "run_once"]))
    def maintain(self, worker: int, what: str) -> None:
        """Repair; there is nothing to reconcile where nothing was lost."""
        result = self.run(getattr(self.storages[worker].maintenance, what)())
        if what == "reconcile":
            assert result == 0
            return
        for job in self.model.spent(self.now()):
            # What a claim has seen lapse already is buried by the next one.
            if not job.found:
                self.model.bury(job)
        self.see_what_was_buried(must=False)

    @rule(worker=workers)
    def lose_the_hot_plane(self, worker: int) -> None:
        """Lose it, and rebuild it."""
        storage = self.storages[worker]
        self.run(self.environment.lose_hot(storage.hot))
        self.run(storage.maintenance.rebuild_hot())
        self.model.lose_hot(self.until())

    @rule()
    def restart(self) -> None:
        """Close one storage, and open another; its leases go on."""
        self.run(self.stacks.pop(0).aclose())
        del self.storages[0]
        self.open_one()

    # --- what must hold ---

    @invariant()
    def counts_are_right(self) -> None:
        """Every status has as many jobs as in the model, and dead letters too."""
        counts = self.run(self.storages[0].jobs.counts(QUEUE))
        expected = self.model.counts()
        assert expected == {status: counts[status] for status in expected}
        letters = self.run(self.storages[1].dead_letters.query(QUEUE))
        assert sorted(self.model.dead) == [job.id for job in letters]

    def teardown(self) -> None:
        """Look at every job once more, and close."""
        try:
            for job in self.run(self.storages[0].jobs.query(QUEUE)):
                known = self.model.jobs[job.id]
                assert (known.status, known.made) == (job.status, job.attempt_made)
        finally:
            for stack in self.stacks:
                self.run(stack.aclose())
            self.runner.close()
