"""What a fresh clone can rely on: the two commands, and nothing of anybody's machine."""

from __future__ import annotations

import re
import subprocess
import tomllib

from pathlib import Path

import pytest


ROOT = Path(__file__).parents[2]

# Written so that this file does not match itself.
REGISTRIES = re.compile("[p]ypi[.]org|[p]ythonhosted[.]org|[n]pmjs[.]org|[d]eb[.]debian[.]org")
MACHINE = re.compile(r"(^|[^A-Za-z0-9_.])/(work|farm|root)/[A-Za-z0-9_.]|/(home|Users)/[a-z]")
LOCKS = {"uv.lock", "poetry.lock", "pdm.lock", "pylock.toml", "Pipfile.lock"}


def listed() -> list[Path]:
    """List the files that are or would be committed."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout: what would be committed is not known")
    paths = [ROOT / name for name in done.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_no_file_names_a_registry_or_a_path_of_a_machine() -> None:
    """What is committed works elsewhere: no package registry, no folder of one machine."""
    found = []
    for path in listed():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if REGISTRIES.search(line) or MACHINE.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}")

    assert [] == found


def test_no_lock_file_is_committed() -> None:
    """Libraries are tested against what users get, and a lock names a registry."""
    assert set() == {path.name for path in listed()} & LOCKS


def test_no_database_is_committed() -> None:
    """What the demo keeps, or a server in the tests writes, is nobody else's."""
    kept = {".db", ".db-shm", ".db-wal", ".rdb", ".sqlite", ".sqlite3"}

    assert [] == [str(path) for path in listed() if path.suffix in kept]


def commands_of_readme() -> list[str]:
    """Give the shell lines of the README, in order."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:sh|shell|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def test_automation_runs_the_command_of_the_readme() -> None:
    """The README's second command, word for word, is what every change is tested by."""
    demo, tests, *_ = commands_of_readme()
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()

    assert demo.endswith("oqron demo")
    assert tests.endswith("nox -s tests")
    assert tests in script


def test_news_fragments_are_named_so_that_they_are_found() -> None:
    """Every fragment has a type and a section that the configuration knows."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    kinds = {kind["directory"] for kind in settings["towncrier"]["type"]}
    sections = {section["path"] for section in settings["towncrier"]["section"]}
    folder = ROOT / settings["towncrier"]["directory"]

    fragments = [path for path in folder.rglob("*.md") if path.name != "README.md"]

    assert fragments
    for path in fragments:
        assert re.fullmatch(r"[a-z0-9-]+\.[a-z]+\.md", path.name), path
        assert path.name.split(".")[1] in kinds, path
        assert path.parent.relative_to(folder).as_posix().replace(".", "") in sections, path


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_between_papers_lead_somewhere(name: str) -> None:
    """Every relative link of the papers at the top names a file that is there."""
    text = (ROOT / name).read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)

    assert [] == [target for target in targets if not (ROOT / target).exists()]
