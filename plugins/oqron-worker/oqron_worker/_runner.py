"""Running attempts: from a claim to a settled job."""

from __future__ import annotations

import asyncio
import logging
import time

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from oqron_core import Claim
from oqron_core.exceptions import (
    ClosedError,
    InvalidValueError,
    LeaseLostError,
    OqronError,
    StorageError,
)
from oqron_worker._context import Context, Stopped, enter
from oqron_worker._convert import dump_output
from oqron_worker._depends import failed_parent
from oqron_worker._handlers import Handler
from oqron_worker._metrics import QueueMetrics
from oqron_worker._outcomes import Discard, HandlerTimeoutError, Retry, Snooze
from oqron_worker._settler import Settler


if TYPE_CHECKING:
    from oqron_worker._app import App
    from oqron_worker._pools import ProcessPool, ThreadPool


__all__ = ["Ended", "Runner", "Shop"]

log = logging.getLogger("oqron.worker")

_LOOK_AFTER: Final = 0.05
"""Seconds after which an attempt is watched for a cancel: shorter ones never are."""

Ended: TypeAlias = Callable[[Claim, str], Coroutine[Any, Any, None]]
"""Called when a job has ended for good, with the outcome."""


class Shop:
    """
    What all runners of a worker share.

    Attributes:
        app: The application.
        settler: Writes what is done.
        threads: For functions that block.
        processes: For functions that keep a processor busy.
        running: Every attempt that runs, with its runner.
        follows: Says what follows the end of a job, if anything.
    """

    def __init__(self, app: App, threads: ThreadPool, processes: ProcessPool) -> None:
        self.app = app
        self.threads = threads
        self.processes = processes
        self.settler = Settler(app)
        self.running: dict[Context, Runner] = {}
        self.follows: Callable[[Claim], Ended | None] = lambda _: None
        self._watched: dict[Context, asyncio.Task[None]] = {}
        self._ends: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None

    def began(self, context: Context, runner: Runner) -> None:
        """Count an attempt in."""
        self.running[context] = runner
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_AFTER, self._look)

    def ended(self, context: Context) -> None:
        """Count an attempt out."""
        del self.running[context]
        watcher = self._watched.pop(context, None)
        if watcher is not None:
            watcher.cancel()
        if self._ends:
            for waiting in self._ends:
                if not waiting.done():
                    waiting.set_result(None)
            self._ends.clear()

    async def next_end(self) -> None:
        """Return when an attempt has ended."""
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ends.append(waiting)
        await waiting

    def _look(self) -> None:
        # A cancel must reach a handler at once, but most handlers are over before
        # anybody could cancel them: a watcher for each would cost more than they do.
        self._timer = None
        unwatched = 0
        limit = time.perf_counter() - _LOOK_AFTER
        for context in self.running:
            claim = context.claim
            if context in self._watched or claim is None:
                continue
            if context.started <= limit:
                self._watched[context] = asyncio.create_task(
                    _watch(context, claim), name="oqron-watch"
                )
            else:
                unwatched += 1
        if unwatched:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_AFTER, self._look)

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
        for watcher in self._watched.values():
            watcher.cancel()
        self.threads.close()
        self.processes.close()


async def _watch(context: Context, claim: Claim) -> None:
    await claim.wait_cancelled()
    context.stop("cancelled")


