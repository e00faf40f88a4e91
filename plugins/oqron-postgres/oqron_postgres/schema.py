"""
The schema of the tables: read it, apply it, see how it stands.

What `oqron schema sql|apply|status|roles` call. Nothing here runs while jobs are
worked on, and opening a storage changes nothing but an empty schema.
"""

from __future__ import annotations

import re

from enum import StrEnum
from importlib import resources
from typing import Any, Final

import attrs
import orjson
import psycopg

from psycopg.rows import tuple_row

from oqron_core.exceptions import InvalidValueError, SchemaError
from oqron_postgres._connection import PostgresConnection, raw_connection
from oqron_postgres._links import PsycopgLink
from oqron_postgres._sqltext import Names, Statement, quote_identifier, quote_literal
from oqron_postgres.settings import PostgresSettings


__all__ = [
    "SCHEMA_VERSION",
    "Applied",
    "SchemaState",
    "SchemaStatus",
    "V1State",
    "apply_schema",
    "roles_sql",
    "schema_sql",
    "schema_status",
]

_NAME: Final = re.compile(r"(\d{4})_\w+\.sql")


def _versions() -> dict[int, str]:
    folder = resources.files("oqron_postgres").joinpath("sql", "schema")
    names = sorted(entry.name for entry in folder.iterdir())
    return {
        int(match.group(1)): f"schema/{match.group(0)}"
        for name in names
        if (match := _NAME.fullmatch(name)) is not None
    }


VERSIONS: Final = _versions()
SCHEMA_VERSION: Final = max(VERSIONS)
"""The version that this distribution makes and understands."""


class SchemaState(StrEnum):
    """How the tables stand to this distribution."""

    EMPTY = "empty"
    """There are none."""
    CURRENT = "current"
    """They are of the version that this distribution understands."""
    OLDER = "older"
    """They are older; `oqron schema apply` brings them up."""
    NEWER = "newer"
    """They are newer: this distribution is what has to be brought up."""
    FOREIGN = "foreign"
    """Tables of these names are there, and oqron has not made them."""


class V1State(StrEnum):
    """How it stands with the table of the v1 layout."""

    ABSENT = "absent"
    """There is none, or it is empty."""
    PENDING = "pending"
    """It holds rows that have been neither moved nor dismissed."""
    MIGRATED = "migrated"
    """`oqron migrate-v1` has moved every row."""
    DISMISSED = "dismissed"
    """Somebody said that its rows are not needed."""


@attrs.frozen(kw_only=True)
class SchemaStatus:
    """
    How the schema stands.

    Attributes:
        state: In a word.
        installed: The version of the tables, or None where there are none.
        wanted: The version of this distribution.
        v1: The table of the v1 layout.
        schema: The PostgreSQL schema.
        table_prefix: The prefix of the tables.
        create_schema: Whether opening a storage makes missing tables.
        allow_v1: Whether storages open beside rows of v1.
    """

    state: SchemaState
    installed: int | None
    wanted: int
    v1: V1State
    schema: str
    table_prefix: str
    create_schema: bool = False
    allow_v1: bool = False

    @property
    def ok(self) -> bool:
        """Whether a storage can be opened."""
        made = self.state is SchemaState.EMPTY and self.create_schema
        settled = self.v1 is not V1State.PENDING or self.allow_v1
        return settled and (made or self.state is SchemaState.CURRENT)

    def remarks(self) -> list[str]:
        """Say what a storage opens in spite of."""
        if not self.ok:
            return []
        remarks = []
        if self.state is SchemaState.EMPTY:
            remarks.append(
                "there are no tables yet: the first storage that opens makes them, if its "
                "role may, or `oqron schema apply`"
            )
        if self.v1 is V1State.PENDING:
            remarks.append(
                f"{self.schema}.{self.table_prefix}_kv, of the v1 layout, holds rows that "
                "were not moved; allow_v1 opens beside them"
            )
        return remarks

    def problem(self) -> str | None:
        """Say what is wrong and what mends it, or None."""
        if self.ok:
            return None
        tables = f"the tables {self.schema}.{self.table_prefix}_*"
        if self.v1 is V1State.PENDING and not self.allow_v1:
            return (
                f"{self.schema}.{self.table_prefix}_kv, of the v1 layout, holds rows that were "
                "not moved: run `oqron migrate-v1 --dry-run`, then `oqron migrate-v1`; or, if "
                "v1 was drained and they are not needed, `oqron migrate-v1 --dismiss`"
            )
        if self.state is SchemaState.EMPTY:
            return f"{tables} are missing: run `oqron schema apply`"
        if self.state is SchemaState.OLDER:
            return (
                f"{tables} have schema version {self.installed}, this version of "
                f"oqron-postgres needs {self.wanted}: run `oqron schema apply`"
            )
        if self.state is SchemaState.NEWER:
            return (
                f"{tables} have schema version {self.installed}, this version of "
                f"oqron-postgres knows {self.wanted} at most: upgrade oqron-postgres "
                "(`oqron schema apply` does not go back)"
            )
        return (
            f"{tables} were not made by `oqron schema apply`: rename or drop them, or "
            "choose another table_prefix or schema, then run `oqron schema apply`"
        )


