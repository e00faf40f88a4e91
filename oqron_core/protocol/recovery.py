"""
What repairs a crash between two steps, and the loss of the hot plane.

Everything here is idempotent and safe while workers run: it only ever adds to
the broker what the durable plane says should be there, and the claimer confirms
every id with the durable plane anyway.
"""

from __future__ import annotations

import logging

from collections.abc import Sequence
from typing import Any, Final

from oqron_core.exceptions import StorageError
from oqron_core.planes.capabilities import Durability
from oqron_core.planes.values import Entry, Lease, Query, Record
from oqron_core.protocol.duetimes import clock_skew, entry_of, tell_times
from oqron_core.protocol.ending import bury_lapsed, close_run, lapses_at
from oqron_core.protocol.lanes import broker_id, is_topic_queue
from oqron_core.protocol.pauses import QUEUE, queue_control
from oqron_core.protocol.reading import is_sound, priority_of
from oqron_core.protocol.session import Session
from oqron_core.protocol.transitions import JOB, OPEN
from oqron_core.taxonomy import RecordKind


__all__ = ["EPOCH", "Recovery"]

log: logging.Logger = logging.getLogger("oqron.maintenance")

EPOCH: Final = "oqron:epoch:hot"
"""The counter that is there as long as the hot plane was not lost."""
_REBUILD_LOCK: Final = "oqron:lock:rebuild"
_SWEEP_EVERY: Final = 10
_PAGES_A_PASS: Final = 20
_HEADS_FIRST: Final = ("active", "delayed", "waiting")
_NEEDED: Final = (
    "status",
    "priority",
    "runAt",
    "leaseToken",
    "leaseMs",
    "workerId",
    "attemptMade",
    "maxAttempts",
    "createdAt",
)
_SORT_MOST: Final = 200_000
_TOKEN_MOST: Final = 2**53
_ORPHANS: Final = "\0orphans"
"""The place of the orphans' cursor among those of queues; no queue has a NUL."""


