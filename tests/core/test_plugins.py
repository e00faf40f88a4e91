"""Discovery is lazy and isolated: what one plugin does is never another's trouble."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import textwrap
import traceback
import types

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from oqron_core._plugins import (
    ALLOW_VARIABLE,
    KNOWN_BACKENDS,
    DoctorCheck,
    Plugins,
    discover,
    one_line,
    suggest,
)
from oqron_core.exceptions import (
    BackendNotFoundError,
    ContractMismatchError,
    DuplicateBackendError,
    PluginError,
)
from oqron_core.hookspecs import Backend, hookimpl
from oqron_core.planes import CONTRACT_VERSION, DurablePlane, HotPlane, PlaneContext, Scope


CONTEXT = PlaneContext(Scope("project", "environment"))

GOOD = """
    import contextlib

    import attrs

    from oqron_core.hookspecs import Backend, hookimpl


    @attrs.frozen
    class Settings:
        url: str = "x"


    def connect(settings):
        return contextlib.nullcontext(settings)


    def open_plane(connection, context):
        return contextlib.nullcontext(object())


    BACKEND = Backend(
        name="NAME", contract_version=VERSION, settings=Settings, connect=connect
    )


    @hookimpl
    def oqron_register_hot_planes(register):
        register(BACKEND, open_plane)


    @hookimpl
    def oqron_register_durable_planes(register):
        register(BACKEND, open_plane)
"""


class Site:
    """A folder on the path where distributions are installed, as pip leaves them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def install(
        self,
        distribution: str,
        name: str,
        source: str = GOOD,
        *,
        version: str = "1.2.3",
        module: str | None = None,
        contract: int = CONTRACT_VERSION,
    ) -> str:
        module = module or f"plugin_of_{distribution.replace('-', '_').lower()}_{name}"
        module = module.replace("-", "_")
        text = textwrap.dedent(source).replace("NAME", name).replace("VERSION", str(contract))
        (self.folder / f"{module}.py").write_text(text)
        self.claim(distribution, f"[oqron]\n{name} = {module}\n", version=version)
        return module

    def claim(
        self, distribution: str, entry_points: str | bytes, *, version: str = "1.2.3"
    ) -> Path:
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        (info / "METADATA").write_text(metadata)
        data = entry_points.encode() if isinstance(entry_points, str) else entry_points
        (info / "entry_points.txt").write_bytes(data)
        return info


@pytest.fixture(autouse=True)
def _every_plugin_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALLOW_VARIABLE, raising=False)


@pytest.fixture(autouse=True)
def _no_module_left_behind() -> Iterator[None]:
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("plugin_of_"):
            del sys.modules[name]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path / "site")
    monkeypatch.syspath_prepend(str(made.folder))
    return made


@pytest.fixture
def other_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(tmp_path / "other")
    monkeypatch.syspath_prepend(str(made.folder))
    return made


@attrs.frozen
class NoSettings:
    pass


def nothing(_settings: Any) -> contextlib.AbstractAsyncContextManager[None]:
    return contextlib.nullcontext()


def backend(name: str = "mine", *, version: Any = CONTRACT_VERSION, **changes: Any) -> Backend:
    made: dict[str, Any] = {
        "name": name,
        "contract_version": version,
        "settings": NoSettings,
        "connect": nothing,
    }
    return Backend(**(made | changes))


def plugin(
    made: Any = None, *, hot: Any = None, durable: Any = None, **more: Any
) -> types.SimpleNamespace:
    """Make a plugin of this process out of what its planes are opened with."""
    made = made or backend()
    hooks = dict(more)
    if hot is not None:

        @hookimpl
        def oqron_register_hot_planes(register: Any) -> None:
            register(made, hot)

        hooks["oqron_register_hot_planes"] = oqron_register_hot_planes
    if durable is not None:

        @hookimpl
        def oqron_register_durable_planes(register: Any) -> None:
            register(made, durable)

        hooks["oqron_register_durable_planes"] = oqron_register_durable_planes
    return types.SimpleNamespace(**hooks)


def opens(plane: Any) -> Any:
    return lambda _connection, _context: contextlib.nullcontext(plane)


# --- finding ---------------------------------------------------------------------


