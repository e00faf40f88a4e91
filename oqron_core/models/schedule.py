"""A pointer into time: what is due next, and how it is caught up."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import attrs


__all__ = ["CatchUp", "Schedule"]


class CatchUp(StrEnum):
    """What becomes of slots that nobody ran in time."""

    SKIP = "skip"
    """None of them runs."""
    ONE = "one"
    """One run stands for all of them."""
    ALL = "all"
    """Each of them runs, in order; of very many the last ones."""


@attrs.frozen
class Schedule:
    """
    A cron or a schedule: its definition, and the pointer to its next slot.

    A slot is an instant at which it is to run. On the wire the attributes are in
    ``camelCase``; instants are milliseconds since the epoch.

    Attributes:
        kind: ``cron`` or ``schedule``; also the namespace.
        name: Unique in its kind.
        next_run_at: The pointer: the next slot. None where it has ended.
        spec: What was defined, such as ``{"cron": "0 3 * * *"}``.
        zone: The name of the time zone that the spec is read in, such as
            ``Europe/Berlin``; None for UTC.
        catch_up: See `CatchUp`.
        max_catch_up: How many missed slots ``all`` runs at most.
        paused: Whether it is never due.
        version: Counts the changes of the definition, from 1.
        last_run_at: The last slot that ran: its job was made, or its mover ran it itself.
        run_count: How many slots ran.
        skip_before: Slots before this instant do not run, whatever *catch_up*
            says: they came while it was paused to skip them.
        created_at: When it was defined first.
        updated_at: When its definition changed last.
    """

    kind: str
    name: str
    next_run_at: int | None = None
    spec: dict[str, Any] = attrs.field(factory=dict)
    zone: str | None = attrs.field(default=None, kw_only=True)
    catch_up: str = attrs.field(default="one", kw_only=True)
    max_catch_up: int = attrs.field(default=100, kw_only=True)
    paused: bool = attrs.field(default=False, kw_only=True)
    version: int = attrs.field(default=1, kw_only=True)
    last_run_at: int | None = attrs.field(default=None, kw_only=True)
    run_count: int = attrs.field(default=0, kw_only=True)
    skip_before: int | None = attrs.field(default=None, kw_only=True)
    created_at: int = attrs.field(default=0, kw_only=True)
    updated_at: int = attrs.field(default=0, kw_only=True)
