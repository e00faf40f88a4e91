"""Counting what must not be left behind, on servers that nobody else uses."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import attrs
import psycopg
import pytest

from oqron_core.testing import servers
from oqron_memory import MemoryStore


__all__ = ["MODES", "Left", "Setting", "quiet"]

MODES: Final = ("memory", "redis", "redis-postgres", "memory with postgres")


@attrs.frozen
class Left:
    """
    What a process and its servers hold.

    Attributes:
        tasks: Names of tasks, but for the one that asks.
        threads: Names of threads.
        files: How many descriptors are open; 0 where the system does not tell.
        clients: Connections that the servers know.
    """

    tasks: tuple[str, ...]
    threads: tuple[str, ...]
    files: int
    clients: int


@attrs.define
class Setting:
    """
    A mode on servers of its own.

    Attributes:
        mode: Its name.
        redis: The server, or None.
        postgres: The server, or None.
    """

    mode: str
    redis: servers.RedisServer | None = None
    postgres: servers.PostgresServer | None = None
    _store: MemoryStore = attrs.Factory(MemoryStore)

    def options(self, **more: Any) -> dict[str, Any]:
        """Give what `open_storage` takes."""
        options: dict[str, Any] = {"project": "leaks", "environment": "test", **more}
        if self.mode == "memory with postgres":
            options |= {"hot": "memory", "durable": "postgres"}
        else:
            options["mode"] = self.mode
        if self.redis is not None:
            options["redis"] = {"url": self.redis.url}
        else:
            options["memory"] = {"store": self._store}
        if self.postgres is not None:
            options["postgres"] = {"url": self.postgres.url(), "pool_size": 4}
        return options

    def left(self) -> Left:
        """Count what is held now."""
        gc.collect()
        try:
            current = asyncio.current_task()
            tasks = [task.get_name() for task in asyncio.all_tasks() if task is not current]
        except RuntimeError:
            tasks = []
        names = [thread.name for thread in threading.enumerate()]
        files = Path("/proc/self/fd")
        count = len(os.listdir(files)) if files.exists() else 0  # noqa: PTH208 - as a number
        return Left(tuple(sorted(tasks)), tuple(sorted(names)), count, self.clients())

    def clients(self) -> int:
        """Ask the servers who is connected."""
        count = 0
        if self.redis is not None:
            # Whoever asks is one of them.
            count += str(self.redis.command("CLIENT", "LIST")).count("id=") - 1
        if self.postgres is not None:
            with psycopg.connect(self.postgres.url()) as connection:
                found = connection.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'oqron'"
                ).fetchone()
                count += 0 if found is None else found[0]
        return count


def quiet(look: Callable[[], Any], wanted: Any, *, within: float = 10.0) -> Any:
    """Look until it is as wanted, for a while: a server takes its time to notice."""
    deadline = time.monotonic() + within
    while (found := look()) != wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def _running(stack: ExitStack, server: Any) -> Any:
    try:
        return stack.enter_context(server)
    except servers.ServerNotFoundError as error:
        if os.environ.get("OQRON_TEST_REQUIRE_SERVERS"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=MODES)
def setting(request: pytest.FixtureRequest) -> Iterator[Setting]:
    """Give each mode, on servers that nobody else uses."""
    mode = request.param
    with ExitStack() as stack:
        made = Setting(mode)
        if "redis" in mode:
            made.redis = _running(
                # Where it is the truth, it has to persist.
                stack,
                servers.redis_server(persistent=mode == "redis"),
            )
        if "postgres" in mode:
            made.postgres = _running(stack, servers.postgres_server())
        yield made
