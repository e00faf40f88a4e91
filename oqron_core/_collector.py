"""Making many objects at once without the collector going over them again and again."""

from __future__ import annotations

import contextlib
import gc

from collections.abc import Iterator


__all__ = ["paused"]


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """
    Keep the garbage collector from running in the block, which makes many objects.

    It runs when a number of objects were made that are still there, also where none of
    them is garbage, and after some such runs it walks everything that the process has.
    Of the CPU that a job of a large batch took, a third was that.

    For blocks of milliseconds that do not await. Where somebody has turned the collector
    off it stays off.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
