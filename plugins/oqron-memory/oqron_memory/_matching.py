"""Guards, conditions and orders over encoded fields."""

from __future__ import annotations

import math

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from oqron_core.planes import LAST, MISSING, Json, Query, canonical, encode, rank
from oqron_memory._rows import Row


__all__ = ["Matcher", "OrderKey", "holds", "order_key", "order_values", "same"]

_OPENING: Final = b"[{"


def plain(value: Any) -> Any:
    """Decode a scalar that was given as JSON text; leave all else as it is."""
    if type(value) is Json and value.data.lstrip()[:1] not in _OPENING:
        return value.load()
    return value


def same(have: Any, want: Any) -> bool:
    """Compare two encoded fields as JSON: 1 is 1.0, True is not 1, absent is not null."""
    have, want = plain(have), plain(want)
    kind, other = type(have), type(want)
    if kind is Json or other is Json:
        if kind is not other:
            return False
        return bool(have.data == want.data) or canonical(have) == canonical(want)
    if kind is other or (kind in _NUMBERS and other in _NUMBERS):
        return bool(have == want)
    return False


_NUMBERS: Final = frozenset({int, float})


def holds(fields: Mapping[str, Any], expect: Mapping[str, Any]) -> bool:
    """Say whether every guard of *expect* holds."""
    for name, want in expect.items():
        have = fields.get(name, MISSING)
        if have is want:
            continue
        kind = type(want)
        if kind is type(have) and kind is not Json:
            if have != want:
                return False
        elif not same(have, want):
            return False
    return True


def _column(row: Row, namespace: str, name: str) -> Any:
    """Read a column or a field; MISSING where there is none."""
    if name == "id":
        return row.id
    if name == "inserted_at":
        return row.inserted_at
    if name == "expires_at":
        return MISSING if row.at is None else row.at
    if name == "namespace":
        return namespace
    return plain(row.fields.get(name, MISSING))


_Test = Callable[[Any], bool]


def _wanted(value: Any) -> Any:
    return encode(value, "query.where", max_bytes=None) if _is_nested(value) else value


def _is_nested(value: Any) -> bool:
    return isinstance(value, (list, dict, tuple))


def _range_test(operator: str, want: Any) -> _Test:
    kinds = _NUMBERS if type(want) in _NUMBERS else frozenset({str})
    if operator == "<":
        return lambda have: type(have) in kinds and have < want
    if operator == "<=":
        return lambda have: type(have) in kinds and have <= want
    if operator == ">":
        return lambda have: type(have) in kinds and have > want
    return lambda have: type(have) in kinds and have >= want


def _test(operator: str, value: Any) -> _Test:
    if operator == "in":
        wanted = [_wanted(one) for one in value]
        return lambda have: any(same(have, want) for want in wanted)
    want = _wanted(value)
    if operator == "=":
        return lambda have: same(have, want)
    if operator == "!=":
        return lambda have: have is not MISSING and not same(have, want)
    return _range_test(operator, plain(want))


_NEVER_EXPIRES: Final = ("expires_at", "=", None)


def _never(have: Any) -> bool:
    """Hold for the expiry of what never expires."""
    return have is MISSING


class Matcher:
    """
    The conditions of a query, made ready to be applied to many rows.

    Attributes:
        expired_by: Where a condition bounds ``expires_at`` from above: nothing
            that expires later can match. None where there is no such bound.
        always: Whether there is no condition.
    """

    __slots__ = ("_tests", "always", "expired_by")

    def __init__(self, query: Query) -> None:
        self._tests = [
            (name, _never if (name, operator, value) == _NEVER_EXPIRES else _test(operator, value))
            for name, operator, value in query.where
        ]
        self.always = not self._tests
        bounds = [
            math.ceil(value) - 1 if operator == "<" else math.floor(value)
            for name, operator, value in query.where
            if name == "expires_at" and operator in {"<", "<="} and type(value) in _NUMBERS
        ]
        self.expired_by = min(bounds) if bounds else None

    def matches(self, row: Row, namespace: str) -> bool:
        """Say whether *row* matches; whether it has expired is not asked."""
        return all(test(_column(row, namespace, name)) for name, test in self._tests)


class _Descending:
    """A string in descending order."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and self.text == other.text

    def __lt__(self, other: _Descending) -> bool:
        return self.text > other.text

    __hash__ = None  # type: ignore[assignment]  # only ever ordered


OrderKey = tuple[Any, ...]


def order_values(query: Query, row: Row, namespace: str) -> list[Any]:
    """Read what *query* orders by; None where it is absent."""
    values = [_column(row, namespace, name) for name, _ in query.order_by]
    return [None if value is MISSING else value for value in values]


def order_key(query: Query, values: Sequence[Any], namespace: str, name: str) -> OrderKey:
    """Make what a row is sorted by, ending in its address so that none are equal."""
    key: list[Any] = []
    for value, (_, direction) in zip(values, query.order_by, strict=True):
        stage, inner = rank(value)
        if direction == "desc" and stage != LAST:
            stage = LAST - 1 - stage
            if type(inner) is str:
                inner = _Descending(inner)
            elif type(inner) is not bool:
                inner = -inner
        key.append((stage, inner))
    key.append(namespace)
    key.append(name)
    return tuple(key)
