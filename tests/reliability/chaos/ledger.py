"""What happened, in files outside the system: one JSON object a line, fsynced."""

from __future__ import annotations

import asyncio
import json
import os
import time

from collections.abc import Iterator
from pathlib import Path
from typing import Any


__all__ = ["Ledger", "now", "read"]


def now() -> float:
    """Give the wall clock in milliseconds; every process here has the same one."""
    return time.time_ns() / 1e6


class Ledger:
    """
    An append-only file of one process.

    A line is with the system when `put` returns, which survives a SIGKILL of the
    process, and on the disk when `sync` returns, which survives everything.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        self._put = 0
        self._synced = 0
        self._lock = asyncio.Lock()

    def put(self, event: str, **facts: Any) -> None:
        """Append one line."""
        line = json.dumps({"e": event, "t": now(), **facts}, separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")
        self._put += 1

    async def sync(self) -> None:
        """Return when all that was put is on the disk; callers share a call."""
        wanted = self._put
        async with self._lock:
            if self._synced >= wanted:
                return
            reached = self._put
            await asyncio.to_thread(os.fsync, self._file)
            self._synced = reached


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Read the lines; a last one that a crash cut in two was never acknowledged."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)
