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
import traceback

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

import orjson

from oqron_core._codec import NULL, Json, encode, portable_text, portable_value
from oqron_core._ids import uuid7
from oqron_core.config import RunSettings
from oqron_core.exceptions import InvalidValueError, StorageError
from oqron_core.planes.durable import DurablePlane
from oqron_core.planes.hot import HotPlane
from oqron_core.planes.values import Insert, LiveChange, Patch, Write


__all__ = ["RUNS", "Recorder", "RunHandle", "describe_error", "merged"]

log = logging.getLogger("oqron.runs")

RUNS: Final = "runs"
_BATCH: Final = 1000
_TOUCH_EVERY: Final = 10.0
_EMPTY: Final = Json(b"[]")
_ERROR_LIMIT: Final = 20_000
_LEVELS: Final = frozenset({"debug", "info", "warning", "error"})


def describe_error(error: object) -> tuple[str, str | None]:
    """
    Make what a handler raised or reported portable.

    Returns:
        The text, and the traceback of an exception.
    """
    if not isinstance(error, BaseException):
        return portable_text(error, limit=_ERROR_LIMIT), None
    text = portable_text(error, limit=_ERROR_LIMIT)
    name = type(error).__name__
    trace = None
    if error.__traceback__ is not None:
        lines = traceback.format_exception(type(error), error, error.__traceback__, limit=30)
        trace = portable_text("".join(lines), limit=_ERROR_LIMIT)
    return (f"{name}: {text}" if text else name), trace


