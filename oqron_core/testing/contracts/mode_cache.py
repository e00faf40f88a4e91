"""The contract of `Storage.cache` in a mode: built once, invalidated for good."""

from __future__ import annotations

import asyncio

from typing import Any

import pytest

from oqron_core.exceptions import InvalidValueError, UnavailableError
from oqron_core.planes import MISSING
from oqron_core.storage import Storage
from oqron_core.testing.contracts.base import gather
from oqron_core.testing.contracts.services import ServiceContract
from oqron_core.testing.faults import Crash, Faults, When
from oqron_core.testing.hostile import BAD_NAMES, BAD_VALUES, NAMES, VALUES, same


__all__ = ["Builder", "ModeCacheContract"]

BAD_TTLS = (0, 0.0, 0.0004, -1, float("nan"), float("inf"), "1", True, 2**62)


class Builder:
    """
    Counts its calls, and may be held up.

    Attributes:
        calls: How often it was called.
        value: What it gives; an exception is raised.
    """

    def __init__(self, value: Any = "built", *, held_up: bool = False) -> None:
        self.calls: int = 0
        self.value = value
        self.begun: asyncio.Event = asyncio.Event()
        self._go = asyncio.Event()
        if not held_up:
            self._go.set()

    def release(self) -> None:
        """Let it go on."""
        self._go.set()

    async def __call__(self) -> Any:
        """Build."""
        self.calls += 1
        self.begun.set()
        await self._go.wait()
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value


