"""A TCP proxy on loopback that cuts and delays connections in the middle of answers."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct

from collections.abc import Callable
from typing import Final

import attrs


__all__ = ["CUTS", "Proxy"]

CUTS: Final = ("half a request", "half an answer", "no answer", "at rest")
"""Where a connection can be cut."""
_HOST: Final = "127.0.0.1"
_CHUNK: Final = 65536


@attrs.define(eq=False)
class _Link:
    """One connection that goes through."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    cut: str = ""
    delay: float = 0.0

    def end(self) -> None:
        """Reset both sides: no goodbye, as when a machine or a cable dies."""
        for side in (self.client, self.server):
            with contextlib.suppress(OSError, AttributeError):
                side.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
            side.transport.abort()


class Proxy:
    """
    Stands before one server.

    Args:
        target: The port of the server.
        chance: Picks the connections.

    Attributes:
        port: Where it listens.
        on_cut: Called with how, when a connection is really cut.
    """

    def __init__(self, target: int, chance: random.Random) -> None:
        self.port = 0
        self.on_cut: Callable[[str], object] = len
        self._target = target
        self._chance = chance
        self._links: set[_Link] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, _HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """End every connection, and listen no more."""
        if self._server is not None:
            self._server.close()
        for link in [*self._links]:
            link.end()

    def cut(self, how: str) -> None:
        """Cut one connection, the next time that it gets there."""
        links = [link for link in self._links if not link.cut]
        if not links:
            return
        link = self._chance.choice(links)
        link.cut = how
        if how == "at rest":
            self.on_cut(how)
            link.end()

    def delay(self, seconds: float) -> bool:
        """Hold the next answer of one connection back; False where none is."""
        links = [link for link in self._links if not link.delay]
        if not links:
            return False
        self._chance.choice(links).delay = seconds
        return True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(_HOST, self._target)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(writer, there[1])
        self._links.add(link)
        try:
            pumps = [
                asyncio.create_task(self._pump(link, reader, there[1], answers=False)),
                asyncio.create_task(self._pump(link, there[0], writer, answers=True)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
        finally:
            self._links.discard(link)
            if link.cut:
                link.end()
            else:
                link.client.close()
                link.server.close()

    async def _pump(
        self,
        link: _Link,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        answers: bool,
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                if link.cut == "no answer" and answers:
                    self.on_cut(link.cut)
                    return
                if link.cut == ("half an answer" if answers else "half a request"):
                    self.on_cut(link.cut)
                    writer.write(data[: len(data) // 2])
                    await writer.drain()
                    # Let the half arrive before the reset overtakes it.
                    await asyncio.sleep(0.01)
                    return
                if answers and link.delay:
                    await asyncio.sleep(link.delay)
                    link.delay = 0.0
                writer.write(data)
                await writer.drain()
