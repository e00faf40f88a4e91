"""What the planes leave in Redis: names, lifetimes, slots."""

from __future__ import annotations

import asyncio
import re

from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from oqron_core.planes import (
    Delete,
    Entry,
    FixedWindow,
    Insert,
    Lease,
    Patch,
    Put,
    Query,
    Scope,
    SlidingWindow,
    TokenBucket,
)
from oqron_core.testing.hostile import NAMES, SCOPES
from oqron_core.testing.servers import RedisServer
from oqron_redis._keys import Keys, escape


# Kinds of keys that may stay without a TTL, each for a reason.
LASTING = {
    "ready": "ids that wait to be claimed; gone when the queue is empty",
    "delayed": "ids that are not due; gone when there is none",
    "leased": "ids under a lease; gone when there is none",
    "ids": "the state of each id of a queue; gone when the queue is empty",
    "paused": "the mark of a paused queue; gone when it is resumed",
    "queues": "the registry of queues; mended by queues()",
    "sum": "a counter that was made without an expiry",
    "value": "a cache entry that was written without a ttl",
    "r": "a durable record; deleted by prune and by its writers",
    "i": "an index of records; gone with the last record",
    "x": "the index by expiry; gone with the last record that expires",
    "n": "the namespaces of a kind; gone with the last record",
}
_KEY = re.compile(r"^oqron:\{[^{}]*\}:([a-z]+)")


async def exercise(planes: Any) -> None:
    """Call everything that writes."""
    hot, durable = planes.hot, planes.durable
    broker = hot.broker
    for queue in ("emails", "a{b}c", "x:y*"):
        await broker.publish(
            queue, [Entry("1"), Entry("2", 5), Entry("3", due_at=2**42), Entry("4", 9)]
        )
        leases = await broker.claim(queue, owner="w", lease_for=30.0, limit=2)
        await broker.renew(leases, lease_for=30.0)
        await broker.nack(leases[:1], delay=5.0)
        await broker.pause(queue)
        await broker.wait([queue], timeout=0.01)
        await broker.restore(queue, [Lease(queue, "9", "w", 2**50, 2**42)])
    lock = await hot.locks.acquire("lock{}", owner="w", lease_for=30.0)
    assert lock is not None
    await hot.locks.renew(lock, lease_for=30.0)
    await hot.counters.increment("n")
    await hot.counters.increment("e", expires_in=30.0)
    for limit in (FixedWindow(5, per=60), SlidingWindow(5, per=60), TokenBucket(5, per=60)):
        await hot.counters.take("ip", limit)
    await hot.cache.set_many({"a": 1, "b": None}, ttl=30.0)
    await hot.cache.add("c", [1])
    await hot.live.merge("run", {"status": "running"}, [{"msg": "x"}], [{"to": "running"}])
    await hot.live.merge("quiet", {})
    await durable.write(
        [
            Insert("queue_job:emails", "1", {"status": "waiting"}),
            Insert("queue_dlq:emails", "1", {"status": "failed"}, 2**42),
            Put("runs", "r", {"status": "completed", "name": "n", "startedAt": 5}, 2**42),
            Put("a{b}:*", "c}", {"x": [1]}),
            Patch("runs", "r", set={"status": "failed"}, append={"logs": [1]}),
        ]
    )


def keys_of(server: RedisServer) -> dict[str, int]:
    """Give every key of the server with its TTL in ms, -1 for none."""
    cursor: Any = "0"
    found: list[Any] = []
    while True:
        answer: Any = server.command("SCAN", cursor, "COUNT", 1000)
        cursor, page = answer
        found += page
        if cursor == "0":
            break
    return {str(key): int(server.command("PTTL", str(key))) for key in found}  # type: ignore[arg-type]


def test_every_key_is_prefixed_and_expires_or_is_on_the_list(
    open_planes: Any, own_redis: RedisServer
) -> None:
    """A key that nobody planned for is a leak."""

    async def scenario() -> dict[str, int]:
        async with open_planes(own_redis.url) as planes:
            await exercise(planes)
            return keys_of(own_redis)

    found = asyncio.run(scenario())
    assert len(found) > 30
    kinds = set()
    for key, ttl in found.items():
        match = _KEY.match(key)
        assert match, key
        kinds.add(match.group(1))
        assert ttl > 0 or match.group(1) in LASTING, key
    assert set(LASTING) <= kinds


