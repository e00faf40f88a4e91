"""``oqron plugins``: which backends are installed, and what is wrong with them."""

from __future__ import annotations

import click

from oqron_core._plugins import PluginInfo, discover
from oqron_core.cli._invocation import common_options, json_option
from oqron_core.cli._output import Column, print_json, print_table
from oqron_core.planes.capabilities import CONTRACT_VERSION


__all__ = ["plugins"]


@click.command()
@common_options
@json_option
def plugins(*, as_json: bool) -> None:
    """List the installed plugins, those that failed to load included."""
    found = discover().listing()
    if as_json:
        items = [_document(info) for info in found]
        print_json({"contractVersion": CONTRACT_VERSION, "items": items})
        return
    columns = [
        Column("backend", style="cyan", whole=True),
        Column("distribution"),
        Column("version"),
        Column("planes"),
        Column("contract", right=True),
        Column("state"),
    ]
    print_table(
        columns,
        [_row(info) for info in found],
        empty="no plugin is installed: pip install oqron-memory, or 'oqron-core[redis-postgres]'",
    )


def _document(info: PluginInfo) -> dict[str, object]:
    return {
        "name": info.name,
        "distribution": info.distribution,
        "version": info.version,
        "planes": list(info.planes),
        "contractVersion": info.contract_version,
        "ok": info.error is None,
        "error": info.error,
    }


def _row(info: PluginInfo) -> tuple[object, ...]:
    return (
        info.name,
        info.distribution,
        info.version,
        " ".join(info.planes) or None,
        info.contract_version,
        info.error or "ok",
    )
