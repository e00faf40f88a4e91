"""Durations as people write them."""

from __future__ import annotations

import re

from typing import Final

import click


__all__ = ["duration"]

_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def duration(text: str) -> float:
    """
    Read a duration: ``90`` and ``0.5`` are seconds, or with a unit ``15m``, ``12h``, ``30d``.

    Args:
        text: What was given.

    Returns:
        Seconds.

    Raises:
        click.BadParameter: It is none.
    """
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,9})?)([smhd]?)", str(text))
    if found is None:
        msg = f"{text!r} is no duration such as 90, 0.5, 15m, 12h and 30d"
        raise click.BadParameter(msg)
    return float(found[1]) * _UNITS[found[2]]
