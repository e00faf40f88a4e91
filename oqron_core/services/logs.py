"""Module logs: opt-in, written behind the work, capped, and queried by level and time."""

from __future__ import annotations

import contextlib
import logging

from typing import Any, Final

from oqron_core._codec import Json, encode, portable_text
from oqron_core._names import check_name
from oqron_core.exceptions import InvalidValueError, OqronError
from oqron_core.models import LogEntry, structure
from oqron_core.planes.checks import check_instant, seconds
from oqron_core.planes.values import Page, Query
from oqron_core.protocol.logbook import LOGS, Keep, Logbook, format_uuid7
from oqron_core.protocol.session import Session
from oqron_core.taxonomy import RecordKind


__all__ = ["LEVELS", "LogHandler", "Logs"]

LEVELS: Final = ("debug", "info", "warning", "error")
"""The levels, the least first."""
_MAX_MSG: Final = 10_000
_MAX_FIELDS: Final = 50
_MAX_FIELD_BYTES: Final = 10_000
_EMPTY: Final = Json(b"{}")


class Logs:
    """
    Durable logs of an application's modules. Nothing is here but what is written.

    Writing queues a line in memory; a background writer stores what waits, in
    batches. The queue is bounded: where the durable plane is too slow the oldest
    lines are dropped, and counted. A process that is killed loses what waited.

    A module keeps 10,000 lines and seven days, unless `keep` says otherwise.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._logbook = Logbook(session)

    @property
    def dropped(self) -> int:
        """How many lines were dropped here because too many waited."""
        return self._logbook.dropped

    def write(self, module: str, level: str, msg: object, /, **fields: Any) -> None:
        """
        Write a line, from any thread. Does not wait.

        Args:
            module: Whose log it is, 1 to 255 characters.
            level: ``debug``, ``info``, ``warning`` or ``error``.
            msg: The text; made portable, and cut at 10,000 characters.
            **fields: What stands beside it; what is not portable becomes text.

        Raises:
            InvalidValueError: *module* or *level* is not legal.
            ClosedError: The storage is closed.
        """
        check_name("module", module)
        _check_level(level)
        text = portable_text(msg, limit=_MAX_MSG)
        self._logbook.add(module, level, text, _portable(fields) if fields else _EMPTY)

    async def query(
        self,
        module: str,
        *,
        level: str | None = None,
        since: int | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Page[LogEntry]:
        """
        Read the lines of a module, the newest in front.

        What was written here before is stored first.

        Args:
            module: Whose log.
            level: Only lines of this level or above; None for all.
            since: Only lines of this instant, in milliseconds since the epoch, or
                later; None for all.
            limit: At most this many, 1 to 10,000.
            after: The ``next`` of the page before.

        Returns:
            A page of `LogEntry`.

        Raises:
            InvalidValueError: An argument is not legal.
            UnavailableError: The durable plane did not answer.
        """
        self._session.check_open()
        check_name("module", module)
        where: list[tuple[str, str, Any]] = []
        if level is not None:
            where.append(("level", "in", list(LEVELS[_check_level(level) :])))
        if since is not None:
            # Ids begin with the instant, and the primary key is sorted by them.
            where.append(("id", ">=", format_uuid7(check_instant(since, "since"))))
        query = Query(
            namespace=LOGS + module,
            where=where,
            order_by=[("id", "desc")],
            limit=limit,
            after=after,
        )
        await self._logbook.flush()
        page = await self._session.durable.query(query)
        return Page([structure(LogEntry, record.readable()) for record in page.items], page.next)

    async def modules(self) -> dict[str, int]:
        """
        Count the lines of each module that has some.

        Raises:
            UnavailableError: The durable plane did not answer.
        """
        self._session.check_open()
        await self._logbook.flush()
        found: dict[str, int] = await self._session.durable.count(
            Query(kind=RecordKind.LOG), by="namespace"
        )
        return {name[len(LOGS) :]: found[name] for name in sorted(found)}

    def keep(
        self,
        module: str,
        *,
        keep_for: float | None = 7 * 86400.0,
        max_entries: int | None = 10_000,
    ) -> None:
        """
        Say how much of a module's log this process keeps from now on.

        Args:
            module: Whose log.
            keep_for: Seconds that a line is kept, >= 0.001; None for ever.
            max_entries: About how many lines are kept, >= 1; None for any number.
                The oldest go when a tenth more was written.

        Raises:
            InvalidValueError: An argument is not legal.
        """
        check_name("module", module)
        if keep_for is not None:
            seconds("keep_for", keep_for, least=0.001)
        if max_entries is not None:
            _check_most(max_entries)
        self._logbook.keeps[module] = Keep(keep_for=keep_for, max_entries=max_entries)

    async def prune(self, module: str, *, max_entries: int | None = None) -> int:
        """
        Delete the oldest lines of a module, in bounded steps.

        Lines whose time is over go with `Maintenance.prune`.

        Args:
            module: Whose log.
            max_entries: How many to leave, >= 0; None for what `keep` says.

        Returns:
            How many were deleted.

        Raises:
            InvalidValueError: An argument is not legal.
            UnavailableError: The durable plane did not answer.
        """
        self._session.check_open()
        check_name("module", module)
        most = self._logbook.keep(module).max_entries if max_entries is None else max_entries
        if most is None:
            return 0
        _check_most(most, least=0)
        await self._logbook.flush()
        return await self._logbook.prune(module, most)

    async def flush(self) -> None:
        """
        Return when every line that was written here is durable.

        Raises:
            UnavailableError: The durable plane did not answer; all stays queued.
        """
        self._session.check_open()
        await self._logbook.flush()

    def handler(self, module: str, *, level: int = logging.INFO) -> LogHandler:
        """
        Give a `logging.Handler` that writes to a module's log.

        Args:
            module: Whose log.
            level: The least level of `logging` that is written.

        Raises:
            InvalidValueError: *module* is not legal.
        """
        return LogHandler(self, check_name("module", module), level)

    async def close(self, timeout: float) -> int:
        """
        Write what waits, for up to *timeout* seconds, and take no more.

        Called by the storage when it closes, before the planes are closed.

        Returns:
            How many lines could not be written.
        """
        return await self._logbook.close(timeout)


class LogHandler(logging.Handler):
    """
    Carries records of the standard library's logging into a module's log.

    Formatted by its formatter; beside the text stand ``logger``, ``line`` and, of an
    exception, ``error``. Records of oqron itself are left out, as storing them could
    make more of them. Never raises, also not when the storage is closed.
    """

    def __init__(self, logs: Logs, module: str, level: int = logging.INFO) -> None:
        super().__init__(level)
        self._logs = logs
        self._module = module

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record."""
        if record.name == "oqron" or record.name.startswith("oqron."):
            return
        try:
            fields: dict[str, Any] = {
                "logger": record.name,
                "line": f"{record.module}:{record.lineno}",
            }
            if record.exc_info and record.exc_info[0] is not None:
                fields["error"] = record.exc_info[0].__qualname__
            with contextlib.suppress(OqronError):
                self._logs.write(
                    self._module, _level_of(record.levelno), self.format(record), **fields
                )
        except Exception:  # noqa: BLE001 - a log line is never the reason that work fails
            self.handleError(record)


def _level_of(number: int) -> str:
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warning"
    return "info" if number >= logging.INFO else "debug"


def _check_level(level: object) -> int:
    if level not in LEVELS:
        raise InvalidValueError("level", f"must be one of {', '.join(LEVELS)}, not {level!r}")
    return LEVELS.index(level)


def _check_most(most: object, least: int = 1) -> None:
    if type(most) is not int or most < least:
        raise InvalidValueError("max_entries", f"must be an int of at least {least}, not {most!r}")


def _portable(fields: dict[str, Any]) -> Json:
    made: dict[str, Any] = {}
    for name, value in list(fields.items())[:_MAX_FIELDS]:
        try:
            # Once out and in: the line must not change when the caller's list does.
            plain = encode(value, max_bytes=_MAX_FIELD_BYTES).load()
        except InvalidValueError:
            plain = portable_text(value, limit=1000)
        made[portable_text(name, limit=100)] = plain
    try:
        return encode(made, max_bytes=None)
    except InvalidValueError:
        # Nested to the limit: no further level around it.
        return encode({name: portable_text(value, limit=1000) for name, value in made.items()})
