"""What throwaway servers of every kind share: processes, ports and folders."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from oqron_core.exceptions import OqronError
from oqron_core.testing import _watchdog


HOST: Final = "127.0.0.1"

# Below the range from which the kernel takes ports for outgoing connections, and
# low enough that a cluster bus port (ten thousand higher) is below it too. A port
# inside it could be taken while a server is down, even by a client that keeps
# trying to reach that server: TCP lets a socket connect to itself.
_PORTS: Final = range(10_500, 22_000)

_START_WITHIN: Final = 60.0
_STOP_WITHIN: Final = 30.0
_POLL: Final = 0.01


class ServerError(OqronError):
    """A throwaway server did not start, answer or end as it should."""


class ServerNotFoundError(ServerError):
    """No program of that server is on this machine; says what to install."""


class PortTakenError(ServerError):
    """Another process took the port between the look and the start."""


class _Watchdog:
    """
    The one helper process that cleans up if this process dies.

    Started with the first server; it and its pipe belong to the process that
    started it, so a forked child starts its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._owner = 0

    def tell(self, verb: str, argument: object) -> None:
        with self._lock:
            process = self._process
            if process is None or self._owner != os.getpid():
                process = self._process = self._start()
                self._owner = os.getpid()
            if process.stdin is None:  # pragma: no cover
                return
            # A watchdog that somebody killed is no reason for a test to fail.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps([verb, argument]) + "\n")
                process.stdin.flush()

    def _start(self) -> subprocess.Popen[str]:
        # A session of its own, so that Ctrl-C ends the tests and not the helper.
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(_watchdog.__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            cwd="/",
            start_new_session=True,
        )

    def close(self) -> None:
        with self._lock:
            process, self._process = self._process, None
            if process is None or self._owner != os.getpid():
                return
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
            process.wait()


_guard = _Watchdog()
_folders: list[Path] = []


def _at_exit() -> None:
    for folder in _folders.copy():
        remove_folder(folder)
    _guard.close()


atexit.register(_at_exit)


def make_folder(prefix: str) -> Path:
    """
    Make a temporary folder that is gone when this process is.

    Other users may pass through it and not list it, since a server may run as
    one of them.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"oqron-{prefix}-", dir=_temporary_root()))
    folder.chmod(0o711)
    _folders.append(folder)
    _guard.tell("folder", str(folder))
    return folder


def remove_folder(folder: Path) -> None:
    """Remove a folder that `make_folder` made; nothing if it is gone."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder in _folders:
        _folders.remove(folder)
    _guard.tell("removed", str(folder))


def _temporary_root() -> Path:
    """Find a folder for temporary files that every user can reach."""
    usual = Path(tempfile.gettempdir()).resolve()
    for root in (usual, Path("/tmp"), Path("/var/tmp")):  # noqa: S108 -- mkdtemp makes the names
        if root.is_dir() and os.access(root, os.W_OK) and reachable(root):
            return root
    return usual


def reachable(path: Path) -> bool:
    """Whether every user may pass through *path* and all the folders above it."""
    try:
        return all(folder.stat().st_mode & 0o001 for folder in (path, *path.parents))
    except OSError:
        return False


def free_port() -> int:
    """
    Find a loopback port that nobody listens on, nor on the one 10,000 above it.

    Another process may take it before it is used; starting a server tries again
    with another one then.

    Raises:
        ServerError: None was found in many tries.
    """
    for _ in range(200):
        port = random.choice(_PORTS)
        if _is_free(port) and _is_free(port + 10_000):
            return port
    message = "no free loopback port was found"
    raise ServerError(message)


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def wait_until(what: str, ready: Callable[[], bool], *, within: float = _START_WITHIN) -> None:
    """
    Ask *ready* again and again until it says so.

    Raises:
        ServerError: It did not within *within* seconds; names *what*.
    """
    deadline = time.monotonic() + within
    while not ready():
        if time.monotonic() > deadline:
            message = f"{what} took longer than {within:g} s"
            raise ServerError(message)
        time.sleep(_POLL)


