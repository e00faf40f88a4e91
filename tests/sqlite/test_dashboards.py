"""The model's published queries, in SQLite's words, on what the planes have written."""

from __future__ import annotations

import asyncio
import sqlite3

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from oqron_core import open_storage
from oqron_core.planes import Put, Query
from oqron_core.taxonomy import RecordKind
from oqron_sqlite import tables
from oqron_sqlite._query import Composer, parts_of, shape_of


FAILED_RUNS = """
SELECT value FROM oqron_runs
WHERE project = 'my-app' AND environment = 'production'
  AND value->>'status' = 'failed'
ORDER BY value->>'startedAt' DESC
LIMIT 50
"""
DEAD_LETTERS = """
SELECT namespace, count(*) FROM oqron_jobs
WHERE project = 'my-app' AND environment = 'production'
  AND record_kind = 'dlq'
GROUP BY namespace
"""
DEFINITIONS = """
SELECT namespace, id, value FROM oqron_records
WHERE project = 'my-app' AND environment = 'production'
  AND record_kind = 'definition'
"""
ONE_RUN = """
SELECT value FROM oqron_runs
WHERE project = 'my-app' AND environment = 'production'
  AND id = 'run-3'
"""
MESSAGES = """
SELECT value FROM oqron_runs
WHERE project = 'my-app' AND environment = 'production'
  AND record_kind = 'message' AND namespace = 'topic_msg:order-events'
ORDER BY value->>'publishedAt' DESC
LIMIT 50
"""
INDEXES = {
    FAILED_RUNS: "oqron_runs_status",
    DEAD_LETTERS: "oqron_jobs_kind",
    DEFINITIONS: "oqron_records_kind",
    ONE_RUN: "oqron_runs_id",
    MESSAGES: "oqron_runs_published",
}
COLUMNS = [
    ("project", "TEXT", 1),
    ("environment", "TEXT", 2),
    ("namespace", "TEXT", 3),
    ("record_kind", "TEXT", 0),
    ("id", "TEXT", 4),
    ("value", "TEXT", 0),
    ("inserted_at", "INTEGER", 0),
    ("expires_at", "INTEGER", 0),
]


async def fill(path: Path) -> None:
    """Write what a running system would have written."""
    async with open_storage(
        mode="sqlite", project="my-app", environment="production", sqlite={"path": str(path)}
    ) as storage:
        status = ("failed", "completed")
        await storage.durable.write(
            [
                *(
                    Put("runs", f"run-{n}", {"n": n, "status": status[n % 2], "startedAt": n % 7})
                    for n in range(40)
                ),
                *(Put(f"queue_dlq:q{n % 3}", f"{n}", {}) for n in range(10)),
                *(Put("topic_msg:order-events", f"m{n}", {"publishedAt": n}) for n in range(5)),
                Put("topic_msg:other", "m", {"publishedAt": 9}),
                Put("cron", "nightly", {"name": "nightly"}),
                Put("queue", "q", {"paused": False}),
                Put("queue_job:q", "a", {"status": "waiting"}),
            ]
        )


@pytest.fixture
def driver(folder: Path) -> Iterator[sqlite3.Connection]:
    """Give a plain connection, as a dashboard has it."""
    path = folder / "oqron.db"
    asyncio.run(fill(path))
    opened = sqlite3.connect(path)
    yield opened
    opened.close()


def test_the_published_queries_run_as_written(driver: sqlite3.Connection) -> None:
    """Each finds what was written, in the order it promises, without our functions."""
    failed = driver.execute(
        FAILED_RUNS.replace("value FROM", "value->>'n', value->>'startedAt' FROM")
    ).fetchall()

    assert {*range(0, 40, 2)} == {n for n, _ in failed}
    assert [*sorted((at for _, at in failed), reverse=True)] == [at for _, at in failed]
    dead = [("queue_dlq:q0", 4), ("queue_dlq:q1", 3), ("queue_dlq:q2", 3)]
    assert dead == sorted(driver.execute(DEAD_LETTERS))
    assert [("cron", "nightly")] == [row[:2] for row in driver.execute(DEFINITIONS)]
    assert 1 == len(driver.execute(ONE_RUN).fetchall())
    newest = driver.execute(MESSAGES.replace("value FROM", "id FROM")).fetchall()
    assert [(f"m{n}",) for n in range(4, -1, -1)] == newest


