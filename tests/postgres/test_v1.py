"""Out of the v1 layout: loud, complete, resumable, verified."""

from __future__ import annotations

import asyncio
import time

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest

from click.testing import CliRunner
from fix_postgres import opened, run

from oqron_core.config import Retention, Settings
from oqron_core.exceptions import InvalidValueError, SchemaError
from oqron_core.planes import Query
from oqron_core.taxonomy import RecordKind
from oqron_postgres import PostgresSettings
from oqron_postgres.cli import migrate
from oqron_postgres.schema import V1State, schema_status
from oqron_postgres.v1 import V1Report, convert_dates, dismiss_v1, migrate_v1


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
            core=Settings(retention=Retention(dead_letters_for=None, runs_for=None)),
            on_progress=lambda done, total: seen.append((done, total)),
        )
    )

    assert report.verified
    assert len(ROWS) == sum(report.moved.values())
    assert 0 == report.refused_count
    assert 1 == report.unscoped
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
    assert not report.verified
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
    assert {RecordKind.JOB: 1345} == report.moved
    assert 1000 == report.kept
    assert 2 + 3 == steps
    again = run(migrate_v1(settings))
    assert again.verified
    assert ({}, 2345) == (again.moved, again.kept)


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


# --- what has ended ---------------------------------------------------------

DAY = 86_400_000
NOW = 4_000_000_000_000
ENDED: list[tuple[str, str, Any, int | None]] = [
    ("queue_job:q", "done", {"status": "completed", "finishedAt": NOW}, NOW + DAY),
    ("queue_job:q", "off", {"status": "cancelled", "finishedAt": NOW}, NOW + 7 * DAY),
    ("queue_job:q", "failed", {"status": "failed", "finishedAt": NOW}, NOW + 90 * DAY),
    ("queue_job:q", "old", {"status": "completed", "finishedAt": DATE}, MS + DAY),
    ("queue_job:q", "open", {"status": "waiting", "finishedAt": None}, None),
    ("queue_job:q", "bare", {}, None),
    ("queue_dlq:q", "dead", {"status": "failed", "deadAt": NOW}, NOW + 90 * DAY),
    ("runs", "run", {"status": "failed", "endedAt": NOW}, NOW + 30 * DAY),
    ("runs", "text", {"endedAt": "2025-07-04T00:00:01Z"}, MS + 30 * DAY),
    ("runs", "going", {"status": "running", "endedAt": None}, None),
    ("topic_msg:t", "message", {"publishedAt": NOW}, None),
    ("cron", "nightly", {"status": "completed", "finishedAt": NOW}, None),
]
"""Namespace, id, value, and the expiry by the default retention."""


def _expiries(url: str) -> dict[str, int | None]:
    union = " UNION ALL ".join(
        f"SELECT id, expires_at FROM oqron_{name}" for name in ("jobs", "runs", "records")
    )
    with psycopg.connect(url) as connection:
        return dict(connection.execute(union.encode()).fetchall())


def test_what_has_ended_expires_by_the_settings(database: str) -> None:
    """As if it had ended in the new version; what is past is moved, and pruned next."""
    _make_v1(database, [(f"oqron:a:b:{space}", id_, value) for space, id_, value, _ in ENDED])
    settings = _settings(database)
    report = run(migrate_v1(settings))
    assert report.verified
    assert len(ENDED) == sum(report.moved.values())
    assert {id_: expiry for _, id_, _, expiry in ENDED} == _expiries(database)

    async def prune() -> int:
        async with opened(database, "oqron", "a", "b") as plane:
            return await plane.prune(Query(kind="job", where=[("expires_at", "<=", NOW)]))

    assert 1 == run(prune())


def test_what_is_kept_for_ever_never_expires(database: str) -> None:
    """And an expiry that the old table has is nobody's to change."""
    rows = [row[:3] for row in ENDED if row[1] in {"done", "off", "dead", "run"}]
    _make_v1(database, [(f"oqron:a:b:{space}", id_, value) for space, id_, value in rows])
    with psycopg.connect(database) as connection:
        connection.execute(
            "UPDATE oqron_kv SET expires_at = to_timestamp(4100000000) WHERE id = 'off'"
        )
    keep = Retention(completed_for=None, dead_letters_for=None, runs_for=0)
    run(migrate_v1(_settings(database), core=Settings(retention=keep)))
    assert {"done": None, "off": 4_100_000_000_000, "dead": None, "run": NOW} == _expiries(database)


@pytest.mark.parametrize("at", [None, "soon", True, -1, 1e30, [1]])
def test_an_end_that_nobody_noted_is_the_migration(database: str, at: Any) -> None:
    """It is kept for its time from now on."""
    value = {"status": "completed", "finishedAt": at}
    _make_v1(database, [("oqron:a:b:queue_job:q", "x", value)])
    before = time.time() * 1000
    run(migrate_v1(_settings(database)))
    expiry = _expiries(database)["x"]
    assert expiry is not None
    assert before - 1000 <= expiry - DAY <= time.time() * 1000 + 1000


