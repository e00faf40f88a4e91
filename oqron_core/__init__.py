"""
Storage for job systems, in two planes.

The hot plane is speed and coordination; the durable plane is truth and history.
`open_storage` composes two backends into a mode; the services of `Storage` are
what people call.
"""

from __future__ import annotations

from oqron_core.config import Mode, Settings, load_settings
from oqron_core.exceptions import (
    BackendNotFoundError,
    BlockingCallError,
    CapabilityError,
    ClosedError,
    ConfigError,
    ConflictError,
    ContractMismatchError,
    CorruptRecordError,
    DuplicateBackendError,
    InvalidValueError,
    LeaseLostError,
    OqronError,
    PausedError,
    PluginError,
    SchemaError,
    StorageError,
    TimedOutError,
    UnavailableError,
)
from oqron_core.hookspecs import Backend, hookimpl
from oqron_core.models import (
    Backoff,
    Control,
    Group,
    Job,
    JobSpec,
    JobStatus,
    Message,
    Run,
    RunStatus,
)
from oqron_core.models.records import Breaker, LogEntry
from oqron_core.models.schedule import CatchUp, Schedule
from oqron_core.planes import (
    CONTRACT_VERSION,
    MISSING,
    Capabilities,
    Decision,
    Delete,
    DurablePlane,
    Entry,
    FixedWindow,
    HotPlane,
    Insert,
    Lease,
    Page,
    Patch,
    Put,
    Query,
    Record,
    Scope,
    SlidingWindow,
    TokenBucket,
)
from oqron_core.protocol.claims import Claim
from oqron_core.protocol.copies import LocalCache
from oqron_core.protocol.holding import HeldLease
from oqron_core.protocol.pauses import Behaviour, Pause
from oqron_core.protocol.pointers import Move
from oqron_core.protocol.retaining import Prunable, Rule
from oqron_core.protocol.run_handle import RunHandle
from oqron_core.services.breakers import BreakerPolicy, Permit
from oqron_core.services.definitions import Defined
from oqron_core.services.limits import Ban
from oqron_core.services.logs import LogHandler
from oqron_core.services.maintenance import Report
from oqron_core.storage import Storage, open_storage
from oqron_core.taxonomy import RecordKind, Table, classify_namespace, table_for_kind


__all__ = [
    "CONTRACT_VERSION",
    "MISSING",
    "Backend",
    "BackendNotFoundError",
    "Backoff",
    "Ban",
    "Behaviour",
    "BlockingCallError",
    "Breaker",
    "BreakerPolicy",
    "Capabilities",
    "CapabilityError",
    "CatchUp",
    "Claim",
    "ClosedError",
    "ConfigError",
    "ConflictError",
    "ContractMismatchError",
    "Control",
    "CorruptRecordError",
    "Decision",
    "Defined",
    "Delete",
    "DuplicateBackendError",
    "DurablePlane",
    "Entry",
    "FixedWindow",
    "Group",
    "HeldLease",
    "HotPlane",
    "Insert",
    "InvalidValueError",
    "Job",
    "JobSpec",
    "JobStatus",
    "Lease",
    "LeaseLostError",
    "LocalCache",
    "LogEntry",
    "LogHandler",
    "Message",
    "Mode",
    "Move",
    "OqronError",
    "Page",
    "Patch",
    "Pause",
    "PausedError",
    "Permit",
    "PluginError",
    "Prunable",
    "Put",
    "Query",
    "Record",
    "RecordKind",
    "Report",
    "Rule",
    "Run",
    "RunHandle",
    "RunStatus",
    "Schedule",
    "SchemaError",
    "Scope",
    "Settings",
    "SlidingWindow",
    "Storage",
    "StorageError",
    "Table",
    "TimedOutError",
    "TokenBucket",
    "UnavailableError",
    "classify_namespace",
    "hookimpl",
    "load_settings",
    "open_storage",
    "table_for_kind",
]
