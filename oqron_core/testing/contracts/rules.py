"""The contract of every plane as such: identity, clock, health, closing."""

from __future__ import annotations

import asyncio

from typing import Any, ClassVar

import pytest

from oqron_core.exceptions import ClosedError, OqronError
from oqron_core.planes import (
    CONTRACT_VERSION,
    Broker,
    Cache,
    Capabilities,
    Counters,
    Delete,
    Durability,
    DurablePlane,
    Entry,
    FixedWindow,
    Health,
    HotPlane,
    Lease,
    LiveChange,
    LiveRuns,
    Locks,
    Put,
    Query,
    Signals,
)
from oqron_core.testing.contracts.base import Contract, gather, requires


__all__ = ["DurableRulesContract", "HotRulesContract"]

LATEST = 4_102_444_800_000
"""The year 2100: no clock of a test is beyond."""


def check_capabilities(capabilities: Capabilities, backend: str) -> None:
    """Refuse limits that promise less than the contract."""
    assert backend == capabilities.backend
    assert isinstance(capabilities.durability, Durability)
    assert capabilities.clock in {"process", "server"}
    assert capabilities.atomic_scope in {"scope", "namespace"}
    assert capabilities.max_batch >= 1
    assert capabilities.max_value_bytes >= 1024
    assert capabilities.max_name_bytes >= 512
    assert 0 < capabilities.min_lease_for <= 0.05


