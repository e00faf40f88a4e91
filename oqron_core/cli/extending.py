"""
What a plugin builds its own commands with.

A distribution adds commands to ``oqron`` by entry points in the group
``oqron.commands``: the name is the command's, the value a click command or group.
It is imported when it is called or when help lists it, and what fails then is told
in one line. Names of core's own commands cannot be taken.
"""

from __future__ import annotations

from typing import Any

from oqron_core._plugins import discover
from oqron_core.cli._invocation import (
    Invocation,
    common_options,
    json_option,
    opened,
    run_async,
)
from oqron_core.cli._output import Column, bar, counted, note, print_json, print_line, print_table
from oqron_core.config import Settings, structure_section


__all__ = [
    "Column",
    "Invocation",
    "backend_settings",
    "bar",
    "common_options",
    "core_settings",
    "counted",
    "json_option",
    "note",
    "opened",
    "print_json",
    "print_line",
    "print_table",
    "run_async",
]


def backend_settings(invocation: Invocation, backend: str) -> Any:
    """
    Give the settings object of a backend, as the options and all sources say.

    Args:
        invocation: What the command was told.
        backend: The backend's name.

    Raises:
        ConfigError: Something in its section is wrong.
        PluginError: The backend cannot be used.
    """
    plugins = discover(only=())
    settings = invocation.settings(plugins)
    found = plugins.backend(backend)
    if found is None:
        plugins.durable(backend)  # says why
    assert found is not None  # noqa: S101 - the line before has raised otherwise
    return structure_section(found, settings.section_for(backend), backend)


def core_settings(invocation: Invocation) -> Settings:
    """
    Give the settings that are no backend's, as the options and all sources say.

    Args:
        invocation: What the command was told.

    Raises:
        ConfigError: Something is wrong.
    """
    return invocation.settings(discover(only=()))
