"""The durable plane on SQLite."""

from __future__ import annotations

import sqlite3

from collections.abc import Sequence
from typing import Any, Final

import attrs
import orjson

from oqron_core.exceptions import InvalidValueError, OqronError
from oqron_core.planes import (
    Capabilities,
    DurablePlane,
    Health,
    Page,
    PlaneContext,
    Query,
    Record,
    Scope,
    Write,
    WriteResult,
    check_limit,
    check_names,
    check_namespace,
    decode_object,
    encode_cursor,
    encode_stored,
)
from oqron_sqlite._lane import Transaction
from oqron_sqlite._query import (
    Composer,
    cursor_parameters,
    parameters,
    parts_of,
    shape_of,
)
from oqron_sqlite._store import MAX_BATCH, SqliteStore, capabilities
from oqron_sqlite._wake import Gate
from oqron_sqlite._write import Item, apply_writes, prepare, read_rows


__all__ = ["SqliteDurablePlane"]

_PRUNE_STEP: Final = 500
"""How many records one transaction of `prune` deletes: writers go in between."""
_FIRST_ORDER: Final = 6
"""Where the order values of a page's row begin."""
_COMPOSER: Final = Composer()


class SqliteDurablePlane(DurablePlane):
    """The durable plane of one scope."""

    __slots__ = ("_capabilities", "_gate", "_lane", "_max_bytes", "_scope", "_store")

    def __init__(self, store: SqliteStore, context: PlaneContext) -> None:
        self._store = store
        self._lane = store.durable
        self._gate = Gate()
        self._scope = context.scope
        self._max_bytes = context.max_value_bytes
        self._capabilities = capabilities(store.settings, context)

    def close(self) -> None:
        """Refuse from now on."""
        self._gate.close()

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
        scope = self._scope
        wanted = [*dict.fromkeys(ids)]

        def read(driver: sqlite3.Connection, now: int) -> list[Record | None]:
            rows = read_rows(driver, scope, namespace, wanted)
            alive = {
                id_: row
                for id_, row in rows.items()
                if row.expires_at is None or row.expires_at > now
            }
            return [alive[id_].record(None) if id_ in alive else None for id_ in ids]

        return await self._lane.read(read)

    async def write(
        self,
        writes: Sequence[Write],
        *,
        atomic: bool = False,
        returning: Sequence[str] | None = None,
    ) -> Sequence[WriteResult]:
        self._gate.check()
        most = self._capabilities.max_atomic_batch
        if atomic and len(writes) > most:
            reason = f"has {len(writes)} writes; an atomic batch may have {most}, split it"
            raise InvalidValueError("writes", reason)
        items = [prepare(index, one, self._max_bytes) for index, one in enumerate(writes)]
        size = len(items) if atomic else MAX_BATCH
        results: list[WriteResult] = []
        for start in range(0, len(items), size or 1):
            part = items[start : start + size]
            results += await self._step(part, returning, atomic=atomic)
        return results

    async def _step(
        self, items: Sequence[Item], returning: Sequence[str] | None, *, atomic: bool
    ) -> list[WriteResult]:
        scope, most = self._scope, self._max_bytes

        def work(step: Transaction) -> list[WriteResult]:
            return apply_writes(step, scope, items, returning, most, atomic=atomic)

        return await self._lane.write(work)

    # --- queries ---

    async def query(self, query: Query) -> Page[Record]:
        self._gate.check()
        shape = shape_of(query)
        params = parameters(query, self._scope, shape)
        cursor = cursor_parameters(query)
        statements = [
            (
                _COMPOSER.page(attrs.evolve(shape, part=part, after=bool(cursor) and here)),
                params | cursor if here else params,
            )
            for part, here in parts_of(query, shape)
        ]
        # One more than asked for tells whether there is a next page.
        most = query.limit + 1

        def read(driver: sqlite3.Connection, now: int) -> list[tuple[Any, ...]]:
            rows: list[tuple[Any, ...]] = []
            driver.execute("BEGIN")
            try:
                for statement, values in statements:
                    left = {"now": now, "limit": most - len(rows)}
                    rows += driver.execute(statement, values | left).fetchall()
                    if len(rows) >= most:
                        break
            finally:
                driver.execute("COMMIT")
            return rows

        rows = await self._lane.read(read)
        items = [_record(row, query.fields) for row in rows[: query.limit]]
        following = None
        if len(rows) >= most:
            following = _cursor(query, rows[query.limit - 1])
        return Page(items, following)

    async def count(self, query: Query, *, by: str | None = None) -> Any:
        self._gate.check()
        if by is not None:
            # The one rule for names of fields, in the words of the query.
            Query(kind=query.kind, namespace=query.namespace, fields=(by,))
        shape = shape_of(query, whole=True)
        statement = _COMPOSER.count(shape, by)
        params = parameters(query, self._scope, shape)
        rows = await self._lane.read(
            lambda driver, now: driver.execute(statement, params | {"now": now}).fetchall()
        )
        if by is None:
            return rows[0][0]
        return {str(part): number for part, number in rows}

    async def prune(self, query: Query, *, limit: int = 1000) -> int:
        self._gate.check()
        if check_limit(limit) < 1:
            raise InvalidValueError("limit", "must be at least 1")
        shape = shape_of(query, whole=True)
        statement = _COMPOSER.prune(shape)
        params = parameters(query, self._scope, shape)
        pruned = 0
        while pruned < limit:
            self._gate.check()
            size = min(_PRUNE_STEP, limit - pruned)
            step = params | {"limit": size}
            gone = await self._lane.write(
                lambda one, step=step: one.driver.execute(statement, step).rowcount  # type: ignore[misc]  # bound for this turn
            )
            pruned += gone
            if gone < size:
                break
        return pruned

    async def prunable(self, query: Query) -> tuple[int, int]:
        """
        Say what `prune` would delete: how many records, and how many bytes.

        Bytes are those of values, ids and namespaces; indexes and free pages are not
        counted.
        """
        self._gate.check()
        shape = shape_of(query, whole=True)
        statement = _COMPOSER.prunable(shape)
        params = parameters(query, self._scope, shape)
        count, size = await self._lane.read(
            lambda driver, _: driver.execute(statement, params).fetchone()
        )
        return count, size

    async def now(self) -> int:
        self._gate.check()
        return self._store.clock.now()

    async def check(self) -> Health:
        self._gate.check()
        try:
            return await self._store.health(self._lane)
        except OqronError as error:
            return Health(ok=False, reasons=(str(error),))


def _record(row: tuple[Any, ...], fields: Sequence[str] | None) -> Record:
    namespace, _, id_, value, inserted_at, expires_at = row[:_FIRST_ORDER]
    text: bytes = value.encode()
    raw: bytes | dict[str, Any] = text
    if fields is not None:
        whole = decode_object(text, f"{namespace}/{id_}")
        raw = {name: _kept(whole[name]) for name in fields if name in whole}
    return Record.lazy(namespace, id_, raw, inserted_at, expires_at)


def _kept(value: Any) -> Any:
    return encode_stored(value) if isinstance(value, (list, dict)) else value


def _cursor(query: Query, row: tuple[Any, ...]) -> str:
    values: list[Any] = []
    for (name, _), value in zip(query.order_by, row[_FIRST_ORDER:], strict=True):
        if name in {"id", "namespace"} or not isinstance(value, str):
            values.append(value)
        else:
            values.append(orjson.loads(value))
    return encode_cursor(query, values, row[0], row[2])
