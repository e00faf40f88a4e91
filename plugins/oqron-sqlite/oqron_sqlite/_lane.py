"""
Two threads for one file: one writes, in groups, and one reads.

The writer takes whatever has been asked for meanwhile into one transaction, so calls
that arrive together share a commit, and nobody waits for a timer. Readers see what
was committed before they were asked.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sqlite3
import threading

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final, TypeVar, cast

from sqlalchemy import MetaData
from sqlalchemy.exc import DBAPIError

from oqron_core.exceptions import ClosedError, OqronError
from oqron_sqlite._clock import WallClock
from oqron_sqlite._errors import translate
from oqron_sqlite._file import File, open_file
from oqron_sqlite._settings import SqliteSettings


__all__ = ["Lane", "Transaction"]

log = logging.getLogger("oqron.sqlite")

T = TypeVar("T")

_GROUP: Final = 256
"""How many calls share a transaction at most."""
_SWEEP_MS: Final = 10_000
"""How often what has expired is swept, while the file is written to."""


class Transaction:
    """
    What a step of a write is handed.

    Attributes:
        driver: The connection, inside a transaction that nobody else can write in.
        now: The instant that judges every expiry of the step.
        told: Whom to wake once it is committed.
    """

    __slots__ = ("driver", "now", "told")

    def __init__(self, driver: sqlite3.Connection, now: int) -> None:
        self.driver = driver
        self.now = now
        self.told: set[Hashable] = set()


class _Call:
    """One call, on its way through a thread and back."""

    __slots__ = ("apart", "error", "future", "result", "work")

    def __init__(
        self,
        work: Callable[..., Any],
        future: asyncio.Future[Any],
        *,
        apart: bool = False,
    ) -> None:
        self.apart = apart
        self.work = work
        self.future = future
        self.result: Any = None
        self.error: BaseException | None = None

    def resolve(self) -> None:
        """Answer, unless whoever asked has left; in the loop."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class _Thread:
    """A thread with a connection of its own and a queue of calls."""

    def __init__(self, lane: Lane, name: str) -> None:
        self._lane = lane
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[Any] = self._loop.create_future()

    def start(self) -> None:
        self._thread.start()

    def submit(self, work: Callable[..., Any], *, apart: bool = False) -> asyncio.Future[Any]:
        future = self._loop.create_future()
        self._calls.put(_Call(work, future, apart=apart))
        return future

    async def stop(self) -> None:
        self._calls.put(None)
        await self._loop.run_in_executor(None, self._thread.join)

    def _main(self) -> None:
        opening = _Call(self._open, self.opened)
        try:
            file = opening.result = self._open()
        except BaseException as error:  # noqa: BLE001 - told to whoever opens
            opening.error = self._translated(error)
            self._deliver([opening])
            return
        self._deliver([opening])
        try:
            self._serve(file)
        finally:
            file.close()

    def _open(self) -> File:
        raise NotImplementedError

    def _serve(self, file: File) -> None:
        raise NotImplementedError

    def _translated(self, error: BaseException) -> BaseException:
        if isinstance(error, OqronError):
            return error
        ours = translate(error, path=self._lane.path)
        if ours is None:
            return error
        ours.__cause__ = error
        return ours

    def _deliver(self, calls: list[_Call], told: Iterable[Hashable] = ()) -> None:
        def resolve() -> None:
            for call in calls:
                call.resolve()
            if told:
                self._lane.tell(told)

        try:
            self._loop.call_soon_threadsafe(resolve)
        except RuntimeError:
            # The loop was closed around us: nobody is left to hear of it.
            log.debug("a call was answered after its loop had been closed")


class _Reader(_Thread):
    def _open(self) -> File:
        return open_file(self._lane.path, self._lane.settings)

    def _serve(self, file: File) -> None:
        while (call := self._calls.get()) is not None:
            if not call.future.cancelled():
                try:
                    call.result = call.work(file.driver, self._lane.clock.now())
                except BaseException as error:  # noqa: BLE001 - told to whoever asked
                    call.error = self._translated(error)
            self._deliver([call])


