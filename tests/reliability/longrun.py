"""
Run for long: ``python tests/reliability/longrun.py --mode redis-postgres --jobs 1000000``.

One process adds, claims, fails, gives back and completes jobs, with their runs, on
servers of its own. At every twentieth of the way it lets maintenance do its work and
counts what is there: memory, descriptors, connections, keys, rows. None of it may
grow with the number of jobs. Prints a table; ends with 1 where something grows.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
import time

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import attrs
import psycopg

from oqron_core import Query, RecordKind, Storage, open_storage
from oqron_core.testing import servers


_SAMPLES: Final = 20
_BATCH: Final = 500
_PASS: Final = 5000
_KEPT_RUNS: Final = 1000
_MODES: Final = ("memory", "redis", "redis-postgres")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@attrs.frozen
class Sample:
    """
    What was there.

    Attributes:
        jobs: How many jobs had been done.
        rate: Jobs a second since the sample before.
        resident: The memory of the process, in bytes.
        files: Its open descriptors.
        clients: Connections that the servers know.
        keys: Keys in Redis.
        redis_bytes: What Redis says it uses.
        rows: Rows in the three tables, dead ones not counted.
        jobs_left: Records of jobs.
        runs_left: Records of runs.
    """

    jobs: int
    rate: float
    resident: int
    files: int
    clients: int
    keys: int
    redis_bytes: int
    rows: int
    jobs_left: int
    runs_left: int


class Servers:
    """The servers of a mode, counted."""

    def __init__(self, mode: str, stack: ExitStack) -> None:
        self.redis: servers.RedisServer | None = None
        self.postgres: servers.PostgresServer | None = None
        self.options: dict[str, Any] = {"mode": mode}
        if "redis" in mode:
            self.redis = stack.enter_context(servers.redis_server(persistent=mode == "redis"))
            self.options["redis"] = {"url": self.redis.url}
        if "postgres" in mode:
            self.postgres = stack.enter_context(servers.postgres_server())
            self.options["postgres"] = {"url": self.postgres.url()}

    def count(self) -> dict[str, int]:
        """Count connections, keys and rows."""
        found = {"clients": 0, "keys": 0, "redis_bytes": 0, "rows": 0}
        if self.redis is not None:
            found["clients"] += str(self.redis.command("CLIENT", "LIST")).count("id=") - 1
            found["keys"] = int(str(self.redis.command("DBSIZE")))
            info = str(self.redis.command("INFO", "memory"))
            found["redis_bytes"] = int(info.partition("used_memory:")[2].split()[0])
        if self.postgres is not None:
            with psycopg.connect(self.postgres.url()) as connection:
                for table in ("oqron_records", "oqron_jobs", "oqron_runs"):
                    row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
                    found["rows"] += 0 if row is None else row[0]
                row = connection.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'oqron'"
                ).fetchone()
                found["clients"] += 0 if row is None else row[0]
        return found


async def _work(storage: Storage, jobs: int) -> None:
    """Do so many jobs, in batches, each in one way or another."""
    left = jobs
    while left > 0:
        size = min(_BATCH, left)
        left -= size
        await storage.jobs.add_many("long", [{"n": n, "text": "x" * 50} for n in range(size)])
        done = 0
        while done < size:
            claims = await storage.jobs.claim("long", limit=_BATCH, wait=1.0)
            for claim in claims:
                claim.run.log("info", "working")
            # The first of a batch takes the long way: fails, comes again.
            if claims and claims[0].attempt == 1:
                await storage.jobs.fail(claims.pop(0), "again", retry_in=0.0)
            if claims and claims[-1].attempt == 1:
                await storage.jobs.release(claims.pop())
            done += sum(await storage.jobs.complete_many([(c, {"ok": True}) for c in claims]))


async def _sample(storage: Storage, found: Servers, jobs: int, took: float) -> Sample:
    await storage.runs.flush()
    await storage.maintenance.run_once()
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE  # noqa: ASYNC240 - not a disk
    files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - as a number
    counts = await storage.jobs.counts("long")
    runs = await storage.durable.count(Query(kind=RecordKind.RUN))
    counted = await asyncio.to_thread(found.count)
    return Sample(
        jobs=jobs,
        rate=jobs / took,
        resident=resident,
        files=files,
        jobs_left=sum(counts.values()),
        runs_left=runs,
        **counted,
    )


async def run(mode: str, jobs: int) -> list[Sample]:
    """Do so many jobs, and sample on the way."""
    samples: list[Sample] = []
    with ExitStack() as stack:
        found = Servers(mode, stack)
        retention = {"completed_for": 0.0}
        async with open_storage(project="long", retention=retention, **found.options) as storage:
            await storage.retention.set("run", keep=_KEPT_RUNS)
            step = max(_BATCH, jobs // _SAMPLES)
            for number in range(1, _SAMPLES + 1):
                began = time.monotonic()
                for begin in range(0, step, _PASS):
                    await _work(storage, min(_PASS, step - begin))
                    # As a leader does every few seconds; here by count, which is flat.
                    await storage.maintenance.run_once()
                sample = await _sample(storage, found, step, time.monotonic() - began)
                samples.append(attrs.evolve(sample, jobs=number * step))
    return samples


_SLACK: Final = {
    # What an allocator and a server may take for themselves, and give back late.
    "resident": 24 * 2**20,
    "redis_bytes": 4 * 2**20,
    "files": 4,
    "clients": 4,
    "keys": 20,
    "rows": 20,
    "jobs_left": 0,
    "runs_left": 0,
}


def growing(samples: Sequence[Sample]) -> list[str]:
    """Name what is larger in the last quarter than it ever was in the first half."""
    half, last = samples[: len(samples) // 2], samples[-len(samples) // 4 :]
    found = []
    for name, slack in _SLACK.items():
        before = max(getattr(sample, name) for sample in half)
        after = min(getattr(sample, name) for sample in last)
        # The least of the last quarter: a peak is no growth.
        if after > before + slack:
            found.append(f"{name} grows: {before:,} in the first half, {after:,} at the end")
    return found


def _table(samples: Sequence[Sample]) -> str:
    names = [field.name for field in attrs.fields(Sample)]
    lines = [f"| {' | '.join(names)} |", "| ---: " * len(names) + "|"]
    for sample in samples:
        cells = [f"{getattr(sample, name):,.0f}" for name in names]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """Run with these words of the command line; gives the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--mode", choices=(*_MODES, "all"), default="all")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    given = parser.parse_args(words)
    wrong: list[str] = []
    for mode in _MODES if given.mode == "all" else (given.mode,):
        samples = asyncio.run(run(mode, given.jobs))
        sys.stdout.write(f"{mode}\n\n{_table(samples)}\n\n")
        wrong += [f"{mode}: {text}" for text in growing(samples)]
    sys.stdout.writelines(f"VIOLATION: {text}\n" for text in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
