"""Cache: values that expire, built once, invalidated by key and by tag."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from oqron_core._codec import encode
from oqron_core._names import check_many, check_name
from oqron_core.exceptions import InvalidValueError
from oqron_core.planes.checks import lease_ms, seconds, ttl_ms
from oqron_core.protocol.building import Building, Plan
from oqron_core.protocol.copies import Copies, LocalCache, key_list
from oqron_core.protocol.entries import Entries
from oqron_core.protocol.session import Session


__all__ = ["Cache"]

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
        self._copies = Copies(session)

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
        names = key_list(keys)
        entries = await self._entries.read(names) if names else []
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
        keys = key_list(list(entries))
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
        names = key_list(keys)
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

        For asyncio alone: the view has no blocking twin.

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


def _tags(tags: Sequence[str], most: int | None = _MAX_TAGS) -> list[str]:
    given = check_many("tags", tags, "tags")
    names = list(dict.fromkeys(check_name("tag", tag) for tag in given))
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
