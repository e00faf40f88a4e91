"""What a plane declares that it can do, and within which limits."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import attrs

from oqron_core._codec import DEFAULT_MAX_VALUE_BYTES
from oqron_core._names import MAX_NAME_BYTES
from oqron_core.taxonomy import RecordKind


__all__ = ["CONTRACT_VERSION", "Capabilities", "Durability"]

CONTRACT_VERSION: Final = 1
"""The version of the two planes. A new abstract method is a new version."""


class Durability(StrEnum):
    """What a plane's content survives."""

    PROCESS = "process"
    """Nothing: it is gone with the process."""
    SERVER = "server"
    """The end of every client; not always a crash of the server."""
    DISK = "disk"
    """A crash of the server: what was acknowledged is on disk."""


@attrs.frozen(kw_only=True)
class Capabilities:
    """
    Flags and limits of one plane: data, checked when a mode is opened.

    Whatever is declared must work and whatever is not must refuse; the
    conformance kit tests both.

    Attributes:
        backend: The name of the backend.
        durability: What the content of the plane survives.
        kinds: Where it differs by record kind.
        shared: Whether several processes may open the same store.
        clock: Whose clock judges expiry: ``process`` or ``server``.
        notify: Whether waiting wakes without polling.
        atomic: Whether `DurablePlane.write` takes ``atomic=True``. Dead letters,
            requeued jobs, schedules and topics are written so.
        atomic_scope: How far an atomic batch reaches: ``scope`` for any records,
            which core and the kit need; ``namespace`` where all must share one.
        transactions: Whether `DurablePlane.bind` takes a caller's transaction.
        expiry_filter: Whether a condition that ``expires_at`` is None lets a query
            skip what has ended, so that it should be given where it holds anyway.
        max_batch: The largest batch of a single step; larger ones are split.
        max_atomic_batch: The largest atomic batch.
        max_value_bytes: The largest encoded top-level field.
        max_name_bytes: The longest name, in bytes of UTF-8.
        min_lease_for: The shortest lease, in seconds.
    """

    backend: str
    durability: Durability
    kinds: Mapping[RecordKind, Durability] = attrs.field(factory=dict)
    shared: bool = False
    clock: str = "server"
    notify: bool = True
    atomic: bool = True
    atomic_scope: str = "scope"
    transactions: bool = False
    expiry_filter: bool = False
    max_batch: int = 1000
    max_atomic_batch: int = 10_000
    max_value_bytes: int = DEFAULT_MAX_VALUE_BYTES
    max_name_bytes: int = MAX_NAME_BYTES
    min_lease_for: float = 0.05

    def durability_of(self, kind: RecordKind) -> Durability:
        """What records of *kind* survive."""
        return self.kinds.get(kind, self.durability)
