"""
The writes of every step in a job's life. Pure: no plane is called here.

Each step that a lease allows expects the status ``active`` and the fencing token
of that lease, so a writer whose lease was taken over changes nothing. The id of a
lease is the job's, unless the broker hands out lanes (see `lanes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from oqron_core._codec import NULL, Json, encode, portable_text, shown
from oqron_core._drafts import drafted
from oqron_core._ids import uuid7
from oqron_core._names import check_name, check_namespace
from oqron_core.exceptions import InvalidValueError
from oqron_core.models.backoff import Backoff
from oqron_core.models.job import Job, JobSpec
from oqron_core.planes.checks import check_instant, check_priority, delay_ms
from oqron_core.planes.joined import Mark
from oqron_core.planes.values import (
    KEEP,
    MISSING,
    Delete,
    Form,
    Insert,
    Keep,
    Lease,
    Patch,
    Put,
    Record,
    Write,
)


__all__ = [
    "DLQ",
    "FINAL",
    "FRESH",
    "JOB",
    "OPEN",
    "cancelled",
    "completed",
    "dead",
    "due_at",
    "mark",
    "new_job",
    "released",
    "requeued",
    "rescheduled",
    "retried",
    "shows",
    "started",
]

JOB: Final = "queue_job:"
"""The namespace of a queue's jobs, before its name."""
DLQ: Final = "queue_dlq:"
"""The namespace of a queue's dead letters, before its name."""
FINAL: Final = frozenset({"completed", "failed", "cancelled"})
"""Statuses of jobs that have ended."""
OPEN: Final = ("waiting", "delayed", "active")
"""Statuses of jobs that the broker should know."""

FRESH: Final[Mapping[str, Any]] = {"status": "waiting", "startedAt": None}
"""What is expected of a job that waits for its first attempt."""
_ATTEMPT: Final[Mapping[str, int]] = {"attemptMade": 1}

_TELLING: Final = ("status", "leaseToken", "runAt", "createdAt", "runId")
"""Fields that show whether a write was done."""

MAX_ATTEMPTS: Final = 1000
_EMPTY_LIST: Final = Json(b"[]")
_TEXT_LIMIT: Final = 20_000
_TRACES_KEPT: Final = 5
_PLAIN_BACKOFF: Final = Backoff.exponential(1.0, cap=300.0)
_PLAIN_OPTS: Final = encode({"backoff": _PLAIN_BACKOFF.to_wire()})


def _check_tags(tags: object) -> list[str]:
    if isinstance(tags, str) or not isinstance(tags, (list, tuple, set, frozenset)):
        raise InvalidValueError("tags", "must be a list of strings")
    made = sorted(tags) if isinstance(tags, (set, frozenset)) else list(tags)
    for index, tag in enumerate(made):
        if type(tag) is not str:
            raise InvalidValueError(f"tags[{index}]", "must be a str")
    return made


def _check_max_attempts(value: object) -> int:
    if type(value) is not int or not 1 <= value <= MAX_ATTEMPTS:
        reason = f"must be an int from 1 to {MAX_ATTEMPTS}, not {shown(value)}"
        raise InvalidValueError("max_attempts", reason)
    return value


def rescheduled(record: Record, spec: JobSpec, *, queue: str, now: int) -> Patch:
    """Build another due time for a job that waits, guarded by what was read."""
    due = due_at(spec, now)
    delayed = due is not None and due > now
    return Patch(
        JOB + queue,
        record.id,
        set={"status": "delayed" if delayed else "waiting", "runAt": due if delayed else None},
        expect=record.guards("status", "leaseToken"),
    )


def due_at(spec: JobSpec, now: int) -> int | None:
    """Give the instant from which the job may run, None for at once."""
    if spec.delay is not None:
        if spec.run_at is not None:
            raise InvalidValueError("delay", "give either delay or run_at, not both")
        ms = delay_ms(spec.delay)
        return now + ms if ms else None
    if spec.run_at is not None:
        return check_instant(spec.run_at, "run_at")
    return None


# All that goes into them is checked with the template.
_make_job: Final = drafted(Job)
_make_insert: Final = drafted(Insert)
_make_patch: Final = drafted(Patch)


@attrs.frozen
class JobTemplate:
    """
    What the jobs of one specification have in common, checked once.

    Attributes:
        queue: The queue.
        spec: The specification.
        namespace: Where its jobs are.
        value: The fields of the record; an id, a payload and an instant take their places.
        form: The same, where many jobs are made of it; else None.
        common: The arguments of the model that are the same for all.
        tags: The tags.
        backoff: The rule of retries, as it is stored.
        delay: Milliseconds until it is due; None for at once.
    """

    queue: str
    spec: JobSpec
    namespace: str
    value: dict[str, Any]
    form: Form | None
    common: dict[str, Any]
    tags: list[str]
    backoff: Mapping[str, Any]
    delay: int | None

    def make(self, data: Any, encoded: Json, now: int) -> tuple[Insert, int | None, Job]:
        """Give `insert`, the delay in milliseconds or None for ready, and `job`."""
        insert = self.insert(encoded, now)
        return insert, self.delay, self.job(insert.id, data, now)

    def insert(self, encoded: Json, now: int) -> Insert:
        """
        Build what `add` writes.

        Args:
            encoded: The payload, checked and encoded.
            now: The durable plane's time; of a template with a delay, the one that it
                was made with.
        """
        job_id = uuid7() if self.spec.id is None else self.spec.id
        given = {"id": job_id, "data": encoded, "createdAt": now}
        value = {**self.value, **given} if self.form is None else self.form.fill(given)
        return _make_insert(self.namespace, job_id, value)

    def job(self, job_id: str, data: Any, now: int) -> Job:
        """Build what `add` gives, for an insert of that id."""
        # What a caller may change is a copy of its own.
        return _make_job(
            id=job_id,
            data=data,
            opts={"backoff": {**self.backoff}},
            tags=[*self.tags],
            created_at=now,
            **self.common,
        )


