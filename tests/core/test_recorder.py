"""Run history: bounded, never in the way, never losing an end."""

from __future__ import annotations

import asyncio
import threading

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from oqron_core import (
    InvalidValueError,
    LeaseLostError,
    Query,
    Storage,
    UnavailableError,
    open_storage,
)
from oqron_core.planes import Insert, Patch
from oqron_core.protocol.ending import close_run
from oqron_core.testing.faults import Faults


def run(body: Callable[[Storage], Awaitable[None]], **settings: Any) -> None:
    """Run *body* with a storage in memory."""

    async def main() -> None:
        async with open_storage(mode="memory", project="p", environment="e", **settings) as storage:
            await body(storage)

    asyncio.run(main())


async def until(holds: Callable[[], Awaitable[object]]) -> None:
    """Wait until *holds* does, for at most ten seconds."""
    async with asyncio.timeout(10):
        while not await holds():
            await asyncio.sleep(0.02)


def test_a_short_run_is_one_durable_row_and_never_live() -> None:
    """What ends at once is inserted once, with its whole history."""

    async def body(storage: Storage) -> None:
        handle = await storage.runs.start("tick", module="cron", trigger="cron", input={"a": [1]})
        handle.log("info", "one")
        handle.progress(50, "half")
        handle.finish({"ok": True})
        await storage.runs.flush()

        row = (await storage.durable.get("runs", [handle.id]))[0]
        assert row is not None
        value = row.value
        assert value["status"] == "completed"
        assert value["input"] == {"a": [1]}
        assert value["output"] == {"ok": True}
        assert [entry["msg"] for entry in value["logs"]] == ["one"]
        assert [(t["from"], t["to"]) for t in value["timeline"]] == [
            ("queued", "running"),
            ("running", "running"),
            ("running", "completed"),
        ]
        assert value["progressPercent"] == 100
        assert await storage.hot.live.get(handle.id) is None

    run(body)


def test_a_long_run_appears_live_and_in_history_before_it_ends() -> None:
    """A board sees it running, and the later end replaces that row."""

    async def body(storage: Storage) -> None:
        handle = await storage.runs.start("long")
        handle.log("info", "working")

        async def running() -> bool:
            return [run.id for run in await storage.runs.query(status="running")] == [handle.id]

        await until(running)
        await until(lambda: storage.hot.live.get(handle.id))
        handle.fail(ValueError("broke"))
        await storage.runs.flush()

        found = await storage.runs.get(handle.id)
        assert found is not None
        assert found.status == "failed"
        assert found.error == "ValueError: broke"
        assert await storage.hot.live.get(handle.id) is None
        assert await storage.durable.count(Query(namespace="runs")) == 1

    run(body, runs={"write_every": 0.02, "durable_after": 0.02})


def test_late_calls_change_nothing() -> None:
    """After the end, log, progress, finish and fail are without effect."""

    async def body(storage: Storage) -> None:
        handle = await storage.runs.start("once")
        handle.finish(1)
        handle.log("info", "late")
        handle.progress(3)
        handle.fail("late")
        handle.finish(2)
        await storage.runs.flush()
        handle.fail("later")
        await storage.runs.flush()

        found = await storage.runs.get(handle.id)
        assert found is not None
        assert (found.status, found.output, found.logs, found.error) == ("completed", 1, [], None)

    run(body)


def test_logs_are_capped_with_a_marker() -> None:
    """A million lines cost a bounded record that says that it was cut."""

    async def body(storage: Storage) -> None:
        handle = await storage.runs.start("chatty")
        for n in range(10_000):
            handle.log("info", f"line {n}")
        handle.finish()
        await storage.runs.flush()

        found = await storage.runs.get(handle.id)
        assert found is not None
        assert len(found.logs) == 11
        assert found.logs[-1]["msg"] == "log truncated after 10 entries"

    run(body, runs={"max_logs": 10})


