"""The one place that knows how attributes are called on the wire."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import attrs
import cattrs

from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override


__all__ = ["LOCAL", "camel", "structure", "unstructure", "wire_names"]

T = TypeVar("T")

LOCAL: Final = "oqron_local"
"""Metadata key of an attribute that is not on the wire."""

_converter: Final = cattrs.Converter(detailed_validation=False, omit_if_default=False)
_structure_fns: dict[type, Callable[[Any, Any], Any]] = {}
_unstructure_fns: dict[type, Callable[[Any], dict[str, Any]]] = {}


def camel(name: str) -> str:
    """Turn ``attempt_made`` into ``attemptMade``."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def wire_names(cls: type) -> dict[str, str]:
    """Map each attribute of *cls* that is on the wire to its wire name, in order."""
    return {
        field.name: camel(field.name)
        for field in attrs.fields(cls)
        if LOCAL not in field.metadata
    }


def _as_is(value: Any, _: Any) -> Any:
    # What a store gives back has JSON types already; it is not coerced.
    return value


def _overrides(cls: type) -> dict[str, Any]:
    made = {}
    for field in attrs.fields(cls):
        if LOCAL in field.metadata:
            made[field.name] = override(omit=True)
        else:
            made[field.name] = override(
                rename=camel(field.name), struct_hook=_as_is, unstruct_hook=lambda v: v
            )
    return made


def structure(cls: type[T], value: Mapping[str, Any]) -> T:
    """
    Build a model from its wire form. Unknown fields are left aside.

    The result shares lists and objects with *value*.
    """
    function = _structure_fns.get(cls)
    if function is None:
        function = make_dict_structure_fn(
            cls, _converter, _cattrs_detailed_validation=False, **_overrides(cls)
        )
        _structure_fns[cls] = function
    result: T = function(value, cls)
    return result


def unstructure(model: Any) -> dict[str, Any]:
    """Give the wire form of a model, sharing its lists and objects."""
    cls = type(model)
    function = _unstructure_fns.get(cls)
    if function is None:
        function = make_dict_unstructure_fn(cls, _converter, **_overrides(cls))
        _unstructure_fns[cls] = function
    return function(model)
