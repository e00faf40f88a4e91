"""Who gets what when many ask at once, and when those who ask are cut off."""

from __future__ import annotations

import asyncio
import multiprocessing
import random

from typing import Any

import pytest

from fix_claimers import claimer
from oqron_core.planes import Entry, Put, Scope
from oqron_core.testing.servers import RedisServer


IDS = 20_000
PROCESSES = 8


def test_many_processes_claim_every_id_once(open_planes: Any, own_redis: RedisServer) -> None:
    """Nothing is handed out twice, and nothing is left."""
    scope = Scope("p", "e")

    async def publish() -> None:
        async with open_planes(own_redis.url, scope) as planes:
            await planes.hot.broker.publish("q", [Entry(str(n)) for n in range(IDS)])

    asyncio.run(publish())
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    workers = [
        context.Process(target=claimer, args=(own_redis.url, scope, answers))
        for _ in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    claimed = [id_ for _ in workers for id_ in answers.get(timeout=50)]
    for worker in workers:
        worker.join()
    assert sorted(claimed, key=int) == [str(n) for n in range(IDS)]


def test_a_consumer_cancelled_at_random_loses_nothing(
    open_planes: Any, own_redis: RedisServer
) -> None:
    """What was taken and not delivered comes back when its lease lapses."""

    async def scenario() -> None:
        dice = random.Random(7)
        async with open_planes(own_redis.url) as planes:
            broker = planes.hot.broker
            await broker.publish("q", [Entry(str(n)) for n in range(1000)])
            done: set[str] = set()
            for _ in range(300):
                task = asyncio.ensure_future(broker.claim("q", owner="w", lease_for=0.3, limit=5))
                await asyncio.sleep(dice.random() * 0.001)
                task.cancel()
                try:
                    leases = await task
                except asyncio.CancelledError:
                    continue
                kept = await broker.ack(leases)
                done |= {lease.id for lease, ok in zip(leases, kept, strict=True) if ok}
            while len(done) < 1000:
                leases = await broker.claim("q", owner="w", lease_for=5.0, limit=100)
                if not leases:
                    assert await broker.wait(["q"], timeout=5.0) == ["q"]
                assert all(await broker.ack(leases))
                for lease in leases:
                    assert lease.id not in done
                    done.add(lease.id)
            counts = await broker.counts("q")
            assert (counts.ready, counts.delayed, counts.leased) == (0, 0, 0)

    asyncio.run(scenario())


def test_cancelled_calls_leave_no_answer_for_others(
    open_planes: Any, own_redis: RedisServer
) -> None:
    """Whoever asks next gets its own answer, however many were cut off before."""

    async def scenario() -> None:
        dice = random.Random(11)
        async with open_planes(own_redis.url) as planes:
            hot, durable = planes.hot, planes.durable
            await durable.write([Put("n", str(n), {"n": n}) for n in range(100)])
            for round_ in range(200):
                tasks = [
                    asyncio.ensure_future(durable.get("n", [str(dice.randrange(100))])),
                    asyncio.ensure_future(hot.cache.get_many(["a", "b"])),
                    asyncio.ensure_future(hot.counters.increment("c")),
                ]
                await asyncio.sleep(dice.random() * 0.0005)
                for task in tasks:
                    task.cancel()
                n = round_ % 100
                (record,) = await durable.get("n", [str(n)])
                assert record.value == {"n": n}
                await asyncio.gather(*tasks, return_exceptions=True)
            assert len(await _connections(own_redis)) <= 3

    asyncio.run(scenario())


async def _connections(server: RedisServer) -> list[str]:
    clients = str(await asyncio.to_thread(server.command, "CLIENT", "LIST"))
    return [line for line in clients.splitlines() if "cmd=client" not in line]


def test_many_tasks_share_few_round_trips(open_planes: Any, own_redis: RedisServer) -> None:
    """The calls of one tick go out in one write, and each gets its own answer."""

    async def scenario() -> None:
        async with open_planes(own_redis.url) as planes:
            counters = planes.hot.counters
            sums = await asyncio.gather(*(counters.increment("c") for _ in range(500)))
            assert sums == [*range(1, 501)]
            assert len(await _connections(own_redis)) <= 3

    asyncio.run(scenario())


def test_waiting_costs_no_polling(open_planes: Any, own_redis: RedisServer) -> None:
    """A hundred waiters on a silent queue ask the server a bounded number of times."""

    def calls() -> int:
        stats = str(own_redis.command("INFO", "stats"))
        return int(stats.partition("total_commands_processed:")[2].split()[0])

    async def scenario() -> None:
        async with open_planes(own_redis.url) as planes:
            broker = planes.hot.broker
            await broker.wait(["q"], timeout=0.01)
            before = calls()
            waiters = [asyncio.ensure_future(broker.wait(["q"], timeout=2.0)) for _ in range(100)]
            assert await asyncio.gather(*waiters) == [[]] * 100
            # Each look is a script of at most six commands; one at the start, one at
            # the end, and one when the time of a mark is over.
            assert calls() - before < 100 * 3 * 7

    asyncio.run(scenario())


@pytest.mark.parametrize("count", [1, 20])
def test_waiters_wake_from_another_connection(
    open_planes: Any, own_redis: RedisServer, count: int
) -> None:
    """All who wait for a queue are told of one publishing, and others are not."""

    async def scenario() -> None:
        scope = Scope("p", "e")
        async with (
            open_planes(own_redis.url, scope) as planes,
            open_planes(own_redis.url, scope) as other,
        ):
            broker = planes.hot.broker
            waiters = [
                asyncio.ensure_future(broker.wait(["q", "r"], timeout=30.0)) for _ in range(count)
            ]
            silent = asyncio.ensure_future(broker.wait(["s"], timeout=30.0))
            await asyncio.sleep(0.1)
            await other.hot.broker.publish("r", [Entry("1")])
            async with asyncio.timeout(3):
                assert await asyncio.gather(*waiters) == [["r"]] * count
            assert not silent.done()
            silent.cancel()

    asyncio.run(scenario())


def test_a_large_batch_leaves_room_for_small_calls(
    open_planes: Any, own_redis: RedisServer
) -> None:
    """Calls of others are answered between its steps, not behind it."""

    async def scenario() -> None:
        async with open_planes(own_redis.url) as planes:
            durable = planes.durable
            batch = [Put("n", str(n), {"n": n}) for n in range(20_000)]
            large = asyncio.ensure_future(durable.write(batch, returning=()))
            while await durable.get("n", ["0"]) == [None]:
                pass
            assert not large.done()
            for n in range(3):
                assert await durable.get("other", [str(n)]) == [None]
                assert not large.done()
            assert all(await large)

    asyncio.run(scenario())
