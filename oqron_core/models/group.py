"""A group of subscribers of a topic."""

from __future__ import annotations

import attrs


__all__ = ["Group"]


@attrs.frozen(kw_only=True)
class Group:
    """
    A group: every message of its topic is delivered to it once.

    Attributes:
        name: Unique in its topic.
        topic: The topic.
        start: From where it was to read: ``latest``, ``earliest``, an instant in
            milliseconds since the epoch, or the id of a message.
        joined: The version of the topic's groups from which on publishing
            delivers to it.
        caught_up: Whether the messages before that have been delivered to it.
        cursor: How far catching up has come, while it goes on.
        replays: How often messages were delivered to it again.
        max_attempts: How often a delivery is tried.
        created_at: Milliseconds since the epoch.
    """

    name: str
    topic: str
    start: str | int = "latest"
    joined: int = 0
    caught_up: bool = True
    cursor: str | None = None
    replays: int = 0
    max_attempts: int = 3
    created_at: int = 0
