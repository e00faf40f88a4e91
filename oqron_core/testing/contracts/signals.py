"""The contract of `Signals`: lossy fan-out."""

from __future__ import annotations

import asyncio

from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import Signal, Signals
from oqron_core.testing.contracts.base import Contract
from oqron_core.testing.hostile import BAD_NAMES, BAD_VALUES, NAMES, VALUES, same


__all__ = ["SignalsContract"]


async def next_of(messages: AsyncIterator[Signal]) -> Signal:
    """Take the next message, which must come."""
    return await asyncio.wait_for(anext(messages), 10)


class SignalsContract(Contract):
    """What every implementation of signals must do."""

    _wants_hot: ClassVar[bool] = True

    @property
    def signals(self) -> Signals:
        """The signals under test."""
        return self.hot.signals

    async def test_a_message_reaches_every_subscriber(self) -> None:
        """Each gets it once, with the channel it came by."""
        async with (
            self.signals.subscribe(["c"]) as one,
            self.signals.subscribe(["c", "other"]) as two,
        ):
            await self.signals.publish("c", {"x": 1})
            await self.signals.publish("c", "last")

            for messages in (one, two):
                assert Signal("c", {"x": 1}) == await next_of(messages)
                assert Signal("c", "last") == await next_of(messages)

    async def test_channels_are_apart(self) -> None:
        """Names that look like patterns, too, hear only themselves."""
        async with self.signals.subscribe(["a*c", "a?c", "a[bx]c"]) as messages:
            for channel in ("abc", "a", "a*c*", "axc"):
                await self.signals.publish(channel, "not for you")
            await self.signals.publish("a[bx]c", "end")

            assert Signal("a[bx]c", "end") == await next_of(messages)

    async def test_a_subscription_hears_all_its_channels(self) -> None:
        """In the order of publishing."""
        async with self.signals.subscribe(["a", "b"]) as messages:
            for number in range(50):
                await self.signals.publish("ab"[number % 2], number)

            assert [*range(50)] == [(await next_of(messages)).message for _ in range(50)]

    async def test_nothing_from_before_is_heard(self) -> None:
        """A subscription starts when its context is entered, and not later."""
        await self.signals.publish("c", "before")
        async with self.signals.subscribe(["c"]) as messages:
            await self.signals.publish("c", "after")

            assert Signal("c", "after") == await next_of(messages)

    async def test_leaving_one_subscription_leaves_the_others(self) -> None:
        """Who stays goes on hearing the shared channel."""
        async with self.signals.subscribe(["c"]) as stays:
            async with self.signals.subscribe(["c"]):
                await self.signals.publish("c", 1)
            await self.signals.publish("c", 2)

            assert [1, 2] == [(await next_of(stays)).message for _ in range(2)]

    async def test_publishing_to_nobody_is_no_error(self) -> None:
        """Fan-out without listeners does nothing."""
        await self.signals.publish("nobody", {"x": 1})

        async with self.signals.subscribe(["nobody"]) as messages:
            await self.signals.publish("nobody", 2)
            found = await next_of(messages)
            if found.message == {"x": 1}:
                # Between the nodes of a store it may still have been on its way.
                found = await next_of(messages)
            assert Signal("nobody", 2) == found

    async def test_messages_come_back_equal(self) -> None:
        """Every portable value, 64 KiB included."""
        values = [*VALUES, "é" * 32_768]
        async with self.signals.subscribe(["c"]) as messages:
            for value in values:
                await self.signals.publish("c", value)
                assert same(value, (await next_of(messages)).message), repr(value)[:80]

    async def test_subscribers_share_no_message(self) -> None:
        """What one changes, the other does not see."""
        value: list[Any] = [[]]
        async with self.signals.subscribe(["c"]) as one, self.signals.subscribe(["c"]) as two:
            await self.signals.publish("c", value)
            value[0].append("published")
            (await next_of(one)).message[0].append("received")

            assert [[]] == (await next_of(two)).message

    async def test_a_slow_subscriber_loses_the_oldest(self) -> None:
        """Nobody waits for it, and what it gets ends with the newest."""
        async with self.signals.subscribe(["c"]) as messages:
            for number in range(3000):
                await self.signals.publish("c", number)
            heard = [(await next_of(messages)).message]
            while heard[-1] != 2999:
                heard.append((await next_of(messages)).message)

            assert sorted(set(heard)) == heard

    async def test_every_legal_name_is_a_channel_of_its_own(self) -> None:
        """No two channels meet."""
        async with self.signals.subscribe(NAMES) as messages:
            for name in NAMES:
                await self.signals.publish(name, name)
                assert Signal(name, name) == await next_of(messages)

    async def test_a_cancelled_listener_leaves_the_channel_intact(self) -> None:
        """Giving up on a message takes none from the next listener."""
        async with self.signals.subscribe(["c"]) as messages:
            for _ in range(5):
                task = asyncio.ensure_future(anext(messages))
                await self.settle()
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                assert task.cancelled()
        async with self.signals.subscribe(["c"]) as messages:
            await self.signals.publish("c", 1)

            assert Signal("c", 1) == await next_of(messages)

    @pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
    async def test_a_bad_channel_is_refused(self, name: Any) -> None:
        """For publishing and for listening."""
        with pytest.raises(InvalidValueError):
            await self.signals.publish(name, 1)
        with pytest.raises(InvalidValueError):
            async with self.signals.subscribe(["good", name]):
                pass

    @pytest.mark.parametrize("number", range(len(BAD_VALUES)))
    async def test_a_message_that_is_not_portable_is_refused(self, number: int) -> None:
        """Nobody hears of it."""
        async with self.signals.subscribe(["c"]) as messages:
            with pytest.raises(InvalidValueError):
                await self.signals.publish("c", BAD_VALUES[number])
            await self.signals.publish("c", "end")

            assert Signal("c", "end") == await next_of(messages)
