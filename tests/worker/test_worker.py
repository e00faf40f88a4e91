"""The worker: slots, fairness, cancels, leases, drains, and limits among processes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from oqron_core import FixedWindow, InvalidValueError, TokenBucket, open_storage
from oqron_core.testing.faults import Faults
from oqron_memory import MemoryStore
from oqron_worker import App, Context, Worker
from oqron_worker._capacity import Capacity, Share


QUIET: dict[str, Any] = {"maintenance": False, "schedules": False, "blocked_after": None}


def run(main: Callable[[], Any]) -> Any:
    """Run a coroutine function, for twenty seconds at most."""

    async def bounded() -> Any:
        async with asyncio.timeout(20):
            return await main()

    return asyncio.run(bounded())


def memory_app(**more: Any) -> App:
    """Give an application in memory mode."""
    return App(mode="memory", project="test", environment="test", **more)


async def until(condition: Callable[[], Any]) -> None:
    """Return once *condition* holds."""
    while not condition():
        await asyncio.sleep(0.002)


# --- slots ------------------------------------------------------------------


def test_a_slot_is_free_only_after_the_write() -> None:
    """No more attempts run or wait to be written than there are slots."""

    async def main() -> None:
        app = memory_app()
        most = 0

        @app.queue("q", concurrency=3)
        async def work() -> None:
            nonlocal most
            counts = await app.storage.jobs.counts("q")
            most = max(most, counts["active"])

        async with app:
            await work.add_many([{}] * 200)
            async with app.worker(**QUIET) as worker:
                await until(lambda: worker.metrics.total("completed") == 200)
        assert most <= 3

    run(main)


def test_nothing_is_claimed_beyond_the_free_slots() -> None:
    """What a busy worker cannot start stays for others."""

    async def main() -> None:
        app = memory_app()
        gate = asyncio.Event()

        @app.queue("slow", concurrency=4)
        async def slow() -> None:
            await gate.wait()

        async with app:
            await slow.add_many([{}] * 50)
            async with app.worker(concurrency=10, **QUIET) as worker:
                await until(lambda: worker.running == 4)
                await asyncio.sleep(0.05)
                assert {"active": 4, "waiting": 46} == {
                    k: v for k, v in (await slow.counts()).items() if v
                }
                gate.set()
                await until(lambda: worker.metrics.total("completed") == 50)

    run(main)


def test_a_new_job_is_picked_up_at_once() -> None:
    """An idle worker sleeps without a timer, and wakes when something comes."""

    async def main() -> None:
        app = memory_app()
        ran = asyncio.Event()

        @app.queue("q")
        async def work() -> None:
            ran.set()

        async with app, app.worker(**QUIET):
            for _ in range(5):
                await asyncio.sleep(0.02)
                ran.clear()
                began = time.perf_counter()
                await work.add()
                await ran.wait()
                assert time.perf_counter() - began < 1.0

    run(main)


def test_a_busy_queue_does_not_starve_another() -> None:
    """With a thousand waiting in one, a single job of the other comes soon."""

    async def main() -> None:
        app = memory_app()
        order: list[str] = []

        @app.queue("bulk", concurrency=100)
        async def bulk() -> None:
            await asyncio.sleep(0.001)
            order.append("bulk")

        @app.queue("rare")
        async def rare() -> None:
            order.append("rare")

        async with app:
            await bulk.add_many([{}] * 1000)
            async with app.worker(concurrency=5, **QUIET) as worker:
                await until(lambda: len(order) > 50)
                await rare.add()
                await until(lambda: "rare" in order)
                assert order.index("rare") < 200
                await until(lambda: worker.metrics.total("completed") == 1001)

    run(main)


def test_slots_go_by_weight_where_all_are_busy() -> None:
    """Three to one, however eager the lighter one is."""

    async def main() -> None:
        capacity = Capacity(8)
        heavy, light = Share("heavy", 100, weight=3.0), Share("light", 100)
        tasks = [asyncio.create_task(capacity.take(share, 1)) for share in [light, heavy] * 100]
        await asyncio.sleep(0)
        for _ in range(200):
            await asyncio.sleep(0)
            assert heavy.used + light.used <= 8
            done = heavy if heavy.load > light.load else light
            capacity.give(done)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert 0 <= capacity.used <= 8

    run(main)


def test_the_poorest_for_its_weight_is_served_first() -> None:
    """Slots that become free together are spread by weight, up to each limit."""

    async def main() -> None:
        capacity = Capacity(12)
        full = Share("full", 12)
        assert 12 == await capacity.take(full, 12)
        heavy, light, small = Share("heavy", 9, weight=3), Share("light", 9), Share("small", 1)
        waiting = [
            asyncio.create_task(capacity.take(share, share.limit))
            for share in (light, heavy, small)
        ]
        await asyncio.sleep(0)
        capacity.give(full, 9)

        got = dict(zip(("light", "heavy", "small"), await asyncio.gather(*waiting), strict=True))
        assert {"light": 2, "heavy": 6, "small": 1} == got

    run(main)


def test_a_waiter_that_is_cancelled_leaves_no_slot_behind() -> None:
    """Whether it had been given some already or not."""

    async def main() -> None:
        capacity = Capacity(2)
        share = Share("q", 2)
        await capacity.take(share, 2)
        early = asyncio.create_task(capacity.take(share, 1))
        late = asyncio.create_task(capacity.take(share, 1))
        await asyncio.sleep(0)
        early.cancel()
        capacity.give(share, 2)
        await asyncio.sleep(0)
        late.cancel()
        await asyncio.wait([early, late])
        await asyncio.sleep(0)

        assert 0 == capacity.used == share.used

    run(main)


# --- cancels and leases -----------------------------------------------------


@pytest.mark.parametrize("pool", ["loop", "thread"])
def test_a_cancel_reaches_the_handler(pool: str) -> None:
    """In the loop as a cancellation, in a thread as a word; the job stays cancelled."""

    async def main() -> None:
        app = memory_app()
        started = threading.Event()
        ends: list[str | None] = []

        if pool == "loop":

            @app.queue("q")
            async def work(ctx: Context) -> None:
                started.set()
                try:
                    await asyncio.sleep(60)
                finally:
                    ends.append(ctx.why)

        else:

            @app.queue("q")
            def work(ctx: Context) -> None:
                started.set()
                while not ctx.wait(0.01):
                    pass
                ends.append(ctx.why)

        async with app, app.worker(**QUIET) as worker:
            job = await work.add()
            await until(started.is_set)
            assert await work.cancel(job.id)
            await until(lambda: worker.running == 0)
            assert ["cancelled"] == ends
            found = await work.get(job.id)
            assert found is not None
            assert "cancelled" == found.status
            assert "cancelled" == (await work.runs()).items[0].status
            assert {"cancelled": 1} == worker.metrics.of("q").ended

    run(main)


def test_a_long_handler_keeps_its_lease() -> None:
    """Renewed every third of it, so nobody else gets the job."""

    async def main() -> None:
        app = memory_app()
        calls = []

        @app.queue("q", lease_for=1.0)
        async def work() -> None:
            calls.append(1)
            await asyncio.sleep(2.5)

        async with app, app.worker(**QUIET) as one, Worker(app, **QUIET) as two:
            job = await work.add()
            await until(lambda: one.metrics.total("completed") + two.metrics.total("completed"))
            assert [1] == calls
            found = await work.get(job.id)
            assert found is not None
            assert ("completed", 1) == (found.status, found.attempt_made)

    run(main)


def test_a_lost_lease_ends_its_handler() -> None:
    """It is told, its result is not written, and the job runs anew elsewhere."""

    async def main() -> None:
        app = memory_app()
        why: list[str | None] = []

        @app.queue("q", lease_for=1.0, max_attempts=5)
        async def work(ctx: Context) -> int:
            if ctx.attempt == 1:
                await app.storage.hot.broker.remove("q", [ctx.job.id])
                try:
                    await asyncio.sleep(60)
                finally:
                    why.append(ctx.why)
            return ctx.attempt

        async with app, app.worker(**QUIET) as worker:
            job = await work.add()
            await until(lambda: worker.metrics.total("lost"))
            assert ["lease lost"] == why
            await app.storage.maintenance.run_once()
            assert "failed" == (await work.runs()).items[-1].status
            found = await work.get(job.id)
            assert found is not None
            assert found.status in {"active", "waiting", "completed"}

    run(main)


def test_a_handler_that_blocks_the_loop_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """In the log and in its run, with the line that it is at."""

    async def main() -> None:
        app = memory_app()

        @app.queue("q")
        async def work() -> None:
            time.sleep(0.5)  # noqa: ASYNC251 - what is not to be done

        async with app, app.worker(**{**QUIET, "blocked_after": 0.05}) as worker:
            await work.add()
            await until(lambda: worker.metrics.total("completed"))
            assert 1 == worker.metrics.blocked
            [found] = (await work.runs()).items
            assert "blocks the event loop" in found.logs[0]["msg"]
            assert "time.sleep(0.5)" in found.logs[0]["stack"]

    with caplog.at_level(logging.WARNING, "oqron.worker"):
        run(main)
    assert "a handler of q blocks the event loop" in caplog.text


# --- the end ----------------------------------------------------------------


def test_a_drain_lets_handlers_finish() -> None:
    """Nothing is claimed any more, leases are kept, results are written."""

    async def main() -> None:
        app = memory_app()
        started = asyncio.Event()

        @app.queue("q", concurrency=1, lease_for=1.0)
        async def work() -> str:
            started.set()
            await asyncio.sleep(1.6)
            return "done"

        async with app:
            jobs = await work.add_many([{}, {}])
            async with app.worker(**QUIET):
                await started.wait()
            first, second = [await work.get(job.id) for job in jobs]
            assert first is not None
            assert second is not None
            assert ("completed", "done", 1) == (
                first.status,
                first.return_value,
                first.attempt_made,
            )
            assert ("waiting", 0) == (second.status, second.attempt_made)

    run(main)


@pytest.mark.parametrize("pool", ["loop", "thread"])
def test_the_deadline_gives_jobs_back_without_an_attempt(pool: str) -> None:
    """Five restarts in one long job with one attempt, and it still completes."""

    async def main() -> None:
        app = memory_app()
        started = threading.Event()
        last = False

        if pool == "loop":

            @app.queue("q", max_attempts=1)
            async def work() -> None:
                started.set()
                await asyncio.sleep(0 if last else 60)

        else:

            @app.queue("q", max_attempts=1)
            def work(ctx: Context) -> None:
                started.set()
                while not last:
                    ctx.wait(0.01)
                    ctx.check()

        async with app:
            job = await work.add()
            for _ in range(5):
                started.clear()
                async with app.worker(grace=0.05, **QUIET) as worker:
                    await until(started.is_set)
                assert {"released": 1} == worker.metrics.of("q").ended
                found = await work.get(job.id)
                assert found is not None
                assert ("waiting", 0) == (found.status, found.attempt_made)
            last = True
            async with app.worker(**QUIET) as worker:
                await until(lambda: worker.metrics.total("completed"))

    run(main)


def test_a_thread_that_does_not_hear_is_left_behind() -> None:
    """Its job is given back, its late result is refused, and the drain ends."""

    async def main() -> None:
        app = memory_app()
        started, go = threading.Event(), threading.Event()

        @app.queue("q", max_attempts=1)
        def deaf() -> str:
            started.set()
            go.wait(15)
            return "late"

        async with app:
            job = await deaf.add()
            async with app.worker(grace=0.01, **QUIET) as worker:
                await until(started.is_set)
            assert 1 == worker.left_behind
            found = await deaf.get(job.id)
            assert found is not None
            assert ("waiting", 0) == (found.status, found.attempt_made)
            go.set()
            await until(lambda: worker.left_behind == 0)
            await asyncio.sleep(0.02)
            found = await deaf.get(job.id)
            assert found is not None
            assert "waiting" == found.status

    run(main)


def test_a_second_stop_hurries() -> None:
    """It does not wait for the grace time."""

    async def main() -> None:
        app = memory_app()
        started = asyncio.Event()

        @app.queue("q")
        async def work() -> None:
            started.set()
            await asyncio.sleep(60)

        async with app:
            await work.add()
            worker = app.worker(grace=300.0, **QUIET)
            running = asyncio.create_task(worker.run())
            await started.wait()
            worker.stop()
            await asyncio.sleep(0.02)
            assert not running.done()
            worker.stop()
            await running
            assert {"released": 1} == worker.metrics.of("q").ended

    run(main)


def test_nothing_is_left_when_a_worker_has_ended() -> None:
    """No task, no thread, however often."""

    async def main() -> None:
        app = memory_app()

        @app.queue("q")
        def work() -> None: ...

        @app.every("beat", 60.0)
        async def beat() -> None: ...

        async with app:
            tasks = 0
            for turn in range(30):
                if turn == 1:  # what the storage starts with its first run stays
                    await asyncio.sleep(0.05)
                    tasks = len(asyncio.all_tasks())
                await work.add()
                async with app.worker(blocked_after=0.5) as worker:
                    await until(lambda: worker.metrics.total("completed"))
            await asyncio.sleep(0.05)
            assert tasks == len(asyncio.all_tasks())
            names = [thread.name for thread in threading.enumerate()]
            assert "oqron-pulse" not in names
            assert names.count("oqron-handler") <= 1

    run(main)


# --- trouble ----------------------------------------------------------------


def test_a_plane_that_does_not_answer_is_waited_for() -> None:
    """The loop says so, goes on when it is back, and loses nothing."""

    async def main() -> None:
        faults = Faults()
        app = memory_app(wrap_hot=faults.wrap_hot)

        @app.queue("q", concurrency=5)
        async def work(n: int) -> int:
            return n

        async with app:
            jobs = await work.add_many([{"n": n} for n in range(20)])
            faults.down("hot.broker.claim")
            async with app.worker(**QUIET) as worker:
                await until(lambda: worker.metrics.claim_errors >= 2)
                assert "q" in worker.trouble()
                faults.heal()
                await until(lambda: worker.metrics.total("completed") == 20)
                assert {} == worker.trouble()
            assert {"completed"} == {
                found.status for job in jobs if (found := await work.get(job.id)) is not None
            }

    run(main)


# --- limits among processes -------------------------------------------------


@contextlib.asynccontextmanager
async def two_workers(make: Callable[[], App]) -> AsyncIterator[tuple[App, list[Worker]]]:
    """Give two workers with storages of their own over one store."""
    store = MemoryStore()
    async with contextlib.AsyncExitStack() as stack:
        apps = []
        for _ in range(2):
            storage = await stack.enter_async_context(
                open_storage(mode="memory", project="p", environment="e", memory={"store": store})
            )
            app = make()
            stack.enter_context(app.using(storage))
            apps.append(app)
        workers = [await stack.enter_async_context(app.worker(**QUIET)) for app in apps]
        yield apps[0], workers


def test_slots_hold_among_processes() -> None:
    """Never more than so many at the same time, and all of them are used."""

    async def main() -> None:
        now = most = done = 0

        def make() -> App:
            app = App()

            @app.queue("q", slots=3)
            async def work() -> None:
                nonlocal now, most, done
                now += 1
                most = max(most, now)
                await asyncio.sleep(0.005)
                now -= 1
                done += 1

            return app

        async with two_workers(make) as (app, _):
            await app.queues["q"].add_many([{}] * 60)
            await until(lambda: done == 60)
        assert 3 == most

    run(main)


def test_the_slot_of_a_worker_that_died_comes_back() -> None:
    """After its lease; until then nobody works beside it, and then all goes on."""

    async def main() -> None:
        app = memory_app()
        holders: list[str] = []
        key = "oqron:slot0:worker:q"

        @app.queue("q", slots=1, max_attempts=1)
        async def work() -> None:
            held = await app.storage.hot.locks.holder(key)
            holders.append("nobody" if held is None else held.owner)

        async with app:
            await app.storage.hot.locks.acquire(key, owner="dead", lease_for=0.3)
            jobs = await work.add_many([{}] * 10)
            async with app.worker(**QUIET) as worker:
                await until(lambda: worker.metrics.total("completed") == 10)
            assert "dead" not in holders
            assert {0} == {(await work.counts())[s] for s in ("waiting", "delayed", "active")}
            found = [await work.get(job.id) for job in jobs]
            assert {1} == {job.attempt_made for job in found if job is not None}

    run(main)


def test_a_rate_that_a_dead_worker_used_up_stops_nothing_for_good() -> None:
    """What it took flows back, and what came due meanwhile is done as well."""

    async def main() -> None:
        app = memory_app()
        rate = TokenBucket(20, per=1.0, burst=4)

        @app.queue("q", rate=rate, max_attempts=1)
        async def work() -> None: ...

        async with app:
            # It died with all that it had taken, and ran nothing.
            assert await app.storage.limits.take("worker:q", rate, cost=4)
            await work.add_many([{}] * 8)
            await app.storage.jobs.add_many("q", [{}] * 4, delay=0.1, max_attempts=1)
            async with app.worker(**QUIET) as worker:
                await until(lambda: worker.metrics.total("completed") == 12)
            assert {"completed": 12} == {k: v for k, v in (await work.counts()).items() if v}

    run(main)


def test_a_rate_holds_among_processes() -> None:
    """The bucket gives five at once and then no more than flow in."""

    async def main() -> None:
        starts: list[float] = []

        def make() -> App:
            app = App()

            @app.queue("q", rate=TokenBucket(50, per=1.0, burst=5))
            async def work() -> None:
                starts.append(time.monotonic())

            return app

        async with two_workers(make) as (app, _):
            await app.queues["q"].add_many([{}] * 30)
            await until(lambda: len(starts) == 30)
        # 25 beyond the burst at 50 a second; one more may be kept per process.
        assert starts[-1] - starts[0] >= 0.4

    run(main)


def test_a_rate_does_not_burn_attempts() -> None:
    """What must wait is not claimed."""

    async def main() -> None:
        app = memory_app()

        @app.queue("q", rate=FixedWindow(2, per=3600.0), max_attempts=1)
        async def work() -> None: ...

        async with app:
            await work.add_many([{}] * 6)
            async with app.worker(**QUIET) as worker:
                await until(lambda: worker.metrics.total("completed") >= 2)
                await asyncio.sleep(0.1)
                counts = {k: v for k, v in (await work.counts()).items() if v}
                assert {"completed": 2, "waiting": 4} == counts
            assert {0} == {
                job.attempt_made
                for job in (await app.storage.jobs.query("q", status="waiting")).items
            }

    run(main)


def test_an_idle_worker_leaves_the_rate_to_others() -> None:
    """What it took for a job that was not there is one at most."""

    async def main() -> None:
        app = memory_app()
        rate = FixedWindow(10, per=3600.0)

        @app.queue("q", rate=rate)
        async def work() -> None: ...

        async with app, app.worker(**QUIET) as worker:
            for _ in range(4):
                await work.add()
                await worker.idle(every=0.005)
                await asyncio.sleep(0.02)
            left = (await app.storage.limits.peek("worker:q", rate)).remaining
            assert left in {5, 6}

    run(main)


def test_a_topic_keeps_to_its_slots() -> None:
    """Also for what arrives while it waits."""

    async def main() -> None:
        app = memory_app()
        now = most = 0

        @app.topic("events", group="g", slots=2, concurrency=10)
        async def work(n: int) -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.01)
            now -= 1

        async with app, app.worker(**QUIET) as worker:
            await asyncio.sleep(0.05)
            for n in range(12):
                await app.publish("events", n)
            await worker.idle()
            assert 12 == worker.metrics.total("completed")
            assert most <= 2

    run(main)


def test_a_worker_may_serve_a_part_of_the_handlers() -> None:
    """By name; a name that is none is refused."""

    async def main() -> None:
        app = memory_app()
        seen = []

        @app.queue("a")
        async def a() -> None:
            seen.append("a")

        @app.queue("b")
        async def b() -> None:
            seen.append("b")

        async with app:
            await a.add()
            await b.add()
            with pytest.raises(InvalidValueError, match="no handler is called c"):
                async with app.worker(only=["c"], **QUIET):
                    pass
            async with app.worker(only=["b"], **QUIET) as worker:
                await until(lambda: worker.metrics.total("completed"))
            assert ["b"] == seen

    run(main)
