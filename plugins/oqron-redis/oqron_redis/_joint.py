"""Small calls that go out together as one."""

from __future__ import annotations

import asyncio

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar, final

from oqron_core.exceptions import OqronError
from oqron_redis._lane import Arguments, copy_of


__all__ = ["Joint"]

_T = TypeVar("_T")

_LARGEST: Final = 250


@final
class Joint(Generic[_T]):
    """
    One script call that several callers share, open until it is sent.

    Legal where each item is atomic by itself: whoever comes while the connection is
    busy joins the call that goes out next, so many single calls cost little more
    than one batch.

    Args:
        build: Gives the arguments of the call, from all items.
        split: Gives the results, one per item, from the answer.
    """

    __slots__ = ("_build", "_items", "_parts", "_sent", "_split", "is_open")

    def __init__(
        self,
        build: Callable[[Sequence[_T]], Arguments],
        split: Callable[[Sequence[_T], Any], Sequence[Any]],
    ) -> None:
        self._build = build
        self._split = split
        self._items: list[_T] = []
        self._parts: list[tuple[Sequence[_T], asyncio.Future[Any]]] = []
        self._sent: list[tuple[Sequence[_T], asyncio.Future[Any]]] = []
        self.is_open = True

    def join(self, items: Sequence[_T]) -> asyncio.Future[Any]:
        """Add items; the future gives their results."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._parts.append((items, future))
        self._items += items
        if len(self._items) >= _LARGEST:
            self.is_open = False
        return future

    def seal(self) -> Arguments | None:
        """Take nobody any more, and give the arguments; None if all have gone."""
        self.is_open = False
        # Who has gone before the call was sent wants nothing any more.
        self._sent = [part for part in self._parts if not part[1].done()]
        if len(self._sent) < len(self._parts):
            self._items = [item for items, _ in self._sent for item in items]
            if not self._sent:
                return None
        return self._build(self._items)

    def settle(self, call: asyncio.Future[Any]) -> None:
        """Hand everybody their part of the answer; a callback of the call's future."""
        self.is_open = False
        error: BaseException | None
        if call.cancelled():
            error = asyncio.CancelledError()
        else:
            error = call.exception()
        results: Sequence[Any] = ()
        if error is None:
            try:
                results = self._split(self._items, call.result())
            except Exception as odd:  # noqa: BLE001 - whoever waits has to hear of it
                error = odd
        start = 0
        for items, future in self._sent or self._parts:
            stop = start + len(items)
            if not future.done():
                if error is None:
                    future.set_result(results[start:stop])
                else:
                    future.set_exception(copy_of(error) if isinstance(error, OqronError) else error)
            start = stop
