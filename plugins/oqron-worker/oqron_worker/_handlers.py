"""What an application registers: functions with the way they are run."""

from __future__ import annotations

import inspect

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs

from oqron_core import Backoff, FixedWindow, SlidingWindow, TokenBucket
from oqron_core.exceptions import InvalidValueError
from oqron_worker._context import Context
from oqron_worker._signature import Signature


if TYPE_CHECKING:
    from oqron_worker._app import App


__all__ = ["DEFAULT_BACKOFF", "Handler", "Options", "Pool", "RateLimit"]

Pool: TypeAlias = Literal["loop", "thread", "process"]
"""Where a handler runs."""
RateLimit: TypeAlias = FixedWindow | SlidingWindow | TokenBucket

DEFAULT_BACKOFF: Final = Backoff.exponential(1.0, cap=300.0, jitter=0.2)
"""One second, doubled each time up to five minutes, 20 percent by chance."""
_LEAST_LEASE: Final = 1.0
_MOST_SLOTS: Final = 10_000


def _positive(_instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and not (type(value) in {int, float} and value > 0):
        raise InvalidValueError(attribute.name, f"must be a number above 0, not {value!r}")


def _count(_instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and not (type(value) is int and 1 <= value <= _MOST_SLOTS):
        raise InvalidValueError(attribute.name, f"must be an int from 1 to {_MOST_SLOTS}")


def _lease(_instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    _positive(_instance, attribute, value)
    if value < _LEAST_LEASE:
        raise InvalidValueError(attribute.name, "must be at least 1 second; it is renewed anyway")


@attrs.frozen(kw_only=True)
class Options:
    """
    How a handler is run.

    Attributes:
        concurrency: How many attempts run at the same time in one worker process.
        weight: Its part of a busy worker's slots, compared with other queues.
        timeout: Seconds that an attempt may take; None for any time.
        lease_for: Seconds until another worker may take over from one that died;
            renewed every third of it, however long a handler runs.
        max_attempts: How often a job is tried.
        backoff: How long it waits between attempts.
        priority: Of its jobs; lower is sooner.
        rate: How many attempts may start, among all processes.
        slots: How many attempts may run at the same time among all processes.
        pool: Where it runs: ``loop`` for a coroutine function, else ``thread``, or
            ``process``.
    """

    concurrency: int = attrs.field(default=20, validator=_count)
    weight: float = attrs.field(default=1.0, validator=_positive)
    timeout: float | None = attrs.field(default=None, validator=_positive)
    lease_for: float = attrs.field(default=30.0, validator=_lease)
    max_attempts: int = 3
    backoff: Backoff = DEFAULT_BACKOFF
    priority: int = 0
    rate: RateLimit | None = None
    slots: int | None = attrs.field(default=None, validator=_count)
    pool: Pool | None = None


class Handler:
    """
    A function of an application, and how it is run.

    Calling it calls the function, so that a handler is tested like any function.

    Attributes:
        app: The application.
        name: Its name in the application: the queue, cron, or topic and group.
        function: The function.
        signature: What its payload must be.
        options: How it is run.
        pool: Where it runs.
    """

    def __init__(
        self,
        app: App,
        name: str,
        function: Callable[..., Any],
        options: Options,
        *,
        whole: bool = False,
        names: Mapping[str, Any] | None = None,
    ) -> None:
        self.app = app
        self.name = name
        self.function = function
        self.options = options
        self.signature = Signature(function, whole=whole, names=names)
        self.pool = _pool_of(function, options.pool)
        self.__name__ = getattr(function, "__name__", name)
        self.__qualname__ = getattr(function, "__qualname__", name)
        self.__doc__ = function.__doc__
        self.__module__ = getattr(function, "__module__", __name__)
        self.__wrapped__ = function

    def arguments(self, context: Context, data: Any) -> dict[str, Any]:  # noqa: ARG002 - for those that need it
        """
        Make the arguments of a call from a job's payload.

        Raises:
            InvalidValueError: The payload does not fit.
        """
        return self.signature.unpack(data)

    async def define(self) -> object:
        """Write down what the storage must know of it, at the start of a worker."""
        return None

    def retry_in(self, attempt: int) -> float | None:  # noqa: ARG002 - for those that need it
        """Say how long to wait after *attempt* failed; None for what the job says."""
        return None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself; nothing is stored."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}: {self.__qualname__}>"


def _pool_of(function: Callable[..., Any], asked: Pool | None) -> Pool:
    is_async = inspect.iscoroutinefunction(function)
    if asked is None:
        return "loop" if is_async else "thread"
    if asked not in {"loop", "thread", "process"}:
        raise InvalidValueError("pool", f'must be "loop", "thread" or "process", not {asked!r}')
    if is_async != (asked == "loop"):
        if is_async:
            raise InvalidValueError("pool", "a coroutine function runs in the loop")
        reason = "what is no coroutine function runs in a thread or a process"
        raise InvalidValueError("pool", reason)
    return asked
