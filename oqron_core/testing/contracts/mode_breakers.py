"""The contract of `Storage.breakers` in a mode: one probe among all processes."""

from __future__ import annotations

import asyncio

from typing import Any

import pytest

from oqron_core.exceptions import ConflictError, InvalidValueError, UnavailableError
from oqron_core.models import Backoff, Breaker
from oqron_core.services.breakers import BreakerPolicy, Permit
from oqron_core.storage import Storage
from oqron_core.taxonomy import RecordKind
from oqron_core.testing.contracts.base import gather
from oqron_core.testing.contracts.services import ServiceContract
from oqron_core.testing.hostile import BAD_NAMES, NAMES


__all__ = ["ModeBreakersContract"]


class ModeBreakersContract(ServiceContract):
    """What breakers must do in every mode."""

    @property
    def policy(self) -> BreakerPolicy:
        """Open after three failures, for a moment; a probe may take as long."""
        return BreakerPolicy(failures=3, open_for=Backoff.fixed(self.moment), probe_for=self.moment)

    async def may(self, name: str = "b", storage: Storage | None = None) -> Permit:
        """Ask whether to call."""
        return await (storage or self.storage).breakers.allow(name, policy=self.policy)

    async def fails(self, times: int = 1, name: str = "b", **options: Any) -> Breaker:
        """Tell failures."""
        breaker = Breaker(name=name)
        for _ in range(times):
            breaker = await self.storage.breakers.failure(name, policy=self.policy, **options)
        return breaker

    async def half_opened(self, name: str = "b") -> Permit:
        """Open a breaker, let its time pass, and take the probe."""
        await self.fails(3, name)
        await self.pass_moment()
        permit = await self.may(name)
        assert permit.probe
        return permit

    async def test_an_unused_breaker_is_closed(self) -> None:
        """It costs no record, and allows."""
        permit = await self.may()

        assert permit
        assert (False, "closed", 0.0) == (permit.probe, permit.state, permit.retry_after)
        assert "closed" == (await self.storage.breakers.state("b")).state
        await self.storage.breakers.success("b")
        assert [] == list(await self.storage.breakers.query())

    async def test_failures_in_a_row_open_it(self) -> None:
        """At the number that the policy says, and not for others."""
        assert ("closed", 2) == ((b := await self.fails(2)).state, b.failures)
        assert await self.may()
        opened = await self.fails()
        now = await self.storage.durable.now()
        denied = await self.may()

        assert ("open", 3) == (opened.state, opened.failures)
        assert opened.opened_at is not None
        assert opened.retry_at is not None
        assert opened.opened_at <= now < opened.retry_at <= now + round(self.moment * 1000)
        assert not denied
        assert 0 < denied.retry_after <= self.moment
        assert await self.may("other")

    async def test_a_success_ends_the_row(self) -> None:
        """Failures that are not in a row do not open it."""
        for _ in range(4):
            await self.fails(2)
            await self.storage.breakers.success("b")

        assert ("closed", 0) == ((b := await self.storage.breakers.state("b")).state, b.failures)

    async def test_the_success_of_a_sound_breaker_costs_nothing(self) -> None:
        """With the permit, the plane is not asked."""
        permit = await self.may()
        self.faults.reset()
        await self.storage.breakers.success("b", permit=permit)

        assert [] == self.faults.names("durable.*")

    async def test_failures_of_many_processes_are_counted_whole(self) -> None:
        """No update is lost, and it opens once."""
        policy = BreakerPolicy(failures=40)
        async with self.crowd(4) as storages:
            await gather(storages[n % 4].breakers.failure("b", policy=policy) for n in range(39))
            assert ("closed", 39) == (
                (b := await self.storage.breakers.state("b")).state,
                b.failures,
            )
            await gather(storages[n % 4].breakers.failure("b", policy=policy) for n in range(8))
        opened = await self.storage.breakers.state("b")

        assert "open" == opened.state
        assert 40 <= opened.failures <= 47

    async def test_of_eight_processes_one_gets_the_probe(self) -> None:
        """The others are told when to come again."""
        await self.fails(3)
        await self.pass_moment()
        async with self.crowd(8) as storages:
            permits = await gather(self.may(storage=storage) for storage in storages)
        [probe] = [permit for permit in permits if permit]

        assert probe.probe
        assert all(0 < p.retry_after <= self.moment + 0.1 for p in permits if not p)
        assert "half_open" == (await self.storage.breakers.state("b")).state

    async def test_a_probe_that_succeeds_closes_it(self) -> None:
        """For everybody, with a fresh count."""
        permit = await self.half_opened()
        await self.storage.breakers.success("b", permit=permit)
        closed = await self.storage.breakers.state("b")

        assert ("closed", 0, None, None) == (
            closed.state, closed.failures, closed.opened_at, closed.retry_at,
        )  # fmt: skip
        assert not (await self.may()).probe
        assert await self.may()

    async def test_a_probe_that_fails_opens_it_for_longer(self) -> None:
        """Each time, up to the cap."""
        policy = BreakerPolicy(failures=3, open_for=Backoff.exponential(0.05, factor=2.0, cap=0.12))
        breakers = self.storage.breakers
        for _ in range(3):
            await breakers.failure("b", policy=policy)
        spans = []
        for _ in range(3):
            await self.elapse(0.2)
            permit = await breakers.allow("b", policy=policy)
            assert permit.probe
            opened = await breakers.failure("b", policy=policy, permit=permit)
            assert "open" == opened.state
            assert opened.retry_at is not None
            assert opened.opened_at is not None
            spans.append(opened.retry_at - opened.opened_at)

        assert [100, 120, 120] == spans

    async def test_a_probe_whose_process_died_is_given_again(self) -> None:
        """After its time; what the dead one says later changes nothing."""
        first = await self.half_opened()
        assert not await self.may()
        await self.pass_moment()
        async with self.crowd(8) as storages:
            permits = await gather(self.may(storage=storage) for storage in storages)
        [second] = [permit for permit in permits if permit]
        assert second.probe

        await self.storage.breakers.success("b", permit=first)
        assert "half_open" == (await self.storage.breakers.state("b")).state
        assert "half_open" == (await self.fails(permit=first)).state
        await self.storage.breakers.success("b", permit=second)
        assert "closed" == (await self.storage.breakers.state("b")).state

    async def test_calls_from_before_the_opening_change_nothing(self) -> None:
        """Neither does a late success close it, nor a late failure prolong it."""
        early = await self.may()
        opened = await self.fails(3)
        await self.storage.breakers.success("b")
        await self.storage.breakers.success("b", permit=early)
        assert opened == await self.fails(permit=early)
        assert opened == await self.storage.breakers.state("b")

    async def test_a_breaker_is_a_record_of_state(self) -> None:
        """In the namespace of the model, by its wire names."""
        await self.fails(3)
        [record] = await self.storage.durable.get("webhook_cb", ["b"])

        assert record is not None
        assert RecordKind.STATE == record.kind
        assert {"name", "state", "failures", "openedAt", "retryAt", "version"} == set(record.value)
        assert record.expires_at is None

    async def test_breakers_are_listed_by_state(self) -> None:
        """Every legal name is one of its own."""
        for name in NAMES:
            await self.fails(3 if name == NAMES[0] else 1, name)
        page = await self.storage.breakers.query(limit=1000)

        assert sorted(NAMES) == sorted(breaker.name for breaker in page)
        assert [NAMES[0]] == [b.name for b in await self.storage.breakers.query(state="open")]

    async def test_a_person_can_close_it(self) -> None:
        """At once, for everybody."""
        await self.fails(3)
        assert await self.storage.breakers.reset("b")
        assert not await self.storage.breakers.reset("unused")

        assert await self.may()

    async def test_a_process_that_dies_anywhere_leaves_a_breaker_that_works(self) -> None:
        """Counting, opening and probing go on for the others."""
        for number, when in enumerate(("before", "after")):
            await self.fails(2, f"open{number}")
            await self.die(
                "durable.write",
                when,  # type: ignore[arg-type]
                lambda doomed, number=number: doomed.breakers.failure(  # type: ignore[misc]  # bound now
                    f"open{number}", policy=self.policy
                ),
            )
            assert "open" == (await self.fails(1, f"open{number}")).state
            await self.fails(3, f"probe{number}")
        await self.pass_moment()
        for number, when in enumerate(("before", "after")):
            await self.die(
                "durable.write",
                when,  # type: ignore[arg-type]
                lambda doomed, number=number: self.may(f"probe{number}", doomed),  # type: ignore[misc]  # bound now
            )
        await self.pass_moment()

        for number in range(2):
            assert (await self.may(f"probe{number}")).probe

    # --- guard --------------------------------------------------------------------------

    async def test_a_guarded_body_tells_how_it_went(self) -> None:
        """Failures open it, and then nothing is called."""
        called = 0
        for _ in range(5):
            with pytest.raises((KeyError, ConflictError)):  # noqa: PT012 - out of the body
                async with self.storage.breakers.guard("b", policy=self.policy):
                    called += 1
                    raise KeyError("no")
        assert 3 == called
        await self.pass_moment()
        async with self.storage.breakers.guard("b", policy=self.policy) as permit:
            assert permit.probe

        assert "closed" == (await self.storage.breakers.state("b")).state

    async def test_only_chosen_exceptions_are_failures(self) -> None:
        """An answer that the caller dislikes is an answer all the same."""
        await self.fails(2)
        with pytest.raises(KeyError):
            async with self.storage.breakers.guard("b", policy=self.policy, on=(OSError,)):
                raise KeyError("not found")

        assert 0 == (await self.storage.breakers.state("b")).failures

    async def test_a_cancelled_probe_goes_to_the_next(self) -> None:
        """At once: nothing was found out."""
        await self.fails(3)
        await self.pass_moment()
        entered = asyncio.Event()

        async def probe() -> None:
            async with self.storage.breakers.guard("b", policy=self.policy):
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(probe())
        await entered.wait()
        assert not await self.may()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert (await self.may()).probe

    async def test_an_outcome_that_cannot_be_told_stands(self) -> None:
        """The body's result is not replaced by trouble with the plane."""
        with pytest.raises(KeyError):  # noqa: PT012 - out of the body
            async with self.storage.breakers.guard("b", policy=self.policy):
                self.faults.down("durable.*")
                raise KeyError("mine")
        with pytest.raises(UnavailableError):
            await self.may()
        self.faults.heal()

        assert await self.may()

    # --- refusals ---------------------------------------------------------------------------

    @pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
    async def test_a_bad_name_of_a_breaker_is_refused(self, name: Any) -> None:
        """In every call."""
        breakers = self.storage.breakers
        for call in (
            lambda: breakers.allow(name),
            lambda: breakers.success(name),
            lambda: breakers.failure(name),
            lambda: breakers.state(name),
            lambda: breakers.reset(name),
        ):
            with pytest.raises(InvalidValueError):
                await call()

    async def test_bad_options_of_a_breaker_are_refused(self) -> None:
        """Policies, permits of others, unknown states."""
        bad: tuple[dict[str, Any], ...] = (
            {"failures": 0},
            {"failures": True},
            {"open_for": 3.0},
            {"probe_for": 0},
        )
        for options in bad:
            with pytest.raises(InvalidValueError):
                BreakerPolicy(**options)
        permit = await self.may("other")
        with pytest.raises(InvalidValueError, match="permit"):
            await self.storage.breakers.success("b", permit=permit)
        with pytest.raises(InvalidValueError, match="state"):
            await self.storage.breakers.query(state="ajar")
