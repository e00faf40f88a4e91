"""Steps that are taken in both planes at once, where one store keeps both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import attrs

from oqron_core.planes.values import Entry, Insert, Lease, Order, Write, WriteResult


__all__ = ["JoinedPlanes", "Mark", "Settled", "Taken"]

_EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})


@attrs.frozen(eq=False)
class Mark:
    """
    What a claim writes to the record of each id that it leases.

    Compared by identity: a backend may prepare what it sends of one once. A backend may
    ask that a field by which its queries find records is guarded where it is set.

    Attributes:
        namespace: Where the records are; their ids are those that are leased.
        token_field: The field that is set to the lease's token.
        name_field: The field that is set to the name that the claim gives the lease.
        now_fields: Fields that are set to the instant of the step: milliseconds since
            the epoch, by the durable plane's clock.
        set: Other fields and their values, as in `Patch`.
        increment: Integer fields and what to add, as in `Patch`.
        expect: Guards, as in `Patch`, but of no list and no object.
    """

    namespace: str
    token_field: str
    name_field: str
    now_fields: Sequence[str] = ()
    set: Mapping[str, Any] = _EMPTY
    increment: Mapping[str, int] = _EMPTY
    expect: Mapping[str, Any] = _EMPTY


@attrs.frozen
class Taken:
    """
    What a claim took.

    Attributes:
        now: The instant of the step, by the durable plane's clock.
        leases: The leases, in the order of the queue.
        names: For each lease the name that it was given.
        results: For each lease whether its mark was applied, and the whole record after it.
    """

    now: int
    leases: Sequence[Lease]
    names: Sequence[str]
    results: Sequence[WriteResult]


@attrs.frozen
class Settled:
    """
    What became of ends.

    Attributes:
        results: For each write whether it was applied; the records without their values.
        acknowledged: For each lease whether it was held and is gone.
    """

    results: Sequence[WriteResult]
    acknowledged: Sequence[bool]


class JoinedPlanes(ABC):
    """Steps over both planes of one store; see `DurablePlane.joined`."""

    __slots__ = ()

    @abstractmethod
    async def add(
        self, queue: str, inserts: Sequence[Insert], entries: Sequence[Entry], *, token: str
    ) -> Sequence[WriteResult]:
        """
        Insert records, and publish the entries of those that were inserted.

        Of each pair both are done or none. Entries become claimable in the order of
        the batch, and behind those of every call that was made before; an entry whose
        record was refused is not touched.

        Args:
            queue: The queue of the entries.
            inserts: The records; any number.
            entries: For each record its entry.
            token: Names the call. Where it had no answer, the same call with the same
                token, within a minute, does what had not been done and gives the answer
                of the first: a job may have been worked and be gone by then, and must
                not come again.

        Returns:
            For each insert whether it was applied; the records without their values.

        Raises:
            InvalidValueError: A value is not legal; nothing was written.
            UnavailableError: No answer; each pair may have been done.
        """

    @abstractmethod
    def claim(
        self,
        queue: str,
        mark: Mark,
        *,
        owner: str,
        lease_for: float,
        limit: int,
        order: Order,
        names: str,
        now: int,
    ) -> Awaitable[Taken]:
        """
        Lease ready ids, as `Broker.claim` does, and mark the record of each.

        One atomic step. An id whose record is absent, or refuses the mark as it would a
        `Patch`, is leased all the same: its result says that nothing was applied.

        May be a coroutine, or send its call at once and give what waits for the answer,
        so that a caller has the time between for itself; it is awaited once at most.

        Args:
            queue: The queue.
            mark: What is written.
            owner: As of `Broker.claim`.
            lease_for: Likewise.
            limit: At most this many, up to 1000.
            order: As of `Broker.claim`.
            names: What the names of the leases begin with; four hexadecimal digits
                follow, counted from 0. It names the call as well: where it had no answer,
                the same call again takes nothing more, and gives what the first has
                taken, with the records as they are now: for a minute, and for as long as
                its leases last, up to an hour. With a limit of 0 nothing is taken, nor by a
                call of these names that comes in later.
            now: What the clock of the durable plane says, as far as the caller knows. A
                step that comes in when nobody can be waiting for its answer any more
                takes nothing: a job whose claim was never seen has lost an attempt.

        Returns:
            What was taken, perhaps nothing.

        Raises:
            InvalidValueError: A value is not legal; nothing was taken.
            UnavailableError: No answer; it may have been done.
        """

    @abstractmethod
    async def settle(
        self, queue: str, writes: Sequence[Write], leases: Sequence[Lease], *, atomic: bool = False
    ) -> Settled:
        """
        Apply writes, and acknowledge the leases of those that were applied.

        Of each write and its lease both in one step.

        Args:
            queue: The queue of all leases.
            writes: As of `DurablePlane.write`, but guarded by no list and no object.
            leases: The leases of the first writes, in their order; other writes have none.
            atomic: All are applied, or none.

        Raises:
            InvalidValueError: A value is not legal; nothing was written.
            ConflictError: *atomic*, and a write could not be applied; names it.
            UnavailableError: No answer; each may have been done, unless *atomic*, where
                all or none were.
        """