@pytest.mark.parametrize(
    "output", [{1: 2}, {1, 2}, float("nan"), b"x", "a\0b", "\ud800", object(), 2**64]
)
def test_an_output_that_cannot_be_stored_never_loses_the_end(output: Any) -> None:
    """A marker takes its place and the log says why."""

    async def body(storage: Storage) -> None:
        await storage.jobs.add("q", 1, id="a")
        (claim,) = await storage.jobs.claim("q")
        await storage.jobs.complete(claim, output)

        job = await storage.jobs.get("q", "a")
        assert job is not None
        assert job.status == "completed"
        assert "__unstorable__" in job.return_value
        await storage.runs.flush()
        found = await storage.runs.get(claim.run.id)
        assert found is not None
        assert found.status == "completed"
        assert "__unstorable__" in found.output
        assert "output was not stored" in found.logs[-1]["msg"]

    run(body)


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "x" * 100_000, b"bytes", object()])
def test_what_a_handler_reports_is_made_portable(text: Any) -> None:
    """Error texts and log lines never fail the job."""

    async def body(storage: Storage) -> None:
        await storage.jobs.add("q", 1, id="a", max_attempts=1)
        (claim,) = await storage.jobs.claim("q")
        claim.run.log("info", text, extra=text)
        claim.run.progress(50, text)
        await storage.jobs.fail(claim, text)

        letter = await storage.dead_letters.get("q", "a")
        assert letter is not None
        assert letter.error
        assert "\0" not in letter.error

    run(body)


def test_handles_may_be_used_from_threads() -> None:
    """Sixteen threads log at once, and every line arrives in order of its thread."""

    async def body(storage: Storage) -> None:
        handle = await storage.runs.start("threads")

        def work(n: int) -> None:
            for i in range(50):
                handle.log("info", f"{n}:{i}")

        threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        await asyncio.to_thread(lambda: [thread.join() for thread in threads])
        await asyncio.to_thread(handle.finish, "done")
        assert handle.status == "completed"
        await storage.runs.flush()

        found = await storage.runs.get(handle.id)
        assert found is not None
        lines = [entry["msg"] for entry in found.logs]
        assert len(lines) == 800
        for n in range(16):
            mine = [line for line in lines if line.startswith(f"{n}:")]
            assert mine == [f"{n}:{i}" for i in range(50)]

    run(body)


def test_ends_wait_while_history_is_down_and_are_written_then() -> None:
    """No terminal state is dropped; a clean close has written all of them."""
    faults = Faults()
    ids: list[str] = []

    async def body(storage: Storage) -> None:
        faults.down("durable.write")
        for n in range(200):
            handle = await storage.runs.start("x")
            handle.finish(n)
            ids.append(handle.id)
        with pytest.raises(UnavailableError):
            await storage.runs.flush()
        faults.heal()
        await storage.runs.flush()
        rows = await storage.durable.get("runs", ids)
        assert list(range(200)) == [row.value["output"] for row in rows if row]

    run(body, wrap_durable=faults.wrap_durable)


def test_close_says_what_it_could_not_write() -> None:
    """A plane that stays down costs at most the time-out, and the loss is counted."""
    faults = Faults()

    async def main() -> None:
        async with open_storage(
            mode="memory", wrap_durable=faults.wrap_durable, close_timeout=0.4
        ) as storage:
            faults.down("durable.write")
            for _ in range(3):
                (await storage.runs.start("x")).finish()
        assert storage.unwritten == 3

    asyncio.run(main())


