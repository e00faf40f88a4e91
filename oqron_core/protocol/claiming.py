"""Claiming: the hot plane hands out, the durable plane confirms."""

from __future__ import annotations

import asyncio
import logging
import time
import weakref

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import attrs

from oqron_core._ids import uuid7
from oqron_core.exceptions import (
    ClosedError,
    CorruptRecordError,
    LeaseLostError,
    StorageError,
    TimedOutError,
    UnavailableError,
)
from oqron_core.planes.checks import MAX_DURATION, lease_ms
from oqron_core.planes.joined import Taken
from oqron_core.planes.values import Lease, Order, Patch, Record, WriteResult
from oqron_core.protocol import transitions
from oqron_core.protocol.cancels import Claims
from oqron_core.protocol.claims import Claim
from oqron_core.protocol.ending import bury_lapsed, close_run_of, lapses_at
from oqron_core.protocol.patience import patiently
from oqron_core.protocol.reading import is_sound
from oqron_core.protocol.session import Session
from oqron_core.protocol.settling import WORTH_DIVIDING, Settling, divided, part_of
from oqron_core.protocol.taking import Take, Taking
from oqron_core.protocol.transitions import FRESH, OPEN


__all__ = ["Claiming", "Lanes", "RunKind"]

log: logging.Logger = logging.getLogger("oqron.protocol")

_EARLY_MS: Final = 50
"""How much too early the hot plane's clock may call a job due."""
_READS: Final = 10
_ASIDE_FOR: Final = 60.0
_CHANGING_FOR: Final = 1.0
_STEP: Final = 100
"""How many jobs at most are claimed and marked at a time."""


@attrs.frozen
class RunKind:
    """
    How the runs of a queue are labelled.

    Attributes:
        module: The run's ``module``.
        trigger: The run's ``trigger``.
        name: The run's ``name``; empty for the queue's.
    """

    module: str = "queue"
    trigger: str = "queue"
    name: str = ""


_QUEUE: Final = RunKind()

_LATE_MOST: Final = 3
"""How often in a row a claim may be answered too late."""


Heads: TypeAlias = Callable[[Sequence[Lease]], Awaitable[Sequence[str | None]]]
"""Gives for each lease of a lane the job at its head, or None where it is empty."""
Follow: TypeAlias = Callable[[Claim], Awaitable[None]]
"""Called when a job has ended whose lease was a lane's."""


@attrs.frozen
class Lanes:
    """
    How leases of a queue find their jobs, where they are not named after them.

    Attributes:
        heads: See `Heads`.
        follow: See `Follow`.
    """

    heads: Heads
    follow: Follow


class _TooLateError(TimedOutError):
    """The leases of a claim had lapsed when its answer came."""


