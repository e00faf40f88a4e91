"""The contract of what lives where: each row of the storage model's table."""

from __future__ import annotations

import asyncio

from oqron_core.planes import FixedWindow, Query
from oqron_core.taxonomy import RecordKind, Table, classify_namespace, table_for_kind
from oqron_core.testing.contracts.mode import ModeBase


__all__ = ["PlacesContract"]

KINDS = {
    "queue_job:emails": ("job", Table.JOBS),
    "queue_dlq:emails": ("dlq", Table.JOBS),
    "runs": ("run", Table.RUNS),
    "topic_msg:orders": ("message", Table.RUNS),
    "topic_groups:orders": ("control", Table.RECORDS),
    "topic_state": ("control", Table.RECORDS),
    "queue": ("control", Table.RECORDS),
    "cron": ("definition", Table.RECORDS),
    "schedule": ("definition", Table.RECORDS),
    "webhook_endpoints:partner": ("definition", Table.RECORDS),
    "webhook_cb": ("state", Table.RECORDS),
    "module_logs:billing": ("log", Table.RECORDS),
}
"""Where one of each is found, by the namespace it is written to."""


class PlacesContract(ModeBase):
    """Writes one of each through the services, and looks where it went."""

    async def one_of_each(self) -> None:
        """Use every service once."""
        storage = self.storage
        await storage.jobs.add("emails", {"to": "a"}, id="kept")
        await storage.jobs.add("emails", {"to": "b"}, id="dead", max_attempts=1, priority=-1)
        (claim,) = await storage.jobs.claim("emails")
        await storage.jobs.fail(claim, "no")
        await storage.runs.flush()
        await storage.topics.subscribe("orders", "billing")
        await storage.topics.publish("orders", {"id": 1})
        await storage.jobs.pause("emails")
        await storage.schedules.put("cron", "nightly", next_run_at=4_102_444_800_000)
        await storage.schedules.put("schedule", "once", next_run_at=4_102_444_800_000)
        await storage.definitions.put("webhook_endpoints:partner", "main", {"url": "x"})
        await storage.breakers.failure("partner")
        storage.logs.write("billing", "info", "hello")
        await storage.logs.flush()

    async def test_each_record_is_where_the_model_says(self) -> None:
        """Namespace, kind and table of one of each."""
        await self.one_of_each()
        for namespace, (kind, table) in KINDS.items():
            page = await self.storage.durable.query(Query(namespace=namespace))
            assert page.items, f"nothing in {namespace}"
            assert {kind} == {record.kind for record in page}, namespace
            assert kind == classify_namespace(namespace), namespace
            assert table is table_for_kind(kind), namespace

    async def test_every_kind_is_counted_by_its_namespaces(self) -> None:
        """What a board asks: how much is there of each kind, and where."""
        await self.one_of_each()
        for kind in RecordKind:
            found = await self.storage.durable.count(Query(kind=kind), by="namespace")
            wanted = {name for name, (its, _) in KINDS.items() if its == kind}
            assert wanted <= set(found), kind
            assert all(classify_namespace(name) == kind for name in found), kind

    async def test_what_is_ephemeral_never_becomes_a_record(self) -> None:
        """Cache entries, counters, bans, locks, leaders and claims are hot only."""
        storage = self.storage
        before = await self.records()
        await storage.cache.set("k", {"v": 1}, ttl=60.0, tags=("t",))
        await storage.limits.take("ip:1", FixedWindow(10, per=60.0))
        await storage.limits.ban("ip:2", 60.0)
        async with storage.locks.hold("lock"), storage.locks.lead("cron"):
            await storage.hot.counters.increment("hits", expires_in=60.0)
            await asyncio.sleep(0)
            assert before == await self.records()

    async def records(self) -> int:
        """Count every record of the scope."""
        total = 0
        for kind in RecordKind:
            total += await self.storage.durable.count(Query(kind=kind))
        return total

    async def test_a_job_has_no_run_and_a_run_no_job_until_they_do(self) -> None:
        """Jobs and runs are counted apart: none, three, and one without a job."""
        storage = self.storage
        await storage.jobs.add("emails", 1, id="job")
        assert 0 == len(await storage.runs.query(job_id="job"))
        for _ in range(2):
            (claim,) = await storage.jobs.claim("emails")
            await storage.jobs.fail(claim, "no", retry_in=0.0)
        (claim,) = await storage.jobs.claim("emails")
        await storage.jobs.complete(claim)
        (await storage.runs.start("heartbeat", module="cron", trigger="cron")).finish()
        await storage.runs.flush()

        attempts = await storage.runs.query(name="emails", job_id="job")
        assert ["completed", "failed", "failed"] == sorted(run.status for run in attempts)
        assert [1, 2, 3] == sorted(run.attempts for run in attempts)
        (beat,) = await storage.runs.query(module="cron")
        assert (None, "completed") == (beat.job_id, beat.status)
