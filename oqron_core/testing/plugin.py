"""
The pytest plugin of the conformance kit.

Installed with the entry point ``oqron`` in the group ``pytest11``; every pytest
run on the machine imports this module, so it imports nothing but pytest itself.
Leave it out with ``-p no:oqron``.
"""

from __future__ import annotations

import inspect
import json

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest


pytest.register_assert_rewrite(
    "oqron_core.testing.contracts",
    "oqron_core.testing.crashpoints",
    "oqron_core.testing.operations",
    "oqron_core.testing.stateful",
)

UNDECLARED: Final = "undeclared capability: "
_CONTRACT_BASE: Final = "oqron_core.testing.contracts.base"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--oqron-report``."""
    parser.getgroup("oqron").addoption(
        "--oqron-report",
        metavar="FILE",
        help="write the results of the contract tests of every backend, and what they "
        "declare: as a table of Markdown where FILE ends in .md, else as JSON",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and the report."""
    config.addinivalue_line(
        "markers",
        "requires(capability, ...): the contract test needs these capabilities, such as "
        "durable.atomic; it is skipped where the backend does not declare one",
    )
    config.pluginmanager.register(ContractReport(config), "oqron-report")


@pytest.fixture
def oqron_clock() -> Any:
    """Give a clock that stands still until the test moves it."""
    from oqron_core.testing.clock import ManualClock  # noqa: PLC0415 - only where it is used

    return ManualClock()


