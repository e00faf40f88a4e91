"""Cache: values that expire, built once, invalidated by key and by tag."""

from __future__ import annotations

import asyncio
import logging
import time
import weakref

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from oqron_core._codec import Json, encode
from oqron_core._names import check_name
from oqron_core.exceptions import InvalidValueError, StorageError
from oqron_core.planes.checks import lease_ms, seconds, ttl_ms
from oqron_core.planes.values import MISSING
from oqron_core.protocol.building import Building, Plan
from oqron_core.protocol.entries import INVALID, Entries
from oqron_core.protocol.session import Session


__all__ = ["Cache", "LocalCache"]

log = logging.getLogger("oqron.cache")

_MAX_TAGS: Final = 100


class Cache:
    """
    Values that expire, shared by all processes of a scope. None is a value.

    Ephemeral: everything may be gone at any moment. A time to live is at least
    0.001 seconds; 0 and less are refused, None is for ever.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._entries = Entries(session)
        self._building = Building(session, self._entries)
        self._copies = _Copies(session)

    # --- read and write ---

    async def get(self, key: str, default: Any = None) -> Any:
        """
        Read a value, as a copy of your own; *default* where there is none.

        Give `MISSING` as *default* to tell a miss from a stored None.

        Raises:
            InvalidValueError: *key* is not legal.
            UnavailableError: The hot plane did not answer.
        """
        return (await self.get_many([key], default))[0]

    async def get_many(self, keys: Sequence[str], default: Any = None) -> list[Any]:
        """
        Read values, in the order of *keys*, in one round trip and one for tags.

        Raises:
            InvalidValueError: A key is not legal.
            UnavailableError: The hot plane did not answer.
        """
        self._session.check_open()
        entries = await self._entries.read(_keys(keys)) if keys else []
        return [default if e is None or not e.fresh else e.value for e in entries]

    async def set(
        self, key: str, value: Any, *, ttl: float | None, tags: Sequence[str] = ()
    ) -> None:
        """
        Write a value, replacing what is there, and tell local copies.

        A value that is being built for the key does not replace it, unless the key
        had a stale value.

        Args:
            key: 1 to 255 characters.
            value: Anything portable.
            ttl: Seconds until it is absent, >= 0.001; None for ever.
            tags: What invalidates it, at most 100.

        Raises:
            InvalidValueError: An argument is not legal; nothing is written.
            UnavailableError: The hot plane did not answer; it may be written.
        """
        await self.set_many({key: value}, ttl=ttl, tags=tags)

    async def set_many(
        self, entries: Mapping[str, Any], *, ttl: float | None, tags: Sequence[str] = ()
    ) -> None:
        """
        Write values, all with the same *ttl* and *tags*; see `set`. Not atomic.

        Raises:
            InvalidValueError: An argument is not legal; nothing is written.
            UnavailableError: The hot plane did not answer; some may be written.
        """
        self._session.check_open()
        ttl_ms(ttl)
        names = _tags(tags)
        keys = _keys(list(entries))
        if not keys:
            return
        for key, value in entries.items():
            encode(value, f"cache[{key!r}]", max_bytes=None)
        versions = await self._entries.mark(names, ttl) if names else {}
        made = {
            key: await self._entries.encode(value, f"cache[{key!r}]", ttl=ttl, versions=versions)
            for key, value in entries.items()
        }
        await self._entries.write(made, ttl=ttl)
        self._copies.drop(keys)
        await self._entries.tell("keys", keys)

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
        """
        Read a value; where there is none, build it, once among all processes.

        Who asks meanwhile waits for that builder, without polling. A builder that
        raises leaves nothing behind: each caller of its process gets what it raised,
        and another process builds. One whose process dies is replaced after
        *lease_for* seconds. A builder all of whose callers were cancelled is
        cancelled too.

        A call that began before an invalidation may give what was built before it;
        such a value is not kept.

        Args:
            key: 1 to 255 characters.
            builder: Makes the value: a coroutine function, or a function, which is
                run in a thread.
            ttl: Seconds that the value is fresh, >= 0.001; None for ever.
            stale_for: Seconds after that in which the old value is given at once,
                while one process builds a new one in the background.
            tags: What invalidates it, at most 100.
            negative_ttl: Instead of *ttl* where the builder gives None; that is
                never served stale. None makes no difference.
            lease_for: Seconds until a builder that died is replaced, >= 0.05; a
                living one may take as long as it needs.

        Raises:
            InvalidValueError: An argument is not legal, or what was built is not
                portable.
            UnavailableError: The hot plane did not answer.
            Exception: Whatever the builder raised.
        """
        self._session.check_open()
        plan = _plan(key, builder, ttl, stale_for, tags, negative_ttl, lease_for)
        if not self._building.building(key):
            [entry] = await self._entries.read([key])
            if entry is not None and entry.valid:
                if entry.stale:
                    self._building.refresh(plan)
                return entry.value
        return await self._building.build(plan)

    # --- remove ---

    async def delete(self, key: str) -> bool:
        """Remove a value, as `invalidate` does; whether it was there."""
        return (await self.delete_many([key]))[0]

    async def delete_many(self, keys: Sequence[str]) -> list[bool]:
        """
        Remove values, as `invalidate` does; for each key whether it was there.

        Raises:
            InvalidValueError: A key is not legal.
            UnavailableError: The hot plane did not answer; some may be removed.
        """
        self._session.check_open()
        names = _keys(keys)
        if not names:
            return []
        self._building.leave(keys=names)
        # First the right to fill, then what is there: nothing comes in between.
        await self._entries.stop_builds(names)
        gone = await self._entries.delete(names)
        self._copies.drop(names)
        await self._entries.tell("keys", names)
        return gone

    async def invalidate(self, key: str) -> None:
        """
        Make sure that nothing older than this call is found under *key*.

        Also not what is being built now: its callers get it, but it is not kept.
        Local copies everywhere are told.

        Raises:
            InvalidValueError: *key* is not legal.
            UnavailableError: The hot plane did not answer; call again.
        """
        await self.delete_many([key])

    async def invalidate_tag(self, tag: str) -> None:
        """
        Make every value with *tag* absent, however many there are, in one step.

        Raises:
            InvalidValueError: *tag* is not legal.
            UnavailableError: The hot plane did not answer; call again.
        """
        await self.invalidate_tags([tag])

    async def invalidate_tags(self, tags: Sequence[str]) -> None:
        """
        Make every value with one of *tags* absent, in one step per tag.

        Raises:
            InvalidValueError: A tag is not legal.
            UnavailableError: The hot plane did not answer; call again.
        """
        self._session.check_open()
        names = _tags(tags, most=None)
        if not names:
            return
        self._building.leave(tags=names)
        await self._entries.unmark(names)
        # A copy does not know the tags of its value, so all of them go.
        self._copies.drop(None)
        await self._entries.tell("tags", names)

    # --- local copies ---

    def local(self, *, max_entries: int = 1000, max_age: float = 5.0) -> LocalCache:
        """
        Give a view of this cache that keeps copies in this process.

        Copies follow `set`, `delete` and every invalidation by signal, usually
        within a millisecond. Signals may be lost, so a copy is at most *max_age*
        seconds old; for that long it may also outlive its time to live.

        Args:
            max_entries: How many copies are kept; those not read for longest go.
            max_age: Seconds, > 0, by the local clock.

        Raises:
            InvalidValueError: An argument is not legal.
        """
        if type(max_entries) is not int or max_entries < 1:
            raise InvalidValueError("max_entries", "must be an int of at least 1")
        seconds("max_age", max_age, least=0.001)
        return LocalCache(self, self._copies, max_entries, max_age)


class LocalCache:
    """Reads through copies in this process; see `Cache.local`."""

    def __init__(self, cache: Cache, copies: _Copies, max_entries: int, max_age: float) -> None:
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
        found = {key: self._copy(key) for key in _keys(keys)}
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


class _Copies:
    """
    The local caches of a storage, and the ear that they share.

    Attributes:
        heard: Counts the invalidations, so that a read can tell whether one came
            meanwhile.
        listening: Whether signals arrive; nothing is kept where they do not.
    """

    def __init__(self, session: Session) -> None:
        self.heard = 0
        self.listening = False
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


def _keys(keys: Sequence[str]) -> list[str]:
    if isinstance(keys, str):
        raise InvalidValueError("keys", "must be a list of keys, not a str")
    return [check_name("key", key) for key in keys]


def _tags(tags: Sequence[str], most: int | None = _MAX_TAGS) -> list[str]:
    if isinstance(tags, str):
        raise InvalidValueError("tags", "must be a list of tags, not a str")
    names = list(dict.fromkeys(check_name("tag", tag) for tag in tags))
    if most is not None and len(names) > most:
        raise InvalidValueError("tags", f"has {len(names)} tags; at most {most} are allowed")
    return names


def _plan(
    key: str,
    builder: Callable[[], Any],
    ttl: float | None,
    stale_for: float,
    tags: Sequence[str],
    negative_ttl: float | None,
    lease_for: float,
) -> Plan:
    ttl_ms(ttl)
    ttl_ms(negative_ttl, "negative_ttl")
    seconds("stale_for", stale_for)
    lease_ms(lease_for)
    if stale_for and ttl is not None:
        seconds("ttl + stale_for", ttl + stale_for)
    if not callable(builder):
        raise InvalidValueError("builder", "must be a function that makes the value")
    return Plan(
        check_name("key", key), builder, ttl, stale_for, _tags(tags), negative_ttl, lease_for
    )
