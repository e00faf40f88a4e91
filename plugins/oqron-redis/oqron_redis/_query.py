"""Pages, counts and pruning: which index serves a query, and what is filtered."""

from __future__ import annotations

import heapq

from collections.abc import AsyncIterator, Callable, Sequence
from functools import cmp_to_key
from typing import Any, Final, Literal, final

import attrs
import orjson

from oqron_core.exceptions import CorruptRecordError
from oqron_core.planes import (
    LAST,
    Json,
    Page,
    Query,
    Record,
    canonical,
    decode_cursor,
    encode_cursor,
    rank,
)
from oqron_core.taxonomy import classify_namespace
from oqron_redis._items import Encoder
from oqron_redis._records import (
    ODD,
    ODD_TIME,
    Index,
    equal_part,
    indexes_of,
    names_of,
    read_meta,
    record_from,
    stored_of,
    texts_of,
    time_part,
    unpacked,
)
from oqron_redis._session import Session, chunks


__all__ = ["Reader"]

_STEP: Final = 250
_WHOLE_STEP: Final = 100
_MIN_STEP: Final = 20
_COLUMNS: Final = frozenset({"id", "namespace", "inserted_at", "expires_at"})
_ORDERED: Final = frozenset({"<", "<=", ">", ">="})
_NO_LIMIT: Final = 2**63 - 1
_EXPIRED_STEP: Final = 1000


# --- rows -------------------------------------------------------------------------


@final
class Row:
    """A record as far as a query looks at it."""

    __slots__ = ("expires_at", "id", "inserted_at", "meta", "namespace", "texts")

    def __init__(self, namespace: str, id: str, meta: bytes, texts: dict[bytes, bytes]) -> None:  # noqa: A002 - the column's name
        self.namespace = namespace
        self.id = id
        self.meta = meta
        self.inserted_at, self.expires_at = read_meta(meta)
        self.texts = texts

    def column(self, name: str) -> Any:
        """Give a column's value."""
        return getattr(self, name)

    def value(self, name: str) -> Any:
        """Give a column's or a field's value; a list or object as `Json`, absent None."""
        if name in _COLUMNS:
            return self.column(name)
        text = self.texts.get(name.encode())
        if text is None:
            return None
        if text[:1] in {b"[", b"{"}:
            return Json(text)
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise CorruptRecordError(f"{self.namespace}/{self.id}") from error

    def text(self, name: str) -> bytes | None:
        """Give a column's or a field's canonical text, or None where it is absent."""
        if name in _COLUMNS:
            value = self.column(name)
            return None if value is None else canonical(value)
        text = self.texts.get(name.encode())
        if text is not None and text[:1] in {b"[", b"{"}:
            return canonical(Json(text))
        return text


Test = Callable[[Row], bool]


def _test(name: str, operator: str, value: Any) -> Test:
    if operator == "=" and name == "expires_at" and value is None:
        return lambda row: row.expires_at is None
    if operator == "=":
        wanted = canonical(value)
        return lambda row: row.text(name) == wanted
    if operator == "!=":
        refused = canonical(value)
        return lambda row: row.text(name) not in {None, refused}
    if operator == "in":
        choices = frozenset(canonical(item) for item in value)
        return lambda row: row.text(name) in choices
    compare = _COMPARE[operator]
    numeric = type(value) is not str

    def holds(row: Row) -> bool:
        found = row.value(name)
        kind = type(found)
        fits = kind in {int, float} if numeric else kind is str
        return fits and compare(found, value)

    return holds


_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": lambda found, value: found < value,
    "<=": lambda found, value: found <= value,
    ">": lambda found, value: found > value,
    ">=": lambda found, value: found >= value,
}


# --- order ------------------------------------------------------------------------


