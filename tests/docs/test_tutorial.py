"""The worker of the tutorial does what the page says that it gets right."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from oqron_core import Claim, Storage
from oqron_core.testing.clock import ManualClock


ROOT = Path(__file__).parents[2]


PROGRAM = re.compile(r"^```python\n(# (\w+\.py)\n.*?)^```", re.MULTILINE | re.DOTALL)


def test_a_type_checker_has_nothing_to_say(tmp_path: Path) -> None:
    """A reader who checks types strictly need not mend what is shown."""
    pytest.importorskip("mypy")
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    programs = {name: program for program, name in PROGRAM.findall(text)}
    for name, program in programs.items():
        (tmp_path / name).write_text(program, encoding="utf-8")

    # The options and the cache of the checkout: what is checked already costs nothing.
    options = ["--strict", f"--config-file={ROOT / 'pyproject.toml'}"]
    cache = f"--cache-dir={ROOT / '.mypy_cache'}"
    said = subprocess.run(
        [sys.executable, "-m", "mypy", *options, cache, *programs],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )

    assert {"first.py", "worker.py", "both.py", "add.py"} == set(programs)
    assert 0 == said.returncode, said.stdout + said.stderr


@pytest.fixture
def worker() -> dict[str, Any]:
    """Load ``worker.py`` as a reader would save it; its handler waits to be let go."""
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    found = re.search(r"^```python\n(# worker\.py\n.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {"__name__": "worker"}
    exec(compile(found[1], "worker.py", "exec"), names)  # noqa: S102 - our own words
    names["started"] = asyncio.Event()
    names["go"] = asyncio.Event()
    names["stopped"] = []

    async def send(claim: Claim) -> dict[str, bool]:
        names["started"].set()
        try:
            await names["go"].wait()
        except asyncio.CancelledError:
            names["stopped"].append(claim.id)
            raise
        return {"delivered": True}

    names["send"] = send
    return names


async def begun(storage: Storage, worker: dict[str, Any]) -> tuple[asyncio.Event, Any]:
    """Add a job, and return when the worker has it in hand."""
    await storage.jobs.add("emails", {"to": "a@x.com"}, id="a")
    stop = asyncio.Event()
    task = asyncio.create_task(worker["work"](storage, stop))
    await worker["started"].wait()
    return stop, task


async def until(what: Callable[[], Awaitable[object]]) -> None:
    """Return when *what* gives something true."""
    for _ in range(10_000):
        if await what():
            return
        await asyncio.sleep(0.001)
    raise AssertionError(what)


async def test_a_stop_waits_for_what_is_in_hand(
    oqron_storage: Storage, oqron_clock: ManualClock, worker: dict[str, Any]
) -> None:
    """And claims nothing once the wait for a job is over."""
    stop, task = await begun(oqron_storage, worker)
    stop.set()
    await oqron_clock.elapse(1.0)
    await oqron_storage.jobs.add("emails", {"to": "b@x.com"}, id="b")
    worker["go"].set()
    await task

    counts = await oqron_storage.jobs.counts("emails")
    assert (1, 1, 0) == (counts["completed"], counts["waiting"], counts["active"])


async def test_what_takes_too_long_is_given_back_without_costing_an_attempt(
    oqron_storage: Storage, oqron_clock: ManualClock, worker: dict[str, Any]
) -> None:
    """Its handler is stopped first."""
    worker["GRACE"] = 0.01
    stop, task = await begun(oqron_storage, worker)
    stop.set()
    await oqron_clock.elapse(1.0)
    await task

    job = await oqron_storage.jobs.get("emails", "a")
    assert job is not None
    assert ("waiting", 0) == (job.status, job.attempt_made)
    assert ["a"] == worker["stopped"]


async def test_a_job_that_is_called_off_stops_its_handler(
    oqron_storage: Storage, oqron_clock: ManualClock, worker: dict[str, Any]
) -> None:
    """The worker goes on, and the job stays cancelled."""

    async def stopped() -> object:
        return worker["stopped"]

    async def completed() -> object:
        return (await oqron_storage.jobs.counts("emails"))["completed"]

    stop, task = await begun(oqron_storage, worker)
    assert await oqron_storage.jobs.cancel("emails", "a")
    await until(stopped)
    worker["go"].set()
    await oqron_storage.jobs.add("emails", {"to": "b@x.com"})
    await until(completed)
    stop.set()
    await oqron_clock.elapse(1.0)
    await task

    job = await oqron_storage.jobs.get("emails", "a")
    assert job is not None
    assert "cancelled" == job.status


async def test_a_lease_that_was_lost_ends_nothing(
    oqron_storage: Storage,
    oqron_clock: ManualClock,
    worker: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Another one has the job; this worker says so, and goes on."""
    said: list[str] = []

    async def told() -> object:
        said.append(capsys.readouterr().out)
        return "not settled here" in said[-1]

    stop, task = await begun(oqron_storage, worker)
    # In the order of the loop the worker is woken after this claim has begun.
    oqron_clock.advance(31.0)
    [other] = await oqron_storage.jobs.claim("emails", lease_for=30.0)
    worker["go"].set()
    await until(told)
    stop.set()
    await oqron_storage.jobs.complete(other, "by another")
    await oqron_clock.elapse(1.0)
    await task

    job = await oqron_storage.jobs.get("emails", "a")
    assert "lost" in said[-1]
    assert job is not None
    assert ("completed", "by another", 2) == (job.status, job.return_value, job.attempt_made)
