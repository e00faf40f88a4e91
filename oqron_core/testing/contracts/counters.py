"""The contract of `Counters`: integers that expire, and rate limits."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import (
    Counters,
    Decision,
    FixedWindow,
    RateLimit,
    SlidingWindow,
    TokenBucket,
)
from oqron_core.testing.contracts.base import Contract, gather
from oqron_core.testing.hostile import BAD_NAMES, NAMES


__all__ = ["CountersContract"]

HOUR = 3600.0
LIMITS = (
    FixedWindow(20, per=1000 * HOUR),
    SlidingWindow(20, per=1000 * HOUR),
    TokenBucket(20, per=1000 * HOUR),
)
"""Slow enough that nothing flows back during a test."""


def _kind(limit: RateLimit) -> str:
    return type(limit).__name__


class CountersContract(Contract):
    """What every implementation of counters and limits must do."""

    _wants_hot: ClassVar[bool] = True

    @property
    def counters(self) -> Counters:
        """The counters under test."""
        return self.hot.counters

    async def window_start(self, per: float) -> None:
        """Let time pass until a window of *per* seconds has just begun."""
        width = round(per * 1000)
        await self.elapse((width - await self.hot.now() % width) / 1000)

    async def exhaust(self, limit: RateLimit, key: str = "k") -> Decision:
        """Take until it is refused."""
        for _ in range(200):
            decision = await self.counters.take(key, limit)
            if not decision.allowed:
                return decision
        raise AssertionError("never refused")

    # --- counters --------------------------------------------------------------------

    async def test_an_absent_counter_starts_at_zero(self) -> None:
        """Adding gives the sum back; one is the default."""
        assert await self.counters.get("k") is None
        assert 1 == await self.counters.increment("k")
        assert 6 == await self.counters.increment("k", by=5)
        assert -4 == await self.counters.increment("k", by=-10)
        assert -4 == await self.counters.get("k")

    async def test_a_counter_at_zero_is_there(self) -> None:
        """Zero is not absence."""
        await self.counters.increment("k", by=3)
        await self.counters.increment("k", by=-3)

        assert 0 == await self.counters.get("k")
        assert await self.counters.reset("k") is True

    async def test_a_counter_is_exact_to_64_bits(self) -> None:
        """No double ever stands in for the sum."""
        big = 2**53 + 1
        assert big == await self.counters.increment("k", by=big)
        assert big + 1 == await self.counters.increment("k")
        top = 2**63 - 1
        assert top == await self.counters.increment("k", by=top - big - 1)
        assert -(2**63) == await self.counters.increment("low", by=-(2**63))

        assert top == await self.counters.get("k")

    async def test_a_sum_beyond_64_bits_is_refused(self) -> None:
        """The counter stays as it was."""
        await self.counters.increment("k", by=2**63 - 1)
        with pytest.raises(InvalidValueError):
            await self.counters.increment("k")
        await self.counters.increment("low", by=-(2**63))
        with pytest.raises(InvalidValueError):
            await self.counters.increment("low", by=-1)

        assert 2**63 - 1 == await self.counters.get("k")
        assert -(2**63) == await self.counters.get("low")

    async def test_concurrent_increments_add_up(self) -> None:
        """No update is lost, and each caller sees its own sum."""
        sums = await gather(self.counters.increment("k") for _ in range(100))

        assert [*range(1, 101)] == sorted(sums)

    async def test_a_counter_expires(self) -> None:
        """It is absent then, and starts anew, with a new expiry."""
        await self.counters.increment("k", by=5, expires_in=0.1)
        await self.elapse(0.3)
        assert await self.counters.get("k") is None
        assert 1 == await self.counters.increment("k", expires_in=30)

        assert 2 == await self.counters.increment("k")

    async def test_an_expiry_is_not_pushed_forward(self) -> None:
        """Whoever is busy is not counted for ever."""
        await self.counters.increment("k", expires_in=0.8)
        await self.elapse(0.5)
        await self.counters.increment("k", expires_in=30)
        await self.elapse(0.5)

        assert await self.counters.get("k") is None

    async def test_an_expiry_is_set_where_there_is_none(self) -> None:
        """The first call that names one counts; None removes none."""
        await self.counters.increment("k")
        await self.counters.increment("k", expires_in=0.3)
        await self.counters.increment("k", expires_in=None)
        await self.elapse(0.5)

        assert await self.counters.get("k") is None

    async def test_a_counter_without_expiry_stays(self) -> None:
        """None sets none."""
        await self.counters.increment("k")
        await self.elapse(0.3)

        assert 1 == await self.counters.get("k")

    async def test_reset_makes_a_counter_absent(self) -> None:
        """It says whether there was one; its expiry goes with it."""
        await self.counters.increment("k", by=7, expires_in=0.3)

        assert await self.counters.reset("k") is True
        assert await self.counters.reset("k") is False
        assert 1 == await self.counters.increment("k")
        await self.elapse(0.5)
        assert 1 == await self.counters.get("k")

    async def test_every_legal_name_is_a_counter_of_its_own(self) -> None:
        """No two keys meet."""
        for number, name in enumerate(NAMES):
            await self.counters.increment(name, by=number + 1)

        assert [*range(1, len(NAMES) + 1)] == [await self.counters.get(name) for name in NAMES]

    @pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
    async def test_a_bad_counter_name_is_refused(self, name: Any) -> None:
        """In every call."""
        counters = self.counters
        for call in (
            lambda: counters.increment(name),
            lambda: counters.get(name),
            lambda: counters.reset(name),
            lambda: counters.take(name, LIMITS[0]),
        ):
            with pytest.raises(InvalidValueError):
                await call()

    @pytest.mark.parametrize("by", [1.5, True, "1", None, 2**63, -(2**63) - 1], ids=repr)
    async def test_a_bad_step_is_refused(self, by: Any) -> None:
        """A counter counts whole numbers of 64 bits."""
        with pytest.raises(InvalidValueError):
            await self.counters.increment("k", by=by)

        assert await self.counters.get("k") is None

    @pytest.mark.parametrize(
        "bad", [0, -1, 0.0004, float("nan"), float("inf"), "1", True, 1e30], ids=repr
    )
    async def test_a_bad_counter_expiry_is_refused(self, bad: Any) -> None:
        """Zero is not None; nothing is counted."""
        with pytest.raises(InvalidValueError):
            await self.counters.increment("k", expires_in=bad)

        assert await self.counters.get("k") is None

    # --- limits ---------------------------------------------------------------------

    @pytest.mark.parametrize("limit", LIMITS, ids=_kind)
    async def test_a_limit_allows_what_it_says(self, limit: RateLimit) -> None:
        """The remainder counts down to zero; then it is refused, with a time."""
        allowed = [await self.counters.take("k", limit) for _ in range(20)]
        refused = await self.counters.take("k", limit)

        assert [True] * 20 == [decision.allowed for decision in allowed]
        assert [*range(19, -1, -1)] == [decision.remaining for decision in allowed]
        assert {0.0} == {decision.retry_after for decision in allowed}
        assert not refused
        assert 0 == refused.remaining
        assert 0 < refused.retry_after <= 1000 * HOUR
        assert refused.reset_at > await self.hot.now()

    @pytest.mark.parametrize("limit", LIMITS, ids=_kind)
    async def test_a_crowd_gets_no_more_than_the_limit(self, limit: RateLimit) -> None:
        """Sixty at once: twenty are allowed."""
        decisions = await gather(self.counters.take("k", limit) for _ in range(60))

        assert 20 == sum(decision.allowed for decision in decisions)

    @pytest.mark.parametrize("limit", LIMITS, ids=_kind)
    async def test_a_cost_is_taken_whole_or_not(self, limit: RateLimit) -> None:
        """What does not fit takes nothing; what fits still does."""
        assert (await self.counters.take("k", limit, cost=15)).remaining == 5
        refused = await self.counters.take("k", limit, cost=6)
        assert (False, 5) == (refused.allowed, refused.remaining)

        assert (await self.counters.take("k", limit, cost=5)).allowed

    @pytest.mark.parametrize("limit", LIMITS, ids=_kind)
    async def test_a_cost_of_zero_only_looks(self, limit: RateLimit) -> None:
        """It takes nothing, and is allowed if one would be."""
        look = await self.counters.take("k", limit, cost=0)
        assert (True, 20) == (look.allowed, look.remaining)
        assert (await self.counters.take("k", limit, cost=20)).allowed

        assert not (await self.counters.take("k", limit, cost=0)).allowed

    @pytest.mark.parametrize("limit", LIMITS, ids=_kind)
    @pytest.mark.parametrize("cost", [-1, 21, 1.5, True, "1", None], ids=repr)
    async def test_a_bad_cost_is_refused(self, limit: RateLimit, cost: Any) -> None:
        """Negative, not whole, or more than can ever be allowed."""
        with pytest.raises(InvalidValueError):
            await self.counters.take("k", limit, cost=cost)

        assert 19 == (await self.counters.take("k", limit)).remaining

    @pytest.mark.parametrize("limit", [None, 20, "20/m", object()], ids=lambda v: type(v).__name__)
    async def test_a_limit_of_no_known_type_is_refused(self, limit: Any) -> None:
        """By name, whatever else it can do."""
        with pytest.raises(InvalidValueError, match="limit"):
            await self.counters.take("k", limit)

    @pytest.mark.parametrize("limit", LIMITS, ids=_kind)
    async def test_reset_makes_a_limit_whole(self, limit: RateLimit) -> None:
        """And says whether there was anything."""
        await self.counters.take("k", limit, cost=20)

        assert await self.counters.reset("k") is True
        assert await self.counters.reset("k") is False
        assert 19 == (await self.counters.take("k", limit)).remaining

    async def test_limits_and_counters_of_one_key_are_apart(self) -> None:
        """Three kinds of limit and a counter share nothing but a reset."""
        await self.counters.increment("k", by=100)
        for limit in LIMITS:
            assert 19 == (await self.counters.take("k", limit)).remaining

        assert 100 == await self.counters.get("k")

    async def test_limits_of_different_keys_are_apart(self) -> None:
        """One key's greed costs the others nothing."""
        for name in NAMES:
            assert 19 == (await self.counters.take(name, LIMITS[0])).remaining, name

    @pytest.mark.parametrize(
        "limit",
        [FixedWindow(3, per=0.5), SlidingWindow(3, per=0.5), TokenBucket(3, per=0.5)],
        ids=_kind,
    )
    async def test_what_is_refused_is_allowed_after_the_time_it_says(
        self, limit: RateLimit
    ) -> None:
        """`retry_after` is true, and refused calls push nothing forward."""
        await self.exhaust(limit)
        for _ in range(10):
            refused = await self.counters.take("k", limit)
        refused = await self.exhaust(limit)
        assert refused.retry_after <= 2 * 0.5 + 0.01
        await self.elapse(refused.retry_after + 0.005)

        assert (await self.counters.take("k", limit)).allowed

    @pytest.mark.parametrize(
        "limit",
        [FixedWindow(3, per=0.4), SlidingWindow(3, per=0.4), TokenBucket(3, per=0.4)],
        ids=_kind,
    )
    async def test_a_limit_is_whole_again_when_it_says(self, limit: RateLimit) -> None:
        """At `reset_at` everything can be taken."""
        refused = await self.exhaust(limit)
        await self.elapse(max(0, refused.reset_at - await self.hot.now()) / 1000 + 0.005)

        assert 3 == (await self.counters.take("k", limit, cost=0)).remaining

    async def test_fixed_windows_are_aligned_to_the_epoch(self) -> None:
        """The end of the window is the same for everybody."""
        decision = await self.counters.take("k", FixedWindow(5, per=1000 * HOUR))

        assert 0 == decision.reset_at % 3_600_000_000

    async def test_a_sliding_window_weighs_the_window_before(self) -> None:
        """Half a window later, half of the old count still stands."""
        limit = SlidingWindow(20, per=2.0)
        await self.window_start(2.0)
        await self.counters.take("k", limit, cost=20)
        await self.window_start(2.0)
        assert (await self.counters.take("k", limit, cost=0)).remaining <= 6
        await self.elapse(1.0)

        remaining = (await self.counters.take("k", limit, cost=0)).remaining
        assert remaining == 10 if self.manual_clock else 8 <= remaining <= 18

    async def test_a_bucket_holds_its_burst(self) -> None:
        """It starts full, refills at its rate, and never beyond."""
        limit = TokenBucket(10, per=10.0, burst=30)
        assert 0 == (await self.counters.take("k", limit, cost=30)).remaining
        refused = await self.counters.take("k", limit, cost=1)
        assert refused.allowed or 0 < refused.retry_after <= 1.0
        await self.elapse(1.1)
        assert (await self.counters.take("k", limit)).allowed

        small = TokenBucket(1000, per=1.0, burst=2)
        await self.counters.take("small", small)
        await self.elapse(0.5)
        assert 2 == (await self.counters.take("small", small, cost=0)).remaining

    async def test_a_burst_bounds_the_cost(self) -> None:
        """More than the bucket holds can never be allowed."""
        with pytest.raises(InvalidValueError):
            await self.counters.take("k", TokenBucket(100, per=1.0, burst=5), cost=6)