class Server(ABC):
    """
    One server process with a port and a folder, which it keeps across restarts.

    Made, started and ended by `redis_server` and `postgres_server`. Not safe for
    use from several threads at once.

    Attributes:
        port: The loopback port it listens on.
        folder: Where its data, settings and log are.
    """

    _stop_signal: signal.Signals = signal.SIGTERM

    def __init__(self, folder: Path) -> None:
        self.folder: Path = folder
        self.port: int = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """
        The process id.

        Raises:
            ServerError: It is not running.
        """
        if self._process is None:
            message = "the server is not running"
            raise ServerError(message)
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there; a paused one is."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> Path:
        """The file that holds what the server printed, over all its starts."""
        return self.folder / "server.log"

    def start(self) -> None:
        """
        Start it and return when it answers; on the same port and data as before.

        Raises:
            ServerError: It runs already, ended at once, or did not answer within
                a minute; with the end of its log.
        """
        if self.running:
            message = "the server runs already"
            raise ServerError(message)
        tries = 1 if self.port else 10
        for left in reversed(range(tries)):
            port = self.port or free_port()
            try:
                self._launch(port)
            except PortTakenError:
                if not left:
                    raise
            else:
                self.port = port
                return

    def stop(self) -> None:
        """Ask it to end, and return when it has; nothing if it does not run."""
        self._end(self._stop_signal)

    def kill(self) -> None:
        """
        End it by SIGKILL, as a crash would; nothing if it does not run.

        The processes it made go with it, and its port is free when this returns.
        """
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop it and start it again."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """
        Stop it and all of its processes in their tracks (SIGSTOP).

        Connections stay open and nothing answers, as when a machine hangs.
        """
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after `pause` (SIGCONT)."""
        self._signal_all(signal.SIGCONT)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Pause it for the length of a ``with`` block."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    @abstractmethod
    def _command(self, port: int) -> Sequence[str]:
        """Give the command that runs the server in the foreground."""

    @abstractmethod
    def _answers(self, port: int) -> bool:
        """Whether the server on *port* takes commands now."""

    def _spawn(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C is for the tests, which then end it.
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )

    def _launch(self, port: int) -> None:
        before = self.log.stat().st_size if self.log.exists() else 0
        process = self._process = self._spawn(self._command(port))
        _guard.tell("watch", [process.pid, _watchdog.start_time(process.pid)])

        def ready() -> bool:
            if process.poll() is not None:
                self._raise_ended(before)
            return self._answers(port)

        try:
            wait_until("starting a server", ready)
        except BaseException:
            self.kill()
            raise

    def _raise_ended(self, before: int) -> None:
        with self.log.open("rb") as log:
            log.seek(before)
            said = log.read().decode(errors="replace")
        kind = PortTakenError if "Address already in use" in said else ServerError
        lines = "\n".join(said.splitlines()[-15:])
        message = f"the server ended at once; it said:\n{lines}"
        raise kind(message)

    def _signal_all(self, number: signal.Signals) -> None:
        pid = self.pid
        if number == signal.SIGSTOP:
            # The parent first, so that it makes no new children meanwhile.
            os.kill(pid, number)
        for child in _watchdog.children(pid):
            _watchdog.send(child, number)
        if number != signal.SIGSTOP:
            os.kill(pid, number)

    def _end(self, number: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            if number == signal.SIGKILL:
                self._kill(process)
            else:
                self._signal_all(signal.SIGCONT)
                process.send_signal(number)
                try:
                    process.wait(_STOP_WITHIN)
                except subprocess.TimeoutExpired:
                    self._kill(process)
        self._process = None
        _guard.tell("ended", process.pid)
        self._after_end()

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        started = _watchdog.start_time(process.pid)
        process.send_signal(signal.SIGSTOP)
        orphans = [(pid, _watchdog.start_time(pid)) for pid in _watchdog.children(process.pid)]
        _watchdog.end(process.pid, started)
        process.wait()
        # Somebody else reaps the orphans; the data is theirs until they are gone.
        wait_until(
            "ending the processes of a server",
            lambda: not any(_alive(pid, since) for pid, since in orphans),
        )

    def _after_end(self) -> None:  # noqa: B027 -- most servers leave nothing
        """Clear away what the processes left behind outside the folder."""


def _alive(pid: int, started: str | None) -> bool:
    """Whether *pid* is still that process, and not one that only waits to be reaped."""
    if started is None or _watchdog.start_time(pid) != started:
        return False
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


def program_version(program: Path, flag: str = "--version") -> str | None:
    """Give the first line that ``program --version`` prints; None if it cannot run."""
    if not os.access(program, os.X_OK):
        return None
    try:
        done = subprocess.run(
            [str(program), flag],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=20.0,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def by_version(found: dict[str, Path]) -> dict[str, Path]:
    """Sort by version, newest first."""

    def key(version: str) -> list[int]:
        digits = "".join(c if c.isdigit() else " " for c in version)
        return [int(part) for part in digits.split()]

    return dict(sorted(found.items(), key=lambda item: key(item[0]), reverse=True))
