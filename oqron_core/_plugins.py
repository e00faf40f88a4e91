"""
Who is installed, and who can serve which plane.

Discovery reads metadata only; a plugin is imported when it is named. What one
plugin does wrong is remembered with its distribution and shown to whoever asks
for it; it never touches another.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import os
import re

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import attrs
import pluggy

from oqron_core import hookspecs
from oqron_core.exceptions import (
    BackendNotFoundError,
    ContractMismatchError,
    DuplicateBackendError,
    PluginError,
)
from oqron_core.hookspecs import NAME, Backend, DoctorReport, OpenDurable, OpenHot
from oqron_core.planes.capabilities import CONTRACT_VERSION
from oqron_core.planes.durable import DurablePlane
from oqron_core.planes.hot import (
    Broker,
    Cache,
    Counters,
    HotPlane,
    LiveRuns,
    Locks,
    Signals,
)
from oqron_core.planes.values import PlaneContext


if TYPE_CHECKING:
    from importlib.metadata import Distribution


__all__ = [
    "ALLOW_VARIABLE",
    "KNOWN_BACKENDS",
    "DoctorCheck",
    "PluginInfo",
    "Plugins",
    "discover",
    "one_line",
    "suggest",
]

log = logging.getLogger("oqron.plugins")

ALLOW_VARIABLE: Final = "OQRON_PLUGINS"
"""The environment variable with the allow-list: names with commas between."""

KNOWN_BACKENDS: Final = MappingProxyType(
    {
        "memory": "oqron-memory",
        "postgres": "oqron-postgres",
        "redis": "oqron-redis",
        "sqlite": "oqron-sqlite",
    }
)
"""The backends of the modes and the distributions to install for them."""

_FACETS: Final[Mapping[str, type]] = MappingProxyType(
    {
        "broker": Broker,
        "locks": Locks,
        "counters": Counters,
        "cache": Cache,
        "live": LiveRuns,
        "signals": Signals,
    }
)

_Check: TypeAlias = Callable[[Any], Awaitable[tuple[bool | None, str]]]
_PlaneT = TypeVar("_PlaneT")
_Open: TypeAlias = Callable[[Any, PlaneContext], AbstractAsyncContextManager[_PlaneT]]


@attrs.frozen(kw_only=True)
class PluginInfo:
    """
    What is known of one plugin.

    Attributes:
        name: The name of its entry point, which is the backend's.
        distribution: The distribution that ships it, or ``(this process)``.
        version: The version of that distribution, or None.
        planes: ``hot``, ``durable``, or both, in this order.
        contract_version: What it was written for, or None if it did not load.
        error: Why it cannot be used, in one line, or None.
    """

    name: str
    distribution: str
    version: str | None
    planes: tuple[str, ...] = ()
    contract_version: int | None = None
    error: str | None = None


@attrs.frozen(kw_only=True)
class DoctorCheck:
    """
    A check that a plugin adds to ``oqron doctor``.

    Attributes:
        plugin: The name of the plugin.
        name: What is checked, in one or two words.
        check: Takes the settings of the plugin's backend, gives whether all is
            well (None: with a warning) and one sentence.
        planes: It is for a backend that serves one of these.
    """

    plugin: str
    name: str
    check: _Check
    planes: Sequence[str] = ("hot", "durable")


@attrs.frozen
class _Candidate:
    """A claim on a name: an entry point, or an object of this process."""

    name: str
    distribution: str
    version: str | None
    load: Callable[[], object]
    value: str = ""

    @property
    def label(self) -> str:
        return f"{self.distribution} {self.version}" if self.version else self.distribution


@attrs.define
class _Plugin:
    """What became of a candidate that was loaded."""

    candidate: _Candidate
    manager: pluggy.PluginManager | None = None
    hot: tuple[Backend, OpenHot] | None = None
    durable: tuple[Backend, OpenDurable] | None = None
    error: BaseException | None = None

    @property
    def backend(self) -> Backend | None:
        serves = self.hot or self.durable
        return serves[0] if serves else None


def one_line(error: BaseException, limit: int = 300) -> str:
    """Say what *error* is in one short line without the userinfo of URLs."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a foreign __str__ must not break the listing
        text = "(its str() raised)"
    text = " ".join(text.split())
    text = re.sub(r"(\w+://)\S*@", r"\1", text)
    if len(text) > limit:
        text = f"{text[:limit]}…"
    kind = type(error).__name__
    return f"{kind}: {text}" if text else kind


