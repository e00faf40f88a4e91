"""The one rule for names: projects, environments, queues, namespaces, ids, keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from oqron_core.exceptions import InvalidValueError


__all__ = [
    "MAX_NAME_BYTES",
    "MAX_NAME_CHARS",
    "OWN_KEY_PREFIX",
    "check_key",
    "check_many",
    "check_name",
    "check_namespace",
]

MAX_NAME_CHARS: Final = 255
MAX_NAME_BYTES: Final = 512

OWN_KEY_PREFIX: Final = "oqron:"
"""Keys of locks, counters and caches that the services make for themselves."""

_NAMESPACE_HEADS: Final = frozenset(
    {
        "queue_job",
        "queue_dlq",
        "topic_msg",
        "topic_groups",
        "webhook_endpoints",
        "module_logs",
    }
)

# Every write names a namespace, and there are few of them.
_seen: set[str] = set()
_SEEN_MOST: Final = 1024


def check_many(what: str, items: Any, of: str) -> list[Any]:
    """
    Give the items of a list or of what else can be iterated.

    Args:
        what: How an error calls it.
        items: What was given.
        of: What there should be many of, for the error.

    Raises:
        InvalidValueError: It is one thing: a text or an object is no list of its parts.
    """
    if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
        raise InvalidValueError(what, f"must be a list of {of}, not one {type(items).__name__}")
    return list(items)


def check_name(what: str, name: object) -> str:
    """
    Give *name* back if every backend can keep it.

    Args:
        what: What the name is of, for the error.
        name: 1 to 255 characters and at most 512 bytes of UTF-8, without NUL.

    Raises:
        InvalidValueError: It is not such a name.
    """
    if (
        type(name) is str
        and 0 < len(name) <= MAX_NAME_CHARS
        and name.isascii()
        and "\0" not in name
    ):
        return name
    return _looked_at(what, name)


def _looked_at(what: str, name: object) -> str:
    if type(name) is not str:
        raise InvalidValueError(what, f"must be a str, not {type(name).__name__}")
    size = len(name)
    if not 0 < size <= MAX_NAME_CHARS:
        reason = (
            "must not be empty"
            if size == 0
            else f"has {size} characters; at most {MAX_NAME_CHARS} are allowed"
        )
        raise InvalidValueError(what, reason)
    if "\0" in name:
        raise InvalidValueError(what, "must not contain NUL (U+0000)")
    if not name.isascii():
        _check_utf8(what, name)
    return name


def _check_utf8(what: str, name: str) -> None:
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        reason = f"has a lone surrogate at position {error.start}; remove it"
        raise InvalidValueError(what, reason) from None
    if size > MAX_NAME_BYTES:
        reason = f"has {size} bytes of UTF-8; at most {MAX_NAME_BYTES} are allowed"
        raise InvalidValueError(what, reason)


def check_namespace(namespace: object, what: str = "namespace") -> str:
    """
    Give *namespace* back if it is legal.

    The name behind a prefix of the taxonomy (``queue_job:``) is measured alone,
    so every legal queue name makes a legal namespace; it may be empty.

    Raises:
        InvalidValueError: It is not legal.
    """
    if type(namespace) is str:
        if namespace in _seen:
            return namespace
        head, colon, rest = namespace.partition(":")
        if colon and head in _NAMESPACE_HEADS:
            if rest:
                check_name(what, rest)
        else:
            check_name(what, namespace)
        if len(_seen) < _SEEN_MOST:
            _seen.add(namespace)
        return namespace
    return check_name(what, namespace)


def check_key(key: object, what: str = "key") -> str:
    """
    Give *key* back if it is legal for a lock, a counter, a cache entry or a channel.

    A prefix ``oqron:<word>:`` is not measured: the services put it before the
    keys of their callers.

    Raises:
        InvalidValueError: It is not legal.
    """
    if type(key) is str and key.startswith(OWN_KEY_PREFIX):
        _, colon, rest = key[len(OWN_KEY_PREFIX) :].partition(":")
        if colon and rest:
            check_name(what, rest)
            return key
    return check_name(what, key)
