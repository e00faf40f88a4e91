"""The settings of the Redis backend: the section ``[redis]``."""

from __future__ import annotations

import re

from typing import Any

import attrs

from oqron_core.exceptions import ConfigError


__all__ = ["RedisSettings"]

_SCHEMES = ("redis://", "rediss://", "unix://")


def _hidden(url: object) -> str:
    """Show a URL without what may be secret in it."""
    text = str(url)
    scheme, mark, rest = text.partition("://")
    if not mark:
        return "'…'"
    host = re.split(r"[?#]", rest, maxsplit=1)[0].rpartition("@")[2]
    return repr(f"{scheme}://{host}")


def _positive(instance: Any, attribute: Any, value: float) -> None:
    del instance
    if not value > 0:
        raise ConfigError(f"redis.{attribute.name}: must be more than 0, not {value!r}")


def _not_negative(instance: Any, attribute: Any, value: float) -> None:
    del instance
    if not value >= 0:
        raise ConfigError(f"redis.{attribute.name}: must be at least 0, not {value!r}")


def _check_url(instance: Any, attribute: Any, value: str) -> None:
    del instance, attribute
    if not value.startswith(_SCHEMES):
        reason = "must start with redis://, rediss:// (TLS) or unix://"
        raise ConfigError(f"redis.url: {reason}")


def _check_prefix(instance: Any, attribute: Any, value: str) -> None:
    del instance, attribute
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", value):
        reason = "must be 1 to 64 of: letters, digits, dot, dash, underscore"
        raise ConfigError(f"redis.prefix: {reason}")


@attrs.frozen(kw_only=True)
class RedisSettings:
    """
    Where the Redis server is, and how to speak with it.

    Attributes:
        url: ``redis://host:port/database``, ``rediss://`` for TLS, ``unix://`` for
            a socket; query parameters as redis-py takes them.
        username: The user; wins over the one in the URL.
        password: The password; wins over the one in the URL.
        database: The database number; wins over the one in the URL.
        sentinel: The name of the monitored master; with *sentinels*.
        sentinels: ``host:port`` of the Sentinels.
        sentinel_username: The user at the Sentinels.
        sentinel_password: The password at the Sentinels.
        cluster: Whether the URL is a node of a Redis Cluster.
        connect_timeout: Seconds for one attempt to connect.
        timeout: Seconds without an answer until a call fails.
        retries: How many more attempts to connect after the first.
        backoff: Seconds before the second attempt; doubles from there on.
        backoff_cap: The longest pause between two attempts, in seconds.
        pool_size: Command connections per process, and per node of a cluster. Calls
            share them, so few do; one more is opened for what is listened to.
        prefix: What every key and channel starts with.
        allow_eviction: Open also where ``maxmemory-policy`` lets the server throw
            keys away, which loses jobs.
        live_for: Seconds that a live run without a sign of life is kept.
        client: A ready ``redis.asyncio`` client (``Redis`` or ``RedisCluster``)
            instead of all of the above that says where the server is. Stays open.
    """

    url: str = attrs.field(default="redis://localhost:6379/0", repr=_hidden, validator=_check_url)
    username: str | None = None
    password: str | None = attrs.field(default=None, repr=False)
    database: int | None = None
    sentinel: str | None = None
    sentinels: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    sentinel_username: str | None = None
    sentinel_password: str | None = attrs.field(default=None, repr=False)
    cluster: bool = False
    connect_timeout: float = attrs.field(default=2.0, validator=_positive)
    timeout: float = attrs.field(default=5.0, validator=_positive)
    retries: int = attrs.field(default=3, validator=_not_negative)
    backoff: float = attrs.field(default=0.05, validator=_not_negative)
    backoff_cap: float = attrs.field(default=1.0, validator=_not_negative)
    pool_size: int = attrs.field(default=2, validator=_positive)
    prefix: str = attrs.field(default="oqron", validator=_check_prefix)
    allow_eviction: bool = False
    live_for: float = attrs.field(default=7 * 86400.0, validator=_positive)
    client: Any = attrs.field(default=None, repr=False)

    def __attrs_post_init__(self) -> None:
        problems = []
        if self.sentinel is not None and not self.sentinels:
            problems.append("redis.sentinels: is needed with redis.sentinel, as host:port")
        if self.sentinels and self.sentinel is None:
            problems.append("redis.sentinel: is needed with redis.sentinels, the master's name")
        if self.cluster and self.sentinel is not None:
            problems.append("redis.cluster: a cluster has no sentinels; set one of the two")
        problems += [
            f"redis.sentinels[{index}]: must be host:port"
            for index, address in enumerate(self.sentinels)
            if not re.fullmatch(r".+:\d{1,5}", address)
        ]
        if problems:
            raise ConfigError(tuple(problems))
