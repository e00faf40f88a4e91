"""
The life of a job on two planes, step by step.

Every step writes the durable plane first; what follows on the hot plane may be
lost at any moment and is made good by the next claim, a lapse, or maintenance.
"""

from __future__ import annotations

import asyncio
import logging
import weakref

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from oqron_core._codec import Json, portable_value
from oqron_core._ids import uuid7
from oqron_core.exceptions import (
    ConflictError,
    CorruptRecordError,
    InvalidValueError,
    LeaseLostError,
    StorageError,
    UnavailableError,
)
from oqron_core.models._wire import structure
from oqron_core.models.backoff import Backoff
from oqron_core.models.job import Job, JobSpec
from oqron_core.planes.checks import delay_ms, lease_ms
from oqron_core.planes.values import (
    Entry,
    Insert,
    Lease,
    Order,
    Patch,
    Record,
    Write,
    WriteResult,
)
from oqron_core.protocol import transitions
from oqron_core.protocol.claims import Claim
from oqron_core.protocol.recorder import RUNS, describe_error, merged
from oqron_core.protocol.session import Session
from oqron_core.protocol.transitions import DLQ, JOB


__all__ = ["CANCELS", "FINAL", "OPEN", "Orders", "RunKind", "close_run"]

log = logging.getLogger("oqron.protocol")

T = TypeVar("T")

CANCELS: Final = "oqron:jobs:cancel"
"""The channel on which a cancel reaches the worker."""
FINAL: Final = frozenset({"completed", "failed", "cancelled"})
OPEN: Final = ("waiting", "delayed", "active")
"""Statuses of jobs that the broker should know."""

_ADD_CHUNK: Final = 1000
_EARLY_MS: Final = 50
_READS: Final = 10
_ASIDE_FOR: Final = 60.0


class RunKind:
    """How runs of a queue are labelled."""

    __slots__ = ("module", "trigger")

    def __init__(self, module: str = "queue", trigger: str = "queue") -> None:
        self.module = module
        self.trigger = trigger


_QUEUE: Final = RunKind()


