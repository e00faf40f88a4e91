"""Topics: a retained log, delivered to every group."""

from __future__ import annotations

import asyncio
import logging

from collections.abc import Sequence
from typing import Any, Final

from oqron_core._names import check_many, check_name
from oqron_core.exceptions import CorruptRecordError, InvalidValueError, StorageError
from oqron_core.models import Control, Job, structure
from oqron_core.models.group import Group
from oqron_core.models.records import Message
from oqron_core.planes.checks import check_limit, lease_ms, seconds
from oqron_core.planes.values import Page, Query
from oqron_core.protocol.claiming import Lanes, RunKind
from oqron_core.protocol.claims import Claim
from oqron_core.protocol.coalesce import Coalescer
from oqron_core.protocol.lanes import queue_of
from oqron_core.protocol.orders import Orders
from oqron_core.protocol.pauses import queue_control, set_queue_paused
from oqron_core.protocol.reading import message_of
from oqron_core.protocol.session import Session
from oqron_core.protocol.topics import GROUPS, MESSAGES, Outgoing, Topology, outgoing
from oqron_core.protocol.transitions import JOB


__all__ = ["Topics"]

log: logging.Logger = logging.getLogger("oqron.topics")

_LOOKED_MOST: Final = 10_000


class Topics:
    """
    Messages for everybody who subscribed.

    A message stays in the topic's log until retention removes it. For each group
    there is one delivery of it, which is a job: it is claimed under a lease, tried
    again, and becomes a dead letter in the end. Messages with the same key are
    delivered to a group one after the other, in the order of publishing.
    """

    def __init__(self, session: Session, orders: Orders) -> None:
        self._session = session
        self._orders = orders
        self._topology = Topology(session)
        self._lanes = Lanes(self._topology.heads, self._topology.follow)
        # The queues of groups that were looked for here.
        self._looked: set[str] = set()
        self._publishes: Coalescer[tuple[str, Outgoing], Message] = Coalescer(
            self._publish_together
        )

    # --- publish ---

    async def publish(
        self,
        topic: str,
        message: Any,
        *,
        key: str | None = None,
        idempotency_key: str | None = None,
        headers: dict[str, Any] | None = None,
    ) -> Message:
        """
        Put a message into the log, with a delivery for every group, atomically.

        Calls that run at the same time share their round trips.

        Args:
            topic: The topic, 1 to 255 characters; with a group at most 230.
            message: Anything portable.
            key: Keeps order: 1 to 255 characters.
            idempotency_key: A second message with it gives the first one, with
                ``duplicate`` set, as long as that is retained.
            headers: What travels beside the message.

        Returns:
            The message as it stands in the log.

        Raises:
            InvalidValueError: An argument is not legal; nothing was written.
            UnavailableError: The durable plane did not answer. Publishing again
                with an *idempotency_key* is safe.
        """
        self._session.check_open()
        out = self._outgoing(topic, message, key, idempotency_key, headers, "message")
        return await self._publishes.submit((topic, out))

    async def publish_many(
        self,
        topic: str,
        messages: Sequence[Any],
        *,
        key: str | None = None,
        headers: dict[str, Any] | None = None,
    ) -> list[Message]:
        """
        Publish any number of messages, in order, in large atomic batches.

        Args:
            topic: The topic.
            messages: The messages.
            key: The key of all of them.
            headers: The headers of all of them.
        """
        self._session.check_open()
        batch = [
            self._outgoing(topic, message, key, None, headers, f"messages[{i}]")
            for i, message in enumerate(check_many("messages", messages, "messages"))
        ]
        return await self._topology.publish(topic, batch) if batch else []

    def _outgoing(
        self,
        topic: str,
        message: Any,
        key: str | None,
        idempotency_key: str | None,
        headers: dict[str, Any] | None,
        path: str,
    ) -> Outgoing:
        check_name("topic", topic)
        if key is not None:
            check_name("key", key)
        if idempotency_key is not None:
            check_name("idempotency_key", idempotency_key)
        return outgoing(
            message,
            key=key,
            idempotency_key=idempotency_key,
            headers=headers,
            max_bytes=self._session.settings.max_value_bytes,
            path=path,
        )

    async def _publish_together(self, items: Sequence[tuple[str, Outgoing]]) -> Sequence[Message]:
        places: dict[str, list[int]] = {}
        for index, (topic, _) in enumerate(items):
            places.setdefault(topic, []).append(index)
        answers: dict[int, Message] = {}
        for topic, indexes in places.items():
            batch = [items[index][1] for index in indexes]
            messages = await self._topology.publish(topic, batch)
            answers.update(zip(indexes, messages, strict=True))
        return [answers[index] for index in range(len(items))]

    # --- groups ---

    async def subscribe(
        self, topic: str, group: str, *, start: str | int = "latest", max_attempts: int = 3
    ) -> Group:
        """
        Make a group. Everything that is published after this returned reaches it.

        With another *start* than ``latest`` it also gets what is in the log from
        there on, before this returns. A group that exists keeps its place; where a
        crash cut its catching up short, that is finished.

        Args:
            topic: The topic.
            group: The group, 1 to 255 characters; with the topic at most 230.
            start: ``latest``, ``earliest``, an instant in milliseconds since the
                epoch, or the id of a message.
            max_attempts: How often a delivery is tried, 1 to 1,000.

        Raises:
            InvalidValueError: An argument is not legal, or there is no such message.
            ConflictError: Others kept changing the groups; try again.
        """
        self._session.check_open()
        check_name("topic", topic)
        check_name("group", group)
        if type(max_attempts) is not int or not 1 <= max_attempts <= 1000:  # noqa: PLR2004 - as jobs
            raise InvalidValueError("max_attempts", "must be an int from 1 to 1000")
        return await self._topology.join(topic, group, start=start, max_attempts=max_attempts)

    async def unsubscribe(self, topic: str, group: str) -> bool:
        """
        Remove a group with the deliveries that wait; False where there is none.

        What is being worked on is worked on to its end. A pause of the group goes with
        it, so one of the same name begins anew.
        """
        self._session.check_open()
        queue = queue_of(check_name("topic", topic), check_name("group", group))
        left = await self._topology.leave(topic, group)
        control = await queue_control(self._session, queue) if left else None
        if control is not None and control.paused:
            await set_queue_paused(self._session, queue, paused=False, reason=None)
        return left

    def delivery_queue(self, topic: str, group: str) -> str:
        """
        Name the queue that holds the deliveries of a group.

        By it `DeadLetters` and `Jobs.counts` know them.
        """
        return queue_of(check_name("topic", topic), check_name("group", group))

    async def groups(self, topic: str) -> list[Group]:
        """Read the groups of a topic, by name."""
        self._session.check_open()
        check_name("topic", topic)
        return await self._topology.groups(topic)

    async def lag(self, topic: str, group: str) -> int:
        """Count the messages that a group has still to work on, those in hand included."""
        self._session.check_open()
        namespace = JOB + queue_of(check_name("topic", topic), check_name("group", group))
        return int(await self._session.durable.count(Query(namespace=namespace)))

    async def pause(self, topic: str, group: str, *, reason: str | None = None) -> Control:
        """Stop claims of a group; messages go on arriving. As `Jobs.pause`."""
        self._session.check_open()
        queue = queue_of(check_name("topic", topic), check_name("group", group))
        return await set_queue_paused(self._session, queue, paused=True, reason=reason)

    async def resume(self, topic: str, group: str) -> Control:
        """Allow claims of a group again."""
        self._session.check_open()
        queue = queue_of(check_name("topic", topic), check_name("group", group))
        return await set_queue_paused(self._session, queue, paused=False, reason=None)

    # --- claim and settle ---

    async def claim(
        self,
        topic: str,
        group: str,
        *,
        limit: int = 1,
        lease_for: float = 30.0,
        worker: str | None = None,
        wait: float = 0.0,
    ) -> list[Claim]:
        """
        Claim up to *limit* deliveries of a group; of each key at most one.

        Args:
            topic: The topic.
            group: The group.
            limit: At most this many; 0 gives none.
            lease_for: Seconds until the leases lapse unless renewed; >= 0.05.
            worker: Who asks, for people; None for a name of this storage.
            wait: Seconds to wait where there is none; 0 for not at all.

        A group that nobody has subscribed has nothing to claim; the log says so, once.

        Returns:
            Claims with ``message``; settle them here or as jobs. It is None where
            somebody else made a delivery that cannot be read.

        Raises:
            InvalidValueError: An argument is not legal.
            UnavailableError: A plane did not answer; nothing runs.
        """
        session = self._session
        session.check_open()
        queue = queue_of(check_name("topic", topic), check_name("group", group))
        check_limit(limit)
        lease_ms(lease_for)
        owner = session.worker if worker is None else check_name("worker", worker)
        kind = RunKind("topic", "topic", topic)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds("wait", wait)
        while limit:
            claims = await self._orders.claiming.claim(
                queue,
                limit=limit,
                lease_for=lease_for,
                worker=owner,
                order="fifo",
                kind=kind,
                lanes=self._lanes,
            )
            for claim in claims:
                claim.message = _delivered(claim, topic)
            if not claims and queue not in self._looked:
                await self._say_if_unknown(queue, topic, group)
            left = deadline - loop.time()
            if claims or left <= 0:
                return claims
            if not await session.hot.broker.wait([queue], timeout=left):
                deadline = loop.time()
        return []

    async def _say_if_unknown(self, queue: str, topic: str, group: str) -> None:
        """Say once, where a claim found nothing, that there is no such group (yet)."""
        if len(self._looked) < _LOOKED_MOST:
            try:
                found = await self._topology.group(topic, group)
            except StorageError:
                return
            self._looked.add(queue)
            if found is None:
                said = "topic %r has no group %r: it gets nothing before somebody subscribes it"
                log.warning(said, topic, group)

    async def wait(self, topic: str, group: str, *, timeout: float) -> bool:
        """
        Sleep until a group may have something to claim. Takes nothing.

        Args:
            topic: The topic.
            group: The group.
            timeout: Seconds, >= 0.

        Returns:
            False when the time is over.
        """
        self._session.check_open()
        queue = queue_of(check_name("topic", topic), check_name("group", group))
        return bool(await self._session.hot.broker.wait([queue], timeout=timeout))

    async def complete(self, claim: Claim, output: Any = None) -> None:
        """End a delivery as done; as `Jobs.complete`."""
        self._session.check_open()
        await self._orders.settling.complete(claim, output)

    async def fail(
        self, claim: Claim, error: object, *, retry_in: float | None = None, retry: bool = True
    ) -> Job:
        """
        End an attempt as failed; as `Jobs.fail`.

        Until the next attempt the other messages of its key wait; once it is a
        dead letter they go on.
        """
        self._session.check_open()
        return await self._orders.settling.fail(claim, error, retry_in=retry_in, retry=retry)

    async def release(self, claim: Claim, *, delay: float = 0.0) -> None:
        """Give a delivery back; as `Jobs.release`."""
        self._session.check_open()
        await self._orders.settling.release(claim, delay=delay)

    # --- the log ---

    async def read(self, topic: str, *, limit: int = 50, after: str | None = None) -> Page[Message]:
        """
        Read the log of a topic, oldest messages first.

        Args:
            topic: The topic.
            limit: At most this many, 1 to 10,000.
            after: The ``next`` of the page before.
        """
        self._session.check_open()
        query = Query(
            namespace=MESSAGES + check_name("topic", topic),
            order_by=[("publishedAt", "asc"), ("id", "asc")],
            limit=limit,
            after=after,
        )
        page = await self._session.durable.query(query)
        return Page([message_of(record, topic) for record in page.items], page.next)

    async def replay(
        self, topic: str, group: str, *, since: str | int = 0, until: int | None = None
    ) -> int:
        """
        Deliver messages to a group again, besides what it has still to do.

        Args:
            topic: The topic.
            group: The group.
            since: From this instant, in milliseconds since the epoch, or message on.
            until: Up to this instant; None for now.

        Returns:
            How many messages.

        Raises:
            InvalidValueError: There is no such group.
        """
        return await self._topology.replay(
            await self._require(topic, group), since=since, until=until
        )

    async def seek(self, topic: str, group: str, *, to: str | int) -> int:
        """
        Let a group go on from another place in the log.

        What waits for it is dropped, and what is in the log from *to* on is
        delivered. What is being worked on is worked on to its end.

        Args:
            topic: The topic.
            group: The group.
            to: ``latest``, ``earliest``, an instant, or the id of a message.

        Returns:
            How many messages it has before it.
        """
        found = await self._require(topic, group)
        await self._topology.drop_open(queue_of(topic, group))
        return 0 if to == "latest" else await self._topology.replay(found, since=to)

    async def _require(self, topic: str, group: str) -> Group:
        self._session.check_open()
        check_name("topic", topic)
        check_name("group", group)
        found = await self._topology.group(topic, group)
        if found is None:
            reason = f"topic {topic!r} has no group {group!r}; subscribe it first"
            raise InvalidValueError("group", reason)
        return found

    async def topics(self) -> list[str]:
        """Name the topics that have a group, sorted."""
        self._session.check_open()
        found: dict[str, int] = await self._session.durable.count(
            Query(kind="control"), by="namespace"
        )
        return sorted(name[len(GROUPS) :] for name in found if name.startswith(GROUPS))


def _delivered(claim: Claim, topic: str) -> Message | None:
    """Give the message of a delivery; None where an odd row has none."""
    try:
        value = claim.data
    except CorruptRecordError:
        return None
    if not isinstance(value, dict):
        return None
    return structure(Message, {"id": claim.id, "topic": topic, **value})
