"""Jobs: add, claim, settle, look."""

from __future__ import annotations

import asyncio
import contextlib

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import attrs

from oqron_core._names import check_many, check_name
from oqron_core.exceptions import InvalidValueError, StorageError
from oqron_core.models import Backoff, Control, Job, JobSpec, JobStatus
from oqron_core.planes.checks import check_limit, check_order, lease_ms, seconds
from oqron_core.planes.values import Order, Page, Query
from oqron_core.protocol.claims import Claim
from oqron_core.protocol.lanes import refuse_topic_queue
from oqron_core.protocol.orders import Orders
from oqron_core.protocol.pauses import set_queue_paused
from oqron_core.protocol.reading import job_of
from oqron_core.protocol.session import Session
from oqron_core.protocol.transitions import JOB


__all__ = ["Jobs"]

_TRY_AGAIN = 0.5
"""Seconds until a renewal that failed is tried again, at most."""


class Jobs:
    """
    Work orders. A job is durable before `add` returns.

    An id is taken as long as its job is there: until retention removes a job
    that has ended, or until it becomes a dead letter. Adding a taken id changes
    nothing and gives the job that is there, with ``duplicate`` set.
    """

    def __init__(self, session: Session, orders: Orders) -> None:
        self._session = session
        self._orders = orders

    # --- add ---

    async def add(
        self,
        queue: str,
        data: Any = None,
        *,
        id: str | None = None,  # noqa: A002 - the word of the contract
        delay: float | None = None,
        run_at: int | None = None,
        priority: int = 0,
        max_attempts: int = 3,
        backoff: Backoff | None = None,
        tags: Sequence[str] = (),
        correlation_id: str | None = None,
        transaction: Any = None,
    ) -> Job:
        """
        Add one job: durable first, then claimable.

        Calls that run at the same time share their round trips. Where the hot
        plane does not answer the job is safe all the same; ``published`` is then
        False and maintenance makes it claimable.

        Args:
            queue: The queue, 1 to 255 characters.
            data: The payload: anything portable.
            id: The id; None makes a UUIDv7.
            delay: Seconds until it may be claimed; 0 and None mean at once.
            run_at: The same as an instant in milliseconds since the epoch; not
                together with *delay*.
            priority: Lower is sooner; 32 bits.
            max_attempts: 1 to 1,000. 1 means at most once, more at least once.
            backoff: The delay between attempts; None for one second, doubled
                each time, at most 300.
            tags: Labels.
            correlation_id: What it belongs to.
            transaction: Your own transaction, where the durable backend can join
                one: a connection or session as it documents. The job is there when
                you commit and never if you roll back; it is claimable at once
                after the commit, and ``published`` is False here.

        Returns:
            The job; with ``duplicate`` set, the one that had the id before.

        Raises:
            InvalidValueError: An argument is not legal; nothing was written.
            CapabilityError: The durable backend cannot join *transaction*.
            PausedError: The queue is paused and rejects what arrives.
            UnavailableError: The durable plane did not answer. Adding again with
                the same *id* is safe.
        """
        self._session.check_open()
        refuse_topic_queue(check_name("queue", queue))
        adding = self._orders.adding
        is_plain = (
            id is None
            and delay is None
            and run_at is None
            and backoff is None
            and not tags
            and correlation_id is None
            and transaction is None
        )
        # What is no int is refused by its specification.
        if is_plain and type(priority) is type(max_attempts) is int:
            return await adding.add_plain(queue, data, priority, max_attempts)
        spec = JobSpec(
            data,
            id=id,
            delay=delay,
            run_at=run_at,
            priority=priority,
            max_attempts=max_attempts,
            backoff=backoff,
            tags=tags,
            correlation_id=correlation_id,
        )
        return await adding.add(queue, spec, transaction)

    async def add_many(
        self,
        queue: str,
        jobs: Iterable[Any],
        *,
        delay: float | None = None,
        run_at: int | None = None,
        priority: int = 0,
        max_attempts: int = 3,
        backoff: Backoff | None = None,
        tags: Sequence[str] = (),
        correlation_id: str | None = None,
        transaction: Any = None,
    ) -> list[Job]:
        """
        Add any number of jobs in large batches.

        All are checked before the first is written. The batch is not atomic: if
        the durable plane fails in the middle, the part before it is added, and
        perhaps up to 2,000 behind it; adding again is safe for jobs with an id.

        Args:
            queue: The queue.
            jobs: Payloads, or `JobSpec` where one differs from the batch.
            delay: The default for the batch, as are the following: see `add`.
            run_at: See `add`.
            priority: See `add`.
            max_attempts: See `add`.
            backoff: See `add`.
            tags: See `add`.
            correlation_id: See `add`.
            transaction: See `add`.

        Returns:
            The jobs, in order; an id that was taken, or stands twice in the
            batch, gives a ``duplicate``.

        Raises:
            InvalidValueError: An argument is not legal; nothing was written.
            CapabilityError: The durable backend cannot join *transaction*.
            PausedError: The queue is paused and rejects what arrives.
            UnavailableError: The durable plane did not answer.
        """
        self._session.check_open()
        refuse_topic_queue(check_name("queue", queue))
        defaults = JobSpec(
            None,
            delay=delay,
            run_at=run_at,
            priority=priority,
            max_attempts=max_attempts,
            backoff=backoff,
            tags=tags,
            correlation_id=correlation_id,
        )
        data: list[Any] = []
        specs: list[JobSpec] = []
        for item in check_many("jobs", jobs, "payloads"):
            payload, spec = _filled(item, defaults)
            data.append(payload)
            specs.append(spec)
        if not data:
            return []
        return await self._orders.adding.add_many(queue, data, specs, transaction)

    # --- claim and settle ---

    async def claim(
        self,
        queue: str,
        *,
        limit: int = 1,
        lease_for: float = 30.0,
        worker: str | None = None,
        wait: float = 0.0,
        order: Order = "fifo",
    ) -> list[Claim]:
        """
        Claim up to *limit* jobs under leases, lower priority number first.

        Each job was confirmed by the durable plane and counts one attempt more;
        its run has started. Jobs whose lease lapsed come again, with a larger
        token. A caller that is cancelled loses nothing.

        Args:
            queue: The queue.
            limit: At most this many; 0 gives none.
            lease_for: Seconds until the leases lapse unless renewed; >= 0.05.
            worker: Who asks, for people; None for a name of this storage.
            wait: Seconds to wait for a job where there is none; 0 for not at all.
            order: ``lifo`` for the youngest of a priority first.

        Returns:
            Claims in the order of the queue; empty where there was none.

        Raises:
            InvalidValueError: An argument is not legal.
            UnavailableError: A plane did not answer; nothing runs.
        """
        session = self._session
        session.check_open()
        check_name("queue", queue)
        check_limit(limit)
        lease_ms(lease_for)
        seconds("wait", wait)
        owner = session.worker if worker is None else check_name("worker", worker)
        check_order(order)
        if limit == 0:
            return []
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        while True:
            claims = await self._orders.claiming.claim(
                queue, limit=limit, lease_for=lease_for, worker=owner, order=order
            )
            left = deadline - loop.time()
            if claims or left <= 0:
                return claims
            if not await session.hot.broker.wait([queue], timeout=left):
                # The plane's own clock says that the time is over.
                deadline = loop.time()

    async def renew(self, claims: Sequence[Claim], *, lease_for: float = 30.0) -> list[bool]:
        """
        Let the leases last *lease_for* seconds from now.

        Renew at a third of the lease or faster; `keep` does it for you.

        Returns:
            For each claim, True, or False where the lease is lost.

        Raises:
            InvalidValueError: *lease_for* is not legal.
            UnavailableError: The hot plane did not answer; try again in time.
        """
        self._session.check_open()
        _check_claims(claims)
        return await self._orders.settling.renew(claims, lease_for=lease_for)

    @contextlib.asynccontextmanager
    async def keep(
        self, claims: Sequence[Claim], *, lease_for: float = 30.0, every: float | None = None
    ) -> AsyncIterator[None]:
        """
        Renew the leases in the background while the context is open.

        A renewal that fails or is refused is tried again until the lease has lapsed:
        a hot plane that was lost is rebuilt with the same leases. Then the claim is
        marked ``lost`` and not renewed any more, nor is one that is settled.

        Args:
            claims: The claims.
            lease_for: Seconds, as claimed.
            every: Seconds between renewals; None for a third of *lease_for*,
                which is also the most.

        Raises:
            InvalidValueError: *every* is more than a third of *lease_for*.
        """
        _check_claims(claims)
        lease_ms(lease_for)
        pause = lease_for / 3 if every is None else seconds("every", every, least=0.001)
        if pause > lease_for / 3 + 1e-9:
            reason = f"must be at most a third of lease_for ({lease_for / 3:g} seconds)"
            raise InvalidValueError("every", reason)
        task = self._session.spawn(self._keep(claims, lease_for, pause), name="oqron-renewal")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _keep(self, claims: Sequence[Claim], lease_for: float, pause: float) -> None:
        while True:
            await asyncio.sleep(pause)
            while not await self._keep_once(claims, lease_for):  # noqa: ASYNC110 - it asks the plane
                # There is time for more tries before the leases lapse.
                await asyncio.sleep(min(pause, _TRY_AGAIN))

    async def _keep_once(self, claims: Sequence[Claim], lease_for: float) -> bool:
        """Renew what is in hand; False where some of it should be tried again soon."""
        current = [claim for claim in claims if not (claim.settled or claim.lost)]
        try:
            kept = await self._orders.settling.renew(current, lease_for=lease_for)
        except StorageError:
            return False
        return all(
            answer or claim.settled or claim.lost or claim.cancelled
            for claim, answer in zip(current, kept, strict=True)
        )

    async def complete(self, claim: Claim, output: Any = None) -> None:
        """
        End the job as done. Repeating it with the same claim changes nothing.

        While the durable plane does not answer, the result waits and the lease is
        renewed; calls that run at the same time share their round trips.

        Args:
            claim: The claim.
            output: What the handler gave. What cannot be stored never fails the
                job: a marker takes its place and the run says so.

        Raises:
            LeaseLostError: Someone took over, or it was cancelled; nothing changed.
            UnavailableError: The durable plane did not answer for as long as the
                lease could be kept.
        """
        self._session.check_open()
        _check_claim(claim)
        await self._orders.settling.complete(claim, output)

    async def complete_many(self, pairs: Sequence[tuple[Claim, Any]]) -> list[bool]:
        """
        End many jobs in one batch.

        Args:
            pairs: Claims with their outputs.

        Returns:
            For each, True, or False where the lease is lost.

        Raises:
            InvalidValueError: *pairs* are no pairs of a claim and an output.
            UnavailableError: The durable plane did not answer; repeat the call.
        """
        self._session.check_open()
        # What can be iterated once is looked at first, and ended then.
        given = check_many("pairs", pairs, "claims with their outputs")
        for index, pair in enumerate(given):
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:  # noqa: PLR2004 - a pair
                reason = f"must be a claim and its output, not a {type(pair).__name__}"
                raise InvalidValueError(f"pairs[{index}]", reason)
            _check_claim(pair[0], f"pairs[{index}][0]")
        return await self._orders.settling.complete_many(given) if given else []

    async def fail(
        self,
        claim: Claim,
        error: object,
        *,
        retry_in: float | None = None,
        retry: bool = True,
    ) -> Job:
        """
        End the attempt as failed.

        Where attempts are left the job is delayed for the next one; otherwise
        it becomes a dead letter, in one atomic write.

        Args:
            claim: The claim.
            error: An exception, or a text; made portable.
            retry_in: Seconds until the next attempt; 0 for at once, None for what
                the job's backoff says.
            retry: False makes it a dead letter at once.

        Returns:
            The job as it is now, or the dead letter.

        Raises:
            InvalidValueError: *retry_in* is not legal; the claim is still yours.
            LeaseLostError: Someone took over, or it was cancelled; nothing changed.
            UnavailableError: The durable plane did not answer for as long as the
                lease could be kept.
        """
        self._session.check_open()
        _check_claim(claim)
        return await self._orders.settling.fail(claim, error, retry_in=retry_in, retry=retry)

    async def release(self, claim: Claim, *, delay: float = 0.0) -> None:
        """
        Give the job back; the attempt does not count. For shutdowns and limits.

        Args:
            claim: The claim.
            delay: Seconds until it may be claimed again.

        Raises:
            InvalidValueError: *delay* is not legal.
            LeaseLostError: Someone took over, or it was cancelled; nothing changed.
            UnavailableError: The durable plane did not answer.
        """
        self._session.check_open()
        _check_claim(claim)
        await self._orders.settling.release(claim, delay=delay)

    # --- look and steer ---

    async def get(self, queue: str, id: str) -> Job | None:  # noqa: A002 - the word of the contract
        """Read a job; None where there is none. Dead letters are elsewhere."""
        self._session.check_open()
        check_name("queue", queue)
        record = (await self._session.durable.get(JOB + queue, [id]))[0]
        return None if record is None else job_of(record, queue)

    async def cancel(self, queue: str, id: str) -> bool:  # noqa: A002 - the word of the contract
        """
        Call a job off, whatever it is doing. Idempotent.

        The record is cancelled at once. A worker that has the job is told, and
        whatever it reports afterwards is refused; the job never runs again.

        Returns:
            True if the job is cancelled now, also if it was before; False where
            there is no such job, or it has ended otherwise.

        Raises:
            UnavailableError: The durable plane did not answer.
        """
        self._session.check_open()
        check_name("queue", queue)
        check_name("id", id)
        return await self._orders.ending.cancel(queue, id)

    async def reschedule(
        self,
        queue: str,
        id: str,  # noqa: A002 - the word of the contract
        *,
        delay: float | None = None,
        run_at: int | None = None,
    ) -> bool:
        """
        Change when a job that waits may be claimed; without a time, at once.

        It keeps its place in the order.

        Args:
            queue: The queue.
            id: The job.
            delay: Seconds from now.
            run_at: An instant in milliseconds since the epoch; not with *delay*.

        Returns:
            False where there is no such job, or it is not waiting or delayed.

        Raises:
            InvalidValueError: An argument is not legal.
            UnavailableError: The durable plane did not answer.
        """
        self._session.check_open()
        refuse_topic_queue(check_name("queue", queue))
        check_name("id", id)
        spec = JobSpec(delay=delay, run_at=run_at)
        return await self._orders.ending.reschedule(queue, id, spec)

    async def query(
        self,
        queue: str,
        *,
        status: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Page[Job]:
        """
        Read jobs of a queue, in the order of their ids.

        Ids that were made here sort by the time of adding.

        Args:
            queue: The queue.
            status: Only these: see `JobStatus`; None for all.
            limit: At most this many, 1 to 10,000.
            after: The ``next`` of the page before.

        Raises:
            InvalidValueError: An argument is not legal.
        """
        self._session.check_open()
        check_name("queue", queue)
        where = [] if status is None else [("status", "=", _job_status(status))]
        query = Query(namespace=JOB + queue, where=where, limit=limit, after=after)
        page = await self._session.durable.query(query)
        return Page([job_of(record, queue) for record in page.items], page.next)

    async def counts(self, queue: str) -> dict[str, int]:
        """
        Count the jobs of a queue by status, as the durable plane has them.

        Every status is there, also with 0. A job whose delay is over stays
        ``delayed`` until it is claimed. ``failed`` is there because it is a status,
        and stays 0: a job whose attempts ran out is a dead letter, a record of another
        kind, which `DeadLetters.counts` counts and ``oqron queues`` shows as ``dead``.
        """
        self._session.check_open()
        check_name("queue", queue)
        found: dict[str, int] = await self._session.durable.count(
            Query(namespace=JOB + queue), by="status"
        )
        return {str(status): found.get(status, 0) for status in JobStatus}

    async def pause(self, queue: str, *, reason: str | None = None) -> Control:
        """
        Stop claims of a queue. After this returned nothing is handed out.

        Jobs can still be added, and what is being worked on goes on. The state
        is durable: it survives restarts and the loss of the hot plane.

        Raises:
            UnavailableError: A plane did not answer. If only the hot one did not,
                the pause is recorded and comes into force with maintenance.
        """
        self._session.check_open()
        check_name("queue", queue)
        return await set_queue_paused(self._session, queue, paused=True, reason=reason)

    async def resume(self, queue: str) -> Control:
        """Allow claims of a queue again; otherwise as `pause`."""
        self._session.check_open()
        check_name("queue", queue)
        return await set_queue_paused(self._session, queue, paused=False, reason=None)


def _check_claim(claim: object, path: str = "claim") -> None:
    if not isinstance(claim, Claim):
        raise InvalidValueError(path, f"must be what claim gave, not a {type(claim).__name__}")


def _check_claims(claims: object) -> None:
    if not isinstance(claims, Sequence) or isinstance(claims, (str, bytes)):
        reason = f"must be a list of what claim gave, not a {type(claims).__name__}"
        raise InvalidValueError("claims", reason)
    for index, claim in enumerate(claims):
        _check_claim(claim, f"claims[{index}]")


def _filled(item: Any, defaults: JobSpec) -> tuple[Any, JobSpec]:
    """Give the payload of an item, and everything else of it."""
    if not isinstance(item, JobSpec):
        return item, defaults
    if item.delay is not None or item.run_at is not None:
        defaults = attrs.evolve(defaults, delay=None, run_at=None)
    given = {
        field.name: value
        for field in attrs.fields(JobSpec)
        if (value := getattr(item, field.name)) is not None
    }
    return item.data, attrs.evolve(defaults, **given)


def _job_status(status: str) -> str:
    try:
        return str(JobStatus(status))
    except ValueError:
        known = ", ".join(JobStatus)
        raise InvalidValueError("status", f"{status!r} is none of {known}") from None
