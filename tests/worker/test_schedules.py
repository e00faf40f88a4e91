"""Crons, intervals, one-off schedules, and topics of an application."""

from __future__ import annotations

import asyncio

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oqron_core import Backoff, InvalidValueError
from oqron_worker import App, Context


def at(clock: Any, text: str) -> None:
    """Move the clock to a time of day of the next day."""
    now = datetime.fromtimestamp(clock.now() / 1000, UTC)
    hour, minute = map(int, text.split(":"))
    then = (now + timedelta(days=1)).replace(hour=hour, minute=minute, second=0, microsecond=0)
    clock.set(int(then.timestamp() * 1000))


async def test_a_durable_cron_is_a_job_per_slot(oqron_tester: Any, oqron_clock: Any) -> None:
    """Tried again like any job, and once per slot."""
    app = App()
    slots: list[int | None] = []

    @app.cron("nightly", "0 3 * * *", zone="Europe/Berlin", backoff=Backoff.fixed(60.0))
    async def nightly(ctx: Context) -> str:
        slots.append(ctx.slot)
        if ctx.attempt == 1:
            raise ValueError("the database is down")
        return "done"

    at(oqron_clock, "12:00")
    async with oqron_tester(app) as tester:
        await tester.advance(3 * 86400)

        hours = [datetime.fromtimestamp((slot or 0) / 1000, UTC).hour for slot in slots]
        assert [1] * 6 == hours  # summer time in Berlin
        assert 3 == len(set(slots))
        assert 3 == len(await tester.runs("cron:nightly", status="completed"))


async def test_an_interval_is_a_run_without_a_job(oqron_tester: Any, oqron_clock: Any) -> None:
    """Of whoever leads; failures are recorded and the next slot comes."""
    app = App()
    slots: list[int | None] = []

    @app.every("heartbeat", 30.0)
    async def heartbeat(ctx: Context) -> int:
        slots.append(ctx.slot)
        if len(slots) == 2:
            raise ValueError("odd")
        with pytest.raises(LookupError):
            ctx.job  # noqa: B018
        return len(slots)

    async with oqron_tester(app) as tester:
        await tester.advance(120)

        assert 4 == len(slots)
        assert {0} == {(slot or 1) % 30_000 for slot in slots}
        runs = await tester.runs("heartbeat")
        assert ["completed", "failed", "completed", "completed"] == [run.status for run in runs]
        assert {"schedule"} == {run.module for run in runs}
        assert {None} == {run.job_id for run in runs}
        pointer = await tester.storage.schedules.get("schedule", "heartbeat")
        assert (4, slots[-1]) == (pointer.run_count, pointer.last_run_at)


async def test_a_plain_function_may_run_by_the_clock(oqron_tester: Any) -> None:
    """In a thread, and without a context if it wants none."""
    app = App()
    calls: list[int] = []

    @app.every("tidy", 10.0)
    def tidy() -> None:
        calls.append(1)

    async with oqron_tester(app) as tester:
        await tester.advance(30)

        assert 3 == len(calls)


@pytest.mark.parametrize(("catch_up", "expected"), [("skip", 0), ("one", 1), ("all", 48)])
async def test_missed_slots_are_caught_up_as_asked(
    oqron_tester: Any, oqron_clock: Any, catch_up: str, expected: int
) -> None:
    """Two days without a worker: none, one for all, or each."""
    app = App()
    slots: list[int | None] = []

    @app.cron("hourly", "0 * * * *", catch_up=catch_up)
    async def hourly(ctx: Context) -> None:
        slots.append(ctx.slot)

    at(oqron_clock, "12:30")
    async with oqron_tester(app) as tester:
        oqron_clock.advance(48 * 3600)
        await tester.drain()

        assert expected == len(slots)
        assert sorted(set(slots), key=str) == slots


async def test_a_definition_that_changes_moves_the_pointer(oqron_tester: Any) -> None:
    """One that does not leaves it, so a restart repeats and misses nothing."""
    app = App()

    @app.every("beat", 60.0, durable=True)
    async def beat() -> None: ...

    async with oqron_tester(app) as tester:
        first = await tester.storage.schedules.get("schedule", "beat")
        await beat.define()
        again = await tester.storage.schedules.get("schedule", "beat")

        assert first.next_run_at == again.next_run_at
        assert 1 == again.version


async def test_schedules_are_made_while_it_runs(oqron_tester: Any, oqron_clock: Any) -> None:
    """Once, and repeating; they add jobs of a queue and need no code."""
    app = App()
    seen: list[str] = []

    @app.queue("mail", max_attempts=7)
    async def mail(to: str) -> None:
        seen.append(to)

    async with oqron_tester(app) as tester:
        await mail.schedule("trial-ends-1", {"to": "one"}, at=oqron_clock.now() + 90_000)
        await mail.schedule("digest-2", {"to": "two"}, every=60.0)
        with pytest.raises(InvalidValueError):
            await mail.schedule("x", {"to": 3}, every=60.0)
        with pytest.raises(InvalidValueError):
            await mail.schedule("x", {"to": "3"}, every=60.0, at=1)
        await tester.advance(180)

        assert ["two", "two", "one", "two"] == seen
        assert {7} == {job.max_attempts for job in await tester.jobs("mail")}
        assert await mail.unschedule("digest-2")
        await tester.advance(180)
        assert 4 == len(seen)


