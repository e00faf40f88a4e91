"""``oqron logs``: what modules of an application wrote."""

from __future__ import annotations

import json

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
from oqron_core.cli._output import (
    Column,
    print_json,
    print_page,
    print_table,
    short_time_text,
)
from oqron_core.models import LogEntry
from oqron_core.planes.values import Page
from oqron_core.services.logs import LEVELS


__all__ = ["logs"]


@click.group()
@common_options
def logs() -> None:
    """Read the logs of an application's modules."""


@logs.command(name="list")
@common_options
@json_option
@click.pass_obj
def list_modules(invocation: Invocation, *, as_json: bool) -> None:
    """List the modules that wrote something, with how many lines they have."""

    async def read() -> dict[str, int]:
        async with opened(invocation) as storage:
            return await storage.logs.modules()

    found = run_async(read())
    if as_json:
        print_json({"items": [{"module": name, "lines": count} for name, count in found.items()]})
        return
    columns = [Column("module", style="cyan", whole=True), Column("lines", right=True)]
    print_table(columns, list(found.items()), empty="no module has written anything")


@logs.command()
@click.argument("module")
@click.option("--level", type=click.Choice(LEVELS), help="Only this level and those above it.")
@click.option("--since", help="Only lines since then: 15m, 2024-05-01T12:00, milliseconds.")
@page_options
@common_options
@json_option
@click.pass_obj
def show(
    invocation: Invocation,
    *,
    module: str,
    level: str | None,
    since: str | None,
    limit: int,
    after: str | None,
    as_json: bool,
) -> None:
    """Show the log of MODULE, the newest lines in front, one page."""
    instant = None if since is None else parse_since(since)

    async def read() -> Page[LogEntry]:
        async with opened(invocation) as storage:
            return await storage.logs.query(
                module, level=level, since=instant, limit=limit, after=after
            )

    page = run_async(read())
    columns = [
        Column("time", whole=True),
        Column("level", style="cyan", whole=True),
        Column("text"),
        Column("fields", style="dim"),
    ]
    print_page(
        page,
        columns,
        lambda one: (short_time_text(one.ts), one.level, one.msg, _fields(one)),
        empty=f"the module {module!r} has no such line",
        as_json=as_json,
    )


def _fields(entry: LogEntry) -> str:
    return " ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in entry.fields.items()
    )
