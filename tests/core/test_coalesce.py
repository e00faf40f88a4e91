"""Group commit: who shares a flush, and what a fault does to whom."""

from __future__ import annotations

import asyncio

import pytest

from oqron_core.exceptions import UnavailableError
from oqron_core.protocol.coalesce import Coalescer


class Gate:
    """A flush that can be held, and that remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.error: BaseException | None = None

    async def flush(self, items: list[int]) -> list[int]:
        """Answer each item with ten times itself."""
        self.batches.append(items)
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return [item * 10 for item in items]


def test_calls_of_one_turn_share_a_flush() -> None:
    """Calls that start together are sent together, each gets its own answer."""

    async def main() -> None:
        gate = Gate()
        coalescer = Coalescer(gate.flush)

        answers = await asyncio.gather(*[coalescer.submit(n) for n in range(50)])

        assert [n * 10 for n in range(50)] == answers
        assert [list(range(50))] == gate.batches

    asyncio.run(main())


def test_what_arrives_during_a_flush_shares_the_next() -> None:
    """Nothing waits for a timer: the next flush starts when the one before ends."""

    async def main() -> None:
        gate = Gate()
        gate.open.clear()
        coalescer = Coalescer(gate.flush)
        first = coalescer.submit(1)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        others = [coalescer.submit(n) for n in (2, 3)]
        gate.open.set()

        assert [10, 20, 30] == await asyncio.gather(first, *others)
        assert [[1], [2, 3]] == gate.batches

    asyncio.run(main())


def test_a_batch_is_bounded() -> None:
    """More than the largest batch is sent in several."""

    async def main() -> None:
        gate = Gate()
        coalescer = Coalescer(gate.flush, max_batch=4)

        await asyncio.gather(*[coalescer.submit(n) for n in range(10)])

        assert [4, 4, 2] == [len(batch) for batch in gate.batches]

    asyncio.run(main())


def test_a_cancelled_caller_takes_nobody_down() -> None:
    """The flush goes on, and the others are answered."""

    async def main() -> None:
        gate = Gate()
        gate.open.clear()
        coalescer = Coalescer(gate.flush)

        async def call(n: int) -> int:
            return await coalescer.submit(n)

        tasks = [asyncio.create_task(call(n)) for n in range(3)]
        await asyncio.sleep(0.01)
        tasks[1].cancel()
        gate.open.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)

        assert answers[0] == 0
        assert isinstance(answers[1], asyncio.CancelledError)
        assert answers[2] == 20

    asyncio.run(main())


def test_an_error_reaches_every_caller_of_its_batch_and_no_other() -> None:
    """The next batch starts afresh."""

    async def main() -> None:
        gate = Gate()
        gate.error = UnavailableError("down")
        coalescer = Coalescer(gate.flush)
        answers = await asyncio.gather(
            *[coalescer.submit(n) for n in range(3)], return_exceptions=True
        )
        assert all(isinstance(answer, UnavailableError) for answer in answers)

        gate.error = None
        assert await coalescer.submit(7) == 70

    asyncio.run(main())


def test_the_step_after_a_flush_keeps_callers_but_not_the_next_flush() -> None:
    """A slow second step overlaps with the next first step."""

    async def main() -> None:
        gate = Gate()
        hold = asyncio.Event()
        after: list[tuple[list[int], list[int]]] = []

        async def then(items: list[int], results: object) -> None:
            after.append((items, list(results)))  # type: ignore[call-overload]
            if len(after) == 1:
                await hold.wait()

        coalescer = Coalescer(gate.flush, then=then)
        first = coalescer.submit(1)
        await asyncio.sleep(0.01)
        assert not first.done()

        assert await coalescer.submit(2) == 20
        assert not first.done()
        hold.set()
        assert await first == 10
        await coalescer.drain()
        assert [([1], [10]), ([2], [20])] == after

    asyncio.run(main())


def test_a_step_after_a_flush_that_raises_does_not_undo_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What was flushed is answered as done; the fault is logged."""

    async def main() -> None:
        gate = Gate()

        async def then(_items: list[int], _results: object) -> None:
            msg = "no"
            raise ValueError(msg)

        coalescer = Coalescer(gate.flush, then=then)
        assert await coalescer.submit(1) == 10

    asyncio.run(main())
    assert "a step after a flush failed" in caplog.text
