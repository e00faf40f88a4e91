"""An application that worker processes of the tests run."""

from __future__ import annotations

import asyncio
import os
import time

from pathlib import Path
from typing import Any

from oqron_core import Backoff
from oqron_worker import App, Context


app = App()


def note(line: str) -> None:
    """Append a line to the file that the test reads, in one write."""
    path = os.environ["LEDGER"]
    with Path(path).open("a", encoding="utf-8") as ledger:
        ledger.write(line + "\n")


@app.queue("mixed", concurrency=40, max_attempts=4, backoff=Backoff.fixed(0.05), lease_for=2.0)
async def mixed(ctx: Context, n: int, ms: float, fails: bool) -> int:
    """Take a while; fail the first time where asked to."""
    note(f"start {n} {ctx.attempt} {ctx.job.priority} {time.time():.3f}")
    await asyncio.sleep(ms / 1000)
    if fails and ctx.attempt == 1:
        raise ValueError("as asked")
    note(f"end {n} {ctx.attempt}")
    return n


@app.queue("long", max_attempts=1, lease_for=2.0)
async def long(n: int) -> int:
    """Take longer than any grace time."""
    note(f"start {n}")
    await asyncio.sleep(float(os.environ.get("LONG", "60")))
    return n


@app.queue("deaf", max_attempts=1, lease_for=2.0)
def deaf(n: int) -> int:
    """Block a thread, and hear nothing."""
    note(f"start {n}")
    time.sleep(float(os.environ.get("LONG", "60")))
    return n


@app.every("beat", 0.5)
async def beat(ctx: Context) -> Any:
    """Note the slot."""
    note(f"slot {ctx.slot}")