def test_progress_is_dropped_before_an_end_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the overlay down the buffer stays bounded, and the ends still arrive."""

    async def down(*_args: Any) -> None:
        msg = "down"
        raise UnavailableError(msg)

    async def main() -> None:
        async with open_storage(
            mode="memory", runs={"buffer": 100, "write_every": 0.01}
        ) as storage:
            monkeypatch.setattr(type(storage.hot.live), "merge_many", down)
            handles = [await storage.runs.start("x") for _ in range(20)]
            for handle in handles:
                for n in range(20):
                    handle.log("info", str(n))
            recorder = storage._session.recorder
            assert recorder.overlay.unsent <= 120
            assert recorder.overlay.dropped > 0
            for handle in handles:
                handle.finish()
            await storage.runs.flush()
            assert await storage.durable.count(Query(namespace="runs")) == 20

    asyncio.run(main())


def test_history_does_not_wait_for_a_hot_plane_that_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What has ended is durable while the overlay has no answer, and leaves it afterwards."""

    async def body(storage: Storage) -> None:
        live = type(storage.hot.live)
        merge, drop = live.merge_many, live.drop
        asked, answers = asyncio.Event(), asyncio.Event()

        async def merge_late(plane: Any, changes: Any) -> Any:
            asked.set()
            await answers.wait()
            return await merge(plane, changes)

        async def drop_late(plane: Any, ids: Any) -> Any:
            await answers.wait()
            return await drop(plane, ids)

        long = await storage.runs.start("long")
        await until(lambda: storage.hot.live.get(long.id))
        monkeypatch.setattr(live, "merge_many", merge_late)
        monkeypatch.setattr(live, "drop", drop_late)
        long.log("info", "still at it")
        async with asyncio.timeout(10):
            await asked.wait()

        await storage.jobs.add("q", 1)
        [claim] = await storage.jobs.claim("q")
        await storage.jobs.complete(claim)
        long.finish(None)
        young = await storage.runs.start("young")

        async def durable() -> bool:
            found = await storage.durable.get("runs", [claim.run.id, long.id, young.id])
            expected = ["completed", "completed", "running"]
            return [None if row is None else row.value["status"] for row in found] == expected

        await until(durable)
        await storage.runs.flush()
        assert await storage.hot.live.get(long.id) is not None
        assert await storage.runs.active() == []
        found = await storage.runs.get(long.id)
        assert found is not None
        assert found.status == "completed"

        answers.set()

        async def only_the_young() -> bool:
            return await storage.hot.live.active() == [young.id]

        await until(only_the_young)

    run(body, runs={"write_every": 0.01, "durable_after": 0.02})


def test_close_waits_for_what_the_writer_has_in_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """While there is time nothing that has ended is given up."""

    async def main() -> None:
        async with open_storage(mode="memory", close_timeout=60.0) as storage:
            durable = type(storage.durable)
            write = durable.write
            tries = 0

            async def slow(plane: Any, writes: Any, **said: Any) -> Any:
                nonlocal tries
                tries += 1
                await asyncio.sleep(0.1)
                if tries < 8:
                    msg = "down"
                    raise UnavailableError(msg)
                return await write(plane, writes, **said)

            monkeypatch.setattr(durable, "write", slow)
            # So that the writer is there while closing waits, and takes it in hand.
            monkeypatch.setattr("oqron_core.protocol.background._FIRST_PAUSE", 0.01)
            for _ in range(50):
                (await storage.runs.start("x")).finish(None)
        assert storage.unwritten == 0

    asyncio.run(main())


def test_an_entry_of_a_log_is_bounded_by_what_is_in_it() -> None:
    """Small fields cost little; large ones are left out, and counted."""

    async def body(storage: Storage) -> None:
        handle = await storage.runs.start("r")
        for number in range(500):
            handle.log("info", "row", number=number, name=f"name {number}", ok=True, where=[1, 2])
        handle.finish(None)
        large = await storage.runs.start("r")
        large.log("info", "rows", **{f"field{n}": "x" * 900 for n in range(400)})
        large.log("info", "next", n=1)
        large.finish(None)
        await storage.runs.flush()

        found = await storage.runs.get(handle.id)
        assert found is not None
        assert 500 == len(found.logs)
        assert (499, [1, 2]) == (found.logs[-1]["number"], found.logs[-1]["where"])
        found = await storage.runs.get(large.id)
        assert found is not None
        rows, after = found.logs
        kept = [name for name in rows if name.startswith("field") and name != "fieldsCut"]
        assert 400 == len(kept) + rows["fieldsCut"]
        assert 20 < len(kept) < 40
        assert 1 == after["n"]

    run(body, max_value_bytes=1024 * 1024)


