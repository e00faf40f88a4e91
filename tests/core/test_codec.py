"""The portable domain: what is accepted comes back equal, the rest is named."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import enum
import fractions
import json
import math
import pickle
import typing
import uuid

from pathlib import Path
from typing import Any

import attrs
import pytest

from hypothesis import given, settings
from hypothesis import strategies as st

from oqron_core._codec import (
    INT_MAX,
    INT_MIN,
    MAX_DEPTH,
    NULL,
    Json,
    canonical,
    check_value,
    decode,
    decode_fields,
    decode_object,
    encode,
    encode_fields,
    encode_object,
    encode_stored,
    portable_text,
    portable_value,
)
from oqron_core.exceptions import CorruptRecordError, InvalidValueError
from oqron_core.testing.hostile import stable_id


SUITE = Path(__file__).parents[2] / "../shared/data/json-test-suite"
WEBHOOKS = Path(__file__).parents[2] / "../shared/data/github-webhooks.jsonl"
suite = pytest.mark.skipif(not SUITE.is_dir(), reason="the shared data is not beside this checkout")

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
integers = st.integers(INT_MIN, INT_MAX) | st.sampled_from([INT_MIN, INT_MAX, 2**53 + 1, 0, 1])
floats = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | integers | floats | texts
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=20,
)
objects = st.dictionaries(texts, values, max_size=6)


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal in type as well as in content, all the way down."""
    if type(one) is not type(other):
        return False
    if type(one) is dict:
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if type(one) is list:
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def json_equal(one: Any, other: Any) -> bool:
    """Say what exact JSON equality is, without the code under test."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(json_equal(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(json_equal, one, other))
    return bool(one == other)


def nested(depth: int, *, objects: bool = False) -> Any:
    value: Any = {} if objects else []
    for _ in range(depth - 1):
        value = {"k": value} if objects else [value]
    return value


def shown(part: Any) -> str:
    if isinstance(part, (int, dict)) and any(
        type(number) is int and abs(number) > 10**100
        for number in (part if isinstance(part, dict) else [part])
    ):
        return "huge"
    return stable_id(part).encode("ascii", "backslashreplace").decode()[:30]


class Colour(enum.Enum):
    RED = "red"


class Word(enum.StrEnum):
    RED = "red"


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Point(typing.NamedTuple):
    x: int
    y: int


@attrs.frozen
class Thing:
    x: int = 1


# --- round trips -----------------------------------------------------------------


@given(values)
def test_a_portable_value_comes_back_equal_in_every_type(value: Any) -> None:
    assert same(encode(value).load(), value)
    assert same(decode(encode(value).data), value)


@given(values)
def test_what_we_write_is_json_to_everybody(value: Any) -> None:
    assert json_equal(json.loads(encode(value).data), value)


@given(objects)
def test_a_record_comes_back_equal_and_shares_nothing(value: dict[str, Any]) -> None:
    fields = encode_fields(value)
    assert same(decode_fields(fields), value)
    assert same(decode(encode_object(fields)), value)
    for name, field in decode_fields(fields).items():
        if isinstance(field, (list, dict)):
            assert field is not value[name]


def test_changing_what_was_encoded_changes_nothing() -> None:
    value = {"items": [1, {"a": []}]}
    fields, encoded = encode_fields(value), encode(value)
    value["items"].append(2)
    value["items"][1]["a"].append(3)  # type: ignore[index]
    assert decode_fields(fields) == encoded.load() == {"items": [1, {"a": []}]}
    assert encoded.load() is not encoded.load()


@pytest.mark.parametrize(
    "value",
    [
        {"__type": "Date", "__val": "x"},
        {"__unstorable__": "x", "type": "y"},
        {"$date": 1},
        {"py/object": "os.system"},
        {"__reduce__": ["os.system", "x"]},
        "\\u0000",
        "\\\\u0000",
        "a\\u0000b 🚀",
        "\\ud800",
        {"\\u0000": "\\u0000"},
        "",
        {},
        [],
        None,
        False,
        0,
        {"": ""},
        [None],
        -0.0,
        1e16,
        1e22,
        1.7976931348623157e308,
        5e-324,
        0.1 + 0.2,
        2**53 + 1,
        130775545883395173,
        1751587201000123,
        INT_MIN,
        INT_MAX,
        "\ufeff",
        "\u2028\u2029",
        "\x01\x1f\x7f",
        "é e\u0301 İ ß",
        "👩‍👩‍👧‍👦",
    ],
    ids=ascii,
)
def test_awkward_values_are_not_altered(value: Any) -> None:
    assert same(encode(value).load(), value)
    assert same(decode_fields(encode_fields({"v": value}))["v"], value)


def test_keys_keep_their_order() -> None:
    value = {"b": 1, "a": {"z": 1, "y": 2}, "aa": 3}
    assert list(encode(value).load()) == ["b", "a", "aa"]
    assert list(encode(value).load()["a"]) == ["z", "y"]
    assert list(decode(encode_object(encode_fields(value)))) == ["b", "a", "aa"]


# --- what is refused -------------------------------------------------------------

REFUSED = [
    (math.nan, "value", "finite"),
    (math.inf, "value", "finite"),
    (-math.inf, "value", "finite"),
    (INT_MAX + 1, "value", "64 bits"),
    (INT_MIN - 1, "value", "64 bits"),
    (10**400, "value", "64 bits"),
    (10**5000, "value", "64 bits"),
    ("a\0b", "value", "NUL"),
    ("\ud800", "value", "lone surrogate"),
    ("a\udc00", "value", "lone surrogate"),
    ("\udc00\ud800", "value", "lone surrogate"),
    ({"a": [1, {"b": "x\0"}]}, "value.a[1].b", "NUL"),
    ({"a": {"b c": math.nan}}, "value.a['b c']", "finite"),
    ([0, [0, math.inf]], "value[1][1]", "finite"),
    ({"k\0": 1}, "key of value['k\\x00']", "NUL"),
    ({"k\ud800": 1}, "key of value['k\\ud800']", "lone surrogate"),
    ({1: "a"}, "value", "keys must be str, not int"),
    ({True: "a"}, "value", "keys must be str, not bool"),
    ({None: "a"}, "value", "keys must be str, not NoneType"),
    ({(1, 2): "a"}, "value", "keys must be str, not tuple"),
    ({10**5000: "a"}, "value", "keys must be str, not int"),
    ({1.5: "a"}, "value", "keys must be str, not float"),
    ({1: "a", "1": "b"}, "value", "keys must be str, not int"),
    ({"x": {b"k": 1}}, "value.x", "keys must be str, not bytes"),
    ({Word.RED: 1}, "value", "keys must be str, not Word"),
    ((1, 2), "value", "tuple"),
    ({1, 2}, "value", "set"),
    (frozenset(), "value", "frozenset"),
    (b"x", "value", "bytes"),
    (bytearray(b"x"), "value", "bytearray"),
    (memoryview(b"x"), "value", "memoryview"),
    (decimal.Decimal("1.1"), "value", "decimal.Decimal"),
    (fractions.Fraction(1, 3), "value", "fractions.Fraction"),
    (complex(1, 2), "value", "complex"),
    (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "value", "datetime.datetime"),
    (dt.date(2026, 1, 1), "value", "datetime.date"),
    (dt.timedelta(1), "value", "datetime.timedelta"),
    (uuid.UUID(int=1), "value", "uuid.UUID"),
    (Colour.RED, "value", "Colour"),
    (Word.RED, "value", "Word"),
    (Text("x"), "value", "Text"),
    (Number(1), "value", "Number"),
    (Point(1, 2), "value", "Point"),
    (Thing(), "value", "Thing"),
    (collections.OrderedDict(a=1), "value", "OrderedDict"),
    (collections.defaultdict(int), "value", "defaultdict"),
    (range(3), "value", "range"),
    (iter([1]), "value", "list_iterator"),
    (object(), "value", "object"),
    (int, "value", "type"),
    (print, "value", "builtin_function_or_method"),
    ({"a": (1,)}, "value.a", "tuple"),
    ([{"when": dt.date(2026, 1, 1)}], "value[0].when", "datetime.date"),
]


@pytest.mark.parametrize("value, path, reason", REFUSED, ids=shown)
def test_what_no_backend_keeps_is_refused_by_its_path(value: Any, path: str, reason: str) -> None:
    for attempt in (encode, check_value):
        with pytest.raises(InvalidValueError) as caught:
            attempt(value)
        assert caught.value.path == path
        assert reason in caught.value.reason


@pytest.mark.parametrize("value, path, reason", REFUSED, ids=shown)
def test_a_field_of_a_record_is_refused_as_the_value_itself(
    value: Any, path: str, reason: str
) -> None:
    with pytest.raises(InvalidValueError) as caught:
        encode_fields({"data": value})
    assert caught.value.path == path.replace("value", "value.data", 1)
    assert reason in caught.value.reason


@pytest.mark.parametrize("value", [None, [], "x", 1, [("a", 1)]])
def test_a_record_is_an_object(value: Any) -> None:
    with pytest.raises(InvalidValueError, match="must be an object"):
        encode_fields(value)


@pytest.mark.parametrize("name", [1, None, True, b"x", "a\0", "\ud800"], ids=ascii)
def test_a_field_name_is_checked_like_any_key(name: Any) -> None:
    with pytest.raises(InvalidValueError):
        encode_fields({name: 1})


@pytest.mark.parametrize("objects", [False, True])
def test_nesting_has_one_limit(objects: bool) -> None:
    assert encode(nested(MAX_DEPTH, objects=objects)).load() == nested(MAX_DEPTH, objects=objects)
    for depth in (MAX_DEPTH + 1, 500, 1001, 50_000):
        with pytest.raises(InvalidValueError, match="nested deeper than 100"):
            encode(nested(depth, objects=objects))


def test_a_value_that_contains_itself_is_refused_and_does_not_hang() -> None:
    loop: list[Any] = []
    loop.append(loop)
    ring: dict[str, Any] = {}
    ring["again"] = {"x": ring}
    for value in (loop, ring):
        with pytest.raises(InvalidValueError, match="nested deeper"):
            encode(value)


def test_the_size_limit_counts_encoded_bytes() -> None:
    assert len(encode("x" * 98, max_bytes=100).data) == 100
    with pytest.raises(InvalidValueError, match=r"has 101 bytes as JSON; the limit is 100"):
        encode("x" * 99, max_bytes=100)
    with pytest.raises(InvalidValueError, match="has 102 bytes"):
        encode("é" * 50, max_bytes=100)
    assert len(encode("x" * 5_000_000, max_bytes=None).data) == 5_000_002


@pytest.mark.parametrize(
    "value", ["x" * 200, ["x" * 200], {"k": "x" * 200}, Json(b'"' + b"x" * 200 + b'"')]
)
def test_a_field_over_the_limit_is_named(value: Any) -> None:
    with pytest.raises(InvalidValueError) as caught:
        encode_fields({"ok": 1, "data": value}, max_bytes=100)
    assert caught.value.path == "value.data"


def test_a_refusal_does_not_show_the_payload() -> None:
    secret = "hunter2-" * 40
    with pytest.raises(InvalidValueError) as caught:
        encode({"password": secret + "\0"})
    assert "hunter2" not in str(caught.value)
    with pytest.raises(InvalidValueError) as caught:
        encode({"password": secret}, max_bytes=10)
    assert "hunter2" not in str(caught.value)


# --- equality --------------------------------------------------------------------


@settings(max_examples=300)
@given(values, values)
def test_canonical_bytes_are_equal_where_values_are(one: Any, other: Any) -> None:
    assert (canonical(one) == canonical(other)) == json_equal(one, other)


@given(values)
def test_canonical_is_stable_through_storage(value: Any) -> None:
    """The hash of a payload is the same before and after it was stored."""
    assert canonical(value) == canonical(encode(value)) == canonical(encode(value).load())
    assert canonical(decode(canonical(value))) == canonical(value)


@given(st.dictionaries(texts, scalars, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_count(value: dict[str, Any], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert canonical(dict(items)) == canonical(value)


@given(integers)
def test_an_integer_equals_the_float_of_the_same_number(number: int) -> None:
    as_float = float(number)
    assert (canonical(number) == canonical(as_float)) == (number == as_float)


@given(values, values, values)
def test_equality_is_an_equivalence(one: Any, two: Any, three: Any) -> None:
    a, b, c = encode(one), encode(two), encode(three)
    assert a == encode(one)
    assert hash(a) == hash(encode(one))
    assert (a == b) == (b == a)
    if a == b and b == c:
        assert a == c
    if a == b:
        assert hash(a) == hash(b)


@pytest.mark.parametrize(
    "one, other",
    [(1, 1.0), (0, -0.0), (0.0, -0.0), (10**15, 1e15), (2**53, 2.0**53), ([1], [1.0])],
)
def test_one_number_has_one_form(one: Any, other: Any) -> None:
    assert canonical(one) == canonical(other)
    assert canonical({"a": one}) == canonical({"a": other})


@pytest.mark.parametrize(
    "one, other",
    [
        (True, 1),
        (False, 0),
        (None, False),
        (None, 0),
        ("", None),
        ("1", 1),
        ([], {}),
        ([], None),
        ({}, {"a": None}),
        ([1, 2], [2, 1]),
        (2**53, 2**53 + 1),
        (0.1, 0.1 + 1e-17 * 4),
        ("é", "e\u0301"),
        ("a", "A"),
        ("a", "a "),
    ],
)
def test_values_that_differ_stay_apart(one: Any, other: Any) -> None:
    assert (canonical(one) == canonical(other)) is json_equal(one, other)
    assert encode(one) != encode(other) or json_equal(one, other)


# --- Json ------------------------------------------------------------------------


def test_encoded_text_is_immutable_hides_its_content_and_pickles() -> None:
    encoded = encode({"token": "hunter2"})
    assert "hunter2" not in repr(encoded)
    assert repr(encoded) == f"Json(<{len(encoded.data)} bytes>)"
    with pytest.raises(AttributeError):
        encoded.data = b"null"
    assert pickle.loads(pickle.dumps(encoded)) == encoded  # noqa: S301 - our own bytes
    assert encode(encoded) is encoded
    assert NULL.load() is None
    assert (encoded == {"token": "hunter2"}) is False


def test_encoded_text_is_taken_as_it_is() -> None:
    """A payload is encoded once on its way through both planes."""
    encoded = encode([1, 2])
    fields = encode_fields({"data": encoded})
    assert fields["data"] is encoded
    assert encode_object(fields) == b'{"data":[1,2]}'


# --- what is read ----------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [b"", b"{", b"nul", b"\xff", b"{'a':1}", b"NaN", b"[1,]", b"\x80\x04."]
)
def test_what_is_no_json_is_a_typed_error_with_its_place(data: bytes) -> None:
    with pytest.raises(CorruptRecordError) as caught:
        decode(data, "runs/1")
    assert caught.value.key == "runs/1"
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize(
    "poison",
    [b"[1e400]", b'{"a":-1e400}', b"[" + b"9" * 5000 + b"]", b"[" * 5000 + b"]" * 5000],
    ids=["exponent", "object", "digits", "depth"],
)
def test_a_field_that_cannot_be_read_hides_no_other(poison: bytes) -> None:
    """What others stored is taken apart, and passed on as it was."""
    text = b' { "id" : "a,}\\"{" , "data":' + poison + b',"n":[1, 2],"e\\u00e9":-0.5,"s":"" } '
    fields = decode_object(text)
    readable = {k: v.load() if isinstance(v, Json) else v for k, v in fields.items() if k != "data"}

    assert readable == {"id": 'a,}"{', "n": [1, 2], "e\u00e9": -0.5, "s": ""}
    assert fields["data"].data == poison
    with pytest.raises(CorruptRecordError):
        fields["data"].load()
    with pytest.raises(CorruptRecordError) as caught:
        decode_fields(fields, "runs/1")
    assert caught.value.key == "runs/1"
    assert poison in encode_object(fields)


@pytest.mark.parametrize("text, expected", [(b"1e400", math.inf), (b"-" + b"9" * 400, -math.inf)])
def test_a_number_beyond_a_double_is_endless(text: bytes, expected: float) -> None:
    """Where it stands by itself, as every other reader has it."""
    assert decode_object(b'{"a":' + text + b',"b":1}') == {"a": expected, "b": 1}


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"}", b"[]", b"1", b"null", b'{"a":1e400', b'{"a":1e400}}', b'{"a":1e400}{}',
        b"{'a':1e400}", b'{"a":}', b'{"a":nul}', b'{"a" 1e400}', b"{1e400:1}", b'[{"a":1e400}]',
        b'{"\\x":1e400}', b"\x80\x04.", b'"a"', b'{"a":"b}',
    ],
)  # fmt: skip
def test_what_is_no_object_is_not_taken_apart(data: bytes) -> None:
    """It is a typed error with its place."""
    with pytest.raises(CorruptRecordError) as caught:
        decode_object(data, "runs/1")
    assert caught.value.key == "runs/1"


@given(objects)
def test_an_object_is_taken_apart_as_it_was_put_together(value: dict[str, Any]) -> None:
    """Whatever its names and texts look like."""
    text = encode(value).data
    fields = decode_object(text[:-1] + (b"," if value else b"") + b'"poison":[1e999]}')

    assert fields.pop("poison").data == b"[1e999]"
    assert same(decode_fields(fields), {k: v for k, v in value.items() if k != "poison"})


@pytest.mark.parametrize("depth", [200, 255, 900])
@pytest.mark.parametrize("objects", [False, True])
def test_what_is_deeper_than_we_write_is_passed_on(depth: int, objects: bool) -> None:
    """What could be read can be written again, with what stands beside it."""
    value = {"a": ["x", {'b"': None}, [], {}], "deep": nested(depth, objects=objects), "c": 1.5}

    assert decode(encode_stored(value).data) == value
    assert decode(encode_object({**value, "j": Json(b"[1]")})) == {**value, "j": [1]}


def test_a_pickle_is_never_executed() -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return pytest.fail, ("a pickle was loaded",)

    for data in (pickle.dumps(Bomb()), pickle.dumps(Bomb(), 0)):
        with pytest.raises(CorruptRecordError):
            decode(data)


def suite_files(kind: str) -> list[Any]:
    found = sorted(SUITE.glob(f"{kind}_*.json")) if SUITE.is_dir() else []
    return [pytest.param(path, id=path.stem[:60]) for path in found]


@suite
@pytest.mark.parametrize("path", suite_files("y"))
def test_legal_json_is_read_and_either_kept_equal_or_refused(path: Path) -> None:
    value = decode(path.read_bytes(), path.name)
    assert json_equal(value, json.loads(path.read_bytes()))
    try:
        encoded = encode(value)
    except InvalidValueError as error:
        assert "NUL" in error.reason or "64 bits" in error.reason
    else:
        assert same(encoded.load(), value)


@suite
@pytest.mark.parametrize("path", suite_files("n"))
def test_illegal_json_is_a_typed_error(path: Path) -> None:
    with pytest.raises(CorruptRecordError):
        decode(path.read_bytes(), path.name)


@suite
@pytest.mark.parametrize("path", suite_files("i"))
def test_undefined_json_is_refused_or_read_and_never_breaks(path: Path) -> None:
    try:
        value = decode(path.read_bytes(), path.name)
    except CorruptRecordError:
        return
    try:
        assert same(encode(value).load(), value)
    except InvalidValueError as error:
        assert error.path.startswith("value")


@pytest.mark.skipif(not WEBHOOKS.is_file(), reason="the shared data is not beside this checkout")
def test_real_payloads_come_back_equal() -> None:
    lines = WEBHOOKS.read_bytes().splitlines()
    assert len(lines) > 200
    for line in lines:
        payload = json.loads(line)
        assert same(encode(payload).load(), payload)
        assert same(decode_fields(encode_fields(payload)), payload)


# --- what handlers report --------------------------------------------------------


@given(st.text())
def test_any_text_is_made_portable(text: str) -> None:
    made = portable_text(text)
    check_value(made)
    assert len(made) == len(text) or any("\ud800" <= char <= "\udfff" for char in text)
    if "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text):
        assert made == text


@pytest.mark.parametrize(
    "text, made",
    [
        ("a\0b", "a\ufffdb"),
        ("\ud800", "\ufffd"),
        ("🚀\ud800", "🚀\ufffd"),
        ("\\u0000", "\\u0000"),
        (ValueError("x"), "x"),
        (None, "None"),
        (b"x", "b'x'"),
        (Text("x"), "x"),
        (Word.RED, "red"),
    ],
    ids=ascii,
)
def test_what_is_not_portable_is_replaced_and_nothing_else(text: object, made: str) -> None:
    result = portable_text(text)
    assert result == made
    assert type(result) is str


def test_a_cut_is_marked() -> None:
    assert portable_text("x" * 20, limit=5) == "xxxxx… [15 characters cut]"
    assert portable_text("x" * 5, limit=5) == "xxxxx"


def test_a_report_that_cannot_be_shown_does_not_fail_the_job() -> None:
    class Rude:
        def __str__(self) -> str:
            raise RuntimeError

    assert portable_text(Rude()) == "<Rude whose str() raised RuntimeError>"


@pytest.mark.parametrize("value", [object(), {1: 2}, math.nan, "\0", nested(200), {"a": {1, 2}}])
def test_an_output_that_cannot_be_stored_is_marked_and_reported(value: Any) -> None:
    refused: list[InvalidValueError] = []
    marker = portable_value(value, on_refused=refused.append).load()
    assert set(marker) == {"__unstorable__", "type"}
    assert marker["type"] == type(value).__qualname__
    assert len(refused) == 1
    assert marker["__unstorable__"].startswith("output")
    check_value(marker)


def test_an_output_over_the_limit_is_marked_too() -> None:
    marker = portable_value("x" * 200, max_bytes=100).load()
    assert "the limit is 100" in marker["__unstorable__"]


@given(values)
def test_a_portable_output_is_kept(value: Any) -> None:
    def never(error: InvalidValueError) -> None:
        raise error

    assert same(portable_value(value, on_refused=never).load(), value)
