"""Adding: the durable insert first, then the broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from oqron_core._codec import decode_fields
from oqron_core.exceptions import StorageError
from oqron_core.models._wire import structure
from oqron_core.models.job import Job, JobSpec
from oqron_core.planes.values import Entry, Insert
from oqron_core.protocol import transitions
from oqron_core.protocol.session import Session
from oqron_core.protocol.transitions import JOB


__all__ = ["Adding"]

_CHUNK: Final = 1000


class Adding:
    """The step that makes a job."""

    def __init__(self, session: Session) -> None:
        self._session = session

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
        for start in range(0, len(made), _CHUNK):
            jobs.extend(await self._add_chunk(queue, made[start : start + _CHUNK]))
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
        # Where it ended and was deleted between the two calls: what was asked.
        value = decode_fields(insert.value) if found is None else found.value
        job = structure(Job, value)
        object.__setattr__(job, "duplicate", True)
        return job
