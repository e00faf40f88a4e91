"""The one place where errors of the driver become errors of oqron."""

from __future__ import annotations

import sqlite3

from typing import Final

from sqlalchemy.exc import DBAPIError

from oqron_core.exceptions import (
    InvalidValueError,
    OqronError,
    SchemaError,
    StorageError,
    TimedOutError,
    UnavailableError,
)


__all__ = ["translate"]

_UNAVAILABLE: Final = {
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened; is its folder there and writable?",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk reports an error",
    sqlite3.SQLITE_NOMEM: "there is no memory left",
    sqlite3.SQLITE_PERM: "the file may not be opened; look at its permissions",
    sqlite3.SQLITE_READONLY: "the file may not be written; look at its permissions",
}


def translate(error: BaseException, *, path: str) -> OqronError | None:
    """
    Say what an error of the driver is in our words, or None if it is none.

    The messages name the file and a mend, never a value.
    """
    if isinstance(error, DBAPIError) and error.orig is not None:
        error = error.orig
    if isinstance(error, OverflowError):
        return InvalidValueError("value", "has an integer of more than 64 bits")
    return _of_driver(error, path) if isinstance(error, sqlite3.Error) else None


def _of_driver(error: sqlite3.Error, path: str) -> OqronError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        msg = (
            f"{path}: another process held the file for longer than busy_timeout; "
            "nothing was written"
        )
        return TimedOutError(msg)
    if code in _UNAVAILABLE:
        return UnavailableError(f"{path}: {_UNAVAILABLE[code]}")
    if code == sqlite3.SQLITE_NOTADB:
        return SchemaError(f"{path}: is no SQLite file")
    if code == sqlite3.SQLITE_CORRUPT:
        msg = f"{path}: is damaged; restore a copy, or see `PRAGMA integrity_check`"
        return StorageError(msg)
    if code == sqlite3.SQLITE_TOOBIG:
        return InvalidValueError("value", "is larger than SQLite stores")
    if code == sqlite3.SQLITE_ERROR and "no such table" in str(error):
        return SchemaError(f"{path}: tables of oqron are missing; open the storage anew")
    return StorageError(f"{path}: SQLite refused ({type(error).__name__}, code {code})")
