"""The cache, in memory."""

from __future__ import annotations

import asyncio

from typing import Any

import pytest

from fix_memory import MemoryMode
from oqron_core import MISSING, Storage, open_storage
from oqron_core.testing.clock import ManualClock, settle
from oqron_core.testing.contracts.mode_cache import Builder, ModeCacheContract
from oqron_core.testing.faults import Faults
from oqron_core.testing.hostile import nested
from oqron_memory import MemoryStore


class TestCacheInMemory(MemoryMode, ModeCacheContract):
    """Several storages share one store, whose clock stands still."""


def opened(store: MemoryStore, faults: Faults | None = None) -> Any:
    """Open a storage over *store*."""
    return open_storage(
        mode="memory",
        project="p",
        environment="e",
        memory={"store": store},
        wrap_hot=None if faults is None else faults.wrap_hot,
    )


def test_unique_keys_and_tags_leave_nothing_behind() -> None:
    """When their time is over, neither the store nor the service remembers them."""

    async def main() -> None:
        clock = ManualClock()
        store = MemoryStore(clock=clock)
        async with opened(store) as storage:
            cache = storage.cache
            for number in range(500):
                await cache.get_or_set(
                    f"k{number}", lambda: 1, ttl=60.0, stale_for=60.0, tags=[f"t{number}"]
                )
                await cache.set(f"s{number}", 1, ttl=60.0, tags=[f"t{number}", "all"])
            assert 1000 == store.sizes()["cache"]
            assert 501 == store.sizes()["locks"]
            clock.advance(7 * 86400.0)
            # Each call sweeps a bounded number of what has expired.
            for _ in range(100):
                await cache.get("nothing")
            sizes = store.sizes()
            assert (0, 0, 0) == (sizes["cache"], sizes["locks"], sizes["subscribers"])
            assert ({}, set()) == (cache._building._flights, cache._building._refreshes)

    asyncio.run(main())


def test_a_value_may_be_nested_as_deep_as_any_other() -> None:
    """What wraps it in the store does not count."""

    async def body(storage: Storage) -> None:
        await storage.cache.set("k", nested(100), ttl=60.0, tags=["t"])
        assert nested(100) == await storage.cache.get("k")

    async def main() -> None:
        async with opened(MemoryStore()) as storage:
            await body(storage)

    asyncio.run(main())


def test_a_lost_signal_costs_a_waiter_a_moment_only() -> None:
    """Who waits for another process looks again by itself."""

    async def main() -> None:
        store = MemoryStore()
        faults = Faults()
        builder = Builder(held_up=True)
        async with opened(store, faults) as one, opened(store) as two:
            faults.down("hot.signals.publish")
            first = asyncio.create_task(one.cache.get_or_set("k", builder, ttl=60.0))
            await builder.begun.wait()
            second = asyncio.create_task(two.cache.get_or_set("k", builder, ttl=60.0))
            await asyncio.sleep(0.01)
            builder.release()
            assert "built" == await first
            assert "built" == await second
            assert 1 == builder.calls

    asyncio.run(main())


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_an_invalidation_at_any_point_of_a_fill_wins(nth: int) -> None:
    """Before the value is written, between writing and giving back, and after."""

    async def main() -> None:
        store = MemoryStore()
        faults = Faults()
        async with opened(store, faults) as one, opened(store) as two:
            points = {1: "before", 2: "after"}
            call = "hot.cache.add" if nth < 3 else "hot.locks.release"
            pause = faults.pause(call, when=points.get(nth, "before"))  # type: ignore[arg-type]
            task = asyncio.create_task(one.cache.get_or_set("k", Builder("old"), ttl=60.0))
            await pause.reached.wait()
            await two.cache.invalidate("k")
            pause.release()
            assert "old" == await task
            assert await two.cache.get("k", MISSING) is MISSING

    asyncio.run(main())


def test_what_others_put_under_our_keys_is_a_miss() -> None:
    """A value that is no entry is neither given nor in the way for ever."""

    async def main() -> None:
        async with opened(MemoryStore()) as storage:
            await storage.hot.cache.set_many({"oqron:cache:k": [1, 2]})
            assert await storage.cache.get("k", MISSING) is MISSING
            builder = Builder()
            for _ in range(2):
                assert "built" == await storage.cache.get_or_set("k", builder)
            assert 1 == builder.calls

    asyncio.run(main())


def test_a_crowd_that_is_served_stale_asks_for_one_refresh() -> None:
    """Those of one process do not even ask the plane who builds."""

    async def main() -> None:
        clock = ManualClock()
        faults = Faults()
        async with opened(MemoryStore(clock=clock), faults) as storage:
            await storage.cache.get_or_set("k", Builder("old"), ttl=1.0, stale_for=60.0)
            clock.advance(2.0)
            faults.reset()
            builder = Builder("new", held_up=True)
            calls = (
                storage.cache.get_or_set("k", builder, ttl=1.0, stale_for=60.0) for _ in range(50)
            )
            assert ["old"] * 50 == await asyncio.gather(*calls)
            await builder.begun.wait()
            assert 1 == len(faults.names("hot.locks.acquire"))
            builder.release()

    asyncio.run(main())


def test_a_copy_is_not_made_of_what_was_invalidated_while_it_was_read() -> None:
    """The signal came first, so nothing would ever correct the copy."""

    async def main() -> None:
        store = MemoryStore()
        faults = Faults()
        async with opened(store, faults) as one, opened(store) as two:
            local = one.cache.local(max_age=3600.0)
            await local.get("warm")
            await two.cache.set("k", "old", ttl=60.0)
            await settle()
            pause = faults.pause("hot.cache.get_many", when="after")
            reading = asyncio.create_task(local.get("k"))
            await pause.reached.wait()
            await two.cache.invalidate("k")
            await settle()
            pause.release()
            assert "old" == await reading
            assert await local.get("k") is None

    asyncio.run(main())
