"""Proxies of both planes that record every call and fail where they are told to."""

from __future__ import annotations

import asyncio
import fnmatch
import functools
import inspect

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Literal, TypeAlias, TypeVar, cast

import attrs

from oqron_core.exceptions import TimedOutError, UnavailableError
from oqron_core.planes import (
    BoundDurablePlane,
    Broker,
    Cache,
    Capabilities,
    Counters,
    DurablePlane,
    Health,
    HotPlane,
    LiveRuns,
    Locks,
    Page,
    Query,
    Record,
    Scope,
    Signals,
    Write,
    WriteResult,
)


__all__ = ["Call", "Crash", "Faults", "FaultyDurable", "FaultyHot", "Pause", "When"]

When: TypeAlias = Literal["before", "after"]
_T = TypeVar("_T")


class Crash(BaseException):
    """The process died here. No `except Exception` sees it."""


@attrs.frozen
class Call:
    """
    One call of a plane.

    Attributes:
        name: Such as ``hot.broker.claim`` or ``durable.write``.
        nth: Which call of this name it was, from 1.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
    """

    name: str
    nth: int
    args: tuple[Any, ...] = attrs.field(repr=False)
    kwargs: dict[str, Any] = attrs.field(repr=False)


class Pause:
    """
    A call that is held up.

    Attributes:
        reached: Set when the call has arrived.
    """

    def __init__(self) -> None:
        self.reached: asyncio.Event = asyncio.Event()
        self._go = asyncio.Event()

    def release(self) -> None:
        """Let the call go on."""
        self._go.set()

    async def hold(self) -> None:
        """Wait for the release."""
        self.reached.set()
        await self._go.wait()


@attrs.define
class _Rule:
    match: str
    nth: int
    times: int | None
    when: When
    error: BaseException | None
    pause: Pause | None = None
    seen: int = 0

    def hit(self, name: str) -> bool:
        if not fnmatch.fnmatchcase(name, self.match):
            return False
        self.seen += 1
        last = self.nth + self.times - 1 if self.times is not None else self.seen
        return self.nth <= self.seen <= last


class Faults:
    """
    What the planes of one storage are to suffer; give it to `open_storage`.

    .. code-block:: python

        faults = Faults()
        faults.fail("durable.write", when="after")  # done, but the answer is lost
        async with open_storage(
            wrap_hot=faults.wrap_hot, wrap_durable=faults.wrap_durable
        ) as storage: ...

    Calls are named ``hot.<facet>.<method>``, ``hot.<method>`` and
    ``durable.<method>``; a rule matches them by a shell pattern.

    Attributes:
        calls: Every call that was begun, in order.
        dead: Whether the process has crashed: every further call raises `Crash`.
        died: Set when it has.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.dead: bool = False
        self.died: asyncio.Event = asyncio.Event()
        self._rules: list[_Rule] = []
        self._counts: dict[str, int] = {}

    # --- what is to happen ----------------------------------------------------------

    def fail(
        self,
        match: str,
        *,
        nth: int = 1,
        times: int | None = 1,
        when: When = "before",
        error: BaseException | None = None,
    ) -> None:
        """
        Fail calls.

        Args:
            match: Which calls, as a shell pattern such as ``durable.*``.
            nth: From which of them on, counted from now.
            times: How many; None for all that follow.
            when: ``before`` the call is made, so that nothing happens; or
                ``after`` it was done, so that only the answer is lost.
            error: What is raised. By default `UnavailableError` before and
                `TimedOutError` after.
        """
        if error is None:
            error = (
                UnavailableError("a fault of the test: no connection")
                if when == "before"
                else TimedOutError("a fault of the test: the answer was lost")
            )
        self._rules.append(_Rule(match, nth, times, when, error))

    def crash(self, match: str, *, nth: int = 1, when: When = "before") -> None:
        """Let the process die before or after a call; see `fail`."""
        self.fail(match, nth=nth, when=when, error=Crash(f"{when} {match} #{nth}"))

    def pause(self, match: str, *, nth: int = 1, when: When = "before") -> Pause:
        """Hold one call up until its `Pause` is released."""
        pause = Pause()
        self._rules.append(_Rule(match, nth, 1, when, None, pause))
        return pause

    def down(self, match: str) -> None:
        """Let every matching call fail until `heal`."""
        self.fail(match, times=None)

    def heal(self) -> None:
        """Forget every rule; the calls stay recorded."""
        self._rules.clear()

    def reset(self) -> None:
        """Forget every rule and every call."""
        self.heal()
        self.calls.clear()
        self._counts.clear()

    # --- what has happened -----------------------------------------------------------

    def names(self, match: str = "*") -> list[str]:
        """Name the calls so far, in order."""
        return [call.name for call in self.calls if fnmatch.fnmatchcase(call.name, match)]

    # --- the proxies --------------------------------------------------------------------

    def wrap_hot(self, plane: HotPlane) -> HotPlane:
        """Put a proxy around a hot plane."""
        return FaultyHot(plane, self)

    def wrap_durable(self, plane: DurablePlane) -> DurablePlane:
        """Put a proxy around a durable plane."""
        return FaultyDurable(plane, self)

    async def call(
        self,
        name: str,
        method: Callable[..., Awaitable[_T]],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> _T:
        """Make one call, and let it suffer what the rules say."""
        kwargs = kwargs or {}
        self._check_alive()
        nth = self._counts[name] = self._counts.get(name, 0) + 1
        self.calls.append(Call(name, nth, args, kwargs))
        hits = [rule for rule in self._rules if rule.hit(name)]
        await self._suffer(hits, "before")
        result = await method(*args, **kwargs)
        # Whoever waited while the process died gets no answer either.
        self._check_alive()
        await self._suffer(hits, "after")
        return result

    def _check_alive(self) -> None:
        if self.dead:
            raise Crash("the process is dead")

    async def _suffer(self, hits: Sequence[_Rule], when: When) -> None:
        for rule in hits:
            if rule.when != when:
                continue
            if rule.pause is not None:
                await rule.pause.hold()
                self._check_alive()
            if rule.error is not None:
                if isinstance(rule.error, Crash):
                    self.dead = True
                    self.died.set()
                raise rule.error


def _forward(name: str) -> Callable[..., Any]:
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        method = getattr(self._inner, name)
        return await self._faults.call(f"{self._prefix}.{name}", method, args, kwargs)

    call.__name__ = name
    return call


@functools.cache
def _faulty(kind: type) -> Any:
    # Made once: a class costs more than all that most tests do with it.
    body: dict[str, Any] = {"__module__": __name__}
    for name in dir(kind):
        if not name.startswith("_") and inspect.iscoroutinefunction(getattr(kind, name)):
            body[name] = _forward(name)
    if kind is Signals:
        body["subscribe"] = _subscribe
    meta: Any = type(kind)
    return meta(f"Faulty{kind.__name__}", (kind,), body)


def _facet(kind: type[_T], inner: _T, prefix: str, faults: Faults) -> _T:
    """Make a proxy of a facet: every coroutine method of the ABC goes through."""
    proxy = _faulty(cast("Any", kind))()
    proxy._inner = inner
    proxy._prefix = prefix
    proxy._faults = faults
    return cast("_T", proxy)


class _Subscription:
    def __init__(self, owner: Any, inner: AbstractAsyncContextManager[Any]) -> None:
        self._owner = owner
        self._inner = inner

    async def __aenter__(self) -> Any:
        name = f"{self._owner._prefix}.subscribe"
        return await self._owner._faults.call(name, self._inner.__aenter__)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, traceback)


def _subscribe(self: Any, channels: Sequence[str]) -> _Subscription:
    return _Subscription(self, self._inner.subscribe(channels))


class FaultyHot(HotPlane):
    """A hot plane that suffers what its `Faults` say."""

    def __init__(self, inner: HotPlane, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults
        self.broker: Broker = _facet(Broker, inner.broker, "hot.broker", faults)  # type: ignore[type-abstract]
        self.locks: Locks = _facet(Locks, inner.locks, "hot.locks", faults)  # type: ignore[type-abstract]
        self.counters: Counters = _facet(Counters, inner.counters, "hot.counters", faults)  # type: ignore[type-abstract]
        self.cache: Cache = _facet(Cache, inner.cache, "hot.cache", faults)  # type: ignore[type-abstract]
        self.live: LiveRuns = _facet(LiveRuns, inner.live, "hot.live", faults)  # type: ignore[type-abstract]
        self.signals: Signals = _facet(Signals, inner.signals, "hot.signals", faults)  # type: ignore[type-abstract]

    @property
    def scope(self) -> Scope:
        """The scope of the plane behind."""
        return self._inner.scope

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the plane behind."""
        return self._inner.capabilities

    async def now(self) -> int:
        """Read the clock of the plane behind."""
        return await self._faults.call("hot.now", self._inner.now)

    async def check(self) -> Health:
        """Look after the plane behind."""
        return await self._faults.call("hot.check", self._inner.check)


