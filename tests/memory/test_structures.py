"""The heaps and indexes agree with a plain model, and cost what a database would."""

from __future__ import annotations

import heapq

from typing import Any

import pytest

from hypothesis import given
from hypothesis import strategies as st

from oqron_core.planes import Entry, Insert, Query
from oqron_core.testing.clock import ManualClock
from oqron_memory import _matching, _queue
from oqron_memory._queue import READY, Queue
from oqron_memory._records import Namespace
from oqron_memory._rows import Row
from oqron_memory._timed import Timed, TimedHeap


MANY = 20_000


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["set", "set", "discard", "pop"]),
            st.integers(0, 5),
            st.integers(0, 30),
        ),
        max_size=200,
    )
)
def test_a_timed_heap_gives_what_is_due_in_true_order(
    steps: list[tuple[str, int, int]],
) -> None:
    """Whatever was moved earlier, later or away, as a plain dict would have it."""
    heap: TimedHeap[Timed] = TimedHeap()
    things = [Timed() for _ in range(6)]
    model: dict[int, int] = {}
    for what, number, at in steps:
        if what == "set":
            heap.set(things[number], at)
            model[number] = at
        elif what == "discard":
            heap.discard(things[number])
            model.pop(number, None)
        else:
            due = {n for n, when in model.items() if when <= at}
            assert due == {things.index(thing) for thing in heap.by(at)}
            popped = []
            while (thing := heap.pop_due(at)) is not None:
                popped.append(model.pop(things.index(thing)))
            assert sorted(popped) == popped
            assert len(due) == len(popped)
        assert len(model) == heap.live
        first = heap.next_at()
        assert (first is None) == (not model)
        if first is not None:
            assert first <= min(model.values())


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["publish", "publish", "fifo", "lifo", "return", "remove"]),
            st.integers(0, 9),
            st.integers(-1, 1),
        ),
        max_size=150,
    )
)
def test_a_queue_hands_out_in_the_order_of_priority_and_publishing(
    steps: list[tuple[str, int, int]],
) -> None:
    """From either end, whatever was moved, given back or removed meanwhile."""
    queue = Queue("q")
    ready: dict[str, tuple[int, int]] = {}
    out: dict[str, tuple[int, int]] = {}
    seq = 0
    for what, number, priority in steps:
        name = f"{number}"
        if what == "publish" and name not in out:
            if name in ready:
                item = queue.items[name]
                queue.lift(item)
                item.priority = priority
                ready[name] = (priority, ready[name][1])
            else:
                seq += 1
                item = queue.new_item(name, priority)
                ready[name] = (priority, seq)
            queue.make_ready(item)
        elif what in {"fifo", "lifo"}:
            sign = 1 if what == "fifo" else -1
            expected = sorted(ready, key=lambda n: (ready[n][0], sign * ready[n][1]))[:2]
            leases = queue.lease("w", 100, 2, what, 0)  # type: ignore[arg-type]  # one of the two
            assert expected == [lease.id for lease in leases]
            for lease in leases:
                out[lease.id] = ready.pop(lease.id)
        elif what == "return" and name in out:
            item = queue.items[name]
            queue.lift(item)
            queue.make_ready(item)
            ready[name] = out.pop(name)
        elif what == "remove" and name in queue.items:
            queue.lift(queue.items.pop(name))
            ready.pop(name, None)
            out.pop(name, None)
        assert len(ready) == queue.ready
        assert set(ready) == {n for n, i in queue.items.items() if i.state == READY}


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=150), st.integers(0, 30))
def test_the_index_of_ids_walks_what_is_there_in_order(
    steps: list[tuple[bool, int]], start: int
) -> None:
    """After any inserts and removals, with a walk after each, no id twice."""
    space = Namespace("things")
    model = set()
    for insert, number in steps:
        name = f"{number:02}"
        row = space.rows.get(name)
        if insert and row is None:
            space.add(Row(name, {}, 0), None)
            model.add(name)
        elif not insert and row is not None:
            space.drop(row)
            model.remove(name)
        assert sorted(model) == [row.id for row in space.after(None, 0)]
        bound = f"{start:02}"
        assert sorted(n for n in model if n > bound) == [row.id for row in space.after(bound, 0)]


