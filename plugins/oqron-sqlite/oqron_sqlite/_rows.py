"""One record as it stands in the file, and writes applied to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from oqron_core.planes import (
    INT_MAX,
    INT_MIN,
    MISSING,
    Json,
    Record,
    canonical,
    decode_object,
    encode,
    encode_object,
    encode_stored,
)


__all__ = ["Row", "append", "holds", "increment"]

_SAME: Final = frozenset({str, int, bool, type(None)})
_CONTAINERS: Final = frozenset({list, dict})


class Row:
    """
    A record, decoded when it is looked into and encoded when it is written.

    Attributes:
        namespace: Its namespace.
        id: Its id.
        rowid: Where it stands in the table, or None where it is new.
        inserted_at: Milliseconds since the epoch.
        expires_at: The same, or None.
    """

    __slots__ = ("_data", "_fields", "expires_at", "id", "inserted_at", "namespace", "rowid")

    def __init__(
        self,
        namespace: str,
        id: str,  # noqa: A002 - the column's name
        data: Mapping[str, Any] | str,
        inserted_at: int,
        expires_at: int | None,
        rowid: int | None = None,
    ) -> None:
        self.namespace = namespace
        self.id = id
        self.rowid = rowid
        self.inserted_at = inserted_at
        self.expires_at = expires_at
        text = isinstance(data, str)
        self._data: bytes | None = data.encode() if isinstance(data, str) else None
        self._fields: Mapping[str, Any] | None = None if text else data  # type: ignore[assignment]  # as just tested

    @property
    def fields(self) -> Mapping[str, Any]:
        """The top-level fields; lists and objects may be `Json`. Never changed in place."""
        fields = self._fields
        if fields is None:
            key = f"{self.namespace}/{self.id}"
            fields = self._fields = decode_object(self._data or b"null", key)
        return fields

    @property
    def data(self) -> bytes:
        """The JSON text."""
        data = self._data
        if data is None:
            data = self._data = encode_object(self._fields or {})
        return data

    def changed(self, fields: Mapping[str, Any], expires_at: int | None) -> Row:
        """Make what this row becomes; this one stays what it was."""
        at = self.inserted_at
        return Row(self.namespace, self.id, fields, at, expires_at, self.rowid)

    def record(self, returning: Sequence[str] | None) -> Record:
        """Hand out a copy with the fields that are asked for."""
        raw: bytes | dict[str, Any]
        if returning is None:
            raw = self.data
        else:
            raw = {}
            for name in returning:
                value = self.fields.get(name, MISSING)
                if type(value) in _CONTAINERS:
                    value = encode_stored(value)
                if value is not MISSING:
                    raw[name] = value
        return Record.lazy(self.namespace, self.id, raw, self.inserted_at, self.expires_at)


def holds(fields: Mapping[str, Any], expect: Mapping[str, Any]) -> bool:
    """Say whether every guard holds: exact JSON equality, absent is not null."""
    for name, want in expect.items():
        have = fields.get(name, MISSING)
        if have is want:
            continue
        if have is MISSING or want is MISSING:
            return False
        kind = type(have)
        if kind in _SAME and kind is type(want):
            if have != want:
                return False
        elif canonical(have) != canonical(want):
            return False
    return True


def append(fields: dict[str, Any], items: Mapping[str, Json], max_bytes: int) -> bool:
    """Append to lists; False where one is no list."""
    for name, more in items.items():
        have = fields.get(name, MISSING)
        if have is MISSING:
            fields[name] = more
            continue
        if type(have) is Json:
            have = have.load()
        if type(have) is not list:
            return False
        whole = [*have, *more.load()]
        fields[name] = encode(whole, f"append.{name}", max_bytes=max_bytes)
    return True


def increment(fields: dict[str, Any], by: Mapping[str, int]) -> bool:
    """Add to integers; False where one is none, or would leave 64 bits."""
    for name, amount in by.items():
        have = fields.get(name, 0)
        if type(have) is float and have.is_integer():
            have = int(have)
        if type(have) is not int:
            return False
        total = have + amount
        if not INT_MIN <= total <= INT_MAX:
            return False
        fields[name] = total
    return True
