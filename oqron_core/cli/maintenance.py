"""``oqron prune`` and ``oqron rebuild-hot``: repairs by hand."""

from __future__ import annotations

import click

from oqron_core.cli._invocation import (
    Invocation,
    common_options,
    json_option,
    opened,
    run_async,
)
from oqron_core.cli._output import bar, print_json, print_line, print_table
from oqron_core.cli.retention import PRUNABLE_COLUMNS, prunable_document, prunable_rows
from oqron_core.protocol.retaining import Prunable
from oqron_core.taxonomy import RecordKind


__all__ = ["prune", "rebuild_hot"]


@click.command()
@click.option("--dry-run", is_flag=True, help="Count what would go, and delete nothing.")
@common_options
@json_option
@click.pass_obj
def prune(invocation: Invocation, *, dry_run: bool, as_json: bool) -> None:
    """Delete the records whose retention is over.

    What is waiting or active has no expiry and is never touched.
    """
    if dry_run:
        _preview(invocation, as_json=as_json)
        return

    async def change() -> int:
        async with opened(invocation) as storage:
            with bar("pruning", None):
                return await storage.maintenance.prune()

    gone = run_async(change())
    if as_json:
        print_json({"dryRun": False, "pruned": gone})
    else:
        print_line(f"{gone} records deleted")


def _preview(invocation: Invocation, *, as_json: bool) -> None:
    async def read() -> list[Prunable]:
        async with opened(invocation) as storage:
            return await storage.retention.preview()

    found = run_async(read())
    if as_json:
        print_json({"dryRun": True, "kinds": _by_kind(found), **prunable_document(found)})
    else:
        print_table(PRUNABLE_COLUMNS, prunable_rows(found), empty="nothing would go")


def _by_kind(found: list[Prunable]) -> dict[str, dict[str, int]]:
    kinds = {kind.value: {"records": 0, "bytes": 0} for kind in RecordKind}
    for one in found:
        kinds[one.kind]["records"] += one.count
        kinds[one.kind]["bytes"] += one.size
    return kinds


@click.command(name="rebuild-hot")
@common_options
@json_option
@click.pass_obj
def rebuild_hot(invocation: Invocation, *, as_json: bool) -> None:
    """Build the hot plane anew from the durable one: jobs, leases, pauses.

    Idempotent, and safe while workers run.
    """

    async def change() -> int:
        async with opened(invocation) as storage:
            with bar("rebuilding", None):
                return await storage.maintenance.rebuild_hot()

    restored = run_async(change())
    if as_json:
        print_json({"restored": restored})
    else:
        print_line(f"{restored} jobs put back")
