"""The group of all commands, and what becomes of errors."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import logging
import os
import sys

from collections.abc import Iterator
from typing import Any, Final, NoReturn

import click

from oqron_core._plugins import one_line
from oqron_core.cli import (
    cache,
    classify,
    demo,
    dlq,
    doctor,
    jobs,
    limits,
    locks,
    logs,
    maintenance,
    new_plugin,
    plan,
    plugins,
    queues,
    retention,
    runs,
    schedules,
    topics,
)
from oqron_core.cli._invocation import Invocation, common_options
from oqron_core.cli._output import note, plain
from oqron_core.exceptions import ConfigError, InvalidValueError, OqronError, UnavailableError


__all__ = ["DONE", "INTERRUPTED", "PIPE_CLOSED", "TROUBLE", "USAGE", "cli"]

DONE: Final = 0
TROUBLE: Final = 1
"""The store refused, or something is wrong."""
USAGE: Final = 2
"""What was asked cannot be: arguments, settings, values."""
INTERRUPTED: Final = 130
"""Ctrl-C: 128 and the number of the signal, as shells say it."""
PIPE_CLOSED: Final = 141
"""Whoever read the output closed it; 128 and the number of the signal."""


# Newer versions of click raise where older ones print the help themselves.
_NO_ARGUMENTS: Final[Any] = getattr(click.exceptions, "NoArgsIsHelpError", ())


class _PipeClosedError(Exception):
    """Whoever read the output closed it."""


_GROUP: Final = "oqron.commands"
"""The entry points by which plugins add commands."""
_KNOWN: Final = {
    "schema": "oqron-postgres",
    "migrate-v1": "oqron-postgres",
    "worker": "oqron-worker",
    "work": "oqron-worker",
}
"""Which of our distributions brings a command that core does not have."""


def _added() -> dict[str, Any]:
    """Find the commands of plugins, by name; nothing of theirs is imported."""
    found: dict[str, Any] = {}
    for point in importlib.metadata.entry_points(group=_GROUP):
        found.setdefault(point.name, point)
    return found


def _loaded(point: Any) -> click.Command:
    try:
        command = point.load()
    except Exception as error:  # noqa: BLE001 - one broken plugin breaks nobody else's command
        return _broken(point, error)
    if not isinstance(command, click.Command):
        return _broken(point, TypeError(f"{point.value} is no click command"))
    return command


def _broken(point: Any, error: Exception) -> click.Command:
    """Stand in for a command that cannot be loaded, until someone calls it."""
    where = point.dist.name if point.dist is not None else point.value

    def tell(*_args: Any, **_options: Any) -> None:
        msg = f"the command {point.name} of {where} cannot be loaded: {one_line(error)}"
        raise click.ClickException(msg) from error

    return click.Command(
        point.name,
        callback=tell,
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True, "help_option_names": []},
        short_help=f"Cannot be loaded: see `oqron {point.name}`.",
    )


class _Commands(click.Group):
    """A group that turns every error into one line and an exit status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(dict.fromkeys([*super().list_commands(ctx), *sorted(_added())]))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        point = _added().get(cmd_name)
        if point is not None:
            return _loaded(point)
        if cmd_name in _KNOWN:
            msg = f"{cmd_name} comes with {_KNOWN[cmd_name]}: pip install {_KNOWN[cmd_name]}"
            raise click.UsageError(msg, ctx)
        return None

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _telling_of_pipes():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _telling_of_pipes():
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        extra["standalone_mode"] = False
        invocation = extra.setdefault("obj", Invocation())
        _set_up_streams()
        with _logging_to_stderr(invocation):
            try:
                status = super().main(*args, **extra)
            except BaseException as error:  # noqa: BLE001 - every way to end has its status
                status = _end(error, debug=invocation.debug)
        sys.exit(status if isinstance(status, int) else DONE)