async def test_a_cron_is_triggered_by_hand(oqron_tester: Any) -> None:
    """Beside its slots."""
    app = App()
    calls: list[int | None] = []

    @app.cron("nightly", "0 3 * * *")
    async def nightly(ctx: Context) -> None:
        calls.append(ctx.slot)

    async with oqron_tester(app) as tester:
        await nightly.trigger()
        await tester.drain()

        assert [None] == calls


def test_what_runs_by_the_clock_takes_no_arguments() -> None:
    """Nobody would give them."""
    app = App()

    with pytest.raises(TypeError, match="ctx or nothing"):

        @app.every("beat", 60.0)
        async def beat(n: int) -> None: ...


def test_two_workers_share_the_slots_of_an_interval() -> None:
    """Each slot runs once, whoever leads; a leader that goes is followed at once."""
    from oqron_core import open_storage
    from oqron_memory import MemoryStore

    seen: list[int | None] = []

    def application() -> App:
        app = App()

        @app.every("beat", 0.1)
        async def beat(ctx: Context) -> None:
            seen.append(ctx.slot)

        return app

    async def work(store: MemoryStore, until: int) -> None:
        async with open_storage(
            mode="memory", project="p", environment="e", memory={"store": store}
        ) as storage:
            app = application()
            with app.using(storage):
                async with app.worker(maintenance=False, blocked_after=None):
                    while len(seen) < until:
                        await asyncio.sleep(0.01)

    async def main() -> None:
        store = MemoryStore()
        await asyncio.gather(work(store, 5), work(store, 12))

    asyncio.run(main())

    assert len(seen) == len(set(seen))


@pytest.mark.parametrize("only", [["mail"], ["beat"], ["nightly"], ["mail", "nightly"]])
def test_a_worker_of_some_handlers_moves_their_schedules_alone(only: list[str]) -> None:
    """What others should run stays due for them, and another may lead the rest."""

    async def main() -> None:
        app = App(mode="memory", project="p", environment="e")
        ran: set[str] = set()

        @app.queue("mail")
        async def mail() -> None:
            ran.add("mail")

        @app.queue("other")
        async def other() -> None:
            ran.add("other")

        @app.every("beat", 3600.0)
        async def beat() -> None:
            ran.add("beat")

        @app.cron("nightly", "0 3 * * *")
        async def nightly() -> None:
            ran.add("nightly")

        async with app:
            schedules = app.storage.schedules
            past = await app.storage.durable.now() - 1000
            # More of others' than one look gives.
            for n in range(120):
                await other.schedule(f"other-{n}", {}, at=past - 1000)
            await mail.schedule("mail-1", {}, at=past)
            for handler in (beat, nightly):
                await handler.define()
                await schedules.reschedule(handler.timing.kind, handler.name, next_run_at=past)
            async with (
                app.worker(only=only, maintenance=False, blocked_after=None),
                asyncio.timeout(20),
            ):
                while ran != set(only):
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.1)
                assert await app.storage.locks.leader("worker:schedules") is None
            assert ran == set(only)
            due = await schedules.due(limit=1000)
            expected = {f"other-{n}" for n in range(120)}
            if "mail" not in only:
                expected.add("mail-1")
            assert expected | ({"beat", "nightly"} - set(only)) == {one.name for one in due}
            assert not (await app.storage.jobs.counts("other"))["waiting"]

    asyncio.run(main())


# --- topics -----------------------------------------------------------------


async def test_each_group_gets_every_message(oqron_tester: Any) -> None:
    """In the order of its key, with retries of its own."""
    app = App()
    billed: list[int] = []
    shipped: list[int] = []

    @app.topic("order-events", group="billing", backoff=Backoff.fixed(1.0))
    async def bill(ctx: Context, event: dict[str, Any]) -> None:
        assert ctx.message is not None
        assert "order-events" == ctx.message.topic
        if ctx.attempt == 1 and event["n"] == 2:
            raise ValueError("not now")
        billed.append(event["n"])

    @app.topic("order-events", group="shipping")
    async def ship(event: dict[str, Any]) -> None:
        shipped.append(event["n"])

    async with oqron_tester(app) as tester:
        for n in range(1, 5):
            await app.publish("order-events", {"n": n}, key="customer-1")
        await tester.advance(30)

        assert [1, 2, 3, 4] == billed
        assert [1, 2, 3, 4] == shipped
