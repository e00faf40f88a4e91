"""Eight processes and sixty slots of one schedule: sixty jobs, one per slot."""

from __future__ import annotations

import asyncio
import multiprocessing

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from fix_schedulers import MINUTE, NAME, scheduler
from oqron_core import open_storage


PROCESSES = 8
SLOTS = 60
MODES = ("redis", "redis-postgres", "sqlite")


@pytest.fixture(params=MODES)
def options(request: pytest.FixtureRequest, project: str, tmp_path: Path) -> dict[str, Any]:
    """Give the options of a storage in each mode that processes can share."""
    made: dict[str, Any] = {"mode": request.param, "project": project, "environment": "race"}
    if request.param == "sqlite":
        return made | {"sqlite": {"path": str(tmp_path / "oqron.db")}}
    made["redis"] = {"url": request.getfixturevalue("redis_url")}
    if request.param == "redis-postgres":
        made["postgres"] = {"url": request.getfixturevalue("postgres_url"), "pool_size": 2}
    return made


@attrs.frozen
class Racers:
    """Processes of their own that race whenever they are told to."""

    tasks: Sequence[Any]
    start: Any
    answers: Any

    def race(self, options: dict[str, Any], last: int) -> list[list[int] | None]:
        """Let them race, and give what each of them won."""
        for tasks in self.tasks:
            tasks.put((options, last))
        won: list[list[int] | None] = []
        for _ in self.tasks:
            won.append(self.answers.get(timeout=200))
            if won[-1] is None:
                # Nobody waits at the start for who has failed on the way to it.
                self.start.abort()
        self.start.reset()
        return won


@pytest.fixture(scope="module")
def processes() -> Iterator[Racers]:
    """Start the processes once: that costs more than all races together."""
    context = multiprocessing.get_context("spawn")
    racers = Racers(
        [context.Queue() for _ in range(PROCESSES)], context.Barrier(PROCESSES), context.Queue()
    )
    started = [
        context.Process(target=scheduler, args=(tasks, racers.start, racers.answers))
        for tasks in racers.tasks
    ]
    for process in started:
        process.start()
    try:
        yield racers
    finally:
        racers.start.abort()
        for tasks in racers.tasks:
            tasks.put(None)
        for process in started:
            process.join(30)
            if process.is_alive():
                process.kill()
                process.join()


async def define(options: dict[str, Any]) -> list[int]:
    """Define a schedule that is an hour behind; gives its slots."""
    async with open_storage(**options) as storage:
        first = await storage.durable.now() - SLOTS * MINUTE
        await storage.schedules.put("cron", NAME, next_run_at=first)
    return [first + n * MINUTE for n in range(SLOTS)]


async def look(options: dict[str, Any]) -> tuple[list[int], list[int], tuple[Any, ...]]:
    """Give the slots that have a job, those whose job is handed out, and the pointer."""
    async with open_storage(**options) as storage:
        jobs = [job.data for job in await storage.jobs.query("q", limit=1000)]
        claims = await storage.jobs.claim("q", limit=1000)
        found = await storage.schedules.get("cron", NAME)
        assert found is not None
        pointer = (found.run_count, found.last_run_at, found.next_run_at)
        return sorted(jobs), sorted(claim.data for claim in claims), pointer


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_processes_race_over_sixty_slots(options: dict[str, Any], processes: Racers) -> None:
    """Each slot has one winner among the processes, and one job, which is handed out."""
    slots = asyncio.run(define(options))

    won = processes.race(options, slots[-1])

    assert None not in won, "a process failed; it has printed why"
    assert slots == sorted(slot for mine in won for slot in mine or ())
    jobs, handed, pointer = asyncio.run(look(options))
    assert slots == jobs
    assert slots == handed
    assert (SLOTS, slots[-1], None) == pointer
