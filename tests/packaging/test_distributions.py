"""The distributions: what is in them, what they say of themselves, and that they work alone."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from packaging.requirements import Requirement
from packaging.version import Version


ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(300)


class Distribution(NamedTuple):
    """A distribution of this repository: its name, folder and import package."""

    name: str
    folder: Path
    package: str

    @property
    def metadata(self) -> dict[str, Any]:
        """The ``[project]`` table."""
        text = (self.folder / "pyproject.toml").read_text(encoding="utf-8")
        project: dict[str, Any] = tomllib.loads(text)["project"]
        return project

    @property
    def sources(self) -> set[str]:
        """Every file of the package, relative to the folder."""
        return {
            str(path.relative_to(self.folder))
            for path in (self.folder / self.package).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }


DISTRIBUTIONS = [
    Distribution("oqron-core", ROOT, "oqron_core"),
    *(
        Distribution(folder.name, folder, folder.name.replace("-", "_"))
        for folder in sorted((ROOT / "plugins").iterdir())
    ),
]

BACKENDS = {"oqron-memory", "oqron-postgres", "oqron-redis"}

each = pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda one: one.name)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist of each, and the wheel of each from its sdist."""
    folder = tmp_path_factory.mktemp("dist")
    for distribution in DISTRIBUTIONS:
        subprocess.run(
            [
                *(sys.executable, "-P", "-m", "build", "--no-isolation"),
                *("--outdir", str(folder), str(distribution.folder)),
            ],
            check=True,
            capture_output=True,
            cwd=folder,
        )
    return folder


def wheel_of(distribution: Distribution, built: Path) -> Path:
    """Find the wheel of a distribution."""
    (wheel,) = built.glob(f"{distribution.package}-*.whl")
    return wheel


