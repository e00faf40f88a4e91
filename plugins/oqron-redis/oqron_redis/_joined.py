"""Steps over both planes at once, where one Redis holds them."""

from __future__ import annotations

import asyncio

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, final

from oqron_core.exceptions import InvalidValueError, UnavailableError
from oqron_core.planes import (
    Delete,
    Entry,
    Insert,
    JoinedPlanes,
    Json,
    Lease,
    Mark,
    Order,
    Patch,
    Record,
    Settled,
    Taken,
    Write,
    WriteResult,
    check_entries,
    check_limit,
    check_name,
    check_order,
    lease_ms,
)
from oqron_redis._broker import (
    claim_keys,
    claim_words,
    entry_words,
    lease_words,
    leases_of,
    publish_head,
    publish_keys,
    settle_keys,
)
from oqron_redis._items import Encoder, Space
from oqron_redis._records import record_from, stored_of
from oqron_redis._session import Session, flags
from oqron_redis._writes import Batch, check_atomic, conflict_of, grouped, steps_of


__all__ = ["RedisJoinedPlanes"]

_MARK_MS: Final = 60_000
"""How long a call is known to have been done: longer than anybody tries again."""
_MARK_MOST: Final = 3_600_000
"""A claim is asked after for as long as its leases last, but no longer than this."""
_UNSURE: Final = 10_000
_FORGET: Final = 8
_MOST: Final = 1000
_PREPARED: Final = 256
_TAKEN_NOW: Final = 3
"""Parts of the answer to a claim that took something itself."""

Get: TypeAlias = Callable[[str, Sequence[str]], Awaitable[Sequence[Record | None]]]


