"""The Lua scripts, one file per atomic step."""

from __future__ import annotations

import hashlib

from functools import cache
from importlib.resources import files
from typing import Final, final


__all__ = ["NAMES", "Script", "script"]


@final
class Script:
    """
    A script and its hash.

    Attributes:
        name: The file, without its ending.
        source: The text.
        sha: Its SHA-1, by which the server knows it.
    """

    __slots__ = ("name", "sha", "source")

    def __init__(self, name: str) -> None:
        self.name = name
        self.source = (files("oqron_redis") / "lua" / f"{name}.lua").read_bytes()
        self.sha = hashlib.sha1(self.source, usedforsecurity=False).hexdigest().encode()

    def __repr__(self) -> str:
        return f"Script({self.name!r})"


NAMES: Final = tuple(
    sorted(
        entry.name.removesuffix(".lua")
        for entry in (files("oqron_redis") / "lua").iterdir()
        if entry.name.endswith(".lua")
    )
)


@cache
def script(name: str) -> Script:
    """Give the script of that name."""
    return Script(name)
