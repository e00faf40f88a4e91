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
import orjson

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    column,
    delete,
    false,
    func,
    literal_column,
    not_,
    or_,
    select,
    table,
    true,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql.expression import ClauseElement

from oqron_core.planes import LAST, Query, Scope, canonical, decode_cursor, rank
from oqron_core.taxonomy import RecordKind, Table, classify_namespace, table_for_kind
from oqron_sqlite.tables import STATUS, table_of


__all__ = ["Composer", "Part", "Shape", "cursor_parameters", "parameters", "parts_of", "shape_of"]

Column: TypeAlias = ColumnElement[Any]
Part: TypeAlias = str
"""``all``; or ``with`` and ``without`` the number that an index is ordered by."""

_RANGES: Final[dict[RecordKind, tuple[str, str]]] = {
    RecordKind.JOB: ("queue_job:", "queue_job;"),
    RecordKind.DLQ: ("queue_dlq:", "queue_dlq;"),
    RecordKind.MESSAGE: ("topic_msg:", "topic_msg;"),
}
"""Where the namespaces of a kind lie in the primary key; a semicolon follows a colon."""
_TEXTS: Final = frozenset({"id", "namespace"})
_NUMBERS: Final = frozenset({"inserted_at", "expires_at"})
_LABELS: Final = frozenset({"status", "name", "module"})
_HOT: Final = frozenset({"startedAt", "publishedAt"})
"""Fields of runs and messages that hold a number, null or nothing; see `_hot_fields`."""
_READ: Final = ("namespace", "record_kind", "id", "value", "inserted_at", "expires_at")


@attrs.frozen
class Shape:
    """
    What decides the SQL of a query.

    Attributes:
        kind: The kind, or None.
        namespace: Of which kind the namespace is, or None where none is given.
        where: Field, operator and class of value of each condition.
        order_by: As in the query.
        after: Whether a cursor is given, and which of its values have a rank.
        part: Which part of the order.
    """

    kind: RecordKind | None
    namespace: RecordKind | None
    where: tuple[tuple[str, str, str], ...]
    order_by: tuple[tuple[str, str], ...] = ()
    after: bool = False
    part: Part = "all"

    @property
    def table(self) -> Table:
        """The table that holds the records."""
        kind = self.kind if self.kind is not None else self.namespace
        return table_for_kind(kind if kind is not None else RecordKind.RECORD)

    @property
    def kinds(self) -> list[RecordKind]:
        """The kinds that a record must have: two different ones match nothing."""
        return sorted({kind for kind in (self.kind, self.namespace) if kind is not None})


def _is_plain(value: Any) -> bool:
    """Whether no other JSON has this text, and it is not the text of what is no string."""
    return type(value) is str and value != "" and value[0] not in "[{"


def _class_of(operator: str, value: Any) -> str:
    if operator == "in":
        return "plains" if value and all(map(_is_plain, value)) else "list"
    kind = type(value)
    if kind is str:
        return "plain" if _is_plain(value) else "string"
    if kind is int:
        return "int"
    if kind is float:
        return "float"
    return "null" if value is None else "other"


def shape_of(query: Query, *, whole: bool = False) -> Shape:
    """Take the shape of a query; *whole* leaves order and cursor aside."""
    namespace = None if query.namespace is None else classify_namespace(query.namespace)
    where = tuple((name, op, _class_of(op, value)) for name, op, value in query.where)
    order_by = () if whole else tuple((name, way) for name, way in query.order_by)
    return Shape(query.kind, namespace, where, order_by)


def parts_of(query: Query, shape: Shape) -> list[tuple[Part, bool]]:
    """
    Say in which parts a page is read, and whether the cursor is in them.

    An index holds numbers in order and what has none at one end or the other, so that
    is read after the numbers, should the page have room for it.
    """
    if not _by_index(shape):
        return [("all", True)]
    cursor = decode_cursor(query)
    if cursor is not None and rank(cursor[0][0])[0] == LAST:
        return [("without", True)]
    return [("with", True), ("without", False)]


def _by_index(shape: Shape) -> bool:
    return bool(shape.order_by) and shape.table is Table.RUNS and shape.order_by[0][0] in _HOT


# --- expressions -------------------------------------------------------------


def _checked(name: str) -> str:
    # An identifier of ASCII letters, digits and underscores, as Query holds it to.
    if not name.isidentifier() or not name.isascii():
        raise ValueError(name)
    return name


def _plain_value(name: str) -> Column:
    return literal_column(f"value ->> '{_checked(name)}'")