def _compare_key(query: Query) -> Callable[[Any], Any]:
    """Give a key over ``(order values, namespace, id)`` that sorts as *query* asks."""
    directions = [direction for _, direction in query.order_by]

    def compare(left: Any, right: Any) -> int:
        for direction, one, other in zip(directions, left[0], right[0], strict=True):
            a, b = rank(one), rank(other)
            if a == b:
                continue
            if a[0] == LAST or b[0] == LAST:
                return 1 if a[0] == LAST else -1
            less = a < b if direction == "asc" else b < a
            return -1 if less else 1
        a, b = left[1:], right[1:]
        return -1 if a < b else 1 if b < a else 0

    return cmp_to_key(compare)


def _place(query: Query, row: Row) -> tuple[list[Any], str, str]:
    return ([row.value(name) for name, _ in query.order_by], row.namespace, row.id)


# --- plans ------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Plan:
    """
    How the records of one namespace are walked.

    Attributes:
        index: The index.
        parts: Whether all of its parts are walked at once, by id.
        head: What every member starts with.
        low: The first member, as ZRANGEBYLEX takes it.
        high: The last one.
        reverse: Whether it is walked from its end.
        sorted: Whether the walk is in the order that the query asks for.
    """

    index: Index
    parts: bool = False
    head: bytes = b""
    low: bytes = b"-"
    high: bytes = b"+"
    reverse: bool = False
    sorted: bool = False


def _after_prefix(prefix: bytes) -> bytes:
    # Every prefix ends with NUL: what follows all its members has \1 in its place.
    return b"(" + prefix[:-1] + b"\1" if prefix else b"+"


def _range(head: bytes, first: bytes = b"", last: bytes | None = None) -> tuple[bytes, bytes]:
    low = b"[" + head + first if head or first else b"-"
    return low, _after_prefix(head) if last is None else last


def _part_of(query: Query, index: Index) -> bytes | None:
    """Give the part of *index* that holds all that *query* can match, or None."""
    for name, operator, value in query.where:
        if name == index.equal and operator == "=":
            part = equal_part(canonical(value))
            return part + b"\0"
    return None


def _time_bounds(query: Query, index: Index, head: bytes) -> tuple[bytes, bytes]:
    """Narrow a range by the conditions on the index's instant."""
    low, high = _range(head)
    for name, operator, value in query.where:
        if name != index.time or type(value) is not int or value < 0:
            continue
        part = time_part(b"%d" % value)
        if part == ODD_TIME:
            continue
        # Later instants come first.
        if operator in {">=", ">", "="}:
            high = min(high, b"(" + head + part + b"\1", key=_bound)
        if operator in {"<=", "<", "="}:
            low = max(low, b"[" + head + part + b"\0", key=_bound)
    return low, high


def _bound(bound: bytes) -> tuple[int, bytes]:
    if bound == b"-":
        return (0, b"")
    if bound == b"+":
        return (2, b"")
    return (1, bound[1:])


# --- the reader --------------------------------------------------------------------


