"""Unique jobs: one per key, for as long as it is there or for a while."""

from __future__ import annotations

import asyncio
import hashlib
import uuid

from typing import Any, Final

import attrs

from oqron_core import (
    Claim,
    ConflictError,
    Delete,
    Insert,
    Job,
    JobSpec,
    Patch,
    Record,
    Storage,
)
from oqron_worker._adding import Unique


__all__ = ["add_unique", "let_go"]

_NAMESPACE: Final = "worker_unique"
_TAG: Final = "unique:"
_TRIES: Final = 20
_AT_MOST: Final = 30 * 86400.0
"""Seconds after which a key whose job was never heard of again is free."""
_OPEN: Final = frozenset({"waiting", "delayed", "active", "held"})


def _place(queue: str, key: str) -> str:
    return hashlib.sha256(f"{len(queue)}:{queue}:{key}".encode()).hexdigest()[:40]


async def add_unique(storage: Storage, queue: str, spec: JobSpec, unique: Unique) -> Job:
    """
    Add a job whose key is free, by a record that says who has it.

    The record comes first and names the job. Whoever finds a record whose job is
    not there adds just that job, whose id one only can have: so a crash between the
    two, or a race, makes one job and never two.

    Raises:
        ConflictError: The key is taken and is to be refused; or others kept taking it.
    """
    place = _place(queue, unique.key)
    spec = attrs.evolve(spec, tags=[*(spec.tags or ()), _TAG + unique.key])
    for _ in range(_TRIES):
        now = await storage.durable.now()
        fresh = uuid.uuid4().hex
        value: dict[str, Any] = {"queue": queue, "key": unique.key, "jobId": fresh}
        until = None if unique.window is None else now + round(unique.window * 1000)
        value["until"] = until
        expires_at = now + round(max(_AT_MOST, unique.window or 0.0) * 1000)
        result = (await storage.durable.write([Insert(_NAMESPACE, place, value, expires_at)]))[0]
        if result.applied:
            return await _add(storage, queue, spec, fresh)
        if result.record is None:
            continue
        job = await _holder(storage, queue, spec, result.record, now)
        if job is None:
            taken = Patch(
                _NAMESPACE,
                place,
                set={"jobId": fresh, "until": until},
                expect={"jobId": result.record.field("jobId")},
                expires_at=expires_at,
            )
            if (await storage.durable.write([taken]))[0].applied:
                return await _add(storage, queue, spec, fresh)
        elif not job.duplicate:
            return job
        elif unique.on_conflict == "refuse":
            msg = f"queue {queue!r} has a job with the key {unique.key!r} already: {job.id}"
            raise ConflictError(msg)
        elif unique.on_conflict == "keep":
            return job
        else:
            await storage.jobs.cancel(queue, job.id)
            free = Delete(_NAMESPACE, place, expect={"jobId": job.id})
            await storage.durable.write([free])
        await asyncio.sleep(0)
    msg = f"others kept taking the key {unique.key!r} of queue {queue!r}; try again"
    raise ConflictError(msg)


async def _holder(
    storage: Storage, queue: str, spec: JobSpec, record: Record, now: int
) -> Job | None:
    """Give the job that has the key, with ``duplicate`` set; None where it is free."""
    job_id = record.field("jobId")
    until = record.field("until")
    job = await storage.jobs.get(queue, job_id)
    if job is not None and (job.status in _OPEN or (until is not None and now < until)):
        return attrs.evolve(job, duplicate=True)
    if job is not None:
        return None
    if until is not None:
        # It ended and was removed, or was never added: within its window the key
        # is taken all the same, and the one id decides.
        dead = await storage.dead_letters.get(queue, job_id)
        if dead is not None:
            return attrs.evolve(dead, duplicate=True) if now < until else None
        if now >= until:
            return None
        runs = await storage.runs.query(name=queue, job_id=job_id, limit=1)
        if runs.items:
            return Job(id=job_id, queue_name=queue, status="completed", duplicate=True)
    elif await storage.dead_letters.get(queue, job_id) is not None:
        return None
    return await _add(storage, queue, spec, job_id)


async def _add(storage: Storage, queue: str, spec: JobSpec, job_id: str) -> Job:
    [job] = await storage.jobs.add_many(queue, [attrs.evolve(spec, id=job_id)])
    return job


def unique_key(claim: Claim) -> str | None:
    """Give the unique key of a claimed job."""
    for tag in claim.tags:
        if tag.startswith(_TAG):
            return tag[len(_TAG) :]
    return None


async def let_go(storage: Storage, claim: Claim, key: str) -> None:
    """Free the key of a job that has ended, if it still has it and no window holds it."""
    free = Delete(
        _NAMESPACE,
        _place(claim.lease.queue, key),
        expect={"jobId": claim.id, "until": None},
    )
    await storage.durable.write([free])
