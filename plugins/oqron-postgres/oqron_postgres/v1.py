"""
Out of the v1 layout: one table, `<prefix>_kv`, into the three.

What `oqron migrate-v1` calls. Stop every v1 process first. The old table is only
read; dropping it is the owner's to do.
"""

from __future__ import annotations

import contextlib

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from string import Template
from typing import Any, Final

import attrs
import orjson
import psycopg

from oqron_core.exceptions import InvalidValueError, SchemaError
from oqron_core.planes import check_name, check_namespace, encode_fields
from oqron_core.taxonomy import RecordKind, Table, classify_namespace, table_for_kind
from oqron_postgres._connection import raw_connection
from oqron_postgres._hot_fields import INSTANTS, LABELS, check_hot
from oqron_postgres._links import PsycopgLink
from oqron_postgres._sqltext import Names, Statement, quote_identifier, read_sql
from oqron_postgres._write import dumps
from oqron_postgres.schema import (
    V1State,
    apply_on,
    fetch_rows,
    read_facts,
    read_status,
    take_lock,
)
from oqron_postgres.settings import PostgresSettings


__all__ = ["V1Report", "convert_dates", "dismiss_v1", "migrate_v1"]

BATCH: Final = 500
_SHOWN: Final = 20
_PASSES: Final = 3
"""How often the old table is walked while v1 still writes to it."""

_VALUES: Final = ("value", "data", "record", "payload")
_INSERTED: Final = ("inserted_at", "created_at", "createdAt", "updated_at")
_EXPIRES: Final = ("expires_at", "expiresAt")

Progress = Callable[[int, int], None]


@attrs.frozen(kw_only=True)
class V1Report:
    """
    What was moved, or would be.

    Attributes:
        dry_run: Whether nothing was written.
        total: How many rows the old table holds.
        moved: How many rows were moved in all, by record kind; with *dry_run* how
            many would be.
        kept: How many rows were left out because the new tables have their key.
        repaired: How many values were changed beyond their dates: a hot field that no
            query could cast, a value that was no object.
        refused: The first rows that the new tables cannot take, with the reason.
        refused_count: How many there are.
        verified: Whether every row that was not refused has been found in its table.
    """

    dry_run: bool
    total: int
    moved: Mapping[RecordKind, int]
    kept: int = 0
    repaired: int = 0
    refused: tuple[str, ...] = ()
    refused_count: int = 0
    verified: bool = False


# --- values -----------------------------------------------------------------


def _instant(value: Any) -> int | None:
    """Read an instant as milliseconds; None if it is none."""
    if type(value) is int:
        return value
    if type(value) is float:
        return round(value)
    if type(value) is not str:
        return None
    with contextlib.suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return round(moment.timestamp() * 1000)
    return None


def convert_dates(value: Any) -> Any:
    """
    Turn ``{"__type": "Date", "__val": …}`` into milliseconds since the epoch.

    An object of that form whose ``__val`` is no date is data, and stays.
    """
    if type(value) is list:
        return [convert_dates(item) for item in value]
    if type(value) is not dict:
        return value
    if value.keys() == {"__type", "__val"} and value["__type"] == "Date":
        instant = _instant(value["__val"])
        return value if instant is None else instant
    return {name: convert_dates(field) for name, field in value.items()}


def _mend(fields: dict[str, Any]) -> bool:
    """Make hot fields what queries can cast; say whether something changed."""
    mended = False
    for name in INSTANTS & fields.keys():
        field = fields[name]
        if field is not None and type(field) not in {int, float}:
            fields[name] = _instant(field)
            mended = True
    for name in LABELS & fields.keys():
        try:
            check_hot(encode_fields({name: fields[name]}), "value")
        except InvalidValueError:
            fields[name] = None
            mended = True
    return mended


# --- rows -------------------------------------------------------------------


@attrs.frozen
class _Scope:
    project: str | None
    environment: str | None


