"""
Order events for two groups: each gets every event, in the order of its customer.

A group that is slow or down holds up no other; a failure is tried again before the
same customer's next event.
"""

from __future__ import annotations

import asyncio
import sys

import attrs

from oqron_worker import App, Context


app = App()
billed: list[str] = []
shipped: list[str] = []


@attrs.frozen
class OrderEvent:
    """Something happened to an order."""

    order: str
    kind: str


@app.topic("order-events", group="billing", concurrency=10)
async def bill(ctx: Context, event: OrderEvent) -> None:
    """Write an invoice."""
    ctx.log("info", f"{event.kind} {event.order}")
    billed.append(f"{event.order} {event.kind}")


@app.topic("order-events", group="shipping", start="earliest")
async def ship(event: OrderEvent) -> None:
    """Pack a parcel."""
    if event.kind == "paid":
        shipped.append(event.order)


async def main() -> None:
    """Publish, and work until both groups have everything."""
    async with app, app.worker() as worker:
        for number in range(5):
            for kind in ("created", "paid"):
                await app.publish(
                    "order-events",
                    OrderEvent(f"o{number}", kind),
                    key=f"customer-{number % 2}",
                )
        await worker.idle()
    sys.stdout.write(f"billed {len(billed)} events, shipped {len(shipped)} orders\n")


if __name__ == "__main__":
    asyncio.run(main())
