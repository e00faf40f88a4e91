"""A cluster of three nodes: where keys are, and slots that move."""

from __future__ import annotations

import asyncio
import gc

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redis.asyncio import RedisCluster
from redis.crc import key_slot

from oqron_core.exceptions import ConflictError, StorageError, UnavailableError
from oqron_core.planes import Delete, Entry, Insert, Patch, Put, Query
from oqron_core.testing import servers
from oqron_core.testing.servers import RedisServer


@pytest.fixture(params=["cluster", "valkey_cluster"], ids=["redis", "valkey"])
def any_cluster(request: pytest.FixtureRequest) -> servers.RedisCluster:
    """Give a cluster of Redis and one of Valkey in turn."""
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


def owner_of(cluster: servers.RedisCluster, slot: int) -> RedisServer:
    """Give the node that serves a slot."""
    for node in cluster.nodes:
        try:
            node.command("CLUSTER", "COUNTKEYSINSLOT", slot)
            node.command("GET", _key_in(slot))
        except servers.ServerError:
            continue
        return node
    raise AssertionError(slot)


def _key_in(slot: int) -> str:
    number = 0
    while key_slot(str(number).encode()) != slot:
        number += 1
    return str(number)


def move(cluster: servers.RedisCluster, slot: int) -> None:
    """Move a slot with all its keys to another node."""
    source = owner_of(cluster, slot)
    target = next(node for node in cluster.nodes if node is not source)
    target_id, source_id = (str(node.command("CLUSTER", "MYID")) for node in (target, source))
    target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
    source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
    keys = source.command("CLUSTER", "GETKEYSINSLOT", slot, 1000)
    assert isinstance(keys, list)
    if keys:
        names = [str(key) for key in keys]
        source.command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *names)
    for node in cluster.nodes:
        node.command("CLUSTER", "SETSLOT", slot, "NODE", target_id)


def test_queues_spread_over_the_nodes(open_planes: Any, any_cluster: servers.RedisCluster) -> None:
    """And all of them are named and counted."""

    async def scenario() -> None:
        async with open_planes(any_cluster.url, cluster=True) as planes:
            broker = planes.hot.broker
            names = [f"queue-{n}" for n in range(30)]
            for name in names:
                await broker.publish(name, [Entry("1")])
            assert set(await broker.queues()) == set(names)
            found = await broker.wait(names, timeout=1.0)
            assert set(found) == set(names)
            leases = [await broker.claim(name, owner="w", lease_for=30.0) for name in names]
            assert all(await broker.ack([lease for (lease,) in leases]))
            assert await broker.queues() == []

    asyncio.run(scenario())
    sizes = [node.command("DBSIZE") for node in any_cluster.nodes]
    assert all(int(size) > 0 for size in sizes)  # type: ignore[arg-type]


def test_calls_follow_a_slot_that_moves(
    open_planes: Any, any_cluster: servers.RedisCluster
) -> None:
    """Before, and after; nothing is lost and nobody has to open anew."""

    async def scenario() -> None:
        async with open_planes(any_cluster.url, cluster=True) as planes:
            hot, durable = planes.hot, planes.durable
            await hot.broker.publish("q", [Entry(str(n)) for n in range(20)])
            held = await hot.broker.claim("q", owner="w", lease_for=60.0, limit=5)
            await durable.write([Put("n", str(n), {"n": n}) for n in range(20)])
            for place in (
                hot.broker._session.keys.queue("q").ready,
                durable._session.keys.records("n"),
            ):
                await asyncio.to_thread(move, any_cluster, key_slot(place))
            leases = await hot.broker.claim("q", owner="w", lease_for=60.0, limit=20)
            assert len(leases) == 15
            assert all(await hot.broker.ack([*held, *leases]))
            assert all(await durable.write([Patch("n", "1", set={"x": 1})]))
            page = await durable.query(Query(namespace="n", limit=50))
            assert len(page) == 20
            sums = await asyncio.gather(*(hot.counters.increment("c") for _ in range(50)))
            assert sorted(sums) == [*range(1, 51)]

    asyncio.run(scenario())


