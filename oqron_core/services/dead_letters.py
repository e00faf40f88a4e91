"""Dead letters: jobs whose attempts are exhausted."""

from __future__ import annotations

from oqron_core._names import check_name
from oqron_core.models import Job
from oqron_core.planes.values import Delete, Page, Query
from oqron_core.protocol.orders import Orders
from oqron_core.protocol.reading import job_of
from oqron_core.protocol.session import Session
from oqron_core.protocol.transitions import DLQ
from oqron_core.taxonomy import RecordKind


__all__ = ["DeadLetters"]


class DeadLetters:
    """
    Jobs that ended as failed, kept for people to decide.

    A dead letter is a `Job` with ``dead_at``, ``reason`` and ``error``. Where an
    id died, was added anew and died again, the later one is kept.
    """

    def __init__(self, session: Session, orders: Orders) -> None:
        self._session = session
        self._orders = orders

    async def get(self, queue: str, id: str) -> Job | None:  # noqa: A002 - the word of the contract
        """Read a dead letter; None where there is none."""
        self._session.check_open()
        check_name("queue", queue)
        record = (await self._session.durable.get(DLQ + queue, [id]))[0]
        return None if record is None else job_of(record, queue)

    async def query(self, queue: str, *, limit: int = 50, after: str | None = None) -> Page[Job]:
        """
        Read the dead letters of a queue, in the order of their ids.

        Args:
            queue: The queue.
            limit: At most this many, 1 to 10,000.
            after: The ``next`` of the page before.
        """
        self._session.check_open()
        check_name("queue", queue)
        query = Query(namespace=DLQ + queue, limit=limit, after=after)
        page = await self._session.durable.query(query)
        return Page([job_of(record, queue) for record in page.items], page.next)

    async def counts(self) -> dict[str, int]:
        """Count the dead letters of each queue that has some."""
        self._session.check_open()
        found: dict[str, int] = await self._session.durable.count(
            Query(kind=RecordKind.DLQ), by="namespace"
        )
        return {name[len(DLQ) :]: found[name] for name in sorted(found)}

    async def requeue(self, queue: str, id: str) -> Job | None:  # noqa: A002 - the word of the contract
        """
        Make a dead letter a job again, with fresh attempts, in one atomic write.

        Returns:
            The job, or None where there is no such dead letter (any more): of two
            callers one gets the job.

        Raises:
            ConflictError: The queue has a job of that id again.
            UnavailableError: The durable plane did not answer.
        """
        self._session.check_open()
        check_name("queue", queue)
        return await self._orders.ending.requeue(queue, id)

    async def delete(self, queue: str, id: str) -> bool:  # noqa: A002 - the word of the contract
        """Throw a dead letter away; False where there is none."""
        self._session.check_open()
        check_name("queue", queue)
        results = await self._session.durable.write([Delete(DLQ + queue, id)], returning=())
        return results[0].applied
