"""Values between Python and JSON: attrs classes through cattrs, strictly."""

from __future__ import annotations

import functools
import uuid

from decimal import Decimal
from typing import Any, Final

import cattrs

from cattrs.preconf.json import make_converter as make_json_converter

from oqron_core.exceptions import InvalidValueError


__all__ = ["dump", "dump_output", "load"]

_PLAIN: Final = frozenset({type(None), bool, int, float, str})


def _strictly(kind: type, *accepted: type) -> Any:
    """Build a hook that takes values of these types as they are, and no others."""

    def structure(value: Any, _: Any) -> Any:
        if type(value) not in accepted:
            found = "null" if value is None else type(value).__name__
            msg = f"must be {_article(kind.__name__)}, not {found}"
            raise TypeError(msg)
        return value

    return structure


def _article(name: str) -> str:
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _as_text(kind: type) -> tuple[Any, Any]:
    def structure(value: Any, _: Any) -> Any:
        if type(value) is not str:
            msg = f"must be a str with {_article(kind.__name__)}"
            raise TypeError(msg)
        return kind(value)

    return structure, str


@functools.cache
def _converter() -> cattrs.Converter:
    made = make_json_converter(detailed_validation=True, forbid_extra_keys=True)
    # The library's own hooks call the type: "3" would pass for an int, 3.9 become 3.
    made.register_structure_hook(int, _strictly(int, int))
    made.register_structure_hook(float, _strictly(float, float, int))
    made.register_structure_hook(str, _strictly(str, str))
    made.register_structure_hook(bool, _strictly(bool, bool))
    for kind in (uuid.UUID, Decimal):
        structure, unstructure = _as_text(kind)
        made.register_structure_hook(kind, structure)
        made.register_unstructure_hook(kind, unstructure)
    return made


def _refused(error: BaseException, path: str) -> InvalidValueError:
    try:
        found = cattrs.transform_error(error, path=path, format_exception=_described)
    except Exception:  # noqa: BLE001 - an error of ours must not hide the caller's
        found = [f"{error} @ {path}"]
    first, _, place = found[0].rpartition(" @ ")
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return InvalidValueError(place or path, f"{first or found[0]}{more}")


def _described(error: BaseException, _: type | None) -> str:
    if isinstance(error, cattrs.errors.ForbiddenExtraKeysError):
        return f"has no field {', '.join(sorted(map(repr, error.extra_fields)))}"
    if isinstance(error, KeyError):
        return f"lacks the field {error}"
    return str(error) or type(error).__name__


def load(value: Any, hint: Any, path: str) -> Any:
    """
    Build what *hint* asks for from a JSON value.

    Args:
        value: The JSON value.
        hint: A type, or ``Any`` for the value as it is.
        path: What to call it in an error.

    Raises:
        InvalidValueError: The value is not of that type; says where.
    """
    if hint is Any:
        return value
    if type(value) is hint and hint in _PLAIN:
        return value
    try:
        return _converter().structure(value, hint)
    except Exception as error:  # noqa: BLE001 - hooks of users may raise anything
        problem = _refused(error, path)
    raise problem


def dump(value: Any, hint: Any, path: str) -> Any:
    """
    Give the JSON value of what a caller passed, checked against *hint*.

    Raises:
        InvalidValueError: It is not what *hint* asks for; says where.
    """
    if type(value) in _PLAIN and (hint is Any or type(value) is hint):
        return value
    try:
        plain = _converter().unstructure(value)
    except Exception as error:  # noqa: BLE001 - hooks of users may raise anything
        problem = InvalidValueError(path, f"cannot be made JSON: {error}")
    else:
        if hint is not Any:
            load(plain, hint, path)
        return plain
    raise problem


def dump_output(value: Any) -> Any:
    """Give the JSON value of what a handler returned; never raises."""
    if type(value) in _PLAIN:
        return value
    try:
        return _converter().unstructure(value)
    except Exception:  # noqa: BLE001 - the storage puts a marker in the place of what it cannot keep
        return value
