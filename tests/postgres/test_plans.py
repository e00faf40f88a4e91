"""Which statements the server keeps a plan of, and what those plans go by."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from fix_postgres import opened, run

from oqron_core.planes import Insert, Patch
from oqron_postgres.plane import PostgresPlane


_KEPT = """
SELECT count(*) FROM pg_prepared_statements
WHERE generic_plans > 0 AND position(%s IN statement) > 0 AND statement LIKE '%%LATERAL%%'
"""


_FLUSH = b"SELECT pg_stat_force_next_flush()::text"


async def _ask(plane: PostgresPlane, sql: bytes, params: Any = None) -> Any:
    """Ask on the plane's own connection."""
    async with plane._core.connection.acquire() as connection:
        cursor = await connection.execute(sql, params, prepare=False)
        row = await cursor.fetchone()
        assert row is not None
        return row[0]


def _scans(connection: psycopg.Connection[Any], table: str) -> tuple[int, int]:
    """Give how often a table was walked, and how often one of its indexes was asked."""
    row = connection.execute(
        "SELECT seq_scan, idx_scan FROM pg_stat_user_tables WHERE relname = %s", (table,)
    ).fetchone()
    assert row is not None
    return row[0], row[1]


async def _work(plane: PostgresPlane, namespace: str, ids: range) -> None:
    for number in ids:
        await plane.write([Insert(namespace, f"i{number:06}", {"n": 0})])
    for _ in range(20):
        for number in ids:
            result = await plane.write([Patch(namespace, f"i{number:06}", increment={"n": 1})])
            assert result[0].applied
            assert await plane.get(namespace, [f"i{number:06}"]) != [None]


def test_a_kept_plan_goes_by_the_key(postgres_url: str, prefix: str) -> None:
    """Also one that was made for a table of one page, which anybody would walk."""

    async def main() -> None:
        async with opened(postgres_url, prefix, pool_size=1) as plane:
            with psycopg.connect(postgres_url, autocommit=True) as other:
                other.execute(f'VACUUM ANALYZE "{prefix}_jobs"'.encode())
                # Building its indexes has walked it.
                await _ask(plane, _FLUSH)
                before = _scans(other, f"{prefix}_jobs")
                await _work(plane, "queue_job:q", range(1))
                other.execute(f'VACUUM ANALYZE "{prefix}_jobs"'.encode())
                await _work(plane, "queue_job:q", range(1, 2))
                await _ask(plane, _FLUSH)
                after = _scans(other, f"{prefix}_jobs")

            assert await _ask(plane, _KEPT.encode(), (f"{prefix}_jobs",)) >= 2
            assert before[0] == after[0]
            assert before[1] + 40 <= after[1]

    run(main())


@pytest.mark.parametrize(
    ("namespace", "table", "more"),
    [
        ("queue_job:q", "jobs", {"statement_timeout": None}),
        ("queue_job:q", "jobs", {"prepared_statements": False}),
        ("runs", "runs", {}),
        ("queue", "records", {}),
    ],
    ids=["no session", "pooler", "runs", "records"],
)
def test_no_plan_is_kept_that_could_go_another_way(
    postgres_url: str, prefix: str, namespace: str, table: str, more: dict[str, Any]
) -> None:
    """Where the session may walk tables, or another index could be taken."""

    async def main() -> None:
        async with opened(postgres_url, prefix, pool_size=1, **more) as plane:
            await _work(plane, namespace, range(1))

            assert await _ask(plane, _KEPT.encode(), (f"{prefix}_{table}",)) == 0

    run(main())
