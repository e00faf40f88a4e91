"""The smaller records: messages, definitions, control state, logs, breakers."""

from __future__ import annotations

from typing import Any

import attrs

from oqron_core.models._wire import LOCAL


__all__ = ["Breaker", "Control", "Definition", "LogEntry", "Message"]


@attrs.frozen(kw_only=True)
class Message:
    """
    A retained topic message.

    Attributes:
        id: UUIDv7 unless given.
        topic: The topic.
        key: What keeps order within a group; None for none.
        published_at: Milliseconds since the epoch.
        headers: What travels beside the message.
        message: The message.
        duplicate: Whether publishing found its idempotency key used; this is then
            the message that was there. Not on the wire.
    """

    id: str
    topic: str
    key: str | None = None
    published_at: int = 0
    headers: dict[str, Any] = attrs.field(factory=dict)
    message: Any = None
    duplicate: bool = attrs.field(default=False, metadata={LOCAL: True})


@attrs.frozen(kw_only=True)
class Definition:
    """
    What is defined, as a board shows it.

    Attributes:
        name: Unique in its namespace.
        version: Counts the changes, from 1.
        spec: What was defined.
        updated_at: Milliseconds since the epoch.
    """

    name: str
    version: int = 1
    spec: dict[str, Any] = attrs.field(factory=dict)
    updated_at: int = 0


@attrs.frozen(kw_only=True)
class Control:
    """
    Whether something is paused.

    Attributes:
        name: The queue, worker, topic or the like.
        paused: Whether it is.
        version: Counts the changes, from 1.
        reason: Why, as the person said who paused it.
        updated_at: Milliseconds since the epoch.
    """

    name: str
    paused: bool = False
    version: int = 1
    reason: str | None = None
    updated_at: int = 0


@attrs.frozen(kw_only=True)
class LogEntry:
    """
    A line of a module's log.

    Attributes:
        id: UUIDv7.
        module: Whose log it is.
        level: ``debug``, ``info``, ``warning`` or ``error``.
        msg: The text.
        ts: Milliseconds since the epoch.
        fields: What was logged beside it.
    """

    id: str
    module: str
    level: str = "info"
    msg: str = ""
    ts: int = 0
    fields: dict[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Breaker:
    """
    The state of a circuit breaker.

    Attributes:
        name: What it protects.
        state: ``closed``, ``open`` or ``half_open``.
        failures: In a row.
        opened_at: When it opened last, milliseconds since the epoch.
        retry_at: When a probe is allowed.
        version: Counts the changes, from 1.
    """

    name: str
    state: str = "closed"
    failures: int = 0
    opened_at: int | None = None
    retry_at: int | None = None
    version: int = 1
