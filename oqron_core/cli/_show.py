"""One job or one run, for people."""

from __future__ import annotations

import json

from collections.abc import Sequence
from typing import Any, Final

from rich.padding import Padding
from rich.text import Text

from oqron_core.cli._output import (
    Column,
    make_table,
    print_line,
    print_rich,
    seconds_text,
    short_time_text,
    time_text,
)
from oqron_core.models import Job, Run


__all__ = ["RUN_COLUMNS", "run_row", "show_job", "show_run"]

_LINES: Final = 200
"""How many lines of a payload are shown; --json shows all."""

RUN_COLUMNS: Final = (
    Column("id", style="cyan", whole=True),
    Column("name", whole=True),
    Column("status", whole=True),
    Column("try", right=True),
    Column("started", whole=True),
    Column("took", right=True),
    Column("error"),
)


def run_row(run: Run) -> tuple[object, ...]:
    """Give the cells of a run for `RUN_COLUMNS`."""
    return (
        run.id,
        run.name,
        run.status,
        run.attempts,
        short_time_text(run.started_at),
        seconds_text(run.duration_ms),
        run.error or "",
    )


def show_job(job: Job, runs: Sequence[Run]) -> None:
    """Print a job with its payload and its runs."""
    facts: dict[str, object] = {
        "job": job.id,
        "queue": job.queue_name,
        "status": job.status if job.dead_at is None else f"dead letter, {job.reason}",
        "attempts": f"{job.attempt_made} of {job.max_attempts}",
        "priority": job.priority,
        "added": time_text(job.created_at),
        "due": time_text(job.run_at) if job.run_at is not None else None,
        "finished": time_text(job.finished_at) if job.finished_at is not None else None,
        "worker": job.worker_id,
        "token": job.lease_token,
        "tags": ", ".join(job.tags) or None,
        "belongs to": job.correlation_id,
        "error": job.error,
    }
    _facts(facts)
    _json("data", job.data)
    if job.return_value is not None:
        _json("output", job.return_value)
    _heading("runs")
    if runs:
        table = make_table(RUN_COLUMNS, [run_row(run) for run in runs])
        print_rich(Padding(table, (0, 0, 0, 2)))
    else:
        print_rich(Text("  none yet"))


def show_run(run: Run) -> None:
    """Print a run with its timeline and log."""
    _facts(
        {
            "run": run.id,
            "name": run.name,
            "module": run.module,
            "status": run.status,
            "attempt": run.attempts,
            "progress": f"{run.progress_percent:g} %",
            "started": time_text(run.started_at),
            "took": seconds_text(run.duration_ms),
            "worker": run.worker_id,
            "job": run.job_id,
            "queue": run.queue_name,
            "error": run.error,
        }
    )
    _json("input", run.input)
    _json("output", run.output)
    _heading("timeline")
    for entry in run.timeline:
        _moment(run, entry, f"{entry.get('from')} → {entry.get('to')}  {entry.get('reason') or ''}")
    _heading("log")
    for entry in run.logs:
        _moment(run, entry, f"{entry.get('level')}  {entry.get('msg')}")


def _moment(run: Run, entry: dict[str, Any], text: str) -> None:
    first, *more = text.rstrip().split("\n")
    ts, started = entry.get("ts"), run.started_at
    known = isinstance(ts, int) and isinstance(started, int)
    after = f"+{(ts - started) / 1000:.3f} s" if known else "–"  # type: ignore[operator]  # ints, as just tested
    print_line(f"  {after:>10}  {first}")
    for line in more:
        print_line(f"{'':14}{line}")


def _facts(facts: dict[str, object]) -> None:
    rows = [(name, value) for name, value in facts.items() if value is not None]
    table = make_table([Column("", style="dim"), Column("")], rows)
    table.show_header = False
    print_rich(table)


def _heading(text: str) -> None:
    print_rich(Text(f"\n{text}", style="bold"))


def _json(title: str, value: object) -> None:
    _heading(title)
    lines = json.dumps(value, indent=2, ensure_ascii=False).splitlines()
    for line in lines[:_LINES]:
        print_line(f"  {line}")
    if len(lines) > _LINES:
        more = f"  … {len(lines) - _LINES} lines more; --json shows all"
        print_rich(Text(more, style="dim"))
