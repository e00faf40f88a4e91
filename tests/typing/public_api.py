"""
What type checkers say about the public names, as somebody uses them.

Never run, only checked: by mypy, strictly, and by pyright.
"""

from __future__ import annotations

from typing import assert_type

from oqron_core import (
    Backoff,
    Claim,
    DurablePlane,
    HotPlane,
    Job,
    JobSpec,
    Mode,
    Page,
    RecordKind,
    Run,
    Settings,
    Storage,
    Table,
    classify_namespace,
    load_settings,
    open_storage,
    table_for_kind,
)
from oqron_core.testing.servers import postgres_server, redis_server


def taxonomy() -> None:
    """Give members of enums for plain strings, which they also are."""
    assert_type(classify_namespace("queue_job:emails"), RecordKind)
    assert_type(table_for_kind("job"), Table)
    text: str = classify_namespace("runs")
    text += table_for_kind(RecordKind.JOB)


async def jobs(storage: Storage) -> None:
    """Follow a job through its life."""
    job = await storage.jobs.add(
        "emails",
        {"to": ["a@x.com"]},
        delay=1.5,
        max_attempts=3,
        backoff=Backoff.exponential(1.0, cap=300.0),
        tags=("welcome",),
    )
    assert_type(job, Job)
    more = await storage.jobs.add_many("emails", [None, 1, JobSpec({"to": "b"}, id="b")])
    assert_type(more, list[Job])
    claims = await storage.jobs.claim("emails", limit=10, lease_for=30.0, worker="w1")
    assert_type(claims, list[Claim])
    for claim in claims:
        assert_type(claim.lease.token, int)
        claim.run.log("info", "a line")
        claim.run.progress(50, "half")
        await storage.jobs.complete(claim, output={"delivered": True})
        await storage.jobs.fail(claim, error="SMTP 500", retry_in=None, retry=True)
        await storage.jobs.release(claim, delay=0.0)
    assert_type(await storage.jobs.renew(claims, lease_for=30.0), list[bool])
    assert_type(await storage.jobs.get("emails", job.id), Job | None)
    assert_type(await storage.jobs.query("emails", status="waiting", limit=5), Page[Job])
    assert_type(await storage.dead_letters.query("emails"), Page[Job])


async def runs(storage: Storage) -> None:
    """Record a run that has no job, by calls that are not awaited."""
    run = await storage.runs.start(name="heartbeat", module="cron", trigger="cron")
    run.log("info", "a line")
    run.finish(output=None)
    assert_type(await storage.runs.get(run.id), Run | None)
    assert_type(await storage.runs.query(status="failed", limit=5), Page[Run])


async def opening() -> None:
    """Open a storage from arguments and from settings."""
    async with open_storage(mode="memory", project="my-app", environment="dev") as storage:
        assert_type(storage, Storage)
        assert_type(storage.hot, HotPlane)
        assert_type(storage.durable, DurablePlane)
    settings = load_settings()
    assert_type(settings, Settings)
    async with open_storage(settings, mode=Mode.MEMORY):
        pass


def servers() -> None:
    """Take the URLs of throwaway servers."""
    with redis_server() as redis, postgres_server() as postgres:
        assert_type(redis.url, str)
        assert_type(postgres.url("app"), str)
