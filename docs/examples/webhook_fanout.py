"""
Webhooks: an event goes to every endpoint that asked for it, signed.

``python webhook_fanout.py`` runs a receiver of its own, that checks the signatures.
Needs the extra ``webhooks``.
"""

from __future__ import annotations

import asyncio
import sys

from typing import Any

from oqron_worker import App
from oqron_worker.webhooks import verify


app = App()
received: list[tuple[bool, str]] = []
secrets: dict[str, str] = {}


@app.webhook("partners", allow_private=True)  # for the receiver below; leave it out
def partners(order: dict[str, Any]) -> dict[str, Any]:
    """Tell partners only what they may know."""
    return {"id": order["id"], "status": order["status"]}


async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Be a partner: check the signature, and say thank you."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    headers = {key.lower(): value for key, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers["content-length"]))
    name = first.split()[1].strip("/")
    now = int(headers["webhook-timestamp"])
    received.append((verify(secrets[name], headers, body, now=now), name))
    writer.write(b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    await writer.drain()
    writer.close()


async def main() -> None:
    """Subscribe two partners, emit two events, deliver three times."""
    server = await asyncio.start_server(receive, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, app, app.worker() as worker:
        for name, events in (("all", ["order.*"]), ("paid", ["order.paid"])):
            endpoint = await partners.subscribe(
                name, f"http://127.0.0.1:{port}/{name}", events=events
            )
            secrets[name] = endpoint.secret or ""
        await app.emit("order.created", {"id": 7, "status": "new", "margin": 0.4})
        await app.emit("order.paid", {"id": 7, "status": "paid", "margin": 0.4})
        await worker.idle()
    sys.stdout.write(f"{len(received)} deliveries, {sum(ok for ok, _ in received)} signed\n")


if __name__ == "__main__":
    asyncio.run(main())
