"""What the storage holds when the work is done: every number is read from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import attrs

from oqron_core.cli.demo._crew import Death
from oqron_core.cli.demo._equality import Ledger
from oqron_core.cli.demo._items import Item
from oqron_core.models import Job, Run
from oqron_core.planes.values import Query
from oqron_core.storage import Storage


__all__ = ["Facts", "Reading", "compare_stored", "read_facts", "readings"]

_RUNS: Final = "runs"
_PAGE: Final = 500


@attrs.frozen
class Reading:
    """
    How a number was read.

    Attributes:
        call: The call that gave it.
        sql: The same for who has only SQL; None where the durable plane has none.
    """

    call: str
    sql: str | None = None


@attrs.frozen(kw_only=True)
class Facts:
    """
    What a person would look at.

    Attributes:
        jobs: For each queue the jobs by status.
        dead: For each queue that has some, its dead letters.
        runs_per_job: For a number of runs, how many jobs have it.
        runs_without_job: Runs that belong to no job.
        runs: How many runs there are.
        story: The job whose timeline is told, with its runs, the first in front.
        letters: The dead letters.
        heartbeat: The run that has no job.
        later: The job that has no run.
        taken_over: The job that the dead worker held, as it is now.
        took_ms: From the start of the first run to the end of the last.
    """

    jobs: dict[str, dict[str, int]]
    dead: dict[str, int]
    runs_per_job: dict[int, int]
    runs_without_job: int
    runs: int
    story: tuple[Job, list[Run]] | None
    letters: list[Job]
    heartbeat: Run | None
    later: Job | None
    taken_over: Job | None
    took_ms: int


async def read_facts(
    storage: Storage, queues: Sequence[str], later: Item, death: Death, *, heartbeat: str
) -> Facts:
    """Read everything that the report shows."""
    await storage.runs.flush()
    queues = [*queues, later.queue]
    jobs = {queue: await storage.jobs.counts(queue) for queue in queues}
    dead = await storage.dead_letters.counts()
    runs = await storage.durable.count(Query(namespace=_RUNS), by="jobId")
    without = runs.pop("", 0)
    per_job = Counter(runs.values())
    total = sum(sum(counts.values()) for counts in jobs.values()) + sum(dead.values())
    per_job[0] = total - len(runs)
    held = death.claims[0].lease if death.claims else None
    return Facts(
        jobs=jobs,
        dead=dead,
        runs_per_job=dict(sorted(per_job.items())),
        runs_without_job=without,
        runs=sum(runs.values()) + without,
        story=await _story(storage, queues, runs),
        letters=[job for queue in dead for job in await storage.dead_letters.query(queue)],
        heartbeat=await storage.runs.get(heartbeat),
        later=await storage.jobs.get(later.queue, later.id),
        taken_over=None if held is None else await _find(storage, held.queue, held.id),
        took_ms=await _took(storage),
    )


async def _find(storage: Storage, queue: str, job_id: str) -> Job | None:
    job = await storage.jobs.get(queue, job_id)
    return await storage.dead_letters.get(queue, job_id) if job is None else job


async def _story(
    storage: Storage, queues: Sequence[str], runs: dict[str, int]
) -> tuple[Job, list[Run]] | None:
    """Find a job that failed twice and then succeeded; else the one with most runs."""
    most: tuple[int, Job] | None = None
    for job_id in sorted(runs, key=lambda key: -runs[key]):
        if most is not None and runs[job_id] < most[0]:
            break
        for queue in queues:
            job = await storage.jobs.get(queue, job_id)
            if job is None or job.status != "completed":
                continue
            found = await _runs_of(storage, job)
            if [run.error for run in found].count("lease lapsed") == 0:
                return job, found
            most = most or (runs[job_id], job)
    return None if most is None else (most[1], await _runs_of(storage, most[1]))


async def _runs_of(storage: Storage, job: Job) -> list[Run]:
    page = await storage.runs.query(name=job.queue_name, job_id=job.id)
    return sorted(page, key=lambda run: run.attempts)


async def _took(storage: Storage) -> int:
    ends: dict[str, int] = {}
    for field, way in (("startedAt", "asc"), ("endedAt", "desc")):
        query = Query(
            namespace=_RUNS,
            where=[("module", "=", "queue")],
            order_by=[(field, way)],
            limit=1,
            fields=(field,),
        )
        for record in await storage.durable.query(query):
            ends[field] = record.field(field)
    return max(0, ends.get("endedAt", 0) - ends.get("startedAt", 0)) if len(ends) > 1 else 0


async def compare_stored(storage: Storage, queues: Sequence[str], ledger: Ledger) -> None:
    """Compare the payloads of what the work left: jobs, runs, dead letters."""
    for queue in queues:
        await _each(storage.jobs.query, ledger, "job", queue)
        await _each(storage.dead_letters.query, ledger, "dead letter", queue)
        after: str | None = None
        while True:
            page = await storage.runs.query(name=queue, limit=_PAGE, after=after)
            for run in page:
                ledger.compare("run", run.job_id or "", run.input)
            after = page.next
            if after is None:
                break


async def _each(query: Any, ledger: Ledger, place: str, queue: str) -> None:
    after: str | None = None
    while True:
        page = await query(queue, limit=_PAGE, after=after)
        for job in page:
            ledger.compare(place, job.id, job.data)
        after = page.next
        if after is None:
            return


_SCOPE: Final = "project = :project AND environment = :environment"
_READINGS: Final = {
    "jobs": Reading(
        "storage.jobs.counts(queue), storage.dead_letters.counts()",
        "SELECT namespace, value->>'status', count(*) FROM oqron_jobs WHERE :scope "
        "AND record_kind IN ('job', 'dlq') GROUP BY 1, 2",
    ),
    "runs": Reading(
        'storage.durable.count(Query(namespace="runs"), by="jobId")',
        "SELECT value->>'jobId', count(*) FROM oqron_runs WHERE :scope "
        "AND namespace = 'runs' GROUP BY 1",
    ),
    "timeline": Reading(
        "storage.runs.query(name=queue, job_id=id)",
        "SELECT value FROM oqron_runs WHERE :scope AND namespace = 'runs' "
        "AND value->>'jobId' = :id ORDER BY (value->>'startedAt')::numeric",
    ),
    "deadLetters": Reading(
        "storage.dead_letters.query(queue)",
        "SELECT namespace, value FROM oqron_jobs WHERE :scope AND record_kind = 'dlq'",
    ),
    "throughput": Reading(
        "storage.durable.query(runs by startedAt and by endedAt)",
        "SELECT max((value->>'endedAt')::numeric) - min((value->>'startedAt')::numeric) "
        "FROM oqron_runs WHERE :scope AND value->>'module' = 'queue'",
    ),
}


def readings(prefix: str | None) -> dict[str, Reading]:
    """
    Say how each part of the report was read.

    Args:
        prefix: The table prefix, where the durable plane is one for SQL.
    """
    return {
        name: attrs.evolve(reading, sql=None if prefix is None else _sql(reading, prefix))
        for name, reading in _READINGS.items()
    }


def _sql(reading: Reading, prefix: str) -> str:
    # Shown to people, never run.
    text = (reading.sql or "").replace(":scope", _SCOPE)
    return text.replace("oqron_", f"{prefix}_")
