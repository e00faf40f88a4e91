"""
Pause state: the control record is the truth, whatever else shows it follows.

The broker's flag follows the record of a queue; the ``paused`` field of a schedule
is written with its record in one step. A pause says what becomes of what arrives
meanwhile:

* no behaviour: it is taken, and waits;
* ``hold``: jobs are written as ``held``, which no broker knows. The resume releases
  them in the order of their ids before anything newer runs, in bounded steps;
  where it is cut short, maintenance goes on;
* ``skip``: jobs are not written at all;
* ``reject``: adding raises `PausedError`.
"""

from __future__ import annotations

import asyncio
import logging
import time

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import attrs

from oqron_core.exceptions import (
    ConflictError,
    InvalidValueError,
    PausedError,
    StorageError,
    UnavailableError,
)
from oqron_core.models._wire import LOCAL, structure, unstructure
from oqron_core.models.job import Job
from oqron_core.models.records import Control
from oqron_core.planes.values import (
    Entry,
    Insert,
    Lease,
    Patch,
    Query,
    Record,
    Write,
)
from oqron_core.protocol.lanes import is_topic_queue
from oqron_core.protocol.reading import priority_of
from oqron_core.protocol.session import Session
from oqron_core.protocol.transitions import JOB
from oqron_core.taxonomy import RecordKind


__all__ = [
    "CONTROLS",
    "QUEUE",
    "Behaviour",
    "Pause",
    "admit",
    "count_held",
    "held",
    "is_open",
    "pause_of",
    "queue_control",
    "read_control",
    "recheck_held",
    "release_forgotten",
    "release_held",
    "set_paused",
    "set_queue_paused",
    "skipped",
    "write_control",
]

log: logging.Logger = logging.getLogger("oqron.protocol")

QUEUE: Final = "queue"
"""The namespace of the control records of queues."""
CONTROLS: Final = (
    "queue",
    "worker",
    "webhook",
    "topic_state",
    "cron_durable",
    "schedule_durable",
)
"""The namespaces whose records say what is paused."""
POINTERS: Final = {"cron_durable": "cron", "schedule_durable": "schedule"}
"""Where the pointers are whose pause state a namespace holds."""

_TRIES: Final = 20
_ANSWERS: Final = 4
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5
_STANDS_STILL: Final = 1.5
"""How many seconds a release of another process may get no further."""
_FRESH_FOR: Final = 1.0
_BATCH: Final = 1000
_RELEASE: Final = "oqron:release:"
_RELEASE_FOR: Final = 30.0


class Behaviour(StrEnum):
    """What becomes of what arrives while something is paused."""

    HOLD = "hold"
    """It is kept apart, and released in order by the resume."""
    SKIP = "skip"
    """It is left out."""
    REJECT = "reject"
    """Whoever sends it gets `PausedError`."""


@attrs.frozen(kw_only=True)
class Pause(Control):
    """
    A control record: whether something is paused.

    Attributes:
        behaviour: What becomes of what arrives meanwhile: see `Behaviour`. None
            where it is taken and waits, and where nothing is paused.
        namespace: Where the record stands. Not on the wire.
    """

    behaviour: str | None = None
    namespace: str = attrs.field(default="", metadata={LOCAL: True})


def pause_of(record: Record) -> Pause:
    """Read a control record; what another writer left out has its default."""
    pause = structure(Pause, {"name": record.id, **record.readable()})
    object.__setattr__(pause, "namespace", record.namespace)
    return pause


def _behaviour(control: Control | None) -> str | None:
    """Give what becomes of what arrives now."""
    return control.behaviour if isinstance(control, Pause) and control.paused else None


# --- the record ---------------------------------------------------------------------


async def read_control(session: Session, namespace: str, name: str) -> Pause | None:
    """Read a control record; None where nothing was ever paused."""
    record = (await session.durable.get(namespace, [name]))[0]
    return None if record is None else pause_of(record)


async def queue_control(session: Session, queue: str) -> Pause | None:
    """Read the control record of a queue."""
    return await read_control(session, QUEUE, queue)


