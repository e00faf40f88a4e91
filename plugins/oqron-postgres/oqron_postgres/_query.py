"""
Queries, composed with SQLAlchemy once per shape.

What differs between two queries of one shape is bound; a field's name, which was
checked to be an identifier, is part of the shape.
"""

from __future__ import annotations

import functools

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import attrs

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Numeric,
    Select,
    Text,
    and_,
    any_,
    bindparam,
    case,
    cast,
    column,
    delete,
    extract,
    false,
    func,
    literal_column,
    or_,
    select,
    true,
    tuple_,
)
from sqlalchemy.dialects.postgresql import JSONB

from oqron_core.planes import LAST, Query, Scope, decode_cursor, encode_cursor, rank
from oqron_core.taxonomy import RecordKind, Table, classify_namespace, table_for_kind
from oqron_postgres._sqltext import Statement
from oqron_postgres._write import dumps
from oqron_postgres.tables import Tables


__all__ = ["Composer", "Segment", "Shape", "cursor_after", "segments_of", "shape_of"]

Column: TypeAlias = ColumnElement[Any]

NAMESPACES: Final[dict[RecordKind, tuple[str, str | None]]] = {
    RecordKind.JOB: ("queue_job:", "queue_job;"),
    RecordKind.DLQ: ("queue_dlq:", "queue_dlq;"),
    RecordKind.MESSAGE: ("topic_msg:", "topic_msg;"),
    RecordKind.RUN: ("runs", None),
}
"""
Where the namespaces of a kind lie in the primary key: from, and up to but without;
None for that one namespace alone. A semicolon is what follows a colon.
"""

_ROW_BYTES: Final = 44
"""What a row takes beside its texts and its value: header, line pointer, two instants."""

_TEXTS: Final = frozenset({"id", "namespace"})
_NUMBERS: Final = frozenset({"inserted_at", "expires_at"})
_LABELS: Final = frozenset({"status", "name", "module"})

Segment: TypeAlias = str
"""``all``; or ``with`` and ``without`` the number that an index orders by."""


@attrs.frozen
class Shape:
    """
    What decides the SQL of a query.

    Attributes:
        kind: The kind, or None.
        namespace: Whether a namespace is given, and of which kind it is.
        where: Field, operator and class of value of each condition.
        order_by: As in the query.
        after: Whether a cursor is given.
        fields: Whether only some fields are read.
        segment: Which part of the order.
    """

    kind: RecordKind | None
    namespace: RecordKind | None
    where: tuple[tuple[str, str, str], ...]
    order_by: tuple[tuple[str, str], ...] = ()
    after: bool = False
    fields: bool = False
    segment: Segment = "all"

    @property
    def table(self) -> Table:
        """The table that holds the records."""
        kind = self.kind if self.kind is not None else self.namespace
        return table_for_kind(kind if kind is not None else RecordKind.RECORD)

    @property
    def kinds(self) -> set[RecordKind]:
        """The kinds that a record must have: two different ones match nothing."""
        return {kind for kind in (self.kind, self.namespace) if kind is not None}


def _is_word(value: Any) -> bool:
    """
    Whether no JSON but a string has this text.

    Then ``value ->> 'field' = text`` is exact, and nothing else needs to be asked: the
    planner takes every further condition for a reason to leave the index's order.
    """
    return type(value) is str and value[:1].isalpha() and value not in {"true", "false"}


def _class_of(operator: str, value: Any) -> str:
    if operator == "in":
        return "words" if value and all(map(_is_word, value)) else "list"
    kind = type(value)
    if kind is str:
        return "word" if operator == "=" and _is_word(value) else "string"
    if kind is int:
        return "int"
    if kind is float:
        return "float"
    return "null" if value is None else "other"