def test_any_records_of_a_scope_share_an_atomic_write(
    open_planes: Any, any_cluster: servers.RedisCluster
) -> None:
    """As the capabilities say: all kinds, all namespaces, all or none."""

    async def scenario() -> None:
        async with open_planes(any_cluster.url, cluster=True) as planes:
            durable = planes.durable
            assert durable.capabilities.atomic_scope == "scope"
            batch = [
                Insert("cron", "nightly", {"nextRunAt": 1}),
                Insert("queue_job:reports", "1", {"status": "waiting"}),
                Insert("topic_msg:t", "1", {"publishedAt": 1}),
                Insert("runs", "1", {"status": "queued"}),
            ]
            assert all(await durable.write(batch, atomic=True))
            moved = [Delete("queue_job:reports", "1"), Insert("queue_dlq:reports", "1", {})]
            assert all(await durable.write(moved, atomic=True))
            with pytest.raises(ConflictError):
                await durable.write([Insert("queue_job:reports", "2", {}), *batch], atomic=True)
            assert await durable.get("queue_job:reports", ["2"]) == [None]

    asyncio.run(scenario())


@pytest.mark.parametrize("decode_responses", [True, False])
def test_a_ready_cluster_client_serves(
    open_planes: Any, any_cluster: servers.RedisCluster, decode_responses: bool
) -> None:
    """Of either decoding."""

    async def scenario() -> None:
        client = RedisCluster.from_url(any_cluster.url, decode_responses=decode_responses)
        async with open_planes(client=client) as planes:
            await planes.hot.broker.publish("q", [Entry("é")])
            (lease,) = await planes.hot.broker.claim("q", owner="w", lease_for=30.0)
            assert lease.id == "é"
            await planes.hot.broker.ack([lease])
        await client.aclose()

    asyncio.run(scenario())


def test_a_cluster_that_was_not_declared_says_so(
    open_planes: Any, any_cluster: servers.RedisCluster
) -> None:
    """The error names the setting, or the call is served by the node that has the slot."""

    async def scenario() -> None:
        async with open_planes(any_cluster.url) as planes:
            refused = 0
            for n in range(30):
                try:
                    await planes.hot.broker.publish(f"q{n}", [Entry("1")])
                except StorageError:
                    refused += 1
            assert refused == 30

    asyncio.run(scenario())


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("version", ["", "valkey-"], ids=["redis", "valkey"])
def test_a_node_that_is_away_is_a_typed_error_and_then_served_again(
    open_planes: Any, find_binary: Callable[[str], Path], version: str
) -> None:
    """In bounded time, and the other nodes' queues go on as far as the cluster lets them."""

    async def scenario(cluster: servers.RedisCluster) -> None:
        settings = {"cluster": True, "timeout": 2.0, "connect_timeout": 0.5, "retries": 0}
        async with open_planes(cluster.url, **settings) as planes:
            broker = planes.hot.broker
            await broker.publish("q", [Entry("1")])
            place = broker._session.keys.queue("q").ready
            node = await asyncio.to_thread(owner_of, cluster, key_slot(place))
            node.kill()
            async with asyncio.timeout(20):
                with pytest.raises(UnavailableError):
                    await broker.publish("q", [Entry("2")])
            node.start()
            async with asyncio.timeout(30):
                while True:
                    try:
                        await broker.publish("q", [Entry("3")])
                        break
                    except UnavailableError:
                        await asyncio.sleep(0.2)
            assert await broker.contains("q", ["3"]) == [True]

    with servers.redis_cluster(binary=find_binary(version)) as cluster:
        asyncio.run(scenario(cluster))
    # redis-py drops the connections of a discovery that failed without closing them:
    # they are collected here, and not in the middle of another test.
    gc.collect()