async def write_control(
    session: Session,
    namespace: str,
    name: str,
    *,
    paused: bool,
    reason: str | None,
    behaviour: str | None = None,
) -> Pause:
    """
    Set whether *name* is paused; each change counts the version up.

    Other fields of the record stay as they are. The pointer of a schedule is
    changed in the same atomic step.

    Raises:
        ConflictError: Others kept changing it.
    """
    now = await session.durable_time.now()
    change = {"paused": paused, "reason": reason, "behaviour": behaviour, "updatedAt": now}
    for _ in range(_TRIES):
        record = (await session.durable.get(namespace, [name]))[0]
        if record is None:
            wanted = Pause(name=name, paused=paused, reason=reason, behaviour=behaviour)
            value = {**unstructure(wanted), "updatedAt": now}
            write: Insert | Patch = Insert(namespace, name, value)
        else:
            found = pause_of(record)
            if (found.paused, found.reason, found.behaviour) == (paused, reason, behaviour):
                return found
            write = _changed(record, change)
        written = await _apply(session, write, paused=paused, before=record, now=now)
        if written is not None:
            return pause_of(written)
        await asyncio.sleep(0)
    msg = f"{namespace} {name!r} kept changing while it was paused or resumed; try again"
    raise ConflictError(msg)


def _changed(record: Record, change: dict[str, Any]) -> Patch:
    """Build a guarded change; a record without a version, or an odd one, gets one."""
    guards = record.guards("version")
    counted = type(guards["version"]) is int
    return Patch(
        record.namespace,
        record.id,
        set=change if counted else {**change, "version": 2},
        increment={"version": 1} if counted else {},
        expect=guards,
    )


async def _apply(
    session: Session, write: Insert | Patch, *, paused: bool, before: Record | None, now: int
) -> Record | None:
    """Write a record, with the pointer that shows it; None where one has changed."""
    writes: list[Write] = [write]
    pointers = POINTERS.get(write.namespace)
    if pointers is not None:
        pointer = (await session.durable.get(pointers, [write.id]))[0]
        if pointer is not None:
            shown: dict[str, Any] = {"paused": paused}
            past = None if before is None else _behaviour(pause_of(before))
            if not paused and past in {Behaviour.SKIP, Behaviour.REJECT}:
                shown["skipBefore"] = now
            writes.append(Patch(pointers, write.id, set=shown))
    if len(writes) == 1:
        result = (await session.durable.write(writes))[0]
        return result.record if result.applied else None
    try:
        return (await session.durable.write(writes, atomic=True))[0].record
    except ConflictError:
        return None


async def set_paused(
    session: Session,
    namespace: str,
    name: str,
    *,
    paused: bool,
    reason: str | None = None,
    behaviour: str | None = None,
) -> Pause:
    """Set whether *name* is paused, with what that means for its namespace."""
    if namespace == QUEUE:
        return await set_queue_paused(
            session, name, paused=paused, reason=reason, behaviour=behaviour
        )
    return await write_control(
        session, namespace, name, paused=paused, reason=reason, behaviour=behaviour
    )


async def set_queue_paused(
    session: Session,
    queue: str,
    *,
    paused: bool,
    reason: str | None,
    behaviour: str | None = None,
) -> Pause:
    """
    Write the control record, then the broker's flag.

    What was held is released before claims begin again, so that nothing newer
    overtakes it.

    Raises:
        InvalidValueError: Deliveries of a topic cannot be held, skipped or rejected.
        UnavailableError: A plane did not answer. Where only the hot plane did
            not, the record is written and maintenance carries it over.
    """
    if behaviour is not None and is_topic_queue(queue):
        reason = "of a topic's group cannot be set: its deliveries wait in their order"
        raise InvalidValueError("behaviour", reason)
    held_before = _behaviour(await queue_control(session, queue)) == Behaviour.HOLD
    releases = held_before and behaviour != Behaviour.HOLD
    if releases:
        # Most of it while what arrives is still held, so that it stays in order.
        await _release_most(session, queue)
    control = await write_control(
        session, QUEUE, queue, paused=paused, reason=reason, behaviour=behaviour
    )
    _forget(session, queue)
    if paused:
        await session.hot.broker.pause(queue)
    if releases:
        await release_held(session, queue, wait=True)
    if not paused:
        await session.hot.broker.resume(queue)
    await _follow_record(session, queue, paused=paused)
    return control


async def _follow_record(session: Session, queue: str, *, paused: bool) -> None:
    """Make the flag follow the record where someone changed that meanwhile."""
    for _ in range(_TRIES):
        control = await queue_control(session, queue)
        wanted = control is not None and control.paused
        if wanted == paused:
            return
        paused = wanted
        if paused:
            await session.hot.broker.pause(queue)
        else:
            await session.hot.broker.resume(queue)


# --- what arrives -------------------------------------------------------------------


@attrs.define
class _Seen:
    """What the control record of a queue said, and when."""

    control: Pause | None
    at: float


_SEEN_MOST: Final = 10_000


