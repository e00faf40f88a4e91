"""Maintenance: what repairs crashes and losses, under one leader per scope."""

from __future__ import annotations

import asyncio
import logging
import random

from typing import Final

import attrs

from oqron_core.exceptions import StorageError
from oqron_core.protocol.holding import HeldLease, Holding
from oqron_core.protocol.pauses import release_forgotten
from oqron_core.protocol.recovery import Recovery
from oqron_core.protocol.retaining import Retaining
from oqron_core.protocol.session import Session
from oqron_core.protocol.topics import Topology


__all__ = ["Maintenance", "Report"]

log: logging.Logger = logging.getLogger("oqron.maintenance")

LEADER: Final = "oqron:leader:maintenance"
_MIN_AGE: Final = 2.0
"""Seconds for which an adder is left to publish by itself; see `Session.write_many`."""


@attrs.frozen
class Report:
    """
    What one pass did.

    Attributes:
        rebuilt: Jobs put back because the hot plane was lost; None where not.
        reaped: Leases that had lapsed.
        reconciled: Jobs that the broker did not know.
        closed_runs: Runs whose worker was gone.
        released: Held jobs whose queue holds nothing any more.
        caught_up: Groups of topics that were in the middle of catching up.
        pruned: Records whose retention was over.
    """

    rebuilt: int | None = None
    reaped: int = 0
    reconciled: int = 0
    closed_runs: int = 0
    released: int = 0
    caught_up: int = 0
    pruned: int = 0


class Maintenance:
    """Repairs, each idempotent and safe while workers run."""

    def __init__(self, session: Session, recovery: Recovery, retaining: Retaining) -> None:
        self._session = session
        self._recovery = recovery
        self._retaining = retaining
        self._topology = Topology(session)
        self._holding = Holding(session)
        self._settings = session.settings.maintenance

    async def reap(self) -> int:
        """
        Return lapsed leases to their queues, and bury jobs without attempts left.

        `Jobs.claim` does the same for its own queue; this is for queues that
        nobody claims from.

        Returns:
            How many leases had lapsed.
        """
        self._session.check_open()
        return await self._recovery.reap(batch=self._settings.batch)

    async def reconcile(self) -> int:
        """
        Publish durable jobs that the broker does not know; carry over pauses.

        Returns:
            How many jobs were put back.
        """
        self._session.check_open()
        return await self._recovery.reconcile(batch=self._settings.batch)

    async def rebuild_hot(self) -> int:
        """
        Build the hot plane anew from the durable one.

        Puts back every job with its priority and remaining delay, the leases of
        jobs in flight with their tokens, and the pauses. What is there already is
        left alone.

        Returns:
            How many jobs were put back.
        """
        self._session.check_open()
        return await self._recovery.rebuild(batch=self._settings.batch)

    async def close_stale_runs(self) -> int:
        """
        Close runs whose worker is gone as failed, *worker lost*.

        Returns:
            How many runs were closed.
        """
        self._session.check_open()
        older_than = self._session.settings.runs.stale_after
        batch = self._settings.batch
        closed = await self._recovery.close_stale_runs(older_than=older_than, batch=batch)
        return closed + await self._recovery.close_orphans(older_than=older_than, batch=batch)

    async def prune(self) -> int:
        """
        Delete records whose retention is over, in bounded steps.

        Never touches what is waiting, held or active.

        Returns:
            How many records were deleted.
        """
        self._session.check_open()
        return await self._retaining.prune(batch=self._settings.batch)

    async def release_held(self) -> int:
        """
        Release held jobs of queues that hold nothing any more.

        Resuming a queue does so; this is for what a crash left in between.

        Returns:
            How many jobs were released.
        """
        self._session.check_open()
        return await release_forgotten(self._session, batch=self._settings.batch)

    async def catch_up(self) -> int:
        """
        Let groups of topics catch up whose subscriber died on the way.

        Returns:
            How many groups had something left.
        """
        self._session.check_open()
        return await self._topology.finish_joining(batch=self._settings.batch)

    async def run_once(self) -> Report:
        """Do one pass of everything, without asking who leads."""
        self._session.check_open()
        return await self._pass_of(min_age=0.0)

    async def _pass_of(self, *, min_age: float) -> Report:
        batch = self._settings.batch
        rebuilt = await self._recovery.rebuild_if_lost(batch=batch)
        return Report(
            rebuilt=rebuilt,
            reaped=await self.reap(),
            reconciled=await self._recovery.reconcile(batch=batch, min_age=min_age),
            closed_runs=await self.close_stale_runs(),
            released=await self.release_held(),
            caught_up=await self.catch_up(),
            pruned=await self.prune(),
        )

    async def run_forever(self) -> None:
        """
        Do a pass every few seconds for as long as this storage leads its scope.

        Any number of processes may call it: one leads, the others stand by. The lead
        is renewed in the background; a plane that does not answer is waited for, and
        a pass that fails is logged and followed by the next. Returns when the storage
        closes.
        """
        session = self._session
        session.check_open()
        task = session.spawn(self._stand_by(), name="oqron-maintenance")
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if session.closed and task.cancelled():
                return
            task.cancel()
            await asyncio.wait([task])
            raise

    async def _stand_by(self) -> None:
        while True:
            held = await self._lead()
            if held is not None:
                await self._lead_on(held)
            await self._pause()

    async def _lead(self) -> HeldLease | None:
        try:
            return await self._holding.take(
                LEADER, "maintenance", "lead", lease_for=self._settings.leader_for
            )
        except StorageError as error:
            log.warning("maintenance waits for the hot plane: %s", error)
            return None

    async def _lead_on(self, held: HeldLease) -> None:
        keeper = self._holding.keep(held)
        try:
            while not held.ended:
                await self._pass()
                await self._pause()
        finally:
            keeper.cancel()
            await self._holding.give_back(held, None)

    async def _pass(self) -> None:
        try:
            report = await self._pass_of(min_age=_MIN_AGE)
        except StorageError as error:
            log.warning("a pass of maintenance was cut short: %s", error)
        except Exception:
            # One odd record must not end the repairs of all the others.
            log.exception("a pass of maintenance failed; the next one follows")
        else:
            log.debug("maintenance: %s", report)

    async def _pause(self) -> None:
        # A little chance keeps the processes from asking in step.
        await asyncio.sleep(self._settings.every * random.uniform(0.8, 1.2))  # noqa: S311 - spreads load, keeps no secret
