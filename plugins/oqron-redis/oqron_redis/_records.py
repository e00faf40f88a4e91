"""
Records on the wire: one JSON text per top-level field, and the indexes of a kind.

A record is a hash. The fields that came with it stand in one text, the body, until one
of them is changed: writing and reading twenty small fields one by one costs Redis, its
scripts and the client several times as much. What guards and indexes look at stands
apart from the start. See ``lua/_fields.lua``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeVar, final

import attrs
import orjson

from oqron_core.exceptions import CorruptRecordError, InvalidValueError
from oqron_core.planes import INT_MAX, INT_MIN, MISSING, Json, Record, canonical, encode
from oqron_core.taxonomy import RecordKind


__all__ = [
    "ABSENT",
    "BODY",
    "META",
    "ODD",
    "ODD_TIME",
    "Fields",
    "Index",
    "Layout",
    "equal_part",
    "indexes_of",
    "layout_of",
    "names_of",
    "read_meta",
    "record_from",
    "stored_of",
    "text_column",
    "text_columns",
    "texts_of",
    "time_part",
    "unpacked",
]

_T = TypeVar("_T")

META: Final = b"\0"
"""The field that no value can have: when it was inserted, and when it expires."""
BODY: Final = b"\0b"
"""The other one: the fields that came with the record, as `Layout.body` makes it."""
ABSENT: Final = b"\1"
ODD: Final = b"\2"
NO_TIME: Final = b"~"
ODD_TIME: Final = b"!"

_MAX_PART: Final = 256
_TIME_BASE: Final = 2**53 - 1
_MAX_TIME_DIGITS: Final = 15
_CONTAINERS: Final = (b"[", b"{")
_BRACKETS: Final = frozenset({(91, 93), (123, 125)})
_EMPTY: Final[Mapping[type, bytes]] = {list: b"[]", dict: b"{}"}
_NULL: Final = b"null"
_BOOLS: Final = {True: b"true", False: b"false"}
_NUL: Final = b"\\u0000"

_dumps: Final = orjson.dumps


@attrs.frozen
class Index:
    """
    An index that is kept for every namespace of a kind.

    Its members are ``[equal NUL] [time NUL] id``, in the order of bytes.

    Attributes:
        tag: Its name in keys.
        equal: The field whose text comes first, or None.
        time: The field whose instant comes next, latest first, or None.
    """

    tag: str
    equal: str | None = None
    time: str | None = None

    def head(self, texts: Mapping[str, bytes]) -> bytes:
        """Give what its members have before the id, by the texts of the fields."""
        head = b""
        if self.equal is not None:
            head += equal_part(texts.get(self.equal)) + b"\0"
        if self.time is not None:
            head += time_part(texts.get(self.time)) + b"\0"
        return head

    @property
    def fields(self) -> frozenset[str]:
        """The fields that it looks at."""
        return frozenset(name for name in (self.equal, self.time) if name is not None)


_BY_ID: Final = (Index("i"),)
_INDEXES: Final[Mapping[RecordKind, tuple[Index, ...]]] = {
    # Counts and pages by status; all statuses together are merged by id.
    RecordKind.JOB: (Index("s", "status"),),
    RecordKind.RUN: (
        Index("i"),
        Index("t", None, "startedAt"),
        Index("ts", "status", "startedAt"),
        Index("tn", "name", "startedAt"),
        Index("tm", "module", "startedAt"),
    ),
    RecordKind.MESSAGE: (Index("i"), Index("t", None, "publishedAt")),
}


def indexes_of(kind: RecordKind) -> tuple[Index, ...]:
    """Give the indexes of a kind; the first one holds every record once."""
    return _INDEXES.get(kind, _BY_ID)


_APART: Final[Mapping[RecordKind, frozenset[str]]] = {
    # Besides what its indexes look at: what claims and settlements guard and count, and
    # what a worker reads of every job.
    RecordKind.JOB: frozenset({"startedAt", "leaseToken", "attemptMade", "data", "tags"}),
}


@final
class Layout:
    """
    Where the fields of a new record stand.

    Attributes:
        apart: The names of those that are fields of the hash.
        apart_at: Their places.
    """

    __slots__ = ("_body", "_head", "apart", "apart_at")

    def __init__(self, kind: RecordKind, names: Sequence[bytes]) -> None:
        wanted = {name.encode() for name in _APART.get(kind, ())}
        for index in indexes_of(kind):
            wanted |= {name.encode() for name in (index.equal, index.time) if name is not None}
        self.apart_at = [place for place, name in enumerate(names) if name in wanted]
        self._body = [place for place, name in enumerate(names) if name not in wanted]
        self.apart: tuple[bytes, ...] = tuple([names[place] for place in self.apart_at])
        self._head = b"".join([names[place] + b"\0" for place in self._body])

    def body(self, texts: Sequence[bytes]) -> bytes:
        """Give the body: its names, then its texts, with NUL between them."""
        return self._head + b"\0".join([texts[place] for place in self._body])

    def rest(self, texts: Sequence[_T]) -> list[_T]:
        """Give the texts of `apart`; likewise their columns."""
        return [texts[place] for place in self.apart_at]

    def frame(self, texts: Sequence[bytes], open: frozenset[int]) -> bytes:  # noqa: A002
        """
        Give a body as a pattern for ``%``, with a ``%b`` for each text that is open.

        Args:
            texts: All texts.
            open: The places of those that differ from record to record.
        """
        parts = [b"%b" if at in open else texts[at].replace(b"%", b"%%") for at in self._body]
        return self._head.replace(b"%", b"%%") + b"\0".join(parts)

    def in_body(self, places: Iterable[int]) -> list[int]:
        """Give those of some places that stand in the body, in its order."""
        wanted = set(places)
        return [place for place in self._body if place in wanted]

    def bodies(self, columns: Sequence[Sequence[bytes]], count: int) -> list[bytes]:
        """Give the bodies of many records, from the columns of their texts."""
        head, join = self._head, b"\0".join
        if not self._body:
            return [head] * count
        rows = zip(*[columns[place] for place in self._body], strict=True)
        return [head + join(row) for row in rows]


@lru_cache(maxsize=512)
def layout_of(kind: RecordKind, names: tuple[bytes, ...]) -> Layout:
    """Give the layout of a new record of a kind with these fields."""
    return Layout(kind, names)


def equal_part(text: bytes | None) -> bytes:
    """Give what an index has for the text of a field; as the scripts do."""
    if text is None:
        return ABSENT
    if text[:1] in _CONTAINERS or len(text) > _MAX_PART:
        return ODD
    return text


def time_part(text: bytes | None) -> bytes:
    """Give what an index has for the text of an instant; as the scripts do."""
    if text is None or text == _NULL or text[:1] in _CONTAINERS:
        return NO_TIME
    if len(text) <= _MAX_TIME_DIGITS and text.isdigit():
        return b"%016d" % (_TIME_BASE - int(text))
    return ODD_TIME


# --- encoding ---------------------------------------------------------------------


def _odd(value: Any, path: str, limit: int) -> bytes:
    """Give the text of what is no string, small integer, boolean or null."""
    if type(value) is float:
        encode(value, path)
        return canonical(value)
    data = encode(value, path, max_bytes=limit).data
    if data[:1] in _CONTAINERS:
        # A list is joined by its last byte, so it must end with its bracket.
        return data if data[-1:] in {b"]", b"}"} else _dumps(orjson.loads(data))
    return canonical(Json(data))


def texts_of(fields: Mapping[str, Any], path: str, limit: int) -> list[bytes]:
    """
    Check top-level fields and give the JSON text of each.

    The text of a string, number, boolean or null is canonical: equal values have
    equal texts. `MISSING` has the empty text, which no JSON has.

    Args:
        fields: The fields.
        path: What to call them in an error.
        limit: The largest text, in bytes.

    Raises:
        InvalidValueError: One is not portable, or too large.
    """
    texts: list[bytes] = []
    add = texts.append
    # One flat loop: this is where most of the client's time goes.
    for name, value in fields.items():
        kind = type(value)
        if value is None:
            add(_NULL)
        elif kind is str:
            try:
                # A copy: orjson's own buffer holds 4 kB for the shortest text.
                text = b"%b" % _dumps(value)
            except TypeError:  # orjson's for a lone surrogate
                text = _NUL
            if _NUL in text or len(text) > limit:
                encode(value, f"{path}.{name}", max_bytes=limit)
            add(text)
        elif kind is int and INT_MIN <= value <= INT_MAX:
            add(b"%d" % value)
        elif kind is Json:
            text = value.data
            if len(text) <= limit and (text[0], text[-1]) in _BRACKETS:
                add(text)
            else:
                add(_odd(value, f"{path}.{name}", limit))
        elif kind is bool:
            add(_BOOLS[value])
        elif value is MISSING:
            add(b"")
        elif not value and kind in _EMPTY:
            add(_EMPTY[kind])
        else:
            add(_odd(value, f"{path}.{name}", limit))
    return texts


def text_columns(rows: Sequence[Mapping[str, Any]], path: str, limit: int) -> list[Sequence[bytes]]:
    """
    Do the same for many objects of the same fields in the same order, by columns.

    What is done once for a column instead of once for each of its values costs a
    fraction: most of what a batch writes is of one type, or all the same.

    Raises:
        InvalidValueError: As `texts_of` for the first row that it refuses.
    """
    try:
        # No container per row: the collector would come and walk them all.
        return [text_column(name, [row[name] for row in rows], path, limit) for name in rows[0]]
    except InvalidValueError:
        for row in rows:
            texts_of(row, path, limit)
        raise


def text_column(name: str, column: Sequence[Any], path: str, limit: int) -> Sequence[bytes]:
    """Do the same for one column of many objects."""
    count = len(column)
    first = column[0]
    kind, kinds = type(first), len(set(map(type, column)))
    if kinds == 1 and (kind is str or kind is int or first is None):
        if first is None or column.count(first) == count:
            return texts_of({name: first}, path, limit) * count
        if kind is str:
            strings = _strings(column)
            if strings is not None and max(map(len, strings)) <= limit:
                return strings
        elif min(column) >= INT_MIN and max(column) <= INT_MAX:
            return [b"%d" % value for value in column]
    elif len(set(map(id, column))) == 1:
        return texts_of({name: first}, path, limit) * count
    elif kind is Json and kinds == 1:
        texts = [value.data for value in column]
        ends = {(text[0], text[-1]) for text in texts}
        if ends <= _BRACKETS and max(map(len, texts)) <= limit:
            return texts
    return [texts_of({name: value}, path, limit)[0] for value in column]


def _strings(column: Sequence[str]) -> list[bytes] | None:
    """Encode strings; None where one has to be looked at by itself."""
    try:
        texts = [b"%b" % _dumps(value) for value in column]
    except TypeError:  # orjson's for a lone surrogate
        return None
    return None if _NUL in b"".join(texts) else texts


@lru_cache(maxsize=512)
def names_of(names: tuple[str, ...]) -> tuple[bytes, ...]:
    """
    Check the names of top-level fields and encode them.

    Raises:
        InvalidValueError: One is not portable.
    """
    for name in names:
        if type(name) is not str:
            reason = f"has the key {name!r}; keys must be str, not {type(name).__name__}"
            raise InvalidValueError("value", reason)
        if not name.isascii() or "\0" in name:
            encode({name: None}, "value")
    return tuple([name.encode() for name in names])


# --- decoding ---------------------------------------------------------------------


@final
class Fields(Mapping[str, Any]):
    """
    Fields as they are stored, decoded when they are asked for.

    Given to `Record.lazy`: one field is read without touching the others, and all
    of them are decoded in one go.
    """

    __slots__ = ("_texts", "_where")

    def __init__(self, texts: dict[bytes, bytes], where: str) -> None:
        self._texts = texts
        self._where = where

    def get(self, name: str, default: Any = None) -> Any:
        """Give a list or object as `Json`, anything else decoded."""
        key = name.encode()
        text = self._texts.get(key)
        if text is None and BODY in self._texts:
            text = self._whole().get(key)
        if not text:
            return default
        if text[:1] in _CONTAINERS:
            return Json(text)
        return self._loads(text)

    def __getitem__(self, name: str) -> Any:
        text = self._whole()[name.encode()]
        return Json(text) if text[:1] in _CONTAINERS else self._loads(text)

    def __iter__(self) -> Iterator[str]:
        return (name.decode() for name in self._whole())

    def __len__(self) -> int:
        return len(self._whole())

    def items(self) -> Any:
        """Give all fields decoded, as a fresh plain dict's items."""
        texts = self._whole()
        joined = b",".join(texts.values())
        values = self._loads(b"[" + joined + b"]")
        if len(values) != len(texts):
            raise CorruptRecordError(self._where)
        return zip(map(bytes.decode, texts), values, strict=True)

    def _whole(self) -> dict[bytes, bytes]:
        texts = self._texts
        if BODY in texts:
            texts = self._texts = unpacked(texts)
            if BODY in texts:
                # Somebody else wrote there: nobody can say which fields it held.
                raise CorruptRecordError(self._where)
        return texts

    def _loads(self, text: bytes) -> Any:
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise CorruptRecordError(self._where) from error


