"""What is stored is read as data: nothing in the packages could run it."""

from __future__ import annotations

import ast

from pathlib import Path

import pytest


ROOT = Path(__file__).parents[2]
PACKAGES = [ROOT / "oqron_core", *sorted((ROOT / "plugins").glob("*/oqron_*"))]
RUN_WHAT_THEY_READ = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle"}
ON_PURPOSE = {
    ("oqron_core", "testing"): "the kit tries whether a storage can be pickled",
    ("oqron_worker", "_pools.py"): "exceptions travel from its own process pool",
}


def _names(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.split(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom) and not node.level:
        return {(node.module or "").split(".")[0]}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return {node.func.id} & {"eval", "exec", "__import__"}
    return set()


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_nothing_unpickles_or_evaluates(package: Path) -> None:
    """Neither an import nor a call of what runs the bytes it is given."""
    assert package.is_dir()
    found = []
    for file in sorted(package.rglob("*.py")):
        if (package.name, file.relative_to(package).parts[0]) in ON_PURPOSE:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            wrong = _names(node) & {*RUN_WHAT_THEY_READ, "eval", "exec", "__import__"}
            found += [f"{file.name}:{getattr(node, 'lineno', 0)} {name}" for name in wrong]

    assert [] == found
