"""Which claims are in hand here, and how a cancel reaches them."""

from __future__ import annotations

import asyncio
import logging
import weakref

from typing import Any, Final

from oqron_core.exceptions import StorageError
from oqron_core.protocol.claims import Claim
from oqron_core.protocol.session import Session


__all__ = ["CANCELS", "Claims"]

log: logging.Logger = logging.getLogger("oqron.protocol")

CANCELS: Final = "oqron:jobs:cancel"
"""The channel on which a cancel reaches the worker."""


class Claims:
    """
    The claims that this storage has handed out and that someone still holds.

    Listens for cancels from the first claim on. A signal may be lost: whatever
    the worker writes afterwards is refused all the same.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._claims: weakref.WeakValueDictionary[tuple[str, str], Claim] = (
            weakref.WeakValueDictionary()
        )
        self._listener: asyncio.Task[Any] | None = None

    def remember(self, claim: Claim) -> None:
        """Take a claim in, until it is let go."""
        self._claims[claim.lease.queue, claim.id] = claim
        if self._listener is None:
            self._listener = self._session.spawn(self._listen(), name="oqron-cancels")

    def find(self, queue: str, job_id: str, token: object) -> Claim | None:
        """Give the claim of a job, if it has this token."""
        claim = self._claims.get((queue, job_id))
        return claim if claim is not None and claim.lease.token == token else None

    async def _listen(self) -> None:
        """Hand cancels to the claims of this storage."""
        pause = 0.1
        while True:
            try:
                async with self._session.hot.signals.subscribe([CANCELS]) as signals:
                    pause = 0.1
                    async for signal in signals:
                        self._hear(signal.message)
                    return  # the plane was closed
            except StorageError as error:
                log.debug("listening for cancels waits: %s", error)
            await asyncio.sleep(pause)
            pause = min(5.0, pause * 2)

    def _hear(self, message: Any) -> None:
        if not isinstance(message, list) or len(message) != 3:  # noqa: PLR2004 - as a cancel sends it
            return
        queue, job_id, token = message
        if not isinstance(queue, str) or not isinstance(job_id, str):
            return
        claim = self.find(queue, job_id, token)
        if claim is not None:
            claim.set_cancelled()
