"""One store, many threads, each with a loop of its own, switching all the time."""

from __future__ import annotations

import asyncio
import sys
import threading

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from oqron_core.planes import Entry, Insert, Lease, Patch, Query, SystemClock


THREADS = 16


@pytest.fixture(autouse=True)
def switching_all_the_time() -> Iterator[None]:
    """Let threads interrupt each other as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    """Run *work* in every thread at once; the first failure is raised."""
    start = threading.Barrier(THREADS)
    failures: list[BaseException] = []

    def run(number: int) -> None:
        start.wait()
        try:
            asyncio.run(work(number))
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


async def test_every_id_is_claimed_once_and_settled_once(opened: Any) -> None:
    """Publishers and claimers race; nothing is lost, handed out twice, or left."""
    per_thread = 150
    claimed: list[Lease] = []
    async with opened(on=SystemClock()) as planes:
        broker = planes.hot.broker

        async def work(number: int) -> None:
            for index in range(per_thread):
                await broker.publish("q", [Entry(f"{number}-{index}", index % 3)])
                leases = await broker.claim("q", owner=f"w{number}", lease_for=60, limit=3)
                settled = await broker.nack(leases[2:]) + await broker.ack(leases[:2])
                assert all(settled)
                claimed.extend(leases[:2])
                await broker.counts("q")
                await broker.queues()

        in_threads(work)
        rest = await broker.claim("q", owner="last", lease_for=60, limit=10**6)
        assert all(await broker.ack(rest))
        claimed.extend(rest)
        assert THREADS * per_thread == len(claimed) == len({lease.id for lease in claimed})
        assert len(claimed) == len({lease.token for lease in claimed})
        assert 0 == planes.store.sizes()["queued"]


async def test_guarded_increments_lose_no_update(opened: Any) -> None:
    """Compare and set from sixteen threads counts every success."""
    async with opened(on=SystemClock()) as planes:
        await planes.durable.write([Insert("things", "n", {"count": 0, "by": []})])

        async def work(number: int) -> None:
            done = 0
            while done < 40:
                (record,) = await planes.durable.get("things", ["n"])
                count = record.value["count"]
                patch = Patch(
                    "things",
                    "n",
                    set={"count": count + 1},
                    append={"by": [number]},
                    expect={"count": count},
                )
                (result,) = await planes.durable.write([patch])
                done += bool(result)

        in_threads(work)
        (record,) = await planes.durable.get("things", ["n"])
        assert THREADS * 40 == record.value["count"] == len(record.value["by"])


async def test_no_structure_changes_while_another_thread_walks_it(opened: Any) -> None:
    """Every facet is read and written at once; nothing raises, all of it ends empty."""
    async with opened(on=SystemClock()) as planes:
        hot, durable = planes.hot, planes.durable

        async def work(number: int) -> None:
            for index in range(40):
                name = f"{number}-{index}"
                await durable.write([Insert("runs", name, {"n": index})])
                await durable.query(Query(kind="run", order_by=[("n", "desc")], limit=5))
                await durable.query(Query(namespace="runs", limit=5))
                await durable.count(Query(kind="run"), by="namespace")
                await hot.live.merge(name, {"n": index}, logs=[{"msg": name}])
                await hot.live.active()
                await hot.live.stale(older_than=0.0)
                await hot.live.drop([name])
                await hot.cache.set_many({name: index, "shared": index}, ttl=0.001)
                await hot.cache.get_many([name, "shared"])
                lease = await hot.locks.acquire("one", owner=name, lease_for=0.05)
                if lease is not None:
                    await hot.locks.release(lease)
                await hot.counters.increment("hits")
                await hot.signals.publish("c", index)
                async with hot.signals.subscribe(["c"]):
                    await durable.prune(Query(namespace="runs", where=[("n", "=", index)]), limit=1)
                await hot.check()

        in_threads(work)
        assert THREADS * 40 == await hot.counters.get("hits")
        assert 0 == planes.store.sizes()["live"]


async def test_one_thread_wakes_who_waits_in_another(opened: Any) -> None:
    """A publish or a signal reaches sleepers in every other loop."""
    async with opened(on=SystemClock()) as planes:
        ready = threading.Barrier(THREADS)

        async def work(number: int) -> None:
            if number == 0:
                while planes.store.sizes()["waiters"] < THREADS - 1:
                    await asyncio.sleep(0)
                await planes.hot.broker.publish("q", [Entry("a")])
                ready.wait()
                await planes.hot.signals.publish("c", "hello")
                return
            assert ["q"] == await planes.hot.broker.wait(["q"], timeout=60)
            async with planes.hot.signals.subscribe(["c"]) as signals:
                ready.wait()
                assert "hello" == (await anext(signals)).message

        in_threads(work)
        assert 0 == planes.store.sizes()["subscribers"]
