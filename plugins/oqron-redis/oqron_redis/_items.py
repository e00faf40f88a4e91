"""Writes, encoded: one by one, or by columns where many look alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, final

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import KEEP, Delete, Filled, Form, Insert, Patch, Put, Write
from oqron_core.taxonomy import RecordKind, classify_namespace
from oqron_redis._keys import Keys
from oqron_redis._records import (
    Layout,
    indexes_of,
    layout_of,
    names_of,
    text_column,
    text_columns,
    texts_of,
)


__all__ = ["Encoder", "Group", "Item", "KnownForm", "Space"]

_CONTAINERS: Final = (b"[", b"{")
_WORTH_COLUMNS: Final = 8
_FORMS: Final = 256


@final
class Space:
    """What is known of a namespace: its number in a batch is its place in `names`."""

    __slots__ = ("head", "keys", "kind", "prefix")

    def __init__(self, keys: Keys, namespace: str) -> None:
        kind: RecordKind = classify_namespace(namespace)
        self.kind = kind
        indexes = indexes_of(kind)
        self.prefix = keys.records(namespace)
        self.keys = (
            keys.expiry(namespace),
            keys.namespaces(kind),
            *(keys.index(index.tag, namespace) for index in indexes),
        )
        looked_at = [name for index in indexes for name in (index.equal, index.time) if name]
        places = {name: place for place, name in enumerate(dict.fromkeys(looked_at), 1)}
        head: list[bytes | int] = [len(self.prefix), namespace.encode(), len(places)]
        head += [name.encode() for name in places]
        head.append(len(indexes))
        for index in indexes:
            head += (places.get(index.equal or "", 0), places.get(index.time or "", 0))
        self.head = tuple(head)


@final
class Item:
    """
    One write, encoded.

    Attributes:
        guarded: Whether it is guarded by a list or an object.
        fields: The names and the texts of a whole record; None of other writes.
    """

    __slots__ = ("arguments", "fields", "group", "guarded", "key", "size", "write")

    def __init__(
        self,
        write: Write,
        key: bytes,
        group: tuple[Any, ...],
        arguments: Sequence[bytes],
        guards: Sequence[bytes] = (),
        fields: tuple[Sequence[bytes], Sequence[bytes]] | None = None,
    ) -> None:
        self.write = write
        self.fields = fields
        self.guarded = any(text[:1] in _CONTAINERS for text in guards)
        self.key = key
        self.group = group
        self.arguments = arguments
        self.size = sum(map(len, arguments))


@final
class Group:
    """
    Writes in a row that differ in their values alone.

    Attributes:
        head: The verb, the namespace, and the lists of names.
        writes: The writes.
        keys: The key of each.
        columns: Their values, by place, but for those in *shared*.
        sent: Gives the fields of the whole record that the n-th write is; None where
            they are no whole records.
        shared: The columns that are known to be the same for all, each with its value;
            None where nobody has looked.
    """

    __slots__ = ("columns", "head", "keys", "sent", "shared", "writes")

    def __init__(
        self,
        head: tuple[Any, ...],
        writes: Sequence[Write],
        keys: Sequence[bytes],
        columns: Sequence[Sequence[bytes]],
        sent: Callable[[int], dict[bytes, bytes]] | None = None,
        shared: Sequence[bytes | int] | None = None,
    ) -> None:
        self.head = head
        self.writes = writes
        self.keys = keys
        self.columns = columns
        self.sent = sent
        self.shared = shared

    @classmethod
    def of(cls, items: Sequence[Item]) -> Group:
        """Make a group of items of one group."""
        sent = None if items[0].fields is None else partial(_fields_of, items)
        return cls(
            items[0].group,
            [item.write for item in items],
            [item.key for item in items],
            [*zip(*[item.arguments for item in items], strict=True)],
            sent,
        )

    @property
    def largest(self) -> int:
        """The most bytes that the values of a write of it may have."""
        return sum([max(map(len, column)) for column in self.columns]) + self._shared_size

    def sizes(self) -> list[int]:
        """Give the bytes of each write's values."""
        if not self.columns:
            return [0] * len(self.writes)
        rows = zip(*[map(len, column) for column in self.columns], strict=True)
        return [sum(row, self._shared_size) for row in rows]

    @property
    def _shared_size(self) -> int:
        return sum(len(text) for text in (self.shared or ())[1::2] if isinstance(text, bytes))

    def part(self, start: int, stop: int) -> Group:
        """Give the writes from *start* to before *stop*."""
        sent = self.sent
        return Group(
            self.head,
            self.writes[start:stop],
            self.keys[start:stop],
            [column[start:stop] for column in self.columns],
            None if sent is None else lambda place: sent(start + place),
            self.shared,
        )


