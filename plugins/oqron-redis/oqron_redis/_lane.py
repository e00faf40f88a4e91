"""
One connection that many calls share.

Calls are queued, and what is queued in one turn of the event loop goes out in one
write, also while others wait for their answers: the server has work, and the loop
prepares more meanwhile. Only calls that others may join wait for the one before, and
gather company. No caller ever reads from the connection, so a caller that is
cancelled leaves no answer behind for somebody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, final

from oqron_core.exceptions import ClosedError, OqronError, UnavailableError
from oqron_redis._errors import is_stale_primary, not_connected, translate
from oqron_redis._packing import packed
from oqron_redis._scripts import Script
from oqron_redis._wire import Wire, take_over
from redis import exceptions as driver


__all__ = ["Arguments", "Lane", "Redirect", "copy_of", "discard"]

Arguments = tuple[bytes | int, ...]

_log = logging.getLogger("oqron.redis")

_MAX_CALLS: Final = 512
_MAX_BYTES: Final = 4 * 1024 * 1024
_LARGE: Final = 64
"""Words of a call that is worth a write of its own."""
_MOVED: Final = frozenset({"MOVED", "ASK", "TRYAGAIN"})


class Redirect(Protocol):
    """How a call is done elsewhere, where a cluster says that its slot has moved."""

    async def __call__(self, arguments: Arguments) -> Any:
        """Do the call and give its answer."""
        ...


@final
class _Call:
    __slots__ = ("again", "arguments", "at", "future", "late", "script", "shared", "size")

    def __init__(
        self,
        arguments: Arguments,
        future: asyncio.Future[Any],
        script: Script | None,
        at: float,
        again: int,
        late: Callable[[], Arguments | None] | None,
    ) -> None:
        self.arguments = arguments
        self.future = future
        self.script = script
        self.at = at
        self.again = again
        self.late = late
        self.shared = late is not None
        self.size = 0

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def answer(self, reply: Any) -> None:
        if not self.future.done():
            self.future.set_result(reply)

    def packed(self) -> bytes | None:
        """Give what is sent; None if nobody wants it any more."""
        if self.late is not None:
            late, self.late = self.late(), None
            if late is None:
                self.future.cancel()
                return None
            self.arguments += late
        data = packed(self.arguments)
        self.size = len(data)
        return data


async def discard(connection: Any) -> None:
    """Close a connection, whatever state it is in, without waiting for the server."""
    with contextlib.suppress(OSError, driver.RedisError):
        await connection.disconnect(nowait=True)


@final
class Lane:
    """
    A connection with its queue of calls, bound to the running event loop.

    Args:
        connect: Makes a connection that is not connected yet.
        timeout: Seconds without an answer until the calls under way fail.
        connect_timeout: Seconds for one attempt to connect.
        retries: More attempts to connect after the first.
        pause: Gives the seconds to wait before attempt *n*.
        redirect: Where calls go that this server does not serve any more.
        at: The address, as errors name it.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        *,
        timeout: float,
        connect_timeout: float,
        retries: int,
        pause: Callable[[int], float],
        redirect: Redirect | None = None,
        at: str = "",
    ) -> None:
        self._make = connect
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._retries = retries
        self._pause = pause
        self._redirect = redirect
        self._at = at
        self._loop = asyncio.get_running_loop()
        self._pending: list[_Call] = []
        self._sent: deque[_Call] = deque()
        self._sent_bytes = 0
        self._untold: list[_Call] = []
        """Calls of scripts that the server has forgotten; nothing is sent until all are here."""
        self._taught: set[bytes] = set()
        """The scripts that this connection has loaded."""
        self._shared = 0
        """How many calls are under way that others may share while they wait."""
        self._moved_at = 0.0
        """When the server answered last, or was asked while nothing was under way."""
        self._timer: asyncio.TimerHandle | None = None
        self._soon = False
        self._task: asyncio.Task[None] | None = None
        self._aside: set[asyncio.Task[None]] = set()
        self._wire: Wire | None = None
        self._closed = False

    def call(
        self,
        arguments: Arguments,
        *,
        script: Script | None = None,
        again: bool = False,
        late: Callable[[], Arguments | None] | None = None,
    ) -> asyncio.Future[Any]:
        """
        Queue a call; the future gives its answer.

        Args:
            arguments: The command, or what follows ``EVALSHA <sha>`` for a script.
            script: The script.
            again: Whether it may be repeated where its answer was lost, because it
                only reads.
            late: Gives the arguments when the call is sent, instead of *arguments*;
                None if nobody wants it any more.
        """
        if self._closed:
            msg = "the Redis connection is closed"
            raise ClosedError(msg)
        future: asyncio.Future[Any] = self._loop.create_future()
        if script is not None:
            arguments = (b"EVALSHA", script.sha, *arguments)
        repeats = self._retries if again else 0
        now = self._loop.time()
        self._pending.append(_Call(arguments, future, script, now, repeats, late))
        if late is None and (len(arguments) > _LARGE or not self._sent):
            # The server begins while the loop is still busy with what comes next.
            self._flush(now)
        elif not self._soon:
            # What others call in the same turn of the loop goes along.
            self._soon = True
            self._loop.call_soon(self._flush_soon)
        return future

    async def close(self) -> None:
        """Close the connection; calls under way fail with `ClosedError`. Idempotent."""
        self._closed = True
        tasks = [task for task in (self._task, *self._aside) if task is not None]
        for task in tasks:
            task.cancel()
        for task in tasks:
            await asyncio.wait([task])
        if self._timer is not None:
            self._timer.cancel()
        error = ClosedError("the Redis connection was closed")
        for calls in (self._sent, self._untold, self._pending):
            for call in calls:
                call.fail(copy_of(error))
            calls.clear()
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
            # The stream is closed in the next turn of the loop.
            await asyncio.sleep(0)

    # --- sending ----------------------------------------------------------------

    def _flush_soon(self) -> None:
        self._soon = False
        self._flush()

    def _flush(self, now: float | None = None) -> None:
        """Send what waits, as far as there is room; connect first where that is needed."""
        wire = self._wire
        if wire is None:
            if self._task is None and self._pending and not self._closed:
                self._task = self._loop.create_task(self._open(), name="oqron-redis-lane")
            return
        if self._untold or wire.is_full:
            return
        if now is None:
            now = self._loop.time()
        if not self._sent:
            # What comes later is no sign of life: only an answer is.
            self._moved_at = now
        if commands := self._take(now):
            wire.write(commands)
            if self._timer is None:
                self._timer = self._loop.call_later(self._timeout, self._look)

    def _take(self, now: float) -> list[bytes]:
        """Take calls that may be sent now, and give their bytes."""
        # A caller that has gone before its call was sent wants nothing any more, and
        # one that has waited for its turn for too long gets no late surprise.
        oldest = now - self._timeout
        commands: list[bytes] = []
        waiting: list[_Call] = []
        taken = 0
        for call in self._pending:
            if len(self._sent) >= _MAX_CALLS or self._sent_bytes >= _MAX_BYTES:
                break
            taken += 1
            if call.future.done():
                continue
            if call.at < oldest:
                call.fail(UnavailableError("Redis was too busy to be asked in time"))
                continue
            if call.late is not None and self._shared:
                # It stays open to others until the one before is answered.
                waiting.append(call)
                continue
            try:
                command = call.packed()
            except Exception as error:  # noqa: BLE001 - whoever waits has to hear of it
                call.fail(error)
                continue
            if command is not None:
                if call.script is not None and call.script.sha not in self._taught:
                    commands.append(self._teach(call.script))
                commands.append(command)
                self._sent.append(call)
                self._sent_bytes += call.size
                self._shared += call.shared
        self._pending[:taken] = waiting
        return commands

    def _teach(self, script: Script) -> bytes:
        """
        Load a script before its first call on a connection.

        Else a server that does not know it would pass over the call, and do another
        that is on its way behind it, if somebody else taught it in between.
        """
        self._taught.add(script.sha)
        future: asyncio.Future[Any] = self._loop.create_future()
        # Where it is refused the call itself finds out.
        future.add_done_callback(lambda loaded: loaded.cancelled() or loaded.exception())
        self._sent.append(_Call((), future, None, self._loop.time(), 0, None))
        return packed((b"SCRIPT", b"LOAD", script.source))

    def _look(self) -> None:
        """See to it that a server which does not answer is given up in time."""
        self._timer = None
        if not self._sent:
            return
        left = self._moved_at + self._timeout - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self._break(TimeoutError())

    # --- answers ------------------------------------------------------------------

    def _answered(self, reply: Any) -> None:
        if not self._sent:
            self._break(driver.InvalidResponse("an answer that nobody asked for"))
            return
        call = self._sent.popleft()
        self._sent_bytes -= call.size
        self._shared -= call.shared
        if isinstance(reply, driver.ResponseError):
            self._refused(call, reply)
        else:
            call.answer(reply)
        self._moved_at = self._loop.time()
        if self._untold and not self._sent:
            # In front of what came later, and in their own order.
            self._pending[:0] = self._untold
            self._untold.clear()
        if self._pending and (call.shared or not self._sent):
            # What waited goes at once; who was answered comes a turn later.
            self._flush()

    def _refused(self, call: _Call, error: driver.ResponseError) -> None:
        code = str(error).partition(" ")[0]
        if code == "NOSCRIPT" and call.script is not None:
            # The server did nothing yet. EVAL runs the script and teaches it again.
            call.arguments = (b"EVAL", call.script.source, *call.arguments[2:])
            self._untold.append(call)
        elif code in _MOVED:
            self._elsewhere(call, error)
        elif code == "LOADING":
            # As good as not reached: reads are tried again.
            self._sent.appendleft(call)
            self._break(error)
        else:
            call.fail(translate(error, self._at))
            if is_stale_primary(error):
                # A new connection finds the new primary, through DNS or Sentinel.
                self._break(driver.ConnectionError(str(error)))

    def _gone(self, wire: Wire, error: BaseException) -> None:
        if wire is self._wire:
            self._break(error)

    def _break(self, error: BaseException) -> None:
        """Give the connection up; who waits for an answer is told, or asks again."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.abort()
        calls = [*self._sent]
        self._pending[:0] = self._untold
        self._untold.clear()
        self._sent.clear()
        self._sent_bytes = self._shared = 0
        self._taught.clear()
        self._lost(calls, error)
        if self._pending:
            self._flush()

    def _elsewhere(self, call: _Call, error: Exception) -> None:
        if self._redirect is None:
            call.fail(translate(error, self._at))
            return
        arguments = call.arguments
        if call.script is not None:
            arguments = (b"EVAL", call.script.source, *arguments[2:])
        task = self._loop.create_task(self._follow(self._redirect, call, arguments))
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)

    async def _follow(self, redirect: Redirect, call: _Call, arguments: Arguments) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                call.answer(await redirect(arguments))
        except asyncio.CancelledError:
            call.fail(ClosedError("the Redis connection was closed"))
            raise
        except Exception as error:  # noqa: BLE001 - the caller is told
            call.fail(translate(error, self._at))

    # --- connecting -------------------------------------------------------------

    async def _open(self) -> None:
        """Connect for what waits."""
        try:
            while self._wire is None and (waiting := len(self._pending)):
                error = await self._connect()
                calls = self._pending[:waiting]
                if error is None:
                    # The time it took to connect is not held against them.
                    now = self._loop.time()
                    for call in calls:
                        call.at = now
                else:
                    del self._pending[:waiting]
                    self._refuse(calls, error)
        finally:
            self._task = None
        self._flush()

    async def _connect(self) -> OqronError | None:
        attempt = 0
        while True:
            error = await self._attempt()
            if error is None:
                return None
            ours = not_connected(error, self._at)
            if attempt >= self._retries or not ours.retryable:
                return ours
            attempt += 1
            await asyncio.sleep(self._pause(attempt) * random.uniform(0.5, 1.0))  # noqa: S311 - jitter

    async def _attempt(self) -> BaseException | None:
        try:
            connection = self._make()
        except Exception as error:  # noqa: BLE001 - given to whoever asked
            return error
        try:
            async with asyncio.timeout(self._connect_timeout):
                await connection.connect()
            self._wire = take_over(
                connection, answered=self._answered, lost=self._gone, resumed=self._flush
            )
        except asyncio.CancelledError:
            await discard(connection)
            raise
        except Exception as error:  # noqa: BLE001 - given to whoever asked
            await discard(connection)
            return error
        return None

    def _refuse(self, calls: Sequence[_Call], error: OqronError) -> None:
        for call in calls:
            if self._redirect is None or not error.retryable:
                call.fail(copy_of(error))
                continue
            # Nothing was sent. In a cluster somebody else may serve the slot by now.
            try:
                wanted = call.packed() is not None
            except Exception as odd:  # noqa: BLE001 - whoever waits has to hear of it
                call.fail(odd)
            else:
                if wanted:
                    self._elsewhere(call, error)

    def _lost(self, calls: Sequence[_Call], error: BaseException) -> None:
        ours = translate(error, self._at)
        timed_out = isinstance(error, (TimeoutError, driver.TimeoutError))
        _log.debug("a connection to Redis was lost with %d calls under way", len(calls))
        for call in reversed(calls):
            if call.again > 0 and not timed_out:
                call.again -= 1
                self._pending.insert(0, call)
            else:
                call.fail(copy_of(ours))


def copy_of(error: OqronError) -> OqronError:
    """Give an error of its own to each caller: a traceback grows where one is raised."""
    copied = type(error)(*error.args)
    copied.__cause__ = error.__cause__
    return copied
