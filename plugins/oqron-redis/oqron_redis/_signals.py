"""Signals: fan-out over pub/sub, with the scope in the channel."""

from __future__ import annotations

import asyncio

from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, final

from oqron_core.exceptions import CorruptRecordError
from oqron_core.planes import Signal, Signals, check_key, check_keys, decode, encode
from oqron_redis._session import Session


__all__ = ["RedisSignals"]

_BACKLOG: Final = 1024


@final
class RedisSignals(Signals):
    """Signals on Redis; all subscribers of a process share one connection."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    async def publish(self, channel: str, message: Any) -> None:
        check_key(channel, "channel")
        text = encode(message, "message", max_bytes=self._session.context.max_value_bytes)
        place = self._session.keys.signal(channel)
        await self._session.command(b"PUBLISH", place, text.data, key=place)

    def subscribe(
        self, channels: Sequence[str]
    ) -> AbstractAsyncContextManager[AsyncIterator[Signal]]:
        return self._subscribe(channels)

    @asynccontextmanager
    async def _subscribe(self, channels: Sequence[str]) -> AsyncIterator[AsyncIterator[Signal]]:
        session = self._session
        session.check_open()
        check_keys(channels)
        subscription = _Subscription()
        listener = session.store.listener()
        joined = []
        session.closing.append(subscription.close)
        try:
            for channel in dict.fromkeys(channels):
                told = subscription.teller(channel)
                place = session.keys.signal(channel)
                await listener.subscribe(place, told)
                joined.append((place, told))
            yield subscription
        finally:
            subscription.close()
            if subscription.close in session.closing:
                session.closing.remove(subscription.close)
            for place, told in joined:
                listener.unsubscribe(place, told)


@final
class _Subscription(AsyncIterator[Signal]):
    """A bounded backlog: whoever is slow loses the oldest."""

    def __init__(self) -> None:
        self._signals: deque[Signal] = deque(maxlen=_BACKLOG)
        self._came = asyncio.Event()
        self._closed = False

    def teller(self, channel: str) -> Any:
        def told(data: bytes | None) -> None:
            if data is None:
                return
            try:
                message = decode(data, f"channel {channel!r}")
            except CorruptRecordError:
                # Somebody else's message: nothing that a subscriber could do.
                return
            self._signals.append(Signal(channel, message))
            self._came.set()

        return told

    def close(self) -> None:
        self._closed = True
        self._came.set()

    async def __anext__(self) -> Signal:
        while not self._signals:
            if self._closed:
                raise StopAsyncIteration
            self._came.clear()
            await self._came.wait()
        return self._signals.popleft()
