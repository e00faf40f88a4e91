"""What others wrote over our keys is data: never run, and in nobody else's way."""

from __future__ import annotations

import asyncio
import contextlib
import pickle

from pathlib import Path
from typing import Any

from oqron_core.exceptions import OqronError
from oqron_core.planes import (
    Entry,
    FixedWindow,
    Insert,
    Page,
    Patch,
    Put,
    Query,
    SlidingWindow,
    TokenBucket,
)
from oqron_core.testing.servers import RedisServer
from redis import Redis


class _Bomb:
    """Touches a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def _overwrite(url: str, bomb: bytes) -> set[str]:
    """Put the bomb into every value of the server, whatever holds it; gives their types."""
    client = Redis.from_url(url)
    kinds = set()
    for key in client.scan_iter(count=1000):
        kind = client.type(key).decode()
        kinds.add(kind)
        if kind == "string":
            client.set(key, bomb, keepttl=True)
        elif kind == "hash":
            for field in client.hkeys(key):
                client.hset(key, field, bomb)
        elif kind == "list":
            for index in range(client.llen(key)):
                client.lset(key, index, bomb)
    client.close()
    return kinds


def _calls(planes: Any, leases: Any, lock: Any) -> list[Any]:
    """Give calls that read, or write beside, everything there is."""
    hot, durable = planes.hot, planes.durable
    broker = hot.broker
    return [
        lambda: broker.counts("q"),
        lambda: broker.contains("q", ["1", "2"]),
        lambda: broker.renew(leases, lease_for=30.0),
        lambda: broker.nack(leases),
        lambda: broker.ack(leases),
        lambda: broker.reap("q"),
        lambda: broker.publish("q", [Entry("1"), Entry("9")]),
        lambda: broker.claim("q", owner="w", lease_for=30.0, limit=10),
        broker.queues,
        lambda: hot.locks.holder("k"),
        lambda: hot.locks.renew(lock, lease_for=30.0),
        lambda: hot.locks.acquire("k", owner="w", lease_for=30.0),
        lambda: hot.counters.get("n"),
        lambda: hot.counters.increment("n"),
        *[
            lambda limit=limit: hot.counters.take("ip", limit)
            for limit in (FixedWindow(5, per=60), SlidingWindow(5, per=60), TokenBucket(5, per=60))
        ],
        lambda: hot.cache.get_many(["a"]),
        lambda: hot.live.get("r"),
        lambda: hot.live.merge("r", {"x": 1}, [{"msg": "y"}]),
        hot.live.active,
        lambda: durable.get("runs", ["r"]),
        lambda: durable.query(Query(kind="run", order_by=[("startedAt", "desc")])),
        lambda: durable.count(Query(kind="run"), by="status"),
        lambda: durable.write([Patch("runs", "r", set={"x": 1}, expect={"status": "failed"})]),
        lambda: durable.prune(Query(kind="run", where=[("status", "=", "failed")])),
    ]


def _look_inside(answer: Any) -> None:
    """Decode what an answer holds; values are decoded when they are asked for."""
    if isinstance(answer, (list, tuple, Page)):
        for item in answer:
            _ = getattr(item, "value", None)


def test_a_pickle_in_every_value_is_bytes(
    open_planes: Any, own_redis: RedisServer, tmp_path: Path
) -> None:
    """Whatever reads it raises our errors alone, and what is written anew works."""
    gone_off = tmp_path / "gone-off"
    bomb = pickle.dumps(_Bomb(gone_off))

    async def scenario() -> None:
        async with open_planes(own_redis.url) as planes:
            hot, durable = planes.hot, planes.durable
            await hot.broker.publish("q", [Entry("1"), Entry("2"), Entry("3", due_at=2**42)])
            leases = await hot.broker.claim("q", owner="w", lease_for=30.0)
            lock = await hot.locks.acquire("k", owner="w", lease_for=30.0)
            await hot.counters.increment("n", expires_in=30.0)
            for limit in (FixedWindow(5, per=60), SlidingWindow(5, per=60), TokenBucket(5, per=60)):
                await hot.counters.take("ip", limit)
            await hot.cache.set_many({"a": [1]}, ttl=30.0)
            await hot.live.merge("r", {"status": "running"}, [{"msg": "x"}], [{"to": "running"}])
            run = {"status": "failed", "startedAt": 1, "logs": [1]}
            await durable.write([Put("runs", "r", run), Insert("queue_job:q", "1", {"x": 1})])
            kinds = await asyncio.to_thread(_overwrite, own_redis.url, bomb)
            assert {"string", "hash"} <= kinds

            refused = 0
            for call in _calls(planes, leases, lock):
                try:
                    _look_inside(await call())
                except OqronError:
                    refused += 1
            assert refused > 0
            with contextlib.suppress(OqronError):
                await durable.write([Put("runs", "r", run)])

            await hot.broker.publish("other", [Entry("1")])
            [lease] = await hot.broker.claim("other", owner="w", lease_for=30.0)
            assert [True] == list(await hot.broker.ack([lease]))
            await durable.write([Put("n", "a", {"x": 1})])
            [record] = await durable.get("n", ["a"])
            assert {"x": 1} == record.value

    asyncio.run(scenario())
    assert not gone_off.exists()
    pickle.loads(bomb)  # noqa: S301 - to see that it would have gone off
    assert gone_off.exists()
