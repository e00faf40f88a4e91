"""Settings, what is looked at on opening, and what a doctor says."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import socket
import subprocess
import sys

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from redis.asyncio import Redis
from redis.asyncio.connection import SSLConnection

from oqron_core.exceptions import ConfigError, OqronError, StorageError, UnavailableError
from oqron_core.planes import CONTRACT_VERSION, Durability, Entry, PlaneContext, Scope
from oqron_core.testing import servers
from oqron_core.testing.servers import RedisServer
from oqron_redis import BACKEND, RedisSettings, open_durable, open_hot, oqron_doctor
from oqron_redis._checks import Facts, refuse
from oqron_redis._store import Store


NOWHERE = "redis://127.0.0.1:1/0"


def test_finding_the_plugin_imports_no_client() -> None:
    """Discovery is paid by everybody, the client only by who uses it."""
    code = (
        "import sys, oqron_redis\n"
        "assert oqron_redis.BACKEND.name == 'redis'\n"
        "sys.exit(any(name.split('.')[0] in {'redis', 'hiredis'} for name in sys.modules))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_backend_is_built_for_the_contract_of_core() -> None:
    """The number is a literal: when core's moves on, somebody has to look."""
    assert BACKEND.contract_version == CONTRACT_VERSION


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"url": "http://x"}, "redis.url"),
        ({"timeout": 0}, "redis.timeout"),
        ({"retries": -1}, "redis.retries"),
        ({"pool_size": 0}, "redis.pool_size"),
        ({"prefix": "a{b"}, "redis.prefix"),
        ({"prefix": ""}, "redis.prefix"),
        ({"sentinel": "mymaster"}, "redis.sentinels"),
        ({"sentinels": ("a:1",)}, "redis.sentinel:"),
        ({"sentinel": "m", "sentinels": ("a",)}, r"redis.sentinels\[0\]"),
        ({"sentinel": "m", "sentinels": ("a:1",), "cluster": True}, "redis.cluster"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], words: str) -> None:
    """With the path of the setting."""
    with pytest.raises(ConfigError, match=words):
        RedisSettings(**settings)


def test_no_secret_shows_in_settings_or_errors(caplog: pytest.LogCaptureFixture) -> None:
    """Neither in a repr, nor in what a failing connection says or logs."""
    settings = RedisSettings(
        url="redis://user:s3cret-a@127.0.0.1:1/0?password=s3cret-b",
        password="s3cret-c",
        sentinel_password="s3cret-d",
        retries=0,
    )
    assert "s3cret" not in repr(settings)

    async def scenario() -> None:
        async with BACKEND.connect(settings) as store:
            with pytest.raises(UnavailableError) as caught:
                async with open_hot(store, PlaneContext(Scope("p", "e"))):
                    pass
            error: BaseException | None = caught.value
            while error is not None:
                assert "s3cret" not in repr(error)
                assert "s3cret" not in str(error)
                step = error.__traceback__
                while step is not None:
                    if "oqron_" in step.tb_frame.f_code.co_filename:
                        shown = repr(step.tb_frame.f_locals)
                        assert "s3cret" not in shown
                    step = step.tb_next
                error = error.__cause__ or error.__context__

    with caplog.at_level(logging.DEBUG):
        asyncio.run(scenario())
    assert "s3cret" not in caplog.text


def test_a_database_that_the_server_does_not_have_is_named(redis: RedisServer) -> None:
    """By the setting that is to be mended, and not by the driver's class."""

    async def scenario() -> None:
        async with BACKEND.connect(RedisSettings(url=redis.url, database=9999)) as store:
            with pytest.raises(ConfigError, match=r"redis\.database"):
                async with open_hot(store, PlaneContext(Scope("p", "e"))):
                    pass

    asyncio.run(scenario())


def test_a_url_with_tls_makes_tls_connections() -> None:
    """And user, password and database of the settings win over the URL's."""

    async def scenario() -> None:
        settings = RedisSettings(
            url="rediss://a:b@localhost:1/3",
            username="c",
            password="d",
            database=5,
        )
        store = Store(settings)
        connection = store._any_connection()
        assert isinstance(connection, SSLConnection)
        assert (connection.username, connection.password, connection.db) == ("c", "d", 5)
        await store.close()

    asyncio.run(scenario())


def _certificate(folder: Path) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    words = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=oqron")
    names = (
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    )
    subprocess.run([openssl, *words, *names], check=True, capture_output=True)
    return certificate, key


