"""``oqron dlq``: jobs whose attempts are exhausted."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import click

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
    print_json,
    print_line,
    print_page,
    print_table,
    short_time_text,
    tracked,
)
from oqron_core.cli._queues import require_queue
from oqron_core.exceptions import ConflictError
from oqron_core.models import Job
from oqron_core.planes.values import Page
from oqron_core.storage import Storage


__all__ = ["dlq"]

_PAGE = 500


@click.group()
@common_options
def dlq() -> None:
    """Look at dead letters, and give them another chance."""


@dlq.command(name="list")
@click.argument("queue", required=False)
@page_options
@common_options
@json_option
@click.pass_obj
def list_letters(
    invocation: Invocation, *, queue: str | None, limit: int, after: str | None, as_json: bool
) -> None:
    """List the dead letters of QUEUE; without it, how many each queue has."""
    if queue is None:
        _list_queues(invocation, as_json=as_json)
        return

    async def read() -> Page[Job]:
        async with opened(invocation) as storage:
            return await storage.dead_letters.query(queue, limit=limit, after=after)

    page = run_async(read())
    columns = [
        Column("id", style="cyan", whole=True),
        Column("tries", right=True),
        Column("died", whole=True),
        Column("reason", style="red"),
        Column("last error"),
    ]
    print_page(
        page,
        columns,
        lambda job: (
            job.id,
            job.attempt_made,
            short_time_text(job.dead_at),
            job.reason,
            job.error,
        ),
        empty=f"the queue {queue!r} has no dead letter",
        as_json=as_json,
    )


def _list_queues(invocation: Invocation, *, as_json: bool) -> None:
    async def read() -> dict[str, int]:
        async with opened(invocation) as storage:
            return await storage.dead_letters.counts()

    found = run_async(read())
    if as_json:
        print_json({"items": [{"queueName": name, "dead": dead} for name, dead in found.items()]})
        return
    columns = [Column("queue", style="cyan", whole=True), Column("dead", right=True, style="red")]
    print_table(columns, list(found.items()), empty="no queue has a dead letter")


@attrs.define
class _Requeued:
    """What became of each dead letter."""

    done: list[str] = attrs.field(factory=list)
    missing: list[str] = attrs.field(factory=list)
    taken: list[str] = attrs.field(factory=list)


@dlq.command()
@click.argument("queue")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="Every dead letter of the queue.")
@common_options
@json_option
@click.pass_obj
def requeue(
    invocation: Invocation, *, queue: str, ids: tuple[str, ...], everything: bool, as_json: bool
) -> None:
    """Make dead letters of QUEUE jobs again, with fresh attempts."""
    if bool(ids) == everything:
        msg = "name the dead letters by ID, or take --all"
        raise click.UsageError(msg)

    async def change() -> _Requeued:
        async with opened(invocation) as storage:
            named = await _ids(storage, queue) if everything else list(dict.fromkeys(ids))
            if not named:
                await require_queue(storage, queue)
            return await _requeue(storage, queue, named)

    result = run_async(change())
    if as_json:
        print_json(
            {
                "queueName": queue,
                "requeued": result.done,
                "missing": result.missing,
                "taken": result.taken,
            }
        )
    elif result.done or everything:
        again = "is a job again" if len(result.done) == 1 else "are jobs again"
        print_line(f"{counted(len(result.done), 'dead letter')} of {queue} {again}")
    _complain(queue, result)


async def _ids(storage: Storage, queue: str) -> list[str]:
    # All ids first: a letter that dies again while this goes on is not taken twice.
    ids: list[str] = []
    after: str | None = None
    while True:
        page = await storage.dead_letters.query(queue, limit=_PAGE, after=after)
        ids.extend(job.id for job in page)
        after = page.next
        if after is None:
            return ids


async def _requeue(storage: Storage, queue: str, ids: Sequence[str]) -> _Requeued:
    result = _Requeued()
    for job_id in tracked(ids, f"requeueing {queue}"):
        try:
            job = await storage.dead_letters.requeue(queue, job_id)
        except ConflictError:
            result.taken.append(job_id)
        else:
            (result.missing if job is None else result.done).append(job_id)
    return result


def _complain(queue: str, result: _Requeued) -> None:
    problems = []
    if result.missing:
        problems.append(f"no such dead letter: {', '.join(result.missing)}")
    if result.taken:
        problems.append(
            f"the queue has a job of that id again, cancel it first: {', '.join(result.taken)}"
        )
    if problems:
        msg = f"{'; '.join(problems)}; oqron dlq list {queue} shows what is there"
        raise click.ClickException(msg)
