"""
Commands as the bytes that go over the wire.

``hiredis.pack_command`` does the same in three times as long: a call of ours has
thousands of short words, and that is what it is slow at (measured with 2,000 words of
90 kB: 450 µs there, 140 µs here).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final


__all__ = ["packed"]

_HEADS: Final = [b"\r\n$%d\r\n" % size for size in range(1024)]
"""What stands before a word of that many bytes, with the end of the one before it."""


def _head(size: int) -> bytes:
    return _HEADS[size] if size < len(_HEADS) else b"\r\n$%d\r\n" % size


def packed(words: Sequence[bytes | int]) -> bytes:
    """Give a command as an array of bulk strings; integers in decimal."""
    texts = [word if isinstance(word, bytes) else b"%d" % word for word in words]
    parts = [b""] * (2 * len(texts))
    parts[::2] = map(_head, map(len, texts))
    parts[1::2] = texts
    return b"*%d%b\r\n" % (len(texts), b"".join(parts))
