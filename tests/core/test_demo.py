"""The demo: its numbers are those of the storage, and it leaves nothing behind."""

from __future__ import annotations

import json

from pathlib import Path
from typing import Any

import psycopg
import pytest

from click.testing import CliRunner, Result

from oqron_core.cli._app import cli
from oqron_core.cli.demo._equality import PLACES, Ledger, difference
from oqron_core.cli.demo._items import MAX_ATTEMPTS, Item, cast, read_items, sample


WEBHOOKS = Path(__file__).parents[3] / "shared" / "data" / "github-webhooks.jsonl"


def demo(*args: str, **options: Any) -> Result:
    result = CliRunner().invoke(cli, ["demo", *args], **options)

    assert 0 == result.exit_code, result.stderr + result.stdout
    return result


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """Give the JSON of one demo of the sample in memory mode."""
    found: dict[str, Any] = json.loads(demo("--mode", "memory", "--json").stdout)
    return found


def test_every_job_ends_and_only_the_poison_is_dead(told: dict[str, Any]) -> None:
    """Sixty payloads in three queues: all completed but one."""
    jobs = {queue: counts["completed"] for queue, counts in told["jobs"].items()}

    assert {"emails": 30, "reports": 9, "webhooks": 20, "reminders": 0} == jobs
    assert {"reports": 1} == told["deadLetters"]["perQueue"]
    assert "attempts exhausted" == told["deadLetters"]["items"][0]["reason"]
    assert 3 == told["deadLetters"]["items"][0]["attemptMade"]


def test_a_job_that_fails_twice_and_then_succeeds_has_three_runs(told: dict[str, Any]) -> None:
    """One job, one receipt for each attempt."""
    job, runs = told["timeline"]["job"], told["timeline"]["runs"]

    assert ("completed", 3) == (job["status"], job["attemptMade"])
    assert ["failed", "failed", "completed"] == [run["status"] for run in runs]
    assert [1, 2, 3] == [run["attempts"] for run in runs]
    assert job["runId"] == runs[-1]["id"]
    assert all(run["input"] == job["data"] for run in runs)


def test_runs_and_jobs_are_never_one_to_one(told: dict[str, Any]) -> None:
    """A run without a job and a job without a run are both there."""
    heartbeat, later = told["runWithoutJob"], told["jobWithoutRun"]

    assert ("cron", "heartbeat", None) == (
        heartbeat["module"],
        heartbeat["name"],
        heartbeat["jobId"],
    )
    assert ("delayed", 0, None) == (later["status"], later["attemptMade"], later["runId"])
    assert 1 == told["runsPerJob"]["0"]
    assert 61 == sum(told["runsPerJob"].values())
    assert told["runs"] == 1 + sum(int(n) * jobs for n, jobs in told["runsPerJob"].items())


def test_the_dead_workers_job_went_on_with_a_larger_token(told: dict[str, Any]) -> None:
    """Its late report changed nothing."""
    death = told["deadWorker"]
    lost, found = death["held"][0], death["takenOver"]

    assert lost["id"] == found["id"]
    assert lost["leaseToken"] < found["leaseToken"]
    assert death["workerId"] != found["workerId"]
    assert "is lost" in death["refused"]


def test_every_payload_is_equal_everywhere(told: dict[str, Any]) -> None:
    """Seven places, sixty payloads each."""
    assert {"payloads": 60, **dict.fromkeys(PLACES, 60)} == told["equal"]
    assert [] == told["different"]
    assert 0 == told["leftBehind"]


def test_the_report_for_people_says_how_each_number_was_read() -> None:
    """Tables on standard output, what happened on standard error, no colour in a pipe."""
    result = demo("--mode", "memory", "--workers", "2", env={"COLUMNS": "80"})

    assert "read by storage.jobs.counts(queue)" in result.stdout
    assert "60 payloads equal in job, claim, run, retry, dead letter" in result.stdout
    assert "worker-2 died holding" in result.stderr
    assert "\x1b" not in result.stdout + result.stderr
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert not [line for line in result.stdout.splitlines() if line != line.rstrip()]


@pytest.mark.parametrize("count", [1, 2, 3, 40])
def test_any_number_of_lines_is_worked(count: int) -> None:
    """Also where there are fewer jobs than roles or workers."""
    lines = "".join(f"{json.dumps([number, {}])}\n" for number in range(count))

    found = json.loads(demo("--mode", "memory", "--input", "-", "--json", input=lines).stdout)

    dead = sum(found["deadLetters"]["perQueue"].values())
    assert count == found["jobs"]["input"]["completed"] + dead
    assert count == found["equal"]["job"] == found["equal"]["claim"] == found["equal"]["cancel"]


def test_a_line_with_a_payload_gives_that_and_its_event(tmp_path: Path) -> None:
    """Other lines are payloads themselves; blank ones are skipped."""
    source = tmp_path / "orders.jsonl"
    source.write_text('{"event": "paid", "payload": {"n": 1.0}}\n\n{"event": "x"}\n[true]\n')

    items = read_items(source)

    assert ["orders"] * 3 == [item.queue for item in items]
    assert [{"n": 1.0}, {"event": "x"}, [True]] == [item.payload for item in items]
    assert [("paid",), (), ()] == [item.tags for item in items]
    assert ["line-0001", "line-0003", "line-0004"] == [item.id for item in items]


@pytest.mark.parametrize(
    ("text", "says"), [("", "no line of JSON"), ("\n \n", "no line"), ("1\n{\n", "line 2")]
)
def test_an_input_that_cannot_be_worked_is_refused(tmp_path: Path, text: str, says: str) -> None:
    """Before anything is added, in one line."""
    source = tmp_path / "in.jsonl"
    source.write_text(text)

    result = CliRunner().invoke(cli, ["demo", "--input", str(source)])

    assert 2 == result.exit_code
    assert says in result.stderr
    assert 1 == len(result.stderr.splitlines())


