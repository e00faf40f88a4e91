"""The contract of `Storage.limits` in a mode: rates, bans and slots."""

from __future__ import annotations

import asyncio

from functools import partial
from typing import Any

import pytest

from oqron_core.exceptions import ConflictError, InvalidValueError, LeaseLostError
from oqron_core.planes import FixedWindow, RateLimit, SlidingWindow, TokenBucket
from oqron_core.protocol.holding import HeldLease
from oqron_core.storage import Storage
from oqron_core.testing.contracts.base import gather
from oqron_core.testing.contracts.services import ServiceContract
from oqron_core.testing.faults import When
from oqron_core.testing.hostile import BAD_NAMES, NAMES


__all__ = ["ModeLimitsContract"]

LIMITS: tuple[RateLimit, ...] = (
    FixedWindow(5, per=3600.0),
    SlidingWindow(5, per=3600.0),
    TokenBucket(5, per=3600.0),
)
BAD_COUNTS = (0, -1, 1.5, True, "3", None, 10_001)


class ModeLimitsContract(ServiceContract):
    """What limits must do in every mode."""

    async def occupy(
        self,
        entered: list[HeldLease],
        leave: asyncio.Event,
        *,
        storage: Storage | None = None,
        count: int = 3,
        **options: Any,
    ) -> bool:
        """Hold a slot until *leave*; False where none was to be had."""
        try:
            async with (storage or self.storage).limits.slots("s", count, **options) as held:
                entered.append(held)
                await leave.wait()
        except ConflictError:
            return False
        return True

    # --- rates ------------------------------------------------------------------------

    @pytest.mark.parametrize("number", range(len(LIMITS)))
    async def test_a_limit_is_kept_among_processes(self, number: int) -> None:
        """Of many at once as many are allowed as the limit says."""
        async with self.crowd(4) as storages:
            answers = await gather(
                storages[n % 4].limits.take("k", LIMITS[number]) for n in range(40)
            )
        refused = [answer for answer in answers if not answer]

        assert 5 == len(answers) - len(refused)
        assert all(answer.retry_after > 0 for answer in refused)
        assert {0} == {answer.remaining for answer in refused}

    async def test_looking_takes_nothing(self) -> None:
        """A peek says what a take would."""
        limit = SlidingWindow(2, per=3600.0)
        for _ in range(5):
            assert 2 == (await self.storage.limits.peek("k", limit)).remaining
        await self.storage.limits.take("k", limit, cost=2)

        assert not await self.storage.limits.peek("k", limit)

    async def test_what_was_taken_can_be_forgotten(self) -> None:
        """For one key alone, by every type of limit."""
        for limit in LIMITS:
            await self.storage.limits.take("k", limit, cost=5)
            await self.storage.limits.take("other", limit, cost=5)
        assert await self.storage.limits.reset("k")
        assert not await self.storage.limits.reset("k")

        for limit in LIMITS:
            assert await self.storage.limits.take("k", limit)
            assert not await self.storage.limits.take("other", limit)

    async def test_a_window_returns(self) -> None:
        """Asking while it is closed does not keep it closed."""
        per = round(self.moment * 2000)
        limit = FixedWindow(2, per=per / 1000)
        await self.elapse((per - await self.storage.hot.now() % per) / 1000)
        allowed = [bool(await self.storage.limits.take("k", limit)) for _ in range(4)]
        assert [True, True, False, False] == allowed
        for _ in range(3):
            await self.elapse(self.moment / 10)
            await self.storage.limits.take("k", limit)
        await self.elapse(self.moment * 1.8)

        assert await self.storage.limits.take("k", limit)

    async def test_limits_and_plain_counters_are_apart(self) -> None:
        """A key of the plane itself is not a key of a limit, whatever its name."""
        limit = FixedWindow(1, per=3600.0)
        for name in NAMES:
            assert await self.storage.limits.take(name, limit)
            assert await self.storage.hot.counters.take(name, limit)
            assert not await self.storage.limits.take(name, limit)

    # --- bans --------------------------------------------------------------------------

    async def test_who_is_banned_is_refused_everywhere(self) -> None:
        """With the time until the end, and without counting."""
        limit = TokenBucket(5, per=3600.0)
        await self.storage.limits.ban("k", 60.0, reason="abuse")
        async with self.open() as other:
            decisions = [await other.limits.take("k", limit) for _ in range(10)]
            assert not any(decisions)
            decision = decisions[-1]
            now = await self.storage.hot.now()
            assert 55 < decision.retry_after <= 60
            assert now + 55_000 < decision.reset_at <= now + 60_000
            assert 0 == decision.remaining
            assert not await other.limits.peek("k", limit)
            assert await other.limits.take("free", limit)
            assert await other.limits.unban("k")
            assert not await other.limits.unban("k")

        assert 4 == (await self.storage.limits.take("k", limit)).remaining

    async def test_a_ban_ends_by_itself(self) -> None:
        """And says how long it lasts while it does."""
        await self.storage.limits.ban("k", self.moment, reason="spam")
        remaining = await self.storage.limits.banned("k")
        shown = await self.storage.limits.get_ban("k")
        assert remaining is not None
        assert 0 < remaining <= self.moment
        assert shown is not None
        assert ("k", "spam") == (shown.key, shown.reason)
        await self.pass_moment()

        assert await self.storage.limits.banned("k") is None
        assert await self.storage.limits.get_ban("k") is None
        assert await self.storage.limits.take("k", FixedWindow(1, per=60.0))

    async def test_a_later_ban_replaces_an_earlier_one(self) -> None:
        """Longer or shorter; a reset does not end it."""
        await self.storage.limits.ban("k", 3600.0)
        await self.storage.limits.ban("k", 60.0)
        await self.storage.limits.reset("k")
        remaining = await self.storage.limits.banned("k")

        assert remaining is not None
        assert 50 < remaining <= 60

    # --- slots ----------------------------------------------------------------------------

    @pytest.mark.parametrize("count", [1, 3, 8])
    async def test_of_eight_processes_as_many_get_a_slot_as_there_are(self, count: int) -> None:
        """No more and no fewer, though all ask at once."""
        entered: list[HeldLease] = []
        leave = asyncio.Event()
        async with self.crowd(8) as storages:
            tasks = [
                asyncio.create_task(self.occupy(entered, leave, storage=storage, count=count))
                for storage in storages
            ]
            await self.until(
                lambda: len(entered) + sum(task.done() for task in tasks) == len(tasks)
            )
            assert count == len(entered)
            assert count == await self.storage.limits.in_use("s", count)
            leave.set()

            assert sorted([True] * count + [False] * (8 - count)) == sorted(await gather(tasks))
        assert 0 == await self.storage.limits.in_use("s", count)

    async def test_a_slot_that_is_given_back_wakes_who_waits(self) -> None:
        """Twenty work through three slots, never more than three at a time."""
        inside = most = done = 0

        async def work(storage: Storage) -> None:
            nonlocal inside, most, done
            async with storage.limits.slots("s", 3, wait=None):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1
                done += 1

        async with self.crowd(4) as storages:
            await gather(work(storages[n % 4]) for n in range(20))

        assert (0, 20) == (inside, done)
        assert 1 <= most <= 3

    async def test_the_slot_of_a_holder_that_died_comes_back(self) -> None:
        """After its lease, to one who waits and to one who asks later."""
        for index in range(2):
            await self.storage.hot.locks.acquire(
                f"oqron:slot{index}:s", owner="dead", lease_for=self.moment
            )
        with pytest.raises(ConflictError, match="all 2 slots"):
            async with self.storage.limits.slots("s", 2):
                raise AssertionError("entered")
        entered: list[HeldLease] = []
        leave = asyncio.Event()
        task = asyncio.create_task(self.occupy(entered, leave, count=2, wait=None))
        await self.settle()
        await self.pass_moment()
        await self.until(lambda: bool(entered))
        async with self.storage.limits.slots("s", 2):
            assert 2 == await self.storage.limits.in_use("s", 2)
        leave.set()

        assert await task

    async def test_a_process_that_dies_anywhere_frees_its_slot(self) -> None:
        """At whatever call of holding it: at once, or after the lease."""
        points: list[tuple[str, When]] = [
            (call, when)
            for call in ("hot.locks.acquire", "hot.locks.release", "hot.signals.publish")
            for when in ("before", "after")
        ]

        async def hold(doomed: Storage, key: str) -> None:
            async with doomed.limits.slots(key, 1, lease_for=self.moment):
                pass

        for number, (call, when) in enumerate(points):
            await self.die(call, when, partial(hold, key=f"s{number}"))
        await self.pass_moment()

        for number in range(len(points)):
            async with self.storage.limits.slots(f"s{number}", 1):
                pass

    async def test_a_slot_is_renewed_while_it_is_held(self) -> None:
        """A long body keeps its place."""
        renewals = "hot.locks.renew"
        async with self.storage.limits.slots("s", 1, lease_for=self.brief) as held:
            for _ in range(3):
                seen = len(self.faults.names(renewals))
                await self.until(lambda seen=seen: len(self.faults.names(renewals)) > seen)  # type: ignore[misc]  # bound now
                await self.elapse(self.brief * 0.5)
            held.check()
            assert 1 == await self.storage.limits.in_use("s", 1)

    async def test_a_slot_that_is_lost_cuts_the_body_short(self) -> None:
        """As a lock does."""
        with pytest.raises(LeaseLostError, match="slot 's'"):  # noqa: PT012 - out of the body
            async with self.storage.limits.slots("s", 1, lease_for=self.brief) as held:
                await self.storage.hot.locks.release(held.lease)
                await asyncio.Event().wait()

    async def test_a_body_that_fails_gives_its_slot_back(self) -> None:
        """Whatever it raises."""
        with pytest.raises(KeyError):
            async with self.storage.limits.slots("s", 1):
                raise KeyError("mine")

        assert 0 == await self.storage.limits.in_use("s", 1)

    async def test_many_slots_are_found_among_many_taken(self) -> None:
        """The last free one is found whatever the start."""
        held = await gather(
            self.storage.hot.locks.acquire(f"oqron:slot{n}:s", owner="w", lease_for=60.0)
            for n in range(200)
            if n != 137
        )
        assert 199 == len(held)

        async with self.storage.limits.slots("s", 200) as slot:
            assert "oqron:slot137:s" == slot.lease.id
            with pytest.raises(ConflictError):
                async with self.storage.limits.slots("s", 200):
                    raise AssertionError("entered")

    # --- refusals ---------------------------------------------------------------------------

    @pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
    async def test_a_bad_key_of_a_limit_is_refused(self, name: Any) -> None:
        """In every call."""
        limits = self.storage.limits
        for call in (
            lambda: limits.take(name, LIMITS[0]),
            lambda: limits.peek(name, LIMITS[0]),
            lambda: limits.reset(name),
            lambda: limits.ban(name, 1.0),
            lambda: limits.unban(name),
            lambda: limits.banned(name),
            lambda: limits.in_use(name, 1),
        ):
            with pytest.raises(InvalidValueError):
                await call()
        with pytest.raises(InvalidValueError):
            limits.slots(name, 1)

    async def test_a_bad_number_of_a_limit_is_refused(self) -> None:
        """Costs, spans of bans, counts of slots."""
        limits = self.storage.limits
        for count in BAD_COUNTS:
            with pytest.raises(InvalidValueError, match="count"):
                limits.slots("s", count)  # type: ignore[arg-type]
        for span in (0, -1, float("nan"), "1", True, None):
            with pytest.raises(InvalidValueError, match="seconds"):
                await limits.ban("k", span)  # type: ignore[arg-type]
        for cost in (-1, 6, 1.5, True):
            with pytest.raises(InvalidValueError, match="cost"):
                await limits.take("k", LIMITS[0], cost=cost)  # type: ignore[arg-type]

        assert await limits.banned("k") is None
