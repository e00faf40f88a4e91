"""Held under a lease: taking, waiting without polling, renewing, giving back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from oqron_core.exceptions import ClosedError, LeaseLostError, StorageError
from oqron_core.planes.values import Lease, Signal
from oqron_core.protocol.session import Session


__all__ = ["Ear", "HeldLease", "Hold", "Holding"]

log: logging.Logger = logging.getLogger("oqron.locks")

T = TypeVar("T")

_LOST_SIGNAL: Final = 5.0
"""Seconds after which a waiter looks again by itself: what a lost signal costs."""
_SHORTEST_PAUSE: Final = 0.002
_RETRY: Final = 0.2


class HeldLease:
    """
    Something that is held here: a lock, a lead or a slot.

    Attributes:
        key: The key, as the caller named it.
        owner: The name of this storage, as others see it.
        token: The fencing token: larger than that of every holder before. Send it
            along with what you write elsewhere, and refuse smaller ones there.
        lease_for: Seconds that each renewal lasts.
    """

    __slots__ = (
        "_ended",
        "_given_back",
        "_lease",
        "_on_lost",
        "_reason",
        "_until",
        "_what",
        "key",
        "lease_for",
        "owner",
        "token",
    )

    def __init__(self, lease: Lease, key: str, what: str, lease_for: float, since: float) -> None:
        self.key: str = key
        self.owner: str = lease.owner
        self.token: int = lease.token
        self.lease_for: float = lease_for
        self._lease = lease
        self._what = what
        # Counted from before the call: the plane's own clock can only be later.
        self._until = since + lease_for
        self._reason: str | None = None
        self._ended = asyncio.Event()
        self._given_back = False
        self._on_lost: Callable[[], None] | None = None

    @property
    def term(self) -> int:
        """The token, by the word of leaders: each lead has a larger one."""
        return self.token

    @property
    def lost(self) -> bool:
        """Whether it is known to be lost. Never False again."""
        return self._reason is not None

    @property
    def left(self) -> float:
        """Seconds that are surely left, by the local clock; 0.0 where none are."""
        return 0.0 if self.lost else max(0.0, self._until - time.monotonic())

    def check(self) -> None:
        """
        Refuse to go on where the lease is lost, or may have lapsed unnoticed.

        Asks nobody: call it as often as you like, before each step that must not
        be done by two.

        Raises:
            LeaseLostError: It is not surely held any more.
        """
        if self._reason is None and self.left > 0:
            return
        raise self.error()

    async def wait_lost(self) -> str | None:
        """Return why it was lost, once it is; None once it is given back instead."""
        await self._ended.wait()
        return self._reason

    def error(self) -> LeaseLostError:
        """Make the error that says so."""
        reason = self._reason or "it was not renewed in time"
        return LeaseLostError(f"{self._what} {self.key!r}", self.token, reason)

    # --- for `Holding` ---

    @property
    def lease(self) -> Lease:
        """The lease as the plane gave it."""
        return self._lease

    @property
    def what(self) -> str:
        """What is held, for people: a lock, a lead, a slot."""
        return self._what

    @property
    def ended(self) -> bool:
        """Whether it is lost or given back."""
        return self._ended.is_set()

    @property
    def given_back(self) -> bool:
        """Whether `Holding.give_back` has had its answer."""
        return self._given_back

    def renewed(self, since: float, lease_for: float) -> None:
        """Count the lease anew from *since*, an instant of the local clock."""
        self._until = since + lease_for

    def end(self) -> None:
        """Stop watching: it is being given back."""
        self._on_lost = None
        self._ended.set()

    def settle(self) -> None:
        """Note that it was given back."""
        self._given_back = True

    def lose(self, reason: str) -> None:
        """Announce the loss; the first reason stands."""
        if self._reason is not None:
            return
        self._reason = reason
        self._ended.set()
        told, self._on_lost = self._on_lost, None
        if told is not None:
            told()

    def watch(self, told: Callable[[], None]) -> None:
        """Have *told* called at the loss, if it is not lost already."""
        self._on_lost = told

    def __repr__(self) -> str:
        state = "lost" if self.lost else "given back" if self.ended else "held"
        return f"<HeldLease {self._what} {self.key!r} token={self.token} {state}>"


class Ear:
    """Hears one subscription, one signal at a time, each wait with its own end."""

    def __init__(self, signals: AsyncIterator[Signal]) -> None:
        self._signals = signals
        self._next: asyncio.Task[Signal | None] | None = None
        self._over = False

    async def hear(self, timeout: float) -> Signal | None:
        """Give the next signal; None after *timeout* seconds, or at the end."""
        if self._over:
            await asyncio.sleep(timeout)
            return None
        if self._next is None:
            # One task for as many waits as it takes: an iterator need not survive
            # that its step is cancelled.
            self._next = asyncio.create_task(self._pull(), name="oqron-ear")
        done, _ = await asyncio.wait([self._next], timeout=timeout)
        if not done:
            return None
        task, self._next = self._next, None
        signal = task.result()
        self._over = signal is None
        return signal

    async def _pull(self) -> Signal | None:
        async for signal in self._signals:
            return signal
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait([self._next])


class Holding:
    """
    Holds things under leases of the hot plane's locks, one per storage or service.

    Every lease is taken with its expiry in one step, so whoever dies frees what
    was held after the lease at the latest.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}
        self._entered: dict[str, Hold] = {}

    # --- take ---

    async def take(self, place: str, key: str, what: str, *, lease_for: float) -> HeldLease | None:
        """
        Take *place* if nobody holds it; asks once.

        A caller that is cancelled meanwhile holds nothing: what was taken is given
        back.

        Args:
            place: The key of the plane's lock.
            key: The caller's key, for people.
            what: What it is, for people.
            lease_for: Seconds.

        Raises:
            UnavailableError: No answer; what may have been taken lapses.
        """
        since = time.monotonic()
        session = self._session
        call = session.hot.locks.acquire(place, owner=session.worker, lease_for=lease_for)
        lease = await session.to_the_end(
            _awaited(call), name="oqron-take", unclaimed=self._return_unclaimed
        )
        return None if lease is None else HeldLease(lease, key, what, lease_for, since)

    def _return_unclaimed(self, lease: Lease | None) -> None:
        if lease is not None:
            self._session.spawn(self._release(lease, None), name="oqron-release")

    async def wait_for(
        self,
        channel: str,
        attempt: Callable[[], Awaitable[HeldLease | None]],
        lapse: Callable[[], Awaitable[float]],
        *,
        wait: float | None,
    ) -> HeldLease | None:
        """
        Attempt until it succeeds, each time a signal or a lapse makes it likely.

        The waiters of one channel in this process take turns, so a crowd asks the
        plane as one.

        Args:
            channel: Where givers-back signal.
            attempt: Asks once.
            lapse: Says after how many seconds a lease would lapse.
            wait: Seconds to wait; 0 for not at all, None for as long as it takes.

        Raises:
            UnavailableError: The plane did not answer.
        """
        held = await attempt()
        if held is not None or wait == 0:
            return held
        deadline = math.inf if wait is None else time.monotonic() + wait
        async with self._turn(channel, deadline) as mine:
            if not mine:
                return None
            async with (
                self._session.hot.signals.subscribe([channel]) as signals,
                Ear(signals) as ear,
            ):
                while True:
                    # Asked only now that we listen, so no signal falls in between.
                    held = await attempt()
                    left = deadline - time.monotonic()
                    if held is not None or left <= 0:
                        return held
                    pause = max(_SHORTEST_PAUSE, await lapse())
                    await ear.hear(min(left, pause, _LOST_SIGNAL))

    @contextlib.asynccontextmanager
    async def _turn(self, channel: str, deadline: float) -> AsyncIterator[bool]:
        """Wait for those of this process that came before; False at the deadline."""
        lock, waiters = self._turns.get(channel, (asyncio.Lock(), 0))
        self._turns[channel] = (lock, waiters + 1)
        try:
            mine = await _locked(lock, deadline)
            try:
                yield mine
            finally:
                if mine:
                    lock.release()
        finally:
            lock, waiters = self._turns[channel]
            if waiters == 1:
                del self._turns[channel]
            else:
                self._turns[channel] = (lock, waiters - 1)

    # --- who holds here ---

    def enter(self, channel: str, hold: Hold) -> None:
        """Note the context that holds what *channel* tells of."""
        self._entered[channel] = hold

    def leave(self, channel: str, hold: Hold) -> None:
        """Forget it, unless another came after it."""
        if self._entered.get(channel) is hold:
            del self._entered[channel]

    def is_mine(self, channel: str) -> bool:
        """Whether a context of this very task holds it, so that waiting is in vain."""
        hold = self._entered.get(channel)
        return hold is not None and hold.holds(asyncio.current_task())

    async def lapse_of(self, place: str) -> float:
        """Say after how many seconds the lease of *place* lapses; 0.0 where free."""
        lease = await self._session.hot.locks.holder(place)
        if lease is None:
            return 0.0
        return max(0.0, (lease.expires_at - await self._session.hot_time.now() + 1) / 1000)

    # --- keep ---

    async def renew(self, held: HeldLease, *, lease_for: float | None = None) -> bool:
        """
        Let the lease last *lease_for* seconds from now; False, and lost, where not.

        Raises:
            UnavailableError: No answer; it may have been renewed.
        """
        if held.ended:
            return False
        lasts = held.lease_for if lease_for is None else lease_for
        since = time.monotonic()
        if not await self._session.hot.locks.renew(held.lease, lease_for=lasts):
            held.lose("it lapsed or was taken away")
            return False
        held.renewed(since, lasts)
        return True

    def keep(self, held: HeldLease) -> asyncio.Task[Any]:
        """Renew *held* in the background, at a third of the lease, until it ends."""
        return self._session.spawn(self._keep(held), name="oqron-renewal")

    async def _keep(self, held: HeldLease) -> None:
        every = held.lease_for / 3
        pause = every
        try:
            while not held.ended:
                await asyncio.sleep(pause)
                pause = await self._renewal(held, every)
        finally:
            if not held.ended:
                held.lose("the storage was closed")

    async def _renewal(self, held: HeldLease, every: float) -> float:
        """Renew once; gives the seconds until the next time."""
        try:
            async with asyncio.timeout(every):
                await self.renew(held)
        except (StorageError, TimeoutError) as error:
            # One lost answer costs nothing: there is a third of the lease, or two,
            # to try again. After that it may belong to somebody else.
            if held.left <= 0:
                held.lose("it could not be renewed in time")
            log.debug("renewing %s %r: %s", held.what, held.key, error)
            return min(every, _RETRY, max(_SHORTEST_PAUSE, held.left / 4))
        except ClosedError:
            held.lose("the storage was closed")
        return every

    # --- give back ---

    async def give_back(self, held: HeldLease, channel: str | None) -> bool:
        """
        Release *held*, and tell who waits on *channel*. May be repeated.

        Never fails for a plane that does not answer: the lease then lapses.

        Returns:
            False where it was lost before.
        """
        if held.given_back:
            return not held.lost
        held.end()
        try:
            released = await self._release(held.lease, channel)
        except asyncio.CancelledError:
            self._session.spawn(self._release(held.lease, channel), name="oqron-release")
            raise
        held.settle()
        if released is False:
            held.lose("it lapsed before it was given back")
        return not held.lost

    async def _release(self, lease: Lease, channel: str | None) -> bool | None:
        """Release; None where there was no answer."""
        hot = self._session.hot
        released: bool | None = None
        try:
            released = await hot.locks.release(lease)
            if released and channel is not None:
                await hot.signals.publish(channel, lease.token)
        except (StorageError, ClosedError) as error:
            log.debug("a lease will lapse, or its end goes untold: %s", error)
        return released


