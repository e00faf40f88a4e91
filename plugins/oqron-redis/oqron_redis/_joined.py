"""Steps over both planes at once, where one Redis holds them."""

from __future__ import annotations

import asyncio

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, final

from oqron_core.exceptions import UnavailableError
from oqron_core.planes import (
    Entry,
    Insert,
    JoinedPlanes,
    WriteResult,
    check_entries,
)
from oqron_redis._broker import entry_words, publish_head, publish_keys
from oqron_redis._items import Encoder
from oqron_redis._session import Session
from oqron_redis._writes import Batch, steps_of


__all__ = ["RedisJoinedPlanes"]

_MARK_MS: Final = 60_000
"""How long a call is known to have been done: longer than anybody tries again."""
_FORGET: Final = 8


@final
class RedisJoinedPlanes(JoinedPlanes):
    """
    Both planes of a scope on one server that is no cluster.

    Args:
        session: The durable plane's.
        encoder: The durable plane's.
    """

    __slots__ = ("_encoder", "_session", "_spent", "_under_way")

    def __init__(self, session: Session, encoder: Encoder) -> None:
        self._session = session
        self._encoder = encoder
        self._under_way: set[asyncio.Future[Any]] = set()
        # Of calls that were answered; the next one has them forgotten.
        self._spent: deque[bytes] = deque()

    async def add(
        self, queue: str, inserts: Sequence[Insert], entries: Sequence[Entry], *, token: str
    ) -> Sequence[WriteResult]:
        session = self._session
        session.check_open()
        check_entries(queue, entries)
        if not inserts:
            return []
        nothing = session.keys.durable_nothing
        keys = session.keys.queue(queue)
        places = publish_keys(session, keys)
        head = publish_head(session, keys)
        batches = [Batch(self._encoder, step, ()) for step in steps_of(self._encoder, inserts)]
        # All are built before any is sent, so a refusal comes before any write.
        calls = [batch.call(nothing, atomic=False) for batch in batches]
        if any(map(_has_failed, self._under_way)):
            # Whoever made that call will learn of it in a moment, and try again.
            msg = "Redis was lost with jobs under way that come before these"
            raise UnavailableError(msg)
        futures: list[asyncio.Future[Any]] = []
        marks: list[bytes] = []
        start = 0
        for batch, (records, arguments) in zip(batches, calls, strict=True):
            part = entries[start : start + batch.size]
            start += batch.size
            marks.append(session.keys.added(f"{token}:{start}"))
            spent = [self._spent.popleft() for _ in range(min(_FORGET, len(self._spent)))]
            words = [*arguments, *head, *entry_words(part), len(part), _MARK_MS, len(spent)]
            # All are sent before anybody else has a turn: what comes later is behind them.
            futures.append(session.run("add", [*records, *places, marks[-1], *spent], words))
        self._under_way.update(futures)
        try:
            answers = await session.gather(futures)
        finally:
            self._under_way.difference_update(futures)
        self._spent.extend(marks)
        return [
            result
            for batch, answer in zip(batches, answers, strict=True)
            for result in batch.results(answer)
        ]


def _has_failed(future: asyncio.Future[Any]) -> bool:
    return future.done() and (future.cancelled() or future.exception() is not None)
