"""Out of the v1 layout: loud, complete, resumable, verified."""

from __future__ import annotations

import asyncio

from typing import Any

import orjson
import psycopg
import pytest

from fix_postgres import opened, run

from oqron_core.exceptions import SchemaError
from oqron_core.planes import Query
from oqron_core.taxonomy import RecordKind
from oqron_postgres import PostgresSettings
from oqron_postgres.schema import V1State, schema_status
from oqron_postgres.v1 import convert_dates, dismiss_v1, migrate_v1


DATE = {"__type": "Date", "__val": "2025-07-04T00:00:01.000Z"}
MS = 1751587201000

ROWS: list[tuple[str, str, Any]] = [
    ("oqron:my-app:production:queue_job:emails", "j1", {"status": "waiting", "createdAt": DATE}),
    ("oqron:my-app:production:queue_job:emails", "j2", {"data": {"at": [DATE], "l": []}}),
    ("oqron:my-app:production:queue_dlq:emails", "j3", {"deadAt": DATE}),
    ("oqron:my-app:production:runs", "r1", {"status": "failed", "startedAt": DATE}),
    ("oqron:my-app:production:runs", "r2", {"startedAt": "2025-07-04T00:00:01Z"}),
    ("oqron:my-app:production:runs", "r3", {"startedAt": "soon", "name": "x" * 600}),
    ("oqron:my-app:staging:runs", "r1", {"startedAt": None}),
    ("oqron:my-app:production:cron", "nightly", {"nextRunAt": DATE}),
    ("oqron:my-app:production:topic_msg:t", "m1", {"publishedAt": MS}),
    ("oqron:my-app:production:my:own:stuff", "c1", "a text"),
    ("oqron:my-app:production:custom", "c2", {"x": {"__type": "Date", "__val": "no date"}}),
    ("queue_job:loose", "j9", {"status": "waiting"}),
]


def _make_v1(url: str, rows: list[tuple[str, str, Any]], *, times: str = "timestamptz") -> None:
    with psycopg.connect(url) as connection:
        connection.execute(
            "CREATE TABLE oqron_kv (namespace text NOT NULL, id text NOT NULL, "
            f"value jsonb NOT NULL, created_at {times}, expires_at {times}, "
            "PRIMARY KEY (namespace, id))".encode()
        )
        stamp = "to_timestamp(1751587201)" if times == "timestamptz" else "1751587201000"
        with connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO oqron_kv VALUES (%s, %s, %s::jsonb, {stamp}, NULL)".encode(),
                [(namespace, id_, orjson.dumps(value).decode()) for namespace, id_, value in rows],
            )


def _settings(url: str, **more: Any) -> PostgresSettings:
    return PostgresSettings(url=url, **more)


async def _open(settings: PostgresSettings) -> None:
    async with opened(settings.url, settings.table_prefix, allow_v1=settings.allow_v1):
        pass


def test_a_populated_v1_table_is_never_ignored(database: str) -> None:
    """Opening says both ways out, and makes nothing."""
    _make_v1(database, ROWS)
    with pytest.raises(SchemaError, match="oqron migrate-v1") as caught:
        run(_open(_settings(database)))
    assert "--dismiss" in str(caught.value)
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT to_regclass('oqron_jobs')").fetchone() == (None,)
    run(_open(_settings(database, allow_v1=True)))
    with pytest.raises(SchemaError, match="oqron migrate-v1"):
        run(_open(_settings(database)))


def test_an_empty_v1_table_is_no_obstacle(database: str) -> None:
    """There is nothing to lose."""
    _make_v1(database, [])
    run(_open(_settings(database)))
    assert V1State.ABSENT is run(schema_status(_settings(database))).v1


def test_a_rehearsal_tells_and_changes_nothing(database: str) -> None:
    """By kind, with what cannot be moved and why."""
    _make_v1(database, ROWS)
    report = run(migrate_v1(_settings(database), dry_run=True))

    assert report.dry_run
    assert len(ROWS) == report.total
    assert {
        RecordKind.JOB: 2,
        RecordKind.DLQ: 1,
        RecordKind.RUN: 4,
        RecordKind.DEFINITION: 1,
        RecordKind.MESSAGE: 1,
        RecordKind.RECORD: 2,
    } == report.moved
    assert 1 == report.refused_count
    assert "queue_job:loose" in report.refused[0]
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT to_regclass('oqron_meta')").fetchone() == (None,)


@pytest.mark.parametrize("times", ["timestamptz", "bigint"])
def test_every_row_moves_to_its_table(database: str, times: str) -> None:
    """Scopes from the prefix or as given, dates converted, then storages open."""
    _make_v1(database, ROWS, times=times)
    seen: list[tuple[int, int]] = []
    report = run(
        migrate_v1(
            _settings(database),
            project="given",
            environment="here",
            on_progress=lambda done, total: seen.append((done, total)),
        )
    )

    assert report.verified
    assert len(ROWS) == sum(report.moved.values())
    assert 0 == report.refused_count
    assert (len(ROWS), len(ROWS)) == seen[-1]
    assert V1State.MIGRATED is run(schema_status(_settings(database))).v1

    async def main() -> None:
        async with opened(database, "oqron", "my-app", "production") as plane:
            [j1, j2] = await plane.get("queue_job:emails", ["j1", "j2"])
            assert j1 is not None
            assert j2 is not None
            assert {"status": "waiting", "createdAt": MS} == j1.value
            assert MS == j1.inserted_at
            assert {"data": {"at": [MS], "l": []}} == j2.value
            page = await plane.query(Query(kind="run", order_by=[("startedAt", "desc")]))
            assert [("r1", MS), ("r2", MS), ("r3", None)] == [
                (record.id, record.value["startedAt"]) for record in page
            ]
            assert 1 == await plane.count(Query(kind="dlq"))
            [own] = await plane.get("my:own:stuff", ["c1"])
            assert own is not None
            assert {"value": "a text"} == own.value
            [marker] = await plane.get("custom", ["c2"])
            assert marker is not None
            assert ROWS[10][2] == marker.value
        async with opened(database, "oqron", "given", "here") as plane:
            assert 1 == await plane.count(Query(kind="job"))

    run(main())
    with psycopg.connect(database) as connection:
        assert (len(ROWS),) == connection.execute("SELECT count(*) FROM oqron_kv").fetchone()