def _json(name: str) -> Column:
    return literal_column(f"value -> '{_checked(name)}'")


def _type(name: str) -> Column:
    return literal_column(f"json_type(value, '$.{_checked(name)}')")


def _label(shape: Shape, name: str) -> Column:
    """Give a field where it is a string, and else the empty one."""
    if name == "status" and shape.table is Table.JOBS:
        return literal_column(STATUS)
    return case((_type(name) == _text("text"), _plain_value(name)), else_=_text(""))


def _number(shape: Shape, name: str) -> Column:
    """Give a field where it is a number, to the last bit, and else null."""
    if shape.table is Table.RUNS and name in _HOT:
        return _plain_value(name)
    real = func.oqron_real(_json(name))
    integer = _type(name) == _text("integer")
    return case((integer, _plain_value(name)), (_type(name) == _text("real"), real))


def _string(name: str) -> Column:
    return case((_type(name) == _text("text"), _plain_value(name)))


def _text(value: str) -> Column:
    """Put a text of ours in as it is, so that partial indexes are recognised."""
    return literal_column(f"'{value}'", Text)


def _bound(name: str) -> Column:
    return bindparam(name, type_=None)


def _items(bind: str) -> Any:
    return select(column("value")).select_from(func.json_each(_bound(bind)))


def _compare(left: Column, operator: str, right: Column) -> Column:
    comparisons: dict[str, Column] = {
        "=": left == right,
        "!=": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }
    return comparisons[operator]


def _equals(shape: Shape, name: str, bind: str, kind: str) -> Column:
    if kind == "plain":
        if shape.table is Table.RUNS and name in _LABELS:
            return _plain_value(name) == _bound(bind)
        return _label(shape, name) == _bound(bind)
    if kind == "int":
        return func.coalesce(_number(shape, name) == _bound(bind), false())
    return func.coalesce(func.oqron_canonical(_json(name)) == _bound(bind), false())


def _on_field(shape: Shape, bind: str, condition: tuple[str, str, str]) -> Column:
    name, operator, kind = condition
    if operator == "in":
        if kind == "plains":
            if shape.table is Table.RUNS and name in _LABELS:
                return _plain_value(name).in_(_items(bind))
            return _label(shape, name).in_(_items(bind))
        return func.oqron_canonical(_json(name)).in_(_items(bind))
    if operator == "=":
        return _equals(shape, name, bind, kind)
    if operator == "!=":
        equal = func.coalesce(func.oqron_canonical(_json(name)) == _bound(bind), false())
        return and_(_type(name).is_not(None), not_(equal))
    if kind in {"plain", "string"}:
        return _compare(_string(name), operator, _bound(bind))
    return _compare(_number(shape, name), operator, _bound(bind))


def _on_text(bind: str, condition: tuple[str, str, str]) -> Column:
    name, operator, kind = condition
    target: Column = column(name)
    if operator == "in":
        return target.in_(_items(bind))
    if kind not in {"string", "plain"}:
        return true() if operator == "!=" else false()
    return _compare(target, operator, _bound(bind))


def _on_number(bind: str, condition: tuple[str, str, str]) -> Column:
    name, operator, kind = condition
    target: Column = column(name)
    if operator == "in":
        return func.coalesce(cast(target, Text), _text("null")).in_(_items(bind))
    if kind == "null":
        # What never expires shows None there.
        return target.is_(None) if operator == "=" else target.is_not(None)
    if kind in {"int", "float"}:
        return _compare(target, operator, _bound(bind))
    return target.is_not(None) if operator == "!=" else false()


def _expires(shape: Shape) -> bool:
    """Whether what is asked for has an end that the index of expiry can start from."""
    return any(name == "expires_at" and op in {"<", "<="} for name, op, _ in shape.where)


