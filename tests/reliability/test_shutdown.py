"""Ends of processes: told to, forked, on two loops, and with a server that is frozen."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time

from pathlib import Path
from typing import Any

import pytest

from chaos.ledger import read
from chaos.plan import QUEUES, Plan
from fix_leaks import Setting, quiet

from oqron_core import ClosedError, JobSpec, Storage, open_storage


pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

WORKER = Path(__file__).parent / "chaos/worker.py"
TIMEOUT = 2.0
SLACK = 1.5
"""Seconds that a busy machine may add."""


# --- told to end, with handlers running ------------------------------------------------------


def _plan(setting: Setting, folder: Path) -> Plan:
    assert setting.redis is not None
    return Plan(
        mode=setting.mode,
        project=f"shutdown-{time.time_ns()}",
        folder=str(folder),
        redis_url=setting.redis.url,
        postgres_url="" if setting.postgres is None else setting.postgres.url(),
        seconds=0.0,
        rate=1.0,
        lease=30.0,
        slots=8,
        trace="",
        seed=0,
    )


def test_a_worker_that_is_told_to_end_gives_back_its_jobs(setting: Setting, tmp_path: Path) -> None:
    """SIGTERM with handlers running: no lease is left, and no attempt is gone."""
    if setting.redis is None:
        pytest.skip("the store of this mode ends with its only process")
    plan = _plan(setting, tmp_path)
    asyncio.run(_add_slow_jobs(plan))
    with subprocess.Popen([sys.executable, WORKER, "w"], env=plan.environ()) as worker:
        assert 6 == quiet(lambda: _starts(plan), 6, within=60.0)
        worker.send_signal(signal.SIGTERM)
        assert 0 == worker.wait(30)

    assert {"leased": 0, "waiting": 6, "made": [0] * 6} == asyncio.run(_after(plan))
    last = [line for line in read(plan.file("w")) if line["e"] in {"settle", "bye"}]
    assert ["release"] * 6 == [line["how"] for line in last[:-1]]
    assert 0 == last[-1]["unwritten"]


async def _add_slow_jobs(plan: Plan) -> None:
    async with plan.open() as storage:
        specs = [JobSpec({"kind": "slow"}) for _ in range(6)]
        await storage.jobs.add_many(QUEUES[0], specs)


def _starts(plan: Plan) -> int:
    path = plan.file("w")
    return sum(line["e"] == "start" for line in read(path)) if path.exists() else 0


async def _after(plan: Plan) -> dict[str, Any]:
    async with plan.open() as storage:
        counts = await storage.hot.broker.counts(QUEUES[0])
        jobs = await storage.jobs.query(QUEUES[0], status="waiting")
        runs = await storage.runs.query(name=QUEUES[0])
        assert ["cancelled"] * 6 == [run.status for run in runs]
        made = [job.attempt_made for job in jobs]
        return {"leased": counts.leased, "waiting": len(made), "made": made}


# --- a frozen server -------------------------------------------------------------------------


async def _close_while_frozen(setting: Setting, server: Any) -> tuple[Storage, float]:
    options = setting.options(project="frozen", close_timeout=TIMEOUT)
    async with open_storage(**options) as storage:
        await storage.jobs.add("q", 1)
        runs = [await storage.runs.start(f"r{n}") for n in range(10)]
        await storage.runs.flush()
        server.pause()
        for run in runs:
            run.finish()
        storage.logs.write("m", "info", "the last words")
        began = time.monotonic()
    return storage, time.monotonic() - began


def test_closing_does_not_wait_for_a_frozen_durable_plane(setting: Setting) -> None:
    """It returns within its timeout, and says what was not written."""
    server = setting.postgres or setting.redis
    if server is None:
        pytest.skip("the store of this mode cannot freeze")
    try:
        storage, took = asyncio.run(_close_while_frozen(setting, server))
    finally:
        server.resume()

    assert took < TIMEOUT + SLACK
    assert 11 == storage.unwritten
    assert 0 == quiet(setting.clients, 0)


def test_closing_does_not_wait_for_a_frozen_hot_plane(setting: Setting) -> None:
    """The history is written all the same."""
    if setting.mode != "redis-postgres" or setting.redis is None:
        pytest.skip("no hot plane of this mode can freeze alone")
    try:
        storage, took = asyncio.run(_close_while_frozen(setting, setting.redis))
    finally:
        setting.redis.resume()

    assert took < TIMEOUT + SLACK
    assert 0 == storage.unwritten
    assert 0 == quiet(setting.clients, 0)


# --- forks and loops ---------------------------------------------------------------------------

_FORK = """
import asyncio, json, os, sys
from oqron_core import ClosedError, open_storage

