"""What only looks, called once each; and which calls of a plane are no more than that."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from oqron_core.models.schedule import Schedule
from oqron_core.planes import FixedWindow
from oqron_core.storage import Storage


__all__ = ["LOCAL", "LOOKS", "READS"]

_LIMIT: Final = FixedWindow(10, per=60.0)

LOOKS: Final = (
    "durable.check",
    "durable.count",
    "durable.get",
    "durable.now",
    "durable.prunable",
    "durable.query",
    "hot.broker.contains",
    "hot.broker.counts",
    "hot.broker.queues",
    "hot.broker.wait",
    "hot.cache.get_many",
    "hot.check",
    "hot.counters.get",
    "hot.live.active",
    "hot.live.get",
    "hot.live.get_many",
    "hot.live.stale",
    "hot.locks.holder",
    "hot.now",
    "hot.signals.subscribe",
)
"""The calls of planes that change nothing."""

LOCAL: Final = {
    "cache.local": "gives a view of copies in this process",
    "logs.close": "is a part of closing the storage",
    "logs.handler": "gives a handler that writes lines",
    "logs.keep": "sets what this process keeps",
    "topics.delivery_queue": "makes a name",
}
"""What touches no plane when it is called, and why that is all."""

READS: Final[dict[str, Callable[[Storage], Awaitable[Any]]]] = {
    "breakers.query": lambda storage: storage.breakers.query(),
    "breakers.state": lambda storage: storage.breakers.state("k"),
    "cache.get": lambda storage: storage.cache.get("k"),
    "cache.get_many": lambda storage: storage.cache.get_many(["k", "l"]),
    "controls.admit": lambda storage: storage.controls.admit("queue", "q"),
    "controls.get": lambda storage: storage.controls.get("queue", "q"),
    "controls.get_queue": lambda storage: storage.controls.get_queue("q"),
    "controls.query": lambda storage: storage.controls.query(),
    "controls.queues": lambda storage: storage.controls.queues(),
    "dead_letters.counts": lambda storage: storage.dead_letters.counts(),
    "dead_letters.get": lambda storage: storage.dead_letters.get("q", "a"),
    "dead_letters.query": lambda storage: storage.dead_letters.query("q"),
    "definitions.get": lambda storage: storage.definitions.get("cron", "n"),
    "definitions.query": lambda storage: storage.definitions.query(),
    "jobs.counts": lambda storage: storage.jobs.counts("q"),
    "jobs.get": lambda storage: storage.jobs.get("q", "a"),
    "jobs.query": lambda storage: storage.jobs.query("q"),
    "limits.banned": lambda storage: storage.limits.banned("k"),
    "limits.get_ban": lambda storage: storage.limits.get_ban("k"),
    "limits.in_use": lambda storage: storage.limits.in_use("k", 2),
    "limits.peek": lambda storage: storage.limits.peek("k", _LIMIT),
    "locks.holder": lambda storage: storage.locks.holder("k"),
    "locks.leader": lambda storage: storage.locks.leader("k"),
    "logs.modules": lambda storage: storage.logs.modules(),
    "logs.query": lambda storage: storage.logs.query("m"),
    "retention.preview": lambda storage: storage.retention.preview(),
    "retention.rules": lambda storage: storage.retention.rules(),
    "runs.active": lambda storage: storage.runs.active(),
    "runs.get": lambda storage: storage.runs.get("r"),
    "runs.query": lambda storage: storage.runs.query(),
    "schedules.due": lambda storage: storage.schedules.due(),
    "schedules.get": lambda storage: storage.schedules.get("cron", "n"),
    "schedules.plan": lambda storage: storage.schedules.plan(Schedule("cron", "n", 1, {})),
    "schedules.query": lambda storage: storage.schedules.query("cron"),
    "topics.groups": lambda storage: storage.topics.groups("t"),
    "topics.lag": lambda storage: storage.topics.lag("t", "g"),
    "topics.read": lambda storage: storage.topics.read("t"),
    "topics.topics": lambda storage: storage.topics.topics(),
    "topics.wait": lambda storage: storage.topics.wait("t", "g", timeout=0.0),
}
"""What only looks."""
