"""
One connection that listens, for all who wait in this process.

It carries wake-ups of queues and signals. It finds out by itself that it is broken,
connects again, and tells everybody that something may have been missed.
"""

from __future__ import annotations

import asyncio
import logging

from collections.abc import Callable
from typing import Any, Final, TypeAlias, final

from oqron_core.exceptions import ClosedError, OqronError
from oqron_redis._errors import translate
from oqron_redis._lane import discard
from oqron_redis._packing import packed
from oqron_redis._wire import Wire, take_over
from redis import exceptions as driver


__all__ = ["Listener", "Told"]

_log = logging.getLogger("oqron.redis")

_QUIET_FOR: Final = 15.0
"""Seconds of silence after which the connection is asked whether it lives."""

Told: TypeAlias = Callable[[bytes | None], None]
"""Takes a message, or None where some may have been missed."""


@final
class Listener:
    """
    A pub/sub connection that subscribers share.

    Args:
        connect: Makes a connection that is not connected yet.
        timeout: Seconds for a subscription to be confirmed.
        connect_timeout: Seconds for one attempt to connect.
        retries: More attempts before those who wait for a subscription fail.
        pause: Gives the seconds to wait before attempt *n*.
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
        at: str = "",
    ) -> None:
        self._make = connect
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._retries = retries
        self._pause = pause
        self._at = at
        self._loop = asyncio.get_running_loop()
        self._told: dict[bytes, list[Told]] = {}
        self._confirmed: set[bytes] = set()
        self._waiting: dict[bytes, list[asyncio.Future[None]]] = {}
        self._wire: Wire | None = None
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._heard_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def subscribe(self, channel: bytes, told: Told) -> None:
        """
        Call *told* with every message of *channel* from now on.

        Raises:
            UnavailableError: The server did not confirm.
        """
        if self._closed:
            msg = "the Redis connection is closed"
            raise ClosedError(msg)
        self._told.setdefault(channel, []).append(told)
        if self._task is None:
            self._task = self._loop.create_task(self._run(), name="oqron-redis-listener")
        if channel in self._confirmed:
            return
        confirmed: asyncio.Future[None] = self._loop.create_future()
        self._waiting.setdefault(channel, []).append(confirmed)
        try:
            self._send(b"SUBSCRIBE", channel)
            async with asyncio.timeout(self._timeout):
                await confirmed
        except BaseException as error:
            self.unsubscribe(channel, told)
            if isinstance(error, TimeoutError):
                raise translate(error) from error
            raise
        finally:
            waiting = self._waiting.get(channel, [])
            if confirmed in waiting:
                waiting.remove(confirmed)

    def unsubscribe(self, channel: bytes, told: Told) -> None:
        """Stop calling *told*."""
        subscribers = self._told.get(channel, [])
        if told in subscribers:
            subscribers.remove(told)
        if not subscribers and self._told.pop(channel, None) is not None:
            self._confirmed.discard(channel)
            self._send(b"UNSUBSCRIBE", channel)

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        self._fail(ClosedError("the Redis connection was closed"))
        self._told.clear()
        self._drop()
        # The stream is closed in the next turn of the loop.
        await asyncio.sleep(0)

    # --- the one task that stays connected ----------------------------------------

    async def _run(self) -> None:
        failures = 0
        while self._told:
            try:
                await self._connect()
                failures = 0
                await self._stay()
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - connects again, whatever it was
                failures += 1
                await self._broken(error, failures)
        # Nobody listens any more. Whoever comes next starts anew, with a connection of
        # their own; this one is closed below.
        self._task = None
        self._drop()

    async def _broken(self, error: Exception, failures: int) -> None:
        self._drop()
        _log.debug("the listening connection to Redis was lost")
        if failures > self._retries:
            self._fail(translate(error, self._at))
        for subscribers in [*self._told.values()]:
            for told in [*subscribers]:
                told(None)
        await asyncio.sleep(self._pause(failures))

    async def _connect(self) -> None:
        # Who comes back in the moment that the last one leaves gets a connection anew.
        self._drop()
        connection = self._make()
        try:
            async with asyncio.timeout(self._connect_timeout):
                await connection.connect()
            self._wire = take_over(
                connection, answered=self._answered, lost=self._lost, resumed=lambda: None
            )
        except BaseException:
            await discard(connection)
            raise
        self._over = self._loop.create_future()
        self._heard_at = self._loop.time()
        if self._told:
            self._send(b"SUBSCRIBE", *self._told)

    async def _stay(self) -> None:
        """Return when nobody listens any more; raise when the connection is over."""
        over = self._over
        while self._told and not over.done():
            now = self._loop.time()
            left = self._heard_at + _QUIET_FOR - now
            if left > 0:
                await asyncio.wait([over], timeout=left)
                continue
            self._send(b"PING")
            await asyncio.wait([over], timeout=self._timeout)
            if self._heard_at < now and not over.done():
                raise TimeoutError
        if over.done():
            over.result()

    def _lost(self, wire: Wire, error: BaseException) -> None:
        if wire is self._wire and not self._over.done():
            self._over.set_exception(error)

    def _answered(self, message: Any) -> None:
        self._heard_at = self._loop.time()
        if isinstance(message, driver.ResponseError):
            if self._wire is not None:
                self._lost(self._wire, message)
            return
        self._deliver(message)
        if not self._told and not self._over.done():
            self._over.set_result(None)

    def _deliver(self, message: Any) -> None:
        if not isinstance(message, list) or not message:
            return
        what = message[0]
        if what == b"message":
            for told in [*self._told.get(message[1], ())]:
                told(message[2])
        elif what == b"subscribe":
            channel = message[1]
            if channel not in self._told:
                return
            renewed = channel not in self._waiting or not self._waiting[channel]
            self._confirmed.add(channel)
            for confirmed in self._waiting.pop(channel, ()):
                if not confirmed.done():
                    confirmed.set_result(None)
            if renewed:
                for told in [*self._told[channel]]:
                    told(None)

    # --- writing ------------------------------------------------------------------

    def _send(self, *words: bytes) -> None:
        # Where there is no connection, everything is subscribed to as soon as there is.
        if self._wire is not None:
            self._wire.write([packed(words)])

    def _fail(self, error: OqronError) -> None:
        for waiting in self._waiting.values():
            for confirmed in waiting:
                if not confirmed.done():
                    confirmed.set_exception(type(error)(*error.args))
        self._waiting.clear()

    def _drop(self) -> None:
        # Both at once, before anybody else runs.
        self._confirmed.clear()
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.abort()
        if self._over.done() and not self._over.cancelled():
            self._over.exception()
