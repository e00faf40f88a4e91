"""Schedules, pauses and definitions: one job a slot, and a pause that holds."""

from __future__ import annotations

from typing import Any, Final

from oqron_core.planes import Patch
from oqron_core.storage import Storage
from oqron_core.testing.operations.state import LEASE
from oqron_core.testing.operations.walk import Case


__all__ = ["CASES"]

QUEUE: Final = "q"
MINUTE: Final = 60_000
SLOTS: Final = tuple(10**12 + n * MINUTE for n in range(3))
"""Instants that are long past, so that no clock makes them."""
END: Final = 5 * 10**12


def _next_after(at: int) -> int | None:
    return next((slot for slot in SLOTS if slot > at), END)


# --- schedules --------------------------------------------------------------------------


async def _put(storage: Storage, given: Any) -> None:
    del given
    await storage.schedules.put(
        "cron", "n", next_run_at=SLOTS[0], spec={"every": 60}, catch_up="all"
    )


async def _put_anew(storage: Storage, given: Any) -> None:
    del given
    await storage.schedules.put("cron", "n", next_run_at=SLOTS[1], spec={"every": 30})


async def _put_and_paused(storage: Storage, given: Any) -> None:
    await _put(storage, given)
    await storage.schedules.pause("cron", "n", behaviour="skip")


async def _put_and_holding(storage: Storage, given: Any) -> None:
    await _put(storage, given)
    await storage.controls.pause("queue", QUEUE, behaviour="hold")


async def _advance(storage: Storage, given: Any) -> None:
    del given
    await storage.schedules.advance(
        "cron", "n", expected=SLOTS[0], next_run_at=END, enqueue=(QUEUE, {"slot": 0})
    )


async def _leave_out(storage: Storage, given: Any) -> None:
    del given
    await storage.schedules.advance("cron", "n", expected=SLOTS[0], next_run_at=END)


async def _fire(storage: Storage, given: Any) -> None:
    del given
    for due in await storage.schedules.due():
        await storage.schedules.fire(
            due, lambda slot: (QUEUE, {"slot": slot}), next_after=_next_after
        )


async def _reschedule(storage: Storage, given: Any) -> None:
    del given
    await storage.schedules.reschedule("cron", "n", next_run_at=END)


async def _delete(storage: Storage, given: Any) -> None:
    del given
    await storage.schedules.delete("cron", "n")


async def _pause(storage: Storage, given: Any) -> None:
    del given
    await storage.schedules.pause("cron", "n", reason="a test")


async def _resume(storage: Storage, given: Any) -> None:
    del given
    await storage.schedules.resume("cron", "n")


async def _is_not_due(storage: Storage) -> None:
    assert not await storage.schedules.due(), "a schedule that is paused is due"
    won = await storage.schedules.advance(
        "cron", "n", expected=SLOTS[0], next_run_at=END, enqueue=(QUEUE, {"slot": 0})
    )
    assert not won, "a schedule that is paused was advanced"


# --- controls -----------------------------------------------------------------------------


async def _two_jobs(storage: Storage, given: Any) -> None:
    del given
    await storage.jobs.add_many(QUEUE, [{"n": 1}, {"n": 2}])


async def _holding(storage: Storage, given: Any) -> None:
    """A queue that is paused with a job, and holds three that came later."""
    del given
    await storage.jobs.add(QUEUE, {"n": 0})
    await storage.controls.pause("queue", QUEUE, behaviour="hold")
    await storage.jobs.add_many(QUEUE, [{"n": n} for n in (1, 2, 3)])


async def _forgotten(storage: Storage, given: Any) -> None:
    """The record says resumed; whoever resumed died before he released."""
    await _holding(storage, given)
    change = {"paused": False, "behaviour": None}
    await storage.durable.write([Patch("queue", QUEUE, set=change)])
    await storage.hot.broker.resume(QUEUE)


async def _paused(storage: Storage, given: Any) -> None:
    await _two_jobs(storage, given)
    await storage.controls.pause_queue(QUEUE)


def _pausing(behaviour: str | None) -> Any:
    async def act(storage: Storage, given: Any) -> None:
        del given
        await storage.controls.pause("queue", QUEUE, behaviour=behaviour)

    return act