def test_an_installed_plugin_is_found_with_its_distribution_and_planes(site: Site) -> None:
    site.install("acme-dynamo", "dynamo", version="4.5.6")
    plugins = discover(only=["dynamo"])
    made, open_hot = plugins.hot("dynamo")
    assert made.name == "dynamo"
    assert callable(open_hot)
    assert plugins.durable("dynamo")[0] is made
    assert plugins.backend("dynamo") is made
    (info,) = [info for info in plugins.listing() if info.name == "dynamo"]
    assert (info.distribution, info.version) == ("acme-dynamo", "4.5.6")
    assert info.planes == ("hot", "durable")
    assert info.contract_version == CONTRACT_VERSION
    assert info.error is None


def test_only_what_is_named_is_imported(site: Site) -> None:
    one = site.install("acme-one", "one")
    two = site.install("acme-two", "two", "raise SystemExit('imported')")
    plugins = discover(only=["one"])
    assert one in sys.modules
    assert two not in sys.modules
    assert {"one", "two"} <= set(plugins.names)


def test_finding_out_what_is_there_imports_nothing(site: Site) -> None:
    module = site.install("acme-one", "one")
    assert "one" in discover(only=[]).names
    assert module not in sys.modules


def test_without_a_choice_everything_is_loaded(site: Site) -> None:
    module = site.install("acme-one", "one")
    discover()
    assert module in sys.modules


def test_what_was_not_loaded_is_loaded_when_it_is_asked_for(site: Site) -> None:
    site.install("acme-one", "one")
    assert discover(only=[]).hot("one")[0].name == "one"