@final
class Reader:
    """Reads pages, counts and prunes in one scope."""

    def __init__(self, session: Session, encoder: Encoder) -> None:
        self._session = session
        self._encoder = encoder

    # --- pages ------------------------------------------------------------------

    async def query(self, query: Query) -> Page[Record]:
        """Read one page; see `DurablePlane.query`."""
        cursor = decode_cursor(query)
        key = _compare_key(query)
        namespaces = await self._namespaces(query)
        rows: list[Row] = []
        for namespace in namespaces:
            if not query.order_by:
                if cursor is not None and namespace < cursor[1]:
                    continue
                if len(rows) > query.limit:
                    break
            rows += await self._first(query, namespace, cursor, key)
            if query.order_by and len(namespaces) > 1:
                rows.sort(key=lambda row: key(_place(query, row)))
                del rows[query.limit + 1 :]
        more = len(rows) > query.limit
        del rows[query.limit :]
        if not more:
            return Page(await self._records(query, rows))
        values, namespace, id_ = _place(query, rows[-1])
        after = encode_cursor(query, values, namespace, id_)
        return Page(await self._records(query, rows), after)

    async def _namespaces(self, query: Query) -> list[str]:
        if query.namespace is not None:
            if query.kind is not None and classify_namespace(query.namespace) != query.kind:
                return []
            return [query.namespace]
        key = self._session.keys.namespaces(str(query.kind))
        names = await self._session.command(b"ZRANGE", key, 0, -1, key=key, again=True)
        return [name.decode() for name in names]

    async def _first(
        self,
        query: Query,
        namespace: str,
        cursor: Any,
        key: Callable[[Any], Any],
        tries: int = 5,
    ) -> list[Row]:
        """Give the first rows of a namespace behind the cursor, one more than the limit."""
        wanted = query.limit + 1
        plan = await self._plan(query, namespace, ordered=True)
        tests = [_test(*condition) for condition in query.where]
        after = None if cursor is None else key(tuple(cursor))
        rows: list[Row] = []
        names: tuple[str, ...] | None = _looked_at(query)
        if plan.sorted and query.fields is None:
            names = None
        elif plan.sorted:
            names = tuple(dict.fromkeys((*_looked_at(query), *(query.fields or ()))))
        start = self._resume(query, plan, namespace, cursor)
        by_id = plan.sorted and not plan.reverse and plan.index.time is None
        least, most = query.id_bounds() if by_id else ("", None)
        # A walk begins behind what it is told, and the first id is to be in it.
        before = least.encode(errors="surrogatepass")[:-1]
        if before:
            start = max(start, plan.head + before)
        async for found in self._walk(namespace, plan, names, start, wanted):
            for row in found:
                if not all(test(row) for test in tests):
                    continue
                if after is not None and not after < key(_place(query, row)):
                    continue
                rows.append(row)
            beyond = most is not None and found and found[-1].id > most
            if plan.sorted and (beyond or len(rows) >= wanted):
                return rows[:wanted]
            if not plan.sorted and len(rows) > 2 * wanted + _STEP:
                rows = heapq.nsmallest(wanted, rows, key=lambda row: key(_place(query, row)))
        if plan.sorted:
            return rows[:wanted]
        best = heapq.nsmallest(wanted, rows, key=lambda row: key(_place(query, row)))
        whole = await self._whole(query, namespace, best)
        if len(whole) < len(best) == wanted and tries:
            # Some were deleted or changed meanwhile, and others stand in their place.
            return await self._first(query, namespace, cursor, key, tries - 1)
        return whole

    async def _whole(self, query: Query, namespace: str, rows: list[Row]) -> list[Row]:
        """Read what a page shows of rows that were found by a few of their fields."""
        names = None if query.fields is None else tuple(query.fields)
        if names is not None and set(names) <= set(_looked_at(query)):
            return rows
        if names is not None:
            names = (*names, *(name for name in _looked_at(query) if name not in names))
        ids = [row.id for row in rows]
        found = await self._rows(namespace, ids, names)
        # One that was deleted meanwhile is not there; one that changed is as it was found.
        tests = [_test(*condition) for condition in query.where]
        return [row for row in found if row and all(test(row) for test in tests)]

    async def _records(self, query: Query, rows: Sequence[Row]) -> list[Record]:
        if query.fields is not None:
            names = names_of(tuple(query.fields))
            for row in rows:
                row.texts = {name: row.texts[name] for name in names if name in row.texts}
        return [record_from(row.namespace, row.id, row.meta, row.texts) for row in rows]

    # --- choosing an index ---------------------------------------------------------

    async def _plan(self, query: Query, namespace: str, *, ordered: bool) -> Plan:
        indexes = indexes_of(classify_namespace(namespace))
        order = tuple(query.order_by)
        if ordered and order in {(), (("id", "asc"),), (("id", "desc"),)}:
            reverse = order == (("id", "desc"),)
            return _by_id(query, indexes, reverse=reverse)
        timed = [index for index in indexes if index.time is not None]
        plain = _by_id(query, indexes, reverse=False, is_sorted=False)
        if not timed:
            return plain
        descending = ordered and order == ((timed[0].time, "desc"),)
        plans = []
        for index in timed:
            part = _part_of(query, index)
            if index.equal is not None and part is None:
                continue
            head = b"" if part is None else part
            low, high = _time_bounds(query, index, head)
            plans.append(Plan(index=index, head=head, low=low, high=high, sorted=descending))
        return await self._cheapest(namespace, plain, plans)

    async def _cheapest(self, namespace: str, plain: Plan, plans: list[Plan]) -> Plan:
        # An instant that is none (text, a fraction) has no place in an index by time:
        # while there is one, the order has to be made here.
        timed = plans[0].index
        odd = Plan(index=Index("t", None, timed.time), low=b"[!", high=b'("')
        _, counts = await self._count_ranges(namespace, [odd, *plans])
        by_count = sorted(zip(counts[1:], range(len(plans)), strict=True))
        if counts[0] == 0:
            return plans[by_count[0][1]]
        part = next((plan for plan in plans if plan.head), None)
        if part is None:
            return plain
        low, high = _range(part.head)
        return attrs.evolve(part, low=low, high=high, sorted=False)

    # --- walking -------------------------------------------------------------------

    def _resume(self, query: Query, plan: Plan, namespace: str, cursor: Any) -> bytes:
        """Give the member behind which a sorted walk goes on, or nothing."""
        if cursor is None or not plan.sorted:
            return b""
        values, cursor_namespace, cursor_id = cursor
        name: bytes = cursor_id.encode()
        if plan.index.time is not None:
            value = values[0]
            (text,) = texts_of({"after": value}, "query", _NO_LIMIT)
            part = time_part(text)
            if part == ODD_TIME:
                return b""
            # In another namespace, a tie stands wholly before or behind the cursor.
            if namespace == cursor_namespace:
                return plan.head + part + b"\0" + name
            if namespace < cursor_namespace:
                return plan.head + part + b"\1"
            return plan.head + part
        if namespace == cursor_namespace:
            return plan.head + name
        if not query.order_by:
            return b""
        # The same id in another namespace may stand behind the cursor.
        return plan.head + (name + b"\0" if plan.reverse else name[:-1])

    async def _walk(
        self,
        namespace: str,
        plan: Plan,
        names: Sequence[str] | None,
        start: bytes,
        wanted: int = _STEP,
        *,
        expired: bool = False,
    ) -> AsyncIterator[list[Row]]:
        """Give rows in the order of the plan, page by page; expired ones on request."""
        step = max(_MIN_STEP, min(wanted, _STEP))
        last = start
        while True:
            members = await self._members(namespace, plan, last, step)
            if not members:
                return
            ids = [_id_of(member).decode() for member in members]
            found = await self._rows(namespace, ids, names, expired=expired)
            rows = [row for row in found if row]
            ghosts = [
                (id_, member)
                for id_, member, row in zip(ids, members, found, strict=True)
                if row is None
            ]
            if ghosts:
                await self._mend(namespace, plan, ghosts)
            if plan.sorted and plan.index.time is not None:
                # Who has moved in the index meanwhile does not stand here any more.
                rows = [
                    row
                    for row, member in zip(found, members, strict=True)
                    if row and _stands(row, plan, member)
                ]
            yield rows
            if len(members) < step:
                return
            last = _id_of(members[-1]) if plan.parts else members[-1]
            step = _STEP

    async def _members(self, namespace: str, plan: Plan, last: bytes, step: int) -> list[bytes]:
        key = self._session.keys.index(plan.index.tag, namespace)
        direction = -1 if plan.reverse else 1
        if plan.parts:
            arguments = (last, step, direction)
            found = await self._session.run("walk_parts", (key,), arguments, again=True)
            # Parts are read in one step, so an id stands in one of them only.
            return sorted(found, key=_id_of, reverse=plan.reverse)[:step]
        low, high = plan.low, plan.high
        if last and plan.reverse:
            high = min(high, b"(" + last, key=_bound)
        elif last:
            low = max(low, b"(" + last, key=_bound)
        members = await self._session.run("walk", (key,), (low, high, step, direction), again=True)
        return list(members)

    async def _rows(
        self,
        namespace: str,
        ids: Sequence[str],
        names: Sequence[str] | None,
        *,
        expired: bool = False,
    ) -> list[Row | Literal[False] | None]:
        """Read rows: False where one has expired, None where there is none."""
        if not ids:
            return []
        prefix = self._session.keys.records(namespace)
        fields = None if names is None else names_of(tuple(names))
        head: tuple[bytes | int, ...] = (int(expired), -1)
        if fields is not None:
            head = (int(expired), len(fields), *fields)
        size = _STEP if fields is not None else _WHOLE_STEP
        calls = [([prefix + id_.encode() for id_ in step], head) for step in chunks(ids, size)]
        answers = await self._session.run_all("read", calls, again=True)
        flat = [reply for answer in answers for reply in answer]
        return [
            _row(namespace, id_, reply, fields) if reply else None if reply is None else False
            for id_, reply in zip(ids, flat, strict=True)
        ]

    async def _mend(self, namespace: str, plan: Plan, missing: Sequence[tuple[str, bytes]]) -> None:
        """Take ids out of an index that have no record, not even an expired one."""
        place = indexes_of(classify_namespace(namespace)).index(plan.index) + 1
        entries = [(id_, (1, place, member), b"", ()) for id_, member in missing]
        await self._erase(namespace, entries, ())

    async def _erase(
        self,
        namespace: str,
        entries: Sequence[tuple[str, tuple[bytes | int, ...], bytes, Sequence[bytes]]],
        guards: Sequence[bytes],
    ) -> int:
        """Delete records that are as they were seen: id, members, meta, guards."""
        if not entries:
            return 0
        space = self._encoder.space(namespace)
        calls = []
        for step in chunks(entries, _STEP):
            places = [space.prefix + id_.encode() for id_, *_ in step]
            arguments: list[bytes | int] = [len(step), 1, *space.head, len(guards), *guards]
            for _, members, meta, texts in step:
                arguments += (*members, meta, *texts)
            calls.append(self._session.run("erase", (*places, *space.keys), arguments))
        return sum(await self._session.gather(calls))

    # --- counting ------------------------------------------------------------------

    async def count(self, query: Query, by: str | None) -> Any:
        """Count; see `DurablePlane.count`."""
        namespaces = await self._namespaces(query)
        if by == "namespace":
            totals = {name: await self._total(query, name) for name in namespaces}
            return {name: total for name, total in totals.items() if total}
        if by is None:
            return sum([await self._total(query, name) for name in namespaces])
        Query(namespace="by", fields=(by,))  # refuses what is no field name
        counts: dict[str, int] = {}
        for namespace in namespaces:
            for value, count in (await self._by_field(query, namespace, by)).items():
                counts[value] = counts.get(value, 0) + count
        return {value: count for value, count in counts.items() if count}

    async def _total(self, query: Query, namespace: str) -> int:
        plan = self._exact_range(query, namespace)
        if plan is not None:
            expired, counts = await self._count_ranges(namespace, [plan])
            if expired == 0:
                return counts[0]
            return counts[0] - await self._count_expired(query, namespace)
        total = 0
        async for rows in self._matching(query, namespace, _asked(query)):
            total += len(rows)
        return total

    def _exact_range(self, query: Query, namespace: str) -> Plan | None:
        """Give a range that holds just what matches, or None."""
        indexes = indexes_of(classify_namespace(namespace))
        if not query.where:
            return Plan(index=indexes[0])
        if len(query.where) > 1:
            return None
        name, operator, value = query.where[0]
        if operator != "=":
            return None
        for index in indexes:
            if index.equal == name:
                part = equal_part(canonical(value))
                if part == ODD:
                    return None
                low, high = _range(part + b"\0")
                return Plan(index=index, low=low, high=high)
        return None

    async def _by_field(self, query: Query, namespace: str, by: str) -> dict[str, int]:
        counts: dict[str, int] = {}
        index = next(
            (one for one in indexes_of(classify_namespace(namespace)) if one.equal == by), None
        )
        if index is not None and not query.where:
            keys = self._session.keys
            places = (keys.index(index.tag, namespace), keys.expiry(namespace))
            expired, *flat = await self._session.run("count_parts", places, again=True)
            parts = dict(zip(flat[::2], flat[1::2], strict=True))
            # Texts that are too long for an index are counted one by one.
            if expired == 0 and ODD not in parts:
                for part, count in parts.items():
                    value = _string(part)
                    counts[value] = counts.get(value, 0) + count
                return counts
        async for rows in self._matching(query, namespace, (*_asked(query), by)):
            for row in rows:
                found = row.value(by)
                value = found if type(found) is str else ""
                counts[value] = counts.get(value, 0) + 1
        return counts

    async def _matching(
        self, query: Query, namespace: str, names: Sequence[str]
    ) -> AsyncIterator[list[Row]]:
        tests = [_test(*condition) for condition in query.where]
        plan = await self._plan(query, namespace, ordered=False)
        async for rows in self._walk(namespace, plan, tuple(dict.fromkeys(names)), b""):
            yield [row for row in rows if all(test(row) for test in tests)]

    async def _count_ranges(self, namespace: str, plans: Sequence[Plan]) -> tuple[int, list[int]]:
        keys = self._session.keys
        places = [keys.expiry(namespace)]
        bounds: list[bytes | int] = []
        for plan in plans:
            places.append(keys.index(plan.index.tag, namespace))
            bounds += (plan.low, plan.high)
        answer = await self._session.run("count_range", places, bounds, again=True)
        return answer[0], answer[1:]

    async def _count_expired(self, query: Query, namespace: str) -> int:
        tests = [_test(*condition) for condition in query.where]
        now = await self._session.now()
        total = 0
        async for rows in self._expired(query, namespace, now):
            total += sum(1 for row in rows if all(test(row) for test in tests))
        return total

    async def _expired(self, query: Query, namespace: str, until: int) -> AsyncIterator[list[Row]]:
        """Give what expired up to *until*, in that order; what is deleted moves nobody."""
        key = self._session.keys.expiry(namespace)
        names = _asked(query)
        skipped = 0
        while True:
            words = (b"ZRANGEBYSCORE", key, b"-inf", until, b"LIMIT", skipped, _EXPIRED_STEP)
            found = await self._session.command(*words, key=key, again=True)
            ids = [id_.decode() for id_ in found]
            rows = await self._rows(namespace, ids, names, expired=True)
            yield [
                row
                for row in rows
                if row and row.expires_at is not None and row.expires_at <= until
            ]
            if len(ids) < _EXPIRED_STEP:
                return
            skipped += len(ids)

    # --- pruning ---------------------------------------------------------------------

    async def prune(self, query: Query, limit: int) -> int:
        """Delete what matches; see `DurablePlane.prune`."""
        deleted = 0
        for namespace in await self._namespaces(query):
            deleted += await self._prune(query, namespace, limit - deleted)
            if deleted >= limit:
                break
        return deleted

    async def _prune(self, query: Query, namespace: str, limit: int) -> int:
        until = _until(query)
        if until is not None:
            return await self._prune_expired(query, namespace, limit, until)
        plan = await self._plan(query, namespace, ordered=False)
        deleted = 0
        walk = self._walk(namespace, plan, _asked(query), b"", limit, expired=True)
        async for rows in walk:
            deleted += await self._erase_matching(query, namespace, rows, limit - deleted)
            if deleted >= limit:
                break
        return deleted

    async def prunable(self, query: Query) -> tuple[int, int]:
        """Say what `prune` would delete; see `DurablePlane.prunable`."""
        tests = [_test(*condition) for condition in query.where]
        until = _until(query)
        count = size = 0
        for namespace in await self._namespaces(query):
            prefix = self._session.keys.records(namespace)
            if until is not None:
                pages = self._expired(query, namespace, until)
            else:
                plan = await self._plan(query, namespace, ordered=False)
                pages = self._walk(namespace, plan, _asked(query), b"", expired=True)
            async for rows in pages:
                doomed = [row for row in rows if all(test(row) for test in tests)]
                for step in chunks(doomed, _STEP):
                    if step:
                        places = [prefix + row.id.encode() for row in step]
                        there, taken = await self._session.run("sizes", places, again=True)
                        count, size = count + there, size + taken
        return count, size

    async def _prune_expired(self, query: Query, namespace: str, limit: int, until: int) -> int:
        key = self._session.keys.expiry(namespace)
        deleted = kept = 0
        while deleted < limit:
            words = (b"ZRANGEBYSCORE", key, b"-inf", until, b"LIMIT", kept, _EXPIRED_STEP)
            found = await self._session.command(*words, key=key, again=True)
            ids = [id_.decode() for id_ in found]
            rows = await self._rows(namespace, ids, _asked(query), expired=True)
            ghosts = [id_ for id_, row in zip(ids, rows, strict=True) if row is None]
            await self._erase(namespace, [(id_, (0,), b"", ()) for id_ in ghosts], ())
            gone = await self._erase_matching(
                query, namespace, [row for row in rows if row], limit - deleted
            )
            deleted += gone
            # What is left stands in front of the next page.
            kept += len(ids) - gone - len(ghosts)
            if len(ids) < _EXPIRED_STEP:
                break
        return deleted

    async def _erase_matching(
        self, query: Query, namespace: str, rows: Sequence[Row], limit: int
    ) -> int:
        tests = [_test(*condition) for condition in query.where]
        names = names_of(_asked(query))
        doomed = [row for row in rows if all(test(row) for test in tests)][:limit]
        entries = [
            (row.id, (0,), row.meta, [row.texts.get(name, b"") for name in names]) for row in doomed
        ]
        return await self._erase(namespace, entries, names)