async def _pause_worker(storage: Storage, given: Any) -> None:
    del given
    await storage.controls.pause("worker", "w", behaviour="reject", reason="a test")


async def _pause_queue(storage: Storage, given: Any) -> None:
    del given
    await storage.controls.pause_queue(QUEUE)


async def _resume_queue(storage: Storage, given: Any) -> None:
    del given
    await storage.controls.resume_queue(QUEUE)


async def _resume_control(storage: Storage, given: Any) -> None:
    del given
    await storage.controls.resume("queue", QUEUE)


async def _release(storage: Storage, given: Any) -> None:
    del given
    await storage.controls.release(QUEUE)


async def _release_held(storage: Storage, given: Any) -> None:
    del given
    await storage.maintenance.release_held()


async def _nothing_is_handed_out(storage: Storage) -> None:
    claims = await storage.jobs.claim(QUEUE, limit=10, lease_for=LEASE)
    assert not claims, f"a paused queue handed out {[claim.id for claim in claims]}"


# --- definitions --------------------------------------------------------------------------------


async def _defined(storage: Storage, given: Any) -> None:
    del given
    await storage.definitions.put("cache", "c", {"ttl": 1})


async def _define(storage: Storage, given: Any) -> None:
    del given
    await storage.definitions.put("cache", "c", {"ttl": 2})


async def _undefine(storage: Storage, given: Any) -> None:
    del given
    await storage.definitions.delete("cache", "c")


CASES: Final[tuple[Case, ...]] = (
    Case(name="put a schedule", covers=("schedules.put",), act=_put),
    Case(name="change a schedule", covers=("schedules.put",), prepare=_put, act=_put_anew),
    Case(
        name="advance a schedule",
        covers=("schedules.advance",),
        prepare=_put,
        act=_advance,
    ),
    Case(
        name="advance a schedule whose queue holds",
        covers=("schedules.advance",),
        prepare=_put_and_holding,
        act=_advance,
    ),
    Case(
        name="leave a slot out",
        covers=("schedules.advance",),
        prepare=_put,
        act=_leave_out,
    ),
    Case(
        name="fire a schedule that missed slots",
        covers=("schedules.fire",),
        prepare=_put,
        act=_fire,
    ),
    Case(
        name="reschedule",
        covers=("schedules.reschedule",),
        prepare=_put,
        act=_reschedule,
    ),
    Case(
        name="delete a schedule",
        covers=("schedules.delete",),
        prepare=_put,
        act=_delete,
    ),
    Case(
        name="pause a schedule",
        covers=("schedules.pause",),
        prepare=_put,
        act=_pause,
        holds=_is_not_due,
    ),
    Case(
        name="resume a schedule",
        covers=("schedules.resume",),
        prepare=_put_and_paused,
        act=_resume,
    ),
    *(
        Case(
            name=f"pause a queue and {behaviour or 'let it fill'}",
            covers=("controls.pause",),
            prepare=_two_jobs,
            act=_pausing(behaviour),
            holds=_nothing_is_handed_out,
        )
        for behaviour in ("hold", "skip", "reject", None)
    ),
    Case(name="pause a worker", covers=("controls.pause",), act=_pause_worker),
    Case(
        name="pause a queue by controls",
        covers=("controls.pause_queue",),
        prepare=_two_jobs,
        act=_pause_queue,
        holds=_nothing_is_handed_out,
    ),
    Case(
        name="resume a queue by controls",
        covers=("controls.resume_queue",),
        prepare=_paused,
        act=_resume_queue,
    ),
    Case(
        name="resume a queue that holds",
        covers=("controls.resume",),
        prepare=_holding,
        act=_resume_control,
    ),
    Case(
        name="release what is held",
        covers=("controls.release",),
        prepare=_holding,
        act=_release,
        patient=True,
    ),
    Case(
        name="release what was forgotten",
        covers=("maintenance.release_held",),
        prepare=_forgotten,
        act=_release_held,
    ),
    Case(name="define", covers=("definitions.put",), act=_define),
    Case(
        name="change a definition",
        covers=("definitions.put",),
        prepare=_defined,
        act=_define,
    ),
    Case(
        name="delete a definition",
        covers=("definitions.delete",),
        prepare=_defined,
        act=_undefine,
    ),
)
