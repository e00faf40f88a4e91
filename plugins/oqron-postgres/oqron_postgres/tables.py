"""
The three tables as SQLAlchemy metadata, for people who use SQLAlchemy themselves.

.. code-block:: python

    from oqron_postgres.tables import make_tables

    runs = make_tables().runs
    failed = select(runs.c.value).where(
        runs.c.project == "my-app",
        runs.c.environment == "production",
        runs.c.value["status"].astext == "failed",
    )

Read them as you like. Write through oqron: it checks what it writes. The shipped
SQL (``oqron schema sql``) is what makes the tables, with their indexes and storage
settings; this metadata describes their columns.
"""

from __future__ import annotations

import attrs

from sqlalchemy import BigInteger, Column, MetaData, PrimaryKeyConstraint, Table, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.sql.elements import quoted_name

from oqron_core.taxonomy import RecordKind, table_for_kind
from oqron_core.taxonomy import Table as TableName


__all__ = ["Tables", "make_tables"]


@attrs.frozen(kw_only=True)
class Tables:
    """
    The tables of one prefix in one schema.

    Attributes:
        metadata: What they belong to.
        records: Definitions, control state, breakers, logs.
        jobs: Jobs and dead letters.
        runs: Run history and the message log.
    """

    metadata: MetaData
    records: Table
    jobs: Table
    runs: Table

    def __getitem__(self, name: TableName) -> Table:
        """Give the table of a name of the taxonomy."""
        return {
            TableName.RECORDS: self.records,
            TableName.JOBS: self.jobs,
            TableName.RUNS: self.runs,
        }[name]

    def for_kind(self, kind: RecordKind | str) -> Table:
        """Give the table that keeps records of *kind*."""
        return self[table_for_kind(kind)]


def _text(name: str) -> Column[str]:
    return Column(name, Text(collation="C"), nullable=False)


def make_tables(*, table_prefix: str = "oqron", schema: str = "public") -> Tables:
    """
    Describe the tables.

    Args:
        table_prefix: As in the settings.
        schema: As in the settings.
    """
    metadata = MetaData(schema=quoted_name(schema, quote=True))

    def table(name: TableName) -> Table:
        return Table(
            quoted_name(f"{table_prefix}_{name.value}", quote=True),
            metadata,
            _text("project"),
            _text("environment"),
            _text("namespace"),
            _text("record_kind"),
            _text("id"),
            Column("value", JSONB, nullable=False),
            Column("inserted_at", BigInteger, nullable=False),
            Column("expires_at", BigInteger),
            PrimaryKeyConstraint(
                "project",
                "environment",
                "namespace",
                "id",
                name=quoted_name(f"{table_prefix}_{name.value}_pkey", quote=True),
            ),
        )

    return Tables(
        metadata=metadata,
        records=table(TableName.RECORDS),
        jobs=table(TableName.JOBS),
        runs=table(TableName.RUNS),
    )