@attrs.define
class _Row:
    project: str
    environment: str
    namespace: str
    id: str
    value: dict[str, Any]
    inserted_at: int
    expires_at: int | None
    repaired: bool

    @property
    def kind(self) -> RecordKind:
        return classify_namespace(self.namespace)

    @property
    def table(self) -> Table:
        return table_for_kind(self.kind)

    def document(self) -> dict[str, Any]:
        return {
            "p": self.project,
            "v1": self.environment,
            "n": self.namespace,
            "k": self.kind.value,
            "i": self.id,
            "v": self.value,
            "t": self.inserted_at,
            "e": self.expires_at,
        }


def _address(namespace: str, scope: _Scope) -> tuple[str, str, str]:
    """Split a namespace of v1 into its scope and what it is now."""
    parts = namespace.split(":", 3)
    if len(parts) == 4 and parts[0] == "oqron" and parts[1] and parts[2]:  # noqa: PLR2004 - prefix, two names, rest
        return parts[1], parts[2], parts[3]
    if scope.project is None or scope.environment is None:
        reason = "has no scope in its namespace: give the project and the environment"
        raise InvalidValueError(namespace, reason)
    return scope.project, scope.environment, namespace


def _row(raw: Sequence[Any], scope: _Scope, now: int) -> _Row:
    old_namespace, id_, text, inserted_at, expires_at = raw
    project, environment, namespace = _address(old_namespace, scope)
    check_name("project", project)
    check_name("environment", environment)
    check_namespace(namespace)
    check_name("id", id_)
    value = convert_dates(orjson.loads(text))
    repaired = type(value) is not dict
    if repaired:
        value = {"value": value}
    if table_for_kind(classify_namespace(namespace)) is Table.RUNS:
        repaired = _mend(value) or repaired
    encode_fields(value, max_bytes=None)
    if inserted_at is None:
        created = _instant(value.get("createdAt"))
        inserted_at = now if created is None else created
    return _Row(project, environment, namespace, id_, value, inserted_at, expires_at, repaired)


# --- the old table ----------------------------------------------------------


def _milliseconds(columns: Mapping[str, str], wanted: Sequence[str]) -> str:
    """Give the expression that reads an instant of the old table."""
    for name in wanted:
        kind = columns.get(name)
        if kind is None:
            continue
        quoted = f"k.{quote_identifier(name)}"
        if kind.startswith(("timestamp", "date")):
            return f"floor(extract(epoch FROM {quoted}) * 1000)::bigint"
        return f"({quoted})::bigint"
    return "NULL::bigint"


async def _reader(connection: psycopg.AsyncConnection[Any], names: Names) -> str:
    rows = await fetch_rows(
        connection,
        "SELECT column_name, data_type FROM information_schema.columns "
        "WHERE table_schema = %s AND table_name = %s",
        (names.schema, names.plain("kv")),
    )
    columns = dict(rows)
    value = next((name for name in _VALUES if name in columns), None)
    if value is None or not {"namespace", "id"} <= columns.keys():
        msg = (
            f"{names.schema}.{names.plain('kv')} is not the v1 layout: it needs the columns "
            "namespace, id and value"
        )
        raise SchemaError(msg)
    return Template(read_sql("v1_read.sql")).substitute(
        kv=names.table("kv").replace("%", "%%"),
        value=quote_identifier(value),
        inserted_at=_milliseconds(columns, _INSERTED),
        expires_at=_milliseconds(columns, _EXPIRES),
    )


