"""
Crash points: the process dies between any two calls of a plane, everywhere.

Each `Scenario` does one thing that a service offers. It is run once to learn
which plane calls it makes; then it is run again for each of them, and there the
process dies before the call, or after it, or the call is refused, or it is done
and its answer is lost. A fresh storage over the same stores then does its
maintenance, works off what is left, and `check` looks at the invariants.
"""

from __future__ import annotations

import asyncio
import contextlib
import random

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import attrs

from oqron_core.exceptions import ConflictError, LeaseLostError, UnavailableError
from oqron_core.models import JobSpec
from oqron_core.planes import Query
from oqron_core.protocol.claims import Claim
from oqron_core.protocol.recovery import EPOCH
from oqron_core.storage import Storage
from oqron_core.testing.faults import Crash, Faults


__all__ = ["SCENARIOS", "CrashPoint", "Explorer", "Ledger", "Scenario", "World"]

QUEUE: Final = "q"
LEASE: Final = 2.0
"""Seconds. Long enough for a step on a busy machine, short enough to let lapse."""
_ROUNDS: Final = 40
_ENDS: Final = ("die before", "die after", "refuse", "lose the answer")


@attrs.define
class Ledger:
    """
    What the outside world was told, and must not turn out to be untrue.

    Attributes:
        added: Ids whose add was acknowledged.
        cancelled: Ids whose cancel was acknowledged.
        ended: Ids whose completion was acknowledged.
        held: Claims that were handed out and not settled, by id.
        attempts: For each id, the attempts that were handed out.
        released: For each id, how many attempts were given back.
        most: For each id, how many attempts it may have.
    """

    added: set[str] = attrs.Factory(set)
    cancelled: set[str] = attrs.Factory(set)
    ended: set[str] = attrs.Factory(set)
    held: dict[str, Claim] = attrs.Factory(dict)
    attempts: dict[str, list[tuple[int, int]]] = attrs.Factory(dict)
    released: dict[str, int] = attrs.Factory(dict)
    most: dict[str, int] = attrs.Factory(dict)

    def claimed(self, claims: Sequence[Claim]) -> None:
        """Note that claims were handed out: the handler runs."""
        for claim in claims:
            self.held[claim.lease.id] = claim
            seen = self.attempts.setdefault(claim.lease.id, [])
            seen.append((claim.attempt, claim.lease.token))


@attrs.define
class World:
    """
    One scope, and what has happened in it.

    Attributes:
        open: Opens a storage over the scope with these faults; may be repeated.
        elapse: Lets time pass.
        ledger: What the outside world was told.
        faults: What the storage of the scenario suffers.
    """

    open: Callable[[Faults | None], AbstractAsyncContextManager[Storage]]
    elapse: Callable[[float], Awaitable[None]]
    ledger: Ledger = attrs.Factory(Ledger)
    faults: Faults = attrs.Factory(Faults)

    async def add(self, storage: Storage, *ids: str, most: int = 3, **options: Any) -> None:
        """Add jobs one by one."""
        for id in ids:  # noqa: A001 - the word of the contract
            self.ledger.most[id] = most
            await storage.jobs.add(QUEUE, {"id": id}, id=id, max_attempts=most, **options)
            self.ledger.added.add(id)

    async def claim(self, storage: Storage, limit: int = 1) -> list[Claim]:
        """Claim, and remember what was handed out."""
        claims = await storage.jobs.claim(QUEUE, limit=limit, lease_for=LEASE)
        self.ledger.claimed(claims)
        return claims

    async def complete(self, storage: Storage, claim: Claim) -> None:
        """Complete, and remember that it was acknowledged."""
        await storage.jobs.complete(claim, {"done": claim.lease.id})
        self.ledger.held.pop(claim.lease.id, None)
        self.ledger.ended.add(claim.lease.id)

    async def lose_hot(self, storage: Storage) -> None:
        """Lose what the hot plane knows of the queue."""
        await storage.hot.broker.purge(QUEUE)
        await storage.hot.broker.resume(QUEUE)
        await storage.hot.counters.reset(EPOCH)