def test_discovery_brings_no_driver_and_no_test_tool_along() -> None:
    program = (
        "import sys\n"
        "from oqron_core._plugins import discover\n"
        "discover(only=())\n"
        "heavy = {'redis', 'psycopg', 'sqlalchemy', 'pytest', 'hypothesis', 'click', 'rich',"
        " 'oqron_memory', 'oqron_redis', 'oqron_postgres'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert shown.stdout.strip() == "[]"


# --- isolation -------------------------------------------------------------------


@pytest.mark.parametrize(
    "source, kind",
    [
        ("import a_module_that_is_not_there", ModuleNotFoundError),
        ("raise SystemExit(3)", SystemExit),
        ("import sys; sys.exit('bye')", SystemExit),
        ("raise BaseException('rude')", BaseException),
        ("import asyncio; raise asyncio.CancelledError", asyncio.CancelledError),
        ("def broken(:", SyntaxError),
        ("1 / 0", ZeroDivisionError),
        ("raise RecursionError", RecursionError),
        ("raise MemoryError", MemoryError),
        ("from oqron_core.planes import NoSuchThing", ImportError),
        (
            """
            from oqron_core.hookspecs import hookimpl

            @hookimpl
            def oqron_register_hot_planes(register):
                raise LookupError("in the hook")
            """,
            LookupError,
        ),
        (
            """
            from oqron_core.hookspecs import hookimpl

            @hookimpl
            def oqron_register_durable_planes(register):
                raise SystemExit("in the hook")
            """,
            SystemExit,
        ),
    ],
)
def test_whatever_a_plugin_raises_is_kept_for_who_asks_for_it(
    site: Site, source: str, kind: type[BaseException]
) -> None:
    site.install("acme-bad", "bad", source)
    site.install("acme-good", "good")
    plugins = discover(only=["bad", "good"])
    assert plugins.hot("good")[0].name == "good"
    assert plugins.backend("bad") is None
    for ask in (plugins.hot, plugins.durable):
        with pytest.raises(BackendNotFoundError, match=r"acme-bad 1\.2\.3") as caught:
            ask("bad")
        assert type(caught.value.__cause__) is kind
        assert kind.__name__ in str(caught.value)
    errors = {info.name: info.error for info in plugins.listing()}
    assert errors["good"] is None
    assert kind.__name__ in (errors["bad"] or "")


def test_the_original_traceback_is_chained(site: Site) -> None:
    site.install("acme-bad", "bad", "def deep():\n    raise ValueError('the reason')\n\ndeep()\n")
    with pytest.raises(BackendNotFoundError) as caught:
        discover(only=["bad"]).hot("bad")
    shown = "".join(traceback.format_exception(caught.value))
    assert "in deep" in shown
    assert "the reason" in shown
    assert "The above exception was the direct cause" in shown


def test_an_entry_point_to_nothing_is_contained(site: Site) -> None:
    site.claim("acme-gone", "[oqron]\ngone = plugin_of_nobody\n")
    site.claim("acme-part", "[oqron]\npart = json:no_such_attribute\n")
    plugins = discover(only=["gone", "part"])
    with pytest.raises(BackendNotFoundError, match="acme-gone") as caught:
        plugins.hot("gone")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    with pytest.raises(BackendNotFoundError, match="acme-part") as caught:
        plugins.hot("part")
    assert isinstance(caught.value.__cause__, AttributeError)


def test_ctrl_c_during_an_import_is_the_users(site: Site) -> None:
    site.install("acme-slow", "slow", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        discover(only=["slow"])


@pytest.mark.parametrize(
    "entry_points",
    [
        b"[oqron]\nthis line has no equals sign\n",
        b"\xff\xfe not text: oqron",
        b"[oqron\nbroken = x\n",
        b"[oqron]\n= x\n",
        b"",
    ],
)
def test_unreadable_metadata_of_one_distribution_hides_no_other(
    site: Site, entry_points: bytes
) -> None:
    site.claim("acme-torn", entry_points)
    site.install("acme-good", "good")
    assert discover(only=["good"]).hot("good")[0].name == "good"


def test_a_misspelt_hook_is_an_error_and_not_silence(site: Site) -> None:
    source = GOOD.replace("oqron_register_hot_planes", "oqron_register_hot_plane")
    site.install("acme-typo", "typo", source)
    with pytest.raises(BackendNotFoundError, match="oqron_register_hot_plane") as caught:
        discover(only=["typo"]).hot("typo")
    assert type(caught.value.__cause__).__name__ == "PluginValidationError"


def test_a_plugin_without_hooks_says_that_it_serves_nothing(site: Site) -> None:
    site.install("acme-none", "none", "")
    plugins = discover(only=["none"])
    with pytest.raises(BackendNotFoundError, match=r"acme-none 1\.2\.3 serves no plane at all"):
        plugins.hot("none")
    (info,) = [info for info in plugins.listing() if info.name == "none"]
    assert info.error == "registers no plane"


# --- names that are claimed twice ------------------------------------------------


def test_two_distributions_with_one_name_are_both_named(site: Site) -> None:
    site.install("acme-one", "dup", version="1.0")
    site.install("other-two", "dup", version="2.0")
    site.install("acme-good", "good")
    plugins = discover()
    assert plugins.hot("good")[0].name == "good"
    for ask in (plugins.hot, plugins.durable):
        with pytest.raises(DuplicateBackendError) as caught:
            ask("dup")
        assert "acme-one 1.0" in str(caught.value)
        assert "other-two 2.0" in str(caught.value)
    rows = [info for info in plugins.listing() if info.name == "dup"]
    assert {info.distribution for info in rows} == {"acme-one", "other-two"}
    assert all(info.error is not None and "claimed by" in info.error for info in rows)


def test_neither_of_two_claimants_is_imported(site: Site) -> None:
    modules = {site.install("acme-one", "dup"), site.install("other-two", "dup")}
    discover()
    assert not modules & set(sys.modules)


def test_a_stranger_cannot_shadow_the_memory_backend(site: Site) -> None:
    site.install("evil-memory", "memory")
    with pytest.raises(DuplicateBackendError, match="evil-memory") as caught:
        discover(only=["memory"]).hot("memory")
    assert "oqron-memory" in str(caught.value)


@pytest.mark.parametrize("spelling", ["acme-one", "Acme_One", "acme.one"])
def test_one_distribution_seen_twice_is_no_error(
    site: Site, other_site: Site, spelling: str
) -> None:
    """An editable checkout beside an installed wheel, for one: the first on the path counts."""
    site.install("acme-one", "same", module="plugin_of_old", version="1.0")
    other_site.install(spelling, "same", module="plugin_of_new", version="2.0")
    plugins = discover(only=["same"])
    assert plugins.hot("same")[0].name == "same"
    assert "plugin_of_new" in sys.modules
    assert "plugin_of_old" not in sys.modules


# --- the allow-list --------------------------------------------------------------


@pytest.mark.parametrize(
    "value", ["one", "one,two", " one , two ", "acme-one", "Acme_One,x", "one,"]
)
def test_what_the_allow_list_names_may_load(
    site: Site, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    site.install("acme-one", "one")
    monkeypatch.setenv(ALLOW_VARIABLE, value)
    assert discover(only=["one"]).hot("one")[0].name == "one"


@pytest.mark.parametrize("value", ["", " ", ",", "two", "on", "one-two"])
def test_what_the_allow_list_leaves_out_is_never_imported(
    site: Site, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    module = site.install("acme-one", "one")
    monkeypatch.setenv(ALLOW_VARIABLE, value)
    plugins = discover()
    with pytest.raises(BackendNotFoundError, match=ALLOW_VARIABLE):
        plugins.hot("one")
    assert module not in sys.modules
    (info,) = [info for info in plugins.listing() if info.name == "one"]
    assert ALLOW_VARIABLE in (info.error or "")
    assert module not in sys.modules


def test_an_argument_beats_the_allow_list_of_the_environment(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.install("acme-one", "one")
    monkeypatch.setenv(ALLOW_VARIABLE, "two")
    assert discover(["one"], only=["one"]).hot("one")[0].name == "one"
    with pytest.raises(BackendNotFoundError, match=ALLOW_VARIABLE):
        discover([], only=["one"]).hot("one")


# --- what is missing or does not fit ---------------------------------------------


@pytest.mark.parametrize("name, distribution", KNOWN_BACKENDS.items())
def test_a_missing_backend_of_ours_says_what_to_install(name: str, distribution: str) -> None:
    for ask in (Plugins().hot, Plugins().durable):
        with pytest.raises(BackendNotFoundError, match=f"pip install {distribution}$"):
            ask(name)


@pytest.mark.parametrize(
    "name, near",
    [("dynamoo", "dynamo"), ("Dynamo", "dynamo"), ("redsi", "redis"), ("postgress", "postgres")],
)
def test_a_misspelt_backend_gets_a_suggestion(site: Site, name: str, near: str) -> None:
    site.install("acme-dynamo", "dynamo")
    with pytest.raises(BackendNotFoundError, match=f'did you mean "{near}"') as caught:
        discover(only=[]).hot(name)
    assert "dynamo" in str(caught.value)


def test_an_unknown_backend_is_told_what_is_installed() -> None:
    with pytest.raises(BackendNotFoundError, match="installed: none"):
        Plugins().hot("zzz")


@pytest.mark.parametrize("served, wanted", [("hot", "durable"), ("durable", "hot")])
def test_a_backend_of_the_other_plane_says_so(served: str, wanted: str) -> None:
    plugins = Plugins()
    plugins.register(plugin(**{served: opens(None)}), "mine")
    with pytest.raises(BackendNotFoundError, match=f"only the {served} plane.*for {wanted}"):
        getattr(plugins, wanted)("mine")
    assert plugins.listing()[0].planes == (served,)
    assert plugins.listing()[0].error is None


@pytest.mark.parametrize(
    "version, mend", [(CONTRACT_VERSION + 1, "upgrade oqron-core"), (0, "upgrade acme-old")]
)
def test_another_contract_version_is_refused_with_both_numbers(
    site: Site, version: int, mend: str
) -> None:
    site.install("acme-old", "old", contract=version, version="9.9")
    plugins = discover(only=["old"])
    for ask in (plugins.hot, plugins.durable):
        with pytest.raises(ContractMismatchError) as caught:
            ask("old")
        text = str(caught.value)
        assert f"version {version};" in text
        assert f"has version {CONTRACT_VERSION}" in text
        assert "acme-old 9.9" in text
        assert mend in text
    (info,) = [info for info in plugins.listing() if info.name == "old"]
    assert info.contract_version == version
    assert info.error is not None


class HalfHot(HotPlane):
    @property
    def scope(self) -> Scope:
        return CONTEXT.scope


class HalfDurable(DurablePlane):
    async def now(self) -> int:
        return 0


async def opened(open_plane: Any) -> Any:
    async with open_plane(None, CONTEXT) as plane:
        return plane


@pytest.mark.parametrize(
    "plane, cls, missing", [("hot", HalfHot, "check"), ("durable", HalfDurable, "query")]
)
def test_a_missing_method_is_named_when_the_plane_is_opened(
    plane: str, cls: Any, missing: str
) -> None:
    @contextlib.asynccontextmanager
    async def open_plane(_connection: Any, _context: Any) -> AsyncIterator[Any]:
        yield cls()

    plugins = Plugins()
    plugins.register(plugin(**{plane: open_plane}), "mine")
    _, guarded = getattr(plugins, plane)("mine")
    with pytest.raises(ContractMismatchError, match=missing) as caught:
        asyncio.run(opened(guarded))
    assert cls.__name__ in str(caught.value)
    assert isinstance(caught.value.__cause__, TypeError)


def test_a_plane_that_is_made_before_it_is_entered_is_checked_too() -> None:
    plugins = Plugins()
    plugins.register(plugin(hot=lambda *_: contextlib.nullcontext(HalfHot())), "mine")  # type: ignore[abstract]
    with pytest.raises(ContractMismatchError, match="HalfHot"):
        asyncio.run(opened(plugins.hot("mine")[1]))


def test_a_type_error_of_the_plugins_own_is_not_disguised() -> None:
    def open_plane(_connection: Any, _context: Any) -> Any:
        msg = "unsupported operand"
        raise TypeError(msg)

    plugins = Plugins()
    plugins.register(plugin(hot=open_plane), "mine")
    with pytest.raises(TypeError, match="unsupported operand"):
        asyncio.run(opened(plugins.hot("mine")[1]))


@pytest.mark.parametrize("plane", ["hot", "durable"])
def test_what_is_no_plane_is_refused_and_closed_again(plane: str) -> None:
    closed: list[str] = []

    @contextlib.asynccontextmanager
    async def open_plane(_connection: Any, _context: Any) -> AsyncIterator[Any]:
        yield object()
        closed.append("normally")

    @contextlib.asynccontextmanager
    async def open_careful(connection: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async with open_plane(connection, context) as made:
                yield made
        finally:
            closed.append("in any case")

    plugins = Plugins()
    plugins.register(plugin(**{plane: open_careful}), "mine")
    with pytest.raises(ContractMismatchError, match="opened a object, which is no"):
        asyncio.run(opened(getattr(plugins, plane)("mine")[1]))
    assert closed == ["in any case"]


def test_a_hot_plane_without_its_facets_is_refused_by_their_names() -> None:
    class Bare(HotPlane):
        @property
        def scope(self) -> Scope:
            return CONTEXT.scope

        @property
        def capabilities(self) -> Any:
            return None

        async def now(self) -> int:
            return 0

        async def check(self) -> Any:
            return None

    bare = Bare()
    bare.broker = object()  # type: ignore[assignment]
    plugins = Plugins()
    plugins.register(plugin(hot=opens(bare)), "mine")
    with pytest.raises(
        ContractMismatchError, match="broker, locks, counters, cache, live, signals"
    ):
        asyncio.run(opened(plugins.hot("mine")[1]))


# --- what is registered ----------------------------------------------------------


@pytest.mark.parametrize(
    "made, reason",
    [
        (object(), "a object where a Backend belongs"),
        (backend("other"), 'the backend "other" under the entry point "mine"'),
        (backend(settings=int), "must be an attrs class"),
        (backend(settings=NoSettings()), "must be an attrs class"),
        (backend(version=True), "must be an int"),
        (backend(version="1"), "must be an int"),
    ],
)
def test_what_is_registered_is_checked(made: Any, reason: str) -> None:
    plugins = Plugins()
    with pytest.raises(PluginError, match=reason):
        plugins.register(plugin(made, hot=opens(None)), "mine")
    assert plugins.names == ()


def test_what_opens_a_plane_must_be_callable() -> None:
    with pytest.raises(PluginError, match="hot plane must be callable"):
        Plugins().register(plugin(hot="nothing"), "mine")


def test_a_plane_is_registered_once() -> None:
    @hookimpl
    def oqron_register_hot_planes(register: Any) -> None:
        register(backend(), opens(None))
        register(backend(), opens(None))

    twice = types.SimpleNamespace(oqron_register_hot_planes=oqron_register_hot_planes)
    with pytest.raises(DuplicateBackendError, match="twice"):
        Plugins().register(twice, "mine")


def test_a_plugin_of_this_process_needs_no_distribution() -> None:
    plugins = Plugins()
    made = backend()
    plugins.register(plugin(made, hot=opens(None), durable=opens(None)), "mine")
    assert plugins.hot("mine")[0] is made
    (info,) = plugins.listing()
    assert (info.distribution, info.version) == ("(this process)", None)


def test_a_plugin_of_this_process_cannot_shadow_an_installed_one(site: Site) -> None:
    site.install("acme-one", "mine")
    plugins = discover(only=[])
    with pytest.raises(DuplicateBackendError, match=r"acme-one 1\.2\.3.*this process"):
        plugins.register(plugin(hot=opens(None)), "mine")
    assert plugins.hot("mine")[0].name == "mine"


def test_what_a_plugin_of_this_process_raises_is_raised_at_once() -> None:
    @hookimpl
    def oqron_register_hot_planes(register: Any) -> None:
        msg = "boom"
        raise LookupError(msg)

    broken = types.SimpleNamespace(oqron_register_hot_planes=oqron_register_hot_planes)
    plugins = Plugins()
    with pytest.raises(LookupError, match="boom"):
        plugins.register(broken, "mine")
    plugins.register(plugin(hot=opens(None)), "mine")


def test_two_discoveries_share_nothing(site: Site) -> None:
    site.install("acme-one", "one")
    first, second = discover(only=[]), discover(only=[])
    first.register(plugin(hot=opens(None)), "mine")
    assert "mine" not in second.names


# --- doctor ----------------------------------------------------------------------


async def run(check: DoctorCheck, settings: Any) -> tuple[bool, str]:
    return await check.check(settings)


def test_checks_are_collected_and_not_run() -> None:
    ran: list[Any] = []

    async def check(settings: Any) -> tuple[bool, str]:
        ran.append(settings)
        return True, "fine"

    @hookimpl
    def oqron_doctor(report: Any) -> None:
        report("tables", check)
        report("clock", check)

    plugins = Plugins()
    plugins.register(plugin(hot=opens(None), oqron_doctor=oqron_doctor), "mine")
    found = plugins.doctor_checks()
    assert [(each.plugin, each.name) for each in found] == [("mine", "tables"), ("mine", "clock")]
    assert ran == []
    assert asyncio.run(run(found[0], "settings")) == (True, "fine")
    assert ran == ["settings"]


@pytest.mark.parametrize("error", [ValueError("boom"), SystemExit(1)])
def test_a_doctor_that_raises_is_a_failed_check(error: BaseException) -> None:
    @hookimpl
    def oqron_doctor(report: Any) -> None:
        report("first", None)
        raise error

    plugins = Plugins()
    plugins.register(plugin(hot=opens(None), oqron_doctor=oqron_doctor), "mine")
    plugins.register(plugin(backend("good"), hot=opens(None)), "good")
    found = plugins.doctor_checks()
    assert [each.name for each in found] == ["first", "mine"]
    fine, reason = asyncio.run(run(found[1], None))
    assert not fine
    assert type(error).__name__ in reason


def test_a_plugin_that_failed_to_load_has_no_checks(site: Site) -> None:
    site.install("acme-bad", "bad", "raise ValueError")
    assert [each for each in discover().doctor_checks() if each.plugin == "bad"] == []


# --- what is shown ---------------------------------------------------------------


@pytest.mark.parametrize(
    "error, text",
    [
        (ValueError("a\n  b\tc"), "ValueError: a b c"),
        (ValueError(), "ValueError"),
        (ValueError("x" * 400), f"ValueError: {'x' * 300}…"),
        (
            ValueError("cannot reach redis://me:hunter2@host/0 now"),
            "ValueError: cannot reach redis://host/0 now",
        ),
        (ValueError("postgresql://me:p@ss/w@host/x"), "ValueError: postgresql://host/x"),
    ],
)
def test_a_cause_is_shown_in_one_short_line_without_userinfo(error: Exception, text: str) -> None:
    assert one_line(error) == text


def test_an_error_that_cannot_be_shown_breaks_no_listing() -> None:
    class RudeError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert one_line(RudeError()) == "RudeError: (its str() raised)"


def test_a_secret_in_a_failing_plugin_is_not_listed(site: Site) -> None:
    site.install("acme-bad", "bad", "raise ValueError('no redis://u:hunter2@h/0')")
    plugins = discover(only=["bad"])
    with pytest.raises(BackendNotFoundError) as caught:
        plugins.hot("bad")
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in str(plugins.listing())


@pytest.mark.parametrize(
    "word, near",
    [("redsi", "redis"), ("REDIS", "redis"), ("table-prefix", "table_prefix"), ("zzz", None)],
)
def test_suggestions_ignore_case_and_separators(word: str, near: str | None) -> None:
    shown = suggest(word, {"redis", "table_prefix"})
    assert shown == ("" if near is None else f'; did you mean "{near}"?')