@final
class RunHandle:
    """
    A run while it lasts. Every method is a plain call that never blocks or raises.

    Safe to call from any thread. After the run has ended, calls change nothing.

    Attributes:
        id: The run's id.
        status: ``running`` until it ends.
        attempt: Which attempt of its job this is, from 1.
        job_id: The job, or None.
        queue_name: The job's queue, or None.
    """

    __slots__ = (
        "__weakref__",
        "_durable",
        "_encoded_input",
        "_ended_at",
        "_error",
        "_live",
        "_logs",
        "_logs_cut",
        "_logs_sent",
        "_output",
        "_progress",
        "_progress_dirty",
        "_recorder",
        "_started_at",
        "_static",
        "_timeline",
        "_timeline_sent",
        "attempt",
        "id",
        "job_id",
        "queue_name",
        "status",
    )

    def __init__(  # noqa: PLR0913 - one place makes it
        self,
        recorder: Recorder,
        run_id: str,
        static: dict[str, Any],
        encoded_input: Json,
        started_at: int,
        *,
        attempt: int,
        job_id: str | None,
        queue_name: str | None,
        came_from: str,
        reason: str,
    ) -> None:
        self._recorder = recorder
        self.id = run_id
        self.status = "running"
        self.attempt = attempt
        self.job_id = job_id
        self.queue_name = queue_name
        self._static = static
        self._encoded_input = encoded_input
        self._started_at = started_at
        self._ended_at: int | None = None
        self._output: Json = NULL
        self._error: str | None = None
        self._progress: float = 0
        self._progress_dirty = False
        self._logs: list[dict[str, Any]] = []
        self._logs_cut = 0
        self._logs_sent = 0
        self._timeline: list[dict[str, Any]] = [
            {"ts": started_at, "from": came_from, "to": "running", "reason": reason}
        ]
        self._timeline_sent = 0
        self._durable = False
        self._live = False

    @property
    def started_at(self) -> int:
        """When it started, milliseconds since the epoch."""
        return self._started_at

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._ended_at is not None

    def log(self, level: str, msg: object, **fields: Any) -> None:
        """
        Append a line to the run's log.

        Args:
            level: ``debug``, ``info``, ``warning`` or ``error``; another word is
                kept as it is.
            msg: The text; made portable, and cut if it is very long.
            **fields: Further portable values of the entry; what is not portable
                is kept as text.
        """
        recorder = self._recorder
        with recorder.lock:
            if self._ended_at is not None:
                return
            if len(self._logs) >= recorder.settings.max_logs:
                self._cut_log()
                return
            entry: dict[str, Any] = {
                "level": level if level in _LEVELS else portable_text(level, limit=20),
                "msg": portable_text(msg, limit=recorder.settings.max_log_chars),
                "ts": recorder.now(),
            }
            for name, value in fields.items():
                entry.setdefault(portable_text(name, limit=100), _portable_field(value))
            self._logs.append(entry)
            recorder.unsent += 1
            recorder.changed(self)

    def _cut_log(self) -> None:
        if self._logs_cut == 0:
            limit = self._recorder.settings.max_logs
            text = f"log truncated after {limit} entries"
            self._logs.append({"level": "warning", "msg": text, "ts": self._recorder.now()})
            self._recorder.changed(self)
        self._logs_cut += 1

    def progress(self, percent: float, label: object = None) -> None:
        """
        Say how far the work is.

        Args:
            percent: 0 to 100; what is beyond is clamped, what is no finite
                number is left aside.
            label: A word about it, put on the timeline.
        """
        if type(percent) not in {int, float} or percent != percent:  # noqa: PLR0124 - NaN
            return
        recorder = self._recorder
        with recorder.lock:
            if self._ended_at is not None:
                return
            self._progress = min(100, max(0, percent))
            self._progress_dirty = True
            if label is not None:
                self._note("running", "running", portable_text(label, limit=500))
            recorder.changed(self)

    def _note(self, came_from: str, to: str, reason: str | None) -> None:
        recorder = self._recorder
        if len(self._timeline) < recorder.settings.max_timeline or to != "running":
            self._timeline.append(
                {"ts": recorder.now(), "from": came_from, "to": to, "reason": reason}
            )

    def finish(self, output: Any = None) -> None:
        """
        End the run as completed.

        Args:
            output: What the work gave. What cannot be stored is replaced by a
                marker, and the log says so.
        """
        if self._ended_at is not None:
            return
        refused: list[InvalidValueError] = []
        encoded = portable_value(
            output, max_bytes=self._recorder.max_bytes, on_refused=refused.append
        )
        if refused:
            self.log("error", f"the output was not stored: {refused[0]}")
        self.finish_encoded(encoded)

    def finish_encoded(self, output: Json) -> None:
        """End the run as completed, with an output that is encoded already."""
        self._end("completed", output=output)

    def fail(self, error: object, *, reason: str | None = None) -> None:
        """
        End the run as failed.

        Args:
            error: An exception or a text; made portable.
            reason: A word for the timeline.
        """
        if self._ended_at is not None:
            return
        text, trace = describe_error(error)
        self.fail_text(text, trace, reason=reason)

    def fail_text(self, text: str, trace: str | None, *, reason: str | None = None) -> None:
        """End the run as failed, with what `describe_error` gave."""
        if trace is not None:
            self.log("error", trace)
        self._end("failed", error=text, reason=reason)

    def cancel(self, reason: str = "cancelled") -> None:
        """
        End the run as cancelled.

        Args:
            reason: Why: a cancel, a shutdown, a release.
        """
        self._end("cancelled", error=portable_text(reason, limit=500), reason=reason)

    def _end(
        self,
        status: str,
        *,
        output: Json = NULL,
        error: str | None = None,
        reason: str | None = None,
    ) -> None:
        recorder = self._recorder
        with recorder.lock:
            if self._ended_at is not None:
                return
            self._ended_at = max(self._started_at, recorder.now())
            self.status = status
            self._output = output
            self._error = error
            if status == "completed":
                self._progress = 100
            # No word of the timeline may be lost: the end is noted past the cap.
            self._timeline.append(
                {
                    "ts": self._ended_at,
                    "from": "running",
                    "to": status,
                    "reason": None if reason is None else portable_text(reason, limit=500),
                }
            )
            recorder.ended(self)

    def forget(self) -> None:
        """Stop recording here: someone else has closed this run."""
        recorder = self._recorder
        with recorder.lock:
            if self._ended_at is None:
                self._ended_at = max(self._started_at, recorder.now())
                self.status = "failed"
                recorder.forgotten(self)

    # --- what the writer reads ---

    def _volatile(self) -> dict[str, Any]:
        ended = self._ended_at
        return {
            "status": self.status,
            "output": self._output,
            "progressPercent": self._progress,
            "logs": Json(orjson.dumps(self._logs)) if self._logs else _EMPTY,
            "timeline": Json(orjson.dumps(self._timeline)),
            "error": self._error,
            "endedAt": ended,
            "durationMs": None if ended is None else ended - self._started_at,
        }

    def to_wire(self) -> dict[str, Any]:
        """Give the record as it is now; lists and objects may be `Json`."""
        return {
            "id": self.id,
            **self._static,
            "input": self._encoded_input,
            "attempts": self.attempt,
            "startedAt": self._started_at,
            "jobId": self.job_id,
            "queueName": self.queue_name,
            **self._volatile(),
        }

    def _write(self, expires_at: int | None) -> Write:
        if not self._durable:
            return Insert(RUNS, self.id, self.to_wire(), expires_at)
        # Whoever closed the row first has the last word.
        return Patch(
            RUNS,
            self.id,
            set=self._volatile(),
            expect={"status": "running"},
            expires_at=expires_at,
        )

    def _change(self) -> LiveChange:
        """Give what the overlay does not have yet, and count it as sent."""
        fields: dict[str, Any] = {}
        if not self._live:
            fields = {
                name: value for name, value in self.to_wire().items() if name not in _LISTS
            }
        elif self._progress_dirty:
            fields = {"progressPercent": self._progress}
        logs = self._logs[self._logs_sent :]
        timeline = self._timeline[self._timeline_sent :]
        return LiveChange(self.id, fields, logs, timeline)

    def _sent(self, change: LiveChange) -> None:
        self._live = True
        self._progress_dirty = False
        self._logs_sent += len(change.logs)
        self._timeline_sent += len(change.timeline)


