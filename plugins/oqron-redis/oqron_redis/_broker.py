"""The broker: queues of ids in sorted sets."""

from __future__ import annotations

import asyncio

from collections.abc import Sequence
from typing import Any, Final, final

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import (
    Broker,
    Counts,
    Entry,
    Lease,
    Order,
    Published,
    check_entries,
    check_leases,
    check_limit,
    check_name,
    check_names,
    check_order,
    check_priority,
    delay_ms,
    lease_ms,
    seconds,
)
from oqron_redis._joint import Joint
from oqron_redis._keys import QueueKeys
from oqron_redis._session import Session, chunks, flags
from oqron_redis._wakes import Wakes


__all__ = [
    "COUNTER_TTL_MS",
    "RedisBroker",
    "add_keys",
    "claim_keys",
    "claim_words",
    "entry_words",
    "lease_words",
    "leases_of",
    "publish_head",
    "publish_keys",
    "settle_keys",
]

COUNTER_TTL_MS: Final = 30 * 86_400_000
"""How long a token counter outlives its last use; a lost one goes on from the clock."""

_STEP: Final = 1000
_PUBLISHED: Final = {97: Published.ADDED, 109: Published.MOVED, 108: Published.LEASED}
_FORGET_AFTER_MS: Final = 3_600_000
_FOR_EVER: Final = 2**53
_SMALL: Final = 20
_MAX_JOINTS: Final = 256


