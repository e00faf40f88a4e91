"""A generated distribution installs, is found, is clean, and says what is to be written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

from pathlib import Path

import pytest

from click.testing import CliRunner

from oqron_core.cli._app import cli
from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import Broker, Cache, Counters, DurablePlane, HotPlane, LiveRuns, Locks
from oqron_core.planes import Signals as SignalsABC
from oqron_core.scaffold import generate, planned


ROOT = Path(__file__).parents[2]
SETS = [("hot", "durable"), ("durable",), ("hot",)]
ABCS = {
    "hot": (Broker, Locks, Counters, Cache, LiveRuns, SignalsABC, HotPlane),
    "durable": (DurablePlane,),
}
READY = {"scope", "capabilities"}
"""What a generated plane has already."""


def run(
    *command: str | Path, cwd: Path, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program of this Python."""
    env = dict(os.environ)
    env.pop("PYTEST_ADDOPTS", None)
    if path is not None:
        env["PYTHONPATH"] = str(path)
    return subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        cwd=cwd, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip


def outside(folder: Path) -> None:
    """Make a folder a root of its own: not one under the settings of this project."""
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")


def install(folder: Path, target: Path) -> None:
    """Install a distribution into a folder, with what is here and nothing else."""
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    found = run("pip", "install", *options, "--target", target, folder, cwd=target.parent)
    assert 0 == found.returncode, found.stderr


# --- names and files ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "backend", "distribution", "package"),
    [
        ("dynamo", "dynamo", "oqron-dynamo", "oqron_dynamo"),
        ("oqron-dynamo", "dynamo", "oqron-dynamo", "oqron_dynamo"),
        ("flat-files", "flat_files", "oqron-flat-files", "oqron_flat_files"),
    ],
)
def test_one_name_gives_the_others(
    given: str, backend: str, distribution: str, package: str
) -> None:
    plan = planned(given)

    assert (backend, distribution, package) == (plan.backend, plan.distribution, plan.package)
    assert f'{backend} = "{package}"' in plan.files["pyproject.toml"]


@pytest.mark.parametrize(
    "name", ["", "Dynamo", "1st", "a b", "a--b", "-a", "a/b", "../a", "class", "é", "x" * 41]
)
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidValueError, match="name"):
        planned(name)


@pytest.mark.parametrize("planes", [(), ("warm",), ("hot", "cold")])
def test_unknown_planes_are_refused(planes: tuple[str, ...]) -> None:
    with pytest.raises(InvalidValueError, match="planes"):
        planned("dynamo", planes=planes)


def test_nothing_is_written_over(tmp_path: Path) -> None:
    """A folder that is there stays as it is."""
    (tmp_path / "oqron-dynamo").mkdir()
    with pytest.raises(FileExistsError):
        generate(planned("dynamo", directory=tmp_path))

    assert [] == [*(tmp_path / "oqron-dynamo").iterdir()]


@pytest.mark.parametrize("planes", SETS, ids="-".join)
def test_every_method_of_the_contract_is_there_to_be_written(planes: tuple[str, ...]) -> None:
    """And no other file speaks of the plane that is left out."""
    plan = planned("dynamo", planes=planes)
    text = "\n".join(plan.files.values())

    for plane, abcs in ABCS.items():
        for abc in abcs:
            for method in abc.__abstractmethods__ - READY:
                stub = f'raise NotImplementedError("{abc.__name__}.{method}")'
                assert (plane in planes) is (stub in text), stub
        assert (plane in planes) is (f"_register_{plane}_planes" in text)


# --- the command ----------------------------------------------------------------------


def test_the_command_says_what_it_made(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        cli, ["new-plugin", "dynamo", "--planes", "durable", "--directory", str(tmp_path), "--json"]
    )
    document = json.loads(result.stdout)

    assert ("dynamo", ["durable"]) == (document["backend"], document["planes"])
    folder = Path(document["folder"])
    assert sorted(document["files"]) == sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
    )


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["Not A Name"], 2, "is no name for a backend"),
        (["dynamo", "--planes", "warm"], 2, "planes"),
        (["there"], 1, "is there already"),
    ],
)
def test_the_command_refuses_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], status: int, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "oqron-there").mkdir()
    result = CliRunner().invoke(cli, ["new-plugin", *arguments])

    assert (status, "") == (result.exit_code, result.stdout)
    assert told in result.stderr
    assert 1 == len(result.stderr.splitlines())


# --- what is generated is whole ----------------------------------------------------------


@pytest.mark.parametrize("planes", SETS, ids="-".join)
def test_what_is_generated_is_clean(tmp_path: Path, planes: tuple[str, ...]) -> None:
    """For ruff, by the rules of this project and by its own, and in its format."""
    pytest.importorskip("ruff")
    plan = planned("flat-files", planes=planes, directory=tmp_path)
    generate(plan)
    for config in (ROOT / "pyproject.toml", plan.folder / "pyproject.toml"):
        for command in (("check",), ("format", "--check")):
            found = run("ruff", *command, "--config", config, "--no-cache", ".", cwd=plan.folder)
            assert 0 == found.returncode, found.stdout + found.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("planes", SETS, ids="-".join)
