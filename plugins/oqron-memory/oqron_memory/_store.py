"""The store: the state of every scope, under one lock and one clock."""

from __future__ import annotations

import os
import threading
import weakref

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from oqron_core.exceptions import ClosedError, InvalidValueError, UnavailableError
from oqron_core.planes import Clock, Json, LimitState, Scope, SystemClock
from oqron_memory._queue import Queue
from oqron_memory._records import Records
from oqron_memory._timed import Kept, TimedHeap, TimedMap
from oqron_memory._wake import Gate, Waker


__all__ = [
    "CacheEntry",
    "Counter",
    "Held",
    "KeptLimit",
    "LiveRun",
    "MemoryStore",
    "ScopeState",
]

_SWEEP: Final = 32
"""How many expired things one call removes: more than it can add."""
_FORKED: Final = (
    "a memory store does not survive fork: the child would work on a copy that the "
    "parent never sees; open a storage of its own in the child"
)
_stores: weakref.WeakSet[MemoryStore] = weakref.WeakSet()


class Held(Kept):
    """A lock that is held."""

    __slots__ = ("owner", "token")

    def __init__(self, owner: str, token: int) -> None:
        super().__init__()
        self.owner = owner
        self.token = token


class Counter(Kept):
    """A counter."""

    __slots__ = ("value",)

    def __init__(self, value: int) -> None:
        super().__init__()
        self.value = value


class KeptLimit(Kept):
    """What a rate limit remembers of a key."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: LimitState) -> None:
        super().__init__()
        self.numbers = numbers


class CacheEntry(Kept):
    """An encoded value."""

    __slots__ = ("data",)

    def __init__(self, data: Json) -> None:
        super().__init__()
        self.data = data


class LiveRun:
    """What the overlay knows of a run."""

    __slots__ = ("fields", "logs", "merged_at", "size", "timeline")

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.logs: list[Json] = []
        self.timeline: list[Json] = []
        self.merged_at = 0
        self.size = 0


class ScopeState:
    """Everything of one scope. Touched only under the store's lock."""

    __slots__ = (
        "cache",
        "counters",
        "limits",
        "live",
        "locks",
        "queues",
        "records",
        "subscribers",
        "waiters",
    )

    def __init__(self, heap: TimedHeap[Any]) -> None:
        self.queues: dict[str, Queue] = {}
        self.waiters: dict[str, set[Waker]] = {}
        self.locks: TimedMap[Held] = TimedMap(heap)
        self.counters: TimedMap[Counter] = TimedMap(heap)
        self.limits: TimedMap[KeptLimit] = TimedMap(heap)
        self.cache: TimedMap[CacheEntry] = TimedMap(heap)
        # In the order of merging, so that neither end is ever searched for.
        self.live: OrderedDict[str, LiveRun] = OrderedDict()
        self.subscribers: dict[str, dict[Any, None]] = {}
        self.records = Records()


