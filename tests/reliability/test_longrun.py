"""Nothing grows with the number of jobs: the long run, made short."""

from __future__ import annotations

import asyncio

from pathlib import Path

import attrs
import longrun
import pytest

from oqron_core.testing import servers


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells"),
]

JOBS = 10_000
"""Twenty samples of a batch each; ``nox -s longrun`` is for what grows slowly."""


@pytest.mark.parametrize("mode", ["memory", "redis", "redis-postgres"])
def test_nothing_grows(mode: str) -> None:
    """Memory, descriptors, connections, keys and rows stay as they were."""
    try:
        samples = asyncio.run(longrun.run(mode, JOBS))
    except servers.ServerNotFoundError as error:
        pytest.skip(str(error))

    assert JOBS == samples[-1].jobs
    assert [] == longrun.growing(samples)
    assert {0} == {sample.jobs_left for sample in samples}


@pytest.mark.parametrize("what", ["resident", "files", "clients", "keys", "rows", "runs_left"])
def test_growth_is_found(what: str) -> None:
    """Whatever grows by a little with every sample."""
    flat = longrun.Sample(
        jobs=1000,
        rate=1.0,
        resident=10**8,
        files=10,
        clients=2,
        keys=100,
        redis_bytes=10**6,
        rows=1000,
        jobs_left=0,
        runs_left=1000,
    )
    assert [] == longrun.growing([flat] * 20)

    by = 10**7 if what == "resident" else 10
    samples = [attrs.evolve(flat, **{what: getattr(flat, what) + n * by}) for n in range(20)]
    assert [what] == [text.split()[0] for text in longrun.growing(samples)]


def test_the_script_says_what_it_saw(capsys: pytest.CaptureFixture[str]) -> None:
    """A table with a line for each sample, and the status."""
    assert 0 == longrun.main(["--mode", "memory", "--jobs", "2000"])

    lines = capsys.readouterr().out.splitlines()
    assert "memory" == lines[0]
    assert 22 == sum(line.startswith("|") for line in lines)
