"""
Many inserts of new records, as one COPY.

The server takes rows by COPY for half of what an INSERT from a document costs it. COPY
knows no conflict: where one row is there already it takes none, and the batch is
inserted as others are.
"""

from __future__ import annotations

import struct
import time

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, cast

import psycopg

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import Filled, Insert, Scope, Write, WriteResult
from oqron_core.taxonomy import Table
from oqron_postgres._connection import PooledLink, PostgresConnection
from oqron_postgres._hot_fields import check_hot
from oqron_postgres._statements import COPIED
from oqron_postgres._write import (
    MAX_BATCH,
    MAX_STEP_BYTES,
    are_known,
    form_of,
    insert_results,
    place_of,
    quick_document,
)


__all__ = ["COPY_FROM", "Copies", "Copy"]

COPY_FROM: Final = 30
"""The smallest batch that is worth the round trips of a COPY."""
_CAREFUL_FOR: Final = 20
"""How many batches are inserted as others are, after one that met a row."""

_CLOCK_FOR: Final = 10.0
_QUICK: Final = 0.005

_HEADER: Final = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_END: Final = b"\xff\xff"
_NULL: Final = b"\xff\xff\xff\xff"
_ROW: Final = struct.pack(">h", COPIED.count(",") + 1)
_size: Final = struct.Struct(">i").pack
_bigint: Final = struct.Struct(">iq").pack


def _field(text: str) -> bytes:
    data = text.encode()
    return _size(len(data)) + data


def _documents(writes: Sequence[Insert], max_bytes: int) -> list[bytes] | None:
    """Encode the values; None where one needs a closer look."""
    form = form_of(writes, max_bytes)
    if form is not None:
        filled = cast("Sequence[Filled]", [write.value for write in writes])
        return form.documents([value.given for value in filled], max_bytes)
    documents: list[bytes] = []
    for write in writes:
        value: Any = write.value
        known = type(value) is dict and are_known(value)
        document = quick_document(value, value, max_bytes) if known else None
        if document is None:
            return None
        documents.append(document)
    return documents


class Copy:
    """
    A batch of inserts into one namespace, in the binary form of COPY.

    Attributes:
        table: Where they go.
        writes: The inserts, in the order of the batch.
    """

    __slots__ = ("_head", "_rows", "table", "writes")

    def __init__(self, writes: Sequence[Insert], rows: list[bytes], scope: Scope) -> None:
        namespace = writes[0].namespace
        kind, self.table = place_of(namespace)
        self.writes = writes
        self._rows = rows
        parts = (scope.project, scope.environment, namespace, kind.value)
        self._head = b"".join(map(_field, parts))

    @classmethod
    def of(cls, writes: Sequence[Write], scope: Scope, max_bytes: int) -> Copy | None:
        """
        Encode a batch; None where it is not of one kind, or needs a closer look.

        What is wrong with a value is found, and named, by whoever looks closer.
        """
        if not COPY_FROM <= len(writes) <= MAX_BATCH or {*map(type, writes)} != {Insert}:
            return None
        inserts = cast("Sequence[Insert]", writes)
        namespace = inserts[0].namespace
        ids = [write.id for write in inserts]
        if len({*ids}) < len(ids) or any(write.namespace != namespace for write in inserts):
            return None
        documents = _documents(inserts, max_bytes)
        if documents is None:
            return None
        if place_of(namespace)[1] is Table.RUNS:
            try:
                for write in inserts:
                    check_hot(write.value, "value")
            except InvalidValueError:
                return None
        rows = [
            _field(write.id)
            # The version of the binary form of jsonb stands before its text.
            + _size(len(document) + 1)
            + b"\x01"
            + document
            + (_NULL if write.expires_at is None else _bigint(8, write.expires_at))
            for write, document in zip(inserts, documents, strict=True)
        ]
        if sum(map(len, rows)) > MAX_STEP_BYTES:
            return None
        # Two batches that meet take their locks in the same order.
        if any(one > other for one, other in pairwise(ids)):
            rows = [rows[place] for place in sorted(range(len(ids)), key=ids.__getitem__)]
        return cls(inserts, rows, scope)

    def data(self, ms: int) -> bytes:
        """Give what is sent, in the order of `COPIED`, for rows that are inserted at *ms*."""
        head = _ROW + _bigint(8, ms) + self._head
        return b"".join((_HEADER, head, head.join(self._rows), _END))


class Copies:
    """
    Whether a plane copies, and how.

    Args:
        connection: The pool.
    """

    def __init__(self, connection: PostgresConnection) -> None:
        self._connection = connection
        self._offset = 0.0
        self._measured = float("-inf")
        self._careful = 0
        self._never = False

    def wants(self) -> bool:
        """Whether the next batch may be tried as a copy."""
        if self._never or not self._connection.read_committed:
            return False
        if self._careful:
            self._careful -= 1
            return False
        return True

    async def write(self, copy: Copy) -> list[WriteResult] | None:
        """Insert all; None where the server took none of them."""
        ms = await self._connection.run(lambda link: self._write(link, copy))
        return None if ms is None else insert_results(copy.writes, ms)

    async def _now(self, link: PooledLink) -> int:
        """
        Give the server's clock, followed by ours for a while.

        A COPY cannot ask for it, and asking first takes as long as the rest of a small
        one. Where the answer was slow it is good for once.
        """
        local = time.monotonic()
        if local - self._measured < _CLOCK_FOR:
            return int((local + self._offset) * 1000)
        server = int((await link.fetch(self._connection.book.now, {}))[0][0])
        after = time.monotonic()
        if after - local < _QUICK:
            # In the middle of the millisecond that it gave, half way between the two.
            self._offset = (server + 0.5) / 1000 - (local + after) / 2
            self._measured = after
        return server

    async def _write(self, link: PooledLink, copy: Copy) -> int | None:
        connection = self._connection
        if not link.speaks_utf8:
            self._never = True
            return None
        try:
            ms = await self._now(link)
            await link.copy(connection.book.copy(copy.table), copy.data(ms))
        except psycopg.errors.UniqueViolation:
            # Nothing of it is there. Whoever adds what was added before does so again.
            self._careful = _CAREFUL_FOR
            return None
        except psycopg.errors.FeatureNotSupported:
            # Row security guards the table, and that is not for COPY.
            self._never = True
            return None
        return ms
