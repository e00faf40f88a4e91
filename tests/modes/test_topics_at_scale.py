"""Four groups, many messages, several consumers: nothing lost, order per key."""

from __future__ import annotations

import asyncio
import collections
import os

from typing import Any

import pytest

from oqron_core import Storage, open_storage
from oqron_memory import MemoryStore


MESSAGES = int(os.environ.get("OQRON_TEST_MESSAGES", "1000"))
"""How many; the whole figure is 10,000."""
KEYS = 37
GROUPS = ("a", "b", "c")
MODES = ("memory", "redis", "redis-postgres")


@pytest.fixture(params=MODES)
def options(request: pytest.FixtureRequest, project: str) -> dict[str, Any]:
    """Give the options of a storage in each mode."""
    made: dict[str, Any] = {"mode": request.param, "project": project, "environment": "scale"}
    if request.param == "memory":
        return made | {"memory": {"store": MemoryStore()}}
    # However slow the machine is.
    made["redis"] = {"url": request.getfixturevalue("redis_url"), "timeout": 60.0}
    if request.param == "redis-postgres":
        made["postgres"] = {"url": request.getfixturevalue("postgres_url")}
    return made


async def consume(storage: Storage, group: str, seen: list[tuple[str, int]]) -> None:
    """Work a group until all of its messages have been seen."""
    while len(seen) < MESSAGES:
        claims = await storage.topics.claim("t", group, limit=20, wait=0.2)
        for claim in claims:
            assert claim.message is not None
            seen.append((str(claim.message.key), claim.message.message))
        await storage.jobs.complete_many([(claim, None) for claim in claims])


def in_order(seen: list[tuple[str, int]]) -> bool:
    """Say whether each key's messages came in the order of publishing."""
    by_key = collections.defaultdict(list)
    for key, number in seen:
        by_key[key].append(number)
    return all(numbers == sorted(numbers) for numbers in by_key.values())


@pytest.mark.timeout(1800)
def test_every_group_gets_everything_in_order(options: dict[str, Any]) -> None:
    """Two consumers a group; the fourth group comes late, and gets all of it too."""
    seen: dict[str, list[tuple[str, int]]] = {group: [] for group in (*GROUPS, "late")}

    async def publish(storage: Storage) -> None:
        for start in range(0, MESSAGES, 50):
            await asyncio.gather(
                *[
                    storage.topics.publish("t", n, key=f"k{n % KEYS}")
                    for n in range(start, min(start + 50, MESSAGES))
                ]
            )

    async def main() -> None:
        async with open_storage(**options) as one, open_storage(**options) as two:
            for group in GROUPS:
                await one.topics.subscribe("t", group)
            consumers = [
                consume(storage, group, seen[group]) for group in GROUPS for storage in (one, two)
            ]
            await asyncio.gather(publish(one), *consumers)
            await one.topics.subscribe("t", "late", start="earliest")
            await asyncio.gather(
                *[consume(storage, "late", seen["late"]) for storage in (one, two)]
            )
            for group in seen:
                assert 0 == await one.topics.lag("t", group)

    asyncio.run(main())
    for group, messages in seen.items():
        assert list(range(MESSAGES)) == sorted(number for _, number in messages), group
        assert in_order(messages), group
