"""Queues of an application: adding, running, and every way an attempt may end."""

from __future__ import annotations

import asyncio
import enum
import logging
import threading

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import pytest

from oqron_core import Backoff, ConflictError, InvalidValueError
from oqron_worker import App, Context, Discard, Retry, Snooze, Unique, current_context


@attrs.frozen
class Line:
    """A line of an order."""

    sku: str
    count: int = 1


@attrs.frozen
class Order:
    """An order."""

    id: str
    lines: list[Line]
    note: str | None = None


class Colour(enum.Enum):
    """An enumeration in a payload."""

    RED = "red"


# --- payloads ---------------------------------------------------------------


async def test_a_job_runs_with_its_payload(oqron_tester: Any) -> None:
    """What is added is what the function is called with, and its output is kept."""
    app = App()

    @app.queue("emails")
    async def send(ctx: Context, to: str, template: str = "plain") -> dict[str, Any]:
        return {"to": to, "template": template, "attempt": ctx.attempt, "id": ctx.job.id}

    async with oqron_tester(app) as tester:
        job = await send.add(to="a@x.com", template="welcome")
        other = await send.add("b@x.com")

        assert 2 == await tester.drain()
        assert {
            "to": "a@x.com",
            "template": "welcome",
            "attempt": 1,
            "id": job.id,
        } == await tester.completed(job)
        assert "plain" == (await tester.completed(other))["template"]
        assert {"to": "b@x.com"} == (await tester.job(other)).data


async def test_attrs_classes_travel_as_json(oqron_tester: Any) -> None:
    """Classes, enumerations and dates are JSON in the job and objects in the handler."""
    app = App()
    seen = []

    @app.queue("orders")
    async def take(order: Order, colour: Colour, at: datetime) -> Order:
        seen.append((order, colour, at))
        return order

    at = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    order = Order("o1", [Line("a", 2)])
    async with oqron_tester(app) as tester:
        job = await take.add(order=order, colour=Colour.RED, at=at)
        await tester.drain()

        assert [(order, Colour.RED, at)] == seen
        assert {
            "order": {"id": "o1", "lines": [{"sku": "a", "count": 2}], "note": None},
            "colour": "red",
            "at": at.isoformat(),
        } == job.data
        assert job.data["order"] == await tester.completed(job)


@pytest.mark.parametrize(
    ("payload", "where"),
    [
        ({"order": {"id": "o", "lines": []}, "n": "3"}, "n"),
        ({"order": {"id": "o", "lines": []}, "n": True}, "n"),
        ({"order": {"id": "o", "lines": []}, "n": 3.9}, "n"),
        ({"order": {"id": 7, "lines": []}, "n": 1}, "order.id"),
        ({"order": {"id": "o", "lines": [{"sku": "a", "cuont": 1}]}, "n": 1}, "order.lines"),
        ({"order": {"id": "o"}, "n": 1}, "order"),
    ],
)
async def test_a_payload_that_does_not_fit_is_refused_with_its_place(
    oqron_tester: Any, payload: dict[str, Any], where: str
) -> None:
    """Both at adding and at the call, where it is a dead letter at once."""
    app = App()

    @app.queue("orders")
    async def take(order: Order, n: int) -> None: ...

    async with oqron_tester(app) as tester:
        with pytest.raises(InvalidValueError, match=where.replace(".", r"\.")):
            await take.add(**payload)
        assert {} == {k: v for k, v in (await take.counts()).items() if v}

        job = await tester.storage.jobs.add("orders", payload)
        await tester.drain()
        dead = await tester.died(job, error="the payload does not fit")
        assert where in (dead.error or "")
        assert 1 == dead.attempt_made


