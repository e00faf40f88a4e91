"""Nothing is left behind: no task, thread, descriptor, lease or connection."""

from __future__ import annotations

import asyncio

from collections.abc import Iterator
from typing import Any

import pytest

from fix_calls import GROUP, LEASE, QUEUE, TOPIC, Call, calls
from fix_leaks import Setting, quiet
from fix_modes import depth

from oqron_core import OqronError, Storage, open_storage


pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CYCLES = depth(50)
"""What stays behind each time is seen twenty times over: two are allowed to be late."""
LONGEST = 400
"""Turns of the loop after which a call that goes on for ever is cancelled."""


async def _one_job(storage: Storage, queue: str = "cycle") -> None:
    job = await storage.jobs.add(queue, {"n": 1})
    claims = await storage.jobs.claim(queue, limit=10, wait=5.0)
    assert job.id in [claim.id for claim in claims]
    for claim in claims:
        claim.run.log("info", "done")
        await storage.jobs.complete(claim)


def test_opening_and_closing_leaves_nothing(setting: Setting) -> None:
    """However often, with work in between."""

    async def cycle() -> None:
        async with open_storage(**setting.options()) as storage:
            await _one_job(storage)

    async def main() -> tuple[Any, Any]:
        for _ in range(3):
            await cycle()
        before = setting.left()
        for _ in range(CYCLES):
            await cycle()
        return before, setting.left()

    before, after = asyncio.run(main())

    assert (before.tasks, before.threads) == (after.tasks, after.threads)
    # A connection may be on its way out at either look; a leak would show in dozens.
    assert after.files <= before.files + 2
    assert () == after.tasks
    assert 0 == quiet(setting.clients, 0)


def test_cancelling_anywhere_leaves_nothing(setting: Setting) -> None:
    """Every public coroutine, cancelled after every so many turns of the loop."""

    async def main() -> list[str]:
        wrong: list[str] = []
        async with open_storage(**setting.options(project="cancel")) as storage:
            found = [*calls(storage)]
            assert len(found) > 100
            for call in found:
                # Everything that starts lazily has started once.
                await _walk(storage, call, [LONGEST])
            idle = len(asyncio.all_tasks()) - 1
            for call in found:
                await _walk(storage, call, _turns(setting))
                if (tasks := await _settled(idle)) > idle:
                    wrong.append(f"{call.name} leaves {tasks - idle} tasks")
            wrong += await _leases_left(storage)
            # The pools are whole: many calls at once are served.
            await asyncio.gather(*[storage.jobs.add("after", n) for n in range(50)])
            await _one_job(storage, "whole")
            assert setting.clients() <= 10
        assert () == setting.left().tasks
        return wrong

    assert [] == asyncio.run(main())
    assert 0 == quiet(setting.clients, 0)


def _turns(setting: Setting, most: int = LONGEST) -> Iterator[int]:
    """Every turn in memory; with servers, where a turn is short, ever larger steps."""
    turn = 0
    while turn < most:
        yield turn
        turn = turn + 1 if setting.mode == "memory" else turn + 1 + turn // 4


async def _walk(storage: Storage, call: Call, turns: Any) -> None:
    """Cancel later and later, until it ends by itself."""
    for count in turns:
        given = await call.given(storage)
        task = asyncio.ensure_future(call.perform(storage, given))
        for _ in range(count):
            if task.done():
                break
            await asyncio.sleep(0)
        ended = task.done()
        task.cancel()
        result = (await asyncio.gather(task, return_exceptions=True))[0]
        allowed = (OqronError, asyncio.CancelledError)
        if isinstance(result, BaseException) and not isinstance(result, allowed):
            raise result
        if ended:
            return


async def _settled(wanted: int) -> int:
    """Count the other tasks when what is being given back has been."""
    for _ in range(200):
        if len(asyncio.all_tasks()) - 1 <= wanted:
            break
        await asyncio.sleep(0.01)
    return len(asyncio.all_tasks()) - 1


async def _leases_left(storage: Storage) -> list[str]:
    """Let what was claimed lapse or be given back; nothing may stay held."""
    await asyncio.sleep(LEASE + 0.2)
    await storage.topics.resume(TOPIC, GROUP)
    await storage.jobs.resume(QUEUE)
    await storage.maintenance.run_once()
    wrong = []
    for queue in await storage.hot.broker.queues():
        counts = await storage.hot.broker.counts(queue)
        if counts.leased:
            wrong.append(f"{queue}: {counts.leased} leases are held by nobody")
    held = [key for key in ("k", "held", "hold") if await storage.locks.holder(key) is not None]
    wrong += [f"the lock {key!r} is held by nobody" for key in held]
    if await storage.locks.leader("lead") is not None:
        wrong.append("nobody leads, but it is taken")
    if used := await storage.limits.in_use("slot", 2):
        wrong.append(f"{used} slots are used by nobody")
    return wrong


def test_a_cancelled_claim_loses_nothing(setting: Setting) -> None:
    """Wherever it is cancelled: the job is there at once, and no attempt is gone."""

    async def main() -> None:
        async with open_storage(**setting.options(project="claim")) as storage:
            for count in _turns(setting, 20_000):
                job = await storage.jobs.add("q", count)
                task = asyncio.ensure_future(storage.jobs.claim("q", lease_for=3600.0))
                for _ in range(count):
                    await asyncio.sleep(0)
                ended = task.done()
                task.cancel()
                await asyncio.wait([task])
                if ended:
                    return
                # What was taken and not given to anybody does not wait to lapse.
                [claim] = await storage.jobs.claim("q", wait=20.0)
                assert (job.id, 1) == (claim.id, claim.attempt)
                await storage.jobs.complete(claim)
            raise AssertionError("the claim never ends")

    asyncio.run(main())
