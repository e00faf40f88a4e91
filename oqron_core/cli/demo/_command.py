"""The command: add, work, look, compare, clean up."""

from __future__ import annotations

import asyncio
import secrets

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs
import click

from oqron_core._plugins import Plugins, discover
from oqron_core.cli._invocation import Invocation, common_options, json_option, run_async
from oqron_core.cli._output import note, print_json
from oqron_core.cli.demo._cleanup import wipe
from oqron_core.cli.demo._crew import Crew
from oqron_core.cli.demo._equality import Ledger
from oqron_core.cli.demo._facts import compare_stored, read_facts
from oqron_core.cli.demo._items import LATER, Cast, cast, later, read_items, sample
from oqron_core.cli.demo._report import Report, document, show
from oqron_core.cli.demo._roundtrip import round_trip
from oqron_core.cli.demo._screen import Screen, open_screen
from oqron_core.config import Mode, Settings
from oqron_core.exceptions import ConflictError
from oqron_core.models import JobStatus
from oqron_core.planes.capabilities import Durability
from oqron_core.storage import Storage, open_storage


__all__ = ["demo"]

_LOOK_EVERY: Final = 0.1
_OPEN: Final = (JobStatus.WAITING, JobStatus.DELAYED, JobStatus.ACTIVE)
_MOST_WORKERS: Final = 64
_ROUND_TRIP: Final = "round-trip"


@click.command()
@click.option(
    "--input",
    "source",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="One JSON payload per line; - is standard input. Without it, a small sample.",
)
@click.option(
    "--workers",
    type=click.IntRange(2, _MOST_WORKERS),
    default=4,
    show_default=True,
    help="How many; one of them dies.",
)
@click.option("--keep", is_flag=True, help="Leave what was made where it is, to be looked at.")
@common_options
@json_option
@click.pass_obj
def demo(
    invocation: Invocation, *, source: Path | None, workers: int, keep: bool, as_json: bool
) -> None:
    """Work jobs with several workers, and show what is left to look at.

    Some attempts fail and are tried again, one payload can never be worked on and
    becomes a dead letter, and one worker dies while it holds jobs. The demo works in
    a project of its own and cleans up; --keep leaves it, and takes --project.
    """
    if invocation.project is not None and not keep:
        msg = "the demo cleans up its project, so it makes its own; --keep takes --project"
        raise click.UsageError(msg)
    items = sample() if source is None else read_items(source)
    plan = _Plan(cast(items), workers, keep, as_json, None if source is None else str(source))
    report = run_async(_run(invocation, plan))
    if as_json:
        print_json(document(report))
    else:
        show(report)
    if not report.ledger.whole or report.left_behind:
        raise SystemExit(1)


@attrs.frozen
class _Plan:
    """What was asked for."""

    cast: Cast
    workers: int
    keep: bool
    as_json: bool
    source: str | None


async def _run(invocation: Invocation, plan: _Plan) -> Report:
    plugins = discover(only=())
    project = invocation.project or f"oqron-demo-{secrets.token_hex(4)}"
    settings = invocation.settings(plugins, project=project)
    items = plan.cast.items
    ledger = Ledger({item.id: item.payload for item in items})
    with open_screen(len(items), quiet=plan.as_json) as screen:
        report = await _work(plan, settings, plugins, ledger, screen)
        screen.stage("every payload through every place", 0, len(items))
        left = await _compare(settings, plugins, ledger, screen)
    return attrs.evolve(report, left_behind=report.left_behind + left)


async def _work(
    plan: _Plan, settings: Settings, plugins: Plugins, ledger: Ledger, screen: Screen
) -> Report:
    """Do the work and read what it left."""
    async with open_storage(settings, plugins=plugins) as storage:
        await _must_be_empty(storage, plan.cast)
        try:
            report = await _story(storage, plan, ledger, screen)
        except BaseException:
            if not plan.keep:
                await wipe(storage)
            raise
        if plan.keep:
            _say_where(storage)
            return report
        return attrs.evolve(report, left_behind=await wipe(storage))


async def _story(storage: Storage, plan: _Plan, ledger: Ledger, screen: Screen) -> Report:
    crew = Crew(storage, plan.cast, ledger, workers=plan.workers, tell=screen.tell)
    reminder = later()
    await crew.add(reminder)
    heartbeat = await storage.runs.start("heartbeat", module="cron", trigger="cron")
    heartbeat.log("info", f"{len(plan.cast.items)} jobs were added")
    heartbeat.finish({"alive": True})
    screen.tell(f"{len(plan.cast.items)} jobs added to {', '.join(plan.cast.queues)}")
    work = asyncio.create_task(crew.work())
    try:
        await _until_done(storage, plan.cast, work, screen)
        crew.stop()
        await work
    finally:
        work.cancel()
        await asyncio.wait([work])
    screen.stage("reading what is left")
    facts = await read_facts(
        storage, plan.cast.queues, reminder, crew.death, heartbeat=heartbeat.id
    )
    await compare_stored(storage, plan.cast.queues, ledger)
    return Report(
        settings=storage.settings,
        source=plan.source,
        workers=plan.workers,
        items=len(plan.cast.items),
        kept=plan.keep,
        elapsed=screen.elapsed,
        facts=facts,
        death=crew.death,
        ledger=ledger,
    )


async def _until_done(
    storage: Storage, plan: Cast, work: asyncio.Task[None], screen: Screen
) -> None:
    """Look at the storage until nothing is left to be done, or the work has failed."""
    while not work.done():
        counts = await _look(storage, plan)
        screen.update(counts)
        if not any(queue[status] for queue in counts.values() for status in _OPEN):
            return
        await asyncio.wait([work], timeout=_LOOK_EVERY)


async def _look(storage: Storage, plan: Cast) -> Mapping[str, Mapping[str, int]]:
    counts = {queue: await storage.jobs.counts(queue) for queue in plan.queues}
    dead = await storage.dead_letters.counts()
    return {queue: {**counts[queue], "dead": dead.get(queue, 0)} for queue in plan.queues}


async def _must_be_empty(storage: Storage, plan: Cast) -> None:
    for queue in (*plan.queues, LATER):
        counts = await storage.jobs.counts(queue)
        if any(counts.values()):
            msg = (
                f"the queue {queue!r} of project {storage.scope.project!r} holds jobs "
                "already; give another --project"
            )
            raise ConflictError(msg)


async def _compare(settings: Settings, plugins: Plugins, ledger: Ledger, screen: Screen) -> int:
    """Lead every payload through every place, in a scope of its own; cleans it up."""
    own = attrs.evolve(
        settings, project=f"oqron-demo-{secrets.token_hex(4)}", environment=_ROUND_TRIP
    )
    total = len(ledger.payloads)
    done = 0

    def step(count: int) -> None:
        nonlocal done
        done += count
        screen.stage("every payload through every place", done, total)

    async with open_storage(own, plugins=plugins) as storage:
        try:
            await round_trip(storage, ledger, step)
        finally:
            left = await wipe(storage)
    return left


def _say_where(storage: Storage) -> None:
    settings = storage.settings
    if storage.durable.capabilities.durability is Durability.PROCESS:
        note("--keep has nothing to keep: this durable plane ends with the process")
        return
    mode = f" --mode {settings.mode}" if isinstance(settings.mode, Mode) else ""
    note(
        f"kept; look with: oqron jobs counts{mode} --project {settings.project} "
        f"--environment {settings.environment}"
    )
