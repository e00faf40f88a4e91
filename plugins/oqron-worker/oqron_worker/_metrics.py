"""What a worker counts, and how Prometheus reads it."""

from __future__ import annotations

import bisect

from collections.abc import Iterable, Iterator
from typing import Final

import attrs


__all__ = ["BUCKETS", "Metrics", "QueueMetrics", "prometheus"]

BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0)
"""Upper bounds of the duration histogram, in seconds."""


@attrs.define(eq=False)
class QueueMetrics:
    """
    The counters of one queue, topic group or cron.

    Attributes:
        name: Its name.
        ended: Attempts by outcome: ``completed``, ``failed``, ``retried``,
            ``snoozed``, ``discarded``, ``cancelled``, ``timeout``, ``released``,
            ``lost``.
        running: Attempts that run now.
        seconds: The sum of all durations.
        buckets: How many durations fell into each bucket; the last is for longer.
    """

    name: str
    ended: dict[str, int] = attrs.field(factory=dict)
    running: int = 0
    seconds: float = 0.0
    buckets: list[int] = attrs.field(factory=lambda: [0] * (len(BUCKETS) + 1))

    def count(self, outcome: str, seconds: float) -> None:
        """Count one attempt that ended."""
        self.ended[outcome] = self.ended.get(outcome, 0) + 1
        self.seconds += seconds
        self.buckets[bisect.bisect_left(BUCKETS, seconds)] += 1


class Metrics:
    """
    The counters of one worker.

    Attributes:
        queues: Those of each queue, by name.
        blocked: How often a handler blocked the event loop.
        claim_errors: How often claiming failed because a plane did not answer.
        renewal_errors: How often a renewal got no answer.
    """

    __slots__ = ("blocked", "claim_errors", "queues", "renewal_errors")

    def __init__(self) -> None:
        self.queues: dict[str, QueueMetrics] = {}
        self.blocked = 0
        self.claim_errors = 0
        self.renewal_errors = 0

    def of(self, name: str) -> QueueMetrics:
        """Give the counters of a queue."""
        found = self.queues.get(name)
        if found is None:
            found = self.queues[name] = QueueMetrics(name)
        return found

    def total(self, outcome: str) -> int:
        """Sum an outcome over all queues."""
        return sum(queue.ended.get(outcome, 0) for queue in self.queues.values())


def _label(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _header(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def prometheus(parts: Iterable[Metrics]) -> str:
    """Give the text form of *parts*, version 0.0.4, added up."""
    metrics = list(parts)
    queues = [queue for part in metrics for queue in part.queues.values()]
    lines = list(
        _header("oqron_worker_attempts_total", "counter", "Attempts that ended, by outcome.")
    )
    for queue in queues:
        lines += [
            f'oqron_worker_attempts_total{{queue="{_label(queue.name)}",outcome="{outcome}"}} {n}'
            for outcome, n in sorted(queue.ended.items())
        ]
    lines += _header("oqron_worker_running", "gauge", "Attempts that run now.")
    lines += [
        f'oqron_worker_running{{queue="{_label(queue.name)}"}} {queue.running}' for queue in queues
    ]
    lines += _header("oqron_worker_duration_seconds", "histogram", "How long attempts took.")
    for queue in queues:
        lines += _histogram(queue)
    for name, text, value in (
        ("blocked", "How often a handler blocked the event loop.", sum(m.blocked for m in metrics)),
        ("claim_errors", "Claims without an answer.", sum(m.claim_errors for m in metrics)),
        ("renewal_errors", "Renewals without an answer.", sum(m.renewal_errors for m in metrics)),
    ):
        lines += _header(f"oqron_worker_{name}_total", "counter", text)
        lines.append(f"oqron_worker_{name}_total {value}")
    return "\n".join(lines) + "\n"


def _histogram(queue: QueueMetrics) -> Iterator[str]:
    name, label = "oqron_worker_duration_seconds", _label(queue.name)
    total = 0
    for bound, count in zip((*BUCKETS, float("inf")), queue.buckets, strict=True):
        total += count
        shown = "+Inf" if bound == float("inf") else f"{bound:g}"
        yield f'{name}_bucket{{queue="{label}",le="{shown}"}} {total}'
    yield f'{name}_sum{{queue="{label}"}} {queue.seconds:.6f}'
    yield f'{name}_count{{queue="{label}"}} {total}'
