"""
Writes: read what is concerned, apply in order, write what has changed.

All of it happens in one transaction that nobody else can write in, so a guard that
held when it was looked at still holds when the change is written.
"""

from __future__ import annotations

import functools
import itertools
import sqlite3

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs
import orjson

from oqron_core.exceptions import ConflictError, InvalidValueError
from oqron_core.planes import (
    KEEP,
    MISSING,
    Delete,
    Insert,
    Json,
    Patch,
    Put,
    Scope,
    Write,
    WriteResult,
    encode,
    encode_fields,
)
from oqron_core.taxonomy import RecordKind, Table, classify_namespace, table_for_kind
from oqron_sqlite._hot_fields import check_append, check_instants
from oqron_sqlite._lane import Transaction
from oqron_sqlite._rows import Row, append, holds, increment
from oqron_sqlite.tables import table_of


__all__ = ["Item", "apply_writes", "place_of", "prepare", "read_rows"]

_Address: TypeAlias = tuple[str, str]
_READ: Final = 500
"""How many ids one statement reads."""


@functools.lru_cache(maxsize=4096)
def place_of(namespace: str) -> tuple[RecordKind, Table]:
    """Give the kind of a namespace's records, and their table."""
    kind = classify_namespace(namespace)
    return kind, table_for_kind(kind)


@attrs.frozen
class Item:
    """
    One write, checked and encoded.

    Attributes:
        write: What was asked for.
        fields: The whole value, or what a patch sets.
        append: What a patch appends.
        expect: The guards.
    """

    write: Write
    fields: dict[str, Any] = attrs.field(factory=dict)
    append: dict[str, Json] = attrs.field(factory=dict)
    expect: Mapping[str, Any] = attrs.field(factory=dict)


def prepare(index: int, write: object, max_bytes: int) -> Item:
    """
    Check and encode a write, before anything is written.

    Raises:
        InvalidValueError: A value is not portable, too large, or a number of a run
            is none.
    """
    if isinstance(write, (Put, Insert)):
        fields = encode_fields(write.value, max_bytes=max_bytes)
        if place_of(write.namespace)[1] is Table.RUNS:
            check_instants(fields, "value")
        return Item(write, fields)
    if isinstance(write, Delete):
        return Item(write, expect=_guards(write.expect))
    if not isinstance(write, Patch):
        reason = f"must be a Put, an Insert, a Patch or a Delete, not {type(write).__name__}"
        raise InvalidValueError(f"writes[{index}]", reason)
    return _prepare_patch(write, max_bytes)


def _prepare_patch(write: Patch, max_bytes: int) -> Item:
    fields = encode_fields(write.set, "set", max_bytes=max_bytes)
    encode_fields(dict.fromkeys(write.increment), "increment")
    encode_fields(dict.fromkeys(write.append), "append")
    items = {
        name: encode(list(more), f"append.{name}", max_bytes=max_bytes)
        for name, more in write.append.items()
    }
    if place_of(write.namespace)[1] is Table.RUNS:
        check_instants(fields, "set")
        check_append(write.append, "append")
    return Item(write, fields, items, _guards(write.expect))


def _guards(expect: Mapping[str, Any]) -> Mapping[str, Any]:
    present = {name: value for name, value in expect.items() if value is not MISSING}
    checked = encode_fields(present, "expect", max_bytes=None)
    return {name: checked.get(name, MISSING) for name in expect}


# --- reading -----------------------------------------------------------------


@functools.cache
def _select(table: Table) -> str:
    return _SELECT.replace("oqron_table", table_of(table).name)


_SELECT: Final = """
SELECT t.rowid, t.id, t.value, t.inserted_at, t.expires_at
FROM json_each(:ids) AS j CROSS JOIN oqron_table AS t
ON t.project = :project AND t.environment = :environment
AND t.namespace = :namespace AND t.id = j.value
"""


def read_rows(
    driver: sqlite3.Connection, scope: Scope, namespace: str, ids: Sequence[str]
) -> dict[str, Row]:
    """Read the rows of a namespace by id, expired ones included."""
    statement = _select(place_of(namespace)[1])
    params = {
        "project": scope.project,
        "environment": scope.environment,
        "namespace": namespace,
    }
    found: dict[str, Row] = {}
    for start in range(0, len(ids), _READ):
        params["ids"] = orjson.dumps(ids[start : start + _READ]).decode()
        for rowid, id_, value, inserted_at, expires_at in driver.execute(statement, params):
            found[id_] = Row(namespace, id_, value, inserted_at, expires_at, rowid)
    return found


# --- applying ----------------------------------------------------------------


def apply_writes(
    step: Transaction,
    scope: Scope,
    items: Sequence[Item],
    returning: Sequence[str] | None,
    max_bytes: int,
    *,
    atomic: bool,
) -> list[WriteResult]:
    """
    Apply writes in a transaction; whatever is refused is refused before any change.

    Raises:
        ConflictError: *atomic*, and a write could not be applied.
        InvalidValueError: A list has grown too large.
    """
    batch = _Batch(step, scope, max_bytes)
    batch.read(items)
    results: list[WriteResult] = []
    for index, item in enumerate(items):
        applied, row = batch.apply(item)
        if atomic and not applied:
            write = item.write
            reason = (
                f"write {index} of the atomic batch, {type(write).__name__} of "
                f"{write.namespace}/{write.id}, could not be applied; nothing was"
            )
            raise ConflictError(reason, index)
        record = None if row is None else row.record(returning)
        results.append(WriteResult(applied, record))
    batch.save()
    return results


