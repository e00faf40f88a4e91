"""Inside a caller's transaction, and what is to happen after its commit."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import attrs

from sqlalchemy import text

from oqron_core.exceptions import InvalidValueError, OqronError
from oqron_postgres._connection import PostgresConnection
from oqron_postgres._errors import translated
from oqron_postgres._links import Link, Rows
from oqron_postgres._sqltext import Statement


__all__ = ["BoundLink", "CommitWatcher"]

log = logging.getLogger("oqron.postgres")

Callback: TypeAlias = Callable[[], Awaitable[None]]

_FIRST_LOOK: Final = 0.002
_LAST_LOOK: Final = 0.1
_GIVE_UP_AFTER: Final = 3600.0
"""Seconds after which a transaction that is still open is forgotten; reconcile is not."""

# The selects around them make every driver give rows.
_SAVEPOINT: Final = Statement.of(text("SAVEPOINT oqron"))
_RELEASE: Final = Statement.of(text("RELEASE SAVEPOINT oqron"))
_UNDO: Final = Statement.of(text("ROLLBACK TO SAVEPOINT oqron"))
_XID: Final = Statement.of(text("SELECT pg_current_xact_id()::text, current_database()"))
_FATE: Final = Statement.of(
    text(
        "SELECT x.xid, pg_xact_status(x.xid::xid8) "
        "FROM jsonb_array_elements_text(CAST(:doc AS jsonb)) AS x(xid)"
    )
)


class BoundLink:
    """A caller's link whose errors are ours."""

    __slots__ = ("_link",)

    def __init__(self, link: Link) -> None:
        self._link = link

    async def fetch(self, statement: Statement, params: Mapping[str, Any]) -> Rows:
        """Run a statement and give all its rows."""
        with translated():
            return await self._link.fetch(statement, params)

    async def transaction_id(self, database: str) -> str:
        """
        Give the id of the caller's transaction.

        Raises:
            InvalidValueError: It is not in *database*.
        """
        xid, name = (await self.fetch(_XID, {}))[0]
        if name != database:
            reason = f"is in the database {name!r}; the storage is in {database!r}"
            raise InvalidValueError("transaction", reason)
        return str(xid)

    @contextlib.asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Undo what is done inside if it raises, and leave the transaction usable."""
        with translated():
            await self._link.execute(_SAVEPOINT)
        try:
            yield
        except Exception:
            with translated():
                await self._link.execute(_UNDO)
                await self._link.execute(_RELEASE)
            raise
        with translated():
            await self._link.execute(_RELEASE)


@attrs.define
class _Pending:
    callbacks: list[Callback]
    until: float


class CommitWatcher:
    """
    Finds out when callers' transactions have committed.

    No driver tells a library that its caller has committed, so the server is asked
    what became of the transaction: first after 2 ms, then at growing distances, all
    that are open in one statement. This needs no session, so it works behind poolers,
    and costs nothing while nothing is bound.
    """

    def __init__(self, connection: PostgresConnection) -> None:
        self._connection = connection
        self._pending: dict[str, _Pending] = {}
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    def add(self, xid: str, callback: Callback) -> None:
        """Run *callback* once the transaction *xid* has committed."""
        loop = asyncio.get_running_loop()
        pending = self._pending.get(xid)
        if pending is not None:
            pending.callbacks.append(callback)
            return
        self._pending[xid] = _Pending([callback], loop.time() + _GIVE_UP_AFTER)
        self._news.set()
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._watch(), name="oqron-postgres-commits")

    async def close(self) -> None:
        """Stop watching."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _watch(self) -> None:
        wait = _FIRST_LOOK
        while self._pending:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), wait)
            wait = _FIRST_LOOK if self._news.is_set() else min(_LAST_LOOK, wait * 1.5)
            try:
                await self._look()
            except OqronError as error:
                log.debug("cannot see what became of a transaction: %s", error)
                wait = _LAST_LOOK

    async def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        params = {"doc": _document(list(self._pending))}
        for xid, fate in await self._connection.fetch(_FATE, params, idempotent=True):
            if fate == "in progress" and now < self._pending[xid].until:
                continue
            pending = self._pending.pop(xid)
            if fate == "committed":
                for callback in pending.callbacks:
                    await _call(callback)


def _document(xids: list[str]) -> bytes:
    return b"[" + b",".join(b'"%s"' % xid.encode() for xid in xids) + b"]"


async def _call(callback: Callback) -> None:
    try:
        await callback()
    except Exception:  # the watcher outlives a callback
        log.warning("what was to follow a commit failed; reconcile will do it", exc_info=True)