Step = Callable[[World, Storage, Any], Awaitable[Any]]


@attrs.frozen
class Scenario:
    """
    One thing that a service does.

    Attributes:
        name: What it is called.
        prepare: What happens before, without faults; its answer goes to *act*.
        act: The thing itself.
    """

    name: str
    prepare: Step
    act: Step


@attrs.frozen
class CrashPoint:
    """
    Where and how a scenario goes wrong.

    Attributes:
        scenario: Its name.
        call: The plane call.
        nth: Which call of that name.
        end: What happens there.
    """

    scenario: str
    call: str
    nth: int
    end: str

    def __str__(self) -> str:
        return f"{self.scenario}: {self.end} {self.call} #{self.nth}"


# --- the scenarios ------------------------------------------------------------------


async def _nothing(world: World, storage: Storage, given: Any) -> None:
    del world, storage, given


async def _two_jobs(world: World, storage: Storage, given: Any) -> None:
    del given
    await world.add(storage, "a", "b")


async def _claimed(world: World, storage: Storage, given: Any) -> Claim:
    await _two_jobs(world, storage, given)
    [claim] = await world.claim(storage)
    claim.run.log("info", "working")
    return claim


async def _claimed_last(world: World, storage: Storage, given: Any) -> Claim:
    del given
    await world.add(storage, "a", most=1)
    await world.add(storage, "b")
    return (await world.claim(storage))[0]


async def _dead(world: World, storage: Storage, given: Any) -> None:
    claim = await _claimed_last(world, storage, given)
    await storage.jobs.fail(claim, "boom")
    world.ledger.held.pop("a")


async def _lapsed(world: World, storage: Storage, given: Any) -> None:
    await _claimed(world, storage, given)
    await world.add(storage, "last", most=1, priority=-1)
    await world.claim(storage)
    await world.elapse(LEASE + 0.3)


async def _paused(world: World, storage: Storage, given: Any) -> None:
    await _two_jobs(world, storage, given)
    await storage.jobs.pause(QUEUE)


async def _lost(world: World, storage: Storage, given: Any) -> None:
    await _claimed(world, storage, given)
    await world.add(storage, "later", delay=0.2)
    await world.lose_hot(storage)


async def _unpublished(world: World, storage: Storage, given: Any) -> None:
    await _claimed(world, storage, given)
    await storage.hot.broker.remove(QUEUE, ["b"])


async def _add(world: World, storage: Storage, given: Any) -> None:
    del given
    await world.add(storage, "a", priority=5)
    await world.add(storage, "later", delay=0.2)


async def _add_many(world: World, storage: Storage, given: Any) -> None:
    del given
    ids = [f"{number}" for number in range(4)]
    world.ledger.most |= dict.fromkeys(ids, 3)
    specs = [JobSpec({"id": id}, id=id) for id in ids]  # noqa: A001 - the word of the contract
    await storage.jobs.add_many(QUEUE, specs)
    world.ledger.added |= {*ids}


async def _claim(world: World, storage: Storage, given: Any) -> None:
    del given
    await world.claim(storage, 2)


async def _complete(world: World, storage: Storage, claim: Any) -> None:
    await world.complete(storage, claim)


async def _fail(world: World, storage: Storage, claim: Any) -> None:
    # The handler has ended, so its job may be handed out from here on.
    world.ledger.held.pop(claim.lease.id)
    await storage.jobs.fail(claim, "boom", retry_in=0.1)


async def _release(world: World, storage: Storage, claim: Any) -> None:
    id = claim.lease.id  # noqa: A001 - the word of the contract
    # Noted first: where the answer is lost, the attempt may have been given back.
    world.ledger.released[id] = world.ledger.released.get(id, 0) + 1
    world.ledger.held.pop(id)
    await storage.jobs.release(claim)


