"""Rows of the durable plane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oqron_memory._timed import Timed


__all__ = ["Row"]


class Row(Timed):
    """
    A stored record; ``at`` is its expiry.

    Attributes:
        id: Unique in its namespace.
        fields: Encoded; never changed in place, so that what was handed out
            shares it without a copy.
        inserted_at: When it was inserted.
        size: Encoded bytes that are accounted for.
    """

    __slots__ = ("fields", "id", "inserted_at", "size")

    def __init__(self, name: str, fields: Mapping[str, Any], inserted_at: int) -> None:
        self.at = None
        self.ticket = None
        self.id = name
        self.fields = fields
        self.inserted_at = inserted_at
        self.size = 0
