"""
Fan-out that may lose messages: a short log that every subscriber reads on.

A message is a row; whoever is subscribed, in this process or another, reads what came
after the last row it has seen. Rows are kept for a minute.
"""

from __future__ import annotations

import sqlite3

from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import orjson

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import Signal, Signals, check_key, encode
from oqron_sqlite._facet import Place, tickets
from oqron_sqlite._lane import Transaction
from oqron_sqlite._wake import Waker


__all__ = ["SqliteSignals"]

_BACKLOG: Final = 1000
"""How many messages a slow subscriber may be behind before it loses the oldest."""
_KEPT_MS: Final = 60_000
_INSERT: Final = "INSERT INTO oqron_hot_signals VALUES (?, ?, ?, ?, ?)"
_FORGET: Final = """
DELETE FROM oqron_hot_signals WHERE (scope, seq) IN
(SELECT scope, seq FROM oqron_hot_signals WHERE at < ? ORDER BY at LIMIT 4)
"""
_LAST: Final = "SELECT coalesce(max(seq), 0) FROM oqron_hot_signals WHERE scope = ?"
_NEXT: Final = """
SELECT seq, channel, message FROM oqron_hot_signals
WHERE scope = :scope AND seq > :seen
AND channel IN (SELECT value FROM json_each(:channels))
ORDER BY seq DESC LIMIT :limit
"""


class _Subscriber(AsyncIterator[Signal]):
    """One subscription: where it is in the log, and what it has read ahead."""

    __slots__ = ("_backlog", "_over", "_params", "_place", "_waker")

    def __init__(self, place: Place, channels: list[str], seen: int) -> None:
        self._place = place
        self._params = {
            "scope": place.number,
            "channels": orjson.dumps(channels).decode(),
            "seen": seen,
            "limit": _BACKLOG,
        }
        self._backlog: deque[tuple[str, str]] = deque()
        self._waker = Waker([("signals", place.number)])
        self._over = False
        place.hub.enter(place.gate, self._waker)

    def end(self) -> None:
        """End the iteration, in whichever task it is."""
        self._over = True
        self._place.hub.leave(self._place.gate, self._waker)
        self._waker.wake()

    async def __anext__(self) -> Signal:
        while True:
            if self._over or self._place.gate.closed:
                raise StopAsyncIteration
            if self._backlog:
                channel, message = self._backlog.popleft()
                return Signal(channel, orjson.loads(message))
            self._waker.rest()
            await self._read_on()
            if not self._backlog and not self._over:
                await self._waker.sleep(None)

    async def _read_on(self) -> None:
        # Read as they stand when it is done, not when it began: a listener that gives
        # up in between must not lose what another call then finds.
        params = dict(self._params)

        def read(driver: sqlite3.Connection, now: int) -> list[tuple[int, str, str]]:
            del now
            return driver.execute(_NEXT, params).fetchall()

        # Newest first, so that whoever is far behind loses the oldest.
        rows = await self._place.read(read)
        if rows:
            self._params["seen"] = rows[0][0]
            self._backlog.extend((channel, message) for _, channel, message in rows[::-1])


class _Subscription(AbstractAsyncContextManager[AsyncIterator[Signal]]):
    """Listens while it is entered."""

    def __init__(self, place: Place, channels: list[str]) -> None:
        self._place = place
        self._channels = channels
        self._entered: list[_Subscriber] = []

    async def __aenter__(self) -> AsyncIterator[Signal]:
        self._place.gate.check()
        number = self._place.number
        # Asked of the writer, so that nothing that was published before is heard.
        seen = await self._place.write(
            lambda step: step.driver.execute(_LAST, (number,)).fetchone()[0]
        )
        subscriber = _Subscriber(self._place, self._channels, seen)
        self._entered.append(subscriber)
        return subscriber

    async def __aexit__(self, *exc_info: object) -> None:
        self._entered.pop().end()


class SqliteSignals(Signals):
    """The signals of one scope."""

    __slots__ = ("_place",)

    def __init__(self, place: Place) -> None:
        self._place = place

    async def publish(self, channel: str, message: Any) -> None:
        self._place.gate.check()
        check_key(channel, "channel")
        text = encode(message, "message", max_bytes=self._place.max_bytes).data.decode()
        number = self._place.number

        def work(step: Transaction) -> None:
            seq = tickets(step, 1) + 1
            step.driver.execute(_INSERT, (number, seq, channel, text, step.now))
            # Four go for one that comes, so the log stays short without a sweep.
            step.driver.execute(_FORGET, (step.now - _KEPT_MS,))
            step.told.add(("signals", number))

        await self._place.write(work)

    def subscribe(
        self, channels: Sequence[str]
    ) -> AbstractAsyncContextManager[AsyncIterator[Signal]]:
        self._place.gate.check()
        if isinstance(channels, str) or not channels:
            raise InvalidValueError("channels", "must be a list of at least one channel")
        for channel in channels:
            check_key(channel, "channel")
        return _Subscription(self._place, [*dict.fromkeys(channels)])
