"""``oqron jobs``: add, look at, pause and cancel work orders."""

from __future__ import annotations

import sys

from pathlib import Path
from typing import Any

import click

from oqron_core.cli._bulk import add_lines
from oqron_core.cli._durations import duration
from oqron_core.cli._invocation import (
    Invocation,
    common_options,
    json_option,
    opened,
    page_options,
    run_async,
)
from oqron_core.cli._output import (
    Column,
    counted,
    note,
    print_json,
    print_line,
    print_page,
    print_table,
    short_time_text,
    wire,
)
from oqron_core.cli._payload import parse_json
from oqron_core.cli._queues import dead_by_queue, queues_with_jobs, require_queue, unknown_queue
from oqron_core.cli._show import show_job
from oqron_core.models import Control, Job, JobSpec, JobStatus, Run
from oqron_core.planes.values import Page
from oqron_core.storage import Storage


__all__ = ["jobs"]


@click.group()
@common_options
def jobs() -> None:
    """Add jobs, look at them, pause queues, cancel."""


# --- add -------------------------------------------------------------------------


@jobs.command()
@click.argument("queue")
@click.argument("data", required=False)
@click.option("--id", "job_id", help="The id; a new one without it.")
@click.option(
    "--delay", type=duration, metavar="DURATION", help="How long until it may be claimed: 90, 15m."
)
@click.option("--priority", type=int, default=0, show_default=True, help="Lower is sooner.")
@click.option(
    "--max-attempts", type=int, default=3, show_default=True, help="1 means at most once."
)
@click.option("--tag", "tags", multiple=True, help="A label; may be given more than once.")
@click.option("--correlation-id", help="What it belongs to.")
@click.option(
    "--jsonl",
    "lines",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="Add one job per line of this file; - is standard input.",
)
@common_options
@json_option
@click.pass_obj
def add(
    invocation: Invocation,
    *,
    queue: str,
    data: str | None,
    job_id: str | None,
    delay: float | None,
    priority: int,
    max_attempts: int,
    tags: tuple[str, ...],
    correlation_id: str | None,
    lines: Path | None,
    as_json: bool,
) -> None:
    """Add a job to QUEUE whose payload is the JSON text DATA.

    DATA is null where it is left out; - reads it from standard input. With --jsonl,
    every line of a file is the payload of a job.
    """
    spec = JobSpec(
        id=job_id,
        delay=delay,
        priority=priority,
        max_attempts=max_attempts,
        tags=list(tags),
        correlation_id=correlation_id,
    )
    if lines is None:
        run_async(_add_one(invocation, queue, _payload(data), spec, as_json=as_json))
        return
    if data is not None or job_id is not None:
        msg = "--jsonl takes the payloads from the file; leave DATA and --id out"
        raise click.UsageError(msg)
    run_async(_add_lines(invocation, queue, lines, spec, as_json=as_json))


def _payload(data: str | None) -> Any:
    if data is None:
        return None
    return parse_json(sys.stdin.buffer.read() if data == "-" else data, "DATA")


async def _add_one(
    invocation: Invocation, queue: str, payload: Any, spec: JobSpec, *, as_json: bool
) -> None:
    async with opened(invocation) as storage:
        job = await storage.jobs.add(
            queue,
            payload,
            id=spec.id,
            delay=spec.delay,
            priority=spec.priority or 0,
            max_attempts=3 if spec.max_attempts is None else spec.max_attempts,
            tags=spec.tags or (),
            correlation_id=spec.correlation_id,
        )
    if job.duplicate:
        note(f"the queue has a job {job.id!r} already; nothing was changed")
    if not job.published:
        note("the hot plane did not answer: the job is safe, maintenance makes it claimable")
    if as_json:
        document = {**wire(job), "duplicate": job.duplicate, "published": job.published}
        print_json(document)
    else:
        print_line(f"{job.id} {job.status}")


async def _add_lines(
    invocation: Invocation, queue: str, source: Path, spec: JobSpec, *, as_json: bool
) -> None:
    async with opened(invocation) as storage:
        done = await add_lines(storage, queue, source, spec)
    if done.unpublished:
        note(
            f"the hot plane did not answer for {done.unpublished} jobs: they are safe, "
            "maintenance makes them claimable"
        )
    if as_json:
        print_json({"queueName": queue, "added": len(done.ids), "ids": done.ids})
    else:
        print_line(f"{counted(len(done.ids), 'job')} added to {queue}")


# --- look ------------------------------------------------------------------------


@jobs.command(name="list")
@click.argument("queue")
@click.option("--status", type=click.Choice([status.value for status in JobStatus]))
@page_options
@common_options
@json_option
@click.pass_obj
def list_jobs(
    invocation: Invocation,
    *,
    queue: str,
    status: str | None,
    limit: int,
    after: str | None,
    as_json: bool,
) -> None:
    """List jobs of QUEUE in the order of their ids, one page."""

    async def read() -> Page[Job]:
        async with opened(invocation) as storage:
            return await storage.jobs.query(queue, status=status, limit=limit, after=after)

    page = run_async(read())
    of_status = "" if status is None else f" with the status {status}"
    empty = f"no jobs{of_status} in the queue {queue!r}"
    print_page(page, _COLUMNS, _row, empty=empty, as_json=as_json)


