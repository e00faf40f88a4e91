"""The contract of a mode under attack: odd rows, lost answers, callers that vanish."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import time

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, Literal

import pytest

from oqron_core.exceptions import (
    CapabilityError,
    ClosedError,
    InvalidValueError,
    LeaseLostError,
    UnavailableError,
)
from oqron_core.models import Job, JobSpec, Run
from oqron_core.planes import Delete, Entry, Patch, Put, Scope
from oqron_core.protocol.claims import Claim
from oqron_core.protocol.run_handle import RunHandle
from oqron_core.services.maintenance import LEADER
from oqron_core.storage import Storage
from oqron_core.testing.contracts.base import fresh_scope, gather
from oqron_core.testing.contracts.mode import LAPSE, ModeBase
from oqron_core.testing.faults import Faults, When


__all__ = ["AdversityBase", "AdversityContract"]

_STEP: Final = 0.02
_STEPS: Final = 750
_ADDERS_OWN: Final = 2_000
"""For so many milliseconds maintenance leaves a job to whoever adds it."""

_ODD_ROWS: Final[dict[str, dict[str, Any]]] = {
    "empty": {},
    "status only": {"status": "waiting"},
    "status is a number": {"status": 5, "attemptMade": 0, "maxAttempts": 3},
    "status is a list": {"status": ["waiting"], "attemptMade": 0, "maxAttempts": 3},
    "id is another's": {
        "id": "good", "queueName": "elsewhere", "status": "waiting", "startedAt": None,
        "attemptMade": 0, "maxAttempts": 3,
    },
    "waiting without attempts": {"id": "odd", "status": "waiting", "startedAt": None},
    "active without attempts": {"id": "odd", "status": "active", "queueName": "q"},
    "attempts are text": {"status": "waiting", "attemptMade": "1", "maxAttempts": 3},
    "attempts are truth": {"status": "waiting", "attemptMade": True, "maxAttempts": True},
    "priority is text": {
        "status": "waiting", "startedAt": None, "priority": "high",
        "attemptMade": 0, "maxAttempts": 3,
    },
    "priority is huge": {
        "status": "waiting", "startedAt": None, "priority": 2**40,
        "attemptMade": 0, "maxAttempts": 3,
    },
    "runAt is text": {
        "status": "delayed", "startedAt": None, "priority": 1, "runAt": "soon",
        "attemptMade": 0, "maxAttempts": 3,
    },
    "runAt is beyond time": {
        "status": "delayed", "startedAt": None, "priority": 1, "runAt": 1.5e300,
        "attemptMade": 0, "maxAttempts": 3,
    },
    "runAt is the largest integer": {
        "status": "delayed", "startedAt": None, "priority": 1, "runAt": 2**63 - 1,
        "attemptMade": 0, "maxAttempts": 3,
    },
    "runAt is negative": {
        "status": "delayed", "startedAt": None, "priority": 1, "runAt": -5,
        "attemptMade": 0, "maxAttempts": 3,
    },
    "maxAttempts is null": {
        "status": "active", "startedAt": 1, "priority": 0, "attemptMade": 1,
        "maxAttempts": None, "leaseToken": 1, "workerId": 5, "leaseMs": "x",
    },
    "lease is negative": {
        "status": "active", "startedAt": 1, "priority": 0, "attemptMade": 1,
        "maxAttempts": 3, "leaseToken": -5, "workerId": "w", "leaseMs": -1,
    },
    "lease is huge": {
        "status": "active", "startedAt": 1, "priority": 0, "attemptMade": 1,
        "maxAttempts": 3, "leaseToken": 2**63 - 1, "workerId": "w", "leaseMs": 2**62,
    },
    "lease never ends": {
        "status": "active", "startedAt": 1, "processedOn": 1, "priority": 0,
        "attemptMade": 1, "maxAttempts": 3, "leaseToken": 7, "workerId": "w",
        "leaseMs": 2**62,
    },
    "createdAt is text": {
        "status": "waiting", "startedAt": None, "createdAt": "once",
        "attemptMade": 0, "maxAttempts": 3,
    },
    "everything is a list": {
        name: []
        for name in ("id", "queueName", "opts", "data", "priority", "runAt", "leaseToken")
    } | {"status": "waiting", "attemptMade": 0, "maxAttempts": 3},
}  # fmt: skip
"""Jobs as somebody else may have written them: the tables are open to everybody."""


class _Unspeakable:
    """Has no text: asking for it is an error."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class _Unhashable(str):
    __slots__ = ()

    def __hash__(self) -> int:
        raise RuntimeError("no hash")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")


class _Incomparable(int):
    def __lt__(self, other: object) -> bool:
        raise RuntimeError("no order")

    __gt__ = __lt__


def _circle() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


_REPORTS: Final[dict[str, Callable[[Any], object]]] = {
    "message without text": lambda run: run.log("info", _Unspeakable()),
    "level is a list": lambda run: run.log([], "x"),
    "level is None": lambda run: run.log(None, "x"),
    "level without text": lambda run: run.log(_Unspeakable(), "x"),
    "level without hash": lambda run: run.log(_Unhashable("info"), "x"),
    "level is not portable": lambda run: run.log("\ud800\0", "x"),
    "field without text": lambda run: run.log("info", "x", a=_Unspeakable()),
    "field is a circle": lambda run: run.log("info", "x", a=_circle()),
    "field is no number": lambda run: run.log("info", "x", a=math.nan),
    "field is huge": lambda run: run.log("info", "x", a="y" * 1_000_000),
    "field is deep": lambda run: run.log("info", "x", a=_deep(500)),
    "field is named like the entry": lambda run: run.log("info", "x", level=1, msg=2),
    "field is not portable": lambda run: run.log("info", "x", **{"\ud800": 1, "\0": 2}),
    "message is bytes": lambda run: run.log("info", b"\xff"),
    "progress is huge": lambda run: run.progress(10**400),
    "progress is None": lambda run: run.progress(None),
    "progress is text": lambda run: run.progress("half"),
    "progress is endless": lambda run: run.progress(math.inf),
    "progress is incomparable": lambda run: run.progress(_Incomparable(5)),
    "label without text": lambda run: run.progress(5, _Unspeakable()),
}
_ENDS: Final[dict[str, tuple[str, Callable[[Any], object]]]] = {
    "error without text": ("failed", lambda run: run.fail(_Unspeakable())),
    "exception without text": ("failed", lambda run: run.fail(ValueError(_Unspeakable()))),
    "reason without text": ("failed", lambda run: run.fail("x", reason=_Unspeakable())),
    "cancelled without text": ("cancelled", lambda run: run.cancel(_Unspeakable())),
    "output is a circle": ("completed", lambda run: run.finish(_circle())),
    "output without text": ("completed", lambda run: run.finish({"a": _Unspeakable()})),
    "output is huge": ("completed", lambda run: run.finish("x" * 3_000_000)),
    "output is deep": ("completed", lambda run: run.finish(_deep(5000))),
    "output is beyond integers": ("completed", lambda run: run.finish({2**70: 2**70})),
}


def _deep(levels: int) -> Any:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def _raised(error: Exception) -> Exception:
    """Give the error with a traceback."""
    try:
        raise error  # noqa: TRY301 - for the traceback alone
    except Exception as caught:  # noqa: BLE001 - it is what was given
        return caught


_LINES: Final[dict[str, Callable[[RunHandle], None]]] = {
    "long": lambda run: run.log("info", "x" * 9_000),
    "control characters": lambda run: run.log("info", "\x01" * 9_000),
    "wide characters": lambda run: run.log("info", "\U0001f600" * 9_000),
    "fields": lambda run: run.log("info", "x", **{f"f{n}": "y" * 9_000 for n in range(10)}),
    "names of fields": lambda run: run.log("info", "x", **{f"{n:090}": n for n in range(99)}),
    "labels": lambda run: run.progress(1, "\x01" * 5_000),
}

How = Literal["complete", "retry", "die", "release"]
_HOWS: Final[tuple[How, ...]] = ("complete", "retry", "die", "release")
_AFTER: Final[dict[How, tuple[str, str]]] = {
    "complete": ("completed", "completed"),
    "retry": ("delayed", "failed"),
    "die": ("dead", "failed"),
    "release": ("waiting", "cancelled"),
}
"""For each end, what the job and its run are then."""


