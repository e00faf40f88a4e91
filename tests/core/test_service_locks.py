"""Locks and leaders, in memory."""

from __future__ import annotations

import asyncio
import contextlib

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fix_memory import MemoryMode
from oqron_core import ConflictError, LeaseLostError, Storage, open_storage
from oqron_core.sync import open_sync_storage
from oqron_core.testing.contracts.mode_locks import ModeLocksContract
from oqron_memory import MemoryStore


class TestLocksInMemory(MemoryMode, ModeLocksContract):
    """Several storages share one store, whose clock stands still."""


def run(body: Callable[[Storage], Awaitable[None]], **options: Any) -> None:
    """Run *body* with a storage in memory."""

    async def main() -> None:
        async with open_storage(mode="memory", project="p", environment="e", **options) as storage:
            await body(storage)

    asyncio.run(main())


async def lose(storage: Storage, key: str) -> None:
    """Take a lock from whoever holds it."""
    lease = await storage.hot.locks.holder(f"oqron:lock:{key}")
    assert lease is not None
    await storage.hot.locks.release(lease)


def test_a_foreign_cancellation_is_not_swallowed_by_a_loss() -> None:
    """Cancelled from outside and by the loss at once, the task ends as cancelled."""

    async def body(storage: Storage) -> None:
        entered = asyncio.Event()
        after = []

        async def work() -> None:
            async with storage.locks.hold("k") as held:
                entered.set()
                held_now.append(held)
                await asyncio.Event().wait()
            after.append("went on")

        held_now: list[Any] = []
        task = asyncio.create_task(work())
        await entered.wait()
        held_now[0].lose("a test")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [] == after

    run(body)


def test_a_loss_leaves_no_cancellation_behind() -> None:
    """The task that caught the loss may go on awaiting, and time limits still work."""

    async def body(storage: Storage) -> None:
        with pytest.raises(LeaseLostError):
            async with storage.locks.hold("k", lease_for=0.1):
                await lose(storage, "k")
                await asyncio.Event().wait()
        task = asyncio.current_task()
        assert task is not None
        assert 0 == task.cancelling()
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), storage.locks.hold("k"):
                await asyncio.Event().wait()
        assert await storage.locks.holder("k") is None

    run(body)


def test_a_body_that_swallows_the_cancellation_is_told_all_the_same() -> None:
    """The context raises where the body did not."""

    async def body(storage: Storage) -> None:
        with pytest.raises(LeaseLostError):
            async with storage.locks.hold("k", lease_for=0.1):
                await lose(storage, "k")
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
        task = asyncio.current_task()
        assert task is not None
        assert 0 == task.cancelling()

    run(body)


def test_a_context_is_good_for_one_entry() -> None:
    """Entering it again is a mistake, not a second lock."""

    async def body(storage: Storage) -> None:
        hold = storage.locks.hold("k")
        async with hold:
            pass
        with pytest.raises(RuntimeError, match="entered already"):
            async with hold:
                pass

    run(body)


def test_ten_thousand_locks_leave_nothing_behind() -> None:
    """Neither in the store nor in the service, contended or not."""
    store = MemoryStore()

    async def body(storage: Storage) -> None:
        for number in range(2_000):
            async with storage.locks.hold(f"k{number}"):
                pass

        async def contend(number: int) -> None:
            async with storage.locks.hold(f"k{number % 20}", lease_for=5.0):
                await asyncio.sleep(0)

        await asyncio.gather(*(contend(number) for number in range(200)))
        await asyncio.gather(
            *(storage.locks.acquire("busy", wait=0.01, lease_for=0.05) for _ in range(20))
        )
        lease = await storage.hot.locks.holder("oqron:lock:busy")
        if lease is not None:
            await storage.hot.locks.release(lease)
        assert 0 == store.sizes()["locks"]
        assert 0 == store.sizes()["subscribers"]
        assert {} == storage.locks._holding._turns

    run(body, memory={"store": store})


def test_the_blocking_twin_holds_and_is_told() -> None:
    """A with block of a thread gives the lock back, or raises where it was lost."""
    with open_sync_storage(mode="memory", project="p", environment="e") as storage:
        with storage.locks.hold("k") as held:
            held.check()
            assert storage.locks.acquire("k") is None
        with pytest.raises(LeaseLostError), storage.locks.hold("k", lease_for=30.0) as held:
            storage.call(storage.hot.locks.release, held.lease)


@pytest.mark.parametrize("call", ["hold", "lead"])
def test_a_task_does_not_wait_for_itself(call: str) -> None:
    """It is told; other tasks wait, and what is over is free."""

    async def body(storage: Storage) -> None:
        hold = getattr(storage.locks, call)
        async with hold("k") as outer:
            with pytest.raises(ConflictError, match="by this task itself"):
                async with asyncio.timeout(5), hold("k"):
                    pass
            async with hold("other"):
                pass

            async def another() -> int:
                async with hold("k") as held:
                    return int(held.token)

            waiting = asyncio.create_task(another())
            await asyncio.sleep(0.01)
            assert not waiting.done()
        assert await waiting > outer.token
        async with hold("k") as outer:
            # Given back before its context ends: it is nobody's now.
            await storage.locks.release(outer)
            async with hold("k") as inner:
                assert inner.token > outer.token
        async with hold("k", wait=0.0):
            pass

    run(body)
