"""What an import costs: nothing that was not asked for."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import subprocess
import sys
import typing

from pathlib import Path

import pytest


UNWANTED = {
    "_pytest",
    "click",
    "hypothesis",
    "oqron_memory",
    "oqron_postgres",
    "oqron_redis",
    "psycopg",
    "psycopg_pool",
    "pytest",
    "redis",
    "rich",
    "sqlalchemy",
}

REPORT = """
import json, sys
before = set(sys.modules)
{statements}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def loaded_by(statements: str, folder: Path) -> set[str]:
    """Run *statements* in a fresh Python, and tell which modules they brought."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", REPORT.format(statements=statements)],
        capture_output=True,
        text=True,
        cwd=folder,
        check=True,
    )
    return set(json.loads(done.stdout))


def test_importing_the_core_brings_no_backend_and_no_tool(tmp_path: Path) -> None:
    """`import oqron_core` loads no client library, no plugin, no pytest, no command line."""
    loaded = loaded_by("import oqron_core", tmp_path)

    assert "oqron_core" in loaded
    assert set() == {name.split(".")[0] for name in loaded} & UNWANTED
    assert set() == loaded & {"oqron_core.testing", "oqron_core.cli"}


def test_the_taxonomy_stands_alone(tmp_path: Path) -> None:
    """The classifier file runs by itself, with the standard library only."""
    import oqron_core

    file = Path(oqron_core.__file__).with_name("taxonomy.py")
    statements = f"import runpy; found = runpy.run_path({str(file)!r})\n"
    statements += "assert found['classify_namespace']('queue_job:emails') == 'job'"

    tops = {name.split(".")[0] for name in loaded_by(statements, tmp_path)}

    assert set() == tops - sys.stdlib_module_names


def test_every_public_name_is_there_and_sorted() -> None:
    """`__all__` of the package is sorted, and every name in it can be had."""
    import oqron_core

    public = list(oqron_core.__all__)

    assert sorted(set(public)) == sorted(public)
    assert [] == [name for name in public if not hasattr(oqron_core, name)]


def test_what_services_give_can_be_named() -> None:
    """Every class in the annotations of their public methods is one of the package's names."""
    import oqron_core

    from oqron_core import services

    modules = [
        importlib.import_module(f"oqron_core.services.{found.name}")
        for found in pkgutil.iter_modules(services.__path__)
    ]
    named: set[type] = set()
    for module in (importlib.import_module("oqron_core.storage"), *modules):
        for cls in vars(module).values():
            if inspect.isclass(cls) and cls.__module__ == module.__name__:
                for name, method in inspect.getmembers(cls, inspect.isfunction):
                    if not name.startswith("_"):
                        hints = typing.get_type_hints(inspect.unwrap(method))
                        named.update(*map(_classes_of, hints.values()))

    assert len(named) > 20
    assert [] == sorted(
        f"{cls.__module__}.{cls.__name__}"
        for cls in named
        if getattr(oqron_core, cls.__name__, None) is not cls
    )


def _classes_of(hint: object) -> set[type]:
    found = {hint} if inspect.isclass(hint) and hint.__module__.startswith("oqron_core") else set()
    return found.union(*map(_classes_of, typing.get_args(hint)))


@pytest.mark.parametrize("module", ["oqron_core.sync", "oqron_core.testing.servers"])
def test_parts_that_are_asked_for_by_name_bring_no_backend(module: str, tmp_path: Path) -> None:
    """The blocking facade and the throwaway servers load no client library."""
    tops = {name.split(".")[0] for name in loaded_by(f"import {module}", tmp_path)}

    assert set() == tops & UNWANTED
