"""
The one way to run every check: ``nox -s NAME``, with arguments after ``--``.

Sessions test what users install: wheels are built of all distributions, the
checkout is off the path, and nothing is taken from it but the tests. ``nox -l`` lists
the sessions, ``nox`` alone runs the quick ones. Programs of other Pythons are used
where they are found; nothing is downloaded but packages.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import zipfile

from pathlib import Path

import nox

from nox.command import CommandFailed
from packaging.requirements import Requirement


nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.download_python = "never"
nox.options.error_on_external_run = True
nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["lint", "typing", "tests", "docs"]

ROOT = Path(__file__).parent
PROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
PLUGINS = sorted((ROOT / "plugins").iterdir())
PACKAGES = ["oqron_core", *(f"{p.relative_to(ROOT)}/{p.name.replace('-', '_')}" for p in PLUGINS)]

DEFAULT = platform.python_version().rpartition(".")[0]
PYTHONS = sorted({*nox.project.python_versions(PROJECT), DEFAULT}, key=lambda v: int(v[2:]))

# What says the same on every Python in full, and what is worth a run on each.
QUICK = ["tests/core", "tests/contract", "tests/memory"]
QUICK += sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/modes/test_memory_*.py"))


def _find_pythons() -> None:
    """
    Put pyenv's Pythons on the PATH.

    Its shims are there for all of them, but only run those that are switched on.
    """
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for wanted in PYTHONS:
        program = shutil.which(f"python{wanted}")
        if program and subprocess.run([program, "-V"], capture_output=True, check=False).returncode:
            for found in versions.glob(f"{wanted}.*/bin"):
                os.environ["PATH"] = f"{found}{os.pathsep}{os.environ['PATH']}"


_find_pythons()


def group(*names: str) -> list[str]:
    """Give the requirements of dependency groups."""
    return list(nox.project.dependency_groups(PROJECT, *names))


def tools(*names: str) -> list[str]:
    """Give the requirements of groups whose versions decide what they find."""
    return ["-c", "constraints.txt", *group(*names)]


WHEELS: dict[Path, Path] = {}
"""The wheel of each distribution: they are for any Python, so one build is for all sessions."""


def build_wheels(session: nox.Session) -> dict[Path, Path]:
    """Build all distributions, unless a session of this run has."""
    if WHEELS and all(wheel.exists() for wheel in WHEELS.values()):
        return WHEELS
    folder = Path(session.create_tmp()).resolve() / "wheels"
    shutil.rmtree(folder, ignore_errors=True)
    projects = {
        place: nox.project.load_toml(place / "pyproject.toml") for place in (ROOT, *PLUGINS)
    }
    # What builds them is fetched once, and is not among what is installed for the tests.
    needed = {line for project in projects.values() for line in project["build-system"]["requires"]}
    tools = str(folder / "tools")
    session.run("pip", "install", "-q", "--target", tools, *sorted(needed))
    session.run(
        *("pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder)),
        *map(str, projects),
        env={"PYTHONPATH": tools},
    )
    for place, project in projects.items():
        (wheel,) = folder.glob(f"{project['project']['name'].replace('-', '_')}-*.whl")
        WHEELS[place] = wheel
    return WHEELS


def install_wheels(session: nox.Session, *requirements: str) -> None:
    """Install all distributions, built anew, and their extras with *requirements*."""
    wanted = []
    names = []
    for place, wheel in build_wheels(session).items():
        project = nox.project.load_toml(place / "pyproject.toml")["project"]
        extras = ",".join(project.get("optional-dependencies", {}))
        names.append(project["name"])
        wanted.append(f"{wheel}[{extras}]" if extras else str(wheel))
    # A session that is used again has the same version already, of older code.
    session.run_install("pip", "uninstall", "-q", "-y", *names, silent=True)
    session.install(*wanted, *requirements)
    use_installed(session)


def use_installed(session: nox.Session) -> None:
    """Let what runs from here on import what is installed, and not the checkout."""
    # Without this, `python -m` puts the checkout before the wheels.
    session.env["PYTHONSAFEPATH"] = "1"
    session.env["OQRON_TEST_INSTALLED"] = "1"
    session.env["OQRON_TEST_REQUIRE_SERVERS"] = "1"
    # Every test that starts a process would compile all that it imports once more.
    session.env["PYTHONDONTWRITEBYTECODE"] = ""


@nox.session
def demo(session: nox.Session) -> None:
    """Work a sample of jobs in memory mode, and show what a person would look at."""
    install_wheels(session)
    session.run("oqron", "demo", *session.posargs)


# Most of a test of a server is waiting for it, so four at a time keep two cores busy.
SPREAD = ["-n", "4", "--dist", "worksteal", "-m", "not matrix"]
FAST = "not matrix and not slow"


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Test: everything on the Python that runs nox, what is quick of the core on the others."""
    install_wheels(session, *group("test"))
    # Every process has to collect the same tests in the same order.
    session.env["PYTHONHASHSEED"] = "0"
    if session.posargs:
        session.run("pytest", *session.posargs)
        return
    chosen = SPREAD if session.python == DEFAULT else [*SPREAD[:4], "-m", FAST, *QUICK]
    try:
        session.run("pytest", *chosen)
    except CommandFailed:
        # Four at a time on real servers and real clocks can starve one another. What
        # failed has to pass alone, or it has failed.
        session.log("once more, one at a time: what failed beside the others")
        session.run("pytest", "--last-failed", "--last-failed-no-failures", "none")


