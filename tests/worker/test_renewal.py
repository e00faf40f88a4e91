"""Leases of handlers, where nobody answers; and what handlers do when they are called off."""

from __future__ import annotations

import asyncio

from collections.abc import Callable
from typing import Any

import pytest

from oqron_core.testing.faults import Faults
from oqron_worker import App, Context


QUIET: dict[str, Any] = {"maintenance": False, "schedules": False, "blocked_after": None}


def run(main: Callable[[], Any]) -> Any:
    """Run a coroutine function, for a minute at most."""

    async def bounded() -> Any:
        async with asyncio.timeout(60):
            return await main()

    return asyncio.run(bounded())


async def until(condition: Callable[[], Any]) -> None:
    """Return once *condition* holds."""
    while not condition():
        await asyncio.sleep(0.002)


def test_a_handler_whose_renewals_get_no_answer_is_told() -> None:
    """When its lease is over; it does not go on as if it still held the job."""

    async def main() -> None:
        faults = Faults()
        app = App(mode="memory", project="t", environment="t", wrap_hot=faults.wrap_hot)
        why: list[str | None] = []
        started = asyncio.Event()

        @app.queue("q", lease_for=1.0)
        async def work(ctx: Context) -> None:
            started.set()
            try:
                await asyncio.sleep(600)
            finally:
                why.append(ctx.why)

        async with app, app.worker(**QUIET) as worker:
            await work.add()
            await started.wait()
            faults.down("hot.broker.renew")
            await until(lambda: worker.metrics.renewal_errors >= 2)
            await until(lambda: worker.metrics.total("lost"))
            assert ["lease lost"] == why
            faults.heal()
            faults.down("hot.broker.claim")

    run(main)


def test_a_handler_survives_renewals_that_fail_for_a_moment() -> None:
    """They are tried again before the lease is over."""

    async def main() -> None:
        faults = Faults()
        app = App(mode="memory", project="t", environment="t", wrap_hot=faults.wrap_hot)
        started, go = asyncio.Event(), asyncio.Event()

        @app.queue("q", lease_for=6.0, max_attempts=1)
        async def work() -> str:
            started.set()
            await go.wait()
            return "done"

        async with app, app.worker(**QUIET) as worker:
            job = await work.add()
            await started.wait()
            faults.fail("hot.broker.renew", times=2)
            await until(lambda: worker.metrics.renewal_errors >= 2)
            renewed = len(faults.names("hot.broker.renew"))
            await until(lambda: len(faults.names("hot.broker.renew")) > renewed)
            go.set()
            await until(lambda: worker.metrics.total("completed"))
            found = await work.get(job.id)
            assert found is not None
            assert ("completed", 1) == (found.status, found.attempt_made)

    run(main)


@pytest.mark.parametrize("how", ["returns", "raises", "goes on"])
def test_what_a_handler_does_after_its_cancel_changes_nothing(how: str) -> None:
    """The job is cancelled, is not tried again, and the worker goes on."""

    async def main() -> None:
        app = App(mode="memory", project="t", environment="t")
        started = asyncio.Event()
        calls = 0

        @app.queue("q", max_attempts=5)
        async def work() -> str:
            nonlocal calls
            calls += 1
            started.set()
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                if how == "raises":
                    raise ValueError("broken by the cancel") from None
                if how == "goes on":
                    await asyncio.sleep(0.05)
            return "done all the same"

        async with app, app.worker(**QUIET) as worker:
            job = await work.add()
            await started.wait()
            assert await work.cancel(job.id)
            await until(lambda: worker.running == 0)
            found = await work.get(job.id)
            assert found is not None
            assert ("cancelled", None) == (found.status, found.return_value)
            assert ["cancelled"] == [run.status for run in (await work.runs()).items]
            assert not list(await app.storage.dead_letters.query("q"))
            await app.storage.maintenance.run_once()
            assert 1 == calls
            counts = await work.counts()
            assert {"cancelled": 1} == {status: n for status, n in counts.items() if n}

    run(main)
