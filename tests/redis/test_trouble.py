"""A server that dies, forgets, refuses, is slow, or cuts connections."""

from __future__ import annotations

import asyncio
import time

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from oqron_core import open_storage
from oqron_core.exceptions import (
    ClosedError,
    OqronError,
    StorageError,
    TimedOutError,
    UnavailableError,
)
from oqron_core.planes import Delete, Entry, Insert, Lease, Patch, Put
from oqron_core.testing import servers
from oqron_core.testing.servers import RedisServer


QUICK = {"timeout": 0.5, "connect_timeout": 0.5, "retries": 1, "backoff": 0.01}


async def until_served(call: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat what may be repeated until it is served."""
    for _ in range(200):
        try:
            return await call()
        except UnavailableError:
            await asyncio.sleep(0.02)
    pytest.fail("not served again")


def test_a_killed_server_is_a_typed_error_and_then_served_again(
    open_planes: Any,
) -> None:
    """What was acknowledged and persisted is there; nobody has to open anew."""

    async def scenario(server: RedisServer) -> None:
        async with open_planes(server.url, **QUICK) as planes:
            hot, durable = planes.hot, planes.durable
            await hot.broker.publish("q", [Entry(str(n)) for n in range(50)])
            leases = await hot.broker.claim("q", owner="w", lease_for=60.0, limit=10)
            await durable.write([Put("n", str(n), {"n": n}) for n in range(50)])
            server.kill()
            calls: list[Callable[[], Awaitable[Any]]] = [
                lambda: hot.broker.counts("q"),
                lambda: hot.broker.publish("q", [Entry("x")]),
                lambda: durable.write([Put("n", "x", {})]),
                lambda: durable.get("n", ["1"]),
                lambda: hot.broker.wait(["q"], timeout=5.0),
                lambda: hot.locks.acquire("k", owner="w", lease_for=1.0),
            ]
            for call in calls:
                started = time.monotonic()
                with pytest.raises(UnavailableError):
                    await call()
                assert time.monotonic() - started < 10.0
            assert not (await hot.check()).ok
            assert not (await durable.check()).ok
            server.start()
            counts = await until_served(lambda: hot.broker.counts("q"))
            assert (counts.ready, counts.leased) == (40, 10)
            assert all(await hot.broker.ack(leases))
            records = await durable.get("n", [str(n) for n in range(50)])
            assert [record.value["n"] for record in records] == [*range(50)]
            assert (await durable.check()).ok

    with servers.redis_server(persistent=True) as server:
        asyncio.run(scenario(server))


def test_tokens_grow_across_a_server_that_lost_everything(
    open_planes: Any, own_redis: RedisServer
) -> None:
    """Fencing holds although no counter is left, for queues and for locks."""

    async def scenario() -> None:
        async with open_planes(own_redis.url, **QUICK) as planes:
            broker, locks = planes.hot.broker, planes.hot.locks

            async def tokens() -> list[int]:
                await broker.publish("q", [Entry(str(n)) for n in range(5)])
                leases = await broker.claim("q", owner="w", lease_for=60.0, limit=5)
                lock = await locks.acquire("k", owner="w", lease_for=60.0)
                assert lock is not None
                return [*(lease.token for lease in leases), lock.token]

            before = await tokens()
            own_redis.command("FLUSHALL")
            between = await tokens()
            own_redis.kill()
            own_redis.start()
            after = await until_served(tokens)
            assert max(before[:5]) < min(between[:5])
            assert max(between[:5]) < min(after[:5])
            assert before[5] < between[5] < after[5]
            # A lease that is put back with a token from a clock that is ahead.
            ahead = Lease("q", "old", "w", after[4] + 10**9, await planes.hot.now() + 60_000)
            assert await broker.restore("q", [ahead]) == [True]
            await broker.publish("q", [Entry("new")])
            (lease,) = await broker.claim("q", owner="w", lease_for=60.0)
            assert lease.token > ahead.token

    asyncio.run(scenario())


def test_an_epoch_that_is_lost_leaves_stale_leases_refused(
    open_planes: Any, own_redis: RedisServer
) -> None:
    """A worker from before cannot finish what somebody else holds now."""

    async def scenario() -> None:
        async with open_planes(own_redis.url) as planes:
            broker = planes.hot.broker
            await broker.publish("q", [Entry("1")])
            stale = await broker.claim("q", owner="old", lease_for=60.0)
            own_redis.command("FLUSHALL")
            await broker.publish("q", [Entry("1")])
            fresh = await broker.claim("q", owner="new", lease_for=60.0)
            assert await broker.renew(stale, lease_for=60.0) == [False]
            assert await broker.nack(stale) == [False]
            assert await broker.ack(stale) == [False]
            assert await broker.ack(fresh) == [True]

    asyncio.run(scenario())


def test_a_server_that_became_a_replica_refuses_with_a_retryable_error(
    open_planes: Any, own_redis: RedisServer, redis: RedisServer
) -> None:
    """And serves again when it is promoted."""

    async def scenario() -> None:
        async with open_planes(own_redis.url, **QUICK) as planes:
            hot, durable = planes.hot, planes.durable
            await hot.broker.publish("q", [Entry("1")])
            own_redis.command("REPLICAOF", "127.0.0.1", redis.port)
            try:
                calls: list[Callable[[], Awaitable[Any]]] = [
                    lambda: hot.broker.publish("q", [Entry("2")]),
                    lambda: durable.write([Put("n", "1", {})]),
                    lambda: hot.counters.increment("c"),
                ]
                for call in calls:
                    with pytest.raises(UnavailableError):
                        await call()
                health = await hot.check()
                assert not health.ok
                assert any("replica" in reason for reason in health.reasons)
            finally:
                own_redis.command("REPLICAOF", "NO", "ONE")
            await until_served(lambda: hot.broker.publish("q", [Entry("2")]))

    asyncio.run(scenario())


@pytest.mark.parametrize("version", ["6.2", "7.", "8.", "valkey-"])
def test_out_of_memory_refuses_new_work_and_lets_work_finish(
    open_planes: Any, find_binary: Callable[[str], Path], version: str
) -> None:
    """Adding fails loudly and whole; claiming, finishing and giving back still work."""

    async def scenario(server: RedisServer) -> None:
        async with open_planes(server.url) as planes:
            hot, durable = planes.hot, planes.durable
            jobs = [Insert("queue_job:q", str(n), {"status": "waiting", "n": 0}) for n in range(9)]
            await durable.write(jobs)
            await hot.broker.publish("q", [Entry(str(n)) for n in range(9)])
            held = await hot.broker.claim("q", owner="w", lease_for=60.0, limit=3)
            lock = await hot.locks.acquire("k", owner="w", lease_for=60.0)
            server.command("CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(UnavailableError, match="maxmemory"):
                await hot.broker.publish("q", [Entry("x"), Entry("y")])
            with pytest.raises(UnavailableError, match="maxmemory"):
                await durable.write([Insert("queue_job:q", "x", {"status": "waiting"})])
            with pytest.raises(UnavailableError, match="maxmemory"):
                await hot.counters.increment("c")
            assert await hot.broker.contains("q", ["x", "y"]) == [False, False]
            assert await durable.get("queue_job:q", ["x"]) == [None]
            assert all(await hot.broker.renew(held, lease_for=60.0))
            assert lock is not None
            assert await hot.locks.renew(lock, lease_for=60.0)
            assert all(await hot.broker.nack(held[1:]))
            leases = await hot.broker.claim("q", owner="w", lease_for=60.0, limit=9)
            assert len(leases) == 8
            patched = await durable.write(
                [
                    Patch("queue_job:q", "0", set={"status": "completed"}, increment={"n": 1}),
                    Delete("queue_job:q", "1"),
                ]
            )
            assert all(patched)
            moved = [Delete("queue_job:q", "2"), Insert("queue_dlq:q", "2", {"error": "x"})]
            assert all(await durable.write(moved, atomic=True))
            assert all(await hot.broker.ack([held[0], *leases]))
            assert await hot.locks.release(lock)
            # Who has nothing to do waits, as ever.
            for order in ("fifo", "lifo"):
                assert await hot.broker.claim("q", owner="w", lease_for=60.0, order=order) == []
            assert await hot.broker.wait(["q"], timeout=0.2) == []
            server.command("CONFIG", "SET", "maxmemory", "0")
            assert await hot.broker.publish("q", [Entry("x")])

    with servers.redis_server(binary=find_binary(version)) as server:
        asyncio.run(scenario(server))


@pytest.mark.parametrize("behaviour", [None, "hold", "skip", "reject"])
def test_queues_are_steered_while_memory_is_short(
    own_redis: RedisServer, behaviour: str | None
) -> None:
    """Whoever sees that memory runs out can stop what fills it, and go on later."""

    async def scenario() -> None:
        options: dict[str, Any] = {"mode": "redis", "redis": {"url": own_redis.url}}
        async with open_storage(project="full", environment="e", **options) as storage:
            jobs, controls = storage.jobs, storage.controls
            await jobs.add("q", 1, id="a")
            own_redis.command("CONFIG", "SET", "maxmemory", "1")
            for queue in ("q", "new"):
                pause = await controls.pause("queue", queue, behaviour=behaviour, reason="full")
                assert pause.paused
            assert await jobs.claim("q") == []
            assert await jobs.cancel("q", "a")
            for queue in ("q", "new"):
                assert not (await controls.resume("queue", queue)).paused
            with pytest.raises(UnavailableError, match="maxmemory"):
                await jobs.add("q", 2)
            own_redis.command("CONFIG", "SET", "maxmemory", "0")
            await jobs.add("q", 2, id="b")
            assert ["b"] == [claim.id for claim in await jobs.claim("q")]

    try:
        asyncio.run(scenario())
    finally:
        own_redis.command("CONFIG", "SET", "maxmemory", "0")


def test_a_paused_server_is_timed_out_and_then_served_again(
    open_planes: Any, own_redis: RedisServer
) -> None:
    """No call hangs, and no answer arrives at a call that it is not for."""

    async def scenario() -> None:
        async with open_planes(own_redis.url, **QUICK) as planes:
            hot, durable = planes.hot, planes.durable
            await durable.write([Put("n", str(n), {"n": n}) for n in range(50)])
            with own_redis.paused():
                started = time.monotonic()
                answers = await asyncio.gather(
                    *(hot.counters.increment("c") for _ in range(20)),
                    durable.get("n", ["1"]),
                    hot.broker.publish("q", [Entry("1")]),
                    return_exceptions=True,
                )
                assert time.monotonic() - started < 10.0
                assert all(isinstance(answer, UnavailableError) for answer in answers)
                assert any(isinstance(answer, TimedOutError) for answer in answers)
            for n in range(50):
                (record,) = await until_served(partial(durable.get, "n", [str(n)]))
                assert record.value == {"n": n}

    asyncio.run(scenario())


def test_closing_does_not_wait_for_a_server_that_hangs(
    open_planes: Any, own_redis: RedisServer
) -> None:
    """Calls under way are told; leaving is quick."""

    async def scenario() -> None:
        async with open_planes(own_redis.url) as planes:
            await planes.hot.broker.wait(["q"], timeout=0.01)
            own_redis.pause()
            call = asyncio.ensure_future(planes.hot.counters.increment("c"))
            waiter = asyncio.ensure_future(planes.hot.broker.wait(["q"], timeout=60.0))
            await asyncio.sleep(0.05)
            started = time.monotonic()
        assert time.monotonic() - started < 3.0
        for task in (call, waiter):
            with pytest.raises(OqronError):
                await task
        own_redis.resume()

    asyncio.run(scenario())


def test_cut_connections_are_made_again(open_planes: Any, own_redis: RedisServer) -> None:
    """Between calls nobody notices; a call under way fails or is served, never mixed up."""

    async def scenario() -> None:
        async with open_planes(own_redis.url, **QUICK) as planes:
            hot, durable = planes.hot, planes.durable
            await durable.write([Put("n", str(n), {"n": n}) for n in range(100)])
            for n in range(20):
                own_redis.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                await asyncio.sleep(0.005)
                assert await hot.counters.increment("c") == n + 1
            stop = asyncio.Event()

            async def cut() -> None:
                while not stop.is_set():
                    await asyncio.to_thread(
                        own_redis.command, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"
                    )

            cutter = asyncio.ensure_future(cut())
            served = 0
            for n in range(400):
                try:
                    (record,) = await durable.get("n", [str(n % 100)])
                except UnavailableError:
                    continue
                assert record is not None
                assert record.value == {"n": n % 100}
                served += 1
            stop.set()
            await cutter
            assert served > 0

    asyncio.run(scenario())


def test_a_waiter_survives_the_loss_of_its_connection(
    open_planes: Any, own_redis: RedisServer
) -> None:
    """Wake-ups work again after the listening connection was cut."""

    async def scenario() -> None:
        async with open_planes(own_redis.url, **QUICK) as planes:
            broker = planes.hot.broker
            waiter = asyncio.ensure_future(broker.wait(["q"], timeout=30.0))
            await asyncio.sleep(0.1)
            own_redis.command("CLIENT", "KILL", "TYPE", "pubsub")
            await asyncio.sleep(0.3)
            assert not waiter.done()
            started = time.monotonic()
            await until_served(lambda: broker.publish("q", [Entry("1")]))
            assert await waiter == ["q"]
            assert time.monotonic() - started < 4.0

    asyncio.run(scenario())


def test_a_subscriber_survives_the_loss_of_its_connection(
    open_planes: Any, own_redis: RedisServer
) -> None:
    """It misses what was published meanwhile, and hears what comes after."""

    async def scenario() -> None:
        async with open_planes(own_redis.url, **QUICK) as planes:
            signals = planes.hot.signals
            async with signals.subscribe(["c"]) as heard:
                own_redis.command("CLIENT", "KILL", "TYPE", "pubsub")
                await asyncio.sleep(0.1)

                async def say() -> None:
                    while True:
                        await until_served(lambda: signals.publish("c", "hello"))
                        await asyncio.sleep(0.02)

                speaker = asyncio.ensure_future(say())
                async with asyncio.timeout(10):
                    assert (await anext(heard)).message == "hello"
                speaker.cancel()

    asyncio.run(scenario())


def test_a_waiter_hears_of_work_after_a_flush(open_planes: Any, own_redis: RedisServer) -> None:
    """Its mark is gone with the rest; it looks again by itself."""

    async def scenario() -> None:
        async with open_planes(own_redis.url) as planes, open_planes(own_redis.url) as other:
            del other
            broker = planes.hot.broker
            waiter = asyncio.ensure_future(broker.wait(["q"], timeout=30.0))
            await asyncio.sleep(0.1)
            own_redis.command("FLUSHALL")
            await broker.publish("q", [Entry("1")])
            async with asyncio.timeout(10):
                assert await waiter == ["q"]

    asyncio.run(scenario())


def test_what_is_stored_by_others_is_no_crash(open_planes: Any, own_redis: RedisServer) -> None:
    """A record that is no JSON is a typed error that names it; a pickle is only bytes."""

    async def scenario() -> None:
        async with open_planes(own_redis.url) as planes:
            durable, keys = planes.durable, planes.durable._session.keys
            await durable.write([Put("n", "1", {"a": 1}), Put("n", "2", {"a": 2})])
            key = (keys.records("n") + b"1").decode()
            own_redis.command("HSET", key, "a", "cos\nsystem\n(S'true'\ntR.")
            broken, whole = await durable.get("n", ["1", "2"])
            with pytest.raises(StorageError, match="n/1"):
                _ = broken.value
            assert whole.value == {"a": 2}

    asyncio.run(scenario())


def test_use_after_closing_is_refused(open_planes: Any, redis: RedisServer) -> None:
    """Every plane says that it is closed."""

    async def scenario() -> None:
        async with open_planes(redis.url) as planes:
            pass
        for call in (
            lambda: planes.hot.broker.publish("q", []),
            planes.hot.now,
            lambda: planes.durable.get("n", []),
            lambda: planes.durable.write([]),
        ):
            with pytest.raises(ClosedError):
                await call()
        await planes.store.close()

    asyncio.run(scenario())
