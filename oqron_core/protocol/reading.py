"""Records as models, also where a row is odd: the tables are open to everybody."""

from __future__ import annotations

from oqron_core.models._wire import structure
from oqron_core.models.job import Job
from oqron_core.models.records import Message
from oqron_core.models.run import Run
from oqron_core.planes.values import Record


__all__ = ["is_sound", "job_of", "message_of", "priority_of", "run_of"]


def job_of(record: Record, queue: str, *, fresh: bool = False) -> Job:
    """
    Build the job of a record; *fresh* shares nothing with it.

    Raises:
        CorruptRecordError: It is to be *fresh*, and cannot be read whole.
    """
    value = record.fresh() if fresh else record.readable()
    return structure(Job, {**value, "id": record.id, "queueName": queue})


def run_of(record: Record) -> Run:
    """Build the run of a record."""
    return structure(Run, {**record.readable(), "id": record.id})


def message_of(record: Record, topic: str) -> Message:
    """Build the message of a record."""
    return structure(Message, {**record.readable(), "id": record.id, "topic": topic})


def is_sound(record: Record) -> bool:
    """Say whether a job's record has what claiming it needs."""
    return type(record.field("attemptMade")) is int and type(record.field("maxAttempts")) is int


def priority_of(record: Record) -> int:
    """Read a job's priority; 0 where it is none that a broker takes."""
    found = record.integer("priority")
    return found if -(2**31) <= found < 2**31 else 0
