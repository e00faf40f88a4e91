"""
Topics: a retained log, and one delivery per message and group.

The record ``topic_state/<topic>`` names the groups and counts their changes.
Publishing writes the message, a delivery per group and a guard on that count in
one atomic step, so a group gets every message that is published after it joined,
and no message is without its deliveries. A message remembers the count it was
published under; what a new group still lacks are exactly the messages of earlier
counts, and catching up reads them from the log.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging

from collections.abc import Iterable, Sequence
from typing import Any, Final

import attrs

from oqron_core._codec import Json, encode, encode_object
from oqron_core._ids import uuid7
from oqron_core.exceptions import ConflictError, InvalidValueError, StorageError
from oqron_core.models._wire import structure, unstructure
from oqron_core.models.group import Group
from oqron_core.models.job import JobSpec
from oqron_core.models.records import Control, Message
from oqron_core.planes.values import (
    Delete,
    Entry,
    Insert,
    Lease,
    Patch,
    Query,
    Record,
    Write,
)
from oqron_core.protocol import transitions
from oqron_core.protocol.claims import Claim
from oqron_core.protocol.lanes import (
    broker_id,
    delivery_id,
    lane_of,
    lane_range,
    queue_of,
)
from oqron_core.protocol.session import Session
from oqron_core.protocol.transitions import JOB, OPEN
from oqron_core.taxonomy import RecordKind


__all__ = ["GROUPS", "MESSAGES", "STATE", "Outgoing", "Topology"]

log: logging.Logger = logging.getLogger("oqron.topics")

MESSAGES: Final = "topic_msg:"
"""The namespace of a topic's log, before its name."""
GROUPS: Final = "topic_groups:"
"""The namespace of a topic's groups, before its name."""
STATE: Final = "topic_state"
"""The namespace of the record that says which groups a topic has."""
_TRIES: Final = 30
_PAGE: Final = 500
_BATCH_WRITES: Final = 2000
_EMPTY: Final = Json(b"{}")
_JOINING_MS: Final = 10_000
_INTERNAL: Final = frozenset({"groupsVersion", "position"})
"""Fields of a message in the log that are no part of it."""


@attrs.frozen
class Outgoing:
    """
    A message on its way into the log.

    Attributes:
        id: The message's id.
        key: Its key.
        message: The message, encoded.
        headers: Its headers, encoded.
        once: Whether the id stands for an idempotency key.
    """

    id: str
    key: str | None
    message: Json
    headers: Json
    once: bool


@attrs.frozen
class _State:
    version: int
    groups: tuple[tuple[str, int], ...]
    """Names, each with how often its deliveries are tried."""


def idempotent_id(key: str) -> str:
    """Give the message id that stands for an idempotency key."""
    return "once-" + hashlib.sha256(key.encode()).hexdigest()[:40]


