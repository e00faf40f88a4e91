"""Indexes: equal to the records whatever happens, and enough for the services' queries."""

from __future__ import annotations

import asyncio
import random
import re

from typing import Any

from oqron_core.planes import Delete, Entry, Insert, Patch, Put, Query
from oqron_core.taxonomy import RecordKind, classify_namespace
from oqron_core.testing.servers import RedisServer
from oqron_redis._records import (
    META,
    equal_part,
    indexes_of,
    stored_of,
    time_part,
    unpacked,
)


NAMESPACES = ("queue_job:q", "queue_job:r", "runs", "topic_msg:t", "queue_dlq:q", "custom")


async def members(planes: Any, key: bytes) -> set[bytes]:
    """Give the members of a sorted set."""
    found = await planes.store.command(b"ZRANGE", key, 0, -1, key=key)
    return set(found)


async def check_indexes(planes: Any, ids: list[str]) -> None:
    """Build every index anew from the records, and compare."""
    keys = planes.durable._session.keys
    used: dict[str, set[bytes]] = {}
    for namespace in NAMESPACES:
        kind = classify_namespace(namespace)
        records: dict[bytes, dict[bytes, bytes]] = {}
        for id_ in ids:
            key = keys.records(namespace) + id_.encode()
            flat = await planes.store.command(b"HGETALL", key, key=key)
            if flat:
                meta, texts = stored_of(flat)
                records[id_.encode()] = {**unpacked(texts), META: meta}
        for index in indexes_of(kind):
            expected = set()
            for name, fields in records.items():
                parts = [name]
                if index.time:
                    parts.insert(0, time_part(fields.get(index.time.encode())))
                if index.equal:
                    parts.insert(0, equal_part(fields.get(index.equal.encode())))
                expected.add(b"\0".join(parts))
            assert await members(planes, keys.index(index.tag, namespace)) == expected
        expiring = {name for name, fields in records.items() if b":" in fields[META]}
        assert await members(planes, keys.expiry(namespace)) == expiring
        if records:
            used.setdefault(kind, set()).add(namespace.encode())
    for kind in RecordKind:
        assert await members(planes, keys.namespaces(kind)) == used.get(kind, set())


def _value(dice: random.Random) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for name in ("status", "name", "module"):
        if dice.random() < 0.8:
            value[name] = dice.choice(["waiting", "active", "done", 1, None, [1], "x" * 300, ""])
    for name in ("startedAt", "publishedAt"):
        if dice.random() < 0.8:
            value[name] = dice.choice([1, 2, 10**12, None, "soon", 1.5, -1, {}])
    return value


def _write(dice: random.Random, ids: list[str], now: int) -> Any:
    namespace, id_ = dice.choice(NAMESPACES), dice.choice(ids)
    expires = dice.choice([None, None, now - 5, now + 10**9])
    kind = dice.randrange(5)
    if kind == 0:
        return Put(namespace, id_, _value(dice), expires)
    if kind == 1:
        return Insert(namespace, id_, _value(dice), expires)
    if kind == 2:
        return Delete(namespace, id_)
    value = _value(dice)
    unset = [name for name in ("status", "startedAt") if name not in value]
    more: dict[str, Any] = {} if kind == 3 else {"expires_at": expires}
    if dice.random() < 0.3:
        more["increment"] = {"startedAt": 1} if "startedAt" not in value else {"n": 1}
        unset = [name for name in unset if name not in more["increment"]]
    return Patch(namespace, id_, set=value, unset=unset, **more)


def test_indexes_equal_the_records_after_any_writes(
    open_planes: Any, own_redis: RedisServer
) -> None:
    """Single, batched and atomic writes, applied or refused, expiry and prune."""

    async def scenario() -> None:
        dice = random.Random(3)
        ids = [f"id{n}" for n in range(6)]
        async with open_planes(own_redis.url) as planes:
            durable = planes.durable
            for round_ in range(150):
                now = await durable.now()
                writes = [_write(dice, ids, now) for _ in range(dice.randrange(1, 12))]
                atomic = dice.random() < 0.5
                returning = dice.choice([None, (), ("status",)])
                try:
                    await durable.write(writes, atomic=atomic, returning=returning)
                except Exception as error:  # noqa: BLE001 - only the refusal is expected
                    assert type(error).__name__ == "ConflictError"
                if round_ % 10 == 0:
                    await durable.prune(
                        Query(kind=dice.choice(["job", "run"]), where=[("expires_at", "<=", now)])
                    )
                if round_ % 15 == 0:
                    await durable.prune(
                        Query(namespace="runs", where=[("status", "=", "done")]), limit=2
                    )
                if round_ % 5 == 0:
                    await check_indexes(planes, ids)
            await check_indexes(planes, ids)

    asyncio.run(scenario())


def commands(server: RedisServer) -> int:
    """Give how many commands ran since the last time, those inside scripts included."""
    stats = str(server.command("INFO", "commandstats"))
    server.command("CONFIG", "RESETSTAT")
    calls = re.findall(r"cmdstat_(\S+?):calls=(\d+)", stats)
    return sum(int(count) for name, count in calls if name not in {"info", "config|resetstat"})