class AdversityBase(ModeBase):
    """What the contracts of a mode under attack share."""

    async def prepare(self, stack: AsyncExitStack) -> None:
        """Open the storage; history leaves running runs alone, so that calls can be counted."""
        self.scope: Scope = fresh_scope("adversity")
        self.faults: Faults = Faults()
        options = {"runs": {"durable_after": 600.0}}
        self.storage: Storage = await stack.enter_async_context(self.open(self.faults, **options))

    async def until(self, holds: Callable[[], Awaitable[bool]], *, pace: float = 5.0) -> None:
        """Wait until something holds; a manual clock goes *pace* times as fast meanwhile."""
        for _ in range(_STEPS):
            if await holds():
                return
            await asyncio.sleep(_STEP)
            if self.manual_clock:
                await self.elapse(_STEP * pace)
        raise AssertionError("it never came to hold")

    async def hold(self, queue: str = "q", **options: Any) -> Claim:
        """Claim one job, which must be there."""
        claims = await self.storage.jobs.claim(queue, **options)
        assert 1 == len(claims), "nothing could be claimed"
        return claims[0]

    async def lapse(self, seconds: float = LAPSE) -> None:
        """Let a lease of *seconds* lapse."""
        await self.elapse(seconds + 0.2)

    async def read(self, id: str, queue: str = "q") -> Job:  # noqa: A002
        """Read a job, which must be there."""
        job = await self.storage.jobs.get(queue, id)
        assert job is not None
        return job

    async def state(self, id: str, queue: str = "q") -> str:  # noqa: A002
        """Give the status of a job, ``dead`` for a dead letter; never both."""
        # In the order of a death, so that one in between is not seen as both.
        letter = await self.storage.dead_letters.get(queue, id)
        job = await self.storage.jobs.get(queue, id)
        assert job is None or letter is None
        if job is not None:
            return job.status
        return "gone" if letter is None else "dead"

    async def run_of(self, run_id: str, storage: Storage | None = None) -> Run:
        """Read a run, which must be there."""
        run = await (storage or self.storage).runs.get(run_id)
        assert run is not None
        return run

    async def status_of(self, run_id: str, storage: Storage | None = None) -> str | None:
        """Read how far a run is; None as long as it is in no plane."""
        run = await (storage or self.storage).runs.get(run_id)
        return None if run is None else run.status

    async def runs_of(self, id: str) -> list[str]:  # noqa: A002
        """Give the statuses of a job's runs, in the order of their starts."""
        page = await self.storage.runs.query(job_id=id)
        return [run.status for run in sorted(page.items, key=lambda run: run.id)]

    async def nothing_claimable(self, queue: str = "q") -> bool:
        """Say whether a claim of everything gives nothing."""
        return not await self.storage.jobs.claim(queue, limit=100)

    async def put_odd(self, name: str, queue: str = "q") -> None:
        """Write a row past the storage."""
        await self.storage.durable.write([Put(f"queue_job:{queue}", "odd", _ODD_ROWS[name])])

    async def end(self, how: How, claim: Claim, storage: Storage | None = None) -> None:
        """End a claim one way or another."""
        jobs = (storage or self.storage).jobs
        if how == "complete":
            await jobs.complete(claim, "out")
        elif how == "retry":
            await jobs.fail(claim, "x", retry_in=0.0)
        elif how == "die":
            await jobs.fail(claim, "x", retry=False)
        else:
            await jobs.release(claim)

    def open_handles(self, storage: Storage | None = None) -> int:
        """Count the runs that the writer of history has in hand."""
        return len((storage or self.storage)._session.recorder.handles())

    async def check_ended(self, how: How, run_id: str) -> None:
        """An end is whole: the job, its run, the broker, the handle."""
        job, run = _AFTER[how]

        async def whole() -> bool:
            if await self.state("a") != job or await self.status_of(run_id) != run:
                return False
            counts = await self.storage.hot.broker.counts("q")
            return counts.leased == 0 and self.open_handles() == 0

        await self.until(whole)
        counts = await self.storage.hot.broker.counts("q")
        there = 1 if how in {"retry", "release"} else 0
        assert (there, 0) == (counts.ready + counts.delayed, counts.leased)
        assert [run] == await self.runs_of("a")

    async def is_led(self) -> bool:
        """Say whether somebody leads maintenance."""
        return await self.storage.hot.locks.holder(LEADER) is not None


