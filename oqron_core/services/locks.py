"""Locks and leaders: one holder, fenced, renewed, and told when it is lost."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final

import attrs

from oqron_core._names import check_name
from oqron_core.exceptions import ConflictError
from oqron_core.planes.checks import lease_ms, seconds
from oqron_core.planes.values import Lease
from oqron_core.protocol.holding import HeldLease, Hold, Holding
from oqron_core.protocol.session import Session


__all__ = ["Locks"]

LOCK: Final = "oqron:lock:"
LEADER: Final = "oqron:leader:"


class Locks:
    """
    One holder per key among all processes of a scope. Not re-entrant.

    A lock that nobody renews lapses after its lease, by the plane's clock. Because
    a process may stand still without knowing it, what must never be done by two
    carries the fencing token along.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._holding = Holding(session)

    async def acquire(
        self, key: str, *, lease_for: float = 30.0, wait: float | None = 0.0
    ) -> HeldLease | None:
        """
        Take a lock; it is yours to `renew` and to `release`.

        Waiting does not poll: who gives the lock back wakes who waits, and a lease
        that is not renewed ends by itself. A caller that is cancelled holds nothing.

        Args:
            key: The lock, 1 to 255 characters.
            lease_for: Seconds until it lapses unless renewed; >= 0.05.
            wait: Seconds to wait for it; 0, the default, for not at all, None for as
                long as it takes.

        Returns:
            What is held, or None where another has it.

        Raises:
            InvalidValueError: An argument is not legal.
            UnavailableError: The hot plane did not answer; what may have been taken
                lapses.
        """
        check_name("key", key)
        _check(lease_for, wait)
        return await self._acquire(LOCK + key, key, "lock", lease_for, wait)

    def hold(
        self, key: str, *, lease_for: float = 30.0, wait: float | None = None
    ) -> AbstractAsyncContextManager[HeldLease]:
        """
        Hold a lock while the context is open.

        It is renewed in the background at a third of the lease; a renewal that fails
        is tried again for as long as the lease lasts. Where the lock is lost the
        body is cancelled and the context raises `LeaseLostError`; it also raises it
        where the body ends and the lock turns out to have lapsed unnoticed.

        Args:
            key: The lock, 1 to 255 characters.
            lease_for: Seconds until it lapses unless renewed; >= 0.05.
            wait: Seconds to wait for it; 0 for not at all. None, the default here
                and not in `acquire`, is for as long as it takes.

        Raises:
            InvalidValueError: An argument is not legal.
            ConflictError: Another has it still; names the holder. Or this very task
                holds it, by a context of the same storage: it would wait for itself.
            LeaseLostError: It was lost; the body was cut short.
            UnavailableError: The hot plane did not answer on entering.
        """
        check_name("key", key)
        _check(lease_for, wait)
        return self._hold(LOCK + key, key, "lock", lease_for, wait)

    async def renew(self, lease: HeldLease, *, lease_for: float | None = None) -> bool:
        """
        Let the lease last *lease_for* seconds from now; None as it was taken.

        Returns:
            Whether it is held; False for good where it is lost or was released.

        Raises:
            InvalidValueError: *lease_for* is not legal.
            UnavailableError: The hot plane did not answer; try again in time.
        """
        self._session.check_open()
        if lease_for is not None:
            lease_ms(lease_for)
        return await self._holding.renew(lease, lease_for=lease_for)

    async def release(self, lease: HeldLease) -> bool:
        """
        Give it back, and wake who waits. May be repeated.

        Where the hot plane does not answer it lapses.

        Returns:
            False where it was lost before.
        """
        self._session.check_open()
        return await self._holding.give_back(lease, lease.lease.id)

    async def holder(self, key: str) -> Lease | None:
        """
        Show who has a lock: the lease, under the caller's key; None where it is free.

        Raises:
            UnavailableError: The hot plane did not answer.
        """
        check_name("key", key)
        return await self._holder(LOCK, key)

    # --- leaders ---

    def lead(
        self, name: str, *, lease_for: float = 15.0, wait: float | None = None
    ) -> AbstractAsyncContextManager[HeldLease]:
        """
        Lead while the context is open: of any number of candidates one does.

        As `hold`. ``term`` of what it gives is larger for every leader than for the
        one before; a leader that dies is replaced after its lease.

        Args:
            name: What is led, 1 to 255 characters.
            lease_for: Seconds until the lead lapses unless renewed; >= 0.05.
            wait: Seconds to stand by; None, the default, for as long as it takes.

        Raises:
            InvalidValueError: An argument is not legal.
            ConflictError: Another leads still; names the leader. Or this very task
                leads already.
            LeaseLostError: The lead was lost; the body was cut short.
            UnavailableError: The hot plane did not answer on entering.
        """
        check_name("name", name)
        _check(lease_for, wait)
        return self._hold(LEADER + name, name, "lead", lease_for, wait)

    async def leader(self, name: str) -> Lease | None:
        """
        Show who leads: the lease, under *name*, its token the term; None where nobody does.

        Raises:
            UnavailableError: The hot plane did not answer.
        """
        check_name("name", name)
        return await self._holder(LEADER, name)

    # --- inside ---

    async def _acquire(
        self, place: str, key: str, what: str, lease_for: float, wait: float | None
    ) -> HeldLease | None:
        self._session.check_open()
        holding = self._holding
        return await holding.wait_for(
            place,
            partial(holding.take, place, key, what, lease_for=lease_for),
            partial(holding.lapse_of, place),
            wait=wait,
        )

    def _hold(self, place: str, key: str, what: str, lease_for: float, wait: float | None) -> Hold:
        async def acquire() -> HeldLease:
            if wait != 0 and self._holding.is_mine(place):
                by = f"{self._session.worker!r}, by this task itself"
                msg = f"{what} {key!r} is held by {by}; it would wait for its own end"
                raise ConflictError(msg)
            held = await self._acquire(place, key, what, lease_for, wait)
            if held is None:
                holder = await self._session.hot.locks.holder(place)
                by = "one who has just gone" if holder is None else repr(holder.owner)
                msg = f"{what} {key!r} is held by {by}"
                raise ConflictError(msg)
            return held

        return Hold(self._holding, place, acquire)

    async def _holder(self, prefix: str, key: str) -> Lease | None:
        self._session.check_open()
        lease = await self._session.hot.locks.holder(prefix + key)
        return None if lease is None else attrs.evolve(lease, id=key)


def _check(lease_for: object, wait: object) -> None:
    lease_ms(lease_for)
    if wait is not None:
        seconds("wait", wait)