def shape_of(query: Query, *, whole: bool = False) -> Shape:
    """Take the shape of a query; *whole* leaves order, cursor and fields aside."""
    namespace = None if query.namespace is None else classify_namespace(query.namespace)
    where = tuple((name, op, _class_of(op, value)) for name, op, value in query.where)
    if whole:
        return Shape(query.kind, namespace, where)
    return Shape(
        query.kind,
        namespace,
        where,
        tuple((name, direction) for name, direction in query.order_by),
        fields=query.fields is not None,
    )


def indexed_number(shape: Shape) -> str | None:
    """Give the field whose numbers an index holds in the order that is asked for."""
    if not shape.order_by or shape.table is not Table.RUNS:
        return None
    name = shape.order_by[0][0]
    if name == "startedAt":
        return name
    if name == "publishedAt" and RecordKind.MESSAGE in shape.kinds:
        return name
    return None


def expires_before(shape: Shape) -> bool:
    """Whether the index of what expires begins with what is asked for."""
    return any(name == "expires_at" and op in {"<", "<="} for name, op, _ in shape.where)


def segments_of(query: Query, shape: Shape) -> list[tuple[Segment, bool]]:
    """
    Say in which parts a page is read, and whether the cursor is in them.

    An index orders numbers and puts what has none at the other end than we do, so
    those are read after the numbers, should the page have room for them.
    """
    if indexed_number(shape) is None:
        return [("all", True)]
    cursor = decode_cursor(query)
    if cursor is not None and rank(cursor[0][0])[0] == LAST:
        return [("without", True)]
    return [("with", True), ("without", False)]


# --- expressions -------------------------------------------------------------


def _key(name: str) -> Column:
    # An identifier of ASCII letters, digits and underscores, as Query holds it to.
    if not name.isidentifier() or not name.isascii():
        raise ValueError(name)
    return literal_column(f"'{name}'", Text)


def _int(number: int) -> Column:
    return literal_column(str(number), Integer)


def _first_instant() -> Column:
    return literal_column("'-9223372036854775808'::bigint", BigInteger)


def _infinity(sign: str) -> Column:
    return literal_column(f"'{sign}Infinity'::numeric", Numeric)


def _quoted(text: str) -> Column:
    """Put a text of ours in as it is, so that partial indexes are recognised."""
    return literal_column(f"'{text}'", Text)


@attrs.frozen
class _Rank:
    """One column of an order: never null, so that it can be compared."""

    expression: Column
    value: str
    """The name of the parameter that holds the cursor's value."""
    type_: Any
    descending: bool = False


