"""A run in the hands of whoever does the work: plain calls that never block."""

from __future__ import annotations

import traceback
import weakref

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, final

from oqron_core._codec import (
    INT_MAX,
    INT_MIN,
    NULL,
    Json,
    encode,
    encode_stored,
    portable_text,
    portable_value,
)
from oqron_core._drafts import drafted
from oqron_core.exceptions import InvalidValueError
from oqron_core.planes.values import Insert, LiveChange, Patch, Write
from oqron_core.protocol.options import RunSettings


__all__ = ["RUNS", "RunHandle", "Sink", "describe_error"]

RUNS: Final = "runs"
"""The namespace of run history."""
_EMPTY: Final = Json(b"[]")
_ERROR_LIMIT: Final = 20_000
_LOG_SHARE: Final = 8
"""A log may have this share of the largest value, in characters: UTF-8 needs up to
four bytes for one, JSON up to six for a control character."""
_ENTRY_SHARE: Final = 32
"""The same for one entry, which may come on top of it."""
_ENTRY_CHARS: Final = 60
_FIELD_CHARS: Final = 4000
_FIELD_TEXT: Final = 1000
_SMALL: Final = 2**53
_SMALL_CHARS: Final = 20
_LEVELS: Final = frozenset({"debug", "info", "warning", "error"})
# Ids of runs are checked where they are given.
_make_insert: Final = drafted(Insert)


