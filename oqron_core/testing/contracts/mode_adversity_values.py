"""The contract of a mode under attack: times, values and names that broke others."""

from __future__ import annotations

import asyncio
import collections
import datetime as dt
import decimal
import enum
import math
import random
import uuid

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import pytest

from oqron_core.exceptions import InvalidValueError, LeaseLostError, StorageError
from oqron_core.models import Backoff, JobSpec
from oqron_core.planes import Json, Patch, Put, Query
from oqron_core.protocol.claims import Claim
from oqron_core.protocol.lanes import queue_of
from oqron_core.testing.contracts.base import gather
from oqron_core.testing.contracts.mode import LAPSE, ModeBase
from oqron_core.testing.hostile import same, stable_id


__all__ = ["AdverseValuesContract"]


class _Colour(enum.Enum):
    RED = "red"


class _Word(enum.StrEnum):
    RED = "red"


class _Text(str):
    __slots__ = ()


class _Pair(NamedTuple):
    left: int
    right: int


_NO_JSON: Final[tuple[Any, ...]] = (
    decimal.Decimal("1.10"),
    dt.datetime(2026, 1, 1),  # noqa: DTZ001 - a naive one is what people pass
    dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    dt.date(2026, 1, 1),
    dt.timedelta(1),
    uuid.UUID(int=1),
    _Colour.RED,
    _Word.RED,
    _Text("x"),
    _Pair(1, 2),
    (1, 2),
    {1, 2},
    frozenset(),
    bytearray(b"x"),
    collections.OrderedDict(a=1),
    {1: "a", "1": "b"},
    {1.5: "a"},
    {_Word.RED: 1},
)
"""What Python has and JSON has not; some of it only looks as if it had."""

_NO_INSTANTS: Final[tuple[Any, ...]] = (
    dt.datetime(2026, 1, 1),  # noqa: DTZ001 - a naive one is what people pass
    dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    dt.date(2026, 1, 1),
    "2026-01-01T00:00:00",
    1.75e12,
    math.nan,
    math.inf,
    -1,
    2**63,
    True,
)
_NO_DURATIONS: Final[tuple[Any, ...]] = (
    -1,
    -1e-9,
    math.nan,
    math.inf,
    -math.inf,
    2**63,
    1e30,
    "1",
    True,
    dt.timedelta(seconds=1),
)

_POISON: Final[dict[str, bytes]] = {
    "beyond a double": b"[1e400]",
    "negative beyond a double": b'{"a":-1e400}',
    "beyond 64 bits": b"[" + b"9" * 300 + b"]",
    "beyond a double, written out": b"[" + b"9" * 400 + b"]",
    "beyond what Python reads": b"[" + b"9" * 5000 + b"]",
    "deeper than we write": b"[" * 900 + b"]" * 900,
    "as deep as recursion goes": b"[" * 5000 + b"]" * 5000,
    "one key twice": b'{"a":1,"a":2}',
}
"""JSON that we refuse, and that somebody else may have put into the tables."""

_LOOKS_ESCAPED: Final = "\\u0000 \\\\u0000 \\ud800 \\x00 C:\\u0000 \U0001f680"
_LOOKS: Final = 750

_WILD: Final[tuple[str, ...]] = (
    "abc", "a*c", "a?c", "a[bx]c", "a[^x]c", "a\\c", "a\\*c", "*", "?", "a*",
    "a_c", "aXc", "a%c", "%", "_", "100%", "100x",
)  # fmt: skip
"""Names that are patterns to somebody, and names that such a pattern fits."""