class _Migration:
    """One run over the old table, in batches that are transactions of their own."""

    def __init__(
        self, connection: psycopg.AsyncConnection[Any], names: Names, scope: _Scope, reader: str
    ) -> None:
        self._connection = connection
        self._names = names
        self._scope = scope
        self._reader = reader
        self._link = PsycopgLink(connection)
        self._moves = self._statements("v1_move.sql")
        self._checks = self._statements("v1_check.sql")
        self.refused: dict[str, str] = {}

    def _statements(self, path: str) -> dict[Table, Statement]:
        return {table: Statement.file(path, table=self._names.table(table)) for table in Table}

    async def total(self) -> int:
        """Count the old rows."""
        statement = Statement.file("v1_count.sql", kv=self._names.table("kv"))
        rows = await self._link.fetch(statement, {})
        return int(rows[0][0])

    async def read(self, cursor: tuple[str, str]) -> tuple[list[_Row], tuple[str, str] | None]:
        """Read the batch that follows *cursor*, and the cursor behind it."""
        params = {"namespace": cursor[0], "id": cursor[1], "limit": BATCH}
        raws = await fetch_rows(self._connection, self._reader, params)
        now = int(datetime.now(tz=UTC).timestamp() * 1000)
        rows = []
        for raw in raws:
            try:
                rows.append(_row(raw, self._scope, now))
            except (InvalidValueError, orjson.JSONDecodeError) as error:
                self.refused[f"{raw[0]}/{raw[1]}"] = str(error)
        return rows, (raws[-1][0], raws[-1][1]) if raws else None

    async def batches(self) -> AsyncIterator[list[_Row]]:
        """Read everything, from the start."""
        cursor: tuple[str, str] | None = ("", "")
        while cursor is not None:
            rows, cursor = await self.read(cursor)
            if cursor is not None:
                yield rows

    async def _each(self, statements: Mapping[Table, Statement], rows: Sequence[_Row]) -> int:
        done = 0
        for table, statement in statements.items():
            part = [row.document() for row in rows if row.table is table]
            if part:
                answer = await self._link.fetch(statement, {"doc": dumps(part)})
                done += int(answer[0][0])
        return done

    async def move_next(self) -> bool:
        """Move one batch and note how far we are; False at the end."""
        connection = self._connection
        await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED", prepare=False)
        try:
            # Two that migrate at once take turns, and go on where the other stopped.
            await take_lock(connection, self._names)
            fact = (await read_facts(connection, self._names)).get("v1", {})
            rows, following = await self.read(tuple(fact.get("cursor", ("", ""))))
            if following is not None:
                moved = await self._each(self._moves, rows)
                await self._note(_advanced(fact, rows, moved, following))
        except BaseException:
            if not connection.closed:
                await connection.execute("ROLLBACK", prepare=False)
            raise
        await connection.execute("COMMIT", prepare=False)
        return following is not None

    async def fact(self) -> dict[str, Any]:
        """Read what was noted."""
        return dict((await read_facts(self._connection, self._names)).get("v1", {}))

    async def note(self, fact: Mapping[str, Any]) -> None:
        """Note how far we are."""
        await self._note(fact)

    async def _note(self, fact: Mapping[str, Any]) -> None:
        await _note_v1(self._connection, self._names, fact)

    async def missing(self) -> int:
        """Count the rows that are not in their tables."""
        missing = 0
        async for rows in self.batches():
            missing += len(rows) - await self._each(self._checks, rows)
        return missing


def _advanced(
    fact: Mapping[str, Any], rows: Sequence[_Row], moved: int, cursor: tuple[str, str]
) -> dict[str, Any]:
    kinds = Counter(fact.get("kinds", {}))
    kinds.update(row.kind.value for row in rows)
    return {
        "state": "running",
        "cursor": list(cursor),
        "kinds": dict(kinds),
        "kept": fact.get("kept", 0) + len(rows) - moved,
        "repaired": fact.get("repaired", 0) + sum(row.repaired for row in rows),
    }


async def _note_v1(
    connection: psycopg.AsyncConnection[Any], names: Names, fact: Mapping[str, Any]
) -> None:
    statement = Statement.file("note.sql", meta=names.table("meta"))
    await PsycopgLink(connection).fetch(statement, {"doc": dumps(dict(fact))})


