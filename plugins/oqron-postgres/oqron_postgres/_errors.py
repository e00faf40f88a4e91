"""The one place where errors of the driver become errors of oqron."""

from __future__ import annotations

import contextlib
import re

from collections.abc import Iterator
from typing import Final

import psycopg

from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from oqron_core.exceptions import (
    ClosedError,
    InvalidValueError,
    OqronError,
    SchemaError,
    StorageError,
    TimedOutError,
    UnavailableError,
)


__all__ = ["APPLY", "is_transient", "reason_of", "refused", "translate", "translated"]

APPLY: Final = "run `oqron schema apply`"
"""What mends a schema."""

_ROLLED_BACK: Final = frozenset({"40001", "40P01"})
_SCHEMA: Final = frozenset({"42P01", "42703", "3F000", "42883", "42P10"})
_TIMED_OUT: Final = frozenset({"57014", "55P03", "25P03", "25P04"})
_NO_DATABASE: Final = re.compile(r'database ".*" does not exist')
_NOT_LET_IN: Final = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|"
    r'role ".*" (does not exist|is not permitted to log in)|permission denied for database'
)
_CLASSES_UNAVAILABLE: Final = frozenset({"08", "53", "57", "58"})
_CLASSES_VALUE: Final = frozenset({"22", "23", "54"})


def _sqlstate(error: BaseException) -> str:
    # SQLAlchemy wraps the driver's error, whatever the driver is.
    inner = getattr(error, "orig", None) or error
    state = getattr(inner, "sqlstate", None) or getattr(inner, "pgcode", None)
    return state if isinstance(state, str) else ""


def is_transient(error: BaseException) -> bool:
    """Whether the server rolled the statement back and asks to try again."""
    return _sqlstate(error) in _ROLLED_BACK


def _is_driver_error(error: BaseException) -> bool:
    if isinstance(error, (psycopg.Error, PoolTimeout, PoolClosed, TooManyRequests)):
        return True
    # Of a caller's own connection; imported by whoever made one.
    return type(error).__module__.split(".")[0] in {
        "sqlalchemy",
        "psycopg",
        "psycopg2",
        "asyncpg",
        "pg8000",
    }


def refused(error: BaseException) -> OqronError | None:
    """
    Say why the server lets nobody in, where trying again is no use; None otherwise.

    The driver gives no SQLSTATE for it, only the server's words.
    """
    if not isinstance(error, psycopg.OperationalError):
        return None
    text = str(error)
    if _NO_DATABASE.search(text):
        return SchemaError(
            "the database of postgres.url does not exist; create it, or name another"
        )
    if _NOT_LET_IN.search(text):
        msg = "PostgreSQL refused the user or the password; see postgres.url and pg_hba.conf"
        return StorageError(msg)
    return None


_REASONS: Final = {
    r"Connection refused": "connection refused",
    r"resolve host|translate host name": "the name is not known",
    r"timeout expired|timed out": "timed out",
    r"No such file or directory": "no such socket",
    r"Permission denied": "permission denied",
    r"No route to host": "no route to host",
    r"Network is unreachable": "network is unreachable",
    r"starting up": "the server is starting up",
    r"shutting down": "the server is shutting down",
    r"in recovery mode|not yet accepting": "the server is recovering",
    r"too many (clients|connections)|connection slots": "it has no connection left",
    r"certificate|SSL|TLS": "TLS failed",
    r"closed the connection|reset by peer": "it closed the connection",
}


def reason_of(error: BaseException) -> str:
    """Say in plain words why no connection was made; empty where that is not known."""
    text = str(error)
    words = (said for told, said in _REASONS.items() if re.search(told, text))
    return next(words, "timed out" if isinstance(error, TimeoutError) else "")


def _pool_timeout(pool_size: int, pool_timeout: float) -> OqronError:
    msg = (
        f"no connection was free within {pool_timeout:g} s; all {pool_size} of the pool "
        "are in use. Raise pool_size or send fewer calls at once"
    )
    return TimedOutError(msg)


def _of_state(state: str) -> OqronError | None:  # noqa: PLR0911 - a table
    if state in _ROLLED_BACK:
        return UnavailableError("the transaction was rolled back by the server; run it again")
    if state in _SCHEMA:
        msg = f"the tables of oqron are missing or of another version; {APPLY}"
        return SchemaError(msg)
    if state == "57014":
        return TimedOutError("the statement took longer than statement_timeout allows")
    if state in _TIMED_OUT:
        return TimedOutError("the server ended the statement because of one of its timeouts")
    if state == "25006":
        msg = "the server is read-only: a standby, or default_transaction_read_only is on"
        return UnavailableError(msg)
    if state == "25P02":
        msg = "the caller's transaction has failed before; roll it back"
        return StorageError(msg)
    if state == "42501":
        msg = "the role may not do this; `oqron schema roles` prints what it needs"
        return StorageError(msg)
    if state == "53300":
        msg = "the server has no connection left; lower pool_size or raise max_connections"
        return UnavailableError(msg)
    if state[:2] in _CLASSES_VALUE:
        msg = f"is refused by PostgreSQL (SQLSTATE {state})"
        return InvalidValueError("value", msg)
    if state[:2] in _CLASSES_UNAVAILABLE:
        return UnavailableError(f"PostgreSQL does not serve calls now (SQLSTATE {state})")
    return None


def translate(
    error: BaseException, *, pool_size: int = 0, pool_timeout: float = 0.0
) -> OqronError | None:
    """
    Say what an error of the driver is in our words, or None if it is none.

    The messages hold a state code and a mend, never text of the driver: that may
    quote a row.
    """
    if isinstance(error, PoolTimeout):
        return _pool_timeout(pool_size, pool_timeout)
    if isinstance(error, PoolClosed):
        return ClosedError("the storage is closed")
    if not _is_driver_error(error):
        return None
    state = _sqlstate(error)
    if state:
        known = _of_state(state)
        return known or StorageError(f"PostgreSQL refused (SQLSTATE {state})")
    inner = getattr(error, "orig", None) or error
    if (ours := refused(inner)) is not None:
        return ours
    if isinstance(inner, psycopg.OperationalError) or getattr(
        error, "connection_invalidated", False
    ):
        return UnavailableError("the connection to PostgreSQL was lost or not made")
    return StorageError(f"PostgreSQL refused ({type(inner).__name__})")


def _quotes_rows(error: OqronError) -> bool:
    # The driver's text for these holds the row, which must not reach a log.
    return isinstance(error, InvalidValueError)


@contextlib.contextmanager
def translated(*, pool_size: int = 0, pool_timeout: float = 0.0) -> Iterator[None]:
    """Raise our errors in place of the driver's; cancellation passes untouched."""
    try:
        yield
    except OqronError:
        raise
    except Exception as error:
        ours = translate(error, pool_size=pool_size, pool_timeout=pool_timeout)
        if ours is None:
            raise
        if _quotes_rows(ours):
            raise ours from None
        raise ours from error
