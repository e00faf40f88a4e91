"""
The stream of one connection: commands out, answers in, in order.

redis-py opens the connection, with everything that belongs to it: addresses, TLS,
passwords, the database. What follows is read here as it comes, without a task that is
woken for each answer: of 133 µs that a lone command took, 45 were that.
"""

from __future__ import annotations

import asyncio

from collections.abc import Callable, Sequence
from typing import Any, Final, final

import hiredis

from oqron_core.exceptions import ConfigError
from redis import exceptions as driver


__all__ = ["Wire", "take_over"]

_MORE: Final = object()


@final
class Wire(asyncio.Protocol):
    """
    A connection that is open.

    Args:
        writer: What the connection was opened with; kept, as its end closes the stream.
        answered: Called with each answer; an answer that is an error is a
            ``ResponseError``.
        lost: Called once when the connection is over, with the reason.
        resumed: Called when there is room to write again.

    Attributes:
        is_full: Whether it takes no more for now.
    """

    __slots__ = ("_answered", "_lost", "_reader", "_resumed", "_transport", "_writer", "is_full")

    def __init__(
        self,
        writer: asyncio.StreamWriter,
        *,
        answered: Callable[[Any], None],
        lost: Callable[[Wire, BaseException], None],
        resumed: Callable[[], None],
    ) -> None:
        self._writer = writer
        self._transport: Any = writer.transport
        self._answered = answered
        self._lost: Callable[[Wire, BaseException], None] | None = lost
        self._resumed = resumed
        self._reader = hiredis.Reader(
            protocolError=driver.InvalidResponse,
            replyError=driver.ResponseError,
            notEnoughData=_MORE,
        )
        self.is_full = False

    def write(self, commands: Sequence[bytes]) -> None:
        """Send commands; what the server is not ready for yet is kept."""
        self._transport.write(commands[0] if len(commands) == 1 else b"".join(commands))

    def data_received(self, data: bytes) -> None:
        """Hand out the answers that are whole."""
        gets = self._reader.gets
        self._reader.feed(data)
        try:
            # It may be given up on the way, by whoever takes an answer.
            while self._lost is not None and (answer := gets()) is not _MORE:
                self._answered(answer)
        except driver.InvalidResponse as error:
            self._end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell that it is over."""
        self._end(
            driver.ConnectionError("the server closed the connection") if exc is None else exc
        )

    def pause_writing(self) -> None:
        """Take no more: the server is slower than we are."""
        self.is_full = True

    def resume_writing(self) -> None:
        """Go on."""
        self.is_full = False
        self._resumed()

    def close(self) -> None:
        """Close it without a word to anybody, at once also where not all has gone out."""
        self._lost = None
        if self._transport.get_write_buffer_size():
            # It would wait for the server, in a loop that may have ended by then.
            self._transport.abort()
        else:
            self._transport.close()

    def _end(self, error: BaseException) -> None:
        lost, self._lost = self._lost, None
        self._transport.abort()
        if lost is not None:
            lost(self, error)

    def abort(self) -> None:
        """Give it up at once, without a word to anybody."""
        self._lost = None
        self._transport.abort()


def take_over(
    connection: Any,
    *,
    answered: Callable[[Any], None],
    lost: Callable[[Wire, BaseException], None],
    resumed: Callable[[], None],
) -> Wire:
    """
    Take the stream out of a connection of redis-py that is open and was not asked yet.

    Raises:
        ConfigError: This redis-py keeps it elsewhere.
    """
    writer = getattr(connection, "_writer", None)
    if not isinstance(writer, asyncio.StreamWriter):
        msg = "redis: oqron-redis does not know this version of redis-py; install redis<9"
        raise ConfigError(msg)
    wire = Wire(writer, answered=answered, lost=lost, resumed=resumed)
    writer.transport.set_protocol(wire)
    # For the connection it is closed: it neither reads nor warns when it goes.
    connection._writer = connection._reader = None
    return wire
