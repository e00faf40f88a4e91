"""Runs whose claim nobody holds any more: ended as their jobs say."""

from __future__ import annotations

from collections.abc import Sequence

from oqron_core.planes.durable import DurablePlane
from oqron_core.planes.values import Record
from oqron_core.protocol.run_handle import RunHandle
from oqron_core.protocol.transitions import DLQ, JOB


__all__ = ["end_orphans"]


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
        letters = jobs
        if queue and all(ids):
            jobs = await durable.get(JOB + queue, ids)
            letters = await durable.get(DLQ + queue, ids)
        for handle, job, letter in zip(some, jobs, letters, strict=True):
            _end(handle, job if job is not None else letter)


def _end(handle: RunHandle, job: Record | None) -> None:
    status = None
    if job is not None and job.field("runId") == handle.id:
        status = job.text("status")
    if job is None or status is None or status == "active":
        handle.fail_text("abandoned: the outcome is unknown", None, reason="abandoned")
    elif status == "completed":
        handle.finish_encoded(job.encoded("returnValue"))
    elif status == "cancelled":
        handle.cancel()
    elif job.integer("attemptMade") < handle.attempt:
        # It was given back, and the attempt does not count.
        handle.cancel("released")
    else:
        handle.fail_text(job.text("error"), None)
