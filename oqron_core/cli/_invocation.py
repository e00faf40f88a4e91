"""What every command is told, and how it opens the storage."""

from __future__ import annotations

import asyncio
import contextlib

from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import attrs
import click

from oqron_core._plugins import Plugins, discover
from oqron_core.cli._output import note
from oqron_core.config import Mode, Settings, load_settings
from oqron_core.planes.capabilities import Durability
from oqron_core.storage import Storage, open_storage


__all__ = ["Invocation", "common_options", "json_option", "opened", "run_async"]

ResultT = TypeVar("ResultT")
CommandT = TypeVar("CommandT", bound=Callable[..., Any])


@attrs.define
class Invocation:
    """
    The options that every command takes, before or after its name.

    Attributes:
        mode: The mode, or None for what the settings say.
        project: The project, likewise.
        environment: The environment, likewise.
        config: The one file to read settings from, or None for the nearest.
        debug: Whether a traceback and the log are shown.
    """

    mode: str | None = None
    project: str | None = None
    environment: str | None = None
    config: Path | None = None
    debug: bool = False

    def settings(self, plugins: Plugins, *, project: str | None = None) -> Settings:
        """
        Load the settings that these options and all other sources give.

        Args:
            plugins: Where backends are looked up.
            project: A project that wins over all of them.

        Raises:
            ConfigError: Everything that is wrong, at once.
        """
        return load_settings(
            self.config,
            plugins=plugins,
            mode=self.mode,
            project=self.project if project is None else project,
            environment=self.environment,
        )


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    # The same option may stand before the command's name and after it; what is
    # given last wins, and what is not given changes nothing.
    invocation = context.ensure_object(Invocation)
    if parameter.name is not None and value is not None:
        setattr(invocation, parameter.name, value)


_COMMON = (
    click.option(
        "--mode",
        type=click.Choice([mode.value for mode in Mode]),
        callback=_keep,
        expose_value=False,
        help="The pair of backends.",
    ),
    click.option("--project", callback=_keep, expose_value=False, help="The project."),
    click.option("--environment", callback=_keep, expose_value=False, help="The environment."),
    click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        callback=_keep,
        expose_value=False,
        help="Read settings from this file only.",
    ),
    click.option(
        "--debug",
        is_flag=True,
        flag_value=True,
        default=None,
        callback=_keep,
        expose_value=False,
        help="Show the log, and the traceback of an error.",
    ),
)


def common_options(command: CommandT) -> CommandT:
    """Add the options that every command takes."""
    for option in reversed(_COMMON):
        command = option(command)
    return command


def json_option(command: CommandT) -> CommandT:
    """Add ``--json``: one JSON document on standard output, and nothing else."""
    option = click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON document and nothing else."
    )
    return option(command)


def page_options(command: CommandT) -> CommandT:
    """Add ``--limit`` and ``--after``, for a command that shows one page of many."""
    after = click.option("--after", help="The cursor that the page before ended with.")
    limit = click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
    return limit(after(command))


def run_async(coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run *coroutine* to its end; an interrupt cancels it first."""
    return asyncio.run(coroutine)


@contextlib.asynccontextmanager
async def opened(invocation: Invocation) -> AsyncIterator[Storage]:
    """
    Open the storage that the options and settings name.

    Says so where the durable plane lives in this process alone: it was empty at
    the start, and whatever the command did is gone at its end.
    """
    plugins = discover(only=())
    settings = invocation.settings(plugins)
    async with open_storage(settings, plugins=plugins) as storage:
        if storage.durable.capabilities.durability is Durability.PROCESS:
            note(
                f"the durable plane ({settings.durable}) lives in this process only: it "
                "starts empty and is gone at the end; name a server with "
                "--mode redis-postgres or OQRON_MODE"
            )
        yield storage
    if storage.unwritten:
        note(f"{storage.unwritten} finished runs could not be written to history")
