"""The contract of control state, in a whole mode."""

from __future__ import annotations

import asyncio
import contextlib

from typing import Any

import pytest

from oqron_core.exceptions import InvalidValueError, PausedError, UnavailableError
from oqron_core.models import JobSpec
from oqron_core.planes import Patch, Put, Query
from oqron_core.protocol.lanes import queue_of
from oqron_core.protocol.pauses import CONTROLS
from oqron_core.taxonomy import RecordKind
from oqron_core.testing.contracts.base import gather
from oqron_core.testing.contracts.mode import ModeBase
from oqron_core.testing.faults import Crash, Faults
from oqron_core.testing.hostile import BAD_NAMES, NAMES


__all__ = ["ControlsContract"]

NOTICED = 1.2
"""After how many seconds every process has noticed a pause."""


class ControlsContract(ModeBase):
    """What is paused, and what becomes of what arrives meanwhile."""

    # --- helpers ------------------------------------------------------------------------

    async def amounts(self, queue: str = "q") -> dict[str, int]:
        """Count the jobs of a queue, without the zeros."""
        counts = await self.storage.jobs.counts(queue)
        return {status: count for status, count in counts.items() if count}

    async def worked(self, queue: str = "q") -> list[Any]:
        """Claim all there is; gives the payloads in order."""
        return [claim.job.data for claim in await self.storage.jobs.claim(queue, limit=10_000)]

    # --- the record --------------------------------------------------------------------

    async def test_every_namespace_has_its_state(self) -> None:
        """Paused and resumed, versioned, with behaviour and reason, of the kind control."""
        controls = self.storage.controls
        for namespace in CONTROLS:
            assert await controls.get(namespace, "n") is None
            one = await controls.pause(namespace, "n", behaviour="skip", reason="why")
            assert (True, 1, "skip", "why", namespace, "n") == (
                one.paused, one.version, one.behaviour, one.reason, one.namespace, one.name,
            )  # fmt: skip
            assert one == await controls.get(namespace, "n")
            assert one == await controls.pause(namespace, "n", behaviour="skip", reason="why")
            two = await controls.pause(namespace, "n", behaviour="hold")
            assert (True, 2, "hold", None) == (two.paused, two.version, two.behaviour, two.reason)
            three = await controls.resume(namespace, "n")
            assert (False, 3, None) == (three.paused, three.version, three.behaviour)
            assert three == await controls.resume(namespace, "n")

        assert 6 == await self.storage.durable.count(Query(kind=RecordKind.CONTROL))

    async def test_lists_show_what_is_paused(self) -> None:
        """Of one namespace or of all, and nothing that is no pause state."""
        controls = self.storage.controls
        for namespace in CONTROLS:
            await controls.pause(namespace, "b")
            await controls.pause(namespace, "a")
            await controls.resume(namespace, "a")
        await self.storage.topics.subscribe("t", "g")

        every = await controls.query(limit=100)
        assert sorted([*((n, x) for n in CONTROLS for x in "ab"), ("topic_state", "t")]) == [
            (one.namespace, one.name) for one in every
        ]
        paused = await controls.query(paused=True, limit=4)
        rest = await controls.query(paused=True, limit=4, after=paused.next)
        assert sorted((n, "b") for n in CONTROLS) == [
            (one.namespace, one.name) for one in [*paused, *rest]
        ]
        assert ["a"] == [one.name for one in await controls.query("worker", paused=False)]

    async def test_other_fields_of_a_record_stay(self) -> None:
        """Whoever keeps more in it loses nothing by a pause."""
        await self.storage.topics.subscribe("t", "g")
        before = (await self.storage.durable.get("topic_state", ["t"]))[0]
        assert before is not None
        await self.storage.durable.write([Patch("topic_state", "t", set={"mine": [1]})])
        await self.storage.controls.pause("topic_state", "t")
        await self.storage.controls.resume("topic_state", "t")
        after = (await self.storage.durable.get("topic_state", ["t"]))[0]
        assert after is not None

        kept = {"mine", *before.value} - {"paused", "version", "updatedAt"}
        assert {**before.value, "mine": [1]}.items() >= {k: after.value[k] for k in kept}.items()
        await self.storage.topics.publish("t", 1)
        assert 1 == len(await self.storage.topics.claim("t", "g"))

    async def test_a_record_of_another_writer_can_be_paused(self) -> None:
        """Also where it has neither name nor version yet."""
        await self.storage.durable.write([Put("worker", "n", {"mine": 1})])
        assert (await self.storage.controls.pause("worker", "n")).paused
        one = await self.storage.controls.resume("worker", "n")
        record = (await self.storage.durable.get("worker", ["n"]))[0]
        assert record is not None

        assert (False, "n", 1) == (one.paused, one.name, record.value["mine"])

    async def test_changes_at_once_are_each_counted(self) -> None:
        """Twelve that differ make twelve versions."""
        await gather(self.storage.controls.pause("worker", "n", reason=str(n)) for n in range(12))

        one = await self.storage.controls.get("worker", "n")
        assert one is not None
        assert 12 == one.version

    async def test_a_change_under_way_does_not_undo_another(self) -> None:
        """Who was slower finds the newer state, and counts on from there."""
        controls = self.storage.controls
        await controls.pause("worker", "n", reason="a")
        pause = self.faults.pause("durable.write")
        slow = self.storage._session.spawn(controls.pause("worker", "n", reason="b"), name="b")
        await pause.reached.wait()
        async with self.open() as other:
            await other.controls.pause("worker", "n", reason="c")
        pause.release()

        assert (3, "b") == ((await slow).version, (await slow).reason)

    async def test_what_is_not_legal_is_refused(self) -> None:
        """Namespaces, names and behaviours, before any write."""
        pause: Any = self.storage.controls.pause
        for namespace in ("cron", "runs", "topic_groups:t", "custom", None):
            with pytest.raises(InvalidValueError):
                await pause(namespace, "n")
        for name in BAD_NAMES:
            with pytest.raises(InvalidValueError):
                await pause("queue", name)
        for behaviour in ("", "drop", 1):
            with pytest.raises(InvalidValueError):
                await pause("queue", "q", behaviour=behaviour)
        with pytest.raises(InvalidValueError):
            await pause("queue", queue_of("t", "g"), behaviour="hold")

        assert 0 == len(await self.storage.controls.query())

    async def test_others_may_ask_what_to_do(self) -> None:
        """Nothing, hold, skip, or an error with the reason."""
        controls = self.storage.controls
        for namespace in ("webhook", "worker", "queue", "topic_state"):
            assert await controls.admit(namespace, "n") is None
            await controls.pause(namespace, "n", behaviour="skip")
            assert "skip" == await controls.admit(namespace, "n")
            await controls.pause(namespace, "n", behaviour="reject", reason="closed")
            with pytest.raises(PausedError, match="closed") as caught:
                await controls.admit(namespace, "n")
            assert caught.value.retryable
            await controls.resume(namespace, "n")
            assert await controls.admit(namespace, "n") is None

    # --- without a behaviour ------------------------------------------------------------

    async def test_a_plain_pause_takes_jobs_and_hands_out_none(self) -> None:
        """As it was: they are waiting, and come in their order."""
        await self.storage.jobs.add("q", 1)
        await self.storage.jobs.pause("q", reason="r")
        await self.storage.jobs.add("q", 2)
        assert ({"waiting": 2}, []) == (await self.amounts(), await self.worked())
        control = await self.storage.controls.get("queue", "q")
        assert control is not None
        assert (True, "r", None) == (control.paused, control.reason, control.behaviour)
        await self.storage.jobs.resume("q")

        assert [1, 2] == await self.worked()

    # --- hold ------------------------------------------------------------------------------

    async def test_held_jobs_come_back_in_order(self) -> None:
        """What was there, then what was held by id, then what is new."""
        jobs = self.storage.jobs
        await jobs.add("q", "before", id="z")
        await self.storage.controls.pause("queue", "q", behaviour="hold")
        job = await jobs.add("q", 2, id="b")
        assert ("held", False) == (job.status, job.duplicate)
        await jobs.add_many(
            "q", [JobSpec(3, id="c"), JobSpec(1, id="a"), JobSpec(0, id="p", priority=-1)]
        )
        assert (await jobs.add("q", 9, id="b")).duplicate
        assert {"waiting": 1, "held": 4} == await self.amounts()
        assert [] == await self.worked()
        await self.storage.maintenance.run_once()
        assert {"waiting": 1, "held": 4} == await self.amounts()
        await self.storage.controls.resume("queue", "q")
        await jobs.add("q", "after", id="0")

        assert {"waiting": 6} == await self.amounts()
        assert [0, "before", 1, 2, 3, "after"] == await self.worked()

    async def test_held_jobs_survive_the_loss_of_the_hot_plane(self) -> None:
        """They stay held, and the queue stays paused, until someone resumes it."""
        await self.storage.controls.pause("queue", "q", behaviour="hold")
        await self.storage.jobs.add_many("q", range(3))
        await self.lose_hot(self.storage.hot)
        await self.storage.maintenance.rebuild_hot()
        assert ({"held": 3}, []) == (await self.amounts(), await self.worked())
        await self.storage.jobs.resume("q")

        assert [0, 1, 2] == await self.worked()

    async def test_a_held_job_keeps_its_delay_and_may_be_cancelled(self) -> None:
        """The delay counts from adding; what is called off does not come back."""
        await self.storage.controls.pause("queue", "q", behaviour="hold")
        await self.storage.jobs.add("q", "late", id="a", delay=3.0)
        await self.storage.jobs.add("q", "gone", id="b")
        await self.storage.jobs.add("q", "now", id="c")
        assert await self.storage.jobs.cancel("q", "b")
        await self.storage.controls.resume("queue", "q")
        assert {"delayed": 1, "waiting": 1, "cancelled": 1} == await self.amounts()
        assert ["now"] == await self.worked()
        await self.elapse(3.2)

        assert ["late"] == await self.worked()

    async def test_many_are_released_in_bounded_steps(self) -> None:
        """All of them, in order, and no answer holds more than a step."""
        await self.storage.controls.pause("queue", "q", behaviour="hold")
        await self.storage.jobs.add_many("q", range(2500))
        self.faults.reset()
        await self.storage.controls.resume("queue", "q")

        pages = [call.args[0].limit for call in self.faults.calls if call.name == "durable.query"]
        assert 1000 == max(pages)
        assert [*range(2500)] == await self.worked()

    async def test_a_resume_ends_while_more_arrives(self) -> None:
        """What arrives as fast as it is released does not keep the queue shut."""
        controls, jobs = self.storage.controls, self.storage.jobs
        await controls.pause("queue", "q", behaviour="hold")
        await jobs.add_many("q", range(20))
        added = 20
        faults = Faults()
        async with self.open(faults) as other:
            publish = other.hot.broker.publish

            async def and_more(*args: Any, **named: Any) -> Any:
                # Each step of the release finds as many that are new.
                nonlocal added
                arrived = await jobs.add_many("q", range(added, added + 20))
                added += 20
                assert added < 500, "it goes on for ever"
                answer = await publish(*args, **named)
                return answer if arrived else None

            object.__setattr__(other.hot.broker, "publish", and_more)
            await other.controls.resume("queue", "q")
            control = await controls.get("queue", "q")
            assert control is not None
            assert not control.paused
            object.__setattr__(other.hot.broker, "publish", publish)
        await self.storage.maintenance.release_held()

        assert [*range(added)] == sorted(await self.worked())

    async def test_a_second_resume_waits_for_the_first(self) -> None:
        """Nothing newer overtakes what the first has yet to release."""
        await self.storage.controls.pause("queue", "q", behaviour="hold")
        await self.storage.jobs.add_many("q", range(3))
        async with self.open() as other:
            pause = self.faults.pause("durable.write")
            first = asyncio.create_task(self.storage.controls.resume("queue", "q"))
            await pause.reached.wait()
            second = asyncio.create_task(other.controls.resume("queue", "q"))
            # Long enough for one that does not wait to come to its end.
            await asyncio.sleep(0.3)
            assert not second.done()
            pause.release()
            await gather([first, second])
            await other.jobs.add("q", "new")

        assert [0, 1, 2, "new"] == await self.worked()

    @pytest.mark.parametrize("behaviour", ["hold", "skip", "reject"])
    async def test_what_was_read_before_an_own_pause_is_not_kept(self, behaviour: str) -> None:
        """An add that was on its way at the pause knows the old state, the next one does not."""
        pause = self.faults.pause("durable.get", when="after")
        on_its_way = asyncio.create_task(self.storage.jobs.add("q", 1))
        await pause.reached.wait()
        await self.storage.controls.pause("queue", "q", behaviour=behaviour)
        pause.release()
        await on_its_way
        if behaviour == "reject":
            with pytest.raises(PausedError):
                await self.storage.jobs.add("q", 2)
        else:
            wanted = {"hold": "held", "skip": "cancelled"}[behaviour]
            assert wanted == (await self.storage.jobs.add("q", 2)).status

    async def test_another_pause_lets_go_of_what_was_held(self) -> None:
        """A pause without hold has nothing held; claims stay stopped."""
        await self.storage.controls.pause("queue", "q", behaviour="hold")
        await self.storage.jobs.add("q", 1)
        await self.storage.jobs.pause("q")
        assert ({"waiting": 1}, []) == (await self.amounts(), await self.worked())
        await self.storage.controls.pause("queue", "q", behaviour="hold")
        await self.storage.jobs.add("q", 2)
        assert 1 == await self.storage.controls.release("q")
        assert ({"waiting": 2}, []) == (await self.amounts(), await self.worked())
        await self.storage.jobs.resume("q")

        assert [1, 2] == await self.worked()

    async def test_a_job_that_is_held_too_late_is_released(self) -> None:
        """The queue was resumed between the question and the write."""
        await self.storage.controls.pause("queue", "q", behaviour="hold")
        pause = self.faults.pause("durable.write")
        adding = self.storage._session.spawn(self.storage.jobs.add("q", 1), name="late")
        await pause.reached.wait()
        async with self.open() as other:
            await other.controls.resume("queue", "q")
        pause.release()
        await adding

        assert {"waiting": 1} == await self.amounts()
        assert [1] == await self.worked()

    async def test_what_is_cancelled_during_the_release_stays_cancelled(self) -> None:
        """It was read as held, and ends before it is written."""
        await self.storage.controls.pause("queue", "q", behaviour="hold")
        await self.storage.jobs.add_many("q", [JobSpec(1, id="a"), JobSpec(2, id="b")])
        pause = self.faults.pause("durable.write")
        resuming = self.storage._session.spawn(
            self.storage.controls.resume("queue", "q"), name="resume"
        )
        await pause.reached.wait()
        async with self.open() as other:
            assert await other.jobs.cancel("q", "a")
        pause.release()
        await resuming

        assert {"cancelled": 1, "waiting": 1} == await self.amounts()
        assert [2] == await self.worked()

    async def test_nothing_that_comes_during_the_resume_overtakes(self) -> None:
        """A job that arrives once the queue holds no more comes after those it held."""
        await self.storage.controls.pause("queue", "q", behaviour="hold")
        await self.storage.jobs.add_many("q", range(3))
        # The first write releases, the second says that the queue is resumed.
        pause = self.faults.pause("durable.write", nth=2, when="after")
        resuming = self.storage._session.spawn(
            self.storage.controls.resume("queue", "q"), name="resume"
        )
        await pause.reached.wait()
        async with self.open() as other:
            assert "waiting" == (await other.jobs.add("q", "new")).status
        pause.release()
        await resuming

        assert [0, 1, 2, "new"] == await self.worked()

    async def test_other_processes_notice(self) -> None:
        """After a while they hold too, and after the resume they do not."""
        async with self.open() as other:
            await other.jobs.add("q", 0)
            await self.storage.controls.pause("queue", "q", behaviour="hold")
            await self.elapse(NOTICED)
            assert "held" == (await other.jobs.add("q", 1)).status
            await self.storage.controls.resume("queue", "q")
            await self.elapse(NOTICED)
            assert "waiting" == (await other.jobs.add("q", 2)).status

        assert [0, 1, 2] == await self.worked()

    @pytest.mark.parametrize("when", ["before", "after"])
    async def test_no_crash_of_a_resume_loses_or_doubles_a_job(self, when: Any) -> None:
        """Wherever it dies, the next resume and maintenance hand each job out once."""
        for nth in range(1, 40):
            queue = f"q{nth}{when}"
            await self.storage.controls.pause("queue", queue, behaviour="hold")
            await self.storage.jobs.add_many(queue, range(3))
            faults = Faults()
            async with self.open(faults, close_timeout=0.1) as storage:
                faults.reset()
                faults.crash("*", nth=nth, when=when)
                with contextlib.suppress(Crash):
                    await storage.controls.resume("queue", queue)
                died = faults.dead
                faults.heal()
                faults.dead = False
            control = await self.storage.controls.get("queue", queue)
            assert control is not None
            if control.paused:
                assert [] == await self.worked(queue)
                await self.drop_release(queue)
                await self.storage.controls.resume("queue", queue)
            await self.drop_release(queue)
            await self.storage.maintenance.run_once()
            assert [0, 1, 2] == sorted(await self.worked(queue))
            assert {"active": 3} == await self.amounts(queue)
            if not died:
                return
        pytest.fail("a resume makes more calls than this test expects")

    async def drop_release(self, queue: str) -> None:
        """Free the lock of a release whose process died, as its lapse would."""
        key = f"oqron:release:{queue}"
        lease = await self.storage.hot.locks.holder(key)
        if lease is not None:
            await self.storage.hot.locks.release(lease)

    async def test_without_the_hot_plane_maintenance_releases(self) -> None:
        """The resume is recorded, and carried over when the plane is back."""
        await self.storage.controls.pause("queue", "q", behaviour="hold")
        await self.storage.jobs.add_many("q", range(3))
        self.faults.down("hot.*")
        with pytest.raises(UnavailableError):
            await self.storage.controls.resume("queue", "q")
        self.faults.heal()
        assert {"held": 3} == await self.amounts()
        await self.storage.maintenance.run_once()

        assert [0, 1, 2] == await self.worked()

    # --- skip and reject -----------------------------------------------------------------

    async def test_a_queue_that_skips_stores_nothing(self) -> None:
        """The answer says so; the id is free, and what was there before stays."""
        jobs = self.storage.jobs
        await jobs.add("q", 0)
        await self.storage.controls.pause("queue", "q", behaviour="skip")
        one = await jobs.add("q", 1, id="a")
        many = await jobs.add_many("q", [2, 3])
        assert ["cancelled"] * 3 == [job.status for job in [one, *many]]
        assert {(False, False)} == {(job.published, job.duplicate) for job in [one, *many]}
        assert ({"waiting": 1}, None) == (await self.amounts(), await jobs.get("q", "a"))
        await self.storage.controls.resume("queue", "q")
        assert not (await jobs.add("q", 4, id="a")).duplicate

        assert [0, 4] == await self.worked()

    async def test_a_queue_that_rejects_says_so(self) -> None:
        """Single and in batches, with the reason; bad values are found all the same."""
        jobs = self.storage.jobs
        await self.storage.controls.pause("queue", "q", behaviour="reject", reason="audit")
        with pytest.raises(PausedError, match=r"'q'.*audit"):
            await jobs.add("q", 1)
        with pytest.raises(PausedError):
            await jobs.add_many("q", [1, 2])
        assert ({}, 0) == (await self.amounts(), len(await jobs.query("q")))
        assert "waiting" == (await jobs.add("other", 1)).status
        await self.storage.controls.resume("queue", "q")
        await jobs.add("q", 1)

        assert [1] == await self.worked()

    async def test_what_is_in_flight_goes_on(self) -> None:
        """A pause of any behaviour lets workers finish, fail and retry what they have."""
        for behaviour in ("hold", "skip", "reject"):
            queue = f"q-{behaviour}"
            await self.storage.jobs.add_many(queue, [1, 2])
            done, failed = await self.storage.jobs.claim(queue, limit=2)
            await self.storage.controls.pause("queue", queue, behaviour=behaviour)
            await self.storage.jobs.complete(done)
            await self.storage.jobs.fail(failed, "again", retry_in=0.0)
            assert [] == await self.worked(queue)
            await self.storage.controls.resume("queue", queue)
            assert [2] == await self.worked(queue)

    async def test_hostile_names_are_paused_alone(self) -> None:
        """Every legal queue name holds its own jobs and no other's."""
        for name in NAMES:
            await self.storage.controls.pause("queue", name, behaviour="hold")
            await self.storage.jobs.add(name, name)
        for name in NAMES:
            assert {"held": 1} == await self.amounts(name)
            await self.storage.controls.resume("queue", name)
            assert [name] == await self.worked(name)
