"""
The Lua scripts, one file per atomic step.

What several steps share stands in a file whose name begins with ``_``; a script takes
it in where a line of it says ``-- needs: _name``. A step that is made of others takes
each as a function of ``KEYS`` and ``ARGV`` where a line says ``-- calls: name``.
"""

from __future__ import annotations

import hashlib
import re

from functools import cache
from importlib.resources import files
from typing import Final, final


__all__ = ["NAMES", "Script", "script"]

_CALLS: Final = re.compile(rb"^-- calls: (\w+)$", re.MULTILINE)
_NEEDS: Final = re.compile(rb"^-- needs: (_\w+)$", re.MULTILINE)


def _read(name: str) -> bytes:
    return (files("oqron_redis") / "lua" / f"{name}.lua").read_bytes()


def _function(name: bytes) -> bytes:
    return b"local function %b(KEYS, ARGV)\n%b\nend" % (name, _read(name.decode()))


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
        source = _CALLS.sub(lambda call: _function(call[1]), _read(name))
        self.source = _NEEDS.sub(lambda need: _read(need[1].decode()), source)
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
