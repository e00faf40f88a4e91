"""The durable plane in memory."""

from __future__ import annotations

import asyncio
import heapq
import itertools

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from oqron_core.exceptions import ConflictError, InvalidValueError, UnavailableError
from oqron_core.planes import (
    INT_MAX,
    INT_MIN,
    KEEP,
    MISSING,
    Capabilities,
    Delete,
    Durability,
    DurablePlane,
    Health,
    Insert,
    Json,
    Missing,
    Page,
    Patch,
    PlaneContext,
    Put,
    Query,
    Record,
    Scope,
    Write,
    WriteResult,
    check_limit,
    check_names,
    check_namespace,
    decode_cursor,
    encode,
    encode_cursor,
    encode_fields,
    encode_object,
)
from oqron_memory._matching import Matcher, holds, order_key, order_values, plain
from oqron_memory._records import Namespace
from oqron_memory._rows import Row
from oqron_memory._store import MemoryStore, ScopeState
from oqron_memory._wake import Gate


__all__ = ["MemoryDurablePlane", "capabilities", "health"]

_STEP: Final = 1000
_SURE: Final = frozenset({bool, type(None), Json, Missing})
"""Types of guards that need no check to be compared."""


def capabilities(context: PlaneContext) -> Capabilities:
    """What both planes can do."""
    return Capabilities(
        backend="memory",
        durability=Durability.PROCESS,
        clock="process",
        max_batch=_STEP,
        max_value_bytes=context.max_value_bytes,
    )


def health(store: MemoryStore) -> Health:
    """How the store is."""
    reasons: tuple[str, ...] = ()
    if store.max_bytes is not None and store.used * 10 >= store.max_bytes * 9:
        full = (
            f"{store.used} bytes of max_bytes = {store.max_bytes} are used; prune, or "
            "raise [memory] max_bytes"
        )
        reasons = (full,)
    return Health(ok=True, reasons=reasons, details=store.sizes())


_Guards = Mapping[str, Any]
_Changes = tuple[dict[str, Any], dict[str, Json] | None, _Guards]
"""A patch, checked and encoded: what it sets, what it appends, what it expects."""
_Prepared = dict[str, Any] | _Changes | _Guards
_Saved = tuple[Namespace, str, Row | None, Mapping[str, Any], int | None, int]
"""A record before a write: where, which, and what it was."""


