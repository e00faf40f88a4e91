"""The pool that a storage's planes share, and how a statement runs on it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import select

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import psycopg

from psycopg import conninfo as libpq
from psycopg_pool import AsyncConnectionPool

from oqron_core.exceptions import (
    ClosedError,
    ConfigError,
    OqronError,
    TimedOutError,
    UnavailableError,
)
from oqron_postgres._errors import is_transient, reason_of, refused, translated
from oqron_postgres._links import PsycopgLink, Rows
from oqron_postgres._sqltext import Names, Statement
from oqron_postgres._statements import StatementBook
from oqron_postgres.settings import PostgresSettings


__all__ = ["PooledLink", "PostgresConnection", "open_connection", "raw_connection"]

log = logging.getLogger("oqron.postgres")

_T = TypeVar("_T")

CLOSE_WITHIN: Final = 5.0
"""Seconds that closing may take, also where the server is frozen."""
_GRACE: Final = 1.0
"""Seconds after which the client gives up a statement that the server should have."""
_CANCEL_WITHIN: Final = 0.5
"""Seconds that asking a server to give a statement up may take."""
_RETRY_AFTER: Final = 0.5
"""Seconds between the attempts to connect to a server that is down."""
_ATTEMPTS: Final = 12
"""How often what the server rolled back is tried; the last waits are 0.3 s."""


def _conninfo(settings: PostgresSettings) -> str:
    """Give the URL in the form of libpq."""
    return settings.url.replace("postgresql+psycopg://", "postgresql://", 1)


def _session_options(settings: PostgresSettings) -> str | None:
    """Give the session settings, sent while connecting: they cost no round trip."""
    if not settings.prepared_statements:
        return None
    options = []
    if settings.statement_timeout is not None:
        options.append(f"-c statement_timeout={max(1, round(settings.statement_timeout * 1000))}")
    if settings.synchronous_commit is not None:
        options.append(f"-c synchronous_commit={settings.synchronous_commit}")
    if not options:
        return None
    # What is asked by id then has one plan, which the server may keep: see `Statement`.
    # Everything here leads with project and environment, so there always is an index.
    return " ".join(["-c enable_seqscan=off", *options])


def connect_arguments(settings: PostgresSettings) -> dict[str, Any]:
    """Give what goes with the URL: never a secret."""
    arguments: dict[str, Any] = {
        "autocommit": True,
        "connect_timeout": max(1, round(settings.connect_timeout)),
        "application_name": settings.application_name,
        # What is sent and read is UTF-8, whatever the URL or the environment says.
        "client_encoding": "UTF8",
        # None turns them off: then psycopg keeps nothing in the session.
        "prepare_threshold": 5 if settings.prepared_statements else None,
    }
    options = _session_options(settings)
    if options is not None:
        given = libpq.conninfo_to_dict(_conninfo(settings)).get("options")
        arguments["options"] = f"{given} {options}" if given else options
    return arguments


def check_url(settings: PostgresSettings) -> None:
    """
    See that libpq can read the URL.

    Raises:
        ConfigError: It cannot. Without a cause: libpq quotes the URL.
    """
    try:
        libpq.conninfo_to_dict(_conninfo(settings))
    except psycopg.Error:
        msg = (
            "postgres.url: libpq cannot read it; percent-encode special characters in "
            "the user and the password, and check the parameters behind the ?"
        )
        raise ConfigError(msg) from None


def where(settings: PostgresSettings) -> dict[str, str]:
    """Give host, port and database of the URL: what may be shown."""
    parts = libpq.conninfo_to_dict(_conninfo(settings))
    return {
        "host": str(parts.get("host") or parts.get("hostaddr") or "local socket"),
        "port": str(parts.get("port") or 5432),
        "database": str(parts.get("dbname") or parts.get("user") or ""),
    }


def address(settings: PostgresSettings) -> str:
    """Give what is connected to, as errors name it: no user, password or parameter."""
    parts = libpq.conninfo_to_dict(_conninfo(settings))
    named = parts.get("host") or parts.get("hostaddr") or os.environ.get("PGHOST")
    hosts = str(named or "").split(",")
    ports = str(parts.get("port") or os.environ.get("PGPORT") or 5432).split(",")
    # One port stands for all hosts.
    pairs = zip(hosts, ports if len(ports) == len(hosts) else ports * len(hosts), strict=False)
    return ", ".join(_one_address(host, port) for host, port in pairs)


def _one_address(host: str, port: str) -> str:
    if not host:
        return f"the local socket of port {port}"
    if host.startswith("/"):
        return f"{host}/.s.PGSQL.{port}"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextlib.asynccontextmanager
async def raw_connection(
    settings: PostgresSettings,
) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """
    Open one connection outside any pool: for schema work.

    Raises:
        UnavailableError: The server did not answer.
        ConfigError: The URL cannot be read.
    """
    check_url(settings)
    with translated():
        arguments = connect_arguments(settings)
        # An index on a large table takes its time.
        arguments.pop("options", None)
        try:
            connection = await psycopg.AsyncConnection.connect(_conninfo(settings), **arguments)
        except psycopg.OperationalError as error:
            raise _not_taken(error, settings) from error
    try:
        with translated():
            yield connection
    finally:
        await connection.close()


def _has_input(connection: psycopg.AsyncConnection[Any]) -> bool:
    if not hasattr(select, "poll"):
        return False
    poller = select.poll()
    poller.register(connection.fileno(), select.POLLIN)
    return bool(poller.poll(0))


class _Connection(psycopg.AsyncConnection[Any]):
    """A connection that knows since when it has been seen to work."""

    generation: int = -1

    async def cancel_safe(self, *, timeout: float = 30.0) -> None:
        """Ask the server to give a statement up; one that does not hear it is left."""
        try:
            await super().cancel_safe(timeout=min(timeout, _CANCEL_WITHIN))
        except Exception:
            # The driver would wait for the statement's end, seconds more.
            self.pgconn.finish()
            raise


class PostgresConnection:
    """
    The pool, its health, and the statements of one schema and prefix.

    Attributes:
        settings: As given.
        names: What everything is called.
        book: The statements.
        read_committed: Whether that is the isolation of its sessions.
        keyed: Whether its sessions do not walk tables where there is an index.
        database: The database, as the server calls it.
    """

    def __init__(self, settings: PostgresSettings) -> None:
        self.settings = settings
        self.names = Names.of(settings)
        self.book = StatementBook(self.names)
        self.read_committed = True
        self.keyed = False
        self.database = ""
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._deadlines: set[asyncio.Timeout] = set()
        # Counts failures: a connection from before the last one is tested when it is lent.
        self._generation = 0
        self._waiting: set[asyncio.Future[BaseException]] = set()
        self._returning: set[asyncio.Task[None]] = set()
        self._lent = 0
        self._pool = self._make_pool()

    # --- life ---

    def _make_pool(self) -> AsyncConnectionPool[_Connection]:
        owner = self

        class Watched(_Connection):
            @classmethod
            async def connect(cls, conninfo: str = "", **kwargs: Any) -> Any:
                try:
                    # The URL is put in here, so that no frame of ours ever holds it.
                    connection = await super().connect(
                        conninfo or _conninfo(owner.settings), **kwargs
                    )
                except Exception as error:
                    owner._connect_failed(error)
                    raise
                connection.generation = owner._generation
                return connection

        return AsyncConnectionPool(
            "",
            connection_class=Watched,
            kwargs=connect_arguments(self.settings),
            min_size=1,
            max_size=self.settings.pool_size,
            timeout=self.settings.pool_timeout,
            reconnect_timeout=_RETRY_AFTER,
            num_workers=2,
            name="oqron",
            open=False,
        )

    async def open(self) -> None:
        """Start the pool."""
        await self._pool.open()

    async def close(self) -> None:
        """Close every connection; takes 5 s at most, whatever the server does."""
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._pid:
            return
        for deadline in self._deadlines:
            # Who waits for an answer is told so now.
            deadline.reschedule(self._loop.time())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN + 1.0):
                await self._pool.close(timeout=CLOSE_WITHIN)

    def _check_usable(self) -> None:
        if self._closed:
            raise ClosedError("the storage is closed")
        if os.getpid() != self._pid:
            msg = "the storage was opened before a fork; open one in the child process"
            raise ClosedError(msg)
        if asyncio.get_running_loop() is not self._loop:
            msg = "the storage belongs to another event loop; open one in this loop"
            raise ClosedError(msg)

    def stats(self) -> dict[str, int]:
        """Give the pool's own figures."""
        return self._pool.get_stats()

    # --- checkout ---

    def _is_known(self, connection: _Connection) -> bool:
        # A connection that has something to say while it is idle is mostly one that the
        # server has ended; asking the socket costs next to nothing.
        return connection.generation == self._generation and not _has_input(connection)

    async def _works(self, connection: _Connection) -> bool:
        if self._is_known(connection):
            return True
        generation = self._generation
        try:
            await AsyncConnectionPool.check_connection(connection)
        except psycopg.Error:
            return False
        connection.generation = generation
        return True

    def _connect_failed(self, error: BaseException) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(error)

    async def _lend(self) -> _Connection:
        """Give a connection that works; the usual one, which was seen to, at once."""
        connection: _Connection | None = None
        if self._pool.get_stats().get("pool_available", 0) > 0:
            connection = await self._pool.getconn()
        if connection is None or not self._is_known(connection):
            connection = await self._checkout_in_time(connection)
        self._lent += 1
        return connection

    async def _give_back(self, connection: _Connection) -> None:
        self._lent -= 1
        await self._pool.putconn(connection)

    def _failed(self, connection: _Connection) -> None:
        if connection.closed:
            # The others may have been cut as well.
            self._generation += 1

    async def _checkout_in_time(self, first: _Connection | None) -> _Connection:
        # The pool's own limit does not count what a frozen server makes a test take.
        limit = self.settings.pool_timeout + _GRACE
        return await self._within(limit, self._checkout(first), limit)

    async def _checkout(self, first: _Connection | None) -> _Connection:
        # The pool's own check would wait a second between two dead connections; here
        # they are thrown out one after the other, and a refused attempt to connect is
        # known at once.
        connection = first
        while True:
            if connection is None:
                connection = await self._take()
            try:
                if await self._works(connection):
                    return connection
                await connection.close()
            except BaseException:
                await self._pool.putconn(connection)
                raise
            await self._pool.putconn(connection)
            connection = None

    async def _take(self) -> _Connection:
        if self._pool.get_stats().get("pool_available", 0) > 0:
            return await self._pool.getconn()
        getting = asyncio.ensure_future(self._pool.getconn())
        try:
            return await self._first_of(getting)
        except BaseException:
            # It may have come in the very moment in which we were cancelled.
            getting.cancel()
            getting.add_done_callback(self._put_back)
            raise

    async def _first_of(self, getting: asyncio.Future[_Connection]) -> _Connection:
        # Whoever waits while the server refuses connections learns it at once, unless
        # others hold connections that will come back.
        while True:
            failed: asyncio.Future[BaseException] = self._loop.create_future()
            self._waiting.add(failed)
            either: set[asyncio.Future[Any]] = {getting, failed}
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._waiting.discard(failed)
            if getting.done():
                return getting.result()
            if self._lent == 0:
                raise _not_taken(failed.result(), self.settings) from failed.result()

    def _put_back(self, got: asyncio.Future[_Connection]) -> None:
        """Give a connection back that nobody waits for any more."""
        if got.cancelled() or got.exception() is not None:
            return
        task = self._loop.create_task(self._pool.putconn(got.result()), name="oqron-put-back")
        # Kept until it is done, as asyncio keeps only weak references.
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    @contextlib.asynccontextmanager
    async def acquire(self) -> AsyncIterator[_Connection]:
        """
        Lend a connection.

        Raises:
            TimedOutError: None was free in time.
            UnavailableError: The server takes no connections.
            ClosedError: The storage is closed, or of another process or loop.
        """
        self._check_usable()
        with translated(pool_size=self.settings.pool_size, pool_timeout=self.settings.pool_timeout):
            connection = await self._lend()
            try:
                yield connection
            except BaseException:
                self._failed(connection)
                raise
            finally:
                await self._give_back(connection)

    # --- work ---

    def _in_time(self, work: Awaitable[_T]) -> Awaitable[_T]:
        limit = self.settings.statement_timeout
        return self._within(None if limit is None else limit + _GRACE, work, limit)

    async def _within(self, seconds: float | None, work: Awaitable[_T], said: float | None) -> _T:
        """Wait for *work* for so many seconds, *said* in the error, or until we are closed."""
        deadline = asyncio.timeout(seconds)
        try:
            async with deadline:
                self._deadlines.add(deadline)
                return await work
        except TimeoutError as error:
            if not deadline.expired():
                raise
            if self._closed:
                msg = "the storage was closed before there was an answer; it may have been done"
                raise ClosedError(msg) from error
            msg = f"PostgreSQL did not answer within {said:g} s at {address(self.settings)}"
            raise TimedOutError(msg) from error
        finally:
            self._deadlines.discard(deadline)

    async def run(
        self,
        work: Callable[[PooledLink], Awaitable[_T]],
        *,
        idempotent: bool = False,
    ) -> _T:
        """
        Lend a link to *work*, and try again what the server rolled back.

        Args:
            work: Runs statements; called anew for every attempt.
            idempotent: Try again also where the connection was lost.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self._run_once(work)
            except UnavailableError as error:
                cause = error.__cause__
                lost = isinstance(cause, psycopg.OperationalError)
                timed_out = isinstance(error, TimedOutError)
                again = cause is not None and is_transient(cause)
                if not again and not (idempotent and lost and not timed_out and attempt == 1):
                    raise
                if attempt >= _ATTEMPTS:
                    raise
                if again:
                    await asyncio.sleep(random.uniform(0.2, 1.0) * min(0.3, 0.002 * 2**attempt))  # noqa: S311 - spreads retries

    async def _run_once(self, work: Callable[[PooledLink], Awaitable[_T]]) -> _T:
        # As `acquire`, but for each statement: without a generator in between.
        self._check_usable()
        with translated(pool_size=self.settings.pool_size, pool_timeout=self.settings.pool_timeout):
            connection = await self._lend()
            try:
                return await self._in_time(work(PooledLink(connection, self)))
            except BaseException:
                self._failed(connection)
                raise
            finally:
                await self._give_back(connection)

    async def fetch(
        self, statement: Statement, params: Mapping[str, Any], *, idempotent: bool = False
    ) -> Rows:
        """Run one statement in a transaction of its own and give its rows."""
        return await self.run(lambda link: link.fetch(statement, params), idempotent=idempotent)


def _not_taken(error: BaseException, settings: PostgresSettings) -> OqronError:
    """Say why no connection is made; the driver's text for that quotes no row."""
    if "startup parameter" in str(error):
        msg = (
            "postgres: a pooler refuses the session settings; set "
            "prepared_statements = false, and statement_timeout on the role"
        )
        return ConfigError(msg)
    text = f"PostgreSQL takes no connections at {address(settings)}"
    reason = reason_of(error)
    return refused(error) or UnavailableError(f"{text}: {reason}" if reason else text)


