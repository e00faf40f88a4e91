"""
The numbers of runs and messages, checked before they are written.

Dashboards sort by them and indexes hold them as they are, so a text in a timestamp
would stand in the wrong place of everybody's list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from oqron_core.exceptions import InvalidValueError


__all__ = ["INSTANTS", "check_append", "check_instants"]

INSTANTS: Final = frozenset({"startedAt", "endedAt", "durationMs", "publishedAt"})
_NUMBERS: Final = frozenset({int, float, type(None)})


def check_instants(fields: Mapping[str, Any], path: str) -> None:
    """
    Refuse what is no number.

    Args:
        fields: What `oqron_core.planes.encode_fields` made.
        path: What to call the value in an error.

    Raises:
        InvalidValueError: Names the field.
    """
    for name in INSTANTS & fields.keys():
        if type(fields[name]) not in _NUMBERS:
            reason = "must be a number or null in a run or a message, as queries sort by it"
            raise InvalidValueError(f"{path}.{name}", reason)


def check_append(names: Iterable[str], path: str) -> None:
    """Refuse to make a list of one of them."""
    for name in INSTANTS & {*names}:
        reason = "is a number in runs and messages, never a list"
        raise InvalidValueError(f"{path}.{name}", reason)
