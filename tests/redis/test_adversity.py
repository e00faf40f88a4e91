"""What broke other systems on Redis: forgotten scripts, other databases, left-over keys."""

from __future__ import annotations

import asyncio
import time

from typing import Any

import pytest

from fix_redis import options

from oqron_core.exceptions import UnavailableError
from oqron_core.planes import Entry, Put
from oqron_core.storage import Storage, open_storage
from oqron_core.testing.contracts.base import fresh_scope
from oqron_core.testing.servers import RedisServer


def lasting_keys(server: RedisServer) -> set[str]:
    """Give the keys of a server that do not expire by themselves."""
    found: list[Any] = server.command("KEYS", "*")  # type: ignore[assignment]
    return {str(key) for key in found if server.command("PTTL", str(key)) == -1}


async def live(storage: Storage, queue: str = "q") -> None:
    """Take jobs through all that may happen to them, and topics, locks, cache and limits."""
    jobs = storage.jobs
    await jobs.add_many(queue, range(3), max_attempts=2)
    first, second, third = await jobs.claim(queue, limit=3, lease_for=30.0)
    assert [True] * 3 == await jobs.renew([first, second, third], lease_for=30.0)
    await jobs.complete(first, "out")
    await jobs.fail(second, "x", retry_in=0.0)
    await jobs.release(third)
    for claim in await jobs.claim(queue, limit=3):
        await jobs.fail(claim, "x", retry=False)
    for letter in await storage.dead_letters.query(queue):
        assert await storage.dead_letters.requeue(queue, letter.id)
    for claim in await jobs.claim(queue, limit=3):
        await jobs.complete(claim)
    assert 3 == (await jobs.counts(queue))["completed"]
    await storage.topics.subscribe("t", "g")
    await storage.topics.publish("t", 1, key="k")
    [claim] = await storage.topics.claim("t", "g")
    await storage.topics.complete(claim)
    async with storage.locks.hold("k", lease_for=30.0) as lease:
        assert lease.token
    await storage.cache.set("k", 1, ttl=60.0, tags=["t"])
    await storage.cache.invalidate_tag("t")
    assert await storage.cache.get("k") is None
    await storage.schedules.put("cron", "n", next_run_at=1)
    assert await storage.schedules.advance("cron", "n", expected=1, next_run_at=None)
    assert await storage.schedules.delete("cron", "n")
    await storage.maintenance.run_once()


