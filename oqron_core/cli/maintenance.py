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
    async def read() -> dict[str, int]:
        async with opened(invocation) as storage:
            return await _expired(storage)

    found = run_async(read())
    total = sum(found.values())
    if as_json:
        print_json({"dryRun": True, "kinds": found, "total": total})
        return
    columns = [Column("kind", style="cyan"), Column("would go", right=True)]
    print_table(columns, [*found.items(), ("all", total)])


async def _expired(storage: Storage) -> dict[str, int]:
    now = await storage.durable.now()
    where = [("expires_at", "<=", now)]
    return {
        kind.value: await storage.durable.count(Query(kind=kind, where=where))
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
