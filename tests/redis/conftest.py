"""Servers of every version that the machine has, and a cluster."""

from __future__ import annotations

import contextlib
import os
import sys

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from oqron_core.planes import DurablePlane, HotPlane, PlaneContext, Scope
from oqron_core.testing import servers
from oqron_core.testing.contracts.base import fresh_scope
from oqron_redis import BACKEND, RedisSettings, open_durable, open_hot


# Modules of helpers beside this one are imported by name.
sys.path.append(str(Path(__file__).parent))


def _find(version: str) -> Path:
    found = [path for name, path in servers.redis_binaries().items() if name.startswith(version)]
    if not found:
        pytest.skip(f"no {version}* among the Redis and Valkey servers of this machine")
    return found[0]


VERSIONS = {"redis6": "6.2", "redis7": "7.", "redis8": "8.", "valkey": "valkey-"}
if "OQRON_TEST_REDIS_URL" in os.environ:
    # It names the one server to test on.
    VERSIONS = {"given": ""}


@pytest.fixture(scope="session", params=VERSIONS.values(), ids=VERSIONS.keys())
def any_redis_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Give the URL of a server of each version in turn; or of the one that is named alone."""
    if not request.param:
        yield request.getfixturevalue("redis_url")
        return
    with servers.redis_server(binary=_find(request.param)) as server:
        yield server.url


@pytest.fixture(scope="session")
def find_binary() -> Callable[[str], Path]:
    """Give a function that finds the newest program of a version, or skips the test."""
    return _find


@pytest.fixture(scope="session")
def redis() -> Iterator[servers.RedisServer]:
    """Give a running server."""
    with servers.redis_server() as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[servers.RedisServer]:
    """Give a server that a test may kill, fill or flush."""
    with servers.redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def valkey() -> Iterator[servers.RedisServer]:
    """Give a running Valkey."""
    with servers.redis_server(binary=_find("valkey-")) as server:
        yield server


@pytest.fixture(scope="session")
def cluster() -> Iterator[servers.RedisCluster]:
    """Give a running cluster of three nodes."""
    with servers.redis_cluster() as nodes:
        yield nodes


@pytest.fixture(scope="session")
def valkey_cluster() -> Iterator[servers.RedisCluster]:
    """Give a running cluster of three nodes of Valkey."""
    with servers.redis_cluster(binary=_find("valkey-")) as nodes:
        yield nodes


@attrs.frozen
class Planes:
    """Both planes of one scope, and what they stand on."""

    store: Any
    hot: HotPlane
    durable: DurablePlane


@contextlib.asynccontextmanager
async def _open_planes(
    url: str = "", scope: Scope | None = None, **settings: Any
) -> AsyncIterator[Planes]:
    if url:
        settings["url"] = url
    context = PlaneContext(scope or fresh_scope())
    async with (
        BACKEND.connect(RedisSettings(**settings)) as store,
        open_hot(store, context) as hot,
        open_durable(store, context) as durable,
    ):
        yield Planes(store, hot, durable)


@pytest.fixture(scope="session")
def open_planes() -> Any:
    """Give a function whose context opens both planes of a fresh scope."""
    return _open_planes