def job_template(queue: str, spec: JobSpec, *, now: int, many: bool = False) -> JobTemplate:
    """
    Check a specification.

    Args:
        queue: The queue, already checked.
        spec: What is None has its default.
        now: The durable plane's time.
        many: Whether many jobs will be made of it.

    Raises:
        InvalidValueError: Something in *spec* is not legal.
    """
    if spec.id is not None:
        check_name("id", spec.id)
    priority = check_priority(0 if spec.priority is None else spec.priority)
    attempts = _check_max_attempts(3 if spec.max_attempts is None else spec.max_attempts)
    tags = _check_tags(spec.tags) if spec.tags else []
    due = due_at(spec, now)
    delayed = due is not None and due > now
    if spec.correlation_id is not None:
        check_name("correlation_id", spec.correlation_id)
    if spec.backoff is None:
        backoff, opts = _PLAIN_BACKOFF, _PLAIN_OPTS
    elif isinstance(spec.backoff, Backoff):
        backoff = spec.backoff
        opts = encode({"backoff": backoff.to_wire()}, "backoff")
    else:
        raise InvalidValueError("backoff", "must be a Backoff")
    status = "delayed" if delayed else "waiting"
    value: dict[str, Any] = {
        "id": None,
        "queueName": queue,
        "status": status,
        "data": None,
        "opts": opts,
        "attemptMade": 0,
        "maxAttempts": attempts,
        "priority": priority,
        "runAt": due,
        "createdAt": None,
        "processedOn": None,
        "startedAt": None,
        "finishedAt": None,
        "workerId": None,
        "leaseToken": None,
        "leaseMs": None,
        "runId": None,
        "progressPercent": 0,
        "returnValue": None,
        "error": None,
        "stacktrace": _EMPTY_LIST,
        "tags": encode(tags, "tags") if tags else _EMPTY_LIST,
        "correlationId": spec.correlation_id,
    }
    common = {
        "queue_name": queue,
        "status": status,
        "max_attempts": attempts,
        "priority": priority,
        "run_at": due,
        "correlation_id": spec.correlation_id,
    }
    delay = due - now if delayed and due is not None else None
    form = Form(value, ("id", "data", "createdAt")) if many else None
    namespace = check_namespace(JOB + queue)
    wire = backoff.to_wire()
    return JobTemplate(queue, spec, namespace, value, form, common, tags, wire, delay)


def new_job(
    queue: str, data: Any, spec: JobSpec, *, now: int, max_bytes: int, path: str = "data"
) -> tuple[Insert, int | None, Job]:
    """
    Build one job of its own specification: `job_template` and `JobTemplate.make`.

    Raises:
        InvalidValueError: Something in *spec* is not legal, or the payload is not
            portable or larger than *max_bytes* when encoded.
    """
    template = job_template(queue, spec, now=now)
    return template.make(data, encode(data, path, max_bytes=max_bytes), now)


def started(
    lease: Lease,
    job_id: str,
    *,
    run_id: str,
    lease_ms: int,
    now: int,
    expect: Mapping[str, Any],
    first: bool,
) -> Patch:
    """Build the claim mark: ``active``, with my token, one attempt more."""
    fields: dict[str, Any] = {
        **_begun(lease.owner, lease_ms),
        "leaseToken": lease.token,
        "runId": run_id,
        "processedOn": now,
    }
    if first:
        fields["startedAt"] = now
    return Patch(
        JOB + lease.queue,
        job_id,
        set=fields,
        increment=_ATTEMPT,
        expect=expect,
    )


def mark(queue: str, owner: str, lease_ms: int) -> Mark:
    """Build the claim mark of jobs that wait for their first attempt, for any lease."""
    return Mark(
        JOB + queue,
        token_field="leaseToken",  # noqa: S106 - the name of a field
        name_field="runId",
        now_fields=("processedOn", "startedAt"),
        set=_begun(owner, lease_ms),
        increment=_ATTEMPT,
        expect=FRESH,
    )


def _begun(owner: str, lease_ms: int) -> dict[str, Any]:
    """Give what all claim marks of a caller set."""
    return {
        "status": "active",
        "leaseMs": lease_ms,
        "workerId": owner,
        "progressPercent": 0,
    }


