"""Waiting follows the clock of the store, and does not poll."""

from __future__ import annotations

import asyncio

from typing import Any

import pytest

from oqron_core.planes import Entry, SystemClock
from oqron_core.testing.clock import ManualClock


async def test_a_sleeper_sleeps_once_until_the_moment_something_is_due(
    opened: Any, clock: ManualClock
) -> None:
    """One alarm on the clock, set to the due time, and none after it."""
    async with opened() as planes:
        await planes.hot.broker.publish("q", [Entry("a", due_at=clock.now() + 10_000)])
        wait = asyncio.create_task(planes.hot.broker.wait(["q"], timeout=60))
        await clock.elapse(9.9)
        assert not wait.done()
        assert 1 == clock.sleepers
        await clock.elapse(0.1)
        assert ["q"] == await wait
        assert 0 == clock.sleepers


async def test_a_sooner_due_time_sets_a_new_alarm(opened: Any, clock: ManualClock) -> None:
    """Who sleeps until tomorrow wakes for what was published meanwhile."""
    async with opened() as planes:
        broker = planes.hot.broker
        await broker.publish("q", [Entry("late", due_at=clock.now() + 50_000)])
        wait = asyncio.create_task(broker.wait(["q"], timeout=60))
        await clock.elapse(1)
        await broker.publish("q", [Entry("soon", due_at=clock.now() + 1000)])
        await clock.elapse(0.9)
        assert not wait.done()
        await clock.elapse(0.2)
        assert ["q"] == await wait


@pytest.mark.parametrize("how", ["claimed", "nacked", "renewed", "restored"])
async def test_a_lease_that_begins_or_ends_meanwhile_is_followed(
    opened: Any, clock: ManualClock, how: str
) -> None:
    """The moment at which the lease lapses, or the delay is over, wakes who waits."""
    async with opened() as planes:
        broker = planes.hot.broker
        await broker.publish("q", [Entry("a")])
        leases = list(await broker.claim("q", owner="w", lease_for=50))
        if how == "claimed":
            await broker.nack(leases)
            leases = []
        if how == "restored":
            await broker.purge("q")
        wait = asyncio.create_task(broker.wait(["q", "other"], timeout=60))
        if how == "claimed":
            # The claim wins against the wait, which has not begun yet.
            leases = list(await broker.claim("q", owner="w", lease_for=2))
        await clock.elapse(0.5)
        assert not wait.done()
        if how == "nacked":
            await broker.nack(leases, delay=2)
        elif how == "renewed":
            await broker.renew(leases, lease_for=2)
        elif how == "restored":
            await broker.restore("q", leases)
            await broker.renew(leases, lease_for=2)
        await clock.elapse(1.0)
        assert not wait.done()
        await clock.elapse(1.1)
        assert ["q"] == await wait


async def test_nobody_is_woken_by_what_they_do_not_wait_for(
    opened: Any, clock: ManualClock
) -> None:
    """Other queues, and later moments, leave the alarm as it is."""
    async with opened() as planes:
        broker = planes.hot.broker
        await broker.publish("q", [Entry("a", due_at=clock.now() + 1000)])
        wait = asyncio.create_task(broker.wait(["q"], timeout=60))
        await clock.elapse(0.1)
        (waker,) = planes.hot.broker._state.waiters["q"]
        await broker.publish("other", [Entry("a")])
        await broker.publish("q", [Entry("b", due_at=clock.now() + 5000)])
        await broker.pause("q")
        assert {waker} == planes.hot.broker._state.waiters["q"]
        assert not waker.future.done()
        await broker.resume("q")
        await clock.elapse(1)
        assert ["q"] == await wait


async def test_the_time_of_day_wakes_too_and_leaves_no_timer(opened: Any) -> None:
    """With the system clock a timer of the loop is used, and taken back."""
    async with opened(on=SystemClock()) as planes:
        now = await planes.hot.now()
        await planes.hot.broker.publish("q", [Entry("a", due_at=now + 30)])
        assert ["q"] == await planes.hot.broker.wait(["q"], timeout=60)
        assert await planes.hot.now() >= now + 30
        await planes.hot.broker.purge("q")
        wait = asyncio.create_task(planes.hot.broker.wait(["q"], timeout=3600))
        await asyncio.sleep(0)
        wait.cancel()
        await asyncio.gather(wait, return_exceptions=True)
        timers = getattr(asyncio.get_running_loop(), "_scheduled", [])
        assert [] == [timer for timer in timers if not timer.cancelled()]


async def test_a_clock_that_fails_fails_the_wait(opened: Any) -> None:
    """The error of a broken clock arrives, instead of a loop that spins."""

    class Broken(SystemClock):
        async def sleep(self, seconds: float) -> None:
            raise OSError(seconds)

    async with opened(on=Broken()) as planes:
        with pytest.raises(OSError, match="60"):
            await planes.hot.broker.wait(["q"], timeout=60)
        assert 0 == planes.store.sizes()["waiters"]
