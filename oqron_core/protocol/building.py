"""One builder per key: among the tasks of a process, and among the processes."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import attrs

from oqron_core.exceptions import ClosedError, StorageError
from oqron_core.protocol.entries import BUILD, Entries
from oqron_core.protocol.holding import Ear, HeldLease, Holding
from oqron_core.protocol.session import Session


__all__ = ["Building", "Plan"]

log: logging.Logger = logging.getLogger("oqron.cache")

_LOOK_AGAIN: Final = 1.0
"""Seconds after which a waiter looks again by itself: what a lost signal costs."""
_REFRESH_LEAST: Final = 60.0


@attrs.frozen
class Plan:
    """
    What to build, and how it is kept.

    Attributes:
        key: The caller's key.
        builder: Makes the value; a coroutine function, or a function that is run
            in a thread.
        ttl: Seconds that the value is fresh; None for ever.
        stale_for: Seconds after that in which it may be served while it is built
            anew.
        tags: What invalidates it.
        negative_ttl: Instead of *ttl* where the value is None.
        lease_for: Seconds after which a builder that died is replaced.
    """

    key: str
    builder: Callable[[], Any]
    ttl: float | None
    stale_for: float
    tags: Sequence[str]
    negative_ttl: float | None
    lease_for: float


@attrs.define(eq=False)
class _Flight:
    """A build, or the wait for somebody else's, that any number of tasks joined."""

    tags: frozenset[str]
    task: asyncio.Task[Any] | None = None
    waiting: int = 0


