"""
The tables as SQLAlchemy metadata, for us and for people who use SQLAlchemy themselves.

.. code-block:: python

    from oqron_sqlite.tables import DURABLE, runs

    failed = select(runs.c.value).where(
        runs.c.project == "my-app",
        runs.c.environment == "production",
        runs.c.value.op("->>")("status") == "failed",
    )

Read them as you like. Write through oqron: it checks what it writes.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    CheckConstraint,
    Column,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)

from oqron_core.taxonomy import RecordKind, table_for_kind
from oqron_core.taxonomy import Table as TableName


__all__ = [
    "DURABLE",
    "HOT",
    "VERSION",
    "jobs",
    "meta",
    "records",
    "runs",
    "table_of",
]

VERSION: Final = 1
"""The version of the tables, kept in ``oqron_meta``."""

DURABLE: Final = MetaData()
"""The three tables of the durable plane."""
HOT: Final = MetaData()
"""The tables of the hot plane; nobody's business but the backend's."""
META: Final = MetaData()

meta: Final = Table(
    "oqron_meta",
    META,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
    sqlite_with_rowid=False,
)


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def _table(name: TableName) -> Table:
    return Table(
        f"oqron_{name.value}",
        DURABLE,
        _text("project"),
        _text("environment"),
        _text("namespace"),
        _text("record_kind"),
        _text("id"),
        # One row that is no JSON would break everybody's dashboard.
        Column("value", Text, CheckConstraint("json_valid(value)"), nullable=False),
        Column("inserted_at", Integer, nullable=False),
        Column("expires_at", Integer),
        PrimaryKeyConstraint("project", "environment", "namespace", "id"),
    )


records: Final = _table(TableName.RECORDS)
jobs: Final = _table(TableName.JOBS)
runs: Final = _table(TableName.RUNS)

_BY_NAME: Final = {
    TableName.RECORDS: records,
    TableName.JOBS: jobs,
    TableName.RUNS: runs,
}


def table_of(name: TableName | RecordKind) -> Table:
    """Give the table of a name of the taxonomy, or that which keeps a kind."""
    if isinstance(name, RecordKind):
        name = table_for_kind(name)
    return _BY_NAME[name]


STATUS: Final = "CASE json_type(value, '$.status') WHEN 'text' THEN value ->> 'status' ELSE '' END"
"""A job's status where it is a string, as the index of jobs holds it."""

for _each in _BY_NAME.values():
    Index(
        f"{_each.name}_expiry",
        _each.c.project,
        _each.c.environment,
        _each.c.expires_at,
        sqlite_where=_each.c.expires_at.is_not(None),
    )
for _each in (records, jobs):
    Index(
        f"{_each.name}_kind",
        _each.c.project,
        _each.c.environment,
        _each.c.record_kind,
        _each.c.namespace,
        _each.c.expires_at,
    )
Index(
    "oqron_jobs_status",
    jobs.c.project,
    jobs.c.environment,
    jobs.c.namespace,
    text(STATUS),
    jobs.c.id,
    jobs.c.expires_at,
)
Index("oqron_runs_id", runs.c.project, runs.c.environment, runs.c.id)
Index(
    "oqron_runs_started",
    runs.c.project,
    runs.c.environment,
    text("value ->> 'startedAt'"),
    sqlite_where=runs.c.record_kind == text("'run'"),
)
for _name in ("status", "name", "module"):
    Index(
        f"oqron_runs_{_name}",
        runs.c.project,
        runs.c.environment,
        text(f"value ->> '{_name}'"),
        text("value ->> 'startedAt'"),
    )
Index(
    "oqron_runs_published",
    runs.c.project,
    runs.c.environment,
    runs.c.namespace,
    text("value ->> 'publishedAt'"),
    sqlite_where=runs.c.record_kind == text("'message'"),
)


# --- the hot plane -----------------------------------------------------------


def _hot(name: str, *columns: Column[str] | Column[int], key: tuple[str, ...]) -> Table:
    return Table(
        f"oqron_hot_{name}",
        HOT,
        *columns,
        PrimaryKeyConstraint(*key),
        sqlite_with_rowid=False,
    )


def _int(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False)


def _at(name: str) -> Column[int]:
    return Column(name, Integer)


Table(
    "oqron_hot_scopes",
    HOT,
    Column("scope", Integer, primary_key=True),
    _text("project"),
    _text("environment"),
    Index("oqron_hot_scopes_names", "project", "environment", unique=True),
)
_hot("ticket", _int("one"), _int("last"), key=("one",))
_entries = _hot(
    "entries",
    _int("scope"),
    _text("queue"),
    _text("id"),
    _int("leased"),
    _int("priority"),
    _int("seq"),
    _at("at"),
    _int("token"),
    _text("owner"),
    _int("deliveries"),
    key=("scope", "queue", "id"),
)
Index(
    "oqron_hot_entries_ready",
    _entries.c.scope,
    _entries.c.queue,
    _entries.c.priority,
    _entries.c.seq,
    sqlite_where=_entries.c.at.is_(None),
)
Index(
    "oqron_hot_entries_timed",
    _entries.c.scope,
    _entries.c.queue,
    _entries.c.at,
    _entries.c.leased,
    sqlite_where=_entries.c.at.is_not(None),
)
_hot("paused", _int("scope"), _text("queue"), key=("scope", "queue"))
_hot(
    "locks",
    _int("scope"),
    _text("key"),
    _text("owner"),
    _int("token"),
    _at("expires_at"),
    key=("scope", "key"),
)
_hot(
    "counters",
    _int("scope"),
    _text("key"),
    _int("value"),
    _at("expires_at"),
    key=("scope", "key"),
)
_hot(
    "limits",
    _int("scope"),
    _text("kind"),
    _text("key"),
    _text("state"),
    _at("expires_at"),
    key=("scope", "kind", "key"),
)
_hot(
    "cache",
    _int("scope"),
    _text("key"),
    _text("value"),
    _at("expires_at"),
    key=("scope", "key"),
)
_live = _hot(
    "live",
    _int("scope"),
    _text("run_id"),
    _int("seq"),
    _int("merged_at"),
    key=("scope", "run_id"),
)
Index("oqron_hot_live_seq", _live.c.scope, _live.c.seq)
_hot(
    "live_fields",
    _int("scope"),
    _text("run_id"),
    _text("name"),
    _text("value"),
    key=("scope", "run_id", "name"),
)
_hot(
    "live_entries",
    _int("scope"),
    _text("run_id"),
    _int("list"),
    _int("seq"),
    _text("value"),
    key=("scope", "run_id", "list", "seq"),
)
_signals = _hot(
    "signals",
    _int("scope"),
    _int("seq"),
    _text("channel"),
    _text("message"),
    _int("at"),
    key=("scope", "seq"),
)
for _expiring in ("locks", "counters", "limits", "cache"):
    _one = HOT.tables[f"oqron_hot_{_expiring}"]
    Index(
        f"{_one.name}_expiry",
        _one.c.expires_at,
        sqlite_where=_one.c.expires_at.is_not(None),
    )
Index("oqron_hot_signals_age", _signals.c.at)
