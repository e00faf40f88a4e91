"""
Lanes: how order per key is kept over a broker that knows only ids.

A delivery with a key is not published under its own id. Its key's lane is: one
entry of the broker that stands for all open deliveries of the key, whose lease is
the right to work on the oldest of them. So one is in flight per key, and a key
whose head waits for its next attempt waits as a whole. The ids of deliveries begin
with their lane, then the time of publishing, so the oldest of a lane is the first
in the order of ids, which every backend has an index for.

Deliveries live in queues of their own, whose names no other queue may have.
"""

from __future__ import annotations

import hashlib

from typing import Final

from oqron_core.exceptions import InvalidValueError


__all__ = [
    "TOPIC_QUEUE",
    "broker_id",
    "delivery_id",
    "is_topic_queue",
    "lane_of",
    "lane_range",
    "queue_of",
    "refuse_topic_queue",
    "split_queue",
]

TOPIC_QUEUE: Final = "oqron:topic:"
"""What the names of queues of deliveries begin with."""
_NO_LANE: Final = "-"
_MOST: Final = 230


def queue_of(topic: str, group: str) -> str:
    """
    Name the queue of a group. No two pairs of names share one.

    Raises:
        InvalidValueError: Topic and group are too long together.
    """
    queue = f"{TOPIC_QUEUE}{len(topic)}:{topic}:{group}"
    if len(topic) + len(group) > _MOST:
        reason = f"topic and group have more than {_MOST} characters together; shorten one"
        raise InvalidValueError("group", reason)
    return queue


def split_queue(queue: str) -> tuple[str, str]:
    """Give the topic and the group of a queue that `queue_of` named."""
    size, _, rest = queue[len(TOPIC_QUEUE) :].partition(":")
    length = int(size)
    return rest[:length], rest[length + 1 :]


def is_topic_queue(queue: str) -> bool:
    """Say whether *queue* holds deliveries."""
    return queue.startswith(TOPIC_QUEUE)


def refuse_topic_queue(queue: str) -> None:
    """
    Refuse to add plain jobs to a queue of deliveries.

    Raises:
        InvalidValueError: It is one.
    """
    if queue.startswith(TOPIC_QUEUE):
        reason = f"names that begin with {TOPIC_QUEUE!r} are for topics; publish to the topic"
        raise InvalidValueError("queue", reason)


def lane_of(key: str | None) -> str:
    """Give the lane of a key: 32 hex digits, or a dash for no key."""
    if key is None:
        return _NO_LANE
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def delivery_id(
    lane: str, published_at: int, position: int, message_id: str, replay: int = 0
) -> str:
    """
    Give the id of a delivery.

    Args:
        lane: The lane of the message's key.
        published_at: When the message was published.
        position: Its place among those of the same millisecond, below a million.
        message_id: The message, at most 64 characters.
        replay: 0, or the number of the replay that made it.
    """
    again = f".{replay}" if replay else ""
    return f"{lane}.{published_at:014d}.{position:06d}.{message_id}{again}"


def broker_id(queue: str, job_id: str) -> str:
    """Give the id under which the broker knows an open job."""
    if queue.startswith(TOPIC_QUEUE):
        lane = job_id.partition(".")[0]
        if lane != _NO_LANE:
            return lane
    return job_id


def lane_range(lane: str) -> tuple[str, str]:
    """Give the bounds of a lane's ids: from the first, up to before the second."""
    return f"{lane}.", f"{lane}/"
