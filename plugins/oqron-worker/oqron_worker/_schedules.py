"""Crons, intervals and one-off schedules on durable pointers."""

from __future__ import annotations

import asyncio
import hashlib
import logging

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from oqron_core import JobSpec, LeaseLostError, Query
from oqron_core.exceptions import ClosedError, InvalidValueError, OqronError, StorageError
from oqron_worker._context import Context
from oqron_worker._handlers import Handler, Options


if TYPE_CHECKING:
    from oqron_core import Schedule
    from oqron_worker._app import App
    from oqron_worker._standalone import Standalone


__all__ = ["ScheduledHandler", "Ticker", "Timing", "put_schedule"]

log = logging.getLogger("oqron.worker")

LEAD: Final = "worker:schedules"
_CHANNEL: Final = "worker:schedules"
_LONGEST_SLEEP: Final = 5.0
_SHORTEST: Final = 0.001
_KINDS: Final = ("cron", "schedule")
_LEAST_EVERY: Final = 0.1
_GRACE: Final = 60.0
_DUE: Final = 100
_DUE_MOST: Final = 10_000

NextAfter = Callable[[int], int | None]


class Timing:
    """
    When something runs: cron text, an interval, or once.

    Args:
        cron: Cron text of five fields, or a macro; needs the extra ``cron``.
        every: Seconds between runs, >= 0.1; slots are multiples of it since the
            epoch, the same in every process.
        at: An instant: milliseconds since the epoch, or an aware datetime.
        zone: The time zone of *cron*.

    Raises:
        InvalidValueError: Not exactly one of them is given, or it is not legal.
    """

    __slots__ = ("at", "kind", "next_after", "spec", "zone")

    def __init__(
        self,
        *,
        cron: str | None = None,
        every: float | None = None,
        at: int | datetime | None = None,
        zone: str | None = None,
    ) -> None:
        if sum(value is not None for value in (cron, every, at)) != 1:
            raise InvalidValueError("schedule", "give one of cron, every and at")
        self.zone = zone
        self.at: int | None = None
        self.kind = "schedule"
        self.next_after: NextAfter
        if cron is not None:
            self.kind = "cron"
            self.spec: dict[str, Any] = {"cron": cron}
            self.next_after = _cron(cron, zone)
        elif every is not None:
            period = _period(every)
            self.spec = {"every": every}
            self.next_after = lambda after: after - after % period + period
        else:
            self.at = _instant(at)
            self.spec = {"at": self.at}
            self.next_after = lambda _: None

    @classmethod
    def of(cls, schedule: Schedule) -> Timing:
        """
        Read the timing of a stored schedule.

        Raises:
            InvalidValueError: Its spec says none.
        """
        spec = schedule.spec
        return cls(
            cron=spec.get("cron"), every=spec.get("every"), at=spec.get("at"), zone=schedule.zone
        )

    def first(self, now: int) -> int | None:
        """Give the first slot after *now*."""
        return self.at if self.at is not None else self.next_after(now)


def _cron(text: str, zone: str | None) -> NextAfter:
    # Only here: cron text needs an extra of core, and most applications have none.
    from oqron_core.cronspec import CronSpec  # noqa: PLC0415

    return CronSpec(text, zone).next


def _period(every: object) -> int:
    if type(every) not in {int, float} or not every >= _LEAST_EVERY:  # type: ignore[operator]  # a number, as just tested
        raise InvalidValueError("every", f"must be seconds, >= {_LEAST_EVERY:g}")
    return round(every * 1000)  # type: ignore[operator]  # as above


def _instant(at: object) -> int:
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise InvalidValueError("at", "must be an aware datetime, with a time zone")
        return int(at.astimezone(UTC).timestamp() * 1000)
    if type(at) is not int:
        raise InvalidValueError("at", "must be milliseconds since the epoch or a datetime")
    return at