async def test_unknown_and_missing_arguments_are_refused(oqron_tester: Any) -> None:
    """As a call of the function would be."""
    app = App()

    @app.queue("emails")
    async def send(ctx: Context, to: str) -> None: ...

    async with oqron_tester(app):
        with pytest.raises(TypeError, match="needs to"):
            await send.add()
        with pytest.raises(TypeError, match="no parameter 'cc'"):
            await send.add(to="a", cc="b")
        with pytest.raises(TypeError, match="takes 1 arguments, not 2"):
            await send.add("a", "b")
        with pytest.raises(TypeError, match="'to' twice"):
            await send.add("a", to="b")


async def test_a_parameter_called_like_an_option_is_payload(oqron_tester: Any) -> None:
    """The option of that name is given beforehand."""
    app = App()

    @app.queue("tasks")
    async def work(id: str, priority: int) -> str:  # noqa: A002
        return f"{id}/{priority}"

    async with oqron_tester(app) as tester:
        job = await work.with_options(id="job-1", priority=-5).add(id="thing", priority=3)
        await tester.drain()

        assert "job-1" == job.id
        assert -5 == job.priority
        assert "thing/3" == await tester.completed(job)


async def test_a_whole_payload_may_be_any_json(oqron_tester: Any) -> None:
    """Also a list, a number or null."""
    app = App()

    @app.queue("any", whole=True)
    async def echo(payload: Any) -> Any:
        return payload

    async with oqron_tester(app) as tester:
        jobs = await echo.add_many([[1, 2], 3, None, {"to": 1}])
        await tester.drain()

        assert [[1, 2], 3, None, {"to": 1}] == [await tester.completed(job) for job in jobs]


async def test_many_are_checked_before_one_is_added(oqron_tester: Any) -> None:
    """A batch with one bad payload adds nothing."""
    app = App()

    @app.queue("numbers")
    async def square(n: int) -> int:
        return n * n

    async with oqron_tester(app) as tester:
        with pytest.raises(InvalidValueError):
            await square.add_many([{"n": 1}, {"n": "2"}])
        assert [] == await tester.jobs("numbers")

        jobs = await square.add_many([{"n": n} for n in range(50)], priority=4)
        assert 50 == await tester.drain()
        assert [n * n for n in range(50)] == [await tester.completed(job) for job in jobs]
        assert {4} == {job.priority for job in jobs}


