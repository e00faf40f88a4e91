"""
Retention: what has ended, and may go.

Most of it is written as ``expires_at`` when something ends, and removed once that
is past. Rules that people set later shorten this, by age and by count, for a kind
of record and a pattern of namespaces. Only what has ended is ever touched, and
every step is bounded.
"""

from __future__ import annotations

import hashlib
import logging

from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

import attrs

from oqron_core._names import MAX_NAME_BYTES, MAX_NAME_CHARS, check_namespace
from oqron_core.exceptions import InvalidValueError, StorageError
from oqron_core.models._wire import structure, unstructure
from oqron_core.planes.checks import seconds
from oqron_core.planes.values import Delete, Lease, Put, Query, Record
from oqron_core.protocol.session import Session
from oqron_core.taxonomy import RecordKind, classify_namespace


__all__ = ["RULED", "Prunable", "Retaining", "Rule", "check_rule"]

log: logging.Logger = logging.getLogger("oqron.maintenance")

RULES: Final = "oqron_retention"
"""The namespace of the rules, a custom one."""
_LOCK: Final = "oqron:lock:prune"
_LOCK_FOR: Final = 60.0
_PAGE: Final = 10_000
_GROUPS: Final = "topic_groups:"
_MESSAGES: Final = "topic_msg:"


@attrs.frozen
class _Ended:
    """How records of a kind show that they have ended, and when."""

    at: str
    statuses: tuple[str, ...] = ()


RULED: Final = {
    RecordKind.JOB: _Ended("finishedAt", ("completed", "cancelled")),
    RecordKind.DLQ: _Ended("deadAt"),
    RecordKind.RUN: _Ended("endedAt", ("completed", "failed", "cancelled")),
    RecordKind.MESSAGE: _Ended("publishedAt"),
    RecordKind.LOG: _Ended("ts"),
}
"""The kinds that a rule may be about; no others are ever pruned by one."""


@attrs.frozen(kw_only=True)
class Rule:
    """
    How long and how many are kept of what has ended. Either limit deletes.

    Attributes:
        kind: ``job``, ``dlq``, ``run``, ``message`` or ``log``.
        namespace: Which namespaces: a whole name such as ``queue_job:emails``, or
            the beginning of names and a star; ``*`` for all of the kind.
        keep_for: Seconds from the end; 0 is at once, None for no limit.
        keep: How many of the newest per namespace; None for no limit.
        updated_at: When it was set, milliseconds since the epoch.
    """

    kind: str
    namespace: str = "*"
    keep_for: float | None = None
    keep: int | None = None
    updated_at: int = 0

    def covers(self, namespace: str) -> bool:
        """Say whether the rule is about *namespace*."""
        if self.namespace.endswith("*"):
            return namespace.startswith(self.namespace[:-1])
        return namespace == self.namespace


@attrs.frozen
class Prunable:
    """
    What a prune would delete.

    Attributes:
        kind: The record kind.
        namespace: The namespace; empty for those that hold only expired records,
            all together.
        count: How many records.
        size: Their bytes as stored.
    """

    kind: str
    namespace: str
    count: int
    size: int