def test_a_run_that_is_refused_does_not_cost_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where it is shown nor in history, and it is not tried for ever."""

    async def body(storage: Storage) -> None:
        live, durable = type(storage.hot.live), type(storage.durable)
        merge, write = live.merge_many, durable.write
        bad = await storage.runs.start("bad")

        async def merge_many(plane: Any, changes: Any) -> Any:
            if any(change.run_id == bad.id for change in changes):
                raise InvalidValueError("value", "is too large")
            return await merge(plane, changes)

        async def write_many(plane: Any, writes: Any, **said: Any) -> Any:
            if any(one.id == bad.id and one.value["status"] == "running" for one in writes):
                raise InvalidValueError("value", "is too large")
            return await write(plane, writes, **said)

        monkeypatch.setattr(live, "merge_many", merge_many)
        monkeypatch.setattr(durable, "write", write_many)
        good = [await storage.runs.start("good") for _ in range(3)]
        for handle in (bad, *good):
            handle.log("info", "at work")
        names = {handle.id for handle in good}

        async def are_there() -> bool:
            rows = await storage.durable.get("runs", [*names])
            return None not in rows and names == {*await storage.hot.live.active()}

        await until(are_there)
        bad.finish(None)
        await storage.runs.flush()
        found = await storage.runs.get(bad.id)
        assert found is not None
        assert "completed" == found.status

    run(body, runs={"write_every": 0.02, "durable_after": 0.05})


def test_a_run_is_shown_though_the_buffer_is_full() -> None:
    """What is dropped is a line of a log, never that it lasts."""
    faults = Faults()

    async def body(storage: Storage) -> None:
        faults.down("hot.live.*")
        quiet = await storage.runs.start("quiet")
        noisy = await storage.runs.start("noisy")
        for n in range(300):
            noisy.log("info", str(n))
        assert storage._session.recorder.overlay.dropped > 0
        faults.heal()

        async def are_shown() -> bool:
            return {quiet.id, noisy.id} == {*await storage.hot.live.active()}

        await until(are_shown)

    run(body, runs={"buffer": 50, "write_every": 0.02}, wrap_hot=faults.wrap_hot)


def test_a_run_comes_back_where_the_hot_plane_was_lost() -> None:
    """Its next sign of life says what it is."""

    async def body(storage: Storage) -> None:
        handle = await storage.runs.start("long", module="reports", input={"n": 1})
        handle.log("info", "at work")
        await until(lambda: storage.hot.live.get(handle.id))
        await storage.hot.live.drop([handle.id])

        async def is_back() -> bool:
            return [(run.id, run.name, run.module) for run in await storage.runs.active()] == [
                (handle.id, "long", "reports")
            ]

        await until(is_back)
        found = await storage.runs.get(handle.id)
        assert found is not None
        assert {"n": 1} == found.input

    run(body, runs={"write_every": 0.02, "stale_after": 1.0})


def _after(event: asyncio.Event, call: Any) -> Any:
    async def late(*args: Any, **said: Any) -> Any:
        await event.wait()
        return await call(*args, **said)

    return late


@pytest.mark.parametrize("end", ["retry", "die", "release", "complete"])
def test_the_run_ends_with_its_job_whatever_the_hot_plane_does(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The lease is given back, or lapses, when the hot plane answers; history is written."""

    async def body(storage: Storage) -> None:
        answers = asyncio.Event()
        broker = type(storage.hot.broker)
        for name in ("ack", "nack"):
            monkeypatch.setattr(broker, name, _after(answers, getattr(broker, name)))
        await storage.jobs.add("q", 1)
        [claim] = await storage.jobs.claim("q")
        jobs = storage.jobs
        ending = asyncio.ensure_future(
            {
                "retry": lambda: jobs.fail(claim, "odd"),
                "die": lambda: jobs.fail(claim, "odd", retry=False),
                "release": lambda: jobs.release(claim),
                "complete": lambda: jobs.complete(claim),
            }[end]()
        )

        async def is_there() -> bool:
            row = (await storage.durable.get("runs", [claim.run.id]))[0]
            return row is not None and row.value["status"] != "running"

        await until(is_there)
        assert not ending.done()
        answers.set()
        await ending

    run(body)


