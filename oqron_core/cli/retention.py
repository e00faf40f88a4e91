"""``oqron retention``: how long what has ended is kept."""

from __future__ import annotations

from typing import Any, Final

import attrs
import click

from oqron_core.cli._durations import duration
from oqron_core.cli._invocation import (
    Invocation,
    common_options,
    json_option,
    opened,
    run_async,
)
from oqron_core.cli._output import Column, print_json, print_line, print_rich, print_table, wire
from oqron_core.config import Settings
from oqron_core.models import wire_names
from oqron_core.protocol.options import Retention
from oqron_core.protocol.retaining import RULED, Prunable, Rule


__all__ = ["PRUNABLE_COLUMNS", "prunable_document", "prunable_rows", "retention"]

_KIND: Final = click.Choice([str(kind) for kind in RULED])
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))

PRUNABLE_COLUMNS: Final = (
    Column("kind", style="cyan", whole=True),
    Column("namespace"),
    Column("would go", right=True),
    Column("bytes", right=True),
)


@click.group()
@common_options
def retention() -> None:
    """See and say how long what has ended is kept."""


# --- look ------------------------------------------------------------------------


@retention.command()
@common_options
@json_option
@click.pass_obj
def show(invocation: Invocation, *, as_json: bool) -> None:
    """Show what the settings say, and the rules."""

    async def read() -> tuple[Settings, list[Rule]]:
        async with opened(invocation) as storage:
            return storage.settings, await storage.retention.rules()

    settings, rules = run_async(read())
    kept = attrs.asdict(settings.retention)
    if as_json:
        seconds = {name: kept[attribute] for attribute, name in wire_names(Retention).items()}
        print_json({"settings": seconds, "rules": [wire(rule) for rule in rules]})
        return
    columns = [Column("setting", style="cyan", whole=True), Column("keeps for", right=True)]
    shown = [(f"retention.{name}", _long(value)) for name, value in kept.items()]
    print_table(columns, shown)
    if rules:
        print_rich("")
    columns = [
        Column("rule for", style="cyan", whole=True),
        Column("namespace"),
        Column("keeps for", right=True),
        Column("keeps", right=True),
    ]
    said = [(rule.kind, rule.namespace, _limit(rule.keep_for), rule.keep) for rule in rules]
    print_table(columns, said, empty="there is no rule")


def _limit(seconds: float | None) -> str | None:
    return None if seconds is None else _long(seconds)


def _long(seconds: float | None) -> str:
    if seconds is None:
        return "ever"
    for size, unit in _UNITS:
        if seconds and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:g}s"


@retention.command()
@common_options
@json_option
@click.pass_obj
def preview(invocation: Invocation, *, as_json: bool) -> None:
    """Count what a prune would delete now, by kind and namespace."""

    async def read() -> list[Prunable]:
        async with opened(invocation) as storage:
            return await storage.retention.preview()

    found = run_async(read())
    if as_json:
        print_json(prunable_document(found))
    else:
        print_table(PRUNABLE_COLUMNS, prunable_rows(found), empty="nothing would go")


def prunable_document(found: list[Prunable]) -> dict[str, Any]:
    """Give a preview as a JSON document: its items and their sums."""
    return {
        "items": [
            {
                "kind": one.kind,
                "namespace": one.namespace or None,
                "records": one.count,
                "bytes": one.size,
            }
            for one in found
        ],
        "records": sum(one.count for one in found),
        "bytes": sum(one.size for one in found),
    }


def prunable_rows(found: list[Prunable]) -> list[tuple[object, ...]]:
    """Give a preview as rows of `PRUNABLE_COLUMNS`, with the sums in the last one."""
    if not found:
        return []
    records = sum(one.count for one in found)
    size = sum(one.size for one in found)
    # The namespaces that hold nothing else have no name in a preview.
    rows = [(one.kind, one.namespace or "(others)", one.count, one.size) for one in found]
    return [*rows, ("all", "", records, size)]


# --- change ----------------------------------------------------------------------


@retention.command(name="set")
@click.argument("kind", type=_KIND)
@click.argument("namespace", default="*")
@click.option(
    "--keep-for",
    type=duration,
    metavar="DURATION",
    help="How long after the end: 0, 90, 15m, 12h, 30d.",
)
@click.option("--keep", type=int, help="How many of the newest in each namespace.")
@common_options
@json_option
@click.pass_obj
def set_rule(
    invocation: Invocation,
    *,
    kind: str,
    namespace: str,
    keep_for: float | None,
    keep: int | None,
    as_json: bool,
) -> None:
    """Keep no more of KIND than this, in NAMESPACE or, without it, in all.

    NAMESPACE is a whole name such as queue_job:emails, or the beginning of names and a
    star. The rule of the same kind and namespace is replaced. It takes effect with
    maintenance; preview shows what it will delete.
    """
    if keep_for is None and keep is None:
        msg = "say how much is kept: --keep-for, --keep or both; unset removes a rule"
        raise click.UsageError(msg)

    async def change() -> Rule:
        async with opened(invocation) as storage:
            return await storage.retention.set(kind, namespace, keep_for=keep_for, keep=keep)

    rule = run_async(change())
    if as_json:
        print_json(wire(rule))
        return
    limits = []
    if rule.keep_for is not None:
        limits.append(f"for {_long(rule.keep_for)}")
    if rule.keep is not None:
        limits.append(f"at most {rule.keep}")
    print_line(f"{rule.kind} in {rule.namespace} is kept {', and '.join(limits)}")


@retention.command()
@click.argument("kind", type=_KIND)
@click.argument("namespace", default="*")
@common_options
@json_option
@click.pass_obj
def unset(invocation: Invocation, *, kind: str, namespace: str, as_json: bool) -> None:
    """Remove the rule for KIND in NAMESPACE; the settings still count."""

    async def change() -> bool:
        async with opened(invocation) as storage:
            return await storage.retention.unset(kind, namespace)

    done = run_async(change())
    if as_json:
        print_json({"kind": kind, "namespace": namespace, "unset": done})
    elif done:
        print_line(f"there is no rule for {kind} in {namespace} any more")
    if not done:
        msg = f"there is no rule for {kind} in {namespace!r} (see oqron retention show)"
        raise click.ClickException(msg)
