"""
Cron text, read in a time zone. Needs the extra ``cron``.

Five fields (minute, hour, day of month, month, day of week) as Debian's cron reads
them: names of months and days, lists, ranges, steps, ``L`` and ``LW`` for the last
day and weekday of a month, ``MON#2`` and ``FRIL`` for the second Monday and the
last Friday; and ``@hourly @daily @weekly @monthly @yearly``.

Where clocks change, the rules are Debian's:

* A text whose minute and hour both name times (``30 2 * * *``) runs once per day.
  A time that a change to summer time leaves out runs at the first instant after
  the gap; a time that comes twice in autumn runs the first time only.
* A text whose minute or hour begins with a star (``30 * * * *``) follows the clock
  on the wall as it goes: through an hour that comes twice it runs twice, and in an
  hour that is left out it does not run.
"""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from oqron_core.exceptions import InvalidValueError


try:
    from cronsim import CronSim, CronSimError
except ImportError as _error:
    raise ImportError(
        "cron text needs the extra of that name: pip install 'oqron-core[cron]'"
    ) from _error


__all__ = ["CronSpec"]

_FIELDS: Final = 5
_MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
# A night on which clocks go back may bring a minute again for some hours.
_REPEATS: Final = 3000


class CronSpec:
    """
    When a cron text runs.

    The zone is stored by its name, and an instant is worked out when it is asked
    for: a change of the zone's rules takes effect with the next call.

    Args:
        text: Five fields, or a macro such as ``@daily``.
        zone: The name of a time zone; None for UTC.

    Raises:
        InvalidValueError: The text cannot be read, or there is no such zone.

    Attributes:
        text: As given.
        zone: As given.
        never: Whether the text names no day that exists, such as February 30.
    """

    __slots__ = ("_expression", "_zone", "never", "text", "zone")

    def __init__(self, text: str, zone: str | None = None) -> None:
        if type(text) is not str:
            raise InvalidValueError("cron", f"must be a str, not {type(text).__name__}")
        self.text: str = text
        self.zone: str | None = zone
        self._zone = _zone(zone)
        expression = text.strip()
        self._expression = _MACROS.get(expression.lower(), expression)
        self.never: bool = _never(text, self._expression)

    def next(self, after: int) -> int | None:
        """
        Give the first slot after an instant.

        Args:
            after: Milliseconds since the epoch; the answer is always larger.

        Returns:
            Milliseconds since the epoch; None where nothing comes within fifty
            years, also for a text that never runs.
        """
        if self.never:
            return None
        try:
            start = datetime.fromtimestamp(after // 1000, UTC).astimezone(self._zone)
            slots = CronSim(self._expression, start)
            for _ in range(_REPEATS):
                slot = int(next(slots).timestamp()) * 1000
                # Within an hour that comes twice the library begins with the first.
                if slot > after:
                    return slot
        except (StopIteration, OverflowError, ValueError, OSError):
            return None
        return None

    def __repr__(self) -> str:
        return f"CronSpec({self.text!r}, {self.zone!r})"


def _zone(name: str | None) -> tzinfo:
    if name is None or name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, TypeError, OSError):
        reason = f"{name!r} is no name of a time zone, such as Europe/Berlin"
        raise InvalidValueError("zone", reason) from None


def _never(text: str, expression: str) -> bool:
    """Say whether a text that cannot be scheduled is legal all the same."""
    fields = expression.split()
    if len(fields) != _FIELDS:
        reason = (
            f"{text!r} has {len(fields)} fields; there are {_FIELDS}: minute hour day month weekday"
        )
        raise InvalidValueError("cron", reason)
    start = datetime(2000, 1, 1, tzinfo=UTC)
    try:
        CronSim(expression, start)
    except CronSimError as error:
        # The library refuses days that no such month has. In a month of any name
        # the day is legal, so the text is: it only never runs.
        minute, hour, day, _, weekday = fields
        try:
            CronSim(f"{minute} {hour} {day} * {weekday}", start)
            CronSim(f"0 0 1 {fields[3]} *", start)
        except (CronSimError, ValueError):
            raise InvalidValueError("cron", f"{text!r} cannot be read: {error}") from None
        return True
    except (ValueError, AssertionError) as error:
        raise InvalidValueError("cron", f"{text!r} cannot be read: {error}") from None
    return False
