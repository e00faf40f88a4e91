"""The pages of reference are complete, and say what the code says."""

from __future__ import annotations

import re
import runpy

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from oqron_core import CatchUp, JobStatus, Mode, RunStatus, Settings, exceptions
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


def rows_of(text: str) -> list[str]:
    """Give the rows of all tables."""
    return [line for line in text.splitlines() if line.startswith("|")]


def test_the_settings_page_is_what_the_classes_say() -> None:
    """Who changes a setting runs docs/generate_settings.py."""
    made = runpy.run_path(str(DOCS / "generate_settings.py"))["settings_page"]()

    assert made == page("settings.md")


def test_the_page_of_modes_is_what_the_planes_declare(redis_url: str, postgres_url: str) -> None:
    """Who changes what a backend declares, or `oqron plan`, runs docs/generate_modes.py."""
    made = runpy.run_path(str(DOCS / "generate_modes.py"))["modes_page"](redis_url, postgres_url)

    assert made == page("modes.md")


@pytest.mark.parametrize("path", ["README.md", "docs/howto/choose-a-mode.md", "docs/modes.md"])
def test_every_mode_is_in_every_table_of_modes(path: str) -> None:
    """A mode that is shipped is one that is found."""
    cells = re.findall(r"`([\w-]+)`", "\n".join(rows_of((ROOT / path).read_text("utf-8"))))

    assert set(Mode) <= set(cells)


def test_every_mode_is_in_the_glossary() -> None:
    """The word stands for these, and no others."""
    said = page("glossary.md").partition("\nmode\n")[2].partition("\n\n")[0]

    assert set(Mode) == set(re.findall("`(.+?)`", said))


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
    """Name every command that does something, those of installed plugins as well."""
    if not isinstance(command, click.Group):
        return [path]
    # Asked as the program asks, since what plugins bring is found only then.
    context = click.Context(command)
    return [
        found
        for name in sorted(command.list_commands(context))
        if (inner := command.get_command(context, name)) is not None
        for found in command_paths(inner, f"{path} {name}")
    ]


def test_every_command_is_in_the_reference() -> None:
    """Spelt whole, or after a dot in the row of its group; those of our plugins are there."""
    text = page("cli.md")
    paths = command_paths(cli)

    def is_named(path: str) -> bool:
        group, _, name = path.rpartition(" ")
        rows = [line for line in text.splitlines() if re.search(rf"`{group}[ `]", line)]
        spelt = re.search(rf"`{path}[ `]", text)
        return bool(spelt) or any(re.search(rf"· `{name}[ `]", row) for row in rows)

    assert {"oqron schema apply", "oqron migrate-v1", "oqron worker", "oqron work"} <= set(paths)
    assert [] == [path for path in paths if not is_named(path)]


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


def test_the_page_of_modes_is_not_made_without_its_servers() -> None:
    """Where a plane does not open, nothing is written without what it would declare."""
    make: Callable[..., str] = runpy.run_path(str(DOCS / "generate_modes.py"))["modes_page"]

    with pytest.raises(LookupError, match="hot plane redis must open"):
        make("redis://127.0.0.1:1/0", "postgresql://127.0.0.1:1/x")
