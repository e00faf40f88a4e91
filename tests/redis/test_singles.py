"""Single calls: less is sent of what is new and alike, and that does the same."""

from __future__ import annotations

import asyncio
import gc

from collections.abc import Mapping
from typing import Any

import attrs
import pytest

from fix_redis import options

from oqron_core import Query, open_storage
from oqron_core.exceptions import InvalidValueError, UnavailableError
from oqron_core.planes import Entry, Form, Insert, Json, Mark, Patch, Put
from oqron_core.testing.contracts.base import fresh_scope
from oqron_core.testing.servers import RedisServer
from oqron_redis._joined import RedisJoinedPlanes


JOB: Mapping[str, Any] = {
    "id": None,
    "queueName": "q",
    "status": "waiting",
    "data": None,
    "attemptMade": 0,
    "tags": Json(b"[]"),
    "note": "50 % of it\u00e4",
    "createdAt": None,
    "startedAt": None,
}
FORM = Form(JOB, ("id", "data", "createdAt"))
BARE = Form({"data": None}, ("data",))
OPEN_STATUS = Form(JOB, ("id", "data", "createdAt", "status"))
TEXTS: tuple[bytes, ...] = (
    b"{}",
    b"[]",
    b'{"a":"%s %b %","b":[1,2,{"c":null}]}',
    '{"\u00e4\U0001f600":"\u202e"}'.encode(),
    b'{"long":"' + b"x" * 100_000 + b'"}',
)


def filled(id_: str, text: bytes = b"{}", form: Form = FORM, **more: Any) -> Insert:
    """Make an insert of a form."""
    given = {"id": id_, "data": Json(text), "createdAt": 1, "status": "waiting"}
    value = form.fill({name: given[name] for name in form.open})
    return Insert("queue_job:q", id_, value, **more)


def dump(redis: RedisServer) -> dict[str, Any]:
    """Give all that is kept, but for what tells the time."""
    found: dict[str, Any] = {}
    for key in sorted(map(str, redis.command("KEYS", "*"))):
        kind = str(redis.command("TYPE", key))
        if kind == "hash":
            fields = list(map(str, redis.command("HGETALL", key)))
            pairs = dict(zip(fields[::2], fields[1::2], strict=True))
            pairs.pop("\0", None)
            content: Any = {name: _timeless(text, 1) for name, text in pairs.items()}
        elif kind == "zset":
            content = [_timeless(str(member)) for member in redis.command("ZRANGE", key, 0, -1)]
        else:
            content = int(str(redis.command("PTTL", key))) > 0
        found[key] = content
    redis.command("FLUSHALL")
    return found


def _timeless(text: str, start: int = 0) -> str:
    """Leave out the number that orders what was added, which begins with the clock."""
    stop = start + 16
    return text[:start] + text[stop:] if text[start:stop].isdigit() else text


