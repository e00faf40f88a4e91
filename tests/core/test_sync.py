"""The blocking facade: the same calls as the services, and clear refusals."""

from __future__ import annotations

import ast
import asyncio
import inspect
import logging
import os
import re
import signal
import sys
import textwrap
import threading
import traceback
import typing
import warnings

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import pytest

from oqron_core import _sync_services, _syncgen
from oqron_core._portal import Portal
from oqron_core.exceptions import (
    BackendNotFoundError,
    ClosedError,
    ConfigError,
    InvalidValueError,
    LeaseLostError,
)
from oqron_core.models import Job
from oqron_core.planes import DurablePlane, Query
from oqron_core.storage import Storage, open_storage
from oqron_core.sync import BlockingCallError, SyncStorage, open_sync_storage


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OQRON_"):
            monkeypatch.delenv(name)
    (tmp_path / "oqron.toml").write_text("")
    (tmp_path / "pyproject.toml").write_text("[tool.oqron]\n")
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _no_thread_left_behind() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert [thread for thread in threading.enumerate() if thread not in before] == []


@pytest.fixture
def storage() -> Iterator[SyncStorage]:
    with open_sync_storage(mode="memory", project="tests", environment="sync") as opened:
        yield opened


# --- the written file ------------------------------------------------------------


def test_the_written_file_is_what_the_generator_makes() -> None:
    text = _syncgen.TARGET.read_text(encoding="utf-8")
    assert _syncgen.generate(_syncgen.read_sources()) == text, "run python -m oqron_core._syncgen"
    assert _syncgen.main(["--check"]) == 0


def test_a_stale_file_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "_sync_services.py"
    monkeypatch.setattr(_syncgen, "TARGET", target)
    assert _syncgen.main(["--check"]) == 1
    assert _syncgen.main([]) == 0
    assert _syncgen.main(["--check"]) == 0
    target.write_text(target.read_text() + "# edited\n")
    assert _syncgen.main(["--check"]) == 1
    assert "python -m oqron_core._syncgen" in capsys.readouterr().err


def twins() -> list[Any]:
    """Give every blocking class with the service that it stands for."""
    pairs = []
    for name in _sync_services.__all__:
        cls = getattr(_sync_services, name)
        service = typing.get_type_hints(cls.__init__)["service"]
        pairs.append(pytest.param(cls, service, id=name))
    return pairs


def public(cls: type) -> dict[str, Any]:
    return {name: value for name, value in vars(cls).items() if not name.startswith("_")}


@pytest.mark.parametrize("twin, service", twins())
def test_every_service_call_has_a_twin_with_the_same_signature(twin: type, service: type) -> None:
    assert twin.__name__ == f"Sync{service.__name__}"
    assert inspect.getdoc(twin) == inspect.getdoc(service)
    assert public(twin).keys() == public(service).keys()
    for name, made in public(twin).items():
        if isinstance(made, property):
            continue
        assert not inspect.iscoroutinefunction(made)
        ours, theirs = inspect.signature(made), inspect.signature(public(service)[name])
        assert list(ours.parameters.values()) == list(theirs.parameters.values()), name
        assert inspect.getdoc(made) == inspect.getdoc(public(service)[name])


@pytest.mark.parametrize("twin, service", twins())
def test_a_twin_gives_what_the_service_gives(twin: type, service: type) -> None:
    for name, made in public(twin).items():
        if isinstance(made, property):
            continue
        ours = inspect.signature(made).return_annotation
        theirs = inspect.signature(public(service)[name]).return_annotation
        if ours != theirs:
            inner = re.fullmatch(r"(?:AsyncIterator|AbstractAsyncContextManager)\[(.*)\]", theirs)
            assert inner is not None, name
            assert ours in {f"AbstractContextManager[{inner[1]}]", f"Iterator[{inner[1]}]"}


def test_every_service_of_a_storage_is_on_the_facade(storage: SyncStorage) -> None:
    services = {
        name: value
        for name, value in vars(storage._storage).items()
        if type(value).__module__.startswith("oqron_core.services.")
    }
    assert len(services) >= 5
    for name, service in services.items():
        twin = getattr(storage, name)
        assert type(twin).__name__ == f"Sync{type(service).__name__}"
        assert twin._service is service
    public_names = {name for name in vars(Storage) if not name.startswith("_")}
    public_names |= {name for name in vars(storage._storage) if not name.startswith("_")}
    assert [name for name in sorted(public_names) if not hasattr(storage, name)] == []


