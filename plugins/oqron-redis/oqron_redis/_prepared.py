"""What the steps over both planes send, as far as it is known before the call."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final, cast, final

import attrs

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import (
    Entry,
    Filled,
    Form,
    Insert,
    Lease,
    Mark,
    Order,
    Patch,
    Record,
    WriteResult,
)
from oqron_core.taxonomy import RecordKind
from oqron_redis._broker import add_keys, publish_head
from oqron_redis._items import Encoder
from oqron_redis._records import Fields, indexes_of, names_of, record_from, stored_of
from oqron_redis._session import Session
from oqron_redis._writes import STEP_BYTES


__all__ = ["MARK_MS", "ClaimCall", "NewJobs", "PreparedMark"]

MARK_MS: Final = 60_000
"""How long a call is known to have been done: longer than anybody tries again."""


@final
class NewJobs:
    """
    What is sent of new records of one form and namespace, whose entries are due at once.

    Attributes:
        is_plain: Whether all of them stand at the same place of each index.

    Raises:
        InvalidValueError: Some value is not portable, or too large.
    """

    __slots__ = (
        "_form",
        "_head",
        "_indexes",
        "_kind",
        "_limit",
        "_places",
        "_prefix",
        "_same",
        "is_plain",
    )

    def __init__(
        self, session: Session, encoder: Encoder, queue: str, namespace: str, form: Form
    ) -> None:
        space = encoder.space(namespace)
        known = self._form = encoder.form(form, namespace)
        self._kind: RecordKind = space.kind
        self._limit = encoder.limit
        self._prefix = space.prefix
        heads = known.heads()
        self.is_plain: bool = heads is not None
        _, registry, *indexes = space.keys
        keys = session.keys.queue(queue)
        self._places = (*add_keys(keys), session.keys.queues, registry)
        self._indexes = (*indexes,)
        same, others = known.apart
        self._same = sum(map(len, same[1::2]))
        self._head: tuple[tuple[bytes | int, ...], tuple[bytes | int, ...]] = (
            (*publish_head(session, keys), namespace.encode(), MARK_MS),
            (
                len(indexes),
                *(heads or ()),
                len(same) // 2,
                *same,
                len(others),
                *others,
            ),
        )

    def call(
        self, inserts: Sequence[Insert], entries: Sequence[Entry], mark: bytes
    ) -> tuple[list[bytes], list[bytes | int]] | None:
        """
        Give keys, up to the marks of others, and arguments; None where it is too much for one.

        Raises:
            InvalidValueError: A value is not portable, or too large.
        """
        before, after = self._head
        if len(inserts) == 1:
            # What gathers columns would cost more than what it gathers.
            insert, value = inserts[0], cast("Filled", inserts[0].value)
            values = self._form.values(value.given, self._limit)
            name = insert.id.encode()
            keys = [*self._places, mark, *self._indexes, self._prefix + name]
            return keys, [*before, 1, *after, name, entries[0].priority, *values]
        columns = self._form.columns(self._form.opened(inserts, self._limit), len(inserts))
        # Far below what would take several steps: there all are named by one mark as well.
        size = sum([sum(map(len, column)) for column in columns]) + self._same * len(inserts)
        if size > STEP_BYTES // 2:
            return None
        ids = [insert.id.encode() for insert in inserts]
        prefix = self._prefix
        keys = [*self._places, mark, *self._indexes, *[prefix + name for name in ids]]
        priorities = [entry.priority for entry in entries]
        rows = zip(ids, priorities, *columns, strict=True)
        return keys, [*before, len(ids), *after, *chain.from_iterable(rows)]

    def results(self, inserts: Sequence[Insert], answer: Sequence[Any]) -> list[WriteResult]:
        """Read the answer; records, without their values, are made when they are asked for."""
        now = int(answer[0])

        def record(place: int) -> Record:
            insert = inserts[place]
            fields = Fields({}, f"{insert.namespace}/{insert.id}")
            return Record.lazy(insert.namespace, insert.id, fields, now, None, self._kind)

        return [WriteResult(applied=True, make=record, place=at) for at in range(len(inserts))]


@attrs.frozen
class ClaimCall:
    """
    What is sent of every claim that asks for the same.

    Attributes:
        keys: The keys of the queue.
        words: The arguments of the broker.
        patience: Milliseconds after which nobody waits for an answer.
        known_for: Milliseconds for which it is known what was taken.
    """

    keys: tuple[bytes, ...]
    words: tuple[bytes | int, ...]
    patience: int
    known_for: int


@final
class PreparedMark:
    """
    What is sent of a mark, and how its answers are read.

    Raises:
        InvalidValueError: It sets what is not portable, changes one field in two ways, guards
            a list or an object, or sets what an index looks at without a guard that says what
            it was.
    """

    __slots__ = ("calls", "indexes", "kind", "mark", "words")

    def __init__(self, encoder: Encoder, mark: Mark) -> None:
        self.calls: dict[tuple[str, str, float, int, Order], ClaimCall] = {}
        self.mark = mark
        space = encoder.space(mark.namespace)
        self.kind: RecordKind = space.kind
        # A patch of any record: what is refused of a mark is refused of that.
        item = encoder.encode(
            Patch(
                mark.namespace,
                "any",
                set=mark.set,
                increment=mark.increment,
                expect=mark.expect,
            )
        )
        if item.guarded:
            raise InvalidValueError("mark.expect", "must not guard a list or an object")
        _, _, guards, names, _, raised, _ = item.group
        _, *texts = item.arguments
        last = len(guards) + len(names)
        said = {name: text for name, text in zip(mark.expect, texts, strict=False) if text}
        written = dict(zip(mark.set, texts[len(guards) : last], strict=True))
        changed = [*mark.set, *mark.increment, *mark.now_fields, mark.token_field, mark.name_field]
        if len({*changed}) < len(changed):
            raise InvalidValueError("mark", "changes one field in two ways")
        late = names_of((*mark.now_fields, mark.token_field, mark.name_field))
        indexes: list[bytes] = []
        heads: list[bytes] = []
        for index, key in zip(indexes_of(space.kind), space.keys[2:], strict=True):
            moved = index.fields.intersection(changed)
            if moved and not (index.fields <= {*mark.expect} and moved <= {*mark.set}):
                reason = f"sets {min(moved)!r}, by which records are found, without a guard"
                raise InvalidValueError("mark", reason)
            if moved:
                indexes.append(key)
                heads += (index.head(said), index.head(said | written))
        self.indexes = tuple(indexes)
        self.words: tuple[bytes | int, ...] = (
            space.prefix,
            len(guards),
            len(raised),
            len(indexes),
            len(mark.now_fields),
            *guards,
            *raised,
            *texts[: len(guards)],
            *texts[last:],
            *heads,
            *chain.from_iterable(zip(names, written.values(), strict=True)),
            *chain.from_iterable((name, b"") for name in late),
        )

    def result(self, lease: Lease, reply: Any) -> WriteResult:
        """Read what became of a record; see ``lua/write.lua``."""
        if type(reply) is int:
            return WriteResult(applied=False)
        namespace = self.mark.namespace
        record = record_from(namespace, lease.id, reply[1], stored_of(reply[2])[1], self.kind)
        return WriteResult(reply[0] == 1, record)
