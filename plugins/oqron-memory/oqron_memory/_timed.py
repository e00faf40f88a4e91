"""Things with a time: heaps with lazy deletion, and maps that forget by themselves."""

from __future__ import annotations

import heapq

from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar


__all__ = ["Kept", "Ticket", "Timed", "TimedHeap", "TimedMap"]

_SLACK: Final = 64
"""How many stale entries a small heap may hold before it is compacted."""

Ticket = tuple[int, int, Any]
"""An entry of a heap: the time, a tie-breaker, the thing."""


class Timed:
    """
    Something that expires, lapses or is due.

    Attributes:
        at: When, milliseconds since the epoch; None for never.
        ticket: The entry of the one heap it is in that counts, or None.
    """

    __slots__ = ("at", "ticket")

    at: int | None
    ticket: Ticket | None

    def __init__(self) -> None:
        self.at = None
        self.ticket = None


T = TypeVar("T", bound=Timed)


class TimedHeap(Generic[T]):
    """
    Things by time, with lazy deletion.

    A thing whose time moves later keeps its entry, which is put right when its
    turn comes: renewing a lease a thousand times pushes nothing. Stale entries
    never outnumber the live ones by more than a constant.
    """

    __slots__ = ("_heap", "_serial", "live")

    def __init__(self) -> None:
        self._heap: list[Ticket] = []
        self._serial = 0
        self.live = 0
        """How many things are in it."""

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, thing: T, at: int) -> None:
        """Put *thing* in, or move it: it is due at *at*."""
        thing.at = at
        ticket = thing.ticket
        if ticket is None:
            self.live += 1
        elif ticket[0] <= at:
            return
        self._push(thing, at)
        if ticket is not None:
            self._compact()

    def discard(self, thing: T) -> None:
        """Take *thing* out if it is in; its time stays as it was."""
        if thing.ticket is not None:
            thing.ticket = None
            self.live -= 1
            self._compact()

    def pop_due(self, now: int) -> T | None:
        """Take out the thing that was due first, if any was due by *now*."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            ticket = heapq.heappop(heap)
            thing: T = ticket[2]
            if thing.ticket is not ticket:
                continue
            at = thing.at
            if at is not None and at > ticket[0]:
                # It was moved later; what is due must come in true order.
                self._push(thing, at)
                continue
            thing.ticket = None
            self.live -= 1
            return thing
        return None

    def next_at(self) -> int | None:
        """Say when the next thing is due at the earliest; None if there is none."""
        heap = self._heap
        while heap:
            ticket = heap[0]
            if ticket[2].ticket is ticket:
                at: int = ticket[0]
                return at
            heapq.heappop(heap)
        return None

    def by(self, at: int) -> list[T]:
        """List what is due by *at*, in no order, without looking at the rest."""
        heap = self._heap
        found: list[T] = []
        places = [0]
        while places:
            place = places.pop()
            # What lies below an entry is never due before it.
            if place < len(heap) and heap[place][0] <= at:
                places += (2 * place + 1, 2 * place + 2)
                thing: T = heap[place][2]
                if thing.ticket is heap[place] and thing.at is not None and thing.at <= at:
                    found.append(thing)
        return found

    def _push(self, thing: T, at: int) -> None:
        self._serial += 1
        ticket = (at, self._serial, thing)
        thing.ticket = ticket
        heapq.heappush(self._heap, ticket)

    def _compact(self) -> None:
        heap = self._heap
        if len(heap) > 2 * self.live + _SLACK:
            self._heap = [ticket for ticket in heap if ticket[2].ticket is ticket]
            heapq.heapify(self._heap)


class Kept(Timed):
    """
    An entry of a `TimedMap`.

    Attributes:
        home: The map.
        key: Its key there.
        size: Encoded bytes that are accounted for.
    """

    __slots__ = ("home", "key", "size")

    home: TimedMap[Any]
    key: Any

    def __init__(self) -> None:
        super().__init__()
        self.size = 0


K = TypeVar("K", bound=Kept)


class TimedMap(Generic[K]):
    """
    A map whose entries may expire, over a heap that is shared by many maps.

    What has expired is absent at once; the heap's owner removes it for good, so
    a key that is never touched again does not stay.
    """

    __slots__ = ("_entries", "_heap")

    def __init__(self, heap: TimedHeap[Any]) -> None:
        self._entries: dict[Any, K] = {}
        self._heap = heap

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries.values())

    def get(self, key: Any, now: int) -> K | None:
        """Give the entry of *key*, or None where it is absent or expired."""
        entry = self._entries.get(key)
        if entry is None or (entry.at is not None and entry.at <= now):
            return None
        return entry

    def size_of(self, key: Any) -> int:
        """Say what is accounted for under *key*, expired or not."""
        entry = self._entries.get(key)
        return 0 if entry is None else entry.size

    def put(self, key: Any, entry: K, at: int | None) -> None:
        """Put a new *entry* under *key*; what was there must be taken out first."""
        entry.home = self
        entry.key = key
        self._entries[key] = entry
        if at is not None:
            self._heap.set(entry, at)

    def move(self, entry: K, at: int) -> None:
        """Let *entry* expire at *at*."""
        self._heap.set(entry, at)

    def pop(self, key: Any) -> K | None:
        """Take the entry of *key* out, expired or not."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._heap.discard(entry)
        return entry

    def forget(self, entry: K) -> None:
        """Drop an entry that the heap gave out as expired."""
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
