"""The report: for people, and as one JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import attrs

from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from oqron_core.cli._output import Column, make_table, plain, print_rich, seconds_text, wire
from oqron_core.cli.demo._crew import Death
from oqron_core.cli.demo._equality import PLACES, Ledger
from oqron_core.cli.demo._facts import Facts, readings
from oqron_core.config import Mode, Settings
from oqron_core.models import Job, JobStatus, Run


__all__ = ["Report", "document", "show"]

_ALWAYS: Final = frozenset({"waiting", "delayed", "active", "completed"})
_SHOWN_LETTERS: Final = 10
_LAPSED: Final = "lease lapsed"
_STYLES: Final = {"completed": "green", "failed": "red", "running": "yellow"}


@attrs.frozen(kw_only=True)
class Report:
    """
    Everything there is to tell.

    Attributes:
        settings: What the storage was opened with.
        source: The file of payloads, or None for the sample.
        workers: How many workers there were.
        items: How many payloads there were.
        kept: Whether what was made is left where it is.
        elapsed: Seconds from adding to reading.
        facts: What was read from the storage.
        death: What became of the worker that died.
        ledger: The comparisons of payloads.
        left_behind: What cleaning up could not remove.
    """

    settings: Settings
    source: str | None
    workers: int
    items: int
    kept: bool
    elapsed: float
    facts: Facts
    death: Death
    ledger: Ledger
    left_behind: int = 0

    @property
    def table_prefix(self) -> str | None:
        """The prefix of the SQL tables, where the durable plane has some."""
        if self.settings.durable != Mode.REDIS_POSTGRES.durable:
            return None
        section = self.settings.section_for(self.settings.durable)
        return str(section.get("table_prefix", "oqron"))

    @property
    def rate(self) -> float | None:
        """Attempts of jobs per second."""
        facts = self.facts
        attempts = facts.runs - facts.runs_without_job
        return attempts * 1000 / facts.took_ms if facts.took_ms else None


# --- JSON ------------------------------------------------------------------------


def document(report: Report) -> dict[str, Any]:
    """Give the report as JSON; the names are those of the records."""
    settings, facts, ledger = report.settings, report.facts, report.ledger
    return {
        "mode": None if settings.mode is None else str(settings.mode),
        "hot": settings.hot,
        "durable": settings.durable,
        "project": settings.project,
        "environment": settings.environment,
        "input": report.source,
        "payloads": report.items,
        "workers": report.workers,
        "seconds": round(report.elapsed, 3),
        "jobs": facts.jobs,
        "runs": facts.runs,
        "runsPerJob": {str(number): jobs for number, jobs in facts.runs_per_job.items()},
        "timeline": None if facts.story is None else _story_document(*facts.story),
        "deadLetters": {
            "perQueue": facts.dead,
            "items": [_letter_document(job) for job in facts.letters],
        },
        "deadWorker": _death_document(report),
        "runWithoutJob": None if facts.heartbeat is None else wire(facts.heartbeat),
        "jobWithoutRun": None if facts.later is None else wire(facts.later),
        "throughput": {
            "attempts": facts.runs - facts.runs_without_job,
            "milliseconds": facts.took_ms,
            "attemptsPerSecond": None if report.rate is None else round(report.rate, 1),
        },
        "equal": {"payloads": report.items, **ledger.equal()},
        "different": ledger.different(),
        "leftBehind": report.left_behind,
        "readBy": {
            name: {"call": reading.call, "sql": reading.sql}
            for name, reading in readings(report.table_prefix).items()
        },
    }


def _story_document(job: Job, runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "job": wire(job),
        "runs": [wire(run) for run in runs],
    }


def _letter_document(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "queueName": job.queue_name,
        "attemptMade": job.attempt_made,
        "maxAttempts": job.max_attempts,
        "reason": job.reason,
        "error": job.error,
        "deadAt": job.dead_at,
    }


def _death_document(report: Report) -> dict[str, Any] | None:
    death, job = report.death, report.facts.taken_over
    if not death.claims:
        return None
    return {
        "workerId": death.worker,
        "held": [
            {"id": claim.lease.id, "queueName": claim.lease.queue, "leaseToken": claim.lease.token}
            for claim in death.claims
        ],
        "refused": death.refused,
        "takenOver": None
        if job is None
        else {"id": job.id, "leaseToken": job.lease_token, "workerId": job.worker_id},
    }


# --- for people ------------------------------------------------------------------


def show(report: Report) -> None:
    """Print the report on standard output."""
    read_by = readings(report.table_prefix)

    def heading(text: str, *names: str) -> None:
        print_rich("")
        rule = Rule(Text(text, style="bold"), align="left", style="dim")
        print_rich(rule, whole=False)
        for name in names:
            print_rich(_indented(Text(f"read by {read_by[name].call}", style="dim")))
            sql = read_by[name].sql
            if sql is not None:
                print_rich(_indented(Text(sql, style="dim")))

    _show_head(report)
    heading("Jobs by status", "jobs")
    print_rich(_indented(_jobs_table(report.facts)))
    heading("Runs per job", "runs")
    print_rich(_indented(_runs_table(report.facts)))
    _show_story(report, heading)
    heading("The worker that died")
    print_rich(_indented(_death_text(report)))
    heading("Dead letters", "deadLetters")
    print_rich(_indented(_letters_table(report.facts)))
    heading("Throughput", "throughput")
    print_rich(_indented(_rate_text(report)))
    heading("Payloads that are equal where they are read back, types included")
    _show_equality(report)


def _indented(what: Any) -> Padding:
    return Padding(what, (0, 0, 0, 2))


def _show_head(report: Report) -> None:
    settings = report.settings
    what = "the built-in sample" if report.source is None else plain(report.source)
    print_rich(
        Text.assemble(
            ("oqron demo", "bold"),
            f": {report.items} payloads of {what}, {report.workers} workers, "
            f"{report.elapsed:.1f} s",
        )
    )
    pair = f"hot plane {settings.hot}, durable plane {settings.durable}"
    print_rich(Text(f"{pair}, project {plain(settings.project)}", style="dim"))


def _jobs_table(facts: Facts) -> Table:
    shown = [
        status.value
        for status in JobStatus
        if status in _ALWAYS or any(counts[status] for counts in facts.jobs.values())
    ]
    columns = [
        Column("queue", style="cyan", whole=True),
        *(Column(name, right=True) for name in shown),
        Column("dead", right=True, style="red"),
        Column("all", right=True, style="bold"),
    ]
    rows = []
    for queue, counts in facts.jobs.items():
        dead = facts.dead.get(queue, 0)
        cells = [counts[name] for name in shown]
        rows.append((queue, *cells, dead, sum(counts.values()) + dead))
    return make_table(columns, rows)


def _runs_table(facts: Facts) -> Table:
    rows: list[tuple[object, ...]] = []
    for number, jobs in facts.runs_per_job.items():
        if jobs:
            runs = "run" if number == 1 else "runs"
            rows.append((_count(jobs, "job"), f"with {number} {runs}", _why(number, facts)))
    if facts.runs_without_job:
        heartbeat = facts.heartbeat
        rows.append((_count(facts.runs_without_job, "run"), "with no job", _named(heartbeat)))
    columns = [Column("", right=True, style="bold"), Column(""), Column("", style="dim")]
    table = make_table(columns, rows)
    table.show_header = False
    return table


def _named(run: Run | None) -> str:
    return "" if run is None else f"{run.module} {run.name}, {run.status}"


def _why(number: int, facts: Facts) -> str:
    if number == 0 and facts.later is not None:
        return f"{facts.later.id}, {facts.later.status}, not due for an hour"
    return ""


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _show_story(report: Report, heading: Any) -> None:
    story = report.facts.story
    if story is None:
        return
    job, runs = story
    heading(f"The life of one job: {plain(job.id)} in {plain(job.queue_name)}", "timeline")
    columns = [
        Column("at", right=True),
        Column("what", style="bold"),
        Column("by", style="cyan"),
        Column("why"),
    ]
    table = make_table(columns, [])
    for cells in _story_rows(job, runs):
        table.add_row(*cells)
    print_rich(_indented(table))


def _story_rows(job: Job, runs: Sequence[Run]) -> Iterator[tuple[Text, ...]]:
    yield Text("+0.000 s"), Text("added"), Text(""), Text(f"job is {JobStatus.WAITING}")
    for run in runs:
        for entry in run.timeline:
            after = (entry["ts"] - job.created_at) / 1000
            style = _STYLES.get(entry["to"], "")
            what = f"run {run.attempts} {entry['to']}"
            if entry["from"] == entry["to"]:
                what = f"run {run.attempts} goes on"
            ended = entry["to"] in {"completed", "failed"}
            why = run.error if ended and run.error else entry["reason"]
            if ended and not why:
                why = f"took {seconds_text(run.duration_ms)}"
            yield (
                Text(f"+{after:.3f} s"),
                Text(what, style=style),
                Text(plain(run.worker_id)),
                Text(plain(why or "")),
            )


def _death_text(report: Report) -> Text:
    death, job = report.death, report.facts.taken_over
    if not death.claims:
        return Text("no worker died: the others were faster")
    lease = death.claims[0].lease
    held = _count(len(death.claims), "job")
    lines = [f"{death.worker} held {held} and stopped renewing its leases."]
    if job is not None:
        lines.append(
            f"{lease.id}: its token was {lease.token}; the job was last claimed by "
            f"{job.worker_id} with token {job.lease_token}, and is {job.status}."
        )
    if death.refused is not None:
        lines.append(f"Its late report was refused: {death.refused}.")
    return Text(plain_lines(lines))


def plain_lines(lines: Sequence[str]) -> str:
    """Join lines, each made harmless for a terminal."""
    return "\n".join(plain(line) for line in lines)


def _letters_table(facts: Facts) -> Table | Text:
    if not facts.letters:
        return Text("none")
    columns = [
        Column("queue", style="cyan", whole=True),
        Column("id"),
        Column("attempts", right=True),
        Column("reason", style="red"),
        Column("last error"),
    ]
    rows = [
        (job.queue_name, job.id, job.attempt_made, job.reason, job.error)
        for job in facts.letters[:_SHOWN_LETTERS]
    ]
    return make_table(columns, rows)


def _rate_text(report: Report) -> Text:
    facts = report.facts
    attempts = facts.runs - facts.runs_without_job
    if report.rate is None:
        return Text(_count(attempts, "attempt"))
    lapse = ", and one lease had to lapse" if report.death.claims else ""
    return Text(
        f"{_count(attempts, 'attempt')} in {seconds_text(facts.took_ms)}, "
        f"{report.rate:.0f} a second; each sleeps 4 to 15 ms{lapse}"
    )


def _show_equality(report: Report) -> None:
    equal = report.ledger.equal()
    lost = report.ledger.different()
    same = [place for place in PLACES if equal[place] == report.items]
    if same:
        where = f"{', '.join(same[:-1])} and {same[-1]}" if len(same) > 1 else same[0]
        line = f"{_count(report.items, 'payload')} equal in {where}"
        print_rich(_indented(Text(line, style="green")))
    for place in PLACES:
        if place not in same:
            line = f"{place}: {equal[place]} of {report.items} equal"
            print_rich(_indented(Text(line, style="red")))
    for item in lost[:_SHOWN_LETTERS]:
        line = plain(f"{item['place']} of {item['id']}: {item['path']} differs")
        print_rich(_indented(Text(line, style="red")))
    if report.left_behind:
        line = f"{report.left_behind} records could not be cleaned up"
        print_rich(_indented(Text(line, style="red")))
    elif not report.kept:
        print_rich(
            _indented(Text("every record and queue that was made is deleted again", style="dim"))
        )
