"""The claim loop of one source."""

from __future__ import annotations

import asyncio
import logging
import random

from typing import Final

from oqron_core import Claim
from oqron_core.exceptions import ClosedError, StorageError
from oqron_worker._capacity import Capacity, Share
from oqron_worker._context import Context
from oqron_worker._gates import Gate
from oqron_worker._metrics import Metrics
from oqron_worker._runner import Runner, Shop
from oqron_worker._sources import Source


__all__ = ["ClaimLoop"]

log = logging.getLogger("oqron.worker")

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
_LATER: Final = 0.5
"""Seconds until a delivery comes back that a limit did not let in."""


class ClaimLoop:
    """
    Claims for one source: as many as there are free slots, as soon as there are.

    An empty source is waited for by the broker's wake-up, without a slot and
    without a timer. A plane that does not answer is asked again, ever more slowly,
    and the loop goes on when it does.

    Args:
        source: What is claimed from.
        shop: What runners share.
        capacity: The slots of the worker.
        metrics: What is counted.
        gate: What else must allow an attempt: rate and slots among all processes.
    """

    def __init__(
        self,
        source: Source,
        shop: Shop,
        capacity: Capacity,
        metrics: Metrics,
        gate: Gate | None = None,
    ) -> None:
        options = source.handler.options
        self._source = source
        self._capacity = capacity
        self._metrics = metrics
        self._shop = shop
        self._gate = gate
        self._share = Share(source.name, min(options.concurrency, capacity.total), options.weight)
        self.runner = Runner(shop, source.handler, metrics.of(source.name), self._free)
        self.trouble: str | None = None
        """Why it cannot claim now; None where it can."""

    @property
    def name(self) -> str:
        """The source's name."""
        return self._source.name

    @property
    def ready(self) -> bool:
        """Whether the last claim was answered."""
        return self.trouble is None

    def _free(self, context: Context) -> None:
        if self._gate is not None:
            self._gate.give_back(context)
        self._capacity.give(self._share)

    async def run(self) -> None:
        """Claim until cancelled, or until the storage is closed."""
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._turn()
            except ClosedError:
                log.info("%s is not claimed from any more: the storage was closed", self.name)
                return
            except (StorageError, OSError) as error:
                self._metrics.claim_errors += 1
                if self.trouble is None:
                    log.warning("claiming from %s waits for the planes: %s", self.name, error)
                self.trouble = str(error)
            except Exception as error:
                # A loop that ends by a surprise would be a queue that stands still.
                self._metrics.claim_errors += 1
                self.trouble = str(error)
                log.exception("claiming from %s failed; it is tried again", self.name)
            else:
                if self.trouble is not None:
                    log.info("claiming from %s goes on", self.name)
                self.trouble = None
                pause = _FIRST_PAUSE
                continue
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load
            pause = min(_LONGEST_PAUSE, pause * 2)

    async def _turn(self) -> None:
        """Claim once into what is free; where nothing is there, wait for it."""
        share = self._share
        taken = await self._capacity.take(share, share.limit)
        allowed = 0
        claims: list[Claim] = []
        try:
            allowed = await self._enter(taken)
            if allowed:
                claims = await self._source.claim(allowed)
        finally:
            self._capacity.give(share, taken - len(claims))
            if self._gate is not None:
                self._gate.leave(allowed - len(claims))
        self._start(claims)
        if allowed == 0 and self._gate is not None:
            await self._gate.wait()
        elif len(claims) < allowed:
            late = await self._source.wait(max(1, share.limit - share.used))
            late = await self._let_in(late) if late else late
            if late:
                self._capacity.take_now(share, len(late))
                self._start(late)

    async def _enter(self, taken: int) -> int:
        if self._gate is None:
            return taken
        # What is taken from a limit for jobs that are not there is taken from others.
        return await self._gate.enter(min(taken, max(1, await self._source.ready())))

    async def _let_in(self, late: list[Claim]) -> list[Claim]:
        """Give back what was claimed by waiting and may not run now."""
        if self._gate is None:
            return late
        allowed = await self._gate.enter(len(late))
        for claim in late[allowed:]:
            await self._shop.app.storage.jobs.release(claim, delay=_LATER)
        return late[:allowed]

    def _start(self, claims: list[Claim]) -> None:
        for claim in claims:
            context = self.runner.start(claim)
            if self._gate is not None:
                self._gate.started(context)
