"""Several worker processes under one, and new ones when the code changes."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

import attrs


__all__ = ["Supervisor", "own_command"]

log = logging.getLogger("oqron.worker")

_TICK: Final = 0.2
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_USAGE: Final = 2
_LIVED: Final = 10.0
"""Seconds after which a process that ends is not blamed for a bad start."""


@attrs.define
class _Child:
    number: int
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    pause: float = _FIRST_PAUSE
    again_at: float = 0.0


class Supervisor:
    """
    Keeps so many processes running, and ends with them.

    Signals are passed on: the first lets the workers drain, the second hurries
    them. A process that dies is replaced, ever more slowly where it dies at once.

    Args:
        command: What a process runs.
        count: How many.
        port: The port of the first process; the others follow. None for none.
        watch: Folders whose Python files restart the processes when they change.
    """

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        *,
        port: int | None = None,
        watch: Sequence[Path] = (),
    ) -> None:
        self._command = list(command)
        self._children = [_Child(number) for number in range(count)]
        self._port = port
        self._watch = list(watch)
        self._ending = False
        self._status = 0

    def run(self) -> int:
        """Run until a signal, or until every process has ended by itself."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        seen = dict(self._files())
        next_look = time.monotonic()
        while True:
            for child in self._children:
                self._tend(child)
            if self._ending and not any(child.process for child in self._children):
                return self._status
            if self._watch and time.monotonic() >= next_look:
                now = dict(self._files())
                if now != seen:
                    log.info("the code has changed; the workers start anew")
                    self._pass_on(signal.SIGTERM)
                    self._pass_on(signal.SIGTERM)
                seen = now
                next_look = time.monotonic() + 0.5
            time.sleep(_TICK)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._ending = True
        self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        for child in self._children:
            if child.process is not None and child.process.poll() is None:
                child.process.send_signal(number)

    def _tend(self, child: _Child) -> None:
        now = time.monotonic()
        if child.process is not None:
            status = child.process.poll()
            if status is None:
                return
            lived = now - child.began
            child.process = None
            if self._ending:
                return
            if status == _USAGE:
                # What cannot be asked for will not be legal the next time either.
                self._status = status
                self._ending = True
                self._pass_on(signal.SIGTERM)
                return
            if status not in {0, -signal.SIGTERM}:
                log.warning("worker process %d ended with status %d", child.number, status)
            quick = status != 0 and lived < _LIVED
            child.pause = min(_LONGEST_PAUSE, child.pause * 2) if quick else _FIRST_PAUSE
            child.again_at = now + (child.pause if quick else 0.0)
        if not self._ending and now >= child.again_at:
            self._start(child)

    def _start(self, child: _Child) -> None:
        command = [*self._command, "--parent", str(os.getpid())]
        if self._port is not None:
            command += ["--port", str(self._port + child.number if self._port else 0)]
        # A group of its own: Ctrl-C is passed on once, not given twice.
        child.process = subprocess.Popen(command, process_group=0)
        child.began = time.monotonic()

    def _files(self) -> Iterator[tuple[Path, int]]:
        for folder in self._watch:
            for path in folder.rglob("*.py"):
                if any(part.startswith(".") or part == "__pycache__" for part in path.parts):
                    continue
                try:
                    yield path, path.stat().st_mtime_ns
                except OSError:
                    continue


def own_command() -> list[str]:
    """Give the command that runs this package in another process."""
    return [sys.executable, "-m", "oqron_worker"]
