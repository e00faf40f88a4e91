"""The contract of `Storage.locks` in a mode: one holder, told when it is lost."""

from __future__ import annotations

import asyncio

from functools import partial
from typing import Any

import pytest

from oqron_core.exceptions import ConflictError, InvalidValueError, LeaseLostError
from oqron_core.protocol.holding import HeldLease
from oqron_core.storage import Storage
from oqron_core.testing.contracts.base import gather
from oqron_core.testing.contracts.services import ServiceContract
from oqron_core.testing.faults import Faults, When
from oqron_core.testing.hostile import BAD_NAMES, NAMES


__all__ = ["ModeLocksContract"]

BAD_LEASES = (0, 0.049, -1, float("nan"), float("inf"), "30", None, True)
BAD_WAITS = (-1, float("nan"), "1", True)


class ModeLocksContract(ServiceContract):
    """What locks and leaders must do in every mode."""

    async def lock(
        self, key: str = "k", storage: Storage | None = None, **options: Any
    ) -> HeldLease:
        """Take a lock that must be free."""
        held = await (storage or self.storage).locks.acquire(key, **options)
        assert held is not None
        return held

    async def lock_is_free(self, key: str = "k") -> bool:
        """Try to take a lock, and give it back."""
        held = await self.storage.locks.acquire(key)
        return held is not None and await self.storage.locks.release(held)

    # --- one holder ------------------------------------------------------------------

    async def test_of_eight_processes_one_gets_the_lock(self) -> None:
        """The others are told who has it."""
        async with self.crowd(8) as storages:
            taken = await gather(storage.locks.acquire("k") for storage in storages)
            [winner] = [held for held in taken if held is not None]
            shown = await storages[0].locks.holder("k")

            assert shown is not None
            assert ("k", winner.owner, winner.token) == (shown.id, shown.owner, shown.token)
            assert [None] * 8 == await gather(s.locks.acquire("k") for s in storages)

    async def test_eight_processes_hold_it_one_after_the_other(self) -> None:
        """Nobody overlaps, nobody is left out, and tokens grow in the order of holding."""
        inside = 0
        tokens: list[int] = []

        async def work(storage: Storage) -> None:
            nonlocal inside
            for _ in range(2):
                async with storage.locks.hold("k") as held:
                    inside += 1
                    assert 1 == inside
                    tokens.append(held.token)
                    await asyncio.sleep(0)
                    held.check()
                    inside -= 1

        async with self.crowd(8) as storages:
            await gather(work(storage) for storage in storages)

        assert 16 == len(tokens)
        assert sorted(set(tokens)) == tokens

    async def test_tasks_of_one_process_exclude_each_other(self) -> None:
        """A lock is not re-entrant, and those who wait take turns."""
        order: list[int] = []

        async def work(number: int) -> None:
            async with self.storage.locks.hold("k"):
                order.append(number)
                await asyncio.sleep(0)
                order.append(number)

        await gather(work(number) for number in range(10))

        assert 20 == len(order)
        assert all(order[at] == order[at + 1] for at in range(0, 20, 2))

    async def test_every_legal_name_is_a_lock_of_its_own(self) -> None:
        """Also the longest, and those that look like keys of ours."""
        names = [*NAMES, "oqron:lock:k"]
        for name in names:
            assert (await self.lock(name)).key == name

        for name in names:
            shown = await self.storage.locks.holder(name)
            assert shown is not None
            assert name == shown.id

    async def test_locks_leads_and_plain_keys_are_apart(self) -> None:
        """One name may be a lock, a lead, and a key of the plane itself."""
        await self.lock("k")

        async with self.storage.locks.lead("k", wait=0):
            assert await self.storage.hot.locks.acquire("k", owner="me", lease_for=30.0)

    # --- leases and tokens ---------------------------------------------------------------

    async def test_a_lapsed_lock_is_anothers_and_its_token_is_stale(self) -> None:
        """The old holder can neither renew nor release, and is told."""
        old = await self.lock(lease_for=0.2)
        await self.elapse(0.4)
        new = await self.lock()

        assert new.token > old.token
        assert not await self.storage.locks.renew(old)
        assert old.lost
        with pytest.raises(LeaseLostError, match="'k'"):
            old.check()
        assert not await self.storage.locks.release(old)
        assert not new.lost
        assert await self.storage.locks.renew(new)
        assert await self.storage.locks.release(new)

    async def test_a_lapsed_lock_is_not_renewed_though_nobody_took_it(self) -> None:
        """Whoever might have been replaced must ask anew."""
        held = await self.lock(lease_for=0.2)
        await self.elapse(0.4)

        assert not await self.storage.locks.renew(held)
        assert await self.lock_is_free()

    async def test_renewing_prolongs_the_lease(self) -> None:
        """By as much as was asked, from now on."""
        held = await self.lock(lease_for=30.0)
        assert await self.storage.locks.renew(held, lease_for=90.0)
        shown = await self.storage.locks.holder("k")

        assert shown is not None
        assert 89_000 <= shown.expires_at - await self.storage.hot.now() <= 90_000
        assert 80 < held.left <= 90

    async def test_a_lock_is_given_back_once(self) -> None:
        """Repeating it answers the same, and frees nobody else's."""
        held = await self.lock()
        assert await self.storage.locks.release(held)
        other = await self.lock()

        assert await self.storage.locks.release(held)
        assert not await self.storage.locks.renew(held)
        assert await held.wait_lost() is None
        assert await self.storage.locks.renew(other)

    # --- holding -----------------------------------------------------------------------------

    async def test_a_held_lock_outlives_its_lease(self) -> None:
        """It is renewed in the background for as long as the body takes."""
        renewals = "hot.locks.renew"
        async with self.storage.locks.hold("k", lease_for=self.brief) as held:
            for _ in range(3):
                seen = len(self.faults.names(renewals))
                await self.until(lambda seen=seen: len(self.faults.names(renewals)) > seen)  # type: ignore[misc]  # bound now
                await self.elapse(self.brief * 0.5)
            held.check()
            assert await self.storage.locks.acquire("k") is None

        assert await self.lock_is_free()

    async def test_a_renewal_that_fails_is_tried_again(self) -> None:
        """Answers may be lost, again and again, as long as one comes in time."""
        self.faults.fail("hot.locks.renew", times=2)
        self.faults.fail("hot.locks.renew", nth=3, when="after")
        async with self.storage.locks.hold("k", lease_for=self.brief * 4) as held:
            await self.until(lambda: len(self.faults.names("hot.locks.renew")) >= 5)
            assert not held.lost

        assert await self.lock_is_free()

    async def test_without_renewals_the_holder_is_told_within_its_lease(self) -> None:
        """The body is cut short where nobody can say that the lock is still held."""
        self.faults.down("hot.locks.renew")
        with pytest.raises(LeaseLostError, match="renewed in time"):
            async with self.storage.locks.hold("k", lease_for=0.3):
                await asyncio.Event().wait()

    async def test_a_lock_that_was_taken_away_cuts_the_body_short(self) -> None:
        """At the next renewal; the new holder is not touched."""
        had: list[HeldLease] = []
        with pytest.raises(LeaseLostError, match="taken away") as caught:  # noqa: PT012 - out of the body
            async with self.storage.locks.hold("k", lease_for=self.brief) as held:
                await self.storage.hot.locks.release(held.lease)
                had += [held, await self.lock()]
                await asyncio.Event().wait()
        held, other = had

        assert held.token == caught.value.token
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)
        assert held.lost
        assert "it lapsed or was taken away" == await held.wait_lost()
        assert await self.storage.locks.renew(other)

    async def test_a_loss_that_nobody_noticed_comes_out_at_the_end(self) -> None:
        """A body that ends well must not pass for one that was alone."""
        with pytest.raises(LeaseLostError, match="before it was given back"):
            async with self.storage.locks.hold("k") as held:
                await self.storage.hot.locks.release(held.lease)

    async def test_an_error_of_the_body_passes_and_frees_the_lock(self) -> None:
        """As it was raised, also where the lock is lost as well."""
        with pytest.raises(KeyError):
            async with self.storage.locks.hold("k"):
                raise KeyError("mine")
        assert await self.lock_is_free()

        with pytest.raises(KeyError):  # noqa: PT012 - out of the body
            async with self.storage.locks.hold("k") as held:
                await self.storage.hot.locks.release(held.lease)
                raise KeyError("mine")

    async def test_a_cancelled_body_frees_the_lock(self) -> None:
        """The cancellation is not swallowed and not turned into something else."""
        entered = asyncio.Event()

        async def work() -> None:
            async with self.storage.locks.hold("k"):
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert await self.lock_is_free()

    async def test_closing_the_storage_tells_the_holder(self) -> None:
        """What is not renewed any more is not held any more."""
        entered = asyncio.Event()

        async def work(storage: Storage) -> None:
            async with storage.locks.hold("k"):
                entered.set()
                await asyncio.Event().wait()

        async with self.open() as other:
            task = asyncio.create_task(work(other))
            await entered.wait()
        with pytest.raises(LeaseLostError, match="closed"):
            await task

    # --- waiting --------------------------------------------------------------------------------

    async def test_whoever_does_not_wait_is_refused_at_once(self) -> None:
        """None from acquire; from a context an error that names the holder."""
        held = await self.lock()

        assert await self.storage.locks.acquire("k", wait=0) is None
        with pytest.raises(ConflictError, match=held.owner):
            async with self.storage.locks.hold("k", wait=0):
                raise AssertionError("entered")

    async def test_waiting_has_an_end(self) -> None:
        """After it, nothing is held and nothing is left behind."""
        held = await self.lock()
        answers = await gather(self.storage.locks.acquire("k", wait=0.05) for _ in range(3))
        assert [None] * 3 == answers
        assert await self.storage.locks.release(held)

        assert await self.lock_is_free()

    async def test_giving_back_wakes_who_waits(self) -> None:
        """Without polling: while it is held, nobody asks."""
        held = await self.lock()
        faults = Faults()
        async with self.open(faults) as other:
            task = asyncio.create_task(self.lock(storage=other, wait=None))
            await self.until(lambda: "hot.signals.subscribe" in faults.names())
            await self.settle()
            asked = len(faults.names("hot.locks.acquire"))
            await asyncio.sleep(0.1)
            assert asked == len(faults.names("hot.locks.acquire"))
            assert await self.storage.locks.release(held)
            after = await task

            assert after.token > held.token
            assert asked + 1 == len(faults.names("hot.locks.acquire"))

    async def test_the_lock_of_a_holder_that_died_is_taken_over(self) -> None:
        """Who waits gets it when the lease is over, though nobody signals."""
        dead = await self.lock(lease_for=0.3)
        async with self.open() as other:
            task = asyncio.create_task(self.lock(storage=other, wait=None))
            await self.settle()
            await self.elapse(0.4)

            assert (await task).token > dead.token

    async def test_a_waiter_that_is_cancelled_holds_nothing(self) -> None:
        """Also where the lock was just being taken for it."""
        held = await self.lock()
        async with self.open() as other:
            waiter = asyncio.create_task(self.lock(storage=other, wait=None))
            await self.settle()
            waiter.cancel()
            await asyncio.wait([waiter])
            assert await self.storage.locks.release(held)
            assert await self.lock_is_free()

        pause = self.faults.pause("hot.locks.acquire", when="after")
        taker = asyncio.create_task(self.lock())
        await pause.reached.wait()
        taker.cancel()
        await asyncio.wait([taker])
        pause.release()
        await self.until_so(self.lock_is_free)

    async def test_a_process_that_dies_anywhere_frees_its_lock(self) -> None:
        """At whatever call of holding it: at once, or after the lease."""
        points: list[tuple[str, When]] = [
            (call, when)
            for call in ("hot.locks.acquire", "hot.locks.release", "hot.signals.publish")
            for when in ("before", "after")
        ]

        async def hold(doomed: Storage, key: str) -> None:
            async with doomed.locks.hold(key, lease_for=self.moment):
                pass

        for number, (call, when) in enumerate(points):
            await self.die(call, when, partial(hold, key=f"k{number}"))
        await self.pass_moment()

        for number in range(len(points)):
            assert await self.lock_is_free(f"k{number}")

    # --- leaders ---------------------------------------------------------------------------------

    async def test_of_eight_candidates_one_leads(self) -> None:
        """The others stand by, and one of them follows with a larger term."""
        leading: list[int] = []
        go_on = asyncio.Event()

        async def candidate(storage: Storage) -> None:
            async with storage.locks.lead("cron") as lead:
                leading.append(lead.term)
                await go_on.wait()

        async with self.crowd(8) as storages:
            tasks = [asyncio.create_task(candidate(storage)) for storage in storages]
            await self.until(lambda: bool(leading))
            await self.settle()
            shown = await self.storage.locks.leader("cron")

            assert shown is not None
            assert [shown.token] == leading
            assert "cron" == shown.id
            go_on.set()
            await gather(tasks)
        assert sorted(set(leading)) == leading
        assert 8 == len(leading)
        assert await self.storage.locks.leader("cron") is None

    async def test_a_second_candidate_that_does_not_wait_is_refused(self) -> None:
        """With the name of who leads."""
        async with self.storage.locks.lead("cron") as lead:
            with pytest.raises(ConflictError, match=lead.owner):
                async with self.storage.locks.lead("cron", wait=0):
                    raise AssertionError("entered")

    # --- refusals ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
    async def test_a_bad_key_of_a_lock_is_refused(self, name: Any) -> None:
        """In every call."""
        with pytest.raises(InvalidValueError):
            await self.storage.locks.acquire(name)
        with pytest.raises(InvalidValueError):
            self.storage.locks.hold(name)
        with pytest.raises(InvalidValueError):
            self.storage.locks.lead(name)
        with pytest.raises(InvalidValueError):
            await self.storage.locks.holder(name)

    async def test_a_bad_lease_or_wait_is_refused(self) -> None:
        """Never clamped."""
        for lease_for in BAD_LEASES:
            with pytest.raises(InvalidValueError, match="lease_for"):
                await self.storage.locks.acquire("k", lease_for=lease_for)  # type: ignore[arg-type]
            with pytest.raises(InvalidValueError, match="lease_for"):
                self.storage.locks.hold("k", lease_for=lease_for)  # type: ignore[arg-type]
        for wait in BAD_WAITS:
            with pytest.raises(InvalidValueError, match="wait"):
                await self.storage.locks.acquire("k", wait=wait)  # type: ignore[arg-type]

        assert await self.lock_is_free()
