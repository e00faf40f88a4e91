"""The durable plane on PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import time

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import attrs
import orjson

from oqron_core.exceptions import (
    ClosedError,
    InvalidValueError,
    OqronError,
)
from oqron_core.planes import (
    BoundDurablePlane,
    Capabilities,
    Durability,
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
)
from oqron_postgres._bound import BoundLink, CommitWatcher
from oqron_postgres._connection import PooledLink, PostgresConnection
from oqron_postgres._copy import COPY_FROM, Copies, Copy
from oqron_postgres._fresh import Fresh
from oqron_postgres._links import Link, Rows, link_of
from oqron_postgres._query import Composer, cursor_after, segments_of, shape_of
from oqron_postgres._sqltext import Statement
from oqron_postgres._statements import Returning
from oqron_postgres._write import (
    MAX_ATOMIC_BATCH,
    MAX_BATCH,
    Batch,
    Item,
    Step,
    dumps,
    insert_results,
    is_mixed,
    lock_steps,
    place_of,
    record_of,
)


__all__ = ["BoundPostgresPlane", "PostgresPlane", "open_plane"]

_PRUNE_STEP: Final = 5000
"""The largest number of rows that one statement of `prune` deletes."""
_IN_FLIGHT: Final = 2
"""How many statements of one large batch are under way at a time."""
_MIN_POOL_TO_SPREAD: Final = 4
"""The smallest pool of which a large batch takes more than one connection."""
_INSERT_ATTEMPTS: Final = 4
"""How often an insert is tried when what stood in its way is gone at the next look."""


@attrs.define
class _Core:
    """What a plane and the planes bound to transactions share."""

    connection: PostgresConnection
    context: PlaneContext
    composer: Composer
    capabilities: Capabilities
    watcher: CommitWatcher
    copies: Copies
    closed: bool = False

    def check_open(self) -> None:
        """Refuse what comes after closing."""
        if self.closed:
            raise ClosedError("the durable plane is closed")


class _Statements(DurablePlane):
    """The methods of the contract, over whatever link there is."""

    __slots__ = ("_core",)

    def __init__(self, core: _Core) -> None:
        self._core = core

    @property
    def scope(self) -> Scope:
        """The scope that the plane is bound to."""
        return self._core.context.scope

    @property
    def capabilities(self) -> Capabilities:
        """What the plane can do."""
        return self._core.capabilities

    async def _fetch(
        self, statement: Statement, params: Mapping[str, Any], *, idempotent: bool
    ) -> Rows:
        raise NotImplementedError

    def _params(self) -> dict[str, Any]:
        scope = self._core.context.scope
        return {"project": scope.project, "environment": scope.environment}

    async def get(self, namespace: str, ids: Sequence[str]) -> Sequence[Record | None]:
        """Read records by id, in one round trip; see `DurablePlane.get`."""
        self._core.check_open()
        check_namespace(namespace)
        check_names("id", ids)
        found: list[Record | None] = [None] * len(ids)
        _, table = place_of(namespace)
        statement = self._core.connection.book.get(table, Returning.ALL)
        for start in range(0, len(ids), _PRUNE_STEP):
            some = ids[start : start + _PRUNE_STEP]
            part = [
                {"o": start + position, "n": namespace, "i": id_}
                for position, id_ in enumerate(some)
            ]
            params = {**self._params(), "doc": dumps(part)}
            rows = await self._fetch(statement, params, idempotent=True)
            for position, inserted_at, expires_at, text in rows:
                found[position] = record_of(
                    namespace, ids[int(position)], text, inserted_at, expires_at
                )
        return found

    # --- queries ---

    async def query(self, query: Query) -> Page[Record]:
        """Read one page of records; see `DurablePlane.query`."""
        self._core.check_open()
        composer = self._core.composer
        shape = shape_of(query)
        cursor = composer.cursor_parameters(query)
        rows: list[Sequence[Any]] = []
        params = composer.parameters(query, self.scope, shape) | cursor
        if query.fields is not None:
            params["fields"] = dumps(list(query.fields)).decode()
        for segment, continued in segments_of(query, shape):
            after = bool(cursor) and continued
            statement = composer.page(attrs.evolve(shape, segment=segment, after=after))
            # One more than asked for tells whether there is a next page.
            params["limit"] = query.limit + 1 - len(rows)
            used = {name: params[name] for name in statement.names}
            rows += await self._fetch(statement, used, idempotent=True)
            if len(rows) > query.limit:
                break
        items = [record_of(*row[:5]) for row in rows[: query.limit]]
        following = None
        if len(rows) > query.limit:
            following = cursor_after(query, rows[query.limit - 1], orjson.loads)
        return Page(items, following)

    async def count(self, query: Query, *, by: str | None = None) -> Any:
        """Count records; see `DurablePlane.count`."""
        if by is not None:
            # The one rule for names of fields, in the words of the query.
            Query(kind=query.kind, namespace=query.namespace, fields=(by,))
        self._core.check_open()
        composer = self._core.composer
        shape = shape_of(query, whole=True)
        statement = composer.count(shape, by)
        params = composer.parameters(query, self.scope, shape)
        used = {name: params[name] for name in statement.names}
        rows = await self._fetch(statement, used, idempotent=True)
        if by is None:
            return rows[0][0]
        return {str(part): number for part, number in rows}

    async def prune(self, query: Query, *, limit: int = 1000) -> int:
        """Delete up to *limit* records that match; see `DurablePlane.prune`."""
        if check_limit(limit) < 1:
            raise InvalidValueError("limit", "must be at least 1")
        self._core.check_open()
        composer = self._core.composer
        shape = shape_of(query, whole=True)
        statement = composer.prune(shape)
        params = composer.parameters(query, self.scope, shape)
        deleted = 0
        while deleted < limit:
            params["limit"] = step = min(_PRUNE_STEP, limit - deleted)
            used = {name: params[name] for name in statement.names}
            rows = await self._fetch(statement, used, idempotent=False)
            chosen, gone = rows[0]
            deleted += gone
            # What was chosen and is not gone was changed meanwhile; it is looked at anew.
            if chosen < step and gone == chosen:
                break
        return deleted

    async def prunable(self, query: Query) -> tuple[int, int]:
        """
        Say what `prune` would delete: how many records, and how many bytes.

        Bytes are those of the rows as they are stored, compressed; indexes and the
        room between rows are not counted.
        """
        self._core.check_open()
        composer = self._core.composer
        shape = shape_of(query, whole=True)
        statement = composer.prunable(shape)
        params = composer.parameters(query, self.scope, shape)
        used = {name: params[name] for name in statement.names}
        rows = await self._fetch(statement, used, idempotent=True)
        return int(rows[0][0]), int(rows[0][1])

    async def now(self) -> int:
        """Read the server's clock: milliseconds since the epoch."""
        self._core.check_open()
        rows = await self._fetch(self._core.connection.book.now, {}, idempotent=True)
        return int(rows[0][0])

    # --- writes ---

    def _batch(self, writes: Sequence[Write], returning: Sequence[str] | None) -> Batch:
        return Batch.of(
            writes,
            scope=self.scope,
            book=self._core.connection.book,
            returning=returning,
            max_bytes=self._core.context.max_value_bytes,
        )

    def _check_atomic(self, writes: Sequence[Write]) -> None:
        if len(writes) > MAX_ATOMIC_BATCH:
            reason = (
                f"has {len(writes)} writes; an atomic batch may have {MAX_ATOMIC_BATCH}, split it"
            )
            raise InvalidValueError("writes", reason)


