"""Making many objects at once without the collector going over them again and again."""

from __future__ import annotations

import contextlib
import gc
import os
import threading

from collections.abc import Iterator


__all__ = ["paused"]

_lock = threading.Lock()
_inside = 0
"""How many threads are in a block for which the collector was turned off here."""


def _reset_after_fork() -> None:
    # The thread that would turn it on again is not in the child.
    global _lock, _inside  # noqa: PLW0603 - one collector per process
    _lock = threading.Lock()
    if _inside:
        _inside = 0
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """
    Keep the garbage collector from running in the block, which makes many objects.

    It runs when a number of objects were made that are still there, also where none of
    them is garbage, and after some such runs it walks everything that the process has.
    Of the CPU that a job of a large batch took, a third was that.

    For blocks of milliseconds that neither await nor call what others wrote. Where
    somebody has turned the collector off it stays off.
    """
    global _inside  # noqa: PLW0603 - one collector per process
    with _lock:
        ours = _inside > 0 or gc.isenabled()
        if ours:
            _inside += 1
            gc.disable()
    try:
        yield
    finally:
        if ours:
            with _lock:
                _inside = max(0, _inside - 1)
                if not _inside:
                    gc.enable()