class AdverseValuesContract(ModeBase):
    """Durations, payloads and names that broke other systems, in any mode."""

    # --- helpers ------------------------------------------------------------------------

    async def hold_one(self, queue: str = "q", **options: Any) -> Claim:
        """Claim one job, which must be there."""
        claims = await self.storage.jobs.claim(queue, **options)
        assert 1 == len(claims), "nothing could be claimed"
        return claims[0]

    async def rows(self) -> dict[str, int]:
        """Count the records of the scope that are about work, by kind."""
        kinds = ("job", "dlq", "run", "message")
        counts = [await self.storage.durable.count(Query(kind=kind)) for kind in kinds]
        return {kind: count for kind, count in zip(kinds, counts, strict=True) if count}

    async def refuse(self, *calls: Callable[[], Awaitable[Any]]) -> None:
        """Every call must be refused, before anything is written."""
        self.faults.reset()
        for number, call in enumerate(calls):
            try:
                await call()
            except InvalidValueError:
                continue
            pytest.fail(f"call {number} is not refused")
        assert [] == self.faults.names("durable.write")

    # --- times --------------------------------------------------------------------------

    @pytest.mark.parametrize("value", _NO_INSTANTS, ids=stable_id)
    async def test_what_is_no_instant_is_refused(self, value: Any) -> None:
        """No date is guessed at, with or without a zone: instants are milliseconds."""
        storage = self.storage
        await storage.jobs.add("q", 1, id="a")
        await self.refuse(
            lambda: storage.jobs.add("q", 1, run_at=value),
            lambda: storage.jobs.add_many("q", [1, JobSpec(2, run_at=value)]),
            lambda: storage.jobs.reschedule("q", "a", run_at=value),
            lambda: storage.schedules.put("cron", "n", next_run_at=value),
            lambda: storage.schedules.reschedule("cron", "n", next_run_at=value),
        )
        assert 1 == (await storage.jobs.counts("q"))["waiting"]

    @pytest.mark.parametrize("value", _NO_DURATIONS, ids=stable_id)
    async def test_what_is_no_duration_is_refused(self, value: Any) -> None:
        """None is taken for zero, and nothing is lost that was held."""
        storage = self.storage
        jobs = storage.jobs
        await jobs.add("q", 1, id="a")
        claim = await self.hold_one()
        await storage.runs.flush()
        await self.refuse(
            lambda: jobs.add("q", 1, delay=value),
            lambda: jobs.add_many("q", [1, JobSpec(2, delay=value)]),
            lambda: jobs.fail(claim, "x", retry_in=value),
            lambda: jobs.release(claim, delay=value),
            lambda: jobs.renew([claim], lease_for=value),
            lambda: jobs.claim("q", lease_for=value),
            lambda: jobs.claim("q", wait=value),
            lambda: storage.cache.set("k", 1, ttl=value),
            lambda: storage.limits.ban("k", value),
            lambda: storage.locks.acquire("k", lease_for=value),
        )
        assert [True] == await jobs.renew([claim], lease_for=30.0)
        await jobs.complete(claim)

    async def test_zero_and_nothing_are_told_apart(self) -> None:
        """No delay is now; no lease, no time to live and no count are none at all."""
        storage = self.storage
        jobs = storage.jobs
        await jobs.add("q", 1, id="zero", delay=0)
        await jobs.add("q", 1, id="none", delay=None, backoff=Backoff.fixed(60.0))
        nothing: Any
        for nothing in (0, 0.0, -0.0, None):
            await self.refuse(
                lambda lease=nothing: jobs.claim("q", lease_for=lease),  # type: ignore[misc]
                lambda lease=nothing: storage.locks.acquire("k", lease_for=lease),  # type: ignore[misc]
            )
        for nothing in (None, -1, True):
            await self.refuse(lambda limit=nothing: jobs.claim("q", limit=limit))  # type: ignore[misc]
        for nothing in (0, 0.0, -0.0):
            await self.refuse(lambda ttl=nothing: storage.cache.set("k", 1, ttl=ttl))  # type: ignore[misc]
        assert [] == await jobs.claim("q", limit=0)
        claims = await jobs.claim("q", limit=5)
        assert ["zero", "none"] == [claim.id for claim in claims]

        at_once = await jobs.fail(claims[0], "x", retry_in=0)
        by_backoff = await jobs.fail(claims[1], "x", retry_in=None)
        assert at_once.run_at is not None
        assert by_backoff.run_at is not None
        assert by_backoff.run_at - at_once.run_at > 50_000
        assert ["zero"] == [claim.id for claim in await jobs.claim("q", limit=5)]

    @pytest.mark.parametrize("factor", [2.0, 1000.0])
    @pytest.mark.parametrize("made", [8, 46, 62, 63, 64, 998])
    async def test_a_late_attempt_waits_for_the_cap(self, made: int, factor: float) -> None:
        """However large the power is, the wait neither overflows nor turns round."""
        backoff = Backoff.exponential(100.0, factor=factor, cap=300.0)
        row = {
            "id": "a", "queueName": "q", "status": "waiting", "data": 1,
            "opts": {"backoff": backoff.to_wire()}, "attemptMade": made, "maxAttempts": 1000,
            "priority": 0, "createdAt": 1,
        }  # fmt: skip
        await self.storage.durable.write([Put("queue_job:q", "a", row)])
        await self.storage.maintenance.reconcile()
        claim = await self.hold_one()
        assert made + 1 == claim.attempt
        before = await self.storage.durable.now()
        job = await self.storage.jobs.fail(claim, "x")
        after = await self.storage.durable.now()

        assert job.run_at is not None
        assert before + 300_000 - 50 <= job.run_at <= after + 300_000 + 50
        assert [] == await self.storage.jobs.claim("q")

    async def test_a_schedule_can_be_worked_out_anew(self) -> None:
        """It keeps text and zone, so that new rules of the zone give another instant."""
        schedules = self.storage.schedules
        spec = {"cron": "30 2 * * *"}
        now = await self.storage.durable.now()
        await schedules.put(
            "cron", "n", next_run_at=now + 3_600_000, spec=spec, zone="Europe/Berlin"
        )
        async with self.open() as other:
            found = await other.schedules.get("cron", "n")
            assert found is not None
            assert (spec, "Europe/Berlin") == (found.spec, found.zone)
            assert await other.schedules.reschedule("cron", "n", next_run_at=now - 1)
        [due] = await schedules.due()

        assert ("n", now - 1, "Europe/Berlin", spec) == (
            due.name, due.next_run_at, due.zone, due.spec,
        )  # fmt: skip

    # --- payloads -----------------------------------------------------------------------

    @pytest.mark.parametrize("value", _NO_JSON, ids=stable_id)
    async def test_what_json_has_not_is_refused_everywhere(self, value: Any) -> None:
        """It is neither turned into something else nor kept as it is in memory."""
        storage = self.storage
        await storage.topics.subscribe("t", "g")
        await storage.jobs.add("q", 1, id="a")
        claim = await self.hold_one()
        await storage.runs.flush()
        deep = {"deep": [value]}
        await self.refuse(
            lambda: storage.jobs.add("q", value),
            lambda: storage.jobs.add("q", deep),
            lambda: storage.jobs.add_many("q", [1, JobSpec(deep)]),
            lambda: storage.topics.publish("t", value),
            lambda: storage.topics.publish("t", 1, headers=deep),
            lambda: storage.cache.set("k", value, ttl=60.0),
            lambda: storage.schedules.put("cron", "n", next_run_at=1, spec=deep),
            lambda: storage.definitions.put("cache", "n", deep),
        )
        claim.run.log("info", "x", field=value)
        await storage.jobs.complete(claim, deep)
        await storage.runs.flush()

        job = await storage.jobs.get("q", "a")
        assert job is not None
        assert "completed" == job.status
        assert "__unstorable__" in job.return_value

    async def test_text_that_looks_like_an_escape_is_left_alone(self) -> None:
        """A backslash, a u and four zeros are six characters, wherever they stand."""
        storage = self.storage
        text = _LOOKS_ESCAPED
        await storage.jobs.add(
            "q", {text: text}, id="a", tags=[text], correlation_id=text, max_attempts=2
        )
        claim = await self.hold_one()
        assert ({text: text}, [text], text) == (
            claim.data, claim.job.tags, claim.job.correlation_id,
        )  # fmt: skip
        claim.run.log("info", text, field=text)
        claim.run.progress(10, text)
        failed = await storage.jobs.fail(claim, text, retry_in=0.0)
        assert text == failed.error
        claim = await self.hold_one()
        await storage.jobs.complete(claim, {text: [text]})
        await storage.runs.flush()
        job = await storage.jobs.get("q", "a")
        runs = sorted(await storage.runs.query(job_id="a"), key=lambda run: run.id)

        assert job is not None
        assert {text: [text]} == job.return_value == runs[1].output
        assert text == runs[0].error
        assert (text, text) == (runs[0].logs[0]["msg"], runs[0].logs[0]["field"])
        await storage.controls.pause("queue", "q", reason=text)
        control = await storage.controls.get("queue", "q")
        assert control is not None
        assert text == control.reason

    @pytest.mark.parametrize("name", _POISON)
    async def test_a_run_on_a_payload_that_we_would_refuse_is_listed(self, name: str) -> None:
        """Also while it lasts here, and history has it as running already."""
        async with self.open(runs={"durable_after": 0.05, "write_every": 0.05}) as storage:
            row = {
                "id": "odd", "queueName": "q", "status": "waiting", "attemptMade": 0,
                "maxAttempts": 3, "priority": 7, "createdAt": 1, "data": Json(_POISON[name]),
            }  # fmt: skip
            try:
                await storage.durable.write([Put("queue_job:q", "odd", row)])
            except StorageError:
                return  # a plane that cannot hold it has nothing to show
            await storage.maintenance.rebuild_hot()
            claims = await storage.jobs.claim("q")
            if not claims:
                return  # it is put aside
            run_id = claims[0].run.id
            for _ in range(_LOOKS):
                if (await storage.durable.get("runs", [run_id]))[0] is not None:
                    break
                await asyncio.sleep(0.02)
            assert [run_id] == [run.id for run in await storage.runs.query()]
            run = await storage.runs.get(run_id)
            assert run is not None
            assert ("running", "odd") == (run.status, run.job_id)
            await storage.jobs.release(claims[0])

    @pytest.mark.parametrize("name", _POISON)
    async def test_a_payload_that_we_would_refuse_breaks_no_list(self, name: str) -> None:
        """Rows of others are shown as far as they can be; those beside them are run."""
        storage = self.storage
        row = {
            "id": "odd", "queueName": "q", "status": "waiting", "attemptMade": 0,
            "maxAttempts": 3, "priority": 7, "createdAt": 1, "data": Json(_POISON[name]),
        }  # fmt: skip
        run = {"status": "failed", "name": "odd", "startedAt": 1, "output": Json(_POISON[name])}
        try:
            await storage.durable.write(
                [
                    Put("queue_job:q", "odd", row),
                    Put("queue_dlq:q", "odd", {**row, "status": "failed"}),
                    Put("runs", "odd", run),
                    Put("topic_msg:t", "odd", {"publishedAt": 1, "message": Json(_POISON[name])}),
                ]
            )
        except StorageError:
            return  # a plane that cannot hold it has nothing to show
        await storage.jobs.add_many("q", [JobSpec(n, id=f"good{n}") for n in range(3)])
        await storage.topics.publish("t", "good")
        await self.lose_hot(storage.hot)
        await storage.maintenance.rebuild_hot()
        await storage.maintenance.reconcile()
        assert {"good0", "good1", "good2", "odd"} == {j.id for j in await storage.jobs.query("q")}
        done: list[str] = []
        for _ in range(4):
            for claim in await storage.jobs.claim("q", limit=10):
                if claim.id != "odd":
                    await storage.jobs.complete(claim, "out")
                    done.append(claim.id)
        await storage.maintenance.run_once()

        assert ["good0", "good1", "good2"] == done
        job = await storage.jobs.get("q", "odd")
        assert job is not None
        assert ("odd", 7) == (job.id, job.priority)
        [letter] = await storage.dead_letters.query("q")
        assert ("odd", 7) == (letter.id, letter.priority)
        assert 3 == (await storage.jobs.counts("q"))["completed"]
        runs = {one.id: one.name for one in await storage.runs.query(limit=100)}
        assert "odd" == runs["odd"]
        assert 4 <= len(runs)
        read = await storage.runs.get("odd")
        assert read is not None
        assert ("failed", "odd") == (read.status, read.name)
        assert ["odd"] == [one.id for one in await storage.topics.read("t", limit=1)]
        assert "good" == (await storage.topics.read("t")).items[1].message
        assert (await storage.jobs.add("q", 1, id="odd")).duplicate
        assert await storage.jobs.cancel("q", "odd")
        assert await storage.dead_letters.delete("q", "odd")

    @pytest.mark.parametrize("odd", [b"[1e400]", b'{"message":[1e400]}', b"7", b"null"], ids=repr)
    async def test_a_delivery_that_cannot_be_read_stops_no_group(self, odd: bytes) -> None:
        """It is handed out without its message; the others of the group come as they are."""
        topics = self.storage.topics
        await topics.subscribe("t", "g", max_attempts=1)
        await topics.publish_many("t", range(3))
        namespace = f"queue_job:{queue_of('t', 'g')}"
        page = await self.storage.durable.query(Query(namespace=namespace))
        patch = Patch(namespace, page.items[0].id, set={"data": Json(odd)})
        assert all(await self.storage.durable.write([patch]))
        said: list[Any] = []
        for claim in await topics.claim("t", "g", limit=5):
            said.append(claim.message and claim.message.message)
            if claim.message is None:
                await topics.fail(claim, "cannot be read")
            else:
                await topics.complete(claim)

        assert [None, 1, 2] == said
        assert {queue_of("t", "g"): 1} == await self.storage.dead_letters.counts()
        assert [] == await topics.claim("t", "g", limit=5)

    async def test_the_order_of_keys_changes_no_definition(self) -> None:
        """What was stored is compared by what it says, not by how it is spelt."""
        storage = self.storage
        spec = {"b": 1, "a": {"y": [1.0], "x": None}, "ccc": 2**53 + 1}
        turned = {"ccc": 2**53 + 1, "a": {"x": None, "y": [1]}, "b": 1.0}
        await storage.schedules.put("cron", "n", next_run_at=10**13, spec=spec)
        await storage.definitions.put("cache", "n", spec)
        async with self.open() as other:
            schedule = await other.schedules.put("cron", "n", next_run_at=5, spec=turned)
            defined = await other.definitions.put("cache", "n", turned)

        assert (10**13, 1, 1) == (schedule.next_run_at, schedule.version, defined.version)

    async def test_what_is_too_large_is_refused_or_marked(self) -> None:
        """A payload at the call, an output by a marker; others and the broker go on."""
        async with self.open(max_value_bytes=200_000) as storage:
            jobs = storage.jobs
            most, more = "x" * 199_998, "x" * 200_000
            for call in (
                lambda: jobs.add("q", more, id="more"),
                lambda: jobs.add_many("q", [1, JobSpec(more)]),
                lambda: storage.topics.publish("t", more),
            ):
                with pytest.raises(InvalidValueError, match="limit"):
                    await call()
            assert {} == await self.rows()
            await jobs.add_many("q", [JobSpec(most, id=f"{n:02}") for n in range(30)])
            await jobs.add("q", "small", id="zz", priority=-1)
            claims = await jobs.claim("q", limit=31)
            assert ["zz", *(f"{n:02}" for n in range(30))] == [claim.id for claim in claims]
            assert {len(most), 5} == {len(claim.data) for claim in claims}
            await jobs.complete(claims[0], more)
            await jobs.complete(claims[1], most)
            small, large = await jobs.get("q", "zz"), await jobs.get("q", "00")

            assert small is not None
            assert large is not None
            assert "__unstorable__" in small.return_value
            assert ("completed", most) == (large.status, large.return_value)
            page = await storage.durable.query(
                Query(namespace="queue_job:q", fields=["status"], limit=100)
            )
            assert [{"status": "active"}] * 29 == [r.value for r in page if r.id not in "00zz"]

    async def test_a_run_that_never_stops_talking_stays_small(self) -> None:
        """Lines and progress are capped; when the run goes, all of it is gone."""
        storage = self.storage
        run = await storage.runs.start("chatty")
        for number in range(100_000):
            run.log("info", "a line", number=number)
            if number % 10 == 0:
                run.progress(number / 1000, f"{number}")
        run.finish()
        await storage.runs.flush()
        seen = await storage.runs.get(run.id)
        assert seen is not None
        assert seen.logs[0]["number"] == 0
        assert "truncated" in seen.logs[-1]["msg"]
        assert len(seen.logs) + len(seen.timeline) < 5000
        await storage.retention.set("run", keep=0)
        assert 1 == await storage.retention.prune()
        run.log("info", "late")
        run.progress(100)
        await storage.runs.flush()

        assert {} == await self.rows()
        assert [] == list(await storage.hot.live.active())
        assert await storage.runs.get(run.id) is None

    # --- names --------------------------------------------------------------------------

    @pytest.mark.parametrize("alphabet", ["ascii", "wide"])
    async def test_the_longest_names_fit_whatever_they_are(self, alphabet: str) -> None:
        """No index has a row that is too large, though nothing of them compresses."""
        dice = random.Random(self.scope.project)  # of no other test

        def name() -> str:
            if alphabet == "ascii":
                return "".join(chr(dice.randrange(33, 127)) for _ in range(255))
            return "".join(chr(dice.randrange(0x4E00, 0x9FFF)) for _ in range(170))

        async with self.open(project=name(), environment=name()) as storage:
            jobs = storage.jobs
            queue, ids, tag = name(), [name() for _ in range(3)], name()
            specs = [JobSpec(1, id=i, correlation_id=tag, tags=[tag]) for i in ids]
            await jobs.add_many(queue, specs, max_attempts=1)
            claims = await jobs.claim(queue, limit=3, worker=name())
            assert ids == [claim.id for claim in claims]
            await jobs.complete(claims[0], "out")
            await jobs.fail(claims[1], "x")
            await jobs.release(claims[2])
            await storage.runs.flush()
            assert [ids[1]] == [job.id for job in await storage.dead_letters.query(queue)]
            assert await storage.dead_letters.requeue(queue, ids[1]) is not None
            assert 1 == len(await storage.runs.query(job_id=ids[0], name=queue))
            await jobs.pause(queue)
            await jobs.resume(queue)
            topic, group = name()[:100], name()[:60]
            await storage.topics.subscribe(topic, group)
            await storage.topics.publish(topic, 1, key=name(), idempotency_key=name())
            assert 1 == len(await storage.topics.claim(topic, group))
            schedule = name()
            await storage.schedules.put("cron", schedule, next_run_at=1)
            assert await storage.schedules.advance(
                "cron", schedule, expected=1, next_run_at=None, enqueue=(queue, 1)
            )
            key = name()
            await storage.cache.set(key, 1, ttl=60.0, tags=[tag])
            assert 1 == await storage.cache.get(key)
            async with storage.locks.hold(key, lease_for=10.0):
                pass
            await storage.limits.ban(key, 60.0)
            assert await storage.limits.banned(key)

    @pytest.mark.parametrize(
        "queue", ["x" * 63, "x" * 64, "x" * 200, "é" * 40, "a:b{c}*", "'; --", " "], ids=len
    )
    async def test_a_claim_that_waits_is_woken_whatever_the_queue_is_called(
        self, queue: str
    ) -> None:
        """No channel has a name that is too long, and none is cut to another's."""
        waiting = asyncio.create_task(self.storage.jobs.claim(queue, wait=40.0))
        other_name = queue + "x"
        beside = asyncio.create_task(self.storage.jobs.claim(other_name, wait=40.0))
        await self.settle()
        async with self.open() as other:
            await other.jobs.add(queue, 1, id="a")
            assert ["a"] == [claim.id for claim in await asyncio.wait_for(waiting, 20)]
            assert not beside.done()
            await other.jobs.add(other_name, 1, id="b")
            assert ["b"] == [claim.id for claim in await asyncio.wait_for(beside, 20)]

    async def test_names_with_wildcards_mean_themselves(self) -> None:
        """Whatever is emptied, paused, counted or forgotten by name is that one alone."""
        storage = self.storage
        for name in _WILD:
            await storage.jobs.add(name, name, id=name)
            await storage.cache.set(name, name, ttl=600.0, tags=[name])
            await storage.schedules.put("cron", name, next_run_at=10**13)
            await storage.topics.subscribe(name, "g")
            await storage.topics.publish(name, name)
        for number, name in enumerate(_WILD):
            rest = [*_WILD[number + 1 :]]
            await storage.jobs.pause(name)
            assert [] == await storage.jobs.claim(name)
            await storage.jobs.resume(name)
            assert 1 == (await storage.jobs.counts(name))["waiting"]
            assert [name] == [job.id for job in await storage.jobs.query(name)]
            assert await storage.jobs.cancel(name, name)
            await storage.hot.broker.purge(name)
            await storage.cache.invalidate_tag(name)
            assert await storage.schedules.delete("cron", name)
            assert await storage.topics.unsubscribe(name, "g")

            assert [None, *rest] == await storage.cache.get_many([name, *rest])
            left = {one.name for one in await storage.schedules.query("cron", limit=100)}
            assert set(rest) == left
            assert [1] * len(rest) == await gather(storage.topics.lag(n, "g") for n in rest)
            counts = await gather(storage.hot.broker.counts(n) for n in rest)
            assert [1] * len(rest) == [one.ready for one in counts]

    # --- topics whose readers are gone ------------------------------------------------------

    async def test_pruning_the_log_takes_no_delivery(self) -> None:
        """What was taken and not finished comes again, whole, and to its own group only."""
        topics = self.storage.topics
        for group in ("died", "lives"):
            await topics.subscribe("t", group)
        await topics.publish_many("t", [{"n": n} for n in range(10)])
        lost = await topics.claim("t", "died", limit=5, lease_for=LAPSE)
        for claim in await topics.claim("t", "lives", limit=10):
            await topics.complete(claim)
        await self.storage.retention.set("message", keep=0)
        assert 10 == await self.storage.retention.prune()
        assert 0 == len(await topics.read("t"))
        await self.elapse(LAPSE + 0.2)
        async with self.open() as other:
            claims = await other.topics.claim("t", "died", limit=20)
            said = [claim.message.message for claim in claims if claim.message]
            assert [{"n": n} for n in range(10)] == sorted(said, key=lambda one: int(one["n"]))
            assert [2] * 5 + [1] * 5 == sorted((c.attempt for c in claims), reverse=True)
            for claim in claims:
                await other.topics.complete(claim)
            for claim in lost:
                with pytest.raises(LeaseLostError):
                    await topics.complete(claim)
            assert [] == await other.topics.claim("t", "died", limit=20)
            assert [] == await other.topics.claim("t", "lives", limit=20)

    async def test_a_group_that_nobody_reads_keeps_no_log(self) -> None:
        """Retention goes by the log alone; its backlog is told, and goes when it leaves."""
        topics = self.storage.topics
        for group in ("gone", "lives"):
            await topics.subscribe("t", group)
        await topics.publish_many("t", range(300))
        await self.storage.retention.set("message", keep=10)
        for claim in await topics.claim("t", "lives", limit=300):
            await topics.complete(claim)
        assert 290 == await self.storage.retention.prune()

        assert [*range(290, 300)] == [m.message for m in await topics.read("t", limit=100)]
        assert 300 == await topics.lag("t", "gone")
        assert await topics.unsubscribe("t", "gone")
        assert 0 == await topics.lag("t", "gone")
        await topics.publish("t", "later")
        claims = await topics.claim("t", "lives", limit=10)
        assert ["later"] == [claim.message.message for claim in claims if claim.message]

    # --- writes that come late -----------------------------------------------------------

    @pytest.mark.parametrize("how", ["complete", "fail", "release", "renew"])
    async def test_late_reports_raise_no_ghost(self, how: str) -> None:
        """What ended and was deleted stays gone, whatever its former holder still says."""
        keep = {"completed_for": 0, "runs_for": 0}
        async with self.open(retention=keep) as late, self.open(retention=keep) as other:
            await late.jobs.add("q", 1, id="a")
            [old] = await late.jobs.claim("q", lease_for=LAPSE)
            await self.elapse(LAPSE + 0.2)
            [new] = await other.jobs.claim("q", lease_for=60.0)
            await other.jobs.complete(new, "out")
            await other.runs.flush()
            await other.maintenance.run_once()
            old.run.log("info", "late")
            old.run.progress(50, "late")
            if how == "renew":
                assert [False] == await late.jobs.renew([old], lease_for=60.0)
            else:
                ends: dict[str, Callable[[], Awaitable[Any]]] = {
                    "complete": lambda: late.jobs.complete(old, "late"),
                    "fail": lambda: late.jobs.fail(old, "late"),
                    "release": lambda: late.jobs.release(old),
                }
                with pytest.raises(LeaseLostError):
                    await ends[how]()
            old.run.log("info", "later")
            old.run.finish("later")
            await late.runs.flush()
            for _ in range(50):
                # An end is dated by an estimate of the clock, which may be a little ahead,
                # and somebody else may be at pruning.
                await other.maintenance.prune()
                if not await self.rows():
                    break
                await self.elapse(0.2)

            assert {} == await self.rows()
            assert [] == list(await other.hot.live.active())
            assert [] == list(await other.hot.broker.queues())
            again = await other.jobs.add("q", 2, id="a")
            assert (False, 0) == (again.duplicate, again.attempt_made)
            [claim] = await late.jobs.claim("q")
            assert (1, 2) == (claim.attempt, claim.data)
            assert same(2, claim.data)
