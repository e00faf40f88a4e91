"""What a handler knows of its attempt."""

from __future__ import annotations

import asyncio
import contextvars
import threading

from typing import TYPE_CHECKING, Any, final

from oqron_core import Claim, Job, Message, RunHandle, Storage


if TYPE_CHECKING:
    from oqron_worker._app import App


__all__ = ["Context", "Stopped", "current_context"]

_current: contextvars.ContextVar[Context | None] = contextvars.ContextVar(
    "oqron_context", default=None
)


class Stopped(Exception):  # noqa: N818 - an instruction, not an error
    """
    Raised by `Context.check` where the attempt is to end.

    Args:
        reason: ``cancelled``, ``timeout``, ``shutdown`` or ``lease lost``.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@final
class Context:
    """
    One attempt, in the hands of its handler.

    ``log``, ``progress``, ``cancelled`` and ``check`` are plain calls that never
    block, and may be made from any thread.

    Attributes:
        app: The application.
        run: The run that records this attempt.
        queue: The queue, or the name of the cron or topic.
        attempt: Which attempt this is, from 1.
        slot: For a cron or interval: the instant it stands for, milliseconds since
            the epoch; else None.
    """

    __slots__ = (
        "_claim",
        "_event",
        "_loop",
        "_reason",
        "app",
        "attempt",
        "queue",
        "run",
        "slot",
        "started",
        "task",
        "threaded",
    )

    def __init__(
        self,
        app: App,
        run: RunHandle,
        queue: str,
        *,
        claim: Claim | None = None,
        attempt: int = 1,
        slot: int | None = None,
    ) -> None:
        self.app = app
        self.run = run
        self.queue = queue
        self.attempt = attempt
        self.slot = slot
        self.task: asyncio.Task[Any] | None = None
        self.threaded = False
        self.started = 0.0
        self._claim = claim
        self._reason: str | None = None
        self._event: threading.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def storage(self) -> Storage:
        """The storage; for handlers on the worker's loop."""
        return self.app.storage

    @property
    def claim(self) -> Claim | None:
        """The claim; None for a run that has no job."""
        return self._claim

    @property
    def job(self) -> Job:
        """
        The job.

        Raises:
            LookupError: This run has no job, as that of a plain cron.
        """
        if self._claim is None:
            msg = f"{self.queue!r} runs without a job"
            raise LookupError(msg)
        return self._claim.job

    @property
    def message(self) -> Message | None:
        """The message, where this is a delivery of a topic; else None."""
        return None if self._claim is None else self._claim.message

    def log(self, level: str, msg: object, **fields: Any) -> None:
        """Append a line to the run's log; see `RunHandle.log`."""
        self.run.log(level, msg, **fields)

    def progress(self, percent: float, label: object = None) -> None:
        """Say how far the work is, 0 to 100; see `RunHandle.progress`."""
        self.run.progress(percent, label)

    @property
    def cancelled(self) -> bool:
        """Whether the attempt is to end: someone called it off, or see `why`."""
        return self.why is not None

    @property
    def why(self) -> str | None:
        """``cancelled``, ``timeout``, ``shutdown``, ``lease lost``, or None."""
        if self._reason is None and self._claim is not None:
            if self._claim.cancelled:
                return "cancelled"
            if self._claim.lost:
                return "lease lost"
        return self._reason

    def check(self) -> None:
        """
        Go on, or end: for handlers in a thread, which nobody can interrupt.

        Raises:
            Stopped: The attempt is to end.
        """
        reason = self.why
        if reason is not None:
            raise Stopped(reason)

    def wait(self, seconds: float) -> bool:
        """
        Sleep in a thread, shorter where the attempt is to end meanwhile.

        Returns:
            Whether it is to end.
        """
        if self._event is None:
            self._event = threading.Event()
            if self._reason is not None:
                self._event.set()
        self._event.wait(seconds)
        return self.cancelled

    # --- for the worker ---

    def stop(self, reason: str) -> None:
        """Tell the handler to end; the first reason stands."""
        if self._reason is not None:
            return
        self._reason = reason
        if self._event is not None:
            self._event.set()
        if self.task is not None and not self.threaded:
            self.task.cancel(reason)

    def __repr__(self) -> str:
        return f"Context({self.queue!r}, attempt={self.attempt}, run={self.run.id!r})"


def current_context() -> Context | None:
    """Give the context of the attempt that this code works for; None outside of one."""
    return _current.get()


def enter(context: Context) -> contextvars.Token[Context | None]:
    """Make *context* the current one of this task or thread."""
    return _current.set(context)
