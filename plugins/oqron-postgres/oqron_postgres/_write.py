"""
Batches of writes: checked, encoded, sorted, and what became of them.

A batch is cut into waves, so that writes to one record keep their order; a wave into
steps of one table and one kind of write, sorted by key, so that two batches take
their locks in the same order. A step is one statement with one JSON document.
"""

from __future__ import annotations

import functools

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter, is_, itemgetter
from typing import Any, Final, cast

import attrs
import orjson

from oqron_core.exceptions import ConflictError, InvalidValueError
from oqron_core.planes import (
    INT_MAX,
    INT_MIN,
    KEEP,
    MISSING,
    Delete,
    Filled,
    Form,
    Insert,
    Json,
    Patch,
    Put,
    Record,
    Scope,
    Write,
    WriteResult,
    encode,
    encode_fields,
)
from oqron_core.taxonomy import RecordKind, Table, classify_namespace, table_for_kind
from oqron_postgres._hot_fields import check_append, check_hot
from oqron_postgres._links import Rows
from oqron_postgres._sqltext import Statement
from oqron_postgres._statements import Returning, StatementBook


__all__ = [
    "MAX_BATCH",
    "MAX_STEP_BYTES",
    "Batch",
    "Item",
    "Step",
    "are_known",
    "form_of",
    "insert_results",
    "is_mixed",
    "lock_steps",
    "place_of",
    "quick_document",
    "record_of",
]

MAX_BATCH: Final = 1000
"""The largest number of writes in one statement."""
MAX_STEP_BYTES: Final = 8 * 1024 * 1024
"""The largest document of one statement, unless a single write is larger."""
MAX_ATOMIC_BATCH: Final = 20_000

_NO_FIELDS: Final[dict[str, Any]] = {}
"""Of whoever asks for none: it is only read."""
_TABLE_ORDER: Final = {Table.JOBS: 0, Table.RECORDS: 1, Table.RUNS: 2}
_KIND_ORDER: Final = {Patch: 0, Delete: 1, Insert: 2, Put: 2}


@functools.lru_cache(maxsize=4096)
def place_of(namespace: str) -> tuple[RecordKind, Table]:
    """Say what kind a namespace holds, and in which table."""
    kind = classify_namespace(namespace)
    return kind, table_for_kind(kind)


def _fragment(value: Any) -> Any:
    if type(value) is Json:
        return orjson.Fragment(value.data)
    raise TypeError


def dumps(value: Any) -> bytes:
    """Encode JSON in which `Json` may stand for a value."""
    # A copy: orjson's own buffer holds 4 kB for the shortest text.
    return b"%b" % orjson.dumps(value, default=_fragment)


def record_of(
    namespace: str,
    id: str,  # noqa: A002 - the column
    text: str | None,
    inserted_at: int,
    expires_at: int | None,
) -> Record:
    """Make a record of what the server gave; its value is decoded when asked for."""
    raw = b"{}" if text is None else text.encode()
    return Record.lazy(namespace, id, raw, inserted_at, expires_at)


class Item:
    """
    One write of a batch, encoded.

    Attributes:
        index: Its position in the batch.
        write: The write.
        table: Where it goes.
        row: Its part of the document: encoded, or without the position.
        fields: Those of a `Put` or an `Insert` that the result shows.
    """

    __slots__ = ("fields", "index", "row", "table", "write")

    def __init__(
        self,
        index: int,
        write: Write,
        table: Table,
        row: dict[str, Any] | bytes,
        fields: dict[str, Any],
    ) -> None:
        self.index = index
        self.write = write
        self.table = table
        self.row = row
        self.fields = fields


# --- whole values ---

_PLAIN: Final = frozenset({str, int, bool, type(None)})
_QUICK: Final = _PLAIN | {Json}
_QUICK_OPTIONS: Final = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_STRICT_INTEGER
_CONTAINERS: Final = (b"[", b"{")
_known_names: set[str] = set()
"""Names of fields that were found legal; a few, which stand in every record."""
_KNOWN_MOST: Final = 1000