async def _cancel(world: World, storage: Storage, given: Any) -> None:
    del given
    if await storage.jobs.cancel(QUEUE, "a"):
        world.ledger.cancelled.add("a")
        world.ledger.held.pop("a", None)


async def _requeue(world: World, storage: Storage, given: Any) -> None:
    del given
    # A requeued job has fresh attempts: one more may be handed out.
    world.ledger.most["a"] = 2
    await storage.dead_letters.requeue(QUEUE, "a")


async def _pause(world: World, storage: Storage, given: Any) -> None:
    del world, given
    await storage.jobs.pause(QUEUE)


async def _resume(world: World, storage: Storage, given: Any) -> None:
    del world, given
    await storage.jobs.resume(QUEUE)


async def _renew(world: World, storage: Storage, claim: Any) -> None:
    del world
    await storage.jobs.renew([claim], lease_for=LEASE)


async def _rebuild(world: World, storage: Storage, given: Any) -> None:
    del world, given
    await storage.maintenance.rebuild_hot()


async def _reconcile(world: World, storage: Storage, given: Any) -> None:
    del world, given
    await storage.maintenance.reconcile()


async def _reap(world: World, storage: Storage, given: Any) -> None:
    world.ledger.held.clear()
    del given
    await storage.maintenance.reap()


async def _take_over(world: World, storage: Storage, given: Any) -> None:
    world.ledger.held.clear()
    del given
    await world.claim(storage, 5)


async def _maintain(world: World, storage: Storage, given: Any) -> None:
    del world, given
    await storage.maintenance.run_once()


SCENARIOS: Final[tuple[Scenario, ...]] = (
    Scenario("add", _nothing, _add),
    Scenario("add many", _nothing, _add_many),
    Scenario("claim", _two_jobs, _claim),
    Scenario("complete", _claimed, _complete),
    Scenario("fail with attempts left", _claimed, _fail),
    Scenario("fail the last attempt", _claimed_last, _fail),
    Scenario("release", _claimed, _release),
    Scenario("renew", _claimed, _renew),
    Scenario("cancel a waiting job", _two_jobs, _cancel),
    Scenario("cancel an active job", _claimed, _cancel),
    Scenario("requeue a dead letter", _dead, _requeue),
    Scenario("take over lapsed jobs", _lapsed, _take_over),
    Scenario("reap lapsed jobs", _lapsed, _reap),
    Scenario("pause", _two_jobs, _pause),
    Scenario("resume", _paused, _resume),
    Scenario("reconcile", _unpublished, _reconcile),
    Scenario("rebuild the hot plane", _lost, _rebuild),
    Scenario("a pass of maintenance", _lost, _maintain),
)


# --- the explorer ----------------------------------------------------------------------


