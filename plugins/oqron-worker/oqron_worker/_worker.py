"""The worker: loops, renewal, schedules and maintenance of one process."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid

from collections.abc import Coroutine, Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from oqron_core import Claim
from oqron_core.exceptions import InvalidValueError, OqronError
from oqron_worker._capacity import Capacity
from oqron_worker._claiming import ClaimLoop
from oqron_worker._context import Context
from oqron_worker._depends import Dependents
from oqron_worker._gates import Gate, RateGate, SlotGate
from oqron_worker._handlers import Handler
from oqron_worker._metrics import Metrics
from oqron_worker._pools import ProcessPool, ThreadPool
from oqron_worker._renewal import Pulse, Renewal
from oqron_worker._runlog import capture_logging
from oqron_worker._runner import Ended, Shop
from oqron_worker._schedules import ScheduledHandler, Ticker
from oqron_worker._sources import QueueSource, Source, TopicSource
from oqron_worker._standalone import Standalone
from oqron_worker._topics import TopicHandler
from oqron_worker._unique import let_go, unique_key


if TYPE_CHECKING:
    from oqron_worker._app import App


__all__ = ["Worker", "source_of"]

log = logging.getLogger("oqron.worker")

_MOST_THREADS: Final = 40
_LAST_WORD: Final = 2.0
"""Seconds for handlers that were told to end to do so."""


class Worker:
    """
    Works on the queues, topics and schedules of an application, in this process.

    ``async with app.worker():`` works while the context is open and drains at its
    end; `run` works until it is stopped. Any number of workers, in any number of
    processes, share the work.

    Args:
        app: The application.
        concurrency: How many attempts may run at the same time.
        only: Names of the handlers to work on; None for all. With names, no other
            schedules are moved on than those of these handlers.
        threads: How many threads there are for functions that block.
        processes: How many processes for those with ``pool="process"``.
        grace: Seconds that a shutdown waits for handlers; then their jobs are given
            back without an attempt being counted.
        maintenance: Whether this worker may lead the maintenance of the scope.
        schedules: Whether it may lead the schedules.
        blocked_after: Seconds without a turn of the event loop that are reported;
            None for no watch.
        name: What others see as the owner of its leases.

    Attributes:
        metrics: What it has counted.
    """

    def __init__(
        self,
        app: App,
        *,
        concurrency: int = 100,
        only: Iterable[str] | None = None,
        threads: int = _MOST_THREADS,
        processes: int | None = None,
        grace: float = 25.0,
        maintenance: bool = True,
        schedules: bool = True,
        blocked_after: float | None = 1.0,
        name: str | None = None,
    ) -> None:
        if type(concurrency) is not int or not 1 <= concurrency <= 10_000:  # noqa: PLR2004 - a sane range
            raise InvalidValueError("concurrency", "must be an int from 1 to 10,000")
        self.app = app
        self.metrics = Metrics()
        self.name = name or f"{socket.gethostname()[:64]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._capacity = Capacity(concurrency)
        self._only = None if only is None else frozenset(only)
        self._grace = grace
        self._maintenance = maintenance
        self._schedules = schedules
        self._blocked_after = blocked_after
        self._shop = Shop(app, ThreadPool(threads), ProcessPool(processes or os.cpu_count() or 1))
        self._shop.follows = self._follows
        self._standalone = Standalone(app, self._shop, self.metrics)
        self._gates: list[Gate] = []
        self._handlers: list[Handler] = []
        self._loops: list[ClaimLoop] = []
        self._claiming: list[asyncio.Task[None]] = []
        self._background: list[asyncio.Task[None]] = []
        self._renewing: asyncio.Task[None] | None = None
        self._dependents: Dependents | None = None
        self._pulse: Pulse | None = None
        self._scopes = ExitStack()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._started = False

    # --- life ---

    async def run(self) -> None:
        """Work until `stop` is called; then drain."""
        async with self:
            await self.stopped()

    async def stopped(self) -> None:
        """Return when `stop` was called."""
        await self._stop.wait()

    def stop(self, *, hurry: bool = False) -> None:
        """
        Ask to end: nothing more is claimed, what runs goes on for the grace time.

        Args:
            hurry: Do not wait for handlers: they are told to end, and their jobs
                are given back. A second call does the same.
        """
        if hurry or self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def idle(self, *, every: float = 0.05) -> None:
        """
        Return when nothing is left to do, now or later, for tests and scripts.

        That is: no job of its queues waits, is delayed or runs anywhere, no group
        lags, and nothing waits for other jobs. Crons go on.

        Args:
            every: Seconds between looks.
        """
        while await self._left():  # noqa: ASYNC110 - other processes work on it too
            await asyncio.sleep(every)

    async def _left(self) -> bool:
        storage = self.app.storage
        if self.running or self._shop.settler.busy:
            return True
        if self._dependents is not None and await self._dependents.look():
            return True
        for handler in filter(_has_source, self._handlers):
            if isinstance(handler, TopicHandler):
                if await storage.topics.lag(handler.topic, handler.group):
                    return True
                continue
            queue = handler.queue if isinstance(handler, ScheduledHandler) else handler.name
            counts = await storage.jobs.counts(queue)
            if counts["waiting"] or counts["delayed"] or counts["active"]:
                return True
        return self._dependents is not None and await self._dependents.waiting() > 0

    async def __aenter__(self) -> Self:
        await self.app.__aenter__()
        try:
            await self._start()
        except BaseException:
            await self._end()
            await self.app.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        try:
            await self.drain()
        finally:
            await self.app.__aexit__(kind, error, trace)

    # --- look ---

    @property
    def running(self) -> int:
        """How many attempts run now."""
        return len(self._shop.running)

    @property
    def draining(self) -> bool:
        """Whether it was asked to end."""
        return self._stop.is_set()

    @property
    def left_behind(self) -> int:
        """How many threads still work for jobs that were given back."""
        return self._shop.threads.working

    def trouble(self) -> dict[str, str]:
        """Say which sources cannot be claimed from, and why; empty where all is well."""
        return {loop.name: loop.trouble for loop in self._loops if loop.trouble is not None}

    # --- inside ---

    async def _start(self) -> None:
        if self._started:
            msg = "a worker is started once; make a new one"
            raise RuntimeError(msg)
        self._started = True
        handlers = self._handlers = self._chosen()
        for handler in handlers:
            await handler.define()
        self._scopes.enter_context(capture_logging(self.app.capture_logs))
        self._loops = [self._loop_for(handler) for handler in handlers if _has_source(handler)]
        leases = [handler.options.lease_for for handler in handlers] or [30.0]
        renewal = Renewal(self._shop, self.metrics, every=min(leases) / 3)
        self._renewing = asyncio.create_task(renewal.run(), name="oqron-renewal")
        if self._blocked_after is not None:
            self._pulse = Pulse(self._shop, self.metrics, after=self._blocked_after)
            self._pulse.start()
        self._dependents = Dependents(self.app.storage)
        self._in_background(self._dependents.run(), "oqron-dependents")
        if self._schedules:
            only = None if self._only is None else handlers
            ticker = Ticker(self.app, self._standalone, only)
            self._in_background(ticker.run(), "oqron-schedules")
        if self._maintenance:
            self._in_background(self.app.storage.maintenance.run_forever(), "oqron-maintenance")
        self._claiming = [
            asyncio.create_task(loop.run(), name=f"oqron-claim-{loop.name}") for loop in self._loops
        ]
        log.info("working on %d sources as %s", len(self._loops), self.name)

    def _in_background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._background.append(asyncio.create_task(work, name=name))

    def _chosen(self) -> list[Handler]:
        handlers = self.app.handlers
        if self._only is None:
            return handlers
        unknown = self._only - {handler.name for handler in handlers}
        if unknown:
            known = ", ".join(sorted(handler.name for handler in handlers)) or "none"
            reason = f"no handler is called {', '.join(sorted(unknown))}; there are {known}"
            raise InvalidValueError("only", reason)
        return [handler for handler in handlers if handler.name in self._only]

    def _loop_for(self, handler: Handler) -> ClaimLoop:
        source = source_of(self.app, handler, self.name)
        return ClaimLoop(source, self._shop, self._capacity, self.metrics, self._gate_of(handler))

    def _gate_of(self, handler: Handler) -> Gate | None:
        options = handler.options
        gate: Gate | None = None
        if options.rate is not None and options.slots is not None:
            reason = "give a rate or slots, not both, for one queue"
            raise InvalidValueError("rate", reason)
        if options.rate is not None:
            gate = RateGate(self.app, f"worker:{handler.name}"[:255], options.rate)
        elif options.slots is not None:
            gate = SlotGate(self.app, f"worker:{handler.name}"[:255], options.slots)
        if gate is not None:
            self._gates.append(gate)
        return gate

    def _follows(self, claim: Claim) -> Ended | None:
        waited_for = self._dependents is not None and self._dependents.waits_for(claim)
        return self._ended if waited_for or unique_key(claim) is not None else None

    async def _ended(self, claim: Claim, outcome: str) -> None:  # noqa: ARG002 - every end lets go
        """Let go of what a job held, and of who waits for it."""
        key = unique_key(claim)
        try:
            if key is not None:
                await let_go(self.app.storage, claim, key)
        except OqronError as error:
            log.debug("the key of a job is freed by the next one that wants it: %s", error)
        if self._dependents is not None and self._dependents.waits_for(claim):
            await self._dependents.ended(claim)

    # --- the end ---

    async def drain(self) -> None:
        """
        End: claim no more, let handlers finish, give back what does not.

        Leases are renewed to the last. Handlers in the loop are cancelled at the
        deadline; those in threads are told, and left behind where they do not hear.
        """
        self._stop.set()
        await _cancel(self._claiming)
        background, self._background = self._background, []
        await _cancel(background)
        for gate in self._gates:
            await gate.close()
        if not await self._idle(self._grace, hurried=True):
            log.warning("%d handlers are told to end, their jobs go back", self.running)
            for context in list(self._shop.running):
                context.stop("shutdown")
            await self._idle(_LAST_WORD, hurried=False)
            await self._abandon()
        await self._shop.settler.drain()
        for webhook in self.app.webhooks.values():
            await webhook.close()
        await self._end()

    async def _idle(self, seconds: float, *, hurried: bool) -> bool:
        """Wait until nothing runs; False where the time is over first."""
        hurry = asyncio.create_task(self._hurry.wait()) if hurried else None
        deadline = asyncio.get_running_loop().time() + seconds
        try:
            while self._shop.running:
                left = deadline - asyncio.get_running_loop().time()
                if left <= 0 or (hurry is not None and hurry.done()):
                    return False
                idle = asyncio.create_task(self._shop.next_end())
                waiting = {idle} if hurry is None else {idle, hurry}
                await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                await _cancel([idle])
        finally:
            if hurry is not None:
                await _cancel([hurry])
        return True

    async def _abandon(self) -> None:
        """Give back the jobs of handlers that do not end."""
        left: list[Context] = list(self._shop.running)
        for context in left:
            claim = context.claim
            if claim is None or claim.settled:
                continue
            try:
                await self.app.storage.jobs.release(claim)
            except OqronError as error:
                name = context.queue
                log.warning("a job of %s was not given back; its lease lapses: %s", name, error)
        if left:
            log.warning("%d handlers did not end and are left behind", len(left))

    async def _end(self) -> None:
        await _cancel(self._claiming)
        await _cancel(self._background)
        if self._renewing is not None:
            await _cancel([self._renewing])
        if self._pulse is not None:
            self._pulse.stop()
        self._shop.close()
        self._scopes.close()


def _has_source(handler: Handler) -> bool:
    return not isinstance(handler, ScheduledHandler) or handler.durable


def source_of(app: App, handler: Handler, worker: str) -> Source:
    """Say where the attempts of a handler come from."""
    if isinstance(handler, TopicHandler):
        return TopicSource(app, handler.topic, handler.group, handler, worker)
    queue = handler.queue if isinstance(handler, ScheduledHandler) else handler.name
    return QueueSource(app, queue, handler, worker)


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    waiting = [task for task in tasks if not task.done()]
    for task in waiting:
        task.cancel()
    if waiting:
        await asyncio.wait(waiting)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s ended by an error", task.get_name(), exc_info=error)
