"""The table at the end of a chaos run."""

from __future__ import annotations

import statistics

from collections import Counter
from collections.abc import Mapping, Sequence

from chaos.history import Verdict


__all__ = ["table"]

_JOBS = (
    ("jobs accepted", "accepted"),
    ("completed", "completed"),
    ("dead letters, attempts exhausted", "dead: attempts exhausted"),
    ("dead letters, lease lapsed", "dead: lease lapsed"),
    ("**lost**", "lost"),
    ("retried after a failure", "retried"),
    ("given back", "given back"),
    ("run again after a crash (doubled)", "doubled"),
    ("… lease lapsed", "doubled: lease lapsed"),
    ("… hot plane lost", "doubled: hot plane lost"),
    ("… answer of a settle lost", "doubled: answer lost"),
    ("… **unexplained**", "doubled: unexplained"),
    ("stale writers refused", "stale writers refused"),
    ("runs started", "runs"),
    ("… whole in history", "runs: whole"),
    ("… closed by maintenance", "runs: closed by maintenance"),
    ("… closed while the worker was stopped", "runs: closed in a silence"),
    ("… lost to a kill", "runs: lost to a kill"),
    ("… unwritten at closing, as it said", "runs: unwritten at closing"),
    ("… **lost without a reason**", "runs: lost without a reason"),
)


def table(verdict: Verdict, faults: Counter[str], recoveries: Mapping[str, Sequence[float]]) -> str:
    """Write it in Markdown; *recoveries* are seconds by what was recovered from."""
    lines = ["| what | count |", "| --- | ---: |"]
    lines += [f"| fault: {kind} | {count:,} |" for kind, count in sorted(faults.items())]
    lines += [f"| {label} | {verdict.counts[name]:,} |" for label, name in _JOBS]
    lines += ["", "| recovery, seconds | p50 | max |", "| --- | ---: | ---: |"]
    for what, seconds in recoveries.items():
        if seconds:
            middle = statistics.median(seconds)
            lines.append(f"| {what} | {middle:.1f} | {max(seconds):.1f} |")
    return "\n".join(lines)
