"""
The portable JSON domain, the same in every mode, and its encoding.

A value is portable if every backend gives it back equal: objects with string
keys, lists, strings without NUL and lone surrogates, finite numbers, integers of
at most 64 bits, true, false, null, nested at most 100 deep. Whatever is not is
refused before any write, with the path of the offender.
"""

from __future__ import annotations

import math
import re

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, final

import orjson

from oqron_core.exceptions import CorruptRecordError, InvalidValueError


__all__ = [
    "DEFAULT_MAX_VALUE_BYTES",
    "INT_MAX",
    "INT_MIN",
    "MAX_DEPTH",
    "NULL",
    "Json",
    "canonical",
    "check_value",
    "decode",
    "decode_fields",
    "decode_object",
    "encode",
    "encode_fields",
    "encode_object",
    "encode_stored",
    "portable_text",
    "portable_value",
    "readable_fields",
    "shown",
]

MAX_DEPTH: Final = 100
"""How deep lists and objects may be nested."""
INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1
DEFAULT_MAX_VALUE_BYTES: Final = 1024 * 1024
"""The default limit of one encoded value: 1 MiB."""

_PLAIN: Final = frozenset({str, bool, type(None)})
_STR: Final = frozenset({str})
_ESCAPED_NUL: Final = b"\\u0000"
_CONTAINERS: Final = b"[{"
_OPENING: Final = frozenset({b"[", b"{"})
_CLOSING: Final = frozenset({b"]", b"}"})
_ENDING: Final = frozenset({b",", b"}"})
_TOKENS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{},:]|[^\s\[\]{},:"]++', re.DOTALL)
"""The words of a JSON text."""
_NUMBER: Final = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")

_loads: Final = orjson.loads
_PASSTHROUGH: Final = (
    orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
)


def _dumps(
    value: Any, *, default: Callable[[Any], Any] | None = None, option: int | None = None
) -> bytes:
    # A copy, because what is encoded is often kept for a while: the buffer that orjson
    # gives back holds some 4 kB however short the text is, and filling fresh pages takes
    # ten times as long as the encoding (measured with 3.13: 3.4 µs, with the copy 0.34).
    return b"%b" % orjson.dumps(value, default, option)


@final
class Json:
    """
    A portable value that is already checked and encoded.

    May stand for any top-level field of a record that is written, so that a
    payload is encoded once on its way through both planes. Immutable.

    Attributes:
        data: The JSON text, UTF-8.
    """

    __slots__ = ("data",)

    data: bytes

    def __init__(self, data: bytes) -> None:
        object.__setattr__(self, "data", data)

    def __setattr__(self, name: str, value: object) -> None:
        msg = "Json is immutable"
        raise AttributeError(msg)

    def __reduce__(self) -> tuple[type[Json], tuple[bytes]]:
        return Json, (self.data,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Json) and canonical(self) == canonical(other)

    def __hash__(self) -> int:
        return hash(canonical(self))

    def __repr__(self) -> str:
        # Never the content: a payload does not belong in a log.
        return f"Json(<{len(self.data)} bytes>)"

    def load(self) -> Any:
        """
        Decode a fresh copy.

        Raises:
            CorruptRecordError: Somebody else stored it, and it cannot be read.
        """
        return decode(self.data, "a field")


NULL: Final = Json(b"null")


def _is_portable(value: Any, depth: int) -> bool:
    """Walk once, without building a path; strings are checked when encoded."""
    kind = type(value)
    if kind is dict:
        if depth >= MAX_DEPTH or not _STR.issuperset(map(type, value)):
            return False
        children: Iterable[Any] = value.values()
    elif kind is list:
        if depth >= MAX_DEPTH:
            return False
        children = value
    elif kind is int:
        return bool(INT_MIN <= value <= INT_MAX)
    elif kind is float:
        return math.isfinite(value)
    else:
        return kind in _PLAIN
    for child in children:
        kind = type(child)
        if kind is str or kind is bool or child is None:
            continue
        if kind is int:
            is_fine = INT_MIN <= child <= INT_MAX
        elif kind is float:
            # Neither NaN nor infinite: those are not 0 from themselves.
            is_fine = child - child == 0.0
        else:
            is_fine = _is_portable(child, depth + 1)
        if not is_fine:
            return False
    return True


def _complain(value: Any, path: str, depth: int) -> None:
    """Find the first offender and name it."""
    kind = type(value)
    if kind is str:
        _complain_text(value, path)
    elif kind is int:
        if not INT_MIN <= value <= INT_MAX:
            reason = "is an integer of more than 64 bits; send it as a string"
            raise InvalidValueError(path, reason)
    elif kind is float:
        if not math.isfinite(value):
            reason = f"is {value!r}; JSON has only finite numbers, send null or a string"
            raise InvalidValueError(path, reason)
    elif kind is dict or kind is list:
        if depth >= MAX_DEPTH:
            reason = f"is nested deeper than {MAX_DEPTH}; flatten it"
            raise InvalidValueError(path, reason)
        if kind is list:
            for index, child in enumerate(value):
                _complain(child, f"{path}[{index}]", depth + 1)
        else:
            _complain_object(value, path, depth)
    elif kind not in _PLAIN:
        reason = (
            f"is a {kind.__module__}.{kind.__qualname__}, which JSON does not have; "
            "convert it to str, int, float, bool, None, list or dict first"
        )
        raise InvalidValueError(path, reason)


def shown(value: object) -> str:
    """Show any value in an error: at most 80 characters, never failing."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - an integer of 5,000 digits has no repr
        return f"of type {type(value).__name__}"
    return text if len(text) <= 80 else text[:80] + "…"  # noqa: PLR2004 - one line


def _complain_object(value: dict[Any, Any], path: str, depth: int) -> None:
    for key, child in value.items():
        if type(key) is not str:
            reason = f"has the key {shown(key)}; keys must be str, not {type(key).__name__}"
            raise InvalidValueError(path, reason)
        here = f"{path}.{key}" if key.isidentifier() else f"{path}[{key!r}]"
        _complain_text(key, f"key of {here}")
        _complain(child, here, depth + 1)


def _complain_text(text: str, path: str) -> None:
    if "\0" in text:
        reason = "contains NUL (U+0000), which no backend keeps; remove or replace it"
        raise InvalidValueError(path, reason)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            reason = f"has a lone surrogate at position {error.start}; remove it"
            raise InvalidValueError(path, reason) from None


def check_value(value: Any, path: str = "value") -> None:
    """
    Refuse what is outside the portable domain.

    Raises:
        InvalidValueError: Names the path of the first offender.
    """
    encode(value, path, max_bytes=None)


def encode(
    value: Any,
    path: str = "value",
    *,
    max_bytes: int | None = DEFAULT_MAX_VALUE_BYTES,
) -> Json:
    """
    Check *value* and encode it, keeping the order of keys.

    Args:
        value: Anything portable, or a `Json`, which is taken as it is.
        path: What to call the value in an error.
        max_bytes: The limit of the encoded size; None for no limit.

    Raises:
        InvalidValueError: Outside the domain or over the limit.
    """
    if type(value) is Json:
        data = value.data
    else:
        data = _encode(value, path)
    if max_bytes is not None and len(data) > max_bytes:
        reason = (
            f"has {len(data)} bytes as JSON; the limit is {max_bytes}. Keep the "
            "content elsewhere and send a reference, or raise max_value_bytes"
        )
        raise InvalidValueError(path, reason)
    return value if type(value) is Json else Json(data)


def encode_stored(value: Any) -> Json:
    """
    Encode what came out of a store, which was checked when it went in.

    What core wraps around a payload may nest it a little deeper than a payload may,
    and others may have nested theirs as deep as the store allows.
    """
    try:
        return Json(_dumps(value))
    except TypeError:  # orjson's for nesting beyond its limit
        return Json(_dump_deep(value))


def _encode(value: Any, path: str) -> bytes:
    if not _is_portable(value, 0):
        _complain(value, path, 0)
    try:
        data = _dumps(value, option=_PASSTHROUGH)
    except TypeError:  # orjson's for a lone surrogate
        _complain(value, path, 0)
        raise
    if _ESCAPED_NUL in data:
        # Either a NUL, or a backslash followed by "u0000" as plain text.
        _complain(value, path, 0)
    return data


def decode(data: bytes, key: str = "a record") -> Any:
    """
    Decode JSON text that a store gave back.

    Args:
        data: UTF-8 bytes.
        key: Where it stood, for the error.

    Raises:
        CorruptRecordError: It is no JSON.
    """
    try:
        return _loads(data)
    except orjson.JSONDecodeError as error:
        raise CorruptRecordError(key) from error


def decode_object(data: bytes, key: str = "a record") -> dict[str, Any]:
    """
    Decode an object of a store that is open to others.

    Where a field holds what we would not write and cannot read, a number beyond a
    double or nesting beyond all reason, the fields stand beside each other as
    `encode_fields` makes them, so that one of them does not hide the others.

    Args:
        data: UTF-8 bytes.
        key: Where it stood, for the error.

    Raises:
        CorruptRecordError: It is no JSON object.
    """
    try:
        found = _loads(data)
    except orjson.JSONDecodeError as error:
        try:
            found = _split(data)
        except orjson.JSONDecodeError:
            found = None
        if found is None:
            raise CorruptRecordError(key) from error
    if type(found) is not dict:
        raise CorruptRecordError(key)
    return found


def _split(data: bytes) -> dict[str, Any] | None:
    """Take an object apart at its top level; None where it is none."""
    fields: dict[str, Any] = {}
    name: Any = None
    depth = start = 0
    token = b""
    for match in _TOKENS.finditer(data):
        token = match[0]
        if depth == 0 and (token != b"{" or start):
            return None
        if token in _OPENING:
            depth += 1
            start = start or match.end()
        elif depth == 1 and token in _ENDING:
            if name is not None:
                fields[_loads(name)] = _field(data[start : match.start()].strip())
            name = None
        elif depth == 1 and name is None:
            if token[:1] != b'"':
                return None
            name = token
        elif depth == 1 and token == b":":
            start = match.end()
        if token in _CLOSING:
            depth -= 1
    return fields if depth == 0 and token == b"}" else None


def _field(text: bytes) -> Any:
    if text[:1] in _OPENING:
        return Json(text)
    try:
        return _loads(text)
    except orjson.JSONDecodeError:
        if _NUMBER.fullmatch(text):
            return float(text)  # endless, as everybody else reads it
        raise


def encode_fields(  # noqa: C901 - one flat pass, on the hot path
    value: Mapping[str, Any],
    path: str = "value",
    *,
    max_bytes: int | None = DEFAULT_MAX_VALUE_BYTES,
) -> dict[str, Any]:
    """
    Check a record's value and encode every top-level list and object.

    Strings, numbers, booleans and null are immutable and stay as they are;
    lists and objects become `Json`, and a `Json` of a scalar becomes the scalar.
    The result shares nothing with *value*.

    Args:
        value: A mapping; its values may be `Json` already.
        path: What to call the value in an error.
        max_bytes: The limit of any one encoded field; None for no limit.

    Raises:
        InvalidValueError: Not a mapping, outside the domain, or over the limit.
    """
    given: object = value
    if not isinstance(given, Mapping):
        reason = f"must be an object (dict), not {type(value).__name__}"
        raise InvalidValueError(path, reason)
    fields: dict[str, Any] = {}
    for name, field in value.items():
        if name not in _seen_names or type(name) is not str:
            _check_field_name(name, path)
        kind = type(field)
        if field is None or kind is bool:
            pass
        elif kind is str:
            if "\0" in field or not field.isascii():
                _complain_text(field, f"{path}.{name}")
            if max_bytes is not None and len(field) * 4 > max_bytes:
                encode(field, f"{path}.{name}", max_bytes=max_bytes)
        elif kind is int:
            if not INT_MIN <= field <= INT_MAX:
                _complain(field, f"{path}.{name}", 1)
        elif kind is Json:
            if max_bytes is not None and len(field.data) > max_bytes:
                encode(field, f"{path}.{name}", max_bytes=max_bytes)
            if field.data[0] not in _CONTAINERS:
                # Backends need not know two forms of one scalar.
                field = _plain(field, f"{path}.{name}")  # noqa: PLW2901 - decoded in place
        elif kind is float:
            if not math.isfinite(field):
                _complain(field, f"{path}.{name}", 1)
        else:
            field = encode(field, f"{path}.{name}", max_bytes=max_bytes)  # noqa: PLW2901 - encoded in place
        fields[name] = field
    return fields


def _plain(value: Json, path: str) -> Any:
    try:
        found = _loads(value.data)
    except orjson.JSONDecodeError as error:
        raise InvalidValueError(path, "is no JSON text that can be read") from error
    return Json(_dumps(found)) if isinstance(found, (list, dict)) else found


# The same few names stand in every record; each is looked at once.
_seen_names: set[str] = set()
_SEEN_MOST: Final = 4096


def _check_field_name(name: object, path: str) -> None:
    if type(name) is not str:
        _complain_object({name: None}, path, 0)
        return
    if not name.isascii() or "\0" in name:
        _complain_text(name, f"key of {path}")
    if len(_seen_names) < _SEEN_MOST and len(name) <= 64:  # noqa: PLR2004 - keeps the set small
        _seen_names.add(name)


def _fragment(value: Any) -> Any:
    if type(value) is Json:
        return orjson.Fragment(value.data)
    raise TypeError


def encode_object(fields: Mapping[str, Any]) -> bytes:
    """Encode what `encode_fields` made as one JSON object."""
    try:
        return _dumps(fields, default=_fragment)
    except TypeError:  # orjson's for nesting beyond its limit
        return _dump_deep(dict(fields))


def _dump_deep(value: Any) -> bytes:
    """Encode what may be nested deeper than orjson and the stack allow."""
    parts: list[bytes] = []
    todo: list[Any] = [value]
    while todo:
        item = todo.pop()
        kind = type(item)
        if kind is bytes:
            parts.append(item)
        elif kind is Json:
            parts.append(item.data)
        elif kind is list:
            parts.append(b"[")
            todo.append(b"]")
            for number in range(len(item) - 1, -1, -1):
                todo.append(item[number])
                if number:
                    todo.append(b",")
        elif kind is dict:
            parts.append(b"{")
            todo.append(b"}")
            for number, (name, child) in enumerate(reversed(item.items()), 1 - len(item)):
                todo += [child, b":", _dumps(name)]
                if number:
                    todo.append(b",")
        else:
            parts.append(_dumps(item))
    return b"".join(parts)


def decode_fields(fields: Mapping[str, Any], key: str = "a record") -> dict[str, Any]:
    """
    Turn what `encode_fields` made into a fresh plain dict.

    Raises:
        CorruptRecordError: A field of what somebody else stored cannot be read.
    """
    try:
        return {
            name: _loads(field.data) if type(field) is Json else field
            for name, field in fields.items()
        }
    except orjson.JSONDecodeError as error:
        raise CorruptRecordError(key) from error


def readable_fields(fields: Mapping[str, Any], key: str = "a record") -> dict[str, Any]:
    """
    Turn what `encode_fields` made into a fresh plain dict, as far as it can be read.

    In place of a field that somebody else stored and that cannot be read stands a
    marker, ``__unreadable__``, with the reason.
    """
    try:
        return decode_fields(fields, key)
    except CorruptRecordError as error:
        marker = {"__unreadable__": str(error)}
    shown: dict[str, Any] = {}
    for name in fields:
        try:
            shown[name] = decode_fields({name: fields[name]}, key)[name]
        except CorruptRecordError:
            shown[name] = {**marker}
    return shown


def _canonical(value: Any) -> Any:
    kind = type(value)
    if kind is float:
        # One number has one text: 1.0 is 1, and -0.0 is 0.
        return int(value) if value.is_integer() and INT_MIN <= value <= INT_MAX else value
    if kind is list:
        return [_canonical(child) for child in value]
    if kind is dict:
        return {key: _canonical(child) for key, child in value.items()}
    return value


def canonical(value: Any) -> bytes:
    """
    Encode a portable value so that equal values have equal bytes.

    Keys are sorted, there is no white space, and a number that is an integer
    is written as one: 1.0 equals 1, as JSON has a single kind of number. True
    is not 1, missing is not null.
    """
    kind = type(value)
    if kind is Json:
        return canonical(value.load())
    if kind is str or kind is int or kind is bool or value is None:
        return _dumps(value)
    return _dumps(_canonical(value), option=orjson.OPT_SORT_KEYS)


def portable_text(text: object, *, limit: int | None = None) -> str:
    """
    Make any text portable: NUL and lone surrogates become U+FFFD.

    Args:
        text: What a handler reported; not a string is converted by ``str``.
        limit: At most this many characters; what is cut is marked.
    """
    if (
        type(text) is str
        and text.isascii()
        and "\0" not in text
        and (limit is None or len(text) <= limit)
    ):
        return text
    if not isinstance(text, str):
        try:
            text = str(text)
        except Exception as error:  # noqa: BLE001 - a report must never fail the job
            text = f"<{type(text).__name__} whose str() raised {type(error).__name__}>"
    if type(text) is not str:
        text = str.__str__(text)
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if limit is not None and len(text) > limit:
        cut = len(text) - limit
        text = f"{text[:limit]}… [{cut} characters cut]"
    return text


def portable_value(
    value: Any,
    *,
    max_bytes: int = DEFAULT_MAX_VALUE_BYTES,
    on_refused: Callable[[InvalidValueError], None] | None = None,
) -> Json:
    """
    Encode what a handler returned, or a marker where that cannot be stored.

    The marker is ``{"__unstorable__": <reason>, "type": <type>}``.

    Args:
        value: Anything.
        max_bytes: The limit of the encoded size.
        on_refused: Called with the reason where the marker was taken.
    """
    if value is None:
        return NULL
    try:
        return encode(value, "output", max_bytes=max_bytes)
    except InvalidValueError as error:
        if on_refused is not None:
            on_refused(error)
        marker = {
            "__unstorable__": portable_text(str(error), limit=500),
            "type": portable_text(type(value).__qualname__, limit=200),
        }
        return Json(_dumps(marker))
