"""Adding: the durable insert first, then the broker."""

from __future__ import annotations

import asyncio

from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, Final

import attrs

from oqron_core._codec import Json, decode_fields, encode
from oqron_core._collector import paused
from oqron_core.models._wire import structure
from oqron_core.models.job import Job, JobSpec
from oqron_core.planes.durable import BoundDurablePlane, DurablePlane
from oqron_core.planes.values import Insert, WriteResult
from oqron_core.protocol import transitions
from oqron_core.protocol.pauses import admit, held, is_open, recheck_held, skipped
from oqron_core.protocol.session import Added, Session
from oqron_core.protocol.transitions import JOB, JobTemplate


__all__ = ["Adding"]

_CHUNK: Final = 1000
_IN_FLIGHT: Final = 3
"""How many chunks are under way at a time: written, or published."""
_SLICE: Final = 250
"""How many jobs are made at a stretch, before others have their turn."""
_TEMPLATES: Final = 256
_ALIKE: Final = 8
"""So many jobs of one specification are worth a form."""


@attrs.define
class _Drafts:
    """
    Jobs that were checked, in columns: the collector has no container per job to walk.

    Attributes:
        templates: What each has in common with others.
        data: The payloads.
        encoded: The same, as JSON.
    """

    templates: list[JobTemplate] = attrs.field(factory=list)
    data: list[Any] = attrs.field(factory=list)
    encoded: list[bytes] = attrs.field(factory=list)


@attrs.define
class _Chunk:
    """
    Jobs that are written together, in columns.

    Attributes:
        inserts: What is written.
        delays: Milliseconds until each is due, or None.
        jobs: What `add_many` gives.
        given: Whether an id of them is the caller's.
    """

    inserts: list[Insert] = attrs.field(factory=list)
    delays: list[int | None] = attrs.field(factory=list)
    jobs: list[Job] = attrs.field(factory=list)
    given: bool = False

    def places(self) -> list[tuple[str, int, int | None]]:
        """Give of each the id, the priority and the delay."""
        return [
            (job.id, job.priority, delay) for job, delay in zip(self.jobs, self.delays, strict=True)
        ]

    def applied(self, results: Sequence[WriteResult]) -> _Chunk:
        """Give those that were written."""
        if all(result.applied for result in results):
            return self
        kept = [place for place, result in enumerate(results) if result.applied]
        return _Chunk(
            [self.inserts[place] for place in kept],
            [self.delays[place] for place in kept],
            [self.jobs[place] for place in kept],
        )

    def are_unpublished(self) -> None:
        """Say so on the jobs."""
        for job in self.jobs:
            object.__setattr__(job, "published", False)


@attrs.define(eq=False)
class _Line:
    """
    Where the chunks of one batch stand.

    Attributes:
        stalled: Whether one of them had no answer: from then on each waits for the one
            before, as what is tried again comes late.
    """

    stalled: bool = False


