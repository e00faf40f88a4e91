"""Filling the templates, and writing the files."""

from __future__ import annotations

import importlib.metadata
import keyword
import re

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Final

import attrs

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import CONTRACT_VERSION, DurablePlane, HotPlane
from oqron_core.scaffold._methods import FACETS, class_of, imports_of


__all__ = ["Plan", "generate", "planned"]

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_LONGEST: Final = 40
PLANES: Final = ("hot", "durable")
_SUFFIX: Final = ".tmpl"


@attrs.frozen
class Plan:
    """
    What is generated, and where.

    Attributes:
        backend: The name of the backend, as in ``hot = "<backend>"``.
        planes: ``hot``, ``durable`` or both.
        folder: The folder of the distribution.
        files: The text of each file by its path in the folder.
    """

    backend: str
    planes: tuple[str, ...]
    folder: Path
    files: dict[str, str]

    @property
    def distribution(self) -> str:
        """The name to install it by."""
        return f"oqron-{self.backend.replace('_', '-')}"

    @property
    def package(self) -> str:
        """The name to import it by."""
        return f"oqron_{self.backend}"


def planned(name: str, *, planes: Sequence[str] = PLANES, directory: Path | None = None) -> Plan:
    """
    Fill the templates; writes nothing.

    Args:
        name: The backend's name; ``oqron-`` in front of it is left aside.
        planes: Which planes it will serve.
        directory: Where its folder is made; None for the working directory.

    Raises:
        InvalidValueError: *name* or *planes* is not legal.
    """
    backend = _checked_name(name)
    chosen = tuple(plane for plane in PLANES if plane in planes)
    wrong = [plane for plane in planes if plane not in PLANES]
    if wrong or not chosen:
        reason = f'must be "hot", "durable" or both, not {", ".join(planes) or "none"}'
        raise InvalidValueError("planes", reason)
    plan = Plan(backend, chosen, Path(), {})
    folder = (directory or Path()) / plan.distribution
    return attrs.evolve(plan, folder=folder, files=_files(plan))


def generate(plan: Plan) -> list[Path]:
    """
    Write the files of a plan, into a folder that is made.

    Returns:
        The files, in order.

    Raises:
        FileExistsError: The folder is there already; nothing was written.
    """
    plan.folder.mkdir(parents=True)
    written = []
    for name, text in plan.files.items():
        path = plan.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def _checked_name(name: str) -> str:
    backend = name.removeprefix("oqron-").replace("-", "_")
    if not _NAME.fullmatch(backend) or len(backend) > _LONGEST:
        reason = (
            f"{name!r} is no name for a backend: up to {_LONGEST} lower-case letters, "
            'digits and hyphens, beginning with a letter, such as "dynamo"'
        )
        raise InvalidValueError("name", reason)
    if keyword.iskeyword(backend):
        raise InvalidValueError("name", f"{name!r} is a word of Python; take another")
    return backend


# --- the files -------------------------------------------------------------------------


def _files(plan: Plan) -> dict[str, str]:
    names = _names(plan)
    files = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        f"{plan.package}/__init__.py": f"init_{'_'.join(plan.planes)}.py",
        f"{plan.package}/_settings.py": "settings.py",
        f"{plan.package}/_store.py": "store.py",
    }
    files |= {f"{plan.package}/_{plane}.py": f"{plane}.py" for plane in plan.planes}
    files |= {
        "tests/test_contract.py": f"test_contract_{'_'.join(plan.planes)}.py",
        ".github/workflows/conformance.yml": "conformance.yml",
    }
    found = {path: _read(name).substitute(names) for path, name in files.items()}
    return {**found, f"{plan.package}/py.typed": ""}


def _read(name: str) -> Template:
    file = resources.files("oqron_core.scaffold").joinpath("templates", name + _SUFFIX)
    return _Template(file.read_text(encoding="utf-8"))


class _Template(Template):
    """Fields are ``@name``: workflows and shell use the dollar themselves."""

    delimiter = "@"
    idpattern = "(?a:[a-z_]+)"
    flags = re.VERBOSE


def _names(plan: Plan) -> dict[str, str]:
    version = importlib.metadata.version("oqron-core")
    major, minor = version.split(".")[:2]
    title = "".join(part.capitalize() for part in plan.backend.split("_"))
    names = {
        "backend": plan.backend,
        "distribution": plan.distribution,
        "package": plan.package,
        "title": title,
        "env": plan.backend.upper(),
        "planes": " and ".join(plan.planes),
        "plural": "planes" if len(plan.planes) > 1 else "plane",
        "core": f"oqron-core>={version},<{major}.{int(minor) + 1}",
        "version": str(CONTRACT_VERSION),
    }
    if "hot" in plan.planes:
        names |= _hot(title)
    if "durable" in plan.planes:
        names |= _durable()
    return names


def _hot(title: str) -> dict[str, str]:
    facets = [class_of(facet) for facet in FACETS]
    plane = class_of(HotPlane)
    used = frozenset().union(*(one.names for one in (*facets, plane)))
    bases = [one.base for one in facets]
    more = ("HotPlane", "Capabilities", "Durability", "PlaneContext", "Scope")
    classes = [
        _read("facet.py").substitute(title=title, base=one.base, methods=one.methods)
        for one in facets
    ]
    return {
        "hot_imports": imports_of(used, *bases, *more),
        "facets": "\n\n".join(text.rstrip() + "\n" for text in classes).rstrip(),
        "hot_methods": plane.methods,
    }


def _durable() -> dict[str, str]:
    plane = class_of(DurablePlane)
    more = ("DurablePlane", "Capabilities", "Durability", "PlaneContext", "Scope")
    return {
        "durable_imports": imports_of(plane.names, *more),
        "durable_methods": plane.methods,
    }
