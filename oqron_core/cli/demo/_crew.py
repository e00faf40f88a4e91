"""The workers: claim, handle, settle; one of them dies on the way."""

from __future__ import annotations

import asyncio
import zlib

from collections.abc import Callable
from typing import Any, Final

import attrs

from oqron_core.cli.demo._equality import Ledger
from oqron_core.cli.demo._items import MAX_ATTEMPTS, Cast, Item
from oqron_core.exceptions import LeaseLostError
from oqron_core.models import Backoff, JobSpec
from oqron_core.protocol.claims import Claim
from oqron_core.storage import Storage


__all__ = ["Crew", "Death"]

_BACKOFF: Final = Backoff.exponential(0.05, cap=0.2)
_LEASE: Final = 3.0
_SHORT_LEASE: Final = 0.5
"""The lease of the worker that dies: nobody wants to wait long for its jobs."""
_LATER: Final = 3600.0
_IDLE: Final = 0.2
_LOOK_EVERY: Final = 0.01
_MOST: Final = 10
_FATAL: Final = 3


@attrs.define
class Death:
    """
    What became of the worker that died.

    Attributes:
        worker: Its name.
        claims: What it held when it died.
        refused: What the storage said to its late report; None if it took it.
    """

    worker: str
    claims: list[Claim] = attrs.field(factory=list)
    refused: str | None = None

    @property
    def tokens(self) -> dict[str, int]:
        """The fencing tokens it held, by job."""
        return {claim.lease.id: claim.lease.token for claim in self.claims}


