"""
Every example in the papers and the documentation runs as it is written.

The examples of one document run in order, in an empty folder:

* Python runs in this process, and the examples share their names. They may await at
  the top, as in ``python -m asyncio``.
* What begins with a comment that names a file, such as ``# worker.py``, is written to
  that file instead; a file of tests is then run by pytest.
* TOML must be TOML.

A document may ask for more, in a comment: ``<!-- examples need: redis, postgres -->``
gives servers, in the variables that settings are read from, and a database of its own
in ``DATABASE_URL``; ``cluster`` gives a Redis Cluster; with ``commands`` what stands
behind ``$ python`` and ``$ oqron`` is run, and must print what is shown. There ``…``
stands for anything, and ``^C`` interrupts what runs.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import tomllib
import uuid

from collections.abc import Iterator
from pathlib import Path

import pytest

from oqron_core.testing import servers


ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(python|toml|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NEEDS = re.compile(r"^<!-- examples need: ([\w, ]+) -->$", re.MULTILINE)
FILE = re.compile(r"# ([\w-]+\.(?:py|toml))\n")


def documents() -> list[Path]:
    """List the Markdown files that hold an example."""
    papers = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")]
    return [path for path in sorted(papers) if FENCE.search(path.read_text(encoding="utf-8"))]


def needs(path: Path) -> set[str]:
    """Give what a document asks for."""
    asked = NEEDS.findall(path.read_text(encoding="utf-8"))
    return {name.strip() for names in asked for name in names.split(",")}


@pytest.fixture(scope="module")
def cluster_url() -> Iterator[str]:
    """Give the URL of one node of a Redis Cluster."""
    try:
        with servers.redis_cluster() as cluster:
            yield cluster.nodes[0].url
    except servers.ServerNotFoundError as error:
        if os.environ.get("OQRON_TEST_REQUIRE_SERVERS"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.fixture
def database_url(postgres_url: str) -> Iterator[str]:
    """Give the URL of a database of one's own, which is empty."""
    import psycopg

    name = f"docs_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
        yield postgres_url.rpartition("/")[0] + f"/{name}"
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


@pytest.fixture
def surroundings(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    project: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """Prepare an empty folder, and the servers that the document asks for."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("OQRON_") and not name.startswith("OQRON_TEST_"):
            monkeypatch.delenv(name)
    asked = needs(request.getfixturevalue("path"))
    if "redis" in asked:
        monkeypatch.setenv("OQRON_REDIS__URL", request.getfixturevalue("redis_url"))
    if "cluster" in asked:
        monkeypatch.setenv("OQRON_REDIS__URL", request.getfixturevalue("cluster_url"))
    if "postgres" in asked:
        url = request.getfixturevalue("database_url")
        monkeypatch.setenv("OQRON_POSTGRES__URL", url)
        monkeypatch.setenv("DATABASE_URL", url)
    if asked - {"commands"}:
        # Servers are shared; the names of projects are not.
        monkeypatch.setenv("OQRON_PROJECT", project)
    return tmp_path


@pytest.mark.timeout(300)  # the tutorial starts a dozen programs
@pytest.mark.parametrize("path", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_examples_run(path: Path, surroundings: Path) -> None:
    """A reader who copies what is shown sees what is said."""
    text = path.read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "__main__"}
    run_commands = "commands" in needs(path)

    for fence in FENCE.finditer(text):
        language, example = fence.groups()
        file = FILE.match(example)
        if file is not None:
            (surroundings / file[1]).write_text(example, encoding="utf-8")
            if file[1].startswith("test_"):
                output(f"python -m pytest -q -p no:cacheprovider {file[1]}")
        if language == "toml":
            tomllib.loads(example)
        elif language == "console":
            for command, shown in commands(example) if run_commands else ():
                assert_shows(command, shown)
        elif file is None:
            # Blank lines before it, so that a traceback has the line of the document.
            above = "\n" * text[: fence.start(2)].count("\n")
            code = compile(above + example, path, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = eval(code, names)  # noqa: S307 -- our own words
            if code.co_flags & inspect.CO_COROUTINE:
                asyncio.run(result)


def commands(example: str) -> list[tuple[str, list[str]]]:
    """Give the commands of an example that can be run, each with the lines it prints."""
    found: list[tuple[str, list[str]]] = []
    for line in example.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return [one for one in found if one[0].startswith(("python ", "oqron "))]


def start(command: str) -> subprocess.Popen[str]:
    """Start a command of a document, with the Python and the packages of this test."""
    program, *arguments = shlex.split(command)
    module = ["-m", "oqron_core.cli"] if program == "oqron" else []
    # A program may import the one beside it; the checkout is nowhere near.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.Popen(
        [sys.executable, *module, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        env={**environment, "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"},
    )


def output(command: str) -> str:
    """Run a command to its end, which must be a good one, and give what it printed."""
    with start(command) as process:
        try:
            said, _ = process.communicate(timeout=50)
        except BaseException:
            process.kill()
            raise

    assert 0 == process.returncode, said
    return said


def assert_shows(command: str, shown: list[str]) -> None:
    """Run a command, interrupt it where the document does, and compare what it prints."""
    if "^C" not in shown:
        said = output(command).splitlines()
    else:
        until = shown.index("^C")
        shown = shown[:until] + shown[until + 1 :]
        said = interrupted(command, until)
    pattern = "\n".join(
        "(?s:.*)" if line == "…" else re.escape(line.rstrip()).replace("…", ".*") for line in shown
    )

    # Where nothing is shown, the document does not say what is printed.
    assert not shown or re.fullmatch(pattern, "\n".join(said)), (command, shown, said)


def interrupted(command: str, until: int) -> list[str]:
    """Run a command, interrupt it after so many lines, and give all that it printed."""
    with start(command) as process:
        assert process.stdout is not None
        watch = threading.Timer(50, process.kill)
        watch.start()
        try:
            said = [process.stdout.readline() for _ in range(until)]
            process.send_signal(signal.SIGINT)
            said += process.stdout.readlines()
            status = process.wait()
        finally:
            watch.cancel()
            process.kill()

    assert 0 == status, said
    return [line.rstrip("\n") for line in said]


def test_the_readme_is_among_them() -> None:
    """The quickstart is found, so the test above tests something."""
    assert ROOT / "README.md" in documents()


def test_the_first_forty_lines_make_three_readers_at_home() -> None:
    """A user, a backend author and a dashboard person each find themselves at the top."""
    top = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:40])

    assert "**You build or run a job system.**" in top
    assert "**You write a backend.**" in top
    assert "**You build a dashboard.**" in top