def _fields_of(items: Sequence[Item], place: int) -> dict[bytes, bytes]:
    fields = items[place].fields
    return {} if fields is None else dict(zip(*fields, strict=True))


def _row(
    names: Sequence[bytes], columns: Sequence[Sequence[bytes]], place: int
) -> dict[bytes, bytes]:
    return dict(zip(names, [column[place] for column in columns], strict=True))


def _keys(space: Space, writes: Sequence[Write]) -> list[bytes]:
    prefix = space.prefix
    return [prefix + write.id.encode() for write in writes]


def _expiries(writes: Sequence[Any]) -> list[bytes]:
    return [b"" if write.expires_at is None else b"%d" % write.expires_at for write in writes]


@final
class KnownForm:
    """
    A form, encoded.

    Attributes:
        layout: Where its fields stand.
        open: The open fields with their places.
        shared: The columns that are the same for all, each with its text.

    Raises:
        InvalidValueError: A value is not portable, or too large.
    """

    __slots__ = (
        "_apart_names",
        "_body_names",
        "_frame",
        "_in_body",
        "_kind",
        "_names",
        "_open_apart",
        "_texts",
        "layout",
        "open",
        "shared",
    )

    def __init__(self, form: Form, kind: RecordKind, limit: int) -> None:
        names = [*form.fields]
        self.open = [(name, names.index(name)) for name in form.open]
        places = frozenset(place for _, place in self.open)
        self._names = names_of(tuple(names))
        self._texts = texts_of({**form.fields, **dict.fromkeys(form.open)}, "value", limit)
        self.layout: Layout = layout_of(kind, self._names)
        self._frame = self.layout.frame(self._texts, places)
        self._in_body = self.layout.in_body(places)
        apart_at = self.layout.apart_at
        self._open_apart = [place for place in apart_at if place in places]
        self._kind = kind
        self._body_names = [names[place] for place in self._in_body]
        self._apart_names = [names[place] for place in self._open_apart]
        # The first column is the expiry, the second the body.
        shared: list[bytes | int] = []
        for column, place in enumerate(apart_at, 3):
            if place not in places:
                shared += (column, self._texts[place])
        self.shared: tuple[bytes | int, ...] = tuple(shared)

    def opened(self, writes: Sequence[Any], limit: int) -> dict[int, Sequence[bytes]]:
        """Encode the open fields of many, by their places."""
        given = [write.value.given for write in writes]
        return {
            place: text_column(name, [fields[name] for fields in given], "value", limit)
            for name, place in self.open
        }

    def columns(self, given: Mapping[int, Sequence[bytes]], count: int) -> list[Sequence[bytes]]:
        """Give the bodies and what is open apart of many; *given* by the places of fields."""
        frame = self._frame
        rows = zip(*[given[place] for place in self._in_body], strict=True)
        bodies = [frame % row for row in rows] if self._in_body else [frame % ()] * count
        return [bodies, *[given[place] for place in self._open_apart]]

    @property
    def apart(self) -> tuple[list[bytes], list[bytes]]:
        """What stands apart: names and texts that are the same for all, names of the others."""
        same: list[bytes] = []
        others: list[bytes] = []
        for place in self.layout.apart_at:
            if place in self._open_apart:
                others.append(self._names[place])
            else:
                same += (self._names[place], self._texts[place])
        return same, others

    def heads(self) -> list[bytes] | None:
        """Give what each index has before the id; None where an open field says it."""
        names = [name.decode() for name in self._names]
        texts = dict(zip(names, self._texts, strict=True))
        open_ = {name for name, _ in self.open}
        heads = []
        for index in indexes_of(self._kind):
            if not index.fields.isdisjoint(open_):
                return None
            heads.append(index.head(texts))
        return heads

    def values(self, given: Mapping[str, Any], limit: int) -> list[bytes]:
        """Give the body and what is open apart of one; *given* by the names of fields."""
        texts = dict(zip(given, texts_of(given, "value", limit), strict=True))
        body = self._frame % tuple([texts[name] for name in self._body_names])
        return [body, *[texts[name] for name in self._apart_names]]

    def row(self, given: Mapping[int, Sequence[bytes]], number: int) -> dict[bytes, bytes]:
        """Give the fields of one of them."""
        texts = [*self._texts]
        for place, column in given.items():
            texts[place] = column[number]
        return dict(zip(self._names, texts, strict=True))


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
        self._spaces: dict[str, Space] = {}
        self._forms: dict[tuple[Form, RecordKind], KnownForm] = {}

    def space(self, namespace: str) -> Space:
        """Give what is known of a namespace."""
        found = self._spaces.get(namespace)
        if found is None:
            if len(self._spaces) >= 4096:  # noqa: PLR2004 - a bound, so that memory stays flat
                self._spaces.clear()
            found = self._spaces[namespace] = Space(self._keys, namespace)
        return found

    def groups(self, writes: Sequence[Write]) -> list[Group] | None:
        """
        Encode a batch by columns; None where its writes are few or not alike enough.

        Raises:
            InvalidValueError: As `encode` for the first write that it refuses.
        """
        if len(writes) < _WORTH_COLUMNS and not (writes and all(map(_form_of, writes))):
            return None
        groups: list[Group] = []
        for shape, run in groupby(writes, _shape):
            alike = [*run]
            if shape is not None and type(shape[-1]) is Form:
                groups.append(self._filled(shape[-1], alike))
                continue
            if shape is None or len(alike) < _WORTH_COLUMNS:
                return None
            group = self._patches(alike) if shape[0] is Patch else self._wholes(alike)
            if group is None:
                return None
            groups.append(group)
        return groups

    def _filled(self, form: Form, writes: Sequence[Any]) -> Group:
        """Encode records of one form: what they have in common was encoded before."""
        first = writes[0]
        space = self.space(first.namespace)
        known = self._known(form, space.kind)
        open_ = known.opened(writes, self._limit)
        shared, columns = known.shared, known.columns(open_, len(writes))
        if all(write.expires_at is None for write in writes):
            shared = (1, b"", *shared)
        else:
            columns.insert(0, _expiries(writes))
        head = (b"I" if type(first) is Insert else b"P", first.namespace, known.layout.apart)
        return Group(
            head,
            writes,
            _keys(space, writes),
            columns,
            partial(known.row, open_),
            shared,
        )

    def _known(self, form: Form, kind: RecordKind) -> KnownForm:
        found = self._forms.get((form, kind))
        if found is None:
            if len(self._forms) >= _FORMS:
                self._forms.clear()
            found = self._forms[form, kind] = KnownForm(form, kind, self._limit)
        return found

    def form(self, form: Form, namespace: str) -> KnownForm:
        """
        Give what is known of a form in a namespace.

        Raises:
            InvalidValueError: A value is not portable, or too large.
        """
        return self._known(form, self.space(namespace).kind)

    @property
    def limit(self) -> int:
        """The largest field, in bytes."""
        return self._limit

    def _wholes(self, writes: Sequence[Any]) -> Group:
        first = writes[0]
        space = self.space(first.namespace)
        names = names_of(tuple(first.value))
        layout = layout_of(space.kind, names)
        texts = text_columns([write.value for write in writes], "value", self._limit)
        columns: list[Sequence[bytes]] = [
            _expiries(writes),
            layout.bodies(texts, len(writes)),
        ]
        columns += layout.rest(texts)
        head = (b"I" if type(first) is Insert else b"P", first.namespace, layout.apart)
        return Group(head, writes, _keys(space, writes), columns, partial(_row, names, texts))

    def _patches(self, writes: Sequence[Any]) -> Group | None:
        first = writes[0]
        limit = self._limit
        columns: list[Sequence[bytes]] = [[_patched_expiry(write) for write in writes]]
        if first.expect:
            guards = text_columns([write.expect for write in writes], "expect", limit)
            if any(text[:1] in _CONTAINERS for column in guards for text in column):
                return None
            columns += guards
        if first.set:
            columns += text_columns([write.set for write in writes], "set", limit)
        if first.increment:
            columns += [
                [b"%d" % by for by in column]
                for column in zip(*[write.increment.values() for write in writes], strict=True)
            ]
        return Group(
            _patch_head(first), writes, _keys(self.space(first.namespace), writes), columns
        )

    def encode(self, write: Write) -> Item:
        """
        Encode one write.

        Raises:
            InvalidValueError: A value is not portable, or too large.
        """
        space = self.space(write.namespace)
        key = space.prefix + write.id.encode()
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
        return self._whole(write, key, space.kind)  # type: ignore[arg-type]  # one of the two that are left

    def _whole(self, write: Put | Insert, key: bytes, kind: RecordKind) -> Item:
        value: Any = write.value
        if not isinstance(value, Mapping):
            reason = f"must be an object (dict), not {type(value).__name__}"
            raise InvalidValueError("value", reason)
        verb = b"I" if type(write) is Insert else b"P"
        names = names_of(tuple(value))
        texts = texts_of(value, "value", self._limit)
        layout = layout_of(kind, names)
        expires = write.expires_at
        arguments = [b"" if expires is None else b"%d" % expires, layout.body(texts)]
        arguments += layout.rest(texts)
        group = (verb, write.namespace, layout.apart)
        return Item(write, key, group, arguments, fields=(names, texts))

    def _patch(self, write: Patch, key: bytes) -> Item:
        group = _patch_head(write)
        arguments = [_patched_expiry(write)]
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


def _shape(write: Write) -> tuple[Any, ...] | None:
    """Give what writes have in common that are encoded by columns, or None."""
    kind = type(write)
    if kind is Patch:
        patch: Any = write
        if patch.append:
            return None
        return (
            kind,
            patch.namespace,
            *patch.expect,
            None,
            *patch.set,
            None,
            *patch.unset,
            None,
            *patch.increment,
        )
    if kind is Insert or kind is Put:
        whole: Any = write
        if type(whole.value) is Filled:
            return (kind, whole.namespace, whole.value.form)
        if isinstance(whole.value, Mapping):
            return (kind, whole.namespace, *whole.value)
    return None


def _form_of(write: Any) -> Form | None:
    value = getattr(write, "value", None)
    return value.form if type(value) is Filled else None


def _patch_head(write: Patch) -> tuple[Any, ...]:
    return (
        b"U",
        write.namespace,
        names_of(tuple(write.expect)),
        names_of(tuple(write.set)),
        names_of(tuple(write.unset)),
        names_of(tuple(write.increment)),
        names_of(tuple(write.append)),
    )


def _patched_expiry(write: Patch) -> bytes:
    expires = write.expires_at
    return b"k" if expires is KEEP else b"" if expires is None else b"%d" % expires
