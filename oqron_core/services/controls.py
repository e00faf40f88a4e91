"""Control state: what is paused."""

from __future__ import annotations

from oqron_core._names import check_name
from oqron_core.models import Control, structure
from oqron_core.planes.values import Page, Query
from oqron_core.protocol.pauses import QUEUE, queue_control, set_queue_paused
from oqron_core.protocol.session import Session


__all__ = ["Controls"]


class Controls:
    """Pause state, durable and versioned; the source of truth of any board."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def pause_queue(self, queue: str, *, reason: str | None = None) -> Control:
        """Pause a queue; see `Jobs.pause`."""
        self._session.check_open()
        check_name("queue", queue)
        return await set_queue_paused(self._session, queue, paused=True, reason=reason)

    async def resume_queue(self, queue: str) -> Control:
        """Resume a queue; see `Jobs.resume`."""
        self._session.check_open()
        check_name("queue", queue)
        return await set_queue_paused(self._session, queue, paused=False, reason=None)

    async def get_queue(self, queue: str) -> Control | None:
        """Read the state of a queue; None where it was never paused."""
        self._session.check_open()
        check_name("queue", queue)
        return await queue_control(self._session, queue)

    async def queues(self, *, limit: int = 50, after: str | None = None) -> Page:
        """Read the control records of queues, by name."""
        self._session.check_open()
        page = await self._session.durable.query(
            Query(namespace=QUEUE, limit=limit, after=after)
        )
        return Page([structure(Control, record.value) for record in page.items], page.next)