def _conditions(shape: Shape, *, ordered: bool = False) -> list[Column]:
    """
    Say what must hold.

    *ordered* means that records come in the order of the primary key, which therefore
    serves better than any index of what they hold.
    """
    found: list[Column] = [
        column("project") == _bound("project"),
        column("environment") == _bound("environment"),
    ]
    by_expiry = not ordered and _expires(shape)
    if shape.namespace is not None:
        # All runs are in one namespace: naming it would make the primary key look
        # better than the indexes that hold what is asked for.
        all_runs = shape.namespace is RecordKind.RUN and shape.table is Table.RUNS
        aside = all_runs or by_expiry
        name: Column = literal_column("+namespace") if aside else column("namespace")
        found.append(name == _bound("namespace"))
    elif shape.kind is not None and shape.kind in _RANGES and not by_expiry:
        first, end = _RANGES[shape.kind]
        found += [column("namespace") >= _text(first), column("namespace") < _text(end)]
    if shape.namespace is None or len(shape.kinds) > 1 or shape.table is Table.RUNS:
        # Else the namespace says it, and indexes that begin with the kind are in the way.
        found += [column("record_kind") == _text(kind.value) for kind in shape.kinds]
    for position, condition in enumerate(shape.where):
        bind = f"c{position}"
        if condition[0] in _TEXTS:
            found.append(_on_text(bind, condition))
        elif condition[0] in _NUMBERS:
            found.append(_on_number(bind, condition))
        else:
            found.append(_on_field(shape, bind, condition))
    return found


def _alive(shape: Shape) -> Column:
    if ("expires_at", "=", "null") in shape.where:
        return true()
    expires_at: Column = column("expires_at")
    return or_(expires_at.is_(None), expires_at > _bound("now"))


# --- order -------------------------------------------------------------------


@attrs.frozen
class _Key:
    """One column of an order: never null, so that it can be compared."""

    expression: Column
    bind: str
    descending: bool = False


def _keys(shape: Shape) -> list[_Key]:
    keys: list[_Key] = []
    for position, (name, way) in enumerate(shape.order_by):
        down = way == "desc"
        bind = f"k{position}"
        if position == 0 and shape.part != "all":
            if shape.part == "with":
                keys.append(_Key(_plain_value(name), f"{bind}_value", descending=down))
            continue
        keys += _keys_of(shape, name, bind, down=down)
    if shape.namespace is None and shape.kind is not RecordKind.RUN:
        keys.append(_Key(column("namespace"), "k_namespace"))
    keys.append(_Key(column("id"), "k_id"))
    return keys


def _keys_of(shape: Shape, name: str, bind: str, *, down: bool) -> list[_Key]:
    if name in _TEXTS or name == "inserted_at":
        return [_Key(column(name), f"{bind}_value", descending=down)]
    if name == "expires_at":
        class_ = case((column(name).is_(None), _int(LAST)), else_=_int(2))
        value: Column = func.coalesce(column(name), _int(0))
        last = _Key(class_, f"{bind}_class")
        return [last, _Key(value, f"{bind}_value", descending=down)]
    kind = _type(name)
    class_ = case(
        (kind == _text("false"), _int(0)),
        (kind == _text("true"), _int(1)),
        (kind.in_([_text("integer"), _text("real")]), _int(2)),
        (kind == _text("text"), _int(3)),
        # Last in both directions.
        else_=_int(-1 if down else LAST),
    )
    value = func.coalesce(_string(name), _number(shape, name), _int(0))
    return [
        _Key(class_, f"{bind}_class", descending=down),
        _Key(value, f"{bind}_value", descending=down),
    ]


def _int(number: int) -> Column:
    return literal_column(str(number))


def _after(keys: Sequence[_Key]) -> Column:
    """Say what sorts after the cursor."""
    ways: list[Column] = []
    equal: list[Column] = []
    for key in keys:
        operator = "<" if key.descending else ">"
        ways.append(and_(*equal, _compare(key.expression, operator, _bound(key.bind))))
        equal.append(key.expression == _bound(key.bind))
    first = keys[0]
    # Says again what an index can start from.
    bound = _compare(first.expression, "<=" if first.descending else ">=", _bound(first.bind))
    return and_(bound, or_(*ways))


def _sorted(statement: Select[Any], keys: Sequence[_Key]) -> Select[Any]:
    return statement.order_by(
        *[key.expression.desc() if key.descending else key.expression.asc() for key in keys]
    )


# --- statements --------------------------------------------------------------

_DIALECT: Final = sqlite.dialect(paramstyle="named")


def _compiled(clause: ClauseElement) -> str:
    return str(clause.compile(dialect=_DIALECT, compile_kwargs={"render_postcompile": True}))


def _rows(shape: Shape) -> Any:
    return table(table_of(shape.table).name)


