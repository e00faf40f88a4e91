"""Steps that outlive who waits for them."""

from __future__ import annotations

import asyncio

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from oqron_core.exceptions import ClosedError
from oqron_core.protocol.patience import to_the_end


class Bench:
    """
    Steps under way.

    Attributes:
        tasks: What they run in.
        unclaimed: The results that nobody took.
    """

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        self.unclaimed: list[Any] = []
        self.odd: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, said: self.odd.append(said))

    def start(self, step: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start one."""
        self.tasks.append(asyncio.create_task(step))
        return self.tasks[-1]

    def wait(self, step: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Wait for one in a task of its own, which may be cancelled."""
        return asyncio.ensure_future(to_the_end(step, self.start, unclaimed=self.unclaimed.append))


async def after(turns: int, then: Callable[[], Any]) -> Any:
    """Do something after so many turns of the loop."""
    for _ in range(turns):
        await asyncio.sleep(0)
    return then()


def raising() -> Any:
    """Fail."""
    raise LookupError


def test_it_gives_what_the_step_gives() -> None:
    """A result, or what was raised; nothing is left unclaimed."""

    async def body() -> None:
        bench = Bench()
        assert 7 == await bench.wait(after(2, lambda: 7))
        with pytest.raises(LookupError):
            await bench.wait(after(2, raising))
        assert bench.unclaimed == []
        assert bench.odd == []

    asyncio.run(body())


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("turns", range(1, 9))
def test_a_caller_may_go_in_any_turn(turns: int, fails: bool) -> None:
    """The step ends all the same, and what it gave is claimed by one side, once."""

    async def body() -> None:
        bench = Bench()
        ended: list[int] = []

        def end() -> int:
            ended.append(1)
            return raising() if fails else 7

        waiting = bench.wait(after(3, end))
        await after(turns, lambda: None)
        waiting.cancel()
        [said] = await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.sleep(0.01)
        assert ended == [1]
        assert bench.tasks[0].done()
        took = [said] if said == 7 else []
        assert took + bench.unclaimed == ([] if fails else [7])
        assert isinstance(said, (asyncio.CancelledError, LookupError, int))
        del waiting, said
        assert bench.odd == []

    asyncio.run(body())


@pytest.mark.parametrize("turns", range(1, 4))
def test_a_step_that_is_ended_by_closing_is_told_apart(turns: int) -> None:
    """Whoever waits is not cancelled, and must not look as if it were."""

    async def body() -> None:
        bench = Bench()
        waiting = bench.wait(after(50, lambda: 7))
        await after(turns, lambda: None)
        bench.tasks[0].cancel()
        with pytest.raises(ClosedError):
            await waiting
        assert bench.unclaimed == []
        assert bench.odd == []

    asyncio.run(body())
