"""How long a failed job waits for its next attempt."""

from __future__ import annotations

import random

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from oqron_core._codec import shown
from oqron_core.exceptions import InvalidValueError


__all__ = ["Backoff"]

_MAX = 366 * 86400.0


def _check_seconds(name: str, value: object) -> float:
    if type(value) not in {int, float} or not 0 <= value <= _MAX:  # type: ignore[operator]  # a number, as just tested
        reason = f"must be seconds from 0 to a year, not {shown(value)}"
        raise InvalidValueError(f"backoff.{name}", reason)
    return float(value)  # type: ignore[arg-type]  # a number, as just tested


@attrs.frozen
class Backoff:
    """
    A rule for the delay before the next attempt; stored with the job.

    Attributes:
        type: ``fixed`` or ``exponential``.
        delay: Seconds after the first failed attempt.
        factor: By what each further delay grows; exponential only.
        cap: The longest delay, in seconds.
        jitter: The share of the delay that is drawn by chance, 0 to 1: 0.2 gives
            80 to 120 percent of it.
    """

    type: Literal["fixed", "exponential"]
    delay: float
    factor: float = 2.0
    cap: float = 300.0
    jitter: float = 0.0

    def __attrs_post_init__(self) -> None:
        if self.type not in {"fixed", "exponential"}:
            reason = f'must be "fixed" or "exponential", not {shown(self.type)}'
            raise InvalidValueError("backoff.type", reason)
        _check_seconds("delay", self.delay)
        _check_seconds("cap", self.cap)
        if type(self.factor) not in {int, float} or not 1 <= self.factor <= 1000:  # noqa: PLR2004 - a sane range
            raise InvalidValueError("backoff.factor", "must be a number from 1 to 1000")
        if type(self.jitter) not in {int, float} or not 0 <= self.jitter <= 1:
            raise InvalidValueError("backoff.jitter", "must be a number from 0 to 1")

    @classmethod
    def fixed(cls, delay: float, *, jitter: float = 0.0) -> Backoff:
        """Wait *delay* seconds before every further attempt."""
        return cls("fixed", delay, factor=1.0, cap=_MAX, jitter=jitter)

    @classmethod
    def exponential(
        cls, delay: float = 1.0, *, factor: float = 2.0, cap: float = 300.0, jitter: float = 0.0
    ) -> Backoff:
        """Wait *delay* seconds, then *factor* times as long each time, up to *cap*."""
        return cls("exponential", delay, factor=factor, cap=cap, jitter=jitter)

    def delay_after(self, attempt: int) -> float:
        """
        Say how long to wait after *attempt* has failed.

        Args:
            attempt: The attempt that failed, from 1; any size is safe.

        Returns:
            Seconds, at most ``cap`` before jitter.
        """
        base = self.delay
        if self.type == "exponential" and base > 0 and attempt > 1:
            try:
                base *= self.factor ** (attempt - 1)
            except OverflowError:
                base = self.cap
        base = min(base, self.cap)
        if self.jitter:
            base *= 1 + self.jitter * random.uniform(-1, 1)  # noqa: S311 - spreads load, keeps no secret
        return base

    def to_wire(self) -> dict[str, Any]:
        """Give the form that is stored in ``opts.backoff``."""
        return {
            "type": self.type,
            "delay": self.delay,
            "factor": self.factor,
            "cap": self.cap,
            "jitter": self.jitter,
        }

    @classmethod
    def from_wire(cls, value: object) -> Backoff:
        """Read what is stored; anything unreadable gives the default rule."""
        if isinstance(value, Mapping):
            known = {field.name for field in attrs.fields(cls)}
            try:
                return cls(**{key: value[key] for key in known if key in value})
            except (InvalidValueError, TypeError):
                pass
        return cls.exponential()