class Building:
    """Builds what is missing, once."""

    def __init__(self, session: Session, entries: Entries) -> None:
        self._session = session
        self._entries = entries
        self._holding = Holding(session)
        self._flights: dict[str, _Flight] = {}
        self._refreshes: set[str] = set()

    # --- among tasks ---

    def building(self, key: str) -> bool:
        """Whether a call for *key* would join one that is under way here."""
        return key in self._flights

    async def build(self, plan: Plan) -> Any:
        """
        Give the value: built here, or by whoever does so already.

        Where all who wait are cancelled, so is the builder: nobody would get what
        it makes, and it would keep the others waiting.

        Raises:
            Exception: What the builder raised; nothing is cached then.
            UnavailableError: The hot plane did not answer.
        """
        flight = self._flights.get(plan.key)
        if flight is None:
            flight = self._flights[plan.key] = _Flight(frozenset(plan.tags))
            flight.task = self._session.spawn(self._fly(plan, flight), name="oqron-build")
        task = flight.task
        assert task is not None  # noqa: S101 - set above, or by who made the flight
        flight.waiting += 1
        try:
            return await self._joined(task)
        finally:
            flight.waiting -= 1
            if flight.waiting == 0 and not task.done():
                self._land(plan.key, flight)
                task.cancel()

    async def _joined(self, task: asyncio.Task[Any]) -> Any:
        # Not the task itself: a waiter that is cancelled must not end it.
        await asyncio.wait([task])
        if task.cancelled():
            self._session.check_open()
        return task.result()

    async def _fly(self, plan: Plan, flight: _Flight) -> Any:
        try:
            return await self._build_or_wait(plan)
        finally:
            self._land(plan.key, flight)

    def _land(self, key: str, flight: _Flight) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    def leave(self, keys: Iterable[str] = (), tags: Iterable[str] = ()) -> None:
        """Let nobody join a build any more that began before an invalidation."""
        for key in keys:
            self._flights.pop(key, None)
        gone = frozenset(tags)
        for key, flight in list(self._flights.items()) if gone else ():
            if gone & flight.tags:
                del self._flights[key]

    def refresh(self, plan: Plan) -> None:
        """Build anew in the background, unless somebody does so already."""
        if plan.key in self._refreshes or plan.key in self._flights:
            return
        self._refreshes.add(plan.key)
        task = self._session.spawn(self._refresh(plan), name="oqron-refresh")
        task.add_done_callback(lambda _: self._refreshes.discard(plan.key))

    async def _refresh(self, plan: Plan) -> None:
        try:
            held = await self._take(plan)
            if held is not None:
                # Nobody waits for it, so nobody would ever cancel it.
                async with asyncio.timeout(max(_REFRESH_LEAST, plan.stale_for)):
                    await self._build_held(plan, held)
        except Exception as error:  # noqa: BLE001 - the stale value stands; the next call tries again
            log.warning("refreshing a cache entry failed: %s", type(error).__name__)

    # --- among processes ---

    async def _build_or_wait(self, plan: Plan) -> Any:
        held = await self._take(plan)
        if held is not None:
            return await self._build_held(plan, held)
        async with (
            self._session.hot.signals.subscribe([BUILD + plan.key]) as signals,
            Ear(signals) as ear,
        ):
            while True:
                # Asked only now that we listen, so no signal falls in between.
                held = await self._take(plan)
                if held is not None:
                    return await self._build_held(plan, held)
                lapse = await self._holding.lapse_of(BUILD + plan.key)
                await ear.hear(min(_LOOK_AGAIN, max(0.002, lapse)))
                [entry] = await self._entries.read([plan.key])
                if entry is not None and entry.fresh:
                    return entry.value

    async def _take(self, plan: Plan) -> HeldLease | None:
        return await self._holding.take(
            BUILD + plan.key, plan.key, "build", lease_for=plan.lease_for
        )

    async def _build_held(self, plan: Plan, held: HeldLease) -> Any:
        """Build under the lock, which is given back in any case."""
        keeper = self._holding.keep(held)
        wrote = False
        try:
            [entry] = await self._entries.read([plan.key])
            if entry is not None and entry.fresh:
                # The builder before us was done while we asked.
                return entry.value
            if entry is not None and not entry.valid:
                # Out of the way, as a fill takes a place only where it is free.
                await self._entries.delete([plan.key])
            versions = await self._entries.mark(plan.tags, _lasts(plan)) if plan.tags else {}
            value = await _call(plan.builder)
            wrote = await self._fill(
                plan, held, value, versions, replace=entry is not None and entry.valid
            )
            return value
        finally:
            keeper.cancel()
            await self._end(plan, held, wrote=wrote)

    async def _fill(
        self,
        plan: Plan,
        held: HeldLease,
        value: Any,
        versions: dict[str, int],
        *,
        replace: bool,
    ) -> bool:
        """Store what was built, if the right to do so was not taken away."""
        ttl, stale_for = plan.ttl, plan.stale_for
        if value is None and plan.negative_ttl is not None:
            ttl, stale_for = plan.negative_ttl, 0.0
        entry = await self._entries.encode(
            value, "value", ttl=ttl, stale_for=stale_for, versions=versions
        )
        if held.lost:
            return False
        lasts = None if ttl is None else ttl + stale_for
        try:
            if replace:
                await self._entries.write({plan.key: entry}, ttl=lasts)
                return True
            # Whoever has set the key meanwhile knows better.
            return await self._entries.add(plan.key, entry, ttl=lasts)
        except StorageError as error:
            # The value is there, so the callers have it; it may even be stored.
            log.debug("a cache entry was not stored: %s", error)
            return True

    async def _end(self, plan: Plan, held: HeldLease, *, wrote: bool) -> None:
        still_ours = await self._holding.give_back(held, BUILD + plan.key)
        if wrote and not still_ours:
            # Invalidated between our last look and the writing: what was made from
            # older data does not stay.
            with contextlib.suppress(StorageError, ClosedError):
                await self._entries.delete([plan.key])


def _lasts(plan: Plan) -> float | None:
    if plan.ttl is None:
        return None
    return max(plan.ttl + plan.stale_for, plan.negative_ttl or 0.0)


async def _call(builder: Callable[[], Any]) -> Any:
    """Call a builder; one that does not await is kept off the loop."""
    if inspect.iscoroutinefunction(builder):
        return await builder()
    value = await asyncio.to_thread(builder)
    return await value if inspect.isawaitable(value) else value
