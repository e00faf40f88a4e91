"""The pages of reference are complete, and say what the code says."""

from __future__ import annotations

import re
import runpy

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from oqron_core import CatchUp, JobStatus, RunStatus, Settings, exceptions
from oqron_core._plugins import ALLOW_VARIABLE, discover
from oqron_core.cli._app import cli
from oqron_core.config._strict import fields_of


ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


TREE = re.compile(r"^```{toctree}\n(.*?)^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def page(name: str) -> str:
    """Read a page."""
    return (DOCS / name).read_text(encoding="utf-8")


def test_the_settings_page_is_what_the_classes_say() -> None:
    """Who changes a setting runs docs/generate_settings.py."""
    made = runpy.run_path(str(DOCS / "generate_settings.py"))["settings_page"]()

    assert made == page("settings.md")


@pytest.mark.parametrize("backend", ["memory", "sqlite", "redis", "postgres"])
def test_every_setting_of_a_backend_is_on_the_settings_page(backend: str) -> None:
    """With its key, its variable or that it has none, and what it means."""
    found = discover(only=()).backend(backend)
    assert found is not None
    section = page("settings.md").partition(f"## `[{backend}]`")[2].partition("\n## ")[0]
    rows = {row[1]: row for row in re.findall(r"^(\| `(\w+)` \|.*)$", section, re.MULTILINE)}

    assert set(fields_of(found.settings)) == set(rows)
    for key, (row, _) in rows.items():
        assert f"`OQRON_{backend.upper()}__{key.upper()}`" in row or "only from code" in row
        assert len(row.rsplit("|", 2)[1]) > 10


def test_every_setting_variable_and_error_of_core_is_on_the_settings_page() -> None:
    """Nothing that core reads or raises has to be looked up in the source."""
    text = page("settings.md")
    for name, field in fields_of(Settings).items():
        inner = fields_of(field.type) if f"### `[{name}]`" in text else {}
        variables = [f"OQRON_{name}__{key}" for key in inner] or [f"OQRON_{name}"]
        for variable in variables:
            assert f"`{variable.upper()}`" in text
    for error in exceptions.__all__:
        assert f"| `{error}` |" in text
    assert f"`{ALLOW_VARIABLE}`" in text


@pytest.mark.parametrize(
    "heading, states",
    [
        ("Job", list(JobStatus)),
        ("Run", list(RunStatus)),
        ("Delivery", ["held", "waiting"]),
        ("Schedule", list(CatchUp)),
        ("Breaker", ["closed", "open", "half_open"]),
    ],
)
def test_every_state_is_on_the_page_of_state_machines(heading: str, states: list[str]) -> None:
    """Of each kind of record that has states."""
    section = page("state-machines.md").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]

    assert [] == [state for state in states if f"`{state}`" not in section]


def test_every_page_is_in_the_table_of_contents_once() -> None:
    """Nothing is found by luck alone. A folder with an index has a table of its own."""
    there = sorted(path for path in DOCS.rglob("*.md") if path != DOCS / "index.md")
    named: list[Path] = []
    for index in DOCS.rglob("index.md"):
        for tree in re.findall(
            r"^```{toctree}\n(.*?)^```", page(str(index)), re.MULTILINE | re.DOTALL
        ):
            names = re.findall(r"^([\w/-]+)$", tree, re.MULTILINE)
            named += [index.parent / f"{name}.md" for name in names]

    assert there == sorted(named)


def command_paths(command: click.Command, path: str = "oqron") -> list[str]:
    """Name every command of core that does something."""
    if not isinstance(command, click.Group):
        return [path]
    return [
        found
        for name, inner in sorted(command.commands.items())
        for found in command_paths(inner, f"{path} {name}")
    ]


def test_every_command_of_core_is_in_the_reference() -> None:
    """Spelt whole, or after a dot in the row of its group."""
    text = page("cli.md")

    def is_named(path: str) -> bool:
        group, _, name = path.rpartition(" ")
        rows = [line for line in text.splitlines() if f"`{group} " in line]
        return f"`{path}" in text or any(re.search(rf"· `{name}\b", row) for row in rows)

    assert [] == [path for path in command_paths(cli) if not is_named(path)]


def test_every_link_between_pages_leads_somewhere() -> None:
    """Also where Sphinx is not there to look."""
    targets = [
        path.parent / target
        for path in DOCS.rglob("*.md")
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", CODE.sub("", page(str(path))))
    ]

    assert targets
    assert [] == [target for target in targets if not target.exists()]


def test_every_term_that_is_used_is_in_the_glossary() -> None:
    """A word that a page leans on is explained in one place."""
    known = set(re.findall(r"^([a-z][\w /-]*)\n  \S", page("glossary.md"), re.MULTILINE))
    used: set[str] = set()
    for path in DOCS.rglob("*.md"):
        for text in re.findall(r"\{term\}`([^`]+)`", path.read_text(encoding="utf-8")):
            named = re.search(r"<(.+)>$", text)
            used.add(" ".join((named[1] if named else text).split()))

    assert used
    assert set() == used - known


def test_the_generator_refuses_to_make_half_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a backend of ours is not installed, nothing is written without it."""
    names: dict[str, Any] = runpy.run_path(str(DOCS / "generate_settings.py"))
    make: Callable[[], str] = names["settings_page"]
    monkeypatch.setenv(ALLOW_VARIABLE, "memory")

    with pytest.raises(LookupError, match="sqlite"):
        make()