def test_what_cannot_be_a_handler_is_refused_when_it_is_registered() -> None:
    """Star arguments, unreadable annotations, names taken twice, wrong options."""
    app = App()

    with pytest.raises(TypeError, match="named parameters only"):

        @app.queue("a")
        async def star(*args: int) -> None: ...

    with pytest.raises(TypeError, match="annotations of"):

        @app.queue("b")
        async def unknown(x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    @app.queue("c")
    async def first() -> None: ...

    with pytest.raises(ValueError, match="has a handler already"):

        @app.queue("c")
        async def second() -> None: ...

    with pytest.raises(InvalidValueError, match="concurrency"):
        app.queue("d", concurrency=0)
    with pytest.raises(InvalidValueError, match="lease_for"):
        app.queue("d", lease_for=0.5)
    with pytest.raises(InvalidValueError, match="coroutine"):
        app.queue("d", pool="thread")(first.function)


def test_a_handler_is_called_like_the_function_it_is() -> None:
    """Its own test needs no storage."""
    app = App()

    @app.queue("sums")
    async def add(a: int, b: int) -> int:
        return a + b

    assert 3 == asyncio.run(add(1, 2))


# --- ends -------------------------------------------------------------------


async def test_a_failure_is_tried_again_after_the_backoff(oqron_tester: Any) -> None:
    """Until the attempts are exhausted; each has its run, the last makes a dead letter."""
    app = App()
    at: list[int] = []

    @app.queue("flaky", max_attempts=3, backoff=Backoff.exponential(10.0))
    async def flaky() -> None:
        at.append(tester.clock.now())
        raise ValueError("no luck")

    async with oqron_tester(app) as tester:
        job = await flaky.add()
        await tester.advance(60)

        assert [0, 10_000, 30_000] == [moment - at[0] for moment in at]
        dead = await tester.died(job, error="ValueError: no luck")
        assert 3 == dead.attempt_made
        assert "attempts exhausted" == dead.reason
        assert ["failed"] * 3 == [run.status for run in await tester.runs("flaky")]


def test_the_default_backoff_is_spread_by_chance() -> None:
    """A thousand jobs that failed together do not come back together."""
    app = App()

    @app.queue("q")
    async def work() -> None: ...

    delays = {work.options.backoff.delay_after(3) for _ in range(50)}

    assert len(delays) > 10
    assert all(3.2 <= delay <= 4.8 for delay in delays)


async def test_retry_says_when(oqron_tester: Any) -> None:
    """Instead of the backoff; it counts an attempt."""
    app = App()
    at: list[int] = []

    @app.queue("q")
    async def work(ctx: Context) -> int:
        at.append(tester.clock.now())
        if ctx.attempt == 1:
            raise Retry("not yet", delay=7.0)
        return ctx.attempt

    async with oqron_tester(app) as tester:
        job = await work.add()
        await tester.drain()
        assert "not yet" == (await tester.job(job)).error
        await tester.advance(10)

        assert 2 == await tester.completed(job)
        assert 7000 == at[1] - at[0]


async def test_snooze_costs_no_attempt(oqron_tester: Any) -> None:
    """However often: with one attempt only, the job still runs in the end."""
    app = App()
    calls = []

    @app.queue("q", max_attempts=1)
    async def work(ctx: Context) -> str:
        calls.append(ctx.attempt)
        if len(calls) < 6:
            raise Snooze(60.0, "the shop is closed")
        return "open"

    async with oqron_tester(app) as tester:
        job = await work.add()
        await tester.advance(400)

        assert [1] * 6 == calls
        assert "open" == await tester.completed(job)


async def test_discard_makes_a_dead_letter_at_once(oqron_tester: Any) -> None:
    """Whatever attempts are left."""
    app = App()

    @app.queue("q", max_attempts=9)
    async def work() -> None:
        raise Discard("the customer is gone")

    async with oqron_tester(app) as tester:
        job = await work.add()
        await tester.drain()

        dead = await tester.died(job, error="the customer is gone")
        assert "discarded" == dead.reason
        assert 1 == dead.attempt_made


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()])
async def test_no_exception_of_a_handler_ends_the_worker(
    oqron_tester: Any, error: BaseException
) -> None:
    """Exits and cancels of the handler's own are failures of the attempt."""
    app = App()

    @app.queue("q", max_attempts=1)
    async def work() -> None:
        raise error

    async with oqron_tester(app) as tester:
        job = await work.add()
        await tester.drain()

        await tester.died(job, error=type(error).__name__)


async def test_an_output_that_is_no_json_does_not_fail_the_job(oqron_tester: Any) -> None:
    """A marker takes its place, and the run says so."""
    app = App()

    @app.queue("q")
    async def work() -> object:
        return {"x": float("nan"), "y": object()}

    async with oqron_tester(app) as tester:
        job = await work.add()
        await tester.drain()

        await tester.completed(job)
        [run] = await tester.runs("q")
        assert "the output was not stored" in run.logs[-1]["msg"]


async def test_a_timeout_is_a_failure_of_its_own_kind(oqron_tester: Any) -> None:
    """It is told from a cancel and from a `TimeoutError` of the handler, and retried."""
    app = App()

    @app.queue("slow", timeout=0.02, max_attempts=2, backoff=Backoff.fixed(1.0))
    async def slow(ctx: Context) -> str:
        if ctx.attempt == 1:
            await asyncio.sleep(30)
        return "in time"

    @app.queue("own", timeout=30.0, max_attempts=1)
    async def own() -> None:
        raise TimeoutError("of the database")

    async with oqron_tester(app) as tester:
        job, other = await slow.add(), await own.add()
        await tester.drain()
        assert "longer than 0.02 seconds" in ((await tester.job(job)).error or "")
        await tester.died(other, error="TimeoutError: of the database")
        await tester.advance(2)
        assert "in time" == await tester.completed(job)