def _quick_fragment(value: Any) -> Any:
    if type(value) is Json and (value.data[:1] in _CONTAINERS or value.data == b"null"):
        return orjson.Fragment(value.data)
    raise TypeError


def quick_document(row: dict[str, Any], fields: Mapping[str, Any], max_bytes: int) -> bytes | None:
    """
    Check and encode at once what is plain; None for what needs a closer look.

    Plain are fields known by name, of strings, small integers, booleans, null and what
    is encoded already: all that is wrong with them the encoder itself finds.
    """
    if not _QUICK.issuperset(map(type, fields.values())) or not _known_names.issuperset(fields):
        return None
    try:
        data = b"%b" % orjson.dumps(row, default=_quick_fragment, option=_QUICK_OPTIONS)
    except TypeError:
        return None
    # The second is a NUL, or harmless and rare.
    return None if len(data) > max_bytes or b"\\u0000" in data else data


def are_known(fields: Mapping[str, Any]) -> bool:
    """Whether the names of all fields are legal; learns those that it does not know."""
    if not _known_names.issuperset(fields):
        try:
            encode_fields(dict.fromkeys(fields), max_bytes=None)
        except InvalidValueError:
            return False
        if len(_known_names) < _KNOWN_MOST:
            _known_names.update(fields)
    return True


class KnownForm:
    """
    A form, encoded.

    Attributes:
        same: All of it but its open fields, as a document.
    """

    __slots__ = ("_frame", "_open", "_order", "same")

    def __init__(self, form: Form, fields: Mapping[str, Any]) -> None:
        self._order = [name for name in fields if name in form.open]
        self.same = dumps({name: field for name, field in fields.items() if name not in form.open})
        parts = [
            dumps(name).replace(b"%", b"%%")
            + (b":%b" if name in form.open else b":" + dumps(field).replace(b"%", b"%%"))
            for name, field in fields.items()
        ]
        self._frame = b"{" + b",".join(parts) + b"}"
        names = [dumps(name).replace(b"%", b"%%") for name in self._order]
        self._open = b"{" + b",".join(name + b":%b" for name in names) + b"}"

    def documents(self, given: Sequence[Mapping[str, Any]], max_bytes: int) -> list[bytes] | None:
        """Give whole values, checked; None where one needs a closer look."""
        return self._put_in(self._frame, given, max_bytes)

    def open_parts(self, given: Sequence[Mapping[str, Any]], max_bytes: int) -> list[bytes] | None:
        """Give the open fields of values alone, likewise."""
        return self._put_in(self._open, given, max_bytes)

    def _put_in(
        self, frame: bytes, given: Sequence[Mapping[str, Any]], max_bytes: int
    ) -> list[bytes] | None:
        columns: list[list[bytes]] = []
        for name in self._order:
            texts = _quick_texts([fields[name] for fields in given])
            if texts is None:
                return None
            columns.append(texts)
        rows = [frame % row for row in zip(*columns, strict=True)] or [frame % ()] * len(given)
        return None if max(map(len, rows)) > max_bytes else rows


def insert_results(writes: Sequence[Insert], ms: int) -> list[WriteResult]:
    """Give what became of inserts that were all applied; the records without their values."""
    kind, _ = place_of(writes[0].namespace)

    def record(place: int) -> Record:
        write = writes[place]
        return Record.lazy(write.namespace, write.id, {}, ms, write.expires_at, kind)

    return [WriteResult(applied=True, make=record, place=place) for place in range(len(writes))]


def _quick_texts(values: Sequence[Any]) -> list[bytes] | None:
    """Give the JSON texts of plain values of one field; None as `_quick_text`."""
    kinds = {*map(type, values)}
    if kinds == {str}:
        try:
            texts = [b"%b" % orjson.dumps(value) for value in values]
        except TypeError:  # orjson's for a lone surrogate
            return None
        return None if b"\\u0000" in b"".join(texts) else texts
    if kinds == {int} and min(values) >= INT_MIN and max(values) <= INT_MAX:
        return [b"%d" % value for value in values]
    found = [_quick_text(value) for value in values]
    return None if None in found else cast("list[bytes]", found)