@attrs.frozen(kw_only=True)
class Applied:
    """
    What `apply_schema` did.

    Attributes:
        before: The version before, or None where there were no tables.
        after: The version now.
        steps: The versions that were applied; empty where nothing was to be done.
    """

    before: int | None
    after: int
    steps: tuple[int, ...]


# --- reading ----------------------------------------------------------------

_LOOK: Final = """
SELECT c.relname
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = ANY (%s::text[]) AND c.relkind IN ('r', 'p', 'v', 'f')
"""


async def fetch_rows(
    connection: psycopg.AsyncConnection[Any], sql: str, params: Any = None
) -> list[tuple[Any, ...]]:
    """Run one of our own statements."""
    cursor = connection.cursor(row_factory=tuple_row)
    await cursor.execute(sql.encode(), params, prepare=False)
    return await cursor.fetchall()


async def read_facts(connection: psycopg.AsyncConnection[Any], names: Names) -> dict[str, Any]:
    """Read what is noted beside the tables."""
    statement = Statement.file("facts.sql", meta=names.table("meta"))
    rows = await PsycopgLink(connection).fetch(statement, {})
    return {key: orjson.loads(text) for key, text in rows}


async def read_status(connection: psycopg.AsyncConnection[Any], names: Names) -> SchemaStatus:
    """Look how the schema stands."""
    wanted = [names.plain(name) for name in ("meta", "records", "jobs", "runs", "kv")]
    rows = await fetch_rows(connection, _LOOK, (names.schema, wanted))
    there = {row[0] for row in rows}
    facts = await read_facts(connection, names) if names.plain("meta") in there else {}
    installed = facts.get("schema", {}).get("version")
    return SchemaStatus(
        state=_state(installed, {names.plain(name) for name in _OURS} & there),
        installed=installed,
        wanted=SCHEMA_VERSION,
        v1=await _v1_state(connection, names, there, facts),
        schema=names.schema,
        table_prefix=names.prefix,
    )


_OURS: Final = ("records", "jobs", "runs")


def _state(installed: int | None, tables: set[str]) -> SchemaState:
    if installed is None:
        return SchemaState.FOREIGN if tables else SchemaState.EMPTY
    if installed == SCHEMA_VERSION:
        # A table that somebody dropped is missing, whatever the version says.
        return SchemaState.CURRENT if len(tables) == len(_OURS) else SchemaState.FOREIGN
    return SchemaState.OLDER if installed < SCHEMA_VERSION else SchemaState.NEWER


async def _v1_state(
    connection: psycopg.AsyncConnection[Any],
    names: Names,
    there: set[str],
    facts: dict[str, Any],
) -> V1State:
    settled = facts.get("v1", {}).get("state")
    if settled in {V1State.MIGRATED, V1State.DISMISSED}:
        return V1State(settled)
    if names.plain("kv") not in there:
        return V1State.ABSENT
    statement = Statement.file("v1_any.sql", kv=names.table("kv"))
    rows = await PsycopgLink(connection).fetch(statement, {})
    return V1State.PENDING if rows[0][0] else V1State.ABSENT


