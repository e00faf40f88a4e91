"""
Pointers: what is due, and the one step that moves on from it.

A pointer is the next slot of a cron or a schedule, an instant. Moving it and
inserting the slot's job are one atomic write, guarded by the slot that the mover
saw: of many schedulers one wins, and a crash leaves both or neither. The job's id
is made of the name and the slot, so a slot has one job whatever happens.
"""

from __future__ import annotations

import asyncio
import hashlib

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import attrs

from oqron_core._codec import canonical, encode
from oqron_core._ids import uuid7
from oqron_core._names import MAX_NAME_BYTES, MAX_NAME_CHARS
from oqron_core.exceptions import (
    ConflictError,
    InvalidValueError,
    PausedError,
    StorageError,
    UnavailableError,
)
from oqron_core.models._wire import structure, unstructure
from oqron_core.models.job import Job, JobSpec
from oqron_core.models.schedule import CatchUp, Schedule
from oqron_core.planes.values import (
    MISSING,
    Delete,
    Entry,
    Insert,
    Patch,
    Query,
    Record,
    Write,
)
from oqron_core.protocol import transitions
from oqron_core.protocol.pauses import Behaviour, Pause, admit, held, read_control, recheck_held
from oqron_core.protocol.session import Session
from oqron_core.taxonomy import RecordKind


__all__ = [
    "CONTROL_OF",
    "GRACE",
    "KINDS",
    "Move",
    "NextAfter",
    "Pointers",
    "plan",
    "schedule_of",
    "slot_id",
]

KINDS: Final = ("cron", "schedule")
"""The namespaces of pointers."""
CONTROL_OF: Final = {"cron": "cron_durable", "schedule": "schedule_durable"}
"""Where the pause state of a kind stands."""
GRACE: Final = 60.0
"""For how many seconds a slot is on time."""
NextAfter: TypeAlias = Callable[[int], int | None]
"""Gives the first slot after an instant, or None where nothing follows."""

_TRIES: Final = 20
_ANSWERS: Final = 4
_FIRST_PAUSE: Final = 0.02
_PAGE: Final = 1000
_DEFINED: Final = ("spec", "zone", "catch_up", "max_catch_up")


def schedule_of(record: Record) -> Schedule:
    """Read a pointer's record; what another writer left out has its default."""
    value = {"name": record.id, **record.readable(), "kind": record.namespace}
    return structure(Schedule, value)


def slot_id(kind: str, name: str, slot: int) -> str:
    """
    Give the id of a slot's job; no two slots share one.

    A name that is too long for an id is replaced by its SHA-256.
    """
    made = f"{kind}:{len(name)}:{name}:{slot}"
    if len(made) > MAX_NAME_CHARS or len(made.encode()) > MAX_NAME_BYTES:
        digest = hashlib.sha256(name.encode()).hexdigest()
        return f"{kind}:#{digest}:{slot}"
    return made


# --- planning -----------------------------------------------------------------------


@attrs.frozen
class Move:
    """
    One step of a pointer.

    Attributes:
        expected: The slot that it stands at.
        next_run_at: Where it goes; None where it ends.
        run: Whether the slot runs, by its job or by its mover, or is left out.
    """

    expected: int
    next_run_at: int | None
    run: bool


def plan(
    schedule: Schedule, now: int, next_after: NextAfter, *, grace: float = GRACE
) -> list[Move]:
    """
    Say how to move a pointer past *now*, by the schedule's catch-up. Pure.

    The work is bounded however far the pointer is behind: about as many calls of
    *next_after* as slots that run, times the logarithm of the distance.

    Args:
        schedule: The schedule; its pause is not asked.
        now: The durable plane's time, milliseconds since the epoch.
        next_after: Gives the first slot after an instant.
        grace: For how many seconds a slot counts as on time; ``skip`` runs the
            last slot that is.

    Returns:
        Moves, the first from where the pointer stands; none if it is not due.

    Raises:
        InvalidValueError: *next_after* gave an instant that is not after what it
            was asked.
    """
    pointer = schedule.next_run_at
    if pointer is None or pointer > now:
        return []
    slots = _slots_to_run(schedule, pointer, now, next_after, round(grace * 1000))
    following = _step(next_after, now)
    if not slots:
        return [Move(pointer, following, run=False)]
    moves: list[Move] = []
    if slots[0] != pointer:
        moves.append(Move(pointer, slots[0], run=False))
    targets = [*slots[1:], following]
    moves.extend(Move(slot, target, run=True) for slot, target in zip(slots, targets, strict=True))
    return moves


