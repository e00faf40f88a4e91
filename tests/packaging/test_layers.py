"""Which way the arrows point: imports go down, and each part knows only what it may."""

from __future__ import annotations

import ast
import itertools
import re
import sys
import tomllib

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest


ROOT = Path(__file__).parents[2]
CORE = ROOT / "oqron_core"
PLUGINS = sorted((ROOT / "plugins").glob("*/oqron_*"))

# From the ground up; a module may import from its own row's package and from below.
LAYERS = (
    {
        "taxonomy",
        "exceptions",
        "cronspec",
        "_codec",
        "_clock",
        "_collector",
        "_drafts",
        "_ids",
        "_names",
    },
    {"planes", "models"},
    {"protocol"},
    {"services"},
    {"hookspecs"},
    {"_plugins"},
    {"config"},
    {"storage"},
    {"__init__"},
    {"sync", "_portal", "_sync_services", "_syncgen"},
    {"testing"},
    {"scaffold"},
    {"cli"},
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

# Neighbours that may know each other, because they are drawn side by side.
SIDE_BY_SIDE = tuple(row for row in LAYERS if len(row) > 1)

PUBLIC = {
    "oqron_core",
    "oqron_core.cli.extending",
    "oqron_core.cronspec",
    "oqron_core.exceptions",
    "oqron_core.hookspecs",
    "oqron_core.planes",
    "oqron_core.taxonomy",
}

# Who may use what of others. The contract kit needs pytest; production does not.
THIRD_PARTY = {
    "cli": {"click", "rich"},
    "cronspec": {"cronsim"},
    "testing": {"hypothesis", "pytest"},
}
THIRD_PARTY_OF_CORE = {"attrs", "cattrs", "orjson", "pluggy"}


class Import(NamedTuple):
    """One import: where it stands, the module it names and the names it takes."""

    file: Path
    line: int
    module: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.module}"


