"""Queues of ids."""

from __future__ import annotations

import sqlite3

from collections.abc import Sequence
from typing import Any, Final

import orjson

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import (
    INT_MAX,
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
from oqron_sqlite._facet import Place, tickets
from oqron_sqlite._lane import Transaction
from oqron_sqlite._wake import Waker


__all__ = ["SqliteBroker"]

_STEP: Final = 2000
"""How many ids one transaction publishes."""
_LOOK_AGAIN: Final = 60.0
"""Seconds after which a waiter looks in any case: the wall clock may have been set."""

_KNOWN: Final = """
SELECT e.id, e.leased, e.at FROM json_each(:ids) AS j CROSS JOIN oqron_hot_entries AS e
ON e.scope = :scope AND e.queue = :queue AND e.id = j.value
"""
_PUT: Final = """
INSERT INTO oqron_hot_entries VALUES (?, ?, ?, 0, ?, ?, ?, 0, '', 0)
ON CONFLICT (scope, queue, id) DO UPDATE SET
leased = 0, priority = excluded.priority, at = excluded.at, token = 0
"""
_SETTLE: Final = """
UPDATE oqron_hot_entries SET leased = 0, at = NULL, token = 0
WHERE scope = :scope AND queue = :queue AND at <= :now
"""
_CLAIM: Final = """
UPDATE oqron_hot_entries SET leased = 1, at = :at, owner = :owner,
token = :token + picked.place, deliveries = deliveries + 1
FROM (
    SELECT id, row_number() OVER (ORDER BY priority, seq) AS place
    FROM oqron_hot_entries
    WHERE scope = :scope AND queue = :queue AND at IS NULL
    ORDER BY priority, seq LIMIT :limit
) AS picked
WHERE scope = :scope AND queue = :queue AND oqron_hot_entries.id = picked.id
RETURNING id, token, deliveries, priority
"""
_CLAIMS: Final[dict[Order, str]] = {
    "fifo": _CLAIM,
    "lifo": _CLAIM.replace("priority, seq", "priority, seq DESC"),
}
_HELD: Final = """
SELECT j.key FROM json_each(:leases) AS j CROSS JOIN oqron_hot_entries AS e
ON e.scope = :scope AND e.queue = j.value ->> 0 AND e.id = j.value ->> 1
WHERE e.leased = 1 AND e.token = j.value ->> 2 AND e.at > :now
"""
_THOSE: Final = (
    "WHERE (scope, queue, id) IN (SELECT :scope, value ->> 0, value ->> 1 FROM json_each(:leases))"
)
_RENEW: Final = f"UPDATE oqron_hot_entries SET at = :at {_THOSE}"  # noqa: S608 - of constants
_ACK: Final = f"DELETE FROM oqron_hot_entries {_THOSE}"  # noqa: S608 - of constants
_NACK: Final = f"""
UPDATE oqron_hot_entries SET leased = 0, at = :at, token = 0,
priority = coalesce(:priority, priority) {_THOSE}
"""  # noqa: S608 - of constants
_REMOVE: Final = (
    "DELETE FROM oqron_hot_entries WHERE scope = :scope AND queue = :queue AND id = :id"
)
_COUNTS: Final = """
SELECT
(SELECT count(*) FROM oqron_hot_entries
 WHERE scope = :scope AND queue = :queue AND at IS NULL),
(SELECT count(*) FROM oqron_hot_entries
 WHERE scope = :scope AND queue = :queue AND at <= :now),
(SELECT count(*) FROM oqron_hot_entries
 WHERE scope = :scope AND queue = :queue AND at > :now AND leased = 0),
(SELECT count(*) FROM oqron_hot_entries
 WHERE scope = :scope AND queue = :queue AND at > :now AND leased = 1),
EXISTS (SELECT 1 FROM oqron_hot_paused WHERE scope = :scope AND queue = :queue)
"""
# A walk from name to name: no more steps than there are queues.
_QUEUES: Final = """
WITH RECURSIVE found (name) AS (
    SELECT min(queue) FROM oqron_hot_entries WHERE scope = :scope
    UNION ALL
    SELECT (SELECT min(queue) FROM oqron_hot_entries
            WHERE scope = :scope AND queue > found.name)
    FROM found WHERE found.name IS NOT NULL
)
SELECT name FROM found WHERE name IS NOT NULL
UNION SELECT queue FROM oqron_hot_paused WHERE scope = :scope
ORDER BY 1
"""
_PURGE: Final = "DELETE FROM oqron_hot_entries WHERE scope = :scope AND queue = :queue"
_PAUSE: Final = "INSERT INTO oqron_hot_paused VALUES (:scope, :queue) ON CONFLICT DO NOTHING"
_RESUME: Final = "DELETE FROM oqron_hot_paused WHERE scope = :scope AND queue = :queue"
_PAUSED: Final = "SELECT 1 FROM oqron_hot_paused WHERE scope = :scope AND queue = :queue"
_LAPSED: Final = """
SELECT id FROM oqron_hot_entries
WHERE scope = :scope AND queue = :queue AND at <= :now AND leased = 1
ORDER BY at, seq LIMIT :limit
"""
_READY: Final = """
UPDATE oqron_hot_entries SET leased = 0, at = NULL, token = 0
WHERE scope = :scope AND queue = :queue AND id IN (SELECT value FROM json_each(:ids))
"""
_RESTORE: Final = """
INSERT INTO oqron_hot_entries VALUES
(:scope, :queue, :id, 1, :priority, :seq, :at, :token, :owner, :deliveries)
ON CONFLICT DO NOTHING
"""
_LOOK: Final = """
SELECT j.value,
EXISTS (SELECT 1 FROM oqron_hot_entries
        WHERE scope = :scope AND queue = j.value AND at IS NULL),
(SELECT min(at) FROM oqron_hot_entries
 WHERE scope = :scope AND queue = j.value AND at IS NOT NULL)
FROM json_each(:queues) AS j
WHERE NOT EXISTS (SELECT 1 FROM oqron_hot_paused WHERE scope = :scope AND queue = j.value)
"""


class SqliteBroker(Broker):
    """The broker of one scope."""

    __slots__ = ("_place",)

    def __init__(self, place: Place) -> None:
        self._place = place

    def _params(self, queue: str, **more: Any) -> dict[str, Any]:
        return {"scope": self._place.number, "queue": queue, **more}

    def _topic(self, queue: str) -> tuple[str, int, str]:
        return "queue", self._place.number, queue

    async def publish(self, queue: str, entries: Sequence[Entry]) -> Sequence[Published]:
        self._place.gate.check()
        check_entries(queue, entries)
        results: list[Published] = []
        for start in range(0, len(entries), _STEP):
            part = [*entries[start : start + _STEP]]
            results += await self._place.write(
                lambda step, part=part: self._publish(step, queue, part)  # type: ignore[misc]  # bound for this turn
            )
        return results

    def _publish(self, step: Transaction, queue: str, entries: list[Entry]) -> list[Published]:
        ids = orjson.dumps([entry.id for entry in entries]).decode()
        known = {
            id_: leased and at > step.now
            for id_, leased, at in step.driver.execute(_KNOWN, self._params(queue, ids=ids))
        }
        seq = tickets(step, len(entries))
        scope = self._place.number
        rows: list[tuple[Any, ...]] = []
        results: list[Published] = []
        for place, entry in enumerate(entries, 1):
            leased = known.get(entry.id)
            if leased:
                results.append(Published.LEASED)
                continue
            results.append(Published.ADDED if leased is None else Published.MOVED)
            known[entry.id] = False
            due_at = entry.due_at
            at = due_at if due_at is not None and due_at > step.now else None
            rows.append((scope, queue, entry.id, entry.priority, seq + place, at))
        step.driver.executemany(_PUT, rows)
        step.told.add(self._topic(queue))
        return results

    async def claim(
        self,
        queue: str,
        *,
        owner: str,
        lease_for: float,
        limit: int = 1,
        order: Order = "fifo",
    ) -> Sequence[Lease]:
        self._place.gate.check()
        check_name("queue", queue)
        check_name("owner", owner)
        lasts = lease_ms(lease_for)
        check_limit(limit)
        statement = _CLAIMS[check_order(order)]
        if not limit:
            return []

        def work(step: Transaction) -> list[Lease]:
            params = self._params(queue, now=step.now)
            if step.driver.execute(_PAUSED, params).fetchone():
                return []
            step.driver.execute(_SETTLE, params)
            at = step.now + lasts
            token = tickets(step, limit)
            params |= {"at": at, "owner": owner, "token": token, "limit": limit}
            leases = [
                Lease(queue, id_, owner, mine, at, deliveries, priority)
                for id_, mine, deliveries, priority in step.driver.execute(statement, params)
            ]
            # Rows come back in no order; tokens were given in that of the queue.
            leases.sort(key=_token)
            return leases

        return await self._place.write(work)

    # --- waiting ---

    async def wait(self, queues: Sequence[str], *, timeout: float) -> Sequence[str]:
        place = self._place
        place.gate.check()
        if isinstance(queues, str) or not queues:
            raise InvalidValueError("queues", "must be a list of at least one queue")
        check_names("queue", queues)
        lasts = round(seconds("timeout", timeout) * 1000)
        names = [*dict.fromkeys(queues)]
        clock = place.lane.clock
        deadline = clock.now() + lasts
        waker = Waker(map(self._topic, names))
        place.hub.enter(place.gate, waker)
        try:
            while True:
                waker.rest()
                found, next_at = await self._look(names)
                place.gate.check()
                now = clock.now()
                if found or now >= deadline:
                    return found
                until = deadline if next_at is None else min(next_at, deadline)
                await waker.sleep(min((until - now) / 1000 + 0.001, _LOOK_AGAIN))
                place.gate.check()
        finally:
            place.hub.leave(place.gate, waker)

    async def _look(self, names: list[str]) -> tuple[list[str], int | None]:
        """Name the queues with work, and say when the next comes by itself."""
        params = {"scope": self._place.number, "queues": orjson.dumps(names).decode()}

        def look(driver: sqlite3.Connection, now: int) -> tuple[list[str], int | None]:
            found: list[str] = []
            times: list[int] = []
            for name, ready, at in driver.execute(_LOOK, params):
                if ready or (at is not None and at <= now):
                    found.append(name)
                elif at is not None:
                    times.append(at)
            return found, min(times, default=None)

        return await self._place.read(look)

    # --- leases ---

    async def renew(self, leases: Sequence[Lease], *, lease_for: float) -> Sequence[bool]:
        self._place.gate.check()
        lasts = lease_ms(lease_for)
        return await self._settle(_RENEW, leases, lasts, None)

    async def ack(self, leases: Sequence[Lease]) -> Sequence[bool]:
        self._place.gate.check()
        return await self._settle(_ACK, leases, None, None)

    async def nack(
        self, leases: Sequence[Lease], *, delay: float = 0.0, priority: int | None = None
    ) -> Sequence[bool]:
        self._place.gate.check()
        waits = delay_ms(delay)
        if priority is not None:
            check_priority(priority)
        return await self._settle(_NACK, leases, waits or None, priority)

    async def _settle(
        self,
        statement: str,
        leases: Sequence[Lease],
        lasts: int | None,
        priority: int | None,
    ) -> list[bool]:
        """Run *statement* for each lease that still holds; say for which it did."""
        if not leases:
            return []
        named = [
            (lease.queue, lease.id, lease.token)
            # A token of more than 64 bits was never given.
            for lease in leases
            if 0 <= lease.token <= INT_MAX
        ]
        asked = orjson.dumps(named).decode()

        def work(step: Transaction) -> set[tuple[str, str, int]]:
            params = {"scope": self._place.number, "now": step.now, "leases": asked}
            held = {named[index] for (index,) in step.driver.execute(_HELD, params)}
            if held:
                params["leases"] = orjson.dumps([*held]).decode()
                params["at"] = None if lasts is None else step.now + lasts
                params["priority"] = priority
                step.driver.execute(statement, params)
                if statement is not _ACK:
                    step.told |= {self._topic(queue) for queue, _, _ in held}
            return held

        held = await self._place.write(work)
        results = []
        for lease in leases:
            name = (lease.queue, lease.id, lease.token)
            results.append(name in held)
            if statement is not _RENEW:
                # Settled once; named again, there is nothing left to settle.
                held.discard(name)
        return results

    # --- the queue as a whole ---

    async def remove(self, queue: str, ids: Sequence[str]) -> Sequence[bool]:
        self._place.gate.check()
        check_name("queue", queue)
        check_names("id", ids)
        if not ids:
            return []
        mine = [*ids]
        return await self._place.write(
            lambda step: [
                step.driver.execute(_REMOVE, self._params(queue, id=id_)).rowcount == 1
                for id_ in mine
            ]
        )

    async def contains(self, queue: str, ids: Sequence[str]) -> Sequence[bool]:
        self._place.gate.check()
        check_name("queue", queue)
        check_names("id", ids)
        if not ids:
            return []
        mine = [*ids]
        params = self._params(queue, ids=orjson.dumps([*dict.fromkeys(mine)]).decode())
        known = await self._place.read(
            lambda driver, _: {row[0] for row in driver.execute(_KNOWN, params)}
        )
        return [id_ in known for id_ in mine]

    async def counts(self, queue: str) -> Counts:
        self._place.gate.check()
        check_name("queue", queue)
        params = self._params(queue)
        ready, due, delayed, leased, paused = await self._place.read(
            lambda driver, now: driver.execute(_COUNTS, params | {"now": now}).fetchone()
        )
        return Counts(ready + due, delayed, leased, bool(paused))

    async def queues(self) -> Sequence[str]:
        self._place.gate.check()
        params = {"scope": self._place.number}
        return await self._place.read(
            lambda driver, _: [row[0] for row in driver.execute(_QUEUES, params)]
        )

    async def purge(self, queue: str) -> int:
        self._place.gate.check()
        check_name("queue", queue)
        params = self._params(queue)
        return await self._place.write(lambda step: step.driver.execute(_PURGE, params).rowcount)

    async def pause(self, queue: str) -> None:
        self._place.gate.check()
        check_name("queue", queue)
        params = self._params(queue)
        await self._place.write(lambda step: step.driver.execute(_PAUSE, params).rowcount)

    async def resume(self, queue: str) -> None:
        self._place.gate.check()
        check_name("queue", queue)
        params = self._params(queue)

        def work(step: Transaction) -> None:
            step.driver.execute(_RESUME, params)
            step.told.add(self._topic(queue))

        await self._place.write(work)

    async def reap(self, queue: str, *, limit: int = 1000) -> Sequence[str]:
        self._place.gate.check()
        check_name("queue", queue)
        check_limit(limit)

        def work(step: Transaction) -> list[str]:
            params = self._params(queue, now=step.now, limit=limit)
            ids = [row[0] for row in step.driver.execute(_LAPSED, params)]
            if ids:
                params["ids"] = orjson.dumps(ids).decode()
                step.driver.execute(_READY, params)
                step.told.add(self._topic(queue))
            return ids

        return await self._place.write(work)

    async def restore(self, queue: str, leases: Sequence[Lease]) -> Sequence[bool]:
        self._place.gate.check()
        check_leases(queue, leases)
        check_names("id", [lease.id for lease in leases])
        if not leases:
            return []
        mine = [*leases]

        def work(step: Transaction) -> list[bool]:
            # Later tokens are larger than any that is put back.
            floor = max(lease.token for lease in mine)
            seq = tickets(step, len(mine), floor=floor)
            results = []
            for place, lease in enumerate(mine, 1):
                params = self._params(queue, id=lease.id, priority=lease.priority)
                params |= {"seq": seq + place, "at": lease.expires_at, "token": lease.token}
                params |= {"owner": lease.owner, "deliveries": lease.deliveries}
                results.append(step.driver.execute(_RESTORE, params).rowcount == 1)
            step.told.add(self._topic(queue))
            return results

        return await self._place.write(work)


def _token(lease: Lease) -> int:
    return lease.token
