"""The commands ``oqron worker`` and ``oqron work``."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import logging
import os
import signal
import sys

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from oqron_core import load_settings
from oqron_core.exceptions import InvalidValueError
from oqron_worker._app import App
from oqron_worker._context import Context
from oqron_worker._exec import run_command
from oqron_worker._http import serving
from oqron_worker._supervisor import Supervisor, own_command
from oqron_worker._worker import Worker


__all__ = ["find_app", "work", "worker"]

log = logging.getLogger("oqron.worker")

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
_WORDS: Final = ("mode", "project", "environment", "config")
_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def _storage_options(command: CommandT) -> CommandT:
    options = (
        click.option("--mode", help="The pair of backends, such as redis-postgres."),
        click.option("--project", help="The project."),
        click.option("--environment", help="The environment."),
        click.option(
            "--config",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Read settings from this file only.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _worker_options(command: CommandT) -> CommandT:
    options = (
        click.option(
            "--grace",
            type=click.FloatRange(min=0),
            default=25.0,
            show_default=True,
            help="Seconds that a shutdown waits for what runs.",
        ),
        click.option(
            "--port",
            type=click.IntRange(0, 65535),
            help="Health and Prometheus metrics on this port of 127.0.0.1; 0 for a free one.",
        ),
        click.option("--parent", type=int, hidden=True),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _given(context: click.Context, words: dict[str, Any]) -> dict[str, Any]:
    """Give the settings that were named, after the command or before it."""
    before = context.obj
    return {
        name: value
        for name in _WORDS
        if (value := words.pop(name) or getattr(before, name, None)) is not None
    }


def _configure(app: App, given: dict[str, Any]) -> None:
    config = given.pop("config", None)
    if config is not None:
        app.configure(settings=load_settings(config, **given))
    elif given:
        app.configure(**given)


def find_app(target: str) -> App:
    """
    Import an application.

    Args:
        target: ``module:name``; without a name it is ``app``.

    Raises:
        ClickException: There is no such module or application.
    """
    module_name, _, name = target.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        msg = f"there is no module {module_name!r} here or installed"
        raise click.ClickException(msg) from None
    found = getattr(module, name or "app", None)
    if not isinstance(found, App):
        what = "has no" if found is None else "has no application called"
        raise click.ClickException(f"{module_name} {what} {name or 'app'!r}; name it module:name")
    return found


def _set_up_logging() -> None:
    logger = logging.getLogger("oqron")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    if not logging.getLogger().handlers and not logger.handlers:
        logging.basicConfig(level=logging.INFO, format=_FORMAT, stream=sys.stderr)


@click.command()
@click.argument("target", metavar="MODULE[:APP]")
@click.option(
    "--processes", type=click.IntRange(min=1), default=1, show_default=True, help="How many."
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="How many attempts run at the same time in a process.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    help="Only this handler, and its schedules; may be repeated.",
)
@click.option("--reload", is_flag=True, help="Start anew when a Python file here changes.")
@click.option("--no-maintenance", is_flag=True, help="Leave repairs to other processes.")
@click.option("--no-schedules", is_flag=True, help="Leave crons to other processes.")
@_worker_options
@_storage_options
@click.pass_context
def worker(
    context: click.Context,
    /,
    target: str,
    processes: int,
    concurrency: int,
    only: tuple[str, ...],
    *,
    reload: bool,
    no_maintenance: bool,
    no_schedules: bool,
    grace: float,
    port: int | None,
    parent: int | None,
    **words: Any,
) -> None:
    """Work on the queues, topics and schedules of an application.

    SIGTERM or Ctrl-C lets what runs finish for the grace time, then gives it back;
    a second one does so at once.
    """
    _set_up_logging()
    given = _given(context, words)
    if processes > 1 or reload:
        command = ["worker", target, f"--concurrency={concurrency}", f"--grace={grace}"]
        command += [f"--only={name}" for name in only]
        command += ["--no-maintenance"] * no_maintenance + ["--no-schedules"] * no_schedules
        command += [f"--{name}={value}" for name, value in given.items()]
        raise SystemExit(_supervise(command, processes, port, reload=reload))
    app = find_app(target)
    _configure(app, given)
    made = app.worker(
        concurrency=concurrency,
        only=only or None,
        grace=grace,
        maintenance=not no_maintenance,
        schedules=not no_schedules,
    )
    _run(made, port=port, parent=parent)


def _supervise(command: list[str], processes: int, port: int | None, *, reload: bool) -> int:
    watch = [Path.cwd()] if reload else []
    supervisor = Supervisor([*own_command(), *command], processes, port=port, watch=watch)
    return supervisor.run()


@click.command()
@click.argument("queue")
@click.option("--exec", "command", required=True, metavar="CMD", help="What a shell runs.")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 10_000),
    default=os.cpu_count() or 1,
    show_default="the processors",
    help="How many run at the same time.",
)
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Seconds for each.")
@click.option(
    "--later",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Seconds until the next try after exit status 75.",
)
@click.option("--until-empty", is_flag=True, help="End when the queue has nothing left to do.")
@_worker_options
@_storage_options
@click.pass_context
def work(
    context: click.Context,
    /,
    queue: str,
    command: str,
    concurrency: int,
    timeout: float | None,
    later: float,
    *,
    until_empty: bool,
    grace: float,
    port: int | None,
    parent: int | None,
    **words: Any,
) -> None:
    """Run a command for each job of QUEUE: a durable xargs.

    The payload is one line of JSON on its standard input; what it prints is the
    output, what it writes to standard error the log. Exit status 0 is done, 75 is
    later without an attempt counted, anything else failed.
    """
    _set_up_logging()
    app = App()
    _configure(app, _given(context, words))

    @app.queue(queue, whole=True, concurrency=concurrency, timeout=timeout)
    async def run(ctx: Context, payload: Any) -> Any:
        return await run_command(ctx, command, payload, later=later)

    made = app.worker(concurrency=concurrency, grace=grace, schedules=False)
    _run(made, port=port, parent=parent, until=Worker.idle if until_empty else None)


# --- one process -----------------------------------------------------------------


def _run(
    made: Worker,
    *,
    port: int | None,
    parent: int | None,
    until: Callable[[Worker], Any] | None = None,
) -> None:
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(made, port, parent, until))
    except InvalidValueError as error:
        raise click.UsageError(str(error)) from None
    if made.left_behind:
        # Their jobs were given back; the interpreter must not wait for them.
        log.warning("ending around %d handlers that do not end", made.left_behind)
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - where it is installed it is used
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _serve(
    made: Worker,
    port: int | None,
    parent: int | None,
    until: Callable[[Worker], Any] | None,
) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, made.stop)
    tasks: list[asyncio.Task[Any]] = []
    async with contextlib.AsyncExitStack() as stack:
        if port is not None:
            await stack.enter_async_context(serving(made, port))
        async with made:
            # What is there now stays. Without this each full pass of the collector looks
            # through it, and nothing else runs for 45 ms (measured; with it, 1 ms).
            gc.collect()
            gc.freeze()
            if parent is not None:
                tasks.append(asyncio.create_task(_orphaned(made, parent)))
            if until is not None:
                tasks.append(asyncio.create_task(_stop_after(made, until)))
            await made.stopped()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _orphaned(made: Worker, parent: int) -> None:
    """Stop when the process is gone that would have told us to."""
    while os.getppid() == parent:  # noqa: ASYNC110 - nobody announces it
        await asyncio.sleep(1.0)
    log.warning("the supervisor is gone")
    made.stop()


async def _stop_after(made: Worker, until: Callable[[Worker], Any]) -> None:
    try:
        await until(made)
    finally:
        made.stop()