def read_meta(meta: bytes, where: str = "a record") -> tuple[int, int | None]:
    """Split what `META` holds: inserted at, expires at."""
    inserted, _, expires = meta.partition(b":")
    try:
        return int(inserted), int(expires) if expires else None
    except ValueError:
        # Somebody else wrote there; the driver's words would hold it.
        raise CorruptRecordError(where) from None


def record_from(
    namespace: str,
    id: str,  # noqa: A002 - the column's name
    meta: bytes,
    texts: dict[bytes, bytes],
    kind: RecordKind | None = None,
) -> Record:
    """Make a record of what is stored, which it owns from here on."""
    where = f"{namespace}/{id}"
    inserted_at, expires_at = read_meta(meta, where)
    fields = Fields(texts, where)
    return Record.lazy(namespace, id, fields, inserted_at, expires_at, kind)


def stored_of(flat: Sequence[bytes]) -> tuple[bytes, dict[bytes, bytes]]:
    """
    Read the answer of HGETALL.

    Returns:
        What `META` holds, and the texts as they are stored; see `unpacked`.
    """
    texts = dict(zip(flat[::2], flat[1::2], strict=True))
    return texts.pop(META), texts


def unpacked(texts: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """
    Give the text of each field from what is stored.

    A body that cannot be read is left among them as `BODY`.
    """
    body = texts.pop(BODY, None)
    if body:
        parts = body.split(b"\0")
        half, odd = divmod(len(parts), 2)
        if odd:
            texts[BODY] = body
            return texts
        # What was changed goes before what the record came with.
        texts = dict(zip(parts[:half], parts[half:], strict=True)) | texts
    if b"" in texts.values():
        texts = {name: text for name, text in texts.items() if text}
    return texts