def test_opening_takes_the_same_arguments() -> None:
    ours = list(inspect.signature(open_sync_storage).parameters.values())
    theirs = list(inspect.signature(open_storage).parameters.values())
    assert ours == theirs


# --- the generator on a sample ---------------------------------------------------

SAMPLE = '''
"""Things."""

from __future__ import annotations

import contextlib
import datetime as dt

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeVar, overload

from oqron_core.planes.values import Page

if TYPE_CHECKING:
    from oqron_core.planes.values import Lease

T = TypeVar("T")
LIMIT = 50


class Base:
    """Waits."""

    async def ping(self) -> str:
        """Say pong."""
        return "pong"


class Things(Base):
    """Keeps things."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    async def add(
        self,
        name: str,
        /,
        data: Any = None,
        *rest: int,
        limit: int = LIMIT,
        when: dt.datetime | None = None,
        lease: "Lease | None" = None,
        **more: str,
    ) -> Page:
        """
        Add one.

        Returns:
            A page.
        """
        return Page([name, data, rest, limit, when, lease, more])

    async def build(self, builder: Callable[[], Awaitable[T]]) -> T:
        return await builder()

    @contextlib.asynccontextmanager
    async def hold(self, key: str, *, lease_for: float = 10.0) -> AsyncIterator[str]:
        """Hold it."""
        yield f"{key} for {lease_for}"

    def session(self) -> AbstractAsyncContextManager[int]:
        return contextlib.nullcontext(3)

    async def stream(self, count: int) -> AsyncIterator[int]:
        for number in range(count):
            yield number

    async def iterator(self) -> AsyncIterator[int]:
        def inner():
            yield 1
        return self.stream(len(list(inner())))

    def names(self) -> list[str]:
        return ["a", "b"]

    @property
    def size(self) -> int:
        """How many."""
        return 7

    @overload
    async def find(self, key: str) -> str: ...

    @overload
    async def find(self, key: int) -> int: ...

    async def find(self, key: str | int) -> str | int:
        return key

    async def _hidden(self) -> None: ...


class Plain:
    """Does not wait, so it needs no twin."""

    def get(self) -> int:
        return 1
'''


def load(name: str, text: str) -> ModuleType:
    module = ModuleType(name)
    sys.modules[name] = module
    exec(compile(text, name, "exec"), module.__dict__)  # noqa: S102 - a sample of this file
    return module


@pytest.fixture
def sample() -> Iterator[tuple[ModuleType, str, Any, Portal]]:
    """Give the module of twins, its text, a service's twin, and its portal."""
    name = "oqron_core.services.sample_of_the_tests"
    text = _syncgen.generate([(name, SAMPLE)])
    try:
        source = load(name, SAMPLE)
        made = load("twins_of_the_sample", text)
        portal = Portal()
        try:
            yield made, text, made.SyncThings(portal, source.Things("x")), portal
        finally:
            portal.close()
    finally:
        sys.modules.pop(name, None)
        sys.modules.pop("twins_of_the_sample", None)


def test_each_kind_of_method_becomes_its_blocking_kind(sample: Any) -> None:
    made, _, things, _ = sample
    assert made.__all__ == ["SyncBase", "SyncThings"]
    assert things.ping() == "pong"
    page = things.add("n", 1, 2, 3, limit=4, x="y")
    assert page.items == ["n", 1, (2, 3), 4, None, None, {"x": "y"}]
    assert things.add("n").items[3] == 50
    with things.hold("k", lease_for=2.0) as value:
        assert value == "k for 2.0"
    with things.session() as number:
        assert number == 3
    assert list(things.stream(3)) == [0, 1, 2]
    assert things.names() == ["a", "b"]
    assert things.size == 7
    assert (things.find("x"), things.find(1)) == ("x", 1)

    async def build() -> list[int]:
        return [1]

    assert things.build(build) == [1]
    assert not hasattr(made.SyncThings, "_hidden")


def test_a_coroutine_that_gives_an_iterator_is_a_call(sample: Any) -> None:
    """Only an async generator is iterated; the yield of an inner function does not count."""
    _, text, _, _ = sample
    assert "def iterator(self) -> AsyncIterator[int]:" in text
    assert "return self._portal.call(self._service.iterator)" in text
    assert "def stream(self, count: int) -> Iterator[int]:" in text


