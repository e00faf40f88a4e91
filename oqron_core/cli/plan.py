"""``oqron plan``: what a mode is made of, what it can do, and what it can lose."""

from __future__ import annotations

from typing import Final

import click

from rich.text import Text

from oqron_core._plugins import discover
from oqron_core.cli._invocation import Invocation, common_options, json_option, run_async
from oqron_core.cli._output import Column, make_table, plain, print_json, print_rich
from oqron_core.cli._planning import EMULATED, NATIVE, REFUSED, SURVIVES, Plan, make_plan
from oqron_core.cli._probe import probe
from oqron_core.taxonomy import table_for_kind


__all__ = ["plan"]

_STYLES: Final = {NATIVE: "green", EMULATED: "yellow", REFUSED: "red"}


class _SettingsError(click.ClickException):
    """Wrong settings are wrong usage."""

    exit_code = click.UsageError.exit_code


@click.command()
@common_options
@json_option
@click.pass_obj
def plan(invocation: Invocation, *, as_json: bool) -> None:
    """Show what a mode is made of: backends, features, durability, losses.

    A plane says only when it is open what it can do, so both are opened and closed
    again; nothing is written but the tables or the file of a store that has none.
    Exit status 1 where one cannot be opened, 2 where its settings are to blame.
    """
    plugins = discover(only=())
    settings = invocation.settings(plugins)
    made = make_plan(settings, *run_async(probe(plugins, settings)))
    if as_json:
        print_json(made.document())
    else:
        _show(made)
    failed = [found for found in (made.hot, made.durable) if found.error is not None]
    if failed:
        said = [f"{found.plane} plane ({found.backend}): {found.error}" for found in failed]
        wrong = any(found.misconfigured for found in failed)
        raise (_SettingsError if wrong else click.ClickException)("; ".join(said))


def _show(made: Plan) -> None:
    settings = made.settings
    mode = "a pair without a name" if settings.mode is None else f"mode {settings.mode}"
    pair = f": hot plane {settings.hot}, durable plane {settings.durable}"
    print_rich(Text.assemble((mode, "bold"), pair))
    if made.features:
        columns = [
            Column("feature", style="cyan", whole=True),
            Column("plane"),
            Column("support"),
            Column(""),
        ]
        rows = [
            (item.name, item.plane, Text(item.support, style=_STYLES[item.support]), item.detail)
            for item in made.features
        ]
        print_rich("")
        print_rich(make_table(columns, rows))
    _show_durability(made)
    if made.losses:
        print_rich("")
        columns = [Column("when this dies", style="cyan", whole=True), Column("this is lost")]
        print_rich(make_table(columns, [(item.dies, item.lost) for item in made.losses]))
    for found in (made.hot, made.durable):
        for reason in () if found.health is None else found.health.reasons:
            print_rich(Text(f"\n{found.plane} plane: {plain(reason)}", style="yellow"))


def _show_durability(made: Plan) -> None:
    kinds = [
        (kind.value, f"oqron_{table_for_kind(kind)}", level.value)
        for kind, level in made.durability.items()
    ]
    levels = dict.fromkeys(made.durability.values())
    if made.hot.capabilities is not None:
        level = made.hot.capabilities.durability
        kinds.append(("locks, counters, cache, live", "hot plane", level.value))
        levels[level] = None
    if kinds:
        columns = [
            Column("record kind", style="cyan", whole=True),
            Column("kept in"),
            Column("durability"),
        ]
        print_rich("")
        print_rich(make_table(columns, kinds))
    for level in levels:
        print_rich(Text(f"{level} survives {SURVIVES[level]}", style="dim"))
