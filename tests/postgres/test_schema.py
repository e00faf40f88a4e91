"""The schema: made once, versioned, understood or refused by name."""

from __future__ import annotations

import asyncio
import subprocess
import uuid

from pathlib import Path
from typing import Any

import psycopg
import pytest

from click.testing import CliRunner
from fix_postgres import opened, run
from sqlalchemy import create_engine, inspect

from oqron_core.exceptions import ConfigError, InvalidValueError, SchemaError, StorageError
from oqron_core.planes import Insert, Put, Query
from oqron_core.taxonomy import RecordKind, classify_namespace
from oqron_postgres import PostgresSettings, _doctor, connect
from oqron_postgres._query import NAMESPACES
from oqron_postgres.cli import schema
from oqron_postgres.schema import (
    SCHEMA_VERSION,
    SchemaState,
    apply_schema,
    roles_sql,
    schema_sql,
    schema_status,
)
from oqron_postgres.settings import MAX_PREFIX_BYTES
from oqron_postgres.tables import make_tables


COLUMNS = [
    ("project", "text", "NO"),
    ("environment", "text", "NO"),
    ("namespace", "text", "NO"),
    ("record_kind", "text", "NO"),
    ("id", "text", "NO"),
    ("value", "jsonb", "NO"),
    ("inserted_at", "bigint", "NO"),
    ("expires_at", "bigint", "YES"),
]
"""The storage model, to the letter."""


def settings_of(url: str, **more: Any) -> PostgresSettings:
    """Give settings as a user would."""
    return PostgresSettings(url=url, **more)


async def enter(settings: PostgresSettings) -> None:
    """Open and close a storage's connection."""
    async with connect(settings):
        pass


def test_the_tables_are_those_of_the_storage_model(database: str) -> None:
    """Three of them, with exactly eight columns and one primary key."""
    run(enter(settings_of(database)))
    with psycopg.connect(database) as connection:
        for table in ("oqron_records", "oqron_jobs", "oqron_runs"):
            columns = connection.execute(
                "SELECT column_name, data_type, is_nullable FROM information_schema.columns "
                "WHERE table_schema = 'public' AND table_name = %s ORDER BY ordinal_position",
                (table,),
            ).fetchall()
            key = connection.execute(
                "SELECT pg_get_constraintdef(oid) FROM pg_constraint "
                "WHERE conrelid = %s::regclass AND contype = 'p'",
                (table,),
            ).fetchall()

            assert COLUMNS == columns
            assert [("PRIMARY KEY (project, environment, namespace, id)",)] == key


def test_the_metadata_describes_the_tables(database: str) -> None:
    """What SQLAlchemy reflects is what the package says."""
    run(enter(settings_of(database)))
    engine = create_engine(database.replace("postgresql://", "postgresql+psycopg://"))
    inspector = inspect(engine)
    tables = make_tables()
    for table in (tables.records, tables.jobs, tables.runs):
        found = inspector.get_columns(str(table.name), schema="public")
        assert [column.name for column in table.columns] == [item["name"] for item in found]
        for column, item in zip(table.columns, found, strict=True):
            assert isinstance(item["type"], type(column.type))
            assert column.nullable is item["nullable"]
        key = inspector.get_pk_constraint(str(table.name), schema="public")
        assert key["constrained_columns"] == [column.name for column in table.primary_key]
        assert key["name"] == table.primary_key.name
    assert tables.jobs is tables.for_kind("dlq")
    engine.dispose()


def test_eight_sessions_open_an_empty_database_at_once(database: str) -> None:
    """All of them succeed, and the schema is applied once."""

    async def main() -> None:
        await asyncio.gather(*(enter(settings_of(database)) for _ in range(8)))

    run(main())
    status = run(schema_status(settings_of(database)))
    assert SchemaState.CURRENT is status.state
    assert status.ok


def test_apply_may_be_raced_and_repeated(database: str) -> None:
    """One does it, the others find nothing to do."""

    async def main() -> list[Any]:
        return await asyncio.gather(*(apply_schema(settings_of(database)) for _ in range(8)))

    done = run(main())
    assert 1 == sum(bool(item.steps) for item in done)
    assert {SCHEMA_VERSION} == {item.after for item in done}
    assert () == run(apply_schema(settings_of(database))).steps


