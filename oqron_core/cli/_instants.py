"""Instants as people write them."""

from __future__ import annotations

import contextlib
import re

from datetime import UTC, datetime
from typing import Final

import click

from oqron_core._clock import Clock, SystemClock
from oqron_core.cli._durations import duration


__all__ = ["parse_since"]

_INSTANT: Final = 10**11
"""From here on a number is an instant, of 1973 or later, and no age: 3,000 years."""


def parse_since(text: str, clock: Clock | None = None) -> int:
    """
    Read an instant: an age, an ISO 8601 time, or milliseconds since the epoch.

    Args:
        text: What was given. An age is a duration, as ``15m``, or seconds; a time
            without a zone is UTC.
        clock: What an age counts back from; None for the time of day.

    Returns:
        Milliseconds since the epoch.

    Raises:
        click.BadParameter: None of these.
    """
    if re.fullmatch(r"\d{1,18}", text) and int(text) >= _INSTANT:
        return int(text)
    with contextlib.suppress(click.BadParameter):
        return (clock or SystemClock()).now() - round(duration(text) * 1000)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        msg = f"{text!r} is none of 15m, 2024-05-01T12:00 and milliseconds since the epoch"
        raise click.BadParameter(msg, param_hint="--since") from None
    zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(zoned.timestamp() * 1000)
