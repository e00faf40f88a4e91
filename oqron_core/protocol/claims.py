"""A claimed job in the hands of a worker."""

from __future__ import annotations

import asyncio

from collections.abc import Awaitable, Callable
from typing import Any, Final, final

import attrs

from oqron_core._codec import decode
from oqron_core.models.job import Job
from oqron_core.models.records import Message
from oqron_core.planes.values import Lease, Record
from oqron_core.protocol.reading import job_of
from oqron_core.protocol.run_handle import RunHandle


__all__ = ["Claim"]

_UNREAD: Final = object()


@final
class Claim:
    """
    A job, the lease that allows to work on it, and the run that records it.

    Attributes:
        lease: The lease; its token guards every write.
        run: The run of this attempt: ``log`` and ``progress`` are plain calls.
        attempt: Which attempt this is, from 1.
        record: The job's record as it was claimed.
        message: The message, where this is a delivery of a topic; else None.
    """

    __slots__ = (
        "__weakref__",
        "_cancel_event",
        "_data",
        "_job",
        "_tags",
        "attempt",
        "cancelled",
        "deadline",
        "lease",
        "lost",
        "message",
        "record",
        "run",
        "settled",
        "then",
        "tried",
        "unsure",
    )

    def __init__(
        self, record: Record, lease: Lease, run: RunHandle, attempt: int, deadline: float
    ) -> None:
        self.record: Record = record
        self.lease: Lease = lease
        self.run: RunHandle = run
        self.attempt: int = attempt
        self.message: Message | None = None
        self.deadline: float = deadline
        """When the lease lapses by the local monotonic clock, unless renewed."""
        self.cancelled: bool = False
        """Whether someone called the job off; known as soon as the signal arrives."""
        self.lost: bool = False
        """Whether the lease is lost: it could not be renewed until it had lapsed."""
        self.unsure: bool = False
        """Whether its end was written, and had no answer."""
        self.tried: dict[str, Any] | None = None
        """What was written to fail or release it and may have been done, by the call."""
        self.settled: bool = False
        """Whether it was completed, failed or released."""
        self.then: Callable[[Claim], Awaitable[None]] | None = None
        """What follows the end of the job, where its lease is a lane's."""
        self._data: Any = _UNREAD
        self._job: Job | None = None
        self._tags: tuple[str, ...] | None = None
        self._cancel_event: asyncio.Event | None = None

    @property
    def job(self) -> Job:
        """The job as it was claimed, built when it is first asked for."""
        job = self._job
        if job is None:
            # The handler may change what it gets; what is written again is not that.
            job = job_of(self.record, self.lease.queue, fresh=True)
            if self._data is not _UNREAD:
                # One payload, however it is asked for.
                job = attrs.evolve(job, data=self._data)
            self._job = job
        return job

    @property
    def tags(self) -> tuple[str, ...]:
        """The job's tags; the same as ``job.tags``, without building the job."""
        if self._tags is None:
            found = self.record.field("tags")
            self._tags = (
                tuple([tag for tag in found if type(tag) is str]) if isinstance(found, list) else ()
            )
        return self._tags

    @property
    def id(self) -> str:
        """The job's id."""
        return self.record.id

    @property
    def data(self) -> Any:
        """The payload, decoded when it is first asked for; the same as ``job.data``."""
        if self._data is _UNREAD:
            job = self._job
            if job is None:
                where = f"{self.record.namespace}/{self.record.id}"
                self._data = decode(self.run.encoded_input.data, where)
            else:
                self._data = job.data
        return self._data

    async def wait_cancelled(self) -> None:
        """Return when someone has called the job off."""
        if self.cancelled:
            return
        if self._cancel_event is None:
            self._cancel_event = asyncio.Event()
        await self._cancel_event.wait()

    def set_cancelled(self) -> None:
        """Mark it as called off, and wake who waits for that."""
        self.cancelled = True
        if self._cancel_event is not None:
            self._cancel_event.set()

    def __repr__(self) -> str:
        return f"Claim({self.lease.queue!r}, {self.id!r}, token={self.lease.token})"
