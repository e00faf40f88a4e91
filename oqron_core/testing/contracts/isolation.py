"""The contract of scopes: what one sees, no other does."""

from __future__ import annotations

import asyncio

from contextlib import AsyncExitStack

from oqron_core.planes import (
    MISSING,
    Delete,
    DurablePlane,
    Entry,
    FixedWindow,
    HotPlane,
    Insert,
    Patch,
    Put,
    Query,
    Scope,
    Signal,
)
from oqron_core.testing.contracts.base import Contract, fresh_scope
from oqron_core.testing.hostile import SCOPES


__all__ = ["DurableIsolationContract", "HotIsolationContract"]


def neighbours() -> list[Scope]:
    """Scopes that a careless key would mix up, unlike those of any other test."""
    mark = fresh_scope().project
    return [Scope(mark + project, environment) for project, environment in SCOPES]


class HotIsolationContract(Contract):
    """Scopes share nothing on the hot plane."""

    _wants_hot = True

    async def open_all(self, stack: AsyncExitStack) -> list[HotPlane]:
        """Open the plane once per scope, over one connection."""
        return [
            await stack.enter_async_context(self.open_hot(self.connection, scope))
            for scope in neighbours()
        ]

    async def test_queues_of_different_scopes_are_apart(self) -> None:
        """Ids, leases, pauses and purges stay where they are made."""
        async with AsyncExitStack() as stack:
            planes = await self.open_all(stack)
            for number, plane in enumerate(planes):
                await plane.broker.publish("q", [Entry("a"), Entry(f"{number}")])
            await planes[0].broker.pause("q")
            await planes[1].broker.purge("q")
            for number, plane in enumerate(planes[2:], 2):
                leases = await plane.broker.claim("q", owner="w", lease_for=30, limit=10)
                assert ["a", f"{number}"] == [lease.id for lease in leases]
                for other in (planes[number - 1], planes[0]):
                    answers = list(await other.broker.ack(leases))
                    assert not any(answers) or other is plane
            assert [] == list(await planes[1].broker.queues())
            assert (await planes[0].broker.counts("q")).ready == 2

    async def test_keys_of_different_scopes_are_apart(self) -> None:
        """Locks, counters, limits, cache and live runs."""
        limit = FixedWindow(1, per=3_600_000)
        async with AsyncExitStack() as stack:
            planes = await self.open_all(stack)
            for number, plane in enumerate(planes):
                assert await plane.locks.acquire("k", owner="w", lease_for=30) is not None
                assert number + 1 == await plane.counters.increment("k", by=number + 1)
                assert (await plane.counters.take("k", limit)).allowed
                assert await plane.cache.add("k", number)
                await plane.live.merge("k", {"n": number})
            await planes[0].cache.delete_many(["k"])
            await planes[0].live.drop(["k"])
            await planes[0].counters.reset("k")
            for number, plane in enumerate(planes[1:], 1):
                assert [number] == list(await plane.cache.get_many(["k"]))
                assert {"n": number, "logs": [], "timeline": []} == await plane.live.get("k")
                assert ["k"] == list(await plane.live.active())
                assert number + 1 == await plane.counters.get("k")
            assert [MISSING] == list(await planes[0].cache.get_many(["k"]))

    async def test_signals_of_different_scopes_are_apart(self) -> None:
        """A channel carries its scope."""
        async with AsyncExitStack() as stack:
            planes = await self.open_all(stack)
            listeners = [
                await stack.enter_async_context(plane.signals.subscribe(["c"])) for plane in planes
            ]
            for number, plane in enumerate(planes):
                await plane.signals.publish("c", number)
            for number, plane in enumerate(planes):
                await plane.signals.publish("c", -1 - number)
            for number, listener in enumerate(listeners):
                for message in (number, -1 - number):
                    heard = await asyncio.wait_for(anext(listener), 10)
                    assert Signal("c", message) == heard

    async def test_two_planes_of_one_scope_are_one(self) -> None:
        """Opening again over the same connection finds what is there."""
        async with self.open_hot(self.connection, self.scope) as other:
            await self.hot.broker.publish("q", [Entry("a")])
            [lease] = await other.broker.claim("q", owner="w", lease_for=30)

            assert [True] == list(await self.hot.broker.ack([lease]))


class DurableIsolationContract(Contract):
    """Scopes share nothing on the durable plane."""

    _wants_durable = True

    async def test_records_of_different_scopes_are_apart(self) -> None:
        """For every way to read, write, count and prune."""
        async with AsyncExitStack() as stack:
            planes: list[DurablePlane] = [
                await stack.enter_async_context(self.open_durable(self.connection, scope))
                for scope in neighbours()
            ]
            for number, plane in enumerate(planes):
                [result] = await plane.write([Insert("queue_job:q", "a", {"n": number})])
                assert result.applied
            assert [True] == [bool(r) for r in await planes[0].write([Delete("queue_job:q", "a")])]
            assert 1 == await planes[1].prune(Query(kind="job"))
            await planes[2].write([Patch("queue_job:q", "a", set={"n": -1})])
            await planes[0].write([Put("queue_job:q", "b", {})])
            for number, plane in enumerate(planes[3:], 3):
                [record] = await plane.get("queue_job:q", ["a"])
                assert record is not None
                assert {"n": number} == record.value
                assert [record] == list(await plane.query(Query(kind="job")))
                assert {"queue_job:q": 1} == await plane.count(Query(kind="job"), by="namespace")
                assert 1 == await plane.count(Query(namespace="queue_job:q"))

    async def test_two_durable_planes_of_one_scope_are_one(self) -> None:
        """Opening again over the same connection finds what is there."""
        async with self.open_durable(self.connection, self.scope) as other:
            await self.durable.write([Put("n", "a", {"x": 1})])
            [record] = await other.get("n", ["a"])

            assert record is not None
            assert {"x": 1} == record.value