@attrs.define
class Explorer:
    """
    Tries the crash points of a scenario.

    Attributes:
        world: Makes a fresh, empty world.
        parallel: How many points are tried at the same time; 1 where they share
            a clock.
        patience: Seconds after which a step counts as hanging.
        sample: How many points are tried at most; None for all.
        seed: Which ones.
    """

    world: Callable[[], World]
    parallel: int = 1
    patience: float = 60.0
    sample: int | None = None
    seed: str = "0"

    async def points(self, scenario: Scenario) -> list[CrashPoint]:
        """Run a scenario without faults, and list what it calls."""
        world = self.world()
        async with world.open(world.faults) as storage:
            given = await scenario.prepare(world, storage, None)
            await storage.runs.flush()
            world.faults.reset()
            await scenario.act(world, storage, given)
            calls = list(world.faults.calls)
        return [
            CrashPoint(scenario.name, call.name, call.nth, end) for call in calls for end in _ENDS
        ]

    async def explore(self, scenario: Scenario) -> int:
        """
        Try every point of a scenario, or a sample of them.

        Returns:
            How many points were tried.

        Raises:
            AssertionError: An invariant does not hold; names the points.
        """
        points = await self.points(scenario)
        if self.sample is not None and self.sample < len(points):
            points = random.Random(f"{self.seed}-{scenario.name}").sample(points, self.sample)
        gate = asyncio.Semaphore(self.parallel)

        async def one(point: CrashPoint) -> str | None:
            async with gate:
                try:
                    async with asyncio.timeout(self.patience):
                        await self.try_point(scenario, point)
                except (AssertionError, TimeoutError) as error:
                    return f"{point}: {error or 'hangs'}"
            return None

        broken = [found for found in await asyncio.gather(*map(one, points)) if found]
        assert not broken, f"{len(broken)} of {len(points)} points:\n" + "\n".join(broken)
        return len(points)

    async def try_point(self, scenario: Scenario, point: CrashPoint) -> None:
        """Let one thing go wrong, repair, and look."""
        world = self.world()
        await self._go_wrong(world, scenario, point)
        await recover(world)

    async def _go_wrong(self, world: World, scenario: Scenario, point: CrashPoint) -> None:
        faults = world.faults
        async with _mortal(world.open(faults), faults) as storage:
            given = await scenario.prepare(world, storage, None)
            await storage.runs.flush()
            faults.reset()
            match point.end:
                case "die before":
                    faults.crash(point.call, nth=point.nth)
                case "die after":
                    faults.crash(point.call, nth=point.nth, when="after")
                case "refuse":
                    faults.fail(point.call, nth=point.nth)
                case _:
                    faults.fail(point.call, nth=point.nth, when="after")
            await _until_dead(scenario.act(world, storage, given), faults)
            faults.heal()


@contextlib.asynccontextmanager
async def _mortal(
    opened: AbstractAsyncContextManager[Storage], faults: Faults
) -> AsyncIterator[Storage]:
    """Open a storage that may die: closing it then is nobody's concern."""
    storage = await opened.__aenter__()
    try:
        yield storage
    finally:
        try:
            await opened.__aexit__(None, None, None)
        except (Crash, Exception):
            if not faults.dead:
                raise


async def _until_dead(step: Awaitable[Any], faults: Faults) -> None:
    """Run a step to its end, or to the death of its process."""
    task = asyncio.ensure_future(step)
    death = asyncio.ensure_future(faults.died.wait())
    await asyncio.wait({task, death}, return_when=asyncio.FIRST_COMPLETED)
    death.cancel()
    if not task.done():
        # Whoever waits for a dead flush would wait for ever.
        task.cancel()
    # A refused or unanswered call is reported to the caller, and to nobody else.
    with contextlib.suppress(
        Crash, UnavailableError, LeaseLostError, ConflictError, asyncio.CancelledError
    ):
        await task


# --- repair and invariants ------------------------------------------------------------------


async def recover(world: World) -> None:
    """
    Let a fresh storage repair and finish everything, and check on the way.

    Raises:
        AssertionError: An invariant does not hold.
    """
    async with world.open(None) as storage:
        await storage.maintenance.run_once()
        await check_projection(storage)
        await _respect_leases(world, storage)
        await world.elapse(LEASE + 0.3)
        world.ledger.held.clear()
        await storage.jobs.resume(QUEUE)
        await _drain(world, storage)
        await check(world, storage)


async def _respect_leases(world: World, storage: Storage) -> None:
    """Nobody else gets a job while its worker holds the lease."""
    before = dict(world.ledger.held)
    claims = await world.claim(storage, 20)
    # On a busy machine a real lease may have lapsed by itself meanwhile.
    now = await storage.hot.now()
    held = {job for job, claim in before.items() if claim.lease.expires_at > now}
    taken = {claim.lease.id for claim in claims}
    assert not held & taken, f"{held & taken} run twice without a lapse"
    for claim in claims:
        await world.complete(storage, claim)