class Recovery:
    """
    The passes of maintenance, each bounded by a batch size.

    Args:
        session: The session.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._cursors: dict[str, str] = {}
        self._passes = 0

    async def queues(self) -> list[str]:
        """Name the queues that have jobs in the durable plane, sorted."""
        counts: dict[str, int] = await self._session.durable.count(
            Query(kind=RecordKind.JOB), by="namespace"
        )
        return sorted(name[len(JOB) :] for name in counts if name.startswith(JOB))

    # --- reap ---

    async def reap(self, *, batch: int) -> int:
        """Return every lapsed lease, queue by queue, until none is left."""
        broker = self._session.hot.broker
        total = 0
        for queue in await broker.queues():
            while True:
                ids = await broker.reap(queue, limit=batch)
                total += len(ids)
                if ids:
                    await self._see_to_lapsed(queue, ids)
                if len(ids) < batch:
                    break
        return total

    async def _see_to_lapsed(self, queue: str, ids: Sequence[str]) -> None:
        """
        See to what lapsed, also where nobody claims: bury and drop.

        Jobs without attempts become dead letters; ids of jobs that have ended, whose
        acknowledgement was lost, leave the broker.
        """
        session = self._session
        if is_topic_queue(queue):
            return  # lanes: the next claim looks at what stands behind each
        records = await session.durable.get(JOB + queue, ids)
        now = await session.durable_time.now()
        over: list[str] = []
        for job_id, record in zip(ids, records, strict=True):
            if (
                record is None
                or record.text("status") not in OPEN
                or (
                    is_sound(record)
                    and record.field("status") == "active"
                    # Someone may have claimed it in between: that attempt is alive.
                    and lapses_at(record) <= now
                    and record.field("attemptMade") >= record.field("maxAttempts")
                    and await bury_lapsed(session, queue, record, now)
                )
            ):
                over.append(job_id)
        if over:
            await session.hot.broker.remove(queue, over)

    # --- reconcile ---

    async def reconcile(self, *, batch: int, min_age: float = 0.0) -> int:
        """
        Publish durable jobs that the broker does not know.

        Where the counts of both planes agree nothing is read; every tenth pass
        one page is looked at all the same, as two faults can hide each other, and the
        broker is told again when its jobs are due.

        Args:
            batch: How many at a time.
            min_age: Leave out jobs that were added less than this many seconds ago:
                their adder may still be at it.
        """
        self._passes += 1
        sweep = self._passes % _SWEEP_EVERY == 0
        # Behind the workers' backs a pass is bounded; the next goes on where it ended.
        pages = _PAGES_A_PASS if min_age else None
        total = 0
        await self._align_pauses()
        for queue in await self.queues():
            if not await self._agrees(queue):
                total += await self._restore_queue(queue, batch, min_age, pages, again=sweep)
            elif sweep or is_topic_queue(queue):
                total += await self._restore_queue(queue, batch, min_age, 1, again=sweep)
        return total

    async def _agrees(self, queue: str) -> bool:
        session = self._session
        wanted = 0
        for status in OPEN:
            wanted += await session.durable.count(self._with_status(queue, status))
        counts = await session.hot.broker.counts(queue)
        there = counts.ready + counts.delayed + counts.leased
        if is_topic_queue(queue):
            # A lane stands for many jobs, so only its absence shows.
            return bool(wanted == there or 0 < there < wanted)
        return bool(wanted == there)

    async def _restore_queue(
        self,
        queue: str,
        batch: int,
        min_age: float = 0.0,
        pages: int | None = None,
        *,
        again: bool = False,
    ) -> int:
        """
        Put back what is missing of a queue, in the order of adding.

        What is worked on comes first, then what waits for its time: they are at the
        head of their lanes.

        Args:
            queue: The queue.
            batch: How many at a time.
            min_age: See `reconcile`.
            pages: How many pages of each status to look at, from where the last time
                ended; None for all of them, from the start.
            again: Whether to tell the broker of jobs, too, that it knows.
        """
        total = 0
        for status in _HEADS_FIRST:
            place = f"{status}\0{queue}"
            after = self._cursors.pop(place, None) if pages is not None else None
            missing: list[Record] = []
            looked = 0
            while True:
                query = self._with_status(queue, status, limit=min(batch, 10_000), after=after)
                page = await self._session.durable.query(query)
                gone, known = await self._compare(queue, page.items, min_age)
                missing += gone
                if again and status != "active":
                    await self._tell_again(queue, known, query)
                after = page.next
                looked += 1
                done = after is None or looked == pages
                if done or len(missing) >= _SORT_MOST:
                    total += await self._put_back_all(queue, missing, batch)
                    missing = []
                if done:
                    break
            if after is not None:
                self._cursors[place] = after
        return total

    async def _put_back_all(self, queue: str, missing: list[Record], batch: int) -> int:
        # Ids of one's own need not sort by time; a broker orders by publishing.
        missing.sort(key=lambda record: record.integer("createdAt"))
        total = 0
        for start in range(0, len(missing), batch):
            total += await self._put_back(queue, missing[start : start + batch])
        return total

    def _with_status(
        self, queue: str, status: str, *, limit: int = 50, after: str | None = None
    ) -> Query:
        """Ask for open jobs of one status, as the backend finds them best."""
        where: list[tuple[str, str, Any]] = [("status", "=", status)]
        if self._session.durable.capabilities.expiry_filter:
            where.append(("expires_at", "=", None))  # as every open job
        return Query(namespace=JOB + queue, where=where, limit=limit, after=after, fields=_NEEDED)

    async def _compare(
        self, queue: str, records: Sequence[Record], min_age: float
    ) -> tuple[list[Record], list[Record]]:
        """Give the records that the broker does not know, and those that it knows."""
        if min_age:
            # Whoever adds one may still be about to write it again.
            limit = await self._session.durable_time.now() - round(min_age * 1000)
            records = [r for r in records if r.integer("createdAt") <= limit]
        if not records:
            return [], []
        broker = self._session.hot.broker
        answers = await broker.contains(queue, [broker_id(queue, r.id) for r in records])
        missing = [r for r, there in zip(records, answers, strict=True) if not there]
        if is_topic_queue(queue):
            return _heads(queue, missing), []  # a lane has no time of its own
        return missing, [r for r, there in zip(records, answers, strict=True) if there]

    async def _tell_again(self, queue: str, known: Sequence[Record], query: Query) -> None:
        """
        Tell the broker when jobs are due that it knows.

        Whoever gave one another time may have died before it was told, and the broker
        would hand it out at the old one. Told too early is no harm: the claimer looks.
        """
        session = self._session
        due = [record for record in known if is_sound(record)]
        if not due:
            return
        skew = await clock_skew(session)
        entries = [entry_of(queue, record, skew) for record in due]
        await session.hot.broker.publish(queue, entries)
        if any(entry.due_at is not None for entry in entries):
            # What became sooner since it was read must not be made later here.
            page = await session.durable.query(query)
            times = {record.id: record.field("runAt") for record in page.items}
            changed = [r.id for r in due if times.get(r.id, ...) != r.field("runAt")]
            await tell_times(session, queue, changed)

    async def _put_back(self, queue: str, missing: Sequence[Record]) -> int:
        """Put back what is missing: the waiting as entries, the active as leases."""
        if not missing:
            return 0
        session = self._session
        broker = session.hot.broker
        hot_now = await session.hot_time.now()
        skew = await clock_skew(session)
        entries: list[Entry] = []
        leases: list[Lease] = []
        for record in missing:
            token = record.integer("leaseToken")
            if record.field("status") == "active" and 0 < token < _TOKEN_MOST:
                leases.append(_lease(queue, record, hot_now))
            else:
                entries.append(entry_of(queue, record, skew))
        if entries:
            await broker.publish(queue, entries)
        if leases:
            await broker.restore(queue, leases)
        return len(missing)

    async def _align_pauses(self) -> int:
        """Carry the pause state of the control records over to the broker."""
        session = self._session
        broker = session.hot.broker
        changed = 0
        after: str | None = None
        names: set[str] = set(await broker.queues())
        while True:
            query = Query(namespace=QUEUE, limit=1000, after=after, fields=("paused",))
            page = await session.durable.query(query)
            names.update(record.id for record in page.items if record.field("paused"))
            after = page.next
            if after is None:
                break
        for name in sorted(names):
            # The flag is read before the record: a pause that is under way has
            # written its record first, and is seen.
            flagged = (await broker.counts(name)).paused
            control = await queue_control(session, name)
            wanted = control is not None and control.paused
            if wanted and not flagged:
                await broker.pause(name)
                changed += 1
            elif flagged and not wanted:
                await broker.resume(name)
                changed += 1
                control = await queue_control(session, name)
                if control is not None and control.paused:
                    await broker.pause(name)
        return changed

    # --- rebuild ---

    async def rebuild(self, *, batch: int) -> int:
        """Build the hot plane anew from the durable one: pauses, jobs, leases."""
        await self._align_pauses()
        total = 0
        for queue in await self.queues():
            total += await self._restore_queue(queue, batch)
        await self._session.hot.counters.increment(EPOCH)
        return total

    async def is_lost(self) -> bool:
        """Say whether the hot plane was lost since it was last built."""
        return await self._session.hot.counters.get(EPOCH) is None

    async def rebuild_if_lost(self, *, batch: int, opening: bool = False) -> int | None:
        """
        Rebuild where the epoch is missing; None where it is there.

        Args:
            batch: How many jobs go at a time.
            opening: Whether the storage is being opened: a hot plane that lives in
                this process is empty then, and nothing was lost.
        """
        if not await self.is_lost():
            return None
        locks = self._session.hot.locks
        lease = await locks.acquire(_REBUILD_LOCK, owner=self._session.worker, lease_for=60.0)
        if lease is None:
            return None  # someone else is at it
        try:
            total = await self.rebuild(batch=batch)
            durability = self._session.hot.capabilities.durability
            if total and opening and durability is Durability.PROCESS:
                log.info("the hot plane starts empty in each process; %d jobs were put in", total)
            elif total:
                log.warning("the hot plane was lost or is new; %d jobs were put into it", total)
            return total
        finally:
            try:
                await locks.release(lease)
            except StorageError as error:
                log.debug("the rebuild lock will lapse: %s", error)

    # --- runs that nobody closes ---

    async def close_stale_runs(self, *, older_than: float, batch: int) -> int:
        """Flush live runs whose worker is gone as failed, *worker lost*."""
        session = self._session
        live = session.hot.live
        total = 0
        for run_id in await live.stale(older_than=older_than, limit=batch):
            handle = session.recorder.handle(run_id)
            if handle is not None and not handle.ended:
                continue  # mine, and alive: the writer was slow
            now = await session.durable_time.now()
            if await close_run(session, run_id, None, "failed", "worker lost", now):
                total += 1
        return total

    async def close_orphans(self, *, older_than: float, batch: int) -> int:
        """
        Close history rows that run on, though no worker shows them as alive.

        One page per pass, the next one where the last ended: a living run gives
        a sign of life more often than *older_than*, also after the hot plane was
        lost.
        """
        session = self._session
        now = await session.durable_time.now()
        limit = now - round(older_than * 1000)
        query = Query(
            kind=RecordKind.RUN,
            where=[("status", "=", "running"), ("startedAt", "<", limit)],
            order_by=[("startedAt", "desc")],
            limit=min(batch, 10_000),
            after=self._cursors.get(_ORPHANS),
            fields=("status",),
        )
        page = await session.durable.query(query)
        if page.next is None:
            self._cursors.pop(_ORPHANS, None)
        else:
            self._cursors[_ORPHANS] = page.next
        ids = [record.id for record in page.items if session.recorder.handle(record.id) is None]
        total = 0
        for run_id, live in zip(ids, await session.hot.live.get_many(ids), strict=True):
            if live is None and await close_run(
                session, run_id, None, "failed", "worker lost", now
            ):
                total += 1
        return total


def _heads(queue: str, records: Sequence[Record]) -> list[Record]:
    """Give the first record of each lane: it stands for the others."""
    first: dict[str, Record] = {}
    for record in records:
        first.setdefault(broker_id(queue, record.id), record)
    return list(first.values())


def _lease(queue: str, record: Record, hot_now: int) -> Lease:
    """Build the lease of a job in flight, with its token, for its full length."""
    owner = record.field("workerId")
    return Lease(
        queue,
        broker_id(queue, record.id),
        owner if isinstance(owner, str) and owner else "unknown",
        record.integer("leaseToken"),
        hot_now + record.integer("leaseMs", 30_000),
        max(1, record.integer("attemptMade", 1)),
        priority_of(record),
    )