def _slots_to_run(
    schedule: Schedule, pointer: int, now: int, next_after: NextAfter, grace: int
) -> list[int]:
    policy = CatchUp(schedule.catch_up)
    first = schedule.skip_before or 0
    if policy is CatchUp.ONE and pointer >= first:
        # The oldest stands for all: it is where the pointer is.
        return [pointer]
    if policy is CatchUp.SKIP:
        first = max(first, now - grace)
    most = schedule.max_catch_up if policy is CatchUp.ALL else 1
    slots = _last_slots(next_after, max(pointer, first - 1), now, most)
    if pointer >= first and len(slots) < most:
        slots.insert(0, pointer)
    return slots


def _last_slots(next_after: NextAfter, after: int, until: int, most: int) -> list[int]:
    """
    Give the last *most* slots in the interval ``(after, until]``.

    An interval with more is halved, the later half first, so that a pointer that
    is years behind is not walked slot by slot.
    """
    found: list[int] = []
    at = after
    while len(found) <= most:
        slot = _step(next_after, at)
        if slot is None or slot > until:
            return found
        found.append(slot)
        at = slot
    middle = (after + until) // 2
    late = _last_slots(next_after, middle, until, most)
    if len(late) < most:
        late = _last_slots(next_after, after, middle, most - len(late)) + late
    return late


def _step(next_after: NextAfter, at: int) -> int | None:
    following = next_after(at)
    if following is not None and (type(following) is not int or following <= at):
        reason = f"gave {following!r} as the slot after {at}; it must be a larger int, or None"
        raise InvalidValueError("next_after", reason)
    return following


# --- records ------------------------------------------------------------------------


