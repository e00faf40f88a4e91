"""
How a statement reaches the server: our own pool, or a caller's connection.

A link runs one statement and gives its rows. A parameter of type bytes is a JSON
document.
"""

from __future__ import annotations

import asyncio

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import psycopg

from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.json import Jsonb

from oqron_core.exceptions import CapabilityError, InvalidValueError
from oqron_postgres._sqltext import Statement


__all__ = ["Link", "PsycopgLink", "Rows", "link_of"]

Rows = Sequence[Sequence[Any]]


def _same(data: bytes) -> bytes:
    return data


def psycopg_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Hand documents over as they are: they are encoded already."""
    return {
        name: Jsonb(value, dumps=_same) if type(value) is bytes else value
        for name, value in params.items()
    }


def text_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """For drivers that we know nothing of, a document is a text."""
    return {
        name: value.decode() if type(value) is bytes else value for name, value in params.items()
    }


class Link(Protocol):
    """One transaction's way to the server."""

    async def fetch(self, statement: Statement, params: Mapping[str, Any]) -> Rows:
        """Run a statement and give all its rows."""
        ...

    async def execute(self, statement: Statement) -> None:
        """Run a statement that gives no rows."""
        ...


class PsycopgLink:
    """A psycopg connection: one of ours, or a caller's."""

    __slots__ = ("_connection", "_keyed", "_pipelined")

    def __init__(self, connection: psycopg.AsyncConnection[Any], *, keyed: bool = False) -> None:
        self._connection = connection
        # Whether the session does not walk tables: see `Statement.keyed`.
        self._keyed = keyed
        # In a pipeline psycopg takes a statement for prepared before the server has
        # said so, and goes on believing it after an error.
        self._pipelined = False

    async def send(
        self, statement: Statement, params: Mapping[str, Any]
    ) -> psycopg.AsyncCursor[Any]:
        """Run a statement; in a pipeline its rows are there after the next fetch."""
        cursor = self._connection.cursor(row_factory=tuple_row)
        prepare = statement.prepare or (statement.keyed and self._keyed)
        await cursor.execute(
            statement.raw,
            psycopg_params(params),
            prepare=None if prepare and not self._pipelined else False,
        )
        return cursor

    @property
    def speaks_utf8(self) -> bool:
        """Whether texts go over the wire as our own do."""
        return self._connection.info.encoding == "utf-8"

    async def copy(self, statement: bytes, data: bytes) -> None:
        """Send rows in the binary form of COPY."""
        async with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            await copy.write(data)

    async def fetch(self, statement: Statement, params: Mapping[str, Any]) -> Rows:
        """Run a statement and give all its rows."""
        cursor = await self.send(statement, params)
        return await cursor.fetchall()

    async def execute(self, statement: Statement) -> None:
        """Run a statement that gives no rows."""
        await self.send(statement, {})


class SyncPsycopgLink:
    """A caller's blocking psycopg connection, used in a thread."""

    __slots__ = ("_connection",)

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    async def fetch(self, statement: Statement, params: Mapping[str, Any]) -> Rows:
        """Run a statement and give all its rows."""
        return await asyncio.to_thread(self._fetch, statement, params)

    async def execute(self, statement: Statement) -> None:
        """Run a statement that gives no rows."""
        await asyncio.to_thread(self._connection.execute, statement.raw)

    def _fetch(self, statement: Statement, params: Mapping[str, Any]) -> Rows:
        cursor = self._connection.cursor(row_factory=tuple_row)
        cursor.execute(
            statement.raw,
            psycopg_params(params),
            prepare=None if statement.prepare else False,
        )
        return cursor.fetchall()


class AlchemyLink:
    """A caller's SQLAlchemy AsyncConnection or AsyncSession, whatever its driver."""

    __slots__ = ("_target",)

    def __init__(self, target: Any) -> None:
        self._target = target

    async def fetch(self, statement: Statement, params: Mapping[str, Any]) -> Rows:
        """Run a statement and give all its rows."""
        result = await self._target.execute(statement.clause, text_params(params))
        return [tuple(row) for row in result.all()]

    async def execute(self, statement: Statement) -> None:
        """Run a statement that gives no rows."""
        await self._target.execute(statement.clause)


class SyncAlchemyLink:
    """A caller's blocking SQLAlchemy Connection or Session, used in a thread."""

    __slots__ = ("_target",)

    def __init__(self, target: Any) -> None:
        self._target = target

    async def fetch(self, statement: Statement, params: Mapping[str, Any]) -> Rows:
        """Run a statement and give all its rows."""
        return await asyncio.to_thread(self._fetch, statement, params)

    async def execute(self, statement: Statement) -> None:
        """Run a statement that gives no rows."""
        await asyncio.to_thread(self._target.execute, statement.clause)

    def _fetch(self, statement: Statement, params: Mapping[str, Any]) -> Rows:
        result = self._target.execute(statement.clause, text_params(params))
        return [tuple(row) for row in result.all()]


def link_of(transaction: Any) -> Link:
    """
    Make the link of a caller's connection or session.

    Raises:
        CapabilityError: It is none of those that are supported.
        InvalidValueError: It is in autocommit, and in no transaction.
    """
    if isinstance(transaction, psycopg.AsyncConnection):
        _check_transaction(transaction)
        return PsycopgLink(transaction)
    if isinstance(transaction, psycopg.Connection):
        _check_transaction(transaction)
        return SyncPsycopgLink(transaction)
    link = _alchemy_link(transaction)
    if link is None:
        msg = (
            f"transaction= takes a SQLAlchemy AsyncConnection, AsyncSession, Connection or "
            f"Session, or a psycopg AsyncConnection or Connection, not a "
            f"{type(transaction).__module__}.{type(transaction).__qualname__}"
        )
        raise CapabilityError(msg)
    return link


def _check_transaction(connection: psycopg.BaseConnection[Any]) -> None:
    if connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE:
        reason = "is in autocommit and in no transaction, so nothing could be rolled back"
        raise InvalidValueError("transaction", reason)


def _alchemy_link(transaction: Any) -> Link | None:
    # Imported here: most processes never bind.
    from sqlalchemy import Connection  # noqa: PLC0415
    from sqlalchemy.ext.asyncio import (  # noqa: PLC0415
        AsyncConnection,
        AsyncSession,
        async_scoped_session,
    )
    from sqlalchemy.orm import Session, scoped_session  # noqa: PLC0415

    if isinstance(transaction, (AsyncConnection, AsyncSession, async_scoped_session)):
        return AlchemyLink(transaction)
    if isinstance(transaction, (Connection, Session, scoped_session)):
        return SyncAlchemyLink(transaction)
    return None