class MemoryStore:
    """
    The state of both planes, of every scope, in this process.

    Give one store to several storages and they share what it holds; nothing of
    it survives the process. Safe to use from several threads and loops.

    Args:
        clock: What judges every expiry; None for the time of day.
        max_bytes: The limit of what is stored, encoded; None for no limit.

    Attributes:
        clock: The clock.
        max_bytes: The limit, or None.
        lock: Held around every operation, never across an await.
        used: Encoded bytes of records, cache entries and live runs; counted only
            where there is a limit.
        token: The last fencing token; one counter for the whole store, so tokens
            grow also for a queue or lock that was forgotten meanwhile.
        expiring: Locks, counters, limits and cache entries by expiry.

    Raises:
        InvalidValueError: *max_bytes* is no int of at least 1.
    """

    __slots__ = (
        "__weakref__",
        "_forked",
        "_gates",
        "_scopes",
        "clock",
        "expiring",
        "lock",
        "max_bytes",
        "token",
        "used",
    )

    def __init__(self, *, clock: Clock | None = None, max_bytes: int | None = None) -> None:
        if max_bytes is not None and (type(max_bytes) is not int or max_bytes < 1):
            reason = f"must be an int of at least 1, or None, not {max_bytes!r}"
            raise InvalidValueError("memory.max_bytes", reason)
        self.clock: Clock = SystemClock() if clock is None else clock
        self.max_bytes = max_bytes
        self.lock = threading.Lock()
        self.used = 0
        self.token = 0
        self.expiring: TimedHeap[Any] = TimedHeap()
        self._scopes: dict[Scope, ScopeState] = {}
        self._gates: weakref.WeakSet[Gate] = weakref.WeakSet()
        self._forked = False
        _stores.add(self)

    def open(self, scope: Scope) -> tuple[ScopeState, Gate]:
        """
        Give the state of *scope*, made where it is new, and a gate for a plane.

        Raises:
            ClosedError: The store was made before this process was forked.
        """
        if self._forked:
            raise ClosedError(_FORKED)
        gate = Gate()
        with self.lock:
            self._gates.add(gate)
            state = self._scopes.get(scope)
            if state is None:
                state = self._scopes[scope] = ScopeState(self.expiring)
        return state, gate

    def close(self, gate: Gate) -> None:
        """Close *gate* and wake who sleeps behind it."""
        with self.lock:
            gate.close()
            wakers = list(gate.wakers)
            gate.wakers.clear()
            for waker in wakers:
                waker.wake()

    def next_token(self, now: int, count: int = 1) -> int:
        """
        Take *count* fencing tokens; they follow the number given back.

        Never behind the clock in microseconds, so that tokens grow also across
        the loss of the whole store.
        """
        last = max(self.token, now * 1000)
        self.token = last + count
        return last

    def sweep(self, now: int, most: int = _SWEEP) -> None:
        """Remove up to *most* things that have expired."""
        expiring = self.expiring
        while most and (thing := expiring.pop_due(now)) is not None:
            self.used -= thing.size
            thing.home.forget(thing)
            most -= 1

    def charge(self, grown: int, *, settling: bool = False) -> None:
        """
        Account for *grown* more bytes, negative for fewer.

        Args:
            grown: How many more.
            settling: Whether this changes a record that exists: it may use an
                eighth above the limit, so that what is under way can be finished
                and its room be given back.

        Raises:
            UnavailableError: The limit is reached; nothing was accounted for.
        """
        if self.max_bytes is not None and grown > 0:
            most = self.max_bytes + self.max_bytes // 8 if settling else self.max_bytes
            if self.used + grown > most:
                msg = (
                    f"the memory store is full: {self.used} bytes of max_bytes = "
                    f"{self.max_bytes} are used; prune, or raise [memory] max_bytes"
                )
                raise UnavailableError(msg)
        self.used += grown

    def charge_or_make_room(self, growth: Callable[[], int], now: int) -> None:
        """
        As `charge`, but remove all that has expired before refusing.

        Args:
            growth: Says how many more bytes; asked again after making room.
            now: The time.

        Raises:
            UnavailableError: The limit is reached; nothing was accounted for.
        """
        try:
            self.charge(growth())
        except UnavailableError:
            if not self.make_room(now):
                raise
            self.charge(growth())

    def make_room(self, now: int) -> int:
        """Remove all that has expired; gives the bytes that it took."""
        before = self.used
        self.sweep(now, most=2**31)
        for state in self._scopes.values():
            self.used -= state.records.remove_expired(now)
        return before - self.used

    def sizes(self) -> dict[str, int]:
        """
        Count what the store holds, over all scopes, for operators and tests.

        What has expired counts until it is removed. Costs a step per queue and
        namespace.
        """
        with self.lock:
            states = list(self._scopes.values())
            queues = [queue for state in states for queue in state.queues.values()]
            return {
                "scopes": len(states),
                "namespaces": sum(len(s.records.namespaces) for s in states),
                "records": sum(s.records.total() for s in states),
                "record_entries": sum(s.records.index_sizes() for s in states),
                "queues": len(queues),
                "queued": sum(len(queue.items) for queue in queues),
                "queue_entries": sum(queue.heap_sizes() for queue in queues),
                "waiters": sum(len(w) for s in states for w in s.waiters.values()),
                "subscribers": sum(len(w) for s in states for w in s.subscribers.values()),
                "locks": sum(len(s.locks) for s in states),
                "counters": sum(len(s.counters) for s in states),
                "limits": sum(len(s.limits) for s in states),
                "cache": sum(len(s.cache) for s in states),
                "live": sum(len(s.live) for s in states),
                "expiring_entries": len(self.expiring),
                "bytes": self.used,
            }

    def _after_fork(self) -> None:
        # The lock may be held by a thread that the child does not have.
        self.lock = threading.Lock()
        self._forked = True
        for gate in list(self._gates):
            gate.close(_FORKED)

    def __repr__(self) -> str:
        return f"<MemoryStore of {len(self._scopes)} scopes>"


def _after_fork_in_child() -> None:
    for store in list(_stores):
        store._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
