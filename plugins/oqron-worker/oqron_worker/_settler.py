"""Writing what is done, in shared batches."""

from __future__ import annotations

import asyncio
import logging

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from oqron_core import Claim
from oqron_core.exceptions import LeaseLostError, OqronError, UnavailableError


if TYPE_CHECKING:
    from oqron_worker._app import App


__all__ = ["Settler"]

log = logging.getLogger("oqron.worker")

_AT_ONCE: Final = 2
"""Batches in flight: while one waits for its answer the next is made."""
_BATCH: Final = 500

Done = Callable[[str], None]


class Settler:
    """
    Completes jobs, many in one write.

    There is no timer: what ends while the batches in flight are full goes with the
    next one. Where the planes do not answer, each job is completed by itself, which
    is patient: its lease is renewed for as long as it takes.
    """

    __slots__ = ("_app", "_flying", "_pending", "_tasks")

    def __init__(self, app: App) -> None:
        self._app = app
        self._pending: list[tuple[Claim, Any, Done]] = []
        self._flying = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def complete(self, claim: Claim, output: Any, done: Done) -> None:
        """Complete a job; *done* is told the outcome when it is written."""
        self._pending.append((claim, output, done))
        if self._flying < _AT_ONCE:
            self._flying += 1
            self._spawn(self._fly())

    def follow(self, step: Coroutine[Any, Any, None]) -> None:
        """Run a step that follows the end of a job."""
        self._spawn(step)

    def _spawn(self, step: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(step, name="oqron-settle")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def busy(self) -> bool:
        """Whether something is not written yet."""
        return bool(self._tasks)

    async def drain(self) -> None:
        """Return when everything is written."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _fly(self) -> None:
        try:
            while self._pending:
                batch = self._pending[:_BATCH]
                del self._pending[:_BATCH]
                await self._write(batch)
        finally:
            self._flying -= 1

    async def _write(self, batch: list[tuple[Claim, Any, Done]]) -> None:
        jobs = self._app.storage.jobs
        try:
            answers = await jobs.complete_many([(claim, output) for claim, output, _ in batch])
        except UnavailableError:
            for claim, output, done in batch:
                self._spawn(self._patiently(claim, output, done))
        except OqronError as error:
            log.warning("%d finished jobs were not written; they run again: %s", len(batch), error)
            for _, _, done in batch:
                done("lost")
        except BaseException:
            for _, _, done in batch:
                done("lost")
            raise
        else:
            for (claim, _, done), completed in zip(batch, answers, strict=True):
                done("completed" if completed else _why_not(claim))

    async def _patiently(self, claim: Claim, output: Any, done: Done) -> None:
        outcome = "lost"
        try:
            await self._app.storage.jobs.complete(claim, output)
            outcome = "completed"
        except LeaseLostError:
            outcome = _why_not(claim)
        except OqronError as error:
            log.warning("a finished job was not written; it runs again: %s", error)
        finally:
            done(outcome)


def _why_not(claim: Claim) -> str:
    return "cancelled" if claim.cancelled else "lost"