def test_scripts_that_are_forgotten_are_sent_again(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before whichever call the server forgets them, a whole life goes on as if it had not."""
    from oqron_redis._lane import Lane

    call = Lane.call

    def forgetful(lane: Lane, arguments: Any, **options: Any) -> asyncio.Future[Any]:
        flushed = call(lane, (b"SCRIPT", b"FLUSH"))
        flushed.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
        return call(lane, arguments, **options)

    async def main() -> None:
        async with open_storage(**options(own_redis.url)) as storage:
            monkeypatch.setattr(Lane, "call", forgetful)
            try:
                async with asyncio.timeout(60):
                    await live(storage)
            finally:
                monkeypatch.setattr(Lane, "call", call)

    asyncio.run(main())
    stats = str(own_redis.command("INFO", "commandstats"))
    assert "cmdstat_script" in stats
    assert "NOSCRIPT" in str(own_redis.command("INFO", "errorstats"))


def test_two_databases_of_one_server_hear_nothing_of_each_other(own_redis: RedisServer) -> None:
    """Redis sends messages to every database; ours are for their own alone."""

    async def main() -> None:
        scope = fresh_scope("adversity")
        base = own_redis.url.rstrip("/").removesuffix("/0")
        async with (
            open_storage(**options(f"{base}/0", scope)) as here,
            open_storage(**options(f"{base}/1", scope)) as there,
            here.hot.signals.subscribe(["c"]) as heard,
        ):
            claims = []
            for storage in (here, there):
                await storage.jobs.add("q", 1, id="a")
                claims += await storage.jobs.claim("q", lease_for=60.0)
            await there.hot.signals.publish("c", "theirs")
            # The same token on both, so that only the channel tells them apart.
            token = claims[0].lease.token
            await there.hot.signals.publish("oqron:jobs:cancel", ["q", "a", token])
            assert await there.jobs.cancel("q", "a")
            await there.jobs.pause("q")
            await asyncio.wait_for(claims[1].wait_cancelled(), 20)
            await here.hot.signals.publish("c", "ours")
            assert "ours" == (await asyncio.wait_for(anext(heard), 20)).message
            assert not claims[0].cancelled
            assert not (await here.hot.broker.counts("q")).paused
            await here.jobs.complete(claims[0])

    asyncio.run(main())


def test_storages_that_come_and_go_leave_no_key(own_redis: RedisServer) -> None:
    """As many keys stay after thirty workers as after one."""

    async def main() -> tuple[set[str], set[str]]:
        retention = {"completed_for": 0, "runs_for": 0, "dead_letters_for": 0}
        settings = options(own_redis.url, retention=retention)

        async def work(number: int) -> None:
            async with open_storage(**settings) as storage:
                await storage.jobs.add("q", number)
                [claim] = await storage.jobs.claim("q", worker=f"w{number}")
                claim.run.log("info", "x")
                await storage.jobs.complete(claim)
                await storage.maintenance.run_once()

        await work(0)
        before = lasting_keys(own_redis)
        for number in range(1, 30):
            await work(number)
        return before, lasting_keys(own_redis)

    before, after = asyncio.run(main())
    assert before == after


def test_an_idle_storage_asks_little(own_redis: RedisServer) -> None:
    """A worker that waits, and maintenance beside it, cost a bounded number of calls."""

    def calls() -> int:
        stats = str(own_redis.command("INFO", "stats"))
        return int(stats.partition("total_commands_processed:")[2].split()[0])

    async def main() -> tuple[int, float]:
        async with open_storage(**options(own_redis.url)) as storage:
            await storage.jobs.claim("q", wait=0.01)
            repairs = asyncio.create_task(storage.maintenance.run_forever())
            await asyncio.sleep(0.5)
            before, began = calls(), time.monotonic()
            assert [] == await storage.jobs.claim("q", wait=5.0)
            asked, took = calls() - before, time.monotonic() - began
            repairs.cancel()
            await asyncio.wait([repairs])
            return asked, took

    asked, took = asyncio.run(main())
    assert asked < 60 * max(took, 5.0)


def test_a_replica_for_a_while_loses_nothing(own_redis: RedisServer) -> None:
    """What was refused meanwhile may be repeated, and a held claim ends as it should."""

    async def main() -> None:
        async with open_storage(**options(own_redis.url)) as storage:
            jobs = storage.jobs
            await jobs.add("q", 1, id="a")
            [claim] = await jobs.claim("q", lease_for=600.0)
            own_redis.command("CONFIG", "SET", "replica-read-only", "yes")
            # A master that is not there: the data stay, and writes are refused.
            own_redis.command("REPLICAOF", "127.0.0.1", 1)
            try:
                with pytest.raises(UnavailableError) as caught:
                    await jobs.add("q", 2, id="b")
                assert caught.value.retryable
                ending = asyncio.create_task(jobs.complete(claim, "out"))
                await asyncio.sleep(0.2)
            finally:
                own_redis.command("REPLICAOF", "NO", "ONE")
            await asyncio.wait_for(ending, 60)
            await jobs.add("q", 2, id="b")
            [claim] = await jobs.claim("q", limit=5)
            assert "b" == claim.id
            done = await jobs.get("q", "a")
            assert done is not None
            assert ("completed", "out") == (done.status, done.return_value)

    asyncio.run(main())


def test_a_handed_in_client_may_decode_or_not(open_planes: Any, redis: RedisServer) -> None:
    """Names and values are the same, and what one writes the other reads."""
    from redis.asyncio import Redis

    async def main() -> None:
        scope = fresh_scope("adversity")
        names = ["é", "a:b", "日本語", "\x01"]
        for number, decodes in enumerate((True, False, True)):
            client = Redis.from_url(redis.url, decode_responses=decodes)
            try:
                async with open_planes(client=client, scope=scope) as planes:
                    hot, durable = planes.hot, planes.durable
                    if not number:
                        await durable.write([Put("n", name, {name: [name]}) for name in names])
                        await hot.broker.publish("q", [Entry(name) for name in names])
                    records = await durable.get("n", names)
                    assert [{name: [name]} for name in names] == [r.value for r in records]
                    leases = await hot.broker.claim("q", owner="w", lease_for=60.0, limit=9)
                    assert names == [lease.id for lease in leases]
                    assert all(await hot.broker.nack(leases))
                    async with hot.signals.subscribe(["é"]) as heard:
                        await hot.signals.publish("é", {"é": 1})
                        signal = await asyncio.wait_for(anext(heard), 20)
                        assert ("é", {"é": 1}) == (signal.channel, signal.message)
            finally:
                await client.aclose()

    asyncio.run(main())