def _seen(session: Session) -> dict[str, _Seen]:
    found: dict[str, _Seen] = session.kept.setdefault(_Seen, {})
    return found


@attrs.define
class _Changes:
    """How often a control record was changed here: what was read before is not kept."""

    count: int = 0


def _changes(session: Session) -> _Changes:
    found: _Changes = session.kept.setdefault(_Changes, _Changes())
    return found


def _forget(session: Session, queue: str) -> None:
    _changes(session).count += 1
    _seen(session).pop(queue, None)


async def admit(session: Session, queue: str) -> str | None:
    """
    Say what is to become of a job that arrives at *queue* now.

    Read at most once a second per queue where the durable plane is another
    process: a pause of someone else's takes effect within that time. Until then
    jobs are taken and wait, as claims have stopped already.

    Returns:
        None to add it, ``hold`` to write it as `held`, ``skip`` to leave it out
        with `skipped`.

    Raises:
        PausedError: The queue rejects what arrives.
        UnavailableError: The durable plane did not answer, and what it said before is
            not known.
    """
    if is_topic_queue(queue):
        return None
    control = await _current(session, queue)
    behaviour = _behaviour(control)
    if behaviour == Behaviour.REJECT:
        raise PausedError(f"queue {queue!r}", None if control is None else control.reason)
    return behaviour


def is_open(session: Session, queue: str) -> bool:
    """Whether *queue* is known to take what arrives: `admit` need not be asked."""
    # Asked for every job: as `_seen`, but nothing is made.
    seen = session.kept.get(_Seen)
    known = None if seen is None else seen.get(queue)
    return known is not None and known.control is None and time.monotonic() - known.at < _FRESH_FOR


async def _current(session: Session, queue: str) -> Pause | None:
    if session.durable.capabilities.clock == "process":
        return await queue_control(session, queue)  # costs no round trip
    seen = _seen(session)
    known = seen.get(queue)
    now = time.monotonic()
    if known is not None and now - known.at < _FRESH_FOR:
        return known.control
    if known is not None:
        # Whoever adds meanwhile does not ask again.
        known.at = now
    elif len(seen) >= _SEEN_MOST:
        seen.clear()
    changes = _changes(session)
    before = changes.count
    try:
        control = await _asked(session, queue, tries=_ANSWERS if known is None else 1)
    except StorageError as error:
        if known is None:
            # Taken all the same, it would be where the queue rejects or holds it.
            raise
        log.debug("whether queue %r is paused is not known: %s", queue, error)
        return known.control
    if changes.count == before:
        seen[queue] = _Seen(control, time.monotonic())
    return control


async def _asked(session: Session, queue: str, *, tries: int) -> Pause | None:
    """Read the control record of a queue; where no answer came, again."""
    pause = _FIRST_PAUSE
    for _ in range(tries - 1):
        try:
            return await queue_control(session, queue)
        except UnavailableError:
            await asyncio.sleep(pause)
            pause *= 3
    return await queue_control(session, queue)


def held(insert: Insert, job: Job) -> tuple[Insert, Job]:
    """Turn what `new_job` built into a job that waits for the resume."""
    value = {**insert.value, "status": "held"}
    return attrs.evolve(insert, value=value), attrs.evolve(job, status="held")


def skipped(job: Job) -> Job:
    """Turn what `new_job` built into the answer for a job that was left out."""
    return attrs.evolve(
        job, status="cancelled", reason="the queue skips what arrives", published=False
    )


async def recheck_held(session: Session, queue: str) -> None:
    """
    Call after a job was written as held.

    Whoever resumed the queue between the question and the write did not see the
    job, so its writer looks again.
    """
    if _behaviour(await queue_control(session, queue)) != Behaviour.HOLD:
        _forget(session, queue)
        await release_held(session, queue)


# --- release ------------------------------------------------------------------------


async def _release_most(session: Session, queue: str) -> None:
    """
    Release what is held while more may arrive.

    In rounds of what is there when each begins, for as long as that gets less: where
    it arrives as fast as it is released, there is no end to wait for.
    """
    left = await count_held(session, queue)
    while left:
        await release_held(session, queue, wait=True, most=left)
        before, left = left, await count_held(session, queue)
        if left > before // 2:
            return


async def count_held(session: Session, queue: str) -> int:
    """Count what a queue holds."""
    count: int = await session.durable.count(
        Query(namespace=JOB + queue, where=[("status", "=", "held")])
    )
    return count