class Runner:
    """
    Runs the attempts of one handler.

    Args:
        shop: What is shared.
        handler: The handler.
        metrics: Where attempts are counted.
        on_free: Called when the slot of an attempt is free: after its settling.
    """

    def __init__(
        self,
        shop: Shop,
        handler: Handler,
        metrics: QueueMetrics,
        on_free: Callable[[Context], None],
    ) -> None:
        self._shop = shop
        self.handler = handler
        self.metrics = metrics
        self._on_free = on_free
        self._timeout = handler.options.timeout
        self._wrap = shop.app.telemetry

    def start(self, claim: Claim) -> Context:
        """Begin with an attempt; the task is the context's."""
        context = Context(
            self._shop.app, claim.run, claim.lease.queue, claim=claim, attempt=claim.attempt
        )
        context.threaded = self.handler.pool == "thread"
        context.started = time.perf_counter()
        self.metrics.running += 1
        self._shop.began(context, self)
        context.task = asyncio.create_task(self._attempt(context, claim), name="oqron-job")
        return context

    # --- one attempt ---

    async def _attempt(self, context: Context, claim: Claim) -> None:
        timer = None
        if self._timeout is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(self._timeout, context.stop, "timeout")
        settling: Awaitable[str]
        try:
            enter(context)
            output = await self.call(context, claim.data)
        except BaseException as error:  # every way to end is an outcome
            context.task = None
            if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
                raise
            settling = self._after(context, claim, error)
        else:
            # From here on nobody may interrupt: what is done is written.
            context.task = None
            if output is not None:
                output = dump_output(output)
            self._shop.settler.complete(
                claim, output, lambda outcome: self._over(context, claim, outcome)
            )
            return
        finally:
            if timer is not None:
                timer.cancel()
        await self._settle(context, claim, settling)

    async def call(self, context: Context, data: Any) -> Any:
        """Call the handler with a payload."""
        claim = context.claim
        if claim is not None and (parent := failed_parent(claim)) is not None:
            raise Discard(f"the job it depends on failed: {parent}")
        try:
            arguments = self.handler.arguments(context, data)
        except InvalidValueError as error:
            raise Discard(f"the payload does not fit: {error}") from None
        if self._wrap is not None:
            with self._wrap.attempt(context):
                return await self._invoke(context, arguments)
        return await self._invoke(context, arguments)

    async def _invoke(self, context: Context, arguments: dict[str, Any]) -> Any:
        handler = self.handler
        if handler.pool == "process":
            return await self._shop.processes.run(handler, context, arguments)
        if handler.signature.context:
            if handler.pool == "loop":
                return await handler.function(context, **arguments)
            return await self._shop.threads.run(handler.function, context, **arguments)
        if handler.pool == "loop":
            return await handler.function(**arguments)
        return await self._shop.threads.run(handler.function, **arguments)

    # --- how it ends ---

    async def _after(self, context: Context, claim: Claim, error: BaseException) -> str:
        """Settle an attempt that did not complete; gives the outcome."""
        jobs = self._shop.app.storage.jobs
        why = context.why if isinstance(error, (asyncio.CancelledError, Stopped)) else None
        if isinstance(error, asyncio.CancelledError) and why is None:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # The loop is being torn down around us.
                why = "shutdown"
        if why in {"cancelled", "lease lost"}:
            if why == "lease lost":
                claim.run.fail("lease lost", reason="lease lost")
            return "cancelled" if why == "cancelled" else "lost"
        if why == "shutdown":
            context.log("info", "given back: the worker is shutting down")
            await jobs.release(claim)
            return "released"
        if why == "timeout":
            error = HandlerTimeoutError(self._timeout or 0.0)
        if isinstance(error, Snooze):
            context.log("info", error.reason)
            await jobs.release(claim, delay=error.delay)
            return "snoozed"
        delay = error.delay if isinstance(error, Retry) else None
        if delay is None:
            delay = self.handler.retry_in(context.attempt)
        retry = not isinstance(error, Discard)
        if isinstance(error, (Retry, Discard)) and error.__cause__ is None:
            await jobs.fail(claim, error.reason, retry_in=delay, retry=retry)
        else:
            await jobs.fail(claim, error, retry_in=delay, retry=retry)
        if not retry:
            return "discarded"
        if claim.attempt < claim.record.field("maxAttempts"):
            return "timeout" if why == "timeout" else "retried"
        return "failed"

    async def _settle(self, context: Context, claim: Claim, settling: Awaitable[str]) -> None:
        outcome = "lost"
        try:
            outcome = await settling
        except LeaseLostError as error:
            outcome = "cancelled" if claim.cancelled else "lost"
            log.info("not settled: %s", error)
        except (StorageError, ClosedError) as error:
            name = self.handler.name
            log.warning("an attempt of %s was not settled; its lease lapses: %s", name, error)
        except OqronError:
            log.exception("an attempt of %s was not settled", self.handler.name)
        finally:
            self._over(context, claim, outcome)

    def _over(self, context: Context, claim: Claim, outcome: str) -> None:
        """Free the slot: the guarded write was made, or refused for good."""
        metrics = self.metrics
        metrics.running -= 1
        metrics.count(outcome, time.perf_counter() - context.started)
        self._shop.ended(context)
        self._on_free(context)
        follow = self._shop.follows(claim) if outcome in _FINAL else None
        if follow is not None:
            self._shop.settler.follow(follow(claim, outcome))


_FINAL: Final = frozenset({"completed", "failed", "discarded", "cancelled"})