def _report(migration: _Migration, fact: Mapping[str, Any], total: int, **more: Any) -> V1Report:
    shown = [f"{at}: {why}" for at, why in list(migration.refused.items())[:_SHOWN]]
    kinds = {RecordKind(kind): number for kind, number in fact.get("kinds", {}).items()}
    return V1Report(
        total=total,
        moved=kinds,
        kept=fact.get("kept", 0),
        repaired=fact.get("repaired", 0),
        refused=tuple(shown),
        refused_count=len(migration.refused),
        **more,
    )


async def migrate_v1(
    settings: PostgresSettings,
    *,
    project: str | None = None,
    environment: str | None = None,
    dry_run: bool = False,
    on_progress: Progress | None = None,
) -> V1Report:
    """
    Move every row of the v1 table to its table.

    Resumable: what was moved is noted with every batch of 500 in the same transaction,
    and a run that was interrupted is continued by the next. At the end every row is
    looked for in its table; only if all are there is the migration noted as done, and
    storages open. The new tables are made where there are none.

    Args:
        settings: Where; ``<table_prefix>_kv`` is the old table.
        project: Of rows whose namespace does not begin with ``oqron:<project>:…``.
        environment: Likewise.
        dry_run: Only read, and report what would be moved.
        on_progress: Is told after each batch how many of how many rows were read.

    Raises:
        SchemaError: There is no old table, or the new ones are of another version.
        UnavailableError: The server did not answer.
    """
    names = Names.of(settings)
    async with raw_connection(settings) as connection:
        status = await read_status(connection, names)
        if status.v1 is V1State.ABSENT:
            return V1Report(dry_run=dry_run, total=0, moved={}, verified=not dry_run)
        reader = await _reader(connection, names)
        migration = _Migration(connection, names, _Scope(project, environment), reader)
        if dry_run:
            return await _rehearse(migration, on_progress)
        await apply_on(connection, names)
        return await _migrate(migration, on_progress)


async def _rehearse(migration: _Migration, on_progress: Progress | None) -> V1Report:
    total = await migration.total()
    fact: dict[str, Any] = {}
    read = 0
    async for rows in migration.batches():
        fact = _advanced(fact, rows, len(rows), ("", ""))
        read = sum(fact["kinds"].values()) + len(migration.refused)
        if on_progress is not None:
            on_progress(read, total)
    return _report(migration, fact, total, dry_run=True)


async def _migrate(migration: _Migration, on_progress: Progress | None) -> V1Report:
    missing = total = 0
    for turn in range(_PASSES):
        total = await migration.total()
        while await migration.move_next():
            if on_progress is not None:
                fact = await migration.fact()
                on_progress(sum(fact["kinds"].values()) + len(migration.refused), total)
        missing = await migration.missing()
        if not missing:
            break
        if turn < _PASSES - 1:
            # Rows that came behind us: walk again. What is there already is kept.
            fact = await migration.fact()
            await migration.note({"state": "running", "repaired": fact.get("repaired", 0)})
    fact = await migration.fact()
    done = not missing and not migration.refused
    if done:
        await migration.note({**fact, "state": V1State.MIGRATED.value})
    return _report(migration, fact, total, dry_run=False, verified=not missing)


async def dismiss_v1(settings: PostgresSettings) -> None:
    """
    Say that the rows of the v1 table are not needed, so that storages open.

    For those who drained v1. Moves and deletes nothing. The new tables are made where
    there are none.

    Raises:
        SchemaError: The new tables are of another version.
        UnavailableError: The server did not answer.
    """
    names = Names.of(settings)
    async with raw_connection(settings) as connection:
        await apply_on(connection, names)
        fact = (await read_facts(connection, names)).get("v1", {})
        if fact.get("state") != V1State.MIGRATED:
            await _note_v1(connection, names, {**fact, "state": V1State.DISMISSED.value})
