"""Functions at work on an oqron storage: queues, crons, topics and webhooks."""

from __future__ import annotations

from oqron_worker._adding import Unique
from oqron_worker._app import App
from oqron_worker._context import Context, Stopped, current_context
from oqron_worker._handlers import Handler, Options
from oqron_worker._metrics import Metrics
from oqron_worker._outcomes import Discard, HandlerTimeoutError, Retry, Snooze
from oqron_worker._queues import Adder, QueueHandler
from oqron_worker._schedules import ScheduledHandler, Timing
from oqron_worker._topics import TopicHandler
from oqron_worker._worker import Worker


__all__ = [
    "Adder",
    "App",
    "Context",
    "Discard",
    "Handler",
    "HandlerTimeoutError",
    "Metrics",
    "Options",
    "QueueHandler",
    "Retry",
    "ScheduledHandler",
    "Snooze",
    "Stopped",
    "Timing",
    "TopicHandler",
    "Unique",
    "Worker",
    "current_context",
]