async def schema_status(settings: PostgresSettings) -> SchemaStatus:
    """
    Look how the schema stands; changes nothing.

    Raises:
        UnavailableError: The server did not answer.
    """
    async with raw_connection(settings) as connection:
        status = await read_status(connection, Names.of(settings))
    return attrs.evolve(status, create_schema=settings.create_schema, allow_v1=settings.allow_v1)


# --- applying ---------------------------------------------------------------


def schema_sql(settings: PostgresSettings, *, since: int = 0) -> str:
    """
    Print the SQL that `apply_schema` runs, to read or to run with psql.

    Args:
        settings: Of which only the schema and the prefix matter.
        since: The version that is there already; 0 for none.

    Raises:
        InvalidValueError: There is no such version.
    """
    if since > SCHEMA_VERSION:
        reason = f"must be at most {SCHEMA_VERSION}, the newest version here, not {since}"
        raise InvalidValueError("since", reason)
    if since == SCHEMA_VERSION:
        return f"-- oqron-postgres: nothing follows schema version {SCHEMA_VERSION}.\n"
    names = Names.of(settings)
    parts = [f"-- oqron-postgres, schema version {SCHEMA_VERSION}.", "BEGIN;"]
    if since == 0:
        parts.append(f"CREATE SCHEMA IF NOT EXISTS {quote_identifier(names.schema)};")
    parts.append(names.fill("schema/meta.sql").strip())
    for version, path in VERSIONS.items():
        if version > since:
            parts.append(names.fill(path).strip())
            parts.append(names.fill("schema/stamp.sql", version=str(version)).strip())
    parts.append("COMMIT;")
    return "\n\n".join(parts) + "\n"


async def take_lock(connection: psycopg.AsyncConnection[Any], names: Names) -> None:
    """Be the only one that changes the tables, until the transaction ends."""
    # Of the transaction, not of the session: a pooler may give the next one to
    # another connection.
    await fetch_rows(
        connection,
        "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))",
        (f"oqron schema {quote_identifier(names.schema)}.{quote_identifier(names.prefix)}",),
    )


async def apply_on(connection: psycopg.AsyncConnection[Any], names: Names) -> Applied:
    """Bring the tables up on a connection in autocommit."""
    # The lock is taken by a statement of its own, and in READ COMMITTED what follows
    # sees what the holder before us has committed, whatever the role's default is.
    await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED", prepare=False)
    try:
        await take_lock(connection, names)
        applied = await _apply_locked(connection, names)
    except BaseException:
        if not connection.closed:
            await connection.execute("ROLLBACK", prepare=False)
        raise
    await connection.execute("COMMIT", prepare=False)
    return applied


async def _apply_locked(connection: psycopg.AsyncConnection[Any], names: Names) -> Applied:
    status = await read_status(connection, names)
    if status.state in {SchemaState.NEWER, SchemaState.FOREIGN}:
        raise SchemaError(status.problem())
    before = status.installed or 0
    steps = tuple(version for version in VERSIONS if version > before)
    if before == 0:
        await _make_schema(connection, names)
        await _script(connection, names.fill("schema/meta.sql"))
    for version in steps:
        await _script(connection, names.fill(VERSIONS[version]))
        await _script(connection, names.fill("schema/stamp.sql", version=str(version)))
    return Applied(before=status.installed, after=SCHEMA_VERSION, steps=steps)


async def _make_schema(connection: psycopg.AsyncConnection[Any], names: Names) -> None:
    rows = await fetch_rows(
        connection,
        "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s",
        (names.schema,),
    )
    # Even IF NOT EXISTS needs a privilege that the role may well not have.
    if not rows:
        await _script(connection, f"CREATE SCHEMA {quote_identifier(names.schema)}")


async def _script(connection: psycopg.AsyncConnection[Any], sql: str) -> None:
    # Without parameters several statements may go at once.
    await connection.execute(sql.encode(), prepare=False)


async def apply_schema(settings: PostgresSettings) -> Applied:
    """
    Bring the tables up to the version of this distribution.

    May be repeated, and run by several at once: a lock lets one through, the others
    find nothing left to do. All or nothing.

    Raises:
        SchemaError: The tables are newer, or somebody else's.
        UnavailableError: The server did not answer.
        StorageError: The role may not do it.
    """
    async with raw_connection(settings) as connection:
        return await apply_on(connection, Names.of(settings))


