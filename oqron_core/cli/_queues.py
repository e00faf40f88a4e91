"""Which queues there are."""

from __future__ import annotations

from typing import Final

import click

from oqron_core._plugins import suggest
from oqron_core.planes.values import Query
from oqron_core.storage import Storage
from oqron_core.taxonomy import RecordKind


__all__ = ["dead_by_queue", "queues_with_jobs", "require_queue", "unknown_queue"]

_JOB: Final = "queue_job:"


async def queues_with_jobs(storage: Storage) -> list[str]:
    """Name the queues that hold a job, a dead letter or a pause, sorted."""
    found = await storage.durable.count(Query(kind=RecordKind.JOB), by="namespace")
    names = {name.removeprefix(_JOB) for name in found if name.startswith(_JOB)}
    names.update(await storage.dead_letters.counts())
    after: str | None = None
    while True:
        page = await storage.controls.queues(limit=1000, after=after)
        names.update(control.name for control in page if control.paused)
        after = page.next
        if after is None:
            return sorted(names)


async def dead_by_queue(storage: Storage, queue: str | None) -> dict[str, int]:
    """Count the dead letters of every queue, or of one."""
    counts = await storage.dead_letters.counts()
    return counts if queue is None else {queue: counts.get(queue, 0)}


async def unknown_queue(storage: Storage, queue: str) -> str | None:
    """Say that nothing is known of a queue, and which name is like it; None where it is."""
    known = await queues_with_jobs(storage)
    if queue in known:
        return None
    return f"no queue {queue!r} is known so far{suggest(queue, known)}"


async def require_queue(storage: Storage, queue: str) -> None:
    """
    See that something is known of a queue.

    Raises:
        ClickException: Nothing is; the name may be mistyped.
    """
    unknown = await unknown_queue(storage, queue)
    if unknown is not None:
        msg = f"{unknown} (see oqron queues)"
        raise click.ClickException(msg)
