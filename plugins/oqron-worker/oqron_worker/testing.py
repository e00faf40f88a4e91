"""For tests of applications: run them in memory, on a clock that the test moves."""

from __future__ import annotations

import contextlib

from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from oqron_core import Job, Query, Run, Storage, open_storage
from oqron_worker._depends import Dependents
from oqron_worker._handlers import Handler
from oqron_worker._metrics import Metrics
from oqron_worker._pools import ProcessPool, ThreadPool
from oqron_worker._runlog import capture_logging
from oqron_worker._runner import Runner, Shop
from oqron_worker._schedules import ScheduledHandler, Ticker
from oqron_worker._standalone import Standalone
from oqron_worker._worker import source_of


if TYPE_CHECKING:
    from oqron_worker._app import App


__all__ = ["AppTester", "MovableClock"]

_MOST: Final = 100_000


class MovableClock(Protocol):
    """What a tester needs of a clock; `oqron_core.testing.clock.ManualClock` is one."""

    def now(self) -> int:
        """Milliseconds since the epoch."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return once the clock has been moved by *seconds*."""
        ...

    def advance(self, seconds: float) -> None:
        """Move on."""
        ...


class AppTester:
    """
    An application in memory mode, that works when the test says so.

    Nothing runs in the background: `drain` runs what is due, one attempt after the
    other, and `advance` moves the clock, stopping wherever something comes due.

    Args:
        app: The application.
        clock: The clock; of the fixture ``oqron_clock``, or a `ManualClock`.

    Attributes:
        storage: The storage; also ``app.storage`` meanwhile.
        clock: The clock.
        attempts: How many attempts it has run.
    """

    def __init__(self, app: App, clock: MovableClock) -> None:
        self.app = app
        self.clock = clock
        self.attempts = 0
        self._stack = AsyncExitStack()
        self._storage: Storage | None = None

    @property
    def storage(self) -> Storage:
        """The storage."""
        return self.app.storage

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            storage = await stack.enter_async_context(
                open_storage(
                    mode="memory",
                    project="test",
                    environment="test",
                    memory={"clock": self.clock},
                )
            )
            stack.enter_context(self.app.using(storage))
            stack.enter_context(capture_logging(self.app.capture_logs))
            self._metrics = Metrics()
            self._shop = Shop(self.app, ThreadPool(8), ProcessPool(1))
            stack.callback(self._shop.close)
            for webhook in self.app.webhooks.values():
                stack.push_async_callback(webhook.close)
            self._standalone = Standalone(self.app, self._shop, self._metrics)
            self._ticker = Ticker(self.app, self._standalone)
            self._dependents = Dependents(storage)
            for handler in self.app.handlers:
                await handler.define()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    # --- work ---

    async def drain(self) -> int:
        """
        Run everything that is due, and what that brings, until nothing is.

        Returns:
            How many attempts ran.

        Raises:
            RuntimeError: It does not come to an end.
        """
        before = self.attempts
        while await self._round():
            if self.attempts - before > _MOST:
                msg = f"{_MOST} attempts ran and there are still more: does a job add itself?"
                raise RuntimeError(msg)
        return self.attempts - before

    async def _round(self) -> bool:
        await self._ticker.tick()
        await self._idle()
        did = False
        for handler in self._handlers():
            while await self._one(handler):
                did = True
        return await self._dependents.look() > 0 or did

    def _handlers(self) -> list[Handler]:
        return [h for h in self.app.handlers if not isinstance(h, ScheduledHandler) or h.durable]

    async def _one(self, handler: Handler) -> bool:
        source = source_of(self.app, handler, "tester")
        claims = await source.claim(1)
        for claim in claims:
            self.attempts += 1
            runner = Runner(self._shop, handler, self._metrics.of(source.name), lambda _: None)
            runner.start(claim)
            await self._idle()
        return bool(claims)

    async def _idle(self) -> None:
        self.attempts += self._standalone.busy
        while self._shop.running or self._standalone.busy:
            await self._shop.next_end()
        await self._shop.settler.drain()

    async def advance(self, seconds: float) -> int:
        """
        Move the clock, and run what comes due on the way, in its order.

        Args:
            seconds: How far.

        Returns:
            How many attempts ran.
        """
        before = self.attempts
        end = self.clock.now() + round(seconds * 1000)
        await self.drain()
        while (due := await self._next_due()) is not None and due <= end:
            self.clock.advance(max(0, due - self.clock.now()) / 1000)
            await self.drain()
        self.clock.advance(max(0, end - self.clock.now()) / 1000)
        await self.drain()
        return self.attempts - before

    async def _next_due(self) -> int | None:
        now = self.clock.now()
        found: list[int] = []
        for query in (
            Query(
                kind="job",
                where=[("status", "=", "delayed"), ("runAt", ">", now)],
                order_by=[("runAt", "asc")],
                limit=1,
            ),
            *(
                Query(
                    namespace=kind,
                    where=[("nextRunAt", ">", now), ("paused", "=", False)],
                    order_by=[("nextRunAt", "asc")],
                    limit=1,
                )
                for kind in ("cron", "schedule")
            ),
        ):
            page = await self.storage.durable.query(query)
            found.extend(r.field("runAt") or r.field("nextRunAt") for r in page.items)
        return min(found, default=None)

    # --- look ---

    async def job(self, job: Job) -> Job:
        """
        Read a job as it is now, alive or dead.

        Raises:
            AssertionError: It is gone.
        """
        found = await self.storage.jobs.get(job.queue_name, job.id)
        if found is None:
            found = await self.storage.dead_letters.get(job.queue_name, job.id)
        assert found is not None, f"{job.queue_name} has no job {job.id}, alive or dead"  # noqa: S101 - for tests
        return found

    async def jobs(self, queue: str, *, status: str | None = None) -> list[Job]:
        """Read the jobs of a queue."""
        return list((await self.storage.jobs.query(queue, status=status, limit=10_000)).items)

    async def dead(self, queue: str) -> list[Job]:
        """Read the dead letters of a queue."""
        return list((await self.storage.dead_letters.query(queue, limit=10_000)).items)

    async def runs(self, name: str, *, status: str | None = None) -> list[Run]:
        """Read the runs of a queue, cron or topic, the oldest first."""
        page = await self.storage.runs.query(name=name, status=status, limit=10_000)
        return list(reversed(page.items))

    async def completed(self, job: Job) -> Any:
        """
        Expect a job to have completed, and give its output.

        Raises:
            AssertionError: It has not; says how it stands.
        """
        found = await self.job(job)
        assert found.status == "completed", _standing(found)  # noqa: S101 - for tests
        return found.return_value

    async def died(self, job: Job, *, error: str = "") -> Job:
        """
        Expect a job to be a dead letter, for an error that contains *error*.

        Raises:
            AssertionError: It is not; says how it stands.
        """
        found = await self.job(job)
        assert found.dead_at is not None, _standing(found)  # noqa: S101 - for tests
        assert error in (found.error or ""), _standing(found)  # noqa: S101 - for tests
        return found


def _standing(job: Job) -> str:
    what = f"job {job.id} of {job.queue_name} is {job.status}"
    tried = f"after {job.attempt_made} of {job.max_attempts} attempts"
    return f"{what} {tried}" + (f": {job.error}" if job.error else "")
