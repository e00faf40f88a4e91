"""What goes into a plane and comes out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, Final, Generic, Literal, TypeAlias, TypeVar, final

import attrs

from oqron_core._codec import (
    DEFAULT_MAX_VALUE_BYTES,
    INT_MAX,
    INT_MIN,
    Json,
    canonical,
    decode,
    decode_fields,
    decode_object,
    encode,
    encode_stored,
    readable_fields,
)
from oqron_core._names import check_name, check_namespace
from oqron_core.exceptions import CorruptRecordError, InvalidValueError
from oqron_core.taxonomy import RecordKind, classify_namespace


__all__ = [
    "KEEP",
    "MISSING",
    "Counts",
    "Delete",
    "Entry",
    "Filled",
    "Form",
    "Health",
    "Insert",
    "Keep",
    "Lease",
    "LiveChange",
    "Missing",
    "Order",
    "Page",
    "Patch",
    "PlaneContext",
    "Published",
    "Put",
    "Query",
    "Record",
    "Scope",
    "Signal",
    "Write",
    "WriteResult",
]


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# --- where ------------------------------------------------------------------


@attrs.frozen
class Scope:
    """
    The unit of isolation. A plane is bound to one and cannot name another.

    Attributes:
        project: The application, 1 to 255 characters.
        environment: Such as ``production``, 1 to 255 characters.
    """

    project: str
    environment: str

    def __attrs_post_init__(self) -> None:
        check_name("project", self.project)
        check_name("environment", self.environment)


@attrs.frozen
class PlaneContext:
    """
    What a backend is told when one of its planes is opened.

    Attributes:
        scope: The scope that the plane is bound to.
        max_value_bytes: The limit of one encoded top-level field.
        start_degraded: Whether the hot plane opens although its server does not
            answer; its methods then raise `UnavailableError` until it does.
    """

    scope: Scope
    max_value_bytes: int = DEFAULT_MAX_VALUE_BYTES
    start_degraded: bool = False


@attrs.frozen
class Health:
    """
    How a plane is.

    Attributes:
        ok: Whether it serves calls.
        reasons: What is wrong or risky, one sentence each with the mend.
        details: Facts for operators (version, round trip, …); never a secret.
    """

    ok: bool
    reasons: tuple[str, ...] = ()
    details: Mapping[str, Any] = attrs.field(factory=dict)


# --- hot plane --------------------------------------------------------------

Order: TypeAlias = Literal["fifo", "lifo"]
"""Which end of one priority is handed out first."""


@attrs.frozen
class Entry:
    """
    An id to publish.

    Attributes:
        id: Unique per queue.
        priority: Lower is sooner; -2^31 … 2^31 - 1.
        due_at: Not to be claimed before, milliseconds since the epoch by the
            plane's clock; None for at once.
    """

    id: str
    priority: int = 0
    due_at: int | None = None


@attrs.frozen
class Lease:
    """
    A time-bounded right, returned by a claim or by a lock.

    Attributes:
        queue: The queue; empty for a lock.
        id: The id that was claimed, or the key of the lock.
        owner: Who asked; shown to operators, not used for authorisation.
        token: The fencing token: larger than any given before for this queue or
            key, also across the loss of the plane.
        expires_at: When it lapses unless renewed, by the plane's clock.
        deliveries: How often this id was handed out since it was published.
        priority: With which it returns to the queue.
    """

    queue: str
    id: str
    owner: str
    token: int
    expires_at: int
    deliveries: int = 1
    priority: int = 0


class Published(StrEnum):
    """What `Broker.publish` did with an entry."""

    ADDED = "added"
    """It was unknown and is now ready or delayed."""
    MOVED = "moved"
    """It was ready or delayed; priority and due time are now as published."""
    LEASED = "leased"
    """It is leased and was left alone."""


@attrs.frozen
class Counts:
    """
    How many ids a queue holds, now.

    Attributes:
        ready: Claimable, or claimable once the queue is resumed.
        delayed: Not due yet.
        leased: Under a lease that has not lapsed.
        paused: Whether claims are stopped.
    """

    ready: int
    delayed: int
    leased: int
    paused: bool


@attrs.frozen
class Signal:
    """
    One message of the lossy fan-out.

    Attributes:
        channel: Where it was published.
        message: A portable value.
    """

    channel: str
    message: Any


@attrs.frozen
class LiveChange:
    """
    What changed in a live run since the last merge.

    Attributes:
        run_id: The run.
        fields: Top-level fields to set, by their wire names.
        logs: Log entries to append.
        timeline: Timeline entries to append.
    """

    run_id: str
    fields: Mapping[str, Any] = MappingProxyType({})
    logs: Sequence[Any] = ()
    timeline: Sequence[Any] = ()


class Missing(Enum):
    """The type of `MISSING`."""

    MISSING = "missing"

    def __bool__(self) -> Literal[False]:
        return False

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING
"""A cache miss; None is a value."""


# --- durable plane ----------------------------------------------------------


class Keep(Enum):
    """The type of `KEEP`."""

    KEEP = "keep"


KEEP: Final = Keep.KEEP
"""Leave ``expires_at`` as it is."""


@final
class Record:
    """
    A durable record, handed out as a copy that may be mutated.

    Attributes:
        namespace: Its logical namespace.
        id: Unique in the namespace.
        kind: Stamped from the namespace.
        inserted_at: When it was inserted, by the plane's clock; updates keep it.
        expires_at: From when it is absent, or None.
    """

    __slots__ = ("_raw", "_value", "expires_at", "id", "inserted_at", "kind", "namespace")

    def __init__(
        self,
        namespace: str,
        id: str,  # noqa: A002 - the column's name
        kind: RecordKind,
        value: dict[str, Any],
        inserted_at: int,
        expires_at: int | None = None,
    ) -> None:
        self.namespace: str = namespace
        self.id: str = id
        self.kind: RecordKind = kind
        self.inserted_at: int = inserted_at
        self.expires_at: int | None = expires_at
        self._value: dict[str, Any] | None = value
        self._raw: bytes | Mapping[str, Any] | None = None

    @classmethod
    def lazy(
        cls,
        namespace: str,
        id: str,  # noqa: A002 - the column's name
        raw: bytes | Mapping[str, Any],
        inserted_at: int,
        expires_at: int | None = None,
        kind: RecordKind | None = None,
    ) -> Record:
        """
        Make a record whose value is decoded when it is first asked for.

        Args:
            namespace: Its namespace, from which the kind is taken.
            id: Its id.
            raw: The encoded object, or its fields as `encode_fields` makes them.
                The record owns it from here on.
            inserted_at: Milliseconds since the epoch.
            expires_at: The same, or None.
            kind: The kind, where the caller has it at hand; else classified.
        """
        record = cls.__new__(cls)
        record.namespace = namespace
        record.id = id
        record.kind = classify_namespace(namespace) if kind is None else kind
        record.inserted_at = inserted_at
        record.expires_at = expires_at
        record._value = None
        record._raw = raw
        return record

    @property
    def value(self) -> dict[str, Any]:
        """
        The value: decoded once, then the same mutable dict at every access.

        Raises:
            CorruptRecordError: What is stored is no JSON object.
        """
        value = self._value
        if value is None:
            value = self._value = self.fresh()
        return value

    def fresh(self) -> dict[str, Any]:
        """Decode the value once more: a copy that nothing else here shares."""
        raw = self._raw
        if raw is None:
            return decode_fields({name: encode_stored(v) for name, v in self.value.items()})
        place = f"{self.namespace}/{self.id}"
        if isinstance(raw, bytes):
            raw = decode_object(raw, place)
            if Json not in map(type, raw.values()):
                return raw
        return decode_fields(raw, place)

    def readable(self) -> dict[str, Any]:
        """
        Give the value as far as it can be read, for a list that shows others too.

        In place of a field that cannot be read stands a marker with the reason;
        where nothing can, there is only an ``error``.
        """
        try:
            return self.value
        except CorruptRecordError as error:
            try:
                return readable_fields(self._fields(), f"{self.namespace}/{self.id}")
            except CorruptRecordError:
                return {"error": str(error)}

    def _fields(self) -> Mapping[str, Any]:
        """Give the top-level fields; lists and objects may be `Json`."""
        if self._value is not None:
            return self._value
        raw = self._raw
        if isinstance(raw, bytes):
            raw = decode_object(raw, f"{self.namespace}/{self.id}")
            if Json in map(type, raw.values()):
                self._raw = raw
            else:
                self._value = raw
        return {} if raw is None else raw

    def guards(self, *names: str) -> dict[str, Any]:
        """Give guards that hold as long as these fields stay as they are, or absent."""
        have = self._fields()
        return {name: self.field(name) if name in have else MISSING for name in names}

    def text(self, name: str) -> str:
        """Read a string field; empty where it is none, as in an odd row."""
        found = self._fields().get(name)
        return found if type(found) is str else ""

    def integer(self, name: str, default: int = 0) -> int:
        """Read an integer field; *default* where it is none, as in an odd row."""
        found = self._fields().get(name)
        return found if type(found) is int else default

    def field(self, name: str) -> Any:
        """Read one top-level field without decoding the others; None if absent."""
        found = self._fields().get(name)
        if type(found) is Json:
            return decode(found.data, f"{self.namespace}/{self.id}")
        return found

    def encoded(self, name: str) -> Json:
        """Give one top-level field as JSON text; ``null`` if absent."""
        found = self._fields().get(name)
        return found if type(found) is Json else encode_stored(found)

    def raw_fields(self) -> dict[str, Any]:
        """
        Give the top-level fields in a fresh dict, to be written again.

        Lists and objects may still be `Json`: what is passed on need not be
        decoded.
        """
        fields = self._fields()
        if fields is not self._value:
            return dict(fields)
        return {name: _passed_on(field) for name, field in fields.items()}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return (
            self.namespace == other.namespace
            and self.id == other.id
            and self.inserted_at == other.inserted_at
            and self.expires_at == other.expires_at
            and canonical(self.value) == canonical(other.value)
        )

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # its value is mutable

    def __repr__(self) -> str:
        # Never the value: a payload does not belong in a log.
        return f"Record({self.namespace!r}, {self.id!r}, kind={str(self.kind)!r})"


def _passed_on(field: Any) -> Any:
    """Give a stored field in a form that may be written again as it is."""
    if isinstance(field, (list, dict)):
        return encode_stored(field)
    if type(field) is int and not INT_MIN <= field <= INT_MAX:
        return float(field)  # a store wrote a large float without its exponent
    return field


def _check_expiry(expires_at: object) -> None:
    if type(expires_at) is not int or not INT_MIN <= expires_at <= INT_MAX:
        reason = "must be milliseconds since the epoch as an int, or None"
        raise InvalidValueError("expires_at", reason)


def _check_address(write: Put | Insert | Patch | Delete) -> None:
    check_namespace(write.namespace)
    check_name("id", write.id)


@attrs.frozen
class Put:
    """
    Write a whole value, whether or not the record exists. Always applied.

    Attributes:
        namespace: Where.
        id: Which.
        value: An object; top-level fields may be `Json`.
        expires_at: From when the record is absent, or None.
    """

    namespace: str
    id: str
    value: Mapping[str, Any]
    expires_at: int | None = None

    def __attrs_post_init__(self) -> None:
        _check_address(self)
        if self.expires_at is not None:
            _check_expiry(self.expires_at)


@attrs.frozen(weakref_slot=False)
class Insert:
    """
    Write a whole value only where no record is. Applied if none was.

    Attributes: as `Put`.
    """

    namespace: str
    id: str
    value: Mapping[str, Any]
    expires_at: int | None = None

    def __attrs_post_init__(self) -> None:
        _check_address(self)
        if self.expires_at is not None:
            _check_expiry(self.expires_at)


@final
class Form:
    """
    What the values of many inserts have in common.

    A backend may encode it once: all values that are made of one form have its fields, in
    its order, and differ in the open ones alone. None of it changes once it is made.

    Attributes:
        fields: The fields, those that are open among them.
        open: The names of the open ones.
    """

    __slots__ = ("fields", "open")

    def __init__(self, fields: Mapping[str, Any], open: Sequence[str]) -> None:  # noqa: A002
        self.fields: Mapping[str, Any] = fields
        self.open: tuple[str, ...] = tuple(open)

    def fill(self, given: Mapping[str, Any]) -> Filled:
        """Make a value; *given* has the open fields and no others, and is kept as it is."""
        return Filled(self, given)


@final
class Filled(Mapping[str, Any]):
    """
    A value that was made of a form, and is not to be changed.

    Attributes:
        form: The form.
        given: The open fields.
    """

    __slots__ = ("form", "given")

    def __init__(self, form: Form, given: Mapping[str, Any]) -> None:
        self.form: Form = form
        self.given: Mapping[str, Any] = given

    def __getitem__(self, name: str) -> Any:
        given = self.given
        return given[name] if name in given else self.form.fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.form.fields)

    def __len__(self) -> int:
        return len(self.form.fields)

    def __repr__(self) -> str:
        # Never the content: a payload does not belong in a log.
        return f"Filled(<{len(self)} fields>)"


_EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})


@attrs.frozen(weakref_slot=False)
class Patch:
    """
    Change some top-level fields of a record that exists.

    Not applied where the record is absent, where a guard does not hold, where
    *increment* meets something that is no integer (absent counts as 0, and 1.0 is
    one) or would leave 64 bits, or where *append* meets something that is no list (absent
    counts as empty).

    Attributes:
        namespace: Where.
        id: Which.
        set: Fields and their new values.
        unset: Fields to remove.
        increment: Integer fields and what to add.
        append: List fields and the items to add at their end.
        expect: Guards: each field must equal the value, as JSON (see `canonical`).
            `MISSING` expects that the field is absent.
        expires_at: The new expiry, None for none, `KEEP` to leave it.
    """

    namespace: str
    id: str
    set: Mapping[str, Any] = attrs.field(default=_EMPTY, kw_only=True)
    unset: Sequence[str] = attrs.field(default=(), kw_only=True)
    increment: Mapping[str, int] = attrs.field(default=_EMPTY, kw_only=True)
    append: Mapping[str, Sequence[Any]] = attrs.field(default=_EMPTY, kw_only=True)
    expect: Mapping[str, Any] = attrs.field(default=_EMPTY, kw_only=True)
    expires_at: int | None | Keep = attrs.field(default=KEEP, kw_only=True)

    def __attrs_post_init__(self) -> None:
        _check_address(self)
        if self.expires_at is not KEEP and self.expires_at is not None:
            _check_expiry(self.expires_at)
        if not (self.unset or self.increment or self.append):
            return
        touched = len(self.set) + len(self.unset) + len(self.increment) + len(self.append)
        names = {*self.set, *self.unset, *self.increment, *self.append}
        if len(names) != touched:
            reason = "names one field in two of set, unset, increment and append"
            raise InvalidValueError("patch", reason)
        for name, by in self.increment.items():
            if type(by) is not int or not INT_MIN <= by <= INT_MAX:
                reason = "must be an int of at most 64 bits"
                raise InvalidValueError(f"increment.{name}", reason)
        for name, items in self.append.items():
            if not isinstance(items, (list, tuple)):
                reason = "must be a list of the items to append"
                raise InvalidValueError(f"append.{name}", reason)


@attrs.frozen
class Delete:
    """
    Remove a record. Applied if it was there and every guard held.

    Attributes:
        namespace: Where.
        id: Which.
        expect: Guards, as in `Patch`.
    """

    namespace: str
    id: str
    expect: Mapping[str, Any] = attrs.field(default=_EMPTY, kw_only=True)

    def __attrs_post_init__(self) -> None:
        _check_address(self)


Write: TypeAlias = Put | Insert | Patch | Delete


@final
class WriteResult:
    """
    What became of one write. True if it was applied.

    Args:
        applied: Whether the write took place.
        record: The record after it: the new one, the one that stood in the way,
            or None where there is none. Its value holds only what *returning*
            asked for.
        make: Makes that record when it is first asked for, from *place*: most callers
            only want to know whether it was applied.
        place: What *make* is told, so that one serves a whole batch.

    Attributes:
        applied: Whether the write took place.
    """

    __slots__ = ("_make", "_place", "_record", "applied")

    def __init__(
        self,
        applied: bool,  # noqa: FBT001 - made a million times
        record: Record | None = None,
        make: Callable[[int], Record | None] | None = None,
        place: int = 0,
    ) -> None:
        self.applied: bool = applied
        self._record = record
        self._make = make
        self._place = place

    @property
    def record(self) -> Record | None:
        """The record after the write; a backend may make it only when it is asked for."""
        if self._make is not None:
            self._record, self._make = self._make(self._place), None
        return self._record

    @record.setter
    def record(self, record: Record | None) -> None:
        self._record, self._make = record, None

    def __bool__(self) -> bool:
        return self.applied

    @property
    def value(self) -> dict[str, Any] | None:
        """The value after the write, or None."""
        return None if self.record is None else self.record.value

    def __repr__(self) -> str:
        return f"WriteResult(applied={self.applied}, record={self.record!r})"


Condition: TypeAlias = tuple[str, str, Any]
OPERATORS: Final = frozenset({"=", "!=", "<", "<=", ">", ">=", "in"})
COLUMNS: Final = frozenset({"id", "inserted_at", "expires_at", "namespace"})
"""Names in `Query.where` and `Query.order_by` that are columns, not fields."""


def _conditions(items: Iterable[Condition]) -> tuple[Condition, ...]:
    return _tuple("query.where", items)


def _order(items: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return _tuple("query.order_by", items)


def _tuple(path: str, items: Iterable[T]) -> tuple[T, ...]:
    try:
        return tuple(items)
    except TypeError:
        raise InvalidValueError(path, "must be a list") from None


def _kind(kind: RecordKind | str | None) -> RecordKind | None:
    if kind is None:
        return None
    try:
        return RecordKind(kind)
    except ValueError:
        reason = f"{kind!r} is none of {', '.join(sorted(RecordKind))}"
        raise InvalidValueError("query.kind", reason) from None


@attrs.frozen
class Query:
    """
    Which records, in which order, from where on.

    A condition names a top-level field, ``id``, ``namespace``, ``inserted_at`` or
    ``expires_at``. ``=`` and ``in`` are exact JSON equality; ``!=`` needs the
    field to be there; ``< <= > >=`` compare a number with numbers and a string
    with strings (by code point), and match nothing else. An absent field
    matches nothing; ``("expires_at", "=", None)`` matches what never expires.

    ``order_by`` ranks false, true, numbers, then strings; ascending or
    descending, a field that is absent, null, a list or an object comes last.
    Ties, and a query without order, are in the order of ``(namespace, id)``,
    ascending.

    Attributes:
        kind: A record kind, or None.
        namespace: A namespace, or None. At least one of the two is needed.
        where: Conditions that must all hold.
        order_by: ``(field, "asc" | "desc")`` pairs, at most four.
        limit: At most this many records, 1 to 10,000.
        after: The cursor of the page before, or None.
        fields: Only these top-level fields of the values; None for all.
    """

    kind: RecordKind | None = attrs.field(default=None, converter=_kind)
    namespace: str | None = None
    where: Sequence[Condition] = attrs.field(default=(), converter=_conditions)
    order_by: Sequence[tuple[str, str]] = attrs.field(default=(), converter=_order)
    limit: int = 50
    after: str | None = None
    fields: Sequence[str] | None = None

    def __attrs_post_init__(self) -> None:
        if self.kind is None and self.namespace is None:
            raise InvalidValueError("query", "needs a kind or a namespace")
        if self.namespace is not None:
            check_namespace(self.namespace, "query.namespace")
        if type(self.limit) is not int or not 1 <= self.limit <= MAX_PAGE:
            reason = f"must be an int from 1 to {MAX_PAGE}, not {self.limit!r}"
            raise InvalidValueError("query.limit", reason)
        if self.after is not None and type(self.after) is not str:
            raise InvalidValueError("query.after", "must be the cursor of a page")
        self._check_where()
        self._check_order()
        if self.fields is not None:
            for name in self.fields:
                _check_field("query.fields", name)

    def _check_where(self) -> None:
        condition: Any
        for index, condition in enumerate(self.where):
            path = f"query.where[{index}]"
            if not isinstance(condition, (tuple, list)) or len(condition) != 3:  # noqa: PLR2004 - a triple
                reason = (
                    'must be a (field, operator, value) triple, such as ("status", "=", "failed")'
                )
                raise InvalidValueError(path, reason)
            name, operator, value = condition
            _check_field(path, name)
            if operator not in OPERATORS:
                reason = f"unknown operator {operator!r}; there are: {' '.join(sorted(OPERATORS))}"
                raise InvalidValueError(path, reason)
            if operator == "in":
                if not isinstance(value, (list, tuple)):
                    raise InvalidValueError(path, "'in' takes a list of values")
                encode(list(value), path, max_bytes=None)
            else:
                encode(value, path, max_bytes=None)
                if operator not in {"=", "!="} and type(value) not in {int, float, str}:
                    reason = f"{operator!r} compares numbers or strings, not {type(value).__name__}"
                    raise InvalidValueError(path, reason)

    def _check_order(self) -> None:
        if len(self.order_by) > MAX_ORDER:
            reason = f"has {len(self.order_by)} fields; at most {MAX_ORDER} are allowed"
            raise InvalidValueError("query.order_by", reason)
        pair: Any
        for index, pair in enumerate(self.order_by):
            path = f"query.order_by[{index}]"
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:  # noqa: PLR2004 - a pair
                reason = 'must be a (field, "asc" or "desc") pair'
                raise InvalidValueError(path, reason)
            name, direction = pair
            _check_field(path, name)
            if direction not in {"asc", "desc"}:
                reason = f'the direction is "asc" or "desc", not {direction!r}'
                raise InvalidValueError(path, reason)

    def id_bounds(self) -> tuple[str, str | None]:
        """
        Give the least and the greatest id that can match, for a walk in their order.

        Returns:
            Both inclusive; an empty string and None where there is no such bound.
        """
        ids = [(op, value) for name, op, value in self.where if name == "id" and type(value) is str]
        least: str = max((value for op, value in ids if op in {"=", ">", ">="}), default="")
        most: str | None = min((value for op, value in ids if op in {"=", "<", "<="}), default=None)
        return least, most


MAX_PAGE: Final = 10_000
MAX_ORDER: Final = 4


def _check_field(path: str, name: object) -> None:
    if type(name) is not str or not name or not name.isascii() or not name.isidentifier():
        reason = (
            f"{name!r} is no field name; a field that is queried has an ASCII "
            "letter or underscore, then letters, digits and underscores"
        )
        raise InvalidValueError(path, reason)


@final
@attrs.frozen
class Page(Generic[T_co]):
    """
    One page of a query. Iterates over its items.

    Attributes:
        items: Records, jobs, runs or messages, in order.
        next: The cursor for ``after``, or None at the end. A string without
            meaning; good for the same query, also after writes.
    """

    items: Sequence[T_co]
    next: str | None = None

    def __iter__(self) -> Iterator[T_co]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)
