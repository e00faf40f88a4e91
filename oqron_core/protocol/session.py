"""What the protocol holds per storage: two planes, their clocks, shared flushes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from oqron_core._codec import canonical
from oqron_core._ids import uuid7
from oqron_core.exceptions import (
    ClosedError,
    ConflictError,
    StorageError,
)
from oqron_core.planes.durable import DurablePlane
from oqron_core.planes.hot import HotPlane
from oqron_core.planes.joined import JoinedPlanes
from oqron_core.planes.values import Entry, Insert, Lease, Put, Write, WriteResult
from oqron_core.protocol.coalesce import Coalescer
from oqron_core.protocol.ends import Ends
from oqron_core.protocol.lanes import is_topic_queue
from oqron_core.protocol.options import Options
from oqron_core.protocol.patience import patiently, to_the_end
from oqron_core.protocol.recorder import Recorder
from oqron_core.protocol.servertime import ServerTime
from oqron_core.protocol.transitions import JOB, OPEN, shows


__all__ = ["OWN_PREFIX", "Added", "Session", "side_by_side"]

log: logging.Logger = logging.getLogger("oqron.protocol")

_T = TypeVar("_T")

OWN_PREFIX: Final = "oqron:"
_TRY_FOR: Final = 1.0
_TRY_JOINED_FOR: Final = 5.0
_BORN: Final = (
    "createdAt",
    "data",
    "opts",
    "maxAttempts",
    "priority",
    "tags",
    "correlationId",
)
"""Fields of a job that nothing changes after it was added."""


class Added:
    """
    A job on its way to the planes.

    Attributes:
        queue: The queue.
        insert: The write that makes it.
        priority: Its priority.
        delay: Milliseconds until it is due; None for at once.
        given: Whether its id is the caller's, who may add it again.
        applied: Whether it was written: the id was free.
        published: Whether the hot plane has it, too.
    """

    __slots__ = ("applied", "delay", "given", "insert", "priority", "published", "queue")

    def __init__(
        self, queue: str, insert: Insert, priority: int, delay: int | None, *, given: bool
    ) -> None:
        self.queue: str = queue
        self.insert: Insert = insert
        self.priority: int = priority
        self.delay: int | None = delay
        self.given: bool = given
        self.applied: bool = False
        self.published: bool = False


class Session:
    """
    One per storage; everything in the protocol works over it.

    Attributes:
        hot: The hot plane.
        durable: The durable plane.
        settings: The settings of the storage.
        hot_time: The hot plane's clock.
        durable_time: The durable plane's clock.
        recorder: The run history.
        ends: The ends of jobs.
        joined: What both planes do in one step, where they are one store; else None.
        worker: The default name of who claims here.
        refused: How many writes were refused because a lease was lost.
        atomic: Whether the durable plane writes all or none, over the whole scope.
        closing: Whether it has begun to close.
        kept: What other parts of the protocol remember per storage, by a class of theirs.
    """

    def __init__(self, hot: HotPlane, durable: DurablePlane, settings: Options) -> None:
        self.hot = hot
        self.durable = durable
        self.settings = settings
        self.hot_time: ServerTime = ServerTime(hot)
        self.durable_time: ServerTime = ServerTime(durable)
        self.worker: str = f"{socket.gethostname()[:64]}-{os.getpid()}-{uuid7()[-12:]}"
        self.refused = 0
        self.kept: dict[type, Any] = {}
        self.recorder: Recorder = Recorder(
            hot,
            durable,
            settings.runs,
            max_bytes=settings.max_value_bytes,
            keep_for=settings.retention.runs_for,
            now=self.durable_time.estimate,
        )
        self._writes: Coalescer[Write, WriteResult] = Coalescer(self.write_many, at_once=2)
        self.joined: JoinedPlanes | None = durable.joined(hot)
        self._adds: Coalescer[Added, None] = Coalescer(
            self._write_added,
            then=self._publish_added if self.joined is None else None,
            at_once=2,
        )
        self._adding: dict[tuple[str, str], asyncio.Future[None]] = {}
        self._publishes: Coalescer[tuple[str, Entry], None] = Coalescer(self._publish)
        self._acks: Coalescer[Lease, bool] = Coalescer(self._ack)
        can = durable.capabilities
        self.atomic: bool = can.atomic and can.atomic_scope == "scope"
        self.ends: Ends = Ends(self)
        self._tasks: set[asyncio.Future[Any]] = set()
        self._brief: set[asyncio.Future[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()
        self._closed = False
        self.closing: asyncio.Event = asyncio.Event()

    def check_open(self) -> None:
        """
        Refuse use after closing, after a fork, and on another event loop.

        Raises:
            ClosedError: The storage is not open here.
        """
        if self._closed or asyncio.get_running_loop() is not self._loop:
            raise ClosedError(self._why_closed())

    @property
    def closed(self) -> bool:
        """Whether the storage was closed."""
        return self._closed

    def _why_closed(self) -> str:
        if self._closed:
            return "the storage is closed; open a new one"
        if os.getpid() != self._pid:
            return "the storage was opened before this process was forked; open one here"
        return "the storage belongs to another event loop; open one on this loop"

    def completed_for(self, queue: str) -> float | None:
        """
        Give for how long a completed job of *queue* is kept, in seconds.

        A delivery goes at once: the message is retained, and a run keeps the input.
        """
        return 0 if is_topic_queue(queue) else self.settings.retention.completed_for

    # --- durable writes ---

    async def write_many(self, writes: Sequence[Write]) -> Sequence[WriteResult]:
        """
        Write a batch; where no answer came, again, and understand the second.

        The results show the records that refused a guarded write, as they were right
        after it, and no others. Trying again ends after a second: maintenance leaves
        a job alone for two, so one whose insert is repeated cannot have been worked and
        gone in between.

        Raises:
            UnavailableError: No answer after several tries.
        """
        return await self.write_patiently(writes, lambda: self.durable.write(writes, returning=()))

    async def add_joined(
        self,
        joined: JoinedPlanes,
        queue: str,
        inserts: Sequence[Insert],
        entries: Sequence[Entry],
        unanswered: Callable[[], Awaitable[None]] | None = None,
    ) -> Sequence[WriteResult]:
        """
        Write jobs and publish them in one step of both planes.

        For ids that were made here alone. Who adds an id of their own again, because
        there was no answer, must find the job: in two steps nobody works it until it is
        published, in one it may have been worked and be gone.

        *unanswered* is called after a try without an answer, before the next.

        Raises:
            UnavailableError: No answer after several tries.
        """
        # Nobody else ever has this id, so it names the call as well.
        token = inserts[0].id
        return await self.write_patiently(
            inserts,
            lambda: joined.add(queue, inserts, entries, token=token),
            unanswered,
            # The token makes it safe for as long as it is known.
            within=_TRY_JOINED_FOR,
        )

    async def write_patiently(
        self,
        writes: Sequence[Write],
        write: Callable[[], Awaitable[Sequence[WriteResult]]],
        unanswered: Callable[[], Awaitable[None]] | None = None,
        *,
        within: float = _TRY_FOR,
        gone_is_done: bool = True,
    ) -> Sequence[WriteResult]:
        """
        Do *write*, which writes *writes*; as `write_many` for its answer.

        *gone_is_done* says whether a record that is not there shows that a delete which
        had no answer was done; else its result shows nothing.
        """

        async def once(tries: int) -> Sequence[WriteResult]:
            results = await write()
            await self._show_refusals(writes, results)
            if tries:
                await self._own_up(writes, results, gone_is_done=gone_is_done)
            return results

        return await patiently(
            once, within=within, unanswered=unanswered, over=lambda: self._closed
        )

    async def _show_refusals(self, writes: Sequence[Write], results: Sequence[WriteResult]) -> None:
        """Read what refused: seldom anything, so nothing is read of what did not."""
        refused: dict[str, list[int]] = {}
        for index, (write, result) in enumerate(zip(writes, results, strict=True)):
            if not result.applied and result.record is not None and type(write) is not Insert:
                refused.setdefault(write.namespace, []).append(index)
        for namespace, indexes in refused.items():
            ids = [writes[index].id for index in indexes]
            found = await self.durable.get(namespace, ids)
            for index, record in zip(indexes, found, strict=True):
                results[index].record = record

    async def _own_up(
        self, writes: Sequence[Write], results: Sequence[WriteResult], *, gone_is_done: bool
    ) -> None:
        """Find out which writes the unanswered try had done."""
        inserted: set[tuple[str, str]] = set()
        for write, result in zip(writes, results, strict=True):
            if isinstance(write, Insert):
                place = (write.namespace, write.id)
                # Of two of one id in a batch only the first can have been written.
                if not result.applied and place not in inserted:
                    result.applied = await self._is_mine(write)
                inserted.add(place)
            elif (
                not result.applied
                and (gone_is_done or result.record is not None)
                and shows(write, result.record)
            ):
                result.applied = True

    async def _is_mine(self, write: Insert) -> bool:
        record = (await self.durable.get(write.namespace, [write.id]))[0]
        return record is not None and all(
            canonical(record.field(name)) == canonical(write.value.get(name)) for name in _BORN
        )

    async def write(self, write: Write) -> WriteResult:
        """Write one, in a flush shared with whoever writes at the same time."""
        return await self._writes.submit(write)

    async def write_atomic(
        self, writes: Sequence[Write], write: Callable[[], Awaitable[Any]] | None = None
    ) -> None:
        """
        Write all or none; where no answer came, again.

        *write* does it, where it is not the durable plane alone.

        Raises:
            ConflictError: A guard did not hold, and the records do not show that
                the batch was done before.
            UnavailableError: No answer after several tries.
        """

        async def once(tries: int) -> None:
            try:
                if write is None:
                    await self.durable.write(writes, atomic=True, returning=())
                else:
                    await write()
            except ConflictError:
                if not tries or not await self.was_done(writes):
                    raise

        await patiently(once, over=lambda: self._closed)

    async def was_done(self, writes: Sequence[Write]) -> bool:
        """Say whether the records show that an unanswered atomic batch was done."""
        for write in writes:
            found = (await self.durable.get(write.namespace, [write.id]))[0]
            if isinstance(write, Put):
                # The token says whose end it is: two may come in one millisecond.
                if found is None or any(
                    found.field(name) != write.value.get(name) for name in ("deadAt", "leaseToken")
                ):
                    return False
            elif not shows(write, found):
                return False
        return True

    # --- hot steps that follow a durable write ---

    def add(self, added: Added) -> Awaitable[None]:
        """
        Write a job, then publish it; *added* tells what became of it.

        Both in flushes shared with whoever adds at the same time, and to its end also
        where the caller is gone by then; where one step does both and nobody else adds,
        that is sent at once, and not again for a caller who is gone. Where the hot plane
        does not answer, the job is published by maintenance.

        Raises:
            UnavailableError: The durable plane did not answer.
        """
        if added.given:
            return self._add_given(added)
        if self.joined is not None and self._adds.is_idle:
            return self._adds.alone(added)
        return self._adds.submit(added)

    async def _add_given(self, added: Added) -> None:
        # Two of one id side by side could not be told apart where an answer is lost: who
        # comes second is a duplicate as soon as the first is there.
        place = (added.queue, added.insert.id)
        while (before := self._adding.get(place)) is not None:
            await asyncio.wait([before])
            if not before.cancelled() and before.exception() is None:
                return
        future = self._adding[place] = self._adds.submit(added)

        def over(future: asyncio.Future[None]) -> None:
            del self._adding[place]
            if not future.cancelled():
                future.exception()

        future.add_done_callback(over)
        # It is under way also where the caller has gone.
        await asyncio.shield(future)

    async def _write_added(self, items: Sequence[Added]) -> Sequence[None]:
        if self.joined is None:
            await self._insert_added(items)
        elif not await self._add_whole(self.joined, items):
            await self._insert_added(items)
            await self._publish_added(items, ())
        return [None] * len(items)

    async def _insert_added(self, items: Sequence[Added]) -> None:
        results = await self.write_many([item.insert for item in items])
        for item, result in zip(items, results, strict=True):
            item.applied = result.applied

    async def _add_whole(self, joined: JoinedPlanes, items: Sequence[Added]) -> bool:
        """Write and publish in one step; False where these cannot be."""
        queue = items[0].queue
        for item in items:
            if item.given or item.queue != queue:
                # One that fails must not make it look as if the others had.
                return False
        places = [(item.insert.id, item.priority, item.delay) for item in items]
        entries = await self.entries(places)
        if entries is None:
            return False
        results = await self.add_joined(joined, queue, [item.insert for item in items], entries)
        for item, result in zip(items, results, strict=True):
            item.applied = item.published = result.applied
        return True

    async def _publish_added(self, items: Sequence[Added], _: Sequence[None]) -> None:
        by_queue: dict[str, list[Added]] = {}
        for item in items:
            if item.applied:
                by_queue.setdefault(item.queue, []).append(item)
        for queue, fresh in by_queue.items():
            places = [(item.insert.id, item.priority, item.delay) for item in fresh]
            entries = await self.entries(places)
            published = entries is not None and await self.publish_many(queue, entries)
            for item in fresh:
                item.published = published

    async def entries(self, places: Sequence[tuple[str, int, int | None]]) -> list[Entry] | None:
        """
        Give what is published of jobs; None where the hot plane does not answer.

        Args:
            places: Of each job the id, the priority, and the milliseconds until it is
                due or None for at once.
        """
        entries: list[Entry] = []
        now: int | None = None
        for job_id, priority, delay in places:
            due: int | None = None
            if delay:
                if now is None and (now := await self.hot_now()) is None:
                    return None
                due = now + delay
            entries.append(Entry(job_id, priority, due))
        return entries

    async def hot_now(self) -> int | None:
        """
        Give milliseconds since the epoch by the hot plane's clock.

        None where it does not answer: no other clock is good enough for what is to be
        published with a due time, and maintenance publishes that when it does.
        """
        try:
            return await self.hot_time.now()
        except (StorageError, ClosedError) as error:
            log.warning("delayed jobs are published later by maintenance: %s", error)
            return None

    async def publish(self, queue: str, entry: Entry) -> bool:
        """Publish one, in a shared flush; False where the hot plane did not answer."""
        try:
            await self._publishes.submit((queue, entry))
        except (StorageError, ClosedError) as error:
            log.warning("published later by maintenance: %s", error)
            return False
        return True

    async def publish_many(self, queue: str, entries: Sequence[Entry]) -> bool:
        """Publish a batch; False where the hot plane did not answer."""
        try:
            await self.hot.broker.publish(queue, entries)
        except (StorageError, ClosedError) as error:
            log.warning("%d jobs published later by maintenance: %s", len(entries), error)
            return False
        return True

    async def _publish(self, items: Sequence[tuple[str, Entry]]) -> Sequence[None]:
        by_queue: dict[str, list[Entry]] = {}
        for queue, entry in items:
            by_queue.setdefault(queue, []).append(entry)
        await side_by_side([self.hot.broker.publish(q, entries) for q, entries in by_queue.items()])
        return [None] * len(items)

    async def ack(self, lease: Lease) -> bool:
        """
        Acknowledge one, in a shared flush.

        The durable plane has the truth already: where the hot plane does not
        answer, the lease lapses and the next claimer drops the id.
        """
        try:
            held = await self._acks.submit(lease)
            if not held:
                await self._forget([lease])
        except (StorageError, ClosedError) as error:
            log.debug("the lease of a finished job will lapse: %s", error)
            return False
        return held

    async def ack_many(self, leases: Sequence[Lease]) -> None:
        """Acknowledge a batch; as `ack`."""
        try:
            answers = await self._ack(leases)
            lost = [lease for lease, held in zip(leases, answers, strict=True) if not held]
            if lost:
                await self._forget(lost)
        except (StorageError, ClosedError) as error:
            log.debug("%d leases of finished jobs will lapse: %s", len(leases), error)

    async def _forget(self, leases: Sequence[Lease]) -> None:
        """
        Drop what became ready again just before its job ended.

        A lease that lapsed unseen by its holder may be back among what is ready, and
        where nobody claims, nobody would find that the job is over. Lanes stay: there
        may be other jobs behind them.
        """
        for queue in {lease.queue for lease in leases if not is_topic_queue(lease.queue)}:
            ids = [lease.id for lease in leases if lease.queue == queue]
            records = await self.durable.get(JOB + queue, ids)
            over = [
                job_id
                for job_id, record in zip(ids, records, strict=True)
                if record is None or record.text("status") not in OPEN
            ]
            if over:
                await self.hot.broker.remove(queue, over)

    async def _ack(self, leases: Sequence[Lease]) -> Sequence[bool]:
        if all(lease.queue == leases[0].queue for lease in leases):
            return await self.hot.broker.ack(leases)
        places: dict[str, list[int]] = {}
        for index, lease in enumerate(leases):
            places.setdefault(lease.queue, []).append(index)
        parts = await side_by_side(
            [self.hot.broker.ack([leases[i] for i in indexes]) for indexes in places.values()]
        )
        answers = [False] * len(leases)
        for indexes, part in zip(places.values(), parts, strict=True):
            for index, answer in zip(indexes, part, strict=True):
                answers[index] = answer
        return answers

    async def nack(
        self, leases: Sequence[Lease], *, delay: float = 0.0, priority: int | None = None
    ) -> bool:
        """Give leases back; False where the hot plane does not answer for long: they lapse."""
        try:
            # One that was given back is no lease any more: again changes nothing.
            await patiently(
                lambda _: self.hot.broker.nack(leases, delay=delay, priority=priority),
                within=_TRY_FOR,
                over=lambda: self._closed,
            )
        except (StorageError, ClosedError) as error:
            log.debug("%d leases will lapse: %s", len(leases), error)
            return False
        return True

    # --- life ---

    def spawn(
        self, coroutine: Coroutine[Any, Any, Any], *, name: str, brief: bool = False
    ) -> asyncio.Task[Any]:
        """
        Start a task that ends with the storage at the latest.

        One that is *brief* is waited for when the storage closes.
        """
        task = asyncio.create_task(coroutine, name=name)
        tasks = self._brief if brief else self._tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    @contextlib.contextmanager
    def in_hand(self) -> Iterator[None]:
        """Have closing wait for what is done in the context, as for a brief task."""
        over = asyncio.get_running_loop().create_future()
        self._brief.add(over)
        try:
            yield
        finally:
            self._brief.discard(over)
            if not over.done():
                over.set_result(None)

    async def to_the_end(
        self,
        step: Coroutine[Any, Any, _T],
        *,
        name: str,
        brief: bool = False,
        unclaimed: Callable[[_T], None] | None = None,
    ) -> _T:
        """Run a step in a task of its own, see `patience.to_the_end` and `spawn`."""
        start = partial(self.spawn, name=name, brief=brief)
        return await to_the_end(step, start, unclaimed=unclaimed)

    async def open(self) -> None:
        """Start what runs in the background."""
        self._loop = asyncio.get_running_loop()
        self.recorder.open()

    async def close(self, timeout: float) -> int:
        """
        Stop; gives how many terminal run states could not be written.

        Args:
            timeout: Seconds, for everything.
        """
        if self._closed:
            return 0
        self.closing.set()
        try:
            async with asyncio.timeout(timeout / 4):
                # A claim that is on its way has counted attempts: it is given back.
                while self._brief:
                    await asyncio.wait([*self._brief])
                await self.ends.drain()
                await self._adds.drain()
                await self._writes.drain()
                await self._acks.drain()
                await self._publishes.drain()
        except TimeoutError:
            log.warning("closing left writes unanswered")
        self._closed = True
        for flushes in (self.ends, self._adds, self._writes, self._acks, self._publishes):
            await flushes.close()
        tasks = [*self._brief, *self._tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout / 4)
        return await self.recorder.close(timeout / 2)


async def side_by_side(calls: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Await calls side by side; the first error is raised when all have ended."""
    if len(calls) == 1:
        return [await calls[0]]
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
