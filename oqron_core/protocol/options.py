"""What the protocol may be told: how long, how often, how much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import attrs

from oqron_core.exceptions import InvalidValueError


__all__ = ["MaintenanceSettings", "Options", "Retention", "RunSettings", "within"]

_YEARS: Final = 100 * 366 * 86400.0


def within(low: float, high: float, unit: str) -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    """Make a validator that takes a number from *low* to *high*, or None."""

    def check(_instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value is None:
            return
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not low <= value <= high:
            reason = f"must be from {low:.15g} to {high:.15g} {unit}, not {value!r}"
            raise InvalidValueError(attribute.name, reason)

    return check


@attrs.frozen(kw_only=True)
class Retention:
    """
    How long what has ended is kept, in seconds. 0 is at once, None is for ever.

    Attributes:
        completed_for: Completed jobs; their runs keep the input.
        cancelled_for: Cancelled jobs.
        dead_letters_for: Dead letters.
        runs_for: Runs that have ended.
        messages_for: Messages of topics, from when they are published. What a group
            has not worked on yet is delivered all the same.
    """

    completed_for: float | None = attrs.field(
        default=86400.0, validator=within(0, _YEARS, "seconds")
    )
    cancelled_for: float | None = attrs.field(
        default=7 * 86400.0, validator=within(0, _YEARS, "seconds")
    )
    dead_letters_for: float | None = attrs.field(
        default=90 * 86400.0, validator=within(0, _YEARS, "seconds")
    )
    runs_for: float | None = attrs.field(
        default=30 * 86400.0, validator=within(0, _YEARS, "seconds")
    )
    messages_for: float | None = attrs.field(
        default=7 * 86400.0, validator=within(0, _YEARS, "seconds")
    )


@attrs.frozen(kw_only=True)
class RunSettings:
    """
    How run history is written.

    Attributes:
        write_every: How often progress goes to the hot overlay, in seconds.
        durable_after: After how many seconds a run that goes on appears in the
            durable plane as running.
        buffer: How many changes may wait to be written; beyond it the oldest
            progress is dropped, never a terminal state.
        max_logs: How many log lines a run keeps; what is cut is marked.
        max_log_chars: How long one log line may be, in characters.
        max_timeline: How many timeline entries a run keeps.
        stale_after: After how many silent seconds a live run counts as lost.
    """

    write_every: float = attrs.field(default=0.1, validator=within(0.001, 3600, "seconds"))
    durable_after: float = attrs.field(default=0.5, validator=within(0, 3600, "seconds"))
    buffer: int = attrs.field(default=100_000, validator=within(1, 100_000_000, "changes"))
    max_logs: int = attrs.field(default=1000, validator=within(1, 1_000_000, "lines"))
    max_log_chars: int = attrs.field(default=10_000, validator=within(1, 10_000_000, "characters"))
    max_timeline: int = attrs.field(default=100, validator=within(2, 1_000_000, "entries"))
    stale_after: float = attrs.field(default=60.0, validator=within(1, _YEARS, "seconds"))


@attrs.frozen(kw_only=True)
class MaintenanceSettings:
    """
    How the leader looks after a scope.

    Attributes:
        every: How often, in seconds.
        batch: How many records one step touches.
        leader_for: The lease of leadership, in seconds. It is renewed at a third
            of it, so a leader that dies is replaced within this time.
    """

    every: float = attrs.field(default=5.0, validator=within(0.01, 86400, "seconds"))
    batch: int = attrs.field(default=1000, validator=within(1, 10_000, "records"))
    leader_for: float = attrs.field(default=15.0, validator=within(0.05, 86400, "seconds"))


class Options(Protocol):
    """What of the settings of a storage the protocol reads."""

    @property
    def max_value_bytes(self) -> int:
        """The limit of one encoded top-level field of a record."""
        ...

    @property
    def retention(self) -> Retention:
        """How long what has ended is kept."""
        ...

    @property
    def runs(self) -> RunSettings:
        """How run history is written."""
        ...

    @property
    def maintenance(self) -> MaintenanceSettings:
        """How the leader looks after the scope."""
        ...
