"""Queues of ids."""

from __future__ import annotations

from collections.abc import Sequence

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import (
    Broker,
    Counts,
    Entry,
    Lease,
    Order,
    Published,
    check_entries,
    check_leases,
    check_limit,
    check_name,
    check_names,
    check_order,
    check_priority,
    delay_ms,
    lease_ms,
    seconds,
)
from oqron_memory._queue import LEASED, Item, Queue
from oqron_memory._store import MemoryStore, ScopeState
from oqron_memory._wake import NEVER, Gate, Waker, sleep_until_woken


__all__ = ["MemoryBroker"]


class MemoryBroker(Broker):
    """The broker of one scope."""

    __slots__ = ("_gate", "_state", "_store")

    def __init__(self, store: MemoryStore, state: ScopeState, gate: Gate) -> None:
        self._store = store
        self._state = state
        self._gate = gate

    async def publish(self, queue: str, entries: Sequence[Entry]) -> Sequence[Published]:
        self._gate.check()
        check_entries(queue, entries)
        if not entries:
            return []
        with self._store.lock:
            now = self._store.clock.now()
            self._store.sweep(now)
            state = self._queue(queue)
            results = [self._publish(state, entry, now) for entry in entries]
            if queue in self._state.waiters:
                self._tell(state)
        return results

    @staticmethod
    def _publish(queue: Queue, entry: Entry, now: int) -> Published:
        item = queue.items.get(entry.id)
        due_at = entry.due_at
        if item is None:
            item = queue.new_item(entry.id, entry.priority)
            result = Published.ADDED
        elif item.state == LEASED and item.at is not None and item.at > now:
            return Published.LEASED
        else:
            # A lease that has lapsed protects nothing: the id counts as ready.
            queue.lift(item)
            item.priority = entry.priority
            result = Published.MOVED
        if due_at is not None and due_at > now:
            queue.make_delayed(item, due_at)
        else:
            queue.make_ready(item)
        return result

    async def claim(
        self,
        queue: str,
        *,
        owner: str,
        lease_for: float,
        limit: int = 1,
        order: Order = "fifo",
    ) -> Sequence[Lease]:
        self._gate.check()
        check_name("queue", queue)
        check_name("owner", owner)
        lasts = lease_ms(lease_for)
        check_limit(limit)
        check_order(order)
        store = self._store
        with store.lock:
            now = store.clock.now()
            store.sweep(now)
            state = self._state.queues.get(queue)
            if state is None:
                return []
            if state.paused:
                # What has lapsed is left for `reap` to see.
                return []
            state.settle(now)
            # Everything that lapsed is ready now, which is all `reap` would do.
            state.lapsed.clear()
            count = min(limit, state.ready)
            if not count:
                return []
            token = store.next_token(now, count)
            # Nobody sleeps past these leases: who waits was woken when the ids became
            # ready, and finds them leased when it looks again.
            return state.lease(owner, now + lasts, count, order, token)

    async def wait(self, queues: Sequence[str], *, timeout: float) -> Sequence[str]:
        self._gate.check()
        if isinstance(queues, str) or not queues:
            raise InvalidValueError("queues", "must be a list of at least one queue")
        check_names("queue", queues)
        names = list(dict.fromkeys(queues))
        lasts = round(seconds("timeout", timeout) * 1000)
        clock = self._store.clock
        deadline = clock.now() + lasts
        while True:
            with self._store.lock:
                self._gate.check()
                now = clock.now()
                found, next_at = self._look(names, now)
                if found or now >= deadline:
                    return found
                waker = Waker(min(next_at, deadline))
                self._register(names, waker)
            try:
                await sleep_until_woken(waker, clock, (waker.wake_at - now) / 1000)
            finally:
                with self._store.lock:
                    self._unregister(names, waker)

    def _look(self, names: list[str], now: int) -> tuple[list[str], int]:
        """Name the queues with work, and say when the next comes by itself."""
        found = []
        next_at = NEVER
        for name in names:
            queue = self._state.queues.get(name)
            if queue is None or queue.paused:
                continue
            queue.settle(now)
            if queue.ready:
                found.append(name)
            else:
                at = queue.next_at()
                if at is not None:
                    next_at = min(next_at, at)
        return found, next_at

    def _register(self, names: list[str], waker: Waker) -> None:
        self._gate.wakers.add(waker)
        for name in names:
            self._state.waiters.setdefault(name, set()).add(waker)

    def _unregister(self, names: list[str], waker: Waker) -> None:
        self._gate.wakers.discard(waker)
        waiters = self._state.waiters
        for name in names:
            wakers = waiters.get(name)
            if wakers is not None:
                wakers.discard(waker)
                if not wakers:
                    del waiters[name]

    def _tell(self, queue: Queue) -> None:
        """Wake who waits for *queue*, or for a later moment than its next."""
        if queue.paused:
            return
        if queue.ready:
            for waker in self._state.waiters.pop(queue.name, ()):
                waker.wake()
            return
        at = queue.next_at()
        if at is not None:
            self._tell_time(queue.name, at)

    def _tell_time(self, name: str, at: int) -> None:
        """Wake who sleeps past *at*, to set a new alarm."""
        for waker in self._state.waiters.get(name, ()):
            if at < waker.wake_at:
                waker.wake()

    async def renew(self, leases: Sequence[Lease], *, lease_for: float) -> Sequence[bool]:
        self._gate.check()
        lasts = lease_ms(lease_for)
        if not leases:
            return []
        results = []
        with self._store.lock:
            now = self._store.clock.now()
            for lease in leases:
                held = self._held(lease, now)
                if held is not None:
                    queue, item = held
                    queue.leased.set(item, now + lasts)
                    # A shorter lease than before lapses sooner than they sleep.
                    self._tell_time(queue.name, now + lasts)
                results.append(held is not None)
        return results

    def _held(self, lease: Lease, now: int) -> tuple[Queue, Item] | None:
        """Find what *lease* still holds."""
        queue = self._state.queues.get(lease.queue)
        if queue is None:
            return None
        item = queue.items.get(lease.id)
        if (
            item is None
            or item.state != LEASED
            or item.token != lease.token
            or item.at is None
            or item.at <= now
        ):
            return None
        return queue, item

    async def ack(self, leases: Sequence[Lease]) -> Sequence[bool]:
        self._gate.check()
        if not leases:
            return []
        results = []
        with self._store.lock:
            now = self._store.clock.now()
            for lease in leases:
                held = self._held(lease, now)
                if held is not None:
                    queue, item = held
                    queue.leased.discard(item)
                    del queue.items[item.id]
                    if not queue.items:
                        self._forget(queue)
                results.append(held is not None)
        return results

    async def nack(
        self, leases: Sequence[Lease], *, delay: float = 0.0, priority: int | None = None
    ) -> Sequence[bool]:
        self._gate.check()
        waits = delay_ms(delay)
        if priority is not None:
            check_priority(priority)
        if not leases:
            return []
        results = []
        touched: dict[str, Queue] = {}
        with self._store.lock:
            now = self._store.clock.now()
            for lease in leases:
                held = self._held(lease, now)
                if held is not None:
                    queue, item = held
                    self._give_back(queue, item, now + waits if waits else None, priority)
                    touched[queue.name] = queue
                results.append(held is not None)
            for queue in touched.values():
                self._tell(queue)
        return results

    @staticmethod
    def _give_back(queue: Queue, item: Item, due_at: int | None, priority: int | None) -> None:
        queue.lift(item)
        if priority is not None:
            item.priority = priority
        if due_at is None:
            queue.make_ready(item)
        else:
            queue.make_delayed(item, due_at)

    async def remove(self, queue: str, ids: Sequence[str]) -> Sequence[bool]:
        self._gate.check()
        check_name("queue", queue)
        check_names("id", ids)
        if not ids:
            return []
        results = []
        with self._store.lock:
            state = self._state.queues.get(queue)
            for name in ids:
                item = None if state is None else state.items.get(name)
                if state is not None and item is not None:
                    state.lift(item)
                    del state.items[name]
                results.append(item is not None)
            if state is not None:
                self._forget(state)
        return results

    async def contains(self, queue: str, ids: Sequence[str]) -> Sequence[bool]:
        self._gate.check()
        check_name("queue", queue)
        check_names("id", ids)
        if not ids:
            return []
        with self._store.lock:
            state = self._state.queues.get(queue)
            if state is None:
                return [False] * len(ids)
            return [name in state.items for name in ids]

    async def counts(self, queue: str) -> Counts:
        self._gate.check()
        check_name("queue", queue)
        with self._store.lock:
            state = self._state.queues.get(queue)
            if state is None:
                return Counts(0, 0, 0, False)  # noqa: FBT003 - a fact, not a flag
            state.settle(self._store.clock.now())
            return Counts(state.ready, state.delayed.live, state.leased.live, state.paused)

    async def queues(self) -> Sequence[str]:
        self._gate.check()
        with self._store.lock:
            return sorted(self._state.queues)

    async def purge(self, queue: str) -> int:
        self._gate.check()
        check_name("queue", queue)
        with self._store.lock:
            state = self._state.queues.pop(queue, None)
            if state is None:
                return 0
            if state.paused:
                self._queue(queue).paused = True
        # What was in it is let go outside the lock: it may be long.
        return len(state.items)

    async def pause(self, queue: str) -> None:
        self._gate.check()
        check_name("queue", queue)
        with self._store.lock:
            self._queue(queue).paused = True

    async def resume(self, queue: str) -> None:
        self._gate.check()
        check_name("queue", queue)
        with self._store.lock:
            state = self._state.queues.get(queue)
            if state is None or not state.paused:
                return
            state.paused = False
            state.settle(self._store.clock.now())
            self._tell(state)
            self._forget(state)

    async def reap(self, queue: str, *, limit: int = 1000) -> Sequence[str]:
        self._gate.check()
        check_name("queue", queue)
        check_limit(limit)
        with self._store.lock:
            state = self._state.queues.get(queue)
            if state is None:
                return []
            state.settle(self._store.clock.now())
            count = min(limit, len(state.lapsed))
            ids = [state.lapsed.popitem(last=False)[0] for _ in range(count)]
            if ids:
                self._tell(state)
            return ids

    async def restore(self, queue: str, leases: Sequence[Lease]) -> Sequence[bool]:
        self._gate.check()
        check_leases(queue, leases)
        check_names("id", [lease.id for lease in leases])
        if not leases:
            return []
        results = []
        with self._store.lock:
            state = self._queue(queue)
            for lease in leases:
                known = lease.id in state.items
                if not known:
                    self._put_back(state, lease)
                results.append(not known)
            self._tell(state)
        return results

    def _put_back(self, queue: Queue, lease: Lease) -> None:
        item = queue.new_item(lease.id, lease.priority)
        item.owner = lease.owner
        item.token = lease.token
        item.deliveries = lease.deliveries
        queue.make_leased(item, lease.expires_at)
        self._store.token = max(self._store.token, lease.token)

    def _queue(self, name: str) -> Queue:
        queue = self._state.queues.get(name)
        if queue is None:
            queue = self._state.queues[name] = Queue(name)
        return queue

    def _forget(self, queue: Queue) -> None:
        """Let go of a queue that holds nothing and is not paused."""
        if not queue.items and not queue.paused:
            self._state.queues.pop(queue.name, None)
