"""
What a process of its own runs to bring a schedule up to date.

A process that is spawned imports its function by name, so it lives where every
process of the tests finds it.
"""

from __future__ import annotations

import asyncio
import traceback

from typing import Any

from oqron_core import Storage, open_storage


__all__ = ["MINUTE", "NAME", "advance_all", "scheduler"]

NAME = "n"
MINUTE = 60_000


async def advance_all(storage: Storage, last: int) -> list[int]:
    """Advance until nothing is due, and give the slots that were won here."""
    won: list[int] = []
    while due := await storage.schedules.due():
        for one in due:
            slot = one.next_run_at
            assert slot is not None
            following = slot + MINUTE if slot < last else None
            if await storage.schedules.advance(
                "cron", NAME, expected=slot, next_run_at=following, enqueue=("q", slot)
            ):
                won.append(slot)
    return won


async def _race(options: dict[str, Any], last: int, start: Any) -> list[int]:
    async with open_storage(**options) as storage:
        # All begin together, however long each took to get here.
        await asyncio.to_thread(start.wait)
        return await advance_all(storage, last)


def scheduler(tasks: Any, start: Any, answers: Any) -> None:
    """
    Take part in races until there is none.

    Args:
        tasks: Gives the options of a storage and the last slot of each race; None
            is the end.
        start: The barrier behind which a race begins.
        answers: Is given the slots that this process won; None where it failed.
    """
    while (task := tasks.get()) is not None:
        options, last = task
        won: list[int] | None = None
        try:
            won = asyncio.run(_race(options, last, start))
        except Exception:  # noqa: BLE001 - the test fails for it, and shows this
            traceback.print_exc()
        answers.put(won)
