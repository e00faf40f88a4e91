"""The clock and the fault proxies that other tests stand on."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from oqron_core.exceptions import TimedOutError, UnavailableError
from oqron_core.planes import Broker, DurablePlane, Entry, HotPlane, Put, Signal, Signals
from oqron_core.storage import Storage, open_storage
from oqron_core.testing.clock import ManualClock, settle
from oqron_core.testing.faults import Crash, Faults
from oqron_memory import MemoryStore


def test_a_manual_clock_stands_still() -> None:
    """It moves when it is told to, and never backward."""
    clock = ManualClock(1000)
    assert 1000 == clock.now()
    clock.advance(0.5)
    clock.set(2000)
    clock.advance(0.0004)
    assert 2000 == clock.now()
    clock.advance(0.0006)

    assert 2001 == clock.now()
    with pytest.raises(ValueError, match="backward"):
        clock.advance(-1)
    with pytest.raises(ValueError, match="backward"):
        clock.set(1999)


def test_sleepers_wake_when_they_are_due_and_in_order() -> None:
    """Also those that sleep again on the way."""

    async def main() -> list[tuple[str, int]]:
        clock = ManualClock(0)
        woken: list[tuple[str, int]] = []

        async def sleeper(name: str, *naps: float) -> None:
            for nap in naps:
                await clock.sleep(nap)
                woken.append((name, clock.now()))

        tasks = [
            asyncio.create_task(sleeper("a", 3, 1)),
            asyncio.create_task(sleeper("b", 1, 1, 1.5)),
            asyncio.create_task(sleeper("late", 60)),
        ]
        await settle()
        assert 3 == clock.sleepers
        await clock.elapse(5)
        assert 1 == clock.sleepers
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert 0 == clock.sleepers
        return woken

    assert [("b", 1000), ("b", 2000), ("a", 3000), ("b", 3500), ("a", 4000)] == asyncio.run(main())


@contextlib.asynccontextmanager
async def opened(faults: Faults, store: MemoryStore | None = None):  # type: ignore[no-untyped-def]  # noqa: ANN201 - a helper
    """Open a storage in memory that suffers faults."""
    async with open_storage(
        mode="memory",
        memory={"store": store or MemoryStore()},
        wrap_hot=faults.wrap_hot,
        wrap_durable=faults.wrap_durable,
    ) as storage:
        faults.reset()
        yield storage


async def some_writes(storage: Storage, faults: Faults) -> None:
    """Fail before, after, at the n-th call, and for ever."""
    plane = storage.durable
    faults.fail("durable.write")
    with pytest.raises(UnavailableError):
        await plane.write([Put("n", "before", {})])
    faults.fail("durable.*", when="after")
    with pytest.raises(TimedOutError):
        await plane.write([Put("n", "after", {})])
    faults.fail("durable.write", nth=2, error=ZeroDivisionError())
    await plane.write([Put("n", "first", {})])
    with pytest.raises(ZeroDivisionError):
        await plane.write([Put("n", "second", {})])
    faults.down("durable.*")
    for _ in range(3):
        with pytest.raises(UnavailableError):
            await plane.get("n", ["first"])
    await storage.hot.broker.publish("q", [Entry("a")])
    faults.heal()
    found = await plane.get("n", ["before", "after", "first", "second"])

    assert [False, True, True, False] == [record is not None for record in found]
    expected = [*["durable.write"] * 4, *["durable.get"] * 3, "hot.broker.publish", "durable.get"]
    assert expected == faults.names()
    assert [1, 2, 3, 4] == [call.nth for call in faults.calls[:4]]


def test_calls_fail_where_they_are_told_to() -> None:
    """Nothing happens before; everything has happened after."""

    async def main() -> None:
        faults = Faults()
        async with opened(faults) as storage:
            await some_writes(storage, faults)

    asyncio.run(main())


def test_a_dead_process_makes_no_more_calls() -> None:
    """Also what was under way when it died gets no answer."""

    async def main() -> None:
        faults = Faults()
        store = MemoryStore()
        with contextlib.suppress(Crash):
            async with opened(faults, store) as storage:
                pause = faults.pause("durable.get")
                waiting = asyncio.create_task(_get(storage))
                await pause.reached.wait()
                faults.crash("durable.write", when="after")
                with pytest.raises(Crash):
                    await storage.durable.write([Put("n", "a", {})])
                assert faults.dead
                assert faults.died.is_set()
                with pytest.raises(Crash):
                    await storage.hot.broker.queues()
                pause.release()
                with pytest.raises(Crash):
                    await waiting
        async with opened(Faults(), store) as storage:
            assert await _get(storage)

    asyncio.run(main())


async def _get(storage: Storage) -> bool:
    [record] = await storage.durable.get("n", ["a"])
    return record is not None


def test_proxies_are_planes() -> None:
    """They have the ABCs, pass everything through, and record subscriptions."""

    async def main() -> None:
        faults = Faults()
        async with opened(faults) as storage:
            assert isinstance(storage.hot, HotPlane)
            assert isinstance(storage.durable, DurablePlane)
            assert isinstance(storage.hot.broker, Broker)
            assert isinstance(storage.hot.signals, Signals)
            assert storage.hot.capabilities.backend == "memory"
            assert storage.hot.scope == storage.durable.scope == storage.scope
            assert (await storage.hot.check()).ok
            async with storage.hot.signals.subscribe(["c"]) as messages:
                await storage.hot.signals.publish("c", 1)
                assert Signal("c", 1) == await anext(messages)
            expected = ["hot.check", "hot.signals.subscribe", "hot.signals.publish"]
            assert expected == faults.names()

    asyncio.run(main())