@final
class RedisJoinedPlanes(JoinedPlanes):
    """
    Both planes of a scope on one server that is no cluster.

    Args:
        session: The durable plane's.
        hot: The hot plane's: whoever claims does not wait behind history.
        encoder: The durable plane's.
        get: Reads records.
    """

    __slots__ = (
        "_encoder",
        "_get",
        "_hot",
        "_marks",
        "_session",
        "_spent",
        "_under_way",
        "_unsure",
    )

    def __init__(self, session: Session, hot: Session, encoder: Encoder, get: Get) -> None:
        self._session = session
        self._hot = hot
        self._encoder = encoder
        self._get = get
        self._marks: dict[Mark, _Prepared] = {}
        self._under_way: set[asyncio.Future[Any]] = set()
        # Of calls that were answered; the next one has them forgotten.
        self._spent: deque[bytes] = deque()
        # Of calls that were not: one of them may be on its way for long, so what they
        # did is known until it expires.
        self._unsure: dict[bytes, None] = {}

    async def add(
        self, queue: str, inserts: Sequence[Insert], entries: Sequence[Entry], *, token: str
    ) -> Sequence[WriteResult]:
        session = self._session
        session.check_open()
        check_entries(queue, entries)
        if not inserts:
            return []
        nothing = session.keys.durable_nothing
        keys = session.keys.queue(queue)
        places = publish_keys(session, keys)
        head = publish_head(session, keys)
        batches = [Batch(self._encoder, step, ()) for step in steps_of(self._encoder, inserts)]
        # All are built before any is sent, so a refusal comes before any write.
        calls = [batch.call(nothing, atomic=False) for batch in batches]
        if any(map(_has_failed, self._under_way)):
            # Whoever made that call will learn of it in a moment, and try again.
            msg = "Redis was lost with jobs under way that come before these"
            raise UnavailableError(msg)
        futures: list[asyncio.Future[Any]] = []
        marks: list[bytes] = []
        start = 0
        for batch, (records, arguments) in zip(batches, calls, strict=True):
            part = entries[start : start + batch.size]
            start += batch.size
            marks.append(session.keys.added(f"{token}:{start}"))
            spent = self._forgotten()
            words = [*arguments, *head, *entry_words(part), len(part), _MARK_MS, len(spent)]
            # All are sent before anybody else has a turn: what comes later is behind them.
            futures.append(session.run("add", [*records, *places, marks[-1], *spent], words))
        self._under_way.update(futures)
        try:
            answers = await session.gather(futures)
        except BaseException:
            self._doubt(marks)
            raise
        finally:
            self._under_way.difference_update(futures)
        self._spend(marks)
        return [
            result
            for batch, answer in zip(batches, answers, strict=True)
            for result in batch.results(answer)
        ]

    def claim(
        self,
        queue: str,
        mark: Mark,
        *,
        owner: str,
        lease_for: float,
        limit: int,
        order: Order,
        names: str,
        now: int,
    ) -> Awaitable[Taken]:
        session = self._session
        session.check_open()
        check_name("queue", queue)
        check_name("owner", owner)
        lease = lease_ms(lease_for)
        if check_limit(limit) > _MOST:
            raise InvalidValueError("limit", f"must be at most {_MOST}")
        prepared = self._prepared(mark)
        keys = session.keys.queue(queue)
        place = session.keys.taken(names)
        spent = self._forgotten()
        places = (*claim_keys(keys), place, *prepared.space.keys, *spent)
        claim = claim_words(limit, lease, owner, check_order(order))
        patience = round(session.store.settings.timeout * 1000)
        known_for = max(_MARK_MS, min(lease, _MARK_MOST)) + _MARK_MS
        again = int(place in self._unsure)
        rest = (known_for, again, len(spent), b'"' + names.encode(), *prepared.words)

        def ask(now: int) -> asyncio.Future[Any]:
            return self._hot.run("take", places, (*claim, now + patience, *rest))

        # It is on its way before anybody waits for it, and perhaps nobody ever will.
        coming = ask(now)
        coming.add_done_callback(_has_failed)
        return _Answer(partial(self._taken, coming, ask, prepared, queue, owner, place, names))

    async def _taken(
        self,
        coming: asyncio.Future[Any],
        ask: Callable[[int], asyncio.Future[Any]],
        prepared: _Prepared,
        queue: str,
        owner: str,
        place: bytes,
        names: str,
    ) -> Taken:
        """Give what a claim has taken."""
        try:
            answer = await coming
            if len(answer) == 1:
                # It is waited for all the same: the clock had moved.
                answer = await ask(int(answer[0]))
        except BaseException:
            self._doubt([place])
            raise
        if len(answer) == 1:
            msg = "Redis was too busy to be asked in time"
            raise UnavailableError(msg)
        leases = leases_of(queue, owner, answer[1])
        given = [f"{names}{number:04x}" for number in range(len(leases))]
        if len(answer) == _TAKEN_NOW:
            results = [prepared.result(*pair) for pair in zip(leases, answer[2][1:], strict=True)]
            if leases:
                self._spend([place])
        else:
            results = await self._as_they_are(prepared, leases, given)
        return Taken(int(answer[0]), leases, given, results)

    async def settle(
        self, queue: str, writes: Sequence[Write], leases: Sequence[Lease], *, atomic: bool = False
    ) -> Settled:
        session = self._session
        session.check_open()
        check_name("queue", queue)
        if not writes:
            return Settled([], [])
        for write in writes:
            if type(write) is Patch or type(write) is Delete:
                _check_guards(write.expect)
        if atomic:
            check_atomic(len(writes))
            steps = [grouped([self._encoder.encode(write) for write in writes])]
        else:
            steps = [*steps_of(self._encoder, writes)]
        nothing = session.keys.durable_nothing
        places = settle_keys(session.keys.queue(queue))
        batches = [Batch(self._encoder, step, ()) for step in steps]
        # All are built before any is sent, so a refusal comes before any write.
        # Also when memory is short: who finishes work must be able to.
        calls = [batch.call(nothing, atomic=atomic, spare=True) for batch in batches]
        futures: list[asyncio.Future[Any]] = []
        start = 0
        for batch, (records, arguments) in zip(batches, calls, strict=True):
            part = leases[start : start + batch.size]
            start += batch.size
            words = [*arguments, *lease_words(part), len(part)]
            futures.append(self._hot.run("finish", [*records, *places], words))
        answers = await session.gather(futures)
        results: list[WriteResult] = []
        acknowledged: list[bool] = []
        for batch, answer in zip(batches, answers, strict=True):
            if len(answer) == 1:
                index = int(answer[0][1])
                raise conflict_of(writes[index], index)
            results += batch.results(answer[0])
            acknowledged += flags(answer[1])
        return Settled(results, acknowledged)

    def _doubt(self, marks: Sequence[bytes]) -> None:
        if len(self._unsure) >= _UNSURE:
            self._unsure.clear()
        self._unsure.update(dict.fromkeys(marks))

    def _spend(self, marks: Sequence[bytes]) -> None:
        """Have marks forgotten, but those of calls that had no answer before."""
        self._spent.extend([mark for mark in marks if mark not in self._unsure])

    def _forgotten(self) -> list[bytes]:
        """Give marks of calls that were answered, for the next call to take away."""
        spent = self._spent
        return [spent.popleft() for _ in range(min(_FORGET, len(spent)))]

    def _prepared(self, mark: Mark) -> _Prepared:
        found = self._marks.get(mark)
        if found is None:
            if len(self._marks) >= _PREPARED:
                self._marks.clear()
            found = self._marks[mark] = _Prepared(self._encoder, mark)
        return found

    async def _as_they_are(
        self, prepared: _Prepared, leases: Sequence[Lease], names: Sequence[str]
    ) -> list[WriteResult]:
        """Give what became of marks that an unanswered call has made."""
        mark = prepared.mark
        records = await self._get(mark.namespace, [lease.id for lease in leases])
        guarded = {name: mark.set[name] for name in mark.expect if name in mark.set}
        results: list[WriteResult] = []
        for lease, record, name in zip(leases, records, names, strict=True):
            shown = {**guarded, mark.name_field: name, mark.token_field: lease.token}
            holds = record is not None and all(
                record.field(field) == value for field, value in shown.items()
            )
            results.append(WriteResult(holds, record))
        return results