async def release_held(
    session: Session,
    queue: str,
    *,
    batch: int = _BATCH,
    later: bool = True,
    wait: bool = False,
    most: int | None = None,
) -> int:
    """
    Make held jobs waiting and publish them, in the order of their ids.

    One process at a time, in steps of *batch*.

    Args:
        session: The session.
        queue: The queue.
        batch: How many at a time.
        later: Whether maintenance releases them where the hot plane does not answer,
            as it does in a queue that holds nothing any more.
        wait: Whether to wait for another process that is at it; else it does that alone.
        most: How many at most; None for all, those included that are written meanwhile.

    Returns:
        How many were released here.

    Raises:
        UnavailableError: The hot plane did not answer, and they are not released
            *later*; or the durable one did not.
    """
    locks = session.hot.locks
    total = idle = 0
    while True:
        try:
            lease = await _only_one(session, queue, wait=wait)
        except StorageError as error:
            if not later:
                raise
            log.warning("held jobs are released later by maintenance: %s", error)
            return total
        if lease is None and not wait:
            return total  # someone else is at it
        try:
            released = await _release_all(session, queue, lease, batch, most)
        finally:
            if lease is not None:
                try:
                    await locks.release(lease)
                except StorageError as error:
                    log.debug("the lock of a release will lapse: %s", error)
        total += released
        idle = 0 if released else idle + 1
        # Who wrote a job in the last moment, and met our lock, leaves it to us.
        if most is not None or idle > 1 or not await count_held(session, queue):
            return total


async def _only_one(session: Session, queue: str, *, wait: bool) -> Lease | None:
    """
    Take the lock of a queue's release; None where another process has it.

    With *wait* that is waited for as long as it gets on. One that has died, or stands
    still, keeps nobody: each job is released once, whoever does it.
    """
    pause = _FIRST_PAUSE
    oldest: str | None = None
    since = time.monotonic()
    while True:
        lease = await session.hot.locks.acquire(
            _RELEASE + queue, owner=session.worker, lease_for=_RELEASE_FOR
        )
        if lease is not None or not wait:
            return lease
        found = (await session.durable.query(_held_in(queue, 1))).items
        now = time.monotonic()
        if found and found[0].id != oldest:
            oldest, since = found[0].id, now
        elif now - since > _STANDS_STILL:
            return None
        await asyncio.sleep(pause)
        pause = min(_LONGEST_PAUSE, 2 * pause)


def _held_in(queue: str, limit: int) -> Query:
    return Query(
        namespace=JOB + queue,
        where=[("status", "=", "held")],
        limit=limit,
        fields=("status", "runAt", "priority"),
    )


async def _release_all(
    session: Session, queue: str, lease: Lease | None, batch: int, most: int | None
) -> int:
    query = _held_in(queue, min(batch, 10_000))
    total = 0
    while most is None or total < most:
        if most is not None and most - total < query.limit:
            query = attrs.evolve(query, limit=most - total)
        records = (await session.durable.query(query)).items
        if not records:
            break
        released = await _release_step(session, queue, records)
        total += released
        if not released:
            break
        if lease is not None and not await session.hot.locks.renew(lease, lease_for=_RELEASE_FOR):
            break
    return total


async def _release_step(session: Session, queue: str, records: Sequence[Record]) -> int:
    now = await session.durable_time.now()
    skew = await session.hot_time.now() - now
    patches: list[Write] = []
    entries: list[Entry] = []
    for record in records:
        run_at = record.field("runAt")
        later = isinstance(run_at, int) and run_at > now
        patches.append(
            Patch(
                JOB + queue,
                record.id,
                set={"status": "delayed" if later else "waiting"},
                expect={"status": "held"},
            )
        )
        due = run_at + skew if later else None
        entries.append(Entry(record.id, priority_of(record), due))
    results = await session.write_many(patches)
    # One that was cancelled meanwhile stays cancelled.
    mine = [entry for entry, result in zip(entries, results, strict=True) if result]
    if mine:
        await session.publish_many(queue, mine)
    return len(mine)


async def release_forgotten(session: Session, *, batch: int = _BATCH) -> int:
    """
    Release what is held in queues that do not hold any more.

    For maintenance: whoever resumed the queue, or added to it, died on the way.

    Returns:
        How many jobs were released.
    """
    found: dict[str, int] = await session.durable.count(
        Query(kind=RecordKind.JOB, where=[("status", "=", "held")]), by="namespace"
    )
    total = 0
    for namespace in sorted(found):
        queue = namespace[len(JOB) :]
        if _behaviour(await queue_control(session, queue)) != Behaviour.HOLD:
            total += await release_held(session, queue, batch=batch)
    return total
