"""Group commit: who shares a flush, and what a fault does to whom."""

from __future__ import annotations

import asyncio

import pytest

from oqron_core.exceptions import ClosedError, UnavailableError
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


class Holds:
    """A flush that can be held, each batch by itself."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gates: list[asyncio.Event] = []

    async def flush(self, items: list[int]) -> list[int]:
        """Answer when this batch is let go."""
        gate = asyncio.Event()
        self.batches.append(items)
        self.gates.append(gate)
        await gate.wait()
        return items


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_flushes_overlap_when_as_many_wait_as_are_under_way() -> None:
    """A second is not begun for a few, so flushes stay large."""

    async def main() -> None:
        holds = Holds()
        coalescer = Coalescer(holds.flush, at_once=2)
        answers = [coalescer.submit(n) for n in range(3)]
        await _turns()
        answers += [coalescer.submit(n) for n in (3, 4)]
        await _turns()
        assert [[0, 1, 2]] == holds.batches
        answers.append(coalescer.submit(5))
        await _turns()
        assert [[0, 1, 2], [3, 4, 5]] == holds.batches
        # There are never more than that at once, whatever waits.
        answers += [coalescer.submit(n) for n in range(6, 20)]
        await _turns()
        assert 2 == len(holds.batches)
        holds.gates[1].set()
        await _turns()

        assert [*range(6, 20)] == holds.batches[2]
        for gate in holds.gates:
            gate.set()
        assert [*range(20)] == await asyncio.gather(*answers)

    asyncio.run(main())


def test_a_few_that_are_left_over_go_with_whoever_ends_next() -> None:
    """Nobody is forgotten between two flushes."""

    async def main() -> None:
        holds = Holds()
        coalescer = Coalescer(holds.flush, at_once=2)
        answers = [coalescer.submit(n) for n in range(4)]
        await _turns()
        answers += [coalescer.submit(n) for n in range(4, 8)]
        await _turns()
        answers.append(coalescer.submit(8))
        holds.gates[0].set()
        await _turns()
        assert 2 == len(holds.batches)
        holds.gates[1].set()
        await _turns()

        assert [8] == holds.batches[2]
        holds.gates[2].set()
        assert [*range(9)] == await asyncio.gather(*answers)
        await coalescer.drain()

    asyncio.run(main())


@pytest.mark.parametrize("at_once", [1, 2])
def test_closing_leaves_nobody_waiting(at_once: int) -> None:
    """Neither those in flight, nor who waits, nor who had only just come."""

    async def main() -> None:
        holds = Holds()
        coalescer = Coalescer(holds.flush, at_once=at_once)
        answers = []
        for few in (2, 1, 5):
            answers += [coalescer.submit(n) for n in range(few)]
            await _turns()
        answers.append(coalescer.submit(9))
        async with asyncio.timeout(5):
            await coalescer.close()
            found = await asyncio.gather(*answers, return_exceptions=True)

        assert all(isinstance(each, ClosedError) for each in found)

    asyncio.run(main())


def test_every_item_is_flushed_once_however_flushes_end() -> None:
    """Many callers, three flushes at once, no order of their ends."""

    async def main() -> None:
        seen: list[int] = []

        async def flush(items: list[int]) -> list[int]:
            for _ in range(items[0] % 7):
                await asyncio.sleep(0)
            seen.extend(items)
            return items

        coalescer = Coalescer(flush, at_once=3, max_batch=5)

        async def caller(first: int) -> None:
            for number in range(first, first + 50):
                assert number == await coalescer.submit(number)

        await asyncio.gather(*[caller(50 * n) for n in range(20)])

        assert [*range(1000)] == sorted(seen)

    asyncio.run(main())


def test_one_that_goes_alone_is_sent_at_once_and_others_go_beside_it() -> None:
    """It waits for no turn; what comes meanwhile does not wait for it."""

    async def main() -> None:
        holds = Holds()
        coalescer = Coalescer(holds.flush, at_once=2)
        assert coalescer.is_idle
        lone = asyncio.create_task(coalescer.alone(0))
        await asyncio.sleep(0)
        assert [[0]] == holds.batches
        assert not coalescer.is_idle
        answers = [coalescer.submit(n) for n in (1, 2)]
        await _turns()
        assert [[0], [1, 2]] == holds.batches
        answers += [coalescer.submit(n) for n in (3, 4)]
        holds.gates[0].set()
        assert 0 == await lone
        await _turns()
        holds.gates[1].set()
        await _turns()
        for gate in holds.gates:
            gate.set()
        assert [1, 2, 3, 4] == await asyncio.gather(*answers)
        await coalescer.drain()
        assert coalescer.is_idle

    asyncio.run(main())


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("end", ["answer", "error", "cancel"])
def test_who_waits_behind_one_that_goes_alone_is_not_forgotten(at_once: int, end: str) -> None:
    """However that one ends; draining waits for it."""

    async def main() -> None:
        gate = Gate()
        gate.open.clear()
        coalescer = Coalescer(gate.flush, at_once=at_once)
        lone = asyncio.create_task(coalescer.alone(0))
        await asyncio.sleep(0)
        draining = asyncio.create_task(coalescer.drain())
        await _turns()
        assert not draining.done()
        answer = coalescer.submit(1)
        if end == "cancel":
            lone.cancel()
            await _turns()
        gate.error = UnavailableError("no answer") if end == "error" else None
        gate.open.set()
        async with asyncio.timeout(5):
            ended = await asyncio.gather(lone, answer, return_exceptions=True)
            await draining
        wanted = {"answer": int, "error": UnavailableError, "cancel": asyncio.CancelledError}
        assert isinstance(ended[0], wanted[end])
        assert isinstance(ended[1], UnavailableError if end == "error" else int)
        assert coalescer.is_idle

    asyncio.run(main())


def test_few_that_are_left_over_wait_a_turn_for_those_who_were_answered() -> None:
    """Else they would go by themselves, and the many behind them with nobody at work."""

    async def main() -> None:
        holds = Holds()
        coalescer = Coalescer(holds.flush, at_once=2)

        async def caller(number: int) -> None:
            await coalescer.submit(number)
            await coalescer.submit(number + 100)

        callers = [asyncio.create_task(caller(n)) for n in range(4)]
        await _turns()
        late = coalescer.submit(50)
        holds.gates[0].set()
        await _turns()
        assert [[0, 1, 2, 3], [50, 100, 101, 102, 103]] == holds.batches
        for gate in holds.gates:
            gate.set()
        assert 50 == await late
        await asyncio.gather(*callers)

    asyncio.run(main())


def test_what_comes_after_closing_is_answered() -> None:
    """Also where a flush was ended before it had begun."""

    async def main() -> None:
        gate = Gate()
        coalescer = Coalescer(gate.flush)
        first = coalescer.submit(1)
        await coalescer.close()
        assert isinstance((await asyncio.gather(first, return_exceptions=True))[0], ClosedError)
        async with asyncio.timeout(5):
            assert 20 == await coalescer.submit(2)

    asyncio.run(main())
