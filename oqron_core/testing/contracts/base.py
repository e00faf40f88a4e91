"""How a contract runs: one backend, opened anew for every test."""

from __future__ import annotations

import asyncio
import functools
import inspect

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import entry_points
from typing import Any, ClassVar, TypeVar

import attrs
import pytest

from oqron_core._ids import uuid7
from oqron_core.hookspecs import Backend, OpenDurable, OpenHot
from oqron_core.planes import Capabilities, DurablePlane, HotPlane, PlaneContext, Scope
from oqron_core.testing.clock import ManualClock, settle


__all__ = ["Contract", "Plugin", "fresh_scope", "gather", "overridden", "requires"]

UNDECLARED = "undeclared capability: "
"""How the reason of a skip starts where a backend does not declare something."""

requires: pytest.MarkDecorator = pytest.mark.requires
"""Mark a test with the capabilities it needs, such as ``durable.atomic``."""

_Test = TypeVar("_Test", bound=Callable[..., Any])
_T = TypeVar("_T")


def overridden(*, reason: str) -> Callable[[_Test], _Test]:
    """
    Allow a subclass to replace a test of a contract.

    Args:
        reason: Why the contract's own test does not fit; shown in the report.
    """
    if not reason.strip():
        msg = "an override needs a reason"
        raise ValueError(msg)

    def mark(test: _Test) -> _Test:
        test.__oqron_reason__ = reason  # type: ignore[attr-defined]
        return test

    return mark


def fresh_scope(project: str = "contract", environment: str = "test") -> Scope:
    """Make a scope that no other test has."""
    return Scope(f"{project}-{uuid7()[-12:]}", environment)


async def gather(calls: Iterable[Awaitable[_T]]) -> list[_T]:
    """Run calls at the same time; the answers are in order."""
    return list(await asyncio.gather(*calls))


@attrs.frozen
class Plugin:
    """
    What a plugin registered under one name.

    Attributes:
        backend: What it ships.
        open_hot: How its hot plane is opened, or None.
        open_durable: How its durable plane is opened, or None.
    """

    backend: Backend
    open_hot: OpenHot | None = None
    open_durable: OpenDurable | None = None

    @classmethod
    def load(cls, name: str, module: Any = None) -> Plugin:
        """
        Find a plugin by its entry point, or take it from *module*.

        Raises:
            LookupError: No such entry point, or it registers nothing of the name.
        """
        if module is None:
            module = _installed(name)
        hot: dict[str, tuple[Backend, OpenHot]] = {}
        durable: dict[str, tuple[Backend, OpenDurable]] = {}

        def register_hot(backend: Backend, open_hot: OpenHot) -> None:
            hot[backend.name] = (backend, open_hot)

        def register_durable(backend: Backend, open_durable: OpenDurable) -> None:
            durable[backend.name] = (backend, open_durable)

        if hasattr(module, "oqron_register_hot_planes"):
            module.oqron_register_hot_planes(register_hot)
        if hasattr(module, "oqron_register_durable_planes"):
            module.oqron_register_durable_planes(register_durable)
        if name not in hot and name not in durable:
            msg = f"the plugin {module!r} registers no backend {name!r}"
            raise LookupError(msg)
        backend = hot[name][0] if name in hot else durable[name][0]
        return cls(
            backend,
            hot[name][1] if name in hot else None,
            durable[name][1] if name in durable else None,
        )


@functools.cache
def _installed(name: str) -> Any:
    # Looked for once: reading what all distributions say takes longer than most tests.
    found = [*entry_points(group="oqron", name=name)]
    if not found:
        msg = f"no entry point {name!r} in the group 'oqron' is installed"
        raise LookupError(msg)
    return found[0].load()


def _synchronous(test: Callable[..., Any]) -> Any:
    # A plain function for pytest: no async plugin is needed, and none that is
    # installed sees a coroutine function to take over.
    @functools.wraps(test)
    def run(self: Contract, *args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=self.loop_factory) as runner:
            runner.run(self.around(test, args, kwargs))

    return run


def _is_contract_test(name: str, value: object) -> bool:
    return name.startswith("test_") and getattr(value, "__oqron_contract__", False) is True


