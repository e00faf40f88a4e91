"""The state of one queue: what is ready, delayed and leased."""

from __future__ import annotations

import heapq

from collections import OrderedDict
from typing import Final

from oqron_core.planes import Lease, Order
from oqron_memory._timed import Timed, TimedHeap


__all__ = ["DELAYED", "LEASED", "READY", "Item", "Queue"]

READY: Final = 0
DELAYED: Final = 1
LEASED: Final = 2
_SLACK: Final = 64


class Item(Timed):
    """
    An id in a queue.

    Attributes:
        id: The id.
        priority: Lower is sooner.
        seq: Its place in the order of first publishing.
        state: `READY`, `DELAYED` (until ``at``) or `LEASED` (until ``at``).
        owner: Who leased it last.
        token: The fencing token of the lease that counts; 0 for none.
        deliveries: How often it was handed out.
    """

    __slots__ = ("deliveries", "id", "owner", "priority", "seq", "state", "token")

    def __init__(self, name: str, priority: int, seq: int) -> None:
        self.at = None
        self.ticket = None
        self.id = name
        self.priority = priority
        self.seq = seq
        self.state = READY
        self.owner = ""
        self.token = 0
        self.deliveries = 0


class _Bucket:
    """
    What is ready in one priority.

    The heaps hold places; a place that `ready` does not know is stale. The heap
    for the youngest is made when it is first asked for.
    """

    __slots__ = ("fifo", "lifo", "ready")

    def __init__(self) -> None:
        self.ready: dict[int, Item] = {}
        self.fifo: list[int] = []
        self.lifo: list[int] | None = None

    def add(self, item: Item) -> None:
        seq = item.seq
        self.ready[seq] = item
        heapq.heappush(self.fifo, seq)
        if self.lifo is not None:
            heapq.heappush(self.lifo, -seq)

    def heap(self, order: Order) -> list[int]:
        if order == "fifo":
            return self.fifo
        if self.lifo is None:
            self.lifo = [-seq for seq in self.ready]
            heapq.heapify(self.lifo)
        return self.lifo

    def compact(self) -> None:
        most = 2 * len(self.ready) + _SLACK
        if len(self.fifo) > most:
            self.fifo = list(self.ready)
            heapq.heapify(self.fifo)
        if self.lifo is not None and len(self.lifo) > most:
            # Made anew only if it is asked for again.
            self.lifo = None


class Queue:
    """
    One queue. Not thread-safe: the store's lock is held around every call.

    Attributes:
        name: The queue.
        items: Every id in it.
        paused: Whether claims are stopped.
        lapsed: What lapsed and was made ready without anybody being told,
            in the order of lapsing.
    """

    __slots__ = (
        "_buckets",
        "_priorities",
        "_seq",
        "delayed",
        "items",
        "lapsed",
        "leased",
        "name",
        "paused",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.items: dict[str, Item] = {}
        self.paused = False
        self.delayed: TimedHeap[Item] = TimedHeap()
        self.leased: TimedHeap[Item] = TimedHeap()
        self.lapsed: OrderedDict[str, None] = OrderedDict()
        self._buckets: dict[int, _Bucket] = {}
        self._priorities: list[int] = []
        self._seq = 0

    @property
    def ready(self) -> int:
        """How many ids are ready, as of the last `settle`."""
        return len(self.items) - self.delayed.live - self.leased.live

    def heap_sizes(self) -> int:
        """How many entries all heaps hold, stale ones included."""
        ready = sum(len(b.fifo) + len(b.lifo or ()) for b in self._buckets.values())
        return ready + len(self._priorities) + len(self.delayed) + len(self.leased)

    def new_item(self, name: str, priority: int) -> Item:
        """Make an item at the end of the order; it is not ready yet."""
        self._seq += 1
        item = Item(name, priority, self._seq)
        self.items[name] = item
        return item

    def make_ready(self, item: Item) -> None:
        """Put *item*, which is nowhere now, among what is ready."""
        item.state = READY
        priority = item.priority
        bucket = self._buckets.get(priority)
        if bucket is None:
            bucket = self._buckets[priority] = _Bucket()
            heapq.heappush(self._priorities, priority)
        bucket.add(item)

    def make_delayed(self, item: Item, due_at: int) -> None:
        """Put *item*, which is nowhere now, among what is delayed."""
        item.state = DELAYED
        self.delayed.set(item, due_at)

    def make_leased(self, item: Item, expires_at: int) -> None:
        """Put *item*, which is nowhere now, under a lease."""
        item.state = LEASED
        self.leased.set(item, expires_at)

    def lift(self, item: Item) -> None:
        """Take *item* from where it is; it stays in `items`."""
        if item.state == READY:
            bucket = self._buckets[item.priority]
            del bucket.ready[item.seq]
            self._tidy(item.priority, bucket)
        elif item.state == DELAYED:
            self.delayed.discard(item)
        else:
            self.leased.discard(item)
        item.token = 0
        if self.lapsed:
            self.lapsed.pop(item.id, None)

    def settle(self, now: int) -> None:
        """Make ready what is due and what is under a lapsed lease."""
        while (item := self.delayed.pop_due(now)) is not None:
            self.make_ready(item)
        while (item := self.leased.pop_due(now)) is not None:
            item.token = 0
            self.make_ready(item)
            self.lapsed[item.id] = None

    def next_at(self) -> int | None:
        """Say when something becomes ready by itself at the earliest."""
        due, lapse = self.delayed.next_at(), self.leased.next_at()
        if due is None or lapse is None:
            return lapse if due is None else due
        return min(due, lapse)

    def lease(
        self, owner: str, expires_at: int, limit: int, order: Order, token: int
    ) -> list[Lease]:
        """Lease up to *limit* items that are ready; tokens follow *token*."""
        leases: list[Lease] = []
        name, leased = self.name, self.leased
        sign = 1 if order == "fifo" else -1
        while len(leases) < limit:
            found = self._first_bucket()
            if found is None:
                break
            priority, bucket = found
            heap, ready = bucket.heap(order), bucket.ready
            while ready and len(leases) < limit:
                item = ready.pop(sign * heapq.heappop(heap), None)
                if item is None:
                    continue
                token += 1
                item.state = LEASED
                item.owner = owner
                item.token = token
                item.deliveries = deliveries = item.deliveries + 1
                leased.set(item, expires_at)
                leases.append(Lease(name, item.id, owner, token, expires_at, deliveries, priority))
            self._tidy(priority, bucket)
        return leases

    def _first_bucket(self) -> tuple[int, _Bucket] | None:
        priorities = self._priorities
        while priorities:
            bucket = self._buckets.get(priorities[0])
            if bucket is not None:
                return priorities[0], bucket
            heapq.heappop(priorities)
        return None

    def _tidy(self, priority: int, bucket: _Bucket) -> None:
        if bucket.ready:
            bucket.compact()
            return
        del self._buckets[priority]
        if len(self._priorities) > 2 * len(self._buckets) + _SLACK:
            self._priorities = list(self._buckets)
            heapq.heapify(self._priorities)
