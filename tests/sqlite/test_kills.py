"""Processes that share one file die anywhere, and no job is lost or done twice."""

from __future__ import annotations

import asyncio
import collections
import os
import random
import signal
import sqlite3
import subprocess
import sys

from pathlib import Path

import pytest

from oqron_core import Query, Storage, open_storage


WORKER = Path(__file__).with_name("kill_worker.py")
PROCESSES = 4
KILLS = 14


def start(path: Path, number: int) -> subprocess.Popen[bytes]:
    """Start a worker."""
    return subprocess.Popen([sys.executable, str(WORKER), str(path), f"w{number}"])


async def completed(storage: Storage) -> int:
    """Count what is done."""
    return (await storage.jobs.counts("q"))["completed"]


async def kill_in_turn(storage: Storage, path: Path, seed: int) -> int:
    """Keep four workers at work, killing one now and then; say how many jobs there were."""
    dice = random.Random(seed)
    alive = [start(path, number) for number in range(PROCESSES)]
    jobs = killed = 0
    try:
        while killed < KILLS or await completed(storage) < jobs:
            if killed < KILLS:
                await storage.jobs.add_many("q", [{"n": n} for n in range(40)], max_attempts=100)
                jobs += 40
            await asyncio.sleep(dice.uniform(0.05, 0.5))
            if killed < KILLS and await completed(storage):
                victim = dice.randrange(PROCESSES)
                assert alive[victim].poll() is None, "a worker ended by itself"
                os.kill(alive[victim].pid, signal.SIGKILL)
                alive[victim].wait()
                killed += 1
                alive[victim] = start(path, PROCESSES + killed)
    finally:
        for process in alive:
            process.kill()
            process.wait()
    return jobs


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_four_processes_on_one_file_survive_kills(folder: Path) -> None:
    """Every job is completed, no job by two attempts, and the file is whole."""
    path = folder / "oqron.db"

    async def main() -> tuple[int, collections.Counter[str]]:
        async with open_storage(
            mode="sqlite", project="kills", environment="test", sqlite={"path": str(path)}
        ) as storage:
            jobs = await kill_in_turn(storage, path, seed=8)
            await storage.maintenance.run_once()
            counts = await storage.jobs.counts("q")
            assert {"completed": jobs} == {name: n for name, n in counts.items() if n}
            held = await storage.hot.broker.counts("q")
            assert 0 == held.ready + held.delayed
            done = Query(namespace="runs", where=[("status", "=", "completed")], limit=10_000)
            runs = await storage.durable.query(done)
            return jobs, collections.Counter(run.value["jobId"] for run in runs)

    jobs, runs = asyncio.run(main())

    # A run may die with its process, between the job's end and the run's.
    assert jobs - 4 * KILLS <= len(runs) <= jobs
    assert {1} == set(runs.values())
    with sqlite3.connect(path) as driver:
        assert [("ok",)] == driver.execute("PRAGMA integrity_check").fetchall()
    driver.close()