def test_annotations_defaults_and_docstrings_are_kept_as_they_are_spelt(sample: Any) -> None:
    _, text, _, _ = sample
    for line in (
        "        limit: int = LIMIT,",
        "        when: dt.datetime | None = None,",
        '        lease: "Lease | None" = None,',
        "        /,",
        "        *rest: int,",
        "        **more: str,",
        "    ) -> Page:",
        '    """Keeps things."""',
        "            A page.",
        "    @overload",
        "    def find(self, key: str) -> str: ...",
        "class SyncThings(SyncBase):",
        "    @property",
        "import datetime as dt",
        "from oqron_core.planes.values import Lease, Page",
    ):
        assert line in text.split("\n"), line


def test_the_same_sources_give_the_same_text_in_any_order(sample: Any) -> None:
    one = ("oqron_core.services.a", "class A:\n    async def x(self) -> int: ...\n")
    two = ("oqron_core.services.b", "class B:\n    async def x(self) -> int: ...\n")
    assert _syncgen.generate([one, two]) == _syncgen.generate([two, one])


@pytest.mark.parametrize(
    "body, reason",
    [
        ("async def x(self): ...", "says nothing of what it returns"),
        ("def x(self) -> AbstractAsyncContextManager: ...", "must say what it gives"),
    ],
)
def test_what_the_generator_does_not_know_is_an_error(body: str, reason: str) -> None:
    with pytest.raises(_syncgen.GenerationError, match=reason):
        _syncgen.generate([("oqron_core.services.a", f"class A:\n    {body}\n")])


def test_one_name_with_two_meanings_is_an_error() -> None:
    method = "class {}:\n    async def x(self) -> Page: ...\n"
    one = ("oqron_core.services.a", "from one import Page\n" + method.format("A"))
    two = ("oqron_core.services.b", "from two import Page\n" + method.format("B"))
    with pytest.raises(_syncgen.GenerationError, match="the name Page"):
        _syncgen.generate([one, two])


