"""Module logs on their way: queued in memory, written in batches behind the work."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time

from collections import Counter, deque
from typing import Final

import attrs

from oqron_core._codec import Json
from oqron_core.exceptions import ClosedError, InvalidValueError, StorageError
from oqron_core.planes.values import Insert, Query
from oqron_core.protocol.background import BackgroundWriter
from oqron_core.protocol.session import Session


__all__ = ["LOGS", "Keep", "Logbook"]

log: logging.Logger = logging.getLogger("oqron.logs")

LOGS: Final = "module_logs:"
"""The namespace of a module's log, before its name."""
_BATCH: Final = 500
_PRUNE: Final = 1000
_BUFFER: Final = 10_000
_TAIL_BITS: Final = 74


@attrs.frozen(kw_only=True)
class Keep:
    """
    How much of a module's log is kept.

    Attributes:
        keep_for: Seconds; None for ever.
        max_entries: About how many lines; None for any number.
    """

    keep_for: float | None = 7 * 86400.0
    max_entries: int | None = 10_000


@attrs.frozen
class _Line:
    """A line that waits; *at* is an instant of the local monotonic clock."""

    module: str
    level: str
    msg: str
    fields: Json
    at: float


class Logbook:
    """
    The queue of one storage, and the writer behind it.

    Attributes:
        dropped: How many lines were dropped, oldest first, because too many waited.
        lost: How many could not be written at all.
        keeps: How much is kept of the modules that differ from `Keep`.
    """

    def __init__(self, session: Session) -> None:
        self.dropped: int = 0
        self.lost: int = 0
        self.keeps: dict[str, Keep] = {}
        self._session = session
        self._lock = threading.Lock()
        self._waiting: deque[_Line] = deque()
        self._batch: list[Insert] = []
        self._writing = asyncio.Lock()
        self._writer = BackgroundWriter(
            self._write_all, name="oqron-log-writer", waits="module logs", log=log, longest=5.0
        )
        self._written: dict[str, int] = {}
        self._ids = _Ids()
        self._closed = False

    # --- from any thread ---

    def add(self, module: str, level: str, msg: str, fields: Json) -> None:
        """
        Queue a line, from any thread.

        Raises:
            ClosedError: The storage is closed, or not open.
        """
        loop = self._session._loop
        if self._closed or loop is None or loop.is_closed():
            raise ClosedError("the storage is not open; nothing is logged any more")
        with self._lock:
            self._waiting.append(_Line(module, level, msg, fields, time.monotonic()))
            if len(self._waiting) > _BUFFER:
                self._waiting.popleft()
                self.dropped += 1
            first = len(self._waiting) == 1
        if first:
            # Of a burst the first wakes the writer, which takes what is there then.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._rouse)

    def _rouse(self) -> None:
        if not self._writer.is_open and not self._closed:
            self._writer.open()
        self._writer.wake()

    # --- the writer ---

    async def _write_all(self) -> None:
        while self.waiting:
            await self.flush()

    async def flush(self) -> None:
        """
        Write what waits now. What fails stays queued, under the ids it has.

        Raises:
            StorageError: The durable plane did not take it.
        """
        async with self._writing:
            left = self.waiting
            while left > 0:
                left -= await self._write_batch()

    @property
    def waiting(self) -> int:
        """How many lines are not written yet."""
        return len(self._waiting) + len(self._batch)

    async def _write_batch(self) -> int:
        """Write one batch, which stays where it is until it is written."""
        if not self._batch:
            self._batch = self._pop(await self._session.durable_time.now())
        size = len(self._batch)
        try:
            await self._session.durable.write(self._batch, returning=())
        except InvalidValueError as error:
            # What no plane takes must not hold up the rest for ever.
            log.error("%d log lines were refused: %s", size, error)  # noqa: TRY400 - the reason says all
            self.lost += size
            self._batch = []
            return size
        counts = Counter(write.namespace[len(LOGS) :] for write in self._batch)
        self._batch = []
        for module, count in counts.items():
            self._written[module] = self._written.get(module, 0) + count
            await self._trim(module)
        return size

    def _pop(self, now: int) -> list[Insert]:
        local = time.monotonic()
        with self._lock:
            lines = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
        return [self._insert(line, now - int((local - line.at) * 1000)) for line in lines]

    def _insert(self, line: _Line, ts: int) -> Insert:
        keep_for = self.keep(line.module).keep_for
        line_id = self._ids.make(ts)
        value = {
            "id": line_id,
            "module": line.module,
            "level": line.level,
            "msg": line.msg,
            "ts": ts,
            "fields": line.fields,
        }
        expires_at = None if keep_for is None else ts + round(keep_for * 1000)
        return Insert(LOGS + line.module, line_id, value, expires_at)

    # --- how much is kept ---

    def keep(self, module: str) -> Keep:
        """Give what is kept of *module*."""
        return self.keeps.get(module, _KEEP)

    async def _trim(self, module: str) -> None:
        """Prune now and then, when a tenth of the limit was written here."""
        most = self.keep(module).max_entries
        if most is None or self._written[module] < max(1, most // 10):
            return
        self._written[module] = 0
        try:
            await self.prune(module, most)
        except StorageError as error:
            log.debug("a module log is pruned later: %s", error)

    async def prune(self, module: str, most: int) -> int:
        """
        Delete the oldest lines beyond *most*, in bounded steps; gives how many.

        Raises:
            StorageError: The durable plane did not answer.
        """
        durable = self._session.durable
        namespace = LOGS + module
        pruned = 0
        excess = await durable.count(Query(namespace=namespace)) - most
        while excess > 0:
            # Ids sort by time, and so does the primary key.
            oldest = Query(
                namespace=namespace,
                order_by=[("id", "asc")],
                limit=min(_PRUNE, excess),
                fields=["ts"],
            )
            page = await durable.query(oldest)
            if not page.items:
                break
            last = page.items[-1].id
            gone = await durable.prune(
                Query(namespace=namespace, where=[("id", "<=", last)]), limit=_PRUNE
            )
            pruned += gone
            excess -= len(page.items)
        return pruned

    async def close(self, timeout: float) -> int:
        """Write what waits, for up to *timeout* seconds; gives how many are lost."""
        self._closed = True
        pause = 0.05
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while True:
                    try:
                        await self.flush()
                        break
                    except StorageError as error:
                        log.warning("closing waits for module logs: %s", error)
                        await asyncio.sleep(pause)
                        pause = min(1.0, pause * 2)
        await self._writer.close()
        with self._lock:
            waiting = self.waiting
            self._waiting.clear()
            self._batch = []
        self.lost += waiting
        if waiting:
            log.error("%d log lines were not written", waiting)
        return waiting


_KEEP: Final = Keep()


class _Ids:
    """UUIDs of version 7 from the plane's clock: they sort as the lines came."""

    def __init__(self) -> None:
        self._last = 0
        self._tail = 0

    def make(self, ts: int) -> str:
        """Make an id for a line of instant *ts*, after every one made here before."""
        if ts > self._last:
            self._last = ts
            self._tail = int.from_bytes(os.urandom(10), "big") >> (80 - _TAIL_BITS + 1)
        else:
            self._tail += 1 + int.from_bytes(os.urandom(4), "big")
            if self._tail >> _TAIL_BITS:
                self._last += 1
                self._tail &= (1 << (_TAIL_BITS - 1)) - 1
        return format_uuid7(self._last, self._tail)


def format_uuid7(ms: int, tail: int = 0) -> str:
    """Give the UUID of version 7 of an instant and 74 further bits."""
    high = (ms << 16) | 0x7000 | (tail >> 62)
    low = (0b10 << 62) | (tail & ((1 << 62) - 1))
    text = f"{(high << 64) | low:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
