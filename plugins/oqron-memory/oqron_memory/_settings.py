"""What can be set."""

from __future__ import annotations

from typing import Any

import attrs

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import Clock
from oqron_memory._store import MemoryStore


__all__ = ["MemorySettings"]


def _a_store(instance: Any, attribute: Any, value: object) -> None:
    del instance, attribute
    if value is not None and not isinstance(value, MemoryStore):
        reason = f"must be a MemoryStore made in code, not {type(value).__name__}"
        raise InvalidValueError("memory.store", reason)


def _a_clock(instance: Any, attribute: Any, value: object) -> None:
    del instance, attribute
    if value is not None and not (
        callable(getattr(value, "now", None)) and callable(getattr(value, "sleep", None))
    ):
        reason = f"must be a Clock made in code, not {type(value).__name__}"
        raise InvalidValueError("memory.clock", reason)


def _a_size(instance: Any, attribute: Any, value: object) -> None:
    del instance, attribute
    if value is not None and (type(value) is not int or value < 1):
        reason = f"must be an int of at least 1, not {value!r}"
        raise InvalidValueError("memory.max_bytes", reason)


@attrs.frozen(kw_only=True)
class MemorySettings:
    """
    The section ``[memory]``.

    Attributes:
        store: A ready store that several storages share; only from code. None
            for a fresh one, which is gone when the storage is closed.
        clock: What judges every expiry; only from code. None for the time of day.
        max_bytes: The limit of what is stored, encoded; None for no limit.

    Raises:
        InvalidValueError: A value is not legal, or a clock or limit is given for
            a store that has its own.
    """

    store: MemoryStore | None = attrs.field(default=None, validator=_a_store)
    clock: Clock | None = attrs.field(default=None, validator=_a_clock)
    max_bytes: int | None = attrs.field(default=None, validator=_a_size)

    def __attrs_post_init__(self) -> None:
        if self.store is not None and (self.clock, self.max_bytes) != (None, None):
            reason = "has a clock and a limit of its own; set them where it is made"
            raise InvalidValueError("memory.store", reason)
