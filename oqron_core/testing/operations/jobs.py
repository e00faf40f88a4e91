"""Jobs and dead letters: what is added, settled, called off and brought back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from oqron_core.models import JobSpec
from oqron_core.protocol.claims import Claim
from oqron_core.storage import Storage
from oqron_core.testing.operations.state import LEASE
from oqron_core.testing.operations.walk import Case


__all__ = ["CASES"]

QUEUE: Final = "q"
LATER: Final = 3600.0
SWEEP: Final = 10
"""Passes of maintenance, of which one also looks at what the broker knows."""


async def _two_jobs(storage: Storage, given: Any) -> None:
    del given
    for job_id in ("a", "b"):
        await storage.jobs.add(QUEUE, {"id": job_id}, id=job_id)


async def _claimed(storage: Storage, given: Any) -> list[Claim]:
    await _two_jobs(storage, given)
    return await storage.jobs.claim(QUEUE, limit=1, lease_for=LEASE)


async def _claimed_last(storage: Storage, given: Any) -> list[Claim]:
    del given
    await storage.jobs.add(QUEUE, {"id": "a"}, id="a", max_attempts=1)
    return await storage.jobs.claim(QUEUE, lease_for=LEASE)


async def _claimed_both(storage: Storage, given: Any) -> list[Claim]:
    await _two_jobs(storage, given)
    return await storage.jobs.claim(QUEUE, limit=2, lease_for=LEASE)


async def _dead(storage: Storage, given: Any) -> None:
    [claim] = await _claimed_last(storage, given)
    await storage.jobs.fail(claim, "boom")


async def _holding(storage: Storage, given: Any) -> None:
    del given
    await storage.controls.pause("queue", QUEUE, behaviour="hold")


async def _later(storage: Storage, given: Any) -> None:
    del given
    await storage.jobs.add(QUEUE, {"id": "a"}, id="a", delay=LATER)


async def _paused(storage: Storage, given: Any) -> None:
    await _two_jobs(storage, given)
    await storage.jobs.pause(QUEUE)


async def _add(storage: Storage, given: Any) -> None:
    del given
    await storage.jobs.add(QUEUE, {"id": "a"}, id="a", priority=5)


async def _add_later(storage: Storage, given: Any) -> None:
    del given
    await storage.jobs.add(QUEUE, {"id": "a"}, id="a", delay=LATER)


async def _add_unnamed(storage: Storage, given: Any) -> None:
    del given
    await storage.jobs.add(QUEUE, {"n": 1})


async def _add_many(storage: Storage, given: Any) -> None:
    del given
    specs = [JobSpec({"n": n}, id=f"{n}", priority=-n) for n in range(4)]
    await storage.jobs.add_many(QUEUE, specs, tags=["x"])


async def _claim(storage: Storage, given: Any) -> list[Claim]:
    del given
    return await storage.jobs.claim(QUEUE, limit=2, lease_for=LEASE)


async def _renew(storage: Storage, claims: Any) -> None:
    await storage.jobs.renew(claims, lease_for=LEASE)


async def _keep(storage: Storage, claims: Any) -> None:
    async with storage.jobs.keep(claims, lease_for=LEASE, every=0.01):
        await _until_called(storage)


async def _until_called(storage: Storage) -> None:
    # What keeps the leases is at it in the background: its call comes before ours.
    await storage.jobs.renew([], lease_for=LEASE)
    await storage.hot.broker.wait(["nobody's"], timeout=0.0)


async def _complete(storage: Storage, claims: Any) -> None:
    await storage.jobs.complete(claims[0], {"done": True})


async def _complete_many(storage: Storage, claims: Any) -> None:
    await storage.jobs.complete_many([(claim, {"done": True}) for claim in claims])


async def _fail(storage: Storage, claims: Any) -> None:
    await storage.jobs.fail(claims[0], "boom", retry_in=0.0)


async def _release(storage: Storage, claims: Any) -> None:
    await storage.jobs.release(claims[0])


async def _cancel(storage: Storage, given: Any) -> None:
    del given
    await storage.jobs.cancel(QUEUE, "a")


async def _postpone(storage: Storage, given: Any) -> None:
    del given
    await storage.jobs.reschedule(QUEUE, "a", delay=LATER)


async def _hasten(storage: Storage, given: Any) -> None:
    del given
    await storage.jobs.reschedule(QUEUE, "a")


async def _pause(storage: Storage, given: Any) -> None:
    del given
    await storage.jobs.pause(QUEUE, reason="a test")


async def _resume(storage: Storage, given: Any) -> None:
    del given
    await storage.jobs.resume(QUEUE)


async def _requeue(storage: Storage, given: Any) -> None:
    del given
    await storage.dead_letters.requeue(QUEUE, "a")


async def _bury(storage: Storage, given: Any) -> None:
    del given
    await storage.dead_letters.delete(QUEUE, "a")


async def _nothing_is_handed_out(storage: Storage) -> None:
    claims = await storage.jobs.claim(QUEUE, limit=10, lease_for=LEASE)
    assert not claims, f"a paused queue handed out {[claim.id for claim in claims]}"


async def _never_runs(storage: Storage) -> None:
    claims = await storage.jobs.claim(QUEUE, limit=10, lease_for=LEASE)
    ids = [claim.id for claim in claims]
    for claim in claims:
        await storage.jobs.release(claim)
    assert "a" not in ids, "a cancelled job was handed out"


def _the_answer(given: Any, answer: Any) -> Sequence[Claim]:
    del given
    return [claim for claim in answer if not claim.settled]


def _the_given(given: Any, answer: Any) -> Sequence[Claim]:
    del answer
    claims: Sequence[Claim] = given
    return claims


CASES: Final[tuple[Case, ...]] = (
    Case(name="add a job", covers=("jobs.add",), act=_add),
    Case(name="add a job for later", covers=("jobs.add",), act=_add_later),
    Case(name="add a job without an id", covers=("jobs.add",), act=_add_unnamed, twice=True),
    Case(name="add a job that is held", covers=("jobs.add",), prepare=_holding, act=_add),
    Case(name="add many jobs", covers=("jobs.add_many",), act=_add_many),
    Case(
        name="add many jobs that are held",
        covers=("jobs.add_many",),
        prepare=_holding,
        act=_add_many,
    ),
    Case(
        name="claim jobs",
        covers=("jobs.claim",),
        prepare=_two_jobs,
        act=_claim,
        again="never",
        held=_the_answer,
    ),
    Case(
        name="renew a lease",
        covers=("jobs.renew",),
        prepare=_claimed,
        act=_renew,
        again="here",
        held=_the_given,
    ),
    Case(
        name="keep a lease",
        covers=("jobs.keep",),
        prepare=_claimed,
        act=_keep,
        again="here",
        held=_the_given,
    ),
    Case(
        name="complete a job",
        covers=("jobs.complete",),
        prepare=_claimed,
        act=_complete,
        again="here",
    ),
    Case(
        name="complete many jobs",
        covers=("jobs.complete_many",),
        prepare=_claimed_both,
        act=_complete_many,
        again="here",
    ),
    Case(
        name="fail an attempt",
        covers=("jobs.fail",),
        prepare=_claimed,
        act=_fail,
        again="here",
    ),
    Case(
        name="fail the last attempt",
        covers=("jobs.fail",),
        prepare=_claimed_last,
        act=_fail,
        again="here",
    ),
    Case(
        name="release a job",
        covers=("jobs.release",),
        prepare=_claimed,
        act=_release,
        again="here",
    ),
    Case(
        name="cancel a waiting job",
        covers=("jobs.cancel",),
        prepare=_two_jobs,
        act=_cancel,
        holds=_never_runs,
    ),
    Case(
        name="cancel an active job",
        covers=("jobs.cancel",),
        prepare=_claimed,
        act=_cancel,
        holds=_never_runs,
    ),
    Case(
        name="postpone a job",
        covers=("jobs.reschedule",),
        prepare=_two_jobs,
        act=_postpone,
        passes=SWEEP,
    ),
    Case(
        name="hasten a job",
        covers=("jobs.reschedule",),
        prepare=_later,
        act=_hasten,
        passes=SWEEP,
    ),
    Case(
        name="pause a queue",
        covers=("jobs.pause",),
        prepare=_two_jobs,
        act=_pause,
        holds=_nothing_is_handed_out,
    ),
    Case(name="resume a queue", covers=("jobs.resume",), prepare=_paused, act=_resume),
    Case(
        name="requeue a dead letter",
        covers=("dead_letters.requeue",),
        prepare=_dead,
        act=_requeue,
    ),
    Case(
        name="delete a dead letter",
        covers=("dead_letters.delete",),
        prepare=_dead,
        act=_bury,
    ),
)
