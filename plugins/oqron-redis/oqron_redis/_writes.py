"""Batches of writes, encoded for the script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeAlias, final

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import (
    KEEP,
    Delete,
    Insert,
    Patch,
    Put,
    Record,
    Write,
    WriteResult,
)
from oqron_core.taxonomy import RecordKind, classify_namespace
from oqron_redis._keys import Keys
from oqron_redis._records import (
    META,
    Fields,
    indexes_of,
    names_of,
    pairs,
    record_from,
    texts_of,
)


__all__ = ["Batch", "Encoder", "Returning"]

Returning: TypeAlias = tuple[str, ...] | None

_MAX_ARGUMENTS: Final = 1_000_000
_CONTAINERS: Final = (b"[", b"{")
_WORTH_SHARING: Final = 3
_NO_FIELDS: Final = Fields({}, "")


@final
class _Space:
    """What is known of a namespace: its number in a batch is its place in `names`."""

    __slots__ = ("head", "keys", "prefix")

    def __init__(self, keys: Keys, namespace: str) -> None:
        kind: RecordKind = classify_namespace(namespace)
        indexes = indexes_of(kind)
        self.prefix = keys.records(namespace)
        self.keys = (
            keys.expiry(namespace),
            keys.namespaces(kind),
            *(keys.index(index.tag, namespace) for index in indexes),
        )
        head: list[bytes | int] = [len(self.prefix), namespace.encode(), len(indexes)]
        for index in indexes:
            head += ((index.equal or "").encode(), (index.time or "").encode())
        self.head = tuple(head)


@final
class Item:
    """
    One write, encoded.

    Attributes:
        guarded: Whether it is guarded by a list or an object.
    """

    __slots__ = ("arguments", "group", "guarded", "key", "size", "write")

    def __init__(
        self,
        write: Write,
        key: bytes,
        group: tuple[Any, ...],
        arguments: list[bytes],
        guards: Sequence[bytes] = (),
    ) -> None:
        self.write = write
        self.guarded = any(text[:1] in _CONTAINERS for text in guards)
        self.key = key
        self.group = group
        self.arguments = arguments
        self.size = sum(map(len, arguments))


@final
class Encoder:
    """
    Turns writes into arguments.

    Args:
        keys: The keys of the scope.
        limit: The largest field, in bytes.
    """

    def __init__(self, keys: Keys, limit: int) -> None:
        self._keys = keys
        self._limit = limit
        self._spaces: dict[str, _Space] = {}

    def space(self, namespace: str) -> _Space:
        """Give what is known of a namespace."""
        found = self._spaces.get(namespace)
        if found is None:
            if len(self._spaces) >= 4096:  # noqa: PLR2004 - a bound, so that memory stays flat
                self._spaces.clear()
            found = self._spaces[namespace] = _Space(self._keys, namespace)
        return found

    def encode(self, write: Write) -> Item:
        """
        Encode one write.

        Raises:
            InvalidValueError: A value is not portable, or too large.
        """
        key = self.space(write.namespace).prefix + write.id.encode()
        kind = type(write)
        if kind is Patch:
            return self._patch(write, key)  # type: ignore[arg-type]  # a Patch, as just tested
        if kind is Delete:
            expect = write.expect  # type: ignore[union-attr]  # a Delete, as just tested
            group = (b"D", write.namespace, names_of(tuple(expect)))
            guards = self._guards(expect)
            return Item(write, key, group, guards, guards)
        if kind is not Insert and kind is not Put:
            reason = f"must be Put, Insert, Patch or Delete, not {kind.__name__}"
            raise InvalidValueError("writes", reason)
        return self._whole(write, key)  # type: ignore[arg-type]  # one of the two that are left

    def _whole(self, write: Put | Insert, key: bytes) -> Item:
        value: Any = write.value
        if not isinstance(value, Mapping):
            reason = f"must be an object (dict), not {type(value).__name__}"
            raise InvalidValueError("value", reason)
        verb = b"I" if type(write) is Insert else b"P"
        group = (verb, write.namespace, names_of(tuple(value)))
        arguments = texts_of(value, "value", self._limit)
        expires = write.expires_at
        arguments.insert(0, b"" if expires is None else b"%d" % expires)
        return Item(write, key, group, arguments)

    def _patch(self, write: Patch, key: bytes) -> Item:
        group = (
            b"U",
            write.namespace,
            names_of(tuple(write.expect)),
            names_of(tuple(write.set)),
            names_of(tuple(write.unset)),
            names_of(tuple(write.increment)),
            names_of(tuple(write.append)),
        )
        expires = write.expires_at
        arguments = [b"k" if expires is KEEP else b"" if expires is None else b"%d" % expires]
        limit = self._limit
        guards = self._guards(write.expect)
        arguments += guards
        arguments += texts_of(write.set, "set", limit)
        if write.increment:
            arguments += [b"%d" % by for by in write.increment.values()]
        if write.append:
            lists = {name: list(items) for name, items in write.append.items()}
            arguments += [text[1:-1] for text in texts_of(lists, "append", limit)]
        return Item(write, key, group, arguments, guards)

    def _guards(self, expect: Mapping[str, Any]) -> list[bytes]:
        # A list or object is compared by the text that is stored: the plane puts the
        # right one in, see `RedisDurablePlane._expect_stored`.
        return texts_of(expect, "expect", self._limit)


def _columns(rows: Sequence[Sequence[bytes]]) -> Iterable[bytes | int]:
    """
    Give the values of a group: what all writes share once, then the others by write.

    Most of what a batch writes is the same in each of its records, and each word costs
    on the way, in Redis and in the script.
    """
    count = len(rows)
    if count < _WORTH_SHARING:
        return (0, *chain.from_iterable(rows))
    columns = [*zip(*rows, strict=True)]
    shared: list[bytes | int] = []
    varying = []
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
        items: The writes.
        returning: The fields to give back; None for all.
    """

    def __init__(self, encoder: Encoder, items: Sequence[Item], returning: Returning) -> None:
        self._encoder = encoder
        self._items = items
        self._returning = None if returning is None else names_of(returning)

    def call(self, nothing: bytes, *, atomic: bool) -> tuple[list[bytes], list[bytes | int]]:
        """
        Give the keys and the arguments of the script.

        Raises:
            InvalidValueError: There are more than one step of Redis can take.
        """
        items = self._items
        numbers: dict[str, int] = {}
        groups: list[bytes | int] = []
        spare = True
        start = 0
        while start < len(items):
            group = items[start].group
            stop = start + 1
            while stop < len(items) and items[stop].group == group:
                stop += 1
            spare = spare and group[0] in {b"U", b"D"}
            number = numbers.setdefault(group[1], len(numbers) + 1)
            groups += (group[0], number, stop - start)
            for names in group[2:]:
                groups.append(len(names))
                groups += names
            groups += _columns([item.arguments for item in items[start:stop]])
            start = stop
        keys = [item.key for item in items]
        keys.append(nothing)
        arguments: list[bytes | int] = [int(atomic)]
        if self._returning is None:
            arguments.append(-1)
        else:
            arguments += (len(self._returning), *self._returning)
        arguments += (int(spare), len(items), len(numbers))
        for namespace in numbers:
            space = self._encoder.space(namespace)
            keys += space.keys
            arguments += space.head
        arguments += groups
        if len(arguments) + len(keys) > _MAX_ARGUMENTS:
            reason = "has more fields than one atomic step of Redis can take; split it"
            raise InvalidValueError("writes", reason)
        return keys, arguments

    def results(self, answer: Sequence[Any]) -> list[WriteResult]:
        """Read the answer of the script."""
        now = int(answer[0])
        return [
            self._result(item, reply, now)
            for item, reply in zip(self._items, answer[1:], strict=True)
        ]

    def _result(self, item: Item, reply: Any, now: int) -> WriteResult:
        if reply == 1:
            return WriteResult(True, self._as_sent(item, now))  # noqa: FBT003 - whether it was applied
        if reply == 0 or reply == 2:  # noqa: PLR1714, PLR2004 - faster than a set; the script's codes
            return WriteResult(reply == 2)  # noqa: PLR2004 - the script's code
        applied, meta = reply[0] == 1, reply[1]
        texts: dict[bytes, bytes] = {}
        wanted = self._returning
        if wanted is None:
            texts = pairs(reply[2])
            del texts[META]
        elif wanted:
            found = zip(wanted, reply[2][1:], strict=True)
            texts = {name: text for name, text in found if text is not None}
        write = item.write
        return WriteResult(applied, record_from(write.namespace, write.id, meta, texts))

    def _as_sent(self, item: Item, now: int) -> Record:
        wanted = self._returning
        write: Any = item.write
        fields = _NO_FIELDS
        if wanted is None or wanted:
            texts = dict(zip(item.group[2], item.arguments[1:], strict=True))
            if wanted is not None:
                texts = {name: texts[name] for name in wanted if name in texts}
            fields = Fields(texts, f"{write.namespace}/{write.id}")
        return Record.lazy(write.namespace, write.id, fields, now, write.expires_at)
