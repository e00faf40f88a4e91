"""A handler that other processes can import."""

from __future__ import annotations

import os

from pathlib import Path
from typing import Any

from oqron_worker import App


app = App(mode="memory", project="test", environment="test")


@app.queue("busy", pool="process", max_attempts=1)
def busy(ctx: Any, n: int) -> int:
    """Sum up to *n*; -1 raises, -2 dies, -3 does not end."""
    ctx.log("info", f"summing {n}")
    if n == -1:
        raise ValueError("below zero")
    if n == -2:
        os._exit(7)
    if n == -3:
        Path(os.environ["BUSY_MARK"]).touch()
    while n == -3:
        pass
    return sum(range(n + 1))
