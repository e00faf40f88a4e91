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
from oqron_core.cli._output import Column, bar, print_json, print_line, print_table
from oqron_core.planes.values import Query
from oqron_core.storage import Storage
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
    async def read() -> dict[str, tuple[int, int]]:
        async with opened(invocation) as storage:
            return await _expired(storage)

    found = run_async(read())
    records = sum(count for count, _ in found.values())
    size = sum(bytes_ for _, bytes_ in found.values())
    if as_json:
        kinds = {kind: {"records": n, "bytes": size_} for kind, (n, size_) in found.items()}
        print_json({"dryRun": True, "kinds": kinds, "records": records, "bytes": size})
        return
    columns = [
        Column("kind", style="cyan"),
        Column("would go", right=True),
        Column("bytes", right=True),
    ]
    rows = [(kind, *both) for kind, both in found.items()]
    print_table(columns, [*rows, ("all", records, size)])


async def _expired(storage: Storage) -> dict[str, tuple[int, int]]:
    """Count by kind what pruning would delete now, and its bytes."""
    where = [("expires_at", "<=", await storage.durable.now())]
    return {
        kind.value: await storage.durable.prunable(Query(kind=kind, where=where))
        for kind in RecordKind
    }


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
