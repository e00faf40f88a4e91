"""The hot statements of one schema and prefix, each compiled when first used."""

from __future__ import annotations

import functools

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final

from oqron_core.taxonomy import Table
from oqron_postgres._sqltext import Names, Statement


__all__ = ["COPIED", "Returning", "StatementBook"]

COPIED: Final = "inserted_at, project, environment, namespace, record_kind, id, value, expires_at"
"""The columns of a COPY: what all rows of one have in common comes first."""


class Returning(Enum):
    """Which part of a value a statement gives back."""

    ALL = "f.value::text"
    NONE = "NULL::text"
    SOME = (
        "(SELECT jsonb_object_agg(k.name, f.value -> k.name) "
        "FROM jsonb_array_elements_text(CAST(:fields AS jsonb)) AS k(name) "
        "WHERE f.value ? k.name)::text"
    )

    @classmethod
    def of(cls, fields: Sequence[str] | None) -> Returning:
        """Choose for a list of fields: None is all, an empty one none."""
        if fields is None:
            return cls.ALL
        return cls.SOME if fields else cls.NONE


class StatementBook:
    """Every statement that is not composed from a query."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self.lock: Final[Callable[[Table], Statement]] = functools.cache(self._lock)
        self.insert: Final[Callable[[Table], Statement]] = functools.cache(self._insert)
        self.put: Final[Callable[[Table], Statement]] = functools.cache(self._put)
        self.patch: Final[Callable[[Table, Returning], Statement]] = functools.cache(self._patch)
        self.delete: Final[Callable[[Table, Returning], Statement]] = functools.cache(self._delete)
        self.get: Final[Callable[[Table, Returning], Statement]] = functools.cache(self._get)
        self.copy: Final[Callable[[Table], bytes]] = functools.cache(self._copy)
        self.now: Final = Statement.file("now.sql", prepare=True)

    def _copy(self, table: Table) -> bytes:
        return f"COPY {self._names.table(table)} ({COPIED}) FROM STDIN (FORMAT BINARY)".encode()

    # What only inserts has one plan, so the server may keep it. What probes must be
    # planned for the table as it is: a plan from when it was small would walk it, or
    # follow an index that found little then. Only on the jobs is the key the one index
    # that can find a row by its id, so there it is enough that no table is walked.

    def _insert(self, table: Table) -> Statement:
        return Statement.file("insert.sql", prepare=True, table=self._names.table(table))

    def _put(self, table: Table) -> Statement:
        return Statement.file("put.sql", prepare=True, table=self._names.table(table))

    def _lock(self, table: Table) -> Statement:
        return Statement.file("lock.sql", table=self._names.table(table))

    def _patch(self, table: Table, returning: Returning) -> Statement:
        return self._probe("patch.sql", table, returning)

    def _delete(self, table: Table, returning: Returning) -> Statement:
        return self._probe("delete.sql", table, returning)

    def _get(self, table: Table, returning: Returning) -> Statement:
        return self._probe("get.sql", table, returning)

    def _probe(self, path: str, table: Table, returning: Returning) -> Statement:
        # The part that is put in holds a parameter of its own, so no name is escaped
        # with it.
        return Statement.file(
            path,
            keyed=table is Table.JOBS,
            fragments={"returning": returning.value},
            table=self._names.table(table),
        )
