"""What the hot plane shows of runs while they last: a little late, and never waited for."""

from __future__ import annotations

import asyncio
import logging
import threading

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, takewhile
from typing import Final

from oqron_core.exceptions import InvalidValueError, StorageError
from oqron_core.planes.hot import LiveRuns
from oqron_core.planes.values import LiveChange
from oqron_core.protocol.background import BackgroundWriter
from oqron_core.protocol.options import RunSettings
from oqron_core.protocol.run_handle import RunHandle


__all__ = ["Overlay"]

log: logging.Logger = logging.getLogger("oqron.runs")

_BATCH: Final = 1000
_TOUCH_MOST: Final = 10.0
_PATIENCE: Final = 1.0
"""How many seconds somebody waits for what has ended to be taken away."""


class Overlay:
    """
    Sends the progress of runs to the hot plane, and takes from it what has ended.

    It has a task of its own: history does not wait for a hot plane that answers late or
    never. A run that ends soon is never sent.

    Attributes:
        unsent: How many log entries wait.
        dropped: How many were dropped because too many waited.
        look_every: How often what has changed is looked at, in seconds.
        touch_every: How often a run that is silent gives a sign of life, in seconds.

    Args:
        live: The live runs of the hot plane.
        settings: How often, how much.
        lock: Guards the handles; held for moments only.
        handles: The runs that have not ended, or are not in history yet, by id.
    """

    def __init__(
        self,
        live: LiveRuns,
        settings: RunSettings,
        lock: threading.RLock,
        handles: Mapping[str, RunHandle],
    ) -> None:
        self.unsent: int = 0
        self.dropped: int = 0
        self.look_every: float = settings.write_every / 2
        # Often enough that a lost sign or two does not make a living run look dead.
        self.touch_every: float = min(_TOUCH_MOST, settings.stale_after / 4)
        self._live = live
        self._buffer = settings.buffer
        self._lock = lock
        self._handles = handles
        # Since when each of them waits, the oldest first.
        self._dirty: dict[str, tuple[float, RunHandle]] = {}
        self._ended: dict[str, None] = {}
        self._touched_at = 0.0
        self._sending = asyncio.Lock()
        self._writer = BackgroundWriter(
            self._send_due, name="oqron-run-overlay", waits="live runs", log=log
        )

    # --- what a handle tells; with the lock held ---

    def begun(self, since: tuple[float, RunHandle]) -> None:
        """Take a run that has begun, and when it did."""
        self._dirty[since[1].id] = since
        if len(self._dirty) == 1:
            # For the others it was brought forward when the first one came.
            self._writer.wake_in(self.look_every)

    def changed(self, handle: RunHandle, entries: int = 0) -> None:
        """
        Take what a run has to say: *entries* new ones of its log, and other things.

        The oldest is dropped where too much waits.
        """
        if entries:
            self.unsent += entries
            if self.unsent > self._buffer and self._dirty:
                self._drop_oldest()
        if handle.id not in self._dirty:
            self.begun((self._writer.time(), handle))

    def _drop_oldest(self) -> None:
        _, oldest = self._dirty.pop(next(iter(self._dirty)))
        waiting = oldest.skip_unsent()
        self.unsent -= waiting
        self.dropped += waiting
        # That it lasts is sent all the same: else it would look dead.
        self._dirty[oldest.id] = (self._writer.time(), oldest)

    def settled(self, handle: RunHandle) -> None:
        """Send no more of a run that has ended."""
        if self._dirty.pop(handle.id, None) is not None:
            # Also what is on its way: its answer counts it no more.
            self.unsent -= handle.skip_unsent()

    def ended(self, handles: Iterable[RunHandle]) -> None:
        """Take runs away, now that history has their ends."""
        self._take_away([handle.id for handle in handles if handle.in_overlay])

    def _take_away(self, ids: Sequence[str]) -> None:
        if ids:
            self._ended.update(dict.fromkeys(ids))
            # Those beyond are found silent by maintenance, which sees history and drops them.
            for run_id in [*islice(self._ended, max(0, len(self._ended) - self._buffer))]:
                del self._ended[run_id]
            self._writer.wake()

    def is_leaving(self, run_id: str) -> bool:
        """Whether a run has ended, and is yet to be taken away."""
        return run_id in self._ended

    # --- the writer ---

    def open(self) -> None:
        """Start on the running loop."""
        self._writer.open()
        self._touched_at = self._writer.time()

    async def close(self) -> None:
        """Stop at once."""
        await self._writer.close()

    async def send(self) -> None:
        """
        Send what waits, and take away what has ended, now.

        Raises:
            StorageError: The hot plane did not take it; what waits goes on waiting.
        """
        await self._send(all_of_it=True)

    async def take_away(self) -> None:
        """Take away what has ended; what the hot plane does not take at once goes later."""
        try:
            async with asyncio.timeout(_PATIENCE), self._sending:
                await self._drop_ended()
        except (StorageError, TimeoutError) as error:
            log.debug("live runs that have ended are dropped later: %s", error)
            self._writer.wake()

    async def _send_due(self) -> None:
        try:
            await self._send(all_of_it=False)
        finally:
            if self._dirty:
                self._writer.wake_in(self.look_every)
            elif self._handles:
                self._writer.wake_in(self.touch_every)

    async def _send(self, *, all_of_it: bool) -> None:
        async with self._sending:
            await self._merge(all_of_it=all_of_it)
            await self._drop_ended()

    async def _merge(self, *, all_of_it: bool) -> None:
        with self._lock:
            batch = self._due(all_of_it=all_of_it)
            changes = [handle.change() for handle in batch]
            lengths = [handle.length for handle in batch]
            changes.extend(self._signs_of_life())
        if not changes:
            return
        await self._merge_all(changes)
        with self._lock:
            for handle, change, length in zip(batch, changes, lengths, strict=False):
                self.unsent -= handle.mark_sent(change, length)
                if handle.all_sent:
                    self._dirty.pop(handle.id, None)
            # One that ended meanwhile may have been written before the merge.
            self._take_away([h.id for h in batch if h.id not in self._handles])

    async def _merge_all(self, changes: Sequence[LiveChange]) -> None:
        """Merge changes; one that is refused must not cost the others, nor be tried again."""
        try:
            await self._live.merge_many(changes)
        except InvalidValueError as error:
            if len(changes) == 1:
                log.error("run %s is not shown as it is: %s", changes[0].run_id, error)  # noqa: TRY400 - the error says it all
                return
            for change in changes:
                await self._merge_all([change])

    async def _drop_ended(self) -> None:
        while self._ended:
            gone = [*islice(self._ended, _BATCH)]
            await self._live.drop(gone)
            with self._lock:
                for run_id in gone:
                    self._ended.pop(run_id, None)

    def _due(self, *, all_of_it: bool) -> list[RunHandle]:
        """Give what has waited long enough: a run that ends before costs one write."""
        due: Iterable[tuple[float, RunHandle]] = islice(self._dirty.values(), _BATCH)
        if not all_of_it and self._writer.is_open:
            # Together with the pause between two looks: what changes is shown in time.
            limit = self._writer.time() - 0.8 * self.look_every
            due = takewhile(lambda one: one[0] <= limit, due)
        # One that is sealed may yet go on: nobody is told that it has ended.
        return [handle for _, handle in due if not handle.ended]

    def _signs_of_life(self) -> list[LiveChange]:
        if self._writer.time() - self._touched_at < self.touch_every:
            return []
        self._touched_at = self._writer.time()
        return [
            handle.sign_of_life()
            for handle in self._handles.values()
            if handle.in_overlay
            and not handle.ended
            and handle.id not in self._dirty
            # Its handler may yet end, and be accepted; but whoever takes over closes it.
            and not handle.is_silent
            and not handle.is_abandoned
        ]
