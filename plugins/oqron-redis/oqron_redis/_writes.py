"""Batches of encoded writes, as one call of the script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, TypeAlias, final

from oqron_core.exceptions import ConflictError, InvalidValueError
from oqron_core.planes import Record, Write, WriteResult
from oqron_core.taxonomy import RecordKind
from oqron_redis._items import Encoder, Group, Item
from oqron_redis._records import Fields, names_of, record_from, stored_of


__all__ = [
    "MAX_ATOMIC",
    "STEP",
    "STEP_BYTES",
    "Batch",
    "Returning",
    "check_atomic",
    "conflict_of",
    "group_steps",
    "grouped",
    "item_steps",
    "steps_of",
]

Returning: TypeAlias = tuple[str, ...] | None

_MAX_ARGUMENTS: Final = 1_000_000
_WORTH_SHARING: Final = 3
STEP: Final = 250
"""How many writes a script applies at most, unless they are atomic."""
MAX_ATOMIC: Final = 10_000
"""How many an atomic batch has at most."""
STEP_BYTES: Final = 1024 * 1024
"""How many bytes of values it takes at most, unless they are of a single write."""
_FAIR_BYTES: Final = 48 * 1024
_FAIR_LEAST: Final = 16


def grouped(items: Sequence[Item]) -> list[Group]:
    """Put items in groups, in their order."""
    groups = []
    start = 0
    while start < len(items):
        stop = start + 1
        while stop < len(items) and items[stop].group == items[start].group:
            stop += 1
        groups.append(Group.of(items[start:stop]))
        start = stop
    return groups


def item_steps(items: Sequence[Item]) -> list[Sequence[Item]]:
    """Divide items into steps."""
    if len(items) <= STEP and sum(item.size for item in items) <= STEP_BYTES:
        return [items]
    steps: list[Sequence[Item]] = []
    start = size = 0
    for index, item in enumerate(items):
        if index > start and (index - start >= STEP or size + item.size > STEP_BYTES):
            steps.append(items[start:index])
            start, size = index, 0
        size += item.size
    steps.append(items[start:])
    return steps


def group_steps(groups: Sequence[Group], *, fair: bool = False) -> list[list[Group]] | None:
    """
    Divide groups into steps; None where some write is so large that items must be.

    Args:
        groups: The writes.
        fair: Whether steps let the calls of others in between. Run history is large
            and nobody waits for it, while whoever claims meanwhile does.
    """
    most = STEP
    # Each is measured only where the largest of everything together might be too large.
    if fair or sum(group.largest for group in groups) > STEP_BYTES // STEP:
        sizes = [size for group in groups for size in group.sizes()]
        if max(sizes) > STEP_BYTES // STEP:
            return None
        if fair:
            most = max(_FAIR_LEAST, min(STEP, _FAIR_BYTES * len(sizes) // max(1, sum(sizes))))
    steps: list[list[Group]] = [[]]
    room = most
    for group in groups:
        start, count = 0, len(group.writes)
        while start < count:
            if not room:
                steps.append([])
                room = most
            stop = min(count, start + room)
            steps[-1].append(group if stop - start == count else group.part(start, stop))
            room -= stop - start
            start = stop
    return steps


def steps_of(encoder: Encoder, writes: Sequence[Write]) -> Sequence[list[Group]]:
    """Encode writes, and divide them into steps in their order."""
    groups = encoder.groups(writes)
    if groups is not None and (steps := group_steps(groups)) is not None:
        return steps
    return [grouped(step) for step in item_steps([encoder.encode(write) for write in writes])]


def _values(group: Group) -> Iterable[bytes | int]:
    """
    Give the values of a group: what all writes share once, then the others by write.

    Most of what a batch writes is the same in each of its records, and each word costs
    on the way, in Redis and in the script.
    """
    columns, count = group.columns, len(group.writes)
    if group.shared is None and count < _WORTH_SHARING:
        return (0, *chain.from_iterable(zip(*columns, strict=True)))
    shared, varying = group.shared, columns
    if shared is None:
        shared, varying = [], []
        for place, column in enumerate(columns, 1):
            if column.count(column[0]) == count:
                shared += (place, column[0])
            else:
                varying.append(column)
    return chain((len(shared) // 2,), shared, chain.from_iterable(zip(*varying, strict=True)))


@final
class Batch:
    """
    Writes that one script applies.

    Args:
        encoder: Knows the namespaces.
        groups: The writes.
        returning: The fields to give back; None for all.
    """

    def __init__(self, encoder: Encoder, groups: Sequence[Group], returning: Returning) -> None:
        self._encoder = encoder
        self._groups = groups
        self._returning = None if returning is None else names_of(returning)

    @property
    def size(self) -> int:
        """How many writes there are."""
        return sum(len(group.writes) for group in self._groups)

    def call(
        self, nothing: bytes, *, atomic: bool, spare: bool | None = None
    ) -> tuple[list[bytes], list[bytes | int]]:
        """
        Give the keys and the arguments of the script.

        *spare* says whether it may go on when memory is short; by default what changes
        or deletes records may, and control state, by which people steer.

        Raises:
            InvalidValueError: There are more than one step of Redis can take.
        """
        numbers: dict[str, int] = {}
        words: list[bytes | int] = []
        keys: list[bytes] = []
        if spare is None:
            spare = all(map(self._may_go_on, self._groups))
        for group in self._groups:
            verb, namespace, *lists = group.head
            count = len(group.writes)
            words += (verb, numbers.setdefault(namespace, len(numbers) + 1), count)
            for names in lists:
                words.append(len(names))
                words += names
            words += _values(group)
            keys += group.keys
        writes = len(keys)
        keys.append(nothing)
        arguments: list[bytes | int] = [int(atomic)]
        if self._returning is None:
            arguments.append(-1)
        else:
            arguments += (len(self._returning), *self._returning)
        arguments += (int(spare), writes, len(numbers))
        for namespace in numbers:
            space = self._encoder.space(namespace)
            keys += space.keys
            arguments += space.head
        arguments += words
        if len(arguments) + len(keys) > _MAX_ARGUMENTS:
            reason = "has more fields than one atomic step of Redis can take; split it"
            raise InvalidValueError("writes", reason)
        return keys, arguments

    def _may_go_on(self, group: Group) -> bool:
        verb, namespace, *_ = group.head
        steers = self._encoder.space(namespace).kind is RecordKind.CONTROL
        return steers or verb in {b"U", b"D"}

    def results(self, answer: Sequence[Any]) -> list[WriteResult]:
        """Read the answer of the script; records are made when they are asked for."""
        now = int(answer[0])
        results: list[WriteResult] = []
        start = 1
        for group in self._groups:
            stop = start + len(group.writes)
            replies = answer[start:stop]
            make = partial(self._record, group, replies, now)
            results += [
                WriteResult(_is_applied(reply), None, make, place)
                for place, reply in enumerate(replies)
            ]
            start = stop
        return results

    def _record(self, group: Group, replies: Sequence[Any], now: int, place: int) -> Record | None:
        reply = replies[place]
        wanted = self._returning
        write: Any = group.writes[place]
        kind = self._encoder.space(write.namespace).kind
        texts: dict[bytes, bytes] = {}
        if type(reply) is int:
            if reply != 1:
                return None
            if group.sent is not None and (wanted is None or wanted):
                texts = group.sent(place)
                if wanted is not None:
                    texts = {name: texts[name] for name in wanted if name in texts}
            fields = Fields(texts, f"{write.namespace}/{write.id}")
            return Record.lazy(write.namespace, write.id, fields, now, write.expires_at, kind)
        if type(reply) is bytes:
            return record_from(write.namespace, write.id, reply, texts, kind)
        if wanted is None:
            texts = stored_of(reply[2])[1]
        elif wanted:
            found = zip(wanted, reply[2][1:], strict=True)
            texts = {name: text for name, text in found if text is not None}
        return record_from(write.namespace, write.id, reply[1], texts, kind)


def check_atomic(count: int) -> None:
    """Refuse an atomic batch of too many writes."""
    if count > MAX_ATOMIC:
        reason = f"has {count} writes; an atomic batch has at most {MAX_ATOMIC}"
        raise InvalidValueError("writes", reason)


def conflict_of(write: Write, index: int) -> ConflictError:
    """Make the error for the write that kept an atomic batch from being applied."""
    verb = type(write).__name__.lower()
    reason = (
        f"write {index} of the atomic batch, the {verb} of {write.namespace}/{write.id}, "
        "could not be applied; none was"
    )
    return ConflictError(reason, index)


def _is_applied(reply: Any) -> bool:
    """Read the script's code; see ``lua/write.lua``."""
    kind = type(reply)
    if kind is int:
        return bool(reply)
    return kind is bytes or reply[0] == 1