async def test_a_handler_that_is_done_in_spite_of_its_timeout_counts(oqron_tester: Any) -> None:
    """One that shields its end from the cancel is completed, once."""
    app = App()

    @app.queue("q", timeout=0.01, max_attempts=1)
    async def work() -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return "tidied up"
        return "never"

    async with oqron_tester(app) as tester:
        job = await work.add()
        await tester.drain()

        assert "tidied up" == await tester.completed(job)


# --- functions that block ---------------------------------------------------


async def test_a_plain_function_runs_in_a_thread(oqron_tester: Any) -> None:
    """With its context, whose calls may be made from there."""
    app = App()
    here = threading.get_ident()

    @app.queue("q")
    def work(ctx: Context, n: int) -> bool:
        ctx.log("info", f"n is {n}")
        ctx.progress(50, "half")
        assert current_context() is ctx
        return threading.get_ident() != here

    async with oqron_tester(app) as tester:
        job = await work.add(n=7)
        await tester.drain()

        assert await tester.completed(job) is True
        [run] = await tester.runs("q")
        assert ["n is 7"] == [line["msg"] for line in run.logs]


async def test_a_thread_is_told_of_its_timeout(oqron_tester: Any) -> None:
    """Nobody can interrupt it; it asks, and the attempt is a timeout."""
    app = App()

    @app.queue("q", timeout=0.02, max_attempts=1)
    def work(ctx: Context) -> None:
        while True:
            ctx.wait(0.5)
            ctx.check()

    async with oqron_tester(app) as tester:
        job = await work.add()
        await tester.drain()

        await tester.died(job, error="longer than 0.02 seconds")


# --- what lands in the run --------------------------------------------------


async def test_standard_logging_lands_in_the_run(oqron_tester: Any) -> None:
    """From the loop and from threads, with errors; other tasks' lines stay out."""
    app = App()
    logger = logging.getLogger("shop.mail")
    logger.setLevel(logging.INFO)

    @app.queue("loop")
    async def in_loop() -> None:
        logger.info("sent %d", 3)
        logger.debug("not captured")
        try:
            1 / 0  # noqa: B018
        except ZeroDivisionError:
            logger.exception("odd")

    @app.queue("thread")
    def in_thread() -> None:
        logger.warning("from a thread")

    async with oqron_tester(app) as tester:
        await in_loop.add()
        await in_thread.add()
        await tester.drain()
        logger.info("outside")

        [loop_run], [thread_run] = await tester.runs("loop"), await tester.runs("thread")
        assert ["info", "error"] == [line["level"] for line in loop_run.logs]
        assert "sent 3" == loop_run.logs[0]["msg"]
        assert "ZeroDivisionError" in loop_run.logs[1]["msg"]
        assert "shop.mail" == loop_run.logs[0]["logger"]
        assert [("warning", "from a thread")] == [
            (line["level"], line["msg"]) for line in thread_run.logs
        ]


# --- options of adding ------------------------------------------------------


async def test_delay_and_priority_decide_the_order(oqron_tester: Any) -> None:
    """Lower priorities first; what is delayed later."""
    app = App()
    order: list[str] = []

    @app.queue("q", priority=5)
    async def work(name: str) -> None:
        order.append(name)

    async with oqron_tester(app) as tester:
        await work.add(name="late", delay=60)
        await work.add(name="normal")
        await work.add(name="urgent", priority=-1)
        await tester.drain()
        assert ["urgent", "normal"] == order
        await tester.advance(61)

        assert ["urgent", "normal", "late"] == order