@nox.session
def minimums(session: nox.Session) -> None:
    """Test the core and memory with the oldest dependencies that are allowed."""
    floors = Path(session.create_tmp()) / "floors.txt"
    project = PROJECT["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["cli"]]
    for plugin in PLUGINS:
        wanted += nox.project.load_toml(plugin / "pyproject.toml")["project"]["dependencies"]
    pins = [
        re.sub(r"^([\w-]+)(\[.*\])?>=([\w.]+).*", r"\1==\3", line)
        for line in wanted
        if not line.startswith("oqron")
    ]
    floors.write_text("\n".join(pins), encoding="utf-8")
    install_wheels(session, "-c", str(floors), *group("test"))
    session.run("pytest", *(session.posargs or QUICK))


@nox.session
def contract(session: nox.Session) -> None:
    """Run every contract on every server and client; ``-- --oqron-report=FILE`` writes JSON."""
    install_wheels(session, *group("test"))
    session.env["PYTHONHASHSEED"] = "0"
    found = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("tests/*/test_contract.py"))]
    places = ["tests/contract", "tests/modes", *found]
    session.run("pytest", *SPREAD[:4], *places, *session.posargs)


@nox.session
def deep(session: nox.Session) -> None:
    """Try every crash point, and many lives, where ``tests`` tries a sample; takes hours."""
    install_wheels(session, *group("test"))
    session.env["PYTHONHASHSEED"] = "0"
    session.env["OQRON_TEST_CRASH_POINTS"] = "all"
    session.env["OQRON_TEST_DEPTH"] = os.environ.get("OQRON_TEST_DEPTH", "20")
    places = ["tests/reliability", "tests/sqlite/test_modes.py"]
    session.run("pytest", *SPREAD[:4], *(session.posargs or places))


@nox.session
def compatibility(session: nox.Session) -> None:
    """Run the contract of the plugins as last released, with the core of this checkout."""
    folder = Path(session.create_tmp()) / "released"
    shutil.rmtree(folder, ignore_errors=True)
    found = {plugin.name: released(session, plugin.name, folder) for plugin in PLUGINS}
    wheels = {name: wheel for name, wheel in found.items() if wheel is not None}
    names = [name.removeprefix("oqron-") for name in wheels]
    files = [f"tests/{one}/test_contract.py" for one in names]
    files += [f"tests/contract/test_{one}.py" for one in names]
    places = [path for path in files if Path(path).exists()]
    if not places:
        session.log("there is no release yet that takes this core: nothing to compare with")
        return
    session.run("pip", "wheel", "-q", "--no-deps", "-w", str(folder / "core"), str(ROOT))
    (core,) = map(str, (folder / "core").glob("*.whl"))
    session.install(f"{core}[cli,cron,testing]", *wheels.values(), *group("test"))
    session.install("--force-reinstall", "--no-deps", core, *wheels.values())
    use_installed(session)
    session.env["PYTHONHASHSEED"] = "0"
    # These import every backend.
    modes = ["tests/modes"] if len(wheels) == len(PLUGINS) else []
    session.run("pytest", *SPREAD[:4], *places, *modes, *session.posargs)


