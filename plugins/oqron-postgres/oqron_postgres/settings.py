"""The settings of the backend: the section ``[postgres]``."""

from __future__ import annotations

import math

from typing import Any, Final

import attrs

from oqron_core.exceptions import InvalidValueError


__all__ = ["MAX_PREFIX_BYTES", "PostgresSettings"]

MAX_IDENTIFIER_BYTES: Final = 63
"""What PostgreSQL keeps of an identifier; it cuts the rest off silently."""
LONGEST_SUFFIX: Final = "_records_pkey"
"""The longest name that is made by appending to the prefix."""
MAX_PREFIX_BYTES: Final = MAX_IDENTIFIER_BYTES - len(LONGEST_SUFFIX)
"""The longest ``table_prefix``, in bytes of UTF-8."""

_SCHEMES: Final = ("postgresql://", "postgres://", "postgresql+psycopg://")
_SYNCHRONOUS: Final = ("on", "off", "local", "remote_write", "remote_apply")


def _identifier(limit: int) -> Any:
    def check(_: Any, attribute: Any, value: object) -> None:
        if type(value) is not str or not value or "\0" in value:
            raise InvalidValueError(attribute.name, "must be a string that is not empty")
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise InvalidValueError(attribute.name, "has a lone surrogate") from None
        if size > limit:
            reason = (
                f"has {size} bytes; at most {limit} are allowed, since PostgreSQL cuts "
                "longer names off and two tables would become one"
            )
            raise InvalidValueError(attribute.name, reason)

    return check


def _url(_: Any, attribute: Any, value: Any) -> None:
    # Never the value: it may hold a password.
    if type(value) is not str or not value.startswith(_SCHEMES):
        reason = "must be a URL such as postgresql://user@host:5432/database"
        raise InvalidValueError(attribute.name, reason)


def _seconds(_: Any, attribute: Any, value: object) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise InvalidValueError(attribute.name, f"must be seconds, not {value!r}")
    if not math.isfinite(value) or value <= 0:
        raise InvalidValueError(attribute.name, f"must be over 0 seconds, not {value!r}")


def _optional_seconds(instance: Any, attribute: Any, value: object) -> None:
    if value is not None:
        _seconds(instance, attribute, value)


def _positive(_: Any, attribute: Any, value: object) -> None:
    if type(value) is not int or value < 1:
        raise InvalidValueError(attribute.name, f"must be an int of at least 1, not {value!r}")


def _flag(_: Any, attribute: Any, value: object) -> None:
    if type(value) is not bool:
        raise InvalidValueError(attribute.name, f"must be true or false, not {value!r}")


def _application_name(_: Any, attribute: Any, value: object) -> None:
    if type(value) is not str or not value.isascii() or not value.isprintable():
        raise InvalidValueError(attribute.name, "must be printable ASCII")


def _synchronous(_: Any, attribute: Any, value: object) -> None:
    if value is not None and value not in _SYNCHRONOUS:
        reason = f"must be one of {', '.join(_SYNCHRONOUS)}, not {value!r}"
        raise InvalidValueError(attribute.name, reason)


@attrs.frozen(kw_only=True)
class PostgresSettings:
    """
    Where the server is and how to use it.

    Attributes:
        url: ``postgresql://user:password@host:5432/database``. What libpq takes as
            a parameter may follow a ``?``, such as ``sslmode=verify-full`` and
            ``sslrootcert=…`` for TLS. Never shown.
        schema: The PostgreSQL schema of the tables. Every statement names it, so
            ``search_path`` does not matter.
        table_prefix: What the names of the tables begin with; any characters.
        pool_size: The largest number of connections of one storage.
        pool_timeout: Seconds that a call waits for a free connection.
        connect_timeout: Seconds that a new connection may take.
        statement_timeout: Seconds that one statement may take, held by the server
            and, should that not answer, by the client; None for no limit.
        application_name: How the connections show in ``pg_stat_activity``.
        synchronous_commit: ``on``, ``off``, ``local``, ``remote_write`` or
            ``remote_apply``; None for the server's own setting. With ``off`` what
            was acknowledged in the last moments may be lost in a crash.
        prepared_statements: Turn off behind a pooler in transaction mode. Then
            nothing is kept in a session, and no session setting is sent:
            set ``statement_timeout`` and ``synchronous_commit`` on the role.
        create_schema: Whether opening may create the tables where there are none.
            An existing schema is never changed on opening.
        allow_v1: Open although the table of the v1 layout holds rows.
    """

    url: str = attrs.field(repr=False, validator=_url)
    schema: str = attrs.field(default="public", validator=_identifier(MAX_IDENTIFIER_BYTES))
    table_prefix: str = attrs.field(default="oqron", validator=_identifier(MAX_PREFIX_BYTES))
    pool_size: int = attrs.field(default=10, validator=_positive)
    pool_timeout: float = attrs.field(default=10.0, validator=_seconds)
    connect_timeout: float = attrs.field(default=5.0, validator=_seconds)
    statement_timeout: float | None = attrs.field(default=30.0, validator=_optional_seconds)
    application_name: str = attrs.field(default="oqron", validator=_application_name)
    synchronous_commit: str | None = attrs.field(default=None, validator=_synchronous)
    prepared_statements: bool = attrs.field(default=True, validator=_flag)
    create_schema: bool = attrs.field(default=True, validator=_flag)
    allow_v1: bool = attrs.field(default=False, validator=_flag)

    def __attrs_post_init__(self) -> None:
        if self.synchronous_commit is not None and not self.prepared_statements:
            reason = (
                "needs a session, which a pooler in transaction mode does not keep; "
                "use ALTER ROLE … SET synchronous_commit instead"
            )
            raise InvalidValueError("synchronous_commit", reason)
