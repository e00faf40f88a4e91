"""
A private event loop in a thread, and the door to it for blocking callers.

There is no global loop and nothing runs at interpreter exit: a portal lives from
`Portal()` to `Portal.close`, and its thread with it. The one rule for what is
refused: every refusal is an `OqronError`, raised before anything was started.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import os
import sys
import threading

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast

from oqron_core.exceptions import BlockingCallError, ClosedError


__all__ = ["Held", "Portal"]

P = ParamSpec("P")
T = TypeVar("T")

_CLOSED: Final = "the blocking storage is closed"
_FORKED: Final = (
    "the blocking storage was opened before this process was forked; its thread and "
    "its connections belong to the parent, so open a storage of your own"
)
_INSIDE: Final = (
    "a blocking call from inside a running event loop would stop it; use open_storage "
    "and await there"
)


class _Cell(Generic[T]):
    """What a caller waits for: a future, and the task behind it once it has begun."""

    __slots__ = ("future", "task")

    def __init__(self) -> None:
        self.future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self.task: asyncio.Task[None] | None = None


def _refuse_inside() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise BlockingCallError(_INSIDE)


class Portal:
    """
    An event loop in a thread of its own.

    Whoever makes a portal closes it, also after an error, so that a run's last words
    are written. The thread is a daemon: one that is never closed loses what was not
    written, and does not keep the process from ending. Safe to use from several
    threads.

    Args:
        name: The name of the thread.

    Raises:
        BlockingCallError: An event loop runs in the calling thread.
    """

    def __init__(self, name: str = "oqron-portal") -> None:
        _refuse_inside()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        # Guarded by the lock: a call is handed in, or the loop stops, not both.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._work, args=(started,), name=name, daemon=True)
        self._thread.start()
        try:
            started.result()
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        """Whether it was closed, here or in the process that made it."""
        return self._closed

    def check(self) -> None:
        """
        Refuse what cannot be served.

        Raises:
            ClosedError: It is closed, or this process is a fork of its own.
            BlockingCallError: An event loop runs in the calling thread.
        """
        if os.getpid() != self._pid:
            raise ClosedError(_FORKED)
        _refuse_inside()
        if self._closed:
            raise ClosedError(_CLOSED)

    def call(
        self,
        function: Callable[P, Awaitable[T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """
        Run a coroutine function in the loop and wait for it.

        Ctrl-C, or whatever else is raised in the waiting thread, cancels the
        coroutine, waits until it has given back what it held, and goes on.

        Raises:
            ClosedError: Closed, closed meanwhile, or forked.
            BlockingCallError: An event loop runs in the calling thread.
            Exception: Whatever the coroutine raises.
        """
        self.check()
        cell: _Cell[T] = _Cell()

        async def run() -> T:
            return await function(*args, **kwargs)

        try:
            self.submit(cell, run)
            return cell.future.result()
        except BaseException:
            # Either the coroutine's own error, with nothing left to wait for, or an
            # interrupt of this thread.
            self.cancel(cell)
            raise

    def iterate(self, iterator: AsyncIterator[T]) -> Iterator[T]:
        """Give the items of an async iterator one by one; leaving early closes it."""
        try:
            while True:
                try:
                    item = self.call(iterator.__anext__)
                except StopAsyncIteration:
                    return
                yield item
        finally:
            close = getattr(iterator, "aclose", None)
            if close is not None and not self._closed:
                self.call(close)

    def hold(self, manager: AbstractAsyncContextManager[T]) -> Held[T]:
        """Make a blocking context manager of an async one."""
        return Held(self, manager)

    def close(self) -> None:
        """
        Stop the loop and wait for the thread. May be repeated.

        Calls of other threads that are still waiting get `ClosedError`. In a forked
        child this does nothing, as there is no thread.

        Raises:
            BlockingCallError: Called from inside the loop itself.
        """
        if os.getpid() != self._pid:
            return
        if threading.current_thread() is self._thread:
            raise BlockingCallError(_INSIDE)
        with self._lock:
            self._closed = True
            loop, stop = self._loop, self._stop
            if loop is not None and stop is not None:
                loop.call_soon_threadsafe(stop.set)
        if not sys.is_finalizing():
            self._thread.join()

    def _work(self, started: concurrent.futures.Future[None]) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve(started))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)
        finally:
            # Also where something ended the loop from inside.
            with self._lock:
                self._closed = True
                self._loop = self._stop = None

    async def _serve(self, started: concurrent.futures.Future[None]) -> None:
        stop = asyncio.Event()
        with self._lock:
            self._loop, self._stop = asyncio.get_running_loop(), stop
        started.set_result(None)
        await stop.wait()
        # From here on nothing is handed in any more: close() has set the flag under
        # the lock. What still runs is cancelled by the runner, and says so below.
        with self._lock:
            self._loop = self._stop = None

    def submit(self, cell: _Cell[T], run: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Begin *run* in the loop; its end is told through *cell*."""
        context = contextvars.copy_context()

        def begin() -> None:
            if not cell.future.set_running_or_notify_cancel():
                return
            task = asyncio.get_running_loop().create_task(_fill(cell, run), context=context)
            # A task that is cancelled before its first step never runs its body.
            task.add_done_callback(settle)
            cell.task = task

        def settle(task: asyncio.Task[None]) -> None:
            if cell.future.done():
                return
            lost: BaseException = asyncio.CancelledError()
            if self._closed:
                lost = ClosedError("the blocking storage was closed during the call")
            elif not task.cancelled():
                lost = task.exception() or lost
            cell.future.set_exception(lost)

        with self._lock:
            if self._closed or self._loop is None:
                raise ClosedError(_CLOSED)
            self._loop.call_soon_threadsafe(begin)

    def cancel(self, cell: _Cell[Any]) -> None:
        """Cancel what *cell* stands for, and wait until it has ended."""
        if cell.future.done() or cell.future.cancel():
            # Ended, or never begun: the loop will not begin it any more.
            return
        # Queued behind begin(), so the task is there.
        self.post(_cancel_task, cell)
        concurrent.futures.wait([cell.future])

    def post(self, callback: Callable[[T], None], argument: T) -> None:
        """Have the loop call *callback*; nothing happens where it has ended."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(callback, argument)


def _cancel_task(cell: _Cell[Any]) -> None:
    if cell.task is not None:
        cell.task.cancel()


async def _fill(cell: _Cell[T], run: Callable[[], Coroutine[Any, Any, T]]) -> None:
    # Nothing leaves this coroutine: a SystemExit that did would end the loop, and
    # with it everybody's calls.
    try:
        result = await run()
    except asyncio.CancelledError:
        # The task's own end tells the caller, who may wait for a task that never began.
        raise
    except BaseException as error:  # noqa: BLE001 - handed to the caller whole
        cell.future.set_exception(error)
    else:
        cell.future.set_result(result)


class Held(AbstractContextManager[T]):
    """
    A blocking context manager over an async one. Good for one ``with``.

    One task enters and leaves it, because time limits, task groups and cancel
    scopes inside belong to the task that entered them.
    """

    def __init__(self, portal: Portal, manager: AbstractAsyncContextManager[T]) -> None:
        self._portal = portal
        self._manager = manager
        self._pid = os.getpid()
        self._used = False
        self._entered: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._leave: asyncio.Future[BaseException | None] | None = None
        self._cell: _Cell[bool] = _Cell()

    def __enter__(self) -> T:
        portal = self._portal
        portal.check()
        if self._used:
            msg = "this context manager was entered already; make a new one"
            raise RuntimeError(msg)
        self._used = True
        entered = self._entered
        either = cast("list[concurrent.futures.Future[Any]]", [entered, self._cell.future])
        try:
            portal.submit(self._cell, self._run)
            concurrent.futures.wait(either, return_when=concurrent.futures.FIRST_COMPLETED)
            if not entered.done():
                # It raised before it was entered.
                self._cell.future.result()
            return entered.result()
        except BaseException:
            portal.cancel(self._cell)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if os.getpid() != self._pid:
            # A with block that a forked child leaves: what it holds is the parent's.
            return False
        portal = self._portal
        if sys.is_finalizing():
            # Never closed, and the interpreter ends: the loop's thread runs no more.
            return False
        try:
            # Where the loop has ended, so has the task: its result is there.
            portal.post(self._set_leave, error)
            return self._cell.future.result()
        except BaseException:
            portal.cancel(self._cell)
            raise

    def _set_leave(self, error: BaseException | None) -> None:
        if self._leave is not None and not self._leave.done():
            self._leave.set_result(error)

    async def _run(self) -> bool:
        manager = self._manager
        value = await manager.__aenter__()
        leave = self._leave = asyncio.get_running_loop().create_future()
        self._entered.set_result(value)
        error: BaseException | None
        cancelled = False
        try:
            error = await leave
        except asyncio.CancelledError as reason:
            # A task group inside has failed, or the portal closes.
            error, cancelled = reason, True
        kind = None if error is None else type(error)
        trace = None if error is None else error.__traceback__
        swallowed = bool(await manager.__aexit__(kind, error, trace))
        if cancelled and not swallowed and error is not None:
            raise error
        # Without an error there is nothing to swallow.
        return swallowed and not cancelled
