"""Runs: the receipts of executions."""

from __future__ import annotations

from typing import Any

from oqron_core._codec import encode, readable_fields
from oqron_core._names import check_name
from oqron_core.exceptions import InvalidValueError, StorageError
from oqron_core.models import Run, RunStatus, structure
from oqron_core.planes.checks import check_instant
from oqron_core.planes.values import Page, Query, Record
from oqron_core.protocol.recorder import merged
from oqron_core.protocol.run_handle import RUNS, RunHandle
from oqron_core.protocol.session import Session


__all__ = ["Runs"]


class Runs:
    """
    Run history: written behind the work, never in its way.

    Starting, logging and finishing are calls in memory; a background writer
    carries them to the planes within moments. `flush` waits for it.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    async def start(
        self,
        name: str,
        *,
        module: str = "worker",
        trigger: str = "manual",
        input: Any = None,  # noqa: A002 - the word of the model
        worker: str | None = None,
    ) -> RunHandle:
        """
        Start a run that has no job, such as a cron tick.

        Args:
            name: The definition, 1 to 255 characters.
            module: ``cron``, ``schedule``, ``queue``, ``worker``, ``webhook`` or
                ``topic``.
            trigger: What started it.
            input: What it is given: anything portable.
            worker: Who runs it; None for a name of this storage.

        Returns:
            The handle; end it with ``finish`` or ``fail``.

        Raises:
            InvalidValueError: An argument is not legal.
        """
        session = self._session
        session.check_open()
        return session.recorder.start(
            name=check_name("name", name),
            module=check_name("module", module),
            trigger=check_name("trigger", trigger),
            encoded_input=encode(input, "input", max_bytes=session.settings.max_value_bytes),
            started_at=await self._now(),
            worker_id=session.worker if worker is None else check_name("worker", worker),
        )

    async def _now(self) -> int:
        time = self._session.durable_time
        try:
            return await time.now()
        except StorageError:
            return time.estimate()

    async def get(self, id: str) -> Run | None:  # noqa: A002 - the word of the contract
        """
        Read a run: the durable row, overlaid with what is live.

        Returns:
            The run, or None where no plane knows it.

        Raises:
            UnavailableError: The durable plane did not answer. Where only the hot
                one does not, the row is given as history has it.
        """
        session = self._session
        session.check_open()
        check_name("id", id)
        row = (await session.durable.get(RUNS, [id]))[0]
        handle = session.recorder.handle(id)
        closed = row is not None and row.text("status") not in {"running", "queued"}
        if handle is not None and not closed:
            return structure(Run, readable_fields(handle.to_wire()))
        live = None
        if row is None or row.text("status") in {"running", "queued"}:
            try:
                live = await session.hot.live.get(id)
            except StorageError:
                live = None
        known = merged(None if row is None else row.readable(), live)
        return None if known is None else structure(Run, {"id": id, **known})

    async def query(
        self,
        *,
        status: str | None = None,
        name: str | None = None,
        module: str | None = None,
        since: int | None = None,
        job_id: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Page[Run]:
        """
        Read runs from history, those that started last in front.

        What this storage has finished is written first; what is running appears
        within a second of its start, overlaid with what is live.

        Args:
            status: Only these: see `RunStatus`.
            name: Only runs of this definition or queue.
            module: Only runs of this module.
            since: Only runs that started at or after this instant.
            job_id: Only the runs of this job.
            limit: At most this many, 1 to 10,000.
            after: The ``next`` of the page before.

        Raises:
            InvalidValueError: An argument is not legal.
            UnavailableError: The durable plane did not answer.
        """
        session = self._session
        session.check_open()
        where: list[tuple[str, str, Any]] = []
        if status is not None:
            where.append(("status", "=", _run_status(status)))
        if name is not None:
            where.append(("name", "=", check_name("name", name)))
        if module is not None:
            where.append(("module", "=", check_name("module", module)))
        if job_id is not None:
            where.append(("jobId", "=", check_name("job_id", job_id)))
        if since is not None:
            where.append(("startedAt", ">=", check_instant(since, "since")))
        query = Query(
            namespace=RUNS,
            where=where,
            order_by=[("startedAt", "desc")],
            limit=limit,
            after=after,
        )
        await session.recorder.write_finished()
        page = await session.durable.query(query)
        return Page(await self._overlaid(page), page.next)

    async def _overlaid(self, page: Page[Record]) -> list[Run]:
        session = self._session
        values: dict[str, dict[str, Any]] = {
            record.id: {**record.readable(), "id": record.id} for record in page.items
        }
        running = [id_ for id_, value in values.items() if value.get("status") == "running"]
        others = []
        for run_id in running:
            handle = session.recorder.handle(run_id)
            if handle is None:
                others.append(run_id)
            else:
                values[run_id] = readable_fields(handle.to_wire())
        if others:
            try:
                found = await session.hot.live.get_many(others)
            except StorageError:
                found = [None] * len(others)
            for run_id, live in zip(others, found, strict=True):
                values[run_id] = merged(values[run_id], live) or values[run_id]
        return [structure(Run, value) for value in values.values()]

    async def active(self, *, limit: int = 1000) -> list[Run]:
        """
        Read what is running now, from the live overlay.

        Raises:
            UnavailableError: The hot plane did not answer.
        """
        session = self._session
        session.check_open()
        leaving = session.recorder.overlay.is_leaving
        ids = [id_ for id_ in await session.hot.live.active(limit=limit) if not leaving(id_)]
        found = await session.hot.live.get_many(ids)
        return [
            structure(Run, {"id": run_id, **live})
            for run_id, live in zip(ids, found, strict=True)
            if live is not None and live.get("status") == "running"
        ]

    async def flush(self) -> None:
        """
        Return when every run that has ended here is durable.

        Raises:
            UnavailableError: The durable plane did not answer; all stays queued.
        """
        self._session.check_open()
        await self._session.recorder.flush()


def _run_status(status: str) -> str:
    try:
        return str(RunStatus(status))
    except ValueError:
        known = ", ".join(RunStatus)
        raise InvalidValueError("status", f"{status!r} is none of {known}") from None
