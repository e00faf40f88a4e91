"""What a handler may raise to say how its attempt ends."""

from __future__ import annotations

from oqron_core.exceptions import InvalidValueError


__all__ = ["Discard", "HandlerTimeoutError", "Retry", "Snooze"]

_MAX = 366 * 86400.0


def _seconds(name: str, value: object) -> float:
    if type(value) not in {int, float} or not 0 <= value <= _MAX:  # type: ignore[operator]  # a number, as just tested
        raise InvalidValueError(name, "must be seconds from 0 to a year")
    return float(value)  # type: ignore[arg-type]  # a number, as just tested


class Retry(Exception):  # noqa: N818 - an instruction, not an error
    """
    Fail this attempt and try again, if there are attempts left.

    Args:
        reason: What is recorded as the error.
        delay: Seconds until the next attempt; None for what the backoff says.
    """

    def __init__(self, reason: str = "retry", delay: float | None = None) -> None:
        super().__init__(reason, delay)
        self.reason = reason
        self.delay = None if delay is None else _seconds("delay", delay)

    def __str__(self) -> str:
        return self.reason


class Snooze(Exception):  # noqa: N818 - an instruction, not an error
    """
    Give the job back for later; the attempt does not count.

    Args:
        delay: Seconds until it may be claimed again.
        reason: Put into the run's log.
    """

    def __init__(self, delay: float, reason: str = "snoozed") -> None:
        super().__init__(delay, reason)
        self.delay = _seconds("delay", delay)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class Discard(Exception):  # noqa: N818 - an instruction, not an error
    """
    Fail for good: the job becomes a dead letter, whatever attempts are left.

    Args:
        reason: What is recorded as the error.
    """

    def __init__(self, reason: str = "discarded") -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class HandlerTimeoutError(Exception):
    """
    The handler took longer than its timeout. Recorded by the worker.

    Args:
        timeout: The timeout, in seconds.
    """

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        self.timeout = timeout

    def __str__(self) -> str:
        return f"the handler took longer than {self.timeout:g} seconds"
