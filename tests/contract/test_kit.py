"""The conformance kit itself: what it reports, refuses and offers."""

from __future__ import annotations

import json
import subprocess
import sys

from pathlib import Path
from typing import Any

import pytest

from oqron_core.testing.clock import ManualClock
from oqron_core.testing.contracts import CacheContract, overridden


OUTSIDER = """
from oqron_core.testing.contracts import DurablePlaneContract, HotPlaneContract


class TestMine(HotPlaneContract, DurablePlaneContract):
    backend = "memory"
    manual_clock = True

    def settings(self):
        return {"clock": self.clock}
"""


def run_pytest(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on one file, as an outsider would."""
    path = folder / "test_mine.py"
    path.write_text(source)
    # Its own root, wherever temporary folders are: not the settings of this project.
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *options]
    return subprocess.run(
        [*command, str(path)], cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )


def test_a_twelve_line_file_runs_the_whole_contract(tmp_path: Path) -> None:
    """An outsider needs a class, a name and settings; the report says one line."""
    result = run_pytest(tmp_path, OUTSIDER, "--oqron-report=report.json", "--strict-markers")
    report = json.loads((tmp_path / "report.json").read_text())
    memory = report["backends"]["memory"]

    assert 0 == result.returncode, result.stdout[-3000:]
    assert len(OUTSIDER.strip().splitlines()) <= 12
    assert f"oqron contract 1: memory {memory['passed']} passed, 3 capabilities undeclared" in (
        result.stdout
    )
    assert 1 == report["contract"]
    assert memory["ok"]
    assert memory["passed"] > 500
    assert {"hot.shared", "durable.shared", "durable.transactions"} == set(memory["undeclared"])


def test_the_contract_runs_beside_and_without_the_plugin(tmp_path: Path) -> None:
    """Only the report is missing without it."""
    result = run_pytest(tmp_path, OUTSIDER, "-p", "no:oqron", "-k", "lock")

    assert 0 == result.returncode, result.stdout[-3000:]
    assert "oqron contract" not in result.stdout


def test_what_a_test_has_opened_is_let_go(tmp_path: Path) -> None:
    """Pytest keeps the instances of thousands of tests to the end, and not their planes."""
    source = (
        OUTSIDER
        + """
    async def prepare(self, stack):
        await super().prepare(stack)
        self.opened = Opened()
        opened.append(weakref.ref(self.opened))


class Opened:
    pass


opened = []


def test_last():
    gc.collect()
    assert len(opened) > 5
    assert {None} == {one() for one in opened}
"""
    )
    result = run_pytest(tmp_path, "import gc\nimport weakref\n" + source, "-k", "lock or last")

    assert 0 == result.returncode, result.stdout[-3000:]


def test_failures_are_counted_and_explained(tmp_path: Path) -> None:
    """A broken backend is red, with the values that differ."""
    broken = (
        OUTSIDER
        + """
import oqron_memory._locks as locks

original = locks.MemoryLocks.acquire

async def acquire(self, key, *, owner, lease_for):
    lease = await original(self, key, owner=owner, lease_for=lease_for)
    return lease or await self.holder(key)

locks.MemoryLocks.acquire = acquire
"""
    )
    result = run_pytest(tmp_path, broken, "-k", "test_of_fifty_acquirers or one_holder")

    assert 1 == result.returncode
    assert "memory 0 passed, 2 failed" in result.stdout
    assert "E       AssertionError" in result.stdout or "E       assert" in result.stdout


def test_a_skip_that_hides_a_declared_capability_is_a_failure(tmp_path: Path) -> None:
    """Neither in the body of a test nor by a mark."""
    source = """
import pytest

from oqron_core.testing.contracts import DurablePlaneContract, overridden, requires


class TestMine(DurablePlaneContract):
    backend = "memory"

    @overridden(reason="tried to hide it")
    @requires("durable.atomic")
    async def test_an_atomic_batch_is_applied_whole(self):
        pytest.skip("not today")

    @overridden(reason="tried to hide it, too")
    @requires("durable.atomic")
    @pytest.mark.skip(reason="not today")
    async def test_of_many_atomic_batches_one_wins(self):
        pass
"""
    result = run_pytest(tmp_path, source, "-k", "atomic")

    assert 1 == result.returncode
    assert "test_an_atomic_batch_is_applied_whole was skipped (not today)" in result.stdout
    assert "test_of_many_atomic_batches_one_wins: durable.atomic was not tested" in result.stdout
    assert "2 overridden" in result.stdout


def test_a_silent_override_cannot_be_collected(tmp_path: Path) -> None:
    """A test of the contract is neither replaced nor deleted without a reason."""
    source = OUTSIDER + "\n    test_a_lock_has_one_holder = None\n"
    result = run_pytest(tmp_path, source)

    assert 2 == result.returncode
    assert "replaces LocksContract.test_a_lock_has_one_holder" in result.stdout


def test_a_mix_in_cannot_shadow_a_contract_test() -> None:
    """Also where the replacement comes from another base."""

    class Shadow:
        async def test_a_miss_is_not_none(self) -> None:
            """Claim to have tested it."""

    with pytest.raises(TypeError, match="test_a_miss_is_not_none"):
        type("TestMine", (Shadow, CacheContract), {"backend": "memory"})


def test_an_override_with_a_reason_is_allowed() -> None:
    """And a reason is more than white space."""

    class Mine(CacheContract):
        backend = "memory"

        @overridden(reason="the server rounds")
        async def test_a_miss_is_not_none(self) -> None:
            """Test it otherwise."""

    assert Mine.test_a_miss_is_not_none.__oqron_reason__ == "the server rounds"  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="reason"):
        overridden(reason=" ")


def test_the_plugin_imports_no_contract_and_no_backend() -> None:
    """Every pytest run on the machine loads it."""
    code = (
        "import sys, oqron_core.testing.plugin; "
        "bad = [n for n in sys.modules if n.startswith(('oqron_core.testing.contracts', "
        "'oqron_memory', 'hypothesis', 'redis', 'psycopg', 'sqlalchemy'))]; "
        "sys.exit(' '.join(bad) or 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )

    assert ("", 0) == (result.stderr, result.returncode)


async def test_an_async_test_runs_with_the_storage(
    oqron_storage: Any, oqron_clock: ManualClock
) -> None:
    """An application's test needs nothing but the fixture, and no time passes."""
    await oqron_storage.jobs.add("q", {"n": 1}, id="a", delay=3600.0)
    assert [] == await oqron_storage.jobs.claim("q")
    oqron_clock.advance(3600.0)
    [claim] = await oqron_storage.jobs.claim("q")
    await oqron_storage.jobs.complete(claim)

    assert {"n": 1} == claim.job.data


def test_a_plain_test_runs_with_the_storage(oqron_storage: Any, oqron_runner: Any) -> None:
    """A test without async uses the runner."""
    job = oqron_runner.run(oqron_storage.jobs.add("q", 1))

    assert "waiting" == job.status
