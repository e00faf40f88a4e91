"""Runs on which nobody works any more: ended as their jobs say."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from oqron_core._codec import NULL, Json
from oqron_core.planes.durable import DurablePlane
from oqron_core.planes.values import Record
from oqron_core.protocol.run_handle import RunHandle
from oqron_core.protocol.transitions import DLQ, JOB


__all__ = ["Outcome", "end_orphans", "jobs_or_letters", "outcome_of"]


@attrs.frozen
class Outcome:
    """
    How an attempt ended.

    Attributes:
        status: That of its run.
        error: Why it failed, or what ended it; None where it was completed.
        output: What it gave.
    """

    status: str
    error: str | None = None
    output: Json = NULL


def outcome_of(job: Record | None, run_id: str, attempt: int) -> Outcome | None:
    """
    Say what a job, or the dead letter that it became, tells of an attempt of it.

    None where it tells nothing: it is gone, goes on, or somebody else took over.
    """
    if job is None or job.field("runId") != run_id:
        return None
    status = job.text("status")
    if status == "completed":
        return Outcome("completed", output=job.encoded("returnValue"))
    if status == "cancelled":
        return Outcome("cancelled", "cancelled")
    if status not in {"waiting", "delayed", "failed"}:
        return None
    if job.integer("attemptMade") < attempt:
        # It was given back, and the attempt does not count.
        return Outcome("cancelled", "released")
    return Outcome("failed", job.text("error"))


async def jobs_or_letters(
    durable: DurablePlane, queue: str, ids: Sequence[str]
) -> list[Record | None]:
    """Read jobs of a queue; where one is gone, the dead letter that it became."""
    found = [*await durable.get(JOB + queue, ids)]
    gone = [place for place, job in enumerate(found) if job is None]
    if gone:
        letters = await durable.get(DLQ + queue, [ids[place] for place in gone])
        for place, letter in zip(gone, letters, strict=True):
            found[place] = letter
    return found


async def end_orphans(durable: DurablePlane, handles: Sequence[RunHandle]) -> None:
    """
    End runs of this process on which nobody works any more.

    Mostly somebody dropped a claim. But it may have been settled as well, by a write
    that had no answer: then the job tells how it ended. Whoever took over may have
    closed the row of the run already, and has the last word.

    Raises:
        UnavailableError: The durable plane did not answer; those that are left go on.
    """
    by_queue: dict[str, list[RunHandle]] = {}
    for handle in handles:
        by_queue.setdefault(handle.queue_name or "", []).append(handle)
    for queue, some in by_queue.items():
        ids = [handle.job_id or "" for handle in some]
        jobs: Sequence[Record | None] = [None] * len(ids)
        if queue and all(ids):
            jobs = await jobs_or_letters(durable, queue, ids)
        for handle, job in zip(some, jobs, strict=True):
            _end(handle, outcome_of(job, handle.id, handle.attempt))


def _end(handle: RunHandle, outcome: Outcome | None) -> None:
    if outcome is None:
        handle.fail_text("abandoned: the outcome is unknown", None, reason="abandoned")
    elif outcome.status == "completed":
        handle.finish_encoded(outcome.output)
    elif outcome.status == "cancelled":
        handle.cancel(outcome.error or "cancelled")
    else:
        handle.fail_text(outcome.error or "", None)
