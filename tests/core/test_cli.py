"""The ``oqron`` command: what it prints where, its exit status, its errors."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from click.testing import CliRunner, Result

from oqron_core import open_storage
from oqron_core._plugins import DoctorCheck, Plugins
from oqron_core.cli._app import cli
from oqron_core.planes.capabilities import CONTRACT_VERSION


Invoke = Callable[..., Result]


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder without settings of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("OQRON_") and not name.startswith("OQRON_TEST_"):
            monkeypatch.delenv(name)


@pytest.fixture
def invoke() -> Invoke:
    """Run the command in this process."""

    def run(*args: str, **options: Any) -> Result:
        return CliRunner().invoke(cli, list(args), **options)

    return run


@pytest.fixture
def on_redis(
    redis_url: str, project: str, monkeypatch: pytest.MonkeyPatch, invoke: Invoke
) -> Invoke:
    """Run the command on a Redis server, in a project of its own."""
    monkeypatch.setenv("OQRON_MODE", "redis")
    monkeypatch.setenv("OQRON_REDIS__URL", redis_url)
    monkeypatch.setenv("OQRON_PROJECT", project)
    return invoke


def run_program(*args: str, code: str | None = None, **options: Any) -> Any:
    """Run the command as a process of its own."""
    start = ["-m", "oqron_core.cli"] if code is None else ["-c", code]
    return subprocess.run(
        [sys.executable, *start, *args],
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
        **options,
    )


def document(result: Result) -> Any:
    """Give what stood on standard output, which must be one JSON document."""
    assert 0 == result.exit_code, result.stderr

    return json.loads(result.stdout)


def one_line(result: Any) -> str:
    """Give the one line that stood on standard error."""
    lines = [line for line in result.stderr.splitlines() if "lives in this process" not in line]

    assert 1 == len(lines), result.stderr
    assert lines[0].startswith("oqron: ")
    return str(lines[0])


# --- being there or not ------------------------------------------------------------


def test_importing_the_core_imports_neither_click_nor_rich() -> None:
    """Who uses the library does not pay for the command."""
    code = (
        "import sys, oqron_core, oqron_core.sync;"
        "print(sorted({'click', 'rich'} & set(sys.modules)))"
    )

    assert "[]\n" == run_program(code=code).stdout


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_a_missing_extra_is_one_line_that_says_what_to_install(missing: str) -> None:
    """Without the extra the command names it, and shows no traceback."""
    code = (
        f"import sys; sys.modules['{missing}'] = None\n"
        "from oqron_core.cli import main; main(['plugins'])"
    )

    result = run_program(code=code)

    assert 1 == result.returncode
    assert one_line(result).endswith("pip install 'oqron-core[cli]'")


def test_an_error_of_import_that_is_not_the_extra_is_not_hidden() -> None:
    """Only click and rich are explained by the extra."""
    code = (
        "import sys; sys.modules['orjson'] = None\n"
        "from oqron_core.cli import main; main(['plugins'])"
    )

    result = run_program(code=code)

    assert 0 != result.returncode
    assert "orjson" in result.stderr
    assert "oqron-core[cli]" not in result.stderr


@pytest.mark.parametrize("args", [[], ["jobs"], ["dlq"]], ids=["oqron", "jobs", "dlq"])
def test_a_group_without_a_command_shows_its_help(invoke: Invoke, args: list[str]) -> None:
    """Who does not know what to type is told, in lines and not in one."""
    result = invoke(*args)

    assert "Commands:\n" in result.output


# --- JSON ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        ["plugins"],
        ["plan"],
        ["doctor"],
        ["classify", "runs"],
        ["jobs", "add", "q", "[1]"],
        ["jobs", "list", "q"],
        ["jobs", "counts"],
        ["jobs", "counts", "q"],
        ["jobs", "pause", "q"],
        ["runs", "list"],
        ["dlq", "list"],
        ["dlq", "list", "q"],
        ["prune"],
        ["prune", "--dry-run"],
        ["rebuild-hot"],
    ],
    ids=" ".join,
)
def test_json_is_the_only_thing_on_standard_output(invoke: Invoke, args: list[str]) -> None:
    """Notes go to standard error, so that standard output can be piped."""
    assert isinstance(document(invoke(*args, "--json")), dict)


def test_plugins_lists_the_installed_backends(invoke: Invoke) -> None:
    """The listing says who serves which plane, and for which contract."""
    found = document(invoke("plugins", "--json"))

    memory = next(item for item in found["items"] if item["name"] == "memory")
    assert CONTRACT_VERSION == found["contractVersion"]
    assert ["hot", "durable"] == memory["planes"]
    assert memory["ok"]


def test_classify_answers_for_each_namespace(invoke: Invoke) -> None:
    """Kind and table are those of the taxonomy."""
    found = document(invoke("classify", "queue_job:emails", "runs", "mine", "--json"))

    assert [
        ("queue_job:emails", "job", "jobs", "oqron_jobs"),
        ("runs", "run", "runs", "oqron_runs"),
        ("mine", "record", "records", "oqron_records"),
    ] == [tuple(item.values()) for item in found["items"]]


def test_plan_says_what_memory_can_and_cannot(invoke: Invoke) -> None:
    """Features are native, emulated or refused; durability is told per record kind."""
    found = document(invoke("plan", "--mode", "memory", "--json"))

    support = {(item["plane"], item["name"]): item["support"] for item in found["features"]}
    assert "native" == support["durable", "atomic batches"]
    assert "refused" == support["durable", "jobs in the caller's transaction"]
    assert {"process"} == set(found["durability"].values())
    assert 9 == len(found["durability"])
    lost = {item["event"]: item["lost"] for item in found["losses"]}
    assert {"worker", "processes"} == set(lost)
    assert lost["processes"].startswith("everything")


def test_doctor_shows_settings_with_their_sources(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a setting came from is half of what one wants to know."""
    monkeypatch.setenv("OQRON_RUNS__BUFFER", "7")

    found = document(invoke("doctor", "--project", "shop", "--json"))

    assert found["ok"]
    assert {"value": 7, "source": "OQRON_RUNS__BUFFER"} == found["settings"]["runs.buffer"]
    assert "shop" == found["settings"]["project"]["value"]
    assert [True, True] == [plane["ok"] for plane in found["planes"]]


