"""Opening a file: SQLAlchemy's engine over the standard driver, and the tables."""

from __future__ import annotations

import sqlite3
import time

from collections.abc import Callable
from typing import Any, Final, cast

import orjson

from sqlalchemy import MetaData, create_engine, insert, select
from sqlalchemy.engine import Connection
from sqlalchemy.pool import NullPool

from oqron_core.exceptions import SchemaError, StorageError
from oqron_core.planes import canonical
from oqron_sqlite import tables
from oqron_sqlite._settings import SqliteSettings


__all__ = ["OLDEST", "File", "open_file"]

OLDEST: Final = (3, 38, 0)
"""The first SQLite with the operators ``->`` and ``->>``."""
_CACHE_KIB: Final = 16 * 1024
_WAL_PAGES: Final = 4000
"""After so many pages the log is written back: a flush, for which writers wait."""
_WAL_LIMIT: Final = 64 * 1024 * 1024
"""To this size the log is cut once it was written back."""


class File:
    """
    One connection to one file, for one thread.

    Attributes:
        driver: The driver's connection; hot statements run on it as they are.
    """

    __slots__ = ("_connection", "driver")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.driver = cast("sqlite3.Connection", connection.connection.driver_connection)

    def close(self) -> None:
        """Close it, and let SQLite write the log back if it is the last one."""
        self._connection.close()


def _canonical(value: str | None) -> str | None:
    """Give the one text of equal JSON values; for SQL."""
    return None if value is None else canonical(orjson.loads(value)).decode()


def _real(value: str) -> float:
    """Read a number as exactly as Python does; SQLite may be off by the last bit."""
    return float(value)


def _connect(path: str, settings: SqliteSettings) -> sqlite3.Connection:
    driver = sqlite3.connect(
        path,
        timeout=settings.busy_timeout,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=512,
    )
    driver.create_function("oqron_canonical", 1, _canonical, deterministic=True)
    driver.create_function("oqron_real", 1, _real, deterministic=True)
    for pragma in (
        f"synchronous = {settings.synchronous}",
        f"cache_size = -{_CACHE_KIB}",
        f"journal_size_limit = {_WAL_LIMIT}",
        f"wal_autocheckpoint = {_WAL_PAGES}",
        "temp_store = memory",
    ):
        driver.execute(f"PRAGMA {pragma}").close()
    return driver


def open_file(path: str, settings: SqliteSettings, *metadata: MetaData) -> File:
    """
    Open *path*, and make the tables of *metadata* where they are not there.

    Raises:
        StorageError: This SQLite is too old, or keeps no write-ahead log there.
        SchemaError: The tables are of a newer version.
    """
    if sqlite3.sqlite_version_info < OLDEST:
        needed = ".".join(map(str, OLDEST))
        msg = (
            f"SQLite {sqlite3.sqlite_version} is too old: {needed} is needed, which "
            "comes with the Python of a newer system"
        )
        raise StorageError(msg)
    engine = create_engine(
        "sqlite+pysqlite://",
        creator=lambda: _connect(path, settings),
        poolclass=NullPool,
        # The driver is in autocommit; transactions are begun by hand, as IMMEDIATE.
        isolation_level="AUTOCOMMIT",
    )
    connection = engine.connect()
    try:
        file = File(connection)
        _log_ahead(file.driver, path, settings.busy_timeout)
        if metadata:
            _patiently(lambda: _make(connection, path, metadata), settings.busy_timeout)
    except BaseException:
        connection.close()
        raise
    return file


def _log_ahead(driver: sqlite3.Connection, path: str, timeout: float) -> None:
    def switch() -> Any:
        return driver.execute("PRAGMA journal_mode = wal").fetchone()[0]

    mode = _patiently(switch, timeout)
    if mode != "wal":
        msg = (
            f"{path}: SQLite keeps no write-ahead log there (journal_mode is {mode}); "
            "put the file on a disk of this machine"
        )
        raise StorageError(msg)


def _patiently(step: Callable[[], Any], timeout: float) -> Any:
    # Switching the journal ignores the busy handler, and processes start together.
    deadline = time.monotonic() + timeout
    while True:
        try:
            return step()
        except sqlite3.OperationalError as error:
            busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > deadline:
                raise
        time.sleep(0.005)


def _make(connection: Connection, path: str, metadata: tuple[MetaData, ...]) -> None:
    driver = cast("sqlite3.Connection", connection.connection.driver_connection)
    driver.execute("BEGIN IMMEDIATE")
    try:
        tables.META.create_all(connection)
        _check_version(connection, path)
        for one in metadata:
            one.create_all(connection)
        driver.execute("COMMIT")
    except BaseException:
        driver.execute("ROLLBACK")
        raise


def _check_version(connection: Connection, path: str) -> None:
    meta = tables.meta
    found = connection.scalar(select(meta.c.value).where(meta.c.name == "version"))
    if found is None:
        connection.execute(insert(meta).values(name="version", value=str(tables.VERSION)))
    elif found != str(tables.VERSION):
        msg = (
            f"{path}: has tables of version {found}, and this oqron-sqlite knows "
            f"version {tables.VERSION}; install the one that made them"
        )
        raise SchemaError(msg)