async def test_a_unique_job_is_there_once(oqron_tester: Any) -> None:
    """Until it has ended, by completing or by dying; then the key is free."""
    app = App()
    runs: list[int] = []

    @app.queue("sync", max_attempts=1)
    async def sync(user: int) -> None:
        runs.append(user)
        if user < 0:
            raise ValueError("no such user")

    async with oqron_tester(app) as tester:
        jobs = await asyncio.gather(*(sync.add(user=7, unique="user:7") for _ in range(20)))
        assert 1 == len({job.id for job in jobs})
        assert 19 == sum(job.duplicate for job in jobs)
        await tester.drain()
        assert [7] == runs

        again = await sync.add(user=7, unique="user:7")
        assert not again.duplicate
        await tester.drain()
        bad = [await sync.add(user=-1, unique="bad") for _ in range(2)]
        await tester.drain()
        assert [False, True] == [job.duplicate for job in bad]
        assert not (await sync.add(user=-1, unique="bad")).duplicate


async def test_an_older_job_frees_no_key_of_a_newer_one(oqron_tester: Any) -> None:
    """A dead letter that is requeued ends; the key is another job's by then."""
    app = App()
    broken = True

    @app.queue("q", max_attempts=1)
    async def work() -> None:
        if broken:
            raise ValueError("broken")

    async with oqron_tester(app) as tester:
        older = await work.add(unique="k")
        await tester.drain()
        await tester.died(older)
        newer = await work.add(unique="k", delay=60)
        assert not newer.duplicate
        broken = False
        await tester.storage.dead_letters.requeue("q", older.id)
        await tester.drain()
        await tester.completed(older)

        again = await work.add(unique="k")
        assert (True, newer.id) == (again.duplicate, again.id)
        await tester.advance(60)
        await tester.completed(newer)
        assert not (await work.add(unique="k")).duplicate


async def test_the_key_of_a_job_whose_worker_died_is_free_when_it_has_ended(
    oqron_tester: Any,
) -> None:
    """Not while its lease is good, nor while it may be tried again; and then it is."""
    app = App()

    @app.queue("q", max_attempts=1)
    async def work() -> None: ...

    async with oqron_tester(app) as tester:
        job = await work.add(unique="k")
        [lost] = await tester.storage.jobs.claim("q", lease_for=5.0)
        assert (await work.add(unique="k")).duplicate
        tester.clock.advance(6)
        assert (await work.add(unique="k")).duplicate
        await tester.storage.maintenance.run_once()
        await tester.died(job, error="lease lapsed")
        again = await work.add(unique="k")

        assert (False, True) == (again.duplicate, again.id != lost.id)
        await tester.drain()
        await tester.completed(again)


async def test_a_key_stays_taken_for_its_window(oqron_tester: Any) -> None:
    """Also when the job has long ended, and retention took it."""
    app = App()
    calls = []

    @app.queue("digest")
    async def digest() -> None:
        calls.append(1)

    hourly = Unique("digest", window=3600.0)
    async with oqron_tester(app) as tester:
        await digest.add(unique=hourly)
        await tester.drain()
        assert (await digest.add(unique=hourly)).duplicate
        await tester.advance(3500)
        assert (await digest.add(unique=hourly)).duplicate
        await tester.advance(101)
        assert not (await digest.add(unique=hourly)).duplicate
        await tester.drain()

        assert 2 == len(calls)


async def test_a_taken_key_refuses_or_is_replaced(oqron_tester: Any) -> None:
    """As the caller said."""
    app = App()
    seen = []

    @app.queue("q")
    async def work(n: int) -> None:
        seen.append(n)

    async with oqron_tester(app) as tester:
        first = await work.add(n=1, unique="k", delay=60)
        with pytest.raises(ConflictError, match="already"):
            await work.add(n=2, unique=Unique("k", on_conflict="refuse"))
        third = await work.add(n=3, unique=Unique("k", on_conflict="replace"))
        await tester.advance(120)

        assert [3] == seen
        assert not third.duplicate
        assert "cancelled" == (await tester.job(first)).status