def test_a_run_whose_progress_had_no_answer_is_taken_away() -> None:
    """It may be in the overlay all the same, and nobody may see it there when it has ended."""
    faults = Faults()

    async def body(storage: Storage) -> None:
        faults.fail("hot.live.merge_many", when="after")
        handle = await storage.runs.start("r")
        handle.log("info", "at work")
        await until(lambda: storage.hot.live.get(handle.id))
        handle.finish(None)
        await storage.runs.flush()
        assert await storage.hot.live.active() == []

    run(body, runs={"write_every": 0.01}, wrap_hot=faults.wrap_hot)


def test_a_long_run_is_shown_though_others_end_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is always an end to be written, and it is in history as running all the same."""

    async def body(storage: Storage) -> None:
        long = await storage.runs.start("long")
        write = type(storage.durable).write

        async def and_another(plane: Any, writes: Any, **said: Any) -> Any:
            result = await write(plane, writes, **said)
            (await storage.runs.start("short")).finish(None)
            return result

        monkeypatch.setattr(type(storage.durable), "write", and_another)
        (await storage.runs.start("short")).finish(None)

        async def is_shown() -> bool:
            return (await storage.durable.get("runs", [long.id]))[0] is not None

        await until(is_shown)
        monkeypatch.undo()

    run(body, runs={"durable_after": 0.05})


def test_a_run_is_closed_though_its_row_appears_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever lost an attempt may be alive, and write its row just before it is closed."""

    async def body(storage: Storage) -> None:
        look = type(storage.hot.live).get
        running = {"id": "r", "name": "q", "status": "running", "startedAt": 1}

        async def look_late(live: Any, run_id: str) -> Any:
            monkeypatch.undo()
            await storage.durable.write([Insert("runs", run_id, running)])
            return await look(live, run_id)

        monkeypatch.setattr(type(storage.hot.live), "get", look_late)
        session = storage._session
        now = await session.durable_time.now()

        assert await close_run(session, "r", None, "failed", "lease lapsed", now)
        [run] = await storage.runs.query(name="q")
        assert ("failed", "lease lapsed") == (run.status, run.error)

    run(body)


