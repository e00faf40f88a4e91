"""The settings of the backend: the section ``[sqlite]``."""

from __future__ import annotations

import math

from pathlib import Path
from typing import Any, Final

import attrs

from oqron_core.exceptions import InvalidValueError


__all__ = ["SYNCHRONOUS", "SqliteSettings"]

SYNCHRONOUS: Final = ("normal", "full")


def _path(_: Any, attribute: Any, value: object) -> None:
    where = f"sqlite.{attribute.name}"
    if type(value) is not str or not value or "\0" in value:
        raise InvalidValueError(where, "must be the path of a file")
    if value.startswith((":memory:", "file:")):
        reason = (
            "must be a plain path: threads and processes share the file, so it can be "
            'neither in memory nor a URI; for a store in memory set hot = "memory"'
        )
        raise InvalidValueError(where, reason)


def _optional_path(instance: Any, attribute: Any, value: object) -> None:
    if value is not None:
        _path(instance, attribute, value)


def _synchronous(_: Any, attribute: Any, value: object) -> None:
    if value not in SYNCHRONOUS:
        reason = f"must be one of {', '.join(SYNCHRONOUS)}, not {value!r}"
        raise InvalidValueError(f"sqlite.{attribute.name}", reason)


def _seconds(least: float, most: float) -> Any:
    def check(_: Any, attribute: Any, value: object) -> None:
        where = f"sqlite.{attribute.name}"
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise InvalidValueError(where, f"must be seconds, not {value!r}")
        if not math.isfinite(value) or not least <= value <= most:
            reason = f"must be from {least} to {most} seconds, not {value!r}"
            raise InvalidValueError(where, reason)

    return check


@attrs.frozen(kw_only=True)
class SqliteSettings:
    """
    Where the file is and how to use it.

    Attributes:
        path: The file, made where it is not there; its folder must be. It must lie
            on a disk of this machine: SQLite's locks and shared memory do not work
            over a network. Relative to the working directory.
        hot_path: Another file for the hot plane; None for the same one. Two files
            have two locks, so claims and history do not wait for each other.
        synchronous: ``normal``: what was acknowledged survives the end of every
            process, and a power cut may take the last moments, never the file.
            ``full``: it survives a power cut too, at the price of one flush to the
            disk for each group of writes.
        busy_timeout: Seconds that a write waits for other processes to finish theirs.
        poll_interval: Seconds between two looks for what other processes have done,
            where somebody waits; the first looks come faster.
    """

    path: str = attrs.field(default="oqron.db", validator=_path)
    hot_path: str | None = attrs.field(default=None, validator=_optional_path)
    synchronous: str = attrs.field(default="normal", validator=_synchronous)
    busy_timeout: float = attrs.field(default=10.0, validator=_seconds(0.1, 600.0))
    poll_interval: float = attrs.field(default=0.05, validator=_seconds(0.001, 5.0))

    def __attrs_post_init__(self) -> None:
        if self.hot_path is not None and Path(self.hot_path) == Path(self.path):
            reason = "is the same file as path; leave it out to keep both planes in one"
            raise InvalidValueError("sqlite.hot_path", reason)