def test_the_doctor_names_a_server_that_is_away_once(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With address and reason; what hangs on it is skipped, and no cause is lost in rows."""
    monkeypatch.setenv("OQRON_MODE", "redis")
    monkeypatch.setenv("OQRON_REDIS__URL", "redis://me:s3cret@127.0.0.1:1/0")
    monkeypatch.setenv("OQRON_REDIS__RETRIES", "0")

    result = invoke("doctor")

    assert 1 == result.exit_code
    assert 1 == result.stdout.count("127.0.0.1:1: connection refused")
    assert 6 == result.stdout.count("skipped")
    assert "s3cret" not in result.output
    found = json.loads(invoke("doctor", "--json").stdout)
    assert {False} == {check["ok"] for check in found["checks"]}


def test_what_is_piped_is_neither_folded_nor_cut(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that grep finds a line; who sets COLUMNS has a width of their own."""
    monkeypatch.delenv("COLUMNS", raising=False)
    sentence = "what is said of it " * 20

    async def check(_: Any) -> tuple[bool, str]:
        return True, sentence

    fine = DoctorCheck(plugin="mine", name="my check", check=check)
    monkeypatch.setattr(Plugins, "doctor_checks", lambda _: [fine])

    wide = invoke("doctor", "--mode", "memory").stdout
    narrow = invoke("doctor", "--mode", "memory", env={"COLUMNS": "60"}).stdout

    assert sentence.strip() in wide
    assert sentence.strip() not in narrow
    assert max(map(len, narrow.splitlines())) <= 60
    for key in document(invoke("doctor", "--mode", "memory", "--json"))["settings"]:
        assert re.search(f"^{re.escape(key)} ", narrow, re.MULTILINE), key


def test_a_setting_of_several_values_is_shown_as_it_is(invoke: Invoke) -> None:
    """Also where there are none."""
    found = invoke("doctor", "--mode", "redis", env={"OQRON_REDIS__URL": "redis://127.0.0.1:1/0"})

    assert re.search(r"redis\.sentinels +\[\] +default", found.stdout)


def test_a_check_of_the_doctor_may_warn(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """It serves, so it is no trouble, in the row of a check as in that of a plane."""

    async def check(_: Any) -> tuple[None, str]:
        return None, "look after it"

    warning = DoctorCheck(plugin="mine", name="my check", check=check)
    monkeypatch.setattr(Plugins, "doctor_checks", lambda _: [warning])

    result = invoke("doctor", "--mode", "memory")

    assert 0 == result.exit_code
    assert re.search("my check +warning +look after it", result.stdout)
    (found,) = document(invoke("doctor", "--mode", "memory", "--json"))["checks"]
    assert {"what": "my check", "ok": True, "warns": True, "says": "look after it"} == found


def test_a_mode_that_was_forgotten_is_warned_of(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Settings of a server that nobody uses look like a mistake; a mode that is named does not."""
    monkeypatch.setenv("OQRON_REDIS__URL", "redis://127.0.0.1:1/0")
    invoke("queues")
    assert "set mode" in caplog.text
    caplog.clear()
    invoke("queues", "--mode", "memory")
    assert "set mode" not in caplog.text


def test_options_may_stand_before_or_after_the_name_of_the_command(invoke: Invoke) -> None:
    """The last one given wins."""
    before = document(invoke("--project", "a", "doctor", "--json"))
    both = document(invoke("--project", "a", "doctor", "--project", "b", "--json"))

    assert "a" == before["settings"]["project"]["value"]
    assert "b" == both["settings"]["project"]["value"]


def test_config_reads_the_named_file_only(invoke: Invoke, tmp_path: Path) -> None:
    """A file that was named wins over the one that lies near."""
    (tmp_path / "oqron.toml").write_text('project = "near"\n')
    (tmp_path / "other.toml").write_text('project = "named"\n')

    found = document(invoke("doctor", "--config", "other.toml", "--json"))

    assert "named" == found["settings"]["project"]["value"]


# --- errors --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["jobs", "ad"], "Did you mean 'add'"),
        (["jobs", "list"], "Missing argument 'QUEUE'"),
        (["--mode", "rediss", "plan"], "memory"),
        (["jobs", "add", "q", "{"], "no JSON"),
        (["jobs", "add", "q", "hello"], "quotes"),
        (["jobs", "add", "q", "NaN"], "NaN is no JSON"),
        (["jobs", "add", "q", "1e999"], "finite"),
        (["jobs", "add", "q", "123456789012345678901234567890"], "64 bits"),
        (["jobs", "add", "", "1"], "must not be empty"),
        (["jobs", "add", "q", "1", "--max-attempts", "0"], "1 to 1000"),
        (["jobs", "add", "q", "1", "--jsonl", "-"], "leave DATA"),
        (["jobs", "list", "q", "--status", "asleep"], "waiting"),
        (["jobs", "list", "q", "--after", "nonsense"], "cursor"),
        (["runs", "list", "--since", "yesterday"], "15m"),
        (["dlq", "requeue", "q"], "--all"),
        (["dlq", "requeue", "q", "a", "--all"], "--all"),
        (["demo", "--workers", "1"], "2<=x<=64"),
        (["demo", "--project", "shop"], "--keep"),
        (["demo", "--input", "absent.jsonl"], "does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_status_2_and_one_line(invoke: Invoke, args: list[str], says: str) -> None:
    """Whoever asked wrongly reads one sentence, with the mend."""
    result = invoke(*args)

    assert 2 == result.exit_code, result.stderr
    assert says in one_line(result)
    assert "" == result.stdout


def test_wrong_settings_are_status_2_with_a_suggestion(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is wrong with the settings fits one line."""
    monkeypatch.setenv("OQRON_ENVIROMENT", "prod")
    monkeypatch.setenv("OQRON_RUNS__BUFFER", "many")

    result = invoke("jobs", "list", "q")

    assert 2 == result.exit_code
    assert 'did you mean "OQRON_ENVIRONMENT"' in one_line(result)
    assert "runs.buffer" in one_line(result)


@pytest.mark.parametrize(
    "args",
    [
        ["jobs", "show", "q", "absent"],
        ["jobs", "cancel", "q", "absent"],
        ["runs", "show", "absent"],
        ["dlq", "requeue", "q", "absent"],
    ],
    ids=" ".join,
)
def test_what_is_not_there_is_status_1(invoke: Invoke, args: list[str]) -> None:
    """The store has no such thing, and the line says where to look."""
    result = invoke(*args)

    assert 1 == result.exit_code
    assert "absent" in one_line(result)
    assert "oqron" in one_line(result).removeprefix("oqron: ")


def closed_port() -> int:
    """Give a port at which nothing answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize(
    "args", [["jobs", "list", "q"], ["plan"], ["doctor"], ["demo"]], ids=" ".join
)
def test_a_server_that_is_away_is_status_1_without_secrets(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, args: list[str]
) -> None:
    """No output holds a password, neither does the traceback that --debug shows."""
    port = closed_port()
    monkeypatch.setenv("OQRON_MODE", "redis-postgres")
    monkeypatch.setenv("OQRON_REDIS__URL", f"redis://me:hot-secret@127.0.0.1:{port}/0")
    monkeypatch.setenv("OQRON_REDIS__RETRIES", "0")
    monkeypatch.setenv("OQRON_POSTGRES__URL", f"postgresql://me:cold-secret@127.0.0.1:{port}/x")

    plain, loud = invoke(*args), invoke(*args, "--debug")

    assert 1 == plain.exit_code == loud.exit_code
    assert "Traceback" not in plain.stderr
    for result in (plain, loud):
        assert "secret" not in result.stdout + result.stderr


def test_debug_shows_where_it_failed(invoke: Invoke) -> None:
    """A traceback is there for those who ask."""
    result = invoke("jobs", "add", "q", "{", "--debug")

    assert 2 == result.exit_code
    assert "Traceback" in result.stderr


def test_a_closed_pipe_ends_it_quietly() -> None:
    """Whoever read has had enough; that is no error to print."""
    process = subprocess.Popen(
        [sys.executable, "-m", "oqron_core.cli", "plugins", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr as stderr:
        said = stderr.read()

    assert 141 == process.wait(timeout=30)
    assert b"" == said


def test_an_interrupt_is_status_130_and_one_line(tmp_path: Path) -> None:
    """Ctrl-C in the middle of the demo shows no traceback."""
    source = tmp_path / "many.jsonl"
    source.write_text("".join(f'{{"n": {number}}}\n' for number in range(5000)))
    process = subprocess.Popen(
        [sys.executable, "-m", "oqron_core.cli", "demo", "--input", str(source)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert "jobs added" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)

    assert 130 == process.returncode
    assert "" == stdout
    assert "Traceback" not in stderr
    assert "oqron: interrupted" == stderr.splitlines()[-1]


def test_memory_says_that_what_is_there_is_gone_at_the_end(invoke: Invoke) -> None:
    """An empty answer of a store that lives in this process is explained."""
    result = invoke("jobs", "list", "q")

    assert 0 == result.exit_code
    assert "lives in this process only" in result.stderr
    assert "--mode redis-postgres" in result.stderr


def test_control_characters_in_names_do_not_reach_the_terminal(invoke: Invoke) -> None:
    """A queue name cannot steer the terminal of whoever lists it."""
    result = invoke("jobs", "pause", "a\x1b[31m\nb")

    assert 0 == result.exit_code
    assert "\x1b" not in result.stdout
    assert 1 == len(result.stdout.splitlines())


# --- a store that stays ---------------------------------------------------------------


def test_what_is_piped_is_neither_cut_nor_folded(on_redis: Invoke) -> None:
    """Every value of a job stands in one line, however long it is."""
    tags = [f"a-rather-long-label-{number:02d}" for number in range(12)]
    args = [part for tag in tags for part in ("--tag", tag)]
    assert 0 == on_redis("jobs", "add", "emails", "1", "--id", "long", *args).exit_code
    lines = on_redis("jobs", "show", "emails", "long").stdout.splitlines()

    assert any(", ".join(tags) in line for line in lines)


def test_a_job_is_added_shown_counted_and_cancelled(on_redis: Invoke) -> None:
    """The payload comes back as it was typed, types included."""
    payload = {"to": "zoë@example.org", "n": [1, 1.5, True, None, [], {}], "big": 2**53 + 1}
    text = json.dumps(payload)

    added = document(
        on_redis(
            "jobs", "add", "emails", text, "--id", "a", "--priority", "-5", "--max-attempts", "2",
            "--tag", "x", "--tag", "y", "--correlation-id", "c", "--json",
        )
    )  # fmt: skip
    shown = document(on_redis("jobs", "show", "emails", "a", "--json"))
    counted = document(on_redis("jobs", "counts", "--json"))
    cancelled = document(on_redis("jobs", "cancel", "emails", "a", "--json"))

    assert ("waiting", False) == (added["status"], added["duplicate"])
    assert json.dumps(payload) == json.dumps(shown["job"]["data"])
    assert (-5, 2, ["x", "y"], "c") == tuple(
        shown["job"][name] for name in ("priority", "maxAttempts", "tags", "correlationId")
    )
    assert [] == shown["runs"]
    assert ("emails", 1) == (counted["items"][0]["queueName"], counted["items"][0]["waiting"])
    assert [{"id": "a", "cancelled": True}] == cancelled["items"]


def test_adding_a_taken_id_changes_nothing_and_says_so(on_redis: Invoke) -> None:
    """It is safe to repeat, so it is no failure."""
    on_redis("jobs", "add", "q", "1", "--id", "a")

    result = on_redis("jobs", "add", "q", "2", "--id", "a", "--json")

    assert 1 == document(result)["data"]
    assert document(result)["duplicate"]
    assert "already" in result.stderr


def test_lists_go_on_where_the_page_before_ended(on_redis: Invoke) -> None:
    """The cursor of a page is what --after takes."""
    for number in range(5):
        on_redis("jobs", "add", "q", str(number), "--id", f"job-{number}", "--delay", "1m")

    seen: list[str] = []
    after: list[str] = []
    while True:
        page = document(on_redis("jobs", "list", "q", "--limit", "2", *after, "--json"))
        seen.extend(job["id"] for job in page["items"])
        if page["next"] is None:
            break
        after = ["--after", page["next"]]

    assert [f"job-{number}" for number in range(5)] == seen


def test_a_pause_is_counted_and_lifted(on_redis: Invoke) -> None:
    """A paused queue is listed also where it holds nothing."""
    paused = document(on_redis("jobs", "pause", "q", "--reason", "deploy", "--json"))
    counted = document(on_redis("jobs", "counts", "--json"))
    resumed = document(on_redis("jobs", "resume", "q", "--json"))

    assert (True, "deploy") == (paused["paused"], paused["reason"])
    assert [True] == [item["paused"] for item in counted["items"]]
    assert not resumed["paused"]


def test_a_file_of_lines_is_added_in_order(on_redis: Invoke, tmp_path: Path) -> None:
    """More lines than one batch holds, blank ones between."""
    source = tmp_path / "in.jsonl"
    source.write_text("".join(f"{number}\n\n" for number in range(1500)))

    added = document(on_redis("jobs", "add", "q", "--jsonl", str(source), "--json"))
    listed = document(on_redis("jobs", "list", "q", "--limit", "2000", "--json"))

    assert 1500 == added["added"]
    assert added["ids"] == [job["id"] for job in listed["items"]]
    assert list(range(1500)) == [job["data"] for job in listed["items"]]


def test_a_bad_line_is_named_and_nothing_of_its_batch_is_added(on_redis: Invoke) -> None:
    """What stood before the batch is added, and the line says how much that was."""
    lines = [str(number) for number in range(1500)]
    lines[1200] = "{oops"

    result = on_redis("jobs", "add", "q", "--jsonl", "-", input="\n".join(lines))
    counted = document(on_redis("jobs", "counts", "q", "--json"))

    assert 2 == result.exit_code
    assert "line 1201: is no JSON" in one_line(result)
    assert "1000 jobs were added" in one_line(result)
    assert 1000 == counted["items"][0]["waiting"]


@pytest.mark.parametrize(
    ("count", "added", "again"),
    [
        (1, "1 job added to q", "1 dead letter of q is a job again"),
        (2, "2 jobs added to q", "2 dead letters of q are jobs again"),
    ],
)
def test_one_is_counted_as_one(on_redis: Invoke, count: int, added: str, again: str) -> None:
    """Where jobs are added and where dead letters are jobs again."""
    lines = "\n".join(str(number) for number in range(count))
    assert f"{added}\n" == on_redis("jobs", "add", "q", "--jsonl", "-", input=lines).stdout

    async def bury() -> None:
        async with open_storage() as storage:
            for claim in await storage.jobs.claim("q", limit=count):
                await storage.jobs.fail(claim, "no", retry=False)

    asyncio.run(bury())
    assert f"{again}\n" == on_redis("dlq", "requeue", "q", "--all").stdout


def test_what_the_demo_kept_can_be_looked_at_and_requeued(on_redis: Invoke, project: str) -> None:
    """Runs, dead letters and jobs are found again by the other commands."""
    made = document(on_redis("demo", "--keep", "--project", project, "--json"))
    letter = made["deadLetters"]["items"][0]

    runs = document(on_redis("runs", "list", "--status", "failed", "--json"))["items"]
    run = document(on_redis("runs", "show", runs[0]["id"], "--json"))
    letters = document(on_redis("dlq", "list", letter["queueName"], "--json"))["items"]
    again = document(on_redis("dlq", "requeue", letter["queueName"], "--all", "--json"))
    job = document(on_redis("jobs", "show", letter["queueName"], letter["id"], "--json"))
    text = on_redis("jobs", "show", letter["queueName"], letter["id"])

    assert {"failed"} == {item["status"] for item in runs}
    assert runs[0] == run
    assert [letter["id"]] == [item["id"] for item in letters]
    assert [letter["id"]] == again["requeued"]
    assert ("waiting", 0) == (job["job"]["status"], job["job"]["attemptMade"])
    assert 3 == len(job["runs"])
    assert letter["id"] in text.stdout
    assert document(on_redis("dlq", "list", "--json"))["items"] == []


def test_since_takes_ages_times_and_milliseconds(on_redis: Invoke, project: str) -> None:
    """Three ways to say when, one meaning."""
    made = document(on_redis("demo", "--keep", "--project", project, "--json"))
    started = made["runWithoutJob"]["startedAt"]

    def count(since: str) -> int:
        found = on_redis("runs", "list", "--since", since, "--limit", "1000", "--json")
        return len(document(found)["items"])

    assert made["runs"] == count("10m") == count(str(started - 1000)) == count("2001-01-01")
    assert made["runs"] == count("600") == count("0.5h")
    assert 0 == count("2999-01-01T00:00") == count("0")


def test_a_dry_run_counts_what_a_prune_then_deletes(
    redis_url: str,
    postgres_url: str,
    project: str,
    monkeypatch: pytest.MonkeyPatch,
    invoke: Invoke,
) -> None:
    """By kind, without deleting anything."""
    monkeypatch.setenv("OQRON_MODE", "redis-postgres")
    monkeypatch.setenv("OQRON_REDIS__URL", redis_url)
    monkeypatch.setenv("OQRON_POSTGRES__URL", postgres_url)
    monkeypatch.setenv("OQRON_PROJECT", project)
    monkeypatch.setenv("OQRON_RETENTION__CANCELLED_FOR", "0.001")
    for number in range(3):
        invoke("jobs", "add", "q", "1", "--id", str(number))
    invoke("jobs", "cancel", "q", "0", "1")

    first = document(invoke("prune", "--dry-run", "--json"))
    again = document(invoke("prune", "--dry-run", "--json"))
    pruned = document(invoke("prune", "--json"))
    after = document(invoke("prune", "--dry-run", "--json"))

    assert first == again
    assert (2, 2) == (again["records"], again["kinds"]["job"]["records"])
    assert again["bytes"] > 0
    assert 2 == pruned["pruned"]
    assert 0 == after["records"]


def test_a_mistyped_queue_does_not_look_like_success(on_redis: Invoke) -> None:
    """What is to be opened has to be there; what is to be closed may come later, and is told."""
    on_redis("jobs", "add", "emails", "1")

    resumed = on_redis("jobs", "resume", "emailz")
    requeued = on_redis("dlq", "requeue", "emailz", "--all")
    paused = on_redis("jobs", "pause", "emailz")

    assert [1, 1, 0] == [resumed.exit_code, requeued.exit_code, paused.exit_code]
    for result in (resumed, requeued, paused):
        assert "no queue 'emailz' is known so far" in one_line(result)
        assert "emails" in one_line(result), "a name that is like it"
    assert "" == resumed.stdout + requeued.stdout
    assert "emailz is paused\n" == paused.stdout
    # Now it is known.
    assert "emailz is open\n" == on_redis("jobs", "resume", "emailz").stdout
    assert "" == on_redis("jobs", "pause", "emails").stderr
    assert not document(on_redis("jobs", "resume", "emails", "--json"))["paused"]


def test_a_queue_without_dead_letters_has_none_to_requeue(on_redis: Invoke) -> None:
    """All of none is done: no mistake, unlike a name that nobody knows."""
    on_redis("jobs", "add", "emails", "1")

    assert [] == document(on_redis("dlq", "requeue", "emails", "--all", "--json"))["requeued"]
    said = on_redis("dlq", "requeue", "emails", "--all")
    assert (0, "0 dead letters of emails are jobs again\n") == (said.exit_code, said.stdout)


def test_one_is_not_told_of_in_the_plural(on_redis: Invoke, tmp_path: Path) -> None:
    """Nor are several in the singular."""
    (tmp_path / "one").write_text("1\n")
    (tmp_path / "two").write_text("1\n2\n")

    assert "1 job added to q\n" == on_redis("jobs", "add", "q", "--jsonl", "one").stdout
    assert "2 jobs added to q\n" == on_redis("jobs", "add", "q", "--jsonl", "two").stdout


def test_a_finished_scope_has_nothing_to_prune_or_rebuild(on_redis: Invoke) -> None:
    """Repairs by hand are idempotent."""
    on_redis("jobs", "add", "q", "1")

    assert {"restored": 0} == document(on_redis("rebuild-hot", "--json"))
    assert 0 == document(on_redis("prune", "--json"))["pruned"]
    assert 1 == document(on_redis("jobs", "counts", "q", "--json"))["items"][0]["waiting"]
