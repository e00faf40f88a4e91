"""Claiming: the hot plane hands out, the durable plane confirms."""

from __future__ import annotations

import asyncio
import logging

from collections.abc import Sequence
from typing import Any, Final

import attrs

from oqron_core._ids import uuid7
from oqron_core.exceptions import (
    CorruptRecordError,
    LeaseLostError,
    StorageError,
    UnavailableError,
)
from oqron_core.planes.checks import lease_ms
from oqron_core.planes.values import Lease, Order, Patch, Record, Write, WriteResult
from oqron_core.protocol import transitions
from oqron_core.protocol.cancels import Claims
from oqron_core.protocol.claims import Claim
from oqron_core.protocol.ending import bury_lapsed, close_run_of
from oqron_core.protocol.session import Session
from oqron_core.protocol.settling import Settling
from oqron_core.protocol.transitions import OPEN


__all__ = ["Claiming", "RunKind"]

log = logging.getLogger("oqron.protocol")

_EARLY_MS: Final = 50
"""How much too early the hot plane's clock may call a job due."""
_READS: Final = 10
_ASIDE_FOR: Final = 60.0


@attrs.frozen
class RunKind:
    """
    How the runs of a queue are labelled.

    Attributes:
        module: The run's ``module``.
        trigger: The run's ``trigger``.
    """

    module: str = "queue"
    trigger: str = "queue"


_QUEUE: Final = RunKind()


