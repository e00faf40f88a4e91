"""How the store is: for `check` and for ``oqron doctor``."""

from __future__ import annotations

import time

from typing import Any, Final

from oqron_core.exceptions import OqronError
from oqron_core.planes import Health
from oqron_postgres._connection import PostgresConnection, raw_connection, where
from oqron_postgres._errors import translated
from oqron_postgres._sqltext import Names
from oqron_postgres.schema import fetch_rows, read_status, schema_status
from oqron_postgres.settings import PostgresSettings


__all__ = ["health", "schema", "server"]

_FACTS: Final = """
SELECT
  current_setting('server_version'),
  pg_is_in_recovery(),
  current_setting('transaction_read_only') = 'on',
  current_setting('autovacuum') = 'on',
  current_setting('fsync') = 'on',
  current_setting('full_page_writes') = 'on',
  current_setting('synchronous_commit'),
  current_setting('TimeZone')
"""


def _verdict(row: tuple[Any, ...], settings: PostgresSettings) -> tuple[bool, list[str]]:
    _, standby, read_only, autovacuum, fsync, full_pages, synchronous, _ = row
    reasons = []
    if standby or read_only:
        what = "a standby" if standby else "read-only"
        reasons.append(f"the server is {what}: writes are refused; use the primary")
    if not autovacuum:
        reasons.append("autovacuum is off: the jobs table will bloat; turn it on")
    if not fsync or not full_pages:
        reasons.append("fsync or full_page_writes is off: a crash may lose the database")
    if synchronous == "off" and settings.synchronous_commit != "off":
        reasons.append("synchronous_commit is off: a crash may lose the last moments")
    return not (standby or read_only), reasons


async def health(pool: PostgresConnection) -> Health:
    """Look after the store; does not raise for one that is down."""
    place = where(pool.settings)
    details: dict[str, Any] = {
        **place,
        "schema": pool.settings.schema,
        "tablePrefix": pool.settings.table_prefix,
    }
    started = time.perf_counter()
    try:
        async with pool.acquire() as connection:
            (row,) = await fetch_rows(connection, _FACTS)
            elapsed = (time.perf_counter() - started) * 1000
            status = await read_status(connection, pool.names)
    except OqronError as error:
        return Health(
            ok=False,
            reasons=(f"{error}; see that the server runs and is reached",),
            details=details,
        )
    ok, reasons = _verdict(row, pool.settings)
    problem = status.problem()
    if problem is not None:
        reasons.append(problem)
    stats = pool.stats()
    details |= {
        "serverVersion": row[0],
        "roundTripMs": round(elapsed, 2),
        "schemaVersion": status.installed,
        "v1": status.v1.value,
        "timeZone": row[7],
        "poolSize": stats.get("pool_size", 0),
        "poolMax": stats.get("pool_max", 0),
        "poolAvailable": stats.get("pool_available", 0),
        "requestsWaiting": stats.get("requests_waiting", 0),
    }
    return Health(ok and status.ok, tuple(reasons), details)


async def server(settings: PostgresSettings) -> tuple[bool | None, str]:
    """Whether the server answers and is fit; None where it serves, with a warning."""
    place = where(settings)
    at = f"{place['host']}:{place['port']}/{place['database']}"
    async with raw_connection(settings) as connection:
        with translated():
            (row,) = await fetch_rows(connection, _FACTS)
    ok, reasons = _verdict(row, settings)
    said = "; ".join(reasons) if reasons else "answers and takes writes"
    return (None if ok and reasons else ok), f"PostgreSQL {row[0]} at {at}: {said}"


async def schema(settings: PostgresSettings) -> tuple[bool, str]:
    """Whether the tables are of this version and nothing of v1 is left behind."""
    status = await schema_status(settings)
    names = Names.of(settings)
    fine = f"tables {names.schema}.{names.prefix}_* are of schema version {status.installed}"
    return status.ok, status.problem() or "; ".join(status.remarks()) or fine