@contextlib.contextmanager
def _telling_of_pipes() -> Iterator[None]:
    # click would make an exit of it that cannot be told from any other.
    try:
        yield
    except BrokenPipeError:
        raise _PipeClosedError from None


def _set_up_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        # A name that the locale cannot show must not end the command.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class _Lines(logging.Handler):
    """Shows the log of the storage in lines on standard error."""

    def __init__(self, invocation: Invocation) -> None:
        super().__init__()
        self._invocation = invocation

    def filter(self, record: logging.LogRecord) -> bool:
        # A plugin that cannot be used is told by whoever asked for it.
        return self._invocation.debug or record.name != "oqron.plugins"

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(f"oqron: {record.levelname.lower()}: {plain(record.getMessage())}", err=True)
        if record.exc_info:
            click.echo(logging.Formatter().formatException(record.exc_info), err=True)


@contextlib.contextmanager
def _logging_to_stderr(invocation: Invocation) -> Iterator[None]:
    logger = logging.getLogger("oqron")
    handler = _Lines(invocation)
    logger.addHandler(handler)
    # What a driver logs on its own account is told by us, in our words.
    quiet = logging.NullHandler()
    if not invocation.debug:
        logging.getLogger().addHandler(quiet)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logging.getLogger().removeHandler(quiet)


def _end(error: BaseException, *, debug: bool) -> int:
    """Say what happened, in one line, and give the exit status."""
    while isinstance(error, BaseExceptionGroup):
        # Tasks that failed together: the first one tells what it was.
        error = error.exceptions[0]
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, (_PipeClosedError, BrokenPipeError)):
        _drop_output()
        return PIPE_CLOSED
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else TROUBLE
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        note("interrupted")
        return INTERRUPTED
    if isinstance(error, _NO_ARGUMENTS):
        click.echo(str(error), err=True)
        return USAGE
    if debug:
        logging.getLogger("oqron.cli").error("the command failed", exc_info=error)
    text, status = _told(error)
    note(" ".join(text.split()))
    return status


def _drop_output() -> None:
    # What is still buffered has nowhere to go, and must not fail once more when the
    # interpreter flushes it at its end.
    with contextlib.suppress(OSError, ValueError):
        target = sys.stdout.fileno()
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, target)
        os.close(sink)


def _told(error: BaseException) -> tuple[str, int]:
    if isinstance(error, click.UsageError):
        where = error.ctx.command_path if error.ctx is not None else "oqron"
        return f"{error.format_message()} (see {where} --help)", USAGE
    if isinstance(error, click.ClickException):
        return error.format_message(), error.exit_code
    if isinstance(error, (ConfigError, InvalidValueError)):
        return str(error), USAGE
    if isinstance(error, UnavailableError):
        return f"{error}; is the server there? oqron doctor looks closer", TROUBLE
    if isinstance(error, OqronError):
        return str(error), TROUBLE
    if isinstance(error, OSError):
        return f"{error.filename or 'input'}: {error.strerror or error}", TROUBLE
    return f"{one_line(error)}; --debug shows where", TROUBLE


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="oqron-core", prog_name="oqron")
@common_options
def cli() -> None:
    """Look at an oqron storage, steer it, and see it work.

    Settings come from these options, OQRON_* variables and the nearest oqron.toml.
    Exit status: 0 done, 1 the store refused or trouble was found, 2 wrong usage.
    """


def _commands() -> Iterator[click.Command]:
    yield plugins.plugins
    yield plan.plan
    yield doctor.doctor
    yield classify.classify
    yield queues.queues
    yield jobs.jobs
    yield runs.runs
    yield dlq.dlq
    yield topics.topics
    yield schedules.schedules
    yield locks.locks
    yield cache.cache
    yield limits.limits
    yield logs.logs
    yield retention.retention
    yield maintenance.prune
    yield maintenance.rebuild_hot
    yield demo.demo
    yield new_plugin.new_plugin


for _command in _commands():
    cli.add_command(_command)