def released(session: nox.Session, name: str, folder: Path) -> str | None:
    """Download the last released wheel of a plugin, if there is one that takes this core."""
    said = session.run(
        *("pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(folder)),
        name,
        silent=True,
        success_codes=[0, 1],
    )
    wheels = [*folder.glob(f"{name.replace('-', '_')}-*.whl")]
    if not wheels:
        # Where the index does not answer, pip says both.
        if "No matching distribution found" not in str(said) or "Retrying" in str(said):
            session.error(f"{name} could not be looked for: {said}")
        session.log(f"{name}: not released yet")
        return None
    core = PROJECT["project"]["version"]
    wanted = [one.specifier for one in requirements(wheels[0]) if one.name == "oqron-core"]
    # A package of that name which wants no core of ours is somebody else's.
    if not wanted or not all(one.contains(core, prereleases=True) for one in wanted):
        session.log(f"{wheels[0].name} takes oqron-core {wanted}, which {core} is not")
        return None
    return str(wheels[0])


def requirements(wheel: Path) -> list[Requirement]:
    """Give what a wheel says that it requires."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    mark = "Requires-Dist: "
    return [Requirement(line.removeprefix(mark)) for line in lines if line.startswith(mark)]


@nox.session
def coverage(session: nox.Session) -> None:
    """Run everything and show the lines that no test reaches."""
    install_wheels(session, *group("test"))
    session.env["COVERAGE_FILE"] = str(Path(session.create_tmp()) / "coverage")
    # Not as a plugin of pytest: the kit is one, and is imported before it would start.
    session.run("coverage", "run", "-m", "pytest", *session.posargs)
    session.run("coverage", "combine", "-q")
    session.run("coverage", "report")


@nox.session
def lint(session: nox.Session) -> None:
    """Check the rules, the form and the spelling; ``-- --fix`` mends what it can."""
    session.install(*tools("lint"))
    fix = "--fix" in session.posargs
    session.run("ruff", "check", *(["--fix"] if fix else []), ".")
    session.run("ruff", "format", *([] if fix else ["--check"]), ".")
    session.run("codespell")
    session.run("towncrier", "build", "--draft", "--version", "next", silent=True)


@nox.session
def typing(session: nox.Session) -> None:
    """Check the types with mypy and pyright, and that the public ones are annotated."""
    install_wheels(session, *tools("typing", "test"))
    session.run("mypy", *(session.posargs or [*PACKAGES, "noxfile.py", "tests/typing"]))
    session.run("pyright", *session.posargs)
    if not session.posargs:
        session.run("pytest", "tests/docs/test_tutorial.py", "-k", "type_checker")
        no_unknown_types(session)


def no_unknown_types(session: nox.Session) -> None:
    """Fail where a public type is unknown, or left for each type checker to infer."""
    said = session.run(
        "pyright",
        "--outputjson",
        "--verifytypes",
        "oqron_core",
        "--ignoreexternal",
        silent=True,
        success_codes=[0, 1],
    )
    told = json.loads(str(said))["typeCompleteness"]
    counts = told["exportedSymbolCounts"]
    session.log(f"public types: {counts}, score {told['completenessScore']:.2f}")
    # Where the package is not found at all, nothing is unknown either.
    if counts["withUnknownType"] or counts["withAmbiguousType"] or not counts["withKnownType"]:
        names = [one["name"] for one in told["symbols"] if not one["isTypeKnown"]]
        session.error(f"public types that have to be annotated: {', '.join(names) or 'all'}")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation; a warning is an error."""
    install_wheels(session, *tools("docs"))
    output = session.posargs or ["docs/_build/html"]
    session.run("sphinx-build", "-n", "-W", "--keep-going", "-q", "docs", *output)


@nox.session
def packaging(session: nox.Session) -> None:
    """Build every distribution, and import each from its wheel with the checkout away."""
    install_wheels(session, *group("test"))
    session.run("pytest", "tests/packaging", *session.posargs)


@nox.session
def dist(session: nox.Session) -> None:
    """Build every sdist and wheel into dist/; ``-- --tag vX.Y.Z`` must name their version."""
    version = PROJECT["project"]["version"]
    tag = session.posargs[1] if session.posargs[:1] == ["--tag"] else f"v{version}"
    if tag != f"v{version}":
        session.error(f"the tag is {tag}, but the distributions are of version {version}")
    session.install("build>=1.2")
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    for place in (ROOT, *PLUGINS):
        session.run("python", "-m", "build", "--outdir", str(ROOT / "dist"), str(place))
    session.log(f"built: {', '.join(sorted(path.name for path in (ROOT / 'dist').iterdir()))}")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure, beside what it is built on: all, or ``-- bench/NAME.py`` with arguments."""
    install_wheels(session, *group("test"))
    if session.posargs:
        session.run("python", *session.posargs)
        return
    for script in sorted(ROOT.glob("bench/*.py")):
        session.run("python", str(script.relative_to(ROOT)))


@nox.session
def chaos(session: nox.Session) -> None:
    """Kill workers and servers for ``-- --seconds N``, and look for what is lost or doubled."""
    install_wheels(session, *group("test"))
    session.run("python", "tests/reliability/chaos/run.py", *session.posargs)


@nox.session
def longrun(session: nox.Session) -> None:
    """Do a million jobs in each mode, or ``-- --jobs N --mode M``, and look for what grows."""
    install_wheels(session, *group("test"))
    session.run("python", "tests/reliability/longrun.py", *session.posargs)
