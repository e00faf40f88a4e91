"""The producer: adds jobs as they arrived at a real service, whatever happens."""

from __future__ import annotations

import asyncio
import csv
import datetime as dt
import itertools
import random
import sys
import time

from collections.abc import Iterator
from pathlib import Path
from typing import Any


sys.path.insert(0, str(Path(__file__).parent.parent))

from chaos.ledger import Ledger
from chaos.plan import QUEUES, Plan
from oqron_core import Backoff, JobSpec
from oqron_core.exceptions import StorageError
from oqron_core.storage import Storage


_TICK = 0.05
_KINDS = ("quick", "slow", "flaky", "doomed", "once", "returned", "late")
_WEIGHTS = (68, 5, 8, 4, 5, 4, 6)


def gaps(plan: Plan, chance: random.Random) -> Iterator[float]:
    """Give the seconds between arrivals, bursts and all, for the plan's average."""
    found = _real_gaps(Path(plan.trace)) if plan.trace else _made_gaps(chance)
    scale = 1 / plan.rate / (sum(found) / len(found))
    # Not the same piece of the day in every life of the producer.
    start = chance.randrange(len(found))
    for gap in itertools.cycle(found[start:] + found[:start]):
        # A pause of the real service would be a pause of the test.
        yield min(3.0, gap * scale)


def _real_gaps(path: Path) -> list[float]:
    with path.open(newline="", encoding="utf-8") as file:
        stamps = [row["TIMESTAMP"][:26] for row in csv.DictReader(file)]
    times = [dt.datetime.fromisoformat(stamp).timestamp() for stamp in stamps]
    return [max(0.0, b - a) for a, b in itertools.pairwise(sorted(times))]


def _made_gaps(chance: random.Random) -> list[float]:
    """Bursts of a few to a hundred, and silence between them."""
    made: list[float] = []
    while len(made) < 5000:
        size = round(chance.paretovariate(1.2) * 3)
        made += [chance.expovariate(200.0) for _ in range(min(size, 100))]
        made.append(chance.expovariate(0.5))
    return made


def spec(name: str, chance: random.Random) -> JobSpec:
    """Make a job of one kind or another."""
    kind = chance.choices(_KINDS, _WEIGHTS)[0]
    attempts = {"doomed": 2, "once": 1}.get(kind, 6)
    return JobSpec(
        {"kind": kind, "text": "ü" * chance.randrange(200)},
        id=name,
        priority=chance.choice((0, 0, 0, -1, 1)),
        delay=chance.uniform(0.1, 3.0) if kind == "late" else None,
        max_attempts=attempts,
        backoff=Backoff.exponential(0.1, cap=0.5),
    )


async def _add(storage: Storage, queue: str, jobs: list[JobSpec], ledger: Ledger) -> None:
    """Add until it is acknowledged; the same ids make that safe."""
    for job in jobs:
        ledger.put("offer", q=queue, j=job.id, kind=job.data["kind"], most=job.max_attempts)
    while True:
        try:
            if len(jobs) > 1:
                await storage.jobs.add_many(queue, jobs)
            else:
                await storage.jobs.add(queue, jobs[0].data, **_words(jobs[0]))
        except StorageError:
            await asyncio.sleep(0.1)
        else:
            break
    for job in jobs:
        ledger.put("accept", q=queue, j=job.id)
    await ledger.sync()


def _words(job: JobSpec) -> dict[str, Any]:
    names = ("id", "priority", "delay", "max_attempts", "backoff")
    return {name: getattr(job, name) for name in names if getattr(job, name) is not None}


async def _produce(storage: Storage, plan: Plan, life: str, until: float) -> None:
    ledger = Ledger(plan.file(f"producer-{life}"))
    chance = random.Random(f"{plan.seed}-{life}")
    names = (f"{life}-{number}" for number in itertools.count())
    adding: set[asyncio.Task[None]] = set()
    due = time.time()
    arrivals = gaps(plan, chance)
    while (moment := time.time()) < until:
        batch: list[JobSpec] = []
        while due <= moment:
            batch.append(spec(next(names), chance))
            due += next(arrivals)
        for part in _parts(batch, chance):
            queue = chance.choices(QUEUES, (3, 1))[0]
            task = asyncio.create_task(_add(storage, queue, part, ledger))
            adding.add(task)
            task.add_done_callback(adding.discard)
        await asyncio.sleep(_TICK)
    if adding:
        await asyncio.wait(adding)
    ledger.put("bye", unwritten=0)
    await ledger.sync()


def _parts(batch: list[JobSpec], chance: random.Random) -> Iterator[list[JobSpec]]:
    """Cut what arrived into single adds and batches."""
    while batch:
        size = chance.choice((1, 1, 1, 5, 20))
        yield batch[:size]
        batch = batch[size:]


async def main(life: str, until: float) -> None:
    """Open, and produce until the time is over."""
    plan = Plan.given()
    plan.log_to(f"producer-{life}")
    while True:
        try:
            async with plan.open() as storage:
                await _produce(storage, plan, life, until)
                return
        except StorageError:
            # Only opening lets it out: the servers are down.
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
