"""
Fixtures: servers to test on, and a scope of one's own on them.

``OQRON_TEST_REDIS_URL`` and ``OQRON_TEST_POSTGRES_URL`` name a server to use instead
of a throwaway one; it must then work. Where there is neither such a variable nor a
program to run, a test is skipped and says what to install, or fails if
``OQRON_TEST_REQUIRE_SERVERS`` is set, as the test sessions set it.

Tests never flush a server: each works in a project of its own name.
"""

from __future__ import annotations

import contextlib
import os
import socket
import uuid

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import TypeAlias, TypeVar
from urllib.parse import urlsplit

import pytest

from oqron_core.testing import servers


RedisServerFactory: TypeAlias = Callable[..., servers.RedisServer]
PostgresServerFactory: TypeAlias = Callable[..., servers.PostgresServer]

ServerT = TypeVar("ServerT", bound=servers.Server)

_PORTS = {"OQRON_TEST_REDIS_URL": 6379, "OQRON_TEST_POSTGRES_URL": 5432}


def _enter(stack: ExitStack, server: AbstractContextManager[ServerT]) -> ServerT:
    try:
        return stack.enter_context(server)
    except servers.ServerNotFoundError as error:
        if os.environ.get("OQRON_TEST_REQUIRE_SERVERS"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


def _given(variable: str) -> str | None:
    """Give the URL in *variable*, of a server that answers; None if it is not set."""
    url = os.environ.get(variable)
    if not url:
        return None
    parts = urlsplit(url)
    address = (parts.hostname or "localhost", parts.port or _PORTS[variable])
    try:
        socket.create_connection(address, timeout=10.0).close()
    except OSError as error:
        # The URL may hold a password; the address does not.
        pytest.fail(f"{variable}: nothing answers at {address}: {error}", pytrace=False)
    return url


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """Give the URL of a Redis server that all tests of the run share."""
    with contextlib.ExitStack() as stack:
        given = _given("OQRON_TEST_REDIS_URL")
        yield given or _enter(stack, servers.redis_server(persistent=True)).url


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Give the URL of a PostgreSQL database that all tests of the run share."""
    with contextlib.ExitStack() as stack:
        given = _given("OQRON_TEST_POSTGRES_URL")
        yield given or _enter(stack, servers.postgres_server()).url()


@pytest.fixture(scope="session")
def redis_server_factory() -> Iterator[RedisServerFactory]:
    """Start Redis servers of one's own, with the arguments of `redis_server`."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: _enter(stack, servers.redis_server(**options))


@pytest.fixture(scope="session")
def postgres_server_factory() -> Iterator[PostgresServerFactory]:
    """Start PostgreSQL servers of one's own, with the arguments of `postgres_server`."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: _enter(stack, servers.postgres_server(**options))


@pytest.fixture
def project() -> str:
    """Give the name of a project that no other test uses, on whatever server."""
    return f"test-{uuid.uuid4().hex}"
