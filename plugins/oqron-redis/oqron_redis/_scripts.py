"""
The Lua scripts, one file per atomic step.

What several steps share stands in a file whose name begins with ``_``; a script takes
it in where a line of it says ``-- needs: _name``, unless it did so before in the same
block. A step that is made of others takes each as a function of ``KEYS`` and ``ARGV``
where a line says ``-- calls: name``.
"""

from __future__ import annotations

import hashlib
import re

from functools import cache
from importlib.resources import files
from typing import Final, final


__all__ = ["NAMES", "Script", "script"]

_TAKES: Final = re.compile(rb" *-- (calls|needs): (\w+)")


def _read(name: str) -> bytes:
    return (files("oqron_redis") / "lua" / f"{name}.lua").read_bytes()


def _whole(name: str, known: frozenset[str] = frozenset()) -> bytes:
    """Give a file with all that it takes in, but for what is *known* where it will stand."""
    # What was taken in, with the depth of its block: behind the block it is out of sight.
    taken_in: list[tuple[int, str]] = []
    lines: list[bytes] = []
    for line in _read(name).splitlines():
        depth = len(line) - len(line.lstrip())
        while line and taken_in and taken_in[-1][0] > depth:
            taken_in.pop()
        found = _TAKES.fullmatch(line)
        if found is None:
            lines.append(line)
            continue
        part = found[2].decode()
        in_sight = known.union(seen for _, seen in taken_in)
        if found[1] == b"calls":
            lines.append(b"local function %b(KEYS, ARGV)" % found[2])
            lines += (_whole(part, in_sight), b"end")
        elif part not in in_sight:
            lines.append(_whole(part, in_sight))
            taken_in.append((depth, part))
    return b"\n".join(lines)


@final
class Script:
    """
    A script and its hash.

    Attributes:
        name: The file, without its ending.
        source: The text, with what it needs.
        sha: Its SHA-1, by which the server knows it.
    """

    __slots__ = ("name", "sha", "source")

    def __init__(self, name: str) -> None:
        self.name = name
        self.source = _whole(name)
        self.sha = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()

    def __repr__(self) -> str:
        return f"Script({self.name!r})"


NAMES: Final = tuple(
    sorted(
        entry.name.removesuffix(".lua")
        for entry in (files("oqron_redis") / "lua").iterdir()
        if entry.name.endswith(".lua") and not entry.name.startswith("_")
    )
)


@cache
def script(name: str) -> Script:
    """Give the script of that name."""
    return Script(name)
