"""What both planes share: the client, its lanes, the listener, the opening checks."""

from __future__ import annotations

import asyncio
import contextlib
import os

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, final

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.connection import Connection, ConnectionPool, SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from oqron_core.exceptions import ClosedError, ConfigError, UnavailableError
from oqron_redis._checks import Facts, look_at, refuse, warn
from oqron_redis._errors import translate
from oqron_redis._lane import Arguments, Lane
from oqron_redis._listener import Listener
from oqron_redis._scripts import Script, script
from oqron_redis._settings import RedisSettings


__all__ = ["Store", "open_store"]

# What a connection of ours is made with, whatever the client is set to: answers are
# bytes in the form of RESP2, nothing is read out of turn, and time is kept by us.
_OURS: Final[Mapping[str, Any]] = {
    "decode_responses": False,
    "protocol": 2,
    "health_check_interval": 0,
    "socket_timeout": None,
    "retry_on_timeout": False,
    "retry_on_error": [],
}
_PORT: Final = 6379
"""Where a server is that is named without a port."""


def _options_of(settings: RedisSettings) -> dict[str, Any]:
    """Give what the URL and the settings say; the settings win."""
    options: dict[str, Any] = {**parse_url(settings.url)}
    options["socket_connect_timeout"] = settings.connect_timeout
    if settings.username is not None:
        options["username"] = settings.username
    if settings.password is not None:
        options["password"] = settings.password
    if settings.database is not None:
        options["db"] = settings.database
    return options


def _is_readable(settings: RedisSettings) -> bool:
    """Say whether a connection takes what the URL asks for; none is made."""
    try:
        options: dict[str, Any] = {**parse_url(settings.url)}
        options.pop("max_connections", None)  # the pool's
        options.pop("connection_class", Connection)(**options)
    except (TypeError, ValueError):
        # Raised by who has no secret among its locals.
        return False
    return True


def _single_client(settings: RedisSettings) -> Redis:
    options = _options_of(settings)
    connection_class = options.pop("connection_class", Connection)
    pool = ConnectionPool(connection_class=connection_class, **options)
    return Redis(connection_pool=pool)


def _sentinel_of(settings: RedisSettings) -> Any:
    options = _options_of(settings)
    for name in ("host", "port", "path"):
        options.pop(name, None)
    if options.pop("connection_class", None) is SSLConnection:
        options["ssl"] = True
    ask: dict[str, Any] = {"socket_timeout": settings.connect_timeout}
    if settings.sentinel_username is not None:
        ask["username"] = settings.sentinel_username
    if settings.sentinel_password is not None:
        ask["password"] = settings.sentinel_password
    addresses = []
    for address in settings.sentinels:
        host, _, port = address.rpartition(":")
        addresses.append((host.strip("[]"), int(port)))
    make: Any = Sentinel
    return make(addresses, sentinel_kwargs=ask, **options)


def _cluster_client(settings: RedisSettings) -> RedisCluster:
    options = _options_of(settings)
    options["socket_timeout"] = settings.timeout
    if options.pop("connection_class", None) is SSLConnection:
        options["ssl"] = True
    return RedisCluster(**options)


def _make_client(settings: RedisSettings, sentinel: Any) -> Any:
    client = settings.client
    if client is not None:
        if isinstance(client, (Redis, RedisCluster)):
            return client
        reason = f"must be a redis.asyncio Redis or RedisCluster, not {type(client).__name__}"
        raise ConfigError(f"redis.client: {reason}")
    if sentinel is not None:
        return sentinel.master_for(settings.sentinel)
    if not settings.cluster and not _is_readable(settings):
        msg = "redis.url: has a parameter behind the ? that redis-py does not know or cannot read"
        raise ConfigError(msg)
    return _cluster_client(settings) if settings.cluster else _single_client(settings)


def _place_of(client: Any, settings: RedisSettings) -> str:
    """Give the address of the server as it may be shown: no user, password or parameter."""
    if isinstance(client, RedisCluster):
        return ", ".join(sorted(client.nodes_manager.startup_nodes))
    if settings.client is None and settings.sentinel is not None:
        return f"master {settings.sentinel} of the sentinels {', '.join(settings.sentinels)}"
    pool = client.connection_pool
    if getattr(pool, "service_name", None):
        # A ready client that asks Sentinel.
        return f"master {pool.service_name}"
    options = pool.connection_kwargs
    if options.get("path"):
        return str(options["path"])
    return _address(options.get("host") or "localhost", options.get("port") or _PORT)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@final
