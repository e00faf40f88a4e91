"""
Settings: where they come from, and strict, complete errors about them.

Arguments > ``OQRON_*`` (nesting ``__``) > the nearest ``oqron.toml`` >
``[tool.oqron]`` of the nearest ``pyproject.toml`` that has it > defaults. Every
setting is taken from the highest source that names it; what lower sources say is
checked all the same. All problems are reported at once, each with the path of
the setting and its source. No message shows a secret.

TOML is taken as it is typed: ``"30"`` is no number, ``true`` is no number, ``30``
is a float where a float is due. Text from the environment is parsed by the type
of the setting. ``"none"`` says None for a number that may be None.
"""

# Why an own walk and not cattrs' converters: each leaf comes from another source
# and is strict or text by that source, a problem has to name that source, and what
# was refused must not be shown where it may be a secret, neither in the message
# nor in a chained cause. cattrs' errors are built around the refused value.

from __future__ import annotations

import enum
import math
import os
import re
import tomllib
import types
import typing

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, Union

import attrs

from oqron_core._codec import DEFAULT_MAX_VALUE_BYTES
from oqron_core._names import check_name
from oqron_core._plugins import (
    ALLOW_VARIABLE,
    KNOWN_BACKENDS,
    Plugins,
    discover,
    one_line,
    suggest,
)
from oqron_core.exceptions import ConfigError, InvalidValueError, PluginError
from oqron_core.hookspecs import Backend


__all__ = [
    "MaintenanceSettings",
    "Mode",
    "Retention",
    "RunSettings",
    "Section",
    "Settings",
    "describe",
    "load_settings",
    "structure_section",
]

_PREFIX: Final = "OQRON_"
_NOT_SETTINGS: Final = ("OQRON_TEST_",)
_DEFAULT: Final = "default"
_HIDDEN: Final = "***"
_YEARS: Final = 100 * 366 * 86400.0


class Mode(StrEnum):
    """A named pair of backends."""

    MEMORY = "memory"
    """One in-process backend serves both planes."""
    REDIS = "redis"
    """Redis serves both."""
    REDIS_POSTGRES = "redis-postgres"
    """Redis is hot, Postgres is durable."""

    @property
    def hot(self) -> str:
        """The backend of the hot plane."""
        return "memory" if self is Mode.MEMORY else "redis"

    @property
    def durable(self) -> str:
        """The backend of the durable plane."""
        return "postgres" if self is Mode.REDIS_POSTGRES else self.hot


_MODES: Final = types.MappingProxyType({(mode.hot, mode.durable): mode for mode in Mode})


# --- the settings ----------------------------------------------------------------


