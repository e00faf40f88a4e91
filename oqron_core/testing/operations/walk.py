"""
The walk: an operation that dies, or is not answered, at each call that it makes.

A `Case` says how to set an operation up and how to call it; what must hold is the
same for all. The operation is run once to learn which plane calls it makes, and then
once for each of them with one thing going wrong there. Whoever called it calls it
again; a fresh storage repairs, lets leases lapse, and works off what there is. What
the scope has come to then must be what it comes to where nothing goes wrong: as if the
operation had been called once, or not at all where nobody was told and nobody could
call it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

import attrs

from oqron_core.exceptions import UnavailableError
from oqron_core.protocol.claims import Claim
from oqron_core.storage import Storage
from oqron_core.testing.crashpoints import CrashPoint, World
from oqron_core.testing.faults import Crash, Faults
from oqron_core.testing.operations.state import (
    LEASE,
    State,
    busy,
    check_books,
    check_known,
    check_runs,
    handed_of,
    records_of,
    take,
)


__all__ = ["Case", "Walk"]

_ENDS: Final = ("die before", "die after", "refuse", "lose the answer")
_LOCKS_LAST: Final = 100.0
"""Seconds after which whatever a process holds by itself has lapsed."""
_MARKERS: Final = "oqron:tag:"
"""Markers of tags are leases that live as long as what they mark."""

Step = Callable[[Storage, Any], Awaitable[Any]]


async def _nothing(storage: Storage, given: Any) -> None:
    del storage, given


def _none_held(given: Any, answer: Any) -> Sequence[Claim]:
    del given, answer
    return ()


@attrs.frozen(kw_only=True)
class Case:
    """
    One operation, and how it is called.

    Attributes:
        name: What it is called.
        covers: The public methods it is about, such as ``topics.publish``.
        act: Calls it.
        prepare: What happens before, without faults; its answer goes to *act*.
        again: Who calls it again where there was no answer: ``anywhere`` it can be
            called, as another process would after a death; ``here`` alone, with
            what this process holds; or ``never``, as it asks for something new.
        twice: Whether its contract lets a repeated call count twice.
        patient: Whether it is called again only when leases have lapsed.
        loose: Fields of records that may differ by how often it was tried.
        view: What is looked at besides the records, at the end.
        holds: What must hold at once where it was acknowledged, for everybody.
        held: Which claims nobody else may be handed before their leases lapse.
        passes: After how many passes of maintenance it must be whole.
        sample: Try only so many points, where they are many and much alike.
    """

    name: str
    covers: tuple[str, ...]
    act: Step
    prepare: Step = _nothing
    again: Literal["anywhere", "here", "never"] = "anywhere"
    twice: bool = False
    patient: bool = False
    loose: tuple[str, ...] = ()
    view: Callable[[Storage], Awaitable[Any]] | None = None
    holds: Callable[[Storage], Awaitable[None]] | None = None
    held: Callable[[Any, Any], Sequence[Claim]] = _none_held
    passes: int = 1
    sample: int | None = None


@attrs.define
class _Life:
    """One scope, and every storage that was opened over it."""

    world: World
    manual: bool
    faults: list[Faults] = attrs.Factory(list)
    locks: set[str] = attrs.Factory(set)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[Storage, Faults]]:
        """Open a storage that may die: closing it then is nobody's concern."""
        faults = Faults()
        self.faults.append(faults)
        opened = self.world.open(faults)
        storage = await opened.__aenter__()
        try:
            yield storage, faults
        finally:
            self.note_locks()
            try:
                await opened.__aexit__(None, None, None)
            except (Crash, Exception):
                if not faults.dead:
                    raise

    def note_locks(self) -> None:
        """Remember what was locked; calls that are recorded may be forgotten then."""
        for faults in self.faults:
            for call in faults.calls:
                if call.name == "hot.locks.acquire":
                    self.locks.add(call.args[0])

    async def lapse(self, storage: Storage) -> None:
        """
        Let every lock lapse that a process holds by itself.

        Where time is real they are taken away, after a look at how long they last.
        """
        self.note_locks()
        if self.manual:
            await self.world.elapse(_LOCKS_LAST)
            return
        for key, lease in await self._held(storage):
            left = (lease.expires_at - await storage.hot.now()) / 1000
            assert left < _LOCKS_LAST, f"{key} is locked for {left:g} seconds"
            await storage.hot.locks.release(lease)

    async def check_locks(self, storage: Storage) -> None:
        """Check that nothing is locked any more."""
        self.note_locks()
        left = [key for key, _ in await self._held(storage)]
        assert not left, f"locked for ever: {left}"

    async def _held(self, storage: Storage) -> list[tuple[str, Any]]:
        found = []
        for key in sorted(self.locks):
            lease = None if key.startswith(_MARKERS) else await storage.hot.locks.holder(key)
            if lease is not None:
                found.append((key, lease))
        return found


