"""Rate limits: what may be asked of `Counters.take`, and its answer."""

from __future__ import annotations

from typing import Final, TypeAlias

import attrs

from oqron_core.exceptions import InvalidValueError


__all__ = ["Decision", "FixedWindow", "RateLimit", "SlidingWindow", "TokenBucket"]

MAX_LIMIT: Final = 2**31 - 1
MIN_PERIOD: Final = 0.001
MAX_PERIOD: Final = 10 * 366 * 86400.0


def _check(name: str, limit: object, per: object) -> None:
    if type(limit) is not int or not 1 <= limit <= MAX_LIMIT:
        raise InvalidValueError(f"{name}.limit", f"must be an int from 1 to {MAX_LIMIT}")
    if (
        type(per) not in {int, float} or not MIN_PERIOD <= per <= MAX_PERIOD  # type: ignore[operator]
    ):
        raise InvalidValueError(f"{name}.per", "must be seconds, from 0.001 to ten years")


@attrs.frozen
class FixedWindow:
    """
    *limit* per window of *per* seconds; windows are aligned to the epoch.

    Attributes:
        limit: How many per window.
        per: The window, in seconds.
    """

    limit: int
    per: float = attrs.field(kw_only=True)

    def __attrs_post_init__(self) -> None:
        _check("FixedWindow", self.limit, self.per)


@attrs.frozen
class SlidingWindow:
    """
    *limit* in any *per* seconds, judged by two adjoining fixed windows.

    The count of the window before is weighted by how much of it still lies
    within the last *per* seconds, so the state of a key is two integers.

    Attributes:
        limit: How many in any window.
        per: The window, in seconds.
    """

    limit: int
    per: float = attrs.field(kw_only=True)

    def __attrs_post_init__(self) -> None:
        _check("SlidingWindow", self.limit, self.per)


@attrs.frozen
class TokenBucket:
    """
    *limit* tokens flow in every *per* seconds into a bucket that holds *burst*.

    Attributes:
        limit: How many tokens flow in per period.
        per: The period, in seconds.
        burst: What the bucket holds; it starts full. None for *limit*.
    """

    limit: int
    per: float = attrs.field(kw_only=True)
    burst: int | None = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        _check("TokenBucket", self.limit, self.per)
        if self.burst is not None and (
            type(self.burst) is not int or not 1 <= self.burst <= MAX_LIMIT
        ):
            raise InvalidValueError("TokenBucket.burst", f"must be an int from 1 to {MAX_LIMIT}")

    @property
    def capacity(self) -> int:
        """What the bucket holds."""
        return self.limit if self.burst is None else self.burst


RateLimit: TypeAlias = FixedWindow | SlidingWindow | TokenBucket


@attrs.frozen
class Decision:
    """
    Whether something is allowed now, with the numbers HTTP headers need.

    Attributes:
        allowed: Whether it was taken. What was not allowed was not counted.
        remaining: How much could still be taken now.
        retry_after: Seconds until the same may be allowed; 0.0 if it was.
        reset_at: When the limit is whole again, milliseconds since the epoch.
    """

    allowed: bool
    remaining: int
    retry_after: float
    reset_at: int

    def __bool__(self) -> bool:
        return self.allowed
