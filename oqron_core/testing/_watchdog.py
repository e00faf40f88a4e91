"""
Ends servers and removes folders whose owner died without doing so.

Run as a program, with the standard library only, by `_processes`. It reads lines
of JSON on standard input and does nothing until that ends: a pipe closes however
its owner dies, by SIGKILL too, which no handler inside the owner could see.

A server is named by its process id and start time, so that a number that was
given to another process since is left alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import sys
import time

from pathlib import Path


def start_time(pid: int) -> str | None:
    """Tell when *pid* started, in a form to compare; None where it is not known."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name of the program is in parentheses and may hold anything but is last
    # to close one; the start time is the 20th field after it.
    return stat.rpartition(")")[2].split()[19]


def children(pid: int) -> list[int]:
    """List the direct children of *pid*; empty where /proc does not exist."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            stat = entry.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if stat.rpartition(")")[2].split()[1] == str(pid):
            found.append(int(entry.parent.name))
    return found


def send(pid: int, number: int) -> None:
    """Send a signal to *pid*, which may be gone."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def end(pid: int, started: str | None) -> None:
    """Kill *pid* and its children, if it is still the process that was meant."""
    if start_time(pid) != started:
        return
    # Stopped first, so that it cannot make new children while the list is read.
    send(pid, signal.SIGSTOP)
    for child in children(pid):
        send(child, signal.SIGKILL)
    send(pid, signal.SIGKILL)


def remove_segment(pid_file: Path) -> None:
    """
    Remove the shared memory segment that a killed PostgreSQL server left.

    It would outlive the server and its folder. Its number is the last on the
    seventh line of the file that such a server leaves as well; no file, no segment.
    """
    with contextlib.suppress(OSError, IndexError, ValueError):
        segment = pid_file.read_text(encoding="utf-8").splitlines()[6].split()[1]
        ctypes.CDLL(None).shmctl(int(segment), 0, None)  # 0 is IPC_RMID


def remove(folder: str) -> None:
    """Remove *folder*; a killed server may still be writing, so try a few times."""
    remove_segment(Path(folder, "data", "postmaster.pid"))
    for _ in range(50):
        shutil.rmtree(folder, ignore_errors=True)
        if not Path(folder).exists():
            return
        time.sleep(0.02)


def main() -> None:
    """Read what to look after until the pipe closes, then clean up what is left."""
    servers: dict[int, str | None] = {}
    folders: dict[str, None] = {}
    for line in sys.stdin:
        verb, argument = json.loads(line)
        if verb == "watch":
            servers[int(argument[0])] = argument[1]
        elif verb == "ended":
            servers.pop(int(argument), None)
        elif verb == "folder":
            folders[argument] = None
        elif verb == "removed":
            folders.pop(argument, None)
    for pid, started in servers.items():
        end(pid, started)
    for folder in folders:
        remove(folder)


if __name__ == "__main__":
    main()
