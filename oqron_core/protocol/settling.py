"""Settling: every write that a lease allows, guarded by its fencing token."""

from __future__ import annotations

import asyncio
import time

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from oqron_core._codec import Json, portable_value, readable_fields
from oqron_core.exceptions import (
    ConflictError,
    InvalidValueError,
    LeaseLostError,
    StorageError,
    UnavailableError,
)
from oqron_core.models._wire import structure
from oqron_core.models.backoff import Backoff
from oqron_core.models.job import Job
from oqron_core.planes.checks import delay_ms, lease_ms
from oqron_core.planes.values import Patch, WriteResult
from oqron_core.protocol import transitions
from oqron_core.protocol.claims import Claim
from oqron_core.protocol.ends import Settlement
from oqron_core.protocol.run_handle import describe_error
from oqron_core.protocol.session import Session, side_by_side
from oqron_core.protocol.transitions import JOB


__all__ = ["WORTH_DIVIDING", "Settling", "divided", "part_of"]

T = TypeVar("T")
W = TypeVar("W")

WORTH_DIVIDING: Final = 50
"""How many jobs are divided, so that the loop and the planes work at the same time."""
_PARTS: Final = 3


def part_of(count: int) -> int:
    """Give the size of the parts that so many jobs are divided into."""
    return -(-count // _PARTS)


def divided(items: Sequence[T]) -> list[Sequence[T]]:
    """Divide what is many into parts of about the same size."""
    size = part_of(len(items))
    return [items[start : start + size] for start in range(0, len(items), size)]


class Settling:
    """The steps of whoever holds a lease: renew, complete, fail, release."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def renew(self, claims: Sequence[Claim], *, lease_for: float) -> list[bool]:
        """
        Renew leases; what is lost is marked on the claim.

        A refusal alone is no loss: where the hot plane was lost, the rebuild puts
        the lease back with the same token, and the next renewal succeeds. Nor is a
        missing answer. Either is one when the lease has lapsed meanwhile.
        """
        lease_ms(lease_for)
        if not claims:
            return []
        now = time.monotonic()
        try:
            answers = await self._session.hot.broker.renew(
                [claim.lease for claim in claims], lease_for=lease_for
            )
        except StorageError:
            # Without an answer a lease lapses just the same.
            now = time.monotonic()
            for claim in claims:
                _lose_if_lapsed(claim, now)
            raise
        for claim, kept in zip(claims, answers, strict=True):
            if kept:
                claim.deadline = now + lease_for
            else:
                _lose_if_lapsed(claim, now)
        return list(answers)

    async def complete(self, claim: Claim, output: Any) -> None:
        """Write the end, then acknowledge."""
        settlement = self._completion(claim, output, await self._settle_time(claim))
        await self._patiently(claim, partial(self._complete, claim, settlement))
        await self._follow(claim)

    async def _complete(self, claim: Claim, settlement: Settlement) -> None:
        try:
            await self._session.ends.settle(settlement)
        except UnavailableError:
            claim.unsure = settlement.unsure = True
            raise

    async def complete_many(self, pairs: Sequence[tuple[Claim, Any]]) -> list[bool]:
        """Write many ends in one batch; False where the lease is lost."""
        return await self._to_the_end(self._complete_many(pairs))

    async def _complete_many(self, pairs: Sequence[tuple[Claim, Any]]) -> list[bool]:
        """Of many, prepare the next part while the planes have the one before in hand."""
        if len(pairs) < WORTH_DIVIDING:
            return await self._complete_part(pairs)
        parts = await side_by_side([self._complete_part(part) for part in divided(pairs)])
        return [ended for part in parts for ended in part]

    async def _complete_part(self, pairs: Sequence[tuple[Claim, Any]]) -> list[bool]:
        session = self._session
        now = await session.durable_time.now()
        settlements = [self._completion(claim, output, now) for claim, output in pairs]
        try:
            await session.ends.settle_many(settlements)
        except UnavailableError:
            for claim, _ in pairs:
                claim.unsure = True
            raise
        done = [settlement.error is None for settlement in settlements]
        for (claim, _), ended in zip(pairs, done, strict=True):
            if ended and claim.then is not None:
                await claim.then(claim)
        return done

    def _completion(self, claim: Claim, output: Any, now: int) -> Settlement:
        encoded, refusal = self._output(output)
        write = transitions.completed(
            claim.lease,
            claim.id,
            encoded,
            now=now,
            keep_for=self._session.completed_for(claim.lease.queue),
        )
        end = partial(self._end_completed, claim, encoded, refusal)
        run = None if refusal else (claim.run, encoded)
        # A call before may have done the same.
        unsure = claim.unsure or (claim.settled and claim.run.status == "completed")
        return Settlement(write, claim.lease, claim.run.id, end, run, unsure=unsure)

    async def _follow(self, claim: Claim) -> None:
        if claim.then is not None:
            await claim.then(claim)

    def _end_completed(
        self, claim: Claim, encoded: Json, refusal: str | None, result: WriteResult
    ) -> LeaseLostError | None:
        """End the run as the plane has answered; gives the error, if it is one."""
        if not result.applied and not self._is_repeated(claim, result, "completed"):
            return self._refused(claim, result)
        claim.settled = True
        if refusal is not None:
            claim.run.log("error", f"the output was not stored: {refusal}")
        claim.run.finish_encoded(encoded)
        return None

    def _output(self, output: Any) -> tuple[Json, str | None]:
        refused: list[InvalidValueError] = []
        encoded = portable_value(
            output,
            max_bytes=self._session.settings.max_value_bytes,
            on_refused=refused.append,
        )
        return encoded, str(refused[0]) if refused else None

    async def fail(
        self, claim: Claim, error: object, *, retry_in: float | None, retry: bool
    ) -> Job:
        """Write a failed attempt: delayed for the next one, or a dead letter."""
        if retry_in is not None:
            delay_ms(retry_in, "retry_in")
        return await self._to_the_end(self._fail(claim, error, retry_in=retry_in, retry=retry))

    async def _to_the_end(self, step: Coroutine[Any, Any, T]) -> T:
        """Run a step to its end also if its caller is cancelled in the middle."""
        return await self._session.to_the_end(step, name="oqron-settle", brief=True)

    async def _fail(
        self, claim: Claim, error: object, *, retry_in: float | None, retry: bool
    ) -> Job:
        text, trace = describe_error(error, self._session.settings.max_value_bytes)
        left = claim.attempt < claim.record.integer("maxAttempts", 1)
        # History waits for no hot plane: the run ends as soon as its attempt has.
        ended = partial(self._end_failed, claim, text, trace, None if retry else "discarded")
        if retry and left:
            return await self._retry(claim, text, trace, retry_in, ended)
        reason = "attempts exhausted" if retry else "discarded"
        return await self._die(claim, text, trace, reason, ended)

    def _end_failed(self, claim: Claim, text: str, trace: str | None, reason: str | None) -> None:
        claim.settled = True
        claim.run.fail_text(text, trace, reason=reason)

    async def _retry(
        self,
        claim: Claim,
        text: str,
        trace: str | None,
        retry_in: float | None,
        ended: Callable[[], None],
    ) -> Job:
        session = self._session
        if retry_in is None:
            opts = claim.record.field("opts")
            rule = Backoff.from_wire(opts.get("backoff") if isinstance(opts, dict) else None)
            retry_in = rule.delay_after(claim.attempt)
        now = await self._settle_time(claim)
        run_at = now + delay_ms(retry_in)
        write = transitions.retried(
            claim.lease, claim.record, run_at=run_at, error=text, stacktrace=trace
        )
        done = await self._settle(claim, "fail", write)
        ended()
        told = await session.nack([claim.lease], delay=_delay_of(done, now))
        job = structure(Job, {**claim.record.readable(), **done.set})
        object.__setattr__(job, "published", told)
        return job

    async def _die(
        self,
        claim: Claim,
        text: str,
        trace: str | None,
        reason: str,
        ended: Callable[[], None],
    ) -> Job:
        session = self._session
        writes = transitions.dead(
            claim.record,
            queue=claim.lease.queue,
            expect={"status": "active", "leaseToken": claim.lease.token},
            now=await self._settle_time(claim),
            reason=reason,
            error=text,
            stacktrace=trace,
            keep_for=session.settings.retention.dead_letters_for,
        )
        _, letter = writes = _tried(claim, "discard", writes)
        try:
            await self._try(claim, "discard", writes, lambda: session.write_atomic(writes))
        except ConflictError:
            if not (_may_be_done(claim, "discard") and await session.was_done(writes)):
                found = (await session.durable.get(JOB + claim.lease.queue, [claim.id]))[0]
                raise self._refused(claim, WriteResult(applied=False, record=found)) from None
        ended()
        await session.ack(claim.lease)
        await self._follow(claim)
        return structure(Job, readable_fields(letter.value))

    async def release(self, claim: Claim, *, delay: float) -> None:
        """Give the job back; the attempt does not count."""
        ms = delay_ms(delay)
        await self._to_the_end(self._release(claim, ms))

    async def _release(self, claim: Claim, ms: int) -> None:
        now = await self._settle_time(claim)
        write = transitions.released(claim.lease, claim.id, run_at=now + ms if ms else None)
        done = await self._settle(claim, "release", write)
        claim.settled = True
        claim.run.cancel("released")
        await self._session.nack([claim.lease], delay=_delay_of(done, now))

    async def _settle_time(self, claim: Claim) -> int:
        time = self._session.durable_time
        try:
            return await time.now()
        except UnavailableError:
            # The write itself will wait for the plane.
            return max(claim.run.started_at, time.estimate())

    async def _settle(self, claim: Claim, call: str, write: Patch) -> Patch:
        """Write an attempt's end; gives that which was done, now or by the same call before."""
        write = _tried(claim, call, write)
        result = await self._try(claim, call, write, lambda: self._session.write(write))
        if not result.applied and not (
            _may_be_done(claim, call) and transitions.shows(write, result.record)
        ):
            raise self._refused(claim, result)
        return write

    async def _try(
        self, claim: Claim, call: str, writes: Any, step: Callable[[], Awaitable[T]]
    ) -> T:
        """Do *step* patiently, and remember what it wrote, unless it was refused."""

        async def once() -> T:
            try:
                result = await step()
            except UnavailableError:
                _remember(claim, call, writes)
                raise
            if not isinstance(result, WriteResult) or result.applied:
                _remember(claim, call, writes)
            return result

        return await self._patiently(claim, once)

    async def _patiently(self, claim: Claim, step: Callable[[], Awaitable[T]]) -> T:
        """
        Repeat *step* while the durable plane is down and the lease can be kept.

        A finished handler's result is worth waiting for: it was paid for.
        """
        pause = 0.1
        refused = False
        while True:
            try:
                return await step()
            except UnavailableError:
                kept = await self._keep(claim)
                if kept is None or (refused and not kept):
                    raise
                if not kept:
                    # The try that had no answer may have ended the job, and the lease
                    # with it: once more tells.
                    refused = True
                    continue
                await asyncio.sleep(pause)
                pause = min(1.0, pause * 2)

    async def _keep(self, claim: Claim) -> bool | None:
        """Renew the lease; None where there is no answer."""
        ms = claim.record.field("leaseMs")
        lease_for = ms / 1000 if isinstance(ms, int) else 30.0
        try:
            kept = await self._session.hot.broker.renew([claim.lease], lease_for=lease_for)
        except StorageError:
            return None
        return kept[0]

    def _is_repeated(self, claim: Claim, result: WriteResult, status: str) -> bool:
        record = result.record
        return (
            record is not None
            and record.field("status") == status
            and record.field("leaseToken") == claim.lease.token
        )

    def _refused(self, claim: Claim, result: WriteResult) -> LeaseLostError:
        """Refuse a writer that does not hold the lease any more, and end its run."""
        record = result.record
        status = None if record is None else record.field("status")
        if status == "active":
            reason = "it lapsed, and someone took over"
        elif status is None:
            reason = "the job is gone"
        elif status == "cancelled":
            reason = "the job was cancelled"
            claim.set_cancelled()
        else:
            reason = f"the job is {status} already"
        self._session.refused += 1
        claim.lost = True
        error = LeaseLostError(f"job {claim.id!r}", claim.lease.token, reason)
        if status == "cancelled":
            claim.run.cancel()
        else:
            claim.run.fail(f"lease lost: {reason}", reason="lease lost")
        return error


def _tried(claim: Claim, call: str, fresh: W) -> W:
    """
    Give what this call has tried with the claim before, else what it would try now.

    It may have been done, by a try without an answer or where somebody calls twice: the
    same once more is the same end, at the same time, and no other.
    """
    tried: W = fresh if claim.tried is None else claim.tried.get(call, fresh)
    return tried


def _may_be_done(claim: Claim, call: str) -> bool:
    return claim.tried is not None and call in claim.tried


def _remember(claim: Claim, call: str, writes: Any) -> None:
    claim.tried = {**(claim.tried or {}), call: writes}


def _delay_of(write: Patch, now: int) -> float:
    """Give the seconds after *now* from which a job may be claimed again."""
    run_at = write.set["runAt"]
    return 0.0 if run_at is None else max(0, run_at - now) / 1000


def _lose_if_lapsed(claim: Claim, now: float) -> None:
    if not claim.settled and now >= claim.deadline:
        claim.lost = True
