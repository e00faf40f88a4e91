"""Cache entries: how a value, its tags and its freshness lie in the hot plane."""

from __future__ import annotations

import asyncio
import itertools

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import attrs
import orjson

from oqron_core._codec import Json, encode
from oqron_core.planes.checks import MAX_DURATION
from oqron_core.planes.values import Lease, Missing
from oqron_core.protocol.session import Session


__all__ = ["BUILD", "INVALID", "Entries", "Entry"]

_CACHE: Final = "oqron:cache:"
_TAG: Final = "oqron:tag:"
BUILD: Final = "oqron:build:"
"""The lock of who builds an entry, and the channel on which its end is told."""
INVALID: Final = "oqron:cache:invalid"
"""The channel on which keys and tags are told that are not to be used any more."""

_AT_ONCE: Final = 100
_TOLD_AT_ONCE: Final = 1000
_MARKER_LEAST: Final = 60.0
_TRIES: Final = 20

_T = TypeVar("_T")


@attrs.frozen
class Entry:
    """
    A value that was found.

    Attributes:
        value: The value, fresh from the store.
        stale: Whether its time to live is over, and it may only be served while it
            is built anew.
        valid: Whether none of its tags was invalidated since it was made.
    """

    value: Any
    stale: bool = False
    valid: bool = True

    @property
    def fresh(self) -> bool:
        """Whether it may be served as it is."""
        return self.valid and not self.stale


