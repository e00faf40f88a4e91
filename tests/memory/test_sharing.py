"""One store behind several storages, and what closing means."""

from __future__ import annotations

import asyncio
import inspect
import os

from collections.abc import Callable
from typing import Any

import pytest

from oqron_core.exceptions import ClosedError
from oqron_core.planes import Delete, Entry, FixedWindow, HotPlane, Insert, Query, Scope
from oqron_core.testing.clock import ManualClock
from oqron_memory import MemoryStore


async def test_storages_that_share_a_store_see_the_same(opened: Any, clock: ManualClock) -> None:
    """What one writes the other reads, and it outlives the first."""
    store = MemoryStore(clock=clock)
    async with opened(store) as first, opened(store) as second:
        await first.hot.broker.publish("q", [Entry("a")])
        await first.durable.write([Insert("things", "a", {"n": 1})])
        (lease,) = await second.hot.broker.claim("q", owner="w", lease_for=30)
        assert "a" == lease.id
    async with opened(store) as third:
        (record,) = await third.durable.get("things", ["a"])
        assert {"n": 1} == record.value
        assert [True] == await third.hot.broker.ack([lease])


async def test_a_store_of_its_own_starts_empty(opened: Any) -> None:
    """Without a store that is handed in, nothing outlives the storage."""
    async with opened() as planes:
        await planes.durable.write([Insert("things", "a", {})])
    async with opened() as planes:
        assert [None] == await planes.durable.get("things", ["a"])


async def test_scopes_of_one_store_do_not_meet(opened: Any, clock: ManualClock) -> None:
    """Everything of a scope is invisible in another, also to those who wait."""
    store = MemoryStore(clock=clock)
    async with opened(store, environment="a") as a, opened(store, environment="b") as b:
        wait = asyncio.create_task(b.hot.broker.wait(["q"], timeout=1.0))
        await clock.elapse(0.1)
        await a.hot.broker.publish("q", [Entry("x")])
        await a.durable.write([Insert("things", "x", {})])
        await a.hot.cache.set_many({"x": 1})
        await a.hot.locks.acquire("x", owner="w", lease_for=30)
        await a.hot.live.merge("x", {})
        await clock.elapse(1.0)
        assert [] == await wait
        assert [] == await b.hot.broker.queues()
        assert [None] == await b.durable.get("things", ["x"])
        assert 0 == await b.durable.count(Query(namespace="things"))
        assert not (await b.hot.cache.get_many(["x"]))[0]
        assert await b.hot.locks.acquire("x", owner="w", lease_for=30)
        assert [] == await b.hot.live.active()


async def test_tokens_grow_although_a_queue_was_forgotten(opened: Any) -> None:
    """An empty queue leaves no state behind, and its next token is larger all the same."""
    async with opened() as planes:
        broker, last = planes.hot.broker, 0
        for _ in range(5):
            await broker.publish("q", [Entry("a")])
            (lease,) = await broker.claim("q", owner="w", lease_for=30)
            await broker.ack([lease])
            assert lease.token > last
            last = lease.token
        for _ in range(5):
            held = await planes.hot.locks.acquire("k", owner="w", lease_for=30)
            await planes.hot.locks.release(held)
            assert held.token > last
            last = held.token


async def test_tokens_grow_across_the_loss_of_the_store(opened: Any, clock: ManualClock) -> None:
    """A fresh store a millisecond later starts above every token of the lost one."""
    async with opened() as planes:
        await planes.hot.broker.publish("q", [Entry(f"{i}") for i in range(500)])
        lost = await planes.hot.broker.claim("q", owner="w", lease_for=30, limit=500)
    clock.advance(0.001)
    async with opened() as planes:
        await planes.hot.broker.publish("q", [Entry("a")])
        (lease,) = await planes.hot.broker.claim("q", owner="w", lease_for=30)
        assert lease.token > lost[-1].token


def _arguments(name: str) -> list[Any] | None:
    known: dict[str, list[Any]] = {
        "publish": ["q", []],
        "claim": ["q"],
        "acquire": ["k"],
        "increment": ["k"],
        "take": ["k", FixedWindow(1, per=1.0)],
        "set_many": [{}],
        "add": ["k", 1],
        "merge": ["r", {}],
        "write": [[]],
        "query": [Query(namespace="x")],
        "count": [Query(namespace="x")],
        "prune": [Query(namespace="x")],
    }
    return known.get(name)


