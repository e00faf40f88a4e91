"""
The hot fields of runs and messages, checked before they are written.

Dashboards cast them and indexes hold them. A text in a timestamp would break the
queries of everybody, and a status of a megabyte would not fit into an index.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import Json


__all__ = ["INSTANTS", "LABELS", "check_append", "check_hot"]

INSTANTS: Final = frozenset({"startedAt", "endedAt", "durationMs", "publishedAt"})
"""Fields that are cast to a number."""
LABELS: Final = frozenset({"status", "name", "module"})
"""Fields that are indexed as text."""
MAX_LABEL_BYTES: Final = 512
_MAX_JSON_BYTES: Final = 256


def check_hot(fields: Mapping[str, Any], path: str) -> None:
    """
    Refuse what an index or a cast of a dashboard cannot take.

    Args:
        fields: What `oqron_core.planes.encode_fields` made.
        path: What to call the value in an error.

    Raises:
        InvalidValueError: Names the field.
    """
    for name in INSTANTS & fields.keys():
        field = fields[name]
        if field is not None and type(field) not in {int, float}:
            _check_number(field, f"{path}.{name}")
    for name in LABELS & fields.keys():
        _check_label(fields[name], f"{path}.{name}")


def _check_number(field: Any, path: str) -> None:
    if type(field) is Json:
        value = field.load()
        if value is None or type(value) in {int, float}:
            return
    reason = "must be a number or null in a run or a message, as queries cast it"
    raise InvalidValueError(path, reason)


def _check_label(field: Any, path: str) -> None:
    if type(field) is str:
        size = len(field) if field.isascii() else len(field.encode())
        limit = MAX_LABEL_BYTES
    elif type(field) is Json:
        # The server's text of it has spaces that ours has not.
        size, limit = len(field.data), _MAX_JSON_BYTES
    else:
        return
    if size > limit:
        reason = f"has {size} bytes; a run's hot field is indexed and takes {limit}"
        raise InvalidValueError(path, reason)


def check_append(names: Mapping[str, Any], path: str) -> None:
    """Refuse to make a list of a hot field."""
    for name in (INSTANTS | LABELS) & names.keys():
        reason = "is a hot field of runs and messages, which is never a list"
        raise InvalidValueError(f"{path}.{name}", reason)