def test_nothing_is_left_when_all_work_is_done(open_planes: Any, own_redis: RedisServer) -> None:
    """Queues, records and runs that end leave only keys that expire."""

    async def scenario() -> dict[str, int]:
        async with open_planes(own_redis.url) as planes:
            hot, durable = planes.hot, planes.durable
            await exercise(planes)
            for queue in await hot.broker.queues():
                await hot.broker.purge(queue)
                await hot.broker.resume(queue)
            assert await hot.broker.queues() == []
            await hot.counters.reset("n")
            await hot.cache.delete_many(["a", "b", "c"])
            await hot.live.drop(["run", "quiet"])
            for kind in ("run", "dlq", "record"):
                await durable.prune(Query(kind=kind))
            await durable.write([Delete("queue_job:emails", "1")])
            return keys_of(own_redis)

    found = asyncio.run(scenario())
    assert [key for key, ttl in found.items() if ttl < 0] == []


def test_workers_that_come_and_go_leave_no_key(open_planes: Any, own_redis: RedisServer) -> None:
    """Keys belong to jobs, never to a worker."""

    async def scenario() -> tuple[set[str], set[str]]:
        async with open_planes(own_redis.url) as planes:
            broker = planes.hot.broker
            await broker.publish("q", [Entry("1")])
            await broker.ack(await broker.claim("q", owner="w", lease_for=30.0))
            before = set(keys_of(own_redis))
            for number in range(100):
                await broker.publish("q", [Entry("1")])
                await broker.ack(await broker.claim("q", owner=f"w{number}", lease_for=30.0))
            return before, set(keys_of(own_redis))

    before, after = asyncio.run(scenario())
    assert before == after


def _all_keys(scope: Scope, name: str) -> set[bytes]:
    keys = Keys("oqron", scope)
    queue = keys.queue(name)
    return {
        queue.ready, queue.delayed, queue.leased, queue.ids, queue.counter, queue.paused,
        queue.wake, queue.nothing, *keys.lock(name), keys.cached(name), *keys.live(name),
        *(keys.counter(name, kind) for kind in (b"sum", b"fixed", b"sliding", b"bucket")),
        keys.records(name) + b"id", keys.index("i", name), keys.expiry(name),
    }  # fmt: skip


def test_no_two_names_meet_in_a_key() -> None:
    """Names with separators, braces and percent signs stay apart."""
    scope = Scope("p", "e")
    for one, other in combinations(NAMES, 2):
        assert not _all_keys(scope, one) & _all_keys(scope, other), (one, other)


def test_no_two_scopes_meet_in_a_key() -> None:
    """Projects and environments that look alike stay apart, channels included."""
    for one, other in combinations(SCOPES, 2):
        left, right = Scope(*one), Scope(*other)
        assert not _all_keys(left, "q") & _all_keys(right, "q")
        a, b = Keys("oqron", left), Keys("oqron", right)
        assert a.wake_channel != b.wake_channel
        assert a.signal("c") != b.signal("c")
        assert a.queues != b.queues


@given(st.text(), st.text())
def test_escaping_keeps_different_names_different(one: str, other: str) -> None:
    """And leaves no separator and no brace."""
    if "\ud800" <= min(one + other, default="") and max(one + other, default="") <= "\udfff":
        return
    try:
        left, right = escape(one), escape(other)
    except UnicodeEncodeError:
        return
    assert (left == right) == (one == other)
    assert not set(b":{}") & set(left)


def test_a_queue_has_one_slot_and_queues_spread() -> None:
    """What one script touches is on one node, whatever the name."""
    keys = Keys("oqron", Scope("p{x}", "e"))
    slots = set()
    for name in NAMES:
        queue = keys.queue(name)
        places = (
            queue.ready, queue.delayed, queue.leased, queue.ids, queue.counter, queue.paused,
            queue.wake, queue.nothing,
        )  # fmt: skip
        assert len({key_slot(place) for place in places}) == 1
        slots.add(key_slot(queue.ready))
        assert len({key_slot(place) for place in keys.lock(name)}) == 1
    assert len(slots) > len(NAMES) // 2
    durable = {
        key_slot(place)
        for name in NAMES
        for place in (keys.records(name) + name.encode(), keys.index("t", name), keys.expiry(name))
    }
    assert len(durable) == 1
