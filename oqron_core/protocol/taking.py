"""Leasing jobs and marking them in one step, where both planes are one store."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from collections.abc import Awaitable, Callable
from typing import Final

import attrs

from oqron_core._ids import uuid7_block
from oqron_core.exceptions import ClosedError, StorageError, UnavailableError
from oqron_core.planes.joined import JoinedPlanes, Mark, Taken
from oqron_core.planes.values import Order
from oqron_core.protocol import transitions
from oqron_core.protocol.patience import patiently
from oqron_core.protocol.session import Session


__all__ = ["Take", "Taking"]

log: logging.Logger = logging.getLogger("oqron.protocol")

_TRY_FOR: Final = 1.0
_ASK_FOR: Final = 3600.0
"""How long a claim is asked after at most that had no answer: as long as it is known."""
_FIRST_LOOK: Final = 0.1
_LOOK_EVERY: Final = 5.0
_MARKS: Final = 1000


class Taking:
    """Claims of the broker whose jobs are marked in the same step."""

    def __init__(self, session: Session) -> None:
        self._session = session
        # Backends prepare what they send of a mark, so it stays the same object.
        self._marks: dict[tuple[str, str, int], Mark] = {}

    def begin(
        self,
        joined: JoinedPlanes,
        queue: str,
        *,
        owner: str,
        lease_for: float,
        ms: int,
        limit: int,
        order: Order,
    ) -> Take:
        """
        Begin to lease and mark; *ms* are the milliseconds of *lease_for*.

        Where the backend sends at once, the call is on its way when this returns, and
        what there is to do meanwhile costs no time.
        """
        mark = self._mark(queue, owner, ms)
        take = Take(self._session, joined, queue, mark, owner, lease_for, order, limit)
        take.begin()
        return take

    def _mark(self, queue: str, owner: str, ms: int) -> Mark:
        key = (queue, owner, ms)
        found = self._marks.get(key)
        if found is None:
            if len(self._marks) >= _MARKS:
                self._marks.clear()
            found = self._marks[key] = transitions.mark(queue, owner, ms)
        return found


@attrs.define(eq=False)
class Take:
    """
    A claim under way, which can be made again: it takes nothing twice.

    Attributes:
        limit: How many it takes at most.
    """

    _session: Session
    _joined: JoinedPlanes
    _queue: str
    _mark: Mark
    _owner: str
    _lease_for: float
    _order: Order
    limit: int
    _names: str = attrs.field(factory=uuid7_block, init=False)
    _begun: tuple[Awaitable[Taken], float] | None = attrs.field(default=None, init=False)
    _refused: Exception | None = attrs.field(default=None, init=False)

    def begin(self) -> None:
        """Make the first call, if the time is known."""
        now = self._session.durable_time.known()
        if now is None:
            return
        try:
            self._begun = self._call(self.limit, now)
        except Exception as error:  # noqa: BLE001 - whoever finishes meets it
            self._refused = error

    def following(self, limit: int) -> Take:
        """Begin another that takes up to *limit* of what is left."""
        take = attrs.evolve(self, limit=limit)
        take.begin()
        return take

    def __del__(self) -> None:
        # The step that should finish was ended before it began.
        close = None if self._begun is None else getattr(self._begun[0], "close", None)
        if close is not None:
            close()

    async def finish(
        self, found_late: Callable[[Taken, float], Awaitable[None]]
    ) -> tuple[Taken, float]:
        """
        Give what was taken; where no answer came, ask again.

        What a call took whose answer never came has lost an attempt that nobody makes:
        it is asked after for as long as its lease lasts, at most an hour and once more
        when the storage closes, and given to *found_late*.

        Returns:
            What was taken, and when it was asked for, by the local monotonic clock: what
            is left of the leases at ``Taken.now`` counts from there.

        Raises:
            UnavailableError: No answer after several tries.
        """
        return await self._patiently(self.limit, found_late)

    async def recall(self, found_late: Callable[[Taken, float], Awaitable[None]]) -> None:
        """
        Give *found_late* what was taken for a caller who was cancelled in `finish`.

        Asked for once more, and for as long; nothing more is taken.
        """
        self._begun = self._refused = None
        try:
            taken, sent = await self._patiently(0, found_late)
            if taken.leases:
                await found_late(taken, sent)
        except (StorageError, ClosedError) as error:
            # Where there was no answer it is asked after.
            log.debug("what a cancelled claim took will lapse: %s", error)

    async def _patiently(
        self, limit: int, found_late: Callable[[Taken, float], Awaitable[None]]
    ) -> tuple[Taken, float]:
        session = self._session
        try:
            return await patiently(
                lambda _: self._ask(limit), within=_TRY_FOR, over=lambda: session.closed
            )
        except UnavailableError:
            until = time.monotonic() + min(self._lease_for, _ASK_FOR)
            lost = _find_out(self._ask, found_late, until, session.closing)
            session.spawn(lost, name="oqron-claim-lost", brief=True)
            raise

    async def _ask(self, limit: int) -> tuple[Taken, float]:
        begun, self._begun = self._begun, None
        refused, self._refused = self._refused, None
        if refused is not None:
            raise refused
        if begun is None:
            begun = self._call(limit, await self._session.durable_time.now())
        answer, sent = begun
        return await answer, sent

    def _call(self, limit: int, now: int) -> tuple[Awaitable[Taken], float]:
        sent = time.monotonic()
        answer = self._joined.claim(
            self._queue,
            self._mark,
            owner=self._owner,
            lease_for=self._lease_for,
            limit=limit,
            order=self._order,
            names=self._names,
            now=now,
        )
        return answer, sent


async def _find_out(
    ask: Callable[[int], Awaitable[tuple[Taken, float]]],
    found_late: Callable[[Taken, float], Awaitable[None]],
    until: float,
    closing: asyncio.Event,
) -> None:
    """Learn what a claim took that had no answer."""
    pause = _FIRST_LOOK
    while time.monotonic() < until:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(closing.wait(), pause)
        pause = min(2 * pause, _LOOK_EVERY)
        last = closing.is_set()
        try:
            taken, sent = await ask(0)
            if taken.leases:
                await found_late(taken, sent)
        except UnavailableError as error:
            if not last:
                continue
            log.debug("what a lost claim took will lapse: %s", error)
        except (StorageError, ClosedError) as error:
            log.debug("what a lost claim took will lapse: %s", error)
        return
