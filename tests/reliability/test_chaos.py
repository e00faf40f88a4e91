"""Chaos, the short way: every kind of fault once or more, on real servers."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from pathlib import Path

import pytest

from oqron_core.testing import servers


SCRIPT = Path(__file__).parent / "chaos/run.py"
SECONDS = 25


@pytest.fixture(autouse=True)
def _programs() -> None:
    missing = [
        name
        for name, found in (
            ("redis-server", servers.redis_binaries()),
            ("postgres", servers.postgres_binaries()),
        )
        if not found
    ]
    if missing:
        text = f"no {' and no '.join(missing)} on this machine"
        if os.environ.get("OQRON_TEST_REQUIRE_SERVERS"):
            pytest.fail(text, pytrace=False)
        pytest.skip(text)


@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.parametrize("mode", ["redis", "redis-postgres"])
def test_nothing_is_lost_and_nothing_runs_twice(mode: str, tmp_path: Path) -> None:
    """Workers are killed, servers die, connections break: the ledgers agree."""
    words = ["--mode", mode, "--seconds", str(SECONDS), "--rate", "40", "--workers", "3"]
    done = subprocess.run(
        [sys.executable, SCRIPT, *words, "--evidence", tmp_path / "evidence"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert 0 == done.returncode, done.stdout + done.stderr[-3000:]
    counts = {
        label: int(count.replace(",", ""))
        for label, count in re.findall(r"^\| ([^|]+) \| ([\d,]+) \|$", done.stdout, re.MULTILINE)
    }
    assert counts["jobs accepted"] > 200
    assert counts["fault: kill worker"] >= 2
    assert counts["fault: restart redis"] >= 1
    assert counts["fault: cut connection"] >= 1
    if mode == "redis-postgres":
        assert counts["fault: flush redis"] >= 1
        assert counts["fault: restart postgres"] >= 1
