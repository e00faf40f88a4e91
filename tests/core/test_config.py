"""Settings: one order of sources, every problem at once, and never a secret."""

from __future__ import annotations

import contextlib
import enum
import json
import os
import pickle
import subprocess
import sys
import traceback
import types

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest

from hypothesis import given
from hypothesis import strategies as st

from oqron_core._plugins import ALLOW_VARIABLE, Plugins, discover
from oqron_core.config import (
    MaintenanceSettings,
    Mode,
    Retention,
    RunSettings,
    Section,
    Settings,
    describe,
    load_settings,
    structure_section,
)
from oqron_core.config._strict import redact_url
from oqron_core.exceptions import ConfigError, InvalidValueError, PluginError
from oqron_core.hookspecs import Backend, hookimpl
from oqron_core.planes import CONTRACT_VERSION


SECRET = "hunter2"


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


@attrs.frozen
class Pool:
    size: int = attrs.field(default=5, validator=attrs.validators.ge(1))
    names: tuple[str, ...] = ()


def _short(_instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if len(value) > 10:
        msg = f"{attribute.name} is longer than 10: {value}"
        raise ValueError(msg)


@attrs.frozen
class BackendSettings:
    url: str = attrs.field(default="redis://localhost", repr=False)
    mirror_url: str | None = None
    password: str = attrs.field(default="", repr=False, validator=_short)
    table_prefix: str = attrs.field(default="oqron", validator=_short)
    pool_size: int = 10
    timeout: float = 5.0
    limit: int | None = None
    quiet: bool = False
    level: Level = Level.LOW
    flavour: Literal["sweet", "sour"] = "sweet"
    hosts: list[str] = attrs.field(factory=list)
    ports: tuple[int, ...] = ()
    options: dict[str, int] = attrs.field(factory=dict)
    pool: Pool = attrs.field(factory=Pool)
    path: Path = Path("x")
    client: Any = attrs.field(default=None, repr=False, metadata={"text": False})
    hook: Callable[[], None] | None = None


@attrs.frozen
class Needy:
    url: str
    token: str = attrs.field(repr=False)
    size: int = 1


def backend(settings: type[Any] = BackendSettings, name: str = "mine") -> Backend:
    return Backend(
        name=name,
        contract_version=CONTRACT_VERSION,
        settings=settings,
        connect=lambda _settings: contextlib.nullcontext(),
    )


@pytest.fixture
def plugins() -> Plugins:
    """Give the installed plugins and one of this process, ``mine``, on both planes."""
    made = backend()

    @hookimpl
    def oqron_register_hot_planes(register: Any) -> None:
        register(made, lambda *_: contextlib.nullcontext())

    @hookimpl
    def oqron_register_durable_planes(register: Any) -> None:
        register(made, lambda *_: contextlib.nullcontext())

    found = discover(only=())
    module = types.SimpleNamespace(
        oqron_register_hot_planes=oqron_register_hot_planes,
        oqron_register_durable_planes=oqron_register_durable_planes,
    )
    found.register(module, "mine")
    return found


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, and let nothing of this machine be a setting."""
    for name in list(os.environ):
        if name.startswith("OQRON_"):
            monkeypatch.delenv(name)
    (tmp_path / "oqron.toml").write_text("")
    (tmp_path / "pyproject.toml").write_text("[tool.oqron]\n")
    here = tmp_path / "work"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def write(folder: Path, text: str, name: str = "oqron.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def problems(
    environ: Mapping[str, str] | None = None, path: Path | None = None, **more: Any
) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_settings(path, environ=environ or {}, **more)
    return list(caught.value.problems)


# --- defaults and modes ----------------------------------------------------------


def test_the_defaults_are_the_documented_ones() -> None:
    settings = load_settings(environ={})
    assert settings == Settings()
    assert (settings.project, settings.environment) == ("default", "default")
    assert (settings.mode, settings.hot, settings.durable) == (Mode.MEMORY, "memory", "memory")
    assert settings.start_degraded is False
    assert settings.max_value_bytes == 1024 * 1024
    assert settings.close_timeout == 10.0
    assert settings.retention == Retention(
        completed_for=86400.0,
        cancelled_for=7 * 86400.0,
        dead_letters_for=90 * 86400.0,
        runs_for=30 * 86400.0,
    )
    assert settings.runs == RunSettings(
        write_every=0.1,
        durable_after=0.5,
        buffer=100_000,
        max_logs=1000,
        max_log_chars=10_000,
        max_timeline=100,
        stale_after=60.0,
    )
    assert settings.maintenance == MaintenanceSettings(every=5.0, batch=1000, leader_for=15.0)


@pytest.mark.parametrize(
    "mode, hot, durable",
    [
        ("memory", "memory", "memory"),
        ("redis", "redis", "redis"),
        ("redis-postgres", "redis", "postgres"),
    ],
)
def test_a_mode_names_a_pair_and_a_pair_its_mode(mode: str, hot: str, durable: str) -> None:
    assert (Mode(mode).hot, Mode(mode).durable) == (hot, durable)
    by_mode = load_settings(environ={}, mode=mode)
    by_pair = load_settings(environ={}, hot=hot, durable=durable)
    for settings in (by_mode, by_pair, load_settings(environ={}, mode=Mode(mode))):
        assert (settings.mode, settings.hot, settings.durable) == (Mode(mode), hot, durable)
    assert Settings(mode=Mode(mode)) == Settings(hot=hot, durable=durable)


def test_any_other_pair_has_no_mode() -> None:
    settings = load_settings(environ={}, hot="memory", durable="postgres")
    assert (settings.mode, settings.hot, settings.durable) == (None, "memory", "postgres")
    third = load_settings(environ={"OQRON_HOT": "redis", "OQRON_DURABLE": "dynamo"})
    assert (third.mode, third.hot, third.durable) == (None, "redis", "dynamo")


def test_a_durable_backend_alone_keeps_the_hot_plane_in_memory() -> None:
    settings = load_settings(environ={"OQRON_DURABLE": "postgres"})
    assert (settings.hot, settings.durable) == ("memory", "postgres")


def test_a_hot_server_alone_never_puts_the_truth_in_memory() -> None:
    (problem,) = problems({"OQRON_HOT": "redis"})
    assert problem.startswith("durable: is not set")
    assert "OQRON_HOT" in problem


@pytest.mark.parametrize(
    "given",
    [{"hot": "memory"}, {"durable": "postgres"}, {"hot": "memory", "durable": "memory"}],
)
def test_a_mode_that_contradicts_its_own_source_is_an_error(
    folder: Path, given: dict[str, Any]
) -> None:
    (problem,) = problems(mode="redis", **given)
    assert "leave one of the two out" in problem
    write(
        folder, "\n".join(f'{key} = "{value}"' for key, value in {"mode": "redis", **given}.items())
    )
    (problem,) = problems()
    assert "leave one of the two out" in problem
    assert "oqron.toml" in problem
    with pytest.raises(ConfigError, match="leave one"):
        Settings(mode=Mode.REDIS, **given)


def test_a_mode_that_repeats_its_pair_is_fine() -> None:
    settings = load_settings(environ={}, mode="redis-postgres", hot="redis")
    assert settings.durable == "postgres"


@pytest.mark.parametrize(
    "environ, arguments, pair",
    [
        ({"OQRON_MODE": "redis"}, {}, ("redis", "redis")),
        ({}, {"mode": "memory"}, ("memory", "memory")),
        ({"OQRON_HOT": "memory"}, {}, ("memory", "postgres")),
        ({"OQRON_DURABLE": "redis"}, {}, ("redis", "redis")),
        ({"OQRON_HOT": "memory"}, {"mode": "redis"}, ("redis", "redis")),
        ({"OQRON_MODE": "redis"}, {"hot": "memory"}, ("memory", "redis")),
        ({"OQRON_MODE": "memory"}, {"durable": "postgres"}, ("memory", "postgres")),
    ],
)
def test_a_higher_source_overrides_mode_and_pair_of_a_lower_one(
    folder: Path, environ: dict[str, str], arguments: dict[str, Any], pair: tuple[str, str]
) -> None:
    write(folder, 'mode = "redis-postgres"\n')
    settings = load_settings(environ=environ, **arguments)
    assert (settings.hot, settings.durable) == pair


# --- the order of sources --------------------------------------------------------


@pytest.mark.parametrize("level", range(5))
def test_the_highest_source_that_names_a_setting_wins(folder: Path, level: int) -> None:
    """Argument, environment, oqron.toml, pyproject.toml, default: each over all below."""
    arguments: dict[str, Any] = {"project": "argument"} if level <= 0 else {}
    environ = {"OQRON_PROJECT": "variable"} if level <= 1 else {}
    if level <= 2:
        write(folder, 'project = "file"\n')
    if level <= 3:
        write(folder, '[tool.oqron]\nproject = "tool"\n', "pyproject.toml")
    settings = load_settings(environ=environ, **arguments)
    assert settings.project == ["argument", "variable", "file", "tool", "default"][level]
    source = settings.sources.get("project", "default")
    expected = ["argument project", "OQRON_PROJECT", "oqron.toml", "pyproject.toml", "default"]
    assert source.endswith(expected[level])


def test_sources_are_merged_setting_by_setting(folder: Path) -> None:
    write(folder, '[retention]\ncompleted_for = 1\nruns_for = 2\n[redis]\nurl = "a"\nx = 1\n')
    write(folder, "[tool.oqron.retention]\nruns_for = 3\ncancelled_for = 4\n", "pyproject.toml")
    settings = load_settings(
        environ={"OQRON_RETENTION__COMPLETED_FOR": "5", "OQRON_REDIS__URL": "b"},
        retention={"dead_letters_for": 6},
    )
    assert settings.retention == Retention(
        completed_for=5.0, runs_for=2.0, cancelled_for=4.0, dead_letters_for=6.0
    )
    assert dict(settings.section_for("redis")) == {"url": "b", "x": 1}


def test_a_value_equal_to_the_default_still_overrides_what_is_below(folder: Path) -> None:
    write(folder, "close_timeout = 99\nstart_degraded = true\n[runs]\nbuffer = 7\n")
    settings = load_settings(
        environ={"OQRON_CLOSE_TIMEOUT": "10", "OQRON_START_DEGRADED": "false"},
        runs={"buffer": 100_000},
    )
    assert settings.close_timeout == 10.0
    assert settings.start_degraded is False
    assert settings.runs.buffer == 100_000


def test_zero_and_none_are_values_and_not_absence(folder: Path) -> None:
    write(folder, '[retention]\ncompleted_for = 0\nruns_for = "none"\n')
    settings = load_settings(
        environ={"OQRON_RETENTION__CANCELLED_FOR": "none"}, retention={"dead_letters_for": None}
    )
    assert settings.retention == Retention(
        completed_for=0.0, runs_for=None, cancelled_for=None, dead_letters_for=None
    )


def test_an_argument_of_none_is_one_that_was_not_given(folder: Path) -> None:
    write(folder, 'project = "file"\n')
    assert load_settings(environ={}, project=None, retention=None).project == "file"


def test_settings_objects_may_be_arguments() -> None:
    retention = Retention(completed_for=1.0, runs_for=None)
    settings = load_settings(environ={}, retention=retention, runs=RunSettings(buffer=9))
    assert settings.retention == retention
    assert settings.runs.buffer == 9


def test_an_empty_table_hides_nothing(folder: Path) -> None:
    write(folder, "[runs]\nbuffer = 7\n")
    assert load_settings(environ={}, runs={}).runs.buffer == 7


# --- files -----------------------------------------------------------------------


def test_the_nearest_file_is_found_from_deep_inside(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, 'project = "outer"\nenvironment = "outer"\n')
    inner = folder / "a"
    deep = inner / "b" / "c"
    deep.mkdir(parents=True)
    write(inner, 'project = "inner"\n')
    monkeypatch.chdir(deep)
    settings = load_settings(environ={})
    assert (settings.project, settings.environment) == ("inner", "default")


def test_a_pyproject_without_our_table_is_passed_by(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, '[tool.oqron]\nproject = "outer"\n', "pyproject.toml")
    inner = folder / "a"
    inner.mkdir()
    write(inner, '[project]\nname = "x"\ndependencies = ["oqron-core"]\n', "pyproject.toml")
    monkeypatch.chdir(inner)
    assert load_settings(environ={}).project == "outer"


def test_a_broken_pyproject_of_somebody_else_is_none_of_our_business(folder: Path) -> None:
    write(folder, "this is [ not toml", "pyproject.toml")
    assert load_settings(environ={}).project == "default"


def test_a_folder_of_that_name_is_no_file(folder: Path) -> None:
    (folder / "oqron.toml").mkdir()
    (folder / "pyproject.toml").mkdir()
    assert load_settings(environ={}).project == "default"


def test_an_explicit_file_is_the_only_one(folder: Path) -> None:
    write(folder, 'project = "near"\nenvironment = "near"\n')
    path = write(folder, 'project = "explicit"\n', "other.toml")
    settings = load_settings(path, environ={})
    assert (settings.project, settings.environment) == ("explicit", "default")
    assert load_settings(str(path), environ={}).project == "explicit"


def test_an_explicit_pyproject_is_read_by_its_table(folder: Path) -> None:
    path = write(folder, '[tool.oqron]\nproject = "tool"\n', "pyproject.toml")
    assert load_settings(path, environ={}).project == "tool"
    path.write_text("[project]\n")
    (problem,) = problems(path=path)
    assert "has no table [tool.oqron]" in problem


@pytest.mark.parametrize(
    "content, reason",
    [
        (None, "cannot be read: No such file"),
        (b"project = ", "is not TOML"),
        (b"project = 'a'\nproject = 'b'\n", "is not TOML"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"[redis\nurl = 'redis://:hunter2@h'", "is not TOML"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    folder: Path, content: bytes | None, reason: str
) -> None:
    path = folder / "mine.toml"
    if content is not None:
        path.write_bytes(content)
    (problem,) = problems(path=path)
    assert str(path) in problem
    assert reason in problem
    assert SECRET not in problem


def test_a_folder_given_as_the_file_is_an_error(folder: Path) -> None:
    (problem,) = problems(path=folder)
    assert "cannot be read" in problem


def test_a_working_directory_that_is_gone_has_no_files() -> None:
    program = (
        "import os, tempfile\n"
        "from oqron_core.config import load_settings\n"
        "here = tempfile.mkdtemp()\n"
        "os.chdir(here)\n"
        "os.rmdir(here)\n"
        "print(load_settings(environ={}).project)\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert shown.stdout.strip() == "default"


# --- the environment -------------------------------------------------------------


@pytest.mark.parametrize(
    "variable, text, path, value",
    [
        ("OQRON_PROJECT", "my app", "project", "my app"),
        ("OQRON_PROJECT", "none", "project", "none"),
        ("OQRON_MAX_VALUE_BYTES", "2048", "max_value_bytes", 2048),
        ("OQRON_MAX_VALUE_BYTES", "1_000_000", "max_value_bytes", 1_000_000),
        ("OQRON_CLOSE_TIMEOUT", "2", "close_timeout", 2.0),
        ("OQRON_CLOSE_TIMEOUT", "1.5", "close_timeout", 1.5),
        ("OQRON_CLOSE_TIMEOUT", "1e1", "close_timeout", 10.0),
        ("OQRON_RUNS__WRITE_EVERY", "0.25", "runs.write_every", 0.25),
        ("OQRON_MAINTENANCE__BATCH", "10", "maintenance.batch", 10),
        ("OQRON_RETENTION__RUNS_FOR", "none", "retention.runs_for", None),
        *[
            ("OQRON_START_DEGRADED", word, "start_degraded", True)
            for word in ("true", "True", "1", "yes", "on")
        ],
        *[
            ("OQRON_START_DEGRADED", word, "start_degraded", False)
            for word in ("false", "FALSE", "0", "no", "off")
        ],
    ],
)
def test_text_is_parsed_by_the_type_of_the_setting(
    variable: str, text: str, path: str, value: object
) -> None:
    found: Any = load_settings(environ={variable: text})
    for name in path.split("."):
        found = getattr(found, name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "variable, text, reason",
    [
        ("OQRON_MODE", "redis ", "white space"),
        ("OQRON_PROJECT", " x", "white space"),
        ("OQRON_PROJECT", "x\n", "white space"),
        ("OQRON_PROJECT", "", "must not be empty"),
        ("OQRON_MODE", "", "is none of"),
        ("OQRON_HOT", "", "must not be empty"),
        ("OQRON_MAX_VALUE_BYTES", "ten", "must be a whole number"),
        ("OQRON_MAX_VALUE_BYTES", "1.5", "must be a whole number"),
        ("OQRON_MAX_VALUE_BYTES", "0x10", "must be a whole number"),
        ("OQRON_MAX_VALUE_BYTES", "٣", "must be a whole number"),
        ("OQRON_MAX_VALUE_BYTES", "", "must be a whole number"),
        ("OQRON_MAX_VALUE_BYTES", "9" * 5000, "must be"),
        ("OQRON_MAX_VALUE_BYTES", "1", "must be from 1024"),
        ("OQRON_CLOSE_TIMEOUT", "nan", "finite"),
        ("OQRON_CLOSE_TIMEOUT", "inf", "finite"),
        ("OQRON_CLOSE_TIMEOUT", "-1", "must be from 0 to 3600 seconds"),
        ("OQRON_CLOSE_TIMEOUT", "10s", "must be a number"),
        ("OQRON_START_DEGRADED", "maybe", "must be true or false"),
        ("OQRON_START_DEGRADED", "none", "must be true or false"),
        ("OQRON_RETENTION", "5", "must be a table"),
        ("OQRON_RUNS__BUFFER__X", "5", "must be a whole number"),
    ],
)
def test_text_that_does_not_fit_is_an_error_with_its_variable(
    variable: str, text: str, reason: str
) -> None:
    (problem,) = problems({variable: text})
    assert reason in problem
    assert variable in problem


@pytest.mark.parametrize(
    "variable, meant",
    [
        ("OQRON_PROJCT", "OQRON_PROJECT"),
        ("OQRON_MODDE", "OQRON_MODE"),
        ("OQRON_REDIS_URL", "OQRON_REDIS__URL"),
        ("OQRON_REDSI__URL", "OQRON_REDIS__URL"),
        ("OQRON_POSTGRESS__URL", "OQRON_POSTGRES__URL"),
        ("OQRON_RUNS_BUFFER", "OQRON_RUNS__BUFFER"),
        ("OQRON_RETENTION_RUNS_FOR", "OQRON_RETENTION__RUNS_FOR"),
        ("OQRON_RUNS__BUFER", "buffer"),
        ("OQRON_PLUGIN", "OQRON_PLUGINS"),
        ("OQRON_", None),
        ("OQRON___", None),
        ("OQRON_TESTING", None),
    ],
)
def test_a_misspelt_variable_is_an_error_with_a_suggestion(
    variable: str, meant: str | None
) -> None:
    (problem,) = problems({variable: "1"})
    assert variable in problem
    if meant is not None:
        assert f'did you mean "{meant}"?' in problem


def test_a_table_that_is_set_as_a_value_is_told_beside_its_own_keys() -> None:
    (problem,) = problems({"OQRON_RUNS": "5", "OQRON_RUNS__BUFFER": "7"})
    assert problem == "runs: must be a table; set its keys [OQRON_RUNS]"


def test_other_variables_are_not_ours() -> None:
    settings = load_settings(
        environ={
            "OQRON_TEST_POSTGRES_URL": "x",
            ALLOW_VARIABLE: "memory",
            "oqron_projct": "x",
            "OQRONX": "x",
            "XOQRON_MODE": "x",
            "PATH": "x",
        }
    )
    assert settings == Settings()


def test_the_processs_own_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OQRON_PROJECT", "from-the-process")
    assert load_settings().project == "from-the-process"
    assert load_settings(environ={}).project == "default"


# --- strictness ------------------------------------------------------------------


@pytest.mark.parametrize(
    "line, reason",
    [
        ('close_timeout = "30"', "must be a number, not text"),
        ("close_timeout = true", "must be a number, not a boolean"),
        ("close_timeout = nan", "finite"),
        ("max_value_bytes = 2048.0", "must be a whole number, not a number"),
        ('max_value_bytes = "2048"', "must be a whole number, not text"),
        ("max_value_bytes = true", "must be a whole number, not a boolean"),
        ("start_degraded = 1", "must be true or false, not a whole number"),
        ('start_degraded = "true"', "must be true or false, not text"),
        ("project = 1", "must be text, not a whole number"),
        ('project = ["a"]', "must be text, not a list"),
        ("project = 2026-01-01", "must be text, not a date"),
        ('project = ""', "must not be empty"),
        ("hot = 1\ndurable = 'memory'", "must be text"),
        ("mode = 1", "is none of"),
        ("runs = 5", "must be a table, not a whole number"),
        ("runs = []", "must be a table, not a list"),
        ("[project]\nx = 1", "must be text, not a table"),
        ("[retention]\nruns_for = -1", "must be from 0"),
        ("[retention]\nruns_for = 'never'", "must be a number"),
        ("[retention]\nruns_for = 1e12", "must be from 0"),
        ("[runs]\nbuffer = 0", "must be from 1"),
        ("[maintenance]\nleader_for = 0.01", "must be from 0.05"),
        ("redis = 'redis://localhost'", "must be a table"),
        ("[[redis]]\nurl = 'x'", "must be a table"),
    ],
)
def test_a_file_is_taken_as_it_is_typed(folder: Path, line: str, reason: str) -> None:
    path = write(folder, line)
    (problem,) = problems()
    assert reason in problem
    assert str(path) in problem


@pytest.mark.parametrize(
    "arguments, reason",
    [
        ({"close_timeout": "30"}, "must be a number, not text"),
        ({"close_timeout": True}, "must be a number, not a boolean"),
        ({"max_value_bytes": 2048.0}, "must be a whole number"),
        ({"project": 5}, "must be text"),
        ({"project": "a\0"}, "NUL"),
        ({"project": "\ud800"}, "lone surrogate"),
        ({"project": "x" * 256}, "256 characters"),
        ({"runs": 5}, "must be a table"),
        ({"runs": {"buffer": 10**400}}, "must be from 1"),
        ({"retention": RunSettings()}, "is no setting"),
    ],
)
def test_an_argument_is_as_strict_as_a_file(arguments: dict[str, Any], reason: str) -> None:
    found = problems(**arguments)
    assert any(reason in problem for problem in found)
    assert all("argument" in problem for problem in found)


def test_names_with_spaces_are_legal_where_they_cannot_be_a_slip() -> None:
    assert load_settings(environ={}, project="my app ").project == "my app "


def test_a_whole_number_is_a_number() -> None:
    settings = load_settings(environ={}, close_timeout=3)
    assert settings.close_timeout == 3.0
    assert type(settings.close_timeout) is float


@pytest.mark.parametrize(
    "key, near",
    [
        ("projct", "project"),
        ("Mode", "mode"),
        ("start-degraded", "start_degraded"),
        ("retentions", "retention"),
        ("redsi", "redis"),
        ("zzzzz", None),
    ],
)
def test_an_unknown_key_of_a_file_gets_a_suggestion(
    folder: Path, key: str, near: str | None
) -> None:
    write(folder, f"{key} = 1\n")
    (problem,) = problems()
    assert problem.startswith(f"{key}: is no setting")
    assert ("did you mean" in problem) == (near is not None)
    if near is not None:
        assert f'did you mean "{near}"?' in problem


@pytest.mark.parametrize(
    "mode", ["redis-postgress", "Redis", "postgres", "memroy", "redis_postgres"]
)
def test_an_unknown_mode_names_the_modes(mode: str) -> None:
    (problem,) = problems(mode=mode)
    assert 'is none of "memory", "redis", "redis-postgres"' in problem
    assert mode in problem


def test_every_problem_of_every_source_is_reported_at_once(folder: Path) -> None:
    write(
        folder,
        """
        mode = "redis-postgress"
        colour = 3
        close_timeout = "30"
        [retention]
        runs_fro = 1
        completed_for = -1
        [mine_]
        x = 1
        """,
    )
    write(folder, "[tool.oqron]\nproject = 7\n", "pyproject.toml")
    found = problems(
        {"OQRON_PROJCT": "x", "OQRON_RUNS__BUFFER": "ten", "OQRON_HOT": "redis "},
        max_value_bytes=1,
    )
    for fragment in (
        "mode: is none of",
        "colour: is no setting",
        "close_timeout: must be a number",
        "retention.runs_fro: is no setting",
        "retention.completed_for: must be from 0",
        "mine_.x: is no setting, and no backend of this name is installed",
        "project: must be text",
        "OQRON_PROJCT: is no setting",
        "runs.buffer: must be a whole number",
        "hot: has white space",
        "max_value_bytes: must be from 1024",
    ):
        assert [problem for problem in found if fragment in problem], fragment
    assert len(found) == len(set(found)) == 11


def test_what_a_higher_source_overrides_is_checked_all_the_same(folder: Path) -> None:
    write(folder, "project = 5\n")
    assert problems(project="fine")


@given(st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=5), max_size=3))
def test_no_table_of_a_file_breaks_the_loader(content: dict[str, Any]) -> None:
    """Whatever the arguments are called, the end is settings or one ConfigError."""
    names = {
        name: value for name, value in content.items() if name not in {"path", "environ", "plugins"}
    }
    try:
        load_settings(os.devnull, environ={}, **names)
    except ConfigError as error:
        assert error.problems


# --- sections of backends --------------------------------------------------------


def test_a_section_becomes_the_settings_of_its_backend(folder: Path, plugins: Plugins) -> None:
    write(
        folder,
        """
        hot = "mine"
        durable = "mine"
        [mine]
        url = "redis://h/1"
        timeout = 2
        level = "high"
        hosts = ["a", "b"]
        ports = [1, 2]
        options = { x = 1 }
        path = "/var"
        [mine.pool]
        size = 3
        """,
    )
    environ = {
        "OQRON_MINE__POOL_SIZE": "20",
        "OQRON_MINE__QUIET": "yes",
        "OQRON_MINE__LIMIT": "none",
        "OQRON_MINE__FLAVOUR": "sour",
        "OQRON_MINE__HOSTS": "c, d",
        "OQRON_MINE__POOL__NAMES": "x",
        "OQRON_MINE__OPTIONS__Y": "2",
    }
    settings = load_settings(environ=environ, plugins=plugins, mine={"table_prefix": "t"})
    made, _ = plugins.hot("mine")
    built = structure_section(made, settings.section_for("mine"))
    assert built == BackendSettings(
        url="redis://h/1",
        table_prefix="t",
        pool_size=20,
        timeout=2.0,
        quiet=True,
        level=Level.HIGH,
        flavour="sour",
        hosts=["c", "d"],
        ports=(1, 2),
        options={"x": 1, "y": 2},
        pool=Pool(size=3, names=("x",)),
        path=Path("/var"),
    )


def test_an_absent_section_is_all_defaults() -> None:
    assert structure_section(backend(), Settings().section_for("mine")) == BackendSettings()
    assert structure_section(backend(), {}) == BackendSettings()


def test_the_section_of_an_unused_backend_is_ignored(folder: Path, plugins: Plugins) -> None:
    write(folder, '[mine]\nno_such_key = 1\npool_size = "x"\n[postgres]\nwhatever = 1\n')
    settings = load_settings(environ={"OQRON_REDIS__X": " y "}, plugins=plugins)
    assert settings.mode is Mode.MEMORY


SECTION_PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"table_prefx": "x"}, 'mine.table_prefx: is no setting; did you mean "table_prefix"?'),
    ({"pool_size": "30"}, "mine.pool_size: must be a whole number, not text"),
    ({"pool_size": True}, "mine.pool_size: must be a whole number"),
    ({"pool_size": 1.0}, "mine.pool_size: must be a whole number"),
    ({"timeout": "30"}, "mine.timeout: must be a number, not text"),
    ({"limit": "x"}, "mine.limit: must be a whole number, not text"),
    ({"level": "hgih"}, 'mine.level: is none of "low", "high"; did you mean "high"?'),
    ({"flavour": "bitter"}, 'mine.flavour: is none of "sweet", "sour"'),
    ({"hosts": "a"}, "mine.hosts: must be a list, not text"),
    ({"hosts": [1]}, "mine.hosts: must be text, not a whole number"),
    ({"ports": ["a"]}, "mine.ports: must be a whole number"),
    ({"options": 5}, "mine.options: must be a table"),
    ({"options": {"x": "y"}}, "mine.options: must be a whole number"),
    ({"pool": 5}, "mine.pool: must be a table"),
    ({"pool": {"sise": 1}}, 'mine.pool.sise: is no setting; did you mean "size"?'),
    ({"pool": {"size": 0}}, "mine.pool.size: "),
    ({"table_prefix": "x" * 11}, "mine.table_prefix: table_prefix is longer than 10"),
]


@pytest.mark.parametrize("section, problem", SECTION_PROBLEMS, ids=lambda part: str(part)[:40])
def test_a_problem_of_a_used_section_is_told_at_loading_and_at_opening(
    section: dict[str, Any], problem: str, plugins: Plugins
) -> None:
    (told,) = problems(plugins=plugins, hot="mine", durable="mine", mine=section)
    assert told.startswith(problem)
    with pytest.raises(ConfigError) as caught:
        structure_section(backend(), section, "the argument")
    (told,) = caught.value.problems
    assert told.startswith(problem)
    assert "[the argument]" in told


@pytest.mark.parametrize(
    ("name", "section", "says"),
    [
        ("redis", {"url": "http://h"}, ["redis.url: must start with"]),
        ("redis", {"prefix": "{}"}, ["redis.prefix: must be 1 to 64"]),
        ("redis", {"timeout": 0}, ["redis.timeout: must be more than 0"]),
        ("redis", {"sentinel": "m"}, ["redis.sentinels: is needed"]),
        (
            "redis",
            {"sentinels": ["a"]},
            ["redis.sentinel: is needed", "redis.sentinels[0]: must be host:port"],
        ),
        ("postgres", {"url": "http://h"}, ["postgres.url: is not valid"]),
        (
            "postgres",
            {
                "url": "postgresql://h/d",
                "synchronous_commit": "off",
                "prepared_statements": False,
            },
            ["postgres.synchronous_commit: needs a session"],
        ),
        ("sqlite", {"path": ":memory:"}, ["sqlite.path: must be a plain path"]),
        ("sqlite", {"path": "a.db", "hot_path": "a.db"}, ["sqlite.hot_path: is the same file"]),
    ],
)
def test_an_error_of_a_section_names_the_setting_once(
    name: str, section: dict[str, Any], says: list[str]
) -> None:
    """Whether the class put the path into its text, and where it looks at several settings."""
    backend = discover(only=(name,)).backend(name)
    assert backend is not None

    with pytest.raises(ConfigError) as caught:
        structure_section(backend, section)

    told = caught.value.problems
    assert len(says) == len(told)
    assert all(line.startswith(start) for line, start in zip(told, says, strict=True)), told
    assert all(1 == line.count(f"{name}.") for line in told if "redis.sentinel" not in line)


def test_all_problems_of_a_section_come_together_with_those_of_core(
    folder: Path, plugins: Plugins
) -> None:
    path = write(
        folder,
        'hot = "mine"\ndurable = "mine"\nclose_timeout = "x"\n[mine]\ntable_prefx = 1\n'
        'table_prefix = "longer than ten"\n[mine.pool]\nsize = 0\n',
    )
    found = problems({"OQRON_MINE__POOL_SIZE": "x"}, plugins=plugins)
    assert len(found) == 5
    assert sum(str(path) in problem for problem in found) == 4
    assert sum("OQRON_MINE__POOL_SIZE" in problem for problem in found) == 1


def test_where_the_mode_itself_is_wrong_every_section_is_checked(
    folder: Path, plugins: Plugins
) -> None:
    write(folder, 'mode = "mine"\n[mine]\ntable_prefx = 1\n')
    assert len(problems(plugins=plugins)) == 2


@pytest.mark.parametrize("text", ["redis://h ", " redis://h", "redis://h\t"])
def test_white_space_around_a_url_is_found(text: str, plugins: Plugins) -> None:
    environ = {"OQRON_MINE__URL": text, "OQRON_HOT": "mine", "OQRON_DURABLE": "mine"}
    (problem,) = problems(environ, plugins=plugins)
    assert problem.startswith("mine.url: has white space")
    assert "OQRON_MINE__URL" in problem


@pytest.mark.parametrize("name", ["my-db", "my.db", "my_db"])
def test_a_backend_whose_name_is_no_identifier_has_variables_too(name: str) -> None:
    settings = load_settings(
        environ={"OQRON_HOT": "memory", "OQRON_DURABLE": name, "OQRON_MY_DB__URL": "x"}
    )
    assert dict(settings.section_for(name)) == {"url": "x"}


def test_a_ready_made_object_can_only_be_an_argument(folder: Path, plugins: Plugins) -> None:
    client = object()
    settings = load_settings(
        environ={},
        plugins=plugins,
        hot="mine",
        durable="mine",
        mine={"client": client, "hook": print},
    )
    built = structure_section(backend(), settings.section_for("mine"))
    assert built.client is client
    assert built.hook is print
    write(folder, 'hot = "mine"\ndurable = "mine"\n[mine]\nclient = "x"\n')
    (problem,) = problems({"OQRON_MINE__HOOK": "os.system"}, plugins=plugins)[:1]
    assert "only be given as an argument" in problem
    assert len(problems({"OQRON_MINE__CLIENT": "x"}, plugins=plugins)) == 1


def test_a_required_setting_that_is_missing_is_told_at_opening() -> None:
    with pytest.raises(ConfigError) as caught:
        structure_section(backend(Needy), {"size": "x"})
    assert [problem.partition(" [")[0] for problem in caught.value.problems] == [
        "mine.size: must be a whole number, not text (it is 'x')",
        "mine.url: is required and not set; OQRON_MINE__URL may hold it",
        "mine.token: is required and not set; OQRON_MINE__TOKEN may hold it",
    ]


def test_a_settings_class_that_refuses_the_whole_is_a_problem() -> None:
    @attrs.frozen
    class Both:
        low: int = 1
        high: int = 2
        token: str = attrs.field(default="", repr=False)

        def __attrs_post_init__(self) -> None:
            if self.low > self.high:
                msg = f"low is over high with {self.token}"
                raise ValueError(msg)

    with pytest.raises(ConfigError) as caught:
        structure_section(backend(Both), {"low": 3, "token": SECRET})
    assert caught.value.problems == ("mine: low is over high with *** [argument]",)


def test_a_validator_may_look_at_other_fields() -> None:
    @attrs.frozen
    class Both:
        low: int = 1
        high: int = attrs.field(default=2)

        @high.validator
        def _over_low(self, _attribute: Any, value: int) -> None:
            if value <= self.low:
                msg = "high is not over low"
                raise ValueError(msg)

    for section in ({"high": 1}, {"low": 5, "high": 3}):
        with pytest.raises(ConfigError, match="high is not over low"):
            structure_section(backend(Both), section)
    assert structure_section(backend(Both), {"low": 5, "high": 6}) == Both(5, 6)


def test_a_settings_class_with_hidden_imports_is_the_plugins_fault() -> None:
    @attrs.frozen
    class Hidden:
        path: NoSuchType = None  # type: ignore[name-defined] # noqa: F821 - that is the point

    with pytest.raises(PluginError, match="TYPE_CHECKING"):
        structure_section(backend(Hidden), {"path": "x"})


# --- secrets ---------------------------------------------------------------------

URL = f"redis://user:{SECRET}@host:6379/0?password={SECRET}"


@pytest.mark.parametrize(
    "section",
    [
        {"url": f"{URL} "},
        {"url": [URL]},
        {"mirror_url": f" {URL}"},
        {"mirror_url": 5, "url": URL},
        {"password": f"{SECRET} and more than ten"},
        {"pasword": SECRET},
        {SECRET[:3]: URL},
        {"table_prefix": URL},
        {"pool_size": URL},
        {"level": URL},
        {"client": URL},
    ],
    ids=str,
)
def test_no_secret_is_in_any_problem(section: dict[str, Any], plugins: Plugins) -> None:
    environ = {"OQRON_HOT": "mine", "OQRON_DURABLE": "mine"}
    variables = {
        f"OQRON_MINE__{key.upper()}": value
        for key, value in section.items()
        if isinstance(value, str)
    }
    attempts: list[Callable[[], object]] = [
        lambda: load_settings(environ=environ, plugins=plugins, mine=section),
        lambda: load_settings(environ=environ | variables, plugins=plugins),
        lambda: structure_section(backend(), section),
    ]
    for attempt in attempts:
        refusals = list(refused(attempt))
        for error in refusals:
            assert SECRET not in str(error)
            assert SECRET not in repr(error)
            assert error.__cause__ is None
            assert error.__context__ is None
            assert SECRET not in str(pickle.loads(pickle.dumps(error)))  # noqa: S301 - our own bytes
    assert any(list(refused(attempt)) for attempt in attempts)


def refused(attempt: Callable[[], object]) -> Iterator[ConfigError]:
    try:
        attempt()
    except ConfigError as error:
        yield error


def own_frames(error: BaseException) -> list[types.FrameType]:
    return [
        frame
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if "oqron_core" in frame.f_code.co_filename
    ]


def test_no_frame_of_ours_keeps_a_secret_in_a_failed_load(plugins: Plugins) -> None:
    """Error trackers send the locals of every frame."""
    environ = {"OQRON_HOT": "mine", "OQRON_DURABLE": "mine", "OQRON_MINE__URL": f"{URL} "}
    for attempt in (
        lambda: load_settings(environ=environ, plugins=plugins, mine={"password": SECRET * 5}),
        lambda: structure_section(backend(), {"url": 5, "password": SECRET}),
    ):
        with pytest.raises(ConfigError) as caught:
            attempt()
        frames = own_frames(caught.value)
        assert frames
        for frame in frames:
            assert SECRET not in repr(frame.f_locals)


def test_no_secret_is_in_a_repr_or_a_description(plugins: Plugins) -> None:
    settings = load_settings(
        environ={"OQRON_MINE__PASSWORD": SECRET, "OQRON_REDIS__URL": URL},
        plugins=plugins,
        hot="mine",
        durable="mine",
        mine={"url": URL, "mirror_url": URL},
    )
    made, _ = plugins.hot("mine")
    shown = describe(settings, [made])
    for text in (
        repr(settings),
        str(settings),
        repr(settings.sections),
        repr(settings.section_for("mine")),
        repr(dict(settings.sources)),
        json.dumps(shown),
        repr(describe(settings)),
    ):
        assert SECRET not in text
    assert settings.section_for("mine")["url"] == URL
    assert shown["mine.url"] == {"value": "redis://host:6379/0", "source": "argument mine"}
    assert shown["mine.mirror_url"]["value"] == "redis://host:6379/0"
    assert shown["mine.password"] == {"value": "***", "source": "OQRON_MINE__PASSWORD"}
    assert shown["redis.url"] == {"value": "***", "source": "OQRON_REDIS__URL"}


@pytest.mark.parametrize(
    "url, shown",
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://u:p@h/0", "redis://h/0"),
        ("redis://:p@h", "redis://h"),
        ("redis://u:p@w@h/0", "redis://h/0"),
        ("redis://u:p/w@h/0", "redis://h/0"),
        ("redis://h/0?password=p", "redis://h/0"),
        ("redis://h/0#p", "redis://h/0"),
        ("redis://u:p#w@h/0", "redis://***"),
        ("redis://h?password=a@b", "redis://***"),
        ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock"),
        ("plain text", "plain text"),
        ("", ""),
    ],
)
def test_a_url_is_shown_without_userinfo_and_query(url: str, shown: str) -> None:
    assert redact_url(url) == shown


@given(st.text(min_size=4).filter(lambda text: text.strip() and "@" not in text))
def test_no_password_survives_redaction(password: str) -> None:
    for url in (f"redis://me:p{password}q@host/0", f"redis://host/0?password=p{password}q"):
        assert f"p{password}q" not in redact_url(url)


# --- describing ------------------------------------------------------------------


def test_the_effective_settings_are_described_with_their_sources(folder: Path) -> None:
    path = write(folder, 'mode = "redis"\n[runs]\nbuffer = 7\n')
    settings = load_settings(
        environ={"OQRON_ENVIRONMENT": "production"}, project="app", retention={"runs_for": None}
    )
    shown = describe(settings)
    assert shown["project"] == {"value": "app", "source": "argument project"}
    assert shown["environment"] == {"value": "production", "source": "OQRON_ENVIRONMENT"}
    assert shown["mode"] == {"value": "redis", "source": str(path)}
    assert shown["hot"] == {"value": "redis", "source": str(path)}
    assert shown["runs.buffer"] == {"value": 7, "source": str(path)}
    assert shown["runs.max_logs"] == {"value": 1000, "source": "default"}
    assert shown["retention.runs_for"] == {"value": None, "source": "argument retention"}
    assert json.loads(json.dumps(shown)) == shown


def test_the_settings_of_a_backend_are_described_with_their_defaults(plugins: Plugins) -> None:
    made, _ = plugins.hot("mine")
    settings = load_settings(
        environ={"OQRON_MINE__POOL_SIZE": "3"}, plugins=plugins, hot="mine", durable="mine"
    )
    shown = describe(settings, [made])
    assert shown["mine.pool_size"] == {"value": 3, "source": "OQRON_MINE__POOL_SIZE"}
    assert shown["mine.table_prefix"] == {"value": "oqron", "source": "default"}
    assert shown["mine.client"]["value"] is None
    assert {key for key in shown if key.startswith("mine.")} == {
        f"mine.{field.name}" for field in attrs.fields(BackendSettings)
    }
    json.dumps(shown)


# --- the objects -----------------------------------------------------------------


def test_settings_are_frozen_and_checked_when_made_by_hand() -> None:
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Settings().project = "x"  # type: ignore[misc]
    for cls, wrong in (
        (Settings, {"project": ""}),
        (Settings, {"close_timeout": -1.0}),
        (Settings, {"max_value_bytes": 1}),
        (Retention, {"runs_for": -1.0}),
        (RunSettings, {"buffer": 0}),
        (MaintenanceSettings, {"batch": 10_001}),
    ):
        with pytest.raises(InvalidValueError):
            cls(**wrong)


def test_a_section_is_a_read_only_mapping() -> None:
    section = load_settings(environ={}, redis={"url": "x", "pool": {"size": 1}}).section_for(
        "redis"
    )
    assert isinstance(section, Section)
    assert list(section) == ["url", "pool"]
    assert len(section) == 2
    assert section["pool"] == {"size": 1}
    assert section.get("other") is None
    with pytest.raises(KeyError):
        section["other"]
    with pytest.raises(TypeError):
        section["url"] = "y"  # type: ignore[index]
    assert repr(section) == "Section(url, pool)"
    again = load_settings(environ={}, redis=section).section_for("redis")
    assert dict(again) == dict(section)


def test_loading_asks_only_the_plugins_that_are_used() -> None:
    program = (
        "import sys\n"
        "from oqron_core.config import load_settings\n"
        "load_settings(environ={'OQRON_REDIS__URL': 'redis://h'})\n"
        "print(sorted(name for name in sys.modules if name.startswith('oqron_') and"
        " not name.startswith('oqron_core')))\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert shown.stdout.strip() == "[]"