class _Batch:
    """Some records, as they were and as they will be."""

    def __init__(self, step: Transaction, scope: Scope, max_bytes: int) -> None:
        self._driver = step.driver
        self._now = step.now
        self._scope = scope
        self._max_bytes = max_bytes
        self._before: dict[_Address, Row] = {}
        self._after: dict[_Address, Row | None] = {}

    def read(self, items: Sequence[Item]) -> None:
        """Read what the writes concern."""
        concerned: dict[str, dict[str, None]] = {}
        for item in items:
            concerned.setdefault(item.write.namespace, {})[item.write.id] = None
        for namespace, ids in concerned.items():
            found = read_rows(self._driver, self._scope, namespace, [*ids])
            for id_, row in found.items():
                self._before[namespace, id_] = row

    def _get(self, address: _Address) -> Row | None:
        if address in self._after:
            row = self._after[address]
        else:
            row = self._before.get(address)
        if row is None or (row.expires_at is not None and row.expires_at <= self._now):
            return None
        return row

    def apply(self, item: Item) -> tuple[bool, Row | None]:
        """Apply one write; say whether it was, and what is there now."""
        write = item.write
        address = write.namespace, write.id
        row = self._get(address)
        if isinstance(write, Insert):
            return (False, row) if row is not None else (True, self._new(item, write))
        if isinstance(write, Put):
            if row is None:
                return True, self._new(item, write)
            new = self._after[address] = row.changed(item.fields, write.expires_at)
            return True, new
        if row is None:
            return False, None
        if item.expect and not holds(row.fields, item.expect):
            return False, row
        if isinstance(write, Delete):
            self._after[address] = None
            return True, None
        return self._patch(row, write, item)

    def _new(self, item: Item, write: Put | Insert) -> Row:
        address = write.namespace, write.id
        old = self._before.get(address)
        # What has expired makes room; its place in the table is taken over.
        rowid = None if old is None else old.rowid
        new = Row(*address, item.fields, self._now, write.expires_at, rowid)
        self._after[address] = new
        return new

    def _patch(self, row: Row, write: Patch, item: Item) -> tuple[bool, Row]:
        fields = {**row.fields, **item.fields}
        if item.append and not append(fields, item.append, self._max_bytes):
            return False, row
        for name in write.unset:
            fields.pop(name, None)
        if write.increment and not increment(fields, write.increment):
            return False, row
        expires_at = row.expires_at if write.expires_at is KEEP else write.expires_at
        new = self._after[row.namespace, row.id] = row.changed(fields, expires_at)
        return True, new

    # --- writing ---

    def save(self) -> None:
        """Write what has changed, table by table."""
        changes: dict[Table, _Changes] = {}
        for address, row in self._after.items():
            table = place_of(address[0])[1]
            change = changes.get(table)
            if change is None:
                change = changes[table] = _Changes()
            self._note(change, address, row)
        for table, change in changes.items():
            change.run(self._driver, table_of(table).name)

    def _note(self, change: _Changes, address: _Address, row: Row | None) -> None:
        before = self._before.get(address)
        if row is None:
            if before is not None:
                change.deletes.append((before.rowid,))
        elif before is None:
            change.inserts.append(
                (
                    self._scope.project,
                    self._scope.environment,
                    row.namespace,
                    place_of(row.namespace)[0].value,
                    row.id,
                    row.data.decode(),
                    row.inserted_at,
                    row.expires_at,
                )
            )
        elif (row.inserted_at, row.expires_at) == (before.inserted_at, before.expires_at):
            change.values.append((row.data.decode(), before.rowid))
        else:
            change.updates.append(
                (row.data.decode(), row.inserted_at, row.expires_at, before.rowid)
            )


class _Changes:
    """What is written to one table."""

    __slots__ = ("deletes", "inserts", "updates", "values")

    def __init__(self) -> None:
        self.inserts: list[tuple[Any, ...]] = []
        self.updates: list[tuple[Any, ...]] = []
        self.values: list[tuple[Any, ...]] = []
        self.deletes: list[tuple[Any, ...]] = []

    def run(self, driver: sqlite3.Connection, table: str) -> None:
        """Write it."""
        for statement, rows in (
            (_DELETE, self.deletes),
            (_VALUE, self.values),
            (_UPDATE, self.updates),
        ):
            if rows:
                driver.executemany(statement.replace("oqron_table", table), rows)
        self._insert(driver, table)

    def _insert(self, driver: sqlite3.Connection, table: str) -> None:
        """Insert many rows a statement, which costs two thirds of one each."""
        whole = len(self.inserts) - len(self.inserts) % _INSERT_ROWS
        many = _insert_many(table)
        for start in range(0, whole, _INSERT_ROWS):
            part = self.inserts[start : start + _INSERT_ROWS]
            driver.execute(many, [*itertools.chain.from_iterable(part)])
        if whole < len(self.inserts):
            one = _INSERT.replace("oqron_table", table)
            driver.executemany(one, self.inserts[whole:])


_INSERT: Final = "INSERT INTO oqron_table VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_ROWS: Final = 50


@functools.cache
def _insert_many(table: str) -> str:
    row = _INSERT.partition("VALUES ")[2]
    more = f", {row}" * (_INSERT_ROWS - 1)
    return _INSERT.replace("oqron_table", table) + more


_VALUE: Final = "UPDATE oqron_table SET value = ? WHERE rowid = ?"
_UPDATE: Final = "UPDATE oqron_table SET value = ?, inserted_at = ?, expires_at = ? WHERE rowid = ?"
_DELETE: Final = "DELETE FROM oqron_table WHERE rowid = ?"
