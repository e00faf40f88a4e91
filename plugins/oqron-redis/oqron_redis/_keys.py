"""
Every key and channel is built here, and nowhere else.

A key is ``prefix:{tag}:kind:…``. The tag decides the slot in a cluster: everything
that one atomic step touches has one tag. Names are escaped so that no separator
and no brace is left in them; only the last part of a key is as it is. No two
scopes and no two names can meet.
"""

from __future__ import annotations

from functools import lru_cache
from typing import final

import attrs

from oqron_core.planes import Scope


__all__ = ["Keys", "QueueKeys", "escape"]


def escape(name: str) -> bytes:
    """Encode *name* without colon and braces; different names stay different."""
    if "%" in name or ":" in name or "{" in name or "}" in name:
        name = name.replace("%", "%25").replace(":", "%3A").replace("{", "%7B").replace("}", "%7D")
    return name.encode()


@final
@attrs.frozen
class QueueKeys:
    """The keys of one queue, all in one slot."""

    name: bytes
    ready: bytes
    delayed: bytes
    leased: bytes
    ids: bytes
    counter: bytes
    paused: bytes
    wake: bytes
    nothing: bytes
    states: tuple[bytes, ...]
    """Where its ids are, as most scripts want it: ready, delayed, leased, and the state of each."""


@final
class Keys:
    """
    The keys of one scope.

    Args:
        prefix: What every key starts with.
        scope: The scope.
        database: The database number, of which pub/sub knows nothing.
    """

    def __init__(self, prefix: str, scope: Scope, database: int = 0) -> None:
        head = prefix.encode() + b":{" + escape(scope.project) + b":" + escape(scope.environment)
        self._head = head
        # Durable records of a scope share one slot, so that an atomic write may
        # touch any of them.
        self._durable = head + b":d}:"
        self._live = head + b":v}:"
        self.queues = head + b":q}:queues"
        self.active = self._live + b"active"
        self.wake_channel = head + b"}:%d:wake" % database
        self.signals = head + b"}:%d:signal:" % database
        self.queue = lru_cache(maxsize=1024)(self._queue)

    def _queue(self, queue: str) -> QueueKeys:
        head = self._head + b":q:" + escape(queue) + b"}:"
        ready, delayed, leased, ids = (
            head + b"ready",
            head + b"delayed",
            head + b"leased",
            head + b"ids",
        )
        return QueueKeys(
            name=queue.encode(),
            ready=ready,
            delayed=delayed,
            leased=leased,
            ids=ids,
            counter=head + b"counter",
            paused=head + b"paused",
            wake=head + b"wake",
            nothing=head + b"nothing",
            states=(ready, delayed, leased, ids),
        )

    def lock(self, key: str) -> tuple[bytes, bytes, bytes]:
        """Give the lock, its token counter, and a key that never is."""
        head = self._head + b":l:" + escape(key) + b"}:"
        return head + b"lock", head + b"token", head + b"nothing"

    def counter(self, key: str, kind: bytes) -> bytes:
        """Give the counter or the state of a limit."""
        return self._head + b":n:" + escape(key) + b"}:" + kind

    def cached(self, key: str) -> bytes:
        """Give a cache entry."""
        return self._head + b":c:" + escape(key) + b"}:value"

    def live(self, run_id: str) -> tuple[bytes, bytes, bytes]:
        """Give the fields, logs and timeline of a live run."""
        name = run_id.encode()
        return (
            self._live + b"run:" + name,
            self._live + b"logs:" + name,
            self._live + b"timeline:" + name,
        )

    def signal(self, channel: str) -> bytes:
        """Give the channel of a signal."""
        return self.signals + channel.encode()

    @property
    def durable_nothing(self) -> bytes:
        """Give a key of the durable plane that never is."""
        return self._durable + b"nothing"

    def added(self, token: str) -> bytes:
        """Give the mark of a step over both planes that was done; it expires."""
        return self._durable + b"added:" + token.encode()

    def taken(self, names: str) -> bytes:
        """Give what a claim over both planes took; it expires."""
        return self._durable + b"taken:" + names.encode()

    def records(self, namespace: str) -> bytes:
        """Give what stands before the id in the key of a record."""
        return self._durable + b"r:" + escape(namespace) + b":"

    def index(self, tag: str, namespace: str) -> bytes:
        """Give an index of a namespace."""
        return self._durable + b"i:" + tag.encode() + b":" + escape(namespace)

    def expiry(self, namespace: str) -> bytes:
        """Give the index by expiry of a namespace."""
        return self._durable + b"x:" + escape(namespace)

    def namespaces(self, kind: str) -> bytes:
        """Give the namespaces of a record kind."""
        return self._durable + b"n:" + kind.encode()