@final
class RedisBroker(Broker):
    """
    Queues on Redis.

    A queue is a sorted set of what is ready (score: priority, member: sequence and
    id), one of what is delayed, one of what is leased (score: instant), and a hash
    from each id to its state. All keys of a queue share a slot.
    """

    __slots__ = ("_joints", "_session", "_wakes")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._wakes = Wakes(session)
        self._joints: dict[bytes, tuple[Joint[Entry], set[str]]] = {}

    def _registry(self) -> tuple[bytes, ...]:
        return _registry(self._session)

    async def _register(self, queue: QueueKeys) -> None:
        # Known before it holds anything: a queue is never lost from sight.
        if self._session.store.is_cluster:
            registry = self._session.keys.queues
            await self._session.run("register_queue", (registry,), (queue.name,))

    async def publish(self, queue: str, entries: Sequence[Entry]) -> Sequence[Published]:
        self._session.check_open()
        check_entries(queue, entries)
        if not entries:
            return []
        keys = self._session.keys.queue(queue)
        places = publish_keys(self._session, keys)
        head = publish_head(self._session, keys)
        await self._register(keys)
        if len(entries) <= _SMALL and len({entry.id for entry in entries}) == len(entries):
            joined: Sequence[Published] = await self._join(keys, places, head, entries)
            return joined
        answers = []
        for step in _without_repeats(entries):
            # One after the other: the order of publishing is the order of the batch.
            arguments = (*head, *entry_words(step))
            answers.append(await self._session.run("publish", places, arguments))
        return [_PUBLISHED[letter] for letter in b"".join(answers)]

    def _join(
        self,
        queue: QueueKeys,
        places: Sequence[bytes],
        head: Sequence[bytes | int],
        entries: Sequence[Entry],
    ) -> asyncio.Future[Any]:
        joined = self._joints.get(queue.name)
        ids = {entry.id for entry in entries}
        if joined is not None and joined[0].is_open and joined[1].isdisjoint(ids):
            joined[1].update(ids)
            return joined[0].join(entries)
        joint: Joint[Entry] = Joint(
            lambda entries: (len(places), *places, *head, *entry_words(entries)),
            lambda _, answer: [_PUBLISHED[letter] for letter in answer],
        )
        if len(self._joints) >= _MAX_JOINTS:
            self._joints.clear()
        self._joints[queue.name] = (joint, ids)
        return self._session.join(joint, "publish", queue.ready, entries)

    async def claim(
        self,
        queue: str,
        *,
        owner: str,
        lease_for: float,
        limit: int = 1,
        order: Order = "fifo",
    ) -> Sequence[Lease]:
        self._session.check_open()
        check_name("queue", queue)
        check_name("owner", owner)
        lease = lease_ms(lease_for)
        check_limit(limit)
        check_order(order)
        if limit == 0:
            return []
        keys = self._session.keys.queue(queue)
        arguments = claim_words(limit, lease, owner, order)
        answer = await self._session.run("claim", claim_keys(keys), arguments)
        return leases_of(queue, owner, answer)

    async def wait(self, queues: Sequence[str], *, timeout: float) -> Sequence[str]:
        self._session.check_open()
        if isinstance(queues, str) or not queues:
            raise InvalidValueError("queues", "must be a list of at least one queue")
        check_names("queue", queues)
        return await self._wakes.wait([*dict.fromkeys(queues)], seconds("timeout", timeout))

    async def renew(self, leases: Sequence[Lease], *, lease_for: float) -> Sequence[bool]:
        return await self._settle(b"renew", leases, lease_ms(lease_for))

    async def ack(self, leases: Sequence[Lease]) -> Sequence[bool]:
        return await self._settle(b"ack", leases)

    async def nack(
        self, leases: Sequence[Lease], *, delay: float = 0.0, priority: int | None = None
    ) -> Sequence[bool]:
        span = delay_ms(delay)
        place = b"" if priority is None else b"%d" % check_priority(priority)
        return await self._settle(b"nack", leases, span, place)

    async def _settle(
        self, verb: bytes, leases: Sequence[Lease], span: int = 0, priority: bytes = b""
    ) -> Sequence[bool]:
        self._session.check_open()
        if not leases:
            return []
        by_queue: dict[str, list[int]] = {}
        for index, lease in enumerate(leases):
            by_queue.setdefault(lease.queue, []).append(index)
        check_names("queue", by_queue)
        calls, places = [], []
        for queue, indexes in by_queue.items():
            keys = self._session.keys.queue(queue)
            used = settle_keys(keys)
            head = (verb, span, priority, self._session.keys.wake_channel, keys.name)
            for step in chunks(indexes, _STEP):
                arguments = (*head, *lease_words([leases[index] for index in step]))
                calls.append(self._session.run("settle", used, arguments))
                places.append(step)
        answers = await self._session.gather(calls)
        done = [False] * len(leases)
        for step, answer in zip(places, answers, strict=True):
            for index, flag in zip(step, flags(answer), strict=True):
                done[index] = flag
        return done

    async def remove(self, queue: str, ids: Sequence[str]) -> Sequence[bool]:
        names = self._ids(queue, ids)
        if not names:
            return []
        keys = self._session.keys.queue(queue)
        places = keys.states
        calls = [self._session.run("remove", places, step) for step in chunks(names, _STEP)]
        answers = await self._session.gather(calls)
        return flags(b"".join(answers))

    async def contains(self, queue: str, ids: Sequence[str]) -> Sequence[bool]:
        names = self._ids(queue, ids)
        if not names:
            return []
        key = self._session.keys.queue(queue).ids
        calls = [
            self._session.command(b"HMGET", key, *step, key=key, again=True)
            for step in chunks(names, _STEP)
        ]
        answers = await self._session.gather(calls)
        return [state is not None for answer in answers for state in answer]

    def _ids(self, queue: str, ids: Sequence[str]) -> list[bytes]:
        self._session.check_open()
        check_name("queue", queue)
        check_names("id", ids)
        return [id_.encode() for id_ in ids]

    async def counts(self, queue: str) -> Counts:
        check_name("queue", queue)
        keys = self._session.keys.queue(queue)
        places = (keys.ready, keys.delayed, keys.leased, keys.paused)
        ready, delayed, leased, paused = await self._session.run("counts", places, again=True)
        return Counts(ready, delayed, leased, paused == 1)

    async def queues(self) -> Sequence[str]:
        session = self._session
        registry = session.keys.queues
        names = await session.command(b"ZRANGE", registry, 0, -1, key=registry, again=True)
        queues = [name.decode() for name in names]
        if not queues:
            return []
        calls = []
        for queue in queues:
            keys = session.keys.queue(queue)
            calls.append(
                session.command(b"EXISTS", keys.ids, keys.paused, key=keys.ids, again=True)
            )
        held = await session.gather(calls)
        await self._forget([queue for queue, used in zip(queues, held, strict=True) if not used])
        return sorted(queue for queue, used in zip(queues, held, strict=True) if used)

    async def _forget(self, queues: Sequence[str]) -> None:
        if not queues:
            return
        session = self._session
        before = _FOR_EVER
        if session.store.is_cluster:
            # What is unused cannot be looked at in the same step there. A queue that
            # was registered lately may be about to get its first id.
            before = await session.now() - _FORGET_AFTER_MS
        calls = []
        for queue in queues:
            keys = session.keys.queue(queue)
            used = () if session.store.is_cluster else (keys.ids, keys.paused)
            places = (session.keys.queues, *used)
            calls.append(session.run("forget_queue", places, (keys.name, before)))
        await session.gather(calls)

    async def purge(self, queue: str) -> int:
        check_name("queue", queue)
        keys = self._session.keys.queue(queue)
        places = keys.states
        return int(await self._session.run("purge", places))

    async def pause(self, queue: str) -> None:
        check_name("queue", queue)
        keys = self._session.keys.queue(queue)
        await self._register(keys)
        await self._session.run("pause", (keys.paused, *self._registry()), (keys.name,))

    async def resume(self, queue: str) -> None:
        check_name("queue", queue)
        keys = self._session.keys.queue(queue)
        arguments = (self._session.keys.wake_channel, keys.name)
        await self._session.run("resume", (keys.paused, keys.wake), arguments)

    async def reap(self, queue: str, *, limit: int = 1000) -> Sequence[str]:
        check_name("queue", queue)
        check_limit(limit)
        self._session.check_open()
        if limit == 0:
            return []
        keys = self._session.keys.queue(queue)
        places = (keys.ready, keys.leased, keys.ids, keys.wake, keys.nothing, keys.paused)
        arguments = (limit, self._session.keys.wake_channel, keys.name)
        return [id_.decode() for id_ in await self._session.run("reap", places, arguments)]

    async def restore(self, queue: str, leases: Sequence[Lease]) -> Sequence[bool]:
        self._session.check_open()
        check_leases(queue, leases)
        check_names("id", (lease.id for lease in leases))
        if not leases:
            return []
        keys = self._session.keys.queue(queue)
        places = (keys.leased, keys.ids, keys.counter, keys.wake, *self._registry())
        await self._register(keys)
        calls = []
        for step in chunks(leases, _STEP):
            head = (self._session.keys.wake_channel, keys.name, COUNTER_TTL_MS)
            arguments: list[bytes | int] = [*head]
            for lease in step:
                arguments += (
                    lease.id.encode(),
                    lease.token,
                    lease.expires_at,
                    lease.deliveries,
                    lease.priority,
                    lease.owner.encode(),
                )
            calls.append(self._session.run("restore", places, arguments))
        return flags(b"".join(await self._session.gather(calls)))