class Pointers:
    """The records of schedules, and the steps that change them."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def get(self, kind: str, name: str) -> Schedule | None:
        """Read one."""
        record = (await self._session.durable.get(kind, [name]))[0]
        return None if record is None else schedule_of(record)

    async def put(self, wanted: Schedule) -> Schedule:
        """
        Define a schedule, or change its definition.

        The pointer moves only where the spec or the zone has changed.
        """
        session = self._session
        for _ in range(_TRIES):
            now = await session.durable_time.now()
            record = (await session.durable.get(wanted.kind, [wanted.name]))[0]
            try:
                if record is None:
                    await self._create(wanted, now)
                elif (patch := _redefined(record, wanted, now)) is None:
                    return schedule_of(record)
                elif not (await session.durable.write([patch], returning=()))[0].applied:
                    continue
            except ConflictError:
                continue
            found = await self.get(wanted.kind, wanted.name)
            if found is not None:
                return found
        msg = f"{wanted.kind} {wanted.name!r} kept changing while it was defined; try again"
        raise ConflictError(msg)

    async def _create(self, wanted: Schedule, now: int) -> None:
        """Insert the definition with its pause state, in one step."""
        namespace = CONTROL_OF[wanted.kind]
        control = await read_control(self._session, namespace, wanted.name)
        paused = wanted.paused or (control is not None and control.paused)
        made = attrs.evolve(wanted, paused=paused, created_at=now, updated_at=now)
        write: Write
        if control is None:
            pause = Pause(name=wanted.name, paused=paused, updated_at=now)
            write = Insert(namespace, wanted.name, unstructure(pause))
        else:
            # Guards against a pause that is under way; a pause from before stays.
            write = Patch(
                namespace,
                wanted.name,
                set={"paused": paused},
                increment={"version": int(paused != control.paused)},
                expect={"version": control.version},
            )
        insert = Insert(wanted.kind, wanted.name, unstructure(made))
        await self._session.durable.write([insert, write], atomic=True, returning=())

    async def reschedule(self, kind: str, name: str, next_run_at: int | None) -> bool:
        """Set the pointer, but not back to a slot that has run."""
        for _ in range(_TRIES):
            record = (await self._session.durable.get(kind, [name]))[0]
            if record is None:
                return False
            _check_not_run(schedule_of(record), next_run_at)
            patch = Patch(
                kind,
                name,
                set={"nextRunAt": next_run_at},
                expect={"nextRunAt": record.value.get("nextRunAt", MISSING)},
            )
            if (await self._session.durable.write([patch], returning=()))[0].applied:
                return True
        msg = f"{kind} {name!r} kept moving while it was rescheduled; try again"
        raise ConflictError(msg)

    async def delete(self, kind: str, name: str) -> bool:
        """Remove a schedule and its pause state."""
        writes = [Delete(kind, name), Delete(CONTROL_OF[kind], name)]
        return (await self._session.durable.write(writes, returning=()))[0].applied

    async def due(self, *, kind: str | None, limit: int) -> list[Schedule]:
        """List what is due, the oldest slot first."""
        session = self._session
        now = await session.durable_time.now()
        found: list[Schedule] = []
        after: str | None = None
        while len(found) < limit:
            query = Query(
                kind=RecordKind.DEFINITION,
                namespace=kind,
                where=[("nextRunAt", "<=", now), ("paused", "=", False)],
                order_by=[("nextRunAt", "asc")],
                limit=min(limit - len(found), _PAGE),
                after=after,
            )
            page = await session.durable.query(query)
            found.extend(schedule_of(r) for r in page.items if r.namespace in KINDS)
            after = page.next
            if after is None:
                break
        return found

    # --- the step ---

    async def advance(
        self,
        kind: str,
        name: str,
        move: Move,
        job: tuple[str, JobSpec] | None,
    ) -> bool:
        """
        Move a pointer, and insert the slot's job, in one atomic write.

        Returns:
            True for the one who moved it; False where it is not there any more,
            or the schedule is paused or gone.
        """
        session = self._session
        made = None if job is None else await self._make(kind, name, move.expected, *job)
        if made is None:
            # A slot that its mover runs itself ran; one that its queue leaves out did not.
            return await self._write([_moved(kind, name, move, ran=job is None and move.run)])
        pointer = _moved(kind, name, move, ran=True)
        queue, insert, delay, new = made
        if not await self._write([pointer, insert]):
            return await self._moved_elsewhere(pointer)
        if new.status == "held":
            await recheck_held(session, queue)
        else:
            await self._publish(queue, new, delay)
        return True

    async def _make(
        self, kind: str, name: str, slot: int, queue: str, spec: JobSpec
    ) -> tuple[str, Insert, int | None, Job] | None:
        """Build the slot's job; None where its queue leaves out what arrives."""
        session = self._session
        behaviour = await admit(session, queue)
        if behaviour == Behaviour.SKIP:
            return None
        insert, delay, job = transitions.new_job(
            queue,
            spec.data,
            attrs.evolve(spec, id=slot_id(kind, name, slot)),
            now=await session.durable_time.now(),
            max_bytes=session.settings.max_value_bytes,
        )
        if behaviour == Behaviour.HOLD:
            insert, job = held(insert, job)
        return queue, insert, delay, job

    async def _moved_elsewhere(self, pointer: Patch) -> bool:
        """
        Find out why a pointer with its job could not be moved.

        Where the slot's job was there already, as after a reschedule, the pointer
        moves alone.
        """
        record = (await self._session.durable.get(pointer.namespace, [pointer.id]))[0]
        stands = record is not None and all(
            record.field(name) == value for name, value in pointer.expect.items()
        )
        return stands and await self._write([pointer])

    async def _write(self, writes: Sequence[Write]) -> bool:
        """
        Write all or none; where no answer came, again.

        The mark of the mover tells its own lost answer from another's move.
        """
        session = self._session
        pause = _FIRST_PAUSE
        for attempt in range(_ANSWERS):
            try:
                await session.durable.write(writes, atomic=True, returning=())
            except ConflictError:
                return attempt > 0 and await self._is_mine(writes[0])
            except UnavailableError:
                if attempt == _ANSWERS - 1:
                    raise
                await asyncio.sleep(pause)
                pause *= 3
            else:
                return True
        raise AssertionError  # the loop returns or raises

    async def _is_mine(self, pointer: Write) -> bool:
        record = (await self._session.durable.get(pointer.namespace, [pointer.id]))[0]
        mark = pointer.set["movedBy"] if isinstance(pointer, Patch) else None
        return record is not None and record.field("movedBy") == mark

    async def _publish(self, queue: str, job: Job, delay: int | None) -> None:
        session = self._session
        due_at = None
        if delay:
            try:
                due_at = await session.hot_time.now() + delay
            except StorageError:
                return  # the job is durable; maintenance publishes it
        await session.publish(queue, Entry(job.id, job.priority, due_at))

    async def check_accepts(self, kind: str, name: str) -> None:
        """
        Refuse where the schedule is paused and rejects what comes due.

        Raises:
            PausedError: It does.
        """
        control = await read_control(self._session, CONTROL_OF[kind], name)
        if control is not None and control.paused and control.behaviour == Behaviour.REJECT:
            raise PausedError(f"{kind} {name!r}", control.reason)


