"""The receipt of one execution."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import attrs


__all__ = ["Run", "RunStatus"]


class RunStatus(StrEnum):
    """Where a run is in its life."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    HELD = "held"


@attrs.frozen(kw_only=True)
class Run:
    """
    A receipt: what happened when it was tried. A job has one per attempt.

    On the wire the attributes are in ``camelCase``; instants are milliseconds
    since the epoch.

    Attributes:
        id: UUIDv7.
        name: The definition or queue.
        module: ``cron``, ``schedule``, ``queue``, ``worker``, ``webhook``, ``topic``.
        status: See `RunStatus`.
        trigger: What started it.
        input: What it was given; a copy of the job's payload.
        output: What the handler gave.
        attempts: Which attempt of the job this was, from 1.
        progress_percent: 0 to 100.
        logs: ``{"level", "msg", "ts"}`` in the order they were made.
        timeline: ``{"ts", "from", "to", "reason"}``.
        error: Why it failed.
        app: The project.
        environment: The environment.
        worker_id: Who ran it.
        started_at: When it started.
        ended_at: When it ended; None while it runs.
        duration_ms: Milliseconds from start to end.
        job_id: The job; None for a run without one.
        queue_name: The job's queue.
    """

    id: str
    name: str = ""
    module: str = "queue"
    status: str = "running"
    trigger: str = "queue"
    input: Any = None
    output: Any = None
    attempts: int = 1
    progress_percent: float = 0
    logs: list[dict[str, Any]] = attrs.field(factory=list)
    timeline: list[dict[str, Any]] = attrs.field(factory=list)
    error: str | None = None
    app: str = ""
    environment: str = ""
    worker_id: str | None = None
    started_at: int | None = None
    ended_at: int | None = None
    duration_ms: int | None = None
    job_id: str | None = None
    queue_name: str | None = None
