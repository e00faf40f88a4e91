"""Health and metrics of a worker, on a port of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

from oqron_worker._metrics import prometheus


if TYPE_CHECKING:
    from oqron_worker._worker import Worker


__all__ = ["serving"]

log = logging.getLogger("oqron.worker")

_MOST: Final = 8192
_PATIENCE: Final = 5.0
_REASONS: Final = {
    200: "OK",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_JSON: Final = "application/json"


@contextlib.asynccontextmanager
async def serving(worker: Worker, port: int, *, host: str = "127.0.0.1") -> AsyncIterator[int]:
    """
    Serve ``/health``, ``/live`` and ``/metrics`` while the context is open.

    ``/live`` is 200 while the event loop turns; ``/health`` is 503 while a queue
    cannot be claimed from, or the worker is ending.

    Args:
        worker: The worker.
        port: The port; 0 for a free one.
        host: The address; only this machine's own unless told.

    Returns:
        The port.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_answer(worker, head))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            log.debug("a request for health or metrics was not read")
        finally:
            writer.close()

    server = await asyncio.start_server(serve, host, port, limit=_MOST)
    async with server:
        found: int = server.sockets[0].getsockname()[1]
        log.info("health and metrics on http://%s:%d", host, found)
        yield found


def _answer(worker: Worker, head: bytes) -> bytes:
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if method not in {b"GET", b"HEAD"}:
        return _response(405, _JSON, "{}")
    if path == b"/metrics":
        return _response(200, _TEXT, prometheus([worker.metrics]))
    if path == b"/live":
        return _response(200, _JSON, json.dumps({"status": "ok"}))
    if path == b"/health":
        return _response(*_health(worker))
    return _response(404, _JSON, "{}")


def _health(worker: Worker) -> tuple[int, str, str]:
    trouble = worker.trouble()
    status = "draining" if worker.draining else "degraded" if trouble else "ok"
    body: dict[str, Any] = {"status": status, "worker": worker.name, "running": worker.running}
    if trouble:
        body["trouble"] = trouble
    return (200 if status == "ok" else 503), _JSON, json.dumps(body)


def _response(status: int, kind: str, text: str) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: {kind}\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
