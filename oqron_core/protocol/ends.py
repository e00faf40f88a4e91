"""Ends of jobs: written, then acknowledged, with the runs that end with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from oqron_core._codec import Json
from oqron_core.exceptions import ConflictError, InvalidValueError, LeaseLostError
from oqron_core.planes.joined import JoinedPlanes
from oqron_core.planes.values import Delete, Insert, Lease, Write, WriteResult
from oqron_core.protocol.coalesce import Coalescer
from oqron_core.protocol.run_handle import RUNS, RunHandle
from oqron_core.protocol.transitions import DLQ


if TYPE_CHECKING:
    from oqron_core.protocol.session import Session


__all__ = ["Ends", "Settlement"]

_TOGETHER: Final = 16
"""So many jobs at most are completed in one atomic step: one refusal undoes all."""


class Settlement:
    """
    An end on its way to the planes.

    Attributes:
        write: The guarded write.
        lease: The lease that is acknowledged after it.
        run_id: The run of the attempt.
        run: The run that ends with it, and its output, where both may be written in
            one step; else None.
        error: Why it was refused; None where it was not.
        unsure: Whether it was tried before, and had no answer.
    """

    __slots__ = ("_end", "error", "lease", "run", "run_id", "unsure", "write")

    def __init__(
        self,
        write: Write,
        lease: Lease,
        run_id: str,
        end: Callable[[WriteResult], LeaseLostError | None],
        run: tuple[RunHandle, Json] | None = None,
        *,
        unsure: bool = False,
    ) -> None:
        self.write: Write = write
        self.lease: Lease = lease
        self.run_id: str = run_id
        self.run: tuple[RunHandle, Json] | None = run
        self.error: LeaseLostError | None = None
        self.unsure: bool = unsure
        self._end = end

    def answered(self, result: WriteResult) -> None:
        """Take the plane's answer: whatever ends with the job ends now."""
        self.error = self._end(result)

    def may_be_done(self, result: WriteResult) -> bool:
        """Whether a try without an answer may have ended the job, which then went at once."""
        return (
            self.unsure
            and not result.applied
            and isinstance(self.write, Delete)
            and result.record is None
        )


class Ends:
    """Writes the ends of jobs and acknowledges their leases."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._flushes: Coalescer[Settlement, bool] = Coalescer(self._write, then=self._acknowledge)

    async def settle(self, settlement: Settlement) -> None:
        """
        Write the end of a job, then acknowledge its lease if it was applied.

        Both in flushes shared with whoever settles at the same time. What follows
        the answer here is done also where the caller is gone by then.

        Raises:
            LeaseLostError: What the settlement made of the answer.
        """
        await self._flushes.submit(settlement)
        if settlement.error is not None:
            raise settlement.error

    async def settle_many(self, settlements: Sequence[Settlement]) -> None:
        """Do the same with many that are one batch; their errors are left on them."""
        await self._acknowledge(settlements, await self._write(settlements))

    async def drain(self) -> None:
        """Return when everything settled so far has been answered."""
        await self._flushes.drain()

    async def close(self) -> None:
        """Stop at once."""
        await self._flushes.close()

    async def _write(self, items: Sequence[Settlement]) -> Sequence[bool]:
        """
        Write ends; of a few, together with their runs in one atomic step.

        So a process that dies right after a job was completed leaves its run behind.
        What is many, or refused, is written in a batch of guarded writes, and the runs
        follow. Where both planes are one store, what is applied is acknowledged with it.

        Gives for each whether its lease is acknowledged.
        """
        with self._session.recorder.busy():
            return await self._write_ends(items)

    async def _write_ends(self, items: Sequence[Settlement]) -> Sequence[bool]:
        session = self._session
        queue = items[0].lease.queue
        joined = session.joined
        if any(item.lease.queue != queue for item in items):
            joined = None
        runs = [item.run for item in items if item.run is not None]
        if len(runs) == len(items) <= _TOGETHER and session.atomic:
            done = await self._write_whole(joined, queue, items, runs)
            if done is not None:
                for item in items:
                    item.answered(WriteResult(applied=True))
                return done
        done = [False] * len(items)
        writes = [item.write for item in items]
        leases = [item.lease for item in items]

        async def write() -> Sequence[WriteResult]:
            nonlocal done
            if joined is None:
                return await session.durable.write(writes, returning=())
            settled = await joined.settle(queue, writes, leases)
            done = [*settled.acknowledged]
            return settled.results

        async def unanswered() -> None:
            for item in items:
                item.unsure = True

        results = await session.write_patiently(writes, write, unanswered, gone_is_done=False)
        await self._own_up(items, results)
        for item, result in zip(items, results, strict=True):
            item.answered(result)
        return done

    async def _own_up(self, items: Sequence[Settlement], results: Sequence[WriteResult]) -> None:
        """
        Find out which jobs that are gone were ended here, by a try without an answer.

        Whoever else ended one left something behind: a dead letter, or the run of this
        attempt, closed as lost or cancelled.
        """
        durable = self._session.durable
        by_queue: dict[str, list[tuple[Settlement, WriteResult]]] = {}
        for item, result in zip(items, results, strict=True):
            if item.may_be_done(result):
                by_queue.setdefault(item.lease.queue, []).append((item, result))
        for queue, doubtful in by_queue.items():
            letters = await durable.get(DLQ + queue, [item.write.id for item, _ in doubtful])
            runs = await durable.get(RUNS, [item.run_id for item, _ in doubtful])
            for (_, result), letter, run in zip(doubtful, letters, runs, strict=True):
                result.applied = letter is None and (
                    run is None or run.text("status") in {"running", "completed"}
                )

    async def _write_whole(
        self,
        joined: JoinedPlanes | None,
        queue: str,
        items: Sequence[Settlement],
        runs: Sequence[tuple[RunHandle, Json]],
    ) -> list[bool] | None:
        """Write all and tell which leases are acknowledged; or nothing, and give None."""
        recorder = self._session.recorder
        sealed: list[RunHandle] = []
        writes: list[Write] = [item.write for item in items]
        acknowledged = [False] * len(items)
        try:
            for run, output in runs:
                insert: Insert | None = recorder.insert(run, output)
                if insert is None:
                    return None
                sealed.append(run)
                writes.append(insert)
            if joined is None:
                await self._session.write_atomic(writes)
            else:
                leases = [item.lease for item in items]

                async def write() -> None:
                    nonlocal acknowledged
                    settled = await joined.settle(queue, writes, leases, atomic=True)
                    acknowledged = [*settled.acknowledged]

                await self._session.write_atomic(writes, write)
            done, sealed = sealed, []
        except (ConflictError, InvalidValueError):
            return None
        finally:
            for run in sealed:
                run.reopen()
        recorder.wrote(done)
        return acknowledged

    async def _acknowledge(self, items: Sequence[Settlement], done: Sequence[bool]) -> None:
        leases = [
            item.lease
            for item, acknowledged in zip(items, done, strict=True)
            if item.error is None and not acknowledged
        ]
        if leases:
            await self._session.ack_many(leases)