def _mine(lease: Lease) -> dict[str, Any]:
    return {"status": "active", "leaseToken": lease.token}


def completed(
    lease: Lease, job_id: str, output: Json, *, now: int, keep_for: float | None
) -> Write:
    """Build the end of a job that was done; *keep_for* 0 deletes it at once."""
    if keep_for == 0:
        return Delete(JOB + lease.queue, job_id, expect=_mine(lease))
    # Where it is and when it goes was checked when it was claimed.
    patch: Patch = _make_patch(
        JOB + lease.queue,
        job_id,
        set={
            "status": "completed",
            "returnValue": output,
            "finishedAt": now,
            "progressPercent": 100,
            "error": None,
        },
        expect=_mine(lease),
        expires_at=_expiry(now, keep_for),
    )
    return patch


def _expiry(now: int, keep_for: float | None) -> int | None | Keep:
    return KEEP if keep_for is None else now + round(keep_for * 1000)


def traces(record: Record, stacktrace: str | None) -> list[str]:
    """Give the traces to keep: the last few attempts'."""
    kept = record.field("stacktrace")
    known = [item for item in kept if isinstance(item, str)] if isinstance(kept, list) else []
    if stacktrace:
        known.append(portable_text(stacktrace, limit=_TEXT_LIMIT))
    return known[-_TRACES_KEPT:]


def retried(
    lease: Lease, record: Record, *, run_at: int, error: str, stacktrace: str | None
) -> Patch:
    """Build a failed attempt that is followed by another."""
    return Patch(
        JOB + lease.queue,
        record.id,
        set={
            "status": "delayed",
            "runAt": run_at,
            "error": error,
            "stacktrace": traces(record, stacktrace),
        },
        expect=_mine(lease),
    )


def dead(
    record: Record,
    *,
    queue: str,
    expect: Mapping[str, Any],
    now: int,
    reason: str,
    error: str,
    stacktrace: str | None,
    keep_for: float | None,
) -> tuple[Delete, Put]:
    """Build the atomic pair: the job goes, the dead letter comes."""
    value = record.raw_fields()
    value.update(
        {
            "status": "failed",
            "error": error,
            "stacktrace": traces(record, stacktrace),
            "finishedAt": now,
            "deadAt": now,
            "reason": reason,
        }
    )
    expires_at = None if keep_for is None else now + round(keep_for * 1000)
    return (
        Delete(JOB + queue, record.id, expect=expect),
        # A put: where the id was added anew after it died, the newer one stays.
        Put(DLQ + queue, record.id, value, expires_at),
    )


def released(lease: Lease, job_id: str, *, run_at: int | None) -> Patch:
    """Build a claim that is given back without costing an attempt."""
    return Patch(
        JOB + lease.queue,
        job_id,
        set={"status": "waiting" if run_at is None else "delayed", "runAt": run_at},
        increment={"attemptMade": -1},
        expect=_mine(lease),
    )


def cancelled(record: Record, *, queue: str, now: int, keep_for: float | None) -> Write:
    """Build the end of a job that someone called off, guarded by what was read."""
    expect = record.guards("status", "leaseToken")
    if keep_for == 0:
        return Delete(JOB + queue, record.id, expect=expect)
    return Patch(
        JOB + queue,
        record.id,
        set={"status": "cancelled", "finishedAt": now},
        expect=expect,
        expires_at=_expiry(now, keep_for),
    )


def requeued(record: Record, *, queue: str) -> tuple[Delete, Insert]:
    """Build the atomic pair: the dead letter goes, a fresh job comes."""
    value = record.raw_fields()
    for name in ("deadAt", "reason"):
        value.pop(name, None)
    value.update(
        {
            "id": record.id,
            "queueName": queue,
            "status": "waiting",
            "attemptMade": 0,
            "maxAttempts": max(1, record.integer("maxAttempts", 3)),
            "runAt": None,
            "processedOn": None,
            "startedAt": None,
            "finishedAt": None,
            "workerId": None,
            "leaseToken": None,
            "leaseMs": None,
            "runId": None,
            "progressPercent": 0,
            "returnValue": NULL,
            "error": None,
            "stacktrace": _EMPTY_LIST,
        }
    )
    return (
        Delete(DLQ + queue, record.id, expect=record.guards("deadAt")),
        Insert(JOB + queue, record.id, value),
    )


def shows(write: Write, record: Record | None) -> bool:
    """
    Say whether *record* shows that *write* was done already.

    For a write whose first answer was lost: it is repeated, its guard does not
    hold any more, and the record tells why.
    """
    if isinstance(write, Delete):
        return record is None
    if record is None:
        return False
    if isinstance(write, Insert):
        # Of a run, which may have been closed by somebody else, the status tells.
        fields = ("createdAt",) if "createdAt" in write.value else ("status", "endedAt")
        return all(record.field(name) == write.value.get(name) for name in fields)
    if isinstance(write, Patch):
        wanted: dict[str, Any] = dict(write.expect)
        wanted.update(write.set)
        return all(
            record.field(name) == (None if wanted[name] is MISSING else wanted[name])
            for name in _TELLING
            if name in wanted
        )
    return True
