"""The work order, before and after it is dead."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import attrs

from oqron_core.models._wire import LOCAL
from oqron_core.models.backoff import Backoff


__all__ = ["Job", "JobSpec", "JobStatus"]


class JobStatus(StrEnum):
    """Where a job is in its life."""

    WAITING = "waiting"
    DELAYED = "delayed"
    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    HELD = "held"


@attrs.frozen(kw_only=True, weakref_slot=False)
class Job:
    """
    A work order: this must be done. Exists before any run of it.

    On the wire the attributes are in ``camelCase``; instants are milliseconds
    since the epoch.

    Attributes:
        id: Unique in its queue; UUIDv7 unless given.
        queue_name: The queue.
        status: See `JobStatus`. A dead letter is ``failed``.
        data: The payload.
        opts: How it was added: ``backoff``.
        attempt_made: Attempts started and not given back, from 0.
        max_attempts: How many there may be.
        priority: Lower is sooner.
        run_at: Not before; None for at once.
        created_at: When it was added.
        processed_on: When the last attempt was claimed.
        started_at: When the first attempt was claimed.
        finished_at: When it ended.
        worker_id: Who claimed it last.
        lease_token: The fencing token of the last claim.
        lease_ms: For how long it was leased, in milliseconds.
        run_id: The run of the last attempt.
        progress_percent: As last recorded with the job, 0 to 100.
        return_value: What the handler gave.
        error: Why the last attempt failed.
        stacktrace: Where it failed, the last attempts' traces.
        tags: Labels.
        correlation_id: What it belongs to.
        dead_at: When it became a dead letter; None for a job.
        reason: Why it became one.
        duplicate: Whether `add` found the id taken; this is then the job that was
            there. Not on the wire.
        published: False where the durable plane has what `add`, `fail` or a requeue
            wrote, but the hot plane did not answer; maintenance will publish it, and
            a lease lapses. Not on the wire.
    """

    id: str
    queue_name: str
    status: str = "waiting"
    data: Any = None
    opts: dict[str, Any] = attrs.field(factory=dict)
    attempt_made: int = 0
    max_attempts: int = 3
    priority: int = 0
    run_at: int | None = None
    created_at: int = 0
    processed_on: int | None = None
    started_at: int | None = None
    finished_at: int | None = None
    worker_id: str | None = None
    lease_token: int | None = None
    lease_ms: int | None = None
    run_id: str | None = None
    progress_percent: float = 0
    return_value: Any = None
    error: str | None = None
    stacktrace: list[str] = attrs.field(factory=list)
    tags: list[str] = attrs.field(factory=list)
    correlation_id: str | None = None
    dead_at: int | None = None
    reason: str | None = None
    duplicate: bool = attrs.field(default=False, metadata={LOCAL: True})
    published: bool = attrs.field(default=True, metadata={LOCAL: True})

    @property
    def attempts_left(self) -> int:
        """How many attempts may still be started."""
        return max(0, self.max_attempts - self.attempt_made)


@attrs.frozen
class JobSpec:
    """
    One job of a batch. What is None is taken from the batch.

    Attributes:
        data: The payload.
        id: The id; None for a new one.
        priority: Lower is sooner.
        delay: Seconds until it may be claimed.
        run_at: The same as an instant; not together with *delay*.
        max_attempts: 1 to 1,000.
        backoff: How long it waits between attempts.
        tags: Labels.
        correlation_id: What it belongs to.
    """

    data: Any = None
    id: str | None = attrs.field(default=None, kw_only=True)
    priority: int | None = attrs.field(default=None, kw_only=True)
    delay: float | None = attrs.field(default=None, kw_only=True)
    run_at: int | None = attrs.field(default=None, kw_only=True)
    max_attempts: int | None = attrs.field(default=None, kw_only=True)
    backoff: Backoff | None = attrs.field(default=None, kw_only=True)
    tags: Sequence[str] | None = attrs.field(default=None, kw_only=True)
    correlation_id: str | None = attrs.field(default=None, kw_only=True)
