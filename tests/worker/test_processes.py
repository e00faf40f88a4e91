"""Worker processes on a real Redis: signals, crashes, commands, health."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from oqron_core import JobSpec, Storage, open_storage


pytestmark = pytest.mark.timeout(300)

HERE = Path(__file__).parent
DATA = HERE.parents[2] / "shared" / "data"
PATIENCE = 150.0


@attrs.define
class Crew:
    """Worker processes of one test, and what they noted."""

    settings: dict[str, Any]
    folder: Path
    processes: list[subprocess.Popen[str]] = attrs.field(factory=list)
    env: dict[str, str] = attrs.field(factory=dict)

    @property
    def ledger(self) -> Path:
        """Where handlers note what they do."""
        return self.folder / "ledger"

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a process of the command."""
        with (self.folder / f"log-{len(self.processes)}").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "oqron_worker", *arguments],
                env={
                    **os.environ,
                    "LEDGER": str(self.ledger),
                    "PYTHONPATH": str(HERE),
                    "OQRON_MODE": "redis",
                    "OQRON_PROJECT": self.settings["project"],
                    "OQRON_REDIS__URL": self.settings["redis"]["url"],
                    **self.env,
                },
                cwd=self.folder,
                stderr=log,
                text=True,
            )
        self.processes.append(process)
        return process

    def lines(self, start: str) -> list[list[str]]:
        """Give what was noted, from lines that begin with *start*."""
        if not self.ledger.exists():
            return []
        found = [line.split() for line in self.ledger.read_text().splitlines()]
        return [line for line in found if line and line[0] == start]

    def logs(self) -> str:
        """Give what the processes logged."""
        return "".join(path.read_text() for path in sorted(self.folder.glob("log-*")))

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait until *condition* holds."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.02)

    def run(self, main: Callable[[Storage], Any]) -> Any:
        """Run a coroutine function on the storage that the processes use."""

        async def opened() -> Any:
            async with open_storage(**self.settings) as storage:
                return await main(storage)

        return asyncio.run(opened())

    def end(self) -> None:
        """End what still runs."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture
def crew(redis_url: str, project: str, tmp_path: Path) -> Iterator[Crew]:
    """Give a crew on a project of its own."""
    found = Crew({"mode": "redis", "project": project, "redis": {"url": redis_url}}, tmp_path)
    yield found
    found.end()


def durations() -> list[float]:
    """Give handler durations in milliseconds: real ones where the data is there."""
    file = DATA / "azure-functions-200.csv"
    if not file.exists():
        return [1.0, 2.0, 3.0, 5.0, 8.0, 40.0]
    rows = file.read_text().splitlines()[1:]
    return [min(100.0, float(row.rsplit(",", 1)[1])) for row in rows]


@pytest.mark.parametrize("count", [600, pytest.param(10_000, marks=pytest.mark.slow)])
def test_every_job_ends_once_though_workers_come_and_go(crew: Crew, count: int) -> None:
    """With failures, priorities, a SIGTERM and a SIGKILL in the middle."""
    times = durations()

    async def fill(storage: Storage) -> None:
        specs = []
        for n in range(count):
            data = {"n": n, "ms": times[n % len(times)], "fails": n % 20 == 0}
            specs.append(JobSpec(data, priority=n % 3, max_attempts=4))
        await storage.jobs.add_many("mixed", specs)

    first, second = [crew.start("worker", "worker_apps", "--concurrency", "40") for _ in range(2)]
    crew.until(lambda: 2 == crew.logs().count("working on"))
    crew.run(fill)
    crew.until(lambda: len(crew.lines("end")) > 150)
    # Both at once: while one of them ends the other would work off the rest.
    first.send_signal(signal.SIGTERM)
    second.kill()
    second.wait()
    assert 0 == first.wait(30), crew.logs()
    third = crew.start("worker", "worker_apps", "--concurrency", "40")
    # A process that has not begun yet knows no SIGTERM.
    crew.until(lambda: 3 == crew.logs().count("working on"))

    async def over(storage: Storage) -> bool:
        counts = await storage.jobs.counts("mixed")
        return not (counts["waiting"] or counts["delayed"] or counts["active"])

    crew.until(lambda: crew.run(over))
    third.send_signal(signal.SIGTERM)
    assert 0 == third.wait(30), crew.logs()

    firsts: dict[int, int] = {}
    for line in crew.lines("start"):
        firsts.setdefault(int(line[1]), int(line[3]))
    order = list(firsts.values())
    # A third lies between the ends; later comes only what was lost with a process.
    assert order[order.index(2) :].count(0) <= 40
    ended = [int(line[1]) for line in crew.lines("end")]
    assert set(range(count)) == set(ended)
    # Only what the killed process had in hand may have been done again.
    assert len(ended) - count <= 40

    async def check(storage: Storage) -> None:
        assert [] == list((await storage.dead_letters.query("mixed")).items)
        # A failure counts an attempt, and so does a lapse; a SIGTERM does not.
        page = await storage.jobs.query("mixed", limit=10_000)
        most = 1 + 1 + 1
        assert all(job.attempt_made <= most for job in page.items)

    crew.run(check)


def test_a_server_that_restarts_is_waited_for(
    redis_server_factory: Callable[..., Any], project: str, tmp_path: Path
) -> None:
    """The worker goes on by itself, and nothing is lost or done twice for long."""
    server = redis_server_factory(persistent=True)
    settings = {"mode": "redis", "project": project, "redis": {"url": server.url}}
    crew = Crew(settings, tmp_path)
    try:

        async def fill(storage: Storage) -> None:
            specs = [{"n": n, "ms": 20, "fails": False} for n in range(300)]
            await storage.jobs.add_many("mixed", specs)

        crew.run(fill)
        process = crew.start("worker", "worker_apps", "--concurrency", "10", "--no-schedules")
        crew.until(lambda: len(crew.lines("end")) > 60)
        server.kill()
        time.sleep(0.5)
        server.start()
        crew.until(lambda: len({line[1] for line in crew.lines("end")}) == 300)
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(30), crew.logs()
        assert len(crew.lines("end")) <= 300 + 10
    finally:
        crew.end()


def test_a_worker_that_stood_still_writes_nothing_late(crew: Crew) -> None:
    """Past its lease another has the job; what the first reports is refused."""
    crew.env["LONG"] = "4"

    async def fill(storage: Storage) -> None:
        await storage.jobs.add("long", {"n": 1}, max_attempts=5)

    async def attempts(storage: Storage) -> list[tuple[str, int]]:
        [job] = (await storage.jobs.query("long")).items
        return [(job.status, job.attempt_made)]

    crew.run(fill)
    first = crew.start("worker", "worker_apps", "--no-schedules")
    crew.until(lambda: len(crew.lines("start")) == 1)
    first.send_signal(signal.SIGSTOP)
    crew.start("worker", "worker_apps", "--no-schedules")
    crew.until(lambda: len(crew.lines("start")) == 2)
    first.send_signal(signal.SIGCONT)
    crew.until(lambda: crew.run(attempts) == [("completed", 2)])

    async def check(storage: Storage) -> None:
        runs = sorted((await storage.runs.query(name="long")).items, key=lambda run: run.attempts)
        assert ["failed", "completed"] == [run.status for run in runs]

    crew.run(check)


def test_sigterm_burns_no_attempt(crew: Crew) -> None:
    """Five deployments during jobs with one attempt: in the loop, and in a thread."""

    async def fill(storage: Storage) -> None:
        await storage.jobs.add("long", {"n": 1}, max_attempts=1)
        await storage.jobs.add("deaf", {"n": 2}, max_attempts=1)

    async def attempts(storage: Storage) -> list[tuple[str, int]]:
        found = []
        for queue in ("long", "deaf"):
            [job] = (await storage.jobs.query(queue)).items
            found.append((job.status, job.attempt_made))
        return found

    crew.run(fill)
    for turn in range(1, 4):
        process = crew.start("worker", "worker_apps", "--grace", "0.2", "--no-schedules")
        crew.until(lambda: len(crew.lines("start")) == 2 * turn)  # noqa: B023
        process.send_signal(signal.SIGTERM)
        assert 0 == process.wait(20), crew.logs()
        assert [("waiting", 0)] * 2 == crew.run(attempts)
    crew.env["LONG"] = "0"
    process = crew.start("worker", "worker_apps", "--no-schedules")
    crew.until(lambda: {("completed", 1)} == set(crew.run(attempts)))


def test_several_processes_share_the_work_and_the_slots(crew: Crew) -> None:
    """Under one supervisor, that replaces what dies and ends with all of them."""

    async def fill(storage: Storage) -> None:
        await storage.jobs.add_many(
            "mixed", [{"n": n, "ms": 5, "fails": False} for n in range(100)]
        )

    crew.run(fill)
    process = crew.start("worker", "worker_apps", "--processes", "2", "--grace", "2")
    crew.until(lambda: len(crew.lines("end")) == 100 and len(crew.lines("slot")) >= 4)
    children = _children(process.pid)
    assert 2 == len(children)
    os.kill(children[0], signal.SIGKILL)
    crew.until(lambda: len(set(_children(process.pid)) - {children[0]}) == 2)
    process.send_signal(signal.SIGTERM)

    assert 0 == process.wait(30), crew.logs()
    slots = [line[1] for line in crew.lines("slot")]
    assert len(slots) == len(set(slots))
    assert not any(_alive(pid) for pid in children)


def _children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(path.parent.name))
    return sorted(found)


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_workers_end_with_a_supervisor_that_was_killed(crew: Crew) -> None:
    """Nobody would tell them to."""
    process = crew.start("worker", "worker_apps", "--processes", "2")
    crew.until(lambda: len(crew.lines("slot")) > 0)
    children = _children(process.pid)
    process.kill()
    process.wait()

    crew.until(lambda: not any(_alive(pid) for pid in children))


def test_health_and_metrics_are_served(crew: Crew) -> None:
    """On the port that was asked for; 503 while nothing can be claimed is for others."""

    async def fill(storage: Storage) -> None:
        await storage.jobs.add_many(
            "mixed", [{"n": n, "ms": 1, "fails": n == 3} for n in range(10)]
        )

    crew.run(fill)
    crew.start("worker", "worker_apps", "--port", "0")
    crew.until(lambda: len(crew.lines("end")) == 10)
    crew.until(lambda: re.search(r"metrics on (http://\S+)", crew.logs()))
    [address] = re.findall(r"metrics on (http://\S+)", crew.logs())

    def get(path: str) -> str:
        with urllib.request.urlopen(address + path, timeout=10) as answer:  # noqa: S310 - our own
            text: str = answer.read().decode()
        return text

    assert "ok" == json.loads(get("/health"))["status"]
    assert "ok" == json.loads(get("/live"))["status"]
    crew.until(
        lambda: (
            'oqron_worker_attempts_total{queue="mixed",outcome="completed"} 10' in get("/metrics")
        )
    )
    assert 'outcome="retried"} 1' in get("/metrics")
    assert 'oqron_worker_duration_seconds_count{queue="mixed"} 11' in get("/metrics")


def test_a_wrong_name_is_told_in_a_line(crew: Crew) -> None:
    """No traceback, and a status of its own; also under a supervisor."""
    for more in ([], ["--processes", "2"]):
        process = crew.start("worker", "worker_apps", "--only", "nothing", *more)
        assert 2 == process.wait(30)
    assert 1 == crew.start("worker", "no_such_module").wait(30)

    assert "Traceback" not in crew.logs()
    assert "no handler is called nothing" in crew.logs()
    assert "there is no module 'no_such_module'" in crew.logs()


# --- commands ---------------------------------------------------------------

SQUARE = f"{sys.executable} -c 'import json, sys; print(json.load(sys.stdin)[\"n\"] ** 2)'"


def outputs(crew: Crew, queue: str) -> list[Any]:
    """Read the outputs of the completed runs of a queue."""

    async def read(storage: Storage) -> list[Any]:
        page = await storage.runs.query(name=queue, status="completed", limit=1000)
        return [run.output for run in page.items]

    found: list[Any] = crew.run(read)
    return found


def test_a_command_runs_for_each_job(crew: Crew) -> None:
    """Its output is kept as JSON; the process ends when the queue is empty."""

    async def fill(storage: Storage) -> None:
        await storage.jobs.add_many("squares", [{"n": n} for n in range(12)])

    crew.run(fill)
    process = crew.start("work", "squares", "--exec", SQUARE, "--until-empty")

    assert 0 == process.wait(60), crew.logs()
    assert [n * n for n in range(12)] == sorted(outputs(crew, "squares"))


def test_the_exit_status_of_a_command_decides(crew: Crew) -> None:
    """0 done, 75 later without an attempt, else failed; its errors are the log."""
    script = crew.folder / "decide.sh"
    script.write_text(
        'read line\necho "$JOB_QUEUE $JOB_ATTEMPT" >&2\n'
        'case "$line" in\n'
        "  *later*) [ -e seen ] || { touch seen; exit 75; } ;;\n"
        "  *bad*) exit 3 ;;\n"
        "esac\necho '  plain text'\n"
    )

    async def fill(storage: Storage) -> None:
        await storage.jobs.add("q", "later", max_attempts=1)
        await storage.jobs.add("q", "bad", max_attempts=1)

    crew.run(fill)
    command = f"sh {script}"
    process = crew.start("work", "q", "--exec", command, "--later", "0.1", "--until-empty")
    assert 0 == process.wait(60), crew.logs()

    async def check(storage: Storage) -> None:
        runs = {run.status: run for run in (await storage.runs.query(name="q")).items}
        assert {"completed", "failed", "cancelled"} == set(runs)
        assert "  plain text" == runs["completed"].output
        assert "q 1" == runs["completed"].logs[0]["msg"]
        [dead] = (await storage.dead_letters.query("q")).items
        assert "the command ended with status 3" == dead.error

    crew.run(check)


def test_a_command_is_ended_with_its_attempt(crew: Crew) -> None:
    """With all that it has started, by a timeout as by a cancel."""
    script = crew.folder / "sleep.sh"
    script.write_text(f"sleep 300 & echo $! >> {crew.folder}/pids\nwait\n")

    async def fill(storage: Storage) -> None:
        await storage.jobs.add("q", None, max_attempts=1)

    crew.run(fill)
    process = crew.start("work", "q", "--exec", f"sh {script}", "--timeout", "0.5", "--until-empty")
    assert 0 == process.wait(60), crew.logs()

    [pid] = [int(line) for line in (crew.folder / "pids").read_text().split()]
    crew.until(lambda: not _running(pid))

    async def check(storage: Storage) -> None:
        [dead] = (await storage.dead_letters.query("q")).items
        assert "longer than 0.5 seconds" in (dead.error or "")

    crew.run(check)


def _running(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@pytest.mark.slow
def test_real_payloads_are_piped_through_though_the_worker_is_killed(crew: Crew) -> None:
    """Each has its run with the right output, as with xargs, and survives a crash."""
    file = DATA / "github-webhooks.jsonl"
    if not file.exists():
        pytest.skip("the folder of public data is not there")
    payloads = [json.loads(line) for line in file.read_text().split("\n") if line]
    script = crew.folder / "event.py"
    script.write_text(
        "import json, sys\nd = json.load(sys.stdin)\n"
        "print(json.dumps([d['event'], len(d['payload'])]))\n"
    )

    async def fill(storage: Storage) -> None:
        await storage.jobs.add_many("events", payloads)

    crew.run(fill)
    command = f"{sys.executable} -S {script}"
    first = crew.start("work", "events", "--exec", command, "--concurrency", "4")
    crew.until(lambda: len(outputs(crew, "events")) > 20)
    first.kill()
    first.wait()
    # The lease of what it had in hand is the default's: half a minute.
    second = crew.start("work", "events", "--exec", command, "--concurrency", "4", "--until-empty")
    assert 0 == second.wait(120), crew.logs()

    expected = sorted([p["event"], len(p["payload"])] for p in payloads)
    assert expected == sorted(outputs(crew, "events"))