class Store:
    """
    The connection that `oqron_redis.connect` gives to the planes.

    Bound to the event loop and to the process that opened it.
    """

    def __init__(self, settings: RedisSettings) -> None:
        self.settings = settings
        self._sentinel = _sentinel_of(settings) if settings.sentinel is not None else None
        self.client = _make_client(settings, self._sentinel)
        self.is_cluster = isinstance(self.client, RedisCluster)
        self.place = _place_of(self.client, settings)
        self.facts: Facts | None = None
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._lanes: dict[Any, Lane] = {}
        self._listener: Listener | None = None
        self._checking = asyncio.Lock()
        self._learning: asyncio.Task[None] | None = None
        self._closed = False

    # --- calls --------------------------------------------------------------------

    def run(
        self,
        name: str | Script,
        keys: Sequence[bytes],
        arguments: Sequence[bytes | int] = (),
        *,
        lane: int = 0,
        again: bool = False,
    ) -> asyncio.Future[Any]:
        """
        Run a script; the future gives its answer.

        Args:
            name: The script.
            keys: All keys that it touches, in one slot.
            arguments: What else it takes.
            lane: Which connection, 0 for the hot plane.
            again: Whether it only reads, and may be repeated.
        """
        return self._lane(keys[0], lane).call(
            (len(keys), *keys, *arguments),
            script=script(name) if isinstance(name, str) else name,
            again=again,
        )

    def run_late(
        self, name: str, key: bytes, late: Callable[[], Arguments | None], *, lane: int
    ) -> asyncio.Future[Any]:
        """Run a script in the slot of *key* whose arguments are asked for when it is sent."""
        return self._lane(key, lane).call((), script=script(name), late=late)

    def command(
        self, *words: bytes | int, key: bytes, lane: int = 0, again: bool = False
    ) -> asyncio.Future[Any]:
        """Run one command that touches *key*; otherwise as `run`."""
        return self._lane(key, lane).call(words, again=again)

    async def ready(self) -> None:
        """
        Learn the nodes of a cluster, once.

        Raises:
            UnavailableError: No node answers.
        """
        if not self.is_cluster or self._nodes_known():
            return
        try:
            async with asyncio.timeout(self.settings.connect_timeout * 3):
                await self.client.initialize()
        except Exception as error:
            raise translate(error, self.place) from error

    def listener(self) -> Listener:
        """Give the connection that listens."""
        self._check_open()
        if self._listener is None:
            settings = self.settings
            self._listener = Listener(
                self._any_connection,
                timeout=settings.timeout,
                connect_timeout=settings.connect_timeout,
                retries=settings.retries,
                pause=self._pause,
                at=self.place,
            )
        return self._listener

    async def check_server(self, *, persistent: bool) -> Facts:
        """
        Look at the server, once, and refuse what would lose jobs.

        Args:
            persistent: Whether to warn where the server does not persist.

        Raises:
            UnavailableError: It does not answer.
            ConfigError: It may evict keys, or is too old.
        """
        async with self._checking:
            if self.facts is None:
                await self.ready()
                facts = await look_at(self)
                refuse(facts, self.settings)
                self.facts = facts
            warn(self.facts, persistent=persistent)
            return self.facts

    async def close(self) -> None:
        """Close everything but a client that was handed in. Idempotent."""
        self._closed = True
        if os.getpid() != self._process:
            return
        if self._learning is not None:
            self._learning.cancel()
            await asyncio.wait([self._learning])
        if self._listener is not None:
            await self._listener.close()
        for lane in self._lanes.values():
            await lane.close()
        self._lanes.clear()
        if self.settings.client is None:
            clients = [self.client, *getattr(self._sentinel, "sentinels", ())]
            for client in clients:
                # Closing does not fail on a server that is gone.
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(1.0):
                        await client.aclose()

    # --- connections ----------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            msg = "the Redis connection is closed"
            raise ClosedError(msg)
        if os.getpid() != self._process:
            msg = "this storage was opened before a fork; open one in the new process"
            raise ClosedError(msg)
        if asyncio.get_running_loop() is not self._loop:
            msg = "this storage belongs to another event loop; open one in this loop"
            raise ClosedError(msg)

    def _lane(self, key: bytes, number: int) -> Lane:
        self._check_open()
        number %= self.settings.pool_size
        node = self._node(key) if self.is_cluster else None
        place = (None if node is None else node.name, number)
        lane = self._lanes.get(place)
        if lane is None:
            settings = self.settings
            lane = self._lanes[place] = Lane(
                self._any_connection if node is None else lambda: _node_connection(node),
                timeout=settings.timeout,
                connect_timeout=settings.connect_timeout,
                retries=settings.retries,
                pause=self._pause,
                redirect=self._redirect if self.is_cluster else None,
                at=self.place if node is None else _address(node.host, node.port),
            )
        return lane

    @property
    def database(self) -> int:
        """The database number."""
        if self.is_cluster:
            return 0
        return int(self.client.connection_pool.connection_kwargs.get("db") or 0)

    def _nodes_known(self) -> bool:
        return bool(self.client.get_nodes())

    def _node(self, key: bytes) -> Any:
        node = self.client.get_node_from_key(key) if self._nodes_known() else None
        if node is None:
            # Opened degraded, or the cluster is not whole: the next call may know.
            if self._learning is None or self._learning.done():
                self._learning = self._loop.create_task(self._learn())
            msg = f"the Redis cluster cannot be reached at {self.place}"
            raise UnavailableError(msg)
        return node

    async def _learn(self) -> None:
        with contextlib.suppress(UnavailableError):
            await self.ready()

    async def _redirect(self, arguments: Arguments) -> Any:
        # The client follows the cluster, and learns from it for the next call.
        command, *rest = arguments
        name = command.decode() if isinstance(command, bytes) else str(command)
        return await self.client.execute_command(name, *rest, NEVER_DECODE=True)

    def _any_connection(self) -> Any:
        if self.is_cluster:
            node = next(iter(self.client.get_primaries()), None)
            if node is None:
                msg = f"the Redis cluster cannot be reached at {self.place}"
                raise UnavailableError(msg)
            return _node_connection(node)
        pool = self.client.connection_pool
        return pool.connection_class(**_options(pool.connection_kwargs))

    def _pause(self, attempt: int) -> float:
        settings = self.settings
        doublings = min(attempt - 1, 30)
        return float(min(settings.backoff * 2.0**doublings, settings.backoff_cap))


def _options(options: Any) -> dict[str, Any]:
    return {**options, **_OURS, "retry": Retry(NoBackoff(), 0)}


def _node_connection(node: Any) -> Any:
    cls = getattr(node, "connection_class", Connection)
    return cls(**_options(node.connection_kwargs))


@asynccontextmanager
async def open_store(settings: RedisSettings) -> AsyncIterator[Store]:
    """Make a store, and close it on leaving."""
    store = Store(settings)
    try:
        yield store
    finally:
        await store.close()
