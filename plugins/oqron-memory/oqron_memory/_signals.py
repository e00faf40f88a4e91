"""Fan-out that may lose messages."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import Json, Signal, Signals, check_key, encode
from oqron_memory._store import MemoryStore, ScopeState
from oqron_memory._wake import Gate, Waker, sleep_until_woken


__all__ = ["MemorySignals"]

_BACKLOG: Final = 1000
"""How many messages a slow subscriber may be behind before it loses the oldest."""


class _Subscriber(AsyncIterator[Signal]):
    """One subscription; its messages wait here, encoded."""

    __slots__ = ("_backlog", "_gate", "_over", "_store", "_waker")

    def __init__(self, store: MemoryStore, gate: Gate) -> None:
        self._store = store
        self._gate = gate
        self._backlog: deque[tuple[str, Json]] = deque(maxlen=_BACKLOG)
        self._waker: Waker | None = None
        self._over = False

    def tell(self, channel: str, message: Json) -> None:
        """Take a message; called under the lock, from any thread."""
        self._backlog.append((channel, message))
        if self._waker is not None:
            self._waker.wake()

    def end(self) -> None:
        """End the iteration, in whichever task it is; called under the lock."""
        self._over = True
        if self._waker is not None:
            self._waker.wake()

    async def __anext__(self) -> Signal:
        while True:
            with self._store.lock:
                if self._over or self._gate.closed:
                    raise StopAsyncIteration
                if self._backlog:
                    channel, message = self._backlog.popleft()
                    break
                waker = self._waker = Waker()
                self._gate.wakers.add(waker)
            try:
                await sleep_until_woken(waker, self._store.clock, None)
            finally:
                with self._store.lock:
                    self._gate.wakers.discard(waker)
                    self._waker = None
        return Signal(channel, message.load())


class _Subscription(AbstractAsyncContextManager[AsyncIterator[Signal]]):
    """Listens while it is entered."""

    def __init__(
        self, store: MemoryStore, state: ScopeState, gate: Gate, channels: list[str]
    ) -> None:
        self._store = store
        self._subscribers = state.subscribers
        self._channels = channels
        self._gate = gate
        self._entered: list[_Subscriber] = []

    async def __aenter__(self) -> AsyncIterator[Signal]:
        self._gate.check()
        subscriber = _Subscriber(self._store, self._gate)
        with self._store.lock:
            for channel in self._channels:
                self._subscribers.setdefault(channel, {})[subscriber] = None
        self._entered.append(subscriber)
        return subscriber

    async def __aexit__(self, *exc_info: object) -> None:
        subscriber = self._entered.pop()
        with self._store.lock:
            subscriber.end()
            for channel in self._channels:
                listening = self._subscribers[channel]
                del listening[subscriber]
                if not listening:
                    del self._subscribers[channel]


class MemorySignals(Signals):
    """The signals of one scope."""

    __slots__ = ("_gate", "_max_bytes", "_state", "_store")

    def __init__(self, store: MemoryStore, state: ScopeState, gate: Gate, max_bytes: int) -> None:
        self._store = store
        self._state = state
        self._gate = gate
        self._max_bytes = max_bytes

    async def publish(self, channel: str, message: Any) -> None:
        self._gate.check()
        check_key(channel, "channel")
        encoded = encode(message, "message", max_bytes=self._max_bytes)
        with self._store.lock:
            for subscriber in self._state.subscribers.get(channel, ()):
                subscriber.tell(channel, encoded)

    def subscribe(
        self, channels: Sequence[str]
    ) -> AbstractAsyncContextManager[AsyncIterator[Signal]]:
        self._gate.check()
        if isinstance(channels, str) or not channels:
            raise InvalidValueError("channels", "must be a list of at least one channel")
        for channel in channels:
            check_key(channel, "channel")
        names = list(dict.fromkeys(channels))
        return _Subscription(self._store, self._state, self._gate, names)