class AdversityContract(AdversityBase):
    """What broke once, each kind of it, in any mode."""

    # --- what a handler does with what it gets --------------------------------------------

    @pytest.mark.parametrize("portable", [True, False])
    async def test_a_handler_that_changes_its_payload_changes_no_record(
        self, portable: object
    ) -> None:
        """Retry, dead letter, requeue and run hold what was added."""
        data = {"to": "a@x.com", "items": [1, 2]}
        await self.storage.jobs.add("q", data, id="a", max_attempts=2, tags=["t"])
        for attempt in (1, 2):
            claim = await self.hold()
            assert {"to": "a@x.com", "items": [1, 2]} == claim.data
            claim.data["items"].pop()
            claim.data["more"] = 1 if portable else object()
            del claim.data["to"]
            claim.job.tags.append("u" if portable else object())  # type: ignore[arg-type]
            claim.job.opts.clear()
            job = await self.storage.jobs.fail(claim, "x", retry_in=0.0)
            assert (attempt, data, ["t"]) == (job.attempt_made, job.data, job.tags)
            assert job.opts
        letter = await self.storage.dead_letters.get("q", "a")
        assert letter is not None
        assert (data, ["t"]) == (letter.data, letter.tags)
        requeued = await self.storage.dead_letters.requeue("q", "a")
        assert requeued is not None
        assert data == requeued.data == (await self.read("a")).data
        page = await self.storage.runs.query(job_id="a")
        assert [data, data] == [run.input for run in page]

    # --- attempts that are alive -----------------------------------------------------------

    async def test_reap_buries_no_attempt_that_was_claimed_meanwhile(self) -> None:
        """Between finding a lapse and burying it, another worker may have begun."""
        await self.storage.jobs.add("q", 1, id="a", max_attempts=2)
        await self.hold(lease_for=LAPSE)
        await self.lapse()
        async with self.open() as worker:
            pause = self.faults.pause("durable.get")
            reaping = asyncio.create_task(self.storage.maintenance.reap())
            await pause.reached.wait()
            [claim] = await worker.jobs.claim("q", lease_for=60.0)
            pause.release()
            await reaping

            assert (2, "active") == (claim.attempt, await self.state("a"))
            assert [True] == await worker.jobs.renew([claim], lease_for=60.0)
            await worker.jobs.complete(claim, "done")
        assert "completed" == await self.state("a")

    @pytest.mark.parametrize("polled", [True, False])
    async def test_a_paused_queue_hides_no_lapsed_last_attempt(self, polled: object) -> None:
        """It becomes a dead letter, also where workers keep asking for jobs."""
        await self.storage.jobs.add("q", 1, id="a", max_attempts=1)
        await self.hold(lease_for=LAPSE)
        await self.storage.jobs.pause("q")
        await self.lapse()
        if polled:
            assert await self.nothing_claimable()
        for _ in range(11):
            await self.storage.maintenance.run_once()

        assert "dead" == await self.state("a")

    @pytest.mark.parametrize("attempts", [1, 3])
    async def test_a_lost_hot_plane_ends_no_lease(self, attempts: int) -> None:
        """An id that comes back as ready is not taken over, nor buried, while it is held."""
        async with self.open() as worker:
            pause = self.faults.pause("hot.broker.publish")
            adding = asyncio.create_task(
                self.storage.jobs.add("q", 1, id="a", max_attempts=attempts)
            )
            await pause.reached.wait()
            await worker.maintenance.reconcile()
            [claim] = await worker.jobs.claim("q", lease_for=60.0)
            await self.lose_hot(worker.hot)
            pause.release()
            await adding
            await worker.maintenance.run_once()

            assert await self.nothing_claimable()
            assert "active" == await self.state("a")
            await worker.jobs.complete(claim, "done")
        assert "completed" == await self.state("a")

    async def test_what_the_broker_forgot_is_taken_over_after_the_lapse(self) -> None:
        """Not before, by the durable plane's clock; and not never."""
        await self.storage.jobs.add("q", 1, id="a")
        old = await self.hold(lease_for=1.0)
        began = (await self.read("a")).processed_on
        assert began is not None
        await self.lose_hot(self.storage.hot)
        # As by an adder whose call comes very late: the broker takes it for ready.
        await self.storage.hot.broker.publish("q", [Entry("a")])
        taken: list[Claim] = []

        async def is_taken() -> bool:
            taken.extend(await self.storage.jobs.claim("q"))
            return bool(taken)

        await self.until(is_taken)
        assert await self.storage.durable.now() >= began + 900
        assert 2 == taken[0].attempt
        assert taken[0].lease.token > old.lease.token

    async def test_a_rebuild_keeps_the_order_of_adding(self) -> None:
        """Also where ids are one's own, and sort otherwise."""
        for n in range(1, 13):
            await self.storage.jobs.add("q", n, id=f"job-{n}")
            await self.elapse(0.01)
        await self.lose_hot(self.storage.hot)
        await self.storage.maintenance.rebuild_hot()
        claims = await self.storage.jobs.claim("q", limit=20)

        assert [*range(1, 13)] == [claim.data for claim in claims]

    # --- claims that go wrong half-way ----------------------------------------------------

    @pytest.mark.parametrize("other", ["retried", "spent"])
    async def test_a_claim_that_fails_half_way_gives_back_what_was_begun(self, other: str) -> None:
        """Nobody holds it, so it costs no attempt and waits for no lapse."""
        jobs = self.storage.jobs
        await jobs.add("q", 1, id="z", priority=1, max_attempts=1 if other == "spent" else 3)
        claim = await self.hold(lease_for=LAPSE)
        if other == "spent":
            await self.lapse()
        else:
            await jobs.fail(claim, "x", retry_in=0.0)
        await jobs.add("q", 2, id="a", max_attempts=1)
        await self.storage.runs.flush()
        # The marks are written, and then the plane is away for what the other needs.
        self.faults.fail("durable.write", nth=2, times=4)
        with pytest.raises(UnavailableError):
            await jobs.claim("q", limit=10, lease_for=60.0)
        self.faults.heal()

        async def is_free() -> bool:
            job = await self.read("a")
            counts = await self.storage.hot.broker.counts("q")
            return (job.status, job.attempt_made) == ("waiting", 0) and counts.ready > 0

        await self.until(is_free)
        again = await self.hold()
        assert ("a", 1) == (again.id, again.attempt)
        await jobs.complete(again)
        assert ["cancelled", "completed"] == await self.runs_of("a")

    @pytest.mark.parametrize("part", [1, 2, 3])
    async def test_a_large_claim_of_which_a_part_fails_gives_back_the_others(
        self, part: int
    ) -> None:
        """Parts are confirmed side by side; what was begun costs no attempt, and no lapse."""
        jobs = self.storage.jobs
        ids = [f"{n:03}" for n in range(60)]
        await jobs.add_many("q", [JobSpec(n, id=id_, max_attempts=1) for n, id_ in enumerate(ids)])
        # The marks of one part are refused as often as they are tried.
        self.faults.fail("durable.write", nth=part, times=1)
        self.faults.fail("durable.write", nth=4, times=3)
        with pytest.raises(UnavailableError):
            await jobs.claim("q", limit=60, lease_for=60.0)
        self.faults.heal()

        claims: list[Claim] = []

        async def are_taken() -> bool:
            claims.extend(await jobs.claim("q", limit=60, lease_for=60.0))
            return len(claims) == len(ids)

        await self.until(are_taken)
        assert ids == sorted(claim.id for claim in claims)
        assert {1} == {claim.attempt for claim in claims}
        assert [True] * 60 == await jobs.complete_many([(claim, None) for claim in claims])

    async def test_a_large_claim_is_in_order(self) -> None:
        """As the broker handed them out, with the one that is not simply waiting among them."""
        jobs = self.storage.jobs
        ids = [f"{n:03}" for n in range(70)]
        await jobs.add_many("q", [JobSpec(n, id=id_) for n, id_ in enumerate(ids)])
        await self.storage.durable.write(
            [Delete("queue_job:q", "010"), Patch("queue_job:q", "050", set={"status": "cancelled"})]
        )
        claims = await jobs.claim("q", limit=70)
        assert [id_ for id_ in ids if id_ not in {"010", "050"}] == [claim.id for claim in claims]
        assert [int(claim.id) for claim in claims] == [claim.data for claim in claims]

    @pytest.mark.parametrize("times", [1, 3])
    @pytest.mark.parametrize("state", ["fresh", "retried"])
    async def test_a_lost_answer_of_the_claim_mark_burns_no_attempt(
        self, state: str, times: int
    ) -> None:
        """The mark is known again by its run, and the job is handed out."""
        jobs = self.storage.jobs
        await jobs.add("q", 1, id="a", max_attempts=1 if state == "fresh" else 2)
        if state == "retried":
            await jobs.fail(await self.hold(), "x", retry_in=0.0)
            await self.storage.runs.flush()
        expected = 1 if state == "fresh" else 2
        nth = 1 if state == "fresh" else 2
        self.faults.fail("durable.write", nth=nth, times=times, when="after")
        claim = await self.hold()
        self.faults.heal()

        assert (expected, expected) == (claim.attempt, (await self.read("a")).attempt_made)
        await jobs.complete(claim, "out")
        assert "completed" == await self.state("a")
        assert expected == len(await self.runs_of("a"))

    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("call", ["hot.broker.claim", "durable.write"])
    async def test_a_claim_whose_caller_is_gone_leaves_no_lease(
        self, call: str, when: When
    ) -> None:
        """However long it was to be; the job is free at once, with all its attempts."""
        await self.storage.jobs.add("q", 1, id="a", max_attempts=1)
        pause = self.faults.pause(call, when=when)
        task = asyncio.create_task(self.storage.jobs.claim("q", lease_for=3600.0))
        await pause.reached.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        pause.release()
        taken: list[Claim] = []

        async def is_taken() -> bool:
            taken.extend(await self.storage.jobs.claim("q", lease_for=60.0))
            return bool(taken)

        began = await self.storage.durable.now()
        await self.until(is_taken)
        assert await self.storage.durable.now() < began + 3_600_000
        assert 1 == taken[0].attempt
        await self.storage.jobs.complete(taken[0])
        assert "completed" == await self.state("a")

    async def test_a_dropped_claim_shows_what_history_says(self) -> None:
        """Where another storage took over, nothing of it is kept nor shown as running."""
        jobs = self.storage.jobs
        await jobs.add_many("q", [JobSpec(n, id=f"{n}") for n in range(5)])
        async with self.open(runs={"stale_after": 1.0}) as dropper:
            claims = await dropper.jobs.claim("q", limit=5, lease_for=LAPSE)
            ids = [claim.run.id for claim in claims]
            del claims
            gc.collect()
            await self.settle()
            await self.lapse()
            for claim in await jobs.claim("q", limit=5):
                await jobs.complete(claim)
            await self.storage.runs.flush()

            async def is_seen() -> bool:
                seen = [await self.status_of(run_id, dropper) for run_id in ids]
                return seen == ["failed"] * 5 and self.open_handles(dropper) == 0

            await self.until(is_seen)
            await dropper.maintenance.run_once()
            live = await self.storage.hot.live.active()
            assert not set(ids) & set(live)
            assert not set(ids) & {run.id for run in await dropper.runs.active()}
            for run_id in ids:
                run = await self.run_of(run_id)
                assert run == await self.run_of(run_id, dropper)
                # Whoever dropped it and whoever took over may each be the first to see.
                assert run.error is not None
                assert run.error.startswith(("lease lapsed", "abandoned"))

    @pytest.mark.parametrize(
        ("end", "job_ends", "run_ends"),
        [
            ("complete", "completed", "completed"),
            ("complete_many", "completed", "completed"),
            ("retry", "delayed", "failed"),
            ("die", "dead", "failed"),
            ("release", "waiting", "cancelled"),
            ("drop", "active", "failed"),
        ],
    )
    async def test_a_dropped_claim_whose_end_had_no_answer_ends_as_its_job(
        self, end: str, job_ends: str, run_ends: str
    ) -> None:
        """Its end was written, the worker heard nothing and gave up: history knows how it went."""
        ids = [f"{n}" for n in range(20)]
        await self.storage.jobs.add_many("q", [JobSpec(1, id=one) for one in ids])
        faults = Faults()
        async with self.open(faults, runs={"stale_after": 1.0}) as dropper:
            claims = await dropper.jobs.claim("q", limit=len(ids), lease_for=3600.0)
            runs = {claim.id: claim.run.id for claim in claims}
            faults.fail("durable.write", when="after", times=None)
            faults.down("durable.get")
            faults.down("hot.broker.renew")
            steps: dict[str, Callable[[Claim], Awaitable[Any]]] = {
                "complete": lambda claim: dropper.jobs.complete(claim, "out"),
                "retry": lambda claim: dropper.jobs.fail(claim, "odd", retry_in=3600.0),
                "die": lambda claim: dropper.jobs.fail(claim, "odd", retry=False),
                "release": dropper.jobs.release,
            }
            if end == "complete_many":
                with contextlib.suppress(UnavailableError):
                    await dropper.jobs.complete_many([(claim, "out") for claim in claims])
            elif end != "drop":
                done = [steps[end](claim) for claim in claims]
                assert all(
                    isinstance(error, UnavailableError)
                    for error in await asyncio.gather(*done, return_exceptions=True)
                )
                del done
            faults.heal()
            del claims
            gc.collect()

            async def is_seen() -> bool:
                gc.collect()
                return self.open_handles(dropper) == 0

            await self.until(is_seen)
            for job_id, run_id in runs.items():
                assert job_ends == await self.state(job_id)
                run = await self.run_of(run_id)
                assert run_ends == run.status
                assert ("out" if run_ends == "completed" else None) == run.output
                assert (end == "drop") == str(run.error).startswith("abandoned")

    @pytest.mark.parametrize("first", ["answered", "unanswered"])
    @pytest.mark.parametrize(
        ("end", "job_ends", "run_ends"),
        [
            ("complete", "completed", "completed"),
            ("complete_many", "completed", "completed"),
            ("retry", "delayed", "failed"),
            ("die", None, "failed"),
            ("release", "waiting", "cancelled"),
            ("delay", "delayed", "cancelled"),
        ],
    )
    async def test_an_end_may_be_asked_for_again(
        self, end: str, job_ends: str | None, run_ends: str, first: str
    ) -> None:
        """By who had no answer, or asks twice: it is the same end, and no lost lease."""
        await self.storage.jobs.add("q", 1, id="a")
        faults = Faults()
        async with self.open(faults) as worker:
            [claim] = await worker.jobs.claim("q", lease_for=60.0)
            steps: dict[str, Callable[[], Awaitable[Any]]] = {
                "complete": lambda: worker.jobs.complete(claim, "out"),
                "complete_many": lambda: worker.jobs.complete_many([(claim, "out")]),
                "retry": lambda: worker.jobs.fail(claim, "odd", retry_in=3600.0),
                "die": lambda: worker.jobs.fail(claim, "odd", retry=False),
                "release": lambda: worker.jobs.release(claim),
                "delay": lambda: worker.jobs.release(claim, delay=3600.0),
            }
            if first == "answered":
                await steps[end]()
            else:
                faults.fail("durable.write", when="after", times=None)
                faults.down("durable.get")
                faults.down("hot.broker.renew")
                with pytest.raises(UnavailableError):
                    await steps[end]()
                faults.heal()
            job = await self.storage.jobs.get("q", "a")
            letter = await self.storage.dead_letters.get("q", "a")
            # By the clock of the planes it is another instant now.
            await self.elapse(0.01)

            again = await steps[end]()

            if end == "complete_many":
                assert [True] == again
            elif end in {"retry", "die"}:
                known = job or letter
                assert known is not None
                assert (known.id, known.status, known.run_at, known.dead_at) == (
                    *(again.id, again.status, again.run_at, again.dead_at),
                )
            assert job == await self.storage.jobs.get("q", "a")
            assert letter == await self.storage.dead_letters.get("q", "a")
            assert job_ends == (None if job is None else str(job.status))
            assert not claim.lost
            await worker.runs.flush()
            assert run_ends == (await self.run_of(claim.run.id)).status
            counts = await self.storage.hot.broker.counts("q")
            assert 0 == counts.leased

    @pytest.mark.parametrize("call", ["complete", "complete_many"])
    @pytest.mark.parametrize("other", ["completed", "dead", "cancelled"])
    async def test_a_late_end_is_refused_though_the_job_is_gone(
        self, other: str, call: str
    ) -> None:
        """Where ends delete: that it is not there does not show that it was ended here."""
        keep = {"completed_for": 0, "cancelled_for": 0}
        faults = Faults()
        async with self.open(faults, retention=keep) as late, self.open(retention=keep) as own:
            await own.jobs.add("q", 1, id="a")
            [claim] = await late.jobs.claim("q", lease_for=LAPSE)
            if other == "cancelled":
                assert await own.jobs.cancel("q", "a")
            else:
                await self.lapse()
                taken: list[Claim] = []

                async def is_taken() -> bool:
                    taken.extend(await own.jobs.claim("q", lease_for=60.0))
                    return bool(taken)

                await self.until(is_taken)
                if other == "completed":
                    await own.jobs.complete(taken[0], "other")
                else:
                    await own.jobs.fail(taken[0], "other", retry=False)
            faults.fail("durable.write", times=2)

            if call == "complete_many":
                assert [False] == await late.jobs.complete_many([(claim, "late")])
            else:
                with pytest.raises(LeaseLostError):
                    await late.jobs.complete(claim, "late")
            assert claim.lost
            await late.runs.flush()
            run = await self.run_of(claim.run.id)
            assert run.status in {"failed", "cancelled"}
            assert run.output is None

    async def test_many_ends_that_delete_may_be_asked_for_again(self) -> None:
        """Of a batch a part may have had no answer: all of it was ended, and says so."""
        faults = Faults()
        async with self.open(faults, retention={"completed_for": 0}) as storage:
            await storage.jobs.add_many("q", [*range(60)])
            claims = await storage.jobs.claim("q", limit=60, lease_for=60.0)
            pairs = [(claim, None) for claim in claims]
            faults.fail("durable.write", nth=2, when="after", times=None)
            with pytest.raises(UnavailableError):
                await storage.jobs.complete_many(pairs)
            faults.heal()
            assert [True] * 60 == await storage.jobs.complete_many(pairs)
            assert [True] * 60 == await storage.jobs.complete_many(pairs)
            await storage.jobs.complete(claims[0])
            assert not any(claim.lost for claim in claims)
            assert {0} == {*(await storage.jobs.counts("q")).values()}

    @pytest.mark.parametrize("end", ["retry", "release"])
    async def test_an_end_that_was_done_stays_as_it_was(self, end: str) -> None:
        """However often it is asked for, and at whatever other time: it has the first one's."""
        await self.storage.jobs.add("q", 1, id="a")
        faults = Faults()
        async with self.open(faults) as worker:
            [claim] = await worker.jobs.claim("q", lease_for=60.0)
            jobs = worker.jobs
            steps: dict[str, Callable[[float], Awaitable[Any]]] = {
                "retry": lambda delay: jobs.fail(claim, "odd", retry_in=delay),
                "release": lambda delay: jobs.release(claim, delay=delay),
            }
            faults.fail("durable.write", when="after", times=None)
            faults.down("durable.get")
            faults.down("hot.broker.renew")
            for _ in range(7):
                with pytest.raises(UnavailableError):
                    await steps[end](1.0)
            faults.heal()
            before = await self.storage.jobs.get("q", "a")
            await steps[end](3600.0)
            assert before == await self.storage.jobs.get("q", "a")
            assert "delayed" == await self.state("a")
            await self.elapse(1.1)

            async def is_due() -> bool:
                return bool(await self.storage.jobs.claim("q"))

            await self.until(is_due)

    @pytest.mark.parametrize("first", ["retry", "release"])
    async def test_one_end_is_not_taken_for_another(self, first: str) -> None:
        """Not even in one millisecond, and for one time."""
        jobs = self.storage.jobs
        for number in range(10):
            await jobs.add("q", 1, id=f"{number}")
            [claim] = await jobs.claim("q", lease_for=60.0)
            ends: dict[str, Callable[[], Awaitable[Any]]] = {
                "retry": partial(jobs.fail, claim, "odd", retry_in=3600.0),
                "release": partial(jobs.release, claim, delay=3600.0),
            }
            await ends.pop(first)()
            [second] = ends.values()
            with pytest.raises(LeaseLostError):
                await second()
            job = await self.storage.jobs.get("q", claim.id)
            assert job is not None
            expected = (1, "odd") if first == "retry" else (0, None)
            assert expected == (job.attempt_made, job.error)

    async def test_a_dead_letter_is_that_of_who_held_the_lease(self) -> None:
        """Both end it in one moment; the other is told, and does not believe it was them."""
        for number in range(10):
            await self.storage.jobs.add("q", 1, id=f"{number}")
            async with self.open() as late:
                [stale] = await late.jobs.claim("q", lease_for=LAPSE)
                await self.lapse()
                taken: list[Claim] = []

                async def is_taken(taken: list[Claim] = taken) -> bool:
                    taken.extend(await self.storage.jobs.claim("q", lease_for=60.0))
                    return bool(taken)

                await self.until(is_taken)
                answers = await asyncio.gather(
                    late.jobs.fail(stale, "late", retry=False),
                    self.storage.jobs.fail(taken[0], "own", retry=False),
                    return_exceptions=True,
                )
                assert isinstance(answers[0], LeaseLostError)
            letter = await self.storage.dead_letters.get("q", f"{number}")
            assert letter is not None
            assert "own" == letter.error

    async def test_a_claim_that_is_answered_after_its_lease_is_not_handed_out(self) -> None:
        """Another has the job by then, and nothing is worked twice."""
        await self.storage.jobs.add("q", 1, id="a")
        async with self.open() as other:
            pause = self.faults.pause("durable.write", when="after")
            late = asyncio.create_task(self.storage.jobs.claim("q", lease_for=LAPSE))
            await pause.reached.wait()
            await self.lapse()
            # The lease is counted by the clock of this process, whatever the plane's is.
            await asyncio.sleep(LAPSE)
            taken: list[Claim] = []

            async def is_taken() -> bool:
                taken.extend(await other.jobs.claim("q", lease_for=60.0))
                return bool(taken)

            await self.until(is_taken)
            pause.release()
            assert [] == await late
            await self.settle()
            assert 2 == taken[0].attempt
            await other.jobs.complete(taken[0])
        assert "completed" == await self.state("a")

    async def test_a_repeated_cancel_tells_the_worker_that_the_first_could_not(self) -> None:
        """The first was done and had no answer; the second is not done with the record alone."""
        job = await self.storage.jobs.add("q", 1)
        faults = Faults()
        async with self.open() as worker, self.open(faults) as steering:
            [claim] = await worker.jobs.claim("q", lease_for=60.0)
            faults.fail("durable.write", when="after", times=None)
            with pytest.raises(UnavailableError):
                await steering.jobs.cancel("q", job.id)
            faults.heal()
            assert await steering.jobs.cancel("q", job.id)

            async def is_told() -> bool:
                return claim.cancelled

            await self.until(is_told)
            counts = await self.storage.hot.broker.counts("q")
            assert (0, 0) == (counts.ready, counts.leased)

            async def is_closed() -> bool:
                return await self.status_of(claim.run.id) == "cancelled"

            await self.until(is_closed)

    @pytest.mark.parametrize("end", ["release", "retry"])
    async def test_one_lost_answer_does_not_cost_the_whole_lease(self, end: str) -> None:
        """What is given back is asked for again, and may be claimed at once."""
        await self.storage.jobs.add("q", 1)
        claim = await self.hold(lease_for=3600.0)
        self.faults.fail("hot.broker.nack")
        if end == "release":
            await self.storage.jobs.release(claim)
        else:
            await self.storage.jobs.fail(claim, "odd", retry_in=0.0)

        assert 1 == len(await self.storage.jobs.claim("q"))

    @pytest.mark.parametrize("call", ["add", "complete", "claim", "fail"])
    async def test_closing_does_not_look_as_if_a_caller_were_cancelled(self, call: str) -> None:
        """Nobody cancelled it: it gets an error, which a task group does not swallow."""
        faults = Faults()
        async with self.open(faults, close_timeout=0.4) as other:
            await other.jobs.add_many("q", range(2))
            [claim] = await other.jobs.claim("q", lease_for=60.0)
            steps: dict[str, Callable[[], Awaitable[Any]]] = {
                "add": lambda: other.jobs.add("q", 1),
                "complete": lambda: other.jobs.complete(claim),
                "claim": lambda: other.jobs.claim("q", lease_for=60.0),
                "fail": lambda: other.jobs.fail(claim, "odd", retry_in=0.0),
            }
            pause = faults.pause("durable.write")
            task = asyncio.ensure_future(steps[call]())
            await pause.reached.wait()
        answer = (await asyncio.gather(task, return_exceptions=True))[0]
        pause.release()
        assert isinstance(answer, ClosedError)

    # --- odd rows -------------------------------------------------------------------------

    @pytest.mark.parametrize("name", _ODD_ROWS)
    async def test_an_odd_row_holds_up_no_claims(self, name: str) -> None:
        """Its neighbours are handed out at once, and once."""
        jobs = self.storage.jobs
        await self.put_odd(name)
        await jobs.add_many("q", [JobSpec(n, id=f"good{n}") for n in range(3)])
        await self.storage.maintenance.reconcile()
        done: list[tuple[str, int]] = []
        for _ in range(5):
            for claim in await jobs.claim("q", limit=10):
                await jobs.complete(claim, "out")
                if claim.id != "odd":
                    done.append((claim.id, claim.attempt))

        assert [("good0", 1), ("good1", 1), ("good2", 1)] == sorted(done)
        for n in range(3):
            assert "completed" == await self.state(f"good{n}")
            assert ["completed"] == await self.runs_of(f"good{n}")

    @pytest.mark.parametrize("name", _ODD_ROWS)
    async def test_an_odd_row_holds_up_no_repair(self, name: str) -> None:
        """Every step of maintenance does its work on the rows beside it, and ends."""
        maintenance = self.storage.maintenance
        await self.put_odd(name)
        self.faults.down("hot.broker.publish")
        await self.storage.jobs.add("q", 1, id="good")
        self.faults.heal()
        await maintenance.reconcile()
        assert [True] == list(await self.storage.hot.broker.contains("q", ["good"]))
        assert 0 == await maintenance.reconcile()
        await self.lose_hot(self.storage.hot)
        await maintenance.rebuild_hot()
        assert [True] == list(await self.storage.hot.broker.contains("q", ["good"]))
        if self.manual_clock:
            await self.elapse(3600.0)
        for _ in range(11):
            await maintenance.run_once()
        claims = await self.storage.jobs.claim("q", limit=5)

        assert "good" in {claim.id for claim in claims}

    @pytest.mark.parametrize("name", _ODD_ROWS)
    async def test_an_odd_row_stops_no_opening(self, name: str) -> None:
        """A hot plane that was lost is rebuilt around it."""
        await self.put_odd(name)
        await self.put_odd(name, queue="another")
        await self.storage.jobs.add("q", 1, id="good")
        await self.lose_hot(self.storage.hot)
        async with self.open() as other:
            claims = await other.jobs.claim("q", limit=5)
            assert "good" in {claim.id for claim in claims}

    @pytest.mark.parametrize("name", _ODD_ROWS)
    async def test_an_odd_row_can_be_seen_and_called_off(self, name: str) -> None:
        """Pages show it with the others, and each look and steer has its answer."""
        storage = self.storage
        jobs = storage.jobs
        await self.put_odd(name)
        await storage.durable.write([Put("queue_dlq:q", "odd", _ODD_ROWS[name])])
        await jobs.add("q", 1, id="good")
        await jobs.add("q", 1, id="dying", max_attempts=1, priority=-1)
        await jobs.fail(await self.hold(), "x")

        found = list(await jobs.query("q"))
        assert [("good", "q"), ("odd", "q")] == [(job.id, job.queue_name) for job in found]
        letters = await storage.dead_letters.query("q")
        assert ["dying", "odd"] == [job.id for job in letters]
        odd = await self.read("odd")
        assert ("odd", "q") == (odd.id, odd.queue_name)
        letter = await storage.dead_letters.get("q", "odd")
        assert letter is not None
        assert ("odd", "q") == (letter.id, letter.queue_name)
        await jobs.counts("q")
        await jobs.reschedule("q", "odd")
        assert await jobs.cancel("q", "odd") is True
        assert await jobs.cancel("q", "odd") is True
        await storage.maintenance.rebuild_hot()
        assert ["good"] == [claim.id for claim in await jobs.claim("q", limit=10)]
        assert await storage.dead_letters.delete("q", "odd") is True

    async def test_an_odd_dead_letter_can_be_made_a_job_again(self) -> None:
        """Also where it does not say when it died; and nobody calls that a conflict."""
        letter = {"status": "failed", "data": {"n": 1}, "attemptMade": 3, "maxAttempts": 3}
        await self.storage.durable.write([Put("queue_dlq:q", "a", letter)])
        job = await self.storage.dead_letters.requeue("q", "a")

        assert job is not None
        assert ("a", "waiting", {"n": 1}, 0) == (job.id, job.status, job.data, job.attempt_made)
        claim = await self.hold()
        assert ("a", 1) == (claim.id, claim.attempt)
        await self.storage.jobs.complete(claim)

    async def test_an_odd_row_that_has_spent_its_attempts_is_buried(self) -> None:
        """Also where it does not say who had it."""
        row = {"status": "active", "data": 1, "attemptMade": 3, "maxAttempts": 3}
        await self.storage.durable.write([Put("queue_job:q", "a", row)])
        await self.storage.maintenance.reconcile()
        assert await self.nothing_claimable()

        assert "dead" == await self.state("a")
        assert [] == list(await self.storage.hot.broker.queues())

    async def test_odd_runs_and_controls_break_no_page(self) -> None:
        """They are listed beside the others, and each can be read."""
        storage = self.storage
        run = await storage.runs.start("good")
        run.finish()
        await storage.controls.pause("queue", "good")
        rows: dict[str, dict[str, Any]] = {
            "empty": {},
            "texts": {"status": "failed", "startedAt": None, "logs": "x", "timeline": 5},
            "odd": {"status": "running", "startedAt": None, "attempts": "x", "input": [1]},
            "list": {"status": [], "name": {}, "startedAt": -1, "durationMs": None},
        }
        await storage.durable.write([Put("runs", id_, row) for id_, row in rows.items()])
        late = {"late": {"status": "failed", "startedAt": "soon", "durationMs": "x"}}
        try:
            await storage.durable.write([Put("runs", id_, row) for id_, row in late.items()])
        except InvalidValueError:
            # A plane that sorts by numbers may refuse it; then nobody has to read it.
            late = {}
        rows |= late
        await storage.durable.write(
            [
                Put("queue", "empty", {}),
                Put("queue", "odd", {"paused": "x", "version": "y", "updatedAt": []}),
            ]
        )

        assert {run.id, *rows} == {one.id for one in await storage.runs.query()}
        for id_ in rows:
            assert id_ == (await self.run_of(id_)).id
        await storage.runs.active()
        await storage.maintenance.close_stale_runs()
        found = await storage.controls.query("queue")
        assert {"good", "empty", "odd"} == {control.name for control in found}
        await storage.jobs.add("odd", 1, id="a")
        await storage.jobs.resume("odd")
        assert 1 == len(await storage.jobs.claim("odd"))
        await storage.jobs.pause("empty")
        await storage.maintenance.run_once()

    # --- maintenance, for ever --------------------------------------------------------------

    async def test_odd_rows_do_not_end_maintenance(self) -> None:
        """What is to be repaired behind them is repaired."""
        settings = {"every": 0.05, "leader_for": 600.0}
        async with self.open(maintenance=settings) as storage:
            task = asyncio.create_task(storage.maintenance.run_forever())
            await self.until(self.is_led)
            for number, name in enumerate(_ODD_ROWS):
                await self.put_odd(name, queue=f"a{number}")
            await self.check_is_repaired(task)
            task.cancel()
            await asyncio.wait([task])

    @pytest.mark.parametrize("call", ["durable.query", "durable.count", "hot.broker.queues"])
    async def test_a_pass_that_fails_is_followed_by_the_next(self, call: str) -> None:
        """Whatever it raises."""
        faults = Faults()
        settings = {"every": 0.05, "leader_for": 600.0}
        async with self.open(faults, maintenance=settings) as storage:
            faults.fail(call, times=3, error=RuntimeError("nobody expected this"))
            task = asyncio.create_task(storage.maintenance.run_forever())
            await self.check_is_repaired(task)
            task.cancel()
            await asyncio.wait([task])

    async def check_is_repaired(self, task: asyncio.Task[None]) -> None:
        """A job that only maintenance can publish is published; not too soon."""
        self.faults.down("hot.broker.publish")
        job = await self.storage.jobs.add("good", 1, id="good")
        self.faults.heal()
        assert not job.published

        async def is_there() -> bool:
            assert not task.done(), task
            return (await self.storage.hot.broker.contains("good", ["good"]))[0]

        await self.until(is_there)
        # Until then its adder may be about to write it again.
        assert await self.storage.durable.now() >= job.created_at + _ADDERS_OWN - 100
        assert ["good"] == [claim.id for claim in await self.storage.jobs.claim("good")]

    async def test_maintenance_ends_quietly_with_the_storage(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It returns, complains of nothing, and somebody else can lead at once."""
        with caplog.at_level(logging.WARNING, logger="oqron"):
            async with self.open(maintenance={"every": 0.05, "leader_for": 600.0}) as storage:
                task = asyncio.create_task(storage.maintenance.run_forever())
                await self.until(self.is_led)
            await asyncio.wait_for(task, 10)

        assert not await self.is_led()
        assert [] == [record.getMessage() for record in caplog.records]

    async def test_who_is_called_off_leads_no_more(self) -> None:
        """Cancelling maintenance gives the lead back, and ends as a cancel does."""
        async with self.open(maintenance={"every": 0.05, "leader_for": 600.0}) as storage:
            task = asyncio.create_task(storage.maintenance.run_forever())
            await self.until(self.is_led)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not await self.is_led()

    async def test_a_lead_that_is_shorter_than_a_pause_is_kept(self) -> None:
        """It is renewed in between, so that nobody else begins to lead."""
        faults, others = Faults(), Faults()
        settings = {"every": 60.0, "leader_for": 0.6}
        async with (
            self.open(faults, maintenance=settings) as first,
            self.open(others, maintenance={**settings, "every": 0.05}) as second,
        ):
            leading = asyncio.create_task(first.maintenance.run_forever())
            await self.until(self.is_led)
            standing_by = asyncio.create_task(second.maintenance.run_forever())

            async def is_renewed() -> bool:
                return len(faults.names("hot.locks.renew")) >= 6

            # As fast as the keeper's own clock, so that the lead lapses if it is not renewed.
            await self.until(is_renewed, pace=1.0)
            if self.manual_clock:
                # Where time cannot run away from the loop, nobody else ever led.
                assert [] == others.names("durable.*")
                assert others.names("hot.locks.acquire")
            for task in (leading, standing_by):
                task.cancel()
            await asyncio.wait([leading, standing_by])

    # --- history --------------------------------------------------------------------------

    @pytest.mark.parametrize("name", _LINES)
    async def test_a_log_that_is_too_large_loses_no_end(self, name: str) -> None:
        """Neither that of its own run nor those written beside it."""
        big = await self.storage.runs.start("big")
        others = [await self.storage.runs.start(f"o{n}") for n in range(20)]
        for _ in range(1000):
            _LINES[name](big)
        for number, run in enumerate(others):
            run.finish(number)
        big.finish({"ok": True})
        await self.storage.runs.flush()
        page = await self.storage.runs.query(limit=100)

        assert 21 == len(page)
        assert {"completed"} == {run.status for run in page}
        assert [*range(20)] == [(await self.run_of(run.id)).output for run in others]
        seen = await self.run_of(big.id)
        assert ({"ok": True}, 100) == (seen.output, seen.progress_percent)
        assert 0 == self.open_handles()
        assert 0 == self.storage._session.recorder.lost

    @pytest.mark.parametrize(
        "error",
        ["x", "x" * 100_000, "\x01" * 100_000],
        ids=["short", "long", "control characters"],
    )
    async def test_a_run_that_is_too_large_is_stored_without_what_is_too_much(
        self, error: str
    ) -> None:
        """A storage that takes little keeps every end all the same."""
        async with self.open(max_value_bytes=2_000) as storage:
            big = await storage.runs.start("big")
            others = [await storage.runs.start(f"o{n}") for n in range(5)]
            for n in range(100):
                big.log("info", "x" * 9_000, n=n)
                big.progress(n, "y" * 400)
            for run in others[:2]:
                run.finish(1)
            big.fail(error)
            for run in others[2:]:
                run.finish(1)
            await storage.runs.flush()

            seen = [await self.status_of(run.id) for run in (*others, big)]
            assert ["completed"] * 5 + ["failed"] == seen
            assert (0, 0) == (self.open_handles(storage), storage._session.recorder.lost)

    async def test_an_error_that_is_too_large_is_cut(self) -> None:
        """It keeps no attempt from ending, in a storage that takes little."""
        async with self.open(max_value_bytes=2_000) as storage:
            await storage.jobs.add("q", 1, id="a", max_attempts=2)
            for attempt in (1, 2):
                [claim] = await storage.jobs.claim("q")
                error = _raised(ValueError("\x01" * 30_000))
                job = await storage.jobs.fail(claim, error, retry_in=0.0)
                assert (attempt, True) == (job.attempt_made, bool(job.error))
                await storage.runs.flush()
            assert "dead" == await self.state("a")
            assert ["failed", "failed"] == await self.runs_of("a")

    @pytest.mark.parametrize("name", _REPORTS)
    async def test_no_report_of_a_run_raises(self, name: str) -> None:
        """Whatever a handler hands over, the run goes on and is stored."""
        run = await self.storage.runs.start("r")
        _REPORTS[name](run)
        run.log("info", "after")
        run.progress(50)
        run.finish("out")
        await self.storage.runs.flush()
        seen = await self.run_of(run.id)

        assert ("completed", "out") == (seen.status, seen.output)
        assert "after" == seen.logs[-1]["msg"]

    @pytest.mark.parametrize("name", _ENDS)
    async def test_no_end_of_a_run_raises(self, name: str) -> None:
        """Whatever its output or error is, the run has ended and is stored."""
        status, end = _ENDS[name]
        run = await self.storage.runs.start("r")
        end(run)
        await self.storage.runs.flush()

        assert status == run.status == (await self.run_of(run.id)).status
        assert 0 == self.open_handles()

    # --- answers that are lost ---------------------------------------------------------------

    @pytest.mark.parametrize("payloads", [("x", "y"), ("x", "x")], ids=["two", "one"])
    @pytest.mark.parametrize("how", ["add", "add_many"])
    @pytest.mark.parametrize("nth", [1, 2])
    async def test_an_id_that_is_added_twice_is_one_job(
        self, how: str, nth: int, payloads: tuple[str, str]
    ) -> None:
        """Where the answer is lost, one add made it and the other finds it."""
        jobs = self.storage.jobs
        first, second = payloads
        # Whichever write it is whose answer is lost, that of the second id as well.
        self.faults.fail("durable.write", when="after", nth=nth)
        if how == "add_many":
            specs = [JobSpec(first, id="a"), JobSpec(second, id="a", delay=3600.0)]
            made = await jobs.add_many("q", specs)
        else:
            made = await gather(
                [jobs.add("q", first, id="a"), jobs.add("q", second, id="a", delay=3600.0)]
            )
        self.faults.heal()

        assert [False, True] == sorted(job.duplicate for job in made)
        [winner] = [job for job in made if not job.duplicate]
        stored = await self.read("a")
        assert [winner.data] * 3 == [stored.data, *(job.data for job in made)]
        assert (winner.status, winner.run_at) == (stored.status, stored.run_at)
        counts = await self.storage.hot.broker.counts("q")
        ready = 1 if winner.status == "waiting" else 0
        assert (ready, 1 - ready, 0) == (counts.ready, counts.delayed, counts.leased)
        assert ready == len(await jobs.claim("q", limit=5))

    @pytest.mark.parametrize("times", [1, 4, 6])
    @pytest.mark.parametrize("how", _HOWS)
    async def test_an_end_whose_answers_are_lost_succeeds_once(self, how: How, times: int) -> None:
        """However many they are, it is no lost lease and nothing is done twice."""
        await self.storage.jobs.add("q", 1, id="a")
        claim = await self.hold(lease_for=60.0)
        self.faults.fail("durable.write", when="after", times=times)
        await asyncio.wait_for(self.end(how, claim), 30)
        self.faults.heal()

        await self.check_ended(how, claim.run.id)
        if how != "die":
            attempts = 0 if how == "release" else 1
            assert attempts == (await self.read("a")).attempt_made

    async def test_a_job_that_goes_at_once_ends_once(self) -> None:
        """Where completed jobs are not kept, lost answers are no lost lease either."""
        faults = Faults()
        async with self.open(faults, retention={"completed_for": 0}) as storage:
            await storage.jobs.add("q", 1, id="a")
            [claim] = await storage.jobs.claim("q", lease_for=60.0)
            faults.fail("durable.write", when="after", times=5)
            await asyncio.wait_for(storage.jobs.complete(claim, "out"), 30)
            faults.heal()
            assert "gone" == await self.state("a")
            await storage.runs.flush()
            assert "completed" == (await self.run_of(claim.run.id)).status
            assert [] == list(await storage.hot.broker.queues())

    async def test_a_batch_of_ends_may_be_repeated(self) -> None:
        """Where no answer came at all, the same call says that all is done."""
        await self.storage.jobs.add_many("q", [1, 2, 3])
        claims = await self.storage.jobs.claim("q", limit=3)
        pairs = [(claim, claim.data) for claim in claims]
        self.faults.fail("durable.write", when="after")
        self.faults.fail("durable.write", nth=2, times=None)
        with pytest.raises(UnavailableError):
            await self.storage.jobs.complete_many(pairs)
        self.faults.heal()

        assert [True, True, True] == await self.storage.jobs.complete_many(pairs)
        assert 3 == (await self.storage.jobs.counts("q"))["completed"]
        page = await self.storage.runs.query()
        assert ["completed"] * 3 == [run.status for run in page]

    @pytest.mark.parametrize("how", ["one", "many", "at once"])
    async def test_who_dies_after_completing_leaves_the_run_behind(self, how: str) -> None:
        """A few jobs are completed together with their runs, logs and all."""
        await self.storage.jobs.add_many("q", [1, 2, 3])
        faults = Faults()
        async with AsyncExitStack() as stack:
            dying = await stack.enter_async_context(self.open(faults, close_timeout=0.5))
            claims = await dying.jobs.claim("q", limit=3)
            for claim in claims:
                claim.run.log("info", f"line {claim.data}")
            await dying.durable.now()
            # What is written from here on is the end of jobs, once, and nothing else.
            count = 3 if how == "one" else 1
            faults.reset()
            faults.fail("durable.write", nth=count + 1, times=None)
            if how == "many":
                assert [True] * 3 == await dying.jobs.complete_many([(c, c.data) for c in claims])
            elif how == "at once":
                await gather(dying.jobs.complete(claim, claim.data) for claim in claims)
            else:
                for claim in claims:
                    await dying.jobs.complete(claim, claim.data)
            faults.down("*")
            runs = await self.storage.runs.query(name="q")
            assert sorted((run.status, run.output) for run in runs) == [
                ("completed", n) for n in (1, 2, 3)
            ]
            assert {("line 1",), ("line 2",), ("line 3",)} == {
                tuple(entry["msg"] for entry in run.logs) for run in runs
            }
            assert {100} == {run.progress_percent for run in runs}

    async def test_one_that_is_refused_spoils_nothing_for_those_beside_it(self) -> None:
        """Those are completed with their runs; its own says why it was not."""
        jobs = self.storage.jobs
        await jobs.add_many("q", [JobSpec(n, id=str(n)) for n in range(3)])
        claims = {claim.id: claim for claim in await jobs.claim("q", limit=3)}
        async with self.open() as other:
            assert await other.jobs.cancel("q", "1")
        done = await jobs.complete_many([(claims[id_], id_) for id_ in ("0", "1", "2")])
        await self.storage.runs.flush()

        assert [True, False, True] == done
        for id_, status in (("0", "completed"), ("1", "cancelled"), ("2", "completed")):
            assert status == await self.state(id_)
            [run] = (await self.storage.runs.query(job_id=id_)).items
            assert (status, "running") != (run.status, run.timeline[-1]["to"])
            assert status == run.status == run.timeline[-1]["to"]
            assert 1 == sum(entry["from"] == "running" for entry in run.timeline)

    @pytest.mark.parametrize(
        ("end", "ends"),
        [
            ("complete", ("completed", None)),
            ("retry", ("failed", "odd")),
            ("die", ("failed", "odd")),
            ("release", ("cancelled", "released")),
        ],
    )
    async def test_a_run_whose_end_died_with_its_worker_ends_as_its_job(
        self, end: str, ends: tuple[str, str | None]
    ) -> None:
        """The attempt was settled, so the run was; by what the job's record knows."""
        await self.storage.jobs.add("q", 1, id="a")
        faults = Faults()
        async with AsyncExitStack() as stack:
            options = {"durable_after": 0.05, "write_every": 0.05}
            dying = await stack.enter_async_context(
                self.open(faults, close_timeout=0.5, runs=options)
            )
            [claim] = await dying.jobs.claim("q")

            async def is_in_history() -> bool:
                row = (await self.storage.durable.get("runs", [claim.run.id]))[0]
                return row is not None and claim.run.in_history

            await self.until(is_in_history)
            faults.reset()
            # History has a row already, so the end of the run is a write of its own.
            faults.fail("durable.write", nth=2, times=None)
            steps: dict[str, Callable[[], Awaitable[Any]]] = {
                "complete": lambda: dying.jobs.complete(claim, {"sum": 1}),
                "retry": lambda: dying.jobs.fail(claim, "odd", retry_in=3600.0),
                "die": lambda: dying.jobs.fail(claim, "odd", retry=False),
                "release": lambda: dying.jobs.release(claim),
            }
            await steps[end]()
            faults.down("*")
            await self.elapse(1.5)
            async with self.open(runs={"stale_after": 1.0}) as leader:

                async def is_closed() -> bool:
                    await leader.maintenance.close_stale_runs()
                    run = await leader.runs.get(claim.run.id)
                    return run is not None and run.status != "running"

                await self.until(is_closed)
                run = await leader.runs.get(claim.run.id)
                job = await leader.jobs.get("q", "a")
            assert run is not None
            status, error = ends
            assert (status, error) == (run.status, run.error)
            assert status == run.timeline[-1]["to"]
            if end == "complete":
                assert job is not None
                assert {"sum": 1} == run.output
                assert job.finished_at == run.ended_at

    # --- callers that are gone -----------------------------------------------------------------

    @pytest.mark.parametrize("when", ["before", "after"])
    @pytest.mark.parametrize("call", ["durable.write", "hot.broker.*ack"])
    @pytest.mark.parametrize("how", _HOWS)
    async def test_an_end_whose_caller_is_gone_is_whole(
        self, how: How, call: str, when: When
    ) -> None:
        """Job, run, broker and handle end together, though nobody waits any more."""
        await self.storage.jobs.add("q", 1, id="a")
        claim = await self.hold(lease_for=600.0)
        run_id = claim.run.id
        pause = self.faults.pause(call, when=when)
        task = asyncio.create_task(self.end(how, claim))
        await pause.reached.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        del claim, task
        pause.release()

        await self.check_ended(how, run_id)

    @pytest.mark.parametrize(
        ("call", "when"),
        [("durable.write", "after"), ("hot.broker.ack", "before"), ("hot.broker.ack", "after")],
    )
    async def test_a_batch_of_ends_whose_caller_is_gone_is_whole(
        self, call: str, when: When
    ) -> None:
        """What was written has ended, with its runs, and leaves the broker."""
        await self.storage.jobs.add_many("q", [JobSpec(n, id=f"{n}") for n in range(3)])
        claims = await self.storage.jobs.claim("q", limit=3, lease_for=600.0)
        ids = [claim.run.id for claim in claims]
        pause = self.faults.pause(call, when=when)
        task = asyncio.create_task(
            self.storage.jobs.complete_many([(claim, "out") for claim in claims])
        )
        await pause.reached.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        del claims, task
        pause.release()

        async def are_whole() -> bool:
            counts = await self.storage.hot.broker.counts("q")
            seen = [await self.status_of(run_id) for run_id in ids]
            return seen == ["completed"] * 3 and counts.leased + self.open_handles() == 0

        await self.until(are_whole)
        assert 3 == (await self.storage.jobs.counts("q"))["completed"]

    # --- pauses that overtake --------------------------------------------------------------

    @pytest.mark.parametrize("first", ["pause", "resume"])
    async def test_the_later_of_pause_and_resume_stands(self, first: str) -> None:
        """Also where the earlier reaches the broker last."""
        jobs = self.storage.jobs
        if first == "resume":
            await jobs.pause("q")
        await jobs.add("q", 1, id="a")
        async with self.open() as other:
            pause = self.faults.pause(f"hot.broker.{first}")
            slow = asyncio.create_task(getattr(jobs, first)("q"))
            await pause.reached.wait()
            later = other.jobs.pause if first == "resume" else other.jobs.resume
            await later("q")
            pause.release()
            await slow
            control = await other.controls.get("queue", "q")
            assert control is not None

            assert (first == "resume") is control.paused
            assert control.paused is (await other.hot.broker.counts("q")).paused
            assert await self.nothing_claimable() is control.paused

    # --- leases in the background -----------------------------------------------------------

    async def test_keeping_goes_on_over_the_loss_of_the_hot_plane(self) -> None:
        """The rebuild puts the lease back with its token, and it is renewed again."""
        jobs = self.storage.jobs
        await jobs.add("q", 1, id="a")
        claim = await self.hold(lease_for=600.0)
        async with jobs.keep([claim], lease_for=600.0, every=0.02):
            await self.lose_hot(self.storage.hot)
            self.faults.reset()

            async def was_refused() -> bool:
                return len(self.faults.names("hot.broker.renew")) >= 3

            await self.until(was_refused)
            assert not claim.lost
            await self.storage.maintenance.rebuild_hot()
            before = claim.deadline

            async def is_renewed() -> bool:
                return claim.deadline > before

            await self.until(is_renewed)
        assert not claim.lost
        await jobs.complete(claim, "out")
        assert "completed" == await self.state("a")

    async def test_a_lease_is_lost_when_it_has_lapsed(self) -> None:
        """Not at the first refusal; and then it is not renewed any more."""
        jobs = self.storage.jobs
        await jobs.add("q", 1, id="a")
        claim = await self.hold(lease_for=1.0)
        async with jobs.keep([claim], lease_for=1.0, every=0.05):
            await self.lose_hot(self.storage.hot)

            async def is_lost() -> bool:
                return claim.lost

            await self.until(is_lost)
            assert time.monotonic() >= claim.deadline
            await self.settle()
            self.faults.reset()
            await asyncio.sleep(0.2)
            renewed = [call.args for call in self.faults.calls if call.name == "hot.broker.renew"]
            assert not any(leases for (leases,) in renewed)

    # --- planes that never answer -------------------------------------------------------------

    @pytest.mark.parametrize(
        "hung",
        [
            "durable.write", "durable.*", "hot.broker.publish", "hot.broker.*ack",
            "hot.broker.claim", "hot.locks.*", "hot.live.*", "hot.*", "*",
        ],
    )  # fmt: skip
    async def test_closing_with_a_hung_plane_leaves_no_task(self, hung: str) -> None:
        """It ends within its time, whatever is in flight."""
        before = asyncio.all_tasks()
        faults = Faults()
        callers: list[asyncio.Task[Any]] = []
        async with self.open(faults, close_timeout=0.4) as storage:
            jobs = storage.jobs
            await jobs.add_many("q", [1, 2, 3])
            claims = await jobs.claim("q", limit=3, lease_for=60.0)
            run = await storage.runs.start("r")
            pauses = [faults.pause(hung, nth=n) for n in range(1, 200)]
            calls: list[Any] = [
                jobs.complete(claims[0], "out"),
                jobs.fail(claims[1], "x"),
                jobs.release(claims[2]),
                jobs.add("q", 4),
                jobs.add_many("q", [5, 6]),
                jobs.claim("q", wait=60.0),
                jobs.claim("q"),
                storage.maintenance.run_forever(),
            ]
            callers += [asyncio.create_task(call) for call in calls]
            await self.settle()
            run.log("info", "x")
            run.finish()
            await self.settle()
        await self.settle()
        left = asyncio.all_tasks() - before - set(callers)

        assert [] == [task.get_name() for task in left]
        for task in callers:
            task.cancel()
        for pause in pauses:
            pause.release()
        await asyncio.gather(*callers, return_exceptions=True)
        await self.settle()
        assert before == asyncio.all_tasks()

    # --- another time for a job that waits ---------------------------------------------------

    async def test_a_delayed_job_can_be_made_due(self) -> None:
        """Without a time it may be claimed at once."""
        jobs = self.storage.jobs
        await jobs.add("q", {"n": 1}, id="a", delay=3600.0)
        assert await jobs.reschedule("q", "a") is True
        job = await self.read("a")

        assert ("waiting", None, {"n": 1}) == (job.status, job.run_at, job.data)
        claim = await self.hold()
        assert ("a", 1) == (claim.id, claim.attempt)
        await jobs.complete(claim)

    @pytest.mark.parametrize("by", ["delay", "run_at"])
    async def test_a_job_that_is_due_can_be_put_off(self, by: str) -> None:
        """For as long as was said, and also over the loss of the hot plane."""
        jobs = self.storage.jobs
        await jobs.add("q", 1, id="a")
        now = await self.storage.durable.now()
        if by == "delay":
            assert await jobs.reschedule("q", "a", delay=1.0) is True
        else:
            assert await jobs.reschedule("q", "a", run_at=now + 1000) is True
        job = await self.read("a")
        assert job.status == "delayed"
        assert job.run_at is not None
        assert now + 900 <= job.run_at
        await self.lose_hot(self.storage.hot)
        await self.storage.maintenance.rebuild_hot()
        claimed: list[Claim] = []

        async def is_claimed() -> bool:
            claimed.extend(await jobs.claim("q"))
            return bool(claimed)

        await self.until(is_claimed)
        assert await self.storage.durable.now() >= job.run_at - 100

    async def test_a_job_that_is_put_off_can_be_put_off_again(self) -> None:
        """The last word stands, in both planes."""
        jobs = self.storage.jobs
        await jobs.add("q", 1, id="a", delay=0.1)
        assert await jobs.reschedule("q", "a", delay=3600.0) is True
        await self.elapse(0.5)
        assert await self.nothing_claimable()
        assert 0 == await self.storage.maintenance.reconcile()
        assert await jobs.reschedule("q", "a", delay=0) is True
        assert "a" == (await self.hold()).id

    async def test_a_job_keeps_its_place_whenever_it_is_due(self) -> None:
        """Among those of its priority the order is that of adding."""
        jobs = self.storage.jobs
        await jobs.add("q", 1, id="d", delay=3600.0)
        await jobs.add("q", 1, id="c")
        await jobs.add("q", 1, id="b")
        await jobs.add("q", 1, id="urgent", priority=-1, delay=3600.0)
        await jobs.add("q", 1, id="a")
        assert await jobs.reschedule("q", "d") is True
        assert await jobs.reschedule("q", "b", delay=3600.0) is True
        assert await jobs.reschedule("q", "b") is True
        assert await jobs.reschedule("q", "urgent") is True
        claims = await jobs.claim("q", limit=10)

        assert ["urgent", "d", "c", "b", "a"] == [claim.id for claim in claims]

    @pytest.mark.parametrize(
        "state", ["active", "completed", "cancelled", "dead", "unknown", "retried"]
    )
    async def test_only_a_job_that_waits_can_be_rescheduled(self, state: str) -> None:
        """What is being worked on or has ended stays what it is."""
        jobs = self.storage.jobs
        claim: Claim | None = None
        if state != "unknown":
            await jobs.add("q", 1, id="a")
            claim = await self.hold(lease_for=600.0)
            if state == "completed":
                await jobs.complete(claim)
            elif state == "cancelled":
                await jobs.cancel("q", "a")
            elif state == "dead":
                await jobs.fail(claim, "x", retry=False)
            elif state == "retried":
                await jobs.fail(claim, "x", retry_in=3600.0)
        before = await jobs.get("q", "a")
        done = await jobs.reschedule("q", "a")

        assert done is (state == "retried")
        if state == "retried":
            assert 2 == (await self.hold()).attempt
            return
        assert before == await jobs.get("q", "a")
        assert await self.nothing_claimable()
        if claim is not None and state == "active":
            assert [True] == await jobs.renew([claim], lease_for=60.0)

    async def test_a_job_that_was_claimed_meanwhile_is_not_rescheduled(self) -> None:
        """Whoever works on it is left alone."""
        await self.storage.jobs.add("q", 1, id="a")
        async with self.open() as worker:
            pause = self.faults.pause("durable.write")
            late = asyncio.create_task(self.storage.jobs.reschedule("q", "a", delay=60.0))
            await pause.reached.wait()
            [claim] = await worker.jobs.claim("q", lease_for=60.0)
            pause.release()

            assert await late is False
            assert "active" == await self.state("a")
            await worker.jobs.complete(claim)
        assert "completed" == await self.state("a")

    async def test_making_a_job_due_wakes_who_waits(self) -> None:
        """A claim that waits has it without asking again."""
        await self.storage.jobs.add("q", 1, id="a", delay=3600.0)
        task = asyncio.create_task(self.storage.jobs.claim("q", wait=40.0))
        await self.settle()
        async with self.open() as other:
            assert await other.jobs.reschedule("q", "a") is True

            assert ["a"] == [claim.id for claim in await asyncio.wait_for(task, 15)]

    async def test_another_time_survives_a_hot_plane_that_is_away(self) -> None:
        """The durable plane has it, and maintenance carries it over."""
        jobs = self.storage.jobs
        await jobs.add("q", 1, id="a", delay=3600.0)
        self.faults.down("hot.broker.publish")
        assert await jobs.reschedule("q", "a") is True
        self.faults.heal()
        assert "waiting" == (await self.read("a")).status
        await self.lose_hot(self.storage.hot)
        await self.storage.maintenance.run_once()

        assert "a" == (await self.hold()).id

    @pytest.mark.parametrize(
        "options",
        [
            {"delay": -1},
            {"delay": math.nan},
            {"delay": 1.0, "run_at": 5},
            {"run_at": -1},
            {"run_at": 1.5},
            {"delay": "soon"},
        ],
        ids=str,
    )
    async def test_a_bad_time_changes_nothing(self, options: dict[str, Any]) -> None:
        """It is refused, and the job is where it was."""
        await self.storage.jobs.add("q", 1, id="a")
        with pytest.raises(InvalidValueError):
            await self.storage.jobs.reschedule("q", "a", **options)

        assert "a" == (await self.hold()).id

    # --- transactions of the caller's ---------------------------------------------------------

    @pytest.mark.parametrize("state", ["open", "paused"])
    async def test_what_is_no_transaction_here_is_refused(self, state: str) -> None:
        """With a typed error, before anything is written."""
        jobs = self.storage.jobs
        if state == "paused":
            await self.storage.controls.pause("queue", "q", behaviour="skip")
        self.faults.reset()
        with pytest.raises(CapabilityError):
            await jobs.add("q", 1, id="a", transaction=object())
        with pytest.raises(CapabilityError):
            await jobs.add_many("q", [1, JobSpec(2, id="a")], transaction=object())

        assert [] == self.faults.names("durable.write")
        assert [] == self.faults.names("hot.broker.publish")
        assert not any((await jobs.counts("q")).values())
        assert "gone" == await self.state("a")
