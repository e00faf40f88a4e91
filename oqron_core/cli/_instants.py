"""Instants as people write them."""

from __future__ import annotations

import re

from datetime import UTC, datetime
from typing import Final

import click

from oqron_core._clock import Clock, SystemClock


__all__ = ["parse_since"]

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_since(text: str, clock: Clock | None = None) -> int:
    """
    Read an instant: ``15m`` ago, an ISO 8601 time, or milliseconds since the epoch.

    Args:
        text: What was given; a time without a zone is UTC.
        clock: What ``15m`` counts back from; None for the time of day.

    Returns:
        Milliseconds since the epoch.

    Raises:
        click.BadParameter: None of these.
    """
    ago = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if ago:
        now = (clock or SystemClock()).now()
        return now - int(ago[1]) * _UNITS[ago[2]] * 1000
    if re.fullmatch(r"\d{1,18}", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        msg = f"{text!r} is none of 15m, 2024-05-01T12:00 and milliseconds since the epoch"
        raise click.BadParameter(msg, param_hint="--since") from None
    zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(zoned.timestamp() * 1000)