@attrs.define
class Walk:
    """
    Tries every point of a case.

    Attributes:
        world: Makes a fresh, empty world.
        manual: Whether time passes only where it is told to.
        parallel: How many points are tried at the same time; 1 where they share
            a clock.
        sample: How many points of a case are tried at most; None for all.
        seed: Which ones.
        patience: Seconds after which a step counts as hanging.
    """

    world: Callable[[], World]
    manual: bool = False
    parallel: int = 1
    sample: int | None = None
    seed: str = "0"
    patience: float = 60.0

    async def explore(self, case: Case) -> int:
        """
        Try every point of a case.

        Returns:
            How many points were tried.

        Raises:
            AssertionError: An invariant does not hold; names the points.
        """
        points, once = await self._learn(case)
        wanted = [once]
        if case.twice or (case.again == "anywhere" and self.sample is None):
            wanted.append(await self._reference(case, times=2))
        if not case.twice and len(wanted) > 1:
            changed = wanted.pop().differs(once)
            assert not changed, f"{case.name}: called twice, {changed}"
        none = None if case.again == "anywhere" else await self._reference(case, times=0)
        gate = asyncio.Semaphore(self.parallel)

        async def one(number: int, point: CrashPoint) -> str | None:
            async with gate:
                try:
                    async with asyncio.timeout(self.patience):
                        await self._try(case, point, number, wanted, none)
                except TimeoutError:
                    return f"{point}: hangs"
                except (AssertionError, Crash) as error:
                    return f"{point}: {error}"
                except Exception as error:  # noqa: BLE001 - called again, nothing may be raised
                    return f"{point}: {type(error).__name__}: {error}"
            return None

        tried = self._sampled(case, points)
        broken = [b for b in await asyncio.gather(*[one(i, p) for i, p in tried]) if b]
        assert not broken, f"{len(broken)} of {len(tried)} points:\n" + "\n".join(broken)
        return len(tried)

    def _sampled(
        self, case: Case, points: list[tuple[int, CrashPoint]]
    ) -> list[tuple[int, CrashPoint]]:
        sizes = [size for size in (self.sample, case.sample) if size is not None]
        if not sizes or min(sizes) >= len(points):
            return points
        return random.Random(f"{self.seed}-{case.name}").sample(points, min(sizes))

    # --- where nothing goes wrong ---------------------------------------------------------

    async def _learn(self, case: Case) -> tuple[list[tuple[int, CrashPoint]], State]:
        """Give the points of a case, each with a number, and what it comes to."""
        life = self._life()
        async with life.open() as (storage, faults):
            given = await _ready(case, life, storage, faults)
            answer = await case.act(storage, given)
            calls = [(call.name, call.nth) for call in faults.calls]
        once = await self._finish(life, case, case.held(given, answer))
        # Neighbours differ in whether their number is odd, by call and by end.
        points = [
            (at + number, CrashPoint(case.name, name, nth, end))
            for at, (name, nth) in enumerate(calls)
            for number, end in enumerate(_ENDS)
        ]
        return points, once

    async def _reference(self, case: Case, *, times: int) -> State:
        """Run a case without faults so many times, and give what it comes to."""
        life = self._life()
        held: Sequence[Claim] = ()
        async with life.open() as (storage, faults):
            given = await _ready(case, life, storage, faults)
            for _ in range(times):
                held = case.held(given, await case.act(storage, given))
        return await self._finish(life, case, held)

    def _life(self) -> _Life:
        return _Life(self.world(), self.manual)

    # --- where something does ---------------------------------------------------------------

    async def _try(
        self,
        case: Case,
        point: CrashPoint,
        number: int,
        wanted: Sequence[State],
        none: State | None,
    ) -> None:
        """Let one thing go wrong, call again, repair, and compare."""
        life = self._life()
        held: Sequence[Claim] = ()
        async with life.open() as (storage, faults):
            given = await _ready(case, life, storage, faults)
            _arm(faults, point)
            told, answer = await _call(case, storage, given, faults)
            faults.heal()
            if told:
                held = case.held(given, answer)
            elif not faults.dead and case.again != "never":
                if case.patient:
                    await life.lapse(storage)
                await case.act(storage, given)
                told = True
                answer = point
            died = faults.dead
        if told:
            await self._look(life, case)
        elif died and case.again == "anywhere":
            await self._again(life, case, given, mended=number % 2 == 1)
            answer = point
            told = True
        state = await self._finish(life, case, held)
        allowed = [wanted[0]] if told else [s for s in (none, wanted[0]) if s is not None]
        if case.twice and answer is point:
            allowed = [*wanted]
        differences = [state.differs(other) for other in allowed]
        assert "" in differences, min(differences, key=len)

    async def _look(self, life: _Life, case: Case) -> None:
        """See that what was acknowledged holds at once, for everybody."""
        if case.holds is not None:
            async with life.open() as (other, _):
                await case.holds(other)

    async def _again(self, life: _Life, case: Case, given: Any, *, mended: bool) -> None:
        """Call it again as another process would, before any repair or after it."""
        async with life.open() as (other, _):
            if mended:
                await other.maintenance.run_once()
            if case.patient:
                await life.lapse(other)
            await case.act(other, given)
            if case.holds is not None:
                await case.holds(other)

    # --- the end ------------------------------------------------------------------------------

    async def _finish(self, life: _Life, case: Case, held: Sequence[Claim]) -> State:
        """Let a fresh storage repair, work off what there is, and say what it came to."""
        async with life.open() as (storage, _):
            for _ in range(case.passes):
                await storage.maintenance.run_once()
            await check_known(storage)
            first = await take(storage)
            # On a busy machine a real lease may have lapsed by itself meanwhile.
            now = await storage.hot.now()
            alive = {(c.lease.queue, c.id) for c in held if c.lease.expires_at > now}
            twice = alive & {(claim.lease.queue, claim.id) for claim in first}
            assert not twice, f"{twice} run twice without a lapse"
            if not self.manual and await busy(storage):
                await life.world.elapse(LEASE + 0.3)
            await life.lapse(storage)
            await storage.maintenance.run_once()
            second = await take(storage)
            view = None if case.view is None else await case.view(storage)
            records = await records_of(storage, case.loose)
            third = await self._resume(storage)
            await check_books(storage)
            await check_runs(storage)
            await life.check_locks(storage)
        return State(records, handed_of([*first, *second]), handed_of(third), view)

    async def _resume(self, storage: Storage) -> list[Claim]:
        """End every pause, and work off what had waited."""
        paused = await storage.controls.query(paused=True, limit=1000)
        for pause in paused:
            await storage.controls.resume(pause.namespace, pause.name)
        if not paused.items:
            return []
        await storage.maintenance.run_once()
        return await take(storage)