class HotRulesContract(Contract):
    """What every hot plane must be."""

    _wants_hot: ClassVar[bool] = True

    async def test_the_backend_is_of_this_contract(self) -> None:
        """Its name and version are those it is opened by."""
        backend = self.load().backend

        assert (self.backend, CONTRACT_VERSION) == (backend.name, backend.contract_version)

    async def test_a_hot_plane_is_what_it_says(self) -> None:
        """Six facets, the scope it was opened for, honest capabilities."""
        assert isinstance(self.hot, HotPlane)
        assert self.scope == self.hot.scope
        check_capabilities(self.hot.capabilities, self.backend)
        for facet, kind in (
            (self.hot.broker, Broker),
            (self.hot.locks, Locks),
            (self.hot.counters, Counters),
            (self.hot.cache, Cache),
            (self.hot.live, LiveRuns),
            (self.hot.signals, Signals),
        ):
            assert isinstance(facet, kind)

    async def test_the_hot_clock_runs_forward(self) -> None:
        """Milliseconds since the epoch, as an int."""
        times = []
        for _ in range(5):
            times.append(await self.hot.now())
            await self.elapse(0.01)

        assert {int} == {type(now) for now in times}
        assert sorted(times) == times
        assert times[-1] > times[0]
        assert 1_500_000_000_000 < times[0] < LATEST

    async def test_a_hot_plane_that_serves_is_healthy(self) -> None:
        """And says so."""
        health = await self.hot.check()

        assert isinstance(health, Health)
        assert health.ok, health.reasons

    async def test_a_closed_hot_plane_refuses_every_call(self) -> None:
        """With one typed error, whatever is called."""
        async with self.open_hot(self.connection, self.scope) as hot:
            await hot.broker.publish("q", [Entry("a")])
        lease = Lease("q", "a", "w", 1, await self.hot.now() + 30_000)
        calls: tuple[Any, ...] = (
            lambda: hot.broker.publish("q", [Entry("b")]),
            lambda: hot.broker.claim("q", owner="w", lease_for=30),
            lambda: hot.broker.wait(["q"], timeout=0),
            lambda: hot.broker.renew([lease], lease_for=30),
            lambda: hot.broker.ack([lease]),
            lambda: hot.broker.nack([lease]),
            lambda: hot.broker.remove("q", ["a"]),
            lambda: hot.broker.contains("q", ["a"]),
            lambda: hot.broker.counts("q"),
            hot.broker.queues,
            lambda: hot.broker.purge("q"),
            lambda: hot.broker.pause("q"),
            lambda: hot.broker.resume("q"),
            lambda: hot.broker.reap("q"),
            lambda: hot.broker.restore("q", [lease]),
            lambda: hot.locks.acquire("k", owner="w", lease_for=30),
            lambda: hot.locks.renew(lease, lease_for=30),
            lambda: hot.locks.release(lease),
            lambda: hot.locks.holder("k"),
            lambda: hot.counters.increment("k"),
            lambda: hot.counters.get("k"),
            lambda: hot.counters.reset("k"),
            lambda: hot.counters.take("k", FixedWindow(1, per=1)),
            lambda: hot.cache.get_many(["k"]),
            lambda: hot.cache.set_many({"k": 1}),
            lambda: hot.cache.add("k", 1),
            lambda: hot.cache.delete_many(["k"]),
            lambda: hot.live.merge("r", {}),
            lambda: hot.live.merge_many([LiveChange("r")]),
            lambda: hot.live.get("r"),
            lambda: hot.live.get_many(["r"]),
            lambda: hot.live.drop(["r"]),
            hot.live.active,
            lambda: hot.live.stale(older_than=0),
            lambda: hot.signals.publish("c", 1),
            lambda: hot.signals.subscribe(["c"]).__aenter__(),
            hot.now,
        )
        for number, call in enumerate(calls):
            try:
                await call()
            except ClosedError:
                continue
            pytest.fail(f"call {number} does not raise ClosedError on a closed plane")

        assert (await self.hot.broker.counts("q")).ready == 1

    async def test_closing_ends_who_waits(self) -> None:
        """A listener's iteration ends; a waiter returns or is told."""
        opened = self.open_hot(self.connection, self.scope)
        hot = await opened.__aenter__()
        subscription = hot.signals.subscribe(["c"])
        messages = await subscription.__aenter__()

        async def listen() -> list[Any]:
            return [message async for message in messages]

        async def wait() -> None:
            try:
                await hot.broker.wait(["q"], timeout=30)
            except ClosedError:
                return

        tasks = [asyncio.create_task(listen()), asyncio.create_task(wait())]
        await self.settle()
        await opened.__aexit__(None, None, None)

        assert [[], None] == await asyncio.wait_for(asyncio.gather(*tasks), 10)
        await subscription.__aexit__(None, None, None)

    async def test_closing_leaves_no_task_behind(self) -> None:
        """Opening and closing often costs nothing that stays."""
        before = asyncio.all_tasks()
        for _ in range(5):
            async with self.open_hot(self.connection, self.scope) as hot:
                await hot.broker.wait(["q"], timeout=0)
                async with hot.signals.subscribe(["c"]):
                    await hot.signals.publish("c", 1)
        await self.settle()

        assert before == asyncio.all_tasks()

    async def test_cancelling_anywhere_leaves_a_working_hot_plane(self) -> None:
        """No reply goes astray, no connection is lost, nothing stays locked."""
        for steps in range(40):
            tasks = [
                asyncio.create_task(call)
                for call in (
                    self.hot.counters.increment("cancelled"),
                    self.hot.cache.set_many({"cancelled": steps}),
                    self.hot.locks.acquire(f"cancelled{steps}", owner="w", lease_for=0.05),
                    self.hot.broker.publish("cancelled", [Entry(f"{steps}")]),
                    self.hot.live.merge("cancelled", {"n": steps}),
                )
            ]
            for _ in range(steps % 8):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for number in range(50):
            await self.hot.cache.set_many({f"{number}": number})
        answers = await gather(self.hot.cache.get_many([f"{n}"]) for n in range(50))

        assert [[number] for number in range(50)] == [list(answer) for answer in answers]

    @requires("hot.shared")
    async def test_two_connections_share_the_hot_plane(self) -> None:
        """What one process publishes, another claims, and is woken for."""
        async with self.connect() as connection, self.open_hot(connection, self.scope) as other:
            waiting = asyncio.ensure_future(other.broker.wait(["q"], timeout=30))
            await self.settle()
            await self.hot.broker.publish("q", [Entry("a")])
            assert ["q"] == list(await asyncio.wait_for(waiting, 10))
            [lease] = await other.broker.claim("q", owner="w", lease_for=30)
            assert [True] == list(await self.hot.broker.ack([lease]))
            async with other.signals.subscribe(["c"]) as messages:
                await self.hot.signals.publish("c", 1)
                assert 1 == (await asyncio.wait_for(anext(messages), 10)).message