class Orders:
    """The steps. Used by the services of jobs, dead letters and topics."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._claims: weakref.WeakValueDictionary[tuple[str, str], Claim] = (
            weakref.WeakValueDictionary()
        )
        self._listener: asyncio.Task[Any] | None = None

    # --- add ---

    async def add(self, queue: str, spec: JobSpec) -> Job:
        """Write one job, then publish it; calls at the same time share flushes."""
        session = self._session
        now = await session.durable_time.now()
        insert, delay, job = transitions.new_job(
            queue, spec.data, spec, now=now, max_bytes=session.settings.max_value_bytes
        )
        result = await session.write(insert)
        if not result.applied:
            return await self._existing(queue, job.id, insert)
        entry = Entry(job.id, job.priority, await self._due_at(delay))
        if not await session.publish(queue, entry):
            object.__setattr__(job, "published", False)
        return job

    async def add_many(
        self, queue: str, specs: Sequence[tuple[Any, JobSpec]]
    ) -> list[Job]:
        """
        Write many jobs in large batches; all are checked before any is written.

        Args:
            queue: The queue, already checked.
            specs: Payloads, each with everything else.
        """
        session = self._session
        now = await session.durable_time.now()
        limit = session.settings.max_value_bytes
        made = [
            transitions.new_job(
                queue, data, spec, now=now, max_bytes=limit, path=f"jobs[{i}].data"
            )
            for i, (data, spec) in enumerate(specs)
        ]
        jobs: list[Job] = []
        for start in range(0, len(made), _ADD_CHUNK):
            jobs.extend(await self._add_chunk(queue, made[start : start + _ADD_CHUNK]))
        return jobs

    async def _add_chunk(
        self, queue: str, chunk: Sequence[tuple[Insert, int | None, Job]]
    ) -> list[Job]:
        session = self._session
        results = await session.write_many([insert for insert, _, _ in chunk])
        hot_now = 0
        if any(delay for _, delay, _ in chunk):
            hot_now = await self._hot_now()
        jobs: list[Job] = []
        entries: list[Entry] = []
        fresh: list[Job] = []
        for (insert, delay, job), result in zip(chunk, results, strict=True):
            if result.applied:
                entries.append(Entry(job.id, job.priority, hot_now + delay if delay else None))
                fresh.append(job)
                jobs.append(job)
            else:
                jobs.append(await self._existing(queue, job.id, insert))
        if entries and not await session.publish_many(queue, entries):
            for job in fresh:
                object.__setattr__(job, "published", False)
        return jobs

    async def _hot_now(self) -> int:
        try:
            return await self._session.hot_time.now()
        except StorageError:
            return self._session.hot_time.estimate()

    async def _due_at(self, delay: int | None) -> int | None:
        return None if not delay else await self._hot_now() + delay

    async def _existing(self, queue: str, job_id: str, insert: Insert) -> Job:
        """Give the job that holds the id."""
        found = (await self._session.durable.get(JOB + queue, [job_id]))[0]
        value = dict(insert.value) if found is None else found.value
        if found is None:
            # It ended and was deleted between the two calls: say what was asked.
            value = {k: v.load() if type(v) is Json else v for k, v in value.items()}
        job = structure(Job, value)
        object.__setattr__(job, "duplicate", True)
        return job

    # --- claim ---

    async def claim(
        self,
        queue: str,
        *,
        limit: int,
        lease_for: float,
        worker: str,
        order: Order,
        kind: RunKind = _QUEUE,
    ) -> list[Claim]:
        """Take leases, confirm them in the durable plane, start the runs."""
        while True:
            leases = await self._session.hot.broker.claim(
                queue, owner=worker, lease_for=lease_for, limit=limit, order=order
            )
            if not leases:
                return []
            claims = await self._confirm_whole(leases, lease_ms(lease_for), kind)
            if claims:
                return claims
            # Everything was a leftover and is dropped now: look behind it.

    async def _confirm_whole(
        self, leases: Sequence[Lease], ms: int, kind: RunKind
    ) -> list[Claim]:
        # A caller that is cancelled in the middle must neither burn an attempt
        # nor leave jobs active until the lease lapses: the step runs to its end,
        # and what nobody takes is released.
        task = self._session.spawn(self._confirm(leases, ms, kind), name="oqron-claim")
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._release_unclaimed)
            raise

    def _release_unclaimed(self, task: asyncio.Task[list[Claim]]) -> None:
        if task.cancelled() or task.exception() is not None:
            return
        for claim in task.result():
            self._session.spawn(self._release_quietly(claim), name="oqron-release")

    async def _release_quietly(self, claim: Claim) -> None:
        try:
            await self.release(claim, delay=0.0)
        except (StorageError, LeaseLostError) as error:
            log.debug("an undelivered claim will lapse: %s", error)

    async def _confirm(
        self, leases: Sequence[Lease], ms: int, kind: RunKind
    ) -> list[Claim]:
        now = await self._session.durable_time.now()
        marks = [
            self._mark(lease, ms, now, {"status": "waiting", "startedAt": None}, first=True)
            for lease in leases
        ]
        results = await self._write_marks(leases, marks)
        claims: dict[str, Claim] = {}
        others: list[tuple[Lease, Record | None]] = []
        for lease, result in zip(leases, results, strict=True):
            if result.applied and result.record is not None:
                await self._begin(lease, result.record, now, kind, claims)
            else:
                others.append((lease, result.record))
        if others:
            await self._look_again(others, claims, ms, now, kind)
            return [claims[lease.id] for lease in leases if lease.id in claims]
        return list(claims.values())

    def _mark(
        self, lease: Lease, ms: int, now: int, expect: dict[str, Any], *, first: bool
    ) -> Patch:
        return transitions.started(
            lease, run_id=uuid7(), lease_ms=ms, now=now, expect=expect, first=first
        )

    async def _write_marks(
        self, leases: Sequence[Lease], marks: Sequence[Write]
    ) -> Sequence[WriteResult]:
        try:
            return await self._session.durable.write(marks)
        except UnavailableError:
            # Nothing was confirmed, so nothing may run. Where the mark was written
            # all the same, the next claimer takes over with a larger token.
            await self._session.nack(leases)
            raise

    async def _look_again(
        self,
        others: list[tuple[Lease, Record | None]],
        claims: dict[str, Claim],
        ms: int,
        now: int,
        kind: RunKind,
    ) -> None:
        """Deal with what is not simply waiting: delayed, lapsed, over, gone."""
        for _ in range(_READS):
            takes: list[tuple[Lease, Record]] = []
            leftovers: list[Lease] = []
            for lease, record in others:
                if record is None or record.field("status") not in OPEN:
                    leftovers.append(lease)
                elif await self._may_take(lease, record, now):
                    takes.append((lease, record))
            if leftovers:
                await self._session.ack_many(leftovers)
            if not takes:
                return
            others = await self._take(takes, claims, ms, now, kind)
            if not others:
                return
        await self._session.nack([lease for lease, _ in others])

    async def _may_take(self, lease: Lease, record: Record, now: int) -> bool:
        if record.field("status") == "active":
            token = record.field("leaseToken")
            if isinstance(token, int) and token >= lease.token:
                # Someone claimed it after me, by a broker that was rebuilt.
                return False
            if record.field("attemptMade") >= record.field("maxAttempts"):
                # A lapse consumes an attempt, and this was the last.
                await self.bury_lapsed(lease.queue, record, now)
                await self._session.ack(lease)
                return False
            return True
        run_at = record.field("runAt")
        if isinstance(run_at, int) and run_at > now + _EARLY_MS:
            await self._session.nack([lease], delay=(run_at - now) / 1000)
            return False
        return True

    async def _take(
        self,
        takes: Sequence[tuple[Lease, Record]],
        claims: dict[str, Claim],
        ms: int,
        now: int,
        kind: RunKind,
    ) -> list[tuple[Lease, Record | None]]:
        """Mark what was read, guarded by what was read; give back what changed."""
        marks = [
            self._mark(
                lease,
                ms,
                now,
                {
                    "status": record.field("status"),
                    "leaseToken": record.field("leaseToken"),
                    "attemptMade": record.field("attemptMade"),
                },
                first=record.field("startedAt") is None,
            )
            for lease, record in takes
        ]
        results = await self._write_marks([lease for lease, _ in takes], marks)
        changed: list[tuple[Lease, Record | None]] = []
        for (lease, record), result in zip(takes, results, strict=True):
            if not result.applied or result.record is None:
                changed.append((lease, result.record))
                continue
            if record.field("status") == "active":
                await self._close_run(record, "failed", "lease lapsed", now)
            await self._begin(lease, result.record, now, kind, claims)
        return changed

    async def _begin(
        self, lease: Lease, record: Record, now: int, kind: RunKind, claims: dict[str, Claim]
    ) -> None:
        try:
            claims[lease.id] = self._start(lease, record, now, kind)
        except CorruptRecordError:
            # One unreadable record must hold up neither the batch nor the queue.
            log.exception("a job cannot be read; it is put aside for a minute")
            await self._session.nack([lease], delay=_ASIDE_FOR)

    def _start(self, lease: Lease, record: Record, now: int, kind: RunKind) -> Claim:
        attempt = record.field("attemptMade")
        run = self._session.recorder.start(
            name=lease.queue,
            module=kind.module,
            trigger=kind.trigger,
            encoded_input=record.encoded("data"),
            started_at=now,
            run_id=record.field("runId"),
            attempt=attempt,
            job_id=lease.id,
            queue_name=lease.queue,
            worker_id=lease.owner,
            came_from="waiting",
            reason="claimed",
        )
        claim = Claim(record, lease, run, attempt)
        self._claims[lease.queue, lease.id] = claim
        if self._listener is None:
            self._listener = self._session.spawn(self._listen(), name="oqron-cancels")
        return claim

    async def bury_lapsed(self, queue: str, record: Record, now: int) -> bool:
        """Make a dead letter of an active job without attempts whose lease is over."""
        made = record.field("attemptMade")
        times = f" × {made}" if made != 1 else ""
        reason = f"lease lapsed{times}"
        expect = {"status": "active", "leaseToken": record.field("leaseToken")}
        writes = transitions.dead(
            record,
            queue=queue,
            expect=expect,
            now=now,
            reason=reason,
            error=reason,
            stacktrace=None,
            keep_for=self._session.settings.retention.dead_letters_for,
        )
        try:
            await self._session.write_atomic(writes)
        except ConflictError:
            return False
        await self._close_run(record, "failed", "lease lapsed", now)
        return True

    async def _close_run(self, record: Record, status: str, reason: str, now: int) -> None:
        """Close the run of an attempt that its worker will not close."""
        run_id = record.field("runId")
        if not isinstance(run_id, str):
            return
        try:
            await close_run(self._session, run_id, record, status, reason, now)
        except StorageError as error:
            log.warning("the run of a lost attempt stays open for maintenance: %s", error)

    # --- settle ---

    async def renew(self, claims: Sequence[Claim], *, lease_for: float) -> list[bool]:
        """Renew leases; what is lost is marked on the claim."""
        lease_ms(lease_for)
        if not claims:
            return []
        answers = await self._session.hot.broker.renew(
            [claim.lease for claim in claims], lease_for=lease_for
        )
        for claim, kept in zip(claims, answers, strict=True):
            if not kept and not claim.settled:
                claim.lost = True
        return list(answers)

    async def complete(self, claim: Claim, output: Any) -> None:
        """Write the end, then acknowledge."""
        encoded, refusal = self._output(output)
        write = transitions.completed(
            claim.lease,
            encoded,
            now=await self._settle_time(claim),
            keep_for=self._session.settings.retention.completed_for,
        )
        session = self._session
        result = await self._patiently(claim, lambda: session.settle(write, claim.lease))
        self._end_completed(claim, result, encoded, refusal)

    async def complete_many(self, pairs: Sequence[tuple[Claim, Any]]) -> list[bool]:
        """Write many ends in one batch; False where the lease is lost."""
        session = self._session
        now = await session.durable_time.now()
        keep_for = session.settings.retention.completed_for
        outputs = [self._output(output) for _, output in pairs]
        writes = [
            transitions.completed(claim.lease, encoded, now=now, keep_for=keep_for)
            for (claim, _), (encoded, _) in zip(pairs, outputs, strict=True)
        ]
        results = await session.write_many(writes)
        done: list[bool] = []
        leases: list[Lease] = []
        for (claim, _), result, (encoded, refusal) in zip(pairs, results, outputs, strict=True):
            try:
                self._end_completed(claim, result, encoded, refusal)
            except LeaseLostError:
                done.append(False)
            else:
                done.append(True)
                leases.append(claim.lease)
        if leases:
            await session.ack_many(leases)
        return done

    def _end_completed(
        self, claim: Claim, result: WriteResult, encoded: Json, refusal: str | None
    ) -> None:
        if not result.applied and not self._is_repeated(claim, result, "completed"):
            self._lost(claim, result)
        claim.settled = True
        if refusal is not None:
            claim.run.log("error", f"the output was not stored: {refusal}")
        claim.run.finish_encoded(encoded)

    def _output(self, output: Any) -> tuple[Json, str | None]:
        refused: list[InvalidValueError] = []
        encoded = portable_value(
            output,
            max_bytes=self._session.settings.max_value_bytes,
            on_refused=refused.append,
        )
        return encoded, str(refused[0]) if refused else None

    async def fail(
        self, claim: Claim, error: object, *, retry_in: float | None, retry: bool
    ) -> Job:
        """Write a failed attempt: delayed for the next one, or a dead letter."""
        if retry_in is not None:
            delay_ms(retry_in, "retry_in")
        text, trace = describe_error(error)
        left = claim.attempt < claim.record.field("maxAttempts")
        if retry and left:
            job = await self._retry(claim, text, trace, retry_in)
        else:
            reason = "attempts exhausted" if retry else "discarded"
            job = await self._die(claim, text, trace, reason)
        claim.settled = True
        claim.run.fail_text(text, trace, reason=None if retry else "discarded")
        return job

    async def _retry(
        self, claim: Claim, text: str, trace: str | None, retry_in: float | None
    ) -> Job:
        session = self._session
        if retry_in is None:
            opts = claim.record.field("opts")
            rule = Backoff.from_wire(opts.get("backoff") if isinstance(opts, dict) else None)
            retry_in = rule.delay_after(claim.attempt)
        now = await self._settle_time(claim)
        run_at = now + delay_ms(retry_in)
        write = transitions.retried(
            claim.lease, claim.record, run_at=run_at, error=text, stacktrace=trace
        )
        result = await self._settle(claim, write)
        if not result.applied:
            self._lost(claim, result)
        await session.nack([claim.lease], delay=retry_in)
        return _after(claim, write)

    async def _die(self, claim: Claim, text: str, trace: str | None, reason: str) -> Job:
        session = self._session
        writes = transitions.dead(
            claim.record,
            queue=claim.lease.queue,
            expect={"status": "active", "leaseToken": claim.lease.token},
            now=await self._settle_time(claim),
            reason=reason,
            error=text,
            stacktrace=trace,
            keep_for=session.settings.retention.dead_letters_for,
        )
        try:
            await self._patiently(claim, lambda: session.write_atomic(writes))
        except ConflictError:
            found = (await session.durable.get(JOB + claim.lease.queue, [claim.lease.id]))[0]
            self._lost(claim, WriteResult(applied=False, record=found))
        await session.ack(claim.lease)
        letter = writes[-1]
        value = {
            name: field.load() if type(field) is Json else field
            for name, field in letter.value.items()  # type: ignore[union-attr]  # the put of `dead`
        }
        return structure(Job, value)

    async def release(self, claim: Claim, *, delay: float) -> None:
        """Give the job back; the attempt does not count."""
        ms = delay_ms(delay)
        now = await self._settle_time(claim)
        write = transitions.released(claim.lease, run_at=now + ms if ms else None)
        result = await self._settle(claim, write)
        if not result.applied:
            self._lost(claim, result)
        claim.settled = True
        claim.run.cancel("released")
        await self._session.nack([claim.lease], delay=delay)

    async def _settle_time(self, claim: Claim) -> int:
        time = self._session.durable_time
        try:
            return await time.now()
        except UnavailableError:
            # The write itself will wait for the plane.
            return max(claim.run.started_at, time.estimate())

    async def _settle(self, claim: Claim, write: Write) -> WriteResult:
        return await self._patiently(claim, lambda: self._session.write(write))

    async def _patiently(self, claim: Claim, step: Callable[[], Awaitable[T]]) -> T:
        """
        Repeat *step* while the durable plane is down and the lease can be kept.

        A finished handler's result is worth waiting for: it was paid for.
        """
        pause = 0.1
        while True:
            try:
                return await step()
            except UnavailableError:
                if not await self._keep(claim):
                    raise
                await asyncio.sleep(pause)
                pause = min(1.0, pause * 2)

    async def _keep(self, claim: Claim) -> bool:
        ms = claim.record.field("leaseMs")
        lease_for = ms / 1000 if isinstance(ms, int) else 30.0
        try:
            kept = await self._session.hot.broker.renew([claim.lease], lease_for=lease_for)
        except StorageError:
            return False
        return kept[0]

    def _is_repeated(self, claim: Claim, result: WriteResult, status: str) -> bool:
        record = result.record
        return (
            record is not None
            and record.field("status") == status
            and record.field("leaseToken") == claim.lease.token
        )

    def _lost(self, claim: Claim, result: WriteResult) -> None:
        """Refuse a writer that does not hold the lease any more."""
        record = result.record
        status = None if record is None else record.field("status")
        if status == "active":
            reason = "it lapsed, and someone took over"
        elif status is None:
            reason = "the job is gone"
        elif status == "cancelled":
            reason = "the job was cancelled"
            claim.set_cancelled()
        else:
            reason = f"the job is {status} already"
        self._session.refused += 1
        claim.lost = True
        error = LeaseLostError(f"job {claim.lease.id!r}", claim.lease.token, reason)
        if status == "cancelled":
            claim.run.cancel()
        else:
            claim.run.fail(f"lease lost: {reason}", reason="lease lost")
        raise error

    # --- cancel, requeue ---

    async def cancel(self, queue: str, job_id: str) -> bool:
        """Call a job off, whatever it is doing; True if it is cancelled now."""
        session = self._session
        namespace = JOB + queue
        for _ in range(_READS):
            record = (await session.durable.get(namespace, [job_id]))[0]
            if record is None:
                return False
            status = record.field("status")
            if status in FINAL:
                return bool(status == "cancelled")
            now = await session.durable_time.now()
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
        if record.field("status") == "active":
            claim = self._claims.get((queue, record.id))
            if claim is not None and claim.lease.token == record.field("leaseToken"):
                claim.set_cancelled()
                claim.run.cancel()
            else:
                await self._close_run(record, "cancelled", "cancelled", now)
        try:
            await session.hot.broker.remove(queue, [record.id])
            if record.field("status") == "active":
                message = [queue, record.id, record.field("leaseToken")]
                await session.hot.signals.publish(CANCELS, message)
        except StorageError as error:
            log.debug("the claimer will drop the cancelled job: %s", error)

    async def _listen(self) -> None:
        """Hand cancels to the claims of this storage."""
        pause = 0.1
        while True:
            try:
                async with self._session.hot.signals.subscribe([CANCELS]) as signals:
                    pause = 0.1
                    async for signal in signals:
                        self._hear(signal.message)
                    return  # the plane was closed
            except StorageError as error:
                log.debug("listening for cancels waits: %s", error)
            await asyncio.sleep(pause)
            pause = min(5.0, pause * 2)

    def _hear(self, message: Any) -> None:
        if not isinstance(message, list) or len(message) != 3:  # noqa: PLR2004 - as `_after_cancel` sends it
            return
        queue, job_id, token = message
        claim = self._claims.get((queue, job_id))
        if claim is not None and claim.lease.token == token:
            claim.set_cancelled()

    async def requeue(self, queue: str, job_id: str) -> Job | None:
        """Turn a dead letter into a fresh job; None where there is none."""
        session = self._session
        record = (await session.durable.get(DLQ + queue, [job_id]))[0]
        if record is None:
            return None
        writes = transitions.requeued(record, queue=queue)
        try:
            await session.write_atomic(writes)
        except ConflictError:
            if (await session.durable.get(DLQ + queue, [job_id]))[0] is None:
                return None  # someone else requeued it
            msg = f"queue {queue!r} has a job {job_id!r} again; settle or cancel that one first"
            raise ConflictError(msg) from None
        published = await session.publish(queue, transitions.entry_for(record, due_at=None))
        value = {
            name: field.load() if type(field) is Json else field
            for name, field in writes[1].value.items()  # type: ignore[union-attr]  # the insert of `requeued`
        }
        job = structure(Job, value)
        object.__setattr__(job, "published", published)
        return job


def _after(claim: Claim, write: Patch) -> Job:
    value = {**claim.record.value, **write.set}
    return structure(Job, value)


async def close_run(
    session: Session, run_id: str, job: Record | None, status: str, reason: str, now: int
) -> bool:
    """
    Close a run that its worker will not close, from whatever is known of it.

    History is written once: a run that has a terminal row is left alone. Where
    neither plane knows the run, its row is made from the job.

    Returns:
        Whether a row was written.
    """
    handle = session.recorder.handle(run_id)
    if handle is not None:
        handle.fail(reason, reason=reason) if status == "failed" else handle.cancel(reason)
        return True
    row = (await session.durable.get(RUNS, [run_id]))[0]
    if row is not None and row.field("status") not in {"running", "queued"}:
        await session.hot.live.drop([run_id])
        return False
    live = await session.hot.live.get(run_id)
    known = merged(None if row is None else row.value, live) or {}
    value = _closed(session, run_id, known, job, status, reason, now)
    keep_for = session.settings.retention.runs_for
    expires_at = None if keep_for is None else now + round(keep_for * 1000)
    write: Write
    if row is None:
        write = Insert(RUNS, run_id, value, expires_at)
    else:
        write = Patch(
            RUNS,
            run_id,
            set={name: field for name, field in value.items() if name != "id"},
            expect={"status": row.field("status")},
            expires_at=expires_at,
        )
    result = (await session.durable.write([write], returning=()))[0]
    await session.hot.live.drop([run_id])
    return result.applied


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