_ALWAYS = frozenset({"waiting", "delayed", "active", "completed"})
_COLUMNS = [
    Column("id", style="cyan", whole=True),
    Column("status", whole=True),
    Column("tries", right=True),
    Column("priority", right=True),
    Column("added", whole=True),
    Column("error"),
]


def _row(job: Job) -> tuple[object, ...]:
    return (
        job.id,
        job.status,
        f"{job.attempt_made}/{job.max_attempts}",
        job.priority,
        short_time_text(job.created_at),
        job.error or "",
    )


@jobs.command()
@click.argument("queue")
@click.argument("job_id", metavar="ID")
@common_options
@json_option
@click.pass_obj
def show(invocation: Invocation, *, queue: str, job_id: str, as_json: bool) -> None:
    """Show the job ID of QUEUE, dead or alive, with its runs."""

    async def read() -> tuple[Job | None, Page[Run]]:
        async with opened(invocation) as storage:
            job = await storage.jobs.get(queue, job_id)
            if job is None:
                job = await storage.dead_letters.get(queue, job_id)
            return job, await storage.runs.query(name=queue, job_id=job_id)

    job, page = run_async(read())
    if job is None:
        msg = f"the queue {queue!r} has no job {job_id!r}, alive or dead (see oqron jobs list)"
        raise click.ClickException(msg)
    found = sorted(page, key=lambda run: run.attempts)
    if as_json:
        document = wire(job)
        print_json({"job": document, "runs": [wire(run) for run in found]})
    else:
        show_job(job, found)


@jobs.command()
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@common_options
@json_option
@click.pass_obj
def counts(invocation: Invocation, *, queues: tuple[str, ...], as_json: bool) -> None:
    """Count the jobs of each QUEUE by status; of all queues without one."""

    async def read() -> list[dict[str, Any]]:
        async with opened(invocation) as storage:
            names = list(queues) or await queues_with_jobs(storage)
            return [await _count(storage, name) for name in names]

    rows = run_async(read())
    if as_json:
        print_json({"items": rows})
        return
    shown = [
        status.value
        for status in JobStatus
        if status in _ALWAYS or any(row[status.value] for row in rows)
    ]
    columns = [
        Column("queue", style="cyan", whole=True),
        *(Column(status, right=True) for status in shown),
        Column("dead", right=True, style="red"),
        Column(""),
    ]
    table = []
    for row in rows:
        numbers = (row[status] for status in shown)
        table.append((row["queueName"], *numbers, row["dead"], "paused" if row["paused"] else ""))
    print_table(columns, table, empty="no queue has a job")


async def _count(storage: Storage, queue: str) -> dict[str, Any]:
    control = await storage.controls.get_queue(queue)
    dead = await dead_by_queue(storage, queue)
    return {
        "queueName": queue,
        **await storage.jobs.counts(queue),
        "dead": dead[queue],
        "paused": control is not None and control.paused,
    }


# --- steer -----------------------------------------------------------------------


@jobs.command()
@click.argument("queue")
@click.option("--reason", help="Why, for whoever looks.")
@common_options
@json_option
@click.pass_obj
def pause(invocation: Invocation, *, queue: str, reason: str | None, as_json: bool) -> None:
    """Stop claims of QUEUE; what is being worked on goes on.

    A queue of which nothing is known yet can be paused as well; that is said.
    """

    async def change() -> Control:
        async with opened(invocation) as storage:
            unknown = await unknown_queue(storage, queue)
            control = await storage.jobs.pause(queue, reason=reason)
            if unknown is not None:
                note(f"paused, though {unknown}")
            return control

    _say_control(run_async(change()), as_json=as_json)


@jobs.command()
@click.argument("queue")
@common_options
@json_option
@click.pass_obj
def resume(invocation: Invocation, *, queue: str, as_json: bool) -> None:
    """Allow claims of QUEUE again."""

    async def change() -> Control:
        async with opened(invocation) as storage:
            await require_queue(storage, queue)
            return await storage.jobs.resume(queue)

    _say_control(run_async(change()), as_json=as_json)


def _say_control(control: Control, *, as_json: bool) -> None:
    if as_json:
        print_json(wire(control))
    else:
        print_line(f"{control.name} is {'paused' if control.paused else 'open'}")


@jobs.command()
@click.argument("queue")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@common_options
@json_option
@click.pass_obj
def cancel(invocation: Invocation, *, queue: str, ids: tuple[str, ...], as_json: bool) -> None:
    """Call jobs of QUEUE off, whatever they are doing."""

    async def change() -> dict[str, bool]:
        async with opened(invocation) as storage:
            return {job_id: await storage.jobs.cancel(queue, job_id) for job_id in ids}

    done = run_async(change())
    if as_json:
        print_json({"items": [{"id": key, "cancelled": gone} for key, gone in done.items()]})
    else:
        for job_id in (key for key, gone in done.items() if gone):
            print_line(f"{job_id} cancelled")
    left = [job_id for job_id, gone in done.items() if not gone]
    if left:
        msg = f"not there, or ended already: {', '.join(left)}; oqron jobs show says which"
        raise click.ClickException(msg)