def test_a_server_with_tls_serves(open_planes: Any, tmp_path: Path) -> None:
    """Commands and the listening connection go over TLS, and the certificate is checked."""
    certificate, key = _certificate(tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    args = (
        "--tls-port", str(port), "--tls-cert-file", str(certificate), "--tls-key-file", str(key),
        "--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no",
    )  # fmt: skip

    async def scenario() -> None:
        url = f"rediss://127.0.0.1:{port}/0"
        async with open_planes(f"{url}?ssl_ca_certs={certificate}") as planes:
            broker = planes.hot.broker
            waiter = asyncio.ensure_future(broker.wait(["q"], timeout=10.0))
            await asyncio.sleep(0.1)
            await broker.publish("q", [Entry("1")])
            assert await waiter == ["q"]
        with pytest.raises(UnavailableError):
            async with open_planes(url, retries=0):
                pass

    with contextlib.ExitStack() as stack:
        for binary in servers.redis_binaries().values():
            with contextlib.suppress(servers.ServerError):
                stack.enter_context(servers.redis_server(binary=binary, args=args))
                break
        else:
            pytest.skip("no Redis on this machine was built with TLS")
        asyncio.run(scenario())


def test_a_server_that_evicts_is_refused_unless_allowed(
    open_planes: Any, own_redis: RedisServer
) -> None:
    """Evicted jobs are lost without an error, so it is one at opening."""
    own_redis.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")

    async def opened(**settings: Any) -> None:
        async with open_planes(own_redis.url, **settings) as planes:
            await planes.hot.broker.publish("q", [Entry("1")])

    with pytest.raises(ConfigError, match="allkeys-lru"):
        asyncio.run(opened())
    asyncio.run(opened(allow_eviction=True))


def test_a_server_that_does_not_persist_is_a_loud_warning(
    open_planes: Any, own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """And none where it does; the capabilities say what survives."""

    async def opened() -> Durability:
        async with open_planes(own_redis.url) as planes:
            return planes.durable.capabilities.durability  # type: ignore[no-any-return]

    assert asyncio.run(opened()) == Durability.SERVER
    assert "does not persist" in caplog.text
    caplog.clear()
    own_redis.command("CONFIG", "SET", "appendonly", "yes")
    own_redis.command("CONFIG", "SET", "appendfsync", "always")
    assert asyncio.run(opened()) == Durability.DISK
    assert "persist" not in caplog.text


def test_a_managed_server_that_forbids_looking_is_a_warning(
    open_planes: Any, own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """CONFIG and INFO are refused by many; everything works without them."""
    own_redis.command(
        "ACL",
        "SETUSER",
        "app",
        "on",
        ">pw",
        "~oqron:*",
        "&oqron:*",
        "+@all",
        "-@dangerous",
        "-@admin",
    )

    async def scenario() -> None:
        url = own_redis.url.replace("redis://", "redis://app:pw@")
        async with open_planes(url) as planes:
            await planes.hot.broker.publish("q", [Entry("1")])
            assert len(await planes.hot.broker.claim("q", owner="w", lease_for=5.0)) == 1
            assert await planes.hot.broker.wait(["q"], timeout=0.01) == []
            assert (await planes.durable.check()).ok

    asyncio.run(scenario())
    assert "maxmemory-policy" in caplog.text
    assert "persist" in caplog.text


def test_a_wrong_password_is_no_reason_to_try_again(own_redis: RedisServer) -> None:
    """It is an error of its own, at once."""
    own_redis.command("CONFIG", "SET", "requirepass", "right")

    async def opened(**settings: Any) -> None:
        async with BACKEND.connect(RedisSettings(url=own_redis.url, **settings)) as store:
            async with open_hot(store, PlaneContext(Scope("p", "e"))):
                pass

    for wrong in ({}, {"password": "wrong"}):
        with pytest.raises(StorageError) as caught:
            asyncio.run(opened(**wrong))
        assert not caught.value.retryable
    asyncio.run(opened(password="right"))


def test_an_old_server_is_refused() -> None:
    """6.2 brought commands that scripts need."""
    with pytest.raises(ConfigError, match=r"6\.2"):
        refuse(Facts(version="6.0.16", policy="noeviction"), RedisSettings())
    refuse(Facts(version="6.2.0", policy="noeviction"), RedisSettings())
    refuse(Facts(version="8.0.1", product="valkey", policy="noeviction"), RedisSettings())


def test_a_valkey_is_known_by_its_own_name_and_version(
    open_planes: Any, valkey: RedisServer
) -> None:
    """And not by those of the Redis that it says it is like; health and doctor say so."""

    async def scenario() -> tuple[Any, bool, str]:
        async with open_planes(valkey.url) as planes:
            health = await planes.hot.check()
        fine, sentence = await _checks()["redis version"](RedisSettings(url=valkey.url))
        return health.details, fine, sentence

    details, fine, sentence = asyncio.run(scenario())
    assert details["product"] == "valkey"
    assert f"valkey-{details['version']}" in servers.redis_binaries()
    assert fine
    assert sentence == f"Valkey {details['version']} (Redis 6.2 or later, or Valkey, is needed)."


def test_a_server_that_is_away_fails_the_opening_or_degrades_it(own_redis: RedisServer) -> None:
    """Only the hot plane may start degraded, and it serves when the server is back."""

    async def scenario() -> None:
        settings = RedisSettings(url=own_redis.url, retries=0)
        scope = Scope("p", "e")
        own_redis.kill()
        async with BACKEND.connect(settings) as store:
            for opener in (open_hot, open_durable):
                with pytest.raises(UnavailableError):
                    async with opener(store, PlaneContext(scope)):
                        pass
            with pytest.raises(UnavailableError):
                async with open_durable(store, PlaneContext(scope, start_degraded=True)):
                    pass
            async with open_hot(store, PlaneContext(scope, start_degraded=True)) as hot:
                with pytest.raises(UnavailableError):
                    await hot.broker.publish("q", [Entry("1")])
                assert not (await hot.check()).ok
                own_redis.start()
                await hot.broker.publish("q", [Entry("1")])
                assert (await hot.check()).ok
                async with open_durable(store, PlaneContext(scope)) as durable:
                    assert await durable.get("n", ["1"]) == [None]

    asyncio.run(scenario())


def test_a_degraded_cluster_serves_when_it_is_found() -> None:
    """The nodes are learned once one of them answers."""

    async def scenario() -> None:
        settings = RedisSettings(url=NOWHERE, cluster=True, retries=0, connect_timeout=0.5)
        context = PlaneContext(Scope("p", "e"), start_degraded=True)
        async with BACKEND.connect(settings) as store, open_hot(store, context) as hot:
            for _ in range(3):
                with pytest.raises(UnavailableError):
                    await hot.broker.publish("q", [Entry("1")])
                await asyncio.sleep(0.05)
            assert not (await hot.check()).ok

    asyncio.run(scenario())


def test_a_client_that_was_handed_in_stays_open(open_planes: Any, redis: RedisServer) -> None:
    """It belongs to whoever made it."""

    async def scenario() -> None:
        client = Redis.from_url(redis.url)
        async with open_planes(client=client) as planes:
            await planes.hot.broker.publish("q", [Entry("1")])
        assert await client.ping()
        await client.aclose()
        with pytest.raises(ConfigError, match=r"redis\.client"):
            async with open_planes(client=object()):
                pass

    asyncio.run(scenario())


@contextlib.asynccontextmanager
async def _sentinel(master: RedisServer) -> AsyncIterator[RedisServer]:
    args = ("--loglevel", "warning")
    with servers.redis_server(binary=master.binary, args=args) as spare:
        spare.kill()
        config = spare.folder / "sentinel.conf"
        config.write_text(
            f"port {spare.port}\nbind 127.0.0.1\ndir {spare.folder}\n"
            f"sentinel monitor mymaster 127.0.0.1 {master.port} 1\n"
            "sentinel down-after-milliseconds mymaster 500\n"
            "sentinel failover-timeout mymaster 3000\n"
        )
        process = await asyncio.create_subprocess_exec(
            str(spare.binary), str(config), "--sentinel", stdout=asyncio.subprocess.DEVNULL
        )
        try:
            yield spare
        finally:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("version", ["", "valkey-"], ids=["redis", "valkey"])
def test_sentinels_lead_to_the_master_and_to_its_successor(
    open_planes: Any, find_binary: Callable[[str], Path], version: str
) -> None:
    """After a failover the calls go to the new master, without opening anew."""

    async def scenario(master: RedisServer, replica: RedisServer) -> None:
        async with _sentinel(master) as sentinel:
            settings = {
                "sentinel": "mymaster", "sentinels": (f"127.0.0.1:{sentinel.port}",),
                "retries": 0, "timeout": 1.0,
            }  # fmt: skip

            async def attempt() -> None:
                async with open_planes(**settings) as planes:
                    await planes.hot.broker.publish("q", [Entry("1")])

            await _until(attempt)
            async with open_planes(**settings) as planes:
                await asyncio.sleep(1.5)  # until the Sentinel has heard of the replica
                master.kill()
                await _until(lambda: planes.hot.broker.publish("q", [Entry("2")]))
            assert "role:master" in str(replica.command("INFO", "replication"))

    binary = find_binary(version)
    with (
        servers.redis_server(binary=binary) as master,
        servers.redis_server(binary=binary, replica_of=master) as replica,
    ):
        asyncio.run(scenario(master, replica))


async def _until(call: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                await call()
            except OqronError:
                await asyncio.sleep(0.2)
            else:
                return


def _checks() -> dict[str, Callable[[Any], Awaitable[tuple[bool | None, str]]]]:
    found: dict[str, Callable[[Any], Awaitable[tuple[bool | None, str]]]] = {}
    oqron_doctor(lambda name, check, **_: found.update({name: check}))
    return found


def test_what_is_only_hot_need_not_be_persisted() -> None:
    """It can be rebuilt, so the doctor does not ask for it."""
    planes: dict[str, Any] = {}
    oqron_doctor(lambda name, _, **more: planes.update({name: more}))
    asked = {name: more.get("planes", ("hot", "durable")) for name, more in planes.items()}
    assert asked.pop("redis persistence") == ("durable",)
    assert {*asked.values()} == {("hot", "durable")}


def test_the_doctor_looks_at_everything(own_redis: RedisServer, redis: RedisServer) -> None:
    """Round trip, version, policy, persistence, memory and scripts, each with a sentence."""

    async def verdicts(url: str, **more: Any) -> dict[str, tuple[bool | None, str]]:
        settings = RedisSettings(url=url, **more)
        return {name: await check(settings) for name, check in _checks().items()}

    sound = asyncio.run(verdicts(redis.url))
    assert [*sound] == [
        "redis round trip",
        "redis version",
        "redis policy",
        "redis persistence",
        "redis memory",
        "redis scripts",
    ]
    assert all(sentence.endswith(".") for _, sentence in sound.values())
    assert {name: ok for name, (ok, _) in sound.items() if not ok} == {"redis persistence": None}
    own_redis.command("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
    own_redis.command("CONFIG", "SET", "appendonly", "yes")
    ill = asyncio.run(verdicts(own_redis.url))
    assert {name: ok for name, (ok, _) in ill.items() if not ok} == {"redis policy": False}
    allowed = asyncio.run(verdicts(own_redis.url, allow_eviction=True))
    assert allowed["redis policy"][0] is None, "it opens, with a warning"


def test_the_doctor_of_a_server_that_is_away_fails_with_a_typed_error() -> None:
    """Every check says so by itself."""

    async def scenario() -> None:
        settings = RedisSettings(url=NOWHERE, retries=0)
        for check in _checks().values():
            with pytest.raises(UnavailableError):
                await check(settings)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"url": "redis://me:s3cret@127.0.0.1:1/0"},
            "Redis cannot be reached at 127.0.0.1:1: conn",
        ),
        ({"url": "redis://[::1]:1/0"}, "at [::1]:1"),
        ({"url": "unix:///nowhere/s.sock?db=0"}, "at /nowhere/s.sock: no such file"),
        ({"url": "redis://nowhere.invalid/0"}, "at nowhere.invalid:6379: the name is not known"),
        ({"url": NOWHERE, "cluster": True}, "the Redis cluster cannot be reached at 127.0.0.1:1"),
        (
            {"url": NOWHERE, "sentinel": "main", "sentinels": ["127.0.0.1:1", "127.0.0.1:2"]},
            "at master main of the sentinels 127.0.0.1:1, 127.0.0.1:2: ",
        ),
    ],
)
def test_a_server_that_is_away_is_named_with_the_reason(
    settings: dict[str, Any], says: str
) -> None:
    """A wrong port is found by reading the error; what is secret is not in it."""

    async def scenario() -> str:
        context = PlaneContext(Scope("p", "e"))
        found = RedisSettings(password="s3cret2", retries=0, **settings)
        with pytest.raises(UnavailableError) as caught:
            async with BACKEND.connect(found) as connection, open_hot(connection, context):
                pass
        return str(caught.value)

    said = asyncio.run(scenario())
    assert says in said
    assert "s3cret" not in said


def test_a_server_that_takes_connections_and_is_silent_is_named() -> None:
    """Nothing was sent yet, so it is no call whose outcome is unknown."""

    async def scenario(port: int) -> None:
        settings = RedisSettings(url=f"redis://127.0.0.1:{port}/1", connect_timeout=0.1, retries=0)
        async with BACKEND.connect(settings) as connection:
            with pytest.raises(UnavailableError, match=f"at 127.0.0.1:{port}: timed out"):
                async with open_hot(connection, PlaneContext(Scope("p", "e"))):
                    pass

    # The system takes the connection; nobody reads from it.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        asyncio.run(scenario(silent.getsockname()[1]))