def test_the_generator_needs_nothing_but_the_sources() -> None:
    """It reads and does not import, so it works where the services cannot be imported."""
    tree = ast.parse(Path(_syncgen.__file__).read_text(encoding="utf-8"))
    imported = {
        node.module.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
    } | {
        alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert imported - set(sys.stdlib_module_names) == {"attrs"}


# --- a storage without an event loop ---------------------------------------------


def test_a_jobs_whole_life(storage: SyncStorage) -> None:
    first = storage.jobs.add("emails", {"to": "a@x.com"}, max_attempts=2)
    assert isinstance(first, Job)
    more = storage.jobs.add_many("emails", [{"to": "b"}, {"to": "c"}])
    assert storage.jobs.counts("emails")["waiting"] == 3
    claims = storage.jobs.claim("emails", limit=3, lease_for=30.0, worker="w1")
    assert [claim.job.id for claim in claims] == [first.id, *(job.id for job in more)]
    assert storage.jobs.renew(claims, lease_for=30.0) == [True, True, True]
    claims[0].run.log("info", "sending")
    claims[0].run.progress(50, "half")
    storage.jobs.complete(claims[0], output={"delivered": True})
    storage.jobs.fail(claims[1], error="SMTP 500", retry=False)
    storage.jobs.release(claims[2])
    assert storage.jobs.cancel("emails", more[1].id)
    storage.runs.flush()
    done = storage.jobs.get("emails", first.id)
    assert done is not None
    assert (done.status, done.return_value) == ("completed", {"delivered": True})
    (dead,) = storage.dead_letters.query("emails").items
    assert (dead.id, dead.error) == (more[0].id, "SMTP 500")
    assert storage.dead_letters.requeue("emails", dead.id) is not None
    runs = storage.runs.query(name="emails").items
    assert sorted(run.status for run in runs) == ["cancelled", "completed", "failed"]
    (run,) = [run for run in runs if run.status == "completed"]
    assert [line["msg"] for line in run.logs] == ["sending"]


def test_a_run_without_a_job_never_blocks(storage: SyncStorage) -> None:
    run = storage.runs.start(name="heartbeat", module="cron", trigger="cron", input=None)
    run.log("info", "beat")
    run.finish(output=1)
    storage.runs.flush()
    kept = storage.runs.get(run.id)
    assert kept is not None
    assert (kept.status, kept.output, kept.job_id) == ("completed", 1, None)


def test_a_background_renewal_is_a_context_manager(storage: SyncStorage) -> None:
    storage.jobs.add("emails", 1)
    claims = storage.jobs.claim("emails", limit=1, lease_for=30.0, worker="w1")
    with storage.jobs.keep(claims, lease_for=30.0):
        storage.jobs.complete(claims[0])
    storage.jobs.add("emails", 2)
    claims = storage.jobs.claim("emails", limit=1, lease_for=30.0, worker="w1")
    with pytest.raises(InvalidValueError):
        with storage.jobs.keep(claims, lease_for=30.0, every=29.0):
            pytest.fail("entered")
    with pytest.raises(ZeroDivisionError):
        with storage.jobs.keep(claims, lease_for=30.0):
            raise ZeroDivisionError


def test_errors_are_the_services_own(storage: SyncStorage) -> None:
    with pytest.raises(InvalidValueError) as caught:
        storage.jobs.add("emails", {"a": {1: "x"}})
    assert caught.value.path.endswith(".a")
    storage.jobs.add("emails", 1, id="one")
    (claim,) = storage.jobs.claim("emails", limit=1, lease_for=30.0, worker="w1")
    storage.jobs.cancel("emails", "one")
    with pytest.raises(LeaseLostError):
        storage.jobs.complete(claim)


def test_maintenance_and_controls(storage: SyncStorage) -> None:
    storage.jobs.pause("emails")
    control = storage.controls.get_queue("emails")
    assert control is not None
    storage.jobs.resume("emails")
    storage.maintenance.run_once()
    assert storage.maintenance.reap() == 0


def test_what_has_no_twin_is_reached_through_call(storage: SyncStorage) -> None:
    storage.jobs.add("emails", 1)
    page = storage.call(storage.durable.query, Query(namespace="queue_job:emails"))
    assert len(page) == 1
    counts = storage.call(storage.hot.broker.counts, "emails")
    assert counts.ready == 1
    assert storage.scope.project == storage.settings.project == "tests"


def test_several_threads_share_a_storage(storage: SyncStorage) -> None:
    storage.jobs.add_many("emails", list(range(200)))
    done: list[Any] = []

    def work(name: str) -> None:
        while claims := storage.jobs.claim("emails", limit=7, lease_for=30.0, worker=name):
            for claim in claims:
                claim.run.log("info", name)
                storage.jobs.complete(claim, output=claim.job.data)
                done.append(claim.job.data)

    threads = [threading.Thread(target=work, args=(f"w{index}",)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == list(range(200))
    assert storage.jobs.counts("emails")["completed"] == 200


def delegate(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.inner, name)(*args, **kwargs)

    return method


class Watched(DurablePlane):
    """A durable plane that notes the ids of what is written."""

    def __init__(self, inner: DurablePlane, written: list[str]) -> None:
        self.inner = inner
        self.written = written

    @property
    def scope(self) -> Any:
        return self.inner.scope

    @property
    def capabilities(self) -> Any:
        return self.inner.capabilities

    async def write(self, writes: Any, **more: Any) -> Any:
        self.written.extend(each.id for each in writes)
        return await self.inner.write(writes, **more)

    get = delegate("get")
    query = delegate("query")
    count = delegate("count")
    prune = delegate("prune")
    prunable = delegate("prunable")
    now = delegate("now")
    check = delegate("check")


def test_what_is_buffered_is_written_on_the_way_out() -> None:
    written: list[str] = []
    with open_sync_storage(
        mode="memory", wrap_durable=lambda plane: Watched(plane, written)
    ) as storage:
        run = storage.runs.start(name="x", module="cron", trigger="cron", input=None)
        run.finish(output="last words")
    assert storage.unwritten == 0
    assert run.id in written


class Piecemeal(Watched):
    """A durable plane that applies each write by itself."""

    @property
    def capabilities(self) -> Any:
        return attrs.evolve(self.inner.capabilities, atomic=False)


def test_opening_says_what_a_plane_without_atomic_batches_cannot_serve(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "oqron.storage"):
        with open_sync_storage(mode="memory"):
            pass
        assert "" == caplog.text
        with open_sync_storage(mode="memory", wrap_durable=lambda plane: Piecemeal(plane, [])):
            pass

    assert "'memory' has no atomic batches" in caplog.text
    assert "dead letters" in caplog.text


# --- refusals --------------------------------------------------------------------


def test_opening_inside_a_running_loop_is_refused() -> None:
    async def main() -> None:
        with open_sync_storage(mode="memory"):
            pytest.fail("opened")

    with pytest.raises(BlockingCallError, match="open_storage"):
        asyncio.run(main())


def test_a_call_inside_a_running_loop_is_refused_and_changes_nothing(storage: SyncStorage) -> None:
    async def main() -> None:
        storage.jobs.add("emails", 1)

    with pytest.raises(BlockingCallError):
        asyncio.run(main())
    assert storage.jobs.counts("emails").get("waiting", 0) == 0


def test_a_closed_storage_refuses_every_call() -> None:
    with open_sync_storage(mode="memory") as storage:
        storage.jobs.add("emails", 1)
    for attempt in (
        lambda: storage.jobs.add("emails", 1),
        storage.runs.flush,
        storage.maintenance.reap,
        lambda: storage.call(storage.durable.now),
        lambda: storage.jobs.keep([], lease_for=1.0).__enter__(),
    ):
        with pytest.raises(ClosedError):
            attempt()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_is_refused_and_leaves_the_with_block(storage: SyncStorage) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(20)
            storage.jobs.add("emails", 1)
        except ClosedError:
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert storage.jobs.add("emails", 1).status == "waiting"


def test_ctrl_c_ends_a_call_that_never_ends(storage: SyncStorage) -> None:
    main = threading.main_thread()
    watcher = threading.Timer(0.1, lambda: signal.pthread_kill(main.ident or 0, signal.SIGINT))
    watcher.start()
    with pytest.raises(KeyboardInterrupt):
        storage.maintenance.run_forever()
    watcher.join()
    assert storage.jobs.add("emails", 1).status == "waiting"


# --- opening that fails ----------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, kind",
    [
        ({"mode": "redsi"}, ConfigError),
        ({"hot": "memory", "durable": "no-such-backend"}, BackendNotFoundError),
        ({"mode": "memory", "memory": {"no_such_key": 1}}, ConfigError),
        ({"mode": "memory", "settings": object()}, TypeError),
    ],
)
def test_a_failed_opening_leaves_no_thread(
    arguments: dict[str, Any], kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        with open_sync_storage(**arguments):
            pytest.fail("opened")


def test_a_failing_wrapper_closes_what_was_opened() -> None:
    def broken(_plane: Any) -> Any:
        msg = "broken wrapper"
        raise RuntimeError(msg)

    with pytest.raises(RuntimeError, match="broken wrapper"):
        with open_sync_storage(mode="memory", wrap_hot=broken):
            pytest.fail("opened")


def test_wrappers_are_handed_on() -> None:
    seen: list[str] = []

    def watch(name: str) -> Callable[[Any], Any]:
        def wrap(plane: Any) -> Any:
            seen.append(name)
            return plane

        return wrap

    with open_sync_storage(mode="memory", wrap_hot=watch("hot"), wrap_durable=watch("durable")):
        assert sorted(seen) == ["durable", "hot"]


def test_an_error_in_the_block_comes_out_and_everything_closes() -> None:
    with pytest.raises(ZeroDivisionError):
        with open_sync_storage(mode="memory") as storage:
            raise ZeroDivisionError
    with pytest.raises(ClosedError):
        storage.jobs.counts("emails")


def test_no_frame_of_ours_keeps_a_secret_when_opening_fails() -> None:
    secret = "hunter2"
    with pytest.raises(ConfigError) as caught:
        with open_sync_storage(mode="memory", memory={"password": secret}):
            pytest.fail("opened")
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))
    for frame, _ in traceback.walk_tb(caught.value.__traceback__):
        if "oqron_core" in frame.f_code.co_filename:
            assert "hunter2" not in repr(frame.f_locals), frame.f_code.co_name


def test_a_program_that_ends_normally_does_not_hang() -> None:
    """The thread is no daemon, and leaving the block is enough to end it."""
    with open_sync_storage(mode="memory"):
        names = [thread.name for thread in threading.enumerate()]
        assert "oqron-portal" in names
    assert "oqron-portal" not in [thread.name for thread in threading.enumerate()]


def test_the_documented_example_runs() -> None:
    """The example of the module's docstring is taken out of it and run."""
    from oqron_core import sync

    assert sync.__doc__ is not None
    block = sync.__doc__.partition(".. code-block:: python\n\n")[2]
    lines = [line for line in block.split("\n\n")[0].split("\n") if line.startswith("    ")]
    names: dict[str, Any] = {"open_sync_storage": open_sync_storage}
    exec(textwrap.dedent("\n".join(lines)), names)  # noqa: S102 - our own docstring
    assert names["job"].status == "waiting"