class ScheduledHandler(Handler):
    """
    A function that runs by the clock.

    Attributes:
        timing: When.
        durable: Whether each slot is a job; else it is a run of the leader.
        catch_up: What becomes of slots that nobody ran: ``skip``, ``one``, ``all``.
        queue: The queue of its jobs.
    """

    def __init__(
        self,
        app: App,
        name: str,
        function: Callable[..., Any],
        options: Options,
        *,
        timing: Timing,
        durable: bool,
        catch_up: str,
        names: Mapping[str, Any] | None,
    ) -> None:
        super().__init__(app, name, function, options, names=names)
        if self.signature.names:
            msg = f"{self.__qualname__} runs by the clock: it takes ctx or nothing"
            raise TypeError(msg)
        self.timing = timing
        self.durable = durable
        self.catch_up = catch_up
        self.queue = f"{timing.kind}:{name}"

    def arguments(self, context: Context, data: Any) -> dict[str, Any]:
        """Take the slot from the payload; there are no arguments."""
        slot = data.get("slot") if isinstance(data, dict) else None
        context.slot = slot if isinstance(slot, int) else None
        return {}

    async def define(self) -> Schedule:
        """Write the pointer; what is there and has the same timing stays."""
        storage = self.app.storage
        now = await storage.durable.now()
        return await storage.schedules.put(
            self.timing.kind,
            self.name,
            next_run_at=self.timing.first(now),
            spec=self.timing.spec,
            zone=self.timing.zone,
            catch_up=self.catch_up,
        )

    async def trigger(self) -> None:
        """Run it now, as a job, whatever the clock says; the pointer stays."""
        storage = self.app.storage
        mine = self.options
        await storage.jobs.add(
            self.queue,
            {"slot": None},
            max_attempts=mine.max_attempts,
            backoff=mine.backoff,
            priority=mine.priority,
        )

    def job(self, slot: int) -> tuple[str, JobSpec]:
        """Make the job of a slot."""
        mine = self.options
        spec = JobSpec(
            {"slot": slot},
            priority=mine.priority,
            max_attempts=mine.max_attempts,
            backoff=mine.backoff,
        )
        return self.queue, spec


async def put_schedule(
    app: App, queue: str, name: str, data: Any, timing: Timing, *, catch_up: str
) -> Schedule:
    """Store a schedule that adds a job of *queue* at each of its slots."""
    storage = app.storage
    now = await storage.durable.now()
    schedule = await storage.schedules.put(
        timing.kind,
        name,
        next_run_at=timing.first(now),
        spec={**timing.spec, "queue": queue, "data": data},
        zone=timing.zone,
        catch_up=catch_up,
    )
    await wake(app)
    return schedule


async def wake(app: App) -> None:
    """Let the leader look at what is due next; a lost signal costs seconds."""
    try:
        await app.storage.hot.signals.publish(_CHANNEL, None)
    except StorageError as error:
        log.debug("the leader looks by itself: %s", error)


