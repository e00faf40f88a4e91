"""The records of one scope: namespaces, their rows and their indexes."""

from __future__ import annotations

import bisect

from collections.abc import Iterator
from typing import Final

from oqron_core.planes import Query
from oqron_core.taxonomy import RecordKind, classify_namespace
from oqron_memory._rows import Row
from oqron_memory._timed import TimedHeap


__all__ = ["Namespace", "Records"]

_SLACK: Final = 64
_GRACE_MS: Final = 60_000
"""How long an expired row waits for `prune` before a write removes it."""


class Namespace:
    """
    One namespace.

    Attributes:
        name: Its name.
        kind: Its kind.
        rows: By id, expired ones included.
        expiring: The rows that expire.
    """

    __slots__ = ("_late", "_order", "expiring", "kind", "name", "rows")

    def __init__(self, name: str) -> None:
        self.name = name
        self.kind = classify_namespace(name)
        self.rows: dict[str, Row] = {}
        self.expiring: TimedHeap[Row] = TimedHeap()
        # The ids in order, made when a query first asks for them, and those
        # that came in since without being the largest. May hold ids that are gone.
        self._order: list[str] | None = None
        self._late: list[str] = []

    def index_size(self) -> int:
        """How many entries its indexes hold, stale ones included."""
        return len(self._order or ()) + len(self._late) + len(self.expiring)

    def get(self, name: str, now: int) -> Row | None:
        """Give the row of the id *name*, or None where it is absent or expired."""
        row = self.rows.get(name)
        if row is None or (row.at is not None and row.at <= now):
            return None
        return row

    def add(self, row: Row, expires_at: int | None) -> None:
        """Put a new row in."""
        self.rows[row.id] = row
        if expires_at is not None:
            self.expiring.set(row, expires_at)
        order = self._order
        if order is not None:
            if not order or row.id > order[-1]:
                order.append(row.id)
            else:
                self._late.append(row.id)
            if len(order) + len(self._late) > 2 * len(self.rows) + _SLACK:
                self._order, self._late = None, []

    def expire(self, row: Row, expires_at: int | None) -> None:
        """Set when *row* expires."""
        if expires_at is None:
            self.expiring.discard(row)
            row.at = None
        else:
            self.expiring.set(row, expires_at)

    def drop(self, row: Row) -> None:
        """Take *row* out."""
        del self.rows[row.id]
        self.expiring.discard(row)

    def after(
        self, bound: str | None, now: int, *, least: str = "", most: str | None = None
    ) -> Iterator[Row]:
        """
        Walk the rows in the order of ids.

        Args:
            bound: Only those after this id; None for all of them.
            now: The instant by which rows have expired.
            least: The first id that matters.
            most: The last id that matters; None where there is no such end.
        """
        order = self._sorted()
        start = 0 if bound is None else bisect.bisect_right(order, bound)
        if least:
            start = max(start, bisect.bisect_left(order, least))
        last = None
        for index in range(start, len(order)):
            name = order[index]
            if most is not None and name > most:
                return
            # An id that left and came back may stand here twice.
            if name != last:
                last = name
                row = self.get(name, now)
                if row is not None:
                    yield row

    def _sorted(self) -> list[str]:
        order = self._order
        if order is None or len(order) + len(self._late) > 2 * len(self.rows) + _SLACK:
            order = self._order = sorted(self.rows)
            self._late = []
        elif self._late:
            if len(self._late) * _SLACK < len(order):
                # A few find their places sooner than all of them are sorted.
                for name in self._late:
                    bisect.insort(order, name)
            else:
                order.extend(self._late)
                order.sort()
            self._late = []
        return order

    def expiring_by(self, at: int) -> list[Row]:
        """List the rows that expire by *at*."""
        return self.expiring.by(at)

    def present(self, now: int) -> Iterator[Row]:
        """Walk the rows that have not expired, in no order."""
        if not self.expiring.live:
            yield from self.rows.values()
            return
        for row in self.rows.values():
            if row.at is None or row.at > now:
                yield row


class Records:
    """
    The namespaces of one scope.

    Attributes:
        namespaces: By name; none of them is empty.
    """

    __slots__ = ("_by_kind", "_round", "namespaces")

    def __init__(self) -> None:
        self.namespaces: dict[str, Namespace] = {}
        self._by_kind: dict[RecordKind, dict[str, Namespace]] = {}
        self._round: list[str] = []

    def total(self) -> int:
        """How many rows there are, expired ones included."""
        return sum(len(space.rows) for space in self.namespaces.values())

    def index_sizes(self) -> int:
        """How many entries all indexes hold."""
        return sum(space.index_size() for space in self.namespaces.values())

    def make(self, name: str) -> Namespace:
        """Give the namespace *name*, made where it is new."""
        space = self.namespaces.get(name)
        if space is None:
            space = self.namespaces[name] = Namespace(name)
            self._by_kind.setdefault(space.kind, {})[name] = space
        return space

    def tidy(self, space: Namespace) -> None:
        """Let go of *space* if it is empty."""
        if not space.rows and self.namespaces.get(space.name) is space:
            del self.namespaces[space.name]
            del self._by_kind[space.kind][space.name]

    def select(self, query: Query) -> list[Namespace]:
        """Give the namespaces that *query* may find something in, by name."""
        if query.namespace is not None:
            space = self.namespaces.get(query.namespace)
            if space is None or (query.kind is not None and space.kind != query.kind):
                return []
            return [space]
        if query.kind is None:
            return []
        spaces = self._by_kind.get(query.kind, {})
        return [spaces[name] for name in sorted(spaces)]

    def remove_expired(self, now: int) -> int:
        """Remove everything that has expired; gives the bytes that it took."""
        freed = 0
        for space in list(self.namespaces.values()):
            freed += self._remove(space, now, 2**31)[1]
        return freed

    def sweep(self, first: Namespace, now: int, most: int) -> int:
        """
        Remove what expired some time ago and nobody pruned, a little at a time.

        Visits *first* and a few namespaces in turn, so that one that is never
        written to again is emptied too.

        Returns:
            The bytes that it took.
        """
        freed = 0
        for space in (first, *self._next_spaces(3)):
            count, size = self._remove(space, now - _GRACE_MS, most)
            most -= count
            freed += size
        return freed

    def _next_spaces(self, count: int) -> list[Namespace]:
        spaces = []
        if not self._round:
            self._round = list(self.namespaces)
        for _ in range(min(count, len(self._round))):
            space = self.namespaces.get(self._round.pop())
            if space is not None:
                spaces.append(space)
        return spaces

    def _remove(self, space: Namespace, before: int, most: int) -> tuple[int, int]:
        count = freed = 0
        while count < most and (row := space.expiring.pop_due(before)) is not None:
            space.drop(row)
            count += 1
            freed += row.size
        if count:
            self.tidy(space)
        return count, freed
