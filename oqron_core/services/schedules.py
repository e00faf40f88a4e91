"""Schedules: pointers that survive restarts, and one winner per slot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from oqron_core._codec import encode
from oqron_core._names import check_name
from oqron_core.exceptions import InvalidValueError
from oqron_core.models.job import JobSpec
from oqron_core.models.schedule import CatchUp, Schedule
from oqron_core.planes.checks import check_instant, check_limit, seconds
from oqron_core.planes.values import Page, Query
from oqron_core.protocol.lanes import refuse_topic_queue
from oqron_core.protocol.pauses import Behaviour, Pause, set_paused
from oqron_core.protocol.pointers import (
    CONTROL_OF,
    GRACE,
    KINDS,
    Move,
    NextAfter,
    Pointers,
    plan,
    schedule_of,
)
from oqron_core.protocol.session import Session


__all__ = ["Schedules"]

_CATCH_UP_MOST = 10_000
_ZONE_CHARS = 255


class Schedules:
    """
    When what is to run. Two kinds: ``cron``, which repeats, and ``schedule``.

    A schedule has a pointer, its next slot. Any number of processes may look for
    what is due and `advance` it: one of them wins each slot, and the slot's job is
    there if and only if the pointer moved. What a spec means is up to the caller;
    `oqron_core.cronspec` reads cron text.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._pointers = Pointers(session)

    async def put(
        self,
        kind: str,
        name: str,
        *,
        next_run_at: int | None,
        spec: Mapping[str, Any] | None = None,
        zone: str | None = None,
        catch_up: str = "one",
        max_catch_up: int = 100,
        paused: bool = False,
    ) -> Schedule:
        """
        Define a schedule, or change its definition. Meant for every start.

        Where spec and zone are as they were, the pointer stays, and *next_run_at*
        is left aside; where one has changed, the pointer becomes *next_run_at*.
        Whether it is paused and what it counted stay in any case.

        Args:
            kind: ``cron`` or ``schedule``.
            name: Unique in the kind.
            next_run_at: The first slot, milliseconds since the epoch; None for a
                schedule that has none.
            spec: What it is, an object; None for an empty one.
            zone: The name of the time zone that the spec is read in.
            catch_up: What becomes of slots that were missed: ``skip``, ``one``
                run for all, or ``all`` of them.
            max_catch_up: How many ``all`` runs at most, 1 to 10,000: the last.
            paused: Whether a schedule that is new starts paused.

        Returns:
            The schedule as it is now.

        Raises:
            InvalidValueError: An argument is not legal, or a changed spec would
                move the pointer back to a slot that has run.
            ConflictError: Others kept changing it.
            UnavailableError: The durable plane did not answer; repeat the call.
        """
        self._check(kind, name)
        wanted = Schedule(
            kind,
            name,
            None if next_run_at is None else check_instant(next_run_at, "next_run_at"),
            _check_spec(spec, self._session.settings.max_value_bytes),
            zone=None if zone is None else _check_zone(zone),
            catch_up=_check_catch_up(catch_up),
            max_catch_up=_check_most(max_catch_up),
            paused=bool(paused),
        )
        return await self._pointers.put(wanted)

    async def get(self, kind: str, name: str) -> Schedule | None:
        """Read a schedule; None where there is none."""
        self._check(kind, name)
        return await self._pointers.get(kind, name)

    async def query(
        self,
        kind: str,
        *,
        paused: bool | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Page[Schedule]:
        """
        Read the schedules of a kind, by name.

        Args:
            kind: ``cron`` or ``schedule``.
            paused: Only what is paused, or only what is not; None for both.
            limit: At most this many, 1 to 10,000.
            after: The ``next`` of the page before.
        """
        self._session.check_open()
        _check_kind(kind)
        where = [] if paused is None else [("paused", "=", paused)]
        query = Query(namespace=kind, where=where, limit=limit, after=after)
        page = await self._session.durable.query(query)
        return Page([schedule_of(record) for record in page.items], page.next)

    async def delete(self, kind: str, name: str) -> bool:
        """
        Remove a schedule with its pause state; jobs of its slots stay.

        Returns:
            False where there was none.
        """
        self._check(kind, name)
        return await self._pointers.delete(kind, name)

    async def due(self, *, limit: int = 100, kind: str | None = None) -> list[Schedule]:
        """
        List schedules whose slot has come, by the durable plane's clock.

        Args:
            limit: At most this many; 0 gives none.
            kind: Only of this kind; None for both.

        Returns:
            The oldest slot first; nothing that is paused.
        """
        self._session.check_open()
        if kind is not None:
            _check_kind(kind)
        return await self._pointers.due(kind=kind, limit=check_limit(limit))

    async def advance(
        self,
        kind: str,
        name: str,
        *,
        expected: int,
        next_run_at: int | None,
        enqueue: tuple[str, Any] | None = None,
        ran: bool = False,
    ) -> bool:
        """
        Move the pointer on from a slot and add the slot's job, or neither.

        One atomic write. The job's id is made of kind, name and slot; where a job
        of that id is there already, the pointer moves and the job stays as it is.
        A queue that is paused keeps to its behaviour: ``hold`` holds the job,
        ``skip`` moves the pointer without one.

        Args:
            kind: ``cron`` or ``schedule``.
            name: Which.
            expected: The slot: where the caller saw the pointer.
            next_run_at: The next slot, after *expected*; None where it ends.
            enqueue: The queue and the payload, or a `JobSpec` without an id;
                None to leave the slot out.
            ran: Where there is no job: whether the caller runs the slot itself, so
                that it counts as one that ran. A slot with a job does in any case.

        Returns:
            True for the one who moved it. False where the pointer is elsewhere,
            the schedule is paused, or it is gone.

        Raises:
            InvalidValueError: An argument is not legal, or *next_run_at* is not
                after *expected*.
            PausedError: The queue or the schedule rejects what arrives; the
                pointer stands.
            UnavailableError: The durable plane did not answer. Repeating the call
                is safe, but may give False although it was this call that won.
        """
        self._check(kind, name)
        check_instant(expected, "expected")
        if next_run_at is not None:
            check_instant(next_run_at, "next_run_at")
            if next_run_at <= expected:
                reason = f"must be after the slot ({expected}), not {next_run_at}"
                raise InvalidValueError("next_run_at", reason)
        job = None if enqueue is None else _check_enqueue(enqueue)
        move = Move(expected, next_run_at, run=job is not None or bool(ran))
        return await self._advance(kind, name, move, job)

    async def fire(
        self,
        schedule: Schedule,
        enqueue: tuple[str, Any] | Callable[[int], tuple[str, Any]],
        *,
        next_after: NextAfter | None = None,
        grace: float = GRACE,
    ) -> list[int]:
        """
        Do what a due schedule asks for: its slots by its catch-up, one by one.

        Each slot is an `advance`, so a crash in between leaves the rest due.

        Args:
            schedule: As `due` gave it.
            enqueue: The queue and the payload, as in `advance`; or what gives
                them for a slot.
            next_after: Gives the first slot after an instant, as `CronSpec.next`
                does; None where there is only one.
            grace: For how many seconds a slot is on time; see `plan`.

        Returns:
            The slots that this caller moved on from with a job; fewer where
            another one was at it.
        """
        moves = await self.plan(schedule, next_after=next_after, grace=grace)
        done: list[int] = []
        for move in moves:
            job = None
            if move.run:
                asked = enqueue(move.expected) if callable(enqueue) else enqueue
                job = _check_enqueue(asked)
            if not await self._advance(schedule.kind, schedule.name, move, job):
                break
            if move.run:
                done.append(move.expected)
        return done

    async def plan(
        self,
        schedule: Schedule,
        *,
        next_after: NextAfter | None = None,
        grace: float = GRACE,
    ) -> list[Move]:
        """
        Say how the pointer is to move past now, by the schedule's catch-up.

        ``one`` runs the slot at the pointer for all that were missed, ``all`` runs
        each, but of more than ``max_catch_up`` only the last; ``skip`` runs the
        last slot where it is no older than *grace*, and nothing else. The work is
        bounded however far behind the pointer is.

        Args:
            schedule: The schedule.
            next_after: As in `fire`.
            grace: Seconds for which a slot is on time.

        Returns:
            Moves for `advance`, in order; none where it is not due.
        """
        self._session.check_open()
        seconds("grace", grace)
        now = await self._session.durable_time.now()
        return plan(schedule, now, next_after or _nothing, grace=grace)

    async def reschedule(self, kind: str, name: str, *, next_run_at: int | None) -> bool:
        """
        Set the pointer by hand; the way to give a schedule that ended a new slot.

        Args:
            kind: ``cron`` or ``schedule``.
            name: Which.
            next_run_at: The next slot; None to end it.

        Returns:
            False where there is no such schedule.

        Raises:
            InvalidValueError: The slot is not after the last one that ran.
            ConflictError: Others kept moving it.
        """
        self._check(kind, name)
        if next_run_at is not None:
            check_instant(next_run_at, "next_run_at")
        return await self._pointers.reschedule(kind, name, next_run_at)

    async def pause(
        self, kind: str, name: str, *, behaviour: str = "hold", reason: str | None = None
    ) -> Pause:
        """
        Let a schedule never be due. The state survives restarts.

        After this returned no slot runs. With ``hold`` the resume leaves what was
        missed to the schedule's catch-up; with ``skip`` and ``reject`` what was
        missed never runs, and ``reject`` lets `advance` raise `PausedError`.
        The same as pausing ``cron_durable`` or ``schedule_durable`` in `Controls`.

        Raises:
            InvalidValueError: An argument is not legal.
            UnavailableError: The durable plane did not answer.
        """
        self._check(kind, name)
        try:
            wanted = Behaviour(behaviour)
        except ValueError:
            reason = f"{behaviour!r} is none of {', '.join(Behaviour)}"
            raise InvalidValueError("behaviour", reason) from None
        namespace = CONTROL_OF[kind]
        return await set_paused(
            self._session, namespace, name, paused=True, reason=reason, behaviour=str(wanted)
        )

    async def resume(self, kind: str, name: str) -> Pause:
        """Let a schedule be due again; what was missed, see `pause`."""
        self._check(kind, name)
        return await set_paused(self._session, CONTROL_OF[kind], name, paused=False)

    async def _advance(
        self, kind: str, name: str, move: Move, job: tuple[str, JobSpec] | None
    ) -> bool:
        won = await self._pointers.advance(kind, name, move, job)
        if not won:
            await self._pointers.check_accepts(kind, name)
        return won

    def _check(self, kind: str, name: str) -> None:
        self._session.check_open()
        _check_kind(kind)
        check_name("name", name)


def _nothing(_: int) -> None:
    return None


def _check_kind(kind: object) -> None:
    if kind not in KINDS:
        raise InvalidValueError("kind", f'must be "cron" or "schedule", not {kind!r}')


def _check_spec(spec: object, max_bytes: int) -> dict[str, Any]:
    if spec is None:
        return {}
    if not isinstance(spec, Mapping):
        reason = f'must be an object such as {{"cron": "0 3 * * *"}}, not {type(spec).__name__}'
        raise InvalidValueError("spec", reason)
    checked: dict[str, Any] = encode(dict(spec), "spec", max_bytes=max_bytes).load()
    return checked


def _check_zone(zone: object) -> str:
    if type(zone) is not str or not 0 < len(zone) <= _ZONE_CHARS:
        raise InvalidValueError("zone", "must be the name of a time zone, such as Europe/Berlin")
    encode(zone, "zone")
    return zone


def _check_catch_up(catch_up: object) -> str:
    try:
        return str(CatchUp(catch_up))  # type: ignore[arg-type]  # what is no string is refused
    except ValueError:
        reason = f"{catch_up!r} is none of {', '.join(CatchUp)}"
        raise InvalidValueError("catch_up", reason) from None


def _check_most(value: object) -> int:
    if type(value) is not int or not 1 <= value <= _CATCH_UP_MOST:
        reason = f"must be an int from 1 to {_CATCH_UP_MOST}, not {value!r}"
        raise InvalidValueError("max_catch_up", reason)
    return value


def _check_enqueue(enqueue: object) -> tuple[str, JobSpec]:
    if not isinstance(enqueue, tuple) or len(enqueue) != 2:  # noqa: PLR2004 - a pair
        raise InvalidValueError("enqueue", "must be a (queue, payload) or (queue, JobSpec) pair")
    queue, data = enqueue
    check_name("queue", queue)
    refuse_topic_queue(queue)
    spec = data if isinstance(data, JobSpec) else JobSpec(data)
    if spec.id is not None:
        raise InvalidValueError("enqueue.id", "is made of the schedule's name and its slot")
    return queue, spec
