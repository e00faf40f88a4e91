"""What the value of a record says, as frozen attrs classes."""

from __future__ import annotations

from oqron_core.models._wire import structure, unstructure, wire_names
from oqron_core.models.backoff import Backoff
from oqron_core.models.group import Group
from oqron_core.models.job import Job, JobSpec, JobStatus
from oqron_core.models.records import Breaker, Control, Definition, LogEntry, Message
from oqron_core.models.run import Run, RunStatus


__all__ = [
    "Backoff",
    "Breaker",
    "Control",
    "Definition",
    "Group",
    "Job",
    "JobSpec",
    "JobStatus",
    "LogEntry",
    "Message",
    "Run",
    "RunStatus",
    "structure",
    "unstructure",
    "wire_names",
]
