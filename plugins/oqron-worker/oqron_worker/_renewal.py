"""Keeping leases: renewed by one task, and told when they cannot be."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback

from typing import Final

from oqron_core import Claim
from oqron_core.exceptions import ClosedError, StorageError
from oqron_worker._context import Context
from oqron_worker._metrics import Metrics
from oqron_worker._runner import Shop


__all__ = ["Pulse", "Renewal"]

log = logging.getLogger("oqron.worker")

_SOON: Final = 0.2


class Renewal:
    """
    Renews the leases of everything that runs, in one batch per length of lease.

    A renewal that gets no answer is tried again at once and often: a lease outlives
    several of them. A lease that is lost ends its handler.

    Args:
        shop: What runs.
        metrics: What is counted.
        every: Seconds between renewals: a third of the shortest lease, at most.
    """

    def __init__(self, shop: Shop, metrics: Metrics, *, every: float) -> None:
        self._shop = shop
        self._metrics = metrics
        self._every = every

    async def run(self) -> None:
        """Renew until cancelled."""
        loop = asyncio.get_running_loop()
        pause = self._every
        while True:
            before = loop.time()
            await asyncio.sleep(pause)
            late = loop.time() - before - pause
            if late > self._every:
                log.warning("leases were renewed %.1f seconds late: the event loop was busy", late)
            try:
                await self._renew()
            except ClosedError:
                return
            except StorageError as error:
                self._metrics.renewal_errors += 1
                log.warning("leases could not be renewed, and are tried again: %s", error)
                pause = min(_SOON, self._every)
            else:
                pause = self._every

    async def _renew(self) -> None:
        by_length: dict[float, list[tuple[Context, Claim]]] = {}
        for context, runner in self._shop.running.items():
            claim = context.claim
            if claim is not None and not (claim.settled or claim.lost or claim.cancelled):
                by_length.setdefault(runner.handler.options.lease_for, []).append((context, claim))
        for lease_for, pairs in by_length.items():
            claims = [claim for _, claim in pairs]
            try:
                await self._shop.app.storage.jobs.renew(claims, lease_for=lease_for)
            finally:
                # Also without an answer: a lease is over when its time is.
                for context, claim in pairs:
                    if claim.lost and not claim.settled:
                        log.warning("the lease of a job of %s was lost", context.queue)
                        context.stop("lease lost")


class Pulse:
    """
    Notices when a handler blocks the event loop, from a thread.

    A coroutine that computes, or calls what blocks, keeps every other handler, and
    the renewal of every lease, from running. It is named, with the line it is at,
    in the log and in its run.

    Args:
        shop: What runs.
        metrics: Where it is counted.
        after: Seconds without a turn of the loop that count as blocked.
    """

    def __init__(self, shop: Shop, metrics: Metrics, *, after: float = 1.0) -> None:
        self._shop = shop
        self._metrics = metrics
        self._after = after
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._beaten = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="oqron-pulse", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End watching."""
        self._stopped.set()
        self._thread.join(timeout=2.0)

    def _watch(self) -> None:
        while not self._stopped.wait(self._after):
            self._beaten.clear()
            try:
                self._loop.call_soon_threadsafe(self._beaten.set)
            except RuntimeError:
                return
            if self._beaten.wait(self._after) or self._stopped.is_set():
                continue
            self._report()
            while not self._beaten.wait(self._after):
                if self._stopped.is_set():
                    return

    def _report(self) -> None:
        self._metrics.blocked += 1
        # Read from another thread: the task may end meanwhile, which changes nothing.
        task = asyncio.current_task(self._loop)
        context = next((c for c in list(self._shop.running) if c.task is task), None)
        frame = sys._current_frames().get(self._loop_thread)
        where = "" if frame is None else "".join(traceback.format_stack(frame, limit=8))
        name = "something" if context is None or task is None else f"a handler of {context.queue}"
        text = (
            f"{name} blocks the event loop for more than {self._after:g} seconds; run it "
            'with pool="thread" or pool="process"'
        )
        log.warning("%s\n%s", text, where)
        if context is not None and task is not None:
            context.log("warning", text, stack=where)