# --- opening ----------------------------------------------------------------

_SERVER: Final = """
SELECT current_setting('server_encoding'), current_setting('server_version_num')::int,
  current_setting('default_transaction_isolation'), current_setting('enable_seqscan'),
  current_database()
"""
_OLDEST: Final = 140_000


async def ensure_schema(pool: PostgresConnection) -> None:
    """
    See that a storage can be opened; make the tables where there are none and we may.

    Raises:
        SchemaError: The tables are missing, older, newer, or of the v1 layout.
        UnavailableError: The server did not answer.
    """
    settings, names = pool.settings, pool.names
    async with pool.acquire() as connection:
        (found,) = await fetch_rows(connection, _SERVER)
        encoding, version, isolation, walks, pool.database = found
        if version < _OLDEST:
            msg = f"PostgreSQL 14 or later is needed, the server is {version // 10_000}"
            raise SchemaError(msg)
        if encoding != "UTF8":
            msg = f"the database has the encoding {encoding}; create one with UTF8"
            raise SchemaError(msg)
        pool.read_committed = isolation == "read committed"
        # A pooler may drop what is asked for while connecting, or not hand it on.
        pool.keyed = settings.prepared_statements and walks == "off"
        status = await read_status(connection, names)
        if status.v1 is V1State.PENDING and not settings.allow_v1:
            raise SchemaError(status.problem())
        if status.state is SchemaState.EMPTY and settings.create_schema:
            await apply_on(connection, names)
            status = await read_status(connection, names)
        if status.state is not SchemaState.CURRENT:
            raise SchemaError(attrs.evolve(status, v1=V1State.ABSENT).problem())


# --- roles ------------------------------------------------------------------


def roles_sql(
    settings: PostgresSettings,
    *,
    project: str,
    environment: str,
    reader: str = "oqron_reader",
    worker: str = "oqron_worker",
    migrator: str = "oqron_migrator",
) -> str:
    """
    Print SQL that makes three roles with no more than they need.

    The reader, for dashboards, may read the rows of one project and environment: a
    policy of the tables holds it to them. The worker may read and write rows and do
    nothing to the tables. The migrator owns the tables. None of them may log in: grant
    them to those who do. A process that still logs in as the owner of before stops
    working until it is granted the worker.

    Args:
        settings: Of which only the schema and the prefix matter.
        project: The project that the reader may see.
        environment: The environment that the reader may see.
        reader: The name of the role that reads.
        worker: The name of the role that works.
        migrator: The name of the role that applies schemas.

    Returns:
        SQL that may be repeated, also with other scopes and other readers. All of it
        or nothing takes effect.
    """
    from string import Template  # noqa: PLC0415 - seldom needed

    from oqron_postgres._sqltext import read_sql  # noqa: PLC0415 - seldom needed

    names = Names.of(settings)
    filling = {
        "schema": quote_identifier(names.schema),
        "schema_text": quote_literal(names.schema),
        "meta": names.table("meta"),
        "reader": quote_identifier(reader),
        "worker": quote_identifier(worker),
        "migrator": quote_identifier(migrator),
        "reader_text": quote_literal(reader),
        "worker_text": quote_literal(worker),
        "migrator_text": quote_literal(migrator),
    }
    parts = [Template(read_sql("roles.sql")).substitute(filling)]
    parts += [
        Template(read_sql("roles_table.sql")).substitute(
            filling,
            table=names.table(suffix),
            table_text=quote_literal(names.plain(suffix)),
            all_policy=quote_identifier("oqron_all"),
            scope_policy=quote_identifier(_policy(reader)),
            scope_policy_text=quote_literal(_policy(reader)),
            project=quote_literal(project),
            environment=quote_literal(environment),
        )
        for suffix in _OURS
    ]
    return "\n".join([*parts, "COMMIT;\n"])


def _policy(reader: str) -> str:
    """Name a reader's policy, within what PostgreSQL keeps of a name."""
    return ("oqron_scope_" + reader).encode()[:63].decode(errors="ignore")
