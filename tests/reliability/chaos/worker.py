"""A worker: claims, works, renews and settles, and leads maintenance at times."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys

from pathlib import Path
from typing import Any


sys.path.insert(0, str(Path(__file__).parent.parent))

from chaos.ledger import Ledger, now
from chaos.plan import QUEUES, Plan
from oqron_core.exceptions import LeaseLostError, StorageError
from oqron_core.protocol.claims import Claim
from oqron_core.storage import Storage


class Worker:
    """One life of a worker process."""

    def __init__(self, plan: Plan, name: str, storage: Storage, ledger: Ledger) -> None:
        self.plan = plan
        self.name = name
        self.storage = storage
        self.ledger = ledger
        self.chance = random.Random(f"{plan.seed}-{name}")
        self.tasks: set[asyncio.Task[None]] = set()
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        """Work until told to stop; then give back what is in hand."""
        maintenance = asyncio.create_task(self.storage.maintenance.run_forever())
        claiming = [asyncio.create_task(self._claim_from(queue)) for queue in QUEUES]
        await self.stopping.wait()
        for task in [maintenance, *claiming]:
            task.cancel()
        await asyncio.wait([maintenance, *claiming])
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=0.5)
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)

    async def _claim_from(self, queue: str) -> None:
        while True:
            free = self.plan.slots - len(self.tasks)
            if free <= 0:
                await asyncio.wait(self.tasks, return_when=asyncio.FIRST_COMPLETED)
                continue
            asked = now()
            try:
                claims = await self.storage.jobs.claim(
                    queue,
                    limit=min(free, 8),
                    lease_for=self.plan.lease,
                    worker=self.name,
                    wait=1.0,
                )
            except StorageError:
                await asyncio.sleep(0.1)
                continue
            for claim in claims:
                self.ledger.put(
                    "start",
                    q=queue,
                    j=claim.id,
                    a=claim.attempt,
                    k=claim.lease.token,
                    r=claim.run.id,
                    c=asked,
                    w=self.name,
                )
            # No await from the claim to here: what is claimed is in somebody's hands.
            for claim in claims:
                task = asyncio.create_task(self._work(queue, claim, asked))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)

    async def _work(self, queue: str, claim: Claim, asked: float) -> None:
        renewing = asyncio.create_task(self._renew(queue, claim, asked))
        try:
            # The world knows that the handler runs before it does.
            await self.ledger.sync()
            how, delay = await self._handle(claim)
        except asyncio.CancelledError:
            how, delay = "release", 0.0
        finally:
            renewing.cancel()
        self.ledger.put("end", q=queue, j=claim.id, k=claim.lease.token, how=how)
        await self._settle(queue, claim, how, delay)

    async def _handle(self, claim: Claim) -> tuple[str, float]:
        """Do the work; gives how it ended, and the delay before the next try."""
        kind = claim.data["kind"]
        claim.run.log("info", "begun")
        if kind == "slow":
            for part in range(4):
                await asyncio.sleep(self.plan.lease * self.chance.uniform(0.1, 0.4))
                claim.run.progress(25 * part + 25)
        else:
            await asyncio.sleep(self.chance.uniform(0.0, 0.02))
        if kind == "doomed" or (kind == "flaky" and claim.attempt == 1):
            return "fail", self.chance.uniform(0.0, 0.4)
        if kind == "returned" and self.chance.random() < 0.5:
            return "release", self.chance.choice((0.0, 0.2))
        return "complete", 0.0

    async def _renew(self, queue: str, claim: Claim, asked: float) -> None:
        while True:
            await asyncio.sleep(max(0.05, (asked + self.plan.lease * 333 - now()) / 1000))
            asked = now()
            with contextlib.suppress(StorageError):
                [kept] = await self.storage.jobs.renew([claim], lease_for=self.plan.lease)
                if kept:
                    # Good for a lease from the moment of asking, at least.
                    self.ledger.put("renew", q=queue, j=claim.id, k=claim.lease.token, c=asked)

    async def _settle(self, queue: str, claim: Claim, how: str, delay: float) -> None:
        asked = now()
        jobs = self.storage.jobs
        known: dict[str, Any] = {}
        try:
            if how == "complete":
                await jobs.complete(claim, {"token": claim.lease.token})
            elif how == "fail":
                job = await jobs.fail(claim, "it was to fail", retry_in=delay)
                known["dead"] = job.dead_at is not None
            else:
                await jobs.release(claim, delay=delay)
            known["ok"] = "yes"
        except LeaseLostError:
            known["ok"] = "refused"
        except StorageError:
            known["ok"] = "unknown"
        self.ledger.put(
            "settle", q=queue, j=claim.id, k=claim.lease.token, how=how, c=asked, **known
        )
        await self.ledger.sync()


async def main(name: str) -> None:
    """Open, work until SIGTERM, close, and say what could not be written."""
    plan = Plan.given()
    plan.log_to(name)
    ledger = Ledger(plan.file(name))
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    while not stopping.is_set():
        try:
            async with plan.open() as storage:
                ledger.put("open")
                worker = Worker(plan, name, storage, ledger)
                worker.stopping = stopping
                await worker.run()
        except StorageError:
            # Only opening lets it out: the servers are down.
            await asyncio.sleep(0.2)
        else:
            ledger.put("bye", unwritten=storage.unwritten)
    await ledger.sync()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