class Crew:
    """
    Workers over one storage. The last one of them dies.

    Args:
        storage: The storage.
        cast: What there is to do, and who fails.
        ledger: Notes whether claimed payloads are what was sent.
        workers: How many, at least 2.
        tell: Called with what is worth showing.
    """

    def __init__(
        self,
        storage: Storage,
        cast: Cast,
        ledger: Ledger,
        *,
        workers: int,
        tell: Callable[[str], None],
    ) -> None:
        self._storage = storage
        self._cast = cast
        self._ledger = ledger
        self._tell = tell
        self._names = [f"worker-{number}" for number in range(1, workers + 1)]
        self._batch = max(1, min(_MOST, len(cast.items) // (workers * 4)))
        self._stop = asyncio.Event()
        self._started = asyncio.Event()
        self.death = Death(self._names[-1])

    async def add(self, later: Item) -> None:
        """Add every job, and one that is not due yet."""
        jobs = self._storage.jobs
        for queue in self._cast.queues:
            specs = [_spec(item) for item in self._cast.items if item.queue == queue]
            await jobs.add_many(queue, specs, max_attempts=MAX_ATTEMPTS, backoff=_BACKOFF)
        await jobs.add(later.queue, later.payload, id=later.id, delay=_LATER, tags=list(later.tags))

    async def work(self) -> None:
        """Work until `stop`."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._doomed(self._names[-1]))
            for name in self._names[:-1]:
                group.create_task(self._worker(name))

    def stop(self) -> None:
        """Let every worker finish what it holds, and end."""
        self._stop.set()

    async def _worker(self, name: str) -> None:
        await self._started.wait()
        while not self._stop.is_set():
            await self._turn(name)

    async def _turn(self, name: str) -> bool:
        """Claim one batch and settle it; False where there was nothing."""
        claims = await self._claim(name, limit=self._batch, lease_for=_LEASE)
        if not claims:
            await self._storage.hot.broker.wait(self._cast.queues, timeout=_IDLE)
            await asyncio.sleep(_LOOK_EVERY)
            return False
        async with self._storage.jobs.keep(claims, lease_for=_LEASE):
            for claim in claims:
                await self._attempt(name, claim)
        return True

    async def _claim(self, name: str, *, limit: int, lease_for: float) -> list[Claim]:
        # Everyone starts at another queue, so that none of them waits for its turn.
        queues = self._cast.queues
        first = self._names.index(name) % len(queues)
        for queue in (*queues[first:], *queues[:first]):
            claims = await self._storage.jobs.claim(
                queue, limit=limit, lease_for=lease_for, worker=name
            )
            if claims:
                for claim in claims:
                    self._ledger.compare("claim", claim.lease.id, claim.data)
                return claims
        return []

    async def _attempt(self, name: str, claim: Claim) -> None:
        old = self.death.tokens.get(claim.lease.id)
        if old is not None and claim.lease.token > old and name != self.death.worker:
            self._tell(f"{name} took over {claim.lease.id}, attempt {claim.attempt}")
        try:
            output = await self._handle(claim)
        except (OSError, ValueError) as error:
            job = await self._storage.jobs.fail(claim, error)
            if job.dead_at is not None:
                self._tell(f"{claim.lease.id} is a dead letter: {job.reason}")
        else:
            await self._storage.jobs.complete(claim, output)

    async def _handle(self, claim: Claim) -> dict[str, Any]:
        """Do a job's work: a moment of waiting, some words, and perhaps a failure."""
        job_id = claim.lease.id
        moment = 0.004 + zlib.crc32(job_id.encode()) % 12 / 1000
        claim.run.log("info", f"attempt {claim.attempt} of {MAX_ATTEMPTS}")
        await asyncio.sleep(moment / 2)
        claim.run.progress(50, "half of it done")
        await asyncio.sleep(moment / 2)
        if claim.attempt <= self._cast.failures.get(job_id, 0):
            raise _failure(claim, poison=self._cast.failures[job_id] == MAX_ATTEMPTS)
        return {"ok": True, "attempt": claim.attempt}

    # --- the one that dies ---

    async def _doomed(self, name: str) -> None:
        """Work like the others at first, then hold jobs and do nothing more."""
        self._started.set()
        if len(self._cast.items) > len(self._names) * _FATAL:
            await self._turn(name)
        while not self._stop.is_set():
            claims = await self._claim(name, limit=_FATAL, lease_for=_SHORT_LEASE)
            held = [claim for claim in claims if not self._is_told(claim)]
            for claim in claims:
                # A lapse would take one of the three runs that these are to show.
                if self._is_told(claim):
                    await self._attempt(name, claim)
            if held:
                await self._die(name, held)
                return
            await asyncio.sleep(_LOOK_EVERY)

    def _is_told(self, claim: Claim) -> bool:
        """Whether this is the job that fails twice, or the one that never succeeds."""
        return self._cast.failures.get(claim.lease.id, 0) > 1

    async def _die(self, name: str, claims: list[Claim]) -> None:
        # From here on it renews nothing and settles nothing, as a process that was
        # killed. That it reports once more, too late, is what a process does that
        # was only frozen.
        self.death.claims = claims
        held = ", ".join(claim.lease.id for claim in claims)
        self._tell(f"{name} died holding {held}")
        claim = claims[0]
        await self._until_taken_over(claim)
        try:
            await self._storage.jobs.complete(claim, {"ok": True, "late": True})
        except LeaseLostError as error:
            self.death.refused = str(error)
            self._tell(f"{name} came back with {claim.lease.id}: refused, {error.reason}")

    async def _until_taken_over(self, claim: Claim) -> None:
        queue, job_id, token = claim.lease.queue, claim.lease.id, claim.lease.token
        while not self._stop.is_set():
            job = await self._storage.jobs.get(queue, job_id)
            if job is None or job.lease_token != token:
                return
            await asyncio.sleep(_LOOK_EVERY)


def _failure(claim: Claim, *, poison: bool) -> Exception:
    if poison:
        return ValueError("this payload cannot be worked on, however often it is tried")
    number = zlib.crc32(claim.lease.id.encode()) + claim.attempt
    troubles = (
        ConnectionError("the receiver answered 503"),
        TimeoutError("no answer within 5 seconds"),
        ConnectionResetError("the receiver hung up"),
    )
    return troubles[number % len(troubles)]


def _spec(item: Item) -> JobSpec:
    return JobSpec(item.payload, id=item.id, tags=list(item.tags))
