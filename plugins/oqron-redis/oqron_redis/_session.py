"""A plane's tie to the store: its scope, its keys, and whether it is open."""

from __future__ import annotations

import asyncio

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, final

from oqron_core.exceptions import ClosedError
from oqron_core.planes import PlaneContext
from oqron_redis._joint import Joint
from oqron_redis._keys import Keys
from oqron_redis._store import Store


__all__ = ["Session", "chunks", "flags", "server_ms"]

_T = TypeVar("_T")


def chunks(items: Sequence[_T], size: int) -> Sequence[Sequence[_T]]:
    """Cut *items* into pieces of at most *size*."""
    if len(items) <= size:
        return (items,)
    return [items[start : start + size] for start in range(0, len(items), size)]


def flags(digits: bytes) -> list[bool]:
    """Read one digit per item: 1 is True."""
    return [digit == 49 for digit in digits]  # noqa: PLR2004 - "1"


def server_ms(time: Sequence[bytes]) -> int:
    """Turn the answer of TIME into milliseconds since the epoch."""
    return int(time[0]) * 1000 + int(time[1]) // 1000


@final
class Session:
    """
    One open plane.

    Attributes:
        store: The connection.
        keys: The keys of the scope.
        context: What the plane was opened with.
        closing: Called when the plane closes.
    """

    __slots__ = ("closing", "context", "is_open", "keys", "lane", "store")

    def __init__(self, store: Store, context: PlaneContext, *, lane: int) -> None:
        self.store = store
        self.context = context
        self.keys = Keys(store.settings.prefix, context.scope, store.database)
        self.lane = lane
        self.is_open = True
        self.closing: list[Callable[[], None]] = []

    def check_open(self) -> None:
        """Raise `ClosedError` if the plane is closed."""
        if not self.is_open:
            msg = "the plane is closed"
            raise ClosedError(msg)

    def run(
        self,
        name: str,
        keys: Sequence[bytes],
        arguments: Sequence[bytes | int] = (),
        *,
        again: bool = False,
    ) -> asyncio.Future[Any]:
        """Run a script; see `Store.run`."""
        if not self.is_open:
            self.check_open()
        return self.store.run(name, keys, arguments, lane=self.lane, again=again)

    def join(
        self, joint: Joint[_T], name: str, key: bytes, items: Sequence[_T]
    ) -> asyncio.Future[Any]:
        """Open a joint call of the script with its first items."""
        self.check_open()
        future = joint.join(items)
        call = self.store.run_late(name, key, joint.seal, lane=self.lane)
        call.add_done_callback(joint.settle)
        return future

    def command(self, *words: bytes | int, key: bytes, again: bool = False) -> asyncio.Future[Any]:
        """Run a command; see `Store.command`."""
        if not self.is_open:
            self.check_open()
        return self.store.command(*words, key=key, lane=self.lane, again=again)

    async def gather(self, futures: Sequence[asyncio.Future[Any]]) -> list[Any]:
        """
        Wait for calls that share a round trip; the first failure is raised.

        All of them are waited for, so that no failure is left unseen.
        """
        if len(futures) == 1:
            return [await futures[0]]
        answers = await asyncio.gather(*futures, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    async def run_all(
        self,
        name: str,
        calls: Sequence[tuple[Sequence[bytes], Sequence[bytes | int]]],
        *,
        again: bool = False,
        at_once: int = 8,
    ) -> list[Any]:
        """
        Run a script for each pair of keys and arguments, a few at a time.

        A large batch leaves room for the calls of others between its steps.
        """
        answers: list[Any] = []
        for wave in chunks(calls, at_once):
            futures: list[asyncio.Future[Any]] = []
            try:
                # Each is on its way, and the server at work, while the next is packed.
                for keys, arguments in wave:
                    futures.append(self.run(name, keys, arguments, again=again))
            except BaseException:
                for future in futures:
                    future.cancel()
                raise
            answers += await self.gather(futures)
        return answers

    async def now(self) -> int:
        """Read the clock of the server."""
        key = self.keys.active
        return server_ms(await self.command(b"TIME", key=key, again=True))

    def close(self) -> None:
        """Close the plane: whoever waits is told. Idempotent."""
        self.is_open = False
        for tell in self.closing:
            tell()
        self.closing.clear()
