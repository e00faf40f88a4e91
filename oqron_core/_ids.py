"""Time-ordered identifiers: UUID version 7 (RFC 9562, section 5.7)."""

from __future__ import annotations

import os
import threading
import time


__all__ = ["uuid7"]

_RANDOM_BITS = 74
_lock = threading.Lock()
_last_ms = 0
_tail = 0
_POOL = 4096
_pool = b""
_used = 0


def _reset_after_fork() -> None:
    # A forked child must repeat neither the parent's tail nor what it draws next.
    global _lock, _last_ms, _tail, _pool, _used  # noqa: PLW0603 - one sequence per process
    _lock = threading.Lock()
    _last_ms = _tail = _used = 0
    _pool = b""


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def _random(size: int) -> int:
    """Draw a random number of that many bytes; the system is asked for many at once."""
    global _pool, _used  # noqa: PLW0603 - one sequence per process
    if _used + size > len(_pool):
        _pool = os.urandom(_POOL)
        _used = 0
    _used += size
    return int.from_bytes(_pool[_used - size : _used], "big")


def uuid7() -> str:
    """
    Make an identifier that sorts after every one made before it in this process.

    48 bits of milliseconds, then 74 random bits; within one millisecond the
    random part is counted up by a random step, so order holds without waiting.
    """
    global _last_ms, _tail  # noqa: PLW0603 - one sequence per process
    with _lock:
        now = time.time_ns() // 1_000_000
        if now > _last_ms:
            _last_ms = now
            # The top bit stays free, so that counting up does not overflow.
            _tail = _random(10) >> (80 - _RANDOM_BITS + 1)
        else:
            _tail += 1 + _random(4)
            if _tail >> _RANDOM_BITS:
                _last_ms += 1
                _tail &= (1 << (_RANDOM_BITS - 1)) - 1
        high = (_last_ms << 16) | 0x7000 | (_tail >> 62)
        low = (0b10 << 62) | (_tail & ((1 << 62) - 1))
    text = f"{(high << 64) | low:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
