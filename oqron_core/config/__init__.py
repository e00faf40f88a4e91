"""
Settings: where they come from, and strict, complete errors about them.

Arguments > ``OQRON_*`` (nesting ``__``) > the nearest ``oqron.toml`` >
``[tool.oqron]`` of the nearest ``pyproject.toml`` that has it > defaults. Every
setting is taken from the highest source that names it; what lower sources say is
checked all the same. All problems are reported at once, each with the path of
the setting and its source. No message shows a secret.

TOML is taken as it is typed: ``"30"`` is no number, ``true`` is no number, ``30``
is a float where a float is due. Text from the environment is parsed by the type
of the setting. ``"none"`` says None for a number that may be None.
"""

from __future__ import annotations

from oqron_core.config._describe import describe
from oqron_core.config._leaves import Section
from oqron_core.config._load import load_settings, structure_section
from oqron_core.config._settings import (
    MaintenanceSettings,
    Mode,
    Retention,
    RunSettings,
    Settings,
)


__all__ = [
    "MaintenanceSettings",
    "Mode",
    "Retention",
    "RunSettings",
    "Section",
    "Settings",
    "describe",
    "load_settings",
    "structure_section",
]