class DurableRulesContract(Contract):
    """What every durable plane must be."""

    _wants_durable: ClassVar[bool] = True

    async def test_a_durable_plane_is_what_it_says(self) -> None:
        """The scope it was opened for, honest capabilities."""
        assert isinstance(self.durable, DurablePlane)
        assert self.scope == self.durable.scope
        check_capabilities(self.durable.capabilities, self.backend)
        assert self.durable.capabilities.max_atomic_batch >= 10_000

    async def test_the_durable_clock_runs_forward(self) -> None:
        """Milliseconds since the epoch, as an int."""
        times = []
        for _ in range(5):
            times.append(await self.durable.now())
            await self.elapse(0.01)

        assert {int} == {type(now) for now in times}
        assert sorted(times) == times
        assert times[-1] > times[0]
        assert 1_500_000_000_000 < times[0] < LATEST

    async def test_a_durable_plane_that_serves_is_healthy(self) -> None:
        """And says so."""
        health = await self.durable.check()

        assert isinstance(health, Health)
        assert health.ok, health.reasons

    async def test_a_closed_durable_plane_refuses_every_call(self) -> None:
        """With one typed error, whatever is called."""
        async with self.open_durable(self.connection, self.scope) as durable:
            await durable.write([Put("n", "a", {})])
        query = Query(namespace="n")
        calls: tuple[Any, ...] = (
            lambda: durable.get("n", ["a"]),
            lambda: durable.write([Delete("n", "a")]),
            lambda: durable.query(query),
            lambda: durable.count(query),
            lambda: durable.count(query, by="namespace"),
            lambda: durable.prune(query),
            lambda: durable.prunable(query),
            durable.now,
        )
        for call in calls:
            with pytest.raises(ClosedError):
                await call()

        assert 1 == await self.durable.count(query)

    async def test_cancelling_anywhere_leaves_a_working_durable_plane(self) -> None:
        """Each batch is there whole or not at all, and every answer is one's own."""
        atomic = self.durable.capabilities.atomic
        for steps in range(40):
            pair = [Put("n", f"{steps}-{half}", {"n": steps}) for half in "ab"]
            task = asyncio.ensure_future(self.durable.write(pair, atomic=atomic))
            for _ in range(steps % 10):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        ids = [f"{steps}-{half}" for steps in range(40) for half in "ab"]
        found = await self.durable.get("n", ids)
        if atomic:
            for first, second in zip(found[::2], found[1::2], strict=True):
                assert (first is None) is (second is None)
        await self.durable.write([Put("n", id, {"id": id}) for id in ids])  # noqa: A001
        answers = await gather(self.durable.get("n", [id]) for id in ids)  # noqa: A001

        assert ids == [record.value["id"] for [record] in answers if record is not None]

    async def test_errors_are_the_contracts_own(self) -> None:
        """What a caller does wrong is never a driver's error."""
        for call in (
            lambda: self.durable.get("", ["a"]),
            lambda: self.durable.prune(Query(namespace="n"), limit=0),
            lambda: self.durable.query(Query(namespace="n", after="?")),
        ):
            with pytest.raises(OqronError):
                await call()

    @requires("durable.shared")
    async def test_two_connections_share_the_durable_plane(self) -> None:
        """What one process writes, another reads."""
        async with (
            self.connect() as connection,
            self.open_durable(connection, self.scope) as other,
        ):
            await self.durable.write([Put("n", "a", {"x": 1})])
            [record] = await other.get("n", ["a"])

            assert record is not None
            assert {"x": 1} == record.value