def test_what_cannot_be_moved_keeps_the_door_shut(database: str) -> None:
    """It is named; with the scope given the rest follows and nothing moves twice."""
    _make_v1(database, ROWS)
    settings = _settings(database)
    report = run(migrate_v1(settings))
    assert 1 == report.refused_count
    assert V1State.PENDING is run(schema_status(settings)).v1
    with pytest.raises(SchemaError, match="migrate-v1"):
        run(_open(settings))

    report = run(migrate_v1(settings, project="p", environment="e"))
    assert report.verified
    assert 0 == report.refused_count
    run(_open(settings))


def test_an_interrupted_migration_is_continued(database: str) -> None:
    """At the batch where it stopped, with exact counts at the end."""
    namespace = "oqron:a:b:queue_job:q"
    _make_v1(database, [(namespace, f"{number:05}", {"n": number}) for number in range(2345)])
    settings = _settings(database)
    steps = 0

    class StopError(Exception):
        pass

    def stop(done: int, total: int) -> None:
        nonlocal steps
        steps += 1
        if steps == 2:
            raise StopError

    with pytest.raises(StopError):
        run(migrate_v1(settings, on_progress=stop))
    assert V1State.PENDING is run(schema_status(settings)).v1
    with psycopg.connect(database) as connection:
        assert (1000,) == connection.execute("SELECT count(*) FROM oqron_jobs").fetchone()
    report = run(migrate_v1(settings, on_progress=stop))

    assert report.verified
    assert {RecordKind.JOB: 2345} == report.moved
    assert 0 == report.kept
    assert 2 + 3 == steps
    again = run(migrate_v1(settings))
    assert again.verified


def test_two_migrations_at_once_take_turns(database: str) -> None:
    """Every row is moved once."""
    namespace = "oqron:a:b:queue_job:q"
    _make_v1(database, [(namespace, f"{number:05}", {"n": number}) for number in range(3000)])
    settings = _settings(database)

    async def main() -> list[Any]:
        return await asyncio.gather(*(migrate_v1(settings) for _ in range(3)))

    reports = run(main())
    assert all(report.verified for report in reports)
    with psycopg.connect(database) as connection:
        assert (3000,) == connection.execute("SELECT count(*) FROM oqron_jobs").fetchone()


def test_rows_that_come_behind_are_found(database: str) -> None:
    """A v1 process that was not stopped does not lose its last rows."""
    _make_v1(database, [("oqron:a:b:queue_job:q", f"{number:05}", {}) for number in range(1200)])
    late = iter(["00000-late"])

    def write_late(done: int, total: int) -> None:
        for id_ in late:
            with psycopg.connect(database) as connection:
                connection.execute(
                    "INSERT INTO oqron_kv VALUES ('oqron:a:b:queue_job:q', %s, '{}')", (id_,)
                )

    report = run(migrate_v1(_settings(database), on_progress=write_late))
    assert report.verified
    with psycopg.connect(database) as connection:
        assert (1201,) == connection.execute("SELECT count(*) FROM oqron_jobs").fetchone()


def test_what_the_new_version_wrote_is_kept(database: str) -> None:
    """The old row does not replace it, and is counted."""
    _make_v1(database, [("oqron:a:b:cron", "x", {"old": True})])

    async def write() -> None:
        from oqron_core.planes import Put

        async with opened(database, "oqron", "a", "b", allow_v1=True) as plane:
            await plane.write([Put("cron", "x", {"new": True})])

    run(write())
    report = run(migrate_v1(_settings(database)))
    assert report.verified
    assert 1 == report.kept

    async def read() -> None:
        async with opened(database, "oqron", "a", "b") as plane:
            [record] = await plane.get("cron", ["x"])
            assert record is not None
            assert {"new": True} == record.value

    run(read())


def test_a_dismissal_opens_the_door(database: str) -> None:
    """For those who drained v1; the old table stays."""
    _make_v1(database, ROWS)
    run(dismiss_v1(_settings(database)))
    assert V1State.DISMISSED is run(schema_status(_settings(database))).v1
    run(_open(_settings(database)))


def test_a_table_of_another_shape_is_refused(database: str) -> None:
    """By name, with what is missing."""
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE oqron_kv (a int)")
        connection.execute("INSERT INTO oqron_kv VALUES (1)")
    with pytest.raises(SchemaError, match="namespace"):
        run(migrate_v1(_settings(database)))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (DATE, MS),
        ({"__type": "Date", "__val": MS}, MS),
        ({"__type": "Date", "__val": "2025-07-04"}, MS - 1000),
        ({"__type": "Date", "__val": "x"}, {"__type": "Date", "__val": "x"}),
        ({"__type": "Date"}, {"__type": "Date"}),
        ({"__type": "Date", "__val": MS, "more": 1}, {"__type": "Date", "__val": MS, "more": 1}),
        ({"__type": "Map", "__val": MS}, {"__type": "Map", "__val": MS}),
        ([{"a": DATE}], [{"a": MS}]),
    ],
    ids=repr,
)
def test_only_dates_are_converted(value: Any, expected: Any) -> None:
    """What merely looks like one is data."""
    assert expected == convert_dates(value)
