"""``oqron runs``: the receipts of executions."""

from __future__ import annotations

from typing import Any

import click

from oqron_core.cli._instants import parse_since
from oqron_core.cli._invocation import (
    Invocation,
    common_options,
    json_option,
    opened,
    page_options,
    run_async,
)
from oqron_core.cli._output import print_json, print_page, wire
from oqron_core.cli._show import RUN_COLUMNS, run_row, show_run
from oqron_core.models import Run, RunStatus
from oqron_core.planes.values import Page


__all__ = ["runs"]


@click.group()
@common_options
def runs() -> None:
    """Look at run history."""


@runs.command(name="list")
@click.option("--status", type=click.Choice([status.value for status in RunStatus]))
@click.option("--name", help="Only runs of this definition or queue.")
@click.option("--module", help="Only runs of this module: queue, cron, topic, …")
@click.option("--job", "job_id", help="Only runs of this job.")
@click.option("--since", help="Only runs since then: 15m, 2024-05-01T12:00, milliseconds.")
@page_options
@common_options
@json_option
@click.pass_obj
def list_runs(
    invocation: Invocation, /, *, since: str | None, as_json: bool, **wanted: Any
) -> None:
    """List runs, those that started last in front, one page."""
    instant = None if since is None else parse_since(since)

    async def read() -> Page[Run]:
        async with opened(invocation) as storage:
            return await storage.runs.query(since=instant, **wanted)

    page = run_async(read())
    print_page(page, RUN_COLUMNS, run_row, empty="no runs found", as_json=as_json)


@runs.command()
@click.argument("run_id", metavar="ID")
@common_options
@json_option
@click.pass_obj
def show(invocation: Invocation, *, run_id: str, as_json: bool) -> None:
    """Show the run ID with its timeline and log."""

    async def read() -> Run | None:
        async with opened(invocation) as storage:
            return await storage.runs.get(run_id)

    run = run_async(read())
    if run is None:
        msg = f"there is no run {run_id!r}; oqron runs list shows which there are"
        raise click.ClickException(msg)
    if as_json:
        print_json(wire(run))
    else:
        show_run(run)