def _within(low: float, high: float, unit: str) -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    """Make a validator that takes a number from *low* to *high*, or None."""

    def check(_instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value is None:
            return
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not low <= value <= high:
            reason = f"must be from {low:.15g} to {high:.15g} {unit}, not {value!r}"
            raise InvalidValueError(attribute.name, reason)

    return check


def _name(_instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    check_name(attribute.name, value)


@attrs.frozen(kw_only=True)
class Retention:
    """
    How long what has ended is kept, in seconds. 0 is at once, None is for ever.

    Attributes:
        completed_for: Completed jobs; their runs keep the input.
        cancelled_for: Cancelled jobs.
        dead_letters_for: Dead letters.
        runs_for: Runs that have ended.
    """

    completed_for: float | None = attrs.field(
        default=86400.0, validator=_within(0, _YEARS, "seconds")
    )
    cancelled_for: float | None = attrs.field(
        default=7 * 86400.0, validator=_within(0, _YEARS, "seconds")
    )
    dead_letters_for: float | None = attrs.field(
        default=90 * 86400.0, validator=_within(0, _YEARS, "seconds")
    )
    runs_for: float | None = attrs.field(
        default=30 * 86400.0, validator=_within(0, _YEARS, "seconds")
    )


@attrs.frozen(kw_only=True)
class RunSettings:
    """
    How run history is written.

    Attributes:
        write_every: How often progress goes to the hot overlay, in seconds.
        durable_after: After how many seconds a run that goes on appears in the
            durable plane as running.
        buffer: How many changes may wait to be written; beyond it the oldest
            progress is dropped, never a terminal state.
        max_logs: How many log lines a run keeps; what is cut is marked.
        max_log_chars: How long one log line may be, in characters.
        max_timeline: How many timeline entries a run keeps.
        stale_after: After how many silent seconds a live run counts as lost.
    """

    write_every: float = attrs.field(default=0.1, validator=_within(0.001, 3600, "seconds"))
    durable_after: float = attrs.field(default=0.5, validator=_within(0, 3600, "seconds"))
    buffer: int = attrs.field(default=100_000, validator=_within(1, 100_000_000, "changes"))
    max_logs: int = attrs.field(default=1000, validator=_within(1, 1_000_000, "lines"))
    max_log_chars: int = attrs.field(default=10_000, validator=_within(1, 10_000_000, "characters"))
    max_timeline: int = attrs.field(default=100, validator=_within(2, 1_000_000, "entries"))
    stale_after: float = attrs.field(default=60.0, validator=_within(1, _YEARS, "seconds"))


@attrs.frozen(kw_only=True)
class MaintenanceSettings:
    """
    How the leader looks after a scope.

    Attributes:
        every: How often, in seconds.
        batch: How many records one step touches.
        leader_for: The lease of leadership, in seconds. It is renewed at a third
            of it, so a leader that dies is replaced within this time.
    """

    every: float = attrs.field(default=5.0, validator=_within(0.01, 86400, "seconds"))
    batch: int = attrs.field(default=1000, validator=_within(1, 10_000, "records"))
    leader_for: float = attrs.field(default=15.0, validator=_within(0.05, 86400, "seconds"))


class Section(Mapping[str, Any]):
    """
    The settings of one backend as they were written, with their sources.

    Not checked yet: that takes the backend's own settings class, see
    `structure_section`. Its repr shows the keys and no value.
    """

    __slots__ = ("_leaves",)

    def __init__(self, leaves: Mapping[tuple[str, ...], _Leaf] | None = None) -> None:
        self._leaves = dict(leaves or {})

    def __getitem__(self, key: str) -> Any:
        found = _nested(self._leaves).get(key, _ABSENT)
        if found is _ABSENT:
            raise KeyError(key)
        return _plain(found)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(path[0] for path in self._leaves))

    def __len__(self) -> int:
        return len({path[0] for path in self._leaves})

    def __repr__(self) -> str:
        return f"Section({', '.join(self)})"

    @property
    def leaves(self) -> Mapping[tuple[str, ...], _Leaf]:
        """Every value by its path in the section."""
        return types.MappingProxyType(self._leaves)


def _mode(value: Mode | str | None) -> Mode | None:
    return None if value is None else Mode(value)


@attrs.frozen(kw_only=True)
class Settings:
    """
    What a storage is opened with. `load_settings` makes it from all sources.

    *mode* stands for *hot* and *durable*; where only these are given, *mode* is the
    one that names the pair, or None.

    Attributes:
        project: The project of the scope.
        environment: The environment of the scope.
        mode: The named pair of backends, or None for another pair.
        hot: The backend of the hot plane.
        durable: The backend of the durable plane.
        start_degraded: Whether to open although the hot plane does not answer.
        max_value_bytes: The limit of one encoded top-level field of a record.
        close_timeout: How long closing may take to write what is buffered, in
            seconds.
        retention: How long what has ended is kept.
        runs: How run history is written.
        maintenance: How the leader looks after the scope.
        sections: The settings of backends by name, as they were written.
        sources: Where each setting came from, by its path; a setting that is not
            there has its default.

    Raises:
        ConfigError: *mode* contradicts *hot* or *durable*.
        InvalidValueError: A value is out of range.
    """

    project: str = attrs.field(default=_DEFAULT, validator=_name)
    environment: str = attrs.field(default=_DEFAULT, validator=_name)
    mode: Mode | None = attrs.field(default=None, converter=_mode)
    hot: str = ""
    durable: str = ""
    start_degraded: bool = False
    max_value_bytes: int = attrs.field(
        default=DEFAULT_MAX_VALUE_BYTES, validator=_within(1024, 2**30, "bytes")
    )
    close_timeout: float = attrs.field(default=10.0, validator=_within(0, 3600, "seconds"))
    retention: Retention = attrs.field(factory=Retention)
    runs: RunSettings = attrs.field(factory=RunSettings)
    maintenance: MaintenanceSettings = attrs.field(factory=MaintenanceSettings)
    sections: Mapping[str, Mapping[str, Any]] = attrs.field(
        factory=dict, repr=lambda sections: f"<{', '.join(sections) or 'none'}>"
    )
    sources: Mapping[str, str] = attrs.field(factory=dict, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        chosen = self.mode or Mode.MEMORY
        hot = self.hot or chosen.hot
        durable = self.durable or chosen.durable
        if self.mode is not None and (hot, durable) != (chosen.hot, chosen.durable):
            raise ConfigError(_contradiction(chosen, hot, durable, "argument"))
        # A frozen class; these three are one fact said in two ways.
        object.__setattr__(self, "hot", hot)
        object.__setattr__(self, "durable", durable)
        object.__setattr__(self, "mode", _MODES.get((hot, durable)))

    def section_for(self, backend: str) -> Mapping[str, Any]:
        """Give the section of a backend; empty where nothing was written."""
        return self.sections.get(backend, Section())


def _contradiction(mode: Mode, hot: str, durable: str, source: str) -> str:
    return (
        f'mode: "{mode}" means hot = "{mode.hot}" and durable = "{mode.durable}", but '
        f'hot = "{hot}" and durable = "{durable}" are set too ({source}); leave one of '
        "the two out"
    )


# --- where settings come from ----------------------------------------------------

_ABSENT: Final = object()


@attrs.frozen
class _Leaf:
    """One value and where it was written. Its repr does not show the value."""

    value: Any = attrs.field(repr=False)
    source: str
    text: bool = False
    """Whether the value is text to be parsed, as in the environment."""
    argument: bool = False
    """Whether the program gave it, so it may be any object."""


_Leaves = dict[tuple[str, ...], _Leaf]
_SettingsT = TypeVar("_SettingsT")


def _flatten(
    table: Mapping[str, Any], source: str, path: tuple[str, ...] = (), *, argument: bool = False
) -> Iterator[tuple[tuple[str, ...], _Leaf]]:
    for key, value in table.items():
        here = (*path, key)
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, source, here, argument=argument)
        else:
            yield here, _Leaf(value, source, argument=argument)


def _nested(leaves: Mapping[tuple[str, ...], _Leaf]) -> dict[str, Any]:
    """Turn paths into a tree whose leaves are `_Leaf`."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        table = tree
        for key in path[:-1]:
            inner = table.get(key)
            if not isinstance(inner, dict):
                # A table wins over a single value of a lower source.
                inner = table[key] = {}
            table = inner
        table[path[-1]] = leaf
    return tree


def _plain(node: Any) -> Any:
    if isinstance(node, _Leaf):
        return node.value
    return {key: _plain(child) for key, child in node.items()}


def _merge(layers: Iterable[_Leaves]) -> _Leaves:
    """Merge layers, the highest first; a value hides what is under its path."""
    merged: _Leaves = {}
    for layer in layers:
        for path, leaf in layer.items():
            heads = {path[:size] for size in range(1, len(path) + 1)}
            tails = any(known[: len(path)] == path for known in merged)
            if not heads & merged.keys() and not tails:
                merged[path] = leaf
    return merged


@attrs.frozen
class _Source:
    """One layer: its core settings and its backend sections, before checking."""

    label: str
    leaves: _Leaves


def _from_arguments(overrides: Mapping[str, Any]) -> _Source:
    leaves: _Leaves = {}
    for name, value in overrides.items():
        if value is None:
            # An argument that is passed through unset, such as project=None.
            continue
        source = f"argument {name}"
        plain = value
        if isinstance(value, (Retention, RunSettings, MaintenanceSettings)):
            plain = attrs.asdict(value)
        elif isinstance(value, Section):
            leaves.update({(name, *path): leaf for path, leaf in value.leaves.items()})
            continue
        leaves.update(_flatten({name: plain}, source, argument=True))
    return _Source("argument", leaves)


def _from_environment(environ: Mapping[str, str], sections: Iterable[str]) -> _Source:
    """Take ``OQRON_A__B`` as the text of ``a.b``."""
    # A backend's name may hold what a variable's name cannot: "my-db" is MY_DB.
    spelt = {re.sub(r"\W", "_", name).lower(): name for name in sections}
    leaves: _Leaves = {}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(_PREFIX) or variable.startswith(_NOT_SETTINGS):
            continue
        if variable == ALLOW_VARIABLE:
            continue
        path = tuple(part.lower() for part in variable.removeprefix(_PREFIX).split("__"))
        if len(path) > 1:
            path = (spelt.get(path[0], path[0]), *path[1:])
        leaves[path] = _Leaf(text, variable, text=True)
    return _Source("environment", leaves)


def _read_toml(path: Path, problems: list[str]) -> dict[str, Any] | None:
    try:
        return tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror or type(error).__name__}")
    except UnicodeDecodeError:
        problems.append(f"{path}: is not UTF-8")
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{path}: is not TOML: {error}")
    return None


def _tool_table(path: Path, document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    tool = document.get("tool")
    found = tool.get("oqron") if isinstance(tool, Mapping) else None
    return found if path.name == "pyproject.toml" and isinstance(found, Mapping) else None


def _from_file(path: Path, problems: list[str]) -> _Source | None:
    document = _read_toml(path, problems)
    if document is None:
        return None
    if path.name == "pyproject.toml":
        table = _tool_table(path, document)
        if table is None:
            problems.append(f"{path}: has no table [tool.oqron]")
            return None
        document = dict(table)
    return _Source(str(path), dict(_flatten(document, str(path))))


def _nearest(problems: list[str]) -> Iterator[_Source]:
    """Give the nearest ``oqron.toml``, then the nearest ``[tool.oqron]``."""
    try:
        here = Path.cwd()
    except OSError:
        # The working directory is gone: there is nothing near it.
        return
    folders = (here, *here.parents)
    for folder in folders:
        path = folder / "oqron.toml"
        if os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises where it may not look
            source = _from_file(path, problems)
            if source is not None:
                yield source
            break
    for folder in folders:
        path = folder / "pyproject.toml"
        try:
            # Somebody else's file on the way up is none of our business, whatever
            # is wrong with it.
            ours = b"oqron" in path.read_bytes()
        except OSError:
            continue
        if ours:
            document = _read_toml(path, problems)
            table = None if document is None else _tool_table(path, document)
            if table is not None:
                yield _Source(str(path), dict(_flatten(table, str(path))))
                break


# --- checking -----------------------------------------------------------------


class _Refused(Exception):  # noqa: N818 - control flow, never leaves this module
    """A value is not what its setting takes; the text never shows the value."""


@attrs.frozen
class _Field:
    """A setting of an attrs class: what it takes and how much may be shown."""

    name: str
    type: Any
    attribute: attrs.Attribute[Any]

    @property
    def secret(self) -> bool:
        return self.attribute.repr is False

    @property
    def text(self) -> bool:
        return bool(self.attribute.metadata.get("text", True))


_NOT_IN_SOURCES: Final = frozenset({"sections", "sources"})


def _fields(cls: type[Any]) -> dict[str, _Field]:
    try:
        hints = typing.get_type_hints(cls)
    except NameError as error:
        msg = (
            f"the settings class {cls.__qualname__} has a type that cannot be resolved "
            f"({error}); import it outside of TYPE_CHECKING"
        )
        raise PluginError(msg) from error
    return {
        attribute.alias: _Field(attribute.alias, hints.get(attribute.name, Any), attribute)
        for attribute in attrs.fields(cls)
        if attribute.init and not (cls is Settings and attribute.name in _NOT_IN_SOURCES)
    }


_WORDS: Final = types.MappingProxyType(
    {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
)
_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})


def _expected(kind: Any) -> str:
    origin = typing.get_origin(kind)
    if origin in {Union, types.UnionType}:
        parts = [part for part in typing.get_args(kind) if part is not type(None)]
        words = " or ".join(_expected(part) for part in parts)
        optional = len(parts) < len(typing.get_args(kind)) and str not in parts
        return f'{words}, or "none"' if optional else words
    if origin is Literal:
        return " or ".join(f'"{choice}"' for choice in typing.get_args(kind))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return " or ".join(f'"{member.value}"' for member in kind)
    if origin is not None:
        return "a table" if issubclass(origin, Mapping) else "a list"
    return _WORDS.get(kind) or str(getattr(kind, "__name__", kind))


def _got(value: Any) -> str:
    """Say what was given, by its kind alone."""
    names = {str: "text", bool: "a boolean", int: "a whole number", float: "a number"}
    if isinstance(value, Mapping):
        return "a table"
    return names.get(type(value)) or f"a {type(value).__name__}"


def _parse(text: str, kind: Any) -> Any:
    """Turn text into a plain value of the scalar type *kind*, or refuse it."""
    if text != text.strip():
        msg = "has white space at its start or end; remove it"
        raise _Refused(msg)
    if kind is bool:
        lower = text.lower()
        if lower in _TRUE or lower in _FALSE:
            return lower in _TRUE
    elif kind is int and re.fullmatch(r"[+-]?\d{1,30}(_\d{1,30})*", text, re.ASCII):
        return int(text)
    elif kind is float:
        try:
            return float(text)
        except ValueError:
            pass
    elif kind not in {int, float}:
        return text
    msg = f"must be {_expected(kind)}"
    raise _Refused(msg)


def _read(leaf: _Leaf, kind: Any) -> Any:
    return _parse(leaf.value, kind) if leaf.text and isinstance(leaf.value, str) else leaf.value


def _take_scalar(value: Any, kind: Any) -> Any:
    if kind is float and type(value) is int:
        value = float(value) if abs(value) <= 2**53 else value
    if type(value) is not kind:
        msg = f"must be {_expected(kind)}, not {_got(value)}"
        raise _Refused(msg)
    if kind is float and not math.isfinite(value):
        msg = "must be a finite number"
        raise _Refused(msg)
    return value


def _take_choice(value: Any, choices: Mapping[Any, Any]) -> Any:
    """Pick one of *choices*; these are words of ours, so they may be shown."""
    for word, choice in choices.items():
        if type(word) is type(value) and word == value:
            return choice
    listed = ", ".join(f'"{word}"' for word in choices)
    near = suggest(value, [str(word) for word in choices]) if isinstance(value, str) else ""
    msg = f"is none of {listed}{near}"
    raise _Refused(msg)


def _take_union(leaf: _Leaf, kinds: Sequence[Any]) -> Any:
    if type(None) in kinds and leaf.value is None:
        return None
    # Neither TOML nor a variable can say None. Where text may be text, "none" is.
    if type(None) in kinds and str not in kinds and leaf.value == "none":
        return None
    first: _Refused | None = None
    for kind in kinds:
        if kind is not type(None):
            try:
                return _take(leaf, kind)
            except _Refused as refused:
                first = first or refused
    raise first or _Refused('must be "none"')


def _take_many(leaf: _Leaf, origin: type, arguments: Sequence[Any]) -> Any:
    value = leaf.value
    if issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            msg = f"must be a table, not {_got(value)}"
            raise _Refused(msg)
        inner = arguments[1] if len(arguments) > 1 else Any
        return {key: _take(attrs.evolve(leaf, value=item), inner) for key, item in value.items()}
    if leaf.text and isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, (list, tuple)):
        msg = f"must be a list, not {_got(value)}"
        raise _Refused(msg)
    inner = arguments[0] if arguments else Any
    items = [_take(attrs.evolve(leaf, value=item), inner) for item in value]
    return items if issubclass(origin, list) else tuple(items)


def _take(leaf: _Leaf, kind: Any) -> Any:
    """
    Give the value of *leaf* as *kind*.

    Raises:
        _Refused: It is not one.
    """
    origin = typing.get_origin(kind)
    if kind is Any:
        return leaf.value
    if origin in {Union, types.UnionType}:
        return _take_union(leaf, typing.get_args(kind))
    if origin is Literal:
        return _take_choice(_read(leaf, str), {word: word for word in typing.get_args(kind)})
    if isinstance(origin, type) and issubclass(origin, (Sequence, Mapping)):
        return _take_many(leaf, origin, typing.get_args(kind))
    return _take_plain(leaf, kind)


def _take_plain(leaf: _Leaf, kind: Any) -> Any:
    """Take what is one value of one class."""
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        if leaf.argument and isinstance(leaf.value, kind):
            return leaf.value
        return _take_choice(_read(leaf, str), {member.value: member for member in kind})
    if kind in _WORDS:
        return _take_scalar(_read(leaf, kind), kind)
    if kind is Path and isinstance(leaf.value, str):
        return Path(_read(leaf, str))
    if isinstance(kind, type) and isinstance(leaf.value, kind):
        return leaf.value
    if not leaf.argument:
        msg = "can only be given as an argument, not as text"
        raise _Refused(msg)
    if isinstance(kind, type):
        msg = f"must be a {kind.__name__}, not {_got(leaf.value)}"
        raise _Refused(msg)
    # A callable or a protocol: what it takes is the program's own business.
    return leaf.value


def _shown(field: _Field, value: Any) -> str:
    """Show a refused value where it cannot be a secret: `` (it is 5)``."""
    if field.secret or not isinstance(value, (str, int, float, bool)):
        return ""
    text = repr(redact_url(value) if isinstance(value, str) else value)
    return f" (it is {text[:100]})"


def redact_url(text: str) -> str:
    """
    Give a URL back without userinfo, query and fragment.

    Text without ``://`` is given back as it is.
    """
    scheme, mark, rest = text.partition("://")
    if not mark:
        return text
    head, *tail = re.split(r"[?#]", rest, maxsplit=1)
    if tail and "@" in tail[0]:
        # Either a query with an @, or a password with an unquoted ? or #: nobody
        # can tell where the host is.
        return f"{scheme}://{_HIDDEN}"
    return f"{scheme}://{head.rpartition('@')[2]}"


@attrs.frozen
class _Walk:
    """One pass over leaves that fills attrs classes and collects problems."""

    problems: list[str]

    def report(self, path: str, reason: str, source: str) -> None:
        line = f"{path}: {reason} [{source}]"
        if line not in self.problems:
            self.problems.append(line)

    def values(
        self, cls: type[Any], tree: Mapping[str, Any], path: str, *, complete: bool = True
    ) -> dict[str, Any]:
        """Give the arguments for *cls* that could be read from *tree*."""
        fields = _fields(cls)
        values: dict[str, Any] = {}
        for key, node in tree.items():
            here = f"{path}{key}"
            field = fields.get(key)
            if field is None:
                reason = f"is no setting{suggest(key, fields)}"
                self.report(here, reason, _source_of(node))
                continue
            taken = self._value(field, node, here, complete=complete)
            if taken is not _ABSENT:
                values[key] = taken
        self._validate(cls, fields, values, tree, path)
        return values

    def _value(self, field: _Field, node: Any, here: str, *, complete: bool) -> Any:
        nested = _attrs_of(field.type)
        if nested is not None and isinstance(node, _Leaf) and node.value == {}:
            return _ABSENT
        if nested is not None and isinstance(node, dict):
            values = self.values(nested, node, f"{here}.", complete=complete)
            return self.build(nested, values, here, _source_of(node), complete=complete)
        if nested is not None and not (node.argument and isinstance(node.value, nested)):
            self.report(here, f"must be a table, not {_got(node.value)}", node.source)
            return _ABSENT
        leaf = node if isinstance(node, _Leaf) else _leaf_of(node)
        if not field.text and not leaf.argument:
            self.report(here, "can only be given as an argument", leaf.source)
            return _ABSENT
        try:
            return leaf.value if nested is not None else _take(leaf, field.type)
        except _Refused as refused:
            self.report(here, f"{refused}{_shown(field, leaf.value)}", leaf.source)
            return _ABSENT

    def _validate(
        self,
        cls: type[Any],
        fields: Mapping[str, _Field],
        values: dict[str, Any],
        tree: Mapping[str, Any],
        path: str,
    ) -> None:
        """Run the validators one by one: a class stops at its first problem."""
        # A shape of the class that was never initialised: a validator that looks at
        # other fields finds what was given for them.
        shadow = object.__new__(cls)
        for name, value in values.items():
            object.__setattr__(shadow, fields[name].attribute.name, value)
        for name in list(values):
            field = fields[name]
            if field.attribute.validator is None or field.attribute.converter is not None:
                continue
            try:
                field.attribute.validator(shadow, field.attribute, values[name])
            except AttributeError:
                # It looks at a field that was not given: the class itself decides.
                continue
            except Exception as error:  # noqa: BLE001 - an author's validator raises what it likes
                reason = _reason(error, field, values[name])
                self.report(f"{path}{name}", reason, _source_of(tree[name]))
                del values[name]

    def build(
        self,
        cls: type[_SettingsT],
        values: dict[str, Any],
        path: str,
        source: str,
        *,
        complete: bool = True,
    ) -> _SettingsT | Any:
        """Make the object, or report why that cannot be."""
        fields = _fields(cls)
        missing = [
            name
            for name, field in fields.items()
            if field.attribute.default is attrs.NOTHING and name not in values
        ]
        if missing:
            if complete:
                for name in missing:
                    if not any(line.startswith(f"{path}.{name}: ") for line in self.problems):
                        self.report(f"{path}.{name}", "is required and not set", source)
            return _ABSENT
        try:
            return cls(**values)
        except Exception as error:  # noqa: BLE001 - as above
            secrets = [_secret_text(fields[name], value) for name, value in values.items()]
            self.report(path, _scrub(_text_of(error), secrets), source)
        return _ABSENT


def _attrs_of(kind: Any) -> type[Any] | None:
    """Give the attrs class that *kind* is, alone or beside None."""
    for part in typing.get_args(kind) if _is_union(kind) else (kind,):
        if isinstance(part, type) and attrs.has(part):
            return part
    return None


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in {Union, types.UnionType}


def _leaf_of(node: Mapping[str, Any]) -> _Leaf:
    """Fold a table back into one value, for a setting that is a mapping."""
    leaves = list(_leaves_of(node))
    text = any(leaf.text for leaf in leaves)
    argument = all(leaf.argument for leaf in leaves)
    return _Leaf(_plain(node), _source_of(node), text=text, argument=argument)


def _leaves_of(node: Any) -> Iterator[_Leaf]:
    if isinstance(node, _Leaf):
        yield node
        return
    for child in node.values():
        yield from _leaves_of(child)


def _source_of(node: Any) -> str:
    return ", ".join(dict.fromkeys(leaf.source for leaf in _leaves_of(node)))


def _text_of(error: Exception) -> str:
    if isinstance(error, InvalidValueError):
        return error.reason
    if isinstance(error, ConfigError):
        return str(error)
    # attrs' own validators put the attribute and the value behind the sentence.
    return str(error.args[0]) if error.args else type(error).__name__


def _secret_text(field: _Field, value: Any) -> str:
    secret = field.secret or (isinstance(value, str) and "://" in value)
    return str(value) if secret and value is not None else ""


def _scrub(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        if secret:
            text = text.replace(repr(secret), _HIDDEN).replace(secret, _HIDDEN)
    return re.sub(r"(\w+://)\S*@", r"\1", text)


def _reason(error: Exception, field: _Field, value: Any) -> str:
    if field.secret:
        # Whatever the validator says may quote the value, whole or in part.
        return "is not valid"
    return _scrub(_text_of(error), [_secret_text(field, value)])


# --- loading ------------------------------------------------------------------


def load_settings(
    path: str | os.PathLike[str] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    plugins: Plugins | None = None,
    **overrides: Any,
) -> Settings:
    """
    Load the settings from all sources and check them.

    The sections of the backends that are used are checked too where these are
    installed; the section of a backend that is not used is ignored.

    Args:
        path: The one file to read, ``oqron.toml`` or ``pyproject.toml`` or another
            TOML file; None looks for the two nearest to the working directory.
        environ: The environment; None takes the process's own.
        plugins: Where backends are looked up; None discovers the installed ones.
        **overrides: Settings, and sections of backends, as arguments. None counts
            as not given.

    Raises:
        ConfigError: Everything that is wrong, at once.
    """
    found, problems = _load(path, os.environ if environ is None else environ, plugins, overrides)
    # Nothing that may hold a secret stays in this frame, and the error is raised
    # outside of every except block: neither a parser's frame nor its error, which
    # hold the text, travel with it.
    overrides.clear()
    del environ
    if found is None:
        raise ConfigError(tuple(problems))
    return found


def _load(
    path: str | os.PathLike[str] | None,
    environ: Mapping[str, str],
    plugins: Plugins | None,
    overrides: Mapping[str, Any],
) -> tuple[Settings | None, list[str]]:
    problems: list[str] = []
    arguments = _from_arguments(overrides)
    files: list[_Source] = []
    if path is None:
        files.extend(_nearest(problems))
    else:
        file = _from_file(Path(path), problems)
        files.extend([file] if file is not None else [])
    if plugins is None:
        plugins = discover(only=())
    known = _known_backends(plugins, [arguments, *files], environ)
    environment = _from_environment(environ, known)
    loader = _Loader(_Walk(problems), known, plugins)
    return loader.load([arguments, environment, *files]), problems


def _known_backends(
    plugins: Plugins, sources: Iterable[_Source], environ: Mapping[str, str]
) -> frozenset[str]:
    """Give every name that a section may have."""
    named: set[str] = set()
    for source in sources:
        for key in ("hot", "durable"):
            leaf = source.leaves.get((key,))
            if leaf is not None and isinstance(leaf.value, str):
                named.add(leaf.value)
    named.update(environ.get(f"{_PREFIX}{key}", "").strip() for key in ("HOT", "DURABLE"))
    return frozenset(plugins.names) | KNOWN_BACKENDS.keys() | (named - {""})


_CORE: Final = frozenset(
    field.name for field in attrs.fields(Settings) if field.name not in _NOT_IN_SOURCES
)


def _core_paths() -> Iterator[str]:
    for name, field in _fields(Settings).items():
        nested = _attrs_of(field.type)
        if nested is None:
            yield name
        else:
            yield from (f"{name}.{inner}" for inner in _fields(nested))


@attrs.frozen
class _Loader:
    """From layers to one `Settings`."""

    walk: _Walk
    known: frozenset[str]
    plugins: Plugins

    def load(self, sources: Sequence[_Source]) -> Settings | None:
        layers = [self._core(source) for source in sources]
        for layer in layers:
            # Each layer alone first, so that nothing is hidden by a higher one.
            self.walk.values(Settings, _nested(layer), "")
        pair = self._pair(layers)
        merged = _merge(layers)
        for key in ("mode", "hot", "durable"):
            merged.pop((key,), None)
        values = self.walk.values(Settings, _nested(merged), "")
        origins = {".".join(path): leaf.source for path, leaf in merged.items()}
        sections = self._sections(sources, pair)
        if self.walk.problems or pair is None:
            return None
        (hot, hot_source), (durable, durable_source) = pair
        if hot_source:
            origins["hot"] = hot_source
        if durable_source:
            origins["durable"] = durable_source
        values.update(hot=hot, durable=durable, sections=sections)
        values["sources"] = types.MappingProxyType(origins)
        settings: Settings = self.walk.build(Settings, values, "settings", "all sources")
        return settings

    def _core(self, source: _Source) -> _Leaves:
        """Give what is no backend's; report what is nobody's."""
        core: _Leaves = {}
        for path, leaf in source.leaves.items():
            head = path[0]
            if head in _CORE:
                # An empty table says nothing, so it hides nothing below it.
                if leaf.value != {}:
                    core[path] = leaf
            elif head in self.known:
                if len(path) == 1 and not (isinstance(leaf.value, Mapping) and not leaf.value):
                    reason = "is the section of a backend and must be a table"
                    self.walk.report(_spelt(leaf, path), reason, leaf.source)
            else:
                near = (
                    suggest(leaf.source, self._variables(leaf.source))
                    if leaf.text
                    else suggest(head, {*_CORE, *self.known})
                )
                what = "is no setting"
                if len(path) > 1:
                    what = "is no setting, and no backend of this name is installed"
                self.walk.report(_spelt(leaf, path), f"{what}{near}", leaf.source)
        return core

    def _variables(self, variable: str) -> set[str]:
        """Give the variables that *variable* may have been meant to be."""
        known = {f"{_PREFIX}{path}".replace(".", "__").upper() for path in _core_paths()}
        known.add(ALLOW_VARIABLE)
        rest = variable.removeprefix(_PREFIX)
        _, nested, tail = rest.partition("__")
        for name in self.known:
            head = re.sub(r"\W", "_", name).upper()
            # One underscore where two are due, or a slip in the backend's name.
            key = tail if nested else rest[len(head) :].strip("_")
            known.add(f"{_PREFIX}{head}__{key or 'URL'}")
        return known

    def _pair(self, layers: Sequence[_Leaves]) -> tuple[tuple[str, str], tuple[str, str]] | None:
        """Find the two backends: the highest layer that says something of each."""
        hot: tuple[str, str] | None = None
        durable: tuple[str, str] | None = None
        broken = False
        for layer in layers:
            mode, names = self._named(layer)
            broken = broken or mode is _ABSENT
            if isinstance(mode, Mode):
                source = layer[("mode",)].source
                own_hot, own_durable = names.get("hot"), names.get("durable")
                both = (own_hot or mode.hot, own_durable or mode.durable)
                if both != (mode.hot, mode.durable):
                    self.walk.report("mode", _contradiction(mode, *both, "the same source"), source)
                hot = hot or (mode.hot, source)
                durable = durable or (mode.durable, source)
            if hot is None and "hot" in names:
                hot = (names["hot"], layer[("hot",)].source)
            if durable is None and "durable" in names:
                durable = (names["durable"], layer[("durable",)].source)
        if broken:
            return None
        if durable is None and hot is not None and hot[0] != "memory":
            # The default would keep the truth in this process only, which nobody
            # who names a server for the hot plane can have meant. The reverse is
            # sound: a hot plane is a projection and may be in memory.
            reason = f'is not set, although hot = "{hot[0]}" is; set durable too, or mode'
            self.walk.report("durable", reason, hot[1])
        return hot or ("memory", ""), durable or ("memory", "")

    def _named(self, layer: _Leaves) -> tuple[Mode | object | None, dict[str, str]]:
        mode: Mode | object | None = None
        leaf = layer.get(("mode",))
        if leaf is not None:
            try:
                mode = _take(leaf, Mode)
            except _Refused:
                mode = _ABSENT
        names: dict[str, str] = {}
        for key in ("hot", "durable"):
            named = layer.get((key,))
            if named is not None and isinstance(named.value, str) and named.value:
                names[key] = named.value
            elif named is not None and named.value == "":
                self.walk.report(key, "must not be empty", named.source)
        return mode, names

    def _sections(
        self, sources: Sequence[_Source], pair: tuple[tuple[str, str], tuple[str, str]] | None
    ) -> Mapping[str, Section]:
        """Merge the sections; check those of the backends that are used."""
        merged: _Leaves = _merge(
            {
                path: leaf
                for path, leaf in source.leaves.items()
                if path[0] not in _CORE and path[0] in self.known and len(path) > 1
            }
            for source in sources
        )
        sections: dict[str, Section] = {}
        for name in sorted({path[0] for path in merged}):
            own = {path[1:]: leaf for path, leaf in merged.items() if path[0] == name}
            sections[name] = Section(own)
        # Where the mode itself is wrong, every section might be the one in use.
        used = set(sections) if pair is None else {pair[0][0], pair[1][0]} & sections.keys()
        if used:
            self._check_sections(sections, used)
        return types.MappingProxyType(sections)

    def _check_sections(self, sections: Mapping[str, Section], used: set[str]) -> None:
        for name in sorted(used):
            # A backend that cannot be used is an error of opening, not of settings.
            backend = self.plugins.backend(name)
            if backend is None:
                continue
            tree = _nested(sections[name].leaves)
            try:
                values = self.walk.values(backend.settings, tree, f"{name}.", complete=False)
                self.walk.build(backend.settings, values, name, _source_of(tree), complete=False)
            except Exception as error:  # noqa: BLE001 - an author's class may raise anything
                self.walk.report(name, one_line(error), _source_of(tree))


def _spelt(leaf: _Leaf, path: tuple[str, ...]) -> str:
    """Say a path as it was written: a variable by its name."""
    return leaf.source if leaf.text else ".".join(path)


def structure_section(
    backend: Backend, section: Mapping[str, Any], source: str | None = None
) -> Any:
    """
    Make the settings object of a backend from its section.

    Args:
        backend: The backend.
        section: What `Settings.section_for` gives, or a plain mapping.
        source: What to call the origin of a plain mapping in an error.

    Returns:
        An instance of ``backend.settings``.

    Raises:
        ConfigError: Everything that is wrong with the section, at once.
        PluginError: The settings class itself cannot be used.
    """
    if not isinstance(section, Section):
        section = Section(dict(_flatten(section, source or "argument", argument=True)))
    built, problems = _structure(backend, section, source or backend.name)
    # As in load_settings: this frame holds no value.
    if problems:
        raise ConfigError(tuple(problems))
    return built


def _structure(backend: Backend, section: Section, source: str) -> tuple[Any, list[str]]:
    walk = _Walk([])
    tree = _nested(section.leaves)
    values = walk.values(backend.settings, tree, f"{backend.name}.")
    built = walk.build(backend.settings, values, backend.name, _source_of(tree) or source)
    return built, walk.problems


# --- showing ------------------------------------------------------------------


def describe(settings: Settings, backends: Iterable[Backend] = ()) -> dict[str, dict[str, Any]]:
    """
    Show the effective settings, each with its source, without secrets.

    Args:
        settings: The settings.
        backends: The backends in use: their settings are shown in full, those of
            other sections by name only.

    Returns:
        For each path such as ``runs.buffer`` a dict of ``value``, which is JSON,
        and ``source``; core's settings first.
    """
    shown: dict[str, dict[str, Any]] = {}
    for name in [field.name for field in attrs.fields(Settings) if field.name in _CORE]:
        value = getattr(settings, name)
        if attrs.has(type(value)):
            for inner in attrs.fields(type(value)):
                path = f"{name}.{inner.name}"
                shown[path] = _row(getattr(value, inner.name), settings.sources.get(path))
        else:
            source = settings.sources.get(name)
            shown[name] = _row(value, source or _mode_source(name, settings))
    known = {backend.name: backend for backend in backends}
    for name in sorted({*settings.sections, *known}):
        section = settings.section_for(name)
        if name in known:
            shown.update(_describe_backend(known[name], section))
        else:
            for key in section:
                shown[f"{name}.{key}"] = _row(_HIDDEN, _section_source(section, key))
    return shown


def _mode_source(name: str, settings: Settings) -> str | None:
    return settings.sources.get("hot") if name == "mode" else None


def _row(value: Any, source: str | None) -> dict[str, Any]:
    shown = str(value) if isinstance(value, StrEnum) else value
    return {"value": shown, "source": source or "default"}


def _section_source(section: Mapping[str, Any], key: str) -> str | None:
    if not isinstance(section, Section):
        return "argument" if key in section else None
    found = [leaf.source for path, leaf in section.leaves.items() if path[0] == key]
    return ", ".join(dict.fromkeys(found)) or None


def _describe_backend(backend: Backend, section: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    built = structure_section(backend, section)
    rows: dict[str, dict[str, Any]] = {}
    for key, field in _fields(backend.settings).items():
        value = _safe(field, getattr(built, field.attribute.name))
        rows[f"{backend.name}.{key}"] = _row(value, _section_source(section, key))
    return rows


def _safe(field: _Field, value: Any) -> Any:
    """Give what of a value may be shown, as JSON."""
    if isinstance(value, str) and "://" in value and field.name.endswith(("url", "uri", "dsn")):
        return redact_url(value)
    if value is None:
        return None
    if field.secret:
        return _HIDDEN
    if isinstance(value, str):
        return redact_url(value)
    if isinstance(value, (bool, int, float)):
        return value
    return f"<{type(value).__name__}>"