def test_the_services_queries_read_no_more_than_they_show(
    open_planes: Any, own_redis: RedisServer
) -> None:
    """Pages and counts cost the same at any depth."""

    async def scenario() -> None:
        async with open_planes(own_redis.url) as planes:
            durable = planes.durable
            jobs = [
                Insert(
                    "queue_job:q", f"{n:05}", {"status": "failed" if n % 100 == 0 else "waiting"}
                )
                for n in range(5000)
            ]
            runs = [
                Insert(
                    "runs", f"{n:05}",
                    {
                        "status": "failed" if n % 100 == 0 else "completed", "startedAt": n,
                        "name": f"n{n % 50}", "module": "cron" if n % 200 == 0 else "queue",
                    },
                )
                for n in range(5000)
            ]  # fmt: skip
            await durable.write([*jobs, *runs], returning=())
            commands(own_redis)
            queue: dict[str, Any] = {"namespace": "queue_job:q", "limit": 20}
            latest: dict[str, Any] = {
                "kind": "run",
                "limit": 20,
                "order_by": [("startedAt", "desc")],
            }
            for query, first in (
                ({**queue, "where": [("status", "=", "failed")]}, "00000"),
                (
                    {**queue, "where": [("status", "=", "failed")], "order_by": [("id", "desc")]},
                    "04900",
                ),
                (queue, "00000"),
                ({**queue, "order_by": [("id", "desc")]}, "04999"),
                (latest, "04999"),
                ({**latest, "where": [("status", "=", "failed")]}, "04900"),
                ({**latest, "where": [("name", "=", "n7")]}, "04957"),
                ({**latest, "where": [("module", "=", "cron")]}, "04800"),
                ({**latest, "where": [("startedAt", ">=", 4990)]}, "04999"),
                ({**latest, "where": [("startedAt", "<", 10)]}, "00009"),
                (
                    {**latest, "where": [("status", "=", "failed"), ("startedAt", ">=", 1000)]},
                    "04900",
                ),
            ):
                page = await durable.query(Query(**query))
                assert page.items[0].id == first, query
                assert commands(own_redis) < 120, query
                if page.next is not None:
                    await durable.query(Query(**query, after=page.next))
                    assert commands(own_redis) < 120, query
            assert await durable.count(Query(namespace="queue_job:q"), by="status") == {
                "failed": 50,
                "waiting": 4950,
            }
            assert await durable.count(Query(kind="run", where=[("status", "=", "failed")])) == 50
            assert await durable.count(Query(kind="job"), by="namespace") == {"queue_job:q": 5000}
            assert commands(own_redis) < 60

    asyncio.run(scenario())


def test_pruning_by_expiry_reads_what_has_expired(open_planes: Any, own_redis: RedisServer) -> None:
    """Not what will be kept, and in bounded steps."""

    async def scenario() -> None:
        async with open_planes(own_redis.url) as planes:
            durable = planes.durable
            now = await durable.now()
            await durable.write(
                [
                    Insert("runs", f"{n:05}", {"n": n}, now - 1 if n % 50 == 0 else now + 10**9)
                    for n in range(5000)
                ],
                returning=(),
            )
            commands(own_redis)
            query = Query(kind="run", where=[("expires_at", "<=", now)])
            assert await durable.prune(query, limit=60) == 60
            assert await durable.prune(query, limit=60) == 40
            assert await durable.prune(query, limit=60) == 0
            assert commands(own_redis) < 2000
            assert await durable.count(Query(kind="run")) == 4900

    asyncio.run(scenario())


def test_ids_without_a_record_are_skipped_and_mended(
    open_planes: Any, own_redis: RedisServer
) -> None:
    """Somebody else deleted records: pages and prunes go on, and the index heals."""

    async def scenario() -> None:
        async with open_planes(own_redis.url) as planes:
            durable = planes.durable
            now = await durable.now()
            await durable.write(
                [
                    Insert("runs", f"{n:02}", {"startedAt": n, "status": "x"}, now + 10**9)
                    for n in range(60)
                ]
            )
            keys = durable._session.keys
            for n in range(0, 60, 2):
                own_redis.command("DEL", (keys.records("runs") + b"%02d" % n).decode())
            left = [f"{n:02}" for n in range(1, 60, 2)]
            page = await durable.query(Query(namespace="runs", limit=100))
            assert [record.id for record in page] == left
            query = Query(namespace="runs", limit=100, order_by=[("startedAt", "desc")])
            page = await durable.query(query)
            assert [record.id for record in page] == left[::-1]
            assert await durable.count(Query(namespace="runs")) == 30
            expired = Query(namespace="runs", where=[("expires_at", "<=", now + 10**9)])
            assert await durable.prune(expired) == 30
            key = keys.expiry("runs")
            assert await planes.store.command(b"ZCARD", key, key=key) == 0
            jobs = [Insert("queue_job:q", str(n), {"status": "waiting"}) for n in range(9)]
            await durable.write(jobs)
            own_redis.command("DEL", (keys.records("queue_job:q") + b"4").decode())
            page = await durable.query(Query(namespace="queue_job:q"))
            assert [record.id for record in page] == [*"01235678"]
            counts = await durable.count(Query(namespace="queue_job:q"), by="status")
            assert counts == {"waiting": 8}
            assert all(await durable.write([Insert("queue_job:q", "4", {"status": "active"})]))

    asyncio.run(scenario())


def test_a_ghost_in_the_broker_is_handed_to_nobody(
    open_planes: Any, own_redis: RedisServer
) -> None:
    """An id that has a place and no state is dropped on the way."""

    async def scenario() -> None:
        async with open_planes(own_redis.url) as planes:
            broker = planes.hot.broker
            await broker.publish("q", [Entry("1"), Entry("2"), Entry("3", due_at=1)])
            queue = planes.hot.broker._session.keys.queue("q")
            own_redis.command("HDEL", queue.ids.decode(), "1", "3")
            leases = await broker.claim("q", owner="w", lease_for=60.0, limit=5)
            assert [lease.id for lease in leases] == ["2"]
            assert await broker.counts("q") == await broker.counts("q")
            assert (await broker.counts("q")).ready == 0

    asyncio.run(scenario())