def _quick_text(value: Any) -> bytes | None:
    """Give the JSON text of a plain value; None for what needs a closer look."""
    kind = type(value)
    if kind is int and INT_MIN <= value <= INT_MAX:
        return b"%d" % value
    if kind is Json and value.data[:1] in _CONTAINERS:
        return cast("bytes", value.data)
    if kind is str:
        try:
            data = orjson.dumps(value)
        except TypeError:  # orjson's for a lone surrogate
            return None
        return None if b"\\u0000" in data else data
    return b"null" if value is None else None


@functools.lru_cache(maxsize=256)
def known_form(form: Form, max_bytes: int, table: Table) -> KnownForm | None:
    """Encode a form; None where something in it is refused, which a closer look will name."""
    try:
        fields = encode_fields({**form.fields, **dict.fromkeys(form.open)}, max_bytes=max_bytes)
        if table is Table.RUNS:
            check_hot(fields, "value")
    except InvalidValueError:
        return None
    return KnownForm(form, fields)


def form_of(writes: Sequence[Write], max_bytes: int) -> KnownForm | None:
    """Give the form of which all values of a batch are; None where there is none."""
    first = writes[0]
    if not isinstance(first, (Insert, Put)) or type(first.value) is not Filled:
        return None
    form, namespace = first.value.form, first.namespace
    for write in writes:
        if type(write) is not Insert and type(write) is not Put:
            return None
        value = write.value
        if type(value) is not Filled or value.form is not form or write.namespace != namespace:
            return None
    return known_form(form, max_bytes, place_of(namespace)[1])