class Topology:
    """Topics, groups, and what is published to them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._states: dict[str, _State] = {}
        self._last = 0
        self._position = 0

    # --- state ---

    async def _state(self, topic: str, *, fresh: bool) -> _State:
        """Read which groups there are; a guess from before will do to publish."""
        known = self._states.get(topic)
        if known is not None and not fresh:
            return known
        durable = self._session.durable
        record = (await durable.get(STATE, [topic]))[0]
        if record is None:
            control = unstructure(Control(name=topic))
            value = {**control, "groupsVersion": 0, "groups": {}, "published": 0}
            record = (await durable.write([Insert(STATE, topic, value)]))[0].record
        elif record.field("groupsVersion") is None:
            # Someone paused the topic before anything was published to it.
            change = {"groupsVersion": 0, "groups": {}, "published": 0}
            patch = Patch(STATE, topic, set=change)
            record = (await durable.write([patch]))[0].record
        if record is None:
            msg = f"the state of topic {topic!r} went away while it was made; try again"
            raise ConflictError(msg)
        state = _read_state(record)
        if len(self._states) > 10_000:  # noqa: PLR2004 - a memo, bounded
            self._states.clear()
        self._states[topic] = state
        return state

    # --- publish ---

    async def publish(self, topic: str, batch: Sequence[Outgoing]) -> list[Message]:
        """
        Write messages and their deliveries, then publish the deliveries.

        Returns:
            The messages, in order; ``duplicate`` where it was there before.
        """
        done: list[Message] = []
        size = max(1, _BATCH_WRITES // (len((await self._state(topic, fresh=False)).groups) + 1))
        for start in range(0, len(batch), size):
            done.extend(await self._publish_chunk(topic, batch[start : start + size]))
        return done

    async def _publish_chunk(self, topic: str, batch: Sequence[Outgoing]) -> list[Message]:
        found: dict[str, Message] = {}
        places: dict[str, int] = {}
        fresh = False
        for _ in range(_TRIES):
            state = await self._state(topic, fresh=fresh)
            now = await self._session.durable_time.now()
            news = _first_of_each(batch, found)
            first = self._places(now, len(news))
            if news:
                try:
                    await self._session.write_atomic(self._writes(topic, state, news, now, first))
                except ConflictError:
                    found.update(await self._published_before(topic, batch, places))
                    fresh = True
                    continue
            made = {out.id: _message(topic, out, now) for out in news}
            # An unanswered try of ours may have been written all the same.
            mine = {i: m for i, m in found.items() if not m.duplicate}
            places.update({out.id: n for n, out in enumerate(news, first)})
            await self._announce(topic, state, {**made, **mine}.values(), places)
            return _in_order(batch, {**found, **made})
        msg = f"the groups of topic {topic!r} kept changing; try again"
        raise ConflictError(msg)

    def _places(self, now: int, count: int) -> int:
        """Give the first of *count* places in this millisecond: ids need not sort."""
        if now != self._last:
            self._last, self._position = now, 0
        first = self._position
        self._position += count
        return first

    async def _published_before(
        self, topic: str, batch: Sequence[Outgoing], places: dict[str, int]
    ) -> dict[str, Message]:
        """Find the messages that are in the log: whose idempotency key was used."""
        once = {out.id: out.once for out in batch}
        records = await self._session.durable.get(MESSAGES + topic, list(once))
        places.update({r.id: r.integer("position") for r in records if r is not None})
        return {
            record.id: attrs.evolve(structure(Message, record.value), duplicate=once[record.id])
            for record in records
            if record is not None
        }

    def _writes(
        self, topic: str, state: _State, news: Sequence[Outgoing], now: int, first: int
    ) -> list[Write]:
        keep_for = self._session.settings.retention.messages_for
        expires_at = None if keep_for is None else now + round(keep_for * 1000)
        writes: list[Write] = [
            Patch(
                STATE,
                topic,
                increment={"published": len(news)},
                expect={"groupsVersion": state.version},
            )
        ]
        for position, out in enumerate(news, first):
            value = _message_value(topic, out, now)
            logged = {**value, "groupsVersion": state.version, "position": position}
            writes.append(Insert(MESSAGES + topic, out.id, logged, expires_at))
            if state.groups:
                data = Json(encode_object(value))
                job_id = delivery_id(lane_of(out.key), now, position, out.id)
                for group, attempts in state.groups:
                    writes.append(
                        self._delivery(queue_of(topic, group), job_id, data, attempts, now)
                    )
        return writes

    def _delivery(self, queue: str, job_id: str, data: Json, attempts: int, now: int) -> Insert:
        spec = JobSpec(max_attempts=attempts, id=job_id)
        # The envelope adds to the message, which was measured by itself.
        insert, _, _ = transitions.new_job(queue, data, spec, now=now, max_bytes=2**40)
        return insert

    async def _announce(
        self,
        topic: str,
        state: _State,
        messages: Iterable[Message],
        places: dict[str, int],
    ) -> None:
        ids = [delivery_id(lane_of(m.key), m.published_at, places[m.id], m.id) for m in messages]
        if not ids:
            return
        for group, _ in state.groups:
            queue = queue_of(topic, group)
            # A lane that stands there already keeps its place: first things first.
            entries = [Entry(name) for name in dict.fromkeys(broker_id(queue, i) for i in ids)]
            await self._session.publish_many(queue, await self._new_lanes(queue, entries))

    async def _new_lanes(self, queue: str, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Leave out lanes that wait for the next attempt of their head."""
        lanes = [entry.id for entry in entries if "." not in entry.id]
        if not lanes:
            return entries
        try:
            known = await self._session.hot.broker.contains(queue, lanes)
        except StorageError:
            return entries  # publishing will meet the same fault, and says so
        there = {lane for lane, is_there in zip(lanes, known, strict=True) if is_there}
        return [entry for entry in entries if entry.id not in there]

    # --- groups ---

    async def groups(self, topic: str) -> list[Group]:
        """Read the groups of a topic, by name."""
        found: list[Group] = []
        after: str | None = None
        while True:
            query = Query(namespace=GROUPS + topic, limit=1000, after=after)
            page = await self._session.durable.query(query)
            found.extend(structure(Group, record.value) for record in page.items)
            after = page.next
            if after is None:
                return found

    async def group(self, topic: str, name: str) -> Group | None:
        """Read one group."""
        record = (await self._session.durable.get(GROUPS + topic, [name]))[0]
        return None if record is None else structure(Group, record.value)

    async def join(self, topic: str, name: str, *, start: str | int, max_attempts: int) -> Group:
        """Make a group, and let it catch up; one that exists is left as it is."""
        queue_of(topic, name)
        await self._check_start(topic, start)
        for _ in range(_TRIES):
            state = await self._state(topic, fresh=True)
            found = await self.group(topic, name)
            if found is not None:
                return await self.catch_up(found)
            version = state.version + 1
            group = Group(
                name=name,
                topic=topic,
                start=start,
                joined=version,
                caught_up=start == "latest",
                max_attempts=max_attempts,
                created_at=await self._session.durable_time.now(),
            )
            groups = {**dict(state.groups), name: max_attempts}
            try:
                await self._session.write_atomic(
                    [
                        _regroup(topic, state, groups),
                        Insert(GROUPS + topic, name, unstructure(group)),
                    ]
                )
            except ConflictError:
                await asyncio.sleep(0)
                continue
            return await self.catch_up(group)
        msg = f"the groups of topic {topic!r} kept changing; try again"
        raise ConflictError(msg)

    async def _check_start(self, topic: str, start: str | int) -> None:
        if start in {"latest", "earliest"} or (type(start) is int and start >= 0):
            return
        if isinstance(start, str):
            if (await self._session.durable.get(MESSAGES + topic, [start]))[0] is not None:
                return
            reason = f"topic {topic!r} has no message {start!r} (any more)"
            raise InvalidValueError("start", reason)
        reason = 'must be "latest", "earliest", milliseconds since the epoch or a message id'
        raise InvalidValueError("start", reason)

    async def leave(self, topic: str, name: str) -> bool:
        """Remove a group with its open deliveries; False where there is none."""
        for _ in range(_TRIES):
            state = await self._state(topic, fresh=True)
            if name not in dict(state.groups):
                break
            groups = {other: attempts for other, attempts in state.groups if other != name}
            try:
                await self._session.write_atomic(
                    [_regroup(topic, state, groups), Delete(GROUPS + topic, name)]
                )
            except ConflictError:
                continue
            await self.drop_open(queue_of(topic, name))
            return True
        # Where a crash came between: what may be left of it goes all the same.
        await self.drop_open(queue_of(topic, name))
        return False

    async def drop_open(self, queue: str) -> int:
        """Remove what waits in a group's queue; what is worked on stays."""
        session = self._session
        total = 0
        after: str | None = None
        while True:
            query = Query(
                namespace=JOB + queue,
                where=[("status", "in", ["waiting", "delayed", "held"])],
                limit=_PAGE,
                after=after,
                fields=("status",),
            )
            page = await session.durable.query(query)
            writes = [
                Delete(JOB + queue, record.id, expect={"status": record.field("status")})
                for record in page.items
            ]
            results = await session.durable.write(writes, returning=())
            gone = [r.id for r, result in zip(page.items, results, strict=True) if result]
            total += len(gone)
            if gone:
                ids = list(dict.fromkeys(broker_id(queue, job_id) for job_id in gone))
                await session.hot.broker.remove(queue, [i for i in ids if "." in i])
            after = page.next
            if after is None:
                return total

    # --- catching up, replay ---

    async def catch_up(self, group: Group) -> Group:
        """Deliver to a group what was published before it joined."""
        after = group.cursor
        while not group.caught_up:
            query = Query(
                namespace=MESSAGES + group.topic,
                where=[
                    *await self._from(group.topic, group.start),
                    ("groupsVersion", "<", group.joined),
                ],
                order_by=[("publishedAt", "asc"), ("id", "asc")],
                limit=_PAGE,
                after=after,
            )
            page = await self._session.durable.query(query)
            await self._deliver(group, page.items, replay=0)
            after = page.next
            change = {"cursor": after, "caughtUp": after is None}
            patch = Patch(GROUPS + group.topic, group.name, set=change)
            await self._session.durable.write([patch], returning=())
            group = attrs.evolve(group, cursor=after, caught_up=after is None)
        return group

    async def finish_joining(self, *, batch: int) -> int:
        """Let groups catch up whose subscriber died on the way."""
        query = Query(
            kind=RecordKind.CONTROL, where=[("caughtUp", "=", False)], limit=min(batch, 1000)
        )
        page = await self._session.durable.query(query)
        now = await self._session.durable_time.now()
        total = 0
        for record in page.items:
            group = structure(Group, record.value)
            # Whoever subscribes at this moment is at it himself.
            if record.namespace.startswith(GROUPS) and group.created_at < now - _JOINING_MS:
                await self.catch_up(group)
                total += 1
        return total

    async def _from(self, topic: str, start: str | int) -> list[tuple[str, str, Any]]:
        """Give the conditions for messages from *start* on."""
        if start == "earliest":
            return []
        if start == "latest":
            return [("publishedAt", ">", await self._session.durable_time.now())]
        if isinstance(start, int):
            return [("publishedAt", ">=", start)]
        record = (await self._session.durable.get(MESSAGES + topic, [start]))[0]
        at = 0 if record is None else record.field("publishedAt")
        return [("publishedAt", ">=", at)]

    async def _deliver(self, group: Group, records: Sequence[Record], *, replay: int) -> None:
        session = self._session
        queue = queue_of(group.topic, group.name)
        now = await session.durable_time.now()
        inserts: list[Insert] = []
        for record in records:
            key = record.field("key")
            job_id = delivery_id(
                lane_of(key),
                record.integer("publishedAt"),
                record.integer("position"),
                record.id,
                replay,
            )
            value = {
                name: field for name, field in record.raw_fields().items() if name not in _INTERNAL
            }
            data = Json(encode_object(value))
            inserts.append(self._delivery(queue, job_id, data, group.max_attempts, now))
        await session.write_many(inserts)
        names = dict.fromkeys(broker_id(queue, insert.id) for insert in inserts)
        if names:
            entries = await self._new_lanes(queue, [Entry(name) for name in names])
            await session.publish_many(queue, entries)

    async def replay(self, group: Group, *, since: str | int, until: int | None = None) -> int:
        """Deliver messages again, from a time or a message on; gives how many."""
        session = self._session
        patch = Patch(GROUPS + group.topic, group.name, increment={"replays": 1})
        result = (await session.durable.write([patch], returning=("replays",)))[0]
        if not result.applied or result.record is None:
            msg = f"topic {group.topic!r} has no group {group.name!r} any more"
            raise ConflictError(msg)
        number = result.record.field("replays")
        end = await session.durable_time.now() if until is None else until
        total = 0
        after: str | None = None
        while True:
            query = Query(
                namespace=MESSAGES + group.topic,
                where=[*await self._from(group.topic, since), ("publishedAt", "<=", end)],
                order_by=[("publishedAt", "asc"), ("id", "asc")],
                limit=_PAGE,
                after=after,
            )
            page = await session.durable.query(query)
            await self._deliver(group, page.items, replay=number)
            total += len(page.items)
            after = page.next
            if after is None:
                return total

    # --- lanes ---

    async def heads(self, leases: Sequence[Lease]) -> Sequence[str | None]:
        """Give for each lease of a queue of deliveries the job it stands for."""
        return await asyncio.gather(*[self._head(lease) for lease in leases])

    async def _head(self, lease: Lease) -> str | None:
        if "." in lease.id:
            return lease.id
        return await self.first_open(lease.queue, lease.id)

    async def first_open(self, queue: str, lane: str) -> str | None:
        """Give the oldest open delivery of a lane."""
        first, end = lane_range(lane)
        query = Query(
            namespace=JOB + queue,
            where=[("id", ">=", first), ("id", "<", end), ("status", "in", list(OPEN))],
            limit=1,
            fields=("status",),
        )
        page = await self._session.durable.query(query)
        return page.items[0].id if page.items else None

    async def follow(self, claim: Claim) -> None:
        """
        Make the next delivery of a lane claimable after one has ended.

        The lease is given up first: whoever publishes in between finds either no
        lane and makes one, or is seen here.
        """
        lane = claim.lease.id
        if "." in lane:
            return
        try:
            if await self.first_open(claim.lease.queue, lane) is not None:
                entries = await self._new_lanes(claim.lease.queue, [Entry(lane)])
                await self._session.publish_many(claim.lease.queue, entries)
        except StorageError as error:
            log.warning("the next delivery of a key waits for maintenance: %s", error)


