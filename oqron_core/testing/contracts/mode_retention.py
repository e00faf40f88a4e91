"""The contract of retention, in a whole mode."""

from __future__ import annotations

from typing import Any

import pytest

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import Insert, Patch, Put, Query
from oqron_core.protocol.retaining import Prunable, Rule
from oqron_core.testing.contracts.base import gather
from oqron_core.testing.contracts.mode import ModeBase


__all__ = ["RetentionContract"]


class RetentionContract(ModeBase):
    """What has ended goes by rule, and nothing else ever does."""

    # --- helpers ------------------------------------------------------------------------

    async def ended_jobs(self, count: int, queue: str = "q") -> list[str]:
        """Complete jobs one after the other; gives their ids, oldest end first."""
        ids = []
        for n in range(count):
            await self.storage.jobs.add(queue, n, id=f"j{n:03d}")
            (claim,) = await self.storage.jobs.claim(queue)
            await self.storage.jobs.complete(claim)
            ids.append(claim.job.id)
            await self.elapse(0.002)
        return ids

    async def ids_in(self, namespace: str) -> list[str]:
        """Give the ids of a namespace, in order."""
        page = await self.storage.durable.query(Query(namespace=namespace, limit=10_000))
        return [record.id for record in page]

    async def foreseen(self) -> dict[tuple[str, str], int]:
        """Give the preview's counts; its bytes must be there."""
        found: list[Prunable] = await self.storage.retention.preview()
        assert all(one.size > 0 and one.count > 0 for one in found)
        return {(one.kind, one.namespace): one.count for one in found}

    async def every_open_state(self, queue: str) -> set[str]:
        """Make one job in every state that has not ended; gives their ids."""
        jobs = self.storage.jobs
        await jobs.add(queue, 1, id="active")
        await jobs.claim(queue, lease_for=600.0)
        await jobs.add(queue, 1, id="waiting")
        await jobs.add(queue, 1, id="delayed", delay=600.0)
        await self.storage.durable.write(
            [
                Insert(f"queue_job:{queue}", "held", {"id": "held", "status": "held"}),
                # Whatever else it says: it has not ended.
                Patch(f"queue_job:{queue}", "waiting", set={"finishedAt": 1}),
            ]
        )
        return {"active", "waiting", "delayed", "held"}

    # --- rules ----------------------------------------------------------------------------

    async def test_rules_are_kept_for_everyone(self) -> None:
        """Set, replaced, listed and removed, through any storage."""
        retention = self.storage.retention
        one = await retention.set("run", keep_for=60.0)
        await retention.set("job", "queue_job:a*", keep=5)
        two = await retention.set("job", "queue_job:a*", keep=7, keep_for=0)
        long = f"queue_job:{'x' * 255}"
        three = await retention.set("job", long, keep=0)
        async with self.open() as other:
            rules = await other.retention.rules()
        assert [two, three, one] == rules
        assert ("job", "queue_job:a*", 0, 7) == (two.kind, two.namespace, two.keep_for, two.keep)
        assert await retention.unset("job", long)
        assert not await retention.unset("job", long)

        assert [two, one] == await retention.rules()
        assert isinstance(one, Rule)

    async def test_what_is_no_rule_is_refused(self) -> None:
        """Kinds that never end, foreign namespaces, no limit, bad limits."""
        set_rule: Any = self.storage.retention.set
        for kind in ("definition", "control", "state", "record", "jobs", None):
            with pytest.raises(InvalidValueError):
                await set_rule(kind, keep=1)
        wrong: list[dict[str, Any]] = [
            {}, {"keep": -1}, {"keep": 1.5}, {"keep": True}, {"keep_for": -1.0},
            {"keep_for": float("nan")}, {"keep_for": "1"}, {"namespace": "queue_dlq:q", "keep": 1},
            {"namespace": "queue_j*", "keep": 1}, {"namespace": "", "keep": 1},
        ]  # fmt: skip
        for options in wrong:
            with pytest.raises(InvalidValueError):
                await set_rule("job", **options)

        assert [] == await self.storage.retention.rules()

    async def test_the_most_exact_rule_counts_alone(self) -> None:
        """A whole name before the longest beginning, before all of the kind."""
        for queue in ("mail", "mail-a", "other"):
            await self.ended_jobs(4, queue)
        set_rule = self.storage.retention.set
        await set_rule("job", keep=3)
        await set_rule("job", "queue_job:mail*", keep=2)
        await set_rule("job", "queue_job:mail", keep=1)
        await self.storage.retention.prune()

        left = {q: len(await self.ids_in(f"queue_job:{q}")) for q in ("mail", "mail-a", "other")}
        assert {"mail": 1, "mail-a": 2, "other": 3} == left

    # --- what goes --------------------------------------------------------------------------

    async def test_the_oldest_go_by_count(self) -> None:
        """As many as are beyond the limit, in the order of their end, and no more."""
        ids = await self.ended_jobs(12)
        await self.storage.retention.set("job", keep=5)
        assert {("job", "queue_job:q"): 7} == await self.foreseen()
        assert 7 == await self.storage.retention.prune()
        assert ids[7:] == await self.ids_in("queue_job:q")
        assert {} == await self.foreseen()

        assert 0 == await self.storage.retention.prune()

    async def test_ends_at_the_same_instant_are_counted_exactly(self) -> None:
        """Ties go by id, and the limit is met to the record."""
        at = await self.storage.durable.now()
        writes = [
            Put("queue_dlq:q", f"d{n}", {"id": f"d{n}", "status": "failed", "deadAt": at})
            for n in range(9)
        ]
        await self.storage.durable.write(writes)
        await self.storage.retention.set("dlq", keep=4)
        assert {("dlq", "queue_dlq:q"): 5} == await self.foreseen()

        assert 5 == await self.storage.retention.prune()
        assert ["d5", "d6", "d7", "d8"] == await self.ids_in("queue_dlq:q")

    async def test_the_old_go_by_age(self) -> None:
        """From the end on; what is younger stays, and the edge is exact."""
        now = await self.storage.durable.now()
        writes = [
            Put("runs", f"r{age}", {"id": f"r{age}", "status": "failed", "endedAt": now - age})
            for age in (0, 59_000, 60_000, 90_000)
        ]
        await self.storage.durable.write(writes)
        await self.storage.retention.set("run", keep_for=60.0)
        if self.manual_clock:
            assert {("run", "runs"): 2} == await self.foreseen()

        assert 2 == await self.storage.retention.prune()
        assert ["r0", "r59000"] == await self.ids_in("runs")

    async def test_either_limit_deletes(self) -> None:
        """Age and count together, foreseen without counting one record twice."""
        now = await self.storage.durable.now()
        for name, keep_for, keep, left in (("a", 25.0, 4, 3), ("b", 45.0, 2, 2)):
            writes = [
                Put(f"module_logs:{name}", f"l{n}", {"id": f"l{n}", "ts": now - n * 10_000})
                for n in range(6)
            ]
            await self.storage.durable.write(writes)
            await self.storage.retention.set(
                "log", f"module_logs:{name}", keep_for=keep_for, keep=keep
            )
            assert {("log", f"module_logs:{name}"): 6 - left} == await self.foreseen()
            assert 6 - left == await self.storage.retention.prune()
            assert [f"l{n}" for n in range(left)] == await self.ids_in(f"module_logs:{name}")

    async def test_at_once_and_none_at_all(self) -> None:
        """0 seconds and 0 records both take everything that has ended."""
        for name, limits in (("a", {"keep_for": 0}), ("b", {"keep": 0})):
            await self.ended_jobs(3, name)
            await self.storage.retention.set("job", f"queue_job:{name}", **limits)
            assert 3 == await self.storage.retention.prune()
            assert [] == await self.ids_in(f"queue_job:{name}")

    async def test_what_waits_or_runs_is_never_touched(self) -> None:
        """Under the hardest rules for everything, in every open state."""
        kept = await self.every_open_state("q")
        run = await self.storage.runs.start(name="r", module="m", trigger="t")
        await self.storage.runs.flush()
        await self.storage.schedules.put("cron", "n", next_run_at=1)
        await self.storage.controls.pause("worker", "w")
        await self.storage.durable.write(
            [
                Put("runs", "running", {"id": "running", "status": "running", "endedAt": 1}),
                Put("runs", "queued", {"id": "queued", "status": "queued", "startedAt": 1}),
                Put("custom", "c", {"finishedAt": 1, "status": "completed"}),
            ]
        )
        for kind in ("job", "dlq", "run", "message", "log"):
            await self.storage.retention.set(kind, keep_for=0, keep=0)
        await self.elapse(0.01)
        assert {} == await self.foreseen()

        assert 0 == await self.storage.retention.prune()
        assert kept == set(await self.ids_in("queue_job:q"))
        assert {"running", "queued"} <= set(await self.ids_in("runs"))
        assert await self.storage.runs.get(run.id) is not None
        assert await self.ids_in("cron") == ["n"]
        assert await self.ids_in("custom") == ["c"]
        assert await self.ids_in("worker") == ["w"]

    async def test_what_has_expired_is_foreseen_and_goes(self) -> None:
        """By kind and namespace, also where a namespace holds nothing else."""
        now = await self.storage.durable.now()
        writes = [Put("queue_job:a", f"x{n}", {"status": "completed"}, now + 200) for n in range(3)]
        writes += [Put("queue_job:a", "stays", {"status": "completed"}, now + 600_000)]
        writes += [Put("runs", f"x{n}", {"status": "failed"}, now + 200) for n in range(2)]
        await self.storage.durable.write(writes)
        assert {} == await self.foreseen()
        await self.elapse(0.4)
        found = await self.foreseen()
        if not found and not self.manual_clock:
            return  # the server removes what has expired by itself

        assert {("job", "queue_job:a"): 3, ("run", ""): 2} == found
        assert 5 == await self.storage.retention.prune()
        assert ["stays"] == await self.ids_in("queue_job:a")
        assert {} == await self.foreseen()

    async def test_what_has_expired_is_not_foreseen_twice(self) -> None:
        """A rule that covers an expired record adds nothing for it."""
        now = await self.storage.durable.now()
        value = {"status": "completed", "finishedAt": now - 5000}
        writes = [Put("queue_job:a", f"x{n}", value, now + 200) for n in range(3)]
        await self.storage.durable.write([*writes, Put("queue_job:a", "y", value)])
        await self.storage.retention.set("job", keep_for=1.0)
        await self.elapse(0.4)
        found = await self.foreseen()

        assert sum(found.values()) == await self.storage.retention.prune()
        assert [] == await self.ids_in("queue_job:a")

    async def test_the_log_stays_while_a_group_reads_it(self) -> None:
        """A group that begins with the first message gets all of them before they go."""
        topics = self.storage.topics
        await topics.subscribe("t", "live")
        for n in range(5):
            await topics.publish("t", n)
        await self.storage.retention.set("message", keep=0)
        await self.storage.durable.write(
            [Put("topic_groups:t", "reading", {"name": "reading", "caughtUp": False})]
        )
        assert 0 == await self.storage.retention.prune()
        await self.storage.durable.write(
            [Patch("topic_groups:t", "reading", set={"caughtUp": True})]
        )

        assert 5 == await self.storage.retention.prune()
        claims = await topics.claim("t", "live", limit=10)
        assert [0, 1, 2, 3, 4] == [claim.message.message for claim in claims if claim.message]

    # --- how it goes ---------------------------------------------------------------------------

    async def test_steps_are_bounded_and_values_stay_where_they_are(self) -> None:
        """No call deletes more than a batch or reads a payload; one round takes all."""
        now = await self.storage.durable.now()
        value = {"status": "completed", "finishedAt": now - 9, "data": "x" * 100}
        ids = [f"{n:05d}" for n in range(450)]
        await self.storage.durable.write([Put("queue_job:q", i, value) for i in ids])
        await self.storage.retention.set("job", keep=20)
        async with self.open(self.faults, maintenance={"batch": 100}) as storage:
            self.faults.reset()
            assert 430 == await storage.retention.prune()
        pages = [c.args[0] for c in self.faults.calls if c.name == "durable.query"]
        limits = [c.kwargs["limit"] for c in self.faults.calls if c.name == "durable.prune"]

        assert {100} == set(limits)
        assert {("finishedAt",)} == {p.fields for p in pages if p.namespace == "queue_job:q"}
        assert {100} == {p.limit for p in pages if p.namespace == "queue_job:q"}
        assert ids[430:] == await self.ids_in("queue_job:q")

    async def test_several_at_once_delete_no_more_than_one(self) -> None:
        """Pruners, and workers that end jobs meanwhile: the newest are always there."""
        await self.ended_jobs(30)
        await self.storage.retention.set("job", keep=10)
        async with self.open() as other:
            await gather(
                [
                    self.storage.retention.prune(),
                    other.retention.prune(),
                    self.storage.retention.prune(),
                ]
            )
            await other.retention.prune()

        assert [f"j{n:03d}" for n in range(20, 30)] == await self.ids_in("queue_job:q")

    async def test_a_record_that_comes_back_is_not_deleted(self) -> None:
        """An id that died, was requeued and waits is safe under a rule for dead letters."""
        await self.storage.jobs.add("q", 1, id="a", max_attempts=1)
        (claim,) = await self.storage.jobs.claim("q")
        await self.storage.jobs.fail(claim, "boom")
        await self.storage.retention.set("dlq", keep=0)
        await self.storage.retention.set("job", keep=0)
        await self.storage.dead_letters.requeue("q", "a")

        assert 0 == await self.storage.retention.prune()
        assert 1 == len(await self.storage.jobs.claim("q"))

    async def test_it_goes_without_the_hot_plane(self) -> None:
        """The lock only saves work."""
        await self.ended_jobs(3)
        await self.storage.retention.set("job", keep=1)
        self.faults.down("hot.*")

        assert 2 == await self.storage.retention.prune()