class Claiming:
    """The step that hands jobs out."""

    def __init__(self, session: Session, settling: Settling, claims: Claims) -> None:
        self._session = session
        self._settling = settling
        self._claims = claims

    async def claim(
        self,
        queue: str,
        *,
        limit: int,
        lease_for: float,
        worker: str,
        order: Order,
        kind: RunKind = _QUEUE,
    ) -> list[Claim]:
        """Take leases, confirm them in the durable plane, start the runs."""
        while True:
            leases = await self._session.hot.broker.claim(
                queue, owner=worker, lease_for=lease_for, limit=limit, order=order
            )
            if not leases:
                return []
            claims = await self._confirm_whole(leases, lease_ms(lease_for), kind)
            if claims:
                return claims
            # Everything was a leftover and is dropped now: look behind it.

    async def _confirm_whole(
        self, leases: Sequence[Lease], ms: int, kind: RunKind
    ) -> list[Claim]:
        # A caller that is cancelled in the middle must neither burn an attempt
        # nor leave jobs active until the lease lapses: the step runs to its end,
        # and what nobody takes is released.
        task = self._session.spawn(self._confirm(leases, ms, kind), name="oqron-claim")
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._release_unclaimed)
            raise

    def _release_unclaimed(self, task: asyncio.Task[list[Claim]]) -> None:
        if task.cancelled() or task.exception() is not None:
            return
        for claim in task.result():
            self._session.spawn(self._release_quietly(claim), name="oqron-release")

    async def _release_quietly(self, claim: Claim) -> None:
        try:
            await self._settling.release(claim, delay=0.0)
        except (StorageError, LeaseLostError) as error:
            log.debug("an undelivered claim will lapse: %s", error)

    async def _confirm(
        self, leases: Sequence[Lease], ms: int, kind: RunKind
    ) -> list[Claim]:
        now = await self._session.durable_time.now()
        marks = [
            self._mark(lease, ms, now, {"status": "waiting", "startedAt": None}, first=True)
            for lease in leases
        ]
        results = await self._write_marks(leases, marks)
        claims: dict[str, Claim] = {}
        others: list[tuple[Lease, Record | None]] = []
        for lease, result in zip(leases, results, strict=True):
            if result.applied and result.record is not None:
                await self._begin(lease, result.record, now, kind, claims)
            else:
                others.append((lease, result.record))
        if others:
            await self._look_again(others, claims, ms, now, kind)
            return [claims[lease.id] for lease in leases if lease.id in claims]
        return list(claims.values())

    def _mark(
        self, lease: Lease, ms: int, now: int, expect: dict[str, Any], *, first: bool
    ) -> Patch:
        return transitions.started(
            lease, run_id=uuid7(), lease_ms=ms, now=now, expect=expect, first=first
        )

    async def _write_marks(
        self, leases: Sequence[Lease], marks: Sequence[Write]
    ) -> Sequence[WriteResult]:
        try:
            return await self._session.durable.write(marks)
        except UnavailableError:
            # Nothing was confirmed, so nothing may run. Where the mark was written
            # all the same, the next claimer takes over with a larger token.
            await self._session.nack(leases)
            raise

    async def _look_again(
        self,
        others: list[tuple[Lease, Record | None]],
        claims: dict[str, Claim],
        ms: int,
        now: int,
        kind: RunKind,
    ) -> None:
        """Deal with what is not simply waiting: delayed, lapsed, over, gone."""
        for _ in range(_READS):
            takes: list[tuple[Lease, Record]] = []
            leftovers: list[Lease] = []
            for lease, record in others:
                if record is None or record.field("status") not in OPEN:
                    leftovers.append(lease)
                elif await self._may_take(lease, record, now):
                    takes.append((lease, record))
            if leftovers:
                await self._session.ack_many(leftovers)
            if not takes:
                return
            others = await self._take(takes, claims, ms, now, kind)
            if not others:
                return
        await self._session.nack([lease for lease, _ in others])

    async def _may_take(self, lease: Lease, record: Record, now: int) -> bool:
        if record.field("status") == "active":
            token = record.field("leaseToken")
            if isinstance(token, int) and token >= lease.token:
                # Someone claimed it after me, by a broker that was rebuilt.
                return False
            if record.field("attemptMade") >= record.field("maxAttempts"):
                # A lapse consumes an attempt, and this was the last.
                await bury_lapsed(self._session, lease.queue, record, now)
                await self._session.ack(lease)
                return False
            return True
        run_at = record.field("runAt")
        if isinstance(run_at, int) and run_at > now + _EARLY_MS:
            await self._session.nack([lease], delay=(run_at - now) / 1000)
            return False
        return True

    async def _take(
        self,
        takes: Sequence[tuple[Lease, Record]],
        claims: dict[str, Claim],
        ms: int,
        now: int,
        kind: RunKind,
    ) -> list[tuple[Lease, Record | None]]:
        """Mark what was read, guarded by what was read; give back what changed."""
        marks = [
            self._mark(
                lease,
                ms,
                now,
                {
                    "status": record.field("status"),
                    "leaseToken": record.field("leaseToken"),
                    "attemptMade": record.field("attemptMade"),
                },
                first=record.field("startedAt") is None,
            )
            for lease, record in takes
        ]
        results = await self._write_marks([lease for lease, _ in takes], marks)
        changed: list[tuple[Lease, Record | None]] = []
        for (lease, record), result in zip(takes, results, strict=True):
            if not result.applied or result.record is None:
                changed.append((lease, result.record))
                continue
            if record.field("status") == "active":
                await close_run_of(self._session, record, "failed", "lease lapsed", now)
            await self._begin(lease, result.record, now, kind, claims)
        return changed

    async def _begin(
        self, lease: Lease, record: Record, now: int, kind: RunKind, claims: dict[str, Claim]
    ) -> None:
        try:
            claims[lease.id] = self._start(lease, record, now, kind)
        except CorruptRecordError:
            # One unreadable record must hold up neither the batch nor the queue.
            log.exception("a job cannot be read; it is put aside for a minute")
            await self._session.nack([lease], delay=_ASIDE_FOR)

    def _start(self, lease: Lease, record: Record, now: int, kind: RunKind) -> Claim:
        attempt = record.field("attemptMade")
        run = self._session.recorder.start(
            name=lease.queue,
            module=kind.module,
            trigger=kind.trigger,
            encoded_input=record.encoded("data"),
            started_at=now,
            run_id=record.field("runId"),
            attempt=attempt,
            job_id=lease.id,
            queue_name=lease.queue,
            worker_id=lease.owner,
            came_from="waiting",
            reason="claimed",
        )
        claim = Claim(record, lease, run, attempt)
        self._claims.remember(claim)
        return claim