class Adding:
    """The step that makes a job."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._templates: dict[tuple[str, int | None, int | None], JobTemplate] = {}

    async def add(self, queue: str, spec: JobSpec, transaction: Any = None) -> Job:
        """Write one job, then publish it; calls at the same time share flushes."""
        if transaction is not None:
            return (await self.add_many(queue, [spec.data], [spec], transaction))[0]
        now = await self._session.durable_time.now()
        template = transitions.job_template(queue, spec, now=now)
        return await self._add(template, spec.data, now)

    def add_plain(
        self, queue: str, data: Any, priority: int, max_attempts: int
    ) -> Coroutine[Any, Any, Job]:
        """Do the same for a job that has nothing else of its own."""
        key = (queue, priority, max_attempts)
        known = self._templates.get(key)
        if known is None:
            if len(self._templates) >= _TEMPLATES:
                self._templates.clear()
            spec = JobSpec(None, priority=priority, max_attempts=max_attempts)
            # It is due at once, whatever time it is.
            known = transitions.job_template(queue, spec, now=0, many=True)
            self._templates[key] = known
        return self._add(known, data, self._session.durable_time.known())

    async def _add(self, template: JobTemplate, data: Any, now: int | None) -> Job:
        session = self._session
        queue = template.queue
        if now is None:
            now = await session.durable_time.now()
        encoded = encode(data, "data", max_bytes=session.settings.max_value_bytes)
        insert = template.insert(encoded, now)
        if not is_open(session, queue):
            fate = await admit(session, queue)
            if fate == "skip":
                return skipped(template.job(insert.id, data, now))
            if fate == "hold":
                return await self._hold(queue, insert, template.job(insert.id, data, now))
        given = template.spec.id is not None
        priority = template.common["priority"]
        added = Added(queue, insert, priority, template.delay, given=given)
        await session.add(added)
        if not added.applied:
            return (await self._existing(queue, [insert]))[0]
        # Made last, so that whoever waits for the job does not wait for this.
        job = template.job(insert.id, data, now)
        if not added.published:
            object.__setattr__(job, "published", False)
        return job

    async def _hold(self, queue: str, insert: Insert, job: Job) -> Job:
        session = self._session
        insert, job = held(insert, job)
        if not (await session.write(insert)).applied:
            return (await self._existing(queue, [insert]))[0]
        await recheck_held(session, queue)
        return job

    async def add_many(
        self,
        queue: str,
        data: Sequence[Any],
        specs: Sequence[JobSpec],
        transaction: Any = None,
    ) -> list[Job]:
        """
        Write many jobs in large batches; all are checked before any is written.

        Args:
            queue: The queue, already checked.
            data: Payloads; at least one.
            specs: Everything else of each.
            transaction: The caller's, or None.
        """
        session = self._session
        bound = None if transaction is None else session.durable.bind(transaction)
        now = await session.durable_time.now()
        drafts = await self._check(queue, data, specs, now)
        if bound is None and len(data) > _CHUNK:
            ids = [spec.id for spec in specs if spec.id is not None]
            # Of two with one id the first is the job: then one chunk after the other.
            return await self._add_chunks(
                queue, drafts, now, _IN_FLIGHT if len(set(ids)) == len(ids) else 1
            )
        jobs: list[Job] = []
        for start in range(0, len(data), _CHUNK):
            fate = await admit(session, queue)
            chunk = await _make(drafts, start, now)
            jobs.extend(await self._add_one_chunk(queue, fate, chunk, bound))
        return jobs

    async def _check(
        self, queue: str, data: Sequence[Any], specs: Sequence[JobSpec], now: int
    ) -> _Drafts:
        """Check and encode everything, before anything is written."""
        limit = self._session.settings.max_value_bytes
        alike = len(specs) >= _ALIKE and specs[0] is specs[_ALIKE - 1]
        template = transitions.job_template(queue, specs[0], now=now, many=alike)
        drafts = _Drafts(data=list(data))
        for start in range(0, len(data), _CHUNK):
            with paused():
                for index in range(start, min(start + _CHUNK, len(data))):
                    spec = specs[index]
                    # Most batches have one specification for all.
                    if spec is not template.spec:
                        template = transitions.job_template(queue, spec, now=now)
                    drafts.templates.append(template)
                    encoded = encode(data[index], f"jobs[{index}].data", max_bytes=limit)
                    drafts.encoded.append(encoded.data)
            await asyncio.sleep(0)
        return drafts

    async def _add_chunks(self, queue: str, drafts: _Drafts, now: int, at_once: int) -> list[Job]:
        """
        Write several chunks side by side, and publish them in order.

        While the durable plane works on one, the next is made here and the one before
        is published. Where one fails no other is begun, and those under way are
        brought to their end, so that nothing which was written waits for maintenance.

        Raises:
            StorageError: That of the first chunk, in order, that failed.
        """
        jobs: list[Job] = []
        running: deque[asyncio.Task[list[Job]]] = deque()
        before: asyncio.Task[list[Job]] | None = None
        line = _Line()
        try:
            for start in range(0, len(drafts.data), _CHUNK):
                if len(running) == at_once:
                    jobs.extend(await running.popleft())
                fate = await admit(self._session, queue)
                chunk = await _make(drafts, start, now)
                step = self._add_one_chunk(queue, fate, chunk, None, line, before)
                before = asyncio.create_task(step, name="oqron-add")
                running.append(before)
                # It sends its chunk before the next is made.
                await asyncio.sleep(0)
            while running:
                jobs.extend(await running.popleft())
        except asyncio.CancelledError:
            for task in running:
                task.cancel()
            raise
        finally:
            await asyncio.gather(*running, return_exceptions=True)
        return jobs

    async def _add_one_chunk(
        self,
        queue: str,
        fate: str | None,
        chunk: _Chunk,
        bound: BoundDurablePlane | None,
        line: _Line | None = None,
        before: asyncio.Task[list[Job]] | None = None,
    ) -> list[Job]:
        if fate == "skip":
            return [skipped(job) for job in chunk.jobs]
        if fate == "hold":
            return await self._hold_chunk(queue, chunk, bound)
        if bound is not None:
            return await self._add_bound(queue, chunk, bound)
        return await self._add_chunk(queue, chunk, _Line() if line is None else line, before)

    async def _hold_chunk(
        self,
        queue: str,
        chunk: _Chunk,
        bound: BoundDurablePlane | None,
    ) -> list[Job]:
        session = self._session
        pairs = [held(insert, job) for insert, job in zip(chunk.inserts, chunk.jobs, strict=True)]
        inserts = [insert for insert, _ in pairs]
        if bound is None:
            results = await session.write_many(inserts)
            await recheck_held(session, queue)
        else:
            results = await bound.write(inserts, returning=())
            # Whoever resumes before the commit does not see the job yet.
            await bound.after_commit(lambda: recheck_held(session, queue))
        held_chunk = _Chunk(inserts, chunk.delays, [job for _, job in pairs])
        return await self._answers(queue, held_chunk, results, bound)

    async def _add_bound(
        self,
        queue: str,
        chunk: _Chunk,
        bound: BoundDurablePlane,
    ) -> list[Job]:
        """Write inside the caller's transaction; publish when that has committed."""
        results = await bound.write(chunk.inserts, returning=())
        fresh = chunk.applied(results)
        fresh.are_unpublished()

        async def publish() -> None:
            await self._publish_chunk(queue, fresh)

        if fresh.jobs:
            await bound.after_commit(publish)
        return await self._answers(queue, chunk, results, bound)

    async def _add_chunk(
        self,
        queue: str,
        chunk: _Chunk,
        line: _Line,
        before: asyncio.Task[list[Job]] | None,
    ) -> list[Job]:
        session = self._session
        joined = None if chunk.given else session.joined

        async def turn() -> None:
            # First come, first served, whichever was written first.
            if before is not None:
                await asyncio.wait([before])

        async def unanswered() -> None:
            line.stalled = True
            await turn()

        entries = None if joined is None else await session.entries(chunk.places())
        if joined is not None and entries is not None:
            if line.stalled:
                await turn()
            results = await session.add_joined(joined, queue, chunk.inserts, entries, unanswered)
        else:
            results = await session.write_many(chunk.inserts)
        await turn()
        if entries is None:
            await self._publish_chunk(queue, chunk.applied(results))
        return await self._answers(queue, chunk, results)

    async def _publish_chunk(self, queue: str, fresh: _Chunk) -> None:
        session = self._session
        entries = await session.entries(fresh.places())
        if entries is None or (entries and not await session.publish_many(queue, entries)):
            fresh.are_unpublished()

    async def _answers(
        self,
        queue: str,
        chunk: _Chunk,
        results: Sequence[WriteResult],
        plane: DurablePlane | None = None,
    ) -> list[Job]:
        """Give the jobs; for an id that was taken, the one that has it."""
        jobs = chunk.jobs
        refused = [place for place, result in enumerate(results) if not result.applied]
        if refused:
            inserts = [chunk.inserts[place] for place in refused]
            existing = await self._existing(queue, inserts, plane)
            for place, job in zip(refused, existing, strict=True):
                jobs[place] = job
        return jobs

    async def _existing(
        self, queue: str, inserts: Sequence[Insert], plane: DurablePlane | None = None
    ) -> list[Job]:
        """Give the jobs that hold the ids."""
        plane = self._session.durable if plane is None else plane
        records = await plane.get(JOB + queue, [insert.id for insert in inserts])
        jobs = []
        for insert, found in zip(inserts, records, strict=True):
            # Where it ended and was deleted between the two calls: what was asked.
            value = decode_fields(insert.value) if found is None else found.readable()
            job = structure(Job, value)
            object.__setattr__(job, "duplicate", True)
            jobs.append(job)
        return jobs


async def _make(drafts: _Drafts, start: int, now: int) -> _Chunk:
    """Make what is written of a chunk; what is in flight goes on meanwhile."""
    chunk = _Chunk()
    stop = min(start + _CHUNK, len(drafts.data))
    for first in range(start, stop, _SLICE):
        with paused():
            for index in range(first, min(first + _SLICE, stop)):
                template = drafts.templates[index]
                insert, delay, job = template.make(
                    drafts.data[index], Json(drafts.encoded[index]), now
                )
                chunk.given = chunk.given or template.spec.id is not None
                chunk.inserts.append(insert)
                chunk.delays.append(delay)
                chunk.jobs.append(job)
        await asyncio.sleep(0)
    return chunk
