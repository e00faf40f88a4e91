"""The contract of schedules, in a whole mode."""

from __future__ import annotations

import contextlib

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from oqron_core.exceptions import InvalidValueError, PausedError, UnavailableError
from oqron_core.models import JobSpec
from oqron_core.models.schedule import Schedule
from oqron_core.storage import Storage
from oqron_core.testing.contracts.base import gather
from oqron_core.testing.contracts.mode import ModeBase
from oqron_core.testing.faults import Crash, Faults
from oqron_core.testing.hostile import BAD_NAMES, NAMES


__all__ = ["SchedulesContract"]

MINUTE = 60_000


def every(ms: int, start: int) -> Callable[[int], int]:
    """Make the grid of an interval."""
    return lambda after: start + ((after - start) // ms + 1) * ms


class SchedulesContract(ModeBase):
    """Pointers that survive, and one job per slot whatever happens."""

    # --- helpers ------------------------------------------------------------------------

    async def past_slot(self, behind: int = 1000) -> int:
        """Give an instant that has come."""
        return await self.storage.durable.now() - behind

    async def pointer(self, name: str = "n", kind: str = "cron") -> Schedule:
        """Read a schedule, which must be there."""
        found = await self.storage.schedules.get(kind, name)
        assert found is not None
        return found

    async def slot_jobs(self, queue: str = "q", storage: Storage | None = None) -> list[Any]:
        """Give the payloads of a queue's jobs, in the order of their ids."""
        page = await (storage or self.storage).jobs.query(queue, limit=10_000)
        return [job.data for job in page]

    async def put_due(self, name: str = "n", behind: int = 1000, **options: Any) -> int:
        """Define a cron whose slot has come; gives the slot."""
        slot = await self.past_slot(behind)
        await self.storage.schedules.put("cron", name, next_run_at=slot, **options)
        return slot

    # --- defining -----------------------------------------------------------------------

    async def test_a_schedule_says_what_was_defined(self) -> None:
        """In both kinds, also through another storage."""
        for kind in ("cron", "schedule"):
            made = await self.storage.schedules.put(
                kind,
                "nightly",
                next_run_at=5 * 10**12,
                spec={"cron": "0 3 * * *", "n": [1, {"a": None}]},
                zone="Europe/Berlin",
                catch_up="all",
                max_catch_up=7,
            )
            async with self.open() as other:
                read = await other.schedules.get(kind, "nightly")
            assert made == read
            assert (kind, "nightly", 5 * 10**12, 1) == (
                made.kind, made.name, made.next_run_at, made.version,
            )  # fmt: skip
            assert {"cron": "0 3 * * *", "n": [1, {"a": None}]} == made.spec
            assert ("Europe/Berlin", "all", 7) == (made.zone, made.catch_up, made.max_catch_up)
            assert (False, None, 0) == (made.paused, made.last_run_at, made.run_count)

    async def test_defining_again_changes_nothing(self) -> None:
        """Every start of an application leaves pointer, pause and counters alone."""
        slot = await self.put_due(spec={"a": 1})
        assert await self.storage.schedules.advance(
            "cron", "n", expected=slot, next_run_at=slot + MINUTE, enqueue=("q", None)
        )
        await self.storage.schedules.pause("cron", "n")
        before = await self.pointer()

        again = await self.storage.schedules.put("cron", "n", next_run_at=1, spec={"a": 1.0})

        assert before == again == await self.pointer()
        assert (slot + MINUTE, True, 1, slot) == (
            again.next_run_at, again.paused, again.run_count, again.last_run_at,
        )  # fmt: skip

    async def test_a_changed_spec_moves_the_pointer(self) -> None:
        """And counts the version up; pause and counters stay, a changed policy moves nothing."""
        put = self.storage.schedules.put
        await put("cron", "n", next_run_at=10**13, spec={"a": 1}, paused=True)
        changed = await put("cron", "n", next_run_at=9 * 10**12, spec={"a": 2})
        assert (9 * 10**12, 2, True) == (changed.next_run_at, changed.version, changed.paused)
        zoned = await put("cron", "n", next_run_at=8 * 10**12, spec={"a": 2}, zone="Asia/Tokyo")
        assert (8 * 10**12, 3) == (zoned.next_run_at, zoned.version)
        policy = await put(
            "cron", "n", next_run_at=7 * 10**12, spec={"a": 2}, zone="Asia/Tokyo", catch_up="all"
        )

        assert (8 * 10**12, 4, "all") == (policy.next_run_at, policy.version, policy.catch_up)

    async def test_a_changed_spec_never_goes_back_to_a_slot_that_ran(self) -> None:
        """It is refused, and nothing has changed."""
        slot = await self.put_due(spec={"a": 1})
        await self.storage.schedules.advance(
            "cron", "n", expected=slot, next_run_at=slot + MINUTE, enqueue=("q", None)
        )
        before = await self.pointer()
        with pytest.raises(InvalidValueError, match="last slot that ran"):
            await self.storage.schedules.put("cron", "n", next_run_at=slot, spec={"a": 2})
        with pytest.raises(InvalidValueError, match="last slot that ran"):
            await self.storage.schedules.reschedule("cron", "n", next_run_at=slot)

        assert before == await self.pointer()

    async def test_many_starts_at_once_define_it_once(self) -> None:
        """Eight processes put the same, then eight different ones: none is lost halfway."""
        made = await gather(
            self.storage.schedules.put("cron", "n", next_run_at=10**13, spec={"a": 1})
            for _ in range(8)
        )
        assert {1} == {one.version for one in made}
        await gather(
            self.storage.schedules.put("cron", "n", next_run_at=10**13 + n, spec={"a": n})
            for n in range(2, 8)
        )

        last = await self.pointer()
        assert 10**13 + last.spec["a"] == last.next_run_at
        assert 7 == last.version

    async def test_a_definition_under_way_does_not_move_a_pointer_back(self) -> None:
        """A slot was won between the read and the write of a changed spec."""
        slot = await self.put_due(spec={"a": 1})
        pause = self.faults.pause("durable.write")
        slow = self.storage._session.spawn(
            self.storage.schedules.put("cron", "n", next_run_at=slot, spec={"a": 2}), name="slow"
        )
        await pause.reached.wait()
        async with self.open() as other:
            assert await other.schedules.advance(
                "cron", "n", expected=slot, next_run_at=slot + 9, enqueue=("q", 1)
            )
        pause.release()
        with pytest.raises(InvalidValueError, match="last slot that ran"):
            await slow

        assert slot + 9 == (await self.pointer()).next_run_at

    @pytest.mark.parametrize("known", [False, True])
    async def test_a_pause_during_the_definition_counts(self, *, known: bool) -> None:
        """Whoever is first, the two records say the same in the end."""
        if known:
            await self.storage.schedules.pause("cron", "n")
            await self.storage.schedules.resume("cron", "n")
        pause = self.faults.pause("durable.write")
        slow = self.storage._session.spawn(self.put_due(), name="slow")
        await pause.reached.wait()
        async with self.open() as other:
            await other.schedules.pause("cron", "n")
        pause.release()
        await slow

        assert (await self.pointer()).paused
        assert [] == await self.storage.schedules.due()

    async def test_kinds_and_hostile_names_stay_apart(self) -> None:
        """Any legal name is a schedule of its own in each kind, with jobs of its own."""
        slot = await self.past_slot()
        schedules = self.storage.schedules
        for name in NAMES:
            for kind in ("cron", "schedule"):
                await schedules.put(kind, name, next_run_at=slot, spec={"is": [kind, name]})
        for name in NAMES:
            for kind in ("cron", "schedule"):
                assert {"is": [kind, name]} == (await self.pointer(name, kind)).spec
                assert await schedules.advance(
                    kind, name, expected=slot, next_run_at=None, enqueue=("q", [kind, name])
                )

        assert 2 * len(NAMES) == len(await self.slot_jobs())

    async def test_what_is_not_legal_is_refused_before_any_write(self) -> None:
        """Kinds, names, instants, specs, policies and jobs."""
        schedules = self.storage.schedules
        for name in BAD_NAMES:
            with pytest.raises(InvalidValueError):
                await schedules.put("cron", name, next_run_at=1)
        wrong: list[dict[str, Any]] = [
            {"next_run_at": -1}, {"next_run_at": 1.5}, {"next_run_at": "tomorrow"},
            {"spec": "0 3 * * *"}, {"spec": {"a": float("nan")}}, {"zone": ""}, {"zone": 3},
            {"catch_up": "two"}, {"catch_up": None}, {"max_catch_up": 0}, {"max_catch_up": True},
        ]  # fmt: skip
        for options in wrong:
            with pytest.raises(InvalidValueError):
                await schedules.put("cron", "n", **{"next_run_at": 1, **options})
        with pytest.raises(InvalidValueError):
            await schedules.put("queue", "n", next_run_at=1)
        assert 0 == len(await schedules.query("cron"))
        slot = await self.put_due()
        bad: Any
        for bad in ("q", ("q",), ("", 1), ("q", JobSpec(1, id="x")), ("oqron:topic:1:t:g", 1)):
            with pytest.raises(InvalidValueError):
                await schedules.advance("cron", "n", expected=slot, next_run_at=None, enqueue=bad)

        assert (slot, 1) == ((await self.pointer()).next_run_at, len(await schedules.due()))

    async def test_lists_are_paged_by_name(self) -> None:
        """And may show what is paused alone."""
        schedules = self.storage.schedules
        for n in range(7):
            await schedules.put("cron", f"n{n}", next_run_at=n, paused=n % 2 == 1)
        names: list[str] = []
        after: str | None = None
        while True:
            page = await schedules.query("cron", limit=3, after=after)
            names += [one.name for one in page]
            after = page.next
            if after is None:
                break

        assert [f"n{n}" for n in range(7)] == names
        assert ["n1", "n3", "n5"] == [s.name for s in await schedules.query("cron", paused=True)]
        assert 0 == len(await schedules.query("schedule"))

    async def test_a_deleted_schedule_is_gone_with_its_pause(self) -> None:
        """It is not due, does not move, and may be defined anew, not paused."""
        slot = await self.put_due()
        await self.storage.schedules.pause("cron", "n")
        assert await self.storage.schedules.delete("cron", "n")
        assert not await self.storage.schedules.delete("cron", "n")
        assert await self.storage.schedules.get("cron", "n") is None
        assert not await self.storage.schedules.advance(
            "cron", "n", expected=slot, next_run_at=None, enqueue=("q", 1)
        )
        await self.put_due()

        assert 1 == len(await self.storage.schedules.due())
        assert [] == await self.slot_jobs()

    # --- due -----------------------------------------------------------------------------

    async def test_what_is_due_comes_oldest_first(self) -> None:
        """By the server's clock, of both kinds, without what is paused, ended or to come."""
        now = await self.storage.durable.now()
        put = self.storage.schedules.put
        await put("cron", "b", next_run_at=now - 1000)
        await put("schedule", "a", next_run_at=now - 3000)
        await put("cron", "c", next_run_at=now - 2000)
        await put("cron", "paused", next_run_at=now - 9000, paused=True)
        await put("cron", "ended", next_run_at=None)
        await put("cron", "later", next_run_at=now + 400)
        due = self.storage.schedules.due

        assert ["a", "c", "b"] == [one.name for one in await due()]
        assert ["c", "b"] == [one.name for one in await due(kind="cron")]
        assert ["a", "c"] == [one.name for one in await due(limit=2)]
        assert [] == await due(limit=0)
        await self.elapse(0.6)
        assert ["a", "c", "b", "later"] == [one.name for one in await due()]

    # --- advancing -----------------------------------------------------------------------

    async def test_advancing_moves_the_pointer_and_makes_the_job(self) -> None:
        """The job is claimable at once, with what its spec says."""
        slot = await self.put_due()
        spec = JobSpec({"r": 1}, priority=-3, max_attempts=1, tags=["t"], correlation_id="c")
        assert await self.storage.schedules.advance(
            "cron", "n", expected=slot, next_run_at=slot + MINUTE, enqueue=("reports", spec)
        )
        moved = await self.pointer()
        (claim,) = await self.storage.jobs.claim("reports")

        assert (slot + MINUTE, slot, 1) == (moved.next_run_at, moved.last_run_at, moved.run_count)
        assert ({"r": 1}, -3, 1, ["t"], "c") == (
            claim.job.data, claim.job.priority, claim.job.max_attempts, claim.job.tags,
            claim.job.correlation_id,
        )  # fmt: skip
        assert str(slot) in claim.job.id

    async def test_a_slot_that_its_mover_runs_itself_counts(self) -> None:
        """Without a job; one that is left out does not."""
        slot = await self.put_due()
        advance = self.storage.schedules.advance
        assert await advance("cron", "n", expected=slot, next_run_at=slot + 1)
        assert await advance("cron", "n", expected=slot + 1, next_run_at=slot + 2, ran=True)
        assert await advance("cron", "n", expected=slot + 2, next_run_at=slot + 3)
        moved = await self.pointer()

        assert (slot + 3, slot + 1, 1) == (moved.next_run_at, moved.last_run_at, moved.run_count)
        assert [] == await self.slot_jobs()

    async def test_a_slot_has_one_winner(self) -> None:
        """Of twenty callers one is told so, and there is one job."""
        slot = await self.put_due()
        won = await gather(
            self.storage.schedules.advance(
                "cron", "n", expected=slot, next_run_at=slot + MINUTE, enqueue=("q", n)
            )
            for n in range(20)
        )

        assert 1 == sum(won)
        assert [won.index(True)] == await self.slot_jobs()
        assert 1 == (await self.pointer()).run_count

    async def test_the_pointer_does_not_go_back(self) -> None:
        """Nor stand still; and a caller that is late changes nothing."""
        slot = await self.put_due()
        advance = self.storage.schedules.advance
        for target in (slot, slot - 1, 0):
            with pytest.raises(InvalidValueError, match="after the slot"):
                await advance("cron", "n", expected=slot, next_run_at=target, enqueue=("q", 1))
        assert await advance("cron", "n", expected=slot, next_run_at=slot + 10)
        assert not await advance("cron", "n", expected=slot, next_run_at=slot + 5)
        assert not await advance("cron", "n", expected=slot + 5, next_run_at=slot + 20)
        assert not await advance("cron", "other", expected=slot, next_run_at=slot + 5)

        assert (slot + 10, 0) == ((await self.pointer()).next_run_at, len(await self.slot_jobs()))

    async def test_a_schedule_may_end(self) -> None:
        """Then nothing is due until someone gives it a slot again."""
        slot = await self.put_due(spec={"once": True})
        schedules = self.storage.schedules
        assert await schedules.advance(
            "cron", "n", expected=slot, next_run_at=None, enqueue=("q", 1)
        )
        assert [] == await schedules.due()
        await schedules.put("cron", "n", next_run_at=slot, spec={"once": True})
        assert [] == await schedules.due()
        assert await schedules.reschedule("cron", "n", next_run_at=slot + 1)

        assert [slot + 1] == [one.next_run_at for one in await schedules.due()]
        assert not await schedules.reschedule("cron", "none", next_run_at=1)

    async def test_a_job_of_the_slot_that_is_there_already_is_no_error(self) -> None:
        """The pointer moves alone; the job stays as it was."""
        slot = await self.put_due("m")
        schedules = self.storage.schedules
        assert await schedules.advance(
            "cron", "m", expected=slot, next_run_at=slot + 9, enqueue=("q", "first")
        )
        # The definition is made anew, and comes to the same slot.
        await schedules.delete("cron", "m")
        await schedules.put("cron", "m", next_run_at=slot)

        assert await schedules.advance(
            "cron", "m", expected=slot, next_run_at=slot + 9, enqueue=("q", "second")
        )
        assert ["first"] == await self.slot_jobs()
        assert slot + 9 == (await self.pointer("m")).next_run_at

    async def test_a_winner_whose_answer_was_lost_learns_of_it(self) -> None:
        """The winner whose answer was lost is told that it won; the job is published."""
        slot = await self.put_due()
        self.faults.fail("durable.write", when="after")

        assert await self.storage.schedules.advance(
            "cron", "n", expected=slot, next_run_at=slot + 9, enqueue=("q", 1)
        )
        assert 1 == (await self.pointer()).run_count
        assert 1 == len(await self.storage.jobs.claim("q", limit=5))

    async def test_a_lost_answer_is_not_taken_for_the_move_of_another(self) -> None:
        """Without a job too: who did not move it is told so."""
        slot = await self.put_due()
        pause = self.faults.pause("durable.write")
        self.faults.fail("durable.write")
        late = self.storage._session.spawn(
            self.storage.schedules.advance("cron", "n", expected=slot, next_run_at=slot + 9),
            name="late",
        )
        await pause.reached.wait()
        async with self.open() as other:
            assert await other.schedules.advance("cron", "n", expected=slot, next_run_at=slot + 9)
        pause.release()

        assert not await late

    @pytest.mark.parametrize("when", ["before", "after"])
    async def test_no_crash_leaves_a_pointer_without_its_job(self, when: Any) -> None:
        """Wherever the process dies, another one finds both or neither, and ends with both."""
        for nth in range(1, 12):
            queue = name = f"n{nth}{when}"
            slot = await self.put_due(name)
            faults = Faults()
            async with contextlib.AsyncExitStack() as stack:
                storage = await stack.enter_async_context(self.open(faults, close_timeout=0.1))
                faults.reset()
                faults.crash("*", nth=nth, when=when)
                with contextlib.suppress(Crash):
                    await storage.schedules.advance(
                        "cron", name, expected=slot, next_run_at=slot + 9, enqueue=(queue, 1)
                    )
                died = faults.dead
                faults.heal()
                faults.dead = False
            moved = (await self.pointer(name)).next_run_at == slot + 9
            assert moved == bool(await self.slot_jobs(queue))
            won = await self.storage.schedules.advance(
                "cron", name, expected=slot, next_run_at=slot + 9, enqueue=(queue, 1)
            )
            assert won is not moved
            await self.storage.maintenance.reconcile()
            assert 1 == len(await self.storage.jobs.claim(queue, limit=5))
            if not died:
                return
        pytest.fail("an advance makes more calls than this test expects")

    async def test_a_plane_that_is_down_moves_nothing_or_publishes_later(self) -> None:
        """Without the durable plane it stands; without the hot one the job is safe."""
        slot = await self.put_due()
        schedules = self.storage.schedules
        self.faults.down("durable.write")
        with pytest.raises(UnavailableError):
            await schedules.advance(
                "cron", "n", expected=slot, next_run_at=slot + 9, enqueue=("q", 1)
            )
        self.faults.heal()
        self.faults.down("hot.*")
        delayed = JobSpec(1, delay=0.2)
        assert await schedules.advance(
            "cron", "n", expected=slot, next_run_at=slot + 9, enqueue=("q", delayed)
        )
        self.faults.heal()
        await self.storage.maintenance.reconcile()
        await self.elapse(0.4)

        assert 1 == len(await self.storage.jobs.claim("q", limit=5))

    async def test_schedulers_race_over_sixty_slots(self) -> None:
        """Eight storages, sixty slots of one schedule: sixty jobs, one per slot."""
        start = await self.past_slot(60 * MINUTE)
        grid = every(MINUTE, start)
        await self.storage.schedules.put("cron", "n", next_run_at=start + MINUTE)
        last = start + 60 * MINUTE
        won: list[int] = []

        async def scheduler(storage: Storage) -> None:
            while True:
                due = await storage.schedules.due()
                if not due:
                    return
                for one in due:
                    slot = one.next_run_at
                    assert slot is not None
                    if await storage.schedules.advance(
                        "cron",
                        "n",
                        expected=slot,
                        next_run_at=grid(slot) if slot < last else None,
                        enqueue=("q", slot),
                    ):
                        won.append(slot)

        async with AsyncExitStack() as stack:
            storages = [await stack.enter_async_context(self.open()) for _ in range(8)]
            await gather(scheduler(storage) for storage in storages)

        slots = [start + n * MINUTE for n in range(1, 61)]
        assert slots == sorted(won)
        assert slots == sorted(await self.slot_jobs())
        assert 60 == len(await self.storage.jobs.claim("q", limit=100))
        assert (60, last) == ((await self.pointer()).run_count, (await self.pointer()).last_run_at)

    # --- catching up -----------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("catch_up", "most", "expected"),
        [
            ("skip", 100, []),
            ("one", 100, [0]),
            ("all", 100, [*range(25)]),
            ("all", 10, [*range(15, 25)]),
        ],
    )
    async def test_a_day_that_was_missed_is_caught_up_by_policy(
        self, catch_up: str, most: int, expected: list[int]
    ) -> None:
        """An hourly pointer a day behind: none, one, all, or the last of all."""
        hour = 60 * MINUTE
        start = await self.put_due(
            behind=24 * hour + hour // 2, catch_up=catch_up, max_catch_up=most
        )
        (due,) = await self.storage.schedules.due()

        fired = await self.storage.schedules.fire(
            due, lambda slot: ("q", (slot - start) // hour), next_after=every(hour, start)
        )

        assert expected == await self.slot_jobs()
        assert expected == [(slot - start) // hour for slot in fired]
        assert start + 25 * hour == (await self.pointer()).next_run_at
        assert [] == await self.storage.schedules.due()

    async def test_a_slot_on_time_runs_under_every_policy(self) -> None:
        """A poll that comes a second late has missed nothing."""
        for catch_up in ("skip", "one", "all"):
            slot = await self.put_due(catch_up, catch_up=catch_up)
            (due,) = await self.storage.schedules.due()
            assert [slot] == await self.storage.schedules.fire(due, ("q", catch_up))
            assert (await self.pointer(catch_up)).next_run_at is None

        assert ["all", "one", "skip"] == sorted(await self.slot_jobs())

    async def test_who_fires_late_leaves_it_to_the_other(self) -> None:
        """A plan that is out of date makes no job twice."""
        hour = 60 * MINUTE
        start = await self.put_due(behind=3 * hour, catch_up="all")
        (due,) = await self.storage.schedules.due()
        fire = self.storage.schedules.fire

        first = await fire(due, ("q", 1), next_after=every(hour, start))
        again = await fire(due, ("q", 2), next_after=every(hour, start))

        assert (4, []) == (len(first), again)
        assert [1] * 4 == await self.slot_jobs()

    # --- pausing ------------------------------------------------------------------------------

    async def test_a_paused_schedule_is_neither_due_nor_moved(self) -> None:
        """Also not by who saw it due before; the state survives, and loses nothing."""
        slot = await self.put_due()
        schedules = self.storage.schedules
        control = await schedules.pause("cron", "n", reason="repairs")
        assert (True, "repairs", "hold") == (control.paused, control.reason, control.behaviour)
        async with self.open() as other:
            assert [] == await other.schedules.due()
            assert (await self.pointer()).paused
            assert not await other.schedules.advance(
                "cron", "n", expected=slot, next_run_at=slot + 9, enqueue=("q", 1)
            )
        assert not (await schedules.resume("cron", "n")).paused

        assert [slot] == [one.next_run_at for one in await schedules.due()]
        assert [] == await self.slot_jobs()

    async def test_what_was_missed_in_a_pause_that_skips_never_runs(self) -> None:
        """Whatever its catch-up says; what comes after the resume runs."""
        for behaviour in ("skip", "reject"):
            # Half a minute off the grid, so that the resume is between two slots.
            start = await self.put_due(behaviour, 60 * MINUTE + MINUTE // 2, catch_up="all")
            schedules = self.storage.schedules
            await schedules.pause("cron", behaviour, behaviour=behaviour)
            await schedules.resume("cron", behaviour)
            (due,) = await schedules.due()
            grid = every(MINUTE, start)
            assert [] == await schedules.fire(due, ("q", 1), next_after=grid)
            now = await self.storage.durable.now()
            following = (await self.pointer(behaviour)).next_run_at
            assert following is not None
            assert now < following <= now + MINUTE

        assert [] == await self.slot_jobs()

    async def test_a_schedule_that_rejects_says_so(self) -> None:
        """Who tries to move it gets a typed error with the reason."""
        slot = await self.put_due()
        await self.storage.schedules.pause("cron", "n", behaviour="reject", reason="no")
        with pytest.raises(PausedError, match="no"):
            await self.storage.schedules.advance(
                "cron", "n", expected=slot, next_run_at=slot + 9, enqueue=("q", 1)
            )

        assert slot == (await self.pointer()).next_run_at

    async def test_a_pause_from_before_the_definition_counts(self) -> None:
        """Controls and schedules show one state, whoever writes first."""
        await self.storage.controls.pause("cron_durable", "n", behaviour="hold")
        await self.put_due()
        assert (await self.pointer()).paused
        await self.storage.controls.resume("cron_durable", "n")
        assert not (await self.pointer()).paused
        await self.storage.schedules.pause("cron", "n")
        control = await self.storage.controls.get("cron_durable", "n")

        assert control is not None
        assert control.paused
        assert [] == await self.storage.schedules.due()

    # --- queues that are paused ----------------------------------------------------------------

    async def test_the_slot_keeps_to_what_its_queue_says(self) -> None:
        """Held where it holds, left out where it skips, standing where it rejects."""
        schedules, controls = self.storage.schedules, self.storage.controls
        slot = await self.put_due()
        await controls.pause("queue", "q", behaviour="reject")
        with pytest.raises(PausedError):
            await schedules.advance(
                "cron", "n", expected=slot, next_run_at=slot + 1, enqueue=("q", 1)
            )
        assert slot == (await self.pointer()).next_run_at
        await controls.pause("queue", "q", behaviour="skip")
        assert await schedules.advance(
            "cron", "n", expected=slot, next_run_at=slot + 1, enqueue=("q", 2)
        )
        assert ([], 0) == (await self.slot_jobs(), (await self.pointer()).run_count)
        await controls.pause("queue", "q", behaviour="hold")
        assert await schedules.advance(
            "cron", "n", expected=slot + 1, next_run_at=slot + 2, enqueue=("q", 3)
        )
        assert 1 == (await self.storage.jobs.counts("q"))["held"]
        await controls.resume("queue", "q")

        assert [3] == [c.job.data for c in await self.storage.jobs.claim("q", limit=5)]
