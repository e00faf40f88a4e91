"""Memory stays flat: what has ended is gone, also if nobody asks for it again."""

from __future__ import annotations

import asyncio

from typing import Any

import pytest

from oqron_core.planes import (
    Delete,
    Entry,
    FixedWindow,
    Insert,
    Patch,
    Query,
    SlidingWindow,
    TokenBucket,
)
from oqron_core.testing.clock import ManualClock


ROUNDS = 3_000
FEW = 200
"""Far below the rounds: room for what is removed a little later, and no more."""


async def test_locks_of_unique_names_are_gone_once_they_lapse(
    opened: Any, clock: ManualClock
) -> None:
    """A lock that nobody releases or asks for again does not stay."""
    async with opened() as planes:
        for index in range(ROUNDS):
            assert await planes.hot.locks.acquire(f"lock-{index}", owner="w", lease_for=0.05)
            clock.advance(0.01)
        sizes = planes.store.sizes()
        assert FEW > sizes["locks"]
        assert FEW > sizes["expiring_entries"]


async def test_released_locks_leave_nothing_though_their_lease_was_long(
    opened: Any,
) -> None:
    """The heap does not keep entries of what is gone until they would have lapsed."""
    async with opened() as planes:
        for index in range(ROUNDS):
            lease = await planes.hot.locks.acquire(f"lock-{index}", owner="w", lease_for=1e6)
            assert await planes.hot.locks.release(lease)
        sizes = planes.store.sizes()
        assert 0 == sizes["locks"]
        assert FEW > sizes["expiring_entries"]


async def test_a_lock_renewed_for_ever_takes_one_entry(opened: Any, clock: ManualClock) -> None:
    """Renewing pushes nothing."""
    async with opened() as planes:
        lease = await planes.hot.locks.acquire("leader", owner="w", lease_for=30.0)
        for _ in range(ROUNDS):
            clock.advance(1.0)
            assert await planes.hot.locks.renew(lease, lease_for=30.0)
        assert 1 == planes.store.sizes()["expiring_entries"]


@pytest.mark.parametrize("ttl", [0.05, 3600.0])
async def test_cache_keys_that_are_replaced_or_expire_do_not_pile_up(
    opened: Any, clock: ManualClock, ttl: float
) -> None:
    """Unique keys with a short life go; one key that is replaced stays one."""
    async with opened() as planes:
        for index in range(ROUNDS):
            key = f"key-{index}" if ttl < 1 else "same"
            await planes.hot.cache.set_many({key: index}, ttl=ttl)
            clock.advance(0.01)
        sizes = planes.store.sizes()
        assert FEW > sizes["cache"]
        assert FEW > sizes["expiring_entries"]


async def test_expired_counters_and_limits_are_removed(opened: Any, clock: ManualClock) -> None:
    """Unique keys of every limit are forgotten when the limit is whole again."""
    limits = [FixedWindow(3, per=0.1), SlidingWindow(3, per=0.1), TokenBucket(3, per=0.1)]
    async with opened() as planes:
        for index in range(ROUNDS):
            await planes.hot.counters.increment(f"hits-{index}", expires_in=0.05)
            await planes.hot.counters.take(f"ip-{index}", limits[index % 3])
            clock.advance(0.01)
        sizes = planes.store.sizes()
        assert FEW > sizes["counters"]
        assert FEW > sizes["limits"]


