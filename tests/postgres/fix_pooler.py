"""A pooler in transaction mode, small enough to be here: each transaction has another backend."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import struct

from collections import deque
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import urlsplit

import psycopg


__all__ = ["Pooler", "pooler"]

_SSL: Final = 80877103
_GSS: Final = 80877104
_CANCEL: Final = 80877102
_TOLD: Final = (
    "server_version", "client_encoding", "server_encoding", "standard_conforming_strings",
    "integer_datetimes", "DateStyle", "TimeZone",
)  # fmt: skip
_OF_A_SESSION: Final = re.compile(
    r"^\s*(SET\s+(?!LOCAL)|LISTEN|UNLISTEN|PREPARE|DECLARE|CREATE\s+TEMP|DISCARD)|"
    r"\bpg_(try_)?advisory_lock",
    re.IGNORECASE,
)


class _Backend:
    """A connection of the server, which nobody keeps for longer than a transaction."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def open(self) -> None:
        """Take the wire over from libpq, which has logged in."""
        wire = socket.socket(fileno=os.dup(self.connection.pgconn.socket))
        wire.setblocking(False)
        self.reader, self.writer = await asyncio.open_connection(sock=wire)

    async def close(self) -> None:
        """Let go of both ends."""
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()
        self.connection.close()


class Pooler:
    """
    Lends backends in turns, and notes what cannot work behind it.

    Attributes:
        url: Where it listens.
        transactions: How many there were.
        moved: How many of them had another backend than the one before.
        kept: What would have stayed in a session: statements and names of them.
    """

    def __init__(self, backends: list[_Backend]) -> None:
        self.url = ""
        self.transactions = 0
        self.moved = 0
        self.kept: list[str] = []
        self._told = backends[0].connection.info
        self._free = deque(backends)
        self._wanted = asyncio.Condition()
        self.clients: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a client until it goes."""
        task = asyncio.current_task()
        assert task is not None
        self.clients.add(task)
        task.add_done_callback(self.clients.discard)
        try:
            if await self._greet(reader, writer):
                await _Client(self, reader, writer).run()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        while True:
            size, code = struct.unpack("!ii", await reader.readexactly(8))
            rest = await reader.readexactly(size - 8)
            if code not in {_SSL, _GSS}:
                break
            writer.write(b"N")
        if code == _CANCEL:
            return False
        if b"options\0" in rest:
            # In the words of PgBouncer.
            said = b"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: options\0\0"
            writer.write(b"E" + struct.pack("!i", len(said) + 4) + said)
            await writer.drain()
            return False
        writer.write(b"R" + struct.pack("!ii", 8, 0))
        for name in _TOLD:
            value = self._told.parameter_status(name)
            if value is not None:
                body = name.encode() + b"\0" + value.encode() + b"\0"
                writer.write(b"S" + struct.pack("!i", len(body) + 4) + body)
        writer.write(b"K" + struct.pack("!iii", 12, 1, 1) + b"Z" + struct.pack("!i", 5) + b"I")
        return True

    async def lend(self, last: _Backend | None) -> _Backend:
        """Give a backend: another one than the last, where there is one."""
        async with self._wanted:
            await self._wanted.wait_for(lambda: self._free)
            if self._free[0] is last:
                self._free.rotate(-1)
            backend = self._free.popleft()
        self.transactions += 1
        self.moved += backend is not last
        return backend

    async def take_back(self, backend: _Backend) -> None:
        """Take a backend back whose transaction is over."""
        async with self._wanted:
            self._free.append(backend)
            self._wanted.notify()


class _Client:
    def __init__(
        self, pool: Pooler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._pool = pool
        self._reader = reader
        self._writer = writer
        self._backend: _Backend | None = None
        self._last: _Backend | None = None
        self._answering: asyncio.Task[None] | None = None
        self._awaited = 0
        self._half_said = False

    async def run(self) -> None:
        """Carry messages until the client says goodbye."""
        try:
            while True:
                kind, whole = await _message(self._reader)
                if kind == b"X":
                    return
                if kind == b"H" and self._backend is None:
                    continue  # a flush of nothing
                self._look(kind, whole)
                # The end of what is asked is known before it can be answered.
                ends = kind in b"QS"
                self._awaited += ends
                self._half_said = not ends and (kind != b"H" or self._half_said)
                if self._backend is None:
                    self._backend = await self._pool.lend(self._last)
                    self._answering = asyncio.create_task(self._answer(self._backend))
                self._backend.writer.write(whole)
                await self._backend.writer.drain()
        finally:
            if self._backend is not None:
                # In the middle of a transaction: the server rolls back.
                self._backend.writer.write(b"Q" + struct.pack("!i", 13) + b"ROLLBACK\0")
            if self._answering is not None and self._backend is not None:
                self._awaited += 1
                self._half_said = False
                await self._answering

    async def _answer(self, backend: _Backend) -> None:
        gone = False
        while True:
            kind, whole = await _message(backend.reader)
            if not gone:
                try:
                    self._writer.write(whole)
                    await self._writer.drain()
                except ConnectionError:
                    gone = True
            if kind != b"Z":
                continue
            self._awaited -= 1
            if self._awaited == 0 and not self._half_said and whole[-1:] == b"I":
                self._backend, self._last = None, backend
                await self._pool.take_back(backend)
                return

    def _look(self, kind: bytes, whole: bytes) -> None:
        body = whole[5:]
        if kind == b"P":
            name, _, body = body.partition(b"\0")
            if name:
                self._pool.kept.append(f"prepared {name.decode()}")
        if kind in b"PQ":
            text = body.partition(b"\0")[0].decode()
            if _OF_A_SESSION.search(text):
                self._pool.kept.append(text)


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    size = struct.unpack("!i", head[1:])[0]
    return head[:1], head + await reader.readexactly(size - 4)


@contextlib.asynccontextmanager
async def pooler(url: str, size: int = 3) -> AsyncIterator[Pooler]:
    """Run a pooler of *size* backends before a server."""
    backends = [
        _Backend(psycopg.connect(url, sslmode="disable", gssencmode="disable")) for _ in range(size)
    ]
    for backend in backends:
        await backend.open()
    pool = Pooler(backends)
    server = await asyncio.start_server(pool.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    parts = urlsplit(url)
    pool.url = f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}?sslmode=disable"
    try:
        yield pool
    finally:
        server.close()
        for task in list(pool.clients):
            task.cancel()
        await asyncio.gather(*pool.clients, return_exceptions=True)
        for backend in backends:
            await backend.close()
