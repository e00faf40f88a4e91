"""Records as Redis holds them: texts that no script ever touches."""

from __future__ import annotations

import asyncio
import json

from typing import Any

import orjson
import pytest

from oqron_core.exceptions import ConflictError, InvalidValueError
from oqron_core.planes import MISSING, Delete, Insert, Json, Patch, Put, Query
from oqron_core.taxonomy import classify_namespace
from oqron_core.testing.hostile import NAMES, VALUES
from oqron_core.testing.servers import RedisServer
from oqron_redis._records import stored_of, unpacked
from redis import Redis


def stored(server: RedisServer, plane: Any, namespace: str, id_: str) -> dict[str, str]:
    """Give the texts of the fields of a record as Redis holds them."""
    client = Redis.from_url(server.url)
    found = client.hgetall(plane._session.keys.records(namespace) + id_.encode())
    client.close()
    _, texts = stored_of([word for pair in found.items() for word in pair])
    return {name.decode(): text.decode() for name, text in unpacked(texts).items()}


def test_untouched_fields_stay_byte_equal(open_planes: Any, redis: RedisServer) -> None:
    """Whatever a field holds, changing its neighbours leaves its bytes alone."""

    async def scenario() -> None:
        async with open_planes(redis.url) as planes:
            durable = planes.durable
            value = {f"v{n}": item for n, item in enumerate(VALUES)}
            await durable.write([Put("n", "1", {**value, "count": 1, "logs": []})])
            before = stored(redis, durable, "n", "1")
            patch = Patch(
                "n", "1", set={"status": "x"}, unset=["gone"], increment={"count": 2**40},
                append={"logs": [{"a": []}, {}]}, expect={"count": 1},
            )  # fmt: skip
            (result,) = await durable.write([patch])
            assert result.applied
            after = stored(redis, durable, "n", "1")
            for name in value:
                assert after[name] == before[name], name
            assert after["logs"] == '[{"a":[]},{}]'
            assert after["count"] == str(2**40 + 1)

    asyncio.run(scenario())


def test_a_payload_keeps_the_bytes_it_was_encoded_to(open_planes: Any, redis: RedisServer) -> None:
    """A value that is encoded already is stored as it is, key order included."""

    async def scenario() -> None:
        async with open_planes(redis.url) as planes:
            text = b'{"b":[],"a":{},"n":9007199254740993,"f":1.10,"e":"\\u00e9"}'
            await planes.durable.write([Put("n", "1", {"data": Json(text), "id": "1"})])
            assert stored(redis, planes.durable, "n", "1")["data"] == text.decode()
            (record,) = await planes.durable.get("n", ["1"])
            assert record.encoded("data").data == text
            assert record.value["data"] == json.loads(text)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (b" [1 , 2 ] ", "[1,2]"),
        (b"[ ]", "[]"),
        (b' "\\u0041" ', '"A"'),
        (b"1.0", "1"),
        (b"-0", "0"),
    ],
)
def test_texts_of_others_are_made_fit(
    open_planes: Any, redis: RedisServer, given: bytes, expected: str
) -> None:
    """White space and other spellings do not break appends and guards."""

    async def scenario() -> None:
        async with open_planes(redis.url) as planes:
            durable = planes.durable
            await durable.write([Put("n", "1", {"v": Json(given)})])
            value = json.loads(given)
            patch = Patch("n", "1", set={"ok": True}, expect={"v": value})
            assert all(await durable.write([patch]))
            if isinstance(value, list):
                assert all(await durable.write([Patch("n", "1", append={"v": [[], {}]})]))
                (record,) = await durable.get("n", ["1"])
                assert record.value["v"] == [*value, [], {}]
            else:
                assert stored(redis, durable, "n", "1")["v"] == expected

    asyncio.run(scenario())