class MemoryDurablePlane(DurablePlane):
    """The durable plane of one scope."""

    __slots__ = ("_capabilities", "_gate", "_max_bytes", "_scope", "_state", "_store")

    def __init__(
        self, store: MemoryStore, state: ScopeState, gate: Gate, context: PlaneContext
    ) -> None:
        self._store = store
        self._state = state
        self._gate = gate
        self._scope = context.scope
        self._max_bytes = context.max_value_bytes
        self._capabilities = capabilities(context)

    @property
    def scope(self) -> Scope:
        return self._scope

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def get(self, namespace: str, ids: Sequence[str]) -> Sequence[Record | None]:
        self._gate.check()
        check_namespace(namespace)
        check_names("id", ids)
        if not ids:
            return []
        with self._store.lock:
            space = self._state.records.namespaces.get(namespace)
            if space is None:
                return [None] * len(ids)
            now = self._store.clock.now()
            return [
                None
                if (row := space.get(name, now)) is None
                else Record.lazy(namespace, name, row.fields, row.inserted_at, row.at)
                for name in ids
            ]

    # --- writing ------------------------------------------------------------

    async def write(
        self,
        writes: Sequence[Write],
        *,
        atomic: bool = False,
        returning: Sequence[str] | None = None,
    ) -> Sequence[WriteResult]:
        self._gate.check()
        if atomic and len(writes) > self._capabilities.max_atomic_batch:
            reason = (
                f"an atomic batch has at most {self._capabilities.max_atomic_batch} "
                f"writes, not {len(writes)}"
            )
            raise InvalidValueError("writes", reason)
        prepared = [self._prepare(write) for write in writes]
        if atomic or len(writes) <= _STEP:
            return self._step(writes, prepared, returning, atomic=atomic) if writes else []
        results: list[WriteResult] = []
        for start in range(0, len(writes), _STEP):
            self._gate.check()
            part = slice(start, start + _STEP)
            results += self._step(writes[part], prepared[part], returning, atomic=False)
            # Whoever else runs in this loop has leases to renew.
            await asyncio.sleep(0)
        return results

    def _prepare(self, write: Write) -> _Prepared:
        """Check and encode what *write* brings, before anything is written."""
        kind = type(write)
        if kind is Insert or kind is Put:
            return encode_fields(write.value, max_bytes=self._max_bytes)  # type: ignore[union-attr]  # as just tested
        if not isinstance(write, (Patch, Delete)):
            reason = f"must be Put, Insert, Patch or Delete, not {kind.__name__}"
            raise InvalidValueError("writes", reason)
        guards = _check_guards(write.expect) if write.expect else write.expect
        if isinstance(write, Delete):
            return guards
        changed = encode_fields(write.set, "set", max_bytes=self._max_bytes)
        if write.increment:
            _check_field_names("increment", write.increment)
        if not write.append:
            return changed, None, guards
        _check_field_names("append", write.append)
        append = {
            name: encode(list(items), f"append.{name}", max_bytes=self._max_bytes)
            for name, items in write.append.items()
        }
        return changed, append, guards

    def _step(
        self,
        writes: Sequence[Write],
        prepared: list[_Prepared],
        returning: Sequence[str] | None,
        *,
        atomic: bool,
    ) -> list[WriteResult]:
        store = self._store
        with store.lock:
            now = store.clock.now()
            store.sweep(now)
            try:
                return self._attempt(writes, prepared, returning, now, atomic=atomic)
            except UnavailableError:
                if not store.make_room(now):
                    raise
            return self._attempt(writes, prepared, returning, now, atomic=atomic)

    def _attempt(
        self,
        writes: Sequence[Write],
        prepared: list[_Prepared],
        returning: Sequence[str] | None,
        now: int,
        *,
        atomic: bool,
    ) -> list[WriteResult]:
        step = _Step(self._store, self._state, now, self._max_bytes)
        try:
            return step.run(writes, prepared, returning, atomic=atomic)
        except BaseException:
            step.roll_back()
            raise
        finally:
            step.finish(len(writes))

    # --- reading ------------------------------------------------------------

    async def query(self, query: Query) -> Page[Record]:
        self._gate.check()
        after = decode_cursor(query)
        matcher = Matcher(query)
        with self._store.lock:
            now = self._store.clock.now()
            spaces = self._state.records.select(query)
            if query.order_by:
                found = _ordered(query, spaces, matcher, after, now)
            else:
                found = _by_address(query, spaces, matcher, after, now)
            records = [
                Record.lazy(
                    space.name,
                    row.id,
                    _only(row.fields, query.fields),
                    row.inserted_at,
                    row.at,
                )
                for space, row in found[: query.limit]
            ]
            following = None
            if len(found) > query.limit:
                space, row = found[query.limit - 1]
                values = order_values(query, row, space.name)
                following = encode_cursor(query, values, space.name, row.id)
        return Page(records, following)

    async def count(self, query: Query, *, by: str | None = None) -> Any:
        self._gate.check()
        if by is not None:
            _check_by(by)
        matcher = Matcher(query)
        with self._store.lock:
            now = self._store.clock.now()
            spaces = self._state.records.select(query)
            if by is not None and by != "namespace":
                return _count_by(by, spaces, matcher, now)
            counts = {space.name: _count(space, matcher, now) for space in spaces}
        if by is None:
            return sum(counts.values())
        return {name: count for name, count in counts.items() if count}

    async def prune(self, query: Query, *, limit: int = 1000) -> int:
        self._gate.check()
        if check_limit(limit) < 1:
            raise InvalidValueError("limit", "must be at least 1")
        matcher = Matcher(query)
        with self._store.lock:
            spaces = self._state.records.select(query)
        pruned = 0
        for space in spaces:
            for rows in self._prunable(space, matcher, limit):
                with self._store.lock:
                    pruned += self._prune(space, matcher, rows, limit - pruned)
                if pruned >= limit:
                    return pruned
                # Writers, in this loop and in other threads, go in between.
                await asyncio.sleep(0)
        return pruned

    def _prunable(self, space: Namespace, matcher: Matcher, limit: int) -> Iterator[Sequence[Row]]:
        """Give rows that may match in parts, expired ones included."""
        with self._store.lock:
            if matcher.expired_by is not None:
                rows = space.expiring_by(matcher.expired_by)
            elif matcher.always:
                rows = list(itertools.islice(space.rows.values(), limit))
            else:
                rows = list(space.rows.values())
        for start in range(0, len(rows), _STEP):
            yield rows[start : start + _STEP]

    def _prune(self, space: Namespace, matcher: Matcher, rows: Sequence[Row], limit: int) -> int:
        """Delete those of *rows* that are still there and match; under the lock."""
        count = 0
        for row in rows:
            if count >= limit:
                break
            if space.rows.get(row.id) is row and matcher.matches(row, space.name):
                space.drop(row)
                self._store.used -= row.size
                count += 1
        self._state.records.tidy(space)
        return count

    async def prunable(self, query: Query) -> tuple[int, int]:
        self._gate.check()
        matcher = Matcher(query)
        with self._store.lock:
            spaces = self._state.records.select(query)
        count = size = 0
        for space in spaces:
            for rows in self._prunable(space, matcher, len(space.rows)):
                with self._store.lock:
                    for row in rows:
                        if space.rows.get(row.id) is row and matcher.matches(row, space.name):
                            count += 1
                            size += row.size or _size(row.id, row.fields)
                # Writers, in this loop and in other threads, go in between.
                await asyncio.sleep(0)
        return count, size

    async def now(self) -> int:
        self._gate.check()
        return self._store.clock.now()

    async def check(self) -> Health:
        self._gate.check()
        return health(self._store)


