"""The queries of the dashboards page run, answer right, and are served by indexes."""

from __future__ import annotations

import re

from collections.abc import Callable, Iterator
from pathlib import Path
from string import Template
from typing import Any

import attrs
import psycopg
import pytest

from fix_postgres import opened, run

from oqron_core.planes import Delete, Insert, Patch, Query
from oqron_core.taxonomy import RecordKind
from oqron_core.testing.servers import PostgresServer
from oqron_postgres._query import segments_of, shape_of
from oqron_postgres._statements import Returning
from oqron_postgres._write import dumps


PAGE = Path(__file__).parents[2] / "docs" / "dashboards.md"
RUNS, JOBS, MESSAGES = 60_000, 20_000, 5_000

QUERIES: dict[str, str] = dict(
    re.findall(
        r"^### ([^\n]+)\n.*?```sql\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
)
PUBLISHED = list(QUERIES)[:5]

_RUNS_OF = "SELECT value FROM oqron_runs WHERE project = 'my-app' AND environment = 'production' "
THE_MODELS_OWN = [
    _RUNS_OF + "AND value->>'status' = 'failed' "
    "ORDER BY (value->>'startedAt')::numeric DESC LIMIT 50;",
    _RUNS_OF + "AND id = '<run-id>';",
    _RUNS_OF + "AND record_kind = 'message' AND namespace = 'topic_msg:order-events' "
    "ORDER BY (value->>'publishedAt')::numeric DESC LIMIT 50;",
    (
        "SELECT namespace, count(*) FROM oqron_jobs WHERE project = 'my-app' AND environment "
        "= 'production' AND record_kind = 'dlq' GROUP BY namespace;"
    ),
    (
        "SELECT namespace, id, value FROM oqron_records WHERE project = 'my-app' AND "
        "environment = 'production' AND record_kind = 'definition';"
    ),
]
"""The five, with single spaces."""

FILL = """
INSERT INTO oqron_runs
SELECT project, environment, 'runs', 'run', project || environment || lpad(n::text, 8, '0'),
  jsonb_build_object(
    'id', n::text, 'name', (ARRAY['emails', 'reports', 'sync'])[1 + n % 3],
    'module', (ARRAY['queue', 'cron'])[1 + n % 2],
    'status', CASE WHEN n % 50 = 0 THEN 'failed' WHEN n % 9999 = 1 THEN 'running'
      ELSE 'completed' END,
    'startedAt', at, 'endedAt', at + n % 700, 'durationMs', n % 700,
    'error', CASE WHEN n % 50 = 0 THEN 'SMTP ' || n % 7 END,
    'workerId', 'w' || n % 5, 'attempts', 1, 'logs', '[]'::jsonb,
    'input', jsonb_build_object('pad', repeat('x', 200))),
  at, CASE WHEN n % 2 = 0 THEN at + 86400000 END
FROM (VALUES ('my-app', 'production'), ('my-app', 'staging'),
  ('other', 'production'), ('other', 'staging')) AS s(project, environment),
generate_series(1, $runs) AS n,
LATERAL (SELECT floor(extract(epoch FROM now()) * 1000)::bigint - n * 2000 AS at) AS t;

INSERT INTO oqron_runs
SELECT project, 'production', 'topic_msg:' || topic, 'message', 'm' || lpad(n::text, 8, '0'),
  jsonb_build_object('id', n::text, 'topic', topic, 'publishedAt', n, 'message', '{}'::jsonb),
  n, NULL
FROM (VALUES ('my-app'), ('other')) AS s(project),
(VALUES ('order-events'), ('other-events')) AS t(topic), generate_series(1, $messages) AS n;

INSERT INTO oqron_jobs
SELECT project, 'production', kind || queue,
  CASE kind WHEN 'queue_job:' THEN 'job' ELSE 'dlq' END, lpad(n::text, 8, '0'),
  jsonb_build_object('status', (ARRAY['waiting', 'active'])[1 + n % 2], 'createdAt', n,
    'attemptMade', n % 4, 'deadAt', n, 'reason', 'retries', 'error', 'no'),
  n, CASE WHEN kind = 'queue_job:' AND n % 4 > 0 THEN 4102444800000 END
FROM (VALUES ('my-app'), ('other')) AS s(project),
(VALUES ('emails', 'queue_job:', $jobs), ('reports', 'queue_job:', 2000),
  ('emails', 'queue_dlq:', 700), ('reports', 'queue_dlq:', 30)) AS q(queue, kind, top),
LATERAL generate_series(1, q.top) AS n;

INSERT INTO oqron_records
SELECT project, 'production', namespace, kind, n::text,
  jsonb_build_object('nextRunAt', CASE WHEN n % 2 = 0 THEN n END), n, NULL
FROM (VALUES ('my-app'), ('other')) AS s(project),
(VALUES ('cron', 'definition', 100), ('schedule', 'definition', 50), ('queue', 'control', 500),
  ('module_logs:x', 'log', 8000)) AS q(namespace, kind, top),
LATERAL generate_series(1, q.top) AS n;
"""


def _filled(server: PostgresServer, name: str, *, analysed: bool) -> str:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    url = server.url(name)

    async def make() -> None:
        async with opened(url, "oqron"):
            pass

    run(make())
    with psycopg.connect(url, autocommit=True) as connection:
        for table in ("oqron_runs", "oqron_jobs", "oqron_records"):
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)".encode())
        fill = Template(FILL).substitute(runs=RUNS // 4, messages=MESSAGES // 4, jobs=JOBS // 2)
        connection.execute(fill.encode())
        if analysed:
            connection.execute("VACUUM ANALYZE")
    return url


@pytest.fixture(scope="module")
def filled(postgres_of: Any) -> Callable[[int, bool], str]:
    """Give the filled database of a server, made when first asked for."""
    made: dict[tuple[int, bool], str] = {}

    def give(major: int, analysed: bool) -> str:
        if (major, analysed) not in made:
            name = "analysed" if analysed else "fresh"
            made[major, analysed] = _filled(postgres_of(major), name, analysed=analysed)
        return made[major, analysed]

    return give


@pytest.fixture(params=[15, 18])
def large(request: pytest.FixtureRequest, filled: Callable[[int, bool], str]) -> str:
    """Give a database with statistics, as it is after the first vacuum."""
    return filled(request.param, True)


@pytest.fixture(params=[15, 18])
def fresh(request: pytest.FixtureRequest, filled: Callable[[int, bool], str]) -> str:
    """Give a database that has just been loaded and never analysed."""
    return filled(request.param, False)


@pytest.fixture(params=[(15, True), (15, False), (18, True), (18, False)], ids=str)
def either(request: pytest.FixtureRequest, filled: Callable[[int, bool], str]) -> str:
    """Give both, one after the other."""
    return filled(*request.param)


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def _explain(url: str, sql: bytes, params: Any = None) -> tuple[list[str], int]:
    """Run a query and give its scans of tables, and the pages it touched."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + sql, params
        ).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    scans = [
        f"{node['Node Type']} {node.get('Index Name') or node['Relation Name']}"
        for node in _nodes(plan)
        if "Index Name" in node or node["Node Type"] == "Seq Scan"
    ]
    return scans, plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def test_the_page_has_the_published_queries_and_ten_more() -> None:
    """Word for word, as the storage model states them."""
    assert len(QUERIES) >= 15
    squeezed = {" ".join(sql.split()) for sql in QUERIES.values()}
    for published in THE_MODELS_OWN:
        assert published in squeezed


@pytest.mark.parametrize("title", PUBLISHED)
def test_a_published_query_reads_an_index_and_few_pages(large: str, title: str) -> None:
    """No sequential scan, under 200 pages."""
    scans, pages = _explain(large, QUERIES[title].encode())

    assert scans
    assert not [scan for scan in scans if scan.startswith("Seq")]
    assert pages < 200


@pytest.mark.parametrize("title", PUBLISHED)
def test_a_published_query_reads_an_index_without_statistics(fresh: str, title: str) -> None:
    """In the first minute of load as well."""
    scans, pages = _explain(fresh, QUERIES[title].encode())

    assert scans
    assert not [scan for scan in scans if scan.startswith("Seq")]
    assert pages < 400


@pytest.mark.parametrize("title", list(QUERIES)[5:])
def test_a_further_query_has_the_plan_that_the_page_gives(large: str, title: str) -> None:
    """By one of the indexes that are named under it."""
    section = PAGE.read_text("utf-8").split(f"### {title}\n")[1].split("\n### ")[0]
    plan = section.split("```")[2].split("Plan:")[1].split("\n## ")[0]
    named = set(re.findall(r"`(oqron_\w+)`", plan))
    if "primary key" in plan:
        named.add("oqron_jobs_pkey")
    scans, _ = _explain(large, QUERIES[title].encode())

    assert named
    assert {scan.split(" ")[-1] for scan in scans} <= named


def test_the_queries_answer_what_is_there(large: str) -> None:
    """And so does the plane, asked the same."""
    with psycopg.connect(large, autocommit=True) as connection:

        def ask(title: str) -> list[tuple[Any, ...]]:
            return connection.execute(QUERIES[title].encode()).fetchall()

        failed = [row[0]["id"] for row in ask("Failed runs, most recent first")]
        depth = dict(ask("Dead-letter depth per queue"))
        definitions = ask("Every definition the app runs")
        messages = [row[0]["id"] for row in ask("Retained log of one topic, newest first")]
        rates = ask("Failure rate per hour, over a day")

    async def main() -> None:
        async with opened(large, "oqron", project="my-app", environment="production") as plane:
            page = await plane.query(
                Query(
                    kind="run",
                    where=[("status", "=", "failed")],
                    order_by=[("startedAt", "desc")],
                    limit=50,
                )
            )
            assert failed == [record.value["id"] for record in page]
            assert depth == await plane.count(Query(kind="dlq"), by="namespace")
            assert len(definitions) == await plane.count(Query(kind="definition"))
            page = await plane.query(
                Query(
                    namespace="topic_msg:order-events",
                    order_by=[("publishedAt", "desc")],
                    limit=50,
                )
            )
            assert messages == [record.value["id"] for record in page]

    run(main())
    assert {"queue_dlq:emails": 700, "queue_dlq:reports": 30} == depth
    assert 150 == len(definitions)
    assert 50 == len(failed) == len(messages)
    assert all(row[1] >= row[2] for row in rates)


def test_finished_jobs_that_never_expire_are_not_open(database: str) -> None:
    """Whoever keeps them for ever still wants to know what is left to do."""

    async def main() -> None:
        async with opened(database, "oqron", project="my-app", environment="production") as plane:
            statuses = ("waiting", "completed", "failed", "cancelled")
            await plane.write([Insert("queue_job:q", s, {"status": s}) for s in statuses])

    run(main())
    with psycopg.connect(database) as connection:
        by_status = connection.execute(QUERIES["Jobs per queue and status"].encode()).fetchall()
        retries = connection.execute(QUERIES["Retries per queue"].encode()).fetchall()
    assert [("queue_job:q", "waiting", 1)] == by_status
    assert [("queue_job:q", 1, 0, None)] == retries


# --- what the plane itself sends ---------------------------------------------------


def _statements(url: str) -> Any:
    """Collect what the plane sends for its own queries: name, SQL, parameters."""
    sent: list[tuple[str, bytes, dict[str, Any]]] = []

    async def main() -> None:
        async with opened(url, "oqron", project="my-app", environment="production") as plane:
            composer = plane._core.composer
            for name, query in {
                "failed runs": Query(
                    kind="run",
                    where=[("status", "=", "failed")],
                    order_by=[("startedAt", "desc")],
                ),
                "latest runs": Query(kind="run", order_by=[("startedAt", "desc")]),
                "oldest runs": Query(kind="run", order_by=[("startedAt", "asc")]),
                "runs of a queue since": Query(
                    kind="run",
                    where=[("name", "=", "emails"), ("startedAt", ">=", 5)],
                    order_by=[("startedAt", "desc")],
                ),
                "jobs by id": Query(namespace="queue_job:emails", limit=100),
                "messages": Query(
                    namespace="topic_msg:order-events", order_by=[("publishedAt", "desc")]
                ),
            }.items():
                shape = shape_of(query)
                page = await plane.query(query)
                assert page.next is not None, name
                for after in (None, page.next):
                    asked = attrs.evolve(query, after=after)
                    segment, _ = segments_of(asked, shape)[0]
                    statement = composer.page(
                        attrs.evolve(shape, segment=segment, after=after is not None)
                    )
                    params = composer.parameters(asked, plane.scope, shape)
                    params |= composer.cursor_parameters(asked) | {"limit": 51}
                    sent.append((name, statement.raw, params))

    run(main())
    return sent


def test_pages_are_read_from_an_index(either: str) -> None:
    """The first and the next ones; no sort of everything, under 200 pages."""
    for name, sql, params in _statements(either):
        scans, pages = _explain(either, sql, params)

        assert not [scan for scan in scans if not scan.startswith("Index")], (name, scans)
        assert pages < 200, (name, scans)


@pytest.mark.parametrize("kind", ["get", "patch", "delete", "lock"])
def test_batches_by_id_probe_the_primary_key(either: str, kind: str) -> None:
    """With statistics and without: one probe an id, and never a walk."""
    url = either

    async def main() -> tuple[bytes, bytes]:
        async with opened(url, "oqron", project="my-app", environment="production") as plane:
            ids = [f"{number:08}" for number in range(1, 201)]
            if kind == "patch":
                batch = plane._batch([Patch("queue_job:emails", i, set={"x": 1}) for i in ids], ())
            else:
                batch = plane._batch([Delete("queue_job:emails", i) for i in ids], ())
            [step] = batch.steps(batch.items)
            book = plane._core.connection.book
            if kind in {"get", "lock"}:
                rows = [
                    {"o": n, "n": item.write.namespace, "i": item.write.id}
                    for n, item in enumerate(batch.items)
                ]
                chosen = book.get if kind == "get" else book.lock
                more = (Returning.ALL,) if kind == "get" else ()
                return chosen(batch.items[0].table, *more).raw, dumps(rows)
            return step.statement.raw, step.params["doc"]

    sql, document = run(main())
    params = {"project": "my-app", "environment": "production", "doc": document.decode()}
    with psycopg.connect(url) as connection:
        row = connection.execute(
            b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + sql, params
        ).fetchone()
        connection.rollback()
    assert row is not None
    for node in _nodes(row[0][0]["Plan"]):
        assert "Seq Scan" != node["Node Type"]
        if node["Node Type"] == "Index Scan":
            assert "oqron_jobs_pkey" == node["Index Name"]
            assert 200 == node["Actual Loops"]


@pytest.mark.parametrize(
    ("analysed", "kind", "index"),
    [
        (True, "run", "oqron_runs_exp"),
        (True, "job", "oqron_jobs_exp"),
        (False, "run", "oqron_runs_exp"),
        (False, "job", "oqron_jobs_exp"),
        (False, "dlq", "oqron_jobs_exp"),
        (False, "log", "oqron_records_exp"),
    ],
)
@pytest.mark.parametrize("major", [15, 18])
def test_pruning_follows_the_index_of_what_expires(
    filled: Callable[[int, bool], str], major: int, analysed: bool, kind: str, index: str
) -> None:
    """And deletes by the place of the rows; a step never sorts all that has expired."""
    url = filled(major, analysed)

    async def main() -> tuple[bytes, dict[str, Any]]:
        async with opened(url, "oqron", project="my-app", environment="production") as plane:
            query = Query(kind=RecordKind(kind), where=[("expires_at", "<=", 4_200_000_000_000)])
            shape = shape_of(query, whole=True)
            composer = plane._core.composer
            params = composer.parameters(query, plane.scope, shape) | {"limit": 1000}
            return composer.prune(shape).raw, params

    sql, params = run(main())
    with psycopg.connect(url) as connection:
        # Many more than a step takes.
        table = index.removesuffix("_exp")
        connection.execute(
            f"UPDATE {table} SET expires_at = 1 "
            "WHERE project = 'my-app' AND record_kind = %s AND expires_at IS NULL",
            (kind,),
        )
        row = connection.execute(
            b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + sql, params
        ).fetchone()
        connection.rollback()
    assert row is not None
    nodes = list(_nodes(row[0][0]["Plan"]))
    scans = {
        (node["Node Type"], node.get("Index Name")) for node in nodes if "Relation Name" in node
    }
    assert ("Index Scan", index) in scans
    assert not [scan for scan in scans if scan[0] == "Seq Scan"]
    assert not [node for node in nodes if node["Node Type"] == "Sort"]


def test_counts_of_dead_letters_come_from_the_index_alone(large: str) -> None:
    """As they are shown often."""
    scans, _ = _explain(large, QUERIES["Dead-letter depth per queue"].encode())

    assert ["Index Only Scan oqron_jobs_dlq"] == scans