class Composer:
    """Makes statements, and keeps them."""

    def __init__(self) -> None:
        self.page: Any = functools.lru_cache(maxsize=512)(self._page)
        self.count: Any = functools.lru_cache(maxsize=512)(self._count)
        self.prune: Any = functools.lru_cache(maxsize=512)(self._prune)
        self.prunable: Any = functools.lru_cache(maxsize=512)(self._prunable)

    @staticmethod
    def _page(shape: Shape) -> str:
        conditions = [*_conditions(shape, ordered=True), _alive(shape)]
        keys = _keys(shape)
        columns: list[Any] = [column(name) for name in _READ]
        if shape.part != "all":
            first = _plain_value(shape.order_by[0][0])
            known = shape.part == "with"
            conditions.append(first.is_not(None) if known else first.is_(None))
        for position, (name, _) in enumerate(shape.order_by):
            indexed = position == 0 and shape.part == "with"
            # What the index compares, to the last bit.
            value = _plain_value(name) if indexed else _order_value(name)
            columns.append(value.label(f"o{position}"))
        if shape.after:
            conditions.append(_after(keys))
        statement: Any = select(*columns).select_from(_rows(shape)).where(*conditions)
        return _compiled(_limited(_sorted(statement, keys)))

    @staticmethod
    def _count(shape: Shape, by: str | None) -> str:
        conditions = [*_conditions(shape), _alive(shape)]
        if by is None:
            counted: Any = select(func.count()).select_from(_rows(shape))
            return _compiled(counted.where(*conditions))
        if by in _TEXTS:
            group: Column = column(by)
        elif by in _NUMBERS:
            group = _text("")
        else:
            group = _label(shape, by)
        statement = select(group, func.count()).select_from(_rows(shape))
        return _compiled(statement.where(*conditions).group_by(literal_column("1")))

    @staticmethod
    def _prune(shape: Shape) -> str:
        rowid: Column = literal_column("rowid")
        doomed = select(rowid).select_from(_rows(shape)).where(*_conditions(shape))
        return _compiled(delete(_rows(shape)).where(rowid.in_(_limited(doomed))))

    @staticmethod
    def _prunable(shape: Shape) -> str:
        size: Column = literal_column(
            "length(CAST(value AS BLOB)) + length(CAST(id AS BLOB)) "
            "+ length(CAST(namespace AS BLOB)) + 16"
        )
        found = select(func.count(), func.coalesce(func.sum(size), _int(0)))
        return _compiled(found.select_from(_rows(shape)).where(*_conditions(shape)))


def _limited(statement: Select[Any]) -> Select[Any]:
    # The dialect would bind an offset of its own making.
    return statement.limit(bindparam("limit", type_=BigInteger)).offset(_int(0))


def _order_value(name: str) -> Column:
    """Give what a cursor keeps of a record: its JSON, or the column's own."""
    if name in _TEXTS | _NUMBERS:
        return column(name)
    return _json(name)


# --- parameters --------------------------------------------------------------


def parameters(query: Query, scope: Scope, shape: Shape) -> dict[str, Any]:
    """Give the values that belong to the conditions of a shape."""
    found: dict[str, Any] = {"project": scope.project, "environment": scope.environment}
    if query.namespace is not None:
        found["namespace"] = query.namespace
    for position, ((name, operator, value), (_, _, kind)) in enumerate(
        zip(query.where, shape.where, strict=True)
    ):
        found[f"c{position}"] = _parameter(name, operator, value, kind)
    return found


def _parameter(name: str, operator: str, value: Any, kind: str) -> Any:
    column_types = {str} if name in _TEXTS else {int, float} if name in _NUMBERS else None
    if operator == "in":
        if name in _TEXTS:
            value = [one for one in value if type(one) is str]
        elif kind != "plains":
            value = [canonical(one).decode() for one in value]
        return orjson.dumps([*value]).decode()
    if column_types is not None:
        return value if type(value) in column_types else None
    if operator == "!=" or (operator == "=" and kind not in {"plain", "int"}):
        return canonical(value).decode()
    return value


def cursor_parameters(query: Query) -> dict[str, Any]:
    """Give the values that belong to the cursor; none where there is none."""
    cursor = decode_cursor(query)
    if cursor is None:
        return {}
    values, namespace, id_ = cursor
    found: dict[str, Any] = {"k_namespace": namespace, "k_id": id_}
    for position, (value, (name, way)) in enumerate(zip(values, query.order_by, strict=True)):
        class_, inner = rank(value)
        if class_ == LAST:
            # Columns that may be null are last in both directions by their class alone.
            class_ = -1 if way == "desc" and name != "expires_at" else LAST
            inner = 0
        elif class_ < 2:  # noqa: PLR2004 - the class of numbers
            inner = 0
        found[f"k{position}_class"] = class_
        found[f"k{position}_value"] = inner
    return found
