"""Loading: from all sources to one object."""

from __future__ import annotations

import os
import re
import types

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from oqron_core._plugins import (
    ALLOW_VARIABLE,
    KNOWN_BACKENDS,
    Plugins,
    discover,
    one_line,
    suggest,
)
from oqron_core.config._leaves import (
    ABSENT,
    Leaf,
    Leaves,
    Section,
    flatten,
    merge,
    nest,
    source_of,
)
from oqron_core.config._settings import Mode, Settings, contradiction
from oqron_core.config._sources import (
    PREFIX,
    Source,
    from_arguments,
    from_environment,
    from_file,
    nearest,
)
from oqron_core.config._strict import Refused, Walk, attrs_of, fields_of, take
from oqron_core.exceptions import ConfigError
from oqron_core.hookspecs import Backend


__all__ = ["load_settings", "structure_section"]


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
    arguments = from_arguments(overrides)
    files: list[Source] = []
    if path is None:
        files.extend(nearest(problems))
    else:
        file = from_file(Path(path), problems)
        files.extend([file] if file is not None else [])
    if plugins is None:
        plugins = discover(only=())
    known = _known_backends(plugins, [arguments, *files], environ)
    environment = from_environment(environ, known)
    loader = _Loader(Walk(problems), known, plugins)
    return loader.load([arguments, environment, *files]), problems


def _known_backends(
    plugins: Plugins, sources: Iterable[Source], environ: Mapping[str, str]
) -> frozenset[str]:
    """Give every name that a section may have."""
    named: set[str] = set()
    for source in sources:
        for key in ("hot", "durable"):
            leaf = source.leaves.get((key,))
            if leaf is not None and isinstance(leaf.value, str):
                named.add(leaf.value)
    named.update(environ.get(f"{PREFIX}{key}", "").strip() for key in ("HOT", "DURABLE"))
    return frozenset(plugins.names) | KNOWN_BACKENDS.keys() | (named - {""})


_CORE: Final = frozenset(fields_of(Settings))
_TABLES: Final = frozenset(
    name for name, field in fields_of(Settings).items() if attrs_of(field.type) is not None
)


def _core_paths() -> Iterator[str]:
    for name, field in fields_of(Settings).items():
        nested = attrs_of(field.type)
        if nested is None:
            yield name
        else:
            yield from (f"{name}.{inner}" for inner in fields_of(nested))


@attrs.frozen
class _Loader:
    """From layers to one `Settings`."""

    walk: Walk
    known: frozenset[str]
    plugins: Plugins

    def load(self, sources: Sequence[Source]) -> Settings | None:
        layers = [self._core(source) for source in sources]
        for layer in layers:
            # Each layer alone first, so that nothing is hidden by a higher one.
            self.walk.values(Settings, nest(layer), "")
        pair = self._pair(layers)
        merged = merge(layers)
        for key in ("mode", "hot", "durable"):
            merged.pop((key,), None)
        values = self.walk.values(Settings, nest(merged), "")
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

    def _core(self, source: Source) -> Leaves:
        """Give what is no backend's; report what is nobody's."""
        core: Leaves = {}
        for path, leaf in source.leaves.items():
            head = path[0]
            if head in _CORE:
                if leaf.text and len(path) == 1 and head in _TABLES:
                    # Beside OQRON_RUNS__BUFFER the tree would have no place for it.
                    self.walk.report(head, "must be a table; set its keys", leaf.source)
                elif leaf.value != {}:
                    # An empty table says nothing, so it hides nothing below it.
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
        known = {f"{PREFIX}{path}".replace(".", "__").upper() for path in _core_paths()}
        known.add(ALLOW_VARIABLE)
        rest = variable.removeprefix(PREFIX)
        _, nested, tail = rest.partition("__")
        for name in self.known:
            head = re.sub(r"\W", "_", name).upper()
            # One underscore where two are due, or a slip in the backend's name.
            key = tail if nested else rest[len(head) :].strip("_")
            known.add(f"{PREFIX}{head}__{key or 'URL'}")
        return known

    def _pair(self, layers: Sequence[Leaves]) -> tuple[tuple[str, str], tuple[str, str]] | None:
        """Find the two backends: the highest layer that says something of each."""
        hot: tuple[str, str] | None = None
        durable: tuple[str, str] | None = None
        broken = False
        for layer in layers:
            mode, names = self._named(layer)
            broken = broken or mode is ABSENT
            if isinstance(mode, Mode):
                source = layer[("mode",)].source
                own_hot, own_durable = names.get("hot"), names.get("durable")
                both = (own_hot or mode.hot, own_durable or mode.durable)
                if both != (mode.hot, mode.durable):
                    self.walk.report("mode", contradiction(mode, *both, "the same source"), source)
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

    def _named(self, layer: Leaves) -> tuple[Mode | object | None, dict[str, str]]:
        mode: Mode | object | None = None
        leaf = layer.get(("mode",))
        if leaf is not None:
            try:
                mode = take(leaf, Mode)
            except Refused:
                mode = ABSENT
        names: dict[str, str] = {}
        for key in ("hot", "durable"):
            named = layer.get((key,))
            if named is not None and isinstance(named.value, str) and named.value:
                names[key] = named.value
            elif named is not None and named.value == "":
                self.walk.report(key, "must not be empty", named.source)
        return mode, names

    def _sections(
        self, sources: Sequence[Source], pair: tuple[tuple[str, str], tuple[str, str]] | None
    ) -> Mapping[str, Section]:
        """Merge the sections; check those of the backends that are used."""
        merged: Leaves = merge(
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
            tree = nest(sections[name].leaves)
            try:
                values = self.walk.values(backend.settings, tree, f"{name}.", complete=False)
                self.walk.build(backend.settings, values, name, source_of(tree), complete=False)
            except Exception as error:  # noqa: BLE001 - an author's class may raise anything
                self.walk.report(name, one_line(error), source_of(tree))


def _spelt(leaf: Leaf, path: tuple[str, ...]) -> str:
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
        section = Section(dict(flatten(section, source or "argument", argument=True)))
    built, problems = _structure(backend, section, source or backend.name)
    # As in load_settings: this frame holds no value.
    if problems:
        raise ConfigError(tuple(problems))
    return built


def _structure(backend: Backend, section: Section, source: str) -> tuple[Any, list[str]]:
    walk = Walk([])
    tree = nest(section.leaves)
    values = walk.values(backend.settings, tree, f"{backend.name}.")
    built = walk.build(backend.settings, values, backend.name, source_of(tree) or source)
    return built, walk.problems
