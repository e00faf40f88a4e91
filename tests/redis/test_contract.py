"""The Redis backend meets the contract, on every server and with every client."""

from __future__ import annotations

import asyncio

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from redis.asyncio import Redis

from oqron_core.testing import servers
from oqron_core.testing.contracts import DurablePlaneContract, HotPlaneContract
from oqron_redis import BACKEND, RedisSettings
from oqron_redis._lane import Lane


class TestRedis(HotPlaneContract, DurablePlaneContract):
    """Both planes, on each version of the server."""

    backend = "redis"
    url = ""

    @pytest.fixture(autouse=True)
    def _server(self, any_redis_url: str) -> None:
        self.url = any_redis_url

    def settings(self) -> dict[str, Any]:
        """Point at the server of the test."""
        return {"url": self.url}


class TestDecodingClient(HotPlaneContract, DurablePlaneContract):
    """A ready client that decodes what it gets."""

    backend = "redis"
    decode_responses = True
    url = ""

    @pytest.fixture(autouse=True)
    def _server(self, redis: servers.RedisServer) -> None:
        self.url = redis.url

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        """Hand a client in, and close it afterwards."""
        client = Redis.from_url(self.url, decode_responses=self.decode_responses)
        try:
            async with BACKEND.connect(RedisSettings(client=client)) as connection:
                yield connection
        finally:
            await client.aclose()


@pytest.mark.matrix
class TestBytesClient(TestDecodingClient):
    """A ready client that gives bytes."""

    decode_responses = False


@pytest.mark.matrix
class TestUvloop(TestRedis):
    """The loop that applications choose for speed."""

    loop_factory = staticmethod(uvloop.new_event_loop)

    @pytest.fixture(autouse=True)
    def _server(self, redis: servers.RedisServer) -> None:
        self.url = redis.url


@pytest.mark.matrix
class TestForgetfulServer(TestRedis):
    """A server that has forgotten every script whenever it is called."""

    @pytest.fixture(autouse=True)
    def _server(self, redis: servers.RedisServer) -> None:
        self.url = redis.url

    @pytest.fixture(autouse=True)
    def _forget(self, monkeypatch: pytest.MonkeyPatch) -> None:
        call = Lane.call

        def call_forgotten(lane: Lane, arguments: Any, **options: Any) -> asyncio.Future[Any]:
            call(lane, (b"SCRIPT", b"FLUSH")).add_done_callback(_seen)
            return call(lane, arguments, **options)

        monkeypatch.setattr(Lane, "call", call_forgotten)


@pytest.mark.matrix
class TestForgetfulValkey(TestForgetfulServer):
    """A Valkey that has forgotten every script whenever it is called."""

    @pytest.fixture(autouse=True)
    def _server(self, valkey: servers.RedisServer) -> None:
        self.url = valkey.url


def _seen(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled():
        answer.exception()


class TestCluster(HotPlaneContract, DurablePlaneContract):
    """Three nodes."""

    backend = "redis"
    url = ""

    @pytest.fixture(autouse=True)
    def _server(self, cluster: servers.RedisCluster) -> None:
        self.url = cluster.url

    def settings(self) -> dict[str, Any]:
        """Point at one node."""
        return {"url": self.url, "cluster": True}


@pytest.mark.matrix
class TestValkeyCluster(TestCluster):
    """Three nodes of Valkey."""

    @pytest.fixture(autouse=True)
    def _server(self, valkey_cluster: servers.RedisCluster) -> None:
        self.url = valkey_cluster.url
