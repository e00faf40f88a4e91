"""``oqron classify``: what a namespace holds, and which table keeps it."""

from __future__ import annotations

import click

from oqron_core.cli._invocation import common_options, json_option
from oqron_core.cli._output import Column, print_json, print_table
from oqron_core.taxonomy import classify_namespace, table_for_kind


__all__ = ["classify"]


@click.command()
@click.argument("namespaces", nargs=-1, required=True, metavar="NAMESPACE...")
@common_options
@json_option
def classify(namespaces: tuple[str, ...], *, as_json: bool) -> None:
    """Say which kind of record each NAMESPACE holds, and in which table."""
    rows = []
    for namespace in namespaces:
        kind = classify_namespace(namespace)
        rows.append((namespace, kind.value, table_for_kind(kind).value))
    if as_json:
        print_json(
            {
                "items": [
                    {"namespace": name, "kind": kind, "table": table, "sqlTable": f"oqron_{table}"}
                    for name, kind, table in rows
                ]
            }
        )
        return
    columns = [Column("namespace"), Column("kind", style="cyan", whole=True), Column("table")]
    print_table(columns, [(name, kind, f"oqron_{table}") for name, kind, table in rows])