class Ticker:
    """
    Does what is due, under one leader for all processes.

    The pointer's guarded move decides who has a slot, also between a leader that
    stood still and the one that replaced it; leading only spares the others the
    work of asking.

    Args:
        app: The application.
        standalone: Runs the slots of handlers that are not durable, here.
        only: The handlers whose schedules are moved on; None for every schedule.
    """

    def __init__(
        self, app: App, standalone: Standalone, only: Collection[Handler] | None = None
    ) -> None:
        self._app = app
        self._standalone = standalone
        self._only = only
        self._wake = asyncio.Event()

    @property
    def lead(self) -> str:
        """
        Give the name that is led under.

        One with a part of the handlers leads those who have the same part: as the
        leader of all it would keep the others from the rest.
        """
        if self._only is None:
            return LEAD
        names = "\n".join(sorted({handler.name for handler in self._only}))
        return f"{LEAD}:{hashlib.sha256(names.encode()).hexdigest()[:16]}"

    async def run(self) -> None:
        """Lead when it is our turn, until cancelled."""
        while True:
            try:
                async with self._app.storage.locks.lead(self.lead):
                    await self._lead()
            except ClosedError:
                return
            except LeaseLostError as error:
                log.info("another process leads the schedules now: %s", error)
            except OqronError as error:
                log.warning("schedules wait for the planes: %s", error)
            await asyncio.sleep(1.0)

    async def _lead(self) -> None:
        ears = asyncio.create_task(self._listen(), name="oqron-schedules-ears")
        try:
            while True:
                self._wake.clear()
                pause = await self.tick()
                try:
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
                except TimeoutError:
                    pass
        finally:
            ears.cancel()
            await asyncio.wait([ears])

    async def _listen(self) -> None:
        try:
            async with self._app.storage.hot.signals.subscribe([_CHANNEL]) as signals:
                async for _ in signals:
                    self._wake.set()
        except OqronError as error:
            log.debug("new schedules are found by the next look: %s", error)

    async def tick(self) -> float:
        """
        Fire everything that is due now.

        Returns:
            Seconds until the next slot, at most a few.
        """
        schedules = self._app.storage.schedules
        limit = _DUE
        while due := await schedules.due(limit=limit):
            moved = [await self._one(schedule) for schedule in due]
            if any(moved):
                continue
            if len(due) < limit or limit == _DUE_MOST:
                break
            # What others should move, and do not, must not hide what is ours.
            limit = min(10 * limit, _DUE_MOST)
        return await self._pause()

    async def _one(self, schedule: Schedule) -> bool:
        try:
            return await self._fire_one(schedule)
        except InvalidValueError as error:
            log.warning("%s %r cannot run: %s", schedule.kind, schedule.name, error)
            return False

    async def _fire_one(self, schedule: Schedule) -> bool:
        schedules = self._app.storage.schedules
        handler = self._app.scheduled.get((schedule.kind, schedule.name))
        if not self._is_ours(schedule, handler):
            return False
        timing = Timing.of(schedule) if handler is None else handler.timing
        if handler is not None and not handler.durable:
            return await self._fire_here(schedule, handler)
        if handler is not None:
            made = await schedules.fire(
                schedule, handler.job, next_after=timing.next_after, grace=_GRACE
            )
            return bool(made)
        queue = schedule.spec.get("queue")
        if not isinstance(queue, str):
            # Somebody else's: this application knows neither its handler nor a queue.
            return False
        target = self._app.queues.get(queue)
        data = schedule.spec.get("data")
        spec = JobSpec(data) if target is None else target.spec_of(data)
        made = await schedules.fire(
            schedule, (queue, spec), next_after=timing.next_after, grace=_GRACE
        )
        return bool(made)

    def _is_ours(self, schedule: Schedule, handler: ScheduledHandler | None) -> bool:
        if self._only is None:
            return True
        if handler is None:
            queue = schedule.spec.get("queue")
            return isinstance(queue, str) and self._app.queues.get(queue) in self._only
        return handler in self._only

    async def _fire_here(self, schedule: Schedule, handler: ScheduledHandler) -> bool:
        schedules = self._app.storage.schedules
        moves = await schedules.plan(schedule, next_after=handler.timing.next_after, grace=_GRACE)
        won = False
        for move in moves:
            won = await schedules.advance(
                schedule.kind,
                schedule.name,
                expected=move.expected,
                next_run_at=move.next_run_at,
                ran=move.run and not self._standalone.runs(handler),
            )
            if not won:
                break
            if move.run:
                self._standalone.start(handler, move.expected)
        return won

    async def _pause(self) -> float:
        durable = self._app.storage.durable
        now = await durable.now()
        pause = _LONGEST_SLEEP
        for kind in _KINDS:
            query = Query(
                namespace=kind,
                where=[("nextRunAt", ">", now), ("paused", "=", False)],
                order_by=[("nextRunAt", "asc")],
                limit=1,
            )
            for record in (await durable.query(query)).items:
                pause = min(pause, (record.field("nextRunAt") - now) / 1000)
        return max(_SHORTEST, pause)