class Sink(Protocol):
    """What a handle tells of its changes; called with the lock held."""

    settings: RunSettings
    max_bytes: int

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Guards the handles; held for moments only."""
        ...

    def now(self) -> int:
        """Milliseconds since the epoch."""
        ...

    @property
    def changed(self) -> Callable[[RunHandle, int], None]:
        """Queues progress, and so many new entries of the log."""
        ...

    def ended(self, handle: RunHandle) -> None:
        """Queue a terminal state."""
        ...


def describe_error(error: object, max_bytes: int) -> tuple[str, str | None]:
    """
    Make what a handler raised or reported portable.

    Args:
        error: An exception, or anything that has a text.
        max_bytes: The limit of a value, of which a text is kept well below.

    Returns:
        The text, and the traceback of an exception.
    """
    limit = min(_ERROR_LIMIT, max_bytes // _LOG_SHARE)
    if not isinstance(error, BaseException):
        return portable_text(error, limit=limit), None
    text = portable_text(error, limit=limit)
    name = type(error).__name__
    trace = None
    if error.__traceback__ is not None:
        lines = traceback.format_exception(type(error), error, error.__traceback__, limit=30)
        trace = portable_text("".join(lines), limit=limit)
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
        encoded_input: What it works on, as JSON text.
        in_history: For the writer: whether the durable plane has a row of it.
        in_overlay: For the writer: whether the hot plane may show it.
        owner: For the writer: the claim it belongs to, or None.
    """

    __slots__ = (
        "__weakref__",
        "_ended_at",
        "_error",
        "_log_chars",
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
        "_told",
        "attempt",
        "encoded_input",
        "id",
        "in_history",
        "in_overlay",
        "job_id",
        "owner",
        "queue_name",
        "status",
    )

    def __init__(
        self,
        recorder: Sink,
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
        self.id: str = run_id
        self.status: str = "running"
        self.attempt: int = attempt
        self.job_id: str | None = job_id
        self.queue_name: str | None = queue_name
        self._static = static
        self.encoded_input: Json = encoded_input
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
        self.in_history: bool = False
        self.in_overlay: bool = False
        self._told = False
        self.owner: weakref.ref[Any] | None = None
        self._log_chars = 0

    @property
    def started_at(self) -> int:
        """When it started, milliseconds since the epoch."""
        return self._started_at

    @property
    def ended_at(self) -> int | None:
        """When it ended, milliseconds since the epoch; None while it lasts."""
        return self._ended_at

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._ended_at is not None

    def log(self, level: str, msg: object, /, **fields: Any) -> None:
        """
        Append a line to the run's log.

        Args:
            level: ``debug``, ``info``, ``warning`` or ``error``; another word is
                kept as it is.
            msg: The text; made portable, and cut if it is very long.
            **fields: Further portable values of the entry; what is not portable
                is kept as text. An entry has at most a 32nd of the largest value, in
                characters; how many fields were left out for that is its ``fieldsCut``.
        """
        recorder = self._recorder
        with recorder.lock:
            if self._ended_at is not None:
                return
            logs, settings = self._logs, recorder.settings
            if len(logs) >= settings.max_logs or self._log_chars > recorder.max_bytes // _LOG_SHARE:
                self._cut_log()
                return
            text = portable_text(msg, limit=settings.max_log_chars)
            entry: dict[str, Any] = {
                "level": level
                if type(level) is str and level in _LEVELS
                else portable_text(level, limit=20),
                "msg": text,
                "ts": recorder.now(),
            }
            chars = len(text) + _ENTRY_CHARS
            if fields:
                chars = _add_fields(entry, fields, chars, recorder.max_bytes // _ENTRY_SHARE)
            self._log_chars += chars
            logs.append(entry)
            recorder.changed(self, 1)

    def _cut_log(self) -> None:
        if self._logs_cut == 0:
            text = f"log truncated after {len(self._logs)} entries"
            self._logs.append({"level": "warning", "msg": text, "ts": self._recorder.now()})
            self._recorder.changed(self, 1)
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
            recorder.changed(self, 0)

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
        text, trace = describe_error(error, self._recorder.max_bytes)
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
            self._close(status, output, error, reason)
            recorder.ended(self)

    def _close(self, status: str, output: Json, error: str | None, reason: str | None) -> None:
        self._ended_at = max(self._started_at, self._recorder.now())
        self.status = status
        self._output = output
        self._error = error
        # No word of the timeline may be lost: the end is noted past the cap.
        self._timeline.append(
            {
                "ts": self._ended_at,
                "from": "running",
                "to": status,
                "reason": None if reason is None else portable_text(reason, limit=500),
            }
        )

    def seal(self, output: Json) -> dict[str, Any] | None:
        """
        Take the run for completed while its end is being written, see `reopen`.

        Returns:
            Its record; None where it has ended, or history has a row of it.
        """
        with self._recorder.lock:
            if self._ended_at is not None or self.in_history:
                return None
            self._close("completed", output, None, None)
            return self.to_wire()

    def reopen(self) -> None:
        """Let it go on after all: its end was not written."""
        with self._recorder.lock:
            self._ended_at = None
            self.status = "running"
            self._output = NULL
            self._timeline.pop()

    # --- for the writer, which holds the lock ---

    @property
    def unsent(self) -> int:
        """How many log entries the overlay does not have."""
        return len(self._logs) - self._logs_sent

    @property
    def all_sent(self) -> bool:
        """Whether the overlay has everything."""
        return (
            self._logs_sent >= len(self._logs)
            and self._timeline_sent >= len(self._timeline)
            and not self._progress_dirty
        )

    def skip_unsent(self) -> int:
        """Give up sending what waits, and say how many log entries that were."""
        waiting = self.unsent
        self._logs_sent = len(self._logs)
        return waiting

    def _lists(self) -> dict[str, Any]:
        return {
            "logs": encode_stored(self._logs) if self._logs else _EMPTY,
            "timeline": encode_stored(self._timeline),
        }

    def _volatile(self, lists: Mapping[str, Any]) -> dict[str, Any]:
        ended = self._ended_at
        return {
            "status": self.status,
            "output": self._output,
            "progressPercent": 100 if self.status == "completed" else self._progress,
            **lists,
            "error": self._error,
            "endedAt": ended,
            "durationMs": None if ended is None else ended - self._started_at,
        }

    @property
    def is_abandoned(self) -> bool:
        """Whether whoever held its claim has let go of it without settling."""
        return self.owner is not None and self.owner() is None

    @property
    def is_silent(self) -> bool:
        """Whether its lease is lost, so that nobody may take it for alive."""
        claim = None if self.owner is None else self.owner()
        return claim is not None and bool(claim.lost)

    def slim(self) -> None:
        """Give up what may be too large for the planes; the end itself is kept."""
        ts = self._recorder.now()
        self._logs = [{"level": "error", "msg": "the log was too large to be stored", "ts": ts}]
        self._timeline = self._timeline[-1:]
        if self._error is not None:
            self._error = self._error[:200]

    def to_wire(self) -> dict[str, Any]:
        """Give the record as it is now; lists and objects may be `Json`."""
        return self._wire(self._lists())

    def _wire(self, lists: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "id": self.id,
            **self._static,
            "input": self.encoded_input,
            "attempts": self.attempt,
            "startedAt": self._started_at,
            "jobId": self.job_id,
            "queueName": self.queue_name,
            **self._volatile(lists),
        }

    def write(self, expires_at: int | None) -> Write:
        """Give the write that puts the ended run into history."""
        if not self.in_history:
            insert: Insert = _make_insert(RUNS, self.id, self.to_wire(), expires_at)
            return insert
        # Whoever closed the row first has the last word.
        return Patch(
            RUNS,
            self.id,
            set=self._volatile(self._lists()),
            expect={"status": "running"},
            expires_at=expires_at,
        )

    def change(self) -> LiveChange:
        """Give what the overlay does not have yet, to be sent."""
        fields: dict[str, Any] = {}
        # Sent without an answer it may be there all the same, or come late.
        self.in_overlay = True
        if not self._told:
            fields = self._wire({})
        elif self._progress_dirty:
            fields = {"progressPercent": self._progress}
        logs = self._logs[self._logs_sent :]
        timeline = self._timeline[self._timeline_sent :]
        return LiveChange(self.id, fields, logs, timeline)

    def sign_of_life(self) -> LiveChange:
        """
        Give what says that it lasts.

        With what it is, but for its input: a hot plane that was lost knows nothing of it.
        """
        fields = self._wire({})
        del fields["input"]
        return LiveChange(self.id, fields)

    @property
    def length(self) -> tuple[int, int]:
        """How many entries the log and the timeline have."""
        return len(self._logs), len(self._timeline)

    def mark_sent(self, change: LiveChange, length: tuple[int, int]) -> int:
        """
        Count *change*, made when there was so much, as known to the overlay.

        Gives how many log entries that were which had not been counted, or given up,
        before.
        """
        logs, timeline = length
        fresh = max(0, logs - self._logs_sent)
        self._told = True
        if "progressPercent" in change.fields:
            # It may have gone on while the change was on its way.
            self._progress_dirty = change.fields["progressPercent"] != self._progress
        self._logs_sent += fresh
        self._timeline_sent = max(self._timeline_sent, timeline)
        return fresh


# The same few names stand in every entry; each is looked at once.
_plain_names: set[str] = set()
_PLAIN_MOST: Final = 1024


def _plain_name(name: str) -> str:
    plain = portable_text(name, limit=100)
    if plain == name and len(_plain_names) < _PLAIN_MOST:
        _plain_names.add(name)
    return plain


def _add_fields(entry: dict[str, Any], fields: dict[str, Any], chars: int, most: int) -> int:
    """Put fields into an entry of so many characters, up to *most*; gives how many it has."""
    cut = 0
    for name, value in fields.items():
        if name not in _plain_names:
            name = _plain_name(name)  # noqa: PLW2901 - made portable
        if name in entry:
            continue
        # Small integers, the usual ones, need no closer look.
        if type(value) is int and -_SMALL < value < _SMALL:
            size = _SMALL_CHARS
        else:
            value = _portable_field(value)  # noqa: PLW2901 - likewise
            size = _size_of(value)
        size += len(name)
        if chars + size > most:
            cut += 1
            continue
        chars += size
        entry[name] = value
    if cut:
        entry["fieldsCut"] = cut
    return chars


def _size_of(value: Any) -> int:
    """Give about how many characters a portable value has."""
    if type(value) is str:
        return len(value) + 2
    return len(encode_stored(value).data) if isinstance(value, (list, dict)) else _SMALL_CHARS


def _portable_field(value: Any) -> Any:
    kind = type(value)
    if (
        value is None
        or kind is bool
        or (kind is int and INT_MIN <= value <= INT_MAX)
        or (kind is str and len(value) <= _FIELD_TEXT and value.isascii() and "\0" not in value)
    ):
        return value
    try:
        return encode(value, max_bytes=_FIELD_CHARS).load()
    except InvalidValueError:
        return portable_text(value, limit=_FIELD_TEXT)
