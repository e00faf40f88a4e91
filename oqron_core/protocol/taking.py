"""Leasing jobs and marking them in one step, where both planes are one store."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from collections.abc import Awaitable, Callable
from typing import Final

from oqron_core._ids import uuid7_block
from oqron_core.exceptions import ClosedError, StorageError, UnavailableError
from oqron_core.planes.checks import lease_ms
from oqron_core.planes.joined import JoinedPlanes, Mark, Taken
from oqron_core.planes.values import Order
from oqron_core.protocol import transitions
from oqron_core.protocol.patience import patiently
from oqron_core.protocol.session import Session


__all__ = ["Taking"]

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

    async def take(
        self,
        joined: JoinedPlanes,
        queue: str,
        *,
        owner: str,
        lease_for: float,
        limit: int,
        order: Order,
        found_late: Callable[[Taken, float], Awaitable[None]],
    ) -> tuple[Taken, float]:
        """
        Lease and mark; where no answer came, the same again.

        What a call took whose answer never came has lost an attempt that nobody makes:
        it is asked after for as long as its lease lasts, at most an hour and once more
        when the storage closes, and given to *found_late*.

        Returns:
            What was taken, and when it was asked for, by the local monotonic clock: what
            is left of the leases at ``Taken.now`` counts from there.

        Raises:
            UnavailableError: No answer after several tries.
        """
        session = self._session
        mark = self._mark(queue, owner, lease_ms(lease_for))
        names = uuid7_block()

        async def ask(limit: int) -> tuple[Taken, float]:
            now = await session.durable_time.now()
            sent = time.monotonic()
            taken = await joined.claim(
                queue,
                mark,
                owner=owner,
                lease_for=lease_for,
                limit=limit,
                order=order,
                names=names,
                now=now,
            )
            return taken, sent

        try:
            return await patiently(
                lambda _: ask(limit), within=_TRY_FOR, over=lambda: session.closed
            )
        except UnavailableError:
            until = time.monotonic() + min(lease_for, _ASK_FOR)
            lost = _find_out(ask, found_late, until, session.closing)
            session.spawn(lost, name="oqron-claim-lost", brief=True)
            raise

    def _mark(self, queue: str, owner: str, ms: int) -> Mark:
        key = (queue, owner, ms)
        found = self._marks.get(key)
        if found is None:
            if len(self._marks) >= _MARKS:
                self._marks.clear()
            found = self._marks[key] = transitions.mark(queue, owner, ms)
        return found


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