class FaultyDurable(DurablePlane):
    """A durable plane that suffers what its `Faults` say."""

    def __init__(self, inner: DurablePlane, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    @property
    def scope(self) -> Scope:
        """The scope of the plane behind."""
        return self._inner.scope

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the plane behind."""
        return self._inner.capabilities

    async def get(self, namespace: str, ids: Sequence[str]) -> Sequence[Record | None]:
        """Read records."""
        return await self._faults.call("durable.get", self._inner.get, (namespace, ids))

    async def write(
        self,
        writes: Sequence[Write],
        *,
        atomic: bool = False,
        returning: Sequence[str] | None = None,
    ) -> Sequence[WriteResult]:
        """Write a batch."""
        options = {"atomic": atomic, "returning": returning}
        return await self._faults.call("durable.write", self._inner.write, (writes,), options)

    async def query(self, query: Query) -> Page[Record]:
        """Read a page."""
        return await self._faults.call("durable.query", self._inner.query, (query,))

    async def count(self, query: Query, *, by: str | None = None) -> Any:
        """Count records."""
        return await self._faults.call("durable.count", self._inner.count, (query,), {"by": by})

    async def prune(self, query: Query, *, limit: int = 1000) -> int:
        """Delete records."""
        options = {"limit": limit}
        return await self._faults.call("durable.prune", self._inner.prune, (query,), options)

    async def prunable(self, query: Query) -> tuple[int, int]:
        """Say what a prune would delete."""
        return await self._faults.call("durable.prunable", self._inner.prunable, (query,))

    async def now(self) -> int:
        """Read the clock of the plane behind."""
        return await self._faults.call("durable.now", self._inner.now)

    async def check(self) -> Health:
        """Look after the plane behind."""
        return await self._faults.call("durable.check", self._inner.check)

    def bind(self, transaction: Any) -> BoundDurablePlane:
        """Write inside the caller's transaction, with the same faults."""
        return _FaultyBound(self._inner.bind(transaction), self._faults)


class _FaultyBound(FaultyDurable, BoundDurablePlane):
    """The same inside a caller's transaction."""

    _inner: BoundDurablePlane

    async def after_commit(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Forward; what follows a commit is made of calls of its own."""
        await self._inner.after_commit(callback)