class PostgresPlane(_Statements):
    """
    The durable plane of one scope, on the pool of a storage.

    Every batch is one statement for each kind of write and table; those of a batch
    that needs several travel together in one transaction.
    """

    __slots__ = ()

    async def _fetch(
        self, statement: Statement, params: Mapping[str, Any], *, idempotent: bool
    ) -> Rows:
        return await self._core.connection.fetch(statement, params, idempotent=idempotent)

    async def write(
        self,
        writes: Sequence[Write],
        *,
        atomic: bool = False,
        returning: Sequence[str] | None = None,
    ) -> Sequence[WriteResult]:
        """Apply a batch of writes; see `DurablePlane.write`."""
        self._core.check_open()
        if not writes:
            return []
        if atomic:
            self._check_atomic(writes)
        elif returning is not None and not returning:
            inserted = await self._copy(writes) or await self._insert_fresh(writes)
            if inserted is not None:
                return inserted
        batch = self._batch(writes, returning)
        if atomic and len(writes) > 1:
            await self._core.connection.run(lambda link: _write_atomic(link, batch))
        else:
            await self._write_each(batch)
            if atomic:
                batch.check_all_applied()
        return batch.finish()

    async def _copy(self, writes: Sequence[Write]) -> Sequence[WriteResult] | None:
        """Insert many new records at once; None where these are not, or not all new."""
        core = self._core
        if len(writes) < COPY_FROM or not core.copies.wants():
            return None
        copy = Copy.of(writes, self.scope, core.context.max_value_bytes)
        return None if copy is None else await core.copies.write(copy)

    async def _insert_fresh(self, writes: Sequence[Write]) -> Sequence[WriteResult] | None:
        """Insert records of one form; None where these are not."""
        core = self._core
        book, limit = core.connection.book, core.context.max_value_bytes
        fresh = Fresh.of(writes, self.scope, book, limit)
        if fresh is None:
            return None
        rows = await self._fetch(fresh.statement, fresh.params, idempotent=False)
        ms, names = rows[0]
        if names is None:
            return insert_results(fresh.writes, ms)
        # Something was in the way of some: that is looked at one by one.
        batch = self._batch(writes, ())
        batch.absorb_inserts(rows)
        await self._read_blocked(batch)
        return batch.finish()

    async def _write_each(self, batch: Batch) -> None:
        for wave in batch.waves():
            if is_mixed(wave):
                for part in _portions(wave):
                    await self._write_together(batch, part)
            else:
                await self._write_steps(batch, batch.steps(wave))
            # Before the next wave changes what stands in the way.
            await self._read_blocked(batch)

    async def _write_steps(self, batch: Batch, steps: Iterator[Step]) -> None:
        first = next(steps)
        second = next(steps, None)
        if second is None:
            await self._write_step(batch, first)
            return
        # Several statements: while the server works on one, the next is encoded here,
        # and a second connection keeps it busy.
        rest = chain((first, second), steps)

        async def work() -> None:
            for step in rest:
                await self._write_step(batch, step)

        spare = self._core.connection.settings.pool_size >= _MIN_POOL_TO_SPREAD
        tasks = [asyncio.ensure_future(work()) for _ in range(_IN_FLIGHT if spare else 1)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write_step(self, batch: Batch, step: Step) -> None:
        left = [step]
        while left:
            step = left.pop()
            rows = await self._fetch(step.statement, step.params, idempotent=False)
            moved = step.absorb(rows)
            if moved:
                left.extend(batch.steps(moved))

    async def _write_together(self, batch: Batch, items: Sequence[Item]) -> None:
        steps = list(batch.steps(items, one_transaction=True))
        locks = lock_steps(batch, items)

        async def work(link: PooledLink) -> list[Item]:
            moved: list[Item] = []
            async with link.transaction() as send:
                for statement, params in locks:
                    await send(statement, params)
                cursors = [await send(step.statement, step.params) for step in steps]
            for step, cursor in zip(steps, cursors, strict=True):
                moved += step.absorb(await cursor.fetchall())
            return moved

        moved = await self._core.connection.run(work)
        for step in batch.steps(moved):
            await self._write_step(batch, step)

    async def _read_blocked(self, batch: Batch) -> None:
        for attempt in range(_INSERT_ATTEMPTS):
            if not batch.blocked:
                return
            blocked, batch.blocked = batch.blocked, []
            vanished: list[Item] = []
            for step in batch.reading(blocked):
                rows = await self._fetch(step.statement, step.params, idempotent=True)
                vanished += step.absorb(rows)
            if attempt < _INSERT_ATTEMPTS - 1:
                # What stood in the way has gone since: then it can be inserted.
                for step in batch.steps(vanished):
                    await self._write_step(batch, step)

    async def check(self) -> Health:
        """Look after the store; does not raise for one that is down."""
        from oqron_postgres._doctor import health  # noqa: PLC0415 - seldom needed

        return await health(self._core.connection)

    def bind(self, transaction: Any) -> BoundPostgresPlane:
        """
        Give a plane that writes inside the caller's own transaction.

        Args:
            transaction: A SQLAlchemy AsyncConnection, AsyncSession, Connection or
                Session, of any driver for PostgreSQL, or a psycopg AsyncConnection or
                Connection. It must be one to the database of the storage. A blocking
                one is used in a thread while the caller awaits, so leave it alone
                meanwhile.

        Raises:
            CapabilityError: It is none of those.
        """
        return BoundPostgresPlane(self._core, link_of(transaction))


async def _write_atomic(link: PooledLink, batch: Batch) -> None:
    batch.blocked = []
    async with link.transaction() as send:
        for statement, params in lock_steps(batch, batch.items):
            await send(statement, params)
        for wave in batch.waves():
            steps = list(batch.steps(wave, one_transaction=True))
            while steps:
                moved: list[Item] = []
                cursors = [await send(step.statement, step.params) for step in steps]
                for step, cursor in zip(steps, cursors, strict=True):
                    moved += step.absorb(await cursor.fetchall())
                steps = list(batch.steps(moved, one_transaction=True))
        batch.check_all_applied()


def _portions(items: Sequence[Item]) -> list[Sequence[Item]]:
    """Keep the transactions of a large batch short."""
    return [items[start : start + MAX_BATCH] for start in range(0, len(items), MAX_BATCH)]


class BoundPostgresPlane(_Statements, BoundDurablePlane):
    """
    The plane inside a caller's transaction.

    What it writes others see when the caller commits, and nobody if the caller rolls
    back. It reads what the transaction itself has written. Deadlocks and
    serialization failures are the caller's to run again: `UnavailableError`.
    """

    __slots__ = ("_link", "_transaction")

    def __init__(self, core: _Core, link: Link) -> None:
        super().__init__(core)
        self._link = BoundLink(link)
        # Asked for once for a write and what is to follow it.
        self._transaction: str | None = None

    async def _fetch(
        self, statement: Statement, params: Mapping[str, Any], *, idempotent: bool
    ) -> Rows:
        del idempotent  # nothing may be tried again behind the caller's back
        return await self._link.fetch(statement, params)

    async def write(
        self,
        writes: Sequence[Write],
        *,
        atomic: bool = False,
        returning: Sequence[str] | None = None,
    ) -> Sequence[WriteResult]:
        """
        Apply a batch of writes in the caller's transaction.

        An atomic batch that is refused is undone up to a savepoint: the caller's
        transaction goes on.
        """
        self._core.check_open()
        if not writes:
            return []
        if atomic:
            self._check_atomic(writes)
        batch = self._batch(writes, returning)
        if self._transaction is None:
            self._transaction = await self._link.transaction_id(self._core.connection.database)
        if not atomic:
            await self._write_all(batch)
            return batch.finish()
        async with self._link.savepoint():
            await self._write_all(batch)
            batch.check_all_applied()
        return batch.finish()

    async def _write_all(self, batch: Batch) -> None:
        if len(batch.items) > 1:
            for statement, params in lock_steps(batch, batch.items):
                await self._link.fetch(statement, params)
        for wave in batch.waves():
            left = list(batch.steps(wave, one_transaction=True))
            while left:
                step = left.pop(0)
                rows = await self._link.fetch(step.statement, step.params)
                moved = step.absorb(rows)
                if moved:
                    left = [*batch.steps(moved), *left]
            blocked, batch.blocked = batch.blocked, []
            for step in batch.reading(blocked):
                step.absorb(await self._link.fetch(step.statement, step.params))

    async def after_commit(self, callback: Callable[[], Awaitable[None]]) -> None:
        """
        Have *callback* run soon after the caller has committed, in this loop.

        It is never run if the caller rolls back, and not promised: where the process
        ends or the storage is closed before, reconcile does its work. It runs within a
        few milliseconds of the commit of a short transaction, and within 0.1 s of that
        of a long one. What it raises is logged.

        Args:
            callback: Takes nothing, is awaited once.

        Raises:
            UnavailableError: The transaction is broken.
        """
        xid, self._transaction = self._transaction, None
        if xid is None:
            xid = await self._link.transaction_id(self._core.connection.database)
        self._core.watcher.add(xid, callback)

    async def check(self) -> Health:
        """Look whether the caller's connection answers."""
        started = time.perf_counter()
        try:
            await self.now()
        except OqronError as error:
            return Health(ok=False, reasons=(str(error),))
        elapsed = (time.perf_counter() - started) * 1000
        return Health(ok=True, details={"roundTripMs": round(elapsed, 2)})


def _capabilities(connection: PostgresConnection, context: PlaneContext) -> Capabilities:
    lazy = connection.settings.synchronous_commit == "off"
    return Capabilities(
        backend="postgres",
        durability=Durability.SERVER if lazy else Durability.DISK,
        shared=True,
        clock="server",
        notify=False,
        atomic=True,
        atomic_scope="scope",
        transactions=True,
        expiry_filter=True,
        max_batch=MAX_BATCH,
        max_atomic_batch=MAX_ATOMIC_BATCH,
        max_value_bytes=context.max_value_bytes,
    )


@contextlib.asynccontextmanager
async def open_plane(
    connection: PostgresConnection, context: PlaneContext
) -> AsyncIterator[PostgresPlane]:
    """
    Open the plane of one scope.

    Args:
        connection: What `oqron_postgres.connect` gave.
        context: The scope, and the limit of a value.
    """
    watcher = CommitWatcher(connection)
    core = _Core(
        connection=connection,
        context=context,
        composer=Composer(connection.names.tables),
        capabilities=_capabilities(connection, context),
        watcher=watcher,
        copies=Copies(connection),
    )
    try:
        yield PostgresPlane(core)
    finally:
        core.closed = True
        await watcher.close()
