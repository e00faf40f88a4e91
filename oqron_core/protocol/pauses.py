"""Pause state: the control record is the truth, the broker's flag follows it."""

from __future__ import annotations

from typing import Final

from oqron_core.exceptions import ConflictError
from oqron_core.models._wire import structure, unstructure
from oqron_core.models.records import Control
from oqron_core.planes.values import Insert, Patch
from oqron_core.protocol.session import Session


__all__ = ["QUEUE", "queue_control", "set_queue_paused", "write_control"]

QUEUE: Final = "queue"
"""The namespace of the control records of queues."""
_TRIES: Final = 20


async def read_control(session: Session, namespace: str, name: str) -> Control | None:
    """Read a control record; None where nothing was ever paused."""
    record = (await session.durable.get(namespace, [name]))[0]
    return None if record is None else structure(Control, record.value)


async def queue_control(session: Session, queue: str) -> Control | None:
    """Read the control record of a queue."""
    return await read_control(session, QUEUE, queue)


async def write_control(
    session: Session, namespace: str, name: str, *, paused: bool, reason: str | None
) -> Control:
    """
    Set whether *name* is paused; each change counts the version up.

    Raises:
        ConflictError: Others kept changing it.
    """
    now = await session.durable_time.now()
    for _ in range(_TRIES):
        found = await read_control(session, namespace, name)
        if found is None:
            control = Control(name=name, paused=paused, reason=reason, updated_at=now)
            write: Insert | Patch = Insert(namespace, name, unstructure(control))
        elif found.paused == paused and found.reason == reason:
            return found
        else:
            change = {"paused": paused, "reason": reason, "updatedAt": now}
            write = Patch(
                namespace,
                name,
                set=change,
                increment={"version": 1},
                expect={"version": found.version},
            )
        result = (await session.durable.write([write]))[0]
        if result.applied and result.record is not None:
            return structure(Control, result.record.value)
    msg = f"{namespace} {name!r} kept changing while it was paused or resumed; try again"
    raise ConflictError(msg)


async def set_queue_paused(
    session: Session, queue: str, *, paused: bool, reason: str | None
) -> Control:
    """
    Write the control record, then the broker's flag.

    Raises:
        UnavailableError: A plane did not answer. Where only the hot plane did
            not, the record is written and maintenance carries it over.
    """
    control = await write_control(session, QUEUE, queue, paused=paused, reason=reason)
    if paused:
        await session.hot.broker.pause(queue)
    else:
        await session.hot.broker.resume(queue)
    return control
