"""The application: handlers, and the storage that they work on."""

from __future__ import annotations

import contextlib
import logging
import sys

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from oqron_core import Backoff, Job, Message, Settings, Storage, open_storage
from oqron_worker._convert import dump
from oqron_worker._handlers import Handler, Options, Pool, RateLimit
from oqron_worker._queues import QueueHandler
from oqron_worker._schedules import ScheduledHandler, Timing
from oqron_worker._topics import TopicHandler


if TYPE_CHECKING:
    from oqron_worker._telemetry import Telemetry
    from oqron_worker._webhooks import Endpoint, WebhookHandler
    from oqron_worker._worker import Worker


__all__ = ["App", "HandlerWords"]

_HERE = 2
"""Frames between a decorator's use and the function that reads its names."""


class HandlerWords(TypedDict, total=False):
    """The keywords of `Options`."""

    concurrency: int
    weight: float
    timeout: float | None
    lease_for: float
    max_attempts: int
    backoff: Backoff
    priority: int
    rate: RateLimit | None
    slots: int | None
    pool: Pool | None


def _names() -> Mapping[str, Any]:
    """Give the names at the place where a decorator is used: classes may be local."""
    return sys._getframe(_HERE).f_locals


class App:
    """
    An application: functions, and the storage on which they work.

    The handlers are registered when modules are imported; ``async with app:`` opens
    the storage, for adding jobs and for working on them alike.

    Args:
        settings: Ready settings; or give those of `open_storage` by keyword.
        storage: A storage that is open already, and stays with who opened it.
        capture_logs: From which level on standard logging of a handler lands in
            its run; None for not at all.
        opentelemetry: Whether spans and metrics are made; needs the extra of that
            name.
        **more: What `open_storage` takes: ``mode``, ``project``, ….

    Attributes:
        queues: The queue handlers by queue.
        topics: The topic handlers by topic and group.
        scheduled: The crons and intervals by kind and name.
        webhooks: The webhook handlers by name.
        capture_logs: As given.
        telemetry: What makes spans and metrics, or None.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        storage: Storage | None = None,
        capture_logs: int | None = logging.INFO,
        opentelemetry: bool = False,
        **more: Any,
    ) -> None:
        self._settings = settings
        self._more = more
        self._storage = storage
        self._given = storage is not None
        self._stack: AsyncExitStack | None = None
        self._users = 0
        self.capture_logs = capture_logs
        self.queues: dict[str, QueueHandler] = {}
        self.topics: dict[tuple[str, str], TopicHandler] = {}
        self.scheduled: dict[tuple[str, str], ScheduledHandler] = {}
        self.webhooks: dict[str, WebhookHandler] = {}
        self.telemetry: Telemetry | None = None
        if opentelemetry:
            from oqron_worker._telemetry import Telemetry  # noqa: PLC0415 - an extra

            self.telemetry = Telemetry()

    # --- handlers ---

    def queue(
        self, name: str, *, whole: bool = False, **words: Unpack[HandlerWords]
    ) -> Callable[[Callable[..., Any]], QueueHandler]:
        """
        Put a function to work on a queue.

        Args:
            name: The queue.
            whole: Whether its one parameter takes the whole payload, whatever JSON
                it is; otherwise a payload is an object with a field per parameter.
            **words: How it is run: see `Options`.
        """
        options = Options(**words)
        names = _names()

        def register(function: Callable[..., Any]) -> QueueHandler:
            handler = QueueHandler(self, name, function, options, whole=whole, names=names)
            _register(self.queues, name, handler)
            return handler

        return register

    def topic(
        self, name: str, *, group: str, start: str | int = "latest", **words: Unpack[HandlerWords]
    ) -> Callable[[Callable[..., Any]], TopicHandler]:
        """
        Deliver the messages of a topic to a function, as a group.

        Args:
            name: The topic.
            group: The group: each group gets every message.
            start: From where it reads when it is new: ``latest``, ``earliest``, an
                instant or the id of a message.
            **words: How it is run: see `Options`.
        """
        options = Options(**words)
        names = _names()

        def register(function: Callable[..., Any]) -> TopicHandler:
            handler = TopicHandler(self, name, group, function, options, start=start, names=names)
            _register(self.topics, (name, group), handler)
            return handler

        return register

    def cron(
        self,
        name: str,
        text: str,
        *,
        zone: str | None = None,
        durable: bool = True,
        catch_up: str = "one",
        **words: Unpack[HandlerWords],
    ) -> Callable[[Callable[..., Any]], ScheduledHandler]:
        """
        Run a function by the calendar, exactly once per slot among all processes.

        Args:
            name: Its name.
            text: Cron text of five fields, or a macro such as ``@daily``.
            zone: The time zone that it is read in; None for UTC.
            durable: Whether each slot is a job, tried again like any other; without,
                it is a run of the process that leads, and is lost with it.
            catch_up: What becomes of slots while nobody worked: ``skip``, ``one``
                run for all, or ``all``.
            **words: How it is run: see `Options`.
        """
        timing = Timing(cron=text, zone=zone)
        return self._scheduled(name, timing, durable, catch_up, words, _names())

    def every(
        self,
        name: str,
        seconds: float,
        *,
        durable: bool = False,
        catch_up: str = "skip",
        **words: Unpack[HandlerWords],
    ) -> Callable[[Callable[..., Any]], ScheduledHandler]:
        """
        Run a function every so many seconds, once among all processes.

        Args:
            name: Its name.
            seconds: The interval; slots are multiples of it.
            durable: As in `cron`.
            catch_up: As in `cron`.
            **words: How it is run: see `Options`.
        """
        timing = Timing(every=seconds)
        return self._scheduled(name, timing, durable, catch_up, words, _names())

    def _scheduled(
        self,
        name: str,
        timing: Timing,
        durable: bool,  # noqa: FBT001 - handed through
        catch_up: str,
        words: HandlerWords,
        names: Mapping[str, Any],
    ) -> Callable[[Callable[..., Any]], ScheduledHandler]:
        words.setdefault("concurrency", 1)
        options = Options(**words)

        def register(function: Callable[..., Any]) -> ScheduledHandler:
            handler = ScheduledHandler(
                self,
                name,
                function,
                options,
                timing=timing,
                durable=durable,
                catch_up=catch_up,
                names=names,
            )
            _register(self.scheduled, (timing.kind, name), handler)
            return handler

        return register

    def webhook(
        self,
        name: str,
        *,
        url: str | None = None,
        secret: str | None = None,
        events: Sequence[str] = ("*",),
        allow_private: bool = False,
        **words: Unpack[HandlerWords],
    ) -> Callable[[Callable[..., Any]], WebhookHandler]:
        """
        Send events to endpoints: signed, tried again, behind a breaker.

        The function makes the body of a request from an event: it takes the event's
        data, or the context and the data, and returns what is sent; None sends
        nothing.

        Args:
            name: Its name.
            url: An endpoint of all events below; more are added by
                `WebhookHandler.subscribe`.
            secret: Signs by Standard Webhooks: ``whsec_`` and base64.
            events: Patterns of the events that *url* gets, such as ``order.*``.
            allow_private: Whether endpoints may have private addresses; without,
                none in this machine's networks is ever called.
            **words: How it is run: see `Options`.
        """
        from oqron_worker._webhooks import Endpoint, WebhookHandler  # noqa: PLC0415 - an extra

        chosen = _WEBHOOK_WORDS.copy()
        chosen.update(words)
        options = Options(**chosen)
        names = _names()
        fixed: list[Endpoint] = []
        if url is not None:
            fixed = [Endpoint(name="default", url=url, secret=secret, events=tuple(events))]

        def register(function: Callable[..., Any]) -> WebhookHandler:
            handler = WebhookHandler(
                self, name, function, options, fixed=fixed, allow_private=allow_private, names=names
            )
            _register(self.queues, handler.queue.name, handler.queue)
            _register(self.webhooks, name, handler)
            return handler

        return register

    @property
    def handlers(self) -> list[Handler]:
        """Every handler, in the order of registration within its kind."""
        return [*self.queues.values(), *self.topics.values(), *self.scheduled.values()]

    # --- life ---

    @property
    def storage(self) -> Storage:
        """
        The storage.

        Raises:
            RuntimeError: It is not open.
        """
        if self._storage is None:
            msg = "the application is not open: use it inside of `async with app:`"
            raise RuntimeError(msg)
        return self._storage

    @property
    def opened(self) -> bool:
        """Whether the storage is open."""
        return self._storage is not None

    def configure(self, **more: Any) -> None:
        """
        Change settings before the storage is opened; those given last win.

        Raises:
            RuntimeError: It is open.
        """
        if self._storage is not None:
            msg = "the application is open; configure it before"
            raise RuntimeError(msg)
        if "settings" in more:
            self._settings = more.pop("settings")
            self._more = {}
        self._more = {**self._more, **more}

    @contextlib.contextmanager
    def using(self, storage: Storage) -> Iterator[Self]:
        """
        Work on a storage that somebody else opened, while the context is open.

        Raises:
            RuntimeError: The application has one open.
        """
        if self._storage is not None:
            msg = "the application is open already"
            raise RuntimeError(msg)
        self._storage, self._given = storage, True
        try:
            yield self
        finally:
            self._storage, self._given = None, False

    async def __aenter__(self) -> Self:
        self._users += 1
        if self._users == 1 and not self._given:
            stack = AsyncExitStack()
            try:
                self._storage = await stack.enter_async_context(
                    open_storage(self._settings, **dict(self._more))
                )
            except BaseException:
                self._users = 0
                raise
            self._stack = stack
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._users -= 1
        if self._users == 0 and self._stack is not None:
            stack, self._stack = self._stack, None
            try:
                await stack.__aexit__(kind, error, trace)
            finally:
                self._storage = None

    def worker(self, **more: Any) -> Worker:
        """Make a worker for this process; see `Worker`."""
        from oqron_worker._worker import Worker  # noqa: PLC0415 - who only adds jobs needs none

        return Worker(self, **more)

    # --- what an application does ---

    async def publish(
        self,
        topic: str,
        message: Any,
        *,
        key: str | None = None,
        idempotency_key: str | None = None,
        headers: dict[str, Any] | None = None,
    ) -> Message:
        """
        Publish a message to every group of a topic; attrs classes become JSON.

        Raises:
            InvalidValueError: An argument is not legal.
            UnavailableError: The durable plane did not answer.
        """
        if self.telemetry is not None:
            headers = {**self.telemetry.headers(), **(headers or {})}
        return await self.storage.topics.publish(
            topic,
            dump(message, Any, "message"),
            key=key,
            idempotency_key=idempotency_key,
            headers=headers,
        )

    async def emit(self, event: str, data: Any, *, id: str | None = None) -> list[Job]:  # noqa: A002 - the word of the contract
        """
        Send an event to every webhook endpoint whose patterns match.

        Args:
            event: Such as ``order.created``.
            data: Anything portable.
            id: Of the event: the same id is sent once to each endpoint.

        Returns:
            The deliveries.
        """
        jobs: list[Job] = []
        for webhook in self.webhooks.values():
            jobs.extend(await webhook.send(event, data, id=id))
        return jobs


def _register(where: dict[Any, Any], key: Any, handler: Any) -> None:
    if key in where:
        msg = f"{key!r} has a handler already: {where[key].__qualname__}"
        raise ValueError(msg)
    where[key] = handler


_WEBHOOK_WORDS: HandlerWords = {
    "max_attempts": 8,
    "timeout": 30.0,
    "backoff": Backoff.exponential(5.0, factor=4.0, cap=6 * 3600.0, jitter=0.2),
}
