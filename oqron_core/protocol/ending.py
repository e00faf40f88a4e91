"""Ends that no lease allows: lapses, cancels, requeues, runs left open."""

from __future__ import annotations

import logging

from typing import Any, Final

from oqron_core._codec import readable_fields
from oqron_core.exceptions import ClosedError, ConflictError, StorageError
from oqron_core.models._wire import structure
from oqron_core.models.job import Job, JobSpec
from oqron_core.planes.values import Entry, Insert, Patch, Record, Write
from oqron_core.protocol import transitions
from oqron_core.protocol.cancels import CANCELS, Claims
from oqron_core.protocol.duetimes import tell_times
from oqron_core.protocol.lanes import broker_id
from oqron_core.protocol.orphans import jobs_or_letters, outcome_of
from oqron_core.protocol.reading import priority_of
from oqron_core.protocol.recorder import merged
from oqron_core.protocol.run_handle import RUNS
from oqron_core.protocol.session import Session
from oqron_core.protocol.transitions import DLQ, FINAL, JOB


__all__ = ["Ending", "bury_lapsed", "close_run", "close_run_of", "lapses_at"]

log: logging.Logger = logging.getLogger("oqron.protocol")

_READS: Final = 10
_CLOSE_TRIES: Final = 5


class Ending:
    """The steps of whoever steers a queue: cancel, requeue."""

    def __init__(self, session: Session, claims: Claims) -> None:
        self._session = session
        self._claims = claims

    async def cancel(self, queue: str, job_id: str) -> bool:
        """Call a job off, whatever it is doing; True if it is cancelled now."""
        session = self._session
        namespace = JOB + queue
        for _ in range(_READS):
            record = (await session.durable.get(namespace, [job_id]))[0]
            if record is None:
                # A cancel that deletes at once, and had no answer, may have come so far.
                await self._remove(queue, job_id)
                return False
            status = record.text("status")
            now = await session.durable_time.now()
            if status == "cancelled":
                # The cancel may have had no answer: then nobody was told.
                await self._after_cancel(queue, record, now)
                return True
            if status in FINAL:
                return False
            write = transitions.cancelled(
                record, queue=queue, now=now, keep_for=session.settings.retention.cancelled_for
            )
            result = await session.write(write)
            if result.applied:
                await self._after_cancel(queue, record, now)
                return True
        msg = f"job {job_id!r} changed under {_READS} tries to cancel it; try again"
        raise ConflictError(msg)

    async def _after_cancel(self, queue: str, record: Record, now: int) -> None:
        session = self._session
        token = record.field("leaseToken")
        # What was cancelled before is not known to have been in somebody's hands.
        was_claimed = record.field("status") == "active" or (
            record.field("status") == "cancelled" and token is not None
        )
        if was_claimed:
            claim = self._claims.find(queue, record.id, token)
            if claim is not None:
                claim.set_cancelled()
                claim.run.cancel()
            else:
                await close_run_of(session, record, "cancelled", "cancelled", now)
        await self._remove(queue, record.id)
        if not was_claimed:
            return
        try:
            # Also where the lease is still there: its renewals tell the worker nothing.
            message = [queue, record.id, token]
            await session.hot.signals.publish(CANCELS, message)
        except StorageError as error:
            log.debug("the worker is told by its next renewal: %s", error)

    async def _remove(self, queue: str, job_id: str) -> None:
        try:
            await self._session.hot.broker.remove(queue, [job_id])
        except StorageError as error:
            log.debug("the claimer will drop the cancelled job: %s", error)

    async def reschedule(self, queue: str, job_id: str, spec: JobSpec) -> bool:
        """Give a waiting job another due time; False where it does not wait."""
        session = self._session
        for _ in range(_READS):
            now = await session.durable_time.now()
            record = (await session.durable.get(JOB + queue, [job_id]))[0]
            if record is None or record.text("status") not in {"waiting", "delayed"}:
                return False
            if await session.write(transitions.rescheduled(record, spec, queue=queue, now=now)):
                try:
                    await tell_times(session, queue, [job_id])
                except (StorageError, ClosedError) as error:
                    log.warning("another time of a job is told later by maintenance: %s", error)
                return True
        msg = f"job {job_id!r} changed under {_READS} tries to reschedule it; try again"
        raise ConflictError(msg)

    async def requeue(self, queue: str, job_id: str) -> Job | None:
        """Turn a dead letter into a fresh job; None where there is none."""
        session = self._session
        record = (await session.durable.get(DLQ + queue, [job_id]))[0]
        if record is None:
            return None
        gone, fresh = transitions.requeued(record, queue=queue)
        try:
            await session.write_atomic([gone, fresh])
        except ConflictError:
            if (await session.durable.get(DLQ + queue, [job_id]))[0] is None:
                return None  # someone else requeued it
            msg = f"queue {queue!r} has a job {job_id!r} again; settle or cancel that one first"
            raise ConflictError(msg) from None
        entry = Entry(broker_id(queue, job_id), priority_of(record))
        published = await session.publish(queue, entry)
        job = structure(Job, readable_fields(fresh.value))
        object.__setattr__(job, "published", published)
        return job


def lapses_at(record: Record) -> int:
    """
    Give the instant before which the lease of an active job has surely not lapsed.

    By the durable plane's clock: from the claim on, for as long as it was leased;
    renewals may have prolonged it, and the hot plane knows of them.
    """
    return record.integer("processedOn") + record.integer("leaseMs")