KEYWORDS: dict[str, dict[str, Any]] = {
    "claim": {"owner": "w", "lease_for": 1.0},
    "acquire": {"owner": "w", "lease_for": 1.0},
    "wait": {"timeout": 0.0},
    "renew": {"lease_for": 1.0},
    "stale": {"older_than": 0.0},
}


async def test_every_method_refuses_after_closing(opened: Any) -> None:
    """No facet of either plane is forgotten, and an empty batch is refused too."""
    async with opened() as planes:
        pass
    refused = 0
    hot = planes.hot
    parts = [getattr(hot, name) for name in HotPlane.__annotations__]
    for part in [*parts, hot, planes.durable]:
        for name, method in inspect.getmembers(part, inspect.iscoroutinefunction):
            count = sum(
                1
                for parameter in inspect.signature(method).parameters.values()
                if parameter.default is parameter.empty
                and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            )
            arguments = _arguments(name)
            with pytest.raises(ClosedError):
                await method(
                    *([[]] * count if arguments is None else arguments),
                    **KEYWORDS.get(name, {}),
                )
            refused += 1
    assert refused > 35
    with pytest.raises(ClosedError):
        hot.signals.subscribe(["c"])


async def test_closing_ends_who_waits_and_who_listens(opened: Any, clock: ManualClock) -> None:
    """A waiter gets ClosedError, an iteration ends; others of the store go on."""
    store = MemoryStore(clock=clock)
    heard = []

    async def listen(planes: Any) -> None:
        async with planes.hot.signals.subscribe(["c"]) as signals:
            heard.extend([signal.message async for signal in signals])

    async with opened(store) as other:
        async with opened(store) as planes:
            wait = asyncio.create_task(planes.hot.broker.wait(["q"], timeout=60))
            elsewhere = asyncio.create_task(other.hot.broker.wait(["q"], timeout=60))
            listener = asyncio.create_task(listen(planes))
            await clock.elapse(0.1)
            await planes.hot.signals.publish("c", 1)
            await clock.elapse(0.1)
        with pytest.raises(ClosedError):
            await wait
        await listener
        assert [1] == heard
        assert not elsewhere.done()
        await other.hot.broker.publish("q", [Entry("a")])
        assert ["q"] == await elsewhere
    assert 0 == store.sizes()["subscribers"]


def in_child(work: Callable[[], bool]) -> bool:
    """Fork, and say whether *work* was true in the child."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if work() else 1)
    return os.waitpid(pid, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
async def test_a_forked_child_is_refused_instead_of_working_on_a_copy(opened: Any) -> None:
    """Planes and store say why in the child, and go on in the parent."""
    async with opened() as planes:
        # The lock is held as if by a thread that the child does not have.
        planes.store.lock.acquire()

        def refused() -> bool:
            try:
                planes.hot.broker.publish("q", [Entry("a")]).send(None)
            except ClosedError as error:
                first = "fork" in str(error)
            try:
                planes.store.open(Scope("a", "b"))
            except ClosedError as error:
                return first and "fork" in str(error)
            return False

        assert in_child(refused)
        planes.store.lock.release()
        await planes.hot.broker.publish("q", [Entry("a")])
        assert ["q"] == await planes.hot.broker.queues()


async def test_a_result_is_a_copy_at_every_level(opened: Any) -> None:
    """Neither what was put in nor what was given out is tied to what is stored."""
    async with opened() as planes:
        value: dict[str, Any] = {"list": [1, {"deep": [2]}], "n": 1}
        (result,) = await planes.durable.write([Insert("things", "a", value)])
        value["list"].append("mine")
        result.value["list"][1]["deep"].append("mine")
        (first,) = await planes.durable.get("things", ["a"])
        first.value["list"].clear()
        first.value["n"] = 2
        (second,) = await planes.durable.get("things", ["a"])
        assert {"list": [1, {"deep": [2]}], "n": 1} == second.value


async def test_a_record_given_out_keeps_what_was_though_it_is_read_later(
    opened: Any,
) -> None:
    """A value is decoded when it is asked for, and is still that of its read."""
    async with opened() as planes:
        await planes.durable.write([Insert("things", "a", {"n": 1})])
        (before,) = await planes.durable.get("things", ["a"])
        page = await planes.durable.query(Query(namespace="things"))
        await planes.durable.write([Delete("things", "a"), Insert("things", "a", {"n": 2})])
        assert {"n": 1} == before.value == page.items[0].value