async def _awaited(call: Awaitable[T]) -> T:
    return await call


async def _locked(lock: asyncio.Lock, deadline: float) -> bool:
    if deadline == math.inf:
        return await lock.acquire()
    try:
        async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
            return await lock.acquire()
    except TimeoutError:
        return False


class Hold(AbstractAsyncContextManager[HeldLease]):
    """
    Holds while it is entered; a loss cancels the body and comes out as an error.

    As with `asyncio.timeout`, only the own cancellation becomes the error; one from
    elsewhere passes. Good for one ``async with``.
    """

    def __init__(
        self, holding: Holding, channel: str, acquire: Callable[[], Awaitable[HeldLease]]
    ) -> None:
        self._holding = holding
        self._channel = channel
        self._acquire = acquire
        self._used = False
        self._held: HeldLease | None = None
        self._keeper: asyncio.Task[Any] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._interrupted = False

    async def __aenter__(self) -> HeldLease:
        if self._used:
            msg = "this context manager was entered already; make a new one"
            raise RuntimeError(msg)
        self._used = True
        held = self._held = await self._acquire()
        task = self._task = asyncio.current_task()
        self._cancelling = 0 if task is None else task.cancelling()
        held.watch(self._interrupt)
        self._keeper = self._holding.keep(held)
        self._holding.enter(self._channel, self)
        return held

    def holds(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether it was entered by *task*, and is surely held still."""
        held = self._held
        return held is not None and self._task is task and not held.ended and held.left > 0

    def _interrupt(self) -> None:
        if self._task is not None:
            self._interrupted = self._task.cancel()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        held = self._held
        assert held is not None  # noqa: S101 - entered, as Python promises
        # From here on nothing cancels: the body is over.
        held.end()
        self._holding.leave(self._channel, self)
        if self._keeper is not None:
            self._keeper.cancel()
        ours = False
        if self._interrupted and self._task is not None:
            ours = self._task.uncancel() <= self._cancelling
        await self._holding.give_back(held, self._channel)
        cancelled = ours and kind is not None and issubclass(kind, asyncio.CancelledError)
        if held.lost and (error is None or cancelled):
            raise held.error() from error
