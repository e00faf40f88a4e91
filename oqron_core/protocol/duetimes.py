"""When jobs that wait are due: the durable plane says it, the broker is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from oqron_core.planes.checks import MAX_INSTANT
from oqron_core.planes.values import Entry, Record
from oqron_core.protocol.lanes import broker_id
from oqron_core.protocol.reading import priority_of
from oqron_core.protocol.session import Session
from oqron_core.protocol.transitions import JOB


__all__ = ["clock_skew", "entry_of", "tell_times"]

_LATEST: Final = MAX_INSTANT - 366 * 86_400_000
_TRIES: Final = 10


async def clock_skew(session: Session) -> int:
    """Say by how many milliseconds the hot plane's clock is ahead of the durable one's."""
    return await session.hot_time.now() - await session.durable_time.now()


def entry_of(queue: str, record: Record, skew: int) -> Entry:
    """Build what the broker should know of a job that waits."""
    run_at = record.field("runAt")
    due = run_at + skew if type(run_at) is int and 0 < run_at < _LATEST else None
    return Entry(broker_id(queue, record.id), priority_of(record), due)


async def tell_times(session: Session, queue: str, ids: Sequence[str]) -> None:
    """
    Tell the broker when jobs are due, of those that wait.

    Whoever changes a time writes it first and tells it then. Of two at the same time
    the broker may hear the older one last, so it is told until nothing has changed.

    Raises:
        UnavailableError: A plane did not answer; maintenance tells it.
    """
    told: dict[str, tuple[object, object]] = {}
    for _ in range(_TRIES):
        news: list[Record] = []
        for record in await session.durable.get(JOB + queue, ids) if ids else ():
            if record is None or record.text("status") not in {"waiting", "delayed"}:
                continue
            state = (record.field("status"), record.field("runAt"))
            if told.get(record.id) != state:
                told[record.id] = state
                news.append(record)
        if not news:
            return
        skew = await clock_skew(session)
        await session.hot.broker.publish(queue, [entry_of(queue, one, skew) for one in news])
        ids = [record.id for record in news]
