"""
An e-mail queue: typed payloads, retries, one mail per key.

``python email_queue.py`` adds and sends in one process, in memory. In production
the web application adds, and ``oqron worker email_queue --mode redis-postgres`` sends.
"""

from __future__ import annotations

import asyncio
import logging
import sys

import attrs

from oqron_worker import App, Context, Discard, Retry


log = logging.getLogger("shop.mail")
app = App()


@attrs.frozen
class Address:
    """Where a mail goes to."""

    email: str
    name: str = ""


@app.queue("emails", max_attempts=5, concurrency=20, timeout=30.0)
async def send(ctx: Context, to: Address, template: str) -> dict[str, object]:
    """Send one mail."""
    if "@" not in to.email:
        raise Discard(f"{to.email!r} is no address")
    if ctx.attempt == 1 and to.name == "slow":
        raise Retry("the mail server is busy", delay=0.05)
    log.info("sending %s to %s", template, to.email)
    ctx.progress(100, "sent")
    return {"delivered": True, "attempt": ctx.attempt}


async def main() -> None:
    """Add some mails, and work until they are sent."""
    async with app, app.worker() as worker:
        job = await send.add(to=Address("a@example.com", "Ada"), template="welcome")
        slow = await send.add(to=Address("b@example.com", "slow"), template="welcome")
        bad = await send.add(to=Address("nowhere"), template="welcome")
        carl = Address("c@example.com")
        for _ in range(3):  # one mail, whoever asks how often
            await send.add(to=carl, template="digest", unique="digest:c", delay=0.1)
        await worker.idle()
        for found in (job, slow, bad):
            ended = await send.get(found.id)
            if ended is not None:
                sys.stdout.write(
                    f"{found.data['to']['email']}: {ended.status} {ended.error or ''}\n"
                )


if __name__ == "__main__":
    asyncio.run(main())