class _Shape:
    """
    What the values of a batch have in common, which is sent once for all of them.

    Attributes:
        same: The fields that are the same in each, encoded.
    """

    __slots__ = ("_namespace", "_pick", "_rest", "_size", "_values", "same")

    def __init__(self, write: Put | Insert, fields: Mapping[str, Any]) -> None:
        self._namespace = write.namespace
        self._pick = itemgetter(*fields)
        self._values = self._pick(write.value)
        self._rest = [name for name in write.value if name not in fields]
        self._size = len(write.value)
        self.same = dumps(fields)

    @classmethod
    def of(cls, writes: Sequence[Write], max_bytes: int) -> _Shape | None:
        """Look at a few of a batch; None where it is not worth while."""
        if len(writes) < _SHAPE_FROM:
            return None
        first, *others = writes[0], writes[len(writes) // 2], writes[-1]
        if not isinstance(first, (Insert, Put)) or not isinstance(first.value, Mapping):
            return None
        fields = dict(first.value)
        for other in others:
            value = other.value if isinstance(other, (Insert, Put)) else _NO_FIELDS
            fields = {
                name: field for name, field in fields.items() if value.get(name, MISSING) is field
            }
        if len(fields) < _SHAPE_NAMES:
            return None
        try:
            fields = encode_fields(fields, max_bytes=max_bytes)
            if place_of(first.namespace)[1] is Table.RUNS:
                check_hot(fields, "value")
        except InvalidValueError:
            # It is found again, and named, in the write that has it.
            return None
        return cls(first, fields)

    def rest_of(self, write: Write) -> dict[str, Any] | None:
        """Give the fields that are its own; None where it is of another shape."""
        if not isinstance(write, (Insert, Put)):
            return None
        value = write.value
        if type(value) is not dict and type(value) is not Filled:
            return None
        if len(value) != self._size:
            return None
        if write.namespace != self._namespace:
            return None
        try:
            # The very same objects: equal ones may differ as JSON.
            if not all(map(is_, self._pick(value), self._values)):
                return None
            return {name: value[name] for name in self._rest}
        except KeyError:
            return None

    def rests_of(self, writes: Sequence[Write]) -> list[Mapping[str, Any]] | None:
        """Give the fields of their own of all; None where one is of another shape."""
        rests: list[Mapping[str, Any]] = []
        for write in writes:
            rest = self.rest_of(write)
            if rest is None:
                return None
            rests.append(rest)
        return rests


_SHAPE_FROM: Final = 8
"""The smallest batch of which it is asked what its values have in common."""
_SHAPE_NAMES: Final = 4
"""The fewest fields that are worth being sent apart."""


def _shared(
    writes: Sequence[Write], max_bytes: int
) -> tuple[bytes, Sequence[Mapping[str, Any] | None]]:
    """Give what all values have in common, as a document, and of each the rest or None."""
    form = form_of(writes, max_bytes)
    if form is not None:
        return form.same, [write.value.given for write in writes]  # type: ignore[union-attr]  # as form_of has seen
    shape = _Shape.of(writes, max_bytes)
    rests = None if shape is None else shape.rests_of(writes)
    if shape is None or rests is None:
        return b"{}", [None] * len(writes)
    return shape.same, rests


def _encode_whole(
    index: int, write: Put | Insert, rest: Mapping[str, Any] | None, encoding: _Encoding
) -> Item:
    kind, table = place_of(write.namespace)
    fields = write.value if rest is None else rest
    if type(fields) is Filled:
        fields = dict(fields)
    row: dict[str, Any] = {
        "n": write.namespace,
        "k": kind.value,
        "i": write.id,
        "v": fields,
        "e": write.expires_at,
    }
    max_bytes = encoding.max_bytes
    data = quick_document(row, fields, max_bytes) if type(fields) is dict else None
    if data is None:
        fields = row["v"] = encode_fields(fields, max_bytes=max_bytes)
        data = dumps(row)
        if len(_known_names) < _KNOWN_MOST:
            _known_names.update(fields)
    if table is Table.RUNS:
        check_hot(fields, "value")
    return Item(index, write, table, data, encoding.shown(write.value))


def _encode_guards(row: dict[str, Any], write: Patch | Delete) -> None:
    if not write.expect:
        return
    present = {name: value for name, value in write.expect.items() if value is not MISSING}
    if present:
        row["x"] = encode_fields(present, "expect", max_bytes=None)
    if len(present) < len(write.expect):
        absent = [name for name, value in write.expect.items() if value is MISSING]
        row["m"] = encode(absent, "expect", max_bytes=None)


def _encode_patch(index: int, write: Patch, max_bytes: int) -> Item:
    _, table = place_of(write.namespace)
    fields = encode_fields(write.set, "set", max_bytes=max_bytes)
    row: dict[str, Any] = {"n": write.namespace, "i": write.id, "s": fields}
    if write.unset:
        row["u"] = encode(list(write.unset), "unset", max_bytes=None)
    if write.increment:
        row["c"] = encode_fields(write.increment, "increment", max_bytes=None)
    if write.append:
        row["a"] = {
            name: encode(list(items), f"append.{name}", max_bytes=max_bytes)
            for name, items in write.append.items()
        }
        encode(dict.fromkeys(write.append), "append", max_bytes=None)
    if table is Table.RUNS:
        check_hot(fields, "set")
        check_append(write.append, "append")
    _encode_guards(row, write)
    row["k"] = write.expires_at is KEEP
    if write.expires_at is not KEEP:
        row["e"] = write.expires_at
    return Item(index, write, table, row, _NO_FIELDS)


def _encode_delete(index: int, write: Delete) -> Item:
    _, table = place_of(write.namespace)
    row: dict[str, Any] = {"n": write.namespace, "i": write.id}
    _encode_guards(row, write)
    return Item(index, write, table, row, _NO_FIELDS)


@attrs.frozen
class _Encoding:
    """How a batch is encoded: the limit of a field, and what the results show."""

    max_bytes: int
    returning: Sequence[str] | None

    def shown(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Give what the result of a value that was written shows, encoded."""
        names = self.returning
        if names is None:
            return encode_fields(value, max_bytes=None)
        if not names:
            return _NO_FIELDS
        shown = {name: value[name] for name in names if name in value}
        if _PLAIN.issuperset(map(type, shown.values())):
            return shown
        return encode_fields(shown, max_bytes=None)


def _encode(index: int, write: object, rest: Mapping[str, Any] | None, encoding: _Encoding) -> Item:
    if isinstance(write, (Insert, Put)):
        return _encode_whole(index, write, rest, encoding)
    if isinstance(write, Patch):
        return _encode_patch(index, write, encoding.max_bytes)
    if isinstance(write, Delete):
        return _encode_delete(index, write)
    reason = f"must be a Put, an Insert, a Patch or a Delete, not {type(write).__name__}"
    raise InvalidValueError(f"writes[{index}]", reason)


def _sort_key(item: Item) -> tuple[int, int, str, str]:
    # What creates rows keeps one order over both kinds: a row that is not there yet
    # cannot be locked beforehand, so its creation is the lock.
    write = item.write
    return (
        _TABLE_ORDER[item.table],
        _KIND_ORDER[type(write)],
        write.namespace,
        write.id,
    )


_by_address: Final = attrgetter("write.namespace", "write.id")


def _by_group(item: Item) -> tuple[int, str]:
    return _TABLE_ORDER[item.table], type(item.write).__name__


def _group_key(item: Item) -> tuple[Table, type]:
    return item.table, type(item.write)


@attrs.define
class Step:
    """
    One statement: writes of one kind to one table, sorted by key.

    Attributes:
        items: The writes.
        statement: What runs.
        params: With what.
        absorb: Takes the rows and notes what became of each write; gives back those
            that have to be asked for again.
    """

    items: list[Item]
    statement: Statement
    params: dict[str, Any]
    absorb: Callable[[Rows], list[Item]]


@attrs.define
class Batch:
    """
    A batch on its way.

    Attributes:
        scope: The scope of the plane.
        book: The statements.
        returning: Which fields the results hold.
        items: All writes, encoded.
        results: What became of them, by position.
        blocked: Inserts that something stood in the way of.
        same: The fields that all values have in common and that no row repeats.
    """

    scope: Scope
    book: StatementBook
    returning: Sequence[str] | None
    items: list[Item]
    results: list[WriteResult | None]
    blocked: list[Item] = attrs.field(factory=list)
    same: bytes = b"{}"

    @classmethod
    def of(
        cls,
        writes: Sequence[Write],
        *,
        scope: Scope,
        book: StatementBook,
        returning: Sequence[str] | None,
        max_bytes: int,
    ) -> Batch:
        """
        Check and encode *writes*.

        Raises:
            InvalidValueError: A value is not portable, too large, or a hot field of a
                run is not what it must be.
        """
        encoding = _Encoding(max_bytes, returning)
        same, rests = _shared(writes, max_bytes)
        items = [
            _encode(index, write, rest, encoding)
            for index, (write, rest) in enumerate(zip(writes, rests, strict=True))
        ]
        return cls(scope, book, returning, items, [None] * len(items), same=same)

    def waves(self) -> Iterator[list[Item]]:
        """Cut into parts in which no record occurs twice, in order."""
        seen: dict[tuple[str, str], int] = {}
        waves: list[list[Item]] = []
        for item in self.items:
            address = (item.write.namespace, item.write.id)
            turn = seen.get(address, 0)
            seen[address] = turn + 1
            if turn == len(waves):
                waves.append([])
            waves[turn].append(item)
        yield from waves

    def steps(self, items: Sequence[Item], *, one_transaction: bool = False) -> Iterator[Step]:
        """
        Cut a wave into statements, each encoded when it is asked for.

        Args:
            items: The wave.
            one_transaction: Keep to the one order of locks at the price of more
                statements, where inserts and puts alternate.
        """
        if len({_group_key(item) for item in items}) == 1:
            ordered = sorted(items, key=_by_address)
        else:
            ordered = sorted(items, key=_sort_key)
            if not one_transaction:
                ordered.sort(key=_by_group)
        for (table, kind), group in groupby(ordered, key=_group_key):
            for part, document in _documents(list(group)):
                yield self._step(table, kind, part, document)

    def _step(self, table: Table, kind: type, items: list[Item], document: bytes) -> Step:
        params: dict[str, Any] = {
            "project": self.scope.project,
            "environment": self.scope.environment,
            "doc": document,
        }
        if kind is Insert or kind is Put:
            params["same"] = self.same
            if kind is Insert:
                params["size"] = len(items)
                statement, absorb = self.book.insert(table), self._absorb_insert
            else:
                statement, absorb = self.book.put(table), self._absorb_put
            return Step(items, statement, params, functools.partial(absorb, items))
        returning = Returning.of(self.returning)
        if returning is Returning.SOME:
            params["fields"] = dumps(list(self.returning or ()))
        if kind is Patch:
            statement, absorb = self.book.patch(table, returning), self._absorb_patch
        else:
            statement, absorb = self.book.delete(table, returning), self._absorb_delete
        return Step(items, statement, params, functools.partial(absorb, items))

    # --- what became of them ---

    @staticmethod
    def _written(item: Item, inserted_at: int) -> WriteResult:
        write = cast("Put | Insert", item.write)
        kind, _ = place_of(write.namespace)
        record = Record.lazy(
            write.namespace, write.id, item.fields, inserted_at, write.expires_at, kind
        )
        return WriteResult(applied=True, record=record)

    def absorb_inserts(self, rows: Rows) -> None:
        """Note what became of a batch that is one statement of inserts."""
        self._absorb_insert(self.items, rows)

    def _absorb_insert(self, items: list[Item], rows: Rows) -> list[Item]:
        ms, names = rows[0]
        if names is None:
            for item in items:
                self.results[item.index] = self._written(item, ms)
            return []
        applied = {(namespace, id_) for namespace, id_ in orjson.loads(names)}
        for item in items:
            if (item.write.namespace, item.write.id) in applied:
                self.results[item.index] = self._written(item, ms)
            else:
                self.results[item.index] = WriteResult(applied=False)
                self.blocked.append(item)
        return []

    def _absorb_put(self, items: list[Item], rows: Rows) -> list[Item]:
        ms, older = rows[0]
        ages: dict[tuple[str, str], int] = {}
        if older is not None:
            ages = {(namespace, id_): at for namespace, id_, at in orjson.loads(older)}
        for item in items:
            at = ages.get((item.write.namespace, item.write.id), cast("int", ms))
            self.results[item.index] = self._written(item, at)
        return []

    def _absorb_patch(self, items: list[Item], rows: Rows) -> list[Item]:
        results = self.results
        for item in items:
            results[item.index] = WriteResult(applied=False)
        for position, applied, inserted_at, expires_at, text in rows:
            item = items[position]
            write = item.write
            record = record_of(write.namespace, write.id, text, inserted_at, expires_at)
            results[item.index] = WriteResult(applied, record)
        return []

    def _absorb_delete(self, items: list[Item], rows: Rows) -> list[Item]:
        results = self.results
        moved = []
        for item in items:
            results[item.index] = WriteResult(applied=False)
        for position, matched, gone, inserted_at, expires_at, text in rows:
            item = items[position]
            if gone:
                results[item.index] = WriteResult(applied=True)
            elif matched:
                moved.append(item)
            else:
                write = item.write
                record = record_of(write.namespace, write.id, text, inserted_at, expires_at)
                results[item.index] = WriteResult(applied=False, record=record)
        return moved

    def check_all_applied(self) -> None:
        """
        Hold an atomic batch to its word.

        Raises:
            ConflictError: The first write that could not be applied.
        """
        for item in self.items:
            result = self.results[item.index]
            if result is None or not result.applied:
                write = item.write
                reason = (
                    f"write {item.index} of the atomic batch, {type(write).__name__} of "
                    f"{write.namespace}/{write.id}, could not be applied; nothing was"
                )
                raise ConflictError(reason, item.index)

    def reading(self, items: Sequence[Item]) -> list[Step]:
        """Make statements that read what stands in the way of *items*."""
        steps = []
        returning = Returning.of(self.returning)
        for table, group in groupby(sorted(items, key=_by_table), key=_table):
            part = list(group)
            params: dict[str, Any] = {
                "project": self.scope.project,
                "environment": self.scope.environment,
                "doc": _addresses(part),
            }
            if returning is Returning.SOME:
                params["fields"] = dumps(list(self.returning or ()))
            statement = self.book.get(table, returning)
            absorb = functools.partial(self._absorb_reading, part)
            steps.append(Step(part, statement, params, absorb))
        return steps

    def _absorb_reading(self, items: list[Item], rows: Rows) -> list[Item]:
        left = dict(enumerate(items))
        for position, inserted_at, expires_at, text in rows:
            item = left.pop(position)
            write = item.write
            record = record_of(write.namespace, write.id, text, inserted_at, expires_at)
            self.results[item.index] = WriteResult(applied=False, record=record)
        return list(left.values())

    def finish(self) -> list[WriteResult]:
        """Give the results."""
        return cast("list[WriteResult]", self.results)


def is_mixed(items: Sequence[Item]) -> bool:
    """
    Whether a wave of a batch that is not atomic should go as one transaction.

    That saves round trips where it takes several statements. Where inserts and puts
    meet in one table, it would take one for each change between them.
    """
    groups = {_group_key(item) for item in items}
    creating = [table for table, kind in groups if kind in {Insert, Put}]
    return len(groups) > 1 and len(creating) == len(set(creating))


def _by_table(item: Item) -> int:
    return _TABLE_ORDER[item.table]


def _table(item: Item) -> Table:
    return item.table


def _addresses(items: Sequence[Item]) -> bytes:
    return dumps(
        [
            {"o": position, "n": item.write.namespace, "i": item.write.id}
            for position, item in enumerate(items)
        ]
    )


def _row_of(item: Item, position: int) -> bytes:
    """Give its part of a document, where it is at *position*."""
    row = item.row
    if isinstance(row, bytes):
        return row
    row["o"] = position
    return dumps(row)


def _documents(items: list[Item]) -> Iterator[tuple[list[Item], bytes]]:
    """Cut into documents that are neither too long nor too large."""
    part: list[Item] = []
    rows: list[bytes] = []
    size = 0
    for item in items:
        row = _row_of(item, len(part))
        if part and (len(part) >= MAX_BATCH or size + len(row) > MAX_STEP_BYTES):
            yield part, b"[" + b",".join(rows) + b"]"
            part, rows, size = [], [], 0
            row = _row_of(item, 0)
        part.append(item)
        rows.append(row)
        size += len(row)
    if part:
        yield part, b"[" + b",".join(rows) + b"]"


def lock_steps(batch: Batch, items: Sequence[Item]) -> list[tuple[Statement, dict[str, Any]]]:
    """
    Make the statements that lock the records of *items*, in one order.

    Only for batches of several statements in one transaction: each of these takes its
    locks in order, but two batches may have them the other way round.
    """
    addresses = {
        (_TABLE_ORDER[item.table], item.write.namespace, item.write.id): item for item in items
    }
    ordered = [addresses[key] for key in sorted(addresses)]
    return [
        (
            batch.book.lock(table),
            {
                "project": batch.scope.project,
                "environment": batch.scope.environment,
                "doc": _addresses(list(group)),
            },
        )
        for table, group in groupby(ordered, key=lambda item: item.table)
    ]