# --- scopes -----------------------------------------------------------------


def test_rows_without_a_scope_stay_together(database: str) -> None:
    """A run for another scope would have them twice; one for none takes the same."""
    _make_v1(database, ROWS)
    settings = _settings(database)
    run(migrate_v1(settings, project="p", environment="e"))
    for dry_run in (True, False):
        with pytest.raises(InvalidValueError, match="--project p --environment e"):
            run(migrate_v1(settings, project="other", environment="e", dry_run=dry_run))
    report = run(migrate_v1(settings))
    assert report.verified
    assert ("p", "e", 1) == (report.project, report.environment, report.unscoped)


def test_a_row_without_a_scope_does_not_vanish_behind_one_with_it(database: str) -> None:
    """One key has room for one of them; the other is refused by name."""
    rows = [("queue_job:q", "x", {"n": 1}), ("oqron:p:e:queue_job:q", "x", {"n": 2})]
    _make_v1(database, [*rows, ("queue_job:q", "y", {})])
    settings = _settings(database)
    for dry_run in (True, False):
        report = run(migrate_v1(settings, project="p", environment="e", dry_run=dry_run))
        assert ({RecordKind.JOB: 2}, 1) == (report.moved, report.refused_count)
        assert "queue_job:q/x: has the place of oqron:p:e:queue_job:q/x" in report.refused[0]
        assert not report.verified


# --- what cannot be read or moved -------------------------------------------


def test_rows_that_no_walk_comes_by_are_missed(database: str) -> None:
    """A row without a namespace is not moved, and not taken for moved."""
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE oqron_kv (namespace text, id text, value jsonb)")
        connection.execute(
            "INSERT INTO oqron_kv VALUES ('oqron:a:b:cron', 'x', '{}'), (NULL, 'y', '{}')"
        )
    settings = _settings(database)
    assert 1 == run(migrate_v1(settings, dry_run=True)).missing
    report = run(migrate_v1(settings))
    assert (1, False) == (report.missing, report.verified)
    assert V1State.PENDING is run(schema_status(settings)).v1


def test_rows_refused_after_the_migration_shut_the_door_again(database: str) -> None:
    """They came from a v1 process that nobody had stopped."""
    _make_v1(database, [("oqron:a:b:cron", "x", {})])
    settings = _settings(database)
    assert run(migrate_v1(settings)).verified
    with psycopg.connect(database) as connection:
        connection.execute("INSERT INTO oqron_kv VALUES ('loose', 'y', '{}')")
    assert not run(migrate_v1(settings)).verified
    assert V1State.PENDING is run(schema_status(settings)).v1


def test_what_was_worked_off_does_not_come_back(database: str) -> None:
    """Whoever moves again, by habit or in a script of the deployment, works nothing twice."""
    job = {"status": "waiting", "attemptMade": 0, "maxAttempts": 3, "data": 1}
    rows = [(f"oqron:a:b:queue_job:{n}", "x", job) for n in "abc"]
    _make_v1(database, rows)
    settings = _settings(database)
    assert run(migrate_v1(settings)).verified
    assert (3, 0) == _moved_again(run(migrate_v1(settings)))
    with psycopg.connect(database) as connection:
        connection.execute("DELETE FROM oqron_jobs WHERE namespace = 'queue_job:b'")
    for dry_run in (False, True, False):
        with pytest.raises(SchemaError, match=r"1 of 3 .*--again"):
            run(migrate_v1(settings, dry_run=dry_run))
    assert 1 == sum(run(migrate_v1(settings, dry_run=True, again=True)).moved.values())
    # The door stays open, and what comes behind the others is moved as before.
    assert V1State.MIGRATED is run(schema_status(settings)).v1
    assert (2, 1) == _moved_again(run(migrate_v1(settings, again=True)))
    with psycopg.connect(database) as connection:
        connection.execute("INSERT INTO oqron_kv VALUES ('oqron:a:b:queue_job:d', 'x', '{}')")
    assert (3, 1) == _moved_again(run(migrate_v1(settings)))


def _moved_again(report: V1Report) -> tuple[int, int]:
    assert report.verified
    return report.kept, sum(report.moved.values())


def test_what_is_dismissed_stays_so(database: str) -> None:
    """Though somebody moves what can be moved after all."""
    _make_v1(database, ROWS)
    settings = _settings(database)
    assert len(ROWS) == run(dismiss_v1(settings))
    report = run(migrate_v1(settings))
    assert (1, False) == (report.refused_count, report.verified)
    assert V1State.DISMISSED is run(schema_status(settings)).v1


# --- the command ------------------------------------------------------------


class Said:
    """What a command printed, and its exit status."""

    def __init__(self, *arguments: str) -> None:
        result = CliRunner().invoke(migrate, arguments, catch_exceptions=False)
        self.out, self.err, self.status = result.stdout, result.stderr, result.exit_code