async def _ready(case: Case, life: _Life, storage: Storage, faults: Faults) -> Any:
    given = await case.prepare(storage, None)
    await storage.runs.flush()
    life.note_locks()
    faults.reset()
    return given


def _arm(faults: Faults, point: CrashPoint) -> None:
    match point.end:
        case "die before":
            faults.crash(point.call, nth=point.nth)
        case "die after":
            faults.crash(point.call, nth=point.nth, when="after")
        case "refuse":
            faults.fail(point.call, nth=point.nth)
        case _:
            faults.fail(point.call, nth=point.nth, when="after")


async def _call(case: Case, storage: Storage, given: Any, faults: Faults) -> tuple[bool, Any]:
    """
    Call it, to its end or to the death of its process.

    Returns:
        Whether it was acknowledged, and its answer.
    """
    task = asyncio.ensure_future(case.act(storage, given))
    death = asyncio.ensure_future(faults.died.wait())
    await asyncio.wait({task, death}, return_when=asyncio.FIRST_COMPLETED)
    death.cancel()
    if not task.done():
        # Whoever waits for a dead flush would wait for ever.
        task.cancel()
    # One call that was refused or not answered is nothing but unavailable.
    with contextlib.suppress(Crash, UnavailableError, asyncio.CancelledError):
        return True, await task
    return False, None