def test_the_cast_is_the_same_each_time_and_has_every_role() -> None:
    """Who fails depends on the ids alone."""
    roles = cast(sample()).failures

    assert roles == cast(list(reversed(sample()))).failures
    assert 1 == list(roles.values()).count(MAX_ATTEMPTS)
    assert 1 == list(roles.values()).count(MAX_ATTEMPTS - 1)
    assert {"q-1": 2} == cast([Item("q", "q-1", None)]).failures


@pytest.mark.parametrize(
    ("sent", "found", "where"),
    [
        ({"a": [1, 2.5, "x", None, True]}, {"a": [1, 2.5, "x", None, True]}, None),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, None),
        (1e16, 10**16, None),
        ([1], [1.0], "payload[0]"),
        ([True], [1], "payload[0]"),
        ([[]], [{}], "payload[0]"),
        ({"a": None}, {}, "payload"),
        ({"a": {"b": "x"}}, {"a": {"b": "y"}}, "payload.a.b"),
        ([1, 2], [1], "payload"),
        (0.5, 1, "payload"),
    ],
)
def test_a_difference_is_found_and_named(sent: Any, found: Any, where: str | None) -> None:
    """Types count as well as values."""
    assert where == difference(sent, found)


def test_a_ledger_is_whole_only_when_all_was_seen_equal() -> None:
    """What was not looked at is not equal."""
    ledger = Ledger({"a": [1], "b": None})
    for place in PLACES:
        ledger.compare(place, "a", [1])
        ledger.compare(place, "b", None)
    before = ledger.whole

    ledger.compare("run", "a", [1.0])

    assert before
    assert not ledger.whole
    assert 1 == ledger.equal()["run"]
    assert [{"place": "run", "id": "a", "path": "payload[0]"}] == ledger.different()
    assert not Ledger({"a": 1}).whole


def test_real_webhooks_are_equal_in_every_place() -> None:
    """All 270 payloads that others wrote come back as they were."""
    if not WEBHOOKS.exists():
        pytest.skip(f"the real input is not at {WEBHOOKS}")

    found = json.loads(demo("--mode", "memory", "--input", str(WEBHOOKS), "--json").stdout)

    assert {"payloads": 270, **dict.fromkeys(PLACES, 270)} == found["equal"]
    assert 269 == found["jobs"]["github-webhooks"]["completed"]
    assert {"github-webhooks": 1} == found["deadLetters"]["perQueue"]


# --- on servers -------------------------------------------------------------------------


def test_on_redis_nothing_is_left_behind(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo works in a scope of its own, and takes it away again."""
    monkeypatch.setenv("OQRON_REDIS__URL", redis_url)

    found = json.loads(demo("--mode", "redis", "--json").stdout)

    assert found["project"].startswith("oqron-demo-")
    assert 0 == found["leftBehind"]
    assert {"payloads": 60, **dict.fromkeys(PLACES, 60)} == found["equal"]
    counts = CliRunner().invoke(
        cli, ["jobs", "counts", "--mode", "redis", "--project", found["project"], "--json"]
    )
    assert {"items": []} == json.loads(counts.stdout)


def test_the_sql_that_it_shows_gives_the_numbers_that_it_shows(
    redis_url: str, postgres_url: str, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has only SQL reads the same."""
    monkeypatch.setenv("OQRON_REDIS__URL", redis_url)
    monkeypatch.setenv("OQRON_POSTGRES__URL", postgres_url)
    args = ["--mode", "redis-postgres", "--keep", "--project", project, "--json"]

    found = json.loads(demo(*args).stdout)

    def ask(name: str) -> list[tuple[Any, ...]]:
        sql = found["readBy"][name]["sql"]
        for word in ("project", "environment", "id"):
            sql = sql.replace(f":{word}", f"%({word})s")
        values = {
            "project": project,
            "environment": found["environment"],
            "id": found["timeline"]["job"]["id"],
        }
        with psycopg.connect(postgres_url) as connection:
            return connection.execute(sql, values).fetchall()

    jobs = {(namespace, status): count for namespace, status, count in ask("jobs")}
    assert found["jobs"]["emails"]["completed"] == jobs["queue_job:emails", "completed"]
    assert found["deadLetters"]["perQueue"]["reports"] == jobs["queue_dlq:reports", "failed"]
    assert found["runs"] == sum(count for _, count in ask("runs"))
    assert [run["id"] for run in found["timeline"]["runs"]] == [
        row[0]["id"] for row in ask("timeline")
    ]
    assert ["queue_dlq:reports"] == [namespace for namespace, _ in ask("deadLetters")]
    assert found["throughput"]["milliseconds"] == ask("throughput")[0][0]


def test_a_project_that_holds_jobs_is_left_alone(
    redis_url: str, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demo does not mix its jobs with those of others."""
    monkeypatch.setenv("OQRON_REDIS__URL", redis_url)
    args = ["--mode", "redis", "--project", project]
    CliRunner().invoke(cli, ["jobs", "add", "emails", "1", "--id", "mine", *args])

    result = CliRunner().invoke(cli, ["demo", "--keep", *args])
    mine = CliRunner().invoke(cli, ["jobs", "show", "emails", "mine", *args, "--json"])

    assert 1 == result.exit_code
    assert "holds jobs already" in result.stderr
    assert "waiting" == json.loads(mine.stdout)["job"]["status"]
