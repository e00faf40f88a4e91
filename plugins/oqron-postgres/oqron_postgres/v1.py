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

from oqron_core import Settings
from oqron_core.exceptions import InvalidValueError, SchemaError
from oqron_core.planes import check_name, check_namespace, encode_fields
from oqron_core.taxonomy import RecordKind, Table, classify_namespace, table_for_kind
from oqron_postgres._connection import raw_connection
from oqron_postgres._hot_fields import INSTANTS, LABELS, check_hot
from oqron_postgres._links import PsycopgLink
from oqron_postgres._sqltext import Names, Statement, quote_identifier, read_sql
from oqron_postgres._write import dumps
from oqron_postgres.schema import (
    SchemaState,
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
_ENDED: Final = ("completed", "failed", "cancelled")
_LATEST: Final = 2**53
"""Beyond this a number is no instant, whatever it was meant to be."""

Progress = Callable[[int, int], None]


@attrs.frozen(kw_only=True)
class V1Report:
    """
    What was moved, or would be.

    Where v1 is silent meanwhile, *moved*, *kept*, *refused_count* and *missing* come to
    *total*.

    Attributes:
        dry_run: Whether nothing was written.
        total: How many rows the old table holds.
        moved: How many rows this call moved, by record kind; with *dry_run* how many
            it would.
        kept: How many rows were left out because the new tables have their key: moved
            by a call before, or written by the new version.
        mended: The first rows whose values change beyond their dates, with the fields:
            a hot field that no query could cast, a value that was no object.
        mended_count: How many there are.
        refused: The first rows that the new tables cannot take, with the reason.
        refused_count: How many there are.
        missing: How many rows could be moved and were not found in their tables, or
            could not be read.
        project: The project of rows whose namespace names no scope, or None where
            none was given.
        environment: Their environment, likewise.
        unscoped: How many such rows there are that can be moved.
        verified: Whether every row of the old table has been found in its new one. Not
            so where a row was refused: it is in the old table only.
    """

    dry_run: bool
    total: int
    moved: Mapping[RecordKind, int]
    kept: int = 0
    mended: tuple[str, ...] = ()
    mended_count: int = 0
    refused: tuple[str, ...] = ()
    refused_count: int = 0
    missing: int = 0
    project: str | None = None
    environment: str | None = None
    unscoped: int = 0
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


def _mend(fields: dict[str, Any]) -> list[str]:
    """Make hot fields what queries can cast; give the names of those that changed."""
    mended = []
    for name in sorted(INSTANTS & fields.keys()):
        field = fields[name]
        if field is not None and type(field) not in {int, float}:
            fields[name] = _instant(field)
            mended.append(name)
    for name in sorted(LABELS & fields.keys()):
        try:
            check_hot(encode_fields({name: fields[name]}), "value")
        except InvalidValueError:
            fields[name] = None
            mended.append(name)
    return mended


def _kept_for(
    kind: RecordKind, value: Mapping[str, Any], core: Settings
) -> tuple[float | None, tuple[str, ...]]:
    """Say for how long what has ended is kept, and which fields may say when it did."""
    status = value.get("status")
    if kind is RecordKind.JOB and status == "completed":
        return core.retention.completed_for, ("finishedAt",)
    if kind is RecordKind.JOB and status == "cancelled":
        return core.retention.cancelled_for, ("finishedAt",)
    if kind is RecordKind.DLQ or (kind is RecordKind.JOB and status == "failed"):
        return core.retention.dead_letters_for, ("deadAt", "finishedAt")
    if kind is RecordKind.RUN and (status in _ENDED or value.get("endedAt") is not None):
        return core.retention.runs_for, ("endedAt",)
    return None, ()


def _expiry(kind: RecordKind, value: Mapping[str, Any], core: Settings, now: int) -> int | None:
    """Give the expiry that the new version would have written when this ended."""
    keep_for, fields = _kept_for(kind, value, core)
    if keep_for is None:
        return None
    instants = (_instant(value.get(name)) for name in fields)
    known = [instant for instant in instants if instant is not None and 0 <= instant < _LATEST]
    # Where nobody noted when it ended, it is kept as if it had just now.
    return (known[0] if known else now) + round(keep_for * 1000)


# --- rows -------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class _Terms:
    """What rows are made by, beyond what they say themselves."""

    project: str | None
    environment: str | None
    core: Settings


@attrs.define
class _Row:
    project: str
    environment: str
    namespace: str
    id: str
    value: dict[str, Any]
    inserted_at: int
    expires_at: int | None
    mended: list[str]
    unscoped: bool

    @property
    def kind(self) -> RecordKind:
        return classify_namespace(self.namespace)

    @property
    def table(self) -> Table:
        return table_for_kind(self.kind)

    @property
    def scoped(self) -> tuple[str, str]:
        """Its key in the old table, had it its scope in the namespace."""
        return f"oqron:{self.project}:{self.environment}:{self.namespace}", self.id

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


def _address(namespace: str, terms: _Terms) -> tuple[str, str, str, bool]:
    """Split a namespace of v1 into its scope and what it is now; say if it had none."""
    parts = namespace.split(":", 3)
    if len(parts) == 4 and parts[0] == "oqron" and parts[1] and parts[2]:  # noqa: PLR2004 - prefix, two names, rest
        return parts[1], parts[2], parts[3], False
    if terms.project is None or terms.environment is None:
        reason = (
            "names no scope: give --project and --environment, or set project and "
            "environment in oqron.toml or as OQRON_PROJECT and OQRON_ENVIRONMENT"
        )
        raise InvalidValueError(namespace, reason)
    return terms.project, terms.environment, namespace, True


def _row(raw: Sequence[Any], terms: _Terms, now: int) -> _Row:
    old_namespace, id_, text, inserted_at, expires_at = raw
    project, environment, namespace, unscoped = _address(old_namespace, terms)
    check_name("project", project)
    check_name("environment", environment)
    check_namespace(namespace)
    check_name("id", id_)
    value = convert_dates(orjson.loads(text))
    kind = classify_namespace(namespace)
    mended = []
    if type(value) is not dict:
        value = {"value": value}
        mended.append("value")
    if table_for_kind(kind) is Table.RUNS:
        mended += _mend(value)
    encode_fields(value, max_bytes=None)
    if inserted_at is None:
        created = _instant(value.get("createdAt"))
        inserted_at = now if created is None else created
    if expires_at is None:
        expires_at = _expiry(kind, value, terms.core, now)
    return _Row(
        project,
        environment,
        namespace,
        id_,
        value,
        inserted_at,
        expires_at,
        mended,
        unscoped,
    )


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


@attrs.frozen
class _Batch:
    """Rows that were read at once, the refused ones left out, and where to go on."""

    rows: list[_Row]
    size: int
    following: tuple[str, str] | None


class _Walk:
    """What one walk over the whole old table has seen."""

    def __init__(self) -> None:
        self.size = 0
        self.rows = 0
        self.found: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.unscoped = 0

    @property
    def gone(self) -> int:
        """How many rows are not in their tables."""
        return self.rows - self.found.total()

    def add(self, batch: _Batch, found: Mapping[str, int]) -> None:
        """Count a batch, of which *found* are in their tables."""
        self.size += batch.size
        self.rows += len(batch.rows)
        self.found.update(found)
        self.kinds.update(row.kind.value for row in batch.rows)
        self.unscoped += sum(row.unscoped for row in batch.rows)


class _Migration:
    """One run over the old table, in batches that are transactions of their own."""

    def __init__(
        self, connection: psycopg.AsyncConnection[Any], names: Names, terms: _Terms, reader: str
    ) -> None:
        self._connection = connection
        self._names = names
        self._reader = reader
        self._link = PsycopgLink(connection)
        self._moves = self._statements("v1_move.sql")
        self._checks = self._statements("v1_check.sql")
        self._twins = Statement.file("v1_twins.sql", kv=names.table("kv"))
        self.terms = terms
        self.moved: Counter[str] = Counter()
        self.mended: dict[str, str] = {}
        self.refused: dict[str, str] = {}

    def _statements(self, path: str) -> dict[Table, Statement]:
        return {table: Statement.file(path, table=self._names.table(table)) for table in Table}

    async def total(self) -> int:
        """Count the old rows."""
        return await _count_v1(self._connection, self._names)

    async def read(self, cursor: tuple[str, str]) -> _Batch:
        """Read the batch that follows *cursor*."""
        params = {"namespace": cursor[0], "id": cursor[1], "limit": BATCH}
        raws = await fetch_rows(self._connection, self._reader, params)
        now = int(datetime.now(tz=UTC).timestamp() * 1000)
        rows = []
        for raw in raws:
            at = f"{raw[0]}/{raw[1]}"
            try:
                row = _row(raw, self.terms, now)
            except (InvalidValueError, orjson.JSONDecodeError) as error:
                self.refused[at] = str(error)
                continue
            rows.append(row)
            if row.mended:
                self.mended[at] = ", ".join(row.mended)
        rows = await self._without_twins(rows)
        return _Batch(rows, len(raws), (raws[-1][0], raws[-1][1]) if raws else None)

    async def _without_twins(self, rows: list[_Row]) -> list[_Row]:
        """Refuse rows without a scope whose place is that of a row with one."""
        asked = {row.scoped: row for row in rows if row.unscoped}
        if not asked:
            return rows
        part = [{"n": namespace, "i": id_} for namespace, id_ in asked]
        twins = {tuple(twin) for twin in await self._link.fetch(self._twins, {"doc": dumps(part)})}
        for namespace, id_ in twins:
            at = f"{asked[namespace, id_].namespace}/{id_}"
            self.mended.pop(at, None)
            self.refused[at] = f"has the place of {namespace}/{id_}: delete one, or change its id"
        return [row for row in rows if not (row.unscoped and row.scoped in twins)]

    async def batches(self) -> AsyncIterator[_Batch]:
        """Read everything, from the start."""
        cursor: tuple[str, str] | None = ("", "")
        while cursor is not None:
            batch = await self.read(cursor)
            cursor = batch.following
            if cursor is not None:
                yield batch

    async def _each(
        self, statements: Mapping[Table, Statement], rows: Sequence[_Row]
    ) -> Counter[str]:
        done: Counter[str] = Counter()
        for table, statement in statements.items():
            part = [row.document() for row in rows if row.table is table]
            if part:
                counts = await self._link.fetch(statement, {"doc": dumps(part)})
                done.update({str(kind): int(number) for kind, number in counts})
        return done

    async def move_next(self) -> bool:
        """Move one batch and note how far we are; False at the end."""
        connection = self._connection
        await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED", prepare=False)
        moved: Counter[str] = Counter()
        try:
            # Two that migrate at once take turns, and go on where the other stopped.
            await take_lock(connection, self._names)
            fact = await self.fact()
            batch = await self.read(tuple(fact.get("cursor", ("", ""))))
            if batch.following is not None:
                moved = await self._each(self._moves, batch.rows)
                await self.note(self._advanced(fact, batch, batch.following))
        except BaseException:
            if not connection.closed:
                await connection.execute("ROLLBACK", prepare=False)
            raise
        await connection.execute("COMMIT", prepare=False)
        self.moved.update(moved)
        return batch.following is not None

    def _advanced(
        self, fact: Mapping[str, Any], batch: _Batch, cursor: tuple[str, str]
    ) -> dict[str, Any]:
        scope = fact.get("scope")
        if scope is None and any(row.unscoped for row in batch.rows):
            scope = [self.terms.project, self.terms.environment]
        return {
            "state": "running",
            "cursor": list(cursor),
            "read": fact.get("read", 0) + batch.size,
            "scope": scope,
        }

    def agree(self, fact: Mapping[str, Any]) -> None:
        """
        Keep rows without a scope where those before them went.

        Raises:
            InvalidValueError: They are to go elsewhere now, and would be there twice.
        """
        scope = fact.get("scope")
        if scope is None:
            return
        project, environment = scope
        asked = (self.terms.project or project, self.terms.environment or environment)
        if asked != (project, environment):
            reason = (
                f"rows that name no scope went to project {project} and environment "
                f"{environment} before and would be there twice: give --project {project} "
                f"--environment {environment}"
            )
            raise InvalidValueError("/".join(asked), reason)
        self.terms = attrs.evolve(self.terms, project=project, environment=environment)

    @staticmethod
    def check_done(fact: Mapping[str, Any], walk: _Walk, total: int) -> None:
        """
        Refuse to bring back what was worked off.

        Raises:
            SchemaError: A migration was done, and rows of it are gone.
        """
        if not walk.gone or fact.get("state") != V1State.MIGRATED:
            return
        msg = (
            f"the rows of v1 were moved before, and {walk.gone} of {total} are in the new tables "
            "no more: they were worked off and deleted since, and would be worked again, or came "
            "after the move; nothing was moved. To move them all the same, give --again "
            "(again=True)"
        )
        raise SchemaError(msg)

    async def fact(self) -> dict[str, Any]:
        """Read what was noted."""
        return dict((await read_facts(self._connection, self._names)).get("v1", {}))

    async def note(self, fact: Mapping[str, Any]) -> None:
        """Note how far we are."""
        await _note_v1(self._connection, self._names, fact)

    async def look(self, *, tables: bool = True, on_progress: Progress | None = None) -> _Walk:
        """Walk over everything and look for it in its *tables*, if there are any."""
        walk = _Walk()
        total = await self.total() if on_progress is not None else 0
        async for batch in self.batches():
            walk.add(batch, await self._each(self._checks, batch.rows) if tables else {})
            if on_progress is not None:
                on_progress(walk.size, total)
        return walk


async def _count_v1(connection: psycopg.AsyncConnection[Any], names: Names) -> int:
    statement = Statement.file("v1_count.sql", kv=names.table("kv"))
    rows = await PsycopgLink(connection).fetch(statement, {})
    return int(rows[0][0])


async def _note_v1(
    connection: psycopg.AsyncConnection[Any], names: Names, fact: Mapping[str, Any]
) -> None:
    statement = Statement.file("note.sql", meta=names.table("meta"))
    await PsycopgLink(connection).fetch(statement, {"doc": dumps(dict(fact))})


def _report(migration: _Migration, walk: _Walk, moved: Mapping[str, int], **more: Any) -> V1Report:
    def shown(lines: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(f"{at}: {what}" for at, what in list(lines.items())[:_SHOWN])

    return V1Report(
        moved={RecordKind(kind): number for kind, number in moved.items() if number},
        mended=shown(migration.mended),
        mended_count=len(migration.mended),
        refused=shown(migration.refused),
        refused_count=len(migration.refused),
        project=migration.terms.project,
        environment=migration.terms.environment,
        unscoped=walk.unscoped,
        **more,
    )


async def migrate_v1(
    settings: PostgresSettings,
    *,
    project: str | None = None,
    environment: str | None = None,
    core: Settings | None = None,
    dry_run: bool = False,
    again: bool = False,
    on_progress: Progress | None = None,
) -> V1Report:
    """
    Move every row of the v1 table to its table.

    Resumable: what was moved is noted with every batch of 500 in the same transaction,
    and a run that was interrupted is continued by the next. At the end every row is
    looked for in its table; only if all are there is the migration noted as done, and
    storages open. The new tables are made where there are none. What has ended and has
    no expiry in the old table gets the one that the retention of *core* gives it.

    Args:
        settings: Where; ``<table_prefix>_kv`` is the old table.
        project: Of rows whose namespace does not begin with ``oqron:<project>:…``.
        environment: Likewise.
        core: What storages are opened with, of which only the retention matters; None
            takes the defaults.
        dry_run: Only read, and report what would be moved.
        again: Where a migration is done, move once more what is not in the new tables,
            though jobs that were worked off and deleted since would be worked again.
        on_progress: Is told after each batch how many of how many rows were read.

    Raises:
        SchemaError: The new tables are of another version, or the old one is no v1 layout;
            or a migration is done, rows of it are gone, and *again* was not said.
        UnavailableError: The server did not answer.
    """
    names = Names.of(settings)
    async with raw_connection(settings) as connection:
        status = await read_status(connection, names)
        if status.v1 is V1State.ABSENT:
            return V1Report(dry_run=dry_run, total=0, moved={}, verified=not dry_run)
        reader = await _reader(connection, names)
        terms = _Terms(
            project=project,
            environment=environment,
            core=Settings() if core is None else core,
        )
        migration = _Migration(connection, names, terms, reader)
        if status.state is SchemaState.CURRENT:
            migration.agree(await migration.fact())
        if dry_run:
            tables = status.state is SchemaState.CURRENT
            return await _rehearse(migration, on_progress, tables=tables, again=again)
        await apply_on(connection, names)
        return await _migrate(migration, on_progress, again=again)


async def _rehearse(
    migration: _Migration, on_progress: Progress | None, *, tables: bool, again: bool
) -> V1Report:
    walk = await migration.look(tables=tables, on_progress=on_progress)
    total = await migration.total()
    if tables and not again:
        migration.check_done(await migration.fact(), walk, total)
    return _report(
        migration,
        walk,
        walk.kinds - walk.found,
        dry_run=True,
        total=total,
        kept=walk.found.total(),
        missing=max(0, total - walk.size),
    )


async def _migrate(migration: _Migration, on_progress: Progress | None, *, again: bool) -> V1Report:
    before = await migration.fact()
    passes = 0
    while True:
        passes += 1
        total = await migration.total()
        while await migration.move_next():
            if on_progress is not None:
                on_progress((await migration.fact())["read"], total)
        migration.refused.clear()
        migration.mended.clear()
        walk = await migration.look()
        total = await migration.total()
        if not again:
            migration.check_done(before, walk, total)
        # What no walk comes by, such as a row without a namespace, is not found either.
        missing = walk.gone + max(0, total - walk.size)
        if not missing or passes == _PASSES:
            break
        # Rows that came behind us: walk again. What is there already is kept.
        scope = (await migration.fact()).get("scope")
        await migration.note({"state": "running", "scope": scope})
    done = not missing and not migration.refused
    # What was done once is so no longer where rows have come that cannot be moved; what
    # somebody dismissed stays dismissed.
    dismissed = before.get("state") == V1State.DISMISSED
    left = V1State.DISMISSED.value if dismissed else "running"
    state = V1State.MIGRATED.value if done else left
    await migration.note({**await migration.fact(), "state": state})
    return _report(
        migration,
        walk,
        migration.moved,
        dry_run=False,
        total=total,
        kept=max(0, walk.found.total() - migration.moved.total()),
        missing=missing,
        verified=done,
    )


async def dismiss_v1(settings: PostgresSettings) -> int:
    """
    Say that the rows of the v1 table are not needed, so that storages open.

    For those who drained v1. Moves and deletes nothing. The new tables are made where
    there are none.

    Returns:
        How many rows the old table holds. Those that were not moved are only there.

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
        known = "SELECT to_regclass(%s) IS NOT NULL"
        ((there,),) = await fetch_rows(connection, known, (names.table("kv"),))
        return await _count_v1(connection, names) if there else 0
