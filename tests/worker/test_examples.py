"""The examples of the documentation run as they are, in every mode that is there."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

from pathlib import Path
from typing import Any

import pytest


pytestmark = pytest.mark.timeout(120)

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SCRIPTS = {
    "email_queue": "b@example.com: completed",
    "nightly_report": "4 regions, 1800",
    "order_events": "billed 10 events, shipped 5 orders",
    "webhook_fanout": "3 deliveries, 3 signed",
}


@pytest.mark.parametrize("mode", ["memory", "redis", "redis-postgres"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_runs(
    name: str, mode: str, project: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Unchanged, with the mode from the environment."""
    if name == "webhook_fanout":
        pytest.importorskip("httpx")
    env = {**os.environ, "OQRON_MODE": mode, "OQRON_PROJECT": project}
    if mode != "memory":
        env["OQRON_REDIS__URL"] = request.getfixturevalue("redis_url")
    if mode == "redis-postgres":
        env["OQRON_POSTGRES__URL"] = request.getfixturevalue("postgres_url")

    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert 0 == done.returncode, done.stderr
    assert SCRIPTS[name] in done.stdout


def _module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_a_web_application_adds_jobs_in_its_own_transaction(
    request: pytest.FixtureRequest, project: str
) -> None:
    """Both commit, or neither; the worker finds the one and never the other."""
    pytest.importorskip("fastapi")
    httpx = pytest.importorskip("httpx")
    import asyncio

    urls = {name: request.getfixturevalue(f"{name}_url") for name in ("redis", "postgres")}
    module = _module("fastapi_app")
    module.work.configure(project=project, **{name: {"url": url} for name, url in urls.items()})

    async def main() -> None:
        transport = httpx.ASGITransport(module.api)
        async with (
            module.api.router.lifespan_context(module.api),
            httpx.AsyncClient(transport=transport, base_url="http://test") as client,
        ):
            placed = (await client.post("/orders/teapot")).json()
            assert 409 == (await client.post("/orders/unicorn")).status_code
            async with module.work.worker() as worker:
                await worker.idle()
            job = await module.confirm.get(placed["job"])
            assert f"order {placed['order']} confirmed by {job.id}" == job.return_value
            assert 1 == len((await module.confirm.runs()).items)

    asyncio.run(main())
