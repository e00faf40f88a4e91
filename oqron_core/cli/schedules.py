"""``oqron schedules``: what runs when."""

from __future__ import annotations

import json

from typing import Final

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
    make_table,
    plain,
    print_json,
    print_line,
    print_page,
    print_rich,
    print_table,
    time_text,
    wire,
)
from oqron_core.models import Control
from oqron_core.models.schedule import Schedule
from oqron_core.planes.values import Page
from oqron_core.protocol.pauses import Behaviour
from oqron_core.storage import Storage


__all__ = ["schedules"]

_KINDS: Final = ("cron", "schedule")
_KIND: Final = click.Choice(_KINDS)
_SPEC: Final = 60

_COLUMNS: Final = (
    Column("kind"),
    Column("name", style="cyan", whole=True),
    Column("next", whole=True),
    Column("last", whole=True),
    Column("runs", right=True),
    Column("spec"),
    Column("zone"),
    Column(""),
)


@click.group()
@common_options
def schedules() -> None:
    """Look at crons and schedules, and pause them."""


# --- look ------------------------------------------------------------------------


@schedules.command(name="list")
@click.option("--kind", type=_KIND, help="Only of this kind.")
@click.option(
    "--paused/--not-paused", "paused", default=None, help="Only what is, or is not, paused."
)
@page_options
@common_options
@json_option
@click.pass_obj
def list_schedules(
    invocation: Invocation,
    *,
    kind: str | None,
    paused: bool | None,
    limit: int,
    after: str | None,
    as_json: bool,
) -> None:
    """List schedules by kind and name, one page."""
    kinds, cursor = _place(kind, after)

    async def read() -> Page[Schedule]:
        async with opened(invocation) as storage:
            return await _page(storage, kinds, paused, limit, cursor)

    page = run_async(read())
    print_page(page, _COLUMNS, _row, empty="there is no such schedule", as_json=as_json)


def _place(kind: str | None, after: str | None) -> tuple[list[str], str | None]:
    """Give the kinds that are still to be read, and the cursor in the first of them."""
    kinds: list[str] = list(_KINDS) if kind is None else [kind]
    if after is None:
        return kinds, None
    at, colon, cursor = after.partition(":")
    if not colon or at not in kinds:
        msg = f"{after!r} is no cursor of such a list; take the one that the page before gave"
        raise click.BadParameter(msg, param_hint="--after")
    return kinds[kinds.index(at) :], cursor or None


async def _page(
    storage: Storage, kinds: list[str], paused: bool | None, limit: int, cursor: str | None
) -> Page[Schedule]:
    """Read one page over several kinds; its cursor begins with the kind it goes on in."""
    items: list[Schedule] = []
    for kind in kinds:
        left = limit - len(items)
        if left == 0:
            return Page(items, f"{kind}:")
        page = await storage.schedules.query(kind, paused=paused, limit=left, after=cursor)
        items.extend(page)
        if page.next is not None:
            return Page(items, f"{kind}:{page.next}")
        cursor = None
    return Page(items, None)


def _row(one: Schedule) -> tuple[object, ...]:
    return (
        one.kind,
        one.name,
        time_text(one.next_run_at),
        time_text(one.last_run_at),
        one.run_count,
        plain(json.dumps(one.spec, ensure_ascii=False), limit=_SPEC),
        one.zone,
        "paused" if one.paused else "",
    )


@schedules.command()
@click.argument("kind", type=_KIND)
@click.argument("name")
@common_options
@json_option
@click.pass_obj
def show(invocation: Invocation, *, kind: str, name: str, as_json: bool) -> None:
    """Show the schedule NAME of KIND: its definition and its pointer."""

    async def read() -> Schedule:
        async with opened(invocation) as storage:
            return await _require(storage, kind, name)

    found = run_async(read())
    if as_json:
        print_json(wire(found))
        return
    facts: dict[str, object] = {
        found.kind: found.name,
        "next": time_text(found.next_run_at),
        "last": time_text(found.last_run_at),
        "runs": found.run_count,
        "zone": found.zone or "UTC",
        "catch-up": found.catch_up,
        "paused": "yes" if found.paused else "no",
        "version": found.version,
        "defined": time_text(found.created_at),
        "changed": time_text(found.updated_at),
        "spec": json.dumps(found.spec, ensure_ascii=False),
    }
    table = make_table([Column("", style="dim"), Column("")], list(facts.items()))
    table.show_header = False
    print_rich(table)


async def _require(storage: Storage, kind: str, name: str) -> Schedule:
    found = await storage.schedules.get(kind, name)
    if found is None:
        msg = f"there is no {kind} {name!r} (see oqron schedules list)"
        raise click.ClickException(msg)
    return found


@schedules.command()
@click.option("--kind", type=_KIND, help="Only of this kind.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@common_options
@json_option
@click.pass_obj
def due(invocation: Invocation, *, kind: str | None, limit: int, as_json: bool) -> None:
    """List what is due by the durable plane's clock, the oldest slot first.

    What stays here for long has nobody who moves it on. What is paused is never due.
    """

    async def read() -> list[Schedule]:
        async with opened(invocation) as storage:
            return await storage.schedules.due(limit=limit, kind=kind)

    found = run_async(read())
    if as_json:
        print_json({"items": [wire(one) for one in found]})
    else:
        print_table(_COLUMNS, [_row(one) for one in found], empty="nothing is due")


# --- steer -----------------------------------------------------------------------


@schedules.command()
@click.argument("kind", type=_KIND)
@click.argument("name")
@click.option(
    "--behaviour",
    type=click.Choice([str(one) for one in Behaviour]),
    default=str(Behaviour.HOLD),
    show_default=True,
    help="What becomes of slots that are missed: hold leaves them to the catch-up.",
)
@click.option("--reason", help="Why, for whoever looks.")
@common_options
@json_option
@click.pass_obj
def pause(
    invocation: Invocation,
    *,
    kind: str,
    name: str,
    behaviour: str,
    reason: str | None,
    as_json: bool,
) -> None:
    """Let the schedule NAME of KIND never be due."""

    async def change() -> Control:
        async with opened(invocation) as storage:
            await _require(storage, kind, name)
            return await storage.schedules.pause(kind, name, behaviour=behaviour, reason=reason)

    _say(run_async(change()), kind, as_json=as_json)


@schedules.command()
@click.argument("kind", type=_KIND)
@click.argument("name")
@common_options
@json_option
@click.pass_obj
def resume(invocation: Invocation, *, kind: str, name: str, as_json: bool) -> None:
    """Let the schedule NAME of KIND be due again."""

    async def change() -> Control:
        async with opened(invocation) as storage:
            await _require(storage, kind, name)
            return await storage.schedules.resume(kind, name)

    _say(run_async(change()), kind, as_json=as_json)


def _say(control: Control, kind: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"kind": kind, **wire(control)})
    else:
        print_line(f"{kind} {control.name} is {'paused' if control.paused else 'on'}")
