"""Every payload through every place where the storage keeps one."""

from __future__ import annotations

import asyncio

from collections.abc import Callable, Sequence
from typing import Final

from oqron_core.cli.demo._equality import Ledger
from oqron_core.models import Backoff, JobSpec
from oqron_core.protocol.claims import Claim
from oqron_core.storage import Storage


__all__ = ["round_trip"]

_QUEUE: Final = "round-trip"
_CHUNK: Final = 100
_LEASE: Final = 30.0


async def round_trip(storage: Storage, ledger: Ledger, step: Callable[[int], None]) -> None:
    """
    Lead each payload through add, claim, retry, dead letter, requeue and cancel.

    Args:
        storage: A storage whose scope holds nothing else.
        ledger: The payloads; it notes every comparison.
        step: Called with how many payloads were led through.
    """
    keys = list(ledger.payloads)
    for start in range(0, len(keys), _CHUNK):
        chunk = keys[start : start + _CHUNK]
        await _lead(storage, ledger, chunk)
        step(len(chunk))
    await _compare_runs(storage, ledger)


async def _lead(storage: Storage, ledger: Ledger, keys: Sequence[str]) -> None:
    specs = [
        JobSpec(ledger.payloads[key], id=key, max_attempts=2, backoff=Backoff.fixed(0.0))
        for key in keys
    ]
    await storage.jobs.add_many(_QUEUE, specs)
    await _compare_jobs(storage, ledger, keys, "job")
    claims = await _claim(storage, ledger, len(keys))
    await asyncio.gather(*(_fail(storage, claim) for claim in claims))
    await _compare_jobs(storage, ledger, keys, "retry")
    claims = await _claim(storage, ledger, len(keys))
    await asyncio.gather(*(_fail(storage, claim) for claim in claims))
    await asyncio.gather(*(_raise_from_the_dead(storage, ledger, key) for key in keys))


async def _claim(storage: Storage, ledger: Ledger, count: int) -> list[Claim]:
    claims: list[Claim] = []
    while len(claims) < count:
        more = await storage.jobs.claim(
            _QUEUE, limit=count - len(claims), lease_for=_LEASE, worker="round-trip", wait=5.0
        )
        if not more:
            break
        claims.extend(more)
    for claim in claims:
        ledger.compare("claim", claim.lease.id, claim.data)
    return claims


async def _fail(storage: Storage, claim: Claim) -> None:
    await storage.jobs.fail(claim, "to see it again", retry_in=0.0)


async def _compare_jobs(storage: Storage, ledger: Ledger, keys: Sequence[str], place: str) -> None:
    for key, job in zip(
        keys, await asyncio.gather(*(storage.jobs.get(_QUEUE, key) for key in keys)), strict=True
    ):
        if job is None:
            ledger.missing(place, key)
        else:
            ledger.compare(place, key, job.data)


async def _raise_from_the_dead(storage: Storage, ledger: Ledger, key: str) -> None:
    letter = await storage.dead_letters.get(_QUEUE, key)
    if letter is None:
        ledger.missing("dead letter", key)
        return
    ledger.compare("dead letter", key, letter.data)
    await storage.dead_letters.requeue(_QUEUE, key)
    await _compare_jobs(storage, ledger, [key], "requeue")
    await storage.jobs.cancel(_QUEUE, key)
    await _compare_jobs(storage, ledger, [key], "cancel")


async def _compare_runs(storage: Storage, ledger: Ledger) -> None:
    after: str | None = None
    while True:
        page = await storage.runs.query(name=_QUEUE, limit=_CHUNK, after=after)
        for run in page:
            if run.job_id is not None:
                ledger.compare("run", run.job_id, run.input)
        after = page.next
        if after is None:
            return
