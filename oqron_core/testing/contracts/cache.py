"""The contract of `Cache`: values that expire."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import MISSING, Cache
from oqron_core.testing.contracts.base import Contract, gather
from oqron_core.testing.hostile import BAD_NAMES, BAD_VALUES, NAMES, VALUES, same


__all__ = ["CacheContract"]

BAD_TTLS = (0, -1, 0.0004, float("nan"), float("inf"), "1", True, 1e30)


class CacheContract(Contract):
    """What every cache must do."""

    _wants_hot: ClassVar[bool] = True

    @property
    def cache(self) -> Cache:
        """The cache under test."""
        return self.hot.cache

    async def cached(self, key: str = "k") -> Any:
        """Read one key."""
        [value] = await self.cache.get_many([key])
        return value

    async def test_a_miss_is_not_none(self) -> None:
        """None is a value that can be cached."""
        assert await self.cached() is MISSING
        await self.cache.set_many({"k": None})

        assert await self.cached() is None

    async def test_cached_values_come_back_equal(self) -> None:
        """Every portable value, with its types."""
        await self.cache.set_many({f"{n}": value for n, value in enumerate(VALUES)})
        found = await self.cache.get_many([f"{n}" for n in range(len(VALUES))])

        for value, back in zip(VALUES, found, strict=True):
            assert same(value, back), repr(value)[:80]

    async def test_reads_are_in_order(self) -> None:
        """Hits, misses and repetitions stand where they were asked for."""
        await self.cache.set_many({"a": 1, "b": 2})

        assert [2, MISSING, 1, 2] == list(await self.cache.get_many(["b", "x", "a", "b"]))

    async def test_setting_replaces(self) -> None:
        """The last value counts, and the last expiry."""
        await self.cache.set_many({"k": 1}, ttl=0.1)
        await self.cache.set_many({"k": 2})
        await self.elapse(0.3)

        assert 2 == await self.cached()

    async def test_a_cached_value_expires(self) -> None:
        """It is a miss then, for every call."""
        await self.cache.set_many({"a": 1, "b": 2, "c": 3}, ttl=0.1)
        await self.elapse(0.3)

        assert [MISSING, MISSING] == list(await self.cache.get_many(["a", "b"]))
        assert [False] == list(await self.cache.delete_many(["b"]))
        assert await self.cache.add("c", 4) is True

    async def test_a_long_expiry_is_kept(self) -> None:
        """Years are legal, and are not overflow."""
        await self.cache.set_many({"k": 1}, ttl=10 * 365 * 86400.0)
        await self.elapse(0.1)

        assert 1 == await self.cached()

    async def test_what_is_handed_out_is_a_copy(self) -> None:
        """Changing what was put or got changes nothing in the cache."""
        value = {"list": [1], "deep": {"x": []}}
        await self.cache.set_many({"k": value})
        await self.cache.add("added", value)
        value["list"].append(2)  # type: ignore[attr-defined]
        (await self.cached())["deep"]["x"].append(3)

        expected = {"list": [1], "deep": {"x": []}}
        assert [expected, expected] == list(await self.cache.get_many(["k", "added"]))

    async def test_add_writes_only_where_the_key_is_absent(self) -> None:
        """A cached None, too, is there."""
        assert await self.cache.add("k", None) is True
        assert await self.cache.add("k", 2) is False
        assert await self.cached() is None
        await self.cache.delete_many(["k"])

        assert await self.cache.add("k", 3) is True

    async def test_a_refused_add_leaves_the_expiry_alone(self) -> None:
        """The loser cannot prolong what the winner set."""
        await self.cache.add("k", 1, ttl=0.3)
        await self.cache.add("k", 2, ttl=30)
        await self.elapse(0.5)

        assert await self.cached() is MISSING

    async def test_of_fifty_adds_one_wins(self) -> None:
        """A crowd writes once, and the winner's value is there."""
        won = await gather(self.cache.add("k", number) for number in range(50))

        assert 1 == sum(won)
        assert won.index(True) == await self.cached()

    async def test_deleting_says_what_was_there(self) -> None:
        """In order, repetitions included."""
        await self.cache.set_many({"a": 1, "b": None})

        answer = await self.cache.delete_many(["a", "x", "b", "a"])
        assert [True, False, True, False] == list(answer)
        assert [MISSING, MISSING] == list(await self.cache.get_many(["a", "b"]))

    async def test_every_legal_name_is_a_cache_key_of_its_own(self) -> None:
        """No two keys meet, in writing and in deleting."""
        await self.cache.set_many({name: number for number, name in enumerate(NAMES)})
        assert [*range(len(NAMES))] == list(await self.cache.get_many(NAMES))
        await self.cache.delete_many(["a*c", "{a}", "%"])

        gone = {"a*c", "{a}", "%"}
        found = await self.cache.get_many(NAMES)
        assert [MISSING if name in gone else n for n, name in enumerate(NAMES)] == list(found)

    async def test_a_large_batch_is_kept_whole(self) -> None:
        """Thousands of keys in one call."""
        await self.cache.set_many({f"{number}": number for number in range(2500)}, ttl=60)

        assert [*range(2500)] == list(
            await self.cache.get_many([f"{number}" for number in range(2500)])
        )

    @pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
    async def test_a_bad_cache_key_is_refused(self, name: Any) -> None:
        """In every call, and nothing of the batch is written."""
        with pytest.raises(InvalidValueError):
            await self.cache.set_many({"good": 1, name: 2})
        with pytest.raises(InvalidValueError):
            await self.cache.add(name, 1)
        with pytest.raises(InvalidValueError):
            await self.cache.get_many(["good", name])
        with pytest.raises(InvalidValueError):
            await self.cache.delete_many(["good", name])

        assert await self.cached("good") is MISSING

    @pytest.mark.parametrize("number", range(len(BAD_VALUES)))
    async def test_a_value_that_is_not_portable_is_not_cached(self, number: int) -> None:
        """Nothing of the batch is written."""
        value = BAD_VALUES[number]
        with pytest.raises(InvalidValueError):
            await self.cache.set_many({"good": 1, "bad": value})
        with pytest.raises(InvalidValueError):
            await self.cache.add("bad", value)

        assert [MISSING, MISSING] == list(await self.cache.get_many(["good", "bad"]))

    @pytest.mark.parametrize("ttl", BAD_TTLS, ids=repr)
    async def test_a_bad_ttl_is_refused(self, ttl: Any) -> None:
        """Zero is not None; what was cached stays."""
        await self.cache.set_many({"k": 1})
        with pytest.raises(InvalidValueError):
            await self.cache.set_many({"k": 2}, ttl=ttl)
        with pytest.raises(InvalidValueError):
            await self.cache.add("new", 2, ttl=ttl)

        assert [1, MISSING] == list(await self.cache.get_many(["k", "new"]))

    async def test_empty_cache_batches_do_nothing(self) -> None:
        """An empty list in, an empty list out."""
        await self.cache.set_many({})

        assert [] == list(await self.cache.get_many([]))
        assert [] == list(await self.cache.delete_many([]))
