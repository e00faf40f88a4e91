"""Queues: handlers that jobs are added for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

import attrs

from oqron_core import Job, JobSpec, Page, Run
from oqron_core.exceptions import InvalidValueError
from oqron_worker._adding import AddOptions, AddWords, split
from oqron_worker._depends import add_dependent, cancel_waiting, waiting_job
from oqron_worker._handlers import Handler
from oqron_worker._schedules import Timing, put_schedule
from oqron_worker._unique import add_unique


if TYPE_CHECKING:
    from oqron_core import Schedule


__all__ = ["Adder", "QueueHandler"]


class Adder:
    """
    Adds jobs of one handler with options that were given beforehand.

    Args:
        handler: The handler.
        options: The options.
    """

    __slots__ = ("_handler", "_options")

    def __init__(self, handler: QueueHandler, options: AddOptions) -> None:
        self._handler = handler
        self._options = options

    async def add(self, *args: Any, **kwargs: Any) -> Job:
        """Add one job; every argument is payload. See `QueueHandler.add`."""
        return await self._handler.add_with(self._options, args, kwargs)

    def spec(self, *args: Any, **kwargs: Any) -> JobSpec:
        """Make the job without adding it; see `QueueHandler.spec`."""
        return self._handler.spec_with(self._options, args, kwargs)


class QueueHandler(Handler):
    """A function at work on a queue."""

    async def add(self, *args: Any, **kwargs: Any) -> Job:
        """
        Add one job, checked against the function's signature.

        Arguments that the function has are the payload; the others are those of
        `AddOptions`, such as ``delay=60`` or ``unique="a key"``. A function that has
        a parameter of such a name gets it as payload; give the option by `with_options`.

        Returns:
            The job. With ``duplicate`` set, the one that has the id or key already.

        Raises:
            TypeError: An argument is missing or unknown.
            InvalidValueError: An argument is not what its annotation says.
            ConflictError: The unique key is taken, and is to be refused.
            UnavailableError: The durable plane did not answer.
        """
        payload, words = split(self.signature.names, kwargs)
        return await self.add_with(AddOptions(**words), args, payload)

    async def add_many(self, payloads: Iterable[Any], **words: Unpack[AddWords]) -> list[Job]:
        """
        Add any number of jobs, in large batches.

        Args:
            payloads: A mapping of arguments each, or the payload where it is whole.
            **words: As in `AddOptions`, without id, unique and depends_on.

        Raises:
            InvalidValueError: A payload does not fit; nothing was added.
        """
        options = AddOptions(**words)
        if options.id or options.unique or options.depends_on:
            raise InvalidValueError("options", "id, unique and depends_on are for single jobs")
        specs = [self._spec(options, self._data(item)) for item in payloads]
        return await self.app.storage.jobs.add_many(
            self.name, specs, transaction=options.transaction
        )

    def _data(self, item: Any) -> Any:
        if isinstance(item, Mapping) and not self.signature.whole:
            return self.signature.pack((), item)
        return self.signature.pack((item,), {})

    def with_options(self, **words: Unpack[AddWords]) -> Adder:
        """Give what adds jobs with these options; its arguments are all payload."""
        return Adder(self, AddOptions(**words))

    def spec(self, *args: Any, **kwargs: Any) -> JobSpec:
        """
        Make the job without adding it, for ``storage.jobs.add_many(handler.name, …)``.

        Raises: as `add`.
        """
        payload, words = split(self.signature.names, kwargs)
        return self.spec_with(AddOptions(**words), args, payload)

    async def get(self, id: str) -> Job | None:  # noqa: A002 - the word of the contract
        """Read a job, alive, dead or waiting for others; None where there is none."""
        storage = self.app.storage
        job = await storage.jobs.get(self.name, id)
        if job is None:
            job = await storage.dead_letters.get(self.name, id)
        return await waiting_job(storage, self.name, id) if job is None else job

    async def cancel(self, id: str) -> bool:  # noqa: A002 - the word of the contract
        """Call a job off, whatever it is doing; a handler that runs is told."""
        storage = self.app.storage
        waited = await cancel_waiting(storage, self.name, id)
        return waited or await storage.jobs.cancel(self.name, id)

    async def counts(self) -> dict[str, int]:
        """Count the jobs by status."""
        return await self.app.storage.jobs.counts(self.name)

    async def runs(self, *, status: str | None = None, limit: int = 50) -> Page[Run]:
        """Read the runs, those that started last in front."""
        return await self.app.storage.runs.query(name=self.name, status=status, limit=limit)

    # --- inside ---

    async def add_with(
        self, options: AddOptions, args: tuple[Any, ...], payload: Mapping[str, Any]
    ) -> Job:
        """Add one job with its payload told from its options."""
        spec = self.spec_with(options, args, payload)
        if options.unique is not None:
            return await add_unique(self.app.storage, self.name, spec, options.unique)
        if options.depends_on:
            return await add_dependent(
                self.app.storage, self.name, spec, options.depends_on, options.on_parent_failure
            )
        return await self.app.storage.jobs.add(
            self.name,
            spec.data,
            transaction=options.transaction,
            **{name: getattr(spec, name) for name in _SPEC_WORDS},
        )

    def spec_with(
        self, options: AddOptions, args: tuple[Any, ...], payload: Mapping[str, Any]
    ) -> JobSpec:
        """Make the job with its payload told from its options."""
        return self._spec(options, self.signature.pack(args, payload))

    def spec_of(self, data: Any) -> JobSpec:
        """Make the job of a payload that is JSON already."""
        return self._spec(AddOptions(), data)

    async def schedule(
        self,
        schedule: str,
        payload: Mapping[str, Any] | None = None,
        *,
        cron: str | None = None,
        every: float | None = None,
        at: int | datetime | None = None,
        zone: str | None = None,
        catch_up: str = "one",
    ) -> Schedule:
        """
        Add a job by the clock: at each slot of a durable schedule, or once.

        The schedule is there until `unschedule`, survives restarts and needs no
        definition in code; a second call of the same name changes it.

        Args:
            schedule: Its name, unique in the application.
            payload: The arguments of the function.
            cron: Cron text; see `Timing`.
            every: Seconds.
            at: An instant.
            zone: The time zone of *cron*.
            catch_up: What becomes of slots that nobody ran.

        Raises:
            InvalidValueError: An argument is not legal.
        """
        data = self.signature.pack((), payload or {})
        timing = Timing(cron=cron, every=every, at=at, zone=zone)
        return await put_schedule(self.app, self.name, schedule, data, timing, catch_up=catch_up)

    async def unschedule(self, schedule: str) -> bool:
        """Remove a schedule; False where there was none."""
        schedules = self.app.storage.schedules
        found = [await schedules.delete(kind, schedule) for kind in ("cron", "schedule")]
        return any(found)

    def _spec(self, options: AddOptions, data: Any) -> JobSpec:
        mine = self.options
        tags = list(options.tags)
        telemetry = self.app.telemetry
        if telemetry is not None:
            tags += telemetry.outgoing(self.name)
        return JobSpec(
            data,
            id=options.id,
            delay=options.delay,
            run_at=options.run_at,
            priority=mine.priority if options.priority is None else options.priority,
            max_attempts=options.max_attempts or mine.max_attempts,
            backoff=options.backoff or mine.backoff,
            tags=tags,
            correlation_id=options.correlation_id,
        )


_SPEC_WORDS = tuple(field.name for field in attrs.fields(JobSpec) if field.name != "data")
