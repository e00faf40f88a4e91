"""The durable plane: truth and history, as records in namespaces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from oqron_core.exceptions import CapabilityError
from oqron_core.planes.capabilities import Capabilities
from oqron_core.planes.values import (
    Health,
    Page,
    Query,
    Record,
    Scope,
    Write,
    WriteResult,
)


if TYPE_CHECKING:
    from oqron_core.planes.hot import HotPlane
    from oqron_core.planes.joined import JoinedPlanes


__all__ = ["BoundDurablePlane", "DurablePlane"]


class DurablePlane(ABC):
    """
    The durable plane of one backend, bound to one scope.

    A record is a JSON object under ``(namespace, id)``; its kind is stamped from
    the namespace. A record past ``expires_at`` is absent from every method but
    `prune` at once, and may be inserted anew. The rules of the hot plane hold
    here too: lists in the same order, atomic items, no round trip for nothing,
    safe to cancel, one clock, typed errors.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def scope(self) -> Scope:
        """The scope that the plane is bound to."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What the plane can do."""

    @abstractmethod
    async def get(self, namespace: str, ids: Sequence[str]) -> Sequence[Record | None]:
        """
        Read records by id, in one round trip.

        Returns:
            For each id its record, or None.

        Raises:
            InvalidValueError: A name is not legal.
            UnavailableError: No answer.
        """

    @abstractmethod
    async def write(
        self,
        writes: Sequence[Write],
        *,
        atomic: bool = False,
        returning: Sequence[str] | None = None,
    ) -> Sequence[WriteResult]:
        """
        Apply a batch of writes.

        Writes to the same record are applied in the order of the batch; the
        order between records is not promised, and two batches never deadlock.
        Values are checked before anything is written.

        A backend whose tables are queried by others may be stricter in table
        ``oqron_runs``: instants (``startedAt``, ``endedAt``, ``publishedAt``) must
        be numbers or null there, and labels short strings, as the published queries
        cast and index them. Core writes nothing else.

        Args:
            writes: Any number; more than ``capabilities.max_batch`` are split
                into several steps unless *atomic*.
            atomic: All are applied, or none.
            returning: Which top-level fields of the records the results hold;
                None for whole values, ``()`` for none. Ask for what you read.

        Returns:
            For each write whether it was applied, and the record after it.

        Raises:
            InvalidValueError: A value is not portable or too large, or an atomic
                batch is larger than the capability.
            ConflictError: *atomic*, and a write could not be applied; names it.
            CapabilityError: *atomic*, and the backend does not declare it.
            UnavailableError: No answer; each write may have been applied, unless
                *atomic*, where all or none were.
        """

    @abstractmethod
    async def query(self, query: Query) -> Page[Record]:
        """
        Read one page of records.

        The cursor neither skips nor repeats a record that keeps its place,
        whatever is written meanwhile.

        Raises:
            InvalidValueError: The cursor is not of this query.
            UnavailableError: No answer.
        """

    @abstractmethod
    async def count(self, query: Query, *, by: str | None = None) -> Any:
        """
        Count records; limit, order and cursor of *query* are left aside.

        Args:
            query: Which records.
            by: None for the total; ``namespace``, or a top-level field whose
                string values are counted apart.

        Returns:
            An int, or with *by* a dict from each string that occurs to its
            count; what has no string there is under ``""``.
        """

    @abstractmethod
    async def prune(self, query: Query, *, limit: int = 1000) -> int:
        """
        Delete up to *limit* records that match, expired ones included.

        Bounded, does not load values, and does not make writers wait. Repeat
        until it gives less than *limit*.

        Args:
            query: Which records; its limit, order and cursor are left aside.
            limit: At most this many, >= 1.

        Returns:
            How many were deleted.
        """

    @abstractmethod
    async def prunable(self, query: Query) -> tuple[int, int]:
        """
        Say what `prune` with this query would delete now, and delete nothing.

        Does not load values, and does not make writers wait.

        Args:
            query: Which records, expired ones included; its limit, order and
                cursor are left aside.

        Returns:
            How many records, and how many bytes they take as they are stored;
            what a backend counts as bytes is its own, so compare within one.

        Raises:
            UnavailableError: No answer.
        """

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

    def bind(self, transaction: Any) -> BoundDurablePlane:
        """
        Give a plane that writes inside the caller's own transaction.

        Only with ``capabilities.transactions``. What is written there is seen
        by others when the caller commits, and never if the caller rolls back.

        Args:
            transaction: What the backend documents: a connection or session.

        Raises:
            CapabilityError: The backend does not declare it.
        """
        del transaction
        msg = (
            f"backend {self.capabilities.backend!r} cannot join a transaction of the "
            "caller; add without transaction=, or use a durable backend that declares "
            "transactions (oqron plan shows which)"
        )
        raise CapabilityError(msg)

    def joined(self, hot: HotPlane) -> JoinedPlanes | None:
        """
        Give the steps that can be taken in this plane and *hot* at the same time.

        For a backend that keeps both planes in one store. The default gives None: core
        then writes here first and tells the hot plane after it.

        Args:
            hot: The hot plane of the same storage, perhaps of another backend.

        Returns:
            The steps, or None where *hot* is not this plane's own sister.
        """
        del hot
        return None


class BoundDurablePlane(DurablePlane):
    """A durable plane inside a transaction of its caller's; see `DurablePlane.bind`."""

    __slots__ = ()

    @abstractmethod
    async def after_commit(self, callback: Callable[[], Awaitable[None]]) -> None:
        """
        Have *callback* run soon after the caller has committed, in this loop.

        Never if the caller rolls back, and not promised: maintenance does what it
        would have done. What it raises is logged.

        Args:
            callback: Takes nothing, is awaited once.

        Raises:
            UnavailableError: The transaction is broken.
        """
