"""
Run history, never in the way of the work.

What a handle is told changes an object in memory and queues a write. One background
writer sends finished runs to the durable plane, at once and in batches; another, the
overlay's, sends the others to the hot plane a little later, so that a short run costs a
single durable insert. Neither waits for the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice, takewhile
from typing import Any, Final

from oqron_core._codec import Json
from oqron_core._ids import uuid7
from oqron_core.exceptions import InvalidValueError, StorageError
from oqron_core.planes.durable import DurablePlane
from oqron_core.planes.hot import HotPlane
from oqron_core.planes.values import Insert, Write
from oqron_core.protocol.background import BackgroundWriter
from oqron_core.protocol.options import RunSettings
from oqron_core.protocol.orphans import end_orphans
from oqron_core.protocol.overlay import Overlay
from oqron_core.protocol.run_handle import RUNS, RunHandle


__all__ = ["Recorder", "merged"]

log: logging.Logger = logging.getLogger("oqron.runs")

_BATCH: Final = 1000
_TURNS: Final = 6
"""How many turns of the loop somebody has who ended runs, to begin with a claim."""
_GIVE_WAY: Final = 0.005
"""How many seconds history waits for claims at most."""


class Recorder:
    """
    Owns the handles of a storage and the writers behind them.

    Attributes:
        settings: How often, how much.
        max_bytes: The limit of an output.
        lock: Guards the handles; held for moments only.
        overlay: What the hot plane shows of them.
        changed: Queues progress for the overlay, see `Overlay.changed`.
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
        self.lost: int = 0
        self.now = now
        self._durable = durable
        self._keep_for = keep_for
        self._app = durable.scope.project
        self._environment = durable.scope.environment
        self._handles: dict[str, RunHandle] = {}
        self._finished: deque[RunHandle] = deque()
        self.overlay: Overlay = Overlay(hot.live, settings, self.lock, self._handles)
        # No call of our own between a line of a log and the overlay: there are many.
        self.changed: Callable[[RunHandle, int], None] = self.overlay.changed
        # Runs that may yet be shown as running in history, the oldest first.
        self._young: dict[str, tuple[float, RunHandle]] = {}
        self._statics: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._writer = BackgroundWriter(
            self._round, name="oqron-run-writer", waits="ended runs", log=log
        )
        self._writing = asyncio.Lock()
        # Runs whose claim nobody held when it was looked at last, and when that was.
        self._abandoned: AbstractSet[str] = frozenset()
        self._looked_at = 0.0
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
            begun = (self._writer.time(), handle)
            self._handles[handle.id] = handle
            self._young[handle.id] = begun
            if len(self._young) == 1:
                # For the others the writer comes when the first one is due.
                self._writer.wake_in(self.settings.durable_after)
            self.overlay.begun(begun)
        return handle

    def handle(self, run_id: str) -> RunHandle | None:
        """Give the handle of a run of this storage that is not written yet."""
        return self._handles.get(run_id)

    def handles(self) -> Sequence[RunHandle]:
        """Give every handle that is running or not written yet."""
        with self.lock:
            return list(self._handles.values())

    def ended(self, handle: RunHandle) -> None:
        """Queue a terminal state; it is never dropped."""
        self._settled(handle)
        self._finished.append(handle)
        self._writer.wake()

    def _settled(self, handle: RunHandle) -> None:
        # Nothing holds on to a run that has ended but the write of its end: what stays
        # for long is walked by the collector again and again.
        self.overlay.settled(handle)
        self._young.pop(handle.id, None)
        handle.owner = None

    # --- the writer ---

    def open(self) -> None:
        """Start the writers on the running loop."""
        self._writer.open()
        self.overlay.open()
        self._looked_at = self._writer.time()

    async def _round(self) -> None:
        try:
            while True:
                if self._finished:
                    await self._give_way()
                    async with self._writing:
                        if self._finished:
                            await self._write_some()
                # Also where some run ends all the time.
                await self._write_running()
                await self._end_orphans()
                if not self._finished:
                    return
        finally:
            self._wake_when_due()

    def _wake_when_due(self) -> None:
        with self.lock:
            first = next(iter(self._young.values()), None)
        if first is not None:
            # Those that begin shortly after it go with it.
            left = first[0] + self.settings.durable_after - self._writer.time()
            self._writer.wake_in(max(left, self.overlay.look_every))
        elif self._handles:
            self._writer.wake_in(self.overlay.touch_every)

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
        self._let_go(batch)

    async def _write_one_by_one(self, batch: list[RunHandle]) -> None:
        """Write a batch that holds something refused: it must not cost the others."""
        while batch:
            try:
                await self._write_or_slim(batch[0])
            except BaseException:
                with self.lock:
                    self._finished.extendleft(reversed(batch))
                raise
            self._let_go([batch.pop(0)])

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

    def wrote(self, handles: Sequence[RunHandle]) -> None:
        """Forget runs whose end was written by `insert`."""
        with self.lock:
            for handle in handles:
                self._settled(handle)
        self._let_go(handles)

    def _let_go(self, batch: Sequence[RunHandle]) -> None:
        with self.lock:
            for handle in batch:
                self._handles.pop(handle.id, None)
            self.overlay.ended(batch)

    async def _end_orphans(self) -> None:
        """End runs whose claim was dropped, when they were found so twice."""
        if self._writer.time() - self._looked_at < self.overlay.touch_every:
            return
        self._looked_at = self._writer.time()
        with self.lock:
            before = self._abandoned
            found = [h for h in self._handles.values() if not h.ended and h.is_abandoned]
            self._abandoned = {handle.id for handle in found}
        # What was sent for one last has come to its end by the second look.
        left = [handle for handle in found if handle.id in before]
        if left:
            await end_orphans(self._durable, left)

    async def _write_running(self) -> None:
        """Put what has run for a while into history, as running."""
        if not self._writer.is_open:
            return
        limit = self._writer.time() - self.settings.durable_after
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
                shown = await self._write_as_running(still)
            except BaseException:
                with self.lock:
                    again = {handle.id: (limit, handle) for handle in batch if not handle.ended}
                    self._young = again | self._young
                raise
            for handle in shown:
                handle.in_history = True

    async def _write_as_running(self, pairs: Sequence[tuple[RunHandle, Insert]]) -> list[RunHandle]:
        """Insert runs that go on; one that is refused must not cost the others."""
        try:
            await self._durable.write([write for _, write in pairs], returning=())
        except InvalidValueError as error:
            if len(pairs) == 1:
                log.error("run %s is not in history before it ends: %s", pairs[0][0].id, error)  # noqa: TRY400 - the error says it all
                return []
            return [handle for pair in pairs for handle in await self._write_as_running([pair])]
        return [handle for handle, _ in pairs]

    async def flush(self) -> None:
        """
        Return when every run that has ended is durable, and is shown as live no more.

        The latter follows where the hot plane does not answer within a second.

        Raises:
            StorageError: The durable plane did not take it; all stays queued.
        """
        await self.write_finished()
        await self.overlay.take_away()

    async def close(self, timeout: float) -> int:
        """
        Write what waits, for up to *timeout* seconds, and stop.

        Returns:
            How many terminal states were not written.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._drain()
        except TimeoutError:
            pass
        finally:
            await self._writer.close()
            await self.overlay.close()
        waiting = len(self._finished)
        self.lost += waiting
        if waiting:
            log.error("%d finished runs were not written to history", waiting)
        return waiting

    async def _drain(self) -> None:
        """Write what has ended until it is written; then, once, what is shown of the rest."""
        pause = 0.05
        while True:
            try:
                # Behind the writer, which may have some of it in hand.
                await self.write_finished()
                break
            except StorageError as error:
                log.warning("closing waits for the durable plane: %s", error)
                await asyncio.sleep(pause)
                pause = min(1.0, pause * 2)
        try:
            await self.overlay.send()
        except StorageError as error:
            log.warning("live runs are shown as they were: %s", error)


def merged(
    durable: Mapping[str, Any] | None, live: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Overlay history with what is live; a terminal state in history stands."""
    if durable is None:
        return None if live is None else dict(live)
    if live is None or durable.get("status") not in ("running", "queued"):
        return dict(durable)
    return {**durable, **live}