def _read_state(record: Record) -> _State:
    groups = record.field("groups")
    pairs = groups.items() if isinstance(groups, dict) else ()
    return _State(record.field("groupsVersion"), tuple(sorted(pairs)))


def _regroup(topic: str, state: _State, groups: dict[str, int]) -> Patch:
    return Patch(
        STATE,
        topic,
        set={"groups": groups, "groupsVersion": state.version + 1},
        expect={"groupsVersion": state.version},
    )


def _first_of_each(batch: Sequence[Outgoing], found: dict[str, Message]) -> list[Outgoing]:
    """Give what is to be written: each id once, without those that were found."""
    fresh: dict[str, Outgoing] = {}
    for out in batch:
        if out.id not in found:
            fresh.setdefault(out.id, out)
    return list(fresh.values())


def _in_order(batch: Sequence[Outgoing], messages: dict[str, Message]) -> list[Message]:
    """Give the message of each item; the second of one id is a duplicate."""
    answers: list[Message] = []
    seen: set[str] = set()
    for out in batch:
        message = messages[out.id]
        if out.id in seen and not message.duplicate:
            message = attrs.evolve(message, duplicate=True)
        seen.add(out.id)
        answers.append(message)
    return answers


def _message_value(topic: str, out: Outgoing, now: int) -> dict[str, Any]:
    return {
        "id": out.id,
        "topic": topic,
        "key": out.key,
        "publishedAt": now,
        "headers": out.headers,
        "message": out.message,
    }


def _message(topic: str, out: Outgoing, now: int) -> Message:
    return Message(
        id=out.id,
        topic=topic,
        key=out.key,
        published_at=now,
        headers=out.headers.load(),
        message=out.message.load(),
    )


def outgoing(
    message: Any,
    *,
    key: str | None,
    idempotency_key: str | None,
    headers: dict[str, Any] | None,
    max_bytes: int,
    path: str = "message",
) -> Outgoing:
    """
    Check and encode a message.

    Raises:
        InvalidValueError: Something is not portable.
    """
    if headers is not None and not isinstance(headers, dict):
        raise InvalidValueError("headers", "must be an object (dict)")
    return Outgoing(
        id=uuid7() if idempotency_key is None else idempotent_id(idempotency_key),
        key=key,
        message=encode(message, path, max_bytes=max_bytes),
        headers=encode(headers, "headers", max_bytes=max_bytes) if headers else _EMPTY,
        once=idempotency_key is not None,
    )
