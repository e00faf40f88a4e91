"""Where settings come from: arguments, the environment, and two files."""

from __future__ import annotations

import os
import re
import tomllib

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from oqron_core._plugins import ALLOW_VARIABLE
from oqron_core.config._leaves import Leaf, Leaves, Section, flatten
from oqron_core.config._settings import MaintenanceSettings, Retention, RunSettings


__all__ = ["PREFIX", "Source", "from_arguments", "from_environment", "from_file", "nearest"]

PREFIX: Final = "OQRON_"
"""What the variables of settings begin with."""
_NOT_SETTINGS: Final = ("OQRON_TEST_",)


@attrs.frozen
class Source:
    """One layer: its core settings and its backend sections, before checking."""

    label: str
    leaves: Leaves


def from_arguments(overrides: Mapping[str, Any]) -> Source:
    """Take keyword arguments; None is one that was not given."""
    leaves: Leaves = {}
    for name, value in overrides.items():
        if value is None:
            # An argument that is passed through unset, such as project=None.
            continue
        source = f"argument {name}"
        plain = value
        if isinstance(value, (Retention, RunSettings, MaintenanceSettings)):
            plain = attrs.asdict(value)
        elif isinstance(value, Section):
            leaves.update({(name, *path): leaf for path, leaf in value.leaves.items()})
            continue
        leaves.update(flatten({name: plain}, source, argument=True))
    return Source("argument", leaves)


def from_environment(environ: Mapping[str, str], sections: Iterable[str]) -> Source:
    """Take ``OQRON_A__B`` as the text of ``a.b``."""
    # A backend's name may hold what a variable's name cannot: "my-db" is MY_DB.
    spelt = {re.sub(r"\W", "_", name).lower(): name for name in sections}
    leaves: Leaves = {}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX) or variable.startswith(_NOT_SETTINGS):
            continue
        if variable == ALLOW_VARIABLE:
            continue
        path = tuple(part.lower() for part in variable.removeprefix(PREFIX).split("__"))
        if len(path) > 1:
            path = (spelt.get(path[0], path[0]), *path[1:])
        leaves[path] = Leaf(text, variable, text=True)
    return Source("environment", leaves)


def _read_toml(path: Path, problems: list[str]) -> dict[str, Any] | None:
    try:
        return tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror or type(error).__name__}")
    except UnicodeDecodeError:
        problems.append(f"{path}: is not UTF-8")
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{path}: is not TOML: {error}")
    return None


def _tool_table(path: Path, document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    tool = document.get("tool")
    found = tool.get("oqron") if isinstance(tool, Mapping) else None
    return found if path.name == "pyproject.toml" and isinstance(found, Mapping) else None


def from_file(path: Path, problems: list[str]) -> Source | None:
    """Read the one file that was named; what is wrong with it goes to *problems*."""
    document = _read_toml(path, problems)
    if document is None:
        return None
    if path.name == "pyproject.toml":
        table = _tool_table(path, document)
        if table is None:
            problems.append(f"{path}: has no table [tool.oqron]")
            return None
        document = dict(table)
    return Source(str(path), dict(flatten(document, str(path))))


def nearest(problems: list[str]) -> Iterator[Source]:
    """Give the nearest ``oqron.toml``, then the nearest ``[tool.oqron]``."""
    try:
        here = Path.cwd()
    except OSError:
        # The working directory is gone: there is nothing near it.
        return
    folders = (here, *here.parents)
    for folder in folders:
        path = folder / "oqron.toml"
        if os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises where it may not look
            source = from_file(path, problems)
            if source is not None:
                yield source
            break
    for folder in folders:
        path = folder / "pyproject.toml"
        try:
            # Somebody else's file on the way up is none of our business, whatever
            # is wrong with it.
            ours = b"oqron" in path.read_bytes()
        except OSError:
            continue
        if ours:
            document = _read_toml(path, problems)
            table = None if document is None else _tool_table(path, document)
            if table is not None:
                yield Source(str(path), dict(flatten(table, str(path))))
                break
