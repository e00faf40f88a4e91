"""Instants of a server: the same in every time zone, and never those of a transaction."""

from __future__ import annotations

import asyncio
import time

from typing import Any

import psycopg

from fix_postgres import opened, run

from oqron_core.planes import Insert, Put
from oqron_core.storage import open_storage


_MOST = 600_000
"""Milliseconds by which clocks and calls of a busy machine may differ; no zone is so near."""


def test_no_time_zone_moves_an_instant(odd_url: str, postgres_url: str, prefix: str) -> None:
    """What a session in Tokyo says, writes and finds is what one elsewhere does."""

    async def main() -> None:
        async with (
            opened(odd_url, prefix, schema="odd zones") as odd,
            opened(postgres_url, prefix, schema="odd zones") as plain,
        ):
            now = await odd.now()
            assert abs(now - time.time() * 1000) < _MOST
            assert abs(await plain.now() - now) < _MOST
            await odd.write([Insert("n", "odd", {}, now + 3_600_000)])
            await plain.write([Insert("n", "plain", {}, now + 3_600_000)])
            for plane in (odd, plain):
                records = await plane.get("n", ["odd", "plain"])
                for record in records:
                    assert record is not None
                    assert now + 3_600_000 == record.expires_at
                    assert abs(record.inserted_at - now) < _MOST
            # A day from now is over in no zone, and an hour ago in every one.
            await odd.write(
                [Put("n", "past", {}, now - 3_600_000), Put("n", "far", {}, now + 10**8)]
            )
            for plane in (odd, plain):
                past, far = await plane.get("n", ["past", "far"])
                assert past is None
                assert far is not None

    run(main())
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        rows = connection.execute(
            f'SELECT inserted_at, expires_at FROM "odd zones".{prefix}_records'.encode()
        ).fetchall()
    assert all(type(instant) is int for row in rows for instant in row)


def test_a_mode_in_another_time_zone_keeps_its_times(
    odd_url: str, redis_url: str, prefix: str, project: str
) -> None:
    """Delays, leases, retries and schedules take as long as was said."""

    async def main() -> None:
        async with open_storage(
            mode="redis-postgres",
            project=project,
            environment="e",
            redis={"url": redis_url},
            postgres={"url": odd_url, "table_prefix": prefix, "schema": "odd zones"},
        ) as storage:
            jobs = storage.jobs
            job = await jobs.add("q", 1, id="soon", delay=0.2)
            later = await jobs.add("q", 1, id="later", delay=3600.0)
            assert abs(job.created_at - time.time() * 1000) < _MOST
            assert later.run_at is not None
            assert abs(later.run_at - job.created_at - 3_600_000) < _MOST
            [claim] = await jobs.claim("q", lease_for=0.2, wait=30.0)
            assert ("soon", 1) == (claim.id, claim.attempt)
            [claim] = await jobs.claim("q", limit=5, wait=30.0)
            assert ("soon", 2) == (claim.id, claim.attempt)
            failed = await jobs.fail(claim, "x", retry_in=3600.0)
            assert failed.run_at is not None
            assert abs(failed.run_at - later.run_at) < _MOST
            now = await storage.durable.now()
            await storage.schedules.put("cron", "past", next_run_at=now - 1)
            await storage.schedules.put("cron", "to come", next_run_at=now + 3_600_000)
            assert ["past"] == [one.name for one in await storage.schedules.due()]
            assert [] == await jobs.claim("q", limit=5)

    run(main())


def test_time_goes_on_inside_a_transaction(postgres_url: str, prefix: str) -> None:
    """A transaction that was begun long ago neither predates nor prolongs anything."""

    async def main() -> None:
        async with opened(postgres_url, prefix) as plane:
            async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
                await connection.execute("SELECT now()")
                began = await plane.now()
                await plane.write([Put("n", "lapses", {}, began + 200)])
                await asyncio.sleep(0.5)
                bound: Any = plane.bind(connection)
                before = await plane.now()
                written = await bound.write([Insert("n", "a", {}), Insert("n", "lapses", {"b": 1})])
                assert [True, True] == [result.applied for result in written]
            records = await plane.get("n", ["a", "lapses"])
            assert all(record is not None and record.inserted_at >= before for record in records)

    run(main())


def test_a_job_of_an_old_transaction_is_of_now(
    postgres_url: str, redis_url: str, prefix: str, project: str
) -> None:
    """Its delay counts from the adding, and its lease from the claim."""

    async def main() -> None:
        async with open_storage(
            mode="redis-postgres",
            project=project,
            environment="e",
            redis={"url": redis_url},
            postgres={"url": postgres_url, "table_prefix": prefix},
        ) as storage:
            jobs = storage.jobs
            async with await psycopg.AsyncConnection.connect(postgres_url) as connection:
                await connection.execute("SELECT now()")
                await asyncio.sleep(0.5)
                before = await storage.durable.now()
                job = await jobs.add("q", 1, id="a", delay=600.0, transaction=connection)
                now = await jobs.add("q", 1, id="b", transaction=connection)
                await connection.commit()
            assert job.run_at is not None
            assert job.created_at >= before - 5
            assert now.created_at >= before - 5
            assert job.run_at >= before + 600_000 - 5
            await storage.maintenance.reconcile()
            [claim] = await jobs.claim("q", limit=5, lease_for=600.0, wait=30.0)
            assert "b" == claim.id
            assert claim.lease.expires_at >= await storage.hot.now() + 500_000

    run(main())