class _Step:
    """Some writes under one hold of the lock, which can be undone."""

    __slots__ = (
        "_max_bytes",
        "_metered",
        "_now",
        "_saved",
        "_spaces",
        "_state",
        "_store",
        "_used",
    )

    def __init__(self, store: MemoryStore, state: ScopeState, now: int, max_bytes: int) -> None:
        self._store = store
        self._state = state
        self._now = now
        self._max_bytes = max_bytes
        self._metered = store.max_bytes is not None
        self._used = store.used
        self._saved: list[_Saved] = []
        self._spaces: dict[str, Namespace] = {}

    def run(
        self,
        writes: Sequence[Write],
        prepared: list[_Prepared],
        returning: Sequence[str] | None,
        *,
        atomic: bool,
    ) -> list[WriteResult]:
        results: list[WriteResult] = []
        spaces = self._spaces
        for index, write in enumerate(writes):
            name = write.namespace
            space = spaces.get(name)
            if space is None:
                space = spaces[name] = self._state.records.make(name)
            row = space.get(write.id, self._now)
            applied, row = self._apply(space, row, write, prepared[index])
            if atomic and not applied:
                reason = (
                    f"write {index} of the batch, {type(write).__name__} of {write.id!r} "
                    f"in {name!r}, could not be applied; nothing was written"
                )
                raise ConflictError(reason, index)
            if row is None:
                results.append(WriteResult(applied))
                continue
            fields = row.fields if returning is None else _only(row.fields, returning)
            record = Record.lazy(name, row.id, fields, row.inserted_at, row.at)
            results.append(WriteResult(applied, record))
        return results

    def _apply(
        self, space: Namespace, row: Row | None, write: Write, prepared: _Prepared
    ) -> tuple[bool, Row | None]:
        """Apply one write; say whether it was, and what is there now."""
        kind = type(write)
        if kind is Insert:
            if row is not None:
                return False, row
            return True, self._insert(space, write, prepared)  # type: ignore[arg-type]  # as just tested
        if kind is Put:
            if row is None:
                return True, self._insert(space, write, prepared)  # type: ignore[arg-type]  # as just tested
            self._change(space, row, prepared, write.expires_at, settling=False)  # type: ignore[arg-type,union-attr]  # as just tested
            return True, row
        if row is None:
            return False, None
        if kind is Delete:
            if not holds(row.fields, prepared):  # type: ignore[arg-type]  # its guards
                return False, row
            self._save(space, row)
            space.drop(row)
            self._store.used -= row.size
            return True, None
        return self._patch(space, row, write, prepared), row  # type: ignore[arg-type]  # as just tested

    def _insert(self, space: Namespace, write: Put | Insert, fields: dict[str, Any]) -> Row:
        row = Row(write.id, fields, self._now)
        if self._metered:
            row.size = _size(row.id, fields)
            self._store.charge(row.size)
        old = space.rows.get(write.id)
        if old is None:
            self._saved.append((space, write.id, None, fields, None, 0))
        else:
            # It has expired; a new one takes its place.
            self._save(space, old)
            space.drop(old)
            self._store.used -= old.size
        space.add(row, write.expires_at)
        return row

    def _patch(self, space: Namespace, row: Row, patch: Patch, changes: _Changes) -> bool:
        changed, append, guards = changes
        if guards and not holds(row.fields, guards):
            return False
        # Rows are never changed in place: whoever reads keeps what was.
        fields = {**row.fields, **changed}
        if append is not None and not _append(fields, append, self._max_bytes):
            return False
        for name in patch.unset:
            fields.pop(name, None)
        if patch.increment and not _increment(fields, patch.increment):
            return False
        expires_at = row.at if patch.expires_at is KEEP else patch.expires_at
        self._change(space, row, fields, expires_at, settling=True)
        return True

    def _change(
        self,
        space: Namespace,
        row: Row,
        fields: dict[str, Any],
        expires_at: int | None,
        *,
        settling: bool,
    ) -> None:
        if self._metered:
            size = _size(row.id, fields)
            self._store.charge(size - row.size, settling=settling)
        else:
            size = 0
        self._save(space, row)
        row.size = size
        row.fields = fields
        if expires_at != row.at:
            space.expire(row, expires_at)

    def _save(self, space: Namespace, row: Row) -> None:
        self._saved.append((space, row.id, row, row.fields, row.at, row.size))

    def roll_back(self) -> None:
        """Put back what was before the step."""
        for space, name, row, fields, expires_at, size in reversed(self._saved):
            now = space.rows.get(name)
            if now is not None and now is not row:
                space.drop(now)
            if row is None:
                continue
            row.fields = fields
            row.size = size
            if now is row:
                space.expire(row, expires_at)
            else:
                row.at = None
                space.add(row, expires_at)
        self._store.used = self._used

    def finish(self, count: int) -> None:
        """Let go of what is empty now, and of a little that expired long ago."""
        records = self._state.records
        first = None
        for space in self._spaces.values():
            if space.rows:
                first = space
            else:
                records.tidy(space)
        if first is not None:
            self._store.used -= records.sweep(first, self._now, 2 * count + 16)


