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


def _reset_after_fork() -> None:
    global _lock, _last_ms, _tail  # noqa: PLW0603 - a forked child must not repeat the parent's tail
    _lock = threading.Lock()
    _last_ms = _tail = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


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
            _tail = int.from_bytes(os.urandom(10), "big") >> (80 - _RANDOM_BITS + 1)
        else:
            _tail += 1 + (int.from_bytes(os.urandom(4), "big"))
            if _tail >> _RANDOM_BITS:
                _last_ms += 1
                _tail &= (1 << (_RANDOM_BITS - 1)) - 1
        high = (_last_ms << 16) | 0x7000 | (_tail >> 62)
        low = (0b10 << 62) | (_tail & ((1 << 62) - 1))
    text = f"{(high << 64) | low:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
