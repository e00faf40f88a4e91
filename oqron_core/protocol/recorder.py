"""
Run history, never in the way of the work.

What a handle is told changes an object in memory and queues a write. A
background writer sends what is queued: finished runs to the durable plane at
once and in batches, the others to the hot overlay a little later, so that a
short run costs a single durable insert.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice, takewhile
from typing import Any, Final

from oqron_core._codec import Json
from oqron_core._ids import uuid7
from oqron_core.exceptions import InvalidValueError, StorageError
from oqron_core.planes.durable import DurablePlane
from oqron_core.planes.hot import HotPlane
from oqron_core.planes.values import Insert, LiveChange, Write
from oqron_core.protocol.options import RunSettings
from oqron_core.protocol.orphans import end_orphans
from oqron_core.protocol.run_handle import RUNS, RunHandle


__all__ = ["Recorder", "merged"]

log: logging.Logger = logging.getLogger("oqron.runs")

_BATCH: Final = 1000
_TOUCH_MOST: Final = 10.0
_TURNS: Final = 6
"""How many turns of the loop somebody has who ended runs, to begin with a claim."""
_GIVE_WAY: Final = 0.005
"""How many seconds history waits for claims at most."""


class Recorder:
    """
    Owns the handles of a storage and the writer behind them.

    Attributes:
        settings: How often, how much.
        max_bytes: The limit of an output.
        lock: Guards the handles; held for moments only.
        unsent: How many log entries wait for the overlay.
        dropped: Progress that was dropped because too much was waiting.
        lost: Terminal states that could not be written at close.
    """

    def __init__(
        self,
        hot: HotPlane,
        durable: DurablePlane,
        settings: RunSettings,
        *,
        max_bytes: int,
        keep_for: float | None,
        now: Callable[[], int],
    ) -> None:
        self.settings = settings
        self.max_bytes = max_bytes
        self.lock: threading.RLock = threading.RLock()
        self.unsent: int = 0
        self.dropped: int = 0
        self.lost: int = 0
        self.now = now
        self._hot = hot
        self._durable = durable
        self._keep_for = keep_for
        self._app = durable.scope.project
        self._environment = durable.scope.environment
        self._handles: dict[str, RunHandle] = {}
        self._finished: deque[RunHandle] = deque()
        self._dirty: dict[str, tuple[float, RunHandle]] = {}
        # Runs that may yet be shown as running in history, the oldest first.
        self._young: dict[str, tuple[float, RunHandle]] = {}
        self._statics: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._touched_at = 0.0
        # Runs whose claim nobody held when it was looked at last; those of them for the
        # second time.
        self._abandoned: AbstractSet[str] = frozenset()
        self._orphans: AbstractSet[str] = frozenset()
        self._look_every = settings.write_every / 2
        # Often enough that a lost sign or two does not make a living run look dead.
        self._touch_every = min(_TOUCH_MOST, settings.stale_after / 4)
        self._closing = False
        self._busy = 0
        self._idle: asyncio.Future[bool] | None = None

    # --- handles ---

    def start(
        self,
        *,
        name: str,
        module: str,
        trigger: str,
        encoded_input: Json,
        started_at: int,
        run_id: str | None = None,
        attempt: int = 1,
        job_id: str | None = None,
        queue_name: str | None = None,
        worker_id: str | None = None,
        came_from: str = "queued",
        reason: str = "started",
    ) -> RunHandle:
        """Begin a run and give its handle."""
        key = (name, module, trigger, worker_id)
        static = self._statics.get(key)
        if static is None:
            static = {
                "name": name,
                "module": module,
                "trigger": trigger,
                "app": self._app,
                "environment": self._environment,
                "workerId": worker_id,
            }
            if len(self._statics) < 1000:  # noqa: PLR2004 - a memo, bounded
                self._statics[key] = static
        handle = RunHandle(
            self,
            uuid7() if run_id is None else run_id,
            static,
            encoded_input,
            started_at,
            attempt=attempt,
            job_id=job_id,
            queue_name=queue_name,
            came_from=came_from,
            reason=reason,
        )
        with self.lock:
            self._handles[handle.id] = handle
            if self._loop is None:
                self.changed(handle)
            else:
                begun = (self._loop.time(), handle)
                self._young[handle.id] = begun
                self._queue(begun)
        return handle

    def handle(self, run_id: str) -> RunHandle | None:
        """Give the handle of a run of this storage that is not written yet."""
        return self._handles.get(run_id)

    def handles(self) -> Sequence[RunHandle]:
        """Give every handle that is running or not written yet."""
        with self.lock:
            return list(self._handles.values())

    def changed(self, handle: RunHandle) -> None:
        """Queue progress; the oldest is dropped where too much waits."""
        if self.unsent > self.settings.buffer:
            self._drop_oldest()
        if handle.id not in self._dirty:
            self._queue((0.0 if self._loop is None else self._loop.time(), handle))

    def _queue(self, since: tuple[float, RunHandle]) -> None:
        self._dirty[since[1].id] = since
        if len(self._dirty) == 1:
            # For the others it was brought forward when the first one came.
            self._soon(self._arm_early)

    def _arm_early(self) -> None:
        """Bring the timer forward where it was set for less urgent things."""
        if self._timer is None:
            self._arm()
        elif self._loop is not None:
            due = self._loop.time() + self._look_every
            if self._timer.when() > due:
                self._timer.cancel()
                self._timer = None
                self._arm()

    def _drop_oldest(self) -> None:
        _, oldest = next(iter(self._dirty.values()))
        waiting = oldest.skip_unsent()
        self.unsent -= waiting
        self.dropped += waiting
        del self._dirty[oldest.id]

    def ended(self, handle: RunHandle) -> None:
        """Queue a terminal state; it is never dropped."""
        self._settled(handle)
        self._finished.append(handle)
        if not self._wake.is_set():
            self._soon(self._wake.set)

    def _settled(self, handle: RunHandle) -> None:
        # Nothing holds on to a run that has ended but the write of its end: what stays
        # for long is walked by the collector again and again.
        if self._dirty.pop(handle.id, None) is not None:
            # Also what is on its way to the overlay: its answer counts it no more.
            self.unsent -= handle.skip_unsent()
        self._young.pop(handle.id, None)
        handle.owner = None

    def _soon(self, callback: Callable[[], None]) -> None:
        loop = self._loop
        if loop is None:
            return
        if threading.get_ident() == self._thread:
            callback()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                loop.call_soon_threadsafe(callback)

    def _arm(self) -> None:
        """Set the timer for what is due next; none where nothing runs."""
        if self._timer is not None or self._loop is None or self._closing:
            return
        if self._dirty:
            delay = self._look_every
        elif self._young:
            delay = self.settings.durable_after
        elif self._handles:
            delay = self._touch_every
        else:
            return
        self._timer = self._loop.call_later(delay, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._wake.set()

    # --- the writer ---

    def open(self) -> None:
        """Start the writer on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._touched_at = self._loop.time()
        self._task = asyncio.create_task(self._run(), name="oqron-run-writer")

    async def _run(self) -> None:
        pause = 0.0
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._round()
                pause = 0.0
            except StorageError as error:
                pause = min(2.0, max(0.1, pause * 2))
                log.warning("run history waits %.1f s: %s", pause, error)
                await asyncio.sleep(pause)
                self._wake.set()
            except Exception:
                # A writer that dies would lose everything after it.
                log.exception("the run writer failed; it goes on")
                pause = min(2.0, max(0.1, pause * 2))
                await asyncio.sleep(pause)
                self._wake.set()

    async def _give_way(self) -> None:
        """
        Let whoever ended these runs claim the next jobs first.

        Nobody waits for history. It is sent when they have their jobs, so that the plane
        has it in hand while they are at work.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + _GIVE_WAY
        turns = 0
        while turns < _TURNS and (left := until - loop.time()) > 0:
            if not self._busy:
                turns += 1
                await asyncio.sleep(0)
                continue
            turns = 0
            idle = self._idle = loop.create_future()
            await asyncio.wait([idle], timeout=left)
            if idle.done() and idle.result():
                return

    @contextlib.contextmanager
    def busy(self, *, claiming: bool = False) -> Iterator[None]:
        """Have history wait a little while jobs are ended or claimed."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            idle = self._idle
            if not self._busy and idle is not None and not idle.done():
                # After a claim there is work; after an end there may be a claim.
                idle.set_result(claiming)

    async def _round(self) -> None:
        while self._finished:
            await self._give_way()
            async with self._writing:
                if self._finished:
                    await self._write_some()
        if self._timer is None:
            try:
                await self._write_progress()
            finally:
                self._arm()

    async def write_finished(self) -> None:
        """
        Write every finished run. What fails stays queued.

        Raises:
            StorageError: The durable plane did not take it.
        """
        async with self._writing:
            while self._finished:
                await self._write_some()

    async def _write_some(self) -> None:
        """Write a batch of finished runs; whoever writes holds the lock."""
        with self.lock:
            batch = [self._finished.popleft() for _ in range(min(_BATCH, len(self._finished)))]
        try:
            await self._write_batch(batch)
        except InvalidValueError:
            await self._write_one_by_one(batch)
        except BaseException:
            with self.lock:
                self._finished.extendleft(reversed(batch))
            raise
        await self._let_go(batch)

    async def _write_one_by_one(self, batch: list[RunHandle]) -> None:
        """Write a batch that holds something refused: it must not cost the others."""
        while batch:
            try:
                await self._write_or_slim(batch[0])
            except BaseException:
                with self.lock:
                    self._finished.extendleft(reversed(batch))
                raise
            await self._let_go([batch.pop(0)])

    async def _write_or_slim(self, handle: RunHandle) -> None:
        try:
            await self._write_batch([handle])
        except InvalidValueError as error:
            log.error("run %s is stored without its log: %s", handle.id, error)  # noqa: TRY400 - the error says it all
            with self.lock:
                handle.slim()
            try:
                await self._write_batch([handle])
            except InvalidValueError as again:
                log.error("run %s was refused: %s", handle.id, again)  # noqa: TRY400 - likewise
                self.lost += 1

    async def _write_batch(self, batch: Sequence[RunHandle]) -> None:
        results = await self._durable.write(self._writes(batch), returning=())
        refused = [
            handle
            for handle, result in zip(batch, results, strict=True)
            if not result.applied and not handle.in_history
        ]
        if not refused:
            return
        # An insert can meet the row that an unanswered write put there as running.
        rows = await self._durable.get(RUNS, [handle.id for handle in refused])
        again = [
            handle
            for handle, row in zip(refused, rows, strict=True)
            if row is not None and row.text("status") == "running"
        ]
        if again:
            for handle in again:
                handle.in_history = True
            await self._durable.write(self._writes(again), returning=())

    def _writes(self, batch: Sequence[RunHandle]) -> list[Write]:
        return [handle.write(self._expiry(handle)) for handle in batch]

    def _expiry(self, handle: RunHandle) -> int | None:
        if self._keep_for is None:
            return None
        return (handle.ended_at or 0) + round(self._keep_for * 1000)

    def insert(self, handle: RunHandle, output: Json) -> Insert | None:
        """
        Give the write that ends a run together with its job, and take it for ended.

        `wrote` follows where it was done, `RunHandle.reopen` where it was not. None
        where the run has to be written by itself.
        """
        value = handle.seal(output)
        if value is None:
            return None
        return Insert(RUNS, handle.id, value, self._expiry(handle))

    async def wrote(self, handles: Sequence[RunHandle]) -> None:
        """Forget runs whose end was written by `insert`."""
        with self.lock:
            for handle in handles:
                self._settled(handle)
        await self._let_go(handles)

    async def _let_go(self, batch: Sequence[RunHandle]) -> None:
        with self.lock:
            for handle in batch:
                self._handles.pop(handle.id, None)
        live = [handle.id for handle in batch if handle.in_overlay]
        if live:
            try:
                await self._hot.live.drop(live)
            except StorageError as error:
                # Maintenance finds them stale, sees history, and drops them.
                log.debug("live runs were not dropped: %s", error)

    async def _write_progress(self, *, all_of_it: bool = False) -> None:
        with self.lock:
            batch = self._due(all_of_it=all_of_it)
            changes = [handle.change() for handle in batch]
            lengths = [handle.length for handle in batch]
            changes.extend(self._signs_of_life())
        if changes:
            await self._hot.live.merge_many(changes)
            with self.lock:
                for handle, change, length in zip(batch, changes, lengths, strict=False):
                    self.unsent -= handle.mark_sent(change, length)
                    self._clean(handle)
            # One that ended meanwhile may have been written before the merge.
            gone = [handle.id for handle in batch if handle.id not in self._handles]
            if gone:
                await self._hot.live.drop(gone)
        await self._write_running()
        await self._end_orphans()

    def _due(self, *, all_of_it: bool) -> list[RunHandle]:
        """Give what has waited long enough: a run that ends before costs one write."""
        due: Iterable[tuple[float, RunHandle]] = islice(self._dirty.values(), _BATCH)
        if not all_of_it and self._loop is not None:
            # Together with the pause between two looks: what changes is shown in time.
            limit = self._loop.time() - 0.8 * self._look_every
            due = takewhile(lambda one: one[0] <= limit, due)
        # One that is sealed may yet go on: nobody is told that it has ended.
        return [handle for _, handle in due if not handle.ended]

    def _clean(self, handle: RunHandle) -> None:
        if handle.all_sent:
            self._dirty.pop(handle.id, None)

    def _signs_of_life(self) -> list[LiveChange]:
        if self._loop is None or self._loop.time() - self._touched_at < self._touch_every:
            return []
        self._touched_at = self._loop.time()
        before = self._abandoned
        self._abandoned = {h.id for h in self._handles.values() if not h.ended and h.is_abandoned}
        # What was sent for one last has come to its end by the second look.
        self._orphans = before & self._abandoned
        return [
            LiveChange(handle.id)
            for handle in self._handles.values()
            if handle.in_overlay
            and not handle.ended
            and handle.id not in self._dirty
            # Its handler may yet end, and be accepted; but whoever takes over closes it.
            and not handle.is_silent
            and not handle.is_abandoned
        ]

    async def _end_orphans(self) -> None:
        with self.lock:
            handles = [self._handles[name] for name in self._orphans if name in self._handles]
            self._orphans = frozenset()
        left = [handle for handle in handles if not handle.ended]
        if left:
            await end_orphans(self._durable, left)

    async def _write_running(self) -> None:
        """Put what has run for a while into history, as running."""
        if self._loop is None:
            return
        limit = self._loop.time() - self.settings.durable_after
        with self.lock:
            due = takewhile(lambda begun: begun[0] <= limit, self._young.values())
            batch = [handle for _, handle in islice(due, _BATCH) if not handle.ended]
            for handle in batch:
                del self._young[handle.id]
            writes = [Insert(RUNS, handle.id, handle.to_wire()) for handle in batch]
        if not batch:
            return
        async with self._writing:
            still = [
                (handle, write)
                for handle, write in zip(batch, writes, strict=True)
                if handle.id in self._handles and not handle.in_history
            ]
            try:
                await self._durable.write([write for _, write in still], returning=())
            except BaseException:
                with self.lock:
                    again = {handle.id: (limit, handle) for handle in batch if not handle.ended}
                    self._young = again | self._young
                raise
            for handle, _ in still:
                handle.in_history = True

    async def flush(self) -> None:
        """
        Return when every run that has ended is durable.

        Raises:
            StorageError: The durable plane did not take it; all stays queued.
        """
        await self.write_finished()

    async def close(self, timeout: float) -> int:
        """
        Write what waits, for up to *timeout* seconds, and stop.

        Returns:
            How many terminal states were not written.
        """
        self._closing = True
        try:
            async with asyncio.timeout(timeout):
                await self._drain()
        except TimeoutError:
            pass
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait([self._task])
        waiting = len(self._finished)
        self.lost += waiting
        if waiting:
            log.error("%d finished runs were not written to history", waiting)
        return waiting

    async def _drain(self) -> None:
        pause = 0.05
        while True:
            try:
                await self.write_finished()
                await self._write_progress(all_of_it=True)
            except StorageError as error:
                log.warning("closing waits for a plane: %s", error)
                await asyncio.sleep(pause)
                pause = min(1.0, pause * 2)
                if not self._finished:
                    return
            else:
                return


def merged(
    durable: Mapping[str, Any] | None, live: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Overlay history with what is live; a terminal state in history stands."""
    if durable is None:
        return None if live is None else dict(live)
    if live is None or durable.get("status") not in ("running", "queued"):
        return dict(durable)
    return {**durable, **live}
