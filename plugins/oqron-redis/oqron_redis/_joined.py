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
    Filled,
    Form,
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
from oqron_redis._items import Encoder
from oqron_redis._prepared import MARK_MS, ClaimCall, NewJobs, PreparedMark
from oqron_redis._session import Session, flags
from oqron_redis._writes import STEP, Batch, check_atomic, conflict_of, grouped, steps_of


__all__ = ["RedisJoinedPlanes"]

_MARK_MOST: Final = 3_600_000
"""A claim is asked after for as long as its leases last, but no longer than this."""
_UNSURE: Final = 10_000
_FORGET: Final = 8
_MOST: Final = 1000
_PREPARED: Final = 256
_CALLS: Final = 64
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
        "_forms",
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
        self._forms: dict[tuple[str, str, Form], NewJobs] = {}
        self._marks: dict[Mark, PreparedMark] = {}
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
        known = self._new_jobs(queue, inserts, entries)
        if known is not None:
            added = await self._add_new(known, inserts, entries, token)
            if added is not None:
                return added
        nothing = session.keys.durable_nothing
        keys = session.keys.queue(queue)
        places = publish_keys(session, keys)
        head = publish_head(session, keys)
        batches = [Batch(self._encoder, step, ()) for step in steps_of(self._encoder, inserts)]
        # All are built before any is sent, so a refusal comes before any write.
        calls = [batch.call(nothing, atomic=False) for batch in batches]
        self._check_order()
        futures: list[asyncio.Future[Any]] = []
        marks: list[bytes] = []
        start = 0
        for batch, (records, arguments) in zip(batches, calls, strict=True):
            part = entries[start : start + batch.size]
            start += batch.size
            marks.append(session.keys.added(f"{token}:{start}"))
            spent = self._forgotten()
            words = [*arguments, *head, *entry_words(part), len(part), MARK_MS, len(spent)]
            # All are sent before anybody else has a turn: what comes later is behind them.
            futures.append(session.run("add", [*records, *places, marks[-1], *spent], words))
        answers = await self._answers(futures, marks)
        self._spend(marks)
        return [
            result
            for batch, answer in zip(batches, answers, strict=True)
            for result in batch.results(answer)
        ]

    def _check_order(self) -> None:
        for future in self._under_way:
            if _has_failed(future):
                # Whoever made that call will learn of it in a moment, and try again; whoever
                # was cancelled will not.
                msg = "Redis was lost with jobs under way that come before these"
                raise UnavailableError(msg)

    async def _answers(
        self, futures: Sequence[asyncio.Future[Any]], marks: Sequence[bytes]
    ) -> list[Any]:
        """Give the answers to what was sent under *marks*, or doubt these."""
        self._under_way.update(futures)
        try:
            return await self._session.gather(futures)
        except BaseException:
            self._doubt(marks)
            raise
        finally:
            self._under_way.difference_update(futures)

    def _new_jobs(
        self, queue: str, inserts: Sequence[Insert], entries: Sequence[Entry]
    ) -> NewJobs | None:
        """Give what is known of inserts of one form, if all their entries are due at once."""
        first: Any = inserts[0]
        if len(inserts) > STEP or type(first.value) is not Filled:
            return None
        form, namespace = first.value.form, first.namespace
        for insert, entry in zip(inserts, entries, strict=True):
            value: Any = insert.value
            if (
                type(value) is not Filled
                or value.form is not form
                or insert.namespace != namespace
                or insert.expires_at is not None
                or entry.due_at is not None
                or entry.id != insert.id
            ):
                return None
        place = (queue, namespace, form)
        found = self._forms.get(place)
        if found is None:
            if len(self._forms) >= _PREPARED:
                self._forms.clear()
            found = NewJobs(self._session, self._encoder, queue, namespace, form)
            self._forms[place] = found
        if not found.is_plain or len({insert.id for insert in inserts}) < len(inserts):
            return None
        return found

    async def _add_new(
        self, known: NewJobs, inserts: Sequence[Insert], entries: Sequence[Entry], token: str
    ) -> list[WriteResult] | None:
        """Add what is new; None where something of it is there, and nothing was done."""
        mark = self._session.keys.added(f"{token}:{len(inserts)}")
        call = known.call(inserts, entries, mark)
        if call is None:
            return None
        keys, words = call
        self._check_order()
        spent = self._forgotten()
        future = self._session.run("add_new", [*keys, *spent], words)
        (answer,) = await self._answers((future,), (mark,))
        if answer is None:
            # Nor were those forgotten.
            self._spent.extend(spent)
            return None
        self._spend((mark,))
        return known.results(inserts, answer)

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
        prepared = self._prepared(mark)
        try:
            known = prepared.calls.get((queue, owner, lease_for, limit, order))
        except TypeError:
            known = None
        # What cannot be looked up is not legal, nor is what only equals a number.
        if known is None or type(limit) is not int or type(lease_for) is bool:
            known = self._claim_of(prepared, queue, owner, lease_for, limit, order)
        place = session.keys.taken(names)
        spent = self._forgotten()
        places = (*known.keys, place, *prepared.indexes, *spent)
        again = int(place in self._unsure)
        rest = (known.known_for, again, len(spent), b'"' + names.encode(), *prepared.words)

        def ask(now: int) -> asyncio.Future[Any]:
            return self._hot.run("take", places, (*known.words, now + known.patience, *rest))

        # It is on its way before anybody waits for it.
        coming = ask(now)
        over = limit == 0
        taken = partial(self._taken, coming, ask, prepared, queue, owner, place, names, over)
        return _Answer(coming, taken)

    def _claim_of(
        self,
        prepared: PreparedMark,
        queue: str,
        owner: str,
        lease_for: float,
        limit: int,
        order: Order,
    ) -> ClaimCall:
        check_name("queue", queue)
        check_name("owner", owner)
        lease = lease_ms(lease_for)
        if check_limit(limit) > _MOST:
            raise InvalidValueError("limit", f"must be at most {_MOST}")
        words = claim_words(limit, lease, owner, check_order(order))
        session = self._session
        patience = round(session.store.settings.timeout * 1000)
        known_for = max(MARK_MS, min(lease, _MARK_MOST)) + MARK_MS
        found = ClaimCall(claim_keys(session.keys.queue(queue)), words, patience, known_for)
        if len(prepared.calls) >= _CALLS:
            prepared.calls.clear()
        prepared.calls[queue, owner, lease_for, limit, order] = found
        return found

    async def _taken(
        self,
        coming: asyncio.Future[Any],
        ask: Callable[[int], asyncio.Future[Any]],
        prepared: PreparedMark,
        queue: str,
        owner: str,
        place: bytes,
        names: str,
        over: bool,  # noqa: FBT001 - whether nobody will ask again
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
        if over:
            self._unsure.pop(place, None)
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

    def _prepared(self, mark: Mark) -> PreparedMark:
        found = self._marks.get(mark)
        if found is None:
            if len(self._marks) >= _PREPARED:
                self._marks.clear()
            found = self._marks[mark] = PreparedMark(self._encoder, mark)
        return found

    async def _as_they_are(
        self, prepared: PreparedMark, leases: Sequence[Lease], names: Sequence[str]
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

    __slots__ = ("_coming", "_taken")

    def __init__(
        self, coming: asyncio.Future[Any], taken: Callable[[], Coroutine[Any, Any, Taken]]
    ) -> None:
        self._coming: asyncio.Future[Any] | None = coming
        self._taken = taken

    def __await__(self) -> Generator[Any, Any, Taken]:
        self._coming = None
        return self._taken().__await__()

    def __del__(self) -> None:
        coming = self._coming
        if coming is not None and not coming.get_loop().is_closed():
            # Nobody will ever hear of its failure, and nobody has to.
            coming.add_done_callback(_has_failed)


def _check_guards(expect: Mapping[str, Any]) -> None:
    for name, value in expect.items():
        if isinstance(value, (list, dict, Json)):
            raise InvalidValueError(f"expect.{name}", "must be no list and no object here")


def _has_failed(future: asyncio.Future[Any]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is not None