@pytest.fixture
def oqron_runner() -> Iterator[Any]:
    """Give an `asyncio.Runner`: the loop that `oqron_storage` lives in."""
    import asyncio  # noqa: PLC0415 - only where it is used

    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def oqron_storage(oqron_runner: Any, oqron_clock: Any) -> Iterator[Any]:
    """
    Give an opened storage in memory mode, on the clock of `oqron_clock`.

    An ``async def`` test that asks for it is run in the same loop, without any
    other plugin; a plain test uses ``oqron_runner.run(coroutine)``.
    """
    from oqron_core.testing.application import open_memory  # noqa: PLC0415 - only where it is used

    opened = open_memory(oqron_clock)
    storage = oqron_runner.run(opened.__aenter__())
    yield storage
    oqron_runner.run(opened.__aexit__(None, None, None))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test that asks for `oqron_storage` in the loop of the storage."""
    runner: Any = pyfuncitem.funcargs.get("oqron_runner")
    if runner is None or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    runner.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


_NOTE = "oqron_contract"
"""The key of what a report of a contract test carries."""


class ContractReport:
    """Counts the contract tests of each backend, and says one line for each."""

    def __init__(self, config: pytest.Config) -> None:
        self._path: str | None = config.getoption("oqron_report", None)
        self._backends: dict[str, dict[str, Any]] = {}
        self._tested: dict[str, set[str]] = {}
        self._unmet: list[str] = []
        self._skipped: list[tuple[str, dict[str, Any]]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Turn the skip of a declared capability into a failure, and leave a note."""
        del call
        report = yield
        backend = _backend(item)
        if backend is None or (report.when != "call" and report.passed):
            return report
        note: dict[str, Any] = {
            "backend": backend,
            "name": item.name,
            "test": getattr(item, "originalname", item.name),
            "needed": list(_needed(item)),
            "reason": getattr(getattr(item, "obj", None), "__oqron_reason__", None),
            "undeclared": None,
            "capabilities": _declared(item) if self._path is not None else {},
        }
        if report.skipped:
            self._judge_skip(item, note, report)
        # The note travels with the report, also from the process of a test runner
        # that spreads tests over several.
        report.user_properties.append((_NOTE, note))
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Let go of what a contract test has opened: pytest keeps its instance to the end."""
        result = yield
        if isinstance(item, pytest.Function) and _backend(item) is not None:
            vars(item.instance).clear()
        return result

    def _judge_skip(
        self, item: pytest.Item, note: dict[str, Any], report: pytest.TestReport
    ) -> None:
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        why = why.removeprefix("Skipped: ")
        if why.startswith(UNDECLARED):
            capability = why.removeprefix(UNDECLARED)
            if capability in note["needed"]:
                note["undeclared"] = capability
                return
        if report.when == "call":
            report.outcome = "failed"
            report.longrepr = (
                f"{item.nodeid} was skipped ({why}). A test of the contract is skipped "
                "only where the capability it needs is not declared"
            )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count what the notes of a report say."""
        for key, note in report.user_properties:
            if key == _NOTE and isinstance(note, dict):
                self._count(report, note)

    def _count(self, report: pytest.TestReport, note: dict[str, Any]) -> None:
        result = self._result(note["backend"])
        result["capabilities"].update(note["capabilities"])
        if note["reason"] is not None:
            result["overridden"][note["name"]] = note["reason"]
        if note["undeclared"] is not None:
            result["undeclared"].setdefault(note["undeclared"], []).append(note["name"])
            return
        if report.skipped:
            result["skipped"] += 1
            self._skipped.append((report.nodeid, note))
            return
        self._tested.setdefault(note["backend"], set()).add(note["test"])
        if report.passed:
            result["passed"] += 1
        else:
            result["failed"] += 1
            result["failures"].append(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail where a declared capability was never tested; write the report."""
        if hasattr(session.config, "workerinput"):
            return  # one process of several: the first one has all reports
        for nodeid, note in self._skipped:
            backend, needed = note["backend"], note["needed"]
            result = self._result(backend)
            ran = result["passed"] + result["failed"] > 0
            # Skipped on one server of several is no gap where another has run it.
            gap = note["test"] not in self._tested.get(backend, set())
            if needed and ran and gap and not set(needed) <= set(result["undeclared"]):
                self._unmet.append(f"{nodeid}: {', '.join(needed)} was not tested")
        if self._unmet and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self._path is not None:
            Path(self._path).write_text(_written(self._path, self._document()))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Say one line for each backend."""
        for line in self._unmet:
            terminalreporter.write_line(f"oqron contract: {line}")
        for backend, result in sorted(self._backends.items()):
            terminalreporter.write_line(_line(backend, result))

    def _result(self, backend: str) -> dict[str, Any]:
        return self._backends.setdefault(
            backend,
            {
                "passed": 0,
                "failed": 0,
                "skipped": 0,
                "failures": [],
                "undeclared": {},
                "overridden": {},
                "capabilities": {},
            },
        )

    def _document(self) -> dict[str, Any]:
        return {
            "contract": _version(),
            "backends": {
                backend: {
                    **result,
                    "ok": result["failed"] == 0 and result["passed"] > 0 and not self._unmet,
                }
                for backend, result in sorted(self._backends.items())
            },
        }


def _version() -> int:
    from oqron_core.planes.capabilities import CONTRACT_VERSION  # noqa: PLC0415 - as above

    return CONTRACT_VERSION


def _declared(item: pytest.Item) -> dict[str, Any]:
    from oqron_core.testing.reporting import declared  # noqa: PLC0415 - as above

    return declared(getattr(item, "instance", None))


def _written(path: str, document: dict[str, Any]) -> str:
    if not path.endswith(".md"):
        return json.dumps(document, indent=2) + "\n"
    from oqron_core.testing.reporting import markdown  # noqa: PLC0415 - as above

    return markdown(document)


def _line(backend: str, result: dict[str, Any]) -> str:
    parts = [f"{result['passed']} passed"]
    parts += [f"{result[key]} {key}" for key in ("failed", "skipped") if result[key]]
    if result["overridden"]:
        parts.append(f"{len(result['overridden'])} overridden")
    undeclared = len(result["undeclared"])
    if undeclared:
        noun = "capability" if undeclared == 1 else "capabilities"
        parts.append(f"{undeclared} {noun} undeclared")
    return f"oqron contract {_version()}: {backend} {', '.join(parts)}"


def _backend(item: pytest.Item) -> str | None:
    """Name the backend of a contract test; None for every other test."""
    cls = getattr(item, "cls", None)
    if cls is None:
        return None
    # By name, so that runs without a contract never import one.
    if not any(
        base.__module__ == _CONTRACT_BASE and base.__qualname__ == "Contract"
        for base in cls.__mro__
    ):
        return None
    label = getattr(cls, "report_as", "") or cls.backend
    return str(label) or cls.__name__


def _needed(item: pytest.Item) -> tuple[str, ...]:
    return tuple(
        str(capability) for mark in item.iter_markers("requires") for capability in mark.args
    )