@pytest.mark.parametrize("query", INDEXES, ids=INDEXES.values())
def test_each_published_query_is_served_by_its_index(
    driver: sqlite3.Connection, query: str
) -> None:
    """Without statistics, as on the first day, and without sorting what is found."""
    plan = [row[3] for row in driver.execute(f"EXPLAIN QUERY PLAN {query}")]

    assert [line for line in plan if INDEXES[query] in line], plan
    assert not [line for line in plan if "TEMP B-TREE" in line], plan


@pytest.mark.parametrize("name", ["oqron_records", "oqron_jobs", "oqron_runs"])
def test_the_tables_are_those_of_the_model(driver: sqlite3.Connection, name: str) -> None:
    """Eight columns of these types, and this primary key."""
    found = driver.execute(f"PRAGMA table_info({name})").fetchall()

    assert COLUMNS == [(column[1], column[2], column[5]) for column in found]


def explain(driver: sqlite3.Connection, statement: str) -> list[str]:
    """Say how a statement of ours is served."""
    names: dict[str, Any] = dict.fromkeys(("project", "environment", "namespace"), "x")
    names |= {"now": 1, "limit": 1, "c0": "x", "c1": 1}
    driver.create_function("oqron_canonical", 1, str)
    driver.create_function("oqron_real", 1, float)
    return [row[3] for row in driver.execute(f"EXPLAIN QUERY PLAN {statement}", names)]


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (
            Query(kind=RecordKind.RUN, namespace="runs", order_by=[("startedAt", "desc")]),
            "oqron_runs_started",
        ),
        (
            Query(
                namespace="runs",
                where=[("status", "=", "failed"), ("startedAt", ">=", 3)],
                order_by=[("startedAt", "desc"), ("id", "desc")],
            ),
            "oqron_runs_status",
        ),
        (
            Query(namespace="topic_msg:t", order_by=[("publishedAt", "asc"), ("id", "asc")]),
            "oqron_runs_published",
        ),
        (
            Query(namespace="queue_job:q", where=[("status", "=", "waiting")]),
            "oqron_jobs_status",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_our_own_queries_use_the_indexes(
    driver: sqlite3.Connection, query: Query, index: str
) -> None:
    """What core asks all the time is no walk over a table."""
    shape = shape_of(query)
    part, _ = parts_of(query, shape)[0]
    plan = explain(driver, Composer().page(attrs.evolve(shape, part=part)))

    assert [line for line in plan if index in line], plan


def test_counts_and_prunes_use_the_indexes(driver: sqlite3.Connection) -> None:
    """Recovery counts and retention prunes every few seconds."""
    composer = Composer()
    by_status = shape_of(Query(namespace="queue_job:q"), whole=True)
    still_open = Query(namespace="queue_job:q", where=[("status", "in", ["waiting", "held"])])
    expired = shape_of(Query(kind=RecordKind.JOB, where=[("expires_at", "<=", 5)]), whole=True)
    for statement, index in (
        (composer.count(by_status, "status"), "oqron_jobs_status"),
        (composer.count(shape_of(still_open, whole=True), None), "oqron_jobs_status"),
        (composer.count(shape_of(Query(kind=RecordKind.DLQ)), "namespace"), "oqron_jobs_kind"),
        (composer.prune(expired), "oqron_jobs_expiry"),
    ):
        plan = explain(driver, statement)
        assert [line for line in plan if index in line], plan


def test_what_is_no_json_cannot_be_written(driver: sqlite3.Connection) -> None:
    """One row by hand cannot break the dashboards of everybody."""
    row = ("p", "e", "runs", "run", "x", "{soon", 1, None)

    with pytest.raises(sqlite3.IntegrityError):
        driver.execute("INSERT INTO oqron_runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)


def test_the_tables_can_be_used_with_sqlalchemy() -> None:
    """Metadata is public, by name and by kind."""
    assert ["oqron_jobs", "oqron_records", "oqron_runs"] == sorted(tables.DURABLE.tables)
