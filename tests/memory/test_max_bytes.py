"""The limit of what a store holds."""

from __future__ import annotations

from typing import Any

import pytest

from oqron_core.exceptions import InvalidValueError, UnavailableError
from oqron_core.planes import Delete, Insert, Patch, Put, Query
from oqron_core.testing.clock import ManualClock
from oqron_memory import MemorySettings, MemoryStore


BLOB = "x" * 1000


async def fill(durable: Any) -> int:
    """Insert until the store refuses; say how many were taken."""
    count = 0
    with pytest.raises(UnavailableError, match="max_bytes"):
        while True:
            value = {"data": BLOB, "status": "waiting"}
            await durable.write([Insert("queue_job:q", f"{count:05}", value)])
            count += 1
    return count


async def test_a_full_store_refuses_what_is_new_and_names_the_setting(opened: Any) -> None:
    """Records, cache entries and live runs share one limit."""
    async with opened(max_bytes=20_000) as planes:
        assert 15 < await fill(planes.durable) < 20
        with pytest.raises(UnavailableError, match="max_bytes"):
            await planes.hot.cache.set_many({"k": BLOB})
        with pytest.raises(UnavailableError, match="max_bytes"):
            await planes.hot.cache.add("k", BLOB)
        with pytest.raises(UnavailableError, match="max_bytes"):
            await planes.hot.live.merge("r", {"input": BLOB})
        assert 20_000 >= planes.store.used
        assert "max_bytes" in (await planes.hot.check()).reasons[0]


async def test_what_is_under_way_can_be_settled_in_a_full_store(opened: Any) -> None:
    """A job is completed, another is deleted, and there is room again."""
    async with opened(max_bytes=20_000) as planes:
        await fill(planes.durable)
        patch = Patch("queue_job:q", "00000", set={"status": "completed", "returnValue": "y" * 500})
        assert all(await planes.durable.write([patch]))
        assert all(await planes.durable.write([Delete("queue_job:q", f"{i:05}") for i in range(3)]))
        assert all(await planes.durable.write([Insert("queue_job:q", "new", {"data": BLOB})]))


async def test_settling_is_bounded_too(opened: Any) -> None:
    """A record cannot grow without end by patches."""
    async with opened(max_bytes=20_000) as planes:
        await planes.durable.write([Insert("things", "a", {"log": []})])
        with pytest.raises(UnavailableError):
            for _ in range(100):
                await planes.durable.write([Patch("things", "a", append={"log": [BLOB]})])
        assert 20_000 * 9 / 8 >= planes.store.used


async def test_a_refused_batch_leaves_nothing_of_itself(opened: Any) -> None:
    """Neither records nor bytes of it are counted."""
    async with opened(max_bytes=20_000) as planes:
        await planes.durable.write([Put("things", "kept", {"n": 1})])
        used = planes.store.used
        writes = [Put("things", "kept", {"n": 2})]
        writes += [Put("things", f"{i}", {"data": BLOB}) for i in range(30)]
        with pytest.raises(UnavailableError):
            await planes.durable.write(writes)
        assert used == planes.store.used
        (record,) = await planes.durable.get("things", ["kept"])
        assert {"n": 1} == record.value
        assert 1 == planes.store.sizes()["records"]


async def test_a_refused_cache_entry_keeps_the_old_value(opened: Any) -> None:
    """Replacing is all or nothing."""
    async with opened(max_bytes=2_000) as planes:
        await planes.hot.cache.set_many({"k": "old"})
        with pytest.raises(UnavailableError):
            await planes.hot.cache.set_many({"k": BLOB, "other": BLOB * 2})
        assert ["old"] == await planes.hot.cache.get_many(["k"])


async def test_expired_things_make_room_before_anything_is_refused(
    opened: Any, clock: ManualClock
) -> None:
    """What nobody can read any more does not count against the limit."""
    async with opened(max_bytes=20_000) as planes:
        await planes.hot.cache.set_many({f"k{i}": BLOB for i in range(9)}, ttl=1.0)
        expires_at = clock.now() + 1000
        writes = [Insert("runs", f"{i}", {"input": BLOB}, expires_at=expires_at) for i in range(9)]
        await planes.durable.write(writes)
        clock.advance(2.0)
        assert all(await planes.durable.write([Insert("things", "a", {"data": BLOB * 18})]))


async def test_bytes_return_to_zero_when_all_is_gone(opened: Any, clock: ManualClock) -> None:
    """Whichever way a thing leaves, its bytes leave with it."""
    async with opened(max_bytes=10**7) as planes:
        durable, hot = planes.durable, planes.hot
        expires_at = clock.now() + 1000
        for round_number in range(3):
            await durable.write([Put("things", "a", {"data": BLOB * (3 - round_number), "l": [1]})])
            await durable.write(
                [Patch("things", "a", set={"n": round_number}, append={"l": [BLOB]})]
            )
            await hot.cache.set_many({"a": BLOB * (3 - round_number), "b": 1}, ttl=1.0)
            await hot.live.merge("r", {"a": BLOB * (3 - round_number)}, logs=[BLOB])
        await durable.write([Insert("runs", "r", {"input": BLOB}, expires_at=expires_at)])
        assert planes.store.used > 5000
        clock.advance(2.0)
        await durable.write([Insert("runs", "r", {"input": ""})])
        assert 1 == await durable.prune(Query(namespace="runs"))
        await durable.write([Delete("things", "a")])
        await hot.cache.delete_many(["a"])
        await hot.live.drop(["r"])
        await hot.cache.get_many(["b"])
        assert 0 == planes.store.used


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1000"])
def test_a_limit_that_is_none_is_refused(value: Any) -> None:
    """Both ways to set it name it."""
    with pytest.raises(InvalidValueError, match=r"memory\.max_bytes"):
        MemorySettings(max_bytes=value)
    with pytest.raises(InvalidValueError, match=r"memory\.max_bytes"):
        MemoryStore(max_bytes=value)
