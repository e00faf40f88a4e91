"""
A nightly report: a cron in a time zone, and steps that wait for each other.

``oqron worker nightly_report`` runs it at three in the morning, once among all
workers; ``python nightly_report.py`` triggers it now.
"""

from __future__ import annotations

import asyncio
import sys

from oqron_worker import App, Context


app = App()


@app.queue("report-parts", concurrency=4)
async def part(region: str) -> int:
    """Sum up a region."""
    return len(region) * 100


@app.queue("report-ready")
async def ready(regions: list[str], jobs: list[str]) -> str:
    """Put the parts together, when all of them are there."""
    total = 0
    for job_id in jobs:
        found = await part.get(job_id)
        total += found.return_value if found is not None else 0
    return f"{len(regions)} regions, {total}"


@app.cron("nightly", "0 3 * * *", zone="Europe/Berlin", catch_up="one")
async def nightly(ctx: Context) -> list[str]:
    """Start the report of a night; a restart starts it once."""
    regions = ["north", "south", "east", "west"]
    # Its own job's id in theirs: an attempt that is repeated adds none twice.
    parts = [await part.add(region=r, id=f"{ctx.job.id}:{r}") for r in regions]
    last = await ready.add(
        regions=regions,
        jobs=[job.id for job in parts],
        id=f"{ctx.job.id}:ready",
        depends_on=parts,
        on_parent_failure="fail",
    )
    return [last.id]


@app.every("heartbeat", 30.0)
async def heartbeat() -> None:
    """Show that somebody works: a run without a job."""


async def main() -> None:
    """Do not wait until three in the morning."""
    async with app, app.worker() as worker:
        await nightly.trigger()
        await worker.idle()
        [run] = (await ready.runs(status="completed")).items
        sys.stdout.write(f"{run.output}\n")


if __name__ == "__main__":
    asyncio.run(main())