async def _drain(world: World, storage: Storage) -> None:
    for _ in range(_ROUNDS):
        await storage.maintenance.run_once()
        for claim in await world.claim(storage, 20):
            await world.complete(storage, claim)
        if not await _open(storage):
            return
        await world.elapse(0.15)
    left = await storage.jobs.counts(QUEUE)
    raise AssertionError(f"jobs are stuck: {left}")


async def _open(storage: Storage) -> int:
    counts = await storage.jobs.counts(QUEUE)
    return counts["waiting"] + counts["delayed"] + counts["active"]


async def check_projection(storage: Storage) -> None:
    """
    Check that the broker knows every job that should be there.

    Raises:
        AssertionError: A job cannot be claimed.
    """
    for status in ("waiting", "delayed", "active"):
        page = await storage.jobs.query(QUEUE, status=status, limit=1000)
        ids = [job.id for job in page]
        known = await storage.hot.broker.contains(QUEUE, ids)
        lost = [id for id, there in zip(ids, known, strict=True) if not there]  # noqa: A001
        assert not lost, f"{status} jobs that no broker knows: {lost}"


async def check(world: World, storage: Storage) -> None:
    """
    Check what must hold when everything has been worked off.

    Raises:
        AssertionError: An invariant does not hold.
    """
    ledger = world.ledger
    jobs = {job.id: job for job in await storage.jobs.query(QUEUE, limit=1000)}
    dead = {job.id: job for job in await storage.dead_letters.query(QUEUE, limit=1000)}
    lost = ledger.added - {*jobs} - {*dead}
    assert not lost, f"acknowledged jobs are lost: {lost}"
    both = {*jobs} & {*dead}
    assert not both, f"jobs that are dead and alive: {both}"
    for id in ledger.cancelled:  # noqa: A001 - the word of the contract
        assert jobs[id].status == "cancelled", f"{id} was cancelled, but is {jobs[id].status}"
    for id in ledger.ended:  # noqa: A001 - the word of the contract
        assert jobs[id].status == "completed", f"{id} was done, but is {jobs[id].status}"
        assert jobs[id].data == {"id": id}
    _check_attempts(ledger)
    await _check_counts(storage)
    await _check_runs(storage, {*jobs, *dead})
    await _check_leftovers(storage)


def _check_attempts(ledger: Ledger) -> None:
    for id, seen in ledger.attempts.items():  # noqa: A001 - the word of the contract
        tokens = [token for _, token in seen]
        assert tokens == sorted(set(tokens)), f"{id}: tokens do not grow: {seen}"
        most = ledger.most[id] + ledger.released.get(id, 0)
        assert len(seen) <= most, f"{id} was run {len(seen)} times, {most} were allowed"


async def _check_counts(storage: Storage) -> None:
    counts = await storage.jobs.counts(QUEUE)
    for status in ("waiting", "delayed", "active", "completed", "cancelled"):
        listed = await storage.jobs.query(QUEUE, status=status, limit=1000)
        assert counts[status] == len(listed), f"{status}: {counts[status]} counted"


async def _check_runs(storage: Storage, ids: set[str]) -> None:
    page = await storage.runs.query(limit=1000)
    for id in ids:  # noqa: A001 - the word of the contract
        runs = [run for run in page if run.job_id == id]
        done = [run for run in runs if run.status == "completed"]
        assert len(done) <= 1, f"{id} has {len(done)} completed runs"
        for run in runs:
            assert run.attempts >= 1
            assert run.input == {"id": id}, f"the run of {id} has the input {run.input!r}"


async def _check_leftovers(storage: Storage) -> None:
    counts = await storage.hot.broker.counts(QUEUE)
    left = counts.ready + counts.delayed + counts.leased
    assert left == 0, f"the broker still knows {left} ids of finished jobs: {counts}"
    assert not counts.paused, "the queue is paused, but was resumed"
    open_jobs = await storage.durable.count(
        Query(namespace=f"queue_job:{QUEUE}", where=[("status", "in", ["waiting", "active"])])
    )
    assert open_jobs == 0
