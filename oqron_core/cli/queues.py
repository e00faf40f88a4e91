"""``oqron queues``: every queue at a glance."""

from __future__ import annotations

import asyncio

from typing import Any, Final

import click

from oqron_core.cli._invocation import (
    Invocation,
    common_options,
    json_option,
    opened,
    run_async,
)
from oqron_core.cli._output import Column, print_json, print_table
from oqron_core.cli._queues import queues_with_jobs
from oqron_core.models import JobStatus
from oqron_core.protocol.lanes import is_topic_queue
from oqron_core.protocol.pauses import Pause
from oqron_core.storage import Storage


__all__ = ["queues"]

# A dead letter is counted by itself, so no job is ever shown as failed.
_ALWAYS: Final = (
    JobStatus.WAITING,
    JobStatus.DELAYED,
    JobStatus.ACTIVE,
    JobStatus.HELD,
    JobStatus.COMPLETED,
    JobStatus.CANCELLED,
)
_AT_ONCE: Final = 8


@click.command()
@common_options
@json_option
@click.pass_obj
def queues(invocation: Invocation, *, as_json: bool) -> None:
    """Show every queue in one line: its jobs, its dead letters, whether it is paused.

    What is delivered to the groups of topics is in oqron topics groups.
    """

    async def read() -> list[dict[str, Any]]:
        async with opened(invocation) as storage:
            return await _overview(storage)

    rows = run_async(read())
    if as_json:
        print_json({"items": rows})
        return
    columns = [
        Column("queue", style="cyan", whole=True),
        *(Column(str(status), right=True) for status in _ALWAYS),
        Column("dead", right=True, style="red"),
        Column(""),
    ]
    table = [
        (row["queueName"], *(row[status] for status in _ALWAYS), row["dead"], _state(row))
        for row in rows
    ]
    print_table(columns, table, empty="no queue has a job")


def _state(row: dict[str, Any]) -> str:
    if not row["paused"]:
        return ""
    said = "paused" if row["behaviour"] is None else f"paused ({row['behaviour']})"
    return f"{said}: {row['reason']}" if row["reason"] else said


async def _overview(storage: Storage) -> list[dict[str, Any]]:
    names = [name for name in await queues_with_jobs(storage) if not is_topic_queue(name)]
    dead = await storage.dead_letters.counts()
    pauses = await _pauses(storage)
    rows: list[dict[str, Any]] = []
    for start in range(0, len(names), _AT_ONCE):
        part = names[start : start + _AT_ONCE]
        counted = await asyncio.gather(*(storage.jobs.counts(name) for name in part))
        for name, counts in zip(part, counted, strict=True):
            pause = pauses.get(name)
            rows.append(
                {
                    "queueName": name,
                    **counts,
                    "dead": dead.get(name, 0),
                    "paused": pause is not None,
                    "behaviour": None if pause is None else pause.behaviour,
                    "reason": None if pause is None else pause.reason,
                }
            )
    return rows


async def _pauses(storage: Storage) -> dict[str, Pause]:
    found: dict[str, Pause] = {}
    after: str | None = None
    while True:
        page = await storage.controls.query("queue", paused=True, limit=1000, after=after)
        found.update((pause.name, pause) for pause in page)
        after = page.next
        if after is None:
            return found
