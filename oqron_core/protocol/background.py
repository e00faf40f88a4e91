"""Writing behind the work: a task that is woken, and tries again where it failed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading

from collections.abc import Awaitable, Callable
from typing import Final

from oqron_core.exceptions import StorageError


__all__ = ["BackgroundWriter"]

_FIRST_PAUSE: Final = 0.1


class BackgroundWriter:
    """
    Writes what waits, whenever it is woken.

    Where that fails it tries again after a pause, which grows: a writer that died would
    lose everything after it. Nothing is woken before `open`.

    Args:
        write: Writes what waits.
        name: The name of its task.
        waits: What it is that waits while a plane does not answer, for the log.
        log: Where that is said.
        longest: The longest pause, in seconds.
    """

    def __init__(
        self,
        write: Callable[[], Awaitable[None]],
        *,
        name: str,
        waits: str,
        log: logging.Logger,
        longest: float = 2.0,
    ) -> None:
        self._write = write
        self._name = name
        self._waits = waits
        self._log = log
        self._longest = longest
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0

    @property
    def is_open(self) -> bool:
        """Whether it was opened, and is not closed."""
        return self._loop is not None

    def time(self) -> float:
        """Give the time of its loop, in seconds; 0 before it is opened."""
        return 0.0 if self._loop is None else self._loop.time()

    def open(self) -> None:
        """Start on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._task = asyncio.create_task(self._run(), name=self._name)

    async def close(self) -> None:
        """Stop at once."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def wake(self) -> None:
        """Have it write now; from any thread."""
        if not self._wake.is_set():
            self._soon(self._wake.set)

    def wake_in(self, seconds: float) -> None:
        """Have it write after *seconds* at the latest; from any thread."""
        self._soon(self._set_timer, seconds)

    def _soon(self, callback: Callable[..., None], *args: float) -> None:
        loop = self._loop
        if loop is None:
            return
        if threading.get_ident() == self._thread:
            callback(*args)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                loop.call_soon_threadsafe(callback, *args)

    def _set_timer(self, seconds: float) -> None:
        loop = self._loop
        if loop is None:
            return
        due = loop.time() + seconds
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = loop.call_at(due, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._wake.set()

    async def _run(self) -> None:
        pause = 0.0
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._write()
                pause = 0.0
                continue
            except StorageError as error:
                pause = self._longer(pause)
                self._log.warning("%s wait %.1f s: %s", self._waits, pause, error)
            except Exception:  # noqa: BLE001 - it goes on
                self._log.exception("writing %s failed; it goes on", self._waits)
                pause = self._longer(pause)
            await asyncio.sleep(pause)
            self._wake.set()

    def _longer(self, pause: float) -> float:
        return min(self._longest, max(_FIRST_PAUSE, pause * 2))
