"""What the public forge runs: sessions that exist, on every Python, with least rights."""

from __future__ import annotations

import ast
import re
import tomllib

from pathlib import Path

import pytest


ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
NAMES = ["ci.yml", "release.yml"]

# Read as text: there is no YAML in the standard library, and these are facts of lines.


def workflow(name: str) -> str:
    """Read a workflow, without its comments."""
    text = (WORKFLOWS / name).read_text(encoding="utf-8")
    return re.sub(r"(^|\s)#.*", "", text)


def items(text: str) -> list[str]:
    """Give the items of a list in brackets."""
    return [item.strip().strip("\"'") for item in text.split(",")]


def sessions() -> set[str]:
    """Name the sessions of the noxfile."""
    tree = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any("nox.session" in ast.unparse(one) for one in node.decorator_list)
    }


def named() -> set[str]:
    """Name the sessions that a workflow runs."""
    text = "\n".join(workflow(name) for name in NAMES)
    found = set()
    for words in re.findall(r"nox -s ((?:[\w-]+ ?)+)", text):
        found |= {word for word in words.split() if not word.startswith("-")}
    for words in re.findall(r"^ +session: \[(.+)\]$", text, re.MULTILINE):
        found |= set(items(words))
    return found


def test_every_session_that_a_workflow_runs_exists() -> None:
    """Renaming a session is noticed here, and not on the forge."""
    assert set() == named() - sessions()


def test_the_workflows_run_what_a_change_and_a_release_need() -> None:
    """No session of these is left out."""
    wanted = {"tests", "lint", "typing", "docs", "contract", "minimums", "packaging"}

    assert set() == (wanted | {"compatibility", "dist"}) - named()


def test_every_python_that_is_promised_is_tested() -> None:
    """The matrix is what the classifiers say."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = [
        found[1]
        for line in project["classifiers"]
        if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line))
    ]

    [matrix] = re.findall(r"^ +python: \[(.+)\]$", workflow("ci.yml"), re.MULTILINE)
    assert promised == items(matrix)


def test_the_forge_runs_the_command_of_the_readme() -> None:
    """Word for word, as a step of its own."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    [command] = re.findall(r"^.*nox -s tests$", readme, re.MULTILINE)

    assert f"      - run: {command}\n" in workflow("ci.yml")


def test_the_contract_runs_on_every_server_that_is_promised() -> None:
    """From the oldest to the newest of each; through the variables that the tests read."""
    text = workflow("ci.yml")
    servers = set(re.findall(r"(?:redis|postgres): \"([^\"]+)\"", text))
    fixtures = (ROOT / "tests" / "fix_servers.py").read_text(encoding="utf-8")

    redis = (r"redis:6\.2", r"redis:7(\.\d)?", r"redis:8(\.\d)?")
    valkey = (r"valkey/valkey:7\.2", r"valkey/valkey:8(\.\d)?", r"valkey/valkey:9(\.\d)?")

    for wanted in (*redis, *valkey, "15", "18"):
        assert any(re.fullmatch(wanted, server) for server in servers), wanted
    for variable in re.findall(r"^ +(OQRON_\w+): ", text, re.MULTILINE):
        assert f'"{variable}"' in fixtures
    assert 2 == text.count("OQRON_TEST_")


@pytest.mark.parametrize("name", NAMES)
def test_a_workflow_may_read_and_no_more(name: str) -> None:
    """Only publishing has another right, to say who it is."""
    text = workflow(name)
    rights = re.findall(r"^ +([\w-]+): (read|write|none)\s*$", text, re.MULTILINE)

    assert "\npermissions:\n  contents: read\n" in text
    more = [("id-token", "write")] if name == "release.yml" else []
    assert [("contents", "read"), *more] == rights
    assert "secrets." not in text


@pytest.mark.parametrize("name", NAMES)
def test_every_action_has_a_major_version(name: str) -> None:
    """None moves from one major version to the next by itself."""
    uses = [used for used in re.findall(r"uses: (\S+)", workflow(name)) if used[0] != "."]

    assert uses
    assert [] == [used for used in uses if not re.search(r"@(release/)?v\d+$", used)]


@pytest.mark.parametrize("name", NAMES)
def test_no_command_of_a_workflow_is_made_of_what_others_write(name: str) -> None:
    """A name of a branch or a title is never part of a line that a shell reads."""
    runs = re.findall(r"run: (.+)", workflow(name))

    assert runs
    assert {"matrix.session"} >= {
        inside for line in runs for inside in re.findall(r"\$\{\{ (.+?) \}\}", line)
    }
