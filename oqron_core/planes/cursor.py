"""
Keyset cursors, the same for every backend.

A cursor holds the order values of the last record of a page, its namespace and
its id. The next page is what sorts after it, so writes neither skip nor repeat
a record that keeps its place.
"""

from __future__ import annotations

import base64
import binascii

from typing import Any, Final

import orjson

from oqron_core._codec import Json
from oqron_core.exceptions import InvalidValueError
from oqron_core.planes.values import Query


__all__ = ["LAST", "Rank", "decode_cursor", "encode_cursor", "rank"]

Rank = tuple[int, Any]
"""A value's place in an order: its class, then the value."""

LAST: Final = 4
"""The class of what is absent, null, a list or an object."""


def rank(value: Any) -> Rank:
    """
    Say where *value* stands in an ascending order.

    False, true, numbers, strings; what is absent, null, a list or an object has
    the class 4 and comes last in both directions.
    """
    kind = type(value)
    if kind is bool:
        return (1, True) if value else (0, False)
    if kind is int or kind is float:
        return (2, value)
    if kind is str:
        return (3, value)
    return (LAST, None)


def _fingerprint(query: Query) -> str:
    parts = [f"{name}:{direction}" for name, direction in query.order_by]
    return ",".join(parts)


def encode_cursor(query: Query, order_values: list[Any], namespace: str, id: str) -> str:  # noqa: A002 - the column
    """
    Make the cursor that follows a record.

    Args:
        query: The query that the page answers.
        order_values: The record's values of ``query.order_by``, None if absent.
        namespace: The record's namespace.
        id: The record's id.
    """
    values = [
        None if type(value) is Json or isinstance(value, (list, dict)) else value
        for value in order_values
    ]
    data = orjson.dumps([_fingerprint(query), values, namespace, id])
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_cursor(query: Query) -> tuple[list[Any], str, str] | None:
    """
    Read ``query.after``.

    Returns:
        The order values, the namespace and the id of the record that the page
        follows, or None where the query starts at the beginning.

    Raises:
        InvalidValueError: It is no cursor, or one of another order.
    """
    if query.after is None:
        return None
    reason = "is no cursor; pass the `next` of a page of the same query"
    try:
        padded = query.after.encode("ascii") + b"=" * (-len(query.after) % 4)
        parts = orjson.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (UnicodeEncodeError, binascii.Error, orjson.JSONDecodeError, ValueError):
        raise InvalidValueError("query.after", reason) from None
    if (
        not isinstance(parts, list)
        or len(parts) != 4  # noqa: PLR2004 - as encode_cursor makes it
        or not isinstance(parts[1], list)
        or len(parts[1]) != len(query.order_by)
        or not isinstance(parts[2], str)
        or not isinstance(parts[3], str)
        or any(isinstance(value, (list, dict)) for value in parts[1])
    ):
        raise InvalidValueError("query.after", reason)
    if parts[0] != _fingerprint(query):
        reason = "is the cursor of another order; pass the `next` of the same query"
        raise InvalidValueError("query.after", reason)
    return parts[1], parts[2], parts[3]