def _check_guards(expect: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check what is expected, and encode it where it is more than a plain scalar."""
    for want in expect.values():
        kind = type(want)
        if kind is str:
            if want.isascii() and "\0" not in want:
                continue
        elif kind is int:
            if INT_MIN <= want <= INT_MAX:
                continue
        elif kind in _SURE:
            continue
        break
    else:
        return expect
    return {
        name: want
        if want is MISSING
        else encode_fields({name: want}, "expect", max_bytes=None)[name]
        for name, want in expect.items()
    }


def _check_field_names(what: str, names: Mapping[str, Any]) -> None:
    """Refuse names of fields that are not portable."""
    if not all(type(name) is str and name.isascii() and "\0" not in name for name in names):
        encode_fields(dict.fromkeys(names), what)


def _size(name: str, fields: Mapping[str, Any]) -> int:
    return len(name) + len(encode_object(fields))


def _only(fields: Mapping[str, Any], names: Sequence[str] | None) -> Mapping[str, Any]:
    if names is None:
        return fields
    return {name: fields[name] for name in names if name in fields}


def _append(fields: dict[str, Any], append: Mapping[str, Json], max_bytes: int) -> bool:
    """Append encoded items to encoded lists; False where one is no list."""
    for name, items in append.items():
        have = fields.get(name)
        if name not in fields:
            fields[name] = items
            continue
        if type(have) is not Json or have.data.lstrip()[:1] != b"[":
            return False
        inner = items.data.strip()[1:-1]
        if not inner:
            continue
        head = have.data.rstrip()[:-1]
        comma = b"" if head.strip() == b"[" else b","
        fields[name] = encode(
            Json(b"".join((head, comma, inner, b"]"))),
            f"append.{name}",
            max_bytes=max_bytes,
        )
    return True


def _increment(fields: dict[str, Any], increment: Mapping[str, int]) -> bool:
    """Add to integers; False where one is none, or would leave 64 bits."""
    for name, by in increment.items():
        have = plain(fields.get(name, 0))
        if type(have) is float and have.is_integer():
            have = int(have)
        if type(have) is not int:
            return False
        total = have + by
        if not INT_MIN <= total <= INT_MAX:
            return False
        fields[name] = total
    return True


# --- queries ----------------------------------------------------------------

_After = tuple[list[Any], str, str] | None
_Found = list[tuple[Namespace, Row]]


def _by_address(
    query: Query, spaces: list[Namespace], matcher: Matcher, after: _After, now: int
) -> _Found:
    """Walk the index of ids from the cursor on, no further than the page."""
    found: _Found = []
    least, most = query.id_bounds()
    for space in spaces:
        start = None
        if after is not None:
            if space.name < after[1]:
                continue
            if space.name == after[1]:
                start = after[2]
        for row in space.after(start, now, least=least, most=most):
            if matcher.always or matcher.matches(row, space.name):
                found.append((space, row))
                if len(found) > query.limit:
                    return found
    return found


def _ordered(
    query: Query, spaces: list[Namespace], matcher: Matcher, after: _After, now: int
) -> _Found:
    """Select the first of what comes after the cursor, without sorting the rest."""
    bound = None if after is None else order_key(query, *after)

    def candidates() -> Iterator[tuple[Any, Namespace, Row]]:
        for space in spaces:
            for row in space.present(now):
                if matcher.always or matcher.matches(row, space.name):
                    values = order_values(query, row, space.name)
                    key = order_key(query, values, space.name, row.id)
                    if bound is None or bound < key:
                        yield key, space, row

    first = heapq.nsmallest(query.limit + 1, candidates(), key=_key)
    return [(space, row) for _, space, row in first]


def _key(candidate: tuple[Any, Namespace, Row]) -> Any:
    return candidate[0]


def _count(space: Namespace, matcher: Matcher, now: int) -> int:
    if matcher.always:
        if not space.expiring.live:
            return len(space.rows)
        return sum(1 for _ in space.present(now))
    return sum(1 for row in space.present(now) if matcher.matches(row, space.name))


def _count_by(by: str, spaces: list[Namespace], matcher: Matcher, now: int) -> dict[str, int]:
    counts: dict[str, int] = {}
    for space in spaces:
        for row in space.present(now):
            if matcher.always or matcher.matches(row, space.name):
                value = row.id if by == "id" else plain(row.fields.get(by))
                name = value if type(value) is str else ""
                counts[name] = counts.get(name, 0) + 1
    return counts


def _check_by(by: object) -> None:
    if type(by) is not str or not by.isascii() or not by.isidentifier():
        raise InvalidValueError("by", f"{by!r} is neither namespace nor a field name")