def _moved(kind: str, name: str, move: Move, *, ran: bool) -> Patch:
    """Build the step of a pointer, marked so that its mover knows it again."""
    change: dict[str, Any] = {"nextRunAt": move.next_run_at, "movedBy": uuid7()}
    if ran:
        change["lastRunAt"] = move.expected
    return Patch(
        kind,
        name,
        set=change,
        increment={"runCount": 1} if ran else {},
        expect={"nextRunAt": move.expected, "paused": False},
    )


def _check_not_run(schedule: Schedule, next_run_at: int | None) -> None:
    last = schedule.last_run_at
    if next_run_at is not None and last is not None and next_run_at <= last:
        reason = (
            f"must be after the last slot that ran ({last}), not {next_run_at}; "
            "a pointer does not go back"
        )
        raise InvalidValueError("next_run_at", reason)


def _redefined(record: Record, wanted: Schedule, now: int) -> Patch | None:
    """Build the change of a definition; None where nothing has changed."""
    found = schedule_of(record)
    value = record.value
    changed = {name for name in _DEFINED if not _same(getattr(found, name), getattr(wanted, name))}
    defined_only = "nextRunAt" not in value
    if not changed and not defined_only:
        return None
    wire = unstructure(wanted)
    fields = {"spec": wire["spec"], "zone": wire["zone"], "updatedAt": now}
    fields |= {"catchUp": wire["catchUp"], "maxCatchUp": wire["maxCatchUp"]}
    expect: dict[str, Any] = {"version": value.get("version", MISSING)}
    if changed & {"spec", "zone"} or defined_only:
        _check_not_run(found, wanted.next_run_at)
        fields["nextRunAt"] = wanted.next_run_at
        expect["nextRunAt"] = value.get("nextRunAt", MISSING)
    if defined_only:
        # Only a definition so far: it gets what a pointer needs.
        fields |= {"kind": wanted.kind, "paused": bool(value.get("paused", wanted.paused))}
        fields |= {"lastRunAt": None, "createdAt": value.get("createdAt", now)}
    count = 1 if "version" in value else 2
    return Patch(
        record.namespace, record.id, set=fields, increment={"version": count}, expect=expect
    )


def _same(left: Any, right: Any) -> bool:
    return canonical(encode(left, max_bytes=None)) == canonical(encode(right, max_bytes=None))