@pytest.fixture
def pops(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count what the ready heaps give out, in the length of the list."""
    counted: list[int] = []

    class Counting:
        heappush = staticmethod(heapq.heappush)
        heapify = staticmethod(heapq.heapify)

        @staticmethod
        def heappop(heap: list[int]) -> int:
            counted.append(1)
            return heapq.heappop(heap)

    monkeypatch.setattr(_queue, "heapq", Counting)
    return counted


async def test_a_claim_touches_only_what_it_hands_out(opened: Any, pops: list[int]) -> None:
    """The depth of the queue, and what is delayed or leased in it, are not walked."""
    async with opened() as planes:
        broker = planes.hot.broker
        now = await planes.hot.now()
        await broker.publish("q", [Entry(f"a{i}", i % 5) for i in range(MANY)])
        await broker.publish("q", [Entry(f"b{i}", due_at=now + 10**6) for i in range(MANY)])
        for _ in range(20):
            assert 10 == len(await broker.claim("q", owner="w", lease_for=30, limit=10))
        assert 200 == len(pops)
        counts = await broker.counts("q")
        assert (MANY - 200, MANY, 200) == (counts.ready, counts.delayed, counts.leased)
        assert 200 == len(pops)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Name the namespaces of the rows that a query looks at."""
    seen: list[str] = []
    original = _matching.Matcher.matches

    def matches(self: Any, row: Row, namespace: str) -> bool:
        seen.append(namespace)
        return original(self, row, namespace)

    monkeypatch.setattr(_matching.Matcher, "matches", matches)
    return seen


async def test_a_query_looks_only_at_its_own_namespaces(opened: Any, looked_at: list[str]) -> None:
    """By namespace at one, by kind at those of the kind."""
    async with opened() as planes:
        durable = planes.durable
        for namespace in ("queue_job:a", "queue_job:b", "queue_dlq:a", "runs", "custom"):
            await durable.write([Insert(namespace, f"{i}", {"n": i}) for i in range(50)])
        where = [("n", ">", 10)]
        await durable.query(Query(namespace="runs", where=where, order_by=[("n", "asc")]))
        await durable.count(Query(namespace="runs", where=where))
        await durable.prune(Query(namespace="runs", where=where), limit=1)
        assert {"runs"} == set(looked_at)
        looked_at.clear()
        await durable.query(Query(kind="job", where=where))
        assert {"queue_job:a", "queue_job:b"} == set(looked_at)


async def test_a_page_by_address_reads_no_further_than_itself(
    opened: Any, looked_at: list[str]
) -> None:
    """Walking all pages of a namespace looks at every row once."""
    async with opened() as planes:
        await planes.durable.write([Insert("runs", f"{i:04}", {"n": 1}) for i in range(2000)])
        query: dict[str, Any] = {
            "namespace": "runs",
            "where": [("n", "=", 1)],
            "limit": 100,
        }
        after, found = None, []
        while True:
            page = await planes.durable.query(Query(**query, after=after))
            found += [record.id for record in page]
            after = page.next
            if after is None:
                break
        assert [f"{i:04}" for i in range(2000)] == found
        assert 2000 + 20 >= len(looked_at)


async def test_pruning_what_expired_does_not_look_at_the_rest(
    opened: Any, clock: ManualClock, looked_at: list[str]
) -> None:
    """The index by expiry finds the few among the many."""
    async with opened() as planes:
        soon, late = clock.now() + 1000, clock.now() + 10**9
        writes = [
            Insert("queue_job:q", f"{i:05}", {}, expires_at=soon if i % 100 == 0 else late)
            for i in range(5000)
        ]
        await planes.durable.write(writes)
        clock.advance(2.0)
        query = Query(kind="job", where=[("expires_at", "<=", clock.now())])
        assert 50 == await planes.durable.prune(query)
        assert 50 == len(looked_at)