def test_what_is_generated_type_checks(tmp_path: Path, planes: tuple[str, ...]) -> None:
    """With mypy --strict, against the core that is installed."""
    pytest.importorskip("mypy")
    plan = planned("dynamo", planes=planes, directory=tmp_path)
    generate(plan)
    found = run(
        "mypy", "--strict", "--cache-dir", tmp_path / "cache", plan.package, cwd=plan.folder
    )

    assert 0 == found.returncode, found.stdout + found.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("planes", SETS, ids="-".join)
def test_its_conformance_run_names_the_methods_to_write(
    tmp_path: Path, planes: tuple[str, ...]
) -> None:
    """Installed apart, listed, and failing with NotImplementedError and nothing else."""
    plan = planned("dynamo", planes=planes, directory=tmp_path)
    generate(plan)
    target = tmp_path / "target"
    install(plan.folder, target)

    listed = run("oqron_core.cli", "plugins", "--json", cwd=tmp_path, path=target)
    [mine] = [one for one in json.loads(listed.stdout)["items"] if one["name"] == "dynamo"]
    assert (True, sorted(planes)) == (mine["ok"], sorted(mine["planes"]))
    report = tmp_path / "report.xml"
    ran = run(
        "pytest", "-q", "-p", "no:cacheprovider", "--tb=line", f"--junitxml={report}",
        plan.folder / "tests", cwd=plan.folder, path=target,
    )  # fmt: skip
    suite = ET.parse(report).getroot()  # noqa: S314 - pytest's own
    failed = {
        case.get("name"): failure.get("message") or ""
        for case in suite.iter("testcase")
        for failure in case.iter("failure")
    }
    # It sees a wait that ended, and asks first whether it was cancelled.
    failed.pop("test_a_cancelled_wait_leaves_no_trace", None)
    missing = {told.partition(": ")[2] for told in failed.values()}

    assert 1 == ran.returncode, ran.stdout[-3000:] + ran.stderr
    assert {"NotImplementedError"} == {told.partition(":")[0] for told in failed.values()}
    assert [] == [*suite.iter("error")]
    named = {
        f"{abc.__name__}.{method}"
        for plane in planes
        for abc in ABCS[plane]
        for method in abc.__abstractmethods__ - READY
    }
    assert missing <= named
    # A method that is only ever called after another one shows when that is written.
    assert len(missing) >= len(named) // 2


# --- the page for authors -----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_backend_of_the_authors_page_meets_the_contract(tmp_path: Path) -> None:
    """What a reader of docs/authors types is handed to the kit, all of it."""
    outside(tmp_path)
    page = (ROOT / "docs" / "authors" / "in-an-hour.md").read_text(encoding="utf-8")
    fences = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    module = "\n".join(fence for fence in fences if "async with (\n" not in fence)
    (tmp_path / "files_of_the_page.py").write_text(module, encoding="utf-8")
    (tmp_path / "test_page.py").write_text(
        "import tempfile\n\n"
        "import files_of_the_page\n\n"
        "from oqron_core.testing.contracts import DurablePlaneContract\n\n\n"
        "class TestFiles(DurablePlaneContract):\n"
        '    backend = "files"\n'
        "    plugin = files_of_the_page\n\n"
        "    def settings(self):\n"
        f"        return {{'folder': tempfile.mkdtemp(dir={str(tmp_path)!r})}}\n",
        encoding="utf-8",
    )
    ran = run("pytest", "-q", "-p", "no:cacheprovider", "test_page.py", cwd=tmp_path)

    assert 0 == ran.returncode, ran.stdout[-4000:]
    assert "3 capabilities undeclared" in ran.stdout


def test_a_report_that_ends_in_md_is_a_table(tmp_path: Path) -> None:
    """Results and capabilities, one row a backend, from any folder."""
    outside(tmp_path)
    (tmp_path / "test_outside.py").write_text(
        "from oqron_core.testing.contracts import DurablePlaneContract, HotPlaneContract\n\n\n"
        "class TestOutside(HotPlaneContract, DurablePlaneContract):\n"
        '    backend = "memory"\n',
        encoding="utf-8",
    )
    options = ("-q", "-p", "no:cacheprovider", "-k", "is_what_it_says or share", "--tb=short")
    ran = run("pytest", *options, "--oqron-report=report.md", cwd=tmp_path)
    lines = (tmp_path / "report.md").read_text(encoding="utf-8").splitlines()

    assert 0 == ran.returncode, ran.stdout[-3000:]
    [row] = [line for line in lines if line.startswith("| memory | ok |")]
    assert "`durable.shared`, `hot.shared`" in row
    assert "| capability | memory, hot | memory, durable |" in lines
    assert "| `durability` | process | process |" in lines
    assert "| `atomic` | yes | yes |" in lines
    assert {line.count("|") for line in lines if line.startswith("| `")} == {4}
