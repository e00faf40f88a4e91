"""One rule for names: everything legal is kept as it is, everything else is named."""

from __future__ import annotations

import json

from pathlib import Path

import pytest

from hypothesis import given
from hypothesis import strategies as st

from oqron_core._names import (
    MAX_NAME_BYTES,
    MAX_NAME_CHARS,
    OWN_KEY_PREFIX,
    check_key,
    check_name,
    check_namespace,
)
from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import Scope


NAUGHTY = Path(__file__).parents[2] / "../shared/data/naughty-strings.json"

AWKWARD = [
    "a",
    " ",
    "  trailing  ",
    "123",
    "-1",
    "a:b:c",
    ":",
    "*",
    "a*c",
    "a?c",
    "a[bx]c",
    "a\\c",
    "{",
    "}",
    "{}",
    "a{b}c",
    "%",
    "100%",
    "a_b",
    "'",
    '"',
    "x'; DROP TABLE oqron_jobs; --",
    "\r\nFLUSHALL\r\n",
    "]] redis.call('flushall') --",
    "../../etc/passwd",
    "é",
    "e\u0301",
    "İ",
    "ß",
    "\u200b",
    "\ufeff",
    "\u202e",
    "🚀",
    "👩‍👩‍👧‍👦",
    "\x01",
    "\x7f",
    "\uffff",
    "\U0010ffff",
    "None",
    "null",
    "x" * 255,
    "é" * 255,
    "🚀" * 128,
]


@pytest.mark.parametrize("name", AWKWARD, ids=ascii)
def test_an_awkward_name_is_kept_as_it_is(name: str) -> None:
    """Never folded, trimmed or normalised: two names that differ stay two."""
    assert check_name("queue", name) is name
    assert check_namespace(f"queue_job:{name}") == f"queue_job:{name}"
    assert Scope(name, name) == Scope(name, name)


@pytest.mark.skipif(not NAUGHTY.is_file(), reason="the shared data is not beside this checkout")
def test_naughty_strings_are_legal_names_or_refused_for_their_length() -> None:
    strings: list[str] = json.loads(NAUGHTY.read_bytes())
    assert len(strings) > 500
    kept = 0
    for text in strings:
        legal = 0 < len(text) <= MAX_NAME_CHARS and len(text.encode()) <= MAX_NAME_BYTES
        if legal:
            assert check_name("id", text) == text
            kept += 1
        else:
            with pytest.raises(InvalidValueError) as caught:
                check_name("id", text)
            assert caught.value.path == "id"
    assert kept > 480


@pytest.mark.parametrize(
    "name, reason",
    [
        ("", "must not be empty"),
        ("x" * 256, "has 256 characters; at most 255 are allowed"),
        ("x" * 3000, "has 3000 characters"),
        ("x" * 200_000, "has 200000 characters"),
        ("🚀" * 129, "has 516 bytes of UTF-8; at most 512 are allowed"),
        ("€" * 171, "has 513 bytes"),
        ("\0", "NUL"),
        ("a\0b", "NUL"),
        ("\ud800", "lone surrogate at position 0"),
        ("ab\udc00", "lone surrogate at position 2"),
        ("\udc00\ud800", "lone surrogate at position 0"),
        (None, "must be a str, not NoneType"),
        (1, "must be a str, not int"),
        (True, "must be a str, not bool"),
        (b"x", "must be a str, not bytes"),
        (["x"], "must be a str, not list"),
    ],
    ids=lambda part: ascii(part)[:20],
)
def test_an_illegal_name_is_refused_with_what_is_wrong(name: object, reason: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        check_name("queue", name)
    assert caught.value.path == "queue"
    assert reason in caught.value.reason


def test_a_subclass_of_str_is_refused() -> None:
    """Its methods might say other things than its characters."""

    class Name(str):
        __slots__ = ()

    with pytest.raises(InvalidValueError, match="not Name"):
        check_name("queue", Name("emails"))


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_every_text_within_the_limits_is_legal(name: str) -> None:
    if len(name) <= MAX_NAME_CHARS and len(name.encode()) <= MAX_NAME_BYTES:
        assert check_name("id", name) == name
    else:
        with pytest.raises(InvalidValueError):
            check_name("id", name)


@pytest.mark.parametrize(
    "head",
    ["queue_job", "queue_dlq", "topic_msg", "topic_groups", "webhook_endpoints", "module_logs"],
)
def test_every_legal_queue_name_makes_a_legal_namespace(head: str) -> None:
    """The prefix is not measured, so no queue fits in one place and not in another."""
    longest = "🚀" * 128
    assert check_namespace(f"{head}:{longest}") == f"{head}:{longest}"
    assert check_namespace(f"{head}:{'x' * 255}")
    assert check_namespace(f"{head}:") == f"{head}:"
    with pytest.raises(InvalidValueError, match="256 characters"):
        check_namespace(f"{head}:{'x' * 256}")
    with pytest.raises(InvalidValueError, match="NUL"):
        check_namespace(f"{head}:a\0")


@pytest.mark.parametrize("namespace", ["mine:" + "x" * 251, "runs:" + "x" * 251, "x" * 256, ""])
def test_a_custom_namespace_is_measured_whole(namespace: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        check_namespace(namespace)
    assert caught.value.path == "namespace"


def test_a_key_of_the_services_own_has_room_for_every_legal_key() -> None:
    own = f"{OWN_KEY_PREFIX}cache:{'x' * 255}"
    assert check_key(own) == own
    with pytest.raises(InvalidValueError, match="256 characters"):
        check_key(f"{OWN_KEY_PREFIX}cache:{'x' * 256}")


@pytest.mark.parametrize("key", ["oqron:", "oqron:x", "oqron:x:", "k", "a:b", "🚀"])
def test_a_key_that_only_looks_like_the_services_own_is_a_plain_key(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize("key", ["", "x" * 256, "oqron:" + "x" * 250, "a\0", "\ud800", None, 3])
def test_an_illegal_key_is_refused(key: object) -> None:
    with pytest.raises(InvalidValueError) as caught:
        check_key(key)
    assert caught.value.path == "key"


@pytest.mark.parametrize("project, environment", [("", "e"), ("p", ""), ("p\0", "e"), ("p", None)])
def test_a_scope_is_made_of_names(project: str, environment: str) -> None:
    with pytest.raises(InvalidValueError):
        Scope(project, environment)
