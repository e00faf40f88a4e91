"""
A few inserts of one form, encoded together.

Most flushes of single calls are of this kind: a handful of new records that differ in two
or three fields. What `Batch` finds out of each write is known of all of them here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import orjson

from oqron_core.planes import Filled, Insert, Scope, Write
from oqron_core.taxonomy import Table
from oqron_postgres._sqltext import Statement
from oqron_postgres._statements import StatementBook
from oqron_postgres._write import MAX_BATCH, MAX_STEP_BYTES, form_of, place_of


__all__ = ["Fresh"]


class Fresh:
    """
    Inserts of one form into one namespace, as one statement.

    Attributes:
        writes: The inserts, in the order of the batch.
        statement: What runs.
        params: With what.
    """

    __slots__ = ("params", "statement", "writes")

    def __init__(
        self, writes: Sequence[Insert], statement: Statement, params: dict[str, Any]
    ) -> None:
        self.writes = writes
        self.statement = statement
        self.params = params

    @classmethod
    def of(
        cls, writes: Sequence[Write], scope: Scope, book: StatementBook, max_bytes: int
    ) -> Fresh | None:
        """
        Encode a batch; None where it is not of one form, or needs a closer look.

        What is wrong with a value is found, and named, by whoever looks closer.
        """
        if len(writes) > MAX_BATCH or {*map(type, writes)} != {Insert}:
            return None
        form = form_of(writes, max_bytes)
        if form is None:
            return None
        inserts = cast("Sequence[Insert]", writes)
        kind, table = place_of(inserts[0].namespace)
        if table is Table.RUNS:
            # Its hot fields are looked at one by one.
            return None
        ids = [write.id for write in inserts]
        values = cast("Sequence[Filled]", [write.value for write in inserts])
        documents = form.open_parts([value.given for value in values], max_bytes)
        if documents is None or len({*ids}) < len(ids):
            return None
        head = b'{"n":%b,"k":"%b","i":' % (orjson.dumps(inserts[0].namespace), kind.value.encode())
        rows = [
            b'%b%b,"v":%b,"e":%b}' % (head, orjson.dumps(id_), document, expires)
            for id_, document, expires in zip(ids, documents, _expiries(inserts), strict=True)
        ]
        # Two batches that meet take their locks in the same order.
        if ids != (ordered := sorted(ids)):
            places = {id_: place for place, id_ in enumerate(ids)}
            rows = [rows[places[id_]] for id_ in ordered]
        document = b"[" + b",".join(rows) + b"]"
        if len(document) > MAX_STEP_BYTES and len(rows) > 1:
            return None
        params = {
            "project": scope.project,
            "environment": scope.environment,
            "doc": document,
            "same": form.same,
            "size": len(rows),
        }
        return cls(inserts, book.insert(table), params)


def _expiries(writes: Sequence[Insert]) -> list[bytes]:
    return [b"null" if write.expires_at is None else b"%d" % write.expires_at for write in writes]
