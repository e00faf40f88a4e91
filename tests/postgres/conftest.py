"""Servers of several kinds, and a pooler, for the tests of the PostgreSQL backend."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

import psycopg
import pytest

from oqron_core.testing.servers import PostgresServer, postgres_binaries


# As the folder above does for its fixtures.
sys.path.append(str(Path(__file__).parent))

PostgresOf: TypeAlias = Callable[[int], PostgresServer]


@pytest.fixture(scope="session")
def postgres_of(
    postgres_server_factory: Callable[..., PostgresServer],
) -> PostgresOf:
    """Give the server of a major version, started when first asked for, or skip."""
    running: dict[int, PostgresServer] = {}

    def give(major: int) -> PostgresServer:
        if major not in running:
            for version, folder in postgres_binaries().items():
                if int(version.split(".")[0]) == major:
                    running[major] = postgres_server_factory(binary_dir=folder)
                    break
            else:
                pytest.skip(f"PostgreSQL {major} is not installed")
        return running[major]

    return give


@pytest.fixture
def prefix() -> str:
    """Give a table prefix of one's own."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def database(postgres_url: str) -> Iterator[str]:
    """Give the URL of an empty database of one's own."""
    name = f"d{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        yield postgres_url.rsplit("/", 1)[0] + f"/{name}"
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        assert process.poll() is None, "the pooler ended at once"
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextlib.contextmanager
def _pooler(program: str, url: str) -> Iterator[str]:
    """Run PgBouncer in transaction mode before a server; every server connection is shared."""
    parts = urlsplit(url)
    account = None
    if os.getuid() == 0:
        account = pwd.getpwnam("nobody")
    with tempfile.TemporaryDirectory() as folder:
        port = _free_port()
        users = Path(folder, "users.txt")
        users.write_text(f'"{parts.username}" "{parts.password}"\n', encoding="utf-8")
        config = Path(folder, "pgbouncer.ini")
        config.write_text(
            f"[databases]\n* = host={parts.hostname} port={parts.port}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n"
            f"unix_socket_dir =\nauth_type = scram-sha-256\nauth_file = {users}\n"
            "pool_mode = transaction\ndefault_pool_size = 4\nmax_client_conn = 200\n"
            # A client never gets the connection it had before: what it left behind in a
            # session hits somebody else.
            "server_round_robin = 1\nlog_connections = 0\nlog_disconnections = 0\n",
            encoding="utf-8",
        )
        if account is not None:
            for path in (folder, users, config):
                os.chown(path, account.pw_uid, account.pw_gid)
        process = subprocess.Popen(
            [program, "-q", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=None if account is None else account.pw_uid,
            group=None if account is None else account.pw_gid,
            extra_groups=None if account is None else [],
        )
        try:
            _wait_for(port, process)
            yield (f"postgresql://{parts.username}:{parts.password}@127.0.0.1:{port}{parts.path}")
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def pooled_url(postgres_url: str) -> Iterator[str]:
    """Give the URL of a pooler in transaction mode before the shared server, or skip."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("PgBouncer is not installed")
    with _pooler(program, postgres_url) as url:
        yield url


@pytest.fixture(scope="session")
def odd_url(postgres_url: str) -> str:
    """Give the URL of a role whose defaults are as unlike ours as they can be."""
    name = f"odd{uuid.uuid4().hex[:8]}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN SUPERUSER PASSWORD 'odd'")
        for setting in (
            "TimeZone = 'Asia/Tokyo'",
            "default_transaction_isolation = 'serializable'",
            "search_path = ''",
            "DateStyle = 'SQL, DMY'",
            "IntervalStyle = 'sql_standard'",
            "extra_float_digits = 0",
            "bytea_output = 'escape'",
            "standard_conforming_strings = on",
            "plan_cache_mode = 'force_generic_plan'",
        ):
            connection.execute(f"ALTER ROLE {name} SET {setting}")
    rest = postgres_url.split("@", 1)[1]
    return f"postgresql://{name}:odd@{rest}"