@pytest.mark.parametrize("ends", ["while-merged", "after"])
def test_what_waits_is_counted_to_zero(monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    """Whether a run ends, is cut, or is given up while its words are on the way."""

    async def body(storage: Storage) -> None:
        recorder = storage._session.recorder
        merge = storage.hot.live.merge_many
        begun = asyncio.Event()

        async def slow(changes: Any) -> Any:
            begun.set()
            await asyncio.sleep(0.03)
            return await merge(changes)

        monkeypatch.setattr(type(storage.hot.live), "merge_many", lambda _, changes: slow(changes))
        for _ in range(5):
            handles = [await storage.runs.start("r") for _ in range(4)]
            for handle in handles:
                for n in range(8):  # more than are kept
                    handle.log("info", "line", n=n)
            begun.clear()
            async with asyncio.timeout(10):
                await begun.wait()
            if ends == "after":
                await asyncio.sleep(0.05)
            handles[0].finish(None)
            handles[1].fail("x")
            for handle in handles[2:]:
                handle.log("info", "once more")
                handle.finish(None)
            await storage.runs.flush()
        await until(lambda: _none_waits(storage))
        assert recorder.overlay.unsent == 0

    run(body, runs={"write_every": 0.05, "max_logs": 5})


async def _none_waits(storage: Storage) -> bool:
    recorder = storage._session.recorder
    return not recorder.handles() and not recorder.overlay._dirty


def test_history_gives_way_to_the_next_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has ended many jobs claims the next before history of the first is written."""

    async def body(storage: Storage) -> None:
        steps: list[str] = []
        write, claim = type(storage.durable).write, type(storage.hot.broker).claim

        async def noted(plane: Any, writes: Any, **said: Any) -> Any:
            if any(one.namespace == "runs" for one in writes):
                steps.append("history")
            return await write(plane, writes, **said)

        async def claimed(broker: Any, *args: Any, **said: Any) -> Any:
            await asyncio.sleep(0.001)
            found = await claim(broker, *args, **said)
            steps.append("claim")
            return found

        monkeypatch.setattr(type(storage.durable), "write", noted)
        monkeypatch.setattr(type(storage.hot.broker), "claim", claimed)
        # However slow the machine is.
        monkeypatch.setattr("oqron_core.protocol.recorder._GIVE_WAY", 60.0)
        await storage.jobs.add_many("q", [*range(180)])
        while claims := await storage.jobs.claim("q", limit=60):
            await storage.jobs.complete_many([(claim, None) for claim in claims])
        await storage.runs.flush()
        assert steps == ["claim", "claim", "history"] + ["claim", "history"] * 2
        assert 180 == await storage.durable.count(Query(namespace="runs"))

    run(body)


def test_history_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where somebody always claims, or one claim is never answered."""

    async def body(storage: Storage) -> None:
        claim = type(storage.hot.broker).claim
        stuck = asyncio.Event()

        async def never(broker: Any, *args: Any, **said: Any) -> Any:
            await stuck.wait()
            return await claim(broker, *args, **said)

        monkeypatch.setattr(type(storage.hot.broker), "claim", never)
        claiming = asyncio.ensure_future(storage.jobs.claim("q"))
        await asyncio.sleep(0.01)
        handle = await storage.runs.start("r")
        handle.finish(None)

        async def is_there() -> bool:
            return (await storage.durable.get("runs", [handle.id]))[0] is not None

        await until(is_there)
        stuck.set()
        assert await claiming == []

    run(body)


@pytest.mark.parametrize("refused", [True, False])
def test_an_end_that_is_being_written_is_told_to_nobody(
    monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """It may be refused: until it is there the run is running, in history and live."""

    async def body(storage: Storage) -> None:
        recorder = storage._session.recorder
        write = type(storage.durable).write
        await storage.jobs.add("q", 1)
        [claim] = await storage.jobs.claim("q")
        claim.run.log("info", "at work")
        seen: list[Any] = []

        async def meanwhile(plane: Any, writes: Any, **said: Any) -> Any:
            if said.get("atomic") and not seen:
                # The writers come by, and find that it has run for long enough.
                await recorder.overlay.send()
                await recorder._write_running()
                row = (await plane.get("runs", [claim.run.id]))[0]
                seen.append((row, await storage.hot.live.get(claim.run.id)))
                if refused:
                    job = Patch("queue_job:q", claim.id, set={"leaseToken": 1})
                    await write(plane, [job])
            return await write(plane, writes, **said)

        monkeypatch.setattr(type(storage.durable), "write", meanwhile)
        if refused:
            with pytest.raises(LeaseLostError):
                await storage.jobs.complete(claim, "late")
        else:
            await storage.jobs.complete(claim, "in time")
        await storage.runs.flush()
        assert seen == [(None, None)]
        run = await storage.runs.get(claim.run.id)
        assert run is not None
        if refused:
            assert (run.status, run.output) == ("failed", None)
        else:
            assert (run.status, run.output) == ("completed", "in time")
        assert [entry["msg"] for entry in run.logs] == ["at work"]
        assert await storage.hot.live.active() == []

    run(body, runs={"durable_after": 0.0001})
