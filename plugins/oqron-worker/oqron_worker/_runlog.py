"""Standard logging inside a handler lands in its run."""

from __future__ import annotations

import contextlib
import logging

from collections.abc import Iterator
from typing import Any, Final

from oqron_worker._context import current_context


__all__ = ["RunLogHandler", "capture_logging"]

_FORMATTER: Final = logging.Formatter()
_LEVELS: Final = (
    (logging.ERROR, "error"),
    (logging.WARNING, "warning"),
    (logging.INFO, "info"),
)

_shared: dict[int, tuple[RunLogHandler, int]] = {}


class RunLogHandler(logging.Handler):
    """
    Puts what is logged while a handler runs into the log of its run.

    Records of the storage itself are left aside, so that a run never records the
    recording.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass what comes from a handler's own code."""
        return not record.name.startswith("oqron.") and current_context() is not None

    def emit(self, record: logging.LogRecord) -> None:
        """Append the record to the run; never raises."""
        context = current_context()
        if context is None:
            return
        try:
            text = record.getMessage()
            if record.exc_info:
                text = f"{text}\n{_FORMATTER.formatException(record.exc_info)}"
            fields: dict[str, Any] = {"logger": record.name}
            context.log(_level(record.levelno), text, **fields)
        except Exception:  # noqa: BLE001 - logging must not break the work
            self.handleError(record)


def _level(number: int) -> str:
    return next((name for least, name in _LEVELS if number >= least), "debug")


@contextlib.contextmanager
def capture_logging(level: int | None) -> Iterator[None]:
    """
    Send what handlers log to their runs while the context is open.

    Args:
        level: What is captured from; None for nothing. The level of a logger
            decides before: what it does not let through is not captured.
    """
    if level is None:
        yield
        return
    root = logging.getLogger()
    # Workers of one process share a handler, or each line would be there twice.
    handler, users = _shared.get(level, (RunLogHandler(level), 0))
    _shared[level] = handler, users + 1
    root.addHandler(handler)
    try:
        yield
    finally:
        handler, users = _shared.pop(level)
        if users > 1:
            _shared[level] = handler, users - 1
        else:
            root.removeHandler(handler)
