"""Names and values that have broken job systems, for use in tests."""

from __future__ import annotations

import re

from typing import Any, Final


__all__ = ["BAD_NAMES", "BAD_VALUES", "NAMES", "SCOPES", "VALUES", "nested", "same", "stable_id"]

NAMES: Final[tuple[str, ...]] = (
    "a",
    "A",
    "123",
    "-1",
    "0",
    " ",
    "a ",
    " a",
    "a:b",
    "a:b:c",
    ":",
    "::",
    "a/b",
    "a|b",
    "a.b",
    "a,b",
    "a\\c",
    "\\",
    "a*c",
    "abc",
    "a?c",
    "a[bx]c",
    "a[^b]c",
    "*",
    "{",
    "}",
    "{}",
    "{a}",
    "a{b}c",
    "}{",
    "%",
    "100%",
    "100x",
    "%s",
    "%(x)s",
    "a_b",
    "aXb",
    "$1",
    ":name",
    "'",
    "''",
    '"',
    "`",
    ";",
    "--",
    "x'; DROP TABLE oqron_jobs; --",
    "a'||(select 1)||'",
    ']] redis.call("flushall") --',
    "\r\nFLUSHALL\r\n",
    "\n",
    "\t",
    "\x01",
    "\x1f",
    "\x7f",
    "__paused__",
    "__proto__",
    "null",
    "None",
    "true",
    "runs",
    "queue_job:emails",
    "\u00e9",  # one code point
    "e\u0301",  # the same letter as two
    "\u0130",
    "\u00df",
    "ss",
    "\u200b",
    "\u202etxt",
    "\ufeff",
    "\uffff",
    "\u2028",
    "日本語",
    "العربية",
    "👩\u200d👩\u200d👧\u200d👦",
    "💥" * 128,
    "x" * 255,
    "é" * 255,
)
"""Legal, and each must stay apart from every other."""

BAD_NAMES: Final[tuple[Any, ...]] = (
    "",
    "x" * 256,
    "💥" * 129,
    "a\0b",
    "\ud800",
    "a\udc00",
    None,
    1,
    b"a",
    True,
)
"""Refused everywhere, before anything is done."""

SCOPES: Final[tuple[tuple[str, str], ...]] = (
    ("a", "b"),
    ("b", "a"),
    ("A", "b"),
    ("a", "b:c"),
    ("a:b", "c"),
    ("a:b:c", "d"),
    ("a/b", "c"),
    ("a", "b/c"),
    ("a*", "b"),
    ("a?", "b"),
    ("{a}", "b"),
    ("a}", "{b"),
    ("a_b", "c"),
    ("aXb", "c"),
    ("a'", "b"),
    ("a%", "b"),
    ("\u00e9", "b"),
    ("e\u0301", "b"),
    ("a ", "b"),
    ("a", " b"),
)
"""Projects and environments that a careless key would mix up."""


def nested(depth: int) -> Any:
    """Lists inside lists, *depth* deep."""
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


VALUES: Final[tuple[Any, ...]] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    0.5,
    -0.0,
    1.0,
    0.1 + 0.2,
    1e16,
    1e22,
    1e-7,
    5e-324,
    1.7976931348623157e308,
    2**31,
    2**53 - 1,
    2**53 + 1,
    130775545883395173,
    1751587201000123,
    2**63 - 1,
    -(2**63),
    "",
    " ",
    "0",
    "null",
    "text",
    "\\u0000",
    "\\ud800",
    "C:\\temp\\u0000",
    "a\"b'c\\d/e",
    "\n\r\t\x01\x1f\x7f",
    "\u00e9 e\u0301 \u200b\u202e\ufeff\uffff\u2028\u2029",
    "👩\u200d👩\u200d👧 \U0001f4a5",
    "x" * 10_000,
    [],
    {},
    [[]],
    [{}],
    {"a": []},
    {"a": {}},
    {"": ""},
    [None, True, 0, 0.5, "", [], {}],
    {"b": 1, "a": {"d": [1, 2, {"e": None}], "c": 2**53 + 1}},
    {"__type": "Date", "__val": "2026-01-01"},
    {"__unstorable__": "x"},
    {"$ref": "#", "__proto__": {"x": 1}, "a.b": 1, "a b": 2, "ключ": 3, "'": 4, '"': 5},
    {"\u00e9": 1, "e\u0301": 2},
    {"1": "a", "01": "b"},
    list(range(500)),
    nested(98),
)
"""Portable, and each must come back equal, with its types."""

BAD_VALUES: Final[tuple[Any, ...]] = (
    float("nan"),
    float("inf"),
    float("-inf"),
    2**63,
    -(2**63) - 1,
    10**400,
    "a\0b",
    "\ud800",
    "a\udc00b",
    b"bytes",
    (1, 2),
    {1, 2},
    object(),
    1 + 2j,
    {1: "a"},
    {None: 1},
    {True: 1},
    {(1, 2): 1},
    {"a\0": 1},
    {"\ud800": 1},
    [float("nan")],
    {"a": [{"b": "x\0"}]},
    nested(101),
    nested(5000),
)
"""Outside the portable domain: refused everywhere, before anything is written."""


def same(left: Any, right: Any) -> bool:
    """
    Say whether two values are equal as JSON, types included.

    True is not 1, null is not missing; a float may come back as the integer that
    it equals.
    """
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return left == right
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(
            same(value, right[key]) for key, value in left.items()
        )
    return bool(left == right)


def stable_id(value: object) -> str:
    """Name a parameter the same in every process: its repr without an address."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