def test_the_status_says_whether_a_storage_would_open(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would on an empty database, if it may make the tables; and so says its exit status."""
    monkeypatch.setenv("OQRON_POSTGRES__URL", database)

    def status() -> tuple[int, str]:
        result = CliRunner().invoke(schema, ["status"], catch_exceptions=False)
        return result.exit_code, result.stderr

    code, said = status()
    assert 0 == code
    assert "the first storage that opens makes them" in said
    fine, told = run(_doctor.schema(settings_of(database)))
    assert fine
    assert "the first storage that opens makes them" in told

    monkeypatch.setenv("OQRON_POSTGRES__CREATE_SCHEMA", "false")
    code, said = status()
    assert 1 == code
    assert "run `oqron schema apply`" in said

    run(enter(settings_of(database)))
    assert (0, "") == status()
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE oqron_kv AS SELECT 1 AS id")
    assert 1 == status()[0]
    monkeypatch.setenv("OQRON_POSTGRES__ALLOW_V1", "true")
    code, said = status()
    assert 0 == code
    assert "allow_v1 opens beside them" in said


def test_opening_makes_no_tables_unless_it_may(database: str) -> None:
    """It says what to run, and changes nothing."""
    settings = settings_of(database, create_schema=False)
    with pytest.raises(SchemaError, match="oqron schema apply"):
        run(enter(settings))
    assert SchemaState.EMPTY is run(schema_status(settings)).state
    run(apply_schema(settings))
    run(enter(settings))


@pytest.mark.parametrize(
    ("version", "state", "says"),
    [(0, SchemaState.OLDER, "oqron schema apply"), (999, SchemaState.NEWER, "upgrade")],
)
def test_another_version_is_refused_by_name(
    database: str, version: int, state: SchemaState, says: str
) -> None:
    """Older and newer, with the way out."""
    settings = settings_of(database)
    run(enter(settings))
    with psycopg.connect(database) as connection:
        connection.execute(
            "UPDATE oqron_meta SET value = jsonb_set(value, '{version}', %s::text::jsonb) "
            "WHERE key = 'schema'",
            (str(version),),
        )
    assert state is run(schema_status(settings)).state
    with pytest.raises(SchemaError, match=says) as caught:
        run(enter(settings))
    assert f"version {version}" in str(caught.value)
    if state is SchemaState.NEWER:
        with pytest.raises(SchemaError, match="upgrade"):
            run(apply_schema(settings))


def test_tables_of_somebody_else_are_left_alone(database: str) -> None:
    """Same names, not ours: neither opened nor changed."""
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE oqron_jobs (id int)")
    for call in (enter, apply_schema):
        with pytest.raises(SchemaError, match="not made by"):
            run(call(settings_of(database)))
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT * FROM oqron_jobs").fetchall() == []


def test_a_dropped_table_is_noticed(database: str) -> None:
    """At opening, and by a plane that is open."""

    async def main() -> None:
        async with opened(database, "oqron") as plane:
            with psycopg.connect(database) as connection:
                connection.execute("DROP TABLE oqron_runs")
            with pytest.raises(SchemaError, match="oqron schema apply"):
                await plane.count(Query(kind="run"))
            health = await plane.check()
            assert not health.ok

    run(main())
    with pytest.raises(SchemaError):
        run(enter(settings_of(database)))


PREFIXES = [
    "o",
    "My-App",
    "select",
    "é" * (MAX_PREFIX_BYTES // 2),
    'x";--',
    "a b",
    "%s %(x)s",
    ":name ::x \\:y",
    "$1${table}",
    "'",
    "{x}",
    "p" * MAX_PREFIX_BYTES,
]


@pytest.mark.parametrize("name", PREFIXES)
def test_any_prefix_and_schema_work(database: str, name: str) -> None:
    """Every statement quotes them; the names of two prefixes never meet."""

    async def main() -> None:
        for prefix in (name, name[:-1] + "z"):
            async with opened(database, prefix, schema=name) as plane:
                await plane.write(
                    [Insert("runs", "a", {"startedAt": 1}), Put("queue_job:q", "a", {"p": prefix})]
                )
                page = await plane.query(Query(kind="run", order_by=[("startedAt", "asc")]))
                assert ["a"] == [record.id for record in page]
                [record] = await plane.get("queue_job:q", ["a"])
                assert record is not None
                assert {"p": prefix} == record.value
                assert 1 == await plane.prune(Query(kind="run"))
                assert (await plane.check()).details["schemaVersion"] == SCHEMA_VERSION

    run(main())


@pytest.mark.parametrize("length", [MAX_PREFIX_BYTES + 1, 57, 58, 70])
def test_a_prefix_that_would_be_cut_is_refused(length: int) -> None:
    """PostgreSQL would make one table of two, silently."""
    with pytest.raises(InvalidValueError, match="cuts"):
        settings_of("postgresql://x", table_prefix="p" * length)


def test_the_printed_sql_is_what_is_applied(database: str, tmp_path: Path) -> None:
    """Run by psql, by hand, it makes a schema that opens."""
    from oqron_core.testing.servers import postgres_binaries

    settings = settings_of(database, create_schema=False, table_prefix="My-App", schema="a b")
    script = tmp_path / "schema.sql"
    script.write_text(schema_sql(settings), encoding="utf-8")
    folders = [folder for folder in postgres_binaries().values() if (folder / "psql").exists()]
    if not folders:
        pytest.skip("there is no psql")
    subprocess.run(
        [folders[0] / "psql", "-v", "ON_ERROR_STOP=1", "-q", "-f", script, database], check=True
    )
    run(enter(settings))
    assert () == run(apply_schema(settings)).steps


def test_the_printed_sql_begins_behind_the_version_that_is_there() -> None:
    """Nothing follows the newest one, and one beyond it is a mistake."""
    settings = settings_of("postgresql://x")
    assert "CREATE TABLE" in schema_sql(settings)
    assert f"nothing follows schema version {SCHEMA_VERSION}" in schema_sql(
        settings, since=SCHEMA_VERSION
    )
    with pytest.raises(InvalidValueError, match="since"):
        schema_sql(settings, since=SCHEMA_VERSION + 1)


def test_the_ranges_of_namespaces_are_those_of_the_taxonomy() -> None:
    """A kind that is looked for in a range of the key is all there."""
    for kind, (first, end) in NAMESPACES.items():
        assert kind is classify_namespace(first)
        if end is None:
            continue
        for name in ("", "a", "\U0010ffff"):
            assert kind is classify_namespace(first + name)
            assert first <= first + name < end
        assert classify_namespace(end) is RecordKind.RECORD


@pytest.mark.parametrize(
    "more",
    [
        {"pool_size": 0},
        {"pool_size": True},
        {"pool_timeout": 0},
        {"statement_timeout": float("nan")},
        {"synchronous_commit": "maybe"},
        {"synchronous_commit": "off", "prepared_statements": False},
        {"application_name": "é"},
        {"schema": ""},
        {"table_prefix": "a\0b"},
        {"url": "redis://localhost"},
    ],
    ids=repr,
)
def test_a_wrong_setting_is_refused(more: dict[str, Any]) -> None:
    """With the setting's name, and never with the URL."""
    with pytest.raises(InvalidValueError) as caught:
        PostgresSettings(**{"url": "postgresql://u:secret@h/d", **more})
    assert caught.value.path in more
    assert "secret" not in str(caught.value)


def test_an_unreadable_url_is_an_error_without_the_url() -> None:
    """Libpq would quote it, password and all."""
    settings = settings_of("postgresql://user:s3cret@host/db?wat=1")
    with pytest.raises(ConfigError, match=r"postgres\.url") as caught:
        run(enter(settings))
    assert "s3cret" not in repr(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert "s3cret" not in repr(settings)


# --- roles ------------------------------------------------------------------


def _as_role(url: str, role: str) -> psycopg.Connection[Any]:
    connection = psycopg.connect(url, autocommit=True)
    connection.execute(f'SET ROLE "{role}"')
    return connection


@pytest.fixture
def guarded(database: str) -> Any:
    """Give a database with rows of three scopes, and roles with a hostile name."""
    settings = settings_of(database)
    tag = database.rsplit("/", 1)[1]
    roles = {
        "reader": f"read er'\"{tag}",
        "worker": f"worker_{tag}",
        "migrator": f"migrator_{tag}",
    }

    async def fill() -> None:
        for project, namespace in (("a'b\\c", "runs"), ("other", "runs")):
            async with opened(database, "oqron", project=project) as plane:
                for name in (namespace, "queue_job:q", "cron"):
                    await plane.write([Put(name, "x", {"project": project})])

    run(fill())
    sql = roles_sql(settings, project="a'b\\c", environment="e", **roles)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(sql.encode())
        connection.execute(sql.encode())
    yield database, roles
    with psycopg.connect(database, autocommit=True) as connection:
        for role in roles.values():
            quoted = '"' + role.replace('"', '""') + '"'
            connection.execute(f"DROP OWNED BY {quoted} CASCADE".encode())
            connection.execute(f"DROP ROLE {quoted}".encode())


def _quoted(role: str) -> str:
    return role.replace('"', '""')


def test_a_reader_sees_its_own_scope_alone(guarded: tuple[str, dict[str, str]]) -> None:
    """Whatever it asks for, and it cannot write."""
    url, roles = guarded
    with _as_role(url, _quoted(roles["reader"])) as connection:
        for table in ("oqron_runs", "oqron_jobs", "oqron_records"):
            seen = connection.execute(f"SELECT project FROM {table}".encode()).fetchall()
            assert [("a'b\\c",)] == seen
            crossing = f"SELECT count(*) FROM {table} WHERE project = 'other' OR true"
            assert connection.execute(crossing.encode()).fetchone() == (1,)
            for attack in (
                f"DELETE FROM {table}",
                f"UPDATE {table} SET project = 'x'",
                f"INSERT INTO {table} SELECT * FROM {table}",
                f"TRUNCATE {table}",
                f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY",
                f"DROP TABLE {table}",
                "SELECT * FROM oqron_meta",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(attack.encode())


def test_a_worker_works_and_cannot_change_the_tables(
    guarded: tuple[str, dict[str, str]],
) -> None:
    """A storage opens and writes as that role; schema work is refused."""
    url, roles = guarded
    login = f"login_{url.rsplit('/', 1)[1]}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'w' IN ROLE {roles['worker']}")
    mine = f"postgresql://{login}:w@" + url.split("@", 1)[1]

    async def main() -> None:
        async with opened(mine, "oqron", project="other") as plane:
            assert all(await plane.write([Put("runs", "y", {}), Insert("queue_job:q", "y", {})]))
            assert 2 == await plane.count(Query(kind="run"))
            assert 2 == await plane.prune(Query(kind="run"))
            assert (await plane.check()).ok

    try:
        run(main())
        with psycopg.connect(mine, autocommit=True) as connection:
            for attack in ("DROP TABLE oqron_jobs", "CREATE INDEX ON oqron_jobs (id)"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(attack)
        with pytest.raises(StorageError):
            run(apply_schema(settings_of(mine, table_prefix="new")))
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"DROP ROLE {login}")


@pytest.fixture(params=[15, 18])
def owned(request: pytest.FixtureRequest, postgres_of: Any) -> Any:
    """Give a superuser's URL and its owner's of a database with tables, and roles' names."""
    server = postgres_of(request.param)
    tag = uuid.uuid4().hex[:12]
    owner = f"owner_{tag}"
    roles = {name: f"{name}_{tag}" for name in ("reader", "worker", "migrator")}
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {owner} LOGIN CREATEROLE PASSWORD 'o'".encode())
        connection.execute(f"CREATE DATABASE d{tag} OWNER {owner}".encode())
    url = server.url(f"d{tag}")
    mine = f"postgresql://{owner}:o@" + url.split("@", 1)[1]
    run(apply_schema(settings_of(mine)))
    yield url, mine, roles
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE d{tag} WITH (FORCE)".encode())
        for role in (*roles.values(), owner):
            connection.execute(f"DROP ROLE IF EXISTS {role}".encode())


def test_the_owner_with_createrole_may_make_the_roles(owned: tuple[str, str, Any]) -> None:
    """As the SQL says, twice, and with another reader; the owner goes on working."""
    _, mine, roles = owned
    with psycopg.connect(mine, autocommit=True) as connection:
        for project in ("p", "p", "q"):
            sql = roles_sql(settings_of(mine), project=project, environment="e", **roles)
            connection.execute(sql.encode())
        owners = connection.execute(
            "SELECT DISTINCT tableowner FROM pg_tables WHERE tablename LIKE 'oqron\\_%'"
        ).fetchall()
    assert [(roles["migrator"],)] == owners
    run(enter(settings_of(mine)))


def test_who_was_the_owner_needs_the_role_of_a_worker(owned: tuple[str, str, Any]) -> None:
    """The SQL warns of it, where a superuser runs it."""
    url, mine, roles = owned
    sql = roles_sql(settings_of(url), project="p", environment="e", **roles)
    assert f'GRANT "{roles["worker"]}" TO that role' in " ".join(sql.split())
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.encode())
        with pytest.raises(StorageError):
            run(enter(settings_of(mine)))
        owner = mine.split("//")[1].split(":")[0]
        connection.execute(f"GRANT {roles['worker']} TO {owner}".encode())
    run(enter(settings_of(mine)))


def test_roles_are_made_all_or_not_at_all(owned: tuple[str, str, Any]) -> None:
    """What fails in the middle leaves nothing behind."""
    url, _, roles = owned
    sql = roles_sql(settings_of(url), project="p", environment="e", **roles)
    assert sql.rstrip().endswith("COMMIT;")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP TABLE oqron_runs")
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute(sql.encode())
        connection.execute("ROLLBACK")
        made = connection.execute(
            "SELECT count(*) FROM pg_roles WHERE rolname = ANY (%s)", (list(roles.values()),)
        )
        assert (0,) == made.fetchone()