class _Writer(_Thread):
    _next_sweep = 0

    def _open(self) -> File:
        return open_file(self._lane.path, self._lane.settings, *self._lane.metadata)

    def _serve(self, file: File) -> None:
        last = False
        while not last:
            call = self._calls.get()
            group: list[_Call] = []
            while call is not None:
                group.append(call)
                if len(group) >= _GROUP:
                    break
                try:
                    call = self._calls.get_nowait()
                except queue.Empty:
                    break
            last = call is None
            group = [one for one in group if not one.future.cancelled()]
            for one in group:
                if one.apart:
                    self._ask(file.driver, one)
            group = [one for one in group if not one.apart]
            if group:
                self._run(file.driver, group)

    def _ask(self, driver: sqlite3.Connection, call: _Call) -> None:
        """Ask the connection something, outside of any transaction."""
        try:
            call.result = call.work(driver)
        except BaseException as error:  # noqa: BLE001 - told to whoever asked
            call.error = self._translated(error)
        self._deliver([call])

    def _run(self, driver: sqlite3.Connection, group: list[_Call]) -> None:
        """Run a group in one transaction; if it cannot be, each call in its own."""
        told: set[Hashable] = set()
        try:
            told = self._attempt(driver, group)
        except BaseException as error:  # noqa: BLE001 - told to whoever asked
            if len(group) > 1 and not _busy(error):
                for call in group:
                    self._run(driver, [call])
                return
            for call in group:
                call.error = self._translated(error)
        self._deliver(group, told)

    def _attempt(self, driver: sqlite3.Connection, group: list[_Call]) -> set[Hashable]:
        driver.execute("BEGIN IMMEDIATE")
        try:
            step = Transaction(driver, self._lane.clock.now())
            for call in group:
                call.error = None
                changes = driver.total_changes
                try:
                    call.result = call.work(step)
                except OqronError as error:
                    if driver.total_changes != changes:
                        # Half of it is done, so the whole group is undone.
                        raise
                    call.error = error
            self._tidy(step)
            driver.execute("COMMIT")
        except BaseException:
            if driver.in_transaction:
                driver.execute("ROLLBACK")
            raise
        return step.told

    def _tidy(self, step: Transaction) -> None:
        if self._lane.sweep is not None and step.now >= self._next_sweep:
            self._next_sweep = step.now + _SWEEP_MS
            self._lane.sweep(step)


def _busy(error: BaseException) -> bool:
    inner = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(inner, "sqlite_errorcode", 0)
    return bool(code & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})


class Lane:
    """
    The way to one file.

    Attributes:
        path: The file.
        settings: How it is used.
        clock: What judges every expiry.
        metadata: Which tables are in it.
        tell: Wakes whoever waits for what was told in a transaction.
        sweep: Lets go of a little that has expired, or None.
    """

    def __init__(
        self, path: str, settings: SqliteSettings, clock: WallClock, *metadata: MetaData
    ) -> None:
        self.path = path
        self.settings = settings
        self.clock = clock
        self.metadata = metadata
        self.tell: Callable[[Iterable[Hashable]], None] = _nobody
        self.sweep: Callable[[Transaction], Any] | None = None
        self._pid = os.getpid()
        self._closed = False
        self._writer = _Writer(self, "oqron-sqlite-writer")
        self._reader = _Reader(self, "oqron-sqlite-reader")

    async def open(self) -> None:
        """
        Start the threads and make the tables.

        Raises:
            UnavailableError: The file cannot be opened, or is held by others.
            StorageError: Something is wrong with it.
        """
        self._writer.start()
        try:
            await self._writer.opened
            # Only now are the tables there.
            self._reader.start()
            await self._reader.opened
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Finish what was asked for, and close the file."""
        if self._closed:
            return
        self._closed = True
        for thread in (self._writer, self._reader):
            if thread._thread.ident is not None:
                await thread.stop()

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("the storage is closed; open one again")
        if os.getpid() != self._pid:
            msg = "the storage was opened before a fork; open one in each process"
            raise ClosedError(msg)

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """
        Run *work* in a transaction, together with what else is asked for.

        *work* raises errors of oqron only before it has changed anything.
        """
        self._check()
        return cast("T", await self._writer.submit(work))

    def ask_writer(self, work: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Ask the writing connection something that needs no transaction."""
        self._check()
        return self._writer.submit(work, apart=True)

    async def read(self, work: Callable[[sqlite3.Connection, int], T]) -> T:
        """Run *work*, which changes nothing, with a connection and the time."""
        self._check()
        return cast("T", await self._reader.submit(work))


def _nobody(told: Iterable[Hashable]) -> None:
    del told
