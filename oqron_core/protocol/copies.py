"""Copies of cache entries in this process, which follow what is invalidated."""

from __future__ import annotations

import asyncio
import logging
import time
import weakref

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from oqron_core._codec import Json, encode
from oqron_core._names import check_many, check_name
from oqron_core.exceptions import StorageError
from oqron_core.planes.values import MISSING
from oqron_core.protocol.entries import INVALID
from oqron_core.protocol.session import Session


__all__ = ["Copies", "LocalCache", "key_list"]

log: logging.Logger = logging.getLogger("oqron.cache")


class _Source(Protocol):
    """Where a local cache reads what it has no copy of."""

    async def get_many(self, keys: Sequence[str], default: Any = None) -> list[Any]: ...

    async def get_or_set(
        self,
        key: str,
        builder: Callable[[], Any],
        *,
        ttl: float | None = None,
        stale_for: float = 0.0,
        tags: Sequence[str] = (),
        negative_ttl: float | None = None,
        lease_for: float = 10.0,
    ) -> Any: ...


class LocalCache:
    """Reads through copies in this process; see `Cache.local`."""

    def __init__(self, cache: _Source, copies: Copies, max_entries: int, max_age: float) -> None:
        self._cache = cache
        self._copies = copies
        self._max_entries = max_entries
        self._max_age = max_age
        # Encoded, so that what is handed out may be changed without harm.
        self._kept: OrderedDict[str, tuple[float, Json]] = OrderedDict()
        copies.join(self)

    def __len__(self) -> int:
        return len(self._kept)

    async def get(self, key: str, default: Any = None) -> Any:
        """Read a value, from the copy where there is one; as `Cache.get`."""
        return (await self.get_many([key], default))[0]

    async def get_many(self, keys: Sequence[str], default: Any = None) -> list[Any]:
        """Read values, those without a copy in one round trip; as `Cache.get_many`."""
        found = {key: self._copy(key) for key in key_list(keys)}
        missing = [key for key, value in found.items() if value is MISSING]
        if missing:
            await self._copies.listen()
            then = self._copies.heard
            values = await self._cache.get_many(missing, MISSING)
            for key, value in zip(missing, values, strict=True):
                found[key] = value
                self._keep(key, value, then)
        return [default if found[key] is MISSING else found[key] for key in keys]

    async def get_or_set(
        self,
        key: str,
        builder: Callable[[], Any],
        *,
        ttl: float | None = None,
        stale_for: float = 0.0,
        tags: Sequence[str] = (),
        negative_ttl: float | None = None,
        lease_for: float = 10.0,
    ) -> Any:
        """Read a value, from the copy where there is one; as `Cache.get_or_set`."""
        value = self._copy(check_name("key", key))
        if value is not MISSING:
            return value
        await self._copies.listen()
        then = self._copies.heard
        value = await self._cache.get_or_set(
            key,
            builder,
            ttl=ttl,
            stale_for=stale_for,
            tags=tags,
            negative_ttl=negative_ttl,
            lease_for=lease_for,
        )
        self._keep(key, value, then)
        return value

    def drop(self, keys: Iterable[str] | None) -> None:
        """Forget the copies of *keys*; None for all."""
        if keys is None:
            self._kept.clear()
        else:
            for key in keys:
                self._kept.pop(key, None)

    def _copy(self, key: str) -> Any:
        kept = self._kept.get(key)
        if kept is None:
            return MISSING
        if kept[0] <= time.monotonic():
            del self._kept[key]
            return MISSING
        self._kept.move_to_end(key)
        return kept[1].load()

    def _keep(self, key: str, value: Any, then: int) -> None:
        # Something was invalidated since the read began: it may have been this.
        if value is MISSING or not self._copies.listening or self._copies.heard != then:
            return
        self._kept[key] = (time.monotonic() + self._max_age, encode(value, max_bytes=None))
        self._kept.move_to_end(key)
        while len(self._kept) > self._max_entries:
            self._kept.popitem(last=False)


class Copies:
    """
    The local caches of a storage, and the ear that they share.

    Attributes:
        heard: Counts the invalidations, so that a read can tell whether one came
            meanwhile.
        listening: Whether signals arrive; nothing is kept where they do not.
    """

    def __init__(self, session: Session) -> None:
        self.heard: int = 0
        self.listening: bool = False
        self._session = session
        self._caches: weakref.WeakSet[LocalCache] = weakref.WeakSet()
        self._listener: asyncio.Task[Any] | None = None
        self._ready = asyncio.Event()

    def join(self, cache: LocalCache) -> None:
        """Take part in what is heard, for as long as somebody has *cache*."""
        self._caches.add(cache)

    def drop(self, keys: Iterable[str] | None) -> None:
        """Forget the copies of *keys*, or all, in every local cache."""
        self.heard += 1
        for cache in self._caches:
            cache.drop(keys)

    async def listen(self) -> None:
        """Return when signals arrive, or have failed to."""
        self._session.check_open()
        if self._listener is None:
            self._listener = self._session.spawn(self._listen(), name="oqron-cache-copies")
        if not self._ready.is_set():
            await self._ready.wait()

    async def _listen(self) -> None:
        pause = 0.1
        while True:
            try:
                async with self._session.hot.signals.subscribe([INVALID]) as signals:
                    # What was missed while nobody listened is unknown.
                    self.drop(None)
                    self.listening = True
                    self._ready.set()
                    pause = 0.1
                    async for signal in signals:
                        self._hear(signal.message)
                    return  # the plane was closed
            except StorageError as error:
                log.debug("listening for invalidations waits: %s", error)
            finally:
                self.listening = False
                self._ready.set()
                self.drop(None)
            await asyncio.sleep(pause)
            pause = min(5.0, pause * 2)

    def _hear(self, message: Any) -> None:
        keys = message.get("keys") if isinstance(message, dict) else None
        self.drop(keys if isinstance(keys, list) else None)


def key_list(keys: Sequence[str]) -> list[str]:
    """
    Give keys back if every one is legal.

    Raises:
        InvalidValueError: One is not, or they are a single str.
    """
    return [check_name("key", key) for key in check_many("keys", keys, "keys")]
