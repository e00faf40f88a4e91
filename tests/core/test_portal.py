"""A private loop in a thread: everything it starts ends, and what it cannot serve it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import signal
import threading
import traceback
import warnings

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from types import FrameType
from typing import Any, NoReturn

import pytest

from oqron_core._portal import Portal
from oqron_core.exceptions import BlockingCallError, ClosedError, OqronError


@pytest.fixture(autouse=True)
def _no_thread_left_behind() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before]
    assert not left


@pytest.fixture
def portal() -> Iterator[Portal]:
    made = Portal()
    yield made
    made.close()


async def echo(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    await asyncio.sleep(0)
    return args, kwargs


async def fail(error: BaseException) -> NoReturn:
    await asyncio.sleep(0)
    raise error


async def forever() -> None:
    await asyncio.Event().wait()


def in_child(work: Callable[[], bool]) -> int:
    """Run *work* in a forked child; 0 if it gave True."""
    with warnings.catch_warnings():
        # Forking beside a thread is what is tested here.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 1
        try:
            # A hang in the child must not outlive the test.
            signal.alarm(20)
            status = 0 if work() else 2
        except BaseException:  # noqa: BLE001 - a child must not return into the test
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    return status


fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


# --- calls -----------------------------------------------------------------------


def test_a_call_gives_what_the_coroutine_gives(portal: Portal) -> None:
    assert portal.call(echo, 1, "a", key=None) == ((1, "a"), {"key": None})


def test_a_call_runs_in_the_thread_of_the_portal(portal: Portal) -> None:
    async def where() -> tuple[str, asyncio.AbstractEventLoop]:
        return threading.current_thread().name, asyncio.get_running_loop()

    name, loop = portal.call(where)
    assert name == "oqron-portal"
    assert portal.call(where) == (name, loop)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        KeyError("k"),
        StopAsyncIteration(),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        BaseException("rude"),
        TimeoutError(),
        ExceptionGroup("many", [ValueError("x")]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_out_whole_and_harms_nobody_else(
    portal: Portal, error: BaseException
) -> None:
    with pytest.raises(type(error)) as caught:
        portal.call(fail, error)
    assert caught.value is error
    assert "in fail" in "".join(traceback.format_exception(caught.value))
    assert portal.call(echo, 1) == ((1,), {})


def test_a_coroutine_that_cancels_itself_says_so(portal: Portal) -> None:
    with pytest.raises(asyncio.CancelledError):
        portal.call(fail, asyncio.CancelledError())
    assert portal.call(echo, 1) == ((1,), {})


def test_what_the_caller_has_set_is_seen_inside_and_not_changed_by_it(portal: Portal) -> None:
    trace: contextvars.ContextVar[str] = contextvars.ContextVar("trace", default="none")

    async def look() -> str:
        seen = trace.get()
        trace.set("changed inside")
        return seen

    trace.set("of the caller")
    assert portal.call(look) == "of the caller"
    assert trace.get() == "of the caller"


def test_threads_share_a_portal(portal: Portal) -> None:
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    results: dict[int, int] = {}

    def work(first: int) -> None:
        for number in range(first, first + 50):
            results[number] = portal.call(double, number)

    threads = [threading.Thread(target=work, args=(50 * index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: 2 * number for number in range(400)}


# --- what is refused -------------------------------------------------------------


def test_a_call_from_inside_a_running_loop_is_refused(portal: Portal) -> None:
    started = []

    async def never() -> None:
        started.append(1)

    async def main() -> None:
        portal.call(never)

    with pytest.raises(BlockingCallError, match="open_storage") as caught:
        asyncio.run(main())
    assert isinstance(caught.value, OqronError)
    assert isinstance(caught.value, RuntimeError)
    assert started == []


def test_a_call_from_the_portals_own_loop_is_refused_and_does_not_hang(portal: Portal) -> None:
    async def inside() -> None:
        portal.call(echo, 1)

    with pytest.raises(BlockingCallError):
        portal.call(inside)


def test_closing_from_the_portals_own_loop_is_refused_and_does_not_hang(portal: Portal) -> None:
    async def inside() -> None:
        portal.close()

    with pytest.raises(BlockingCallError):
        portal.call(inside)
    assert portal.call(echo, 1) == ((1,), {})


def test_a_portal_is_not_made_inside_a_running_loop() -> None:
    async def main() -> None:
        Portal()

    with pytest.raises(BlockingCallError):
        asyncio.run(main())


def test_a_closed_portal_serves_nothing_and_closes_again() -> None:
    portal = Portal()
    states = [portal.closed]
    for _ in range(2):
        portal.close()
        states.append(portal.closed)
    assert states == [False, True, True]
    with pytest.raises(ClosedError):
        portal.call(echo)
    with pytest.raises(ClosedError):
        portal.hold(contextlib.nullcontext()).__enter__()


@fork
def test_a_forked_child_is_refused_and_can_close() -> None:
    portal = Portal()

    def work() -> bool:
        try:
            portal.call(echo, 1)
        except ClosedError as error:
            portal.close()
            return "forked" in str(error)
        return False

    try:
        assert in_child(work) == 0
        assert portal.call(echo, 1) == ((1,), {})
    finally:
        portal.close()


@fork
def test_a_forked_child_leaves_the_parents_context_alone(portal: Portal) -> None:
    left: list[int] = []

    @contextlib.asynccontextmanager
    async def manager() -> AsyncIterator[int]:
        yield 1
        left.append(1)

    def work() -> bool:
        with contextlib.suppress(ClosedError):
            held.__exit__(None, None, None)
        return left == []

    held = portal.hold(manager())
    with held as value:
        assert value == 1
        assert in_child(work) == 0
        assert left == []
    assert left == [1]


# --- the end ---------------------------------------------------------------------


def test_the_thread_ends_with_the_portal_and_keeps_no_process_alive() -> None:
    portal = Portal("my-portal")
    (thread,) = [each for each in threading.enumerate() if each.name == "my-portal"]
    assert thread.daemon
    portal.close()
    assert not thread.is_alive()


def test_tasks_that_were_left_running_are_cancelled_at_the_end() -> None:
    ended: list[str] = []

    async def background() -> None:
        try:
            await forever()
        finally:
            ended.append("background")

    async def start() -> asyncio.Task[None]:
        task = asyncio.create_task(background())
        await asyncio.sleep(0)
        return task

    portal = Portal()
    portal.call(start)
    portal.close()
    assert ended == ["background"]


def test_calls_that_wait_while_it_closes_are_told() -> None:
    portal = Portal()
    started = threading.Semaphore(0)
    told: list[BaseException] = []

    async def wait() -> None:
        started.release()
        await forever()

    def work() -> None:
        try:
            portal.call(wait)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is what is tested
            told.append(error)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for _ in threads:
        started.acquire()
    portal.close()
    for thread in threads:
        thread.join(20)
    assert [type(error) for error in told] == [ClosedError] * 5


def test_no_call_is_lost_in_the_moment_of_closing() -> None:
    """Every call that races with close either gives its result or says that it was closed."""
    for _ in range(30):
        portal = Portal()
        barrier = threading.Barrier(5)
        outcomes: list[object] = []

        def work(
            portal: Portal = portal,
            barrier: threading.Barrier = barrier,
            outcomes: list[object] = outcomes,
        ) -> None:
            barrier.wait()
            while True:
                try:
                    portal.call(echo)
                except ClosedError as error:
                    outcomes.append(error)
                    return

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        barrier.wait()
        portal.close()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        assert len(outcomes) == 4


# --- Ctrl-C ----------------------------------------------------------------------


class GivenUpError(Exception):
    """What a signal handler of the program raises."""


@pytest.fixture
def on_interrupt() -> Iterator[Callable[[Callable[[int, FrameType | None], Any]], None]]:
    old = signal.getsignal(signal.SIGINT)

    def install(handler: Callable[[int, FrameType | None], Any]) -> None:
        signal.signal(signal.SIGINT, handler)

    yield install
    signal.signal(signal.SIGINT, old)


def test_ctrl_c_cancels_the_call_and_waits_for_its_cleanup(portal: Portal) -> None:
    done: list[str] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await forever()
        except asyncio.CancelledError:
            done.append("cancelled")
            await asyncio.sleep(0)
            done.append("gave back")
            raise

    with pytest.raises(KeyboardInterrupt):
        portal.call(work)
    assert done == ["cancelled", "gave back"]
    assert portal.call(echo, 1) == ((1,), {})


def test_an_exception_of_a_signal_handler_cancels_too(
    portal: Portal, on_interrupt: Callable[[Any], None]
) -> None:
    def give_up(_number: int, _frame: FrameType | None) -> None:
        raise GivenUpError

    on_interrupt(give_up)
    done: list[str] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await forever()
        finally:
            done.append("ended")

    with pytest.raises(GivenUpError):
        portal.call(work)
    assert done == ["ended"]


def test_ctrl_c_wins_over_a_coroutine_that_swallows_its_cancellation(portal: Portal) -> None:
    async def stubborn() -> str:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await forever()
        except asyncio.CancelledError:
            pass
        return "done after all"

    with pytest.raises(KeyboardInterrupt):
        portal.call(stubborn)


def test_ctrl_c_while_entering_a_context_leaves_it(portal: Portal) -> None:
    done: list[str] = []

    @contextlib.asynccontextmanager
    async def manager() -> AsyncIterator[None]:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await forever()
            yield
        finally:
            done.append("left")

    with pytest.raises(KeyboardInterrupt):
        with portal.hold(manager()):
            done.append("never inside")
    assert done == ["left"]


def test_ctrl_c_inside_a_context_reaches_the_manager(portal: Portal) -> None:
    seen: list[str] = []

    @contextlib.asynccontextmanager
    async def manager() -> AsyncIterator[None]:
        try:
            yield
        except BaseException as error:
            seen.append(type(error).__name__)
            raise

    with pytest.raises(KeyboardInterrupt):
        with portal.hold(manager()):
            portal.call(fail, KeyboardInterrupt())
    assert seen == ["KeyboardInterrupt"]


# --- context managers ------------------------------------------------------------


def test_one_task_enters_and_leaves(portal: Portal) -> None:
    """Time limits, task groups and cancel scopes work inside."""
    tasks: list[object] = []

    @contextlib.asynccontextmanager
    async def manager() -> AsyncIterator[str]:
        tasks.append(asyncio.current_task())
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(echo())
            yield "value"
        tasks.append(asyncio.current_task())

    with portal.hold(manager()) as value:
        assert value == "value"
        assert portal.call(echo, 1) == ((1,), {})
    assert len(tasks) == 2
    assert tasks[0] is tasks[1]


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), KeyboardInterrupt(), SystemExit(1), StopIteration(), GeneratorExit()],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_the_body_passes_through_the_manager(
    portal: Portal, error: BaseException
) -> None:
    seen: list[BaseException] = []

    class Manager:
        async def __aenter__(self) -> None:
            pass

        async def __aexit__(
            self, _kind: object, error: BaseException | None, _trace: object
        ) -> None:
            assert error is not None
            seen.append(error)

    with pytest.raises(type(error)) as caught:
        with portal.hold(Manager()):
            raise error
    assert caught.value is error
    assert seen == [error]


def test_a_manager_may_swallow_an_error(portal: Portal) -> None:
    @contextlib.asynccontextmanager
    async def manager() -> AsyncIterator[None]:
        with contextlib.suppress(LookupError):
            yield

    with portal.hold(manager()):
        raise KeyError("x")
    with pytest.raises(ValueError, match="y"):
        with portal.hold(manager()):
            raise ValueError("y")


def test_a_manager_may_turn_an_error_into_another(portal: Portal) -> None:
    @contextlib.asynccontextmanager
    async def manager() -> AsyncIterator[None]:
        try:
            yield
        except KeyError as error:
            raise RuntimeError("other") from error

    with pytest.raises(RuntimeError, match="other") as caught:
        with portal.hold(manager()):
            raise KeyError("x")
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(2), asyncio.CancelledError()])
def test_an_error_on_entering_comes_out(portal: Portal, error: BaseException) -> None:
    @contextlib.asynccontextmanager
    async def manager() -> AsyncIterator[None]:
        if not portal.closed:
            raise error
        yield

    with pytest.raises(type(error)):
        with portal.hold(manager()):
            pytest.fail("entered")


def test_an_error_on_leaving_comes_out(portal: Portal) -> None:
    @contextlib.asynccontextmanager
    async def manager() -> AsyncIterator[None]:
        yield
        raise ValueError("on leaving")

    with pytest.raises(ValueError, match="on leaving"):
        with portal.hold(manager()):
            pass


def test_a_task_group_that_fails_inside_is_told_on_leaving(portal: Portal) -> None:
    @contextlib.asynccontextmanager
    async def manager() -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail(ValueError("in the background")))
            yield

    with pytest.raises(ExceptionGroup) as caught:
        with portal.hold(manager()):
            portal.call(asyncio.sleep, 0.01)
    assert [str(error) for error in caught.value.exceptions] == ["in the background"]


def test_a_context_is_entered_once(portal: Portal) -> None:
    held = portal.hold(contextlib.nullcontext(1))
    with held as value:
        assert value == 1
    with pytest.raises(RuntimeError, match="entered already"):
        held.__enter__()


def test_a_context_is_left_when_the_portal_closes_first() -> None:
    left: list[str] = []

    @contextlib.asynccontextmanager
    async def manager() -> AsyncIterator[None]:
        try:
            yield
        finally:
            left.append("left")

    portal = Portal()
    with pytest.raises(ClosedError):
        with portal.hold(manager()):
            portal.close()
            assert left == ["left"]


def test_a_context_is_not_entered_inside_a_running_loop(portal: Portal) -> None:
    async def main() -> None:
        with portal.hold(contextlib.nullcontext()):
            pass

    with pytest.raises(BlockingCallError):
        asyncio.run(main())


# --- iterators -------------------------------------------------------------------


async def numbers(closed: list[str]) -> AsyncIterator[int]:
    try:
        for number in range(3):
            await asyncio.sleep(0)
            yield number
    finally:
        closed.append("closed")


def test_an_async_iterator_is_iterated(portal: Portal) -> None:
    closed: list[str] = []
    assert list(portal.iterate(numbers(closed))) == [0, 1, 2]
    assert closed == ["closed"]


def test_leaving_an_iterator_early_closes_it(portal: Portal) -> None:
    closed: list[str] = []
    iterator = portal.iterate(numbers(closed))
    assert next(iterator) == 0
    assert closed == []
    iterator.close()  # type: ignore[attr-defined]
    assert closed == ["closed"]


def test_an_error_of_an_iterator_comes_out(portal: Portal) -> None:
    async def broken() -> AsyncIterator[int]:
        yield 1
        raise ValueError("x")

    seen = []
    with pytest.raises(ValueError, match="x"):
        for number in portal.iterate(broken()):
            seen.append(number)  # noqa: PERF402 - what was seen before the error counts
    assert seen == [1]


def test_an_iterator_of_a_closed_portal_can_be_dropped() -> None:
    portal = Portal()
    iterator = portal.iterate(numbers([]))
    assert next(iterator) == 0
    portal.close()
    iterator.close()  # type: ignore[attr-defined]


def test_something_awaitable_that_is_no_coroutine_is_awaited(portal: Portal) -> None:
    class Later:
        def __await__(self) -> Generator[Any, None, int]:
            yield from asyncio.sleep(0).__await__()
            return 7

    def later() -> Awaitable[int]:
        return Later()

    assert portal.call(later) == 7
