"""Limits: rates, bans, and slots for what may run at the same time."""

from __future__ import annotations

import asyncio
import random

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final

import attrs

from oqron_core._names import check_name
from oqron_core.exceptions import ConflictError, InvalidValueError
from oqron_core.planes.checks import lease_ms
from oqron_core.planes.checks import seconds as check_seconds
from oqron_core.planes.limits import Decision, RateLimit
from oqron_core.planes.values import Lease
from oqron_core.protocol.holding import HeldLease, Hold, Holding
from oqron_core.protocol.session import Session


__all__ = ["Ban", "Limits"]

LIMIT: Final = "oqron:limit:"
BAN: Final = "oqron:ban:"
SLOT: Final = "oqron:slot:"
"""The channel on which slots of a key are given back."""
_MAX_SLOTS: Final = 10_000
_AT_ONCE: Final = 64
_BANNED_LEAST: Final = 0.001


@attrs.frozen
class Ban:
    """
    Who is shut out.

    Attributes:
        key: What is banned.
        until: When the ban is over, milliseconds since the epoch.
        remaining: Seconds until then, as it was asked.
        reason: Why, as was said when it was banned.
    """

    key: str
    until: int
    remaining: float
    reason: str | None = None


class Limits:
    """
    How often and how many at a time, per key, among all processes of a scope.

    Judged by the hot plane's clock, each decision in one atomic step there. What a
    key leaves behind expires by itself.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._holding = Holding(session)

    # --- rates ---

    async def take(self, key: str, limit: RateLimit, *, cost: int = 1) -> Decision:
        """
        Take *cost* from the limit of *key* if it allows it.

        What is not allowed is not counted. A key that is banned is refused whatever
        the limit says, with ``retry_after`` until the end of the ban.

        Args:
            key: What is limited, 1 to 255 characters.
            limit: `FixedWindow`, `SlidingWindow` or `TokenBucket`. Limits of
                different types do not share what they count.
            cost: How much to take; 0 looks without taking.

        Returns:
            The decision, with the numbers HTTP headers need.

        Raises:
            InvalidValueError: An argument is not legal, or *cost* is more than the
                limit can ever allow.
            UnavailableError: The hot plane did not answer; it may have been taken.
        """
        self._session.check_open()
        check_name("key", key)
        ban = await self._ban(key)
        if ban is not None:
            return Decision(False, 0, max(_BANNED_LEAST, ban.remaining), ban.until)  # noqa: FBT003 - in the order of the value
        return await self._session.hot.counters.take(LIMIT + key, limit, cost=cost)

    async def peek(self, key: str, limit: RateLimit) -> Decision:
        """Say what `take` would, without taking."""
        return await self.take(key, limit, cost=0)

    async def reset(self, key: str) -> bool:
        """
        Forget what was taken for *key*, by limits of every type; a ban stays.

        Returns:
            Whether there was something to forget.
        """
        self._session.check_open()
        check_name("key", key)
        return await self._session.hot.counters.reset(LIMIT + key)

    # --- bans ---

    async def ban(self, key: str, seconds: float, *, reason: str | None = None) -> None:
        """
        Shut *key* out for a while; replaces a ban that is there.

        Args:
            key: What is banned, 1 to 255 characters.
            seconds: How long, >= 0.001.
            reason: Why, for people.

        Raises:
            InvalidValueError: An argument is not legal.
            UnavailableError: The hot plane did not answer; it may be banned.
        """
        self._session.check_open()
        check_name("key", key)
        lasts = check_seconds("seconds", seconds, least=_BANNED_LEAST)
        if reason is not None and type(reason) is not str:
            raise InvalidValueError("reason", "must be a str or None")
        until = await self._session.hot_time.now() + round(lasts * 1000)
        await self._session.hot.cache.set_many(
            {BAN + key: {"until": until, "reason": reason}}, ttl=lasts
        )

    async def unban(self, key: str) -> bool:
        """Let *key* in again; whether it was banned."""
        self._session.check_open()
        check_name("key", key)
        return (await self._session.hot.cache.delete_many([BAN + key]))[0]

    async def banned(self, key: str) -> float | None:
        """Say for how many seconds more *key* is banned; None where it is not."""
        ban = await self.get_ban(key)
        return None if ban is None else ban.remaining

    async def get_ban(self, key: str) -> Ban | None:
        """Show the ban of *key*, with its reason; None where there is none."""
        self._session.check_open()
        check_name("key", key)
        return await self._ban(key)

    async def _ban(self, key: str) -> Ban | None:
        found = (await self._session.hot.cache.get_many([BAN + key]))[0]
        if not isinstance(found, dict):
            return None
        until: int = found["until"]
        # The plane judges whether it is over; the rest is for the caller to read.
        left = max(0, until - await self._session.hot_time.now()) / 1000
        return Ban(key, until, left, found.get("reason"))

    # --- slots ---

    def slots(
        self,
        key: str,
        count: int,
        *,
        lease_for: float = 30.0,
        wait: float | None = 0.0,
    ) -> AbstractAsyncContextManager[HeldLease]:
        """
        Hold one of *count* slots of *key* while the context is open.

        It is renewed in the background; the slot of a holder that dies is free
        again after its lease. Where it is lost the body is cancelled and the context
        raises `LeaseLostError`, as with a lock.

        Args:
            key: What is limited, 1 to 255 characters.
            count: How many may run at the same time, 1 to 10,000; all callers
                should say the same.
            lease_for: Seconds until the slot lapses unless renewed; >= 0.05.
            wait: Seconds to wait for one; 0 for not at all, None for as long as it
                takes.

        Raises:
            InvalidValueError: An argument is not legal.
            ConflictError: All were taken, still after *wait* seconds.
            LeaseLostError: The slot was lost; the body was cut short.
            UnavailableError: The hot plane did not answer on entering.
        """
        check_name("key", key)
        _check_count(count)
        lease_ms(lease_for)
        if wait is not None:
            check_seconds("wait", wait)

        async def acquire() -> HeldLease:
            self._session.check_open()
            held = await self._holding.wait_for(
                SLOT + key,
                partial(self._take_slot, key, count, lease_for),
                partial(self._first_lapse, key, count),
                wait=wait,
            )
            if held is None:
                msg = f"all {count} slots of {key!r} are taken"
                raise ConflictError(msg)
            return held

        return Hold(self._holding, SLOT + key, acquire)

    async def in_use(self, key: str, count: int) -> int:
        """
        Count how many of *count* slots of *key* are held now.

        Raises:
            InvalidValueError: An argument is not legal.
            UnavailableError: The hot plane did not answer.
        """
        self._session.check_open()
        check_name("key", key)
        _check_count(count)
        holders = await self._holders([_place(key, index) for index in range(count)])
        return sum(holder is not None for holder in holders)

    async def _take_slot(self, key: str, count: int, lease_for: float) -> HeldLease | None:
        # A random start: where most are free the first try is the last.
        start = random.randrange(count)  # noqa: S311 - spreads load, keeps no secret
        order = [_place(key, (start + step) % count) for step in range(count)]
        held = await self._take_one(order[:1], key, lease_for)
        for first in range(1, count, _AT_ONCE):
            if held is not None:
                break
            # Looked at together, but taken one by one: nobody has two for a moment,
            # or others would find all taken where one is free.
            part = order[first : first + _AT_ONCE]
            holders = await self._holders(part)
            free = [place for place, holder in zip(part, holders, strict=True) if holder is None]
            held = await self._take_one(free, key, lease_for)
        return held

    async def _take_one(
        self, places: Sequence[str], key: str, lease_for: float
    ) -> HeldLease | None:
        for place in places:
            held = await self._holding.take(place, key, "slot", lease_for=lease_for)
            if held is not None:
                return held
        return None

    async def _first_lapse(self, key: str, count: int) -> float:
        """Say after how many seconds the first slot lapses; 0.0 where one is free."""
        holders = await self._holders([_place(key, index) for index in range(count)])
        first = min((0 if lease is None else lease.expires_at) for lease in holders)
        return max(0.0, (first - await self._session.hot_time.now() + 1) / 1000)

    async def _holders(self, places: Sequence[str]) -> list[Lease | None]:
        found: list[Lease | None] = []
        for first in range(0, len(places), _AT_ONCE):
            calls: list[Any] = [
                self._session.hot.locks.holder(place) for place in places[first : first + _AT_ONCE]
            ]
            found.extend(await asyncio.gather(*calls))
        return found


def _place(key: str, index: int) -> str:
    # The number stands in the word, so that a key of any legal length fits.
    return f"oqron:slot{index}:{key}"


def _check_count(count: object) -> None:
    if type(count) is not int or not 1 <= count <= _MAX_SLOTS:
        raise InvalidValueError("count", f"must be an int from 1 to {_MAX_SLOTS}, not {count!r}")