class PooledLink(PsycopgLink):
    """A connection of our pool, which can also carry a transaction of several steps."""

    __slots__ = ("_owner",)

    def __init__(self, connection: _Connection, owner: PostgresConnection) -> None:
        super().__init__(connection, keyed=owner.keyed)
        self._owner = owner

    async def fetch(self, statement: Statement, params: Mapping[str, Any]) -> Rows:
        """
        Run one statement in a transaction of its own and give its rows.

        Where the role's default is a stricter isolation, the statement still runs in
        READ COMMITTED: its locks make it right, and nothing has to be run again.
        """
        if self._owner.read_committed:
            return await super().fetch(statement, params)
        async with self.transaction() as send:
            cursor = await send(statement, params)
            return await cursor.fetchall()

    @contextlib.asynccontextmanager
    async def transaction(
        self,
    ) -> AsyncIterator[Callable[..., Awaitable[psycopg.AsyncCursor[Any]]]]:
        """
        Run statements in one transaction: commit at the end, roll back on an error.

        What is sent travels together, so it takes a round trip for each time that rows
        are fetched, not one for each statement.
        """
        connection = self._connection
        self._pipelined = True
        async with connection.pipeline() as pipeline:
            try:
                await connection.execute(_BEGIN, prepare=False)
                yield self.send
                await connection.execute("COMMIT", prepare=False)
                # An error of the COMMIT itself comes up here.
                await pipeline.sync()
            except Exception:
                with contextlib.suppress(psycopg.Error):
                    # What follows an error is not run until both sides agree again.
                    await pipeline.sync()
                with contextlib.suppress(psycopg.Error):
                    await connection.execute("ROLLBACK", prepare=False)
                    await pipeline.sync()
                raise
            except BaseException:
                # Cancelled between two steps, nobody is left to send the rest. The
                # server rolls back and frees the rows at once when the line is cut;
                # the pool opens another.
                connection.pgconn.finish()
                raise


_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"


@contextlib.asynccontextmanager
async def open_connection(settings: PostgresSettings) -> AsyncIterator[PostgresConnection]:
    """
    Open the pool and check the schema.

    Raises:
        SchemaError: See `oqron_postgres.connect`.
        UnavailableError: The server did not answer.
        ConfigError: The URL cannot be read.
    """
    from oqron_postgres.schema import ensure_schema  # noqa: PLC0415 - it needs a connection

    check_url(settings)
    connection = PostgresConnection(settings)
    try:
        await connection.open()
        await ensure_schema(connection)
        place = where(settings)
        log.info(
            "opened %s:%s/%s, tables %s_*",
            place["host"],
            place["port"],
            place["database"],
            settings.table_prefix,
        )
        yield connection
    finally:
        await connection.close()
