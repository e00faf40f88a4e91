"""What a chaos run is to be: shared by all of its processes."""

from __future__ import annotations

import json
import logging
import os

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

import attrs

from oqron_core.storage import Storage, open_storage


__all__ = ["QUEUES", "Plan"]

QUEUES: Final = ("mail", "räume:{1}*")
"""A plain queue, and one whose name is hostile to careless keys."""
_VARIABLE: Final = "CHAOS_PLAN"


@attrs.frozen(kw_only=True)
class Plan:
    """
    A chaos run.

    Attributes:
        mode: The mode of the storage.
        project: The project of the scope.
        folder: Where everybody writes their ledger.
        redis_url: Where Redis is, for whom this plan is.
        postgres_url: Where PostgreSQL is, likewise; empty in mode ``redis``.
        seconds: For how long jobs come and faults happen.
        rate: Jobs a second, on average.
        lease: The lease of a claim, in seconds.
        slots: How many jobs one worker does at the same time.
        trace: A file with real arrivals; empty for made-up bursts.
        seed: Of everything that is left to chance.
    """

    mode: str
    project: str
    folder: str
    redis_url: str
    postgres_url: str
    seconds: float
    rate: float
    lease: float
    slots: int
    trace: str
    seed: int

    def open(self) -> AbstractAsyncContextManager[Storage]:
        """Open the storage, with timeouts that suit servers that die often."""
        options: dict[str, Any] = {"redis": {"url": self.redis_url, "timeout": 2.0}}
        if self.postgres_url:
            options["postgres"] = {
                "url": self.postgres_url,
                "pool_size": 4,
                "pool_timeout": 3.0,
                "connect_timeout": 3.0,
                "statement_timeout": 5.0,
            }
        return open_storage(
            mode=self.mode,
            project=self.project,
            environment="chaos",
            close_timeout=4.0,
            runs={"stale_after": 8.0},
            maintenance={"every": 0.5, "leader_for": 3.0},
            **options,
        )

    def environ(self) -> dict[str, str]:
        """Give the environment of a process that follows this plan."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("OQRON_")}
        return {**kept, _VARIABLE: json.dumps(attrs.asdict(self))}

    @classmethod
    def given(cls) -> Plan:
        """Read the plan that this process was started with."""
        return cls(**json.loads(os.environ[_VARIABLE]))

    def file(self, name: str) -> Path:
        """Give the path of a ledger."""
        return Path(self.folder, f"{name}.jsonl")

    def log_to(self, name: str) -> None:
        """Send what this process logs to a file of its own."""
        logging.basicConfig(
            filename=self.file(name).with_suffix(".log"),
            level=logging.WARNING,
            format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s",
            datefmt="%H:%M:%S",
        )
