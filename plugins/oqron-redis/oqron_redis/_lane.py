"""
One connection that many calls share.

Calls are queued, and whatever is queued when the connection is free goes out in one
write: the calls of one tick of the event loop share a round trip, and so do those
that came while the one before was under way. No caller ever reads from the
connection, so a caller that is cancelled leaves no answer behind for somebody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, final

from oqron_core.exceptions import ClosedError, OqronError, UnavailableError
from oqron_redis._errors import is_stale_primary, translate
from oqron_redis._packing import packed
from oqron_redis._scripts import Script
from redis import exceptions as driver


__all__ = ["Arguments", "Lane", "Redirect", "copy_of", "discard"]

Arguments = tuple[bytes | int, ...]

_log = logging.getLogger("oqron.redis")

_MAX_CALLS: Final = 512
_MAX_BYTES: Final = 4 * 1024 * 1024
_MOVED: Final = (driver.MovedError, driver.AskError, driver.TryAgainError)


class Redirect(Protocol):
    """How a call is done elsewhere, where a cluster says that its slot has moved."""

    async def __call__(self, arguments: Arguments) -> Any:
        """Do the call and give its answer."""
        ...


@final
class _Call:
    __slots__ = ("again", "arguments", "at", "future", "late", "script")

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

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def answer(self, reply: Any) -> None:
        if not self.future.done():
            self.future.set_result(reply)


async def discard(connection: Any) -> None:
    """Close a connection, whatever state it is in, without waiting for the server."""
    with contextlib.suppress(OSError, driver.RedisError):
        await connection.disconnect(nowait=True)


async def _is_stale(connection: Any) -> bool:
    # Between two exchanges nothing may come in: what can be read is the end of the
    # connection or an answer out of turn.
    look = getattr(connection, "can_read", None) or connection.can_read_destructive
    try:
        return bool(await look())
    except (OSError, driver.RedisError):
        return True


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
    ) -> None:
        self._make = connect
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._retries = retries
        self._pause = pause
        self._redirect = redirect
        self._loop = asyncio.get_running_loop()
        self._pending: list[_Call] = []
        self._untold: list[_Call] = []
        self._task: asyncio.Task[None] | None = None
        self._aside: set[asyncio.Task[None]] = set()
        self._connection: Any = None
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
        self._pending.append(_Call(arguments, future, script, self._loop.time(), repeats, late))
        if self._task is None:
            self._task = self._loop.create_task(self._run(), name="oqron-redis-lane")
        return future

    async def close(self) -> None:
        """Close the connection; calls under way fail with `ClosedError`. Idempotent."""
        self._closed = True
        tasks = [task for task in (self._task, *self._aside) if task is not None]
        for task in tasks:
            task.cancel()
        for task in tasks:
            await asyncio.wait([task])
        self._fail(self._pending, ClosedError("the Redis connection was closed"))
        await self._drop()

    # --- the one task that reads and writes -----------------------------------

    async def _run(self) -> None:
        # The task lives as long as there is something to do: an idle lane is no more
        # than an open connection.
        try:
            while self._pending:
                calls = self._next()
                if calls:
                    await self._exchange(calls)
        finally:
            self._task = None

    def _next(self) -> list[_Call]:
        # A caller that has gone before its call was sent wants nothing any more, and
        # one that has waited for its turn for too long gets no late surprise.
        oldest = self._loop.time() - self._timeout
        calls: list[_Call] = []
        size = 0
        taken = 0
        for call in self._pending:
            taken += 1
            if call.future.done():
                continue
            if call.at < oldest:
                call.fail(UnavailableError("Redis was too busy to be asked in time"))
                continue
            if call.late is not None:
                late = call.late()
                if late is None:
                    call.future.cancel()
                    continue
                call.arguments += late
                call.late = None
            calls.append(call)
            size += sum(len(word) for word in call.arguments[-3:] if type(word) is bytes)
            if len(calls) >= _MAX_CALLS or size > _MAX_BYTES:
                break
        del self._pending[:taken]
        return calls

    async def _exchange(self, calls: list[_Call]) -> None:
        done = 0
        self._untold = []
        try:
            connection = await self._connected()
            async with asyncio.timeout(self._timeout) as limit:
                await self._send(connection, calls)
                for call in calls:
                    await self._receive(connection, call)
                    done += 1
                    if done < len(calls):
                        limit.reschedule(self._loop.time() + self._timeout)
        except asyncio.CancelledError:
            self._fail(calls, ClosedError("the Redis connection was closed"))
            raise
        except OqronError as error:
            if self._redirect is None or not error.retryable:
                self._fail(calls, error)
                return
            # Nothing was sent. In a cluster somebody else may serve the slot by now.
            for call in calls:
                self._elsewhere(call, error)
        except Exception as error:  # noqa: BLE001 - whatever it was, each caller is told
            await self._drop()
            self._lost(calls[done:], error)
        # In front of what came later, and in their own order.
        self._pending[:0] = self._untold

    async def _send(self, connection: Any, calls: Sequence[_Call]) -> None:
        data = [packed(call.arguments) for call in calls]
        await connection.send_packed_command(data, check_health=False)

    async def _receive(self, connection: Any, call: _Call) -> None:
        try:
            reply = await connection.read_response(disable_decoding=True)
        except driver.NoScriptError:
            self._send_source(call)
        except _MOVED as error:
            self._elsewhere(call, error)
        except driver.ConnectionError:
            raise
        except driver.ResponseError as error:
            call.fail(translate(error))
            if is_stale_primary(error):
                # A new connection finds the new primary, through DNS or Sentinel.
                raise driver.ConnectionError(str(error)) from error
        else:
            call.answer(reply)

    def _send_source(self, call: _Call) -> None:
        # The server did nothing yet. EVAL runs the script and teaches it again.
        if call.script is not None:
            call.arguments = (b"EVAL", call.script.source, *call.arguments[2:])
            self._untold.append(call)

    def _elsewhere(self, call: _Call, error: Exception) -> None:
        if self._redirect is None:
            call.fail(translate(error))
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
            call.fail(translate(error))

    # --- connecting -------------------------------------------------------------

    async def _connected(self) -> Any:
        connection = self._connection
        if connection is not None:
            if connection.is_connected and not await _is_stale(connection):
                return connection
            await self._drop()
        attempt = 0
        while True:
            error = await self._attempt()
            if error is None:
                return self._connection
            ours = translate(error)
            if attempt >= self._retries or not ours.retryable:
                raise ours from error
            attempt += 1
            await asyncio.sleep(self._pause(attempt) * random.uniform(0.5, 1.0))  # noqa: S311 - jitter

    async def _attempt(self) -> BaseException | None:
        connection = self._make()
        try:
            async with asyncio.timeout(self._connect_timeout):
                await connection.connect()
        except asyncio.CancelledError:
            await discard(connection)
            raise
        except Exception as error:  # noqa: BLE001 - given to whoever asked
            await discard(connection)
            return error
        self._connection = connection
        return None

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await discard(connection)

    def _lost(self, calls: Sequence[_Call], error: BaseException) -> None:
        ours = translate(error)
        timed_out = isinstance(error, (TimeoutError, driver.TimeoutError))
        _log.debug("a connection to Redis was lost with %d calls under way", len(calls))
        for call in reversed(calls):
            if call.again > 0 and not timed_out:
                call.again -= 1
                self._pending.insert(0, call)
            else:
                call.fail(copy_of(ours))

    @staticmethod
    def _fail(calls: Sequence[_Call], error: OqronError) -> None:
        for call in calls:
            call.fail(copy_of(error))


def copy_of(error: OqronError) -> OqronError:
    """Give an error of its own to each caller: a traceback grows where one is raised."""
    copied = type(error)(*error.args)
    copied.__cause__ = error.__cause__
    return copied