class Composer:
    """Makes the statements of one set of tables, and keeps them."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.page: Any = functools.lru_cache(maxsize=512)(self._page)
        self.count: Any = functools.lru_cache(maxsize=512)(self._count)
        self.prune: Any = functools.lru_cache(maxsize=512)(self._prune)
        self.prunable: Any = functools.lru_cache(maxsize=512)(self._prunable)

    # --- conditions ---

    def _field(self, shape: Shape, name: str) -> Column:
        return self._tables[shape.table].c.value.op("->", return_type=JSONB())(_key(name))

    def _text(self, shape: Shape, name: str) -> Column:
        return self._tables[shape.table].c.value.op("->>", return_type=Text())(_key(name))

    def _number(self, shape: Shape, name: str) -> Column:
        text = cast(self._text(shape, name), Numeric)
        if shape.table is Table.RUNS and name in {"startedAt", "publishedAt"}:
            # The table holds nothing but numbers there, and the index this expression.
            return text
        return case((func.jsonb_typeof(self._field(shape, name)) == _quoted("number"), text))

    def _string(self, shape: Shape, name: str) -> Column:
        is_string = func.jsonb_typeof(self._field(shape, name)) == _quoted("string")
        return case((is_string, self._text(shape, name))).collate("C")

    def _on_field(self, shape: Shape, bind: str, condition: tuple[str, str, str]) -> Column:
        name, operator, kind = condition
        field = self._field(shape, name)
        indexed = shape.table is Table.RUNS and name in _LABELS
        if operator == "in":
            if indexed and kind == "words":
                return self._text(shape, name) == any_(_texts(bind))
            items = func.jsonb_array_elements(_json(bind))
            return field == any_(func.array(select(items).scalar_subquery()))
        if operator == "=":
            if indexed and kind == "word":
                return self._text(shape, name) == _bound(f"{bind}_text", Text)
            return field == _json(bind)
        if operator == "!=":
            return field != _json(bind)
        if kind == "string":
            return _compare(self._string(shape, name), operator, _bound(bind, Text))
        return _compare(self._number(shape, name), operator, _numeric(bind))

    def _on_text(self, shape: Shape, bind: str, condition: tuple[str, str, str]) -> Column:
        name, operator, kind = condition
        target = self._tables[shape.table].c[name]
        if operator == "in":
            return target == any_(_texts(bind))
        if kind not in {"string", "word"}:
            return true() if operator == "!=" else false()
        return _compare(target, operator, _bound(bind, Text))

    def _on_number(self, shape: Shape, bind: str, condition: tuple[str, str, str]) -> Column:
        name, operator, kind = condition
        target = self._tables[shape.table].c[name]
        if operator == "in":
            items = func.jsonb_array_elements(_json(bind))
            json = func.coalesce(func.to_jsonb(target), _json_null())
            return json == any_(func.array(select(items).scalar_subquery()))
        if kind == "null":
            # What never expires shows None there.
            return target.is_(None) if operator == "=" else target.is_not(None)
        if kind == "int":
            return _compare(target, operator, _bound(bind, BigInteger))
        if kind == "float":
            return _compare(cast(target, Numeric), operator, _numeric(bind))
        return target.is_not(None) if operator == "!=" else false()

    def _conditions(self, shape: Shape) -> list[Column]:
        table = self._tables[shape.table]
        found: list[Column] = [
            table.c.project == _bound("project", Text),
            table.c.environment == _bound("environment", Text),
        ]
        if shape.namespace is not None:
            found.append(table.c.namespace == _bound("namespace", Text))
        elif shape.kind is not None and shape.kind in NAMESPACES and not expires_before(shape):
            first, end = NAMESPACES[shape.kind]
            if end is None:
                # The kind says it all; where an index holds the order, naming the one
                # namespace as well would make the primary key look better than it is.
                if indexed_number(shape) is None:
                    found.append(table.c.namespace == _quoted(first))
            else:
                found += [table.c.namespace >= _quoted(first), table.c.namespace < _quoted(end)]
        if expires_before(shape):
            # Every expiry is after this. Said so, the planner takes the part of the index
            # for small, also where it knows nothing of the table; it would otherwise find
            # all of a kind by a key, and sort them, for every step of a prune.
            found.append(table.c.expires_at >= _first_instant())
        found += [table.c.record_kind == _quoted(kind.value) for kind in sorted(shape.kinds)]
        for position, condition in enumerate(shape.where):
            bind = f"c{position}"
            if condition[0] in _TEXTS:
                found.append(self._on_text(shape, bind, condition))
            elif condition[0] in _NUMBERS:
                found.append(self._on_number(shape, bind, condition))
            else:
                found.append(self._on_field(shape, bind, condition))
        return found

    def _alive(self, shape: Shape) -> Column:
        if ("expires_at", "=", "null") in shape.where:
            return true()
        expires_at = self._tables[shape.table].c.expires_at
        return or_(expires_at.is_(None), expires_at > select(_clock()).scalar_subquery())

    # --- order ---

    def _ranks(self, shape: Shape) -> list[_Rank]:
        ranks: list[_Rank] = []
        for position, (name, direction) in enumerate(shape.order_by):
            down = direction == "desc"
            bind = f"k{position}"
            if position == 0 and shape.segment == "with":
                ranks.append(
                    _Rank(self._number(shape, name), f"{bind}_number", Numeric, descending=down)
                )
            elif position == 0 and shape.segment == "without":
                continue
            else:
                ranks += self._ranks_of(shape, name, bind, down=down)
        table = self._tables[shape.table]
        if shape.namespace is None and shape.kind is not RecordKind.RUN:
            ranks.append(_Rank(table.c.namespace, "k_namespace", Text))
        ranks.append(_Rank(table.c.id, "k_id", Text))
        return ranks

    def _ranks_of(self, shape: Shape, name: str, bind: str, *, down: bool) -> list[_Rank]:
        if name in _TEXTS:
            target = self._tables[shape.table].c[name]
            return [_Rank(target, f"{bind}_text", Text, descending=down)]
        if name == "inserted_at":
            target = self._tables[shape.table].c[name]
            return [_Rank(target, f"{bind}_number", Numeric, descending=down)]
        if name == "expires_at":
            target = self._tables[shape.table].c[name]
            is_last = case((target.is_(None), _int(1)), else_=_int(0))
            return [
                _Rank(is_last, f"{bind}_last", Integer),
                _Rank(func.coalesce(target, _int(0)), f"{bind}_number", Numeric, descending=down),
            ]
        kind = func.jsonb_typeof(self._field(shape, name))
        text = self._text(shape, name)
        is_true = case((text == _quoted("true"), _int(1)), else_=_int(0))
        # Last in both directions.
        last = -1 if down else LAST
        class_ = case(
            (kind == _quoted("string"), _int(3)),
            (kind == _quoted("number"), _int(2)),
            (kind == _quoted("boolean"), is_true),
            else_=_int(last),
        )
        number = case((kind == _quoted("number"), cast(text, Numeric)), else_=_int(0))
        string = case((kind == _quoted("string"), text), else_=literal_column("''", Text))
        return [
            _Rank(class_, f"{bind}_class", Integer, descending=down),
            _Rank(number, f"{bind}_number", Numeric, descending=down),
            _Rank(string.collate("C"), f"{bind}_text", Text, descending=down),
        ]

    def _after(self, ranks: Sequence[_Rank]) -> Column:
        """Say what sorts after the cursor."""
        if all(not part.descending and part.type_ is Text for part in ranks):
            # Names alone: a row comparison, which the primary key serves.
            if len(ranks) == 1:
                return ranks[0].expression > _bound(ranks[0].value, Text)
            return tuple_(*[part.expression for part in ranks]) > tuple_(
                *[_bound(part.value, Text) for part in ranks]
            )
        ways: list[Column] = []
        equal: list[Column] = []
        for part in ranks:
            value = _bound_as(part.value, part.type_)
            beyond = part.expression < value if part.descending else part.expression > value
            ways.append(and_(*equal, beyond))
            equal.append(part.expression == value)
        first = ranks[0]
        value = _bound_as(first.value, first.type_)
        # Says again what an index can start from.
        bound = first.expression <= value if first.descending else first.expression >= value
        return and_(bound, or_(*ways))

    # --- statements ---

    def _page(self, shape: Shape) -> Statement:
        columns = self._tables[shape.table].c
        plain = [columns[name] for name in _READ]
        conditions = [*self._conditions(shape), self._alive(shape)]
        if shape.segment == "with":
            # Every number is between these. Said so, the planner counts on the index of
            # that number, also where it knows nothing of the table.
            number = self._number(shape, shape.order_by[0][0])
            conditions += [number > _infinity("-"), number < _infinity("")]
        elif shape.segment == "without":
            conditions.append(self._number(shape, shape.order_by[0][0]).is_(None))
        ranks = self._ranks(shape)
        if shape.after:
            conditions.append(self._after(ranks))
        statement: Select[Any] = select(*plain).where(*conditions)
        if shape.segment == "with":
            statement = _in_index_order(statement, ranks)
            found: Any = statement.subquery("found").c
        else:
            order = [_directed(part.expression, part) for part in ranks]
            statement = statement.order_by(*order).limit(_bound("limit", BigInteger))
            return Statement.of(statement.with_only_columns(*_shown(shape, columns)))
        # Values are made text outside: only for the rows that are left.
        return Statement.of(select(*_shown(shape, found)))

    def _count(self, shape: Shape, by: str | None) -> Statement:
        conditions = [*self._conditions(shape), self._alive(shape)]
        if by is None:
            return Statement.of(
                select(func.count()).select_from(self._tables[shape.table]).where(*conditions)
            )
        table = self._tables[shape.table]
        if by in _TEXTS:
            group: Column = table.c[by]
        elif by in _NUMBERS:
            group = literal_column("''", Text)
        else:
            is_string = func.jsonb_typeof(self._field(shape, by)) == _quoted("string")
            group = case((is_string, self._text(shape, by)), else_=literal_column("''", Text))
        group = group.label("part")
        statement = select(group, func.count()).where(*conditions)
        return Statement.of(statement.group_by(literal_column("1")))

    def _prune(self, shape: Shape) -> Statement:
        table = self._tables[shape.table]
        tid: Column = column("ctid")
        doomed = select(tid.label("tid")).select_from(table).where(*self._conditions(shape))
        if expires_before(shape):
            # The order of the index of what expires; there, dead entries are skipped
            # cheaply, which a walk over the table could not do.
            doomed = doomed.order_by(table.c.expires_at)
        chosen = (
            doomed.limit(_bound("limit", BigInteger))
            .with_for_update(skip_locked=True)
            .cte("doomed")
        )
        tids = func.array(select(chosen.c.tid).scalar_subquery())
        gone = (
            delete(table)
            .where(literal_column("ctid") == any_(tids))
            .returning(literal_column("1").label("one"))
            .cte("gone")
        )
        return Statement.of(
            select(
                select(func.count()).select_from(chosen).scalar_subquery(),
                select(func.count()).select_from(gone).scalar_subquery(),
            )
        )

    def _prunable(self, shape: Shape) -> Statement:
        columns = self._tables[shape.table].c
        # What is stored, compressed and moved out of line or not: no value is read.
        size: Column = func.pg_column_size(columns.value) + _int(_ROW_BYTES)
        for name in ("project", "environment", "namespace", "record_kind", "id"):
            size = size + func.pg_column_size(columns[name])
        total = cast(func.coalesce(func.sum(size), _int(0)), BigInteger)
        counted = select(func.count(), total).select_from(self._tables[shape.table])
        return Statement.of(counted.where(*self._conditions(shape)))

    # --- parameters ---

    def parameters(self, query: Query, scope: Scope, shape: Shape) -> dict[str, Any]:
        """Give the values that belong to the conditions of a shape."""
        params: dict[str, Any] = {"project": scope.project, "environment": scope.environment}
        if query.namespace is not None:
            params["namespace"] = query.namespace
        for position, (name, operator, value) in enumerate(query.where):
            bind = f"c{position}"
            kind = shape.where[position][2]
            params |= _condition_values(bind, name, operator, kind, value)
        return params

    def cursor_parameters(self, query: Query) -> dict[str, Any]:
        """Give the values of the cursor."""
        cursor = decode_cursor(query)
        if cursor is None:
            return {}
        values, namespace, id_ = cursor
        params: dict[str, Any] = {"k_namespace": namespace, "k_id": id_}
        for position, (name, direction) in enumerate(query.order_by):
            class_, value = rank(values[position])
            bind = f"k{position}"
            down_last = direction == "desc" and class_ == LAST
            params[f"{bind}_class"] = -1 if down_last else class_
            params[f"{bind}_last"] = 1 if name == "expires_at" and value is None else 0
            is_number = type(value) in {int, float}
            params[f"{bind}_number"] = _document(value) if is_number else "0"
            params[f"{bind}_text"] = value if type(value) is str else ""
        return params


_READ: Final = ("namespace", "id", "value", "inserted_at", "expires_at")


def _shown(shape: Shape, columns: Any) -> list[Column]:
    """Give what a page shows of a row, and what the cursor needs of it."""
    value = _only(columns.value) if shape.fields else cast(columns.value, Text)
    shown: list[Column] = [
        columns.namespace,
        columns.id,
        value,
        columns.inserted_at,
        columns.expires_at,
    ]
    for position, (name, _) in enumerate(shape.order_by):
        if name in _TEXTS or name in _NUMBERS:
            field: Column = func.to_jsonb(columns[name])
        else:
            field = columns.value.op("->", return_type=JSONB())(_key(name))
        shown.append(cast(field, Text).label(f"o{position}"))
    return shown


def _directed(expression: Column, part: _Rank) -> Column:
    return expression.desc() if part.descending else expression.asc()


def _in_index_order(statement: Select[Any], ranks: Sequence[_Rank]) -> Select[Any]:
    """
    Order by the number alone, which the index holds, and break the ties outside.

    An ORDER BY that says more than the index makes the planner, where it has no
    statistics, read and sort everything that matches.
    """
    limit = _bound("limit", BigInteger)
    width = len(statement.selected_columns)
    labelled = [part.expression.label(f"r{position}") for position, part in enumerate(ranks)]
    inner = (
        statement.add_columns(*labelled)
        .order_by(_directed(ranks[0].expression, ranks[0]))
        .fetch(limit, with_ties=True)
        .subquery("page")
    )
    columns = list(inner.columns)
    order = [_directed(columns[width + at], part) for at, part in enumerate(ranks)]
    return select(*columns[:width]).order_by(*order).limit(limit)


def cursor_after(query: Query, row: Sequence[Any], decode: Any) -> str:
    """Make the cursor that follows a row of a page."""
    values = [None if text is None else decode(text) for text in row[5:]]
    return encode_cursor(query, values, row[0], row[1])


def _condition_values(bind: str, name: str, operator: str, kind: str, value: Any) -> dict[str, Any]:
    if name in _TEXTS:
        if operator == "in":
            return {bind: _document([item for item in value if type(item) is str])}
        return {bind: value} if type(value) is str else {}
    if operator == "in":
        return {bind: _document(list(value))}
    if name in _NUMBERS:
        if kind == "int":
            return {bind: value}
        return {bind: _document(value)} if kind == "float" else {}
    if operator in {"=", "!="}:
        params: dict[str, Any] = {bind: _document(value)}
        if kind == "word":
            params[f"{bind}_text"] = value
        return params
    return {bind: value if kind == "string" else _document(value)}


def _document(value: Any) -> str:
    return dumps(value).decode()


def _bound(name: str, type_: Any) -> Column:
    return bindparam(name, type_=type_)


def _bound_as(name: str, type_: Any) -> Column:
    # A number travels as its JSON text: a float of Python would be another number.
    return _numeric(name) if type_ is Numeric else _bound(name, type_)


def _numeric(name: str) -> Column:
    return cast(bindparam(name, type_=Text), Numeric)


def _json(name: str) -> Column:
    return cast(bindparam(name, type_=Text), JSONB)


def _json_null() -> Column:
    return literal_column("'null'::jsonb", JSONB())


def _texts(name: str) -> Column:
    items = func.jsonb_array_elements_text(_json(name))
    return func.array(select(items).scalar_subquery())


def _only(value: Column) -> Column:
    """Keep some fields of an object; the same as `Returning.SOME`."""
    names = (
        func.jsonb_array_elements_text(_json("fields"))
        .table_valued(column("name", Text), name="k")
        .render_derived()
    )
    field = value.op("->", return_type=JSONB())(names.c.name)
    kept = (
        select(func.jsonb_object_agg(names.c.name, field))
        .select_from(names)
        .where(value.op("?")(names.c.name))
    )
    return cast(kept.scalar_subquery(), Text)


def _clock() -> Column:
    seconds = extract("epoch", func.clock_timestamp())
    return cast(func.floor(seconds * _int(1000)), BigInteger)


def _compare(left: Column, operator: str, right: Column) -> Column:
    return {
        "=": left == right,
        "!=": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }[operator]