class Entries:
    """
    Reads and writes entries; knows what a tag is.

    An entry holds ``v``, the value; ``t``, its tags, each with the version that its
    marker had before the value was made; and ``f``, until when it is fresh, where
    it may be served stale after that. A tag's marker is a lease of the plane's
    locks and its version the fencing token: never given twice, renewed only while
    it is the same, gone in one step. So an entry is valid exactly as long as no tag
    of it was invalidated since, and a marker that is lost makes it invalid.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    # --- entries ---

    async def read(self, keys: Sequence[str]) -> list[Entry | None]:
        """
        Read entries; for each key what lies there, valid or not, or None.

        Raises:
            UnavailableError: No answer.
        """
        found = await self._session.hot.cache.get_many([_CACHE + key for key in keys])
        rows = [_row(row) for row in found]
        tags = {str(tag): 0 for row in rows if row for tag, _ in row.get("t", ())}
        tags.pop("", None)
        if tags:
            tags |= await self._versions(tags)
        now = 0
        if any(row and "f" in row for row in rows):
            now = await self._session.hot_time.now()
        return [
            None
            if row is None
            else Entry(
                row["v"],
                stale="f" in row and row["f"] <= now,
                valid=all(tags.get(tag) == version for tag, version in row.get("t", ())),
            )
            for row in rows
        ]

    async def encode(
        self,
        value: Any,
        path: str,
        *,
        ttl: float | None,
        stale_for: float = 0.0,
        versions: Mapping[str, int] | None = None,
    ) -> Json:
        """
        Make the stored form of a value.

        Raises:
            InvalidValueError: The value is not portable.
        """
        limit = self._session.settings.max_value_bytes
        # Put together as text, so that the wrapping is no further level of nesting.
        text = b'{"v":' + encode(value, path, max_bytes=limit).data
        if versions:
            text += b',"t":' + orjson.dumps(list(versions.items()))
        if ttl is not None and stale_for > 0:
            fresh_until = await self._session.hot_time.now() + round(ttl * 1000)
            text += b',"f":' + orjson.dumps(fresh_until)
        return Json(text + b"}")

    async def write(self, entries: Mapping[str, Json], *, ttl: float | None) -> None:
        """Write entries, replacing what is there."""
        await self._session.hot.cache.set_many(
            {_CACHE + key: entry for key, entry in entries.items()}, ttl=ttl
        )

    async def add(self, key: str, entry: Json, *, ttl: float | None) -> bool:
        """Write an entry only where none is."""
        return await self._session.hot.cache.add(_CACHE + key, entry, ttl=ttl)

    async def delete(self, keys: Sequence[str]) -> list[bool]:
        """Remove entries; for each key whether it was there."""
        return list(await self._session.hot.cache.delete_many([_CACHE + key for key in keys]))

    # --- tags ---

    async def _versions(self, tags: Iterable[str]) -> dict[str, int]:
        """Read the versions of tags; 0, which no marker has, where there is none."""
        names = list(tags)
        return dict(zip(names, await _side_by_side(self._version, names), strict=True))

    async def _version(self, tag: str) -> int:
        lease = await self._session.hot.locks.holder(_TAG + tag)
        return 0 if lease is None else lease.token

    async def mark(self, tags: Iterable[str], lasts: float | None) -> dict[str, int]:
        """
        Give the versions of tags, and see that their markers outlive *lasts* seconds.

        Call it before the value is made: whatever is invalidated later is seen.

        Raises:
            UnavailableError: No answer.
        """
        names = list(dict.fromkeys(tags))
        versions = await _side_by_side(partial(self._mark, lasts=lasts), names)
        return dict(zip(names, versions, strict=True))

    async def _mark(self, tag: str, *, lasts: float | None) -> int:
        locks = self._session.hot.locks
        place = _TAG + tag
        need = MAX_DURATION if lasts is None else min(MAX_DURATION, lasts + 1)
        # Twice as long, so that a busy tag is renewed now and then, not each time.
        lease_for = min(MAX_DURATION, max(_MARKER_LEAST, 2 * need))
        for _ in range(_TRIES):
            lease = await locks.holder(place)
            if lease is None:
                lease = await locks.acquire(place, owner="oqron:tag", lease_for=lease_for)
                if lease is not None:
                    return lease.token
            elif await self._outlives(lease, need) or await locks.renew(lease, lease_for=lease_for):
                return lease.token
        # Invalidated as fast as it is marked: a version that no marker has.
        return -1

    async def _outlives(self, lease: Lease, need: float) -> bool:
        left = lease.expires_at - await self._session.hot_time.now()
        # What is to live for ever has a marker for a hundred years; they fade a bit.
        return left >= (need * 1000 if need < MAX_DURATION else need * 500)

    async def unmark(self, tags: Sequence[str]) -> None:
        """
        Make every entry with one of *tags* invalid, in one step per tag.

        Raises:
            UnavailableError: No answer; some may be invalid now.
        """
        await _side_by_side(self._unmark, tags)

    async def _unmark(self, tag: str) -> None:
        locks = self._session.hot.locks
        lease = await locks.holder(_TAG + tag)
        if lease is not None:
            # False where another was faster, which is as good.
            await locks.release(lease)

    # --- builds ---

    async def stop_builds(self, keys: Sequence[str]) -> None:
        """Take the right to fill from whoever builds one of *keys* now."""
        await _side_by_side(self._stop_build, keys)

    async def _stop_build(self, key: str) -> None:
        hot = self._session.hot
        lease = await hot.locks.holder(BUILD + key)
        if lease is not None and await hot.locks.release(lease):
            await hot.signals.publish(BUILD + key, lease.token)

    # --- signals ---

    async def tell(self, what: str, names: Sequence[str]) -> None:
        """Tell local copies that *names* of *what* (``keys`` or ``tags``) are invalid."""
        for start in range(0, len(names), _TOLD_AT_ONCE):
            part = list(names[start : start + _TOLD_AT_ONCE])
            await self._session.hot.signals.publish(INVALID, {what: part})


def _row(found: Any) -> dict[str, Any] | None:
    if isinstance(found, Missing):
        return None
    if isinstance(found, dict) and "v" in found:
        return found
    # What others put under such a key is no entry: one whose tag never was valid.
    return {"v": None, "t": [["", -1]]}


async def _side_by_side(call: Callable[[str], Awaitable[_T]], names: Iterable[str]) -> list[_T]:
    """Call for every name, a hundred at the same time; the answers are in order."""
    answers: list[_T] = []
    pending = iter(names)
    while part := list(itertools.islice(pending, _AT_ONCE)):
        # All are awaited before the first error is raised: none goes on unseen.
        for answer in await asyncio.gather(*map(call, part), return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer
            answers.append(answer)
    return answers