class Retaining:
    """
    Prunes and previews. Bounded steps, each safe beside any other process.

    Args:
        session: The session.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    # --- rules ---

    async def rules(self) -> list[Rule]:
        """Read the rules, by kind and namespace."""
        found: list[Rule] = []
        after: str | None = None
        while True:
            page = await self._session.durable.query(
                Query(namespace=RULES, limit=1000, after=after)
            )
            found.extend(structure(Rule, record.value) for record in page.items)
            after = page.next
            if after is None:
                return sorted(found, key=lambda rule: (rule.kind, rule.namespace))

    async def set_rule(self, rule: Rule) -> Rule:
        """Set a rule; one of the same kind and namespace is replaced."""
        made = attrs.evolve(rule, updated_at=await self._session.durable_time.now())
        write = Put(RULES, _rule_id(rule.kind, rule.namespace), unstructure(made))
        await self._session.durable.write([write], returning=())
        return made

    async def unset_rule(self, kind: str, namespace: str) -> bool:
        """Remove a rule; False where there was none."""
        write = Delete(RULES, _rule_id(kind, namespace))
        return (await self._session.durable.write([write], returning=()))[0].applied

    # --- prune ---

    async def prune(self, *, batch: int) -> int:
        """
        Delete what has expired, and what the rules do not keep.

        One process at a time: where another one is at it, nothing is done.

        Returns:
            How many records were deleted.
        """
        locks = self._session.hot.locks
        lease: Lease | None = None
        try:
            lease = await locks.acquire(_LOCK, owner=self._session.worker, lease_for=_LOCK_FOR)
            if lease is None:
                return 0
        except StorageError as error:
            # The lock saves work; every step is safe without it.
            log.debug("pruning without the lock: %s", error)
        try:
            return await self._prune_all(batch, lease)
        finally:
            if lease is not None:
                await self._unlock(lease)

    async def _prune_all(self, batch: int, lease: Lease | None) -> int:
        total = 0
        for kind in RecordKind:
            now = await self._session.durable_time.now()
            query = Query(kind=kind, where=[("expires_at", "<=", now)])
            total += await self._delete(query, batch, lease)
        async for rule, kind, namespace in self._ruled():
            if rule.keep_for is not None:
                query = await self._outlived(kind, namespace, rule.keep_for)
                total += await self._delete(query, batch, lease)
            if rule.keep is not None:
                total += await self._trim(kind, namespace, rule.keep, batch, lease)
        return total

    async def _unlock(self, lease: Lease) -> None:
        try:
            await self._session.hot.locks.release(lease)
        except StorageError as error:
            log.debug("the lock of pruning will lapse: %s", error)

    async def _delete(self, query: Query, batch: int, lease: Lease | None) -> int:
        total = 0
        while True:
            gone = await self._session.durable.prune(query, limit=batch)
            total += gone
            if gone < batch:
                return total
            await self._keep_lock(lease)

    async def _keep_lock(self, lease: Lease | None) -> None:
        if lease is None:
            return
        try:
            await self._session.hot.locks.renew(lease, lease_for=_LOCK_FOR)
        except StorageError as error:
            log.debug("the lock of pruning will lapse: %s", error)

    async def _trim(
        self, kind: RecordKind, namespace: str, keep: int, batch: int, lease: Lease | None
    ) -> int:
        """
        Delete the oldest beyond *keep*, a page at a time.

        The page is read first and counted after: who deletes or expires in between
        makes the count smaller, so at worst too few are deleted, never too many.
        """
        total = 0
        while True:
            page = await self._oldest(kind, namespace, min(batch, _PAGE), None)
            there = await self._session.durable.count(_ended(kind, namespace))
            surplus = min(there - keep, len(page.items))
            if surplus <= 0:
                return total
            gone = 0
            for query in _up_to(kind, namespace, page.items[surplus - 1]):
                gone += await self._delete(query, batch, lease)
            total += gone
            if not gone:
                return total
            await self._keep_lock(lease)

    async def _oldest(self, kind: RecordKind, namespace: str, limit: int, after: str | None) -> Any:
        at = RULED[kind].at
        query = attrs.evolve(
            _ended(kind, namespace),
            order_by=[(at, "asc")],
            limit=limit,
            after=after,
            fields=(at,),
        )
        return await self._session.durable.query(query)

    async def _outlived(self, kind: RecordKind, namespace: str, keep_for: float) -> Query:
        now = await self._session.durable_time.now()
        edge = now - round(keep_for * 1000)
        return _ended(kind, namespace, (RULED[kind].at, "<=", edge))

    async def _ruled(self) -> AsyncIterator[tuple[Rule, RecordKind, str]]:
        """Give each namespace that a rule is about, with the most exact one."""
        rules = await self.rules()
        for kind in RULED:
            mine = [rule for rule in rules if rule.kind == kind]
            if not mine:
                continue
            for namespace in await self._namespaces(kind):
                rule = _most_exact(mine, namespace)
                if rule is not None and not await self._is_read(kind, namespace):
                    yield rule, kind, namespace

    async def _namespaces(self, kind: RecordKind) -> list[str]:
        found: dict[str, int] = await self._session.durable.count(Query(kind=kind), by="namespace")
        return sorted(found)

    async def _is_read(self, kind: RecordKind, namespace: str) -> bool:
        """
        Say whether a group is still reading a topic's log from its beginning.

        Deliveries carry their message, so the log is needed for nothing else.
        """
        if kind is not RecordKind.MESSAGE:
            return False
        groups = _GROUPS + namespace[len(_MESSAGES) :]
        query = Query(namespace=groups, where=[("caughtUp", "=", False)])
        return bool(await self._session.durable.count(query))

    # --- preview ---

    async def preview(self) -> list[Prunable]:
        """
        Say what `prune` would delete now, and delete nothing.

        Raises:
            CapabilityError: The durable backend cannot tell.
        """
        found: dict[tuple[str, str], tuple[int, int]] = {}
        now = await self._session.durable_time.now()
        for kind in RecordKind:
            for namespace, amount in (await self._expired(kind, now)).items():
                found[kind, namespace] = amount
        async for rule, kind, namespace in self._ruled():
            count, size = await self._beyond(rule, kind, namespace, now)
            known = found.get((kind, namespace), (0, 0))
            found[kind, namespace] = (known[0] + count, known[1] + size)
        return [
            Prunable(str(kind), namespace, count, size)
            for (kind, namespace), (count, size) in sorted(found.items())
            if count
        ]

    async def _expired(self, kind: RecordKind, now: int) -> dict[str, tuple[int, int]]:
        """Give what has expired of a kind, by namespace."""
        durable = self._session.durable
        past = [("expires_at", "<=", now)]
        total, size = await durable.prunable(Query(kind=kind, where=past))
        found: dict[str, tuple[int, int]] = {}
        if not total:
            return found
        for namespace in await self._namespaces(kind):
            amount = await durable.prunable(Query(namespace=namespace, where=past))
            found[namespace] = amount
            total -= amount[0]
            size -= amount[1]
        if total > 0:
            # No read names a namespace whose records have all expired.
            found[""] = (total, max(0, size))
        return found

    async def _beyond(
        self, rule: Rule, kind: RecordKind, namespace: str, now: int
    ) -> tuple[int, int]:
        """Give what a rule deletes of a namespace beside what has expired."""
        queries: list[Query] = []
        if rule.keep_for is not None:
            queries = [await self._outlived(kind, namespace, rule.keep_for)]
        if rule.keep is not None:
            last = await self._last_surplus(kind, namespace, rule.keep)
            if last is not None and not _within(queries, kind, last):
                # The older limit is inside the younger one.
                queries = _up_to(kind, namespace, last)
        count = size = 0
        for query in queries:
            both = await self._session.durable.prunable(query)
            gone = await self._session.durable.prunable(_also_expired(query, now))
            count += both[0] - gone[0]
            size += both[1] - gone[1]
        return count, size

    async def _last_surplus(self, kind: RecordKind, namespace: str, keep: int) -> Record | None:
        """Give the youngest record beyond the newest *keep*, or None."""
        surplus = await self._session.durable.count(_ended(kind, namespace)) - keep
        after: str | None = None
        while surplus > 0:
            page = await self._oldest(kind, namespace, min(surplus, _PAGE), after)
            surplus -= len(page.items)
            after = page.next
            if page.items and (surplus <= 0 or after is None):
                last: Record = page.items[-1]
                return last
            if after is None:
                break
        return None


def _rule_id(kind: str, namespace: str) -> str:
    made = f"{kind}:{namespace}"
    if len(made) <= MAX_NAME_CHARS and len(made.encode()) <= MAX_NAME_BYTES:
        return made
    # No kind begins with a hash, so this meets no other rule's id.
    return f"#{kind}:{hashlib.sha256(namespace.encode()).hexdigest()}"


def _ended(kind: RecordKind, namespace: str, *more: tuple[str, str, Any]) -> Query:
    """Build the query for what has ended, and has an instant to show it."""
    ended = RULED[kind]
    where: list[tuple[str, str, Any]] = [(ended.at, ">=", 0)]
    if ended.statuses:
        where.append(("status", "in", list(ended.statuses)))
    return Query(namespace=namespace, where=[*where, *more])


def _up_to(kind: RecordKind, namespace: str, last: Record) -> list[Query]:
    """Build the queries for everything up to *last*, in order of end, then id."""
    at = RULED[kind].at
    edge = last.field(at)
    return [
        _ended(kind, namespace, (at, "<", edge)),
        _ended(kind, namespace, (at, "=", edge), ("id", "<=", last.id)),
    ]


def _within(queries: Iterable[Query], kind: RecordKind, last: Record) -> bool:
    """Say whether an age limit deletes *last* as well."""
    at = RULED[kind].at
    return any(
        last.field(at) <= value
        for query in queries
        for name, operator, value in query.where
        if name == at and operator == "<="
    )


def _also_expired(query: Query, now: int) -> Query:
    return attrs.evolve(query, where=[*query.where, ("expires_at", "<=", now)])


def _most_exact(rules: Iterable[Rule], namespace: str) -> Rule | None:
    """Give the rule for a namespace: a whole name first, then the longest beginning."""
    fitting = [rule for rule in rules if rule.covers(namespace)]
    if not fitting:
        return None
    return max(fitting, key=lambda rule: (not rule.namespace.endswith("*"), len(rule.namespace)))


def check_rule(rule: Rule) -> Rule:
    """
    Give a rule back if it is legal.

    Raises:
        InvalidValueError: It is not.
    """
    check_target(rule.kind, rule.namespace)
    if rule.keep_for is None and rule.keep is None:
        raise InvalidValueError("keep_for", "or keep must be given; unset a rule to be without it")
    if rule.keep_for is not None:
        seconds("keep_for", rule.keep_for)
    if rule.keep is not None and (type(rule.keep) is not int or rule.keep < 0):
        raise InvalidValueError("keep", f"must be an int of at least 0, not {rule.keep!r}")
    return rule


def check_target(kind: object, namespace: object) -> None:
    """
    Refuse a kind or a pattern of namespaces that no rule can be about.

    Raises:
        InvalidValueError: It is such a one.
    """
    if kind not in {str(known) for known in RULED}:
        reason = f"{kind!r} is none of {', '.join(sorted(RULED))}"
        raise InvalidValueError("kind", reason)
    check_namespace(namespace)
    if namespace != "*" and classify_namespace(str(namespace).removesuffix("*")) != kind:
        reason = f"{namespace!r} holds no records of the kind {kind}"
        raise InvalidValueError("namespace", reason)
