"""Where functions that block are run: threads, and processes."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import importlib
import multiprocessing
import queue as queues
import signal
import threading
import traceback

from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import attrs

from oqron_worker._context import Context
from oqron_worker._handlers import Handler


__all__ = ["ProcessDiedError", "ProcessPool", "RemoteContext", "ThreadPool"]


class ThreadPool:
    """
    A bounded pool of threads that never keep the process from ending.

    A thread cannot be interrupted: where one does not end by itself before the
    deadline of a shutdown, its job is released and the process ends around it. The
    pools of the standard library would wait for it.

    Args:
        size: The most threads; more are asked for than there are, they queue.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._work: queues.SimpleQueue[Callable[[], None] | None] = queues.SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._unfinished = 0
        self._closed = False

    @property
    def working(self) -> int:
        """How many calls have not ended."""
        return self._unfinished

    async def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call *function* in a thread, with a copy of the caller's context variables."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        call = functools.partial(contextvars.copy_context().run, function, *args, **kwargs)

        def work() -> None:
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - it belongs to who awaits
                _tell(loop, future, None, error)
            else:
                _tell(loop, future, result, None)

        with self._lock:
            self._unfinished += 1
            if len(self._threads) < min(self._unfinished, self._size):
                thread = threading.Thread(target=self._serve, name="oqron-handler", daemon=True)
                self._threads.add(thread)
                thread.start()
        self._work.put(work)
        return await future

    def _serve(self) -> None:
        while True:
            work = self._work.get()
            if work is None:
                self._work.put(None)
                return
            work()
            # What the work held must not live until the next one comes.
            del work
            with self._lock:
                self._unfinished -= 1

    def close(self) -> None:
        """Let idle threads end; those that work end with the process at the latest."""
        if not self._closed:
            self._closed = True
            self._work.put(None)


def _tell(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Any],
    result: Any,
    error: BaseException | None,
) -> None:
    def settle() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, StopIteration):
            future.set_exception(RuntimeError("the handler raised StopIteration"))
        else:
            future.set_exception(error)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        # The loop was closed: the worker has given the job back long ago.
        return


# --- processes ---


@attrs.define
class RemoteContext:
    """
    The context of a handler that runs in another process.

    What it logs travels back with the result. Where its attempt is to end, its
    process is killed.

    Attributes:
        queue: The queue.
        job_id: The job; None for a run without one.
        attempt: Which attempt this is, from 1.
        slot: For a cron or interval: the instant it stands for.
        cancelled: Always False: nobody tells a process.
    """

    queue: str
    job_id: str | None
    attempt: int
    slot: int | None = None
    cancelled: bool = False
    _notes: list[tuple[Any, ...]] = attrs.field(factory=list)

    def log(self, level: str, msg: object, **fields: Any) -> None:
        """Append a line to the run's log, when the handler has ended."""
        self._notes.append(("log", level, str(msg), fields))

    def progress(self, percent: float, label: object = None) -> None:
        """Say how far the work was, when the handler has ended."""
        self._notes.append(("progress", percent, label))


@attrs.frozen
class _Answer:
    """What comes back from a process."""

    notes: list[tuple[Any, ...]]
    result: Any = None
    error: BaseException | None = None
    trace: str | None = None


class RemoteError(Exception):
    """
    Stands for an exception of another process that could not be sent.

    Args:
        text: Its type and text.
    """


def _call(
    module: str, qualname: str, context: RemoteContext | None, arguments: dict[str, Any]
) -> _Answer:
    """Run in the other process: find the function by name and call it."""
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    function = found.function if isinstance(found, Handler) else found
    notes: list[tuple[Any, ...]] = [] if context is None else context._notes
    try:
        result = function(**arguments) if context is None else function(context, **arguments)
    except Exception as error:  # noqa: BLE001 - it belongs to who awaits
        return _Answer(notes, None, _sendable(error), traceback.format_exc(limit=30))
    return _Answer(notes, result)


def _sendable(error: BaseException) -> BaseException:
    import pickle  # noqa: PLC0415 - of our own exceptions, between our own processes

    try:
        if type(pickle.loads(pickle.dumps(error))) is type(error):  # noqa: S301 - as above
            return error
    except Exception:  # noqa: BLE001, S110 - then its text has to do
        pass
    return RemoteError(f"{type(error).__name__}: {error}")


def _serve(connection: Connection) -> None:
    """Be the other process: answer calls until the pipe is closed."""
    # Ctrl-C goes to the whole group; what becomes of it is for the worker to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            asked = connection.recv()
        except EOFError:
            return
        answer = _call(*asked)
        try:
            connection.send(answer)
        except (TypeError, ValueError, AttributeError, ImportError) as error:
            connection.send(_Answer(answer.notes, error=RemoteError(f"cannot be sent: {error}")))


class ProcessDiedError(Exception):
    """
    The process that a handler ran in ended in the middle of it.

    Args:
        status: Its exit status; negative for the signal that ended it.
    """

    def __init__(self, status: int | None) -> None:
        super().__init__(status)
        self.status = status

    def __str__(self) -> str:
        return f"its process ended with status {self.status}"


class _Child:
    """One process, that runs one call at a time."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        self.process = spawn.Process(
            target=_serve, args=(theirs,), name="oqron-handler", daemon=True
        )
        self.process.start()
        theirs.close()

    def call(self, asked: tuple[Any, ...]) -> _Answer:
        """Call, in a thread."""
        try:
            self._connection.send(asked)
            answer: _Answer = self._connection.recv()
        except (EOFError, OSError):
            self.process.join(1.0)
            raise ProcessDiedError(self.process.exitcode) from None
        return answer

    def kill(self) -> None:
        """End it now; a call under way raises `ProcessDiedError`."""
        self.process.kill()

    def close(self) -> None:
        """Let it end."""
        self._connection.close()


class ProcessPool:
    """
    A pool of processes for functions that keep a processor busy.

    A process that dies fails the attempt that it worked on, and no other; one whose
    attempt is called off or takes too long is killed. Others take their places.

    Args:
        size: How many processes.
    """

    def __init__(self, size: int) -> None:
        self._free: list[_Child] = []
        self._room = asyncio.Semaphore(size)
        self._threads = ThreadPool(size)

    async def run(self, handler: Handler, context: Context, arguments: dict[str, Any]) -> Any:
        """Call a handler in a process; raises what it raised there."""
        remote = None
        if handler.signature.context:
            claim = context.claim
            job_id = None if claim is None else claim.id
            remote = RemoteContext(context.queue, job_id, context.attempt, context.slot)
        function = handler.function
        asked = (function.__module__, function.__qualname__, remote, arguments)
        async with self._room:
            answer = await self._ask(asked)
        return _received(context, answer)

    async def _ask(self, asked: tuple[Any, ...]) -> _Answer:
        child = self._free.pop() if self._free else await self._threads.run(_Child)
        try:
            answer: _Answer = await self._threads.run(child.call, asked)
        except BaseException:
            child.kill()
            raise
        self._free.append(child)
        return answer

    def close(self) -> None:
        """Let the processes end; one that works is killed with its attempt."""
        for child in self._free:
            child.close()
        self._free.clear()
        self._threads.close()


def _received(context: Context, answer: _Answer) -> Any:
    for note in answer.notes:
        if note[0] == "log":
            context.log(note[1], note[2], **note[3])
        else:
            context.progress(note[1], note[2])
    if answer.error is not None:
        if answer.trace is not None:
            context.log("error", answer.trace)
        raise answer.error
    return answer.result