def test_guards_on_lists_and_objects_compare_meaning(open_planes: Any, redis: RedisServer) -> None:
    """Key order and spelling do not matter; contents do; atomic batches included."""

    async def scenario() -> None:
        async with open_planes(redis.url) as planes:
            durable = planes.durable
            value = {"tags": ["a", 1.0], "opts": {"b": 1, "a": {"y": 2, "x": []}}}
            await durable.write([Put("n", "1", value)])
            same = {"opts": {"a": {"x": [], "y": 2.0}, "b": 1}, "tags": ["a", 1]}
            assert all(await durable.write([Patch("n", "1", set={"k": 1}, expect=same)]))
            assert all(
                await durable.write(
                    [Insert("n", "2", {}), Patch("n", "1", set={"k": 2}, expect=same)], atomic=True
                )
            )
            others: list[dict[str, Any]] = [
                {"opts": {}}, {"tags": []}, {"tags": {}}, {"tags": ["a"]}, {"tags": MISSING},
                {"opts": {"b": 1, "a": {"y": 2, "x": {}}}}, {"opts": None},
            ]  # fmt: skip
            for other in others:
                (result,) = await durable.write([Patch("n", "1", set={"k": 3}, expect=other)])
                assert not result.applied
                assert result.value is not None
                with pytest.raises(ConflictError):
                    await durable.write(
                        [Insert("n", "3", {}), Delete("n", "1", expect=other)], atomic=True
                    )
            assert await durable.get("n", ["3"]) == [None]
            assert all(await durable.write([Delete("n", "1", expect=same)]))

    asyncio.run(scenario())


def test_counters_in_records_keep_64_bits(open_planes: Any, redis: RedisServer) -> None:
    """Sums beyond what a double holds are exact; what leaves 64 bits changes nothing."""

    async def scenario() -> None:
        async with open_planes(redis.url) as planes:
            durable = planes.durable
            await durable.write([Put("n", "1", {"a": 2**53 + 1, "b": 2**63 - 1, "c": "x"})])
            (result,) = await durable.write([Patch("n", "1", increment={"a": 2**61, "new": -5})])
            assert result.value["a"] == 2**53 + 1 + 2**61
            assert result.value["new"] == -5
            for increment in ({"a": 1, "b": 1}, {"a": 1, "c": 1}, {"d": 1, "b": 1}):
                (result,) = await durable.write([Patch("n", "1", increment=increment)])
                assert not result.applied
                assert result.value["a"] == 2**53 + 1 + 2**61
                assert "d" not in result.value
            low = -(2**63)
            (result,) = await durable.write([Patch("n", "1", increment={"e": low, "b": 1})])
            assert not result.applied
            (result,) = await durable.write([Patch("n", "1", increment={"e": low})])
            assert result.value["e"] == low

    asyncio.run(scenario())


def test_an_atomic_batch_that_fails_leaves_no_trace(open_planes: Any, redis: RedisServer) -> None:
    """Records, expiries and indexes are as they were, also where one record was hit twice."""

    async def scenario() -> None:
        async with open_planes(redis.url) as planes:
            durable = planes.durable
            await durable.write(
                [
                    Insert("queue_job:q", "1", {"status": "waiting", "n": 1, "logs": [1]}),
                    Insert("queue_job:q", "2", {"status": "active"}, 2**42),
                ]
            )
            before = await durable.get("queue_job:q", ["1", "2"])
            batch = [
                Patch(
                    "queue_job:q", "1", set={"status": "active"}, increment={"n": 1},
                    append={"logs": [2]}, expires_at=2**41,
                ),
                Patch("queue_job:q", "1", unset=["n"], set={"status": "completed"}),
                Delete("queue_job:q", "2"),
                Put("queue_job:q", "2", {"status": "held"}),
                Insert("queue_dlq:q", "1", {}),
                Insert("queue_job:q", "1", {}),
            ]  # fmt: skip
            with pytest.raises(ConflictError) as caught:
                await durable.write(batch, atomic=True)
            assert caught.value.index == 5
            assert await durable.get("queue_job:q", ["1", "2"]) == before
            assert await durable.count(Query(namespace="queue_job:q"), by="status") == {
                "waiting": 1,
                "active": 1,
            }
            assert await durable.count(Query(kind="dlq")) == 0
            assert (
                await durable.prune(
                    Query(namespace="queue_job:q", where=[("expires_at", "<=", 2**41)])
                )
                == 0
            )

    asyncio.run(scenario())


def test_names_with_every_byte_are_ids_and_namespaces(open_planes: Any, redis: RedisServer) -> None:
    """Paging, counting and pruning them finds each and no other."""

    async def scenario() -> None:
        async with open_planes(redis.url) as planes:
            durable = planes.durable
            heads = ("", "queue_job:")
            for head in heads:
                writes = [
                    Insert(f"{head}{name}", name, {"status": name, "id": name}) for name in NAMES
                ]
                assert all(await durable.write(writes))
                for name in NAMES:
                    page = await durable.query(Query(namespace=f"{head}{name}"))
                    assert [record.id for record in page] == [name]
            found, after = [], None
            while True:
                page = await durable.query(Query(kind="job", limit=7, after=after))
                found += [record.namespace for record in page]
                if page.next is None:
                    break
                after = page.next
            namespaces = [(head + name, name) for head in heads for name in NAMES]
            assert found == sorted(n for n, _ in namespaces if classify_namespace(n) == "job")
            for namespace, name in namespaces:
                where = [("status", "=", name)]
                assert await durable.prune(Query(namespace=namespace, where=where)) == 1
            assert await durable.count(Query(kind="job")) == 0

    asyncio.run(scenario())


