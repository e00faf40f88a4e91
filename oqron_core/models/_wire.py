"""The one place that knows how attributes are called on the wire."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import attrs


__all__ = ["LOCAL", "camel", "structure", "unstructure", "wire_names"]

T = TypeVar("T")

LOCAL: Final = "oqron_local"
"""Metadata key of an attribute that is not on the wire."""

_functions: dict[type, tuple[Callable[[Any, Any], Any], Callable[[Any], dict[str, Any]]]] = {}


def camel(name: str) -> str:
    """Turn ``attempt_made`` into ``attemptMade``."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def wire_names(cls: type) -> dict[str, str]:
    """Map each attribute of *cls* that is on the wire to its wire name, in order."""
    return {
        field.name: camel(field.name) for field in attrs.fields(cls) if LOCAL not in field.metadata
    }


def _as_is(value: Any, _: Any) -> Any:
    # What a store gives back has JSON types already; it is not coerced.
    return value


def _overrides(cls: type) -> dict[str, Any]:
    from cattrs.gen import override  # noqa: PLC0415 - as in _make

    made = {}
    for field in attrs.fields(cls):
        if LOCAL in field.metadata:
            made[field.name] = override(omit=True)
        else:
            made[field.name] = override(
                rename=camel(field.name), struct_hook=_as_is, unstruct_hook=lambda v: v
            )
    return made


def _make(cls: type) -> tuple[Callable[[Any, Any], Any], Callable[[Any], dict[str, Any]]]:
    # Imported here: a program that only asks the taxonomy need not wait for it.
    import cattrs  # noqa: PLC0415

    from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn  # noqa: PLC0415

    converter = cattrs.Converter(detailed_validation=False)
    overrides = _overrides(cls)
    structure_fn: Callable[[Any, Any], Any] = make_dict_structure_fn(
        cls, converter, _cattrs_detailed_validation=False, **overrides
    )
    return structure_fn, make_dict_unstructure_fn(cls, converter, **overrides)


def structure(cls: type[T], value: Mapping[str, Any]) -> T:
    """
    Build a model from its wire form. Unknown fields are left aside.

    The result shares lists and objects with *value*.
    """
    functions = _functions.get(cls)
    if functions is None:
        functions = _functions[cls] = _make(cls)
    result: T = functions[0](value, cls)
    return result


def unstructure(model: Any) -> dict[str, Any]:
    """Give the wire form of a model, sharing its lists and objects."""
    cls = type(model)
    functions = _functions.get(cls)
    if functions is None:
        functions = _functions[cls] = _make(cls)
    return functions[1](model)