@final
class _Answer(Awaitable[Taken]):
    """What waits for the answer to a call; unlike a coroutine it need not be awaited."""

    __slots__ = ("_taken",)

    def __init__(self, taken: Callable[[], Coroutine[Any, Any, Taken]]) -> None:
        self._taken = taken

    def __await__(self) -> Generator[Any, Any, Taken]:
        return self._taken().__await__()


@final
class _Prepared:
    """
    What is sent of a mark, and how its answers are read.

    Raises:
        InvalidValueError: It sets what is not portable, or guards a list or an object.
    """

    __slots__ = ("mark", "space", "words")

    def __init__(self, encoder: Encoder, mark: Mark) -> None:
        self.mark = mark
        self.space: Space = encoder.space(mark.namespace)
        instants = dict.fromkeys(mark.now_fields, 0)
        # Token and name come last: the script puts them there.
        fields = {**mark.set, **instants, mark.token_field: 0, mark.name_field: ""}
        # A patch of any record says how all of them are sent.
        item = encoder.encode(
            Patch(mark.namespace, "any", set=fields, increment=mark.increment, expect=mark.expect)
        )
        if item.guarded:
            raise InvalidValueError("mark.expect", "must not guard a list or an object")
        _, _, *lists = item.group
        first = 2 + len(mark.expect)
        columns = {name: first + place for place, name in enumerate(fields)}
        set_by_script = {columns[mark.token_field], columns[mark.name_field]}
        set_by_script.update(columns[name] for name in instants)
        shared = [
            (place, text)
            for place, text in enumerate(item.arguments, 1)
            if place not in set_by_script
        ]
        named: list[bytes | int] = []
        for names in lists:
            named += (len(names), *names)
        self.words: tuple[bytes | int, ...] = (
            self.space.prefix,
            len(instants),
            *(columns[name] for name in instants),
            1,
            *self.space.head,
            *named,
            len(shared),
            *(word for pair in shared for word in pair),
        )

    def result(self, lease: Lease, reply: Any) -> WriteResult:
        """Read what became of a record; see ``lua/write.lua``."""
        if type(reply) is int:
            return WriteResult(applied=False)
        namespace = self.mark.namespace
        record = record_from(namespace, lease.id, reply[1], stored_of(reply[2])[1], self.space.kind)
        return WriteResult(reply[0] == 1, record)


def _check_guards(expect: Mapping[str, Any]) -> None:
    for name, value in expect.items():
        if isinstance(value, (list, dict, Json)):
            raise InvalidValueError(f"expect.{name}", "must be no list and no object here")


def _has_failed(future: asyncio.Future[Any]) -> bool:
    return future.done() and (future.cancelled() or future.exception() is not None)
