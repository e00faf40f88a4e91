"""The contract of `Broker`: queues of ids, leases and fencing tokens."""

from __future__ import annotations

import asyncio

from typing import Any, ClassVar

import attrs
import pytest

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import Broker, Counts, Entry, Lease, Order, Published
from oqron_core.testing.contracts.base import Contract, gather
from oqron_core.testing.hostile import BAD_NAMES, NAMES


__all__ = ["BrokerContract"]

LONG = 30.0
"""A lease that outlives its test."""
SHORT = 0.05
"""A lease that is left to lapse."""
BAD_DURATIONS = (-1, -0.001, float("nan"), float("inf"), "30", None, True, 1e30)
BAD_PRIORITIES = (1.5, True, "3", None, 2**31, -(2**31) - 1, 2**63)
UNCLAIMABLE = Counts(ready=0, delayed=0, leased=0, paused=False)


class BrokerContract(Contract):
    """What every broker must do."""

    _wants_hot: ClassVar[bool] = True

    @property
    def broker(self) -> Broker:
        """The broker under test."""
        return self.hot.broker

    async def add(self, *ids: str, queue: str = "q", priority: int = 0) -> None:
        """Publish ids that are ready."""
        await self.broker.publish(queue, [Entry(id, priority) for id in ids])  # noqa: A001

    async def take(
        self,
        limit: int = 100,
        *,
        queue: str = "q",
        lease_for: float = LONG,
        owner: str = "w1",
        order: Order = "fifo",
    ) -> list[Lease]:
        """Claim."""
        leases = await self.broker.claim(
            queue, owner=owner, lease_for=lease_for, limit=limit, order=order
        )
        return list(leases)

    async def take_ids(
        self, limit: int = 100, *, queue: str = "q", order: Order = "fifo"
    ) -> list[str]:
        """Claim, and give the ids."""
        return [lease.id for lease in await self.take(limit, queue=queue, order=order)]

    async def lapsed(self, *ids: str) -> list[Lease]:
        """Publish ids, claim them, and let the leases lapse."""
        await self.add(*ids)
        leases = await self.take(len(ids), lease_for=SHORT)
        await self.elapse(0.2)
        return leases

    async def wake(self, *queues: str) -> asyncio.Task[list[str]]:
        """Start to wait in the background."""

        async def wait() -> list[str]:
            return list(await self.broker.wait([*queues], timeout=20))

        task = asyncio.create_task(wait())
        await self.settle()
        return task

    # --- order ----------------------------------------------------------------

    async def test_ids_are_claimed_in_the_order_of_publishing(self) -> None:
        """Ids of one batch come out as they went in, whatever their text."""
        ids = [f"job-{number}" for number in range(20, 0, -1)]
        await self.add(*ids)

        assert ids == await self.take_ids()

    async def test_order_holds_across_batches_and_claims(self) -> None:
        """Several batches and small claims keep one order."""
        for start in range(0, 30, 10):
            await self.add(*(f"{number}" for number in range(start, start + 10)))
        taken = [id for _ in range(10) for id in await self.take_ids(3)]  # noqa: A001

        assert [f"{number}" for number in range(30)] == taken

    async def test_lower_priority_number_is_claimed_first(self) -> None:
        """Priority decides before age, negative numbers and extremes included."""
        for id, priority in (("c", 5), ("d", 2**31 - 1), ("b", 0), ("a", -(2**31))):  # noqa: A001
            await self.add(id, priority=priority)

        assert ["a", "b", "c", "d"] == await self.take_ids()

    async def test_every_priority_is_claimable_by_either_order(self) -> None:
        """No entry is out of reach of a claim because of how it was published."""
        await self.broker.publish("q", [Entry("a"), Entry("b", 5), Entry("c", 0), Entry("d", -5)])

        assert ["d", "c"] == await self.take_ids(2, order="lifo")
        assert ["a", "b"] == await self.take_ids(2)

    async def test_lifo_takes_the_youngest_of_the_first_priority(self) -> None:
        """The order turns the second key round, not the first."""
        await self.add("a", "b", "c")
        await self.add("x", "y", priority=-1)

        assert ["y", "x", "c", "b", "a"] == await self.take_ids(order="lifo")

    @pytest.mark.parametrize("priority", [2**31 - 1, -(2**31), 1_000_000_007])
    async def test_order_inside_an_extreme_priority_is_exact(self, priority: int) -> None:
        """A sequence number survives beside the largest priority."""
        ids = [f"{(number * 7919) % 500}" for number in range(500)]
        await self.add(*ids, priority=priority)

        assert ids == await self.take_ids(500)

    async def test_moving_an_id_keeps_its_place(self) -> None:
        """Publishing again does not send an id to the end."""
        await self.add("a", "b", "c")
        await self.add("a")

        assert ["a", "b", "c"] == await self.take_ids()

    async def test_moving_an_id_takes_the_new_priority(self) -> None:
        """The priority of the last publishing counts, in both directions."""
        await self.add("a", "b", "c")
        await self.add("c", priority=-1)
        await self.add("a", priority=1)

        assert ["c", "b", "a"] == await self.take_ids()

    async def test_a_priority_that_is_taken_back_restores_the_old_place(self) -> None:
        """The place in the order is that of the first publishing."""
        await self.add("a", "b", "c")
        await self.add("b", priority=-1)
        await self.add("b", priority=0)

        assert ["a", "b", "c"] == await self.take_ids()

    # --- publish -----------------------------------------------------------------

    async def test_publish_says_what_it_did(self) -> None:
        """Each entry is answered, in order."""
        await self.add("leased")
        await self.take(1)
        await self.add("ready")
        await self.broker.publish("q", [Entry("delayed", due_at=await self.hot.now() + 60_000)])

        answer = await self.broker.publish(
            "q", [Entry("new"), Entry("leased"), Entry("delayed"), Entry("ready")]
        )

        assert [Published.ADDED, Published.LEASED, Published.MOVED, Published.MOVED] == list(answer)

    async def test_the_same_id_twice_in_a_batch_is_published_twice(self) -> None:
        """The second mention moves the first."""
        answer = await self.broker.publish("q", [Entry("a"), Entry("b"), Entry("a", -1)])

        assert [Published.ADDED, Published.ADDED, Published.MOVED] == list(answer)
        assert [("a", -1), ("b", 0)] == [(x.id, x.priority) for x in await self.take()]

    async def test_publishing_a_leased_id_leaves_it_alone(self) -> None:
        """Nobody can take work away from its worker by publishing."""
        await self.add("a", priority=3)
        [lease] = await self.take()
        await self.add("a", priority=-3)

        assert [] == await self.take_ids()
        assert [True] == list(await self.broker.nack([lease]))
        assert [("a", 3)] == [(x.id, x.priority) for x in await self.take()]

    async def test_an_id_is_in_a_queue_once(self) -> None:
        """Publishing often makes no copies."""
        for _ in range(5):
            await self.add("a")

        assert 1 == (await self.broker.counts("q")).ready
        assert ["a"] == await self.take_ids()

    async def test_the_same_id_in_two_queues_is_two_entries(self) -> None:
        """A lease in one queue says nothing about the other."""
        await self.add("a", queue="q")
        await self.add("a", queue="p")
        [lease] = await self.take(queue="q")
        await self.broker.ack([lease])

        assert [False] == list(await self.broker.contains("q", ["a"]))
        assert ["a"] == await self.take_ids(queue="p")

    async def test_large_batches_keep_their_order(self) -> None:
        """A batch beyond any single step is still one order."""
        ids = [f"{number}" for number in range(2500)]
        answer = await self.broker.publish("q", [Entry(id) for id in ids])  # noqa: A001

        assert 2500 == list(answer).count(Published.ADDED)
        assert 2500 == (await self.broker.counts("q")).ready
        assert ids == await self.take_ids(2500)

    async def test_publish_copies_what_it_is_given(self) -> None:
        """A list that the caller changes later is not the queue."""
        entries = [Entry("a")]
        await self.broker.publish("q", entries)
        entries.clear()

        assert ["a"] == await self.take_ids()

    # --- delay ---------------------------------------------------------------------

    async def test_a_delayed_id_is_not_claimed_before_it_is_due(self) -> None:
        """A due time in the future holds an id back, and no lease is used for it."""
        await self.broker.publish("q", [Entry("a", due_at=await self.hot.now() + 60_000)])

        assert [] == await self.take_ids()
        assert Counts(0, 1, 0, False) == await self.broker.counts("q")

    async def test_a_due_id_is_claimed_once(self) -> None:
        """What was delayed is delivered once, however short the leases."""
        await self.broker.publish("q", [Entry("a", due_at=await self.hot.now() + 100)])
        await self.elapse(0.3)

        assert ["a"] == await self.take_ids()
        assert [] == await self.take_ids()

    async def test_a_due_time_that_has_passed_is_ready(self) -> None:
        """Now and then are claimable at once."""
        now = await self.hot.now()
        await self.broker.publish("q", [Entry("a", due_at=now - 60_000), Entry("b", due_at=0)])

        assert Counts(2, 0, 0, False) == await self.broker.counts("q")
        assert ["a", "b"] == await self.take_ids()

    async def test_due_ids_stand_by_priority_and_publishing(self) -> None:
        """The due time decides when, not in which order."""
        now = await self.hot.now()
        await self.broker.publish(
            "q",
            [Entry("b", due_at=now + 100), Entry("c", due_at=now + 50), Entry("a", -1, now + 110)],
        )
        await self.add("d")
        await self.elapse(0.3)

        assert ["a", "b", "c", "d"] == await self.take_ids()

    async def test_a_near_due_time_is_not_hidden_by_far_ones(self) -> None:
        """Promotion goes by absolute due time, whatever was published before."""
        now = await self.hot.now()
        far = [Entry(f"far-{number}", due_at=now + 3_600_000) for number in range(1100)]
        await self.broker.publish("q", far)
        await self.broker.publish("q", [Entry("near", due_at=now + 100)])
        await self.elapse(0.3)

        assert ["near"] == await self.take_ids()

    async def test_more_due_ids_than_a_claim_wants_stay_claimable(self) -> None:
        """Promotion of many is no loss of any."""
        due = await self.hot.now() + 50
        await self.broker.publish("q", [Entry(f"{number}", due_at=due) for number in range(1500)])
        await self.elapse(0.2)
        first = await self.take_ids(1)
        rest = await self.take_ids(2000)

        assert [f"{number}" for number in range(1500)] == [*first, *rest]

    async def test_publishing_again_changes_the_due_time(self) -> None:
        """A ready id can be delayed, and a delayed one made ready."""
        later = await self.hot.now() + 60_000
        await self.add("a")
        await self.broker.publish("q", [Entry("b", due_at=later)])
        await self.broker.publish("q", [Entry("a", due_at=later), Entry("b")])

        assert ["b"] == await self.take_ids()
        assert 1 == (await self.broker.counts("q")).delayed

    # --- leases -----------------------------------------------------------------------

    async def test_a_lease_says_what_was_claimed(self) -> None:
        """Every field of a lease is right."""
        await self.add("a", priority=7)
        before = await self.hot.now()
        [lease] = await self.take(owner="worker é 1")
        after = await self.hot.now()

        assert ("q", "a", "worker é 1", 1, 7) == (
            lease.queue, lease.id, lease.owner, lease.deliveries, lease.priority,
        )  # fmt: skip
        assert isinstance(lease.token, int)
        assert lease.token > 0
        assert before + 29_900 <= lease.expires_at <= after + 30_100

    async def test_tokens_grow(self) -> None:
        """Inside a claim, from claim to claim, and over settled ids."""
        await self.add(*"abcd")
        leases = await self.take(3)
        await self.broker.ack(leases)
        leases += await self.take(1)
        await self.add("a")
        leases += await self.take(1)
        tokens = [lease.token for lease in leases]

        assert sorted(set(tokens)) == tokens

    async def test_tokens_grow_after_a_purge(self) -> None:
        """An emptied queue does not start its tokens anew."""
        await self.add("a")
        [old] = await self.take()
        await self.broker.purge("q")
        await self.add("a")
        [new] = await self.take()

        assert new.token > old.token

    async def test_a_claim_is_limited(self) -> None:
        """Zero gives none, a part leaves the rest, too much gives what is there."""
        await self.add("a", "b", "c")

        assert [] == await self.take_ids(0)
        assert ["a", "b"] == await self.take_ids(2)
        assert ["c"] == await self.take_ids(10)
        assert [] == await self.take_ids(10)
        assert [] == await self.take_ids(10, queue="unknown")

    async def test_a_leased_id_is_not_handed_out_again(self) -> None:
        """One unlapsed lease per id, and what stands behind it is not blocked."""
        await self.add("a", "b", "c")
        await self.take(1)

        assert ["b", "c"] == await self.take_ids(5)

    async def test_leases_of_different_lengths_lapse_apart(self) -> None:
        """Each lease has its own time."""
        await self.add("long", "short")
        await self.take(1, lease_for=LONG)
        await self.take(1, lease_for=SHORT)
        await self.elapse(0.2)

        assert ["short"] == await self.take_ids()

    async def test_a_lapsed_lease_is_claimed_again_with_a_larger_token(self) -> None:
        """The next claim takes over, and sees that it does."""
        [old] = await self.lapsed("a")
        [new] = await self.take(owner="w2")

        assert ("a", "w2", 2) == (new.id, new.owner, new.deliveries)
        assert new.token > old.token

    async def test_a_lapsed_id_returns_to_its_place(self) -> None:
        """Priority and age survive a dead worker."""
        await self.add("old")
        await self.add("high", priority=-1)
        await self.take(2, lease_for=SHORT)
        await self.add("young")
        await self.add("later high", priority=-1)
        await self.elapse(0.2)

        assert ["high", "later high", "old", "young"] == await self.take_ids()

    async def test_many_lapsed_leases_come_back_at_once(self) -> None:
        """Recovery is not capped below what lapsed."""
        ids = [f"{number}" for number in range(1200)]
        await self.add(*ids)
        await self.take(1200, lease_for=1.0)
        await self.elapse(1.2)

        assert 1200 == (await self.broker.counts("q")).ready
        assert ids == await self.take_ids(1200)

    async def test_a_lapsed_lease_behind_many_living_ones_is_found(self) -> None:
        """Living leases do not hide a lapsed one."""
        await self.add(*(f"{number}" for number in range(1100)))
        await self.take(1100)
        await self.lapsed("late")

        assert ["late"] == await self.take_ids()

    async def test_deliveries_count_every_hand_out(self) -> None:
        """Given back or lapsed, each claim counts one; a new life starts at one."""
        [lease] = await self.lapsed("a")
        [lease] = await self.take()
        await self.broker.nack([lease])
        [lease] = await self.take()
        assert 3 == lease.deliveries

        await self.broker.ack([lease])
        await self.add("a")
        [lease] = await self.take()
        assert 1 == lease.deliveries

    async def test_an_owner_is_not_a_permission(self) -> None:
        """The token decides, not the name of who asks."""
        await self.add("a")
        [lease] = await self.take(owner="w1")

        assert [True] == list(await self.broker.ack([attrs.evolve(lease, owner="w2")]))

    # --- renew ----------------------------------------------------------------------

    async def test_renewal_extends_a_lease(self) -> None:
        """A lease lives on beyond its first end."""
        await self.add("a")
        [lease] = await self.take(lease_for=1.5)
        assert [True] == list(await self.broker.renew([lease], lease_for=LONG))
        await self.elapse(1.7)

        assert [] == await self.take_ids()
        assert [True] == list(await self.broker.ack([lease]))

    async def test_renewal_counts_from_now(self) -> None:
        """A shorter renewal shortens."""
        await self.add("a")
        [lease] = await self.take()
        await self.broker.renew([lease], lease_for=SHORT)
        await self.elapse(0.2)

        assert ["a"] == await self.take_ids()

    async def test_a_lapsed_lease_cannot_be_renewed(self) -> None:
        """Also where nobody has taken over yet; the id stays claimable."""
        leases = await self.lapsed("a")

        assert [False] == list(await self.broker.renew(leases, lease_for=LONG))
        assert ["a"] == await self.take_ids()

    async def test_renewal_answers_each_lease(self) -> None:
        """Living, acknowledged, given back, removed, taken over and forged."""
        [over] = await self.lapsed("over")
        await self.take(1)
        await self.add("live", "acked", "nacked", "removed")
        live, acked, nacked, removed = await self.take(4)
        await self.broker.ack([acked])
        await self.broker.nack([nacked])
        await self.broker.remove("q", ["removed"])
        forged = attrs.evolve(live, token=live.token + 1)

        answer = await self.broker.renew(
            [over, live, acked, nacked, removed, forged, live], lease_for=LONG
        )

        assert [False, True, False, False, False, False, True] == list(answer)
        assert ["nacked"] == await self.take_ids()

    # --- ack --------------------------------------------------------------------------

    async def test_an_acknowledged_id_is_gone(self) -> None:
        """It is in no state of the queue, and stays away."""
        await self.add("a", "b")
        [lease] = await self.take(1)

        assert [True] == list(await self.broker.ack([lease]))
        assert [False, True] == list(await self.broker.contains("q", ["a", "b"]))
        assert Counts(1, 0, 0, False) == await self.broker.counts("q")
        assert ["b"] == await self.take_ids()

    async def test_an_acknowledged_id_can_be_published_anew(self) -> None:
        """A second life stands at the end of the order."""
        await self.add("a", "b")
        await self.broker.ack(await self.take(1))
        answer = await self.broker.publish("q", [Entry("a")])

        assert [Published.ADDED] == list(answer)
        assert ["b", "a"] == await self.take_ids()

    async def test_a_second_ack_is_refused(self) -> None:
        """Once done, a lease is nothing any more, also inside one batch."""
        await self.add("a")
        [lease] = await self.take()

        assert [True, False] == list(await self.broker.ack([lease, lease]))
        assert [False] == list(await self.broker.ack([lease]))

    async def test_a_stale_ack_changes_nothing(self) -> None:
        """Who was taken over cannot finish for the new owner."""
        [old] = await self.lapsed("a")
        [new] = await self.take()

        assert [False] == list(await self.broker.ack([old]))
        assert Counts(0, 0, 1, False) == await self.broker.counts("q")
        assert [True] == list(await self.broker.ack([new]))

    async def test_a_lapsed_lease_cannot_be_acknowledged(self) -> None:
        """Also where nobody has taken over yet; the id is not lost."""
        leases = await self.lapsed("a")

        assert [False] == list(await self.broker.ack(leases))
        assert ["a"] == await self.take_ids()

    @pytest.mark.parametrize("off", [-1, 1])
    async def test_a_forged_token_is_refused(self, off: int) -> None:
        """Only the very token counts, not a larger one."""
        await self.add("a")
        [lease] = await self.take()
        forged = [attrs.evolve(lease, token=lease.token + off)]

        assert [False] == list(await self.broker.ack(forged))
        assert [False] == list(await self.broker.nack(forged))
        assert [True] == list(await self.broker.ack([lease]))

    async def test_a_lease_does_not_reach_into_the_next_life_of_an_id(self) -> None:
        """Removed and published anew, an id obeys only its new lease."""
        await self.add("a")
        old = await self.take()
        await self.broker.remove("q", ["a"])
        await self.add("a")
        new = await self.take()

        assert [False] == list(await self.broker.ack(old))
        assert [False] == list(await self.broker.renew(old, lease_for=LONG))
        assert [True] == list(await self.broker.ack(new))

    async def test_leases_of_several_queues_settle_in_one_call(self) -> None:
        """A batch may reach over queues; answers keep its order."""
        for queue in ("p", "q", "r"):
            await self.add("a", queue=queue)
        leases = [lease for queue in "rpq" for lease in await self.take(queue=queue)]
        await self.broker.remove("p", ["a"])

        assert [True, False, True] == list(await self.broker.renew(leases, lease_for=LONG))
        assert [True, False, True] == list(await self.broker.ack(leases))
        assert [] == list(await self.broker.queues())

    # --- nack ------------------------------------------------------------------------

    async def test_a_returned_id_is_ready_in_its_old_place(self) -> None:
        """Giving back costs neither place nor priority."""
        await self.add("a", "b")
        await self.add("x", priority=-1)
        leases = await self.take(2)

        assert [True, True] == list(await self.broker.nack(leases))
        assert ["x", "a", "b"] == await self.take_ids()

    async def test_a_returned_lease_is_over(self) -> None:
        """After giving back, the token is stale."""
        await self.add("a")
        lease = await self.take()
        await self.broker.nack(lease)

        assert [False] == list(await self.broker.ack(lease))
        assert [False] == list(await self.broker.nack(lease))
        assert ["a"] == await self.take_ids()

    async def test_returning_with_a_delay_holds_an_id_back(self) -> None:
        """It is delayed, then ready in its old place."""
        await self.add("a", "b")
        await self.broker.nack(await self.take(1), delay=0.1)
        assert Counts(1, 1, 0, False) == await self.broker.counts("q")
        await self.elapse(0.3)

        assert ["a", "b"] == await self.take_ids()

    async def test_returning_with_a_long_delay_is_not_claimed(self) -> None:
        """A delay is kept, not only noted."""
        await self.add("a")
        await self.broker.nack(await self.take(1), delay=60)

        assert [] == await self.take_ids()
        assert [True] == list(await self.broker.contains("q", ["a"]))

    async def test_returning_may_change_the_priority(self) -> None:
        """The new one counts, zero included; None keeps the old one."""
        await self.add("a", "b", "c", priority=5)
        a, b, c = await self.take()
        await self.broker.nack([a], priority=9)
        await self.broker.nack([b], priority=None)
        await self.broker.nack([c], priority=0)

        assert [("c", 0), ("b", 5), ("a", 9)] == [(x.id, x.priority) for x in await self.take()]

    async def test_a_stale_return_changes_nothing(self) -> None:
        """Who was taken over cannot put the id back under its new owner."""
        [old] = await self.lapsed("a")
        [new] = await self.take()

        assert [False, True] == list(await self.broker.nack([old, new]))
        assert [False] == list(await self.broker.nack([old], delay=60))
        assert ["a"] == await self.take_ids()

    # --- remove, contains, counts, queues, purge ---------------------------------------

    async def test_remove_takes_ids_out_of_every_state(self) -> None:
        """Ready, delayed and leased are removed; unknown is said."""
        await self.add("leased")
        lease = await self.take(1)
        await self.add("ready")
        await self.broker.publish("q", [Entry("delayed", due_at=await self.hot.now() + 60_000)])

        answer = await self.broker.remove("q", ["leased", "unknown", "ready", "delayed", "ready"])

        assert [True, False, True, True, False] == list(answer)
        assert UNCLAIMABLE == await self.broker.counts("q")
        assert [] == await self.take_ids()
        assert [False] == list(await self.broker.ack(lease))
        assert [False] == list(await self.broker.nack(lease))
        assert UNCLAIMABLE == await self.broker.counts("q")

    async def test_contains_sees_every_state(self) -> None:
        """Ready, delayed, leased and lapsed are there; unknown and finished are not."""
        await self.lapsed("lapsed")
        await self.add("leased", priority=-2)
        await self.take(1)
        await self.add("done", priority=-1)
        await self.broker.ack(await self.take(1))
        await self.add("ready")
        await self.broker.publish("q", [Entry("delayed", due_at=await self.hot.now() + 60_000)])
        asked = ["ready", "unknown", "delayed", "leased", "lapsed", "done", "ready"]

        answer = await self.broker.contains("q", asked)

        assert [True, False, True, True, True, False, True] == list(answer)

    async def test_counts_are_exact(self) -> None:
        """What is due or lapsed counts as ready before anybody claims."""
        now = await self.hot.now()
        await self.add(*"abcdef")
        await self.take(2)
        await self.take(1, lease_for=SHORT)
        await self.broker.publish(
            "q", [Entry("far", due_at=now + 60_000), Entry("near", due_at=now + 100)]
        )
        await self.elapse(0.3)

        assert Counts(5, 1, 2, False) == await self.broker.counts("q")

    async def test_an_unknown_queue_counts_zero(self) -> None:
        """Absence is no error."""
        assert UNCLAIMABLE == await self.broker.counts("nobody")
        assert 0 == await self.broker.purge("nobody")
        assert [] == list(await self.broker.reap("nobody"))
        assert [False] == list(await self.broker.remove("nobody", ["a"]))

    async def test_queues_are_those_with_ids_or_a_pause(self) -> None:
        """Sorted by name; drained and resumed ones are gone."""
        await self.add("a", queue="ready")
        await self.add("a", queue="leased")
        await self.take(queue="leased")
        await self.add("a", queue="drained")
        await self.broker.ack(await self.take(queue="drained"))
        await self.broker.publish("delayed", [Entry("a", due_at=await self.hot.now() + 60_000)])
        await self.broker.pause("paused")
        await self.broker.pause("resumed")
        await self.broker.resume("resumed")

        assert ["delayed", "leased", "paused", "ready"] == list(await self.broker.queues())

    async def test_purge_empties_a_queue(self) -> None:
        """Every state goes, leases included, and the ids are free again."""
        await self.add("a", "b", "c")
        lease = await self.take(1)
        await self.broker.publish("q", [Entry("d", due_at=await self.hot.now() + 60_000)])

        assert 4 == await self.broker.purge("q")
        assert UNCLAIMABLE == await self.broker.counts("q")
        assert [False] == list(await self.broker.ack(lease))
        assert [Published.ADDED] == list(await self.broker.publish("q", [Entry("a")]))

    async def test_purge_leaves_other_queues_alone(self) -> None:
        """Names that look like patterns name only themselves."""
        for queue in ("a*c", "abc", "a?c", "a[bx]c"):
            await self.add("x", queue=queue)
        await self.broker.purge("a*c")

        assert sorted(["abc", "a?c", "a[bx]c"]) == list(await self.broker.queues())

    # --- pause ------------------------------------------------------------------------

    async def test_a_paused_queue_hands_nothing_out(self) -> None:
        """Ready, due and lapsed ids wait until it is resumed, in their order."""
        await self.lapsed("lapsed")
        await self.add("ready")
        await self.broker.publish("q", [Entry("due", due_at=await self.hot.now() - 1)])
        await self.broker.pause("q")
        await self.add("late")

        assert [] == await self.take_ids()
        assert Counts(4, 0, 0, True) == await self.broker.counts("q")
        await self.broker.resume("q")
        assert ["lapsed", "ready", "due", "late"] == await self.take_ids()

    async def test_pause_and_resume_are_idempotent(self) -> None:
        """Twice is once."""
        await self.add("a")
        await self.broker.pause("q")
        await self.broker.pause("q")
        await self.broker.resume("q")
        assert ["a"] == await self.take_ids()
        await self.broker.resume("q")

        assert not (await self.broker.counts("q")).paused

    async def test_a_pause_is_of_one_queue(self) -> None:
        """Its neighbours run on."""
        await self.add("a", queue="p")
        await self.add("a", queue="q")
        await self.broker.pause("q")

        assert ["a"] == await self.take_ids(queue="p")

    async def test_a_pause_does_not_touch_work_in_flight(self) -> None:
        """Leases can be renewed, finished and given back meanwhile."""
        await self.add("a", "b")
        leases = await self.take()
        await self.broker.pause("q")

        assert [True, True] == list(await self.broker.renew(leases, lease_for=LONG))
        assert [True] == list(await self.broker.ack(leases[:1]))
        assert [True] == list(await self.broker.nack(leases[1:]))
        assert Counts(1, 0, 0, True) == await self.broker.counts("q")
        assert [] == await self.take_ids()

    async def test_a_pause_survives_a_purge(self) -> None:
        """Emptying a queue does not start it."""
        await self.broker.pause("q")
        await self.broker.purge("q")
        await self.add("a")

        assert [] == await self.take_ids()

    async def test_no_id_means_pause(self) -> None:
        """No id that a user may choose stops or starts a queue."""
        ids = ["__paused__", "paused", "pause", "meta", "seq", "token"]
        await self.add(*ids)
        assert ids == await self.take_ids()
        await self.broker.purge("q")

        assert not (await self.broker.counts("q")).paused

    async def test_nothing_is_claimed_after_pause_returned(self) -> None:
        """A pause among running claims holds from the moment it returns."""
        await self.add(*(f"{number}" for number in range(300)))
        paused = False
        late: list[str] = []

        async def work() -> None:
            for _ in range(30):
                began_paused = paused
                ids = await self.take_ids(1)
                if began_paused:
                    late.extend(ids)

        workers = [asyncio.create_task(work()) for _ in range(5)]
        await asyncio.sleep(0)
        await self.broker.pause("q")
        paused = True
        left = (await self.broker.counts("q")).ready
        await gather(workers)

        assert [] == late
        assert left == (await self.broker.counts("q")).ready

    # --- reap -------------------------------------------------------------------------

    async def test_reap_makes_lapsed_ids_ready(self) -> None:
        """Only what lapsed is named; its old lease is stale afterwards."""
        await self.add("living")
        await self.take(1)
        old = await self.lapsed("a", "b")

        assert {"a", "b"} == set(await self.broker.reap("q"))
        assert [] == list(await self.broker.reap("q"))
        assert Counts(2, 0, 1, False) == await self.broker.counts("q")
        assert [False, False] == list(await self.broker.renew(old, lease_for=LONG))
        new = await self.take()
        assert ["a", "b"] == [lease.id for lease in new]
        assert new[0].token > old[1].token

    async def test_reap_goes_by_the_time_of_lapsing(self) -> None:
        """Those that lapsed first stand in front, and a limit takes those."""
        await self.add("m", "z", "a")
        second, first, third = await self.take()
        await self.broker.renew([second], lease_for=0.7)
        await self.broker.renew([third], lease_for=1.2)
        await self.broker.renew([first], lease_for=SHORT)
        await self.elapse(1.5)

        assert ["z", "m"] == list(await self.broker.reap("q", limit=2))
        assert ["a"] == list(await self.broker.reap("q", limit=2))

    async def test_reap_works_on_a_paused_queue(self) -> None:
        """Recovery goes on while claims rest, and does not end the pause."""
        await self.lapsed("a")
        await self.broker.pause("q")

        assert ["a"] == list(await self.broker.reap("q"))
        assert [] == await self.take_ids()

    # --- restore ----------------------------------------------------------------------

    async def restored(self, **changes: Any) -> Lease:
        """Lose a leased id, and put it back as *changes* say."""
        await self.add("a", priority=4)
        [lease] = await self.take()
        await self.broker.purge("q")
        lease = attrs.evolve(lease, **changes)
        assert [True] == list(await self.broker.restore("q", [lease]))
        return lease

    async def test_a_restored_lease_works(self) -> None:
        """The worker that holds it goes on as if nothing had happened."""
        lease = await self.restored()

        assert Counts(0, 0, 1, False) == await self.broker.counts("q")
        assert [] == await self.take_ids()
        assert [True] == list(await self.broker.renew([lease], lease_for=LONG))
        assert [True] == list(await self.broker.ack([lease]))
        assert UNCLAIMABLE == await self.broker.counts("q")

    async def test_a_restored_lease_keeps_priority_and_deliveries(self) -> None:
        """What returns to the queue is what was lost."""
        lease = await self.restored(deliveries=3)
        await self.broker.nack([lease])
        [again] = await self.take()

        assert (4, 4) == (again.priority, again.deliveries)

    async def test_a_restored_lease_lapses(self) -> None:
        """Its end is the old one; who takes over has a larger token."""
        lease = await self.restored(expires_at=await self.hot.now() - 1)
        assert [False] == list(await self.broker.renew([lease], lease_for=LONG))
        [new] = await self.take()

        assert new.token > lease.token
        assert (4, 2) == (new.priority, new.deliveries)

    async def test_tokens_after_a_restored_lease_are_larger(self) -> None:
        """Also larger than tokens from before the plane was lost."""
        [old] = await self.lapsed("b")
        await self.broker.purge("q")
        lease = attrs.evolve(old, token=old.token + 10**9, expires_at=await self.hot.now() + 30_000)
        await self.broker.restore("q", [lease])
        await self.add("c")
        [new] = await self.take()

        assert new.token > lease.token

    async def test_restoring_again_changes_nothing(self) -> None:
        """An id that the queue knows is left alone, in whichever state."""
        lease = await self.restored()
        await self.add("ready")
        known = [attrs.evolve(lease, token=lease.token + 5), attrs.evolve(lease, id="ready")]

        assert [False, False] == list(await self.broker.restore("q", known))
        assert ["ready"] == await self.take_ids()
        assert [True] == list(await self.broker.ack([lease]))

    async def test_restore_answers_in_order(self) -> None:
        """Each lease of a batch is put back or left."""
        lease = await self.restored()
        more = [attrs.evolve(lease, id=id) for id in ("b", "a", "c", "b")]  # noqa: A001

        assert [True, False, True, False] == list(await self.broker.restore("q", more))
        assert Counts(0, 0, 3, False) == await self.broker.counts("q")

    async def test_restore_works_on_a_paused_queue(self) -> None:
        """A pause is put back before the leases are."""
        await self.broker.pause("q")
        await self.broker.restore("q", [Lease("q", "a", "w", 5, await self.hot.now() + 30_000)])

        assert Counts(0, 0, 1, True) == await self.broker.counts("q")

    async def test_restore_refuses_a_lease_of_another_queue(self) -> None:
        """Nothing is put back where one is wrong."""
        now = await self.hot.now()
        leases = [Lease("q", "a", "w", 5, now + 30_000), Lease("p", "b", "w", 6, now + 30_000)]
        with pytest.raises(InvalidValueError):
            await self.broker.restore("q", leases)

        assert UNCLAIMABLE == await self.broker.counts("q")

    # --- wait -------------------------------------------------------------------------

    @pytest.mark.parametrize("state", ["ready", "due", "lapsed", "returned"])
    async def test_wait_returns_at_once_where_there_is_work(self, state: str) -> None:
        """Ready, due, lapsed and given back are work."""
        if state == "ready":
            await self.add("a")
        elif state == "due":
            await self.broker.publish("q", [Entry("a", due_at=await self.hot.now() - 5)])
        elif state == "lapsed":
            await self.lapsed("a")
        else:
            await self.add("a")
            await self.broker.nack(await self.take())
        task = await self.wake("p", "q")

        assert ["q"] == await asyncio.wait_for(task, 10)
        assert ["a"] == await self.take_ids()

    async def test_wait_ends_when_the_time_is_over(self) -> None:
        """Nothing to do gives an empty answer, at once for zero seconds."""
        assert [] == list(await asyncio.wait_for(self.broker.wait(["q"], timeout=0), 10))
        task = asyncio.ensure_future(self.broker.wait(["p", "q"], timeout=0.1))
        await self.settle()
        await self.elapse(0.3)

        assert [] == list(await asyncio.wait_for(task, 10))

    async def test_wait_wakes_for_what_is_published(self) -> None:
        """Another client's publishing ends the wait, and nothing is taken by it."""
        task = await self.wake("p", "q", "r")
        await self.add("a")

        assert ["q"] == await asyncio.wait_for(task, 10)
        assert ["a"] == await self.take_ids()

    async def test_wait_wakes_for_what_becomes_due(self) -> None:
        """Also where the waiter knew only of something much later."""
        now = await self.hot.now()
        await self.broker.publish("q", [Entry("far", due_at=now + 3_600_000)])
        task = await self.wake("q")
        await self.broker.publish("q", [Entry("near", due_at=await self.hot.now() + 200)])
        await self.settle()
        await self.elapse(0.4)

        assert ["q"] == await asyncio.wait_for(task, 10)

    async def test_wait_wakes_for_a_delay_that_is_shortened(self) -> None:
        """Publishing an id anew, sooner, is news."""
        await self.broker.publish("q", [Entry("a", due_at=await self.hot.now() + 3_600_000)])
        task = await self.wake("q")
        await self.add("a")

        assert ["q"] == await asyncio.wait_for(task, 10)

    async def test_wait_wakes_for_a_lapsed_lease(self) -> None:
        """A dead worker's id is work, without anybody reaping."""
        await self.add("a")
        await self.take(lease_for=0.3)
        task = await self.wake("q")
        await self.elapse(0.6)

        assert ["q"] == await asyncio.wait_for(task, 10)

    async def test_wait_wakes_for_what_is_given_back(self) -> None:
        """At once, and after a delay."""
        await self.add("a")
        leases = await self.take()
        task = await self.wake("q")
        await self.broker.nack(leases)
        assert ["q"] == await asyncio.wait_for(task, 10)

        leases = await self.take()
        task = await self.wake("q")
        await self.broker.nack(leases, delay=0.1)
        await self.settle()
        await self.elapse(0.3)
        assert ["q"] == await asyncio.wait_for(task, 10)

    async def test_a_paused_queue_wakes_nobody_until_it_is_resumed(self) -> None:
        """Publishing there is silent; resuming is not."""
        await self.broker.pause("q")
        await self.add("a")
        assert [] == list(await asyncio.wait_for(self.broker.wait(["q"], timeout=0), 10))
        task = await self.wake("q")
        await self.add("b")
        await self.settle()
        assert not task.done()
        await self.broker.resume("q")

        assert ["q"] == await asyncio.wait_for(task, 10)

    async def test_every_waiter_is_woken(self) -> None:
        """One publishing does not leave others asleep beside ready work."""
        tasks = [await self.wake("q") for _ in range(5)]
        await self.add("a")

        assert [["q"]] * 5 == await asyncio.wait_for(gather(tasks), 10)

    async def test_waiting_keeps_no_other_call_waiting(self) -> None:
        """Publishing and claiming go on beside many waiters."""
        tasks = [await self.wake("idle") for _ in range(20)]
        for number in range(20):
            await self.add(f"{number}", queue="busy")
            assert [f"{number}"] == await self.take_ids(queue="busy")
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

        assert UNCLAIMABLE == await self.broker.counts("idle")

    async def test_a_cancelled_wait_leaves_no_trace(self) -> None:
        """Who gives up takes nothing and wakes on time the next time."""
        for _ in range(10):
            task = await self.wake("q")
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled()
        task = await self.wake("q")
        await self.add("a")

        assert ["q"] == await asyncio.wait_for(task, 10)
        assert ["a"] == await self.take_ids()

    # --- together -----------------------------------------------------------------------

    async def test_an_id_has_one_winner(self) -> None:
        """Fifty claims at once hand one id out once."""
        await self.add("a")
        won = await gather(self.take_ids(1) for _ in range(50))

        assert [["a"]] == [ids for ids in won if ids]

    async def test_concurrent_claims_neither_share_nor_lose(self) -> None:
        """Fifty claims of three take every id once, with distinct tokens."""
        await self.add(*(f"{number}" for number in range(150)))
        leases = [
            lease for batch in await gather(self.take(3) for _ in range(50)) for lease in batch
        ]

        assert 150 == len(leases) == len({lease.id for lease in leases})
        assert 150 == len({lease.token for lease in leases})

    async def test_concurrent_promotion_neither_shares_nor_loses(self) -> None:
        """Adders with tiny delays and several claimers deliver each id once."""
        taken: list[str] = []

        async def add(part: int) -> None:
            for number in range(25):
                due = await self.hot.now() + number % 6
                await self.broker.publish("q", [Entry(f"{part}-{number}", due_at=due)])

        async def work() -> None:
            for _ in range(10):
                taken.extend(await self.take_ids(7))
                await asyncio.sleep(0)

        await gather([*(add(part) for part in range(4)), *(work() for _ in range(4))])
        for _ in range(100):
            if len(taken) >= 100:
                break
            await self.elapse(0.02)
            taken.extend(await self.take_ids(50))

        assert sorted(f"{p}-{n}" for p in range(4) for n in range(25)) == sorted(taken)

    async def test_one_taker_over_has_the_lease(self) -> None:
        """Many who find a lapsed lease: one gets it."""
        await self.lapsed("a")
        won = await gather(self.take_ids(1) for _ in range(20))

        assert 1 == sum(map(len, won))

    async def test_giving_back_in_a_crowd_destroys_nothing(self) -> None:
        """Consumers that claim and return in turn always find every id."""
        await self.add("a", "b", "c")

        async def churn() -> None:
            for _ in range(40):
                await self.broker.nack(await self.take(1))

        await gather(churn() for _ in range(3))

        assert ["a", "b", "c"] == await self.take_ids()

    async def test_a_cancelled_claim_loses_nothing(self) -> None:
        """What was leased and not delivered lapses and comes back."""
        await self.add(*(f"{number}" for number in range(40)))
        for steps in range(30):
            task = asyncio.create_task(self.take(1, lease_for=SHORT))
            for _ in range(steps % 6):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self.elapse(0.3)

        assert [f"{number}" for number in range(40)] == await self.take_ids()

    # --- names and arguments ---------------------------------------------------------------

    async def test_every_legal_name_is_a_queue_of_its_own(self) -> None:
        """No two names meet, and each is listed as it is."""
        for number, name in enumerate(NAMES):
            await self.add(f"{number}", queue=name)

        assert sorted(NAMES) == list(await self.broker.queues())
        for number, name in enumerate(NAMES):
            assert [f"{number}"] == await self.take_ids(queue=name), name

    async def test_every_legal_name_is_an_id_of_its_own(self) -> None:
        """Ids come back to the letter, in order, and are found and removed alone."""
        await self.add(*NAMES)
        assert [True] * len(NAMES) == list(await self.broker.contains("q", NAMES))
        leases = await self.take(200)
        assert list(NAMES) == [lease.id for lease in leases]
        assert [True] * len(NAMES) == list(await self.broker.nack(leases, delay=60))

        assert [True] * len(NAMES) == list(await self.broker.remove("q", NAMES))

    async def test_queue_and_id_are_kept_apart(self) -> None:
        """What stands left and right of a separator matters."""
        await self.add("c", queue="a:b")
        await self.add("b:c", queue="a")
        await self.broker.ack(await self.take(queue="a:b"))

        assert ["b:c"] == await self.take_ids(queue="a")

    @pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
    async def test_a_bad_name_is_refused(self, name: Any) -> None:
        """As a queue, as an id and as an owner."""
        broker = self.broker
        for call in (
            lambda: broker.publish(name, [Entry("a")]),
            lambda: broker.publish("q", [Entry("good"), Entry(name)]),
            lambda: broker.claim(name, owner="w", lease_for=LONG),
            lambda: broker.claim("q", owner=name, lease_for=LONG),
            lambda: broker.wait(["q", name], timeout=0),
            lambda: broker.remove("q", [name]),
            lambda: broker.remove(name, ["a"]),
            lambda: broker.contains("q", [name]),
            lambda: broker.contains(name, ["a"]),
            lambda: broker.counts(name),
            lambda: broker.purge(name),
            lambda: broker.pause(name),
            lambda: broker.resume(name),
            lambda: broker.reap(name),
        ):
            with pytest.raises(InvalidValueError):
                await call()

        assert [] == list(await broker.queues())

    @pytest.mark.parametrize("priority", BAD_PRIORITIES, ids=repr)
    async def test_a_bad_priority_is_refused(self, priority: Any) -> None:
        """Never clamped, never wrapped; nothing of the batch is published."""
        with pytest.raises(InvalidValueError):
            await self.broker.publish("q", [Entry("good"), Entry("bad", priority)])
        assert [False] == list(await self.broker.contains("q", ["good"]))
        if priority is not None:
            await self.add("a")
            leases = await self.take()
            with pytest.raises(InvalidValueError):
                await self.broker.nack(leases, priority=priority)
            assert [True] == list(await self.broker.ack(leases))

    @pytest.mark.parametrize("due_at", [-1, 1.5, True, "1", 2**63], ids=repr)
    async def test_a_bad_due_time_is_refused(self, due_at: Any) -> None:
        """An instant is a whole number of milliseconds."""
        with pytest.raises(InvalidValueError):
            await self.broker.publish("q", [Entry("a", due_at=due_at)])

        assert UNCLAIMABLE == await self.broker.counts("q")

    @pytest.mark.parametrize("bad", [*BAD_DURATIONS, 0, 0.049], ids=repr)
    async def test_a_bad_lease_time_is_refused(self, bad: Any) -> None:
        """Zero is not a lease; nothing is handed out."""
        await self.add("a")
        with pytest.raises(InvalidValueError):
            await self.take(lease_for=bad)
        leases = await self.take()
        with pytest.raises(InvalidValueError):
            await self.broker.renew(leases, lease_for=bad)

        assert [True] == list(await self.broker.ack(leases))

    @pytest.mark.parametrize("bad", BAD_DURATIONS, ids=repr)
    async def test_a_bad_delay_or_timeout_is_refused(self, bad: Any) -> None:
        """A negative delay never means at once."""
        await self.add("a")
        leases = await self.take()
        with pytest.raises(InvalidValueError):
            await self.broker.nack(leases, delay=bad)
        with pytest.raises(InvalidValueError):
            await self.broker.wait(["q"], timeout=bad)

        assert [True] == list(await self.broker.ack(leases))

    @pytest.mark.parametrize("bad", [-1, 1.5, True, "1", None], ids=repr)
    async def test_a_bad_limit_is_refused(self, bad: Any) -> None:
        """A limit is a count."""
        await self.add("a")
        with pytest.raises(InvalidValueError):
            await self.take(bad)
        with pytest.raises(InvalidValueError):
            await self.broker.reap("q", limit=bad)

        assert ["a"] == await self.take_ids()

    async def test_an_unknown_order_is_refused(self) -> None:
        """An argument is never ignored."""
        await self.add("a")
        for order in ("FIFO", "priority", None, 1):
            with pytest.raises(InvalidValueError):
                await self.take(order=order)  # type: ignore[arg-type]

        assert ["a"] == await self.take_ids()

    async def test_waiting_needs_a_queue(self) -> None:
        """Nobody waits for nothing."""
        with pytest.raises(InvalidValueError):
            await self.broker.wait([], timeout=0)

    async def test_empty_batches_do_nothing(self) -> None:
        """An empty list in, an empty list out."""
        broker = self.broker

        assert [] == list(await broker.publish("q", []))
        assert [] == list(await broker.renew([], lease_for=LONG))
        assert [] == list(await broker.ack([]))
        assert [] == list(await broker.nack([]))
        assert [] == list(await broker.remove("q", []))
        assert [] == list(await broker.contains("q", []))
        assert [] == list(await broker.restore("q", []))
        assert [] == list(await broker.queues())