def suggest(name: str, known: Collection[str]) -> str:
    """Give ``; did you mean "x"?`` for the nearest known name, or nothing."""
    # Case and separators are the commonest slips, so they do not count.
    plain = {word.lower().replace("-", "_"): word for word in sorted(known)}
    near = difflib.get_close_matches(name.lower().replace("-", "_"), plain, n=1, cutoff=0.6)
    return f'; did you mean "{plain[near[0]]}"?' if near else ""


def _canonical(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _allowed(allow: Collection[str] | None) -> frozenset[str] | None:
    if allow is None:
        text = os.environ.get(ALLOW_VARIABLE)
        if text is None:
            return None
        allow = [part.strip() for part in text.split(",")]
    elif isinstance(allow, str):
        allow = [allow]
    return frozenset(allow) - {""}


def _read(distribution: Distribution) -> Iterator[_Candidate]:
    text = distribution.read_text("entry_points.txt")
    # Most distributions are not ours: do not parse what cannot hold the group.
    if not text or NAME not in text:
        return
    found = [entry for entry in distribution.entry_points if entry.group == NAME]
    if not found:
        return
    name = distribution.metadata["Name"] or "(a distribution without a name)"
    version = distribution.metadata["Version"]
    for entry in found:
        yield _Candidate(entry.name, name, version, entry.load, entry.value)


def _scan() -> dict[str, list[_Candidate]]:
    """Collect the entry points of the group, by name, without importing any."""
    # It takes a tenth of the time of `import oqron_core`, which never looks around.
    from importlib.metadata import distributions  # noqa: PLC0415 - see above

    claims: dict[str, list[_Candidate]] = {}
    for distribution in distributions():
        try:
            candidates = list(_read(distribution))
        except Exception as error:  # noqa: BLE001 - one broken installation must not hide the others
            log.warning("a distribution with unreadable metadata was skipped: %s", one_line(error))
            continue
        for candidate in candidates:
            claimed = claims.setdefault(candidate.name, [])
            # The same distribution again, further down sys.path: the first one is
            # what an import gives, so it is what counts.
            own = _canonical(candidate.distribution)
            if all(_canonical(other.distribution) != own for other in claimed):
                claimed.append(candidate)
    return claims


def discover(
    allow: Collection[str] | None = None,
    *,
    only: Collection[str] | None = None,
) -> Plugins:
    """
    Find the installed plugins and load those that are named.

    Args:
        allow: Names of plugins (or of their distributions) that may be loaded at
            all. None takes the list from ``OQRON_PLUGINS``; where that is not set
            either, all may. Empty means none.
        only: Names to load now; None loads all. What is not loaded now is loaded
            when it is asked for.

    Returns:
        The plugins. Never raises for what one of them does.
    """
    plugins = Plugins(_scan(), allow=_allowed(allow))
    for name in plugins.names if only is None else sorted(only):
        plugins._load(name)
    return plugins


class Plugins:
    """
    The plugins of one discovery. Not shared: every storage makes its own.

    Args:
        claims: The candidates by name.
        allow: Names that may be loaded, or None for all.
    """

    def __init__(
        self,
        claims: Mapping[str, list[_Candidate]] | None = None,
        *,
        allow: frozenset[str] | None = None,
    ) -> None:
        self._claims = {name: list(found) for name, found in (claims or {}).items()}
        self._allow = allow
        self._loaded: dict[str, _Plugin] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all plugins that are there, sorted, loaded or not."""
        return tuple(sorted(self._claims))

    def register(self, plugin: object, name: str) -> None:
        """
        Register a plugin that is no installed distribution.

        Args:
            plugin: A module or object with the hooks as attributes.
            name: The name of its backend.

        Raises:
            DuplicateBackendError: The name is taken.
            PluginError: It registers what is no backend.
            Exception: Whatever its hooks raise.
        """
        candidate = _Candidate(name, "(this process)", None, lambda: plugin)
        if name in self._claims:
            raise self._duplicate(name, [*self._claims[name], candidate])
        loaded = _Plugin(candidate)
        _call_hooks(loaded, plugin)
        self._claims[name] = [candidate]
        self._loaded[name] = loaded

    def hot(self, name: str) -> tuple[Backend, OpenHot]:
        """
        Give the hot plane of a backend.

        Raises:
            BackendNotFoundError: Not installed, not allowed, failed to load (the
                cause is chained), or without a hot plane.
            DuplicateBackendError: Two distributions claim the name.
            ContractMismatchError: Written for another contract version.
        """
        plugin = self._require(name)
        if plugin.hot is None:
            raise self._wrong_plane(plugin, "hot", "durable")
        backend, open_hot = plugin.hot
        self._check_version(plugin, backend)
        return backend, _guarded(open_hot, plugin.candidate.label, _check_hot)

    def durable(self, name: str) -> tuple[Backend, OpenDurable]:
        """
        Give the durable plane of a backend.

        Raises:
            BackendNotFoundError: As `hot`.
            DuplicateBackendError: As `hot`.
            ContractMismatchError: As `hot`.
        """
        plugin = self._require(name)
        if plugin.durable is None:
            raise self._wrong_plane(plugin, "durable", "hot")
        backend, open_durable = plugin.durable
        self._check_version(plugin, backend)
        return backend, _guarded(open_durable, plugin.candidate.label, _check_durable)

    def backend(self, name: str) -> Backend | None:
        """Give the backend of a plugin, or None where it cannot be used."""
        plugin = self._load(name)
        return plugin.backend if plugin is not None else None

    def listing(self) -> list[PluginInfo]:
        """
        Load all plugins and say what each one is, sorted by name.

        A name that several distributions claim is listed once for each of them.
        """
        infos: list[PluginInfo] = []
        for name in self.names:
            claims = self._claims[name]
            plugin = self._load(name)
            for candidate in claims:
                info = PluginInfo(
                    name=name,
                    distribution=candidate.distribution,
                    version=candidate.version,
                    planes=_planes(plugin),
                    contract_version=_version(plugin),
                    error=self._trouble(name, plugin),
                )
                infos.append(info)
        return infos

    def doctor_checks(self) -> list[DoctorCheck]:
        """
        Ask every plugin that is loaded for its checks; runs none of them.

        A plugin that raises gives one check, which fails and says so.
        """
        checks: list[DoctorCheck] = []
        for name, plugin in sorted(self._loaded.items()):
            if plugin.manager is None or plugin.error is not None:
                continue
            found: list[DoctorCheck] = []
            try:
                plugin.manager.hook.oqron_doctor(report=_reporter(name, found))
            except (KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException as error:  # noqa: BLE001 - whatever a plugin raises is its own
                reason = f"the plugin's checks could not be listed: {one_line(error)}"
                found.append(DoctorCheck(plugin=name, name=name, check=_failed(reason)))
            checks.extend(found)
        return checks

    def _load(self, name: str) -> _Plugin | None:
        """Load the one candidate of *name* once; None where there is no single one."""
        loaded = self._loaded.get(name)
        if loaded is not None:
            return loaded
        claims = self._claims.get(name, [])
        if len(claims) != 1 or not self._may(claims[0]):
            return None
        plugin = self._loaded[name] = _Plugin(claims[0])
        try:
            _call_hooks(plugin, claims[0].load())
        except (KeyboardInterrupt, GeneratorExit):
            del self._loaded[name]
            raise
        except BaseException as error:  # noqa: BLE001 - SystemExit too: a plugin must not end its host
            plugin.error = error
            label = claims[0].label
            log.warning("the plugin %s of %s cannot be used: %s", name, label, one_line(error))
        return plugin

    def _may(self, candidate: _Candidate) -> bool:
        if self._allow is None or candidate.name in self._allow:
            return True
        own = _canonical(candidate.distribution)
        return any(_canonical(name) == own for name in self._allow)

    def _require(self, name: str) -> _Plugin:
        claims = self._claims.get(name, [])
        if not claims:
            raise BackendNotFoundError(self._absent(name))
        if len(claims) > 1:
            raise self._duplicate(name, claims)
        plugin = self._load(name)
        if plugin is None:
            msg = (
                f'the backend "{name}" of {claims[0].label} is installed, but '
                f"{ALLOW_VARIABLE} does not name it"
            )
            raise BackendNotFoundError(msg)
        if plugin.error is not None:
            msg = (
                f'the backend "{name}" of {plugin.candidate.label} failed to load: '
                f"{one_line(plugin.error)}"
            )
            raise BackendNotFoundError(msg) from plugin.error
        return plugin

    def _absent(self, name: str) -> str:
        known = KNOWN_BACKENDS.get(name)
        if known is not None:
            return f'the backend "{name}" is not installed: pip install {known}'
        here = ", ".join(self.names) or "none"
        near = suggest(name, {*self.names, *KNOWN_BACKENDS})
        return (
            f'no backend "{name}" is installed{near or ";"} installed: {here}. '
            f"Install the distribution that ships it: its entry point in the group "
            f'"{NAME}" has this name'
        )

    @staticmethod
    def _duplicate(name: str, claims: list[_Candidate]) -> DuplicateBackendError:
        both = " and ".join(f"{claim.label} ({claim.value or claim.name})" for claim in claims)
        return DuplicateBackendError(
            f'the backend "{name}" is claimed by {both}; uninstall all but one'
        )

    @staticmethod
    def _wrong_plane(plugin: _Plugin, wanted: str, other: str) -> BackendNotFoundError:
        name, label = plugin.candidate.name, plugin.candidate.label
        serves = f"only the {other} plane" if plugin.backend else "no plane at all"
        return BackendNotFoundError(
            f'the backend "{name}" of {label} serves {serves}; name another one for {wanted}'
        )

    @staticmethod
    def _check_version(plugin: _Plugin, backend: Backend) -> None:
        if backend.contract_version != CONTRACT_VERSION:
            label = plugin.candidate.label
            newer = backend.contract_version > CONTRACT_VERSION
            mend = "upgrade oqron-core" if newer else f"upgrade {plugin.candidate.distribution}"
            msg = (
                f'the backend "{backend.name}" of {label} was written for contract version '
                f"{backend.contract_version}; this oqron-core has version "
                f"{CONTRACT_VERSION}: {mend}"
            )
            raise ContractMismatchError(msg)

    def _trouble(self, name: str, plugin: _Plugin | None) -> str | None:
        try:
            found = self._require(name)
            if found.backend is None:
                return "registers no plane"
            self._check_version(found, found.backend)
        except PluginError as error:
            if plugin is not None and plugin.error is not None:
                return one_line(plugin.error)
            return str(error)
        return None


def _planes(plugin: _Plugin | None) -> tuple[str, ...]:
    if plugin is None:
        return ()
    served = (("hot", plugin.hot), ("durable", plugin.durable))
    return tuple(plane for plane, there in served if there is not None)


def _version(plugin: _Plugin | None) -> int | None:
    backend = plugin.backend if plugin is not None else None
    return backend.contract_version if backend is not None else None


def _call_hooks(plugin: _Plugin, module: object) -> None:
    # A manager of its own for every plugin: a registration that fails half-way
    # leaves nothing behind, a hook that raises stops no other, and a hook wrapper
    # sees its own plugin only.
    manager = pluggy.PluginManager(NAME)
    manager.add_hookspecs(hookspecs)
    manager.register(module, plugin.candidate.name)
    # A misspelt hook would otherwise never be called, and nobody would know.
    manager.check_pending()

    def register_hot(backend: Backend, open_hot: OpenHot) -> None:
        _check_backend(plugin, "hot", backend, open_hot)
        plugin.hot = (backend, open_hot)

    def register_durable(backend: Backend, open_durable: OpenDurable) -> None:
        _check_backend(plugin, "durable", backend, open_durable)
        plugin.durable = (backend, open_durable)

    manager.hook.oqron_register_hot_planes(register=register_hot)
    manager.hook.oqron_register_durable_planes(register=register_durable)
    plugin.manager = manager


def _check_backend(plugin: _Plugin, plane: str, backend: object, opens: object) -> None:
    name = plugin.candidate.name
    if not isinstance(backend, Backend):
        msg = f"registered a {type(backend).__name__} where a Backend belongs"
        raise PluginError(msg)
    if backend.name != name:
        msg = f'registered the backend "{backend.name}" under the entry point "{name}"'
        raise PluginError(msg)
    version: object = backend.contract_version
    if type(version) is not int:
        msg = "contract_version must be an int, written as a number"
        raise PluginError(msg)
    settings: object = backend.settings
    if not isinstance(settings, type) or not attrs.has(settings):
        msg = "settings must be an attrs class"
        raise PluginError(msg)
    if not callable(opens):
        msg = f"what opens the {plane} plane must be callable"
        raise PluginError(msg)
    if (plugin.hot if plane == "hot" else plugin.durable) is not None:
        msg = f'registered the {plane} plane of "{name}" twice'
        raise DuplicateBackendError(msg)


def _guarded(
    opens: _Open[_PlaneT],
    label: str,
    check: Callable[[object, str], None],
) -> _Open[_PlaneT]:
    """Check what a plugin opens against the contract, once, when it is opened."""

    @contextlib.asynccontextmanager
    async def opened(connection: Any, context: PlaneContext) -> AsyncIterator[_PlaneT]:
        async with AsyncExitStack() as stack:
            try:
                plane = await stack.enter_async_context(opens(connection, context))
            except TypeError as error:
                # Python's own words for an abstract class; they name the methods.
                if "abstract" not in str(error):
                    raise
                msg = f"a plane of {label} does not fulfil the contract: {error}"
                raise ContractMismatchError(msg) from error
            check(plane, label)
            yield plane

    return opened


def _check_hot(plane: object, label: str) -> None:
    if not isinstance(plane, HotPlane):
        msg = f"{label} opened a {type(plane).__name__}, which is no HotPlane"
        raise ContractMismatchError(msg)
    wrong = [
        name for name, facet in _FACETS.items() if not isinstance(getattr(plane, name, None), facet)
    ]
    if wrong:
        msg = f"the hot plane of {label} lacks these facets: {', '.join(wrong)}"
        raise ContractMismatchError(msg)


def _check_durable(plane: object, label: str) -> None:
    if not isinstance(plane, DurablePlane):
        msg = f"{label} opened a {type(plane).__name__}, which is no DurablePlane"
        raise ContractMismatchError(msg)


def _reporter(plugin: str, found: list[DoctorCheck]) -> DoctorReport:
    def report(name: str, check: _Check, *, planes: Sequence[str] = ("hot", "durable")) -> None:
        found.append(DoctorCheck(plugin=plugin, name=name, check=check, planes=planes))

    return report


def _failed(reason: str) -> _Check:
    async def check(_settings: Any) -> tuple[bool, str]:
        return False, reason

    return check