async def test_one_facet_sweeps_what_another_left(opened: Any, clock: ManualClock) -> None:
    """Cache keys go although only the broker is used from then on."""
    async with opened() as planes:
        await planes.hot.cache.set_many({f"k{i}": i for i in range(ROUNDS)}, ttl=1.0)
        clock.advance(2.0)
        for _ in range(ROUNDS // 10):
            await planes.hot.broker.publish("q", [Entry("a")])
        assert 0 == planes.store.sizes()["cache"]


async def test_queues_that_are_empty_are_forgotten(opened: Any) -> None:
    """A queue per request costs nothing once it is drained."""
    async with opened() as planes:
        for index in range(ROUNDS):
            await planes.hot.broker.publish(f"q-{index}", [Entry("a"), Entry("b")])
            leases = await planes.hot.broker.claim(f"q-{index}", owner="w", lease_for=30, limit=1)
            await planes.hot.broker.ack(leases)
            assert [True] == await planes.hot.broker.remove(f"q-{index}", ["b"])
        assert 0 == planes.store.sizes()["queues"]


@pytest.mark.parametrize("order", ["fifo", "lifo"])
async def test_a_queue_in_steady_use_keeps_small_heaps(
    opened: Any, clock: ManualClock, order: Any
) -> None:
    """Moves, delays, renewals, nacks and removals leave no stale entries behind."""
    async with opened() as planes:
        broker = planes.hot.broker
        await broker.publish("q", [Entry(f"stays-{i}", 9) for i in range(10)])
        for index in range(ROUNDS // 3):
            due_at = clock.now() + 10**9
            await broker.publish(
                "q", [Entry("a", index % 7), Entry("b", index), Entry("c", 0, due_at)]
            )
            await broker.publish("q", [Entry("c", 1, due_at - 1), Entry("b", -index, due_at)])
            leases = await broker.claim("q", owner="w", lease_for=10**6, limit=2, order=order)
            await broker.renew(leases, lease_for=10**5)
            await broker.nack(leases[:1], delay=5000.0)
            await broker.nack(leases[1:])
            await broker.remove("q", ["b", "c"])
            clock.advance(0.001)
        assert 11 == planes.store.sizes()["queued"]
        assert 600 > planes.store.sizes()["queue_entries"]


async def test_waits_that_end_or_are_cancelled_leave_no_waiter(
    opened: Any, clock: ManualClock
) -> None:
    """Neither a timeout, a cancel nor a wake-up leaves a trace, in any queue waited for."""
    async with opened() as planes:
        before = asyncio.all_tasks()
        for index in range(50):
            waits = [
                asyncio.create_task(planes.hot.broker.wait([f"q-{index}", "other"], timeout=5))
                for _ in range(3)
            ]
            await clock.elapse(0.1)
            waits[0].cancel()
            await planes.hot.broker.publish(f"q-{index}", [Entry("a")])
            await planes.hot.broker.purge(f"q-{index}")
            await clock.elapse(6)
            await asyncio.gather(*waits, return_exceptions=True)
        assert 0 == planes.store.sizes()["waiters"]
        assert before == asyncio.all_tasks()
        assert 0 == clock.sleepers


async def test_subscriptions_that_are_left_are_forgotten(opened: Any) -> None:
    """A channel per request costs nothing once nobody listens."""
    async with opened() as planes:
        for index in range(300):
            async with planes.hot.signals.subscribe([f"c-{index}", "all"]) as signals:
                await planes.hot.signals.publish("all", index)
                assert index == (await anext(signals)).message
        assert 0 == planes.store.sizes()["subscribers"]


async def test_a_subscriber_that_never_reads_keeps_a_bounded_backlog(opened: Any) -> None:
    """The oldest messages are lost, the newest are there."""
    async with opened() as planes:
        async with planes.hot.signals.subscribe(["c"]) as signals:
            for index in range(ROUNDS):
                await planes.hot.signals.publish("c", index)
            assert ROUNDS - 1000 == (await anext(signals)).message


async def test_record_indexes_shrink_with_their_records(opened: Any) -> None:
    """Ids that come and go in any order leave no entries in an index in use."""
    async with opened() as planes:
        durable = planes.durable
        for index in range(ROUNDS):
            name = f"{index * 7919 % ROUNDS:05}"
            await durable.write([Insert("things", name, {}, expires_at=2**53)])
            if index % 10 == 0:
                await durable.query(Query(namespace="things"))
            await durable.write([Delete("things", name)])
            await durable.write([Insert(f"space-{index}", "a", {}), Delete(f"space-{index}", "a")])
        sizes = planes.store.sizes()
        assert 0 == sizes["records"]
        assert 0 == sizes["namespaces"]
        assert FEW > sizes["record_entries"]


async def test_expired_records_go_without_anybody_pruning(opened: Any, clock: ManualClock) -> None:
    """Finished jobs that nobody prunes are removed by later writes, a while after expiry."""
    async with opened() as planes:
        for index in range(ROUNDS):
            expires_at = clock.now() + 1000
            await planes.durable.write([Insert("queue_job:q", f"{index}", {"status": "waiting"})])
            patch = Patch(
                "queue_job:q",
                f"{index}",
                set={"status": "completed"},
                expires_at=expires_at,
            )
            await planes.durable.write([patch])
            clock.advance(1.0)
        assert FEW > planes.store.sizes()["records"]
        assert FEW > planes.store.sizes()["record_entries"]


async def test_expired_records_are_there_for_prune_to_count(
    opened: Any, clock: ManualClock
) -> None:
    """Right after expiry, prune finds them, whatever was written meanwhile."""
    async with opened() as planes:
        expires_at = clock.now() + 1000
        writes = [Insert("runs", f"{i}", {}, expires_at=expires_at) for i in range(10)]
        await planes.durable.write(writes)
        clock.advance(2.0)
        await planes.durable.write([Insert("runs", "fresh", {})])
        query = Query(namespace="runs", where=[("expires_at", "<=", clock.now())])
        assert 10 == await planes.durable.prune(query)
        assert 1 == planes.store.sizes()["records"]
