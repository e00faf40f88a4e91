"""The settings themselves, their defaults and their limits."""

from __future__ import annotations

import types

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import attrs

from oqron_core._codec import DEFAULT_MAX_VALUE_BYTES
from oqron_core._names import check_name
from oqron_core.config._leaves import Section
from oqron_core.exceptions import ConfigError
from oqron_core.protocol.options import (
    MaintenanceSettings,
    Retention,
    RunSettings,
    within,
)


__all__ = [
    "MODES",
    "MaintenanceSettings",
    "Mode",
    "Retention",
    "RunSettings",
    "Settings",
    "contradiction",
]

_DEFAULT: Final = "default"


class Mode(StrEnum):
    """A named pair of backends."""

    MEMORY = "memory"
    """One in-process backend serves both planes."""
    REDIS = "redis"
    """Redis serves both."""
    REDIS_POSTGRES = "redis-postgres"
    """Redis is hot, Postgres is durable."""
    SQLITE = "sqlite"
    """SQLite serves both, in a file: no server, several processes of one machine."""

    @property
    def hot(self) -> str:
        """The backend of the hot plane."""
        return "redis" if self is Mode.REDIS_POSTGRES else self.value

    @property
    def durable(self) -> str:
        """The backend of the durable plane."""
        return "postgres" if self is Mode.REDIS_POSTGRES else self.value


MODES: Final = types.MappingProxyType({(mode.hot, mode.durable): mode for mode in Mode})


def _name(_instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    check_name(attribute.name, value)


def _mode(value: Mode | str | None) -> Mode | None:
    return None if value is None else Mode(value)


@attrs.frozen(kw_only=True)
class Settings:
    """
    What a storage is opened with. `load_settings` makes it from all sources.

    *mode* stands for *hot* and *durable*; where only these are given, *mode* is the
    one that names the pair, or None.

    Attributes:
        project: The project of the scope.
        environment: The environment of the scope.
        mode: The named pair of backends, or None for another pair.
        hot: The backend of the hot plane.
        durable: The backend of the durable plane.
        start_degraded: Whether to open although the hot plane does not answer.
        max_value_bytes: The limit of one encoded top-level field of a record.
        close_timeout: How long closing may take to write what is buffered, in
            seconds.
        retention: How long what has ended is kept.
        runs: How run history is written.
        maintenance: How the leader looks after the scope.
        sections: The settings of backends by name, as they were written.
        sources: Where each setting came from, by its path; a setting that is not
            there has its default.

    Raises:
        ConfigError: *mode* contradicts *hot* or *durable*.
        InvalidValueError: A value is out of range.
    """

    project: str = attrs.field(default=_DEFAULT, validator=_name)
    environment: str = attrs.field(default=_DEFAULT, validator=_name)
    mode: Mode | None = attrs.field(default=None, converter=_mode)
    hot: str = ""
    durable: str = ""
    start_degraded: bool = False
    max_value_bytes: int = attrs.field(
        default=DEFAULT_MAX_VALUE_BYTES, validator=within(1024, 2**30, "bytes")
    )
    close_timeout: float = attrs.field(default=10.0, validator=within(0, 3600, "seconds"))
    retention: Retention = attrs.field(factory=Retention)
    runs: RunSettings = attrs.field(factory=RunSettings)
    maintenance: MaintenanceSettings = attrs.field(factory=MaintenanceSettings)
    # These two are made by loading; no source can set them.
    sections: Mapping[str, Mapping[str, Any]] = attrs.field(
        factory=dict,
        repr=lambda sections: f"<{', '.join(sections) or 'none'}>",
        metadata={"setting": False},
    )
    sources: Mapping[str, str] = attrs.field(
        factory=dict, repr=False, eq=False, metadata={"setting": False}
    )

    def __attrs_post_init__(self) -> None:
        chosen = self.mode or Mode.MEMORY
        hot = self.hot or chosen.hot
        durable = self.durable or chosen.durable
        if self.mode is not None and (hot, durable) != (chosen.hot, chosen.durable):
            raise ConfigError(contradiction(chosen, hot, durable, "argument"))
        # A frozen class; these three are one fact said in two ways.
        object.__setattr__(self, "hot", hot)
        object.__setattr__(self, "durable", durable)
        object.__setattr__(self, "mode", MODES.get((hot, durable)))

    def section_for(self, backend: str) -> Mapping[str, Any]:
        """Give the section of a backend; empty where nothing was written."""
        return self.sections.get(backend, Section())


def contradiction(mode: Mode, hot: str, durable: str, source: str) -> str:
    return (
        f'mode: "{mode}" means hot = "{mode.hot}" and durable = "{mode.durable}", but '
        f'hot = "{hot}" and durable = "{durable}" are set too ({source}); leave one of '
        "the two out"
    )