@pytest.fixture
def command(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Give the command, for a database and in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("OQRON_PROJECT", "OQRON_ENVIRONMENT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OQRON_POSTGRES__URL", database)
    return Said


def test_the_old_table_is_yours_to_drop_only_where_nothing_was_refused(
    database: str, command: Callable[..., Said]
) -> None:
    """Otherwise standard output says to keep it, and for how many rows."""
    _make_v1(database, ROWS)
    said = command()
    assert 1 == said.status
    assert "yours to drop" not in said.out
    assert "keep the old table: 1 row is only there\n" in said.out
    assert "1 row cannot be moved:\noqron: queue_job:loose/j9" in said.err
    for name in ("--project", "--environment", "oqron.toml", "OQRON_PROJECT", "OQRON_ENVIRONMENT"):
        assert name in said.err

    said = command("--project", "p", "--environment", "e")
    assert (0, "") == (said.status, said.err)
    assert "every row was found in its table; the old one is yours to drop" in said.out


def test_a_rerun_says_what_it_did_and_what_was_there(
    database: str, command: Callable[..., Said]
) -> None:
    """Nothing moved is not moved again."""
    _make_v1(database, [("oqron:a:b:cron", name, {}) for name in "xyz"])
    assert "3 rows in the old table; would move 3\n" in command("--dry-run").out
    assert "3 rows in the old table; moved 3 now\n" in command().out
    for arguments, verb in ((["--dry-run"], "would move 0"), ([], "moved 0 now")):
        said = command(*arguments)
        assert f"3 rows in the old table; {verb}\n" in said.out
        assert "3 were there already and are left as they are\n" in said.out
    document = orjson.loads(command("--json").out)
    assert ({}, 3, 3) == (document["moved"], document["kept"], document["total"])


def test_without_rows_there_is_nothing_to_drop(command: Callable[..., Said]) -> None:
    """No table at all is none that somebody may drop."""
    said = command()
    assert (0, "there is no old table, or it is empty: nothing to move\n") == (
        said.status,
        said.out,
    )


def test_rows_that_were_mended_are_named(database: str, command: Callable[..., Said]) -> None:
    """With their fields, in the rehearsal as well; twenty, and how many more."""
    _make_v1(database, ROWS[:6])
    named = (
        "2 rows {} mended beyond the dates, in these fields:\n"
        "  oqron:my-app:production:runs/r2: startedAt\n"
        "  oqron:my-app:production:runs/r3: startedAt, name\n"
    )
    for arguments, verb in ((["--dry-run"], "would be"), ([], "were")):
        said = command(*arguments)
        assert named.format(verb) in said.out
        assert "more" not in said.out
    with psycopg.connect(database) as connection:
        connection.execute(
            "INSERT INTO oqron_kv SELECT 'oqron:a:b:mine', n::text, '1' "
            "FROM generate_series(1, 20) AS n"
        )
    said = command("--dry-run", "--again")
    assert "oqron:a:b:mine/1: value\n" in said.out
    assert "22 rows would be mended" in said.out
    assert "  and 2 more\n" in said.out


@pytest.mark.parametrize("source", ["file", "variables", "both", "half"])
def test_the_scope_comes_from_the_settings(
    database: str,
    command: Callable[..., Said],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
) -> None:
    """Where the options leave it open; a default that nobody wrote is none."""
    _make_v1(database, [("queue_job:loose", "x", {"status": "completed", "finishedAt": NOW})])
    if source != "variables":
        lines = ['project = "p"', *(['environment = "e"'] if source == "file" else [])]
        lines += ["[retention]", "completed_for = 1"]
        (tmp_path / "oqron.toml").write_text("\n".join(lines), encoding="utf-8")
    if source == "variables":
        monkeypatch.setenv("OQRON_PROJECT", "p")
        monkeypatch.setenv("OQRON_RETENTION__COMPLETED_FOR", "1")
    if source in {"variables", "both"}:
        monkeypatch.setenv("OQRON_ENVIRONMENT", "e")
    said = command()
    if source == "half":
        assert 1 == said.status
        assert "OQRON_ENVIRONMENT" in said.err
        return
    assert 0 == said.status
    assert "1 row that names no scope belongs to project p and environment e\n" in said.out
    with psycopg.connect(database) as connection:
        moved = connection.execute("SELECT project, environment, expires_at FROM oqron_jobs")
        assert [("p", "e", NOW + 1000)] == moved.fetchall()


def test_a_dismissal_says_what_is_left(database: str, command: Callable[..., Said]) -> None:
    """Nothing is deleted, and somebody may want to know how much it is."""
    _make_v1(database, ROWS[:2])
    said = command("--dismiss")
    assert "the old table is dismissed; nothing was deleted, it holds 2 rows\n" == said.out


# --- dates ------------------------------------------------------------------


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