_LISTS: Final = frozenset({"logs", "timeline"})


def _portable_field(value: Any) -> Any:
    try:
        return encode(value, max_bytes=10_000).load()
    except InvalidValueError:
        return portable_text(value, limit=1000)


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
        self.lock = threading.RLock()
        self.unsent = 0
        self.dropped = 0
        self.lost = 0
        self.now = now
        self._hot = hot
        self._durable = durable
        self._keep_for = keep_for
        self._app = durable.scope.project
        self._environment = durable.scope.environment
        self._handles: dict[str, RunHandle] = {}
        self._finished: deque[RunHandle] = deque()
        self._dirty: dict[str, RunHandle] = {}
        self._young: deque[tuple[float, RunHandle]] = deque()
        self._statics: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._touched_at = 0.0
        self._closing = False

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
            if self._loop is not None:
                self._young.append((self._loop.time(), handle))
            self.changed(handle)
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
        if handle.id in self._dirty:
            return
        self._dirty[handle.id] = handle
        if self.unsent > self.settings.buffer:
            self._drop_oldest()
        self._soon(self._arm_early)

    def _arm_early(self) -> None:
        """Bring the timer forward where it was set for less urgent things."""
        if self._timer is None:
            self._arm()
        elif self._loop is not None:
            due = self._loop.time() + self.settings.write_every
            if self._timer.when() > due:
                self._timer.cancel()
                self._timer = None
                self._arm()

    def _drop_oldest(self) -> None:
        oldest = next(iter(self._dirty.values()))
        waiting = len(oldest._logs) - oldest._logs_sent
        oldest._logs_sent = len(oldest._logs)
        self.unsent -= waiting
        self.dropped += waiting
        del self._dirty[oldest.id]

    def ended(self, handle: RunHandle) -> None:
        """Queue a terminal state; it is never dropped."""
        if self._dirty.pop(handle.id, None) is not None:
            self.unsent -= len(handle._logs) - handle._logs_sent
        self._finished.append(handle)
        self._soon(self._wake.set)

    def forgotten(self, handle: RunHandle) -> None:
        """Take a handle out; nothing more is written of it."""
        if self._dirty.pop(handle.id, None) is not None:
            self.unsent -= len(handle._logs) - handle._logs_sent
        self._handles.pop(handle.id, None)

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
            delay = self.settings.write_every
        elif self._young:
            delay = self.settings.durable_after
        elif self._handles:
            delay = _TOUCH_EVERY
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

    async def _round(self) -> None:
        await self.write_finished()
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
                with self.lock:
                    batch = [
                        self._finished.popleft() for _ in range(min(_BATCH, len(self._finished)))
                    ]
                try:
                    await self._write_batch(batch)
                except BaseException as error:
                    self._put_back(batch, error)
                    raise
                await self._let_go(batch)

    async def _write_batch(self, batch: Sequence[RunHandle]) -> None:
        results = await self._durable.write(self._writes(batch), returning=("status",))
        # An insert can meet the row that an unanswered write put there as running.
        again = [
            handle
            for handle, result in zip(batch, results, strict=True)
            if not result.applied
            and not handle._durable
            and result.record is not None
            and result.record.field("status") == "running"
        ]
        if again:
            for handle in again:
                handle._durable = True
            await self._durable.write(self._writes(again), returning=())

    def _writes(self, batch: Sequence[RunHandle]) -> list[Write]:
        keep_for = self._keep_for
        writes = []
        for handle in batch:
            ended = handle._ended_at or 0
            expires_at = None if keep_for is None else ended + round(keep_for * 1000)
            writes.append(handle._write(expires_at))
        return writes

    def _put_back(self, batch: Sequence[RunHandle], error: BaseException) -> None:
        if isinstance(error, InvalidValueError):
            # One that no plane takes must not hold up the others for ever.
            log.error("a run was refused: %s", error)
            self.lost += len(batch)
            with self.lock:
                for handle in batch:
                    self._handles.pop(handle.id, None)
            return
        with self.lock:
            self._finished.extendleft(reversed(batch))

    async def _let_go(self, batch: Sequence[RunHandle]) -> None:
        with self.lock:
            for handle in batch:
                self._handles.pop(handle.id, None)
        live = [handle.id for handle in batch if handle._live]
        if live:
            try:
                await self._hot.live.drop(live)
            except StorageError as error:
                # Maintenance finds them stale, sees history, and drops them.
                log.debug("live runs were not dropped: %s", error)

    async def _write_progress(self) -> None:
        with self.lock:
            batch = list(self._dirty.values())[:_BATCH]
            changes = [handle._change() for handle in batch]
            changes.extend(self._signs_of_life())
        if changes:
            await self._hot.live.merge_many(changes)
            with self.lock:
                for handle, change in zip(batch, changes, strict=False):
                    handle._sent(change)
                    self.unsent -= len(change.logs)
                    self._clean(handle)
            # One that ended meanwhile may have been written before the merge.
            gone = [handle.id for handle in batch if handle.id not in self._handles]
            if gone:
                await self._hot.live.drop(gone)
        await self._write_running()

    def _clean(self, handle: RunHandle) -> None:
        if (
            handle._logs_sent >= len(handle._logs)
            and handle._timeline_sent >= len(handle._timeline)
            and not handle._progress_dirty
        ):
            self._dirty.pop(handle.id, None)

    def _signs_of_life(self) -> list[LiveChange]:
        if self._loop is None or self._loop.time() - self._touched_at < _TOUCH_EVERY:
            return []
        self._touched_at = self._loop.time()
        return [
            LiveChange(handle.id)
            for handle in self._handles.values()
            if handle._live and handle._ended_at is None and handle.id not in self._dirty
        ]

    async def _write_running(self) -> None:
        """Put what has run for a while into history, as running."""
        if self._loop is None:
            return
        limit = self._loop.time() - self.settings.durable_after
        with self.lock:
            batch: list[RunHandle] = []
            while self._young and self._young[0][0] <= limit and len(batch) < _BATCH:
                _, handle = self._young.popleft()
                if handle._ended_at is None:
                    batch.append(handle)
            while self._young and self._young[0][1]._ended_at is not None:
                self._young.popleft()
            writes = [Insert(RUNS, handle.id, handle.to_wire()) for handle in batch]
        if not batch:
            return
        async with self._writing:
            still = [
                (handle, write)
                for handle, write in zip(batch, writes, strict=True)
                if handle.id in self._handles and not handle._durable
            ]
            try:
                await self._durable.write([write for _, write in still], returning=())
            except BaseException:
                with self.lock:
                    self._young.extendleft((limit, handle) for handle in reversed(batch))
                raise
            for handle, _ in still:
                handle._durable = True

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
                await self._write_progress()
            except StorageError as error:
                log.warning("closing waits for a plane: %s", error)
                await asyncio.sleep(pause)
                pause = min(1.0, pause * 2)
                if not self._finished:
                    return
            else:
                return


def merged(durable: Mapping[str, Any] | None, live: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Overlay history with what is live; a terminal state in history stands."""
    if durable is None:
        return None if live is None else dict(live)
    if live is None or durable.get("status") not in {"running", "queued"}:
        return dict(durable)
    return {**durable, **live}
