"""A worker process of `test_kills`: works jobs of one file until it is killed."""

from __future__ import annotations

import asyncio
import sys

from oqron_core import open_storage


LEASE = 2.0


async def work(path: str, name: str) -> None:
    """Claim, do nothing much, complete; and look after the scope meanwhile."""
    async with open_storage(
        mode="sqlite", project="kills", environment="test", sqlite={"path": path}
    ) as storage:
        maintenance = asyncio.create_task(storage.maintenance.run_forever())
        while not maintenance.done():
            claims = await storage.jobs.claim("q", limit=4, lease_for=LEASE, worker=name, wait=0.2)
            for claim in claims:
                claim.run.progress(50)
                await asyncio.sleep(0.002)
                await storage.jobs.complete(claim, {"by": name})
        await maintenance


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))
