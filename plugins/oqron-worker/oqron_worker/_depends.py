"""Jobs that wait for others: kept aside until those have ended."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import uuid

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from oqron_core import (
    Backoff,
    Claim,
    Delete,
    Insert,
    Job,
    JobSpec,
    Patch,
    Query,
    Record,
    Storage,
)
from oqron_core.exceptions import ClosedError, InvalidValueError, OqronError, StorageError


__all__ = [
    "PARENT_FAILED",
    "Dependents",
    "add_dependent",
    "cancel_waiting",
    "failed_parent",
    "waiting_job",
]

log = logging.getLogger("oqron.worker")

_NAMESPACE: Final = "worker_waiting"
_CHANNEL: Final = "worker:waiting"
_PAGE: Final = 500
PARENT_FAILED: Final = "parent-failed:"
"""What the tag of a job begins with that must not run because a parent failed."""


def _place(queue: str, job_id: str) -> str:
    return hashlib.sha256(f"{len(queue)}:{queue}:{job_id}".encode()).hexdigest()[:40]


async def add_dependent(
    storage: Storage, queue: str, spec: JobSpec, parents: Sequence[Job], policy: str
) -> Job:
    """
    Keep a job aside until *parents* have ended.

    It is a record of its own until then, and a job from then on. Cancelling a parent
    is a failure of it.

    Raises:
        InvalidValueError: A parent is not there, dead or alive.
    """
    job_id = spec.id or str(uuid.uuid4())
    states = await _states(storage, [(parent.queue_name, parent.id) for parent in parents])
    for index, state in enumerate(states):
        if state is None:
            reason = "there is no such job, dead or alive"
            raise InvalidValueError(f"depends_on[{index}]", reason)
    value = {
        "queue": queue,
        "jobId": job_id,
        "spec": _spec_to_wire(attrs.evolve(spec, id=job_id)),
        "policy": policy,
        "parents": {_place(p.queue_name, p.id): [p.queue_name, p.id] for p in parents},
        "ended": {},
    }
    place = _place(queue, job_id)
    result = (await storage.durable.write([Insert(_NAMESPACE, place, value)]))[0]
    watched = [[parent.queue_name, parent.id] for parent in parents]
    try:
        await storage.hot.signals.publish(_CHANNEL, watched)
    except StorageError as error:
        log.debug("dependents are found by the next look instead: %s", error)
    record = result.record
    added = None if record is None else await _resolve(storage, record)
    if added is not None:
        return added
    return attrs.evolve(_held(value), duplicate=not result.applied)


def _held(value: Mapping[str, Any]) -> Job:
    """Show a job that waits for others."""
    spec = _spec_from_wire(value["spec"])
    return Job(
        id=value["jobId"],
        queue_name=value["queue"],
        status="held",
        data=spec.data,
        max_attempts=spec.max_attempts or 3,
        priority=spec.priority or 0,
        tags=list(spec.tags or ()),
    )


async def waiting_job(storage: Storage, queue: str, job_id: str) -> Job | None:
    """Read a job that waits for others, as ``held``; None where none does."""
    record = (await storage.durable.get(_NAMESPACE, [_place(queue, job_id)]))[0]
    return None if record is None else _held(record.value)


async def cancel_waiting(storage: Storage, queue: str, job_id: str) -> bool:
    """
    Call off a job that waits for others; False where none does.

    It becomes a job that is cancelled, so that who waits for it learns of it.
    """
    record = (await storage.durable.get(_NAMESPACE, [_place(queue, job_id)]))[0]
    if record is None:
        return False
    spec = _spec_from_wire(record.value["spec"])
    # Not to be claimed in the moment before the cancel.
    await storage.jobs.add_many(queue, [attrs.evolve(spec, delay=86400.0, run_at=None)])
    await storage.jobs.cancel(queue, job_id)
    await storage.durable.write([Delete(_NAMESPACE, record.id)])
    return True


def _spec_to_wire(spec: JobSpec) -> dict[str, Any]:
    wire = {field.name: getattr(spec, field.name) for field in attrs.fields(JobSpec)}
    wire["backoff"] = None if spec.backoff is None else spec.backoff.to_wire()
    wire["tags"] = list(spec.tags or ())
    return wire


def _spec_from_wire(wire: Mapping[str, Any]) -> JobSpec:
    known = {field.name for field in attrs.fields(JobSpec)} - {"data", "backoff"}
    backoff = wire.get("backoff")
    return JobSpec(
        wire.get("data"),
        backoff=None if backoff is None else Backoff.from_wire(backoff),
        **{name: value for name, value in wire.items() if name in known},
    )


async def _states(storage: Storage, parents: Sequence[tuple[str, str]]) -> list[str | None]:
    """Say of each job ``open``, ``completed`` or ``failed``; None where nothing is known."""
    return list(await asyncio.gather(*(_state(storage, *parent) for parent in parents)))


async def _state(storage: Storage, queue: str, job_id: str) -> str | None:
    job = await storage.jobs.get(queue, job_id)
    if job is not None:
        return {"completed": "completed", "cancelled": "failed", "failed": "failed"}.get(
            job.status, "open"
        )
    if await storage.dead_letters.get(queue, job_id) is not None:
        return "failed"
    if (await storage.durable.get(_NAMESPACE, [_place(queue, job_id)]))[0] is not None:
        return "open"  # it waits for others itself
    # Retention may have taken the job; its last run still says how it ended.
    page = await storage.runs.query(name=queue, job_id=job_id, limit=1)
    if not page.items:
        return None
    return "completed" if page.items[0].status == "completed" else "failed"


async def _resolve(storage: Storage, record: Record) -> Job | None:
    """Add the job if its parents allow it now; gives it then."""
    value = record.value
    ended: dict[str, str] = value["ended"]
    left = {place: parent for place, parent in value["parents"].items() if place not in ended}
    if value["policy"] == "block":
        # A parent that failed may be requeued: only what completed is certain.
        left |= {p: value["parents"][p] for p, state in ended.items() if state == "failed"}
    states = await _states(storage, [(queue, job_id) for queue, job_id in left.values()])
    known = dict(ended)
    for place, state in zip(left, states, strict=True):
        # It was there when this job was added: what is gone without a trace was
        # taken by retention, and that takes what completed first.
        known[place] = state or "completed"
    news = {place: state for place, state in known.items() if state != "open"}
    if news != ended:
        patch = Patch(_NAMESPACE, record.id, set={"ended": news})
        await storage.durable.write([patch])
    failed = [place for place, state in news.items() if state == "failed"]
    if failed and value["policy"] == "fail":
        queue, job_id = value["parents"][failed[0]]
        return await _let_go(storage, record, [f"{PARENT_FAILED}{queue}/{job_id}"[:500]])
    if len(news) < len(value["parents"]) or (failed and value["policy"] == "block"):
        return None
    return await _let_go(storage, record, [])


async def _let_go(storage: Storage, record: Record, tags: list[str]) -> Job:
    value = record.value
    spec = _spec_from_wire(value["spec"])
    spec = attrs.evolve(spec, tags=[*(spec.tags or ()), *tags])
    # The job first: a crash in between adds it again, which its id makes nothing of.
    [job] = await storage.jobs.add_many(value["queue"], [spec])
    await storage.durable.write([Delete(_NAMESPACE, record.id)])
    return job


def failed_parent(claim: Claim) -> str | None:
    """Give the parent whose failure forbids a claimed job to run."""
    for tag in claim.tags:
        if tag.startswith(PARENT_FAILED):
            return tag[len(PARENT_FAILED) :]
    return None


class Dependents:
    """
    Lets jobs go whose parents have ended.

    A worker that ends a parent knows, by a signal, that somebody waits for it, and
    looks at once. What a lost signal or a dead worker leaves is found by a look
    every few seconds, which costs one count where nothing waits.

    Args:
        storage: The storage.
        every: Seconds between looks.
    """

    def __init__(self, storage: Storage, *, every: float = 2.0) -> None:
        self._storage = storage
        self._every = every
        self._watched: set[tuple[str, str]] = set()
        self._look = asyncio.Event()

    def waits_for(self, claim: Claim) -> bool:
        """Whether somebody is known to wait for this job."""
        return (claim.lease.queue, claim.id) in self._watched

    async def ended(self, claim: Claim) -> None:
        """Note that a job has ended that somebody waits for."""
        self._watched.discard((claim.lease.queue, claim.id))
        self._look.set()

    async def run(self) -> None:
        """Look, listen, and look again, until cancelled."""
        await asyncio.gather(self._listen(), self._look_forever())

    async def _listen(self) -> None:
        while True:
            try:
                async with self._storage.hot.signals.subscribe([_CHANNEL]) as signals:
                    async for signal in signals:
                        for queue, job_id in signal.message:
                            self._watched.add((queue, job_id))
                        self._look.set()
            except ClosedError:
                return
            except (StorageError, TypeError, ValueError) as error:
                log.debug("listening for dependents: %s", error)
            await asyncio.sleep(self._every)

    async def _look_forever(self) -> None:
        while True:
            try:
                await self.look()
            except ClosedError:
                return
            except OqronError as error:
                log.warning("dependents could not be looked at: %s", error)
            try:
                async with asyncio.timeout(self._every):
                    await self._look.wait()
            except TimeoutError:
                pass
            self._look.clear()

    async def waiting(self) -> int:
        """Count the jobs that wait for others."""
        found: int = await self._storage.durable.count(Query(namespace=_NAMESPACE))
        return found

    async def look(self) -> int:
        """
        Go through everything that waits, once.

        Returns:
            How many jobs were let go.
        """
        durable = self._storage.durable
        if not await durable.count(Query(namespace=_NAMESPACE)):
            self._watched.clear()
            return 0
        gone = 0
        after: str | None = None
        watched: set[tuple[str, str]] = set()
        while True:
            page = await durable.query(Query(namespace=_NAMESPACE, limit=_PAGE, after=after))
            for record in page.items:
                if await _resolve(self._storage, record) is None:
                    watched.update((q, i) for q, i in record.value["parents"].values())
                else:
                    gone += 1
            after = page.next
            if after is None:
                break
        self._watched = watched
        return gone