class Contract:
    """
    The base of every contract. A subclass says which backend, and how to open it.

    Attributes:
        backend: The name of the backend.
        plugin: The plugin, where it is not installed with an entry point.
        manual_clock: Whether `settings` hands ``self.clock`` to the backend, so
            that no test sleeps.
        clock: A `ManualClock`, another one for every test.
        hang_after: Seconds after which a test counts as hanging.
        loop_factory: Makes the event loop, as a ``staticmethod``; None for
            asyncio's own.
    """

    backend: ClassVar[str] = ""
    plugin: ClassVar[Any] = None
    manual_clock: ClassVar[bool] = False
    hang_after: ClassVar[float] = 60.0
    loop_factory: ClassVar[Any] = None

    _wants_hot: ClassVar[bool] = False
    _wants_durable: ClassVar[bool] = False

    clock: ManualClock
    scope: Scope
    hot: HotPlane
    durable: DurablePlane

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        ours = cls.__module__.startswith("oqron_core.testing.")
        for name, value in [*vars(cls).items()]:
            if not name.startswith("test_") or not inspect.isfunction(value):
                continue
            test: Any = _synchronous(value) if inspect.iscoroutinefunction(value) else value
            if ours:
                test.__oqron_contract__ = True
            setattr(cls, name, test)
        _refuse_silent_overrides(cls)
        if ours:
            _refuse_clashes(cls)

    # --- what a subclass says -------------------------------------------------

    def settings(self) -> Any:
        """
        Give the settings: an object, or a dict of what differs from defaults.

        Called for every connection. What a test opens twice must be the same store.
        """
        return {}

    def begin(self) -> Any:
        """
        Open a transaction of the caller's, for backends with ``transactions``.

        Returns:
            An async context manager that gives what `DurablePlane.bind` takes,
            commits when it is left, and rolls back on an exception.
        """
        msg = "declares transactions, so the contract needs `begin` to be overridden"
        raise NotImplementedError(msg)

    async def elapse(self, seconds: float) -> None:
        """Let time pass for the backend."""
        if self.manual_clock:
            await self.clock.elapse(seconds)
        else:
            await asyncio.sleep(seconds)

    async def settle(self) -> None:
        """Let what was started get as far as it can without time passing."""
        await settle()
        if not self.manual_clock:
            await asyncio.sleep(0.05)

    # --- what the contracts use -------------------------------------------------

    def load(self) -> Plugin:
        """Find the plugin of the backend."""
        return Plugin.load(self.backend, self.plugin)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        """Connect as a process of its own would."""
        backend = self.load().backend
        settings = self.settings()
        if isinstance(settings, Mapping):
            settings = backend.settings(**settings)
        async with backend.connect(settings) as connection:
            yield connection

    @asynccontextmanager
    async def open_hot(self, connection: Any, scope: Scope) -> AsyncIterator[HotPlane]:
        """Open the hot plane of a scope."""
        opener = self.load().open_hot
        assert opener is not None, f"{self.backend} registers no hot plane"
        async with opener(connection, PlaneContext(scope)) as plane:
            yield plane

    @asynccontextmanager
    async def open_durable(self, connection: Any, scope: Scope) -> AsyncIterator[DurablePlane]:
        """Open the durable plane of a scope."""
        opener = self.load().open_durable
        assert opener is not None, f"{self.backend} registers no durable plane"
        async with opener(connection, PlaneContext(scope)) as plane:
            yield plane

    def declared(self, capability: str) -> bool:
        """Say whether the backend declares a capability, such as ``hot.shared``."""
        plane, _, flag = capability.partition(".")
        capabilities: Capabilities = getattr(self, plane).capabilities
        return bool(getattr(capabilities, flag))

    async def prepare(self, stack: AsyncExitStack) -> None:
        """Open what the tests use."""
        self.scope = fresh_scope()
        self.connection: Any = await stack.enter_async_context(self.connect())
        if self._wants_hot:
            self.hot = await stack.enter_async_context(self.open_hot(self.connection, self.scope))
        if self._wants_durable:
            self.durable = await stack.enter_async_context(
                self.open_durable(self.connection, self.scope)
            )

    async def around(
        self, test: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Open, run one test, close."""
        self.clock = ManualClock()
        async with asyncio.timeout(self.hang_after), AsyncExitStack() as stack:
            await self.prepare(stack)
            for capability in needed(test):
                if not self.declared(capability):
                    pytest.skip(f"{UNDECLARED}{capability}")
            await test(self, *args, **kwargs)


def needed(test: object) -> tuple[str, ...]:
    """Give the capabilities that a test is marked with."""
    return tuple(
        capability
        for mark in getattr(test, "pytestmark", ())
        if mark.name == "requires"
        for capability in mark.args
    )


def _refuse_silent_overrides(cls: type) -> None:
    for base in cls.__mro__[1:]:
        for name, test in vars(base).items():
            if not _is_contract_test(name, test):
                continue
            found = inspect.getattr_static(cls, name)
            if found is test or getattr(found, "__oqron_reason__", None):
                continue
            msg = (
                f"{cls.__qualname__} replaces {base.__qualname__}.{name}; a contract is "
                "met as it is. Mark the replacement with @overridden(reason=…), and the "
                "reason is shown in the report"
            )
            raise TypeError(msg)


def _refuse_clashes(cls: type) -> None:
    # Contracts are mixed into one class: a helper or test that two of them name
    # would silently replace the other's.
    owners: dict[str, type] = {}
    for base in cls.__mro__:
        for name in vars(base):
            owner = owners.setdefault(name, base)
            if not name.startswith("_") and not issubclass(owner, base):
                msg = f"{owner.__qualname__} and {base.__qualname__} both define {name}"
                raise TypeError(msg)
