"""
What every backend refuses in the same words, before any write.

Authors call these at the top of their methods; each gives back the value in the
unit that stores use.
"""

from __future__ import annotations

import math

from collections.abc import Iterable, Sequence
from typing import Final

from oqron_core._codec import shown
from oqron_core._names import check_key, check_name, check_namespace
from oqron_core.exceptions import InvalidValueError
from oqron_core.planes.values import Entry, Lease, Order


__all__ = [
    "MAX_DURATION",
    "MIN_LEASE_FOR",
    "check_entries",
    "check_instant",
    "check_key",
    "check_keys",
    "check_leases",
    "check_limit",
    "check_name",
    "check_names",
    "check_namespace",
    "check_order",
    "check_priority",
    "delay_ms",
    "lease_ms",
    "seconds",
    "ttl_ms",
]

MIN_LEASE_FOR: Final = 0.05
"""The shortest lease, in seconds."""
MAX_DURATION: Final = 100 * 366 * 86400.0
"""The longest lease, delay or time to live: a hundred years, in seconds."""
_PRIORITY_MIN: Final = -(2**31)
_PRIORITY_MAX: Final = 2**31 - 1
MAX_INSTANT: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""


def seconds(what: str, value: object, *, least: float = 0.0) -> float:
    """
    Give a duration back as finite seconds.

    Raises:
        InvalidValueError: No number, NaN, infinite, below *least*, or over a
            hundred years.
    """
    kind = type(value)
    if kind is not float and kind is not int:
        reason = f"must be a number of seconds, not {shown(value)}"
        raise InvalidValueError(what, reason)
    # NaN is in no range.
    if not least <= value <= MAX_DURATION:  # type: ignore[operator]  # a number, as just tested
        reason = f"must be from {least} to {MAX_DURATION:.0f} seconds, not {shown(value)}"
        raise InvalidValueError(what, reason)
    return float(value)  # type: ignore[arg-type]  # a number, as just tested


def lease_ms(lease_for: object, what: str = "lease_for") -> int:
    """Seconds of a lease, at least 0.05, as whole milliseconds."""
    return round(seconds(what, lease_for, least=MIN_LEASE_FOR) * 1000)


def delay_ms(delay: object, what: str = "delay") -> int:
    """Seconds of a delay, at least 0, as whole milliseconds, rounded up."""
    return math.ceil(seconds(what, delay) * 1000)


def ttl_ms(ttl: object, what: str = "ttl") -> int | None:
    """Seconds to live, at least 0.001, as milliseconds; None stays None."""
    if ttl is None:
        return None
    return max(1, round(seconds(what, ttl, least=0.001) * 1000))


def check_limit(limit: object, what: str = "limit") -> int:
    """Give a count of at least 0 back."""
    if type(limit) is not int or limit < 0:
        raise InvalidValueError(what, f"must be an int of at least 0, not {shown(limit)}")
    return limit


def check_order(order: object) -> Order:
    """Give ``fifo`` or ``lifo`` back."""
    if order == "fifo":
        return "fifo"
    if order == "lifo":
        return "lifo"
    raise InvalidValueError("order", f'must be "fifo" or "lifo", not {shown(order)}')


def check_priority(priority: object, what: str = "priority") -> int:
    """Give a priority back: an int of 32 bits, lower is sooner."""
    if type(priority) is not int or not _PRIORITY_MIN <= priority <= _PRIORITY_MAX:
        reason = f"must be an int from {_PRIORITY_MIN} to {_PRIORITY_MAX}, not {shown(priority)}"
        raise InvalidValueError(what, reason)
    return priority


def check_instant(instant: object, what: str) -> int:
    """Give an instant back: milliseconds since the epoch, up to the year 9999."""
    if type(instant) is not int or not 0 <= instant <= MAX_INSTANT:
        reason = f"must be milliseconds since the epoch as an int, not {shown(instant)}"
        raise InvalidValueError(what, reason)
    return instant


def check_entries(queue: object, entries: Sequence[Entry]) -> None:
    """Refuse a queue or an entry that is not legal."""
    check_name("queue", queue)
    for entry in entries:
        check_name("id", entry.id)
        if entry.priority != 0 or type(entry.priority) is not int:
            check_priority(entry.priority)
        if entry.due_at is not None:
            check_instant(entry.due_at, "due_at")


def check_names(what: str, names: Iterable[object]) -> None:
    """Refuse the first name that is not legal."""
    for name in names:
        check_name(what, name)


def check_keys(keys: Iterable[object]) -> None:
    """Refuse the first key that is not legal."""
    for key in keys:
        check_key(key)


def check_leases(queue: object, leases: Sequence[Lease]) -> None:
    """Refuse leases of another queue."""
    check_name("queue", queue)
    for lease in leases:
        if lease.queue != queue:
            reason = f"is of queue {lease.queue!r}, not of {queue!r}"
            raise InvalidValueError("lease", reason)
