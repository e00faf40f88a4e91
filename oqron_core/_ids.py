"""Time-ordered identifiers: UUID version 7 (RFC 9562, section 5.7)."""

from __future__ import annotations

import os
import struct
import threading
import time

from collections.abc import Iterator


__all__ = ["uuid7", "uuid7_block"]

_RANDOM_BITS = 74
_FULL = (1 << _RANDOM_BITS) - 1
_BLOCK_BITS = 16
_BLOCK = (1 << _BLOCK_BITS) - 1
_LOWER_BITS = 48
_LOWER = (1 << _LOWER_BITS) - 1
_DRAWN = 1024
_lock = threading.Lock()
_last_ms = 0
_tail = 0
_steps: Iterator[int] = iter(())
_head = ""
_upper = -1
_start = ""


def _reset_after_fork() -> None:
    # A forked child must repeat neither the parent's tail nor what it draws next.
    global _lock, _last_ms, _tail, _steps  # noqa: PLW0603 - one sequence per process
    _lock = threading.Lock()
    _last_ms = _tail = 0
    _steps = iter(())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def _step() -> int:
    """Draw 32 random bits; the system is asked for many at once."""
    global _steps  # noqa: PLW0603 - one sequence per process
    for step in _steps:
        return step
    _steps = iter(struct.unpack(f"{_DRAWN}I", os.urandom(4 * _DRAWN)))
    return next(_steps)


def _begin(now: int) -> None:
    """Go on to another millisecond."""
    global _last_ms, _head, _upper  # noqa: PLW0603 - one sequence per process
    _last_ms = now
    _upper = -1
    _head = f"{now >> 16:08x}-{now & 0xFFFF:04x}-7"


def _count_up() -> None:
    """Go on to the next tail; the lock is held."""
    global _tail  # noqa: PLW0603 - one sequence per process
    now = time.time_ns() // 1_000_000
    if now > _last_ms:
        _begin(now)
        # The top bit stays free, so that counting up does not overflow.
        _tail = (_step() << 41) | (_step() << 9) | (_step() >> 23)
    else:
        _tail = tail = _tail + 1 + _step()
        if tail >> _RANDOM_BITS:
            _begin(_last_ms + 1)
            _tail = tail & ((1 << (_RANDOM_BITS - 1)) - 1)


def _text() -> str:
    """Give the last one that was counted; the lock is held."""
    global _upper, _start  # noqa: PLW0603 - one sequence per process
    upper = _tail >> _LOWER_BITS
    if upper != _upper:
        # It stays the same for most of a millisecond. Version 7 stands in the head; the
        # two highest bits of the fourth group say RFC 9562.
        _upper = upper
        _start = f"{_head}{upper >> 14:03x}-{0x8000 | upper & 0x3FFF:04x}-"
    return f"{_start}{_tail & _LOWER:012x}"


def uuid7() -> str:
    """
    Make an identifier that sorts after every one made before it in this process.

    48 bits of milliseconds, then 74 random bits; within one millisecond the
    random part is counted up by a random step, so order holds without waiting.
    """
    with _lock:
        _count_up()
        return _text()


def uuid7_block() -> str:
    """
    Set 65,536 identifiers in a row aside, and give what they have in common.

    Four hexadecimal digits make an identifier of it. All of them sort after those made
    before, and before those made later.
    """
    global _tail  # noqa: PLW0603 - one sequence per process
    with _lock:
        _count_up()
        if _tail >> _BLOCK_BITS == _FULL >> _BLOCK_BITS:
            # There is no whole block left: nothing was given out of the next millisecond.
            _begin(_last_ms + 1)
            _tail = _step()
        # What was given out may be of the block that the tail is in.
        tail = ((_tail >> _BLOCK_BITS) + 1) << _BLOCK_BITS
        _tail = tail | _BLOCK
        return _text()[:-4]