def test_very_wide_records_and_large_batches_are_split(
    open_planes: Any, redis: RedisServer
) -> None:
    """More than Lua can unpack, more than one step, and more than Redis takes at once."""

    async def scenario() -> None:
        async with open_planes(redis.url) as planes:
            durable = planes.durable
            wide = {f"f{n}": n for n in range(20_000)}
            await durable.write([Insert("n", "wide", wide), Insert("n", "next", {"a": 1})])
            (record,) = await durable.get("n", ["wide"])
            assert record.value == wide
            await durable.write([Patch("n", "wide", set=dict.fromkeys(wide, 0))])
            assert set((await durable.get("n", ["wide"]))[0].value.values()) == {0}
            await durable.write([Patch("n", "wide", unset=[*wide][1:])])
            assert (await durable.get("n", ["wide"]))[0].value == {"f0": 0}
            many = [Insert("m", str(n), {"n": n}) for n in range(10_000)]
            assert all(await durable.write(many, atomic=True, returning=()))
            assert await durable.count(Query(namespace="m")) == 10_000
            with pytest.raises(InvalidValueError):
                await durable.write([*many, Insert("m", "x", {})], atomic=True)
            over = [
                Patch("o", str(n), set={f"f{k}": k + n for k in range(150)}) for n in range(9000)
            ]
            with pytest.raises(InvalidValueError, match="atomic step"):
                await durable.write(over, atomic=True)
            assert await durable.count(Query(namespace="o")) == 0

    asyncio.run(scenario())


def test_a_late_write_raises_no_ghost(open_planes: Any, redis: RedisServer) -> None:
    """A record that is gone stays gone, with its keys and index entries."""

    async def scenario() -> None:
        async with open_planes(redis.url) as planes:
            durable, hot = planes.durable, planes.hot
            await durable.write([Insert("runs", "r", {"status": "running", "startedAt": 1})])
            await durable.write([Delete("runs", "r")])
            late = [
                Patch("runs", "r", set={"status": "completed"}, expires_at=2**42),
                Patch("runs", "r", append={"logs": [1]}),
                Patch("runs", "r", increment={"n": 1}),
                Delete("runs", "r"),
            ]
            results = await durable.write(late)
            assert [bool(result) for result in results] == [False] * 4
            keys = durable._session.keys
            left = [keys.records("runs") + b"r", keys.expiry("runs")]
            left += [keys.index(tag, "runs") for tag in ("i", "t", "ts", "tn", "tm")]
            assert redis.command("EXISTS", *(key.decode() for key in left)) == 0
            assert all(await durable.write([Insert("runs", "r", {"status": "running"})]))
            lock = await hot.locks.acquire("k", owner="w", lease_for=0.05)
            await asyncio.sleep(0.1)
            assert lock is not None
            assert not await hot.locks.renew(lock, lease_for=60.0)
            assert await hot.locks.holder("k") is None

    asyncio.run(scenario())


def test_odd_start_times_break_no_page(open_planes: Any, redis: RedisServer) -> None:
    """Text, fractions, null and nothing have their place; the others are all listed."""

    async def scenario() -> None:
        async with open_planes(redis.url) as planes:
            durable = planes.durable
            times = [5, 7, None, "soon", 6.5, -1, 2**62, True, [1], 0, 10**15]
            runs = [Insert("runs", str(n), {"startedAt": t}) for n, t in enumerate(times)]
            await durable.write([*runs, Insert("runs", "none", {})])
            for direction, expected in (
                ("desc", ["soon", 2**62, 10**15, 7, 6.5, 5, 0, -1, True, None, [1], None]),
                ("asc", [True, -1, 0, 5, 6.5, 7, 10**15, 2**62, "soon", None, [1], None]),
            ):
                found: list[Any] = []
                after = None
                while True:
                    page = await durable.query(
                        Query(
                            namespace="runs",
                            order_by=[("startedAt", direction)],
                            limit=2,
                            after=after,
                        )
                    )
                    found += [orjson.loads(r.encoded("startedAt").data) for r in page]
                    after = page.next
                    if after is None:
                        break
                assert found == expected
            where = [("startedAt", ">=", 6)]
            assert await durable.count(Query(namespace="runs", where=where)) == 4

    asyncio.run(scenario())