async def bury_lapsed(session: Session, queue: str, record: Record, now: int) -> bool:
    """
    Make a dead letter of an active job without attempts whose lease is over.

    Returns:
        False where the job has changed since it was read.
    """
    made = record.integer("attemptMade", 1)
    reason = "lease lapsed" if made == 1 else f"lease lapsed × {made}"
    gone, letter = transitions.dead(
        record,
        queue=queue,
        expect=record.guards("status", "leaseToken"),
        now=now,
        reason=reason,
        error=reason,
        stacktrace=None,
        keep_for=session.settings.retention.dead_letters_for,
    )
    try:
        await session.write_atomic([gone, letter])
    except ConflictError:
        return False
    await close_run_of(session, record, "failed", "lease lapsed", now)
    return True


async def close_run_of(
    session: Session, record: Record, status: str, reason: str, now: int
) -> None:
    """Close the run of an attempt that its worker will not close."""
    run_id = record.field("runId")
    if not isinstance(run_id, str):
        return
    try:
        await close_run(session, run_id, record, status, reason, now)
    except StorageError as error:
        log.warning("the run of a lost attempt stays open for maintenance: %s", error)


async def close_run(
    session: Session, run_id: str, job: Record | None, status: str, reason: str, now: int
) -> bool:
    """
    Close a run that its worker will not close, from whatever is known of it.

    History is written once: a run that has a terminal row is left alone. Where
    neither plane knows the run, its row is made from the job. Where the worker died
    between the end of the job and that of the run, the run ends as the job did.

    Returns:
        Whether a row was written.
    """
    handle = session.recorder.handle(run_id)
    if handle is not None:
        handle.fail(reason, reason=reason) if status == "failed" else handle.cancel(reason)
        return True
    applied = False
    for _ in range(_CLOSE_TRIES):
        row = (await session.durable.get(RUNS, [run_id]))[0]
        if row is not None and row.text("status") not in {"running", "queued"}:
            break
        # Whoever lost the attempt may be alive, and put its row there meanwhile.
        write = await _closing(session, run_id, row, job, status, reason, now)
        if (await session.durable.write([write], returning=()))[0].applied:
            applied = True
            break
    await session.hot.live.drop([run_id])
    return applied


async def _closing(
    session: Session,
    run_id: str,
    row: Record | None,
    job: Record | None,
    status: str,
    reason: str,
    now: int,
) -> Write:
    """Build the write that closes a run whose row was read."""
    live = await session.hot.live.get(run_id)
    known = merged(None if row is None else row.value, live) or {}
    value = _closed(session, run_id, known, job, status, reason, now)
    if job is None and status == "failed":
        value.update(await _as_its_job(session, run_id, value))
    keep_for = session.settings.retention.runs_for
    expires_at = None if keep_for is None else now + round(keep_for * 1000)
    if row is None:
        return Insert(RUNS, run_id, value, expires_at)
    return Patch(
        RUNS,
        run_id,
        set={name: field for name, field in value.items() if name != "id"},
        expect={"status": row.field("status")},
        expires_at=expires_at,
    )


async def _as_its_job(session: Session, run_id: str, value: dict[str, Any]) -> dict[str, Any]:
    """Give the end of a run whose attempt was settled, as the job's record has it."""
    queue, job_id, attempt = value["queueName"], value["jobId"], value["attempts"]
    if not isinstance(queue, str) or not isinstance(job_id, str) or not isinstance(attempt, int):
        return {}
    job = (await jobs_or_letters(session.durable, queue, [job_id]))[0]
    outcome = outcome_of(job, run_id, attempt)
    if job is None or outcome is None:
        return {}
    # A job that waits again does not tell when its attempt ended.
    ended = max(value["startedAt"], job.integer("finishedAt") or value["endedAt"])
    last = {**value["timeline"][-1], "ts": ended, "to": outcome.status}
    return {
        "status": outcome.status,
        "output": outcome.output,
        "error": outcome.error,
        "progressPercent": 100 if outcome.status == "completed" else value["progressPercent"],
        "endedAt": ended,
        "durationMs": ended - value["startedAt"],
        "timeline": [*value["timeline"][:-1], last],
    }


def _closed(
    session: Session,
    run_id: str,
    known: dict[str, Any],
    job: Record | None,
    status: str,
    reason: str,
    now: int,
) -> dict[str, Any]:
    scope = session.durable.scope
    value: dict[str, Any] = {
        "id": run_id,
        "name": "" if job is None else job.field("queueName"),
        "module": "queue",
        "trigger": "queue",
        "input": None if job is None else job.encoded("data"),
        "output": None,
        "attempts": 1 if job is None else job.field("attemptMade"),
        "progressPercent": 0,
        "logs": [],
        "timeline": [],
        "app": scope.project,
        "environment": scope.environment,
        "workerId": None if job is None else job.field("workerId"),
        "startedAt": now if job is None else job.field("processedOn"),
        "jobId": None if job is None else job.id,
        "queueName": None if job is None else job.field("queueName"),
        **known,
    }
    started = value["startedAt"] if isinstance(value["startedAt"], int) else now
    ended = max(now, started)
    timeline = value["timeline"] if isinstance(value["timeline"], list) else []
    value.update(
        {
            "status": status,
            "error": reason,
            "startedAt": started,
            "endedAt": ended,
            "durationMs": ended - started,
            "timeline": [
                *timeline,
                {"ts": ended, "from": "running", "to": status, "reason": reason},
            ],
        }
    )
    return value