class Claiming:
    """The step that hands jobs out."""

    def __init__(self, session: Session, settling: Settling, claims: Claims) -> None:
        self._session = session
        self._settling = settling
        self._claims = claims
        self._taking = Taking(session)

    async def claim(
        self,
        queue: str,
        *,
        limit: int,
        lease_for: float,
        worker: str,
        order: Order,
        kind: RunKind = _QUEUE,
        lanes: Lanes | None = None,
    ) -> list[Claim]:
        """Take leases, confirm them in the durable plane, start the runs."""
        ask = _Ask(queue, worker, lease_for, lease_ms(lease_for), order, kind, lanes)
        late = 0
        while True:
            self._check_closing()
            # A caller that is cancelled in the middle must neither leave leases nor
            # burn an attempt: what nobody takes is released.
            take = self._begin_take(limit, ask)
            try:
                if take is not None and take.limit == limit:
                    claims = await self._take_here(take, ask)
                else:
                    claims = await self._to_the_end(self._claim_once(limit, ask, take))
            except _TooLateError as error:
                late += 1
                if late == _LATE_MOST:
                    raise TimedOutError(*error.args) from None
                continue
            if claims is None:
                return []
            if claims and self._session.closing.is_set():
                # Nobody could end them any more.
                self._give_back(claims)
                self._check_closing()
            if claims:
                return claims
            # Everything was a leftover and is dropped now: look behind it.

    def _check_closing(self) -> None:
        if self._session.closing.is_set():
            msg = "the storage is closing; it claims nothing more"
            raise ClosedError(msg)

    async def _claim_once(self, limit: int, ask: _Ask, take: Take | None) -> list[Claim] | None:
        """Claim and confirm; None where the broker has nothing."""
        with self._session.recorder.busy(claiming=True):
            if take is not None:
                return await self._take_all(take, limit, ask)
            sent = time.monotonic()
            leases = await self._session.hot.broker.claim(
                ask.queue, owner=ask.worker, lease_for=ask.lease_for, limit=limit, order=ask.order
            )
            batch = _Batch(ask, sent + ask.ms / 1000)
            return await self._confirm(leases, batch) if leases else None

    async def _to_the_end(
        self, step: Coroutine[Any, Any, list[Claim] | None]
    ) -> list[Claim] | None:
        return await self._session.to_the_end(
            step, name="oqron-claim", brief=True, unclaimed=self._release_unclaimed
        )

    def _release_unclaimed(self, claims: list[Claim] | None) -> None:
        self._give_back(claims or ())

    async def _release_quietly(self, claim: Claim) -> None:
        try:
            await self._settling.release(claim, delay=0.0)
        except (StorageError, LeaseLostError) as error:
            log.debug("an undelivered claim will lapse: %s", error)

    # --- in one step of both planes ---

    def _begin_take(self, limit: int, ask: _Ask) -> Take | None:
        """Begin to take the first part; None where that takes a step of each plane."""
        joined = self._session.joined
        if joined is None or ask.lanes is not None:
            return None
        return self._taking.begin(
            joined,
            ask.queue,
            owner=ask.worker,
            lease_for=ask.lease_for,
            ms=ask.ms,
            limit=limit if limit < WORTH_DIVIDING else min(part_of(limit), _STEP),
            order=ask.order,
        )

    async def _take_here(self, take: Take, ask: _Ask) -> list[Claim] | None:
        """
        Claim and mark in one step of both planes; None where the broker has nothing.

        Few have no task of their own: nothing is waited for but the answer, so whoever
        is cancelled before it came has only to be followed by one who asks for it again.
        """
        session = self._session
        late = partial(self._take_late, ask)
        with session.in_hand(), session.recorder.busy(claiming=True):
            try:
                taken, sent = await take.finish(late)
            except asyncio.CancelledError:
                if not session.closed:
                    session.spawn(take.recall(late), name="oqron-claim-left", brief=True)
                raise
            if not taken.leases:
                return None
            accepting = self._accept_in_time(taken, sent, ask)
            if all(result.applied for result in taken.results):
                return await accepting
            return await self._to_the_end(accepting)

    async def _take_all(self, take: Take, limit: int, ask: _Ask) -> list[Claim] | None:
        """
        Do the same for many, in parts.

        One is on its way while the one before is taken in: a part that is sent together
        with others is answered with them.
        """
        size = take.limit
        claims: list[Claim] = []
        left, any_leases = limit, False
        # Leases that are shorter than the whole claim would be taken by its own parts.
        until = time.monotonic() + ask.lease_for / 3
        coming: asyncio.Task[tuple[Taken, float]] | None = self._spawn_take(take, ask)
        try:
            while coming is not None:
                taken, sent = await coming
                left -= size
                coming = None
                if left and len(taken.leases) == size and time.monotonic() < until:
                    size = min(size, left)
                    coming = self._spawn_take(take.following(size), ask)
                    # It goes out before this part is taken in.
                    await asyncio.sleep(0)
                if taken.leases:
                    any_leases = True
                    claims += await self._accept_in_time(taken, sent, ask)
        except Exception as error:
            if coming is not None:
                coming.add_done_callback(partial(self._release_taken, ask))
            if claims and isinstance(error, StorageError):
                # What was taken before is worked; who claims next meets the error.
                return claims
            self._give_back(claims)
            raise
        return claims if any_leases else None

    def _spawn_take(self, take: Take, ask: _Ask) -> asyncio.Task[tuple[Taken, float]]:
        taking = take.finish(partial(self._take_late, ask))
        return self._session.spawn(taking, name="oqron-take", brief=True)

    def _release_taken(self, ask: _Ask, task: asyncio.Task[tuple[Taken, float]]) -> None:
        if not task.cancelled() and task.exception() is None:
            taken, sent = task.result()
            late = self._take_late(ask, taken, sent)
            self._session.spawn(late, name="oqron-release", brief=True)

    async def _take_late(self, ask: _Ask, taken: Taken, sent: float) -> None:
        claims, _ = await self._accept(taken, sent, ask)
        self._give_back(claims)

    async def _accept_in_time(self, taken: Taken, sent: float, ask: _Ask) -> list[Claim]:
        return self._in_time(*await self._accept(taken, sent, ask))

    async def _accept(self, taken: Taken, sent: float, ask: _Ask) -> tuple[list[Claim], _Batch]:
        # What was left of the leases when the server answered; all end together.
        left = taken.leases[0].expires_at - taken.now
        batch = _Batch(ask, sent + left / 1000, taken.now)
        pairs = [(lease, lease.id) for lease in taken.leases]
        return await self._begin_all(pairs, taken.names, taken.results, batch), batch

    # --- in a step of each plane ---

    async def _confirm(self, leases: Sequence[Lease], batch: _Batch) -> list[Claim]:
        """Confirm leases; of many, a part is on its way while the one before is taken in."""
        batch.now = await self._session.durable_time.now()
        if len(leases) < WORTH_DIVIDING:
            return await self._confirm_part(leases, batch)
        return await self._gathered(
            [self._confirm_part(part, attrs.evolve(batch, claims={})) for part in divided(leases)]
        )

    async def _confirm_part(self, leases: Sequence[Lease], batch: _Batch) -> list[Claim]:
        pairs = await self._named(leases, batch)
        marks = [self._mark(lease, job, batch, FRESH, first=True) for lease, job in pairs]
        results = await self._write_marks([lease for lease, _ in pairs], marks)
        runs = [mark.set["runId"] for mark in marks]
        return self._in_time(await self._begin_all(pairs, runs, results, batch), batch)

    # --- what both do with the answers ---

    def _in_time(self, claims: list[Claim], batch: _Batch) -> list[Claim]:
        """
        Give claims whose leases have not lapsed on the way: others may have those by now.

        Raises:
            _TooLateError: They have; what is still ours is given back.
        """
        if not claims or batch.deadline > time.monotonic():
            return claims
        self._give_back(claims)
        msg = (
            f"the answers to claims take longer than their leases of {batch.ask.lease_for:g} s; "
            "what was claimed is given back: raise lease_for"
        )
        raise _TooLateError(msg)

    async def _gathered(self, parts: Sequence[Coroutine[Any, Any, list[Claim]]]) -> list[Claim]:
        """Await parts of a claim side by side; where one fails, the others are given back."""
        if len(parts) == 1:
            return await parts[0]
        found = await asyncio.gather(*parts, return_exceptions=True)
        claims: list[Claim] = []
        for part in found:
            if isinstance(part, BaseException):
                for other in found:
                    if not isinstance(other, BaseException):
                        self._give_back(other)
                raise part
            claims += part
        return claims

    async def _begin_all(
        self,
        pairs: Sequence[tuple[Lease, str]],
        runs: Sequence[str],
        results: Sequence[WriteResult],
        batch: _Batch,
    ) -> list[Claim]:
        try:
            return await self._sort_out(pairs, runs, results, batch)
        except BaseException:
            # What was begun has an attempt counted: it is given back, not lost.
            self._give_back(batch.claims.values())
            raise

    def _give_back(self, claims: Iterable[Claim]) -> None:
        if self._session.closed:
            return
        for claim in claims:
            self._session.spawn(self._release_quietly(claim), name="oqron-release", brief=True)

    async def _sort_out(
        self,
        pairs: Sequence[tuple[Lease, str]],
        runs: Sequence[str],
        results: Sequence[WriteResult],
        batch: _Batch,
    ) -> list[Claim]:
        others: list[tuple[Lease, str, Record | None]] = []
        aside: list[Lease] = []
        for (lease, job_id), run_id, result in zip(pairs, runs, results, strict=True):
            record = result.record
            if result.applied and record is not None:
                if not self._begin(lease, run_id, record, batch):
                    aside.append(lease)
            else:
                others.append((lease, job_id, record))
        if aside:
            # Not waited for: whoever is cancelled meanwhile would leave the others behind.
            laying = self._session.nack(aside, delay=_ASIDE_FOR)
            self._session.spawn(laying, name="oqron-aside", brief=True)
        if others:
            await self._look_again(others, batch)
            claims = batch.claims
            return [claims[job_id] for _, job_id in pairs if job_id in claims]
        return list(batch.claims.values())

    async def _named(self, leases: Sequence[Lease], batch: _Batch) -> list[tuple[Lease, str]]:
        """Give each lease with its job; empty lanes are acknowledged."""
        lanes = batch.ask.lanes
        if lanes is None:
            return [(lease, lease.id) for lease in leases]
        heads = await lanes.heads(leases)
        empty = [lease for lease, head in zip(leases, heads, strict=True) if head is None]
        if empty:
            await self._session.ack_many(empty)
        return [
            (lease, head) for lease, head in zip(leases, heads, strict=True) if head is not None
        ]

    def _mark(
        self, lease: Lease, job_id: str, batch: _Batch, expect: Mapping[str, Any], *, first: bool
    ) -> Patch:
        return transitions.started(
            lease,
            job_id,
            run_id=uuid7(),
            lease_ms=batch.ask.ms,
            now=batch.now,
            expect=expect,
            first=first,
        )

    async def _write_marks(
        self, leases: Sequence[Lease], marks: Sequence[Patch]
    ) -> Sequence[WriteResult]:
        """Write claim marks; where no answer came, again, and know one's own."""

        async def once(tries: int) -> Sequence[WriteResult]:
            results = await self._session.durable.write(marks)
            if tries:
                for mark, result in zip(marks, results, strict=True):
                    if not result.applied and _is_marked(mark, result.record):
                        result.applied = True
            return results

        try:
            return await patiently(once)
        except UnavailableError:
            # Nothing was confirmed, so nothing may run. Where a mark was written all
            # the same, its lease has to lapse first.
            await self._session.nack(leases)
            raise

    async def _look_again(
        self, others: list[tuple[Lease, str, Record | None]], batch: _Batch
    ) -> None:
        """Deal with what is not simply waiting: delayed, lapsed, over, gone."""
        for _ in range(_READS):
            takes: list[tuple[Lease, Record]] = []
            for lease, job_id, record in others:
                if record is None or record.text("status") not in OPEN:
                    await self._drop(lease, job_id)
                elif await self._may_take(lease, record, batch.now):
                    takes.append((lease, record))
            if not takes:
                return
            others = await self._take(takes, batch)
            if not others:
                return
        await self._session.nack([lease for lease, _, _ in others], delay=_CHANGING_FOR)

    async def _drop(self, lease: Lease, job_id: str) -> None:
        """Let go of a lease whose job has ended; a lane may have another job."""
        if lease.id == job_id:
            await self._session.ack(lease)
        else:
            await self._session.nack([lease])

    async def _may_take(self, lease: Lease, record: Record, now: int) -> bool:
        if not is_sound(record):
            log.error("an odd row of queue %r is put aside for a minute", lease.queue)
            await self._session.nack([lease], delay=_ASIDE_FOR)
            return False
        if record.field("status") == "active":
            if record.integer("leaseToken") >= lease.token:
                # Someone claimed it after me, by a broker that was rebuilt.
                return False
            left = lapses_at(record) - now
            if left > _EARLY_MS:
                # The broker forgot the lease, but whoever has it may be at work.
                await self._session.nack([lease], delay=min(left / 1000, MAX_DURATION))
                return False
            if record.field("attemptMade") >= record.field("maxAttempts"):
                # A lapse consumes an attempt, and this was the last.
                await bury_lapsed(self._session, lease.queue, record, now)
                await self._drop(lease, record.id)
                return False
            return True
        run_at = record.field("runAt")
        if isinstance(run_at, int) and run_at > now + _EARLY_MS:
            await self._session.nack([lease], delay=min((run_at - now) / 1000, MAX_DURATION))
            return False
        return True

    async def _take(
        self, takes: Sequence[tuple[Lease, Record]], batch: _Batch
    ) -> list[tuple[Lease, str, Record | None]]:
        """Mark what was read, guarded by what was read; give back what changed."""
        marks = [
            self._mark(
                lease,
                record.id,
                batch,
                record.guards("status", "leaseToken", "attemptMade"),
                first=record.field("startedAt") is None,
            )
            for lease, record in takes
        ]
        results = await self._write_marks([lease for lease, _ in takes], marks)
        changed: list[tuple[Lease, str, Record | None]] = []
        for (lease, record), mark, result in zip(takes, marks, results, strict=True):
            if not result.applied or result.record is None:
                changed.append((lease, record.id, result.record))
                continue
            if record.field("status") == "active":
                await close_run_of(self._session, record, "failed", "lease lapsed", batch.now)
            if not self._begin(lease, mark.set["runId"], result.record, batch):
                await self._session.nack([lease], delay=_ASIDE_FOR)
        return changed

    def _begin(self, lease: Lease, run_id: str, record: Record, batch: _Batch) -> bool:
        """Start a run; False where the job cannot be read, and is to be put aside."""
        try:
            batch.claims[record.id] = self._start(lease, run_id, record, batch)
        except CorruptRecordError:
            # One unreadable record must hold up neither the batch nor the queue.
            log.exception("a job cannot be read; it is put aside for a minute")
            return False
        return True

    def _start(self, lease: Lease, run_id: str, record: Record, batch: _Batch) -> Claim:
        kind, lanes = batch.ask.kind, batch.ask.lanes
        attempt = record.integer("attemptMade", 1)
        run = self._session.recorder.start(
            name=kind.name or lease.queue,
            module=kind.module,
            trigger=kind.trigger,
            encoded_input=record.encoded("data"),
            started_at=batch.now,
            run_id=run_id,
            attempt=attempt,
            job_id=record.id,
            queue_name=lease.queue,
            worker_id=lease.owner,
            came_from="waiting",
            reason="claimed",
        )
        claim = Claim(record, lease, run, attempt, batch.deadline)
        run.owner = weakref.ref(claim)
        if lanes is not None:
            claim.then = lanes.follow
        self._claims.remember(claim)
        return claim


def _is_marked(mark: Patch, record: Record | None) -> bool:
    """Say whether a record bears this claim mark: a run id is made only once."""
    return record is not None and all(
        record.field(name) == mark.set[name] for name in ("runId", "status", "leaseToken")
    )


@attrs.frozen
class _Ask:
    """What a caller asked for."""

    queue: str
    worker: str
    lease_for: float
    ms: int
    order: Order
    kind: RunKind
    lanes: Lanes | None


@attrs.define(eq=False)
class _Batch:
    """What one step of a claim has in hand."""

    ask: _Ask
    deadline: float
    """When the leases are over by the local monotonic clock, or a little earlier."""
    now: int = 0
    claims: dict[str, Claim] = attrs.field(factory=dict)
