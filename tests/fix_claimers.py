"""
What a process of its own runs to empty a queue.

A process that is spawned imports its function by name, so it lives where every
process of the tests finds it.
"""

from __future__ import annotations

import asyncio

from typing import Any

from oqron_core.planes import PlaneContext, Scope
from oqron_redis import BACKEND, RedisSettings, open_hot


async def claim_all(url: str, scope: Scope) -> list[str]:
    """Claim and acknowledge until nothing is left, and give the ids."""
    context = PlaneContext(scope)
    async with (
        BACKEND.connect(RedisSettings(url=url)) as store,
        open_hot(store, context) as hot,
    ):
        mine: list[str] = []
        while leases := await hot.broker.claim("q", owner="w", lease_for=60.0, limit=37):
            mine += [lease.id for lease in leases]
            assert all(await hot.broker.ack(leases))
        return mine


def claimer(url: str, scope: Scope, answers: Any) -> None:
    """Put the ids of this process into a queue of answers."""
    answers.put(asyncio.run(claim_all(url, scope)))
