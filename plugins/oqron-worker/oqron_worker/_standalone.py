"""Runs that have no job: slots of crons and intervals that are not durable."""

from __future__ import annotations

import asyncio
import logging
import time

from typing import TYPE_CHECKING

from oqron_core.exceptions import OqronError
from oqron_worker._context import Context, Stopped, enter
from oqron_worker._convert import dump_output
from oqron_worker._metrics import Metrics
from oqron_worker._outcomes import HandlerTimeoutError
from oqron_worker._runner import Runner, Shop
from oqron_worker._schedules import ScheduledHandler


if TYPE_CHECKING:
    from oqron_worker._app import App


__all__ = ["Standalone"]

log = logging.getLogger("oqron.worker")


class Standalone:
    """
    Runs slots right here. A slot that comes while the one before runs is left out.

    Args:
        app: The application.
        shop: What runners share.
        metrics: What is counted.
    """

    def __init__(self, app: App, shop: Shop, metrics: Metrics) -> None:
        self._app = app
        self._shop = shop
        self._metrics = metrics
        self._busy: set[ScheduledHandler] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> int:
        """How many slots run now."""
        return len(self._busy)

    def runs(self, handler: ScheduledHandler) -> bool:
        """Whether a slot of a handler runs now."""
        return handler in self._busy

    def start(self, handler: ScheduledHandler, slot: int) -> None:
        """Run a slot."""
        if handler in self._busy:
            log.warning("%s is still running; a slot is left out", handler.queue)
            self._metrics.of(handler.queue).count("skipped", 0.0)
            return
        self._busy.add(handler)
        task = asyncio.create_task(self._run(handler, slot), name="oqron-slot-run")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, handler: ScheduledHandler, slot: int) -> None:
        metrics = self._metrics.of(handler.queue)
        runner = Runner(self._shop, handler, metrics, lambda _: None)
        kind = handler.timing.kind
        try:
            run = await self._app.storage.runs.start(
                name=handler.name, module=kind, trigger=kind, input={"slot": slot}
            )
        except OqronError as error:
            log.warning("a slot of %s did not run: %s", handler.queue, error)
            self._busy.discard(handler)
            return
        context = Context(self._app, run, handler.queue, slot=slot)
        context.threaded = handler.pool == "thread"
        context.started = time.perf_counter()
        context.task = asyncio.current_task()
        metrics.running += 1
        self._shop.began(context, runner)
        outcome = "failed"
        try:
            outcome = await self._attempt(runner, context, {"slot": slot})
        finally:
            self._busy.discard(handler)
            metrics.running -= 1
            metrics.count(outcome, time.perf_counter() - context.started)
            self._shop.ended(context)

    async def _attempt(self, runner: Runner, context: Context, data: object) -> str:
        timeout = runner.handler.options.timeout
        timer = None
        if timeout is not None:
            timer = asyncio.get_running_loop().call_later(timeout, context.stop, "timeout")
        enter(context)
        try:
            output = await runner.call(context, data)
        except (asyncio.CancelledError, Stopped) as error:
            context.task = None
            if context.why == "timeout":
                context.run.fail(HandlerTimeoutError(timeout or 0.0))
                return "timeout"
            context.run.cancel(context.why or "shutdown")
            if context.why is None and isinstance(error, asyncio.CancelledError):
                raise
            return "released"
        except Exception as error:  # noqa: BLE001 - a run records whatever its handler raises
            context.task = None
            context.run.fail(error)
            return "failed"
        else:
            context.task = None
            context.run.finish(dump_output(output))
            return "completed"
        finally:
            if timer is not None:
                timer.cancel()
