"""The contract of topics, in a whole mode."""

from __future__ import annotations

import pytest

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import Patch, Query
from oqron_core.protocol.claims import Claim
from oqron_core.protocol.lanes import queue_of
from oqron_core.storage import Storage
from oqron_core.testing.contracts.base import gather
from oqron_core.testing.contracts.mode import LAPSE, ModeBase
from oqron_core.testing.hostile import BAD_VALUES, VALUES, same


__all__ = ["TopicsContract"]


class TopicsContract(ModeBase):
    """A retained log, and one delivery per message and group."""

    async def take(
        self, group: str = "g", *, limit: int = 100, storage: Storage | None = None
    ) -> list[Claim]:
        """Claim what a group may work on now."""
        return await (storage or self.storage).topics.claim("t", group, limit=limit)

    async def drain(self, group: str = "g", storage: Storage | None = None) -> list[object]:
        """Work a group's messages to the end; what they said, in the order of claims."""
        said: list[object] = []
        while claims := await self.take(group, storage=storage):
            for claim in claims:
                assert claim.message is not None
                said.append(claim.message.message)
                await (storage or self.storage).topics.complete(claim)
        return said

    async def test_every_group_gets_every_message_once(self) -> None:
        """Two groups each get all of it, in order, and then nothing."""
        topics = self.storage.topics
        await topics.subscribe("t", "a")
        await topics.subscribe("t", "b")
        for n in range(5):
            await topics.publish("t", n)

        assert list(range(5)) == await self.drain("a")
        assert list(range(5)) == await self.drain("b")
        assert [] == await self.drain("a")
        assert 0 == await topics.lag("t", "a")

    async def test_a_message_comes_back_as_it_was_published(self) -> None:
        """Payload, key and headers are the same in the log, the claim and the run."""
        topics = self.storage.topics
        await topics.subscribe("t", "g")
        for value in VALUES:
            published = await topics.publish("t", value, key="k", headers={"h": [value]})
            (claim,) = await self.take()
            assert claim.message is not None
            assert same(value, claim.message.message)
            assert ("k", {"h": [value]}) == (claim.message.key, claim.message.headers)
            assert published.id == claim.message.id
            await topics.complete(claim)
        page = await topics.read("t", limit=1000)
        assert len(VALUES) == len(page)
        for value, message in zip(VALUES, page, strict=True):
            assert same(value, message.message)

    @pytest.mark.parametrize("value", BAD_VALUES)
    async def test_what_is_not_portable_is_refused_before_any_write(self, value: object) -> None:
        """Neither the log nor a group sees it."""
        topics = self.storage.topics
        await topics.subscribe("t", "g")
        with pytest.raises(InvalidValueError):
            await topics.publish("t", value)
        with pytest.raises(InvalidValueError):
            await topics.publish_many("t", ["good", value])
        assert 0 == len(await topics.read("t"))
        assert 0 == await topics.lag("t", "g")

    async def test_the_log_and_the_deliveries_stand_where_the_model_says(self) -> None:
        """Messages are records of their own kind, deliveries are jobs."""
        topics = self.storage.topics
        await topics.subscribe("t", "g")
        message = await topics.publish("t", {"x": 1})
        found = (await self.storage.durable.get("topic_msg:t", [message.id]))[0]
        assert found is not None
        assert "message" == found.kind
        assert {"id", "topic", "key", "publishedAt", "headers", "message"} <= set(found.value)
        groups = await self.storage.durable.query(Query(namespace="topic_groups:t"))
        assert ["control"] == [record.kind for record in groups]
        jobs = await self.storage.durable.query(Query(kind="job"))
        assert [f"queue_job:{queue_of('t', 'g')}"] == [record.namespace for record in jobs]

    async def test_messages_of_a_key_are_worked_one_after_the_other(self) -> None:
        """One of each key is in hand at a time, and its next comes when it has ended."""
        topics = self.storage.topics
        await topics.subscribe("t", "g")
        await topics.publish_many("t", [1, 2, 3], key="a")
        await topics.publish_many("t", [10, 20], key="b")

        first = await self.take()
        assert {1, 10} == {c.message.message for c in first if c.message}
        assert [] == await self.take()
        for claim in first:
            await topics.complete(claim)
        second = await self.take()
        assert {2, 20} == {c.message.message for c in second if c.message}
        await self.storage.jobs.complete_many([(claim, None) for claim in second])
        assert [3] == await self.drain()

    async def test_a_key_waits_while_its_head_is_tried_again(self) -> None:
        """Later messages do not overtake a failed one; other keys go on."""
        topics = self.storage.topics
        await topics.subscribe("t", "g")
        await topics.publish("t", 1, key="a")
        await topics.publish("t", 2, key="a")
        (claim,) = await self.take()
        await topics.fail(claim, "no", retry_in=0.3)
        await topics.publish("t", 3, key="a")
        await topics.publish("t", 9, key="b")

        assert [9] == await self.drain()
        await self.elapse(0.5)
        assert [1, 2, 3] == await self.drain()

    async def test_a_key_goes_on_after_its_head_died(self) -> None:
        """A dead letter does not hold up what comes behind it."""
        topics = self.storage.topics
        await topics.subscribe("t", "g", max_attempts=1)
        await topics.publish("t", 1, key="a")
        await topics.publish("t", 2, key="a")
        (claim,) = await self.take()
        await topics.fail(claim, "no")

        assert [2] == await self.drain()
        letters = await self.storage.dead_letters.query(queue_of("t", "g"))
        assert [1] == [letter.data["message"] for letter in letters]

    async def test_a_released_head_comes_first_again(self) -> None:
        """Giving back costs no attempt and no place."""
        topics = self.storage.topics
        await topics.subscribe("t", "g")
        await topics.publish_many("t", [1, 2], key="a")
        (claim,) = await self.take()
        await topics.release(claim)
        (claim,) = await self.take()
        assert (1, 1) == (claim.message and claim.message.message, claim.attempt)

    async def test_a_lapsed_head_is_taken_over(self) -> None:
        """A consumer that died holds a key up for its lease, and no longer."""
        topics = self.storage.topics
        await topics.subscribe("t", "g")
        await topics.publish_many("t", [1, 2], key="a")
        (lost,) = await topics.claim("t", "g", lease_for=LAPSE)
        await self.elapse(LAPSE * 2)

        (claim,) = await self.take()
        assert claim.lease.token > lost.lease.token
        assert (1, 2) == (claim.message and claim.message.message, claim.attempt)
        await topics.complete(claim)
        assert [2] == await self.drain()

    async def test_an_idempotency_key_gives_the_first_message(self) -> None:
        """Twenty publishers at once make one message."""
        topics = self.storage.topics
        await topics.subscribe("t", "g")
        messages = await gather(topics.publish("t", n, idempotency_key="once") for n in range(20))
        assert 1 == len({message.id for message in messages})
        assert 19 == sum(message.duplicate for message in messages)
        again = await topics.publish("t", "later", idempotency_key="once")
        assert again.duplicate
        assert 1 == len(await self.drain())

    async def test_idempotency_keys_of_two_topics_are_apart(self) -> None:
        """The same key makes a message in each."""
        one = await self.storage.topics.publish("t", 1, idempotency_key="k")
        two = await self.storage.topics.publish("u", 2, idempotency_key="k")
        assert not one.duplicate
        assert not two.duplicate

    async def test_a_late_group_gets_what_it_asked_for(self) -> None:
        """From the start, a message, a time, or nothing of what was before."""
        topics = self.storage.topics
        messages = []
        for n in range(6):
            messages.append(await topics.publish("t", n, key="a"))
            await self.elapse(0.01)
        await topics.subscribe("t", "all", start="earliest")
        await topics.subscribe("t", "message", start=messages[2].id)
        await topics.subscribe("t", "time", start=messages[4].published_at)
        await topics.subscribe("t", "none")
        await topics.publish("t", 6, key="a")

        assert [0, 1, 2, 3, 4, 5, 6] == await self.drain("all")
        assert [2, 3, 4, 5, 6] == await self.drain("message")
        assert [4, 5, 6] == await self.drain("time")
        assert [6] == await self.drain("none")

    async def test_a_group_that_joins_in_the_middle_misses_nothing(self) -> None:
        """While two storages publish, a late group still gets every message once."""
        async with self.open() as other:
            await self.storage.topics.subscribe("t", "early")

            async def publish(storage: Storage, start: int) -> None:
                for n in range(start, start + 40):
                    await storage.topics.publish("t", n)

            async def join() -> None:
                await self.storage.topics.subscribe("t", "late", start="earliest")

            await gather([publish(self.storage, 0), publish(other, 100), join()])
        wanted = sorted([*range(40), *range(100, 140)])
        assert wanted == sorted(int(str(n)) for n in await self.drain("early"))
        assert wanted == sorted(int(str(n)) for n in await self.drain("late"))

    async def test_catching_up_is_finished_after_a_crash(self) -> None:
        """Subscribing again goes on where it was cut short."""
        topics = self.storage.topics
        await topics.publish_many("t", list(range(10)))
        await topics.subscribe("t", "g", start="earliest")
        patch = {"caughtUp": False, "cursor": None}
        await self.storage.durable.write([Patch("topic_groups:t", "g", set=patch)])
        group = await topics.subscribe("t", "g")
        assert group.caught_up
        assert list(range(10)) == await self.drain()

    async def test_subscribing_twice_changes_nothing(self) -> None:
        """Ten at once make one group, and its place is kept."""
        topics = self.storage.topics
        groups = await gather(topics.subscribe("t", "g") for _ in range(10))
        assert 1 == len({group.joined for group in groups})
        await topics.publish("t", 1)
        await topics.subscribe("t", "g", start="earliest")
        assert [1] == await self.drain()

    async def test_a_group_that_nobody_subscribed_is_said(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Once, as its name may be mistyped; who subscribes it later gets what comes then."""
        topics = self.storage.topics
        await topics.subscribe("t", "mailer")
        await topics.publish("t", 1)
        with caplog.at_level("WARNING", "oqron.topics"):
            assert [] == await topics.claim("t", "mialer")
            assert [] == await topics.claim("t", "mialer")
            assert [1] == await self.drain("mailer")
            assert [] == await topics.claim("t", "mailer")
        [said] = [record for record in caplog.records if record.name == "oqron.topics"]
        assert "'mialer'" in said.getMessage()

    async def test_replay_delivers_again(self) -> None:
        """From a time or a message on, besides what is still to do."""
        topics = self.storage.topics
        await topics.subscribe("t", "g")
        messages = []
        for n in range(4):
            messages.append(await topics.publish("t", n, key="a"))
            await self.elapse(0.01)
        assert [0, 1, 2, 3] == await self.drain()
        assert 2 == await topics.replay("t", "g", since=messages[2].id)
        assert [2, 3] == await self.drain()
        assert 4 == await topics.replay("t", "g")
        assert 4 == await topics.lag("t", "g")
        assert [0, 1, 2, 3] == await self.drain()

    async def test_seek_drops_what_waits(self) -> None:
        """A group can skip to the end, or begin anew."""
        topics = self.storage.topics
        await topics.subscribe("t", "g")
        await topics.publish_many("t", [1, 2, 3])
        assert 0 == await topics.seek("t", "g", to="latest")
        assert [] == await self.drain()
        assert 3 == await topics.seek("t", "g", to="earliest")
        assert [1, 2, 3] == await self.drain()

    async def test_a_paused_group_keeps_what_arrives(self) -> None:
        """Others go on, and nothing is lost when it is resumed."""
        topics = self.storage.topics
        await topics.subscribe("t", "a")
        await topics.subscribe("t", "b")
        await topics.pause("t", "a")
        await topics.publish("t", 1)
        assert [] == await self.take("a")
        assert [1] == await self.drain("b")
        await topics.resume("t", "a")
        assert [1] == await self.drain("a")

    async def test_a_group_that_left_gets_nothing_more(self) -> None:
        """What waits for it goes with it, and it may join anew."""
        topics = self.storage.topics
        await topics.subscribe("t", "g")
        await topics.publish("t", 1)
        assert await topics.unsubscribe("t", "g")
        assert not await topics.unsubscribe("t", "g")
        await topics.publish("t", 2)
        assert [] == await self.take()
        assert [] == await topics.groups("t")
        await topics.subscribe("t", "g")
        await topics.publish("t", 3)
        assert [3] == await self.drain()

    async def test_a_pause_goes_with_its_group(self) -> None:
        """One of the same name begins anew; without a group there is nothing to resume."""
        topics = self.storage.topics
        await topics.subscribe("t", "g")
        await topics.pause("t", "g", reason="late")
        assert await topics.unsubscribe("t", "g")
        await topics.subscribe("t", "g")
        await topics.publish("t", 1)
        assert [1] == await self.drain()

    async def test_dead_letters_of_a_group_are_found_by_the_name_of_its_queue(self) -> None:
        """Also its deliveries are counted by it."""
        topics = self.storage.topics
        await topics.subscribe("t", "g")
        await topics.publish_many("t", [1, 2])
        queue = topics.delivery_queue("t", "g")
        [claim] = await topics.claim("t", "g")
        await topics.fail(claim, "odd", retry=False)

        [letter] = await self.storage.dead_letters.query(queue)
        assert claim.id == letter.id
        assert 1 == (await self.storage.jobs.counts(queue))["waiting"]

    async def test_a_lost_hot_plane_costs_no_delivery_and_no_order(self) -> None:
        """Rebuilding makes every lane claimable again, heads first."""
        topics = self.storage.topics
        await topics.subscribe("t", "g")
        await topics.publish_many("t", [1, 2, 3], key="a")
        await topics.publish_many("t", [7, 8])
        await self.lose_hot(self.storage.hot)
        assert [] == await self.take()
        await self.storage.maintenance.rebuild_hot()
        said = await self.drain()
        assert [1, 2, 3] == [n for n in said if n in {1, 2, 3}]
        assert {7, 8} == {n for n in said if n in {7, 8}}

    async def test_a_publisher_without_a_hot_plane_loses_nothing(self) -> None:
        """The message is durable, and maintenance makes it claimable."""
        topics = self.storage.topics
        await topics.subscribe("t", "g")
        self.faults.down("hot.*")
        await topics.publish("t", 1, key="a")
        await topics.publish("t", 2)
        self.faults.heal()
        await self.storage.maintenance.reconcile()
        assert {1, 2} == set(await self.drain())

    async def test_plain_jobs_stay_out_of_the_queues_of_groups(self) -> None:
        """The name says that it is a topic's."""
        with pytest.raises(InvalidValueError, match="topic"):
            await self.storage.jobs.add(queue_of("t", "g"), 1)

    async def test_names_of_topics_and_groups_never_meet(self) -> None:
        """Two pairs of names are two queues, whatever is in them."""
        topics = self.storage.topics
        await topics.subscribe("a:b", "c")
        await topics.subscribe("a", "b:c")
        await topics.publish("a:b", 1)
        assert 1 == await topics.lag("a:b", "c")
        assert 0 == await topics.lag("a", "b:c")

    async def test_batches_are_published_in_order(self) -> None:
        """A thousand messages of one call keep their order, key by key."""
        topics = self.storage.topics
        await topics.subscribe("t", "g")
        messages = await topics.publish_many("t", list(range(300)), key="k")
        assert 300 == len({message.id for message in messages})
        page = await topics.read("t", limit=1000)
        assert list(range(300)) == [message.message for message in page]
        assert list(range(300)) == await self.drain()