def imports_of(file: Path) -> Iterator[Import]:
    """List what a file imports, at the top and inside functions, relative ones resolved."""
    package = [*file.relative_to(file.parents[_depth(file)]).parent.parts]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name, ())
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from package import module` imports the module.
            modules = [name for name in names if _is_module(module, name)]
            for name in modules:
                yield Import(file, node.lineno, f"{module}.{name}", ())
            if len(modules) < len(names):
                rest = tuple(name for name in names if name not in modules)
                yield Import(file, node.lineno, module, rest)


def _depth(file: Path) -> int:
    """Count the folders between *file* and the one its top package is in."""
    return next(i for i, parent in enumerate(file.parents) if not (parent / "__init__.py").exists())


def _is_module(package: str, name: str) -> bool:
    folder = ROOT.joinpath(*package.split("."))
    return (folder / f"{name}.py").exists() or (folder / name / "__init__.py").exists()


def area_of(file: Path) -> str:
    """Give the row of the architecture that a file of core is in."""
    return file.relative_to(CORE).parts[0].removesuffix(".py")


def files_of(package: Path) -> list[Path]:
    """List the source files of a package."""
    return sorted(package.rglob("*.py"))


CORE_IMPORTS = [found for file in files_of(CORE) for found in imports_of(file)]


def test_every_module_of_core_has_its_place() -> None:
    """A new module or package of core is given a row of the architecture first."""
    homeless = {area_of(file) for file in files_of(CORE)} - LEVEL.keys()

    assert set() == homeless


def test_imports_of_core_go_down() -> None:
    """No module of core imports from a higher row, nor from a neighbour in its own."""
    wrong = []
    for found in CORE_IMPORTS:
        parts = found.module.split(".")
        if parts[0] != "oqron_core":
            continue
        here = area_of(found.file)
        there = parts[1] if len(parts) > 1 else "__init__"
        beside = any({here, there} <= row for row in SIDE_BY_SIDE)
        if here != there and not beside and LEVEL.get(there, 0) >= LEVEL.get(here, 99):
            wrong.append(str(found))

    assert [] == wrong


def test_services_do_not_import_each_other() -> None:
    """What two services need lives a floor lower."""
    wrong = [
        str(found)
        for found in CORE_IMPORTS
        if area_of(found.file) == "services"
        and found.file.name != "__init__.py"
        and found.module.startswith("oqron_core.services")
    ]

    assert [] == wrong


def test_packages_side_by_side_do_not_import_in_a_circle() -> None:
    """Where planes know models, models do not know planes, or the other way round."""
    pairs = {
        (area_of(found.file), found.module.split(".")[1])
        for found in CORE_IMPORTS
        if found.module.startswith("oqron_core.")
    }

    assert [] == [pair for pair in pairs if pair[0] < pair[1] and pair[::-1] in pairs]


def test_core_imports_no_backend() -> None:
    """Core names a backend only in the mode table and in hints, and imports none."""
    backends = {package.name for package in PLUGINS}

    assert [] == [str(f) for f in CORE_IMPORTS if f.module.split(".")[0] in backends]


def test_core_uses_only_its_dependencies() -> None:
    """Each area imports the libraries that its extra installs; only the kit has pytest."""
    wrong = [
        str(found)
        for found in CORE_IMPORTS
        if (top := found.module.split(".")[0]) not in sys.stdlib_module_names
        and top != "oqron_core"
        and top not in THIRD_PARTY_OF_CORE | THIRD_PARTY.get(area_of(found.file), set())
    ]

    assert [] == wrong


def test_servers_need_only_the_standard_library() -> None:
    """Throwaway servers work where no client library is installed."""
    parts = ("servers.py", "_processes.py", "_redis_server.py", "_postgres_server.py")
    foreign = {
        found.module
        for part in (*parts, "_watchdog.py")
        for found in imports_of(CORE / "testing" / part)
        if found.module.split(".")[0] not in sys.stdlib_module_names
    }

    assert {"oqron_core.exceptions"} == {
        name for name in foreign if not name.startswith("oqron_core.testing")
    }


@pytest.mark.parametrize("package", PLUGINS, ids=lambda path: path.name)
def test_plugins_import_only_what_is_public(package: Path) -> None:
    """A plugin knows the public modules and names of core, and no other plugin."""
    others = {other.name for other in PLUGINS} - {package.name}
    wrong = []
    for file in files_of(package):
        for found in imports_of(file):
            top = found.module.split(".")[0]
            hidden = top == "oqron_core" and (
                found.module not in PUBLIC or any(name.startswith("_") for name in found.names)
            )
            if hidden or top in others:
                wrong.append(str(found))

    assert [] == wrong


@pytest.mark.parametrize("package", PLUGINS, ids=lambda path: path.name)
def test_plugins_use_only_their_dependencies(package: Path) -> None:
    """A plugin imports what its own metadata ask for, or what core's do."""
    metadata = tomllib.loads((package.parent / "pyproject.toml").read_text(encoding="utf-8"))
    project = metadata["project"]
    extra_requirements = project.get("optional-dependencies", {}).values()
    allowed = {package.name, "oqron_core", *THIRD_PARTY_OF_CORE}
    for requirement in itertools.chain(project["dependencies"], *extra_requirements):
        name, *extras = re.findall("[a-z0-9_]+", requirement.partition(">")[0])
        # `redis[hiredis]` brings hiredis, and `psycopg[pool]` psycopg_pool.
        allowed |= {name, *extras, *(f"{name}_{extra}" for extra in extras)}
    used = {found.module.split(".")[0] for file in files_of(package) for found in imports_of(file)}

    assert set() == used - allowed - sys.stdlib_module_names


def test_the_rules_see_what_breaks_them(tmp_path: Path) -> None:
    """Relative imports, imports in functions and modules taken by name are all seen."""
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").touch()
    file = package / "module.py"
    file.write_text(
        "from . import sibling\n"
        "from oqron_core import config, open_storage\n"
        "def function():\n    import redis.asyncio\n"
    )

    found = [(one.module, one.names) for one in imports_of(file)]

    assert [
        ("pkg", ("sibling",)),
        ("oqron_core.config", ()),
        ("oqron_core", ("open_storage",)),
        ("redis.asyncio", ()),
    ] == found