@pytest.mark.parametrize("together", [False, True], ids=["each", "together"])
@pytest.mark.parametrize("form", [FORM, BARE, OPEN_STATUS], ids=["form", "bare", "status"])
def test_new_ones_are_kept_as_any_are(
    own_redis: RedisServer, form: Form, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte: records, indexes, the queue, and what is known of the call."""
    scope = fresh_scope("singles")
    inserts = [filled(f"id{number}", text, form) for number, text in enumerate(TEXTS)]
    parts = [inserts] if together else [[insert] for insert in inserts]

    async def add() -> None:
        async with open_storage(**options(own_redis.url, scope)) as storage:
            joined = storage.durable.joined(storage.hot)
            for number, part in enumerate(parts):
                entries = [
                    Entry(insert.id, priority=number - place) for place, insert in enumerate(part)
                ]
                results = await joined.add("q", part, entries, token=f"token{number}")
                for insert, result in zip(part, results, strict=True):
                    record = result.record
                    assert result.applied
                    assert record is not None
                    assert (record.namespace, record.id) == ("queue_job:q", insert.id)
                    assert record.value == {}
                    assert record.inserted_at > 1_600_000_000_000

    asyncio.run(add())
    new = dump(own_redis)
    monkeypatch.setattr(RedisJoinedPlanes, "_new_jobs", lambda *_: None)
    asyncio.run(add())
    assert len(new) > 8
    assert new == dump(own_redis)


def test_where_something_is_there_it_is_left(redis: RedisServer) -> None:
    """A record, one that has expired, an id that is claimable, and the call itself."""

    async def main() -> None:
        async with open_storage(**options(redis.url)) as storage:
            joined, durable = storage.durable.joined(storage.hot), storage.durable
            now = await durable.now()
            await durable.write([
                Put("queue_job:q", "kept", {"n": 1}),
                Put("queue_job:q", "gone", {"n": 1}, expires_at=now - 1),
            ])  # fmt: skip
            await storage.hot.broker.publish("q", [Entry("known", priority=7)])

            async def add(id_: str, token: str) -> bool:
                (result,) = await joined.add("q", [filled(id_)], [Entry(id_)], token=token)
                return bool(result)

            assert not await add("kept", "1")
            assert await add("gone", "2")
            assert await add("known", "3")
            some = [filled(id_) for id_ in ("x", "kept", "y", "x")]
            entries = [Entry(insert.id) for insert in some]
            several = await joined.add("q", some, entries, token="4")
            assert [bool(result) for result in several] == [True, False, True, False]
            assert await add("new", "5")
            leases = await storage.hot.broker.claim("q", owner="w", lease_for=60, limit=9)
            assert [(lease.id, lease.priority) for lease in leases] == [
                ("known", 0),
                ("gone", 0),
                ("x", 0),
                ("y", 0),
                ("new", 0),
            ]
            await storage.hot.broker.ack(leases)
            # The answer of the first, though the job is worked by then.
            assert await add("new", "5")
            assert (await storage.hot.broker.counts("q")).ready == 0
            kept, gone = await durable.get("queue_job:q", ["kept", "gone"])
            assert kept.value == {"n": 1}
            assert gone.value["status"] == "waiting"

    asyncio.run(main())


def test_a_bad_value_is_refused_before_it_is_sent(redis: RedisServer) -> None:
    """By the name of its field; the next is added."""

    async def main() -> None:
        async with open_storage(**options(redis.url)) as storage:
            joined = storage.durable.joined(storage.hot)
            given = {"id": "a", "data": "\ud800", "createdAt": 1}
            bad = Insert("queue_job:q", "a", FORM.fill(given))
            with pytest.raises(InvalidValueError, match=r"value\.data"):
                await joined.add("q", [bad], [Entry("a")], token="1")
            assert (await joined.add("q", [filled("a")], [Entry("a")], token="2"))[0]

    asyncio.run(main())


def test_a_lone_add_that_is_cancelled_is_whole(redis: RedisServer) -> None:
    """Wherever it is cancelled, the job is there with its entry, or neither is."""

    async def main() -> None:
        async with open_storage(**options(redis.url)) as storage:
            for turns in (*range(6), *[3] * 40):
                adding = asyncio.create_task(storage.jobs.add("q", turns))
                for _ in range(turns):
                    await asyncio.sleep(0)
                adding.cancel()
                await asyncio.gather(adding, return_exceptions=True)
                # Others are not held up by what was left behind.
                async with asyncio.timeout(5):
                    await asyncio.gather(*(storage.jobs.add("q", "more") for _ in range(3)))
            records = await storage.durable.count(Query(namespace="queue_job:q"))
            assert records == (await storage.hot.broker.counts("q")).ready
            assert records >= 3 * 46

    asyncio.run(main())


def test_closing_waits_for_a_lone_add(redis: RedisServer) -> None:
    """Who adds while the storage closes is answered."""
    scope = fresh_scope("singles")

    async def main() -> None:
        async with open_storage(**options(redis.url, scope)) as storage:
            before = await storage.jobs.add("q", 0)
            adding = [asyncio.create_task(storage.jobs.add("q", n)) for n in range(3)]
            await asyncio.sleep(0)
        jobs = [before, *await asyncio.gather(*adding)]
        async with open_storage(**options(redis.url, scope)) as storage:
            claims = await storage.jobs.claim("q", limit=9)
            assert {claim.id for claim in claims} == {job.id for job in jobs}

    asyncio.run(main())


@pytest.mark.parametrize("turns", range(5))
def test_a_claim_whose_caller_has_gone_is_given_back(redis: RedisServer, turns: int) -> None:
    """At once, and its attempt with it, though its lease would last a minute."""

    async def main() -> None:
        async with open_storage(**options(redis.url)) as storage:
            job = await storage.jobs.add("q", 1)
            claiming = asyncio.create_task(storage.jobs.claim("q", lease_for=60))
            for _ in range(turns):
                await asyncio.sleep(0)
            claiming.cancel()
            (left,) = await asyncio.gather(claiming, return_exceptions=True)
            if isinstance(left, list):
                # It was answered before.
                await storage.jobs.release(left[0])
            async with asyncio.timeout(10):
                (claim,) = await storage.jobs.claim("q", wait=10.0)
            assert (claim.id, claim.attempt) == (job.id, 1)

    asyncio.run(main())


def test_closing_gives_back_what_a_claim_takes_meanwhile(redis: RedisServer) -> None:
    """Whoever claims while the storage closes is told, and another gets the job."""
    scope = fresh_scope("singles")

    async def main() -> None:
        async with open_storage(**options(redis.url, scope)) as storage:
            await storage.jobs.add("q", 1)
            claiming = asyncio.create_task(storage.jobs.claim("q", lease_for=60))
            await asyncio.sleep(0)
        answer = (await asyncio.gather(claiming, return_exceptions=True))[0]
        async with open_storage(**options(redis.url, scope)) as storage:
            if isinstance(answer, BaseException):
                async with asyncio.timeout(10):
                    (claim,) = await storage.jobs.claim("q", wait=10.0)
                assert claim.attempt == 1

    asyncio.run(main())


def test_a_claim_that_is_cancelled_beside_an_unreadable_job_leaves_none_behind(
    redis: RedisServer,
) -> None:
    """Whatever it was about to put aside, the others are given back with their attempts."""

    async def main() -> None:
        for turns in range(12):
            async with open_storage(**options(redis.url)) as storage:
                jobs = [await storage.jobs.add("q", n) for n in range(4)]
                (key,) = [key for key in map(str, redis.command("KEYS", "*")) if jobs[0].id in key]
                redis.command("HSET", key, "data", "broken")
                claiming = asyncio.create_task(storage.jobs.claim("q", limit=4, lease_for=60))
                nack = storage._session.nack

                async def cancelled(*args: Any, task: Any = claiming, **more: Any) -> bool:
                    task.cancel()
                    return bool(await nack(*args, **more))  # noqa: B023 - of this round

                if turns == 0:
                    storage._session.nack = cancelled
                for _ in range(turns):
                    await asyncio.sleep(0)
                if turns:
                    claiming.cancel()
                (left,) = await asyncio.gather(claiming, return_exceptions=True)
                storage._session.nack = nack
                for claim in left if isinstance(left, list) else ():
                    await storage.jobs.release(claim)
                found = []
                async with asyncio.timeout(10):
                    while len(found) < 3:
                        found += await storage.jobs.claim("q", limit=9, wait=5.0)
                assert [(claim.id, claim.attempt) for claim in found] == [
                    (job.id, 1) for job in jobs[1:]
                ]

    asyncio.run(main())


def test_a_cancelled_claim_that_cannot_be_followed_is_quiet(redis: RedisServer) -> None:
    """What keeps it from being asked after is no error of anybody's task."""

    async def main() -> None:
        told: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        async with open_storage(**options(redis.url)) as storage:
            job = await storage.jobs.add("q", 1)
            claiming = asyncio.create_task(storage.jobs.claim("q", lease_for=60))
            await asyncio.sleep(0)
            (key,) = [key for key in map(str, redis.command("KEYS", "*")) if job.id in key]
            redis.command("HSET", key, "\0", "broken")
            claiming.cancel()
            await asyncio.gather(claiming, return_exceptions=True)
            await asyncio.sleep(0.2)
        gc.collect()
        assert told == []

    asyncio.run(main())


def test_who_adds_beside_one_that_is_cancelled_is_not_held_up(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that was cancelled is no sign that the server was lost."""
    refused: list[Exception] = []
    check = RedisJoinedPlanes._check_order

    def watched(joined: RedisJoinedPlanes) -> None:
        try:
            check(joined)
        except UnavailableError as error:
            refused.append(error)
            raise

    monkeypatch.setattr(RedisJoinedPlanes, "_check_order", watched)

    async def main() -> None:
        async with open_storage(**options(redis.url)) as storage:
            await storage.jobs.add("q", 0)
            for n in range(40):
                hasty = asyncio.create_task(storage.jobs.add("q", n))
                await asyncio.sleep(0)
                other = asyncio.create_task(storage.jobs.add("q", n))
                if n % 2:
                    await asyncio.sleep(0)
                hasty.cancel()
                await asyncio.gather(hasty, other, return_exceptions=True)
                assert not other.exception()
        assert refused == []

    asyncio.run(main())


def test_cancelled_claims_of_nothing_leave_little(own_redis: RedisServer) -> None:
    """They are known for as long as one may be on its way, however long their leases are."""

    async def main() -> None:
        async with open_storage(**options(own_redis.url)) as storage:
            await storage.jobs.add("other", 1)
            for _ in range(50):
                claiming = asyncio.create_task(storage.jobs.claim("q", lease_for=3600.0))
                await asyncio.sleep(0)
                claiming.cancel()
                await asyncio.gather(claiming, return_exceptions=True)
            await asyncio.sleep(0.3)
            assert not storage._session.joined._unsure
            # The timeout of a call is 5 s, after which nobody waits.
            for key in own_redis.command("KEYS", "*taken*"):
                assert 0 < int(str(own_redis.command("PTTL", key))) <= 20_000

    asyncio.run(main())


MARK = Mark(
    "queue_job:q",
    token_field="token",
    name_field="name",
    set={"status": "active"},
    increment={"tries": 1, "more": -2},
    expect={"status": "waiting"},
)


@pytest.mark.parametrize(
    ("tries", "more", "after"),
    [
        (0, 0, (1, -2)),
        (None, 5, None),
        (2**53, 1, (2**53 + 1, -1)),
        (2**63 - 1, 1, None),
        (1, -(2**63) + 1, None),
        ("7", 1, None),
        (-3, 10**14, (-2, 10**14 - 2)),
    ],
)
def test_a_mark_adds_as_a_patch_does(
    redis: RedisServer, tries: Any, more: Any, after: tuple[int, int] | None
) -> None:
    """What is no integer or leaves 64 bits refuses all of it."""

    async def main() -> None:
        async with open_storage(**options(redis.url)) as storage:
            durable, joined = storage.durable, storage.durable.joined(storage.hot)
            id_ = f"{tries}-{more}"
            value = {"status": "waiting", "tries": tries, "more": more}
            await durable.write([Insert("queue_job:q", f"{id_}{n}", value) for n in range(2)])
            patch = Patch("queue_job:q", f"{id_}1", increment=MARK.increment, set=MARK.set)
            (patched,) = await durable.write([patch])
            await storage.hot.broker.publish("q", [Entry(f"{id_}0")])
            taken = await joined.claim(
                "q", MARK, owner="w", lease_for=60, limit=1, order="fifo",
                names="n" + id_, now=await durable.now(),
            )  # fmt: skip
            assert [bool(result) for result in taken.results] == [bool(patched)]
            assert bool(patched) == (after is not None)
            (record,) = await durable.get("queue_job:q", [f"{id_}0"])
            assert (record.value["tries"], record.value["more"]) == (after or (tries, more))
            assert record.value["status"] == ("active" if after else "waiting")

    asyncio.run(main())


def test_a_mark_that_would_lose_a_record_is_refused(redis: RedisServer) -> None:
    """What queries find records by is guarded where it is set, or its old place is unknown."""

    async def main() -> None:
        async with open_storage(**options(redis.url)) as storage:
            joined = storage.durable.joined(storage.hot)
            for mark in (
                attrs.evolve(MARK, expect={}),
                attrs.evolve(MARK, name_field="status", set={}),
                attrs.evolve(MARK, set={}, increment={"status": 1}),
                attrs.evolve(MARK, increment={"token": 1}),
                attrs.evolve(MARK, now_fields=("tries",)),
            ):
                with pytest.raises(InvalidValueError, match="mark"):
                    joined.claim(
                        "q", mark, owner="w", lease_for=60, limit=1, order="fifo", names="n", now=0
                    )

    asyncio.run(main())