def _registry(session: Session) -> tuple[bytes, ...]:
    # In a cluster the registry of queues lives in another slot.
    return () if session.store.is_cluster else (session.keys.queues,)


def publish_keys(session: Session, keys: QueueKeys) -> tuple[bytes, ...]:
    """Give the keys of the script that publishes."""
    return (
        *keys.states,
        keys.counter,
        keys.wake,
        keys.paused,
        *_registry(session),
    )


def add_keys(keys: QueueKeys) -> tuple[bytes, ...]:
    """Give those of the script that adds one id, which is new and due at once."""
    return (keys.ready, keys.ids, keys.counter, keys.wake, keys.paused)


def claim_keys(keys: QueueKeys) -> tuple[bytes, ...]:
    """Give the keys of the script that claims."""
    return (
        *keys.states,
        keys.counter,
        keys.paused,
    )


def claim_words(limit: int, lease: int, owner: str, order: Order) -> tuple[bytes | int, ...]:
    """Give its arguments."""
    return (limit, lease, owner.encode(), order.encode(), COUNTER_TTL_MS)


def leases_of(queue: str, owner: str, answer: Sequence[Any]) -> list[Lease]:
    """Read its answer."""
    expires_at = int(answer[0])
    return [
        Lease(
            queue,
            answer[i].decode(),
            owner,
            int(answer[i + 1]),
            expires_at,
            int(answer[i + 2]),
            int(answer[i + 3]),
        )
        for i in range(1, len(answer), 4)
    ]


def settle_keys(keys: QueueKeys) -> tuple[bytes, ...]:
    """Give the keys of the script that renews, finishes and gives back."""
    return (
        *keys.states,
        keys.wake,
        keys.nothing,
        keys.paused,
    )


def lease_words(leases: Sequence[Lease]) -> list[bytes | int]:
    """Give what its arguments say of leases."""
    words: list[bytes | int] = []
    for lease in leases:
        words += (lease.id.encode(), lease.token)
    return words


def publish_head(session: Session, keys: QueueKeys) -> tuple[bytes | int, ...]:
    """Give what its arguments begin with."""
    return (session.keys.wake_channel, keys.name, COUNTER_TTL_MS)


def entry_words(entries: Sequence[Entry]) -> list[bytes | int]:
    """Give what its arguments say of entries."""
    words: list[bytes | int] = []
    for entry in entries:
        due = b"" if entry.due_at is None else entry.due_at
        words += (entry.id.encode(), entry.priority, due)
    return words


def _without_repeats(entries: Sequence[Entry]) -> Sequence[Sequence[Entry]]:
    # A step looks at every id once; the same id again is published again.
    if len({entry.id for entry in entries}) == len(entries):
        return chunks(entries, _STEP)
    steps: list[list[Entry]] = [[]]
    seen: set[str] = set()
    for entry in entries:
        if entry.id in seen or len(steps[-1]) >= _STEP:
            steps.append([])
            seen.clear()
        seen.add(entry.id)
        steps[-1].append(entry)
    return steps