@pytest.fixture(scope="module")
def unpacked(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack all wheels into one folder, as an installation would."""
    folder = tmp_path_factory.mktemp("installed")
    for distribution in DISTRIBUTIONS:
        with zipfile.ZipFile(wheel_of(distribution, built)) as wheel:
            wheel.extractall(folder)
    return folder


@each
def test_wheel_holds_its_package_and_nothing_else(distribution: Distribution, built: Path) -> None:
    """A wheel has every file of its package, data included, its license, and no more."""
    with zipfile.ZipFile(wheel_of(distribution, built)) as wheel:
        names = set(wheel.namelist())
    info = f"{distribution.package}-{distribution.metadata['version']}.dist-info"

    assert distribution.sources == {name for name in names if not name.startswith(f"{info}/")}
    assert f"{distribution.package}/py.typed" in names
    assert f"{info}/licenses/LICENSE" in names


@each
def test_sdist_holds_what_a_wheel_is_built_from(distribution: Distribution, built: Path) -> None:
    """A source distribution has the package, its papers, and no more."""
    (file,) = built.glob(f"{distribution.package}-*.tar.gz")
    with tarfile.open(file) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    papers = {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
    allowed = papers | {".gitignore", "CHANGELOG.md"}

    assert distribution.sources | papers <= names
    assert set() == names - distribution.sources - allowed


@each
def test_license_is_the_same_everywhere(distribution: Distribution) -> None:
    """Each distribution brings the license of the repository, word for word."""
    license_text = (ROOT / "LICENSE").read_text(encoding="utf-8")

    assert license_text == (distribution.folder / "LICENSE").read_text(encoding="utf-8")
    assert "MIT" == distribution.metadata["license"]


def test_versions_are_one_number() -> None:
    """All distributions are released together, so they carry one version."""
    assert 1 == len({distribution.metadata["version"] for distribution in DISTRIBUTIONS})


def test_ranges_hold_this_version_and_end_before_the_next_minor() -> None:
    """Core's extras and the plugins' dependencies accept this release and not the next."""
    requirements = []
    for distribution in DISTRIBUTIONS:
        metadata = distribution.metadata
        extras = metadata.get("optional-dependencies", {}).values()
        lines = itertools.chain(metadata["dependencies"], *extras)
        requirements += [Requirement(line) for line in lines if line.startswith("oqron")]
    version = Version(DISTRIBUTIONS[0].metadata["version"])
    following = f"{version.major}.{version.minor + 1}.0"

    assert len(DISTRIBUTIONS) <= len(requirements)
    assert [] == [str(r) for r in requirements if not r.specifier.contains(version)]
    assert [] == [str(r) for r in requirements if r.specifier.contains(following)]


def test_no_plugin_asks_for_an_extra_of_core() -> None:
    """An old pip takes that from the core that is installed, and not from the checkout."""
    core, *plugins = [distribution.metadata for distribution in DISTRIBUTIONS]
    lines = [
        line
        for metadata in plugins
        for line in itertools.chain(
            metadata["dependencies"], *metadata.get("optional-dependencies", {}).values()
        )
    ]
    worker = next(metadata for metadata in plugins if metadata["name"] == "oqron-worker")

    assert [] == [line for line in lines if line.startswith("oqron-core[")]
    # So it says itself what cron text needs, and says the same.
    cron = worker["optional-dependencies"]["cron"]
    assert core["optional-dependencies"]["cron"] == cron


def test_every_mode_has_its_extra() -> None:
    """`pip install "oqron-core[MODE]"` brings the backends of that mode."""
    extras = DISTRIBUTIONS[0].metadata["optional-dependencies"]
    brought = {
        mode: {Requirement(line).name for line in extras[mode]}
        for mode in ("memory", "redis", "redis-postgres")
    }

    assert {
        "memory": {"oqron-memory"},
        "redis": {"oqron-redis"},
        "redis-postgres": {"oqron-redis", "oqron-postgres"},
    } == brought


@each
def test_python_is_the_same_everywhere(distribution: Distribution) -> None:
    """No distribution needs another Python than core does, nor promises other ones."""
    core = DISTRIBUTIONS[0].metadata

    def pythons(metadata: dict[str, Any]) -> list[str]:
        return [line for line in metadata["classifiers"] if "Python :: 3." in line]

    assert core["requires-python"] == distribution.metadata["requires-python"]
    assert pythons(core) == pythons(distribution.metadata)


@each
def test_entry_points_lead_somewhere(distribution: Distribution, unpacked: Path) -> None:
    """Every entry point of a wheel can be loaded; a backend's has the backend's name."""
    (found,) = importlib.metadata.distributions(name=distribution.name, path=[str(unpacked)])
    points: dict[str, dict[str, str]] = {}
    for point in found.entry_points:
        points.setdefault(point.group, {})[point.name] = point.value

    if distribution.name == "oqron-core":
        assert {"oqron": "oqron_core.cli:main"} == points["console_scripts"]
        assert {"oqron": "oqron_core.testing.plugin"} == points["pytest11"]
    if distribution.name in BACKENDS:
        backend = distribution.name.removeprefix("oqron-")
        assert {backend: distribution.package} == points["oqron"]
    for point in found.entry_points:
        run_alone(unpacked, f"import {point.module} as m; m.{point.attr or '__name__'}")


def run_alone(unpacked: Path, statements: str) -> str:
    """Run *statements* on the unpacked wheels, the checkout being away."""
    environment = {**os.environ, "PYTHONPATH": str(unpacked), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", statements],
        capture_output=True,
        text=True,
        cwd=unpacked.parent,
        env=environment,
        check=False,
    )

    assert 0 == done.returncode, done.stderr
    return done.stdout


IMPORT_ALL = """
import importlib, json, pkgutil, sys
package = importlib.import_module({package!r})
for module in pkgutil.walk_packages(package.__path__, {package!r} + "."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
files = [m.__file__ for n, m in sys.modules.items() if n.startswith("oqron_") and m.__file__]
print(json.dumps(files))
"""


@each
def test_every_module_imports_from_the_wheel(distribution: Distribution, unpacked: Path) -> None:
    """With the checkout away every module of a distribution imports, from its wheel."""
    files = json.loads(run_alone(unpacked, IMPORT_ALL.format(package=distribution.package)))

    assert files
    assert [] == [file for file in files if not Path(file).is_relative_to(unpacked)]


@pytest.mark.skipif(
    not os.environ.get("OQRON_TEST_INSTALLED"), reason="holds for wheels; this is an editable run"
)
@each
def test_session_tests_the_wheels_and_not_the_checkout(distribution: Distribution) -> None:
    """A session that installed wheels does not import the checkout by accident."""
    spec = importlib.util.find_spec(distribution.package)

    assert spec is not None
    assert spec.origin is not None
    assert not Path(spec.origin).is_relative_to(distribution.folder / distribution.package)
