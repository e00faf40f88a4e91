"""The map from known failures to tests names tests that are there."""

from __future__ import annotations

import ast
import re

from pathlib import Path


ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (F\d{3}) \| [^|]+ \| (.+) \|$")


def rows() -> list[tuple[str, str]]:
    """Give the number of each failure, and what is said to hold it off."""
    text = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    return [(found[1], found[2]) for line in text.splitlines() if (found := ROW.match(line))]


def written() -> set[str]:
    """Name every test function of the tests and of the kit."""
    names = set()
    for folder in (ROOT / "tests", ROOT / "oqron_core" / "testing"):
        for path in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    names.add(node.name)
    return names


def test_every_failure_is_there_once_and_in_order() -> None:
    """A number says which one is meant, also years later."""
    numbers = [number for number, _ in rows()]

    assert 140 == len(numbers)
    assert sorted(set(numbers)) == numbers


def test_every_failure_names_tests_that_exist() -> None:
    """Or says why it cannot happen here."""
    known = written()
    found = {
        number: [name for name in re.findall(r"`([^`]+)`", held) if name not in known]
        for number, held in rows()
        if not held.startswith("does not apply: ")
    }

    assert {} == {number: names for number, names in found.items() if names}
    assert all(re.search(r"`test_\w+`", held) for _, held in rows() if "apply" not in held)