async def test_a_job_waits_for_those_it_depends_on(oqron_tester: Any) -> None:
    """Also over several steps; the order is theirs."""
    app = App()
    order: list[str] = []

    @app.queue("steps")
    async def step(name: str) -> None:
        order.append(name)

    async with oqron_tester(app) as tester:
        a = await step.add(name="a", delay=60)
        b = await step.add(name="b", delay=30)
        c = await step.add(name="c", depends_on=[a, b])
        d = await step.add(name="d", depends_on=[c], priority=-9)
        assert ["held", "held"] == [c.status, d.status]
        await tester.drain()
        assert [] == order
        await tester.advance(90)

        assert ["b", "a", "c", "d"] == order
        assert "waiting" == (await step.add(name="e", depends_on=[a])).status


@pytest.mark.parametrize("policy", ["fail", "ignore", "block"])
async def test_what_a_failed_parent_means_is_up_to_the_policy(
    oqron_tester: Any, policy: Any
) -> None:
    """``fail`` buries the child too, ``ignore`` runs it, ``block`` waits for a requeue."""
    app = App()
    order: list[str] = []
    broken = True

    @app.queue("q", max_attempts=1)
    async def work(name: str) -> None:
        if name == "parent" and broken:
            raise ValueError("broken")
        order.append(name)

    async with oqron_tester(app) as tester:
        parent = await work.add(name="parent")
        child = await work.add(name="child", depends_on=[parent], on_parent_failure=policy)
        await tester.drain()
        await tester.died(parent)
        if policy == "fail":
            await tester.died(child, error=f"the job it depends on failed: q/{parent.id}")
        elif policy == "ignore":
            await tester.completed(child)
        else:
            assert [] == order
            broken = False
            await tester.storage.dead_letters.requeue("q", parent.id)
            await tester.drain()
            assert ["parent", "child"] == order


async def test_a_job_that_waits_for_others_is_shown_and_called_off(oqron_tester: Any) -> None:
    """It never runs then, and who waits for it fails."""
    app = App()
    ran: list[str] = []

    @app.queue("q")
    async def work(name: str) -> None:
        ran.append(name)

    async with oqron_tester(app) as tester:
        first = await work.add(name="first", delay=60)
        second = await work.add(name="second", depends_on=[first])
        third = await work.add(name="third", depends_on=[second])
        shown = await work.get(second.id)
        assert shown is not None
        assert ("held", {"name": "second"}) == (shown.status, shown.data)
        assert await work.cancel(second.id)
        await tester.advance(2 * 86400)

        assert ["first"] == ran
        await tester.died(third, error="the job it depends on failed")


async def test_a_dependency_that_is_not_there_is_refused(oqron_tester: Any) -> None:
    """Nothing would ever end it."""
    app = App()

    @app.queue("q")
    async def work() -> None: ...

    async with oqron_tester(app) as tester:
        job = await work.add()
        ghost = attrs.evolve(job, id="ghost")
        with pytest.raises(InvalidValueError, match=r"depends_on\[0\]"):
            await work.add(depends_on=[ghost])
        assert 1 == await tester.drain()


@pytest.mark.timeout(120)
def test_a_process_pool_runs_what_keeps_a_processor_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results, errors and logs come back; a process that dies fails its attempt only."""
    from worker_processes import app, busy

    mark = tmp_path / "busy"
    monkeypatch.setenv("BUSY_MARK", str(mark))

    async def main() -> None:
        async with app, app.worker(processes=2, blocked_after=None) as worker:
            jobs = [await busy.add(n=n) for n in (10, -1, -2, 11, -3)]
            while not mark.exists():
                await asyncio.sleep(0.02)
            assert await busy.cancel(jobs[4].id)
            await worker.idle()
            ended = [await busy.get(job.id) for job in jobs]
            assert [55, 66] == [ended[i].return_value for i in (0, 3)]
            assert "ValueError: below zero" in ended[1].error
            assert "ended with status 7" in ended[2].error
            assert "cancelled" == ended[4].status
            page = await busy.runs(status="completed")
            assert {"summing 10", "summing 11"} == {run.logs[0]["msg"] for run in page.items}

    asyncio.run(main())
