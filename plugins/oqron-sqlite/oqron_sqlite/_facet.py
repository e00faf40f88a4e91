"""What the facets of a hot plane have in common."""

from __future__ import annotations

import sqlite3

from collections.abc import Callable
from typing import TypeVar

import attrs

from oqron_sqlite._lane import Lane, Transaction
from oqron_sqlite._wake import Gate, Hub


__all__ = ["Place", "tickets"]

T = TypeVar("T")

_TICKETS = (
    "INSERT INTO oqron_hot_ticket (one, last) VALUES (1, :floor + :count) "
    "ON CONFLICT (one) DO UPDATE SET last = max(last, :floor) + :count RETURNING last"
)


@attrs.frozen(eq=False)
class Place:
    """
    Where the facets of one plane work.

    Attributes:
        lane: The way to the file.
        hub: Who waits there.
        gate: Whether the plane is open.
        number: The scope's number in the file.
        max_bytes: The limit of one value.
    """

    lane: Lane
    hub: Hub
    gate: Gate
    number: int
    max_bytes: int

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Run *work* in a transaction."""
        return await self.lane.write(work)

    async def read(self, work: Callable[[sqlite3.Connection, int], T]) -> T:
        """Run *work*, which changes nothing."""
        return await self.lane.read(work)


def tickets(step: Transaction, count: int, *, floor: int = 0) -> int:
    """
    Draw *count* numbers larger than any drawn before, also in a file that was lost.

    They are places in the order of queues and fencing tokens alike.

    Args:
        step: The transaction.
        count: How many.
        floor: What they must be larger than.

    Returns:
        The number before the first.
    """
    least = max(floor, step.now * 1000)
    params = {"floor": least, "count": count}
    # The first of all rows starts from the clock, in microseconds.
    [last] = step.driver.execute(_TICKETS, params).fetchone()
    return int(last) - count