def _id_of(member: bytes) -> bytes:
    return member.rpartition(b"\0")[2]


def _until(query: Query) -> int | None:
    """Give the instant up to which what matches has expired, or None."""
    until = [
        value
        for name, operator, value in query.where
        if name == "expires_at" and operator in {"<", "<=", "="} and type(value) is int
    ]
    return min(until, default=None)


def _stands(row: Row, plan: Plan, member: bytes) -> bool:
    here = time_part(row.texts.get((plan.index.time or "").encode()))
    return member.startswith(plan.head + here + b"\0")


def _looked_at(query: Query) -> tuple[str, ...]:
    """Give the fields that conditions and order look at."""
    names = [name for name, _, _ in query.where] + [name for name, _ in query.order_by]
    return tuple(dict.fromkeys(name for name in names if name not in _COLUMNS))


def _asked(query: Query) -> tuple[str, ...]:
    """Give the fields that conditions look at."""
    names = (name for name, _, _ in query.where)
    return tuple(dict.fromkeys(name for name in names if name not in _COLUMNS))


def _row(namespace: str, id_: str, reply: list[Any], fields: Sequence[bytes] | None) -> Row:
    if fields is None:
        meta, texts = stored_of(reply)
        return Row(namespace, id_, meta, unpacked(texts))
    found = zip(fields, reply[1:], strict=True)
    return Row(namespace, id_, reply[0], {n: text for n, text in found if text is not None})


def _string(part: bytes) -> str:
    return str(orjson.loads(part)) if part[:1] == b'"' else ""


def _by_id(
    query: Query, indexes: Sequence[Index], *, reverse: bool, is_sorted: bool = True
) -> Plan:
    index = indexes[0]
    if index.equal is None:
        return Plan(index=index, reverse=reverse, sorted=is_sorted)
    part = _part_of(query, index)
    if part is None:
        return Plan(index=index, parts=True, reverse=reverse, sorted=is_sorted)
    low, high = _range(part)
    return Plan(index=index, head=part, low=low, high=high, reverse=reverse, sorted=is_sorted)