class ModeCacheContract(ServiceContract):
    """What the cache must do in every mode."""

    async def cached(self, key: str = "k", storage: Storage | None = None) -> Any:
        """Read a key; `MISSING` where there is none."""
        return await (storage or self.storage).cache.get(key, MISSING)

    # --- values ---------------------------------------------------------------------

    async def test_every_portable_value_is_given_back(self) -> None:
        """Equal, None and empty things included, and as a copy of one's own."""
        for number, value in enumerate(VALUES):
            await self.storage.cache.set(f"k{number}", value, ttl=60.0)
        for number, value in enumerate(VALUES):
            assert same(value, await self.cached(f"k{number}"))

        await self.storage.cache.set("list", [1], ttl=None)
        (await self.cached("list")).append(2)
        assert [1] == await self.cached("list")

    async def test_none_is_a_value_and_a_miss_is_not(self) -> None:
        """The default is for misses alone."""
        await self.storage.cache.set("none", None, ttl=60.0)

        assert await self.storage.cache.get("none", "default") is None
        assert "default" == await self.storage.cache.get("miss", "default")
        assert await self.storage.cache.get("miss") is None

    async def test_batches_are_answered_in_order(self) -> None:
        """Also repeated keys, misses and hundreds of keys."""
        await self.storage.cache.set_many({f"k{n}": n for n in range(300)}, ttl=60.0, tags=["t"])
        keys = [f"k{n}" for n in reversed(range(300))]

        assert [*reversed(range(300))] == await self.storage.cache.get_many(keys)
        assert [1, None, 1] == await self.storage.cache.get_many(["k1", "no", "k1"])
        assert [True, False] == await self.storage.cache.delete_many(["k1", "no"])
        assert [] == await self.storage.cache.get_many([])
        assert [] == await self.storage.cache.delete_many([])

    async def test_a_value_is_gone_when_its_time_is_over(self) -> None:
        """Not before; and without a time it stays."""
        await self.storage.cache.set("short", 1, ttl=self.moment)
        await self.storage.cache.set("long", 1, ttl=3600.0)
        await self.storage.cache.set("ever", 1, ttl=None)
        assert [1, 1, 1] == await self.storage.cache.get_many(["short", "long", "ever"])
        await self.pass_moment()

        assert [None, 1, 1] == await self.storage.cache.get_many(["short", "long", "ever"])

    async def test_every_legal_name_is_a_key_and_a_tag(self) -> None:
        """And none meets another, nor a key of the plane itself."""
        await self.storage.hot.cache.set_many({"a": "not ours"}, ttl=60.0)
        for name in NAMES:
            await self.storage.cache.set(name, name, ttl=60.0, tags=[name])
        assert [*NAMES] == await self.storage.cache.get_many(NAMES)
        await self.storage.cache.invalidate_tag(NAMES[0])

        assert [None, *NAMES[1:]] == await self.storage.cache.get_many(NAMES)
        assert ["not ours"] == list(await self.storage.hot.cache.get_many(["a"]))

    # --- building ---------------------------------------------------------------------

    async def test_fifty_callers_of_four_processes_share_one_builder(self) -> None:
        """All get what it made, and it is made once."""
        builder = Builder({"n": [1]}, held_up=True)
        async with self.crowd(4) as storages:
            tasks = [
                asyncio.create_task(storages[n % 4].cache.get_or_set("k", builder, ttl=60.0))
                for n in range(50)
            ]
            await builder.begun.wait()
            await self.settle()
            builder.release()

            assert [{"n": [1]}] * 50 == await gather(tasks)
            assert 1 == builder.calls
            assert {"n": [1]} == await self.cached()

    async def test_an_expired_value_is_built_once(self) -> None:
        """A crowd at the moment of expiry makes no stampede."""
        builder = Builder()
        await self.storage.cache.get_or_set("k", builder, ttl=self.moment)
        await self.pass_moment()
        async with self.crowd(4) as storages:
            await gather(
                storages[n % 4].cache.get_or_set("k", builder, ttl=60.0) for n in range(50)
            )

        assert 2 == builder.calls

    async def test_a_builder_may_be_a_plain_function(self) -> None:
        """Or one that gives something to await."""
        assert 1 == await self.storage.cache.get_or_set("a", lambda: 1, ttl=60.0)
        builder = Builder(2)
        assert 2 == await self.storage.cache.get_or_set("b", lambda: builder(), ttl=60.0)  # noqa: PLW0108 - a lambda is the point
        assert [1, 2] == await self.storage.cache.get_many(["a", "b"])

    async def test_what_is_there_is_not_built(self) -> None:
        """None included."""
        await self.storage.cache.set("k", None, ttl=60.0)
        builder = Builder()

        assert await self.storage.cache.get_or_set("k", builder) is None
        assert 0 == builder.calls

    async def test_a_builder_that_raises_leaves_nothing(self) -> None:
        """Each caller that waited gets the exception; the next call builds anew."""
        builder = Builder(KeyError("no"), held_up=True)
        tasks = [asyncio.create_task(self.storage.cache.get_or_set("k", builder)) for _ in range(5)]
        await builder.begun.wait()
        await self.settle()
        builder.release()
        answers = await asyncio.gather(*tasks, return_exceptions=True)

        assert [KeyError] * 5 == [type(answer) for answer in answers]
        assert 1 == builder.calls
        assert await self.cached() is MISSING
        builder.value = 1
        assert 1 == await self.storage.cache.get_or_set("k", builder)

    async def test_another_process_builds_where_the_first_builder_raised(self) -> None:
        """Its failure is told at once, and is not everybody's."""
        failing, working = Builder(KeyError("no"), held_up=True), Builder("fine")
        async with self.open() as other:
            first = asyncio.create_task(self.storage.cache.get_or_set("k", failing))
            await failing.begun.wait()
            second = asyncio.create_task(other.cache.get_or_set("k", working))
            await self.settle()
            assert 0 == working.calls
            failing.release()

            assert "fine" == await second
            with pytest.raises(KeyError):
                await first

    async def test_a_builder_that_died_is_replaced(self) -> None:
        """After its lease, by one of those who wait: two calls in all."""
        faults = Faults()
        dying, builder = Builder(held_up=True), Builder()
        async with self.open() as other, self.open(faults) as doomed:
            first = asyncio.create_task(doomed.cache.get_or_set("k", dying, lease_for=0.4))
            await dying.begun.wait()
            faults.crash("*")
            waiters = [
                asyncio.create_task(other.cache.get_or_set("k", builder, ttl=60.0))
                for _ in range(20)
            ]
            await self.settle()
            assert 0 == builder.calls
            await self.elapse(0.6)

            assert ["built"] * 20 == await gather(waiters)
            assert (1, 1) == (dying.calls, builder.calls)
            dying.release()
            with pytest.raises(Crash):
                await first
            faults.heal()
            faults.dead = False

    async def test_a_slow_builder_keeps_the_others_waiting(self) -> None:
        """While it lives its lease is renewed, however long it takes."""
        builder = Builder(held_up=True)
        renewals = "hot.locks.renew"
        async with self.open() as other:
            first = asyncio.create_task(
                self.storage.cache.get_or_set("k", builder, lease_for=self.brief)
            )
            await builder.begun.wait()
            second = asyncio.create_task(other.cache.get_or_set("k", builder))
            for _ in range(3):
                seen = len(self.faults.names(renewals))
                await self.until(lambda seen=seen: len(self.faults.names(renewals)) > seen)  # type: ignore[misc]  # bound now
                await self.elapse(self.brief * 0.5)
            builder.release()

            assert ["built"] * 2 == await gather([first, second])
            assert 1 == builder.calls

    async def test_a_caller_that_is_cancelled_does_not_take_the_others_along(self) -> None:
        """The builder goes on as long as somebody waits for it."""
        builder = Builder(held_up=True)
        tasks = [asyncio.create_task(self.storage.cache.get_or_set("k", builder)) for _ in range(2)]
        await builder.begun.wait()
        await self.settle()
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        builder.release()

        assert "built" == await tasks[1]
        assert tasks[0].cancelled()

    async def test_a_builder_that_nobody_waits_for_is_cancelled(self) -> None:
        """And the next caller builds at once."""
        hanging, builder = Builder(held_up=True), Builder()
        task = asyncio.create_task(self.storage.cache.get_or_set("k", hanging))
        await hanging.begun.wait()
        task.cancel()
        await asyncio.wait([task])
        async with self.open() as other:
            assert "built" == await other.cache.get_or_set("k", builder)

    async def test_what_was_built_must_be_portable(self) -> None:
        """The callers are told, and nothing is cached."""
        for value in BAD_VALUES:
            with pytest.raises(InvalidValueError):
                await self.storage.cache.get_or_set("k", Builder(value), ttl=60.0)

        assert await self.cached() is MISSING

    async def test_a_value_that_could_not_be_stored_is_given_all_the_same(self) -> None:
        """A cache that is down after the building costs the next caller a build."""
        self.faults.down("hot.cache.add")
        builder = Builder()
        assert "built" == await self.storage.cache.get_or_set("k", builder)
        self.faults.heal()

        assert "built" == await self.storage.cache.get_or_set("k", builder)
        assert 2 == builder.calls

    async def test_a_cache_that_does_not_answer_says_so(self) -> None:
        """Before the builder is called."""
        self.faults.down("hot.*")
        builder = Builder()
        with pytest.raises(UnavailableError):
            await self.storage.cache.get_or_set("k", builder)
        with pytest.raises(UnavailableError):
            await self.storage.cache.get("k")
        self.faults.heal()

        assert 0 == builder.calls

    async def test_negative_answers_have_a_time_of_their_own(self) -> None:
        """None is cached, for shorter than what was found."""
        builder = Builder(None)
        for _ in range(3):
            assert (
                await self.storage.cache.get_or_set(
                    "k", builder, ttl=60.0, negative_ttl=self.moment
                )
                is None
            )
        assert 1 == builder.calls
        await self.pass_moment()
        builder.value = "found"
        assert "found" == await self.storage.cache.get_or_set(
            "k", builder, ttl=60.0, negative_ttl=self.moment
        )
        await self.pass_moment()

        assert "found" == await self.cached()
        assert 2 == builder.calls

    async def test_a_process_that_dies_anywhere_in_a_build_blocks_nobody_for_long(self) -> None:
        """After the lease of the build, the value is there or is built."""
        points: list[tuple[str, When]] = [
            (call, when)
            for call in (
                "hot.locks.acquire",
                "hot.cache.get_many",
                "hot.locks.holder",
                "hot.cache.add",
                "hot.locks.release",
                "hot.signals.publish",
            )
            for when in ("before", "after")
        ]
        for number, (call, when) in enumerate(points):
            await self.die(
                call,
                when,
                lambda doomed, number=number: doomed.cache.get_or_set(  # type: ignore[misc]  # bound now
                    f"k{number}", Builder("old"), tags=[f"t{number}"], lease_for=self.moment
                ),
            )
        await self.pass_moment()

        for number in range(len(points)):
            value = await self.storage.cache.get_or_set(f"k{number}", Builder("new"))
            assert value in {"old", "new"}
            assert value == await self.cached(f"k{number}")

    # --- stale -------------------------------------------------------------------------

    async def test_a_stale_value_is_given_while_one_builds_anew(self) -> None:
        """At once to all, by one builder in the background among all processes."""
        await self.storage.cache.get_or_set("k", Builder("old"), ttl=self.moment, stale_for=60.0)
        await self.pass_moment()
        assert await self.cached() is MISSING
        builder = Builder("new", held_up=True)
        async with self.crowd(4) as storages:
            answers = await gather(
                storages[n % 4].cache.get_or_set("k", builder, ttl=60.0, stale_for=60.0)
                for n in range(50)
            )
            assert ["old"] * 50 == answers
            await builder.begun.wait()
            await self.settle()
            builder.release()

            async def refreshed() -> bool:
                return await self.cached() is not MISSING

            await self.until_so(refreshed)
            assert "new" == await self.cached()
            assert 1 == builder.calls

    async def test_a_refresh_that_fails_leaves_the_stale_value(self) -> None:
        """The next call tries again."""
        await self.storage.cache.get_or_set("k", Builder("old"), ttl=self.moment, stale_for=60.0)
        await self.pass_moment()
        failing = Builder(KeyError("no"))
        while failing.calls < 2:
            assert "old" == await self.storage.cache.get_or_set("k", failing, ttl=60.0)
            await self.settle()

    async def test_a_value_past_its_stale_time_is_built_in_front(self) -> None:
        """Nobody is given what is too old."""
        await self.storage.cache.get_or_set("k", Builder("old"), ttl=0.2, stale_for=0.2)
        await self.elapse(0.6)

        assert "new" == await self.storage.cache.get_or_set("k", Builder("new"), ttl=60.0)

    # --- invalidation --------------------------------------------------------------------

    async def test_a_tag_invalidates_what_has_it(self) -> None:
        """In a step that does not depend on how many there are, and nothing else."""
        cache = self.storage.cache
        await cache.set_many({f"k{n}": n for n in range(500)}, ttl=60.0, tags=["a"])
        await cache.set("both", 1, ttl=60.0, tags=["b", "a"])
        await cache.set("other", 1, ttl=60.0, tags=["b"])
        await cache.set("none", 1, ttl=60.0)
        self.faults.reset()
        await cache.invalidate_tag("a")
        assert len(self.faults.calls) <= 3

        assert [None] * 500 == await cache.get_many([f"k{n}" for n in range(500)])
        assert [None, 1, 1] == await cache.get_many(["both", "other", "none"])
        await cache.set("k1", "again", ttl=60.0, tags=["a"])
        assert [None, "again"] == await cache.get_many(["k0", "k1"])
        await cache.invalidate_tags(["a", "b", "unused"])
        assert [None, None, 1] == await cache.get_many(["k1", "other", "none"])

    async def test_every_process_sees_an_invalidation_at_once(self) -> None:
        """It takes effect when the call returns, not when a signal arrives."""
        async with self.open() as other:
            await self.storage.cache.set("a", 1, ttl=60.0, tags=["t"])
            await self.storage.cache.set("b", 1, ttl=60.0)
            await other.cache.invalidate_tag("t")
            await other.cache.invalidate("b")

            assert [None, None] == await self.storage.cache.get_many(["a", "b"])

    async def test_an_invalidated_value_is_built_and_cached_again(self) -> None:
        """The remains of the old one are not in the way."""
        builder = Builder(1)
        cache = self.storage.cache
        for calls in (1, 2, 3):
            assert 1 == await cache.get_or_set("k", builder, ttl=60.0, tags=["t"])
            assert 1 == await cache.get_or_set("k", builder, ttl=60.0, tags=["t"])
            assert calls == builder.calls
            await cache.invalidate_tag("t")

    async def test_tags_live_as_long_as_what_has_them(self) -> None:
        """A value is not lost because its tag was first used for a shorter one."""
        cache = self.storage.cache
        await cache.set("short", 1, ttl=0.1, tags=["t"])
        await cache.set("long", 1, ttl=100_000.0, tags=["t"])
        await cache.set("ever", 1, ttl=None, tags=["e"])
        if self.manual_clock:
            await self.elapse(99_000.0)
            assert [None, 1, 1] == await cache.get_many(["short", "long", "ever"])
            await self.elapse(400 * 86400.0)
            assert [None, 1] == await cache.get_many(["long", "ever"])
        await cache.invalidate_tags(["t", "e"])

        assert [None] * 3 == await cache.get_many(["short", "long", "ever"])

    @pytest.mark.parametrize("by", ["key", "tag"])
    async def test_what_was_built_before_an_invalidation_is_not_kept(self, by: str) -> None:
        """A slow builder must not bring old data back, wherever it runs."""
        builder = Builder("old", held_up=True)
        async with self.open() as other:
            task = asyncio.create_task(other.cache.get_or_set("k", builder, ttl=60.0, tags=["t"]))
            await builder.begun.wait()
            if by == "key":
                await self.storage.cache.invalidate("k")
            else:
                await self.storage.cache.invalidate_tag("t")
            builder.release()

            assert "old" == await task
            assert await self.cached() is MISSING

    @pytest.mark.parametrize("by", ["key", "tag"])
    async def test_a_call_after_an_invalidation_does_not_join_an_older_build(self, by: str) -> None:
        """Whoever has invalidated gets what is true since."""
        old, new = Builder("old", held_up=True), Builder("new")
        cache = self.storage.cache
        task = asyncio.create_task(cache.get_or_set("k", old, ttl=60.0, tags=["t"]))
        await old.begun.wait()
        if by == "key":
            await cache.invalidate("k")
            assert "new" == await cache.get_or_set("k", new, ttl=60.0, tags=["t"])
            old.release()
        else:
            await cache.invalidate_tag("t")
            later = asyncio.create_task(cache.get_or_set("k", new, ttl=60.0, tags=["t"]))
            await self.settle()
            old.release()
            assert "new" == await later

        assert "old" == await task
        assert "new" == await self.cached()

    async def test_an_explicit_value_is_not_overwritten_by_a_builder(self) -> None:
        """Whoever sets a key while it is built knows better."""
        builder = Builder("built", held_up=True)
        task = asyncio.create_task(self.storage.cache.get_or_set("k", builder, ttl=60.0))
        await builder.begun.wait()
        await self.storage.cache.set("k", "set", ttl=60.0)
        builder.release()

        assert "built" == await task
        assert "set" == await self.cached()

    # --- local copies -------------------------------------------------------------------------

    async def test_local_copies_spare_the_round_trip_and_follow(self) -> None:
        """Every change by another process reaches the copy."""
        local = self.storage.cache.local(max_age=3600.0)
        async with self.open() as other:
            for change in (
                lambda: other.cache.set("k", 2, ttl=60.0),
                lambda: other.cache.invalidate("k"),
                lambda: other.cache.delete("k"),
                lambda: other.cache.invalidate_tag("t"),
            ):
                await self.storage.cache.set("k", [1], ttl=60.0, tags=["t"])
                while len(local) == 0:
                    # The signal of the set may come after the first read.
                    assert [1] == await local.get("k")
                    await self.settle()
                self.faults.reset()
                (await local.get("k")).append(2)
                assert [1] == await local.get("k")
                assert [] == self.faults.names("hot.cache.*")
                await change()
                await self.until(lambda: len(local) == 0)
                assert [1] != await local.get("k")

    async def test_ones_own_changes_reach_local_copies_at_once(self) -> None:
        """Nobody reads what they have just replaced."""
        local = self.storage.cache.local(max_age=3600.0)
        for value in range(20):
            await self.storage.cache.set("k", value, ttl=60.0)
            assert value == await local.get("k")
        await self.storage.cache.invalidate("k")

        assert await local.get("k", MISSING) is MISSING

    async def test_local_copies_are_few_and_young(self) -> None:
        """The oldest go, and none outlives its age, whatever was heard."""
        local = self.storage.cache.local(max_entries=10, max_age=0.001)
        await self.storage.cache.set_many({f"k{n}": n for n in range(50)}, ttl=60.0)
        await self.settle()
        assert [*range(50)] == await local.get_many([f"k{n}" for n in range(50)])
        assert len(local) <= 10
        await self.storage.hot.cache.delete_many([f"oqron:cache:k{n}" for n in range(50)])

        async def gone() -> bool:
            return await local.get("k49") is None

        await self.until_so(gone)

    async def test_local_copies_are_built_once_as_well(self) -> None:
        """A second call asks neither the plane nor the builder."""
        local = self.storage.cache.local(max_age=3600.0)
        builder = Builder()
        assert "built" == await local.get_or_set("k", builder, ttl=60.0)
        self.faults.reset()

        assert "built" == await local.get_or_set("k", builder, ttl=60.0)
        assert [] == self.faults.names("hot.*")
        assert 1 == builder.calls

    # --- refusals ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
    async def test_a_bad_cache_key_or_tag_is_refused(self, name: Any) -> None:
        """In every call."""
        cache = self.storage.cache
        for call in (
            lambda: cache.get(name),
            lambda: cache.get_many([name]),
            lambda: cache.set(name, 1, ttl=1.0),
            lambda: cache.set("k", 1, ttl=1.0, tags=[name]),
            lambda: cache.get_or_set(name, Builder()),
            lambda: cache.get_or_set("k", Builder(), tags=[name]),
            lambda: cache.delete(name),
            lambda: cache.invalidate(name),
            lambda: cache.invalidate_tag(name),
        ):
            with pytest.raises(InvalidValueError):
                await call()

    async def test_a_bad_time_to_live_is_refused(self) -> None:
        """Zero and less do not mean for ever, and too long is not cut."""
        for ttl in BAD_TTLS:
            with pytest.raises(InvalidValueError, match="ttl"):
                await self.storage.cache.set("k", 1, ttl=ttl)  # type: ignore[arg-type]
            with pytest.raises(InvalidValueError, match="ttl"):
                await self.storage.cache.get_or_set("k", Builder(), ttl=ttl)  # type: ignore[arg-type]
            with pytest.raises(InvalidValueError, match="negative_ttl"):
                await self.storage.cache.get_or_set("k", Builder(), negative_ttl=ttl)  # type: ignore[arg-type]
        await self.storage.cache.set("k", 1, ttl=10 * 366 * 86400.0)

        assert 1 == await self.cached()

    async def test_a_batch_with_a_bad_value_writes_nothing(self) -> None:
        """All are checked first."""
        with pytest.raises(InvalidValueError, match="'b'"):
            await self.storage.cache.set_many({"a": 1, "b": float("nan")}, ttl=60.0)

        assert await self.cached("a") is MISSING