async def main():
    async with open_storage(**json.loads(sys.argv[1])) as storage:
        await storage.jobs.add("q", 1, id="before")
        child = os.fork()
        if not child:
            try:
                asyncio.run(storage.jobs.counts("q"))
            except ClosedError as error:
                os._exit(7 if "forked" in str(error) else 8)
            os._exit(9)
        _, status = os.waitpid(child, 0)
        for number in range(50):
            await storage.jobs.add("q", number)
        assert 51 == (await storage.jobs.counts("q"))["waiting"]
        return os.waitstatus_to_exitcode(status)

sys.exit(asyncio.run(main()))
"""


def test_a_forked_child_is_refused_and_harms_nobody(setting: Setting) -> None:
    """It is told to open its own; the parent works on over its connections."""
    options = setting.options(project=f"fork-{time.time_ns()}")
    options.pop("memory", None)

    words = [sys.executable, "-W", "ignore", "-c", _FORK, json.dumps(options)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd="/")

    assert (7, "") == (done.returncode, done.stderr)
    assert 0 == quiet(setting.clients, 0)


def test_another_loop_is_refused(setting: Setting) -> None:
    """The storage belongs to the loop that opened it, and goes on there."""

    async def use(storage: Storage) -> Any:
        return await storage.jobs.counts("q")

    with asyncio.Runner() as first, asyncio.Runner() as second:
        opened = open_storage(**setting.options(project="loops"))
        storage = first.run(_entered(opened))
        with pytest.raises(ClosedError, match="another event loop"):
            second.run(use(storage))
        assert 0 == first.run(use(storage))["active"]
        first.run(_left(opened))
        with pytest.raises(ClosedError, match="closed"):
            first.run(use(storage))
    assert 0 == quiet(setting.clients, 0)


async def _entered(opened: Any) -> Storage:
    storage: Storage = await opened.__aenter__()
    return storage


async def _left(opened: Any) -> None:
    await opened.__aexit__(None, None, None)


def test_two_loops_have_a_storage_each(setting: Setting) -> None:
    """In two threads, over one scope, at the same time."""
    options = setting.options(project=f"two-{time.time_ns()}")
    done: list[str] = []

    async def work(name: str) -> None:
        async with open_storage(**options) as storage:
            for number in range(30):
                await storage.jobs.add("q", number)
                for claim in await storage.jobs.claim("q", limit=2):
                    done.append(claim.id)
                    await storage.jobs.complete(claim, name)

    def run(name: str) -> None:
        asyncio.run(work(name))

    threads = [threading.Thread(target=run, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert not any(thread.is_alive() for thread in threads)
    assert len(done) == len({*done})
    assert 0 == quiet(setting.clients, 0)


# --- the blocking facade ------------------------------------------------------------------------


def test_a_process_ends_soon_after_its_last_line(setting: Setting, tmp_path: Path) -> None:
    """Nothing that runs in the background holds it up, closed or not."""
    script = tmp_path / "script.py"
    script.write_text(
        "import json, sys\n"
        "from oqron_core.sync import open_sync_storage\n"
        "opened = open_sync_storage(**json.loads(sys.argv[1]))\n"
        "storage = opened.__enter__()\n"
        "storage.jobs.add('q', 1)\n"
        "if sys.argv[2] == 'close':\n"
        "    opened.__exit__(None, None, None)\n",
        encoding="utf-8",
    )
    options = setting.options(project="ends")
    options.pop("memory", None)
    for how in ("close", "leave"):
        done = subprocess.run(
            [sys.executable, script, json.dumps(options), how],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={k: v for k, v in os.environ.items() if not k.startswith("OQRON_")},
        )
        assert 0 == done.returncode, how
        if how == "close":
            assert "" == done.stderr
    assert 0 == quiet(setting.clients, 0)
