"""
The taxonomy of record kinds: what a namespace holds and which table keeps it.

Pure, without dependencies, and safe to import alone: dashboards and tools use
the same two functions as the storage itself.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Final


__all__ = [
    "RecordKind",
    "Table",
    "classify_namespace",
    "table_for_kind",
]


class RecordKind(StrEnum):
    """What a durable record is. Closed: no plugin adds a kind."""

    DEFINITION = "definition"
    """What is defined, with its scheduling and configuration state."""
    CONTROL = "control"
    """Pause and version state."""
    JOB = "job"
    """A durable work order, deliveries to topic groups included."""
    DLQ = "dlq"
    """A dead letter: a job whose retries are exhausted."""
    RUN = "run"
    """The history of one execution."""
    MESSAGE = "message"
    """A retained topic message."""
    LOG = "log"
    """An opt-in module log."""
    STATE = "state"
    """The state of a circuit breaker."""
    RECORD = "record"
    """Anything in a custom namespace."""


class Table(StrEnum):
    """A durable table, one per storage class; the SQL name is ``oqron_<value>``."""

    RECORDS = "records"
    """Definitions, control state, breakers, logs: small and hot-read."""
    JOBS = "jobs"
    """Jobs and dead letters: high churn."""
    RUNS = "runs"
    """Run history and the message log: appended, pruned in bulk."""


_EXACT: Final = MappingProxyType(
    {
        "cron": RecordKind.DEFINITION,
        "schedule": RecordKind.DEFINITION,
        "cache": RecordKind.DEFINITION,
        "ratelimit": RecordKind.DEFINITION,
        "topic": RecordKind.DEFINITION,
        "queue": RecordKind.CONTROL,
        "worker": RecordKind.CONTROL,
        "webhook": RecordKind.CONTROL,
        "topic_state": RecordKind.CONTROL,
        "cron_durable": RecordKind.CONTROL,
        "schedule_durable": RecordKind.CONTROL,
        "runs": RecordKind.RUN,
        "webhook_cb": RecordKind.STATE,
    }
)

_PREFIXED: Final = MappingProxyType(
    {
        "webhook_endpoints": RecordKind.DEFINITION,
        "topic_groups": RecordKind.CONTROL,
        "queue_job": RecordKind.JOB,
        "queue_dlq": RecordKind.DLQ,
        "topic_msg": RecordKind.MESSAGE,
        "module_logs": RecordKind.LOG,
    }
)

_TABLES: Final = MappingProxyType(
    {
        RecordKind.DEFINITION: Table.RECORDS,
        RecordKind.CONTROL: Table.RECORDS,
        RecordKind.JOB: Table.JOBS,
        RecordKind.DLQ: Table.JOBS,
        RecordKind.RUN: Table.RUNS,
        RecordKind.MESSAGE: Table.RUNS,
        RecordKind.LOG: Table.RECORDS,
        RecordKind.STATE: Table.RECORDS,
        RecordKind.RECORD: Table.RECORDS,
    }
)


def classify_namespace(namespace: str) -> RecordKind:
    """
    Say what kind of record *namespace* holds.

    A namespace is matched whole (``runs``) or by what stands before its first
    colon (``queue_job:emails``, also ``queue_job:``); everything else is a
    custom namespace.

    Args:
        namespace: The logical namespace, case-sensitive.

    Returns:
        The kind; `RecordKind.RECORD` for a custom namespace.
    """
    kind = _EXACT.get(namespace)
    if kind is not None:
        return kind
    head, colon, _ = namespace.partition(":")
    if colon:
        return _PREFIXED.get(head, RecordKind.RECORD)
    return RecordKind.RECORD


def table_for_kind(kind: RecordKind | str) -> Table:
    """
    Say which table keeps records of *kind*.

    Args:
        kind: A `RecordKind` or its value.

    Returns:
        The table; its SQL name is the table prefix, an underscore and the value.

    Raises:
        ValueError: *kind* is no record kind.
    """
    try:
        return _TABLES[RecordKind(kind)]
    except ValueError:
        known = ", ".join(sorted(RecordKind))
        msg = f"{kind!r} is no record kind; there are: {known}"
        raise ValueError(msg) from None
