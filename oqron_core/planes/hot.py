"""
The hot plane: speed and coordination.

Six facets over one store, all bound to one scope. Everything in them can be
lost and is rebuilt from the durable plane, so no payload of a job is ever here.

Rules for every method: a batch is given and answered as a list in the same
order; each item is atomic; an empty batch is answered without a round trip;
cancelling at any await is safe (a lease that was taken and not delivered
lapses); the plane's own clock judges every expiry; driver errors arrive as
`UnavailableError`, `TimedOutError` or another `StorageError`; after closing
every method raises `ClosedError`; bad arguments raise `InvalidValueError` before
anything is done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from oqron_core.planes.capabilities import Capabilities
from oqron_core.planes.limits import Decision, RateLimit
from oqron_core.planes.values import (
    Counts,
    Entry,
    Health,
    Lease,
    LiveChange,
    Missing,
    Order,
    Published,
    Scope,
    Signal,
)


__all__ = ["Broker", "Cache", "Counters", "HotPlane", "LiveRuns", "Locks", "Signals"]


class Broker(ABC):
    """
    Queues of ids. Payloads stay in the durable plane.

    An id is in a queue at most once: ready, delayed or leased. The order of what
    is ready is by priority, lower first, then by the order of first publishing,
    which an id keeps when it is moved, given back or returned from a lapsed
    lease; it is counted, never timed.
    """

    __slots__ = ()

    @abstractmethod
    async def publish(self, queue: str, entries: Sequence[Entry]) -> Sequence[Published]:
        """
        Make ids claimable, now or when they are due. Idempotent.

        An id that is ready or delayed keeps its place in the order and takes the
        priority and due time given; an id that is leased is left alone. The same
        id twice in a batch counts as published twice.

        Args:
            queue: The queue, 1 to 255 characters.
            entries: Ids with priority and due time. One whose due time has
                passed is ready.

        Returns:
            What was done with each entry.

        Raises:
            InvalidValueError: A name, priority or due time is not legal.
            UnavailableError: No answer; some entries may have been published.
        """

    @abstractmethod
    async def claim(
        self,
        queue: str,
        *,
        owner: str,
        lease_for: float,
        limit: int = 1,
        order: Order = "fifo",
    ) -> Sequence[Lease]:
        """
        Hand out up to *limit* ready ids under leases, in one atomic step.

        The step first makes ready what is due and what is under a lapsed lease;
        then, unless the queue is paused, it leases in order. Returns at once.

        Args:
            queue: The queue.
            owner: Who asks, 1 to 255 characters.
            lease_for: Seconds until the leases lapse unless renewed; >= 0.05.
            limit: At most this many; 0 gives none.
            order: ``fifo``, or ``lifo`` for the youngest of a priority first.

        Returns:
            Leases in the order of the queue; their tokens grow.

        Raises:
            InvalidValueError: An argument is not legal.
            UnavailableError: No answer; what was leased lapses.
        """

    @abstractmethod
    async def wait(self, queues: Sequence[str], *, timeout: float) -> Sequence[str]:
        """
        Sleep until one of *queues* may have something to claim. Takes nothing.

        Returns at once where something is ready, due or lapsed already. A paused
        queue wakes nobody until it is resumed. Does not poll, and does not keep
        other calls waiting. May wake for nothing.

        Args:
            queues: At least one queue.
            timeout: Seconds, >= 0.

        Returns:
            The queues that may have work; empty when the time is over.

        Raises:
            InvalidValueError: An argument is not legal.
            UnavailableError: The store did not answer.
        """

    @abstractmethod
    async def renew(self, leases: Sequence[Lease], *, lease_for: float) -> Sequence[bool]:
        """
        Let each lease last *lease_for* seconds from now.

        Returns:
            For each lease, True, or False where it has lapsed, was settled or
            removed, or where its token is stale; nothing is changed then. A
            lease that has lapsed is False also where nobody has taken over yet.

        Raises:
            InvalidValueError: *lease_for* is not legal.
            UnavailableError: No answer; some leases may have been renewed.
        """

    @abstractmethod
    async def ack(self, leases: Sequence[Lease]) -> Sequence[bool]:
        """
        Finish: the ids leave their queues.

        Returns:
            For each lease, True, or False where the token is stale or the lease
            has lapsed; nothing is changed then.

        Raises:
            UnavailableError: No answer; some may have been finished.
        """

    @abstractmethod
    async def nack(
        self, leases: Sequence[Lease], *, delay: float = 0.0, priority: int | None = None
    ) -> Sequence[bool]:
        """
        Give back: the ids are ready again, or delayed, in their old place.

        Args:
            leases: What is given back.
            delay: Seconds until they are due; 0 for at once.
            priority: The new priority; None keeps it.

        Returns:
            For each lease, True, or False where the token is stale or the lease
            has lapsed; nothing is changed then.

        Raises:
            InvalidValueError: An argument is not legal.
            UnavailableError: No answer; some may have been given back.
        """

    @abstractmethod
    async def remove(self, queue: str, ids: Sequence[str]) -> Sequence[bool]:
        """
        Take ids out of *queue*, whether ready, delayed or leased.

        Returns:
            For each id, whether it was there.
        """

    @abstractmethod
    async def contains(self, queue: str, ids: Sequence[str]) -> Sequence[bool]:
        """Say for each id whether it is in *queue*: ready, delayed or leased."""

    @abstractmethod
    async def counts(self, queue: str) -> Counts:
        """
        Count what *queue* holds now: exact, and cheap at any depth.

        What is due or lapsed counts as ready. An unknown queue counts zero.
        """

    @abstractmethod
    async def queues(self) -> Sequence[str]:
        """Name the queues that hold an id or are paused, sorted."""

    @abstractmethod
    async def purge(self, queue: str) -> int:
        """
        Empty *queue*, leases included; whether it is paused stays.

        Returns:
            How many ids were in it.
        """

    @abstractmethod
    async def pause(self, queue: str) -> None:
        """Stop claims: after this returned, none hands anything out. Idempotent."""

    @abstractmethod
    async def resume(self, queue: str) -> None:
        """Allow claims again, and wake who waits. Idempotent."""

    @abstractmethod
    async def reap(self, queue: str, *, limit: int = 1000) -> Sequence[str]:
        """
        Make ready what is under a lapsed lease, without claiming.

        `claim` does the same in its own step; this is for queues that nobody
        claims from, and to see what lapsed.

        Args:
            queue: The queue, also a paused one.
            limit: At most this many in one step.

        Returns:
            The ids, those that lapsed first in front.
        """

    @abstractmethod
    async def restore(self, queue: str, leases: Sequence[Lease]) -> Sequence[bool]:
        """
        Put leases back as they were, after the plane was lost. Idempotent.

        The id is leased with the token, owner, expiry, deliveries and priority
        of the lease; later tokens of the queue are larger. An id that the queue
        knows already is left alone.

        Returns:
            For each lease, whether it was put back.

        Raises:
            InvalidValueError: A lease is of another queue.
            UnavailableError: No answer; some may have been put back.
        """


class Locks(ABC):
    """Named locks with leases and fencing tokens. Not re-entrant."""

    __slots__ = ()

    @abstractmethod
    async def acquire(self, key: str, *, owner: str, lease_for: float) -> Lease | None:
        """
        Take the lock if nobody holds it. Does not wait.

        Args:
            key: The lock, 1 to 255 characters.
            owner: Who asks; the same owner asking twice is refused too.
            lease_for: Seconds until it lapses unless renewed; >= 0.05.

        Returns:
            A lease with ``queue=""`` and ``id=key``, whose token is larger than
            any given for this key before; None where it is held.

        Raises:
            InvalidValueError: An argument is not legal.
            UnavailableError: No answer; what may have been taken lapses.
        """

    @abstractmethod
    async def renew(self, lease: Lease, *, lease_for: float) -> bool:
        """Let the lease last *lease_for* seconds from now; False where it is lost."""

    @abstractmethod
    async def release(self, lease: Lease) -> bool:
        """Give the lock back; False, and nothing changed, where it is lost."""

    @abstractmethod
    async def holder(self, key: str) -> Lease | None:
        """Show the lease that holds *key*, or None."""


class Counters(ABC):
    """Integers that expire, and rate limits."""

    __slots__ = ()

    @abstractmethod
    async def increment(self, key: str, *, by: int = 1, expires_in: float | None = None) -> int:
        """
        Add *by* and give the sum back. An absent counter starts at 0.

        Args:
            key: The counter, 1 to 255 characters.
            by: What to add, negative to subtract.
            expires_in: Seconds until the counter is absent again, >= 0.001. It
                is set in the same step, and only where the counter has none: a
                later call does not push it forward. None sets none.

        Raises:
            InvalidValueError: An argument is not legal, or the sum would leave
                64 bits.
            UnavailableError: No answer; it may have been added.
        """

    @abstractmethod
    async def get(self, key: str) -> int | None:
        """Read a counter; None where it is absent or expired."""

    @abstractmethod
    async def reset(self, key: str) -> bool:
        """Make *key*, counter or limit, absent; False where it was."""

    @abstractmethod
    async def take(self, key: str, limit: RateLimit, *, cost: int = 1) -> Decision:
        """
        Take *cost* from the limit of *key* if it allows it, in one atomic step.

        Counters and limits of the same key are apart, as are limits of different
        types. The state of a key expires by itself.

        Args:
            key: What is limited, 1 to 255 characters.
            limit: The algorithm and its numbers.
            cost: How much to take, >= 0; 0 looks without taking, and is allowed
                if 1 would be.

        Raises:
            InvalidValueError: An argument is not legal, or *cost* is more than
                the limit can ever allow.
            UnavailableError: No answer; it may have been taken.
        """


class Cache(ABC):
    """Values that expire. None is a value; a miss is `MISSING`."""

    __slots__ = ()

    @abstractmethod
    async def get_many(self, keys: Sequence[str]) -> Sequence[Any | Missing]:
        """Read; for each key a fresh copy of the value, or `MISSING`."""

    @abstractmethod
    async def set_many(self, entries: Mapping[str, Any], *, ttl: float | None = None) -> None:
        """
        Write portable values, replacing what is there.

        Args:
            entries: Keys and values.
            ttl: Seconds until they are absent, >= 0.001; None for no expiry.

        Raises:
            InvalidValueError: A key, value or *ttl* is not legal; nothing is written.
            UnavailableError: No answer; some may have been written.
        """

    @abstractmethod
    async def add(self, key: str, value: Any, *, ttl: float | None = None) -> bool:
        """Write only where the key is absent, atomically; whether it was written."""

    @abstractmethod
    async def delete_many(self, keys: Sequence[str]) -> Sequence[bool]:
        """Remove; for each key whether it was there."""


class LiveRuns(ABC):
    """The live overlay of running runs: what is known before history has it."""

    __slots__ = ()

    @abstractmethod
    async def merge(
        self,
        run_id: str,
        fields: Mapping[str, Any],
        logs: Sequence[Any] = (),
        timeline: Sequence[Any] = (),
    ) -> None:
        """
        Set top-level fields and append entries, in O(change).

        Creates the run if it is absent, and counts as a sign of life also when
        nothing changed.

        Args:
            run_id: The run.
            fields: Top-level fields by wire names; ``logs`` and ``timeline`` are
                not among them.
            logs: Entries to append to ``logs``.
            timeline: Entries to append to ``timeline``.

        Raises:
            InvalidValueError: Something is not portable.
            UnavailableError: No answer; it may have been merged.
        """

    async def merge_many(self, changes: Sequence[LiveChange]) -> None:
        """
        Merge a batch, each item as `merge` does.

        The default merges one by one; a backend with round trips overrides it.
        """
        for change in changes:
            await self.merge(change.run_id, change.fields, change.logs, change.timeline)

    @abstractmethod
    async def get(self, run_id: str) -> dict[str, Any] | None:
        """Read one: its fields with ``logs`` and ``timeline`` as lists; None if absent."""

    async def get_many(self, run_ids: Sequence[str]) -> Sequence[dict[str, Any] | None]:
        """Read a batch, as `get` does."""
        return [await self.get(run_id) for run_id in run_ids]

    @abstractmethod
    async def drop(self, run_ids: Sequence[str]) -> Sequence[bool]:
        """Remove; for each run whether it was there."""

    @abstractmethod
    async def active(self, *, limit: int = 1000) -> Sequence[str]:
        """Name live runs, those merged last in front."""

    @abstractmethod
    async def stale(self, *, older_than: float, limit: int = 1000) -> Sequence[str]:
        """
        Name live runs without a merge for *older_than* seconds, oldest first.

        Args:
            older_than: Seconds, >= 0, by the plane's clock.
            limit: At most this many.
        """


class Signals(ABC):
    """Fan-out that may lose messages: wake-ups, cancels, invalidations."""

    __slots__ = ()

    @abstractmethod
    async def publish(self, channel: str, message: Any) -> None:
        """
        Tell every subscriber of *channel* in this scope, each at most once.

        Args:
            channel: 1 to 255 characters.
            message: A portable value.

        Raises:
            InvalidValueError: Not portable, or no legal channel.
            UnavailableError: No answer; it may have been told.
        """

    @abstractmethod
    def subscribe(
        self, channels: Sequence[str]
    ) -> AbstractAsyncContextManager[AsyncIterator[Signal]]:
        """
        Listen to *channels* from the moment the context is entered.

        What is on its way at that moment between the nodes of a store may be heard too.
        A subscriber that is slow loses the oldest messages; one whose connection
        breaks gets a new one and misses what was published meanwhile. Iteration
        ends when the plane is closed.
        """


class HotPlane(ABC):
    """
    The hot plane of one backend, bound to one scope.

    Attributes:
        broker: Queues of ids.
        locks: Named locks.
        counters: Counters and rate limits.
        cache: Values that expire.
        live: The live overlay of runs.
        signals: Lossy fan-out.
    """

    __slots__ = ()

    broker: Broker
    locks: Locks
    counters: Counters
    cache: Cache
    live: LiveRuns
    signals: Signals

    @property
    @abstractmethod
    def scope(self) -> Scope:
        """The scope that the plane is bound to."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What the plane can do."""

    @abstractmethod
    async def now(self) -> int:
        """
        Read the clock that judges expiry here: milliseconds since the epoch.

        Raises:
            UnavailableError: No answer.
        """

    @abstractmethod
    async def check(self) -> Health:
        """Look after the store. Does not raise for a store that is down."""
