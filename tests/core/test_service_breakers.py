"""Circuit breakers, in memory."""

from __future__ import annotations

import asyncio

from typing import Any

import pytest

from fix_memory import MemoryMode
from oqron_core import open_storage
from oqron_core.models import Backoff
from oqron_core.services.breakers import BreakerPolicy
from oqron_core.testing.clock import ManualClock
from oqron_core.testing.contracts.mode_breakers import ModeBreakersContract
from oqron_core.testing.faults import Faults
from oqron_memory import MemoryStore


class TestBreakersInMemory(MemoryMode, ModeBreakersContract):
    """Several storages share one store, whose clock stands still."""


@pytest.mark.parametrize("state", ["open", "half_open"])
def test_a_probe_is_not_given_on_what_was_read_before_another_got_it(state: str) -> None:
    """Whoever is held up between reading and writing is refused, and told for how long."""

    async def main() -> None:
        clock = ManualClock()
        store = MemoryStore(clock=clock)
        faults = Faults()
        policy = BreakerPolicy(failures=1, open_for=Backoff.fixed(10.0), probe_for=10.0)
        options: dict[str, Any] = {"mode": "memory", "memory": {"store": store}}
        async with (
            open_storage(**options, wrap_durable=faults.wrap_durable) as one,
            open_storage(**options) as two,
        ):
            await two.breakers.failure("b", policy=policy)
            clock.advance(11.0)
            if state == "half_open":
                assert (await two.breakers.allow("b", policy=policy)).probe
                clock.advance(11.0)
            pause = faults.pause("durable.write")
            late = asyncio.create_task(one.breakers.allow("b", policy=policy))
            await pause.reached.wait()
            assert (await two.breakers.allow("b", policy=policy)).probe
            pause.release()

            assert not await late
            assert (await late).retry_after == 10.0

    asyncio.run(main())
