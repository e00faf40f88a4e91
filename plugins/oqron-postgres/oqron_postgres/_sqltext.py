"""Names, and the SQL files of the package with the names put in."""

from __future__ import annotations

import functools
import re

from collections.abc import Mapping
from importlib import resources
from string import Template
from typing import Any, Final

import attrs

from sqlalchemy import Dialect, TextClause, text
from sqlalchemy.dialects.postgresql.psycopg import dialect as psycopg_dialect
from sqlalchemy.sql.expression import ClauseElement

from oqron_core.taxonomy import Table
from oqron_postgres.settings import PostgresSettings
from oqron_postgres.tables import Tables, make_tables


__all__ = ["Names", "Statement", "quote_identifier", "quote_literal", "read_sql"]

_COMMENT: Final = re.compile(r"^[ \t]*--.*\n", re.MULTILINE)


def quote_identifier(name: str) -> str:
    """Quote a name of SQL, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def quote_literal(value: str) -> str:
    """Quote a text of SQL; only for printed SQL, everything else is bound."""
    quoted = "'" + value.replace("'", "''") + "'"
    if "\\" in value:
        return " E" + quoted.replace("\\", "\\\\")
    return quoted


@functools.cache
def read_sql(path: str) -> str:
    """Read a file of the package's folder ``sql``."""
    return resources.files("oqron_postgres").joinpath("sql", path).read_text("utf-8")


@attrs.frozen
class Statement:
    """
    One statement, compiled once.

    Attributes:
        clause: For a caller's SQLAlchemy connection, whatever its driver.
        raw: The same for psycopg.
        prepare: Whether the server may keep a plan. Not for what probes by id: a plan
            that was made while a table was small walks it once it has grown.
        keyed: Whether it may where sessions do not walk tables, since there is but one
            index that can find its rows.
        names: The names of its parameters.
    """

    clause: ClauseElement
    raw: bytes
    prepare: bool
    names: frozenset[str]
    keyed: bool = False

    @classmethod
    def of(cls, clause: ClauseElement, *, prepare: bool = False, keyed: bool = False) -> Statement:
        """Compile *clause*."""
        compiled = clause.compile(dialect=_DIALECT, compile_kwargs=_COMPILE)
        raw = str(compiled).encode()
        return cls(clause, raw, prepare, frozenset(compiled.params or ()), keyed)

    @classmethod
    def file(
        cls,
        path: str,
        *,
        prepare: bool = False,
        keyed: bool = False,
        fragments: Mapping[str, str] | None = None,
        **names: str,
    ) -> Statement:
        """Read a statement of the folder ``sql``; put *fragments* and *names* in."""
        # text() takes a colon for a parameter, also inside a quoted name.
        escaped = {key: name.replace(":", r"\:") for key, name in names.items()}
        sql = Template(_COMMENT.sub("", read_sql(path))).substitute(fragments or {}, **escaped)
        clause: TextClause = text(sql)
        return cls.of(clause, prepare=prepare, keyed=keyed)


_DIALECT: Final[Dialect] = psycopg_dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy's own
_COMPILE: Final[dict[str, Any]] = {"render_postcompile": True}


@attrs.frozen
class Names:
    """
    How everything is called for one schema and prefix.

    Attributes:
        schema: The schema.
        prefix: The prefix of the tables.
    """

    schema: str
    prefix: str

    @classmethod
    def of(cls, settings: PostgresSettings) -> Names:
        """Take them from the settings."""
        return cls(settings.schema, settings.table_prefix)

    @property
    def tables(self) -> Tables:
        """The SQLAlchemy tables."""
        return make_tables(table_prefix=self.prefix, schema=self.schema)

    def plain(self, suffix: str) -> str:
        """Give a name without its schema, unquoted."""
        return f"{self.prefix}_{suffix}"

    def table(self, suffix: str | Table) -> str:
        """Give a table's name with its schema, quoted."""
        name = suffix.value if isinstance(suffix, Table) else suffix
        return f"{quote_identifier(self.schema)}.{quote_identifier(self.plain(name))}"

    def fill(self, path: str, **more: str) -> str:
        """Read a schema file and put every name in."""
        return Template(read_sql(path)).substitute(_Filling(self), **more)


class _Filling(dict[str, str]):
    """Resolve ``${jobs}`` to a qualified table, ``${jobs_exp}`` to a plain name."""

    _QUALIFIED: Final = frozenset({"records", "jobs", "runs", "meta", "kv"})

    def __init__(self, names: Names) -> None:
        super().__init__()
        self._names = names

    def __missing__(self, key: str) -> str:
        if key == "schema":
            return quote_identifier(self._names.schema)
        if key in self._QUALIFIED:
            return self._names.table(key)
        return quote_identifier(self._names.plain(key))
