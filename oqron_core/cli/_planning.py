"""What a pair of planes can do and what it can lose, out of what they declare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from oqron_core.cli._probe import Probe, capabilities_document
from oqron_core.config import Settings
from oqron_core.planes.capabilities import Capabilities, Durability
from oqron_core.taxonomy import RecordKind


__all__ = [
    "EMULATED",
    "NATIVE",
    "REFUSED",
    "SURVIVES",
    "Feature",
    "Loss",
    "Plan",
    "make_plan",
]

NATIVE: Final = "native"
EMULATED: Final = "emulated"
REFUSED: Final = "refused"

SURVIVES: Final[Mapping[Durability, str]] = {
    Durability.PROCESS: "nothing: it is gone with the process",
    Durability.SERVER: (
        "the end of every process that uses it; where the store or its machine crashes, "
        "what was not yet on disk is gone"
    ),
    Durability.DISK: "a crash of the store and of its machine: what was acknowledged is on disk",
}

_WHOLE: Final = "jobs, dead letters, runs, definitions"
_PASSING: Final = "locks, counters, cache and live progress"
_REBUILT: Final = f"{_PASSING}; no job: queues are rebuilt from the durable plane"
_LATE: Final = "no job: leases lapse and others take over; the last moments of its runs' logs"
_KEPT: Final = "nothing that was acknowledged"
_UNWRITTEN: Final = "what was not yet on disk: the last moments, or all where it does not persist"


@attrs.frozen
class Feature:
    """
    One thing that a mode does.

    Attributes:
        name: What it is called.
        plane: ``hot`` or ``durable``.
        support: ``native``, ``emulated`` or ``refused``.
        detail: In which way, or within which limits.
    """

    name: str
    plane: str
    support: str
    detail: str


@attrs.frozen
class Loss:
    """
    What is lost in one event.

    Attributes:
        event: ``worker``, ``processes``, ``hot``, ``durable``, ``store`` where one
            backend is both, or ``disk``.
        dies: What dies, for a person.
        lost: What is gone then.
    """

    event: str
    dies: str
    lost: str


@attrs.frozen(kw_only=True)
class Plan:
    """
    All that can be said of a pair before anything is done with it.

    Attributes:
        settings: Which pair, and how it is set.
        hot: What was found of the hot plane.
        durable: What was found of the durable plane.
        features: What it can do; nothing of a plane that could not be opened.
        durability: What records of each kind survive.
        losses: What is lost when this or that dies.
    """

    settings: Settings
    hot: Probe
    durable: Probe
    features: tuple[Feature, ...]
    durability: Mapping[RecordKind, Durability]
    losses: tuple[Loss, ...]

    def document(self) -> dict[str, Any]:
        """Give it as JSON."""
        settings, hot = self.settings, self.hot.capabilities
        return {
            "mode": None if settings.mode is None else str(settings.mode),
            "hot": settings.hot,
            "durable": settings.durable,
            "planes": [_plane_document(found) for found in (self.hot, self.durable)],
            "features": [attrs.asdict(item) for item in self.features],
            "durability": {kind.value: level.value for kind, level in self.durability.items()},
            "hotDurability": None if hot is None else hot.durability.value,
            "losses": [attrs.asdict(item) for item in self.losses],
        }


def make_plan(settings: Settings, hot: Probe, durable: Probe) -> Plan:
    """Put together what was found of the two planes of *settings*."""
    features: list[Feature] = []
    if hot.capabilities is not None:
        features += [*_hot_features(hot.capabilities), *_defaults(hot)]
    if durable.capabilities is not None:
        features += [*_durable_features(durable.capabilities), *_defaults(durable)]
    return Plan(
        settings=settings,
        hot=hot,
        durable=durable,
        features=tuple(features),
        durability=_levels(durable.capabilities),
        losses=tuple(_losses(hot, durable)),
    )


def _plane_document(found: Probe) -> dict[str, Any]:
    can, health = found.capabilities, found.health
    return {
        "plane": found.plane,
        "backend": found.backend,
        "error": found.error,
        "reasons": [] if health is None else list(health.reasons),
        "capabilities": None if can is None else capabilities_document(can),
    }


# --- what it can do ----------------------------------------------------------------


def _declared(flag: bool) -> str:
    return NATIVE if flag else REFUSED


def _woken(can: Capabilities) -> str:
    return NATIVE if can.notify else EMULATED


def _hot_features(can: Capabilities) -> list[Feature]:
    lease = f"from {can.min_lease_for:g} s, {can.clock} clock"
    wake = "the store wakes who waits" if can.notify else "waiting polls"
    told = "the store tells who listens" if can.notify else "listening polls"
    rows = [
        ("queues", NATIVE, "order, priority, delay, pause; a claim is one atomic step"),
        ("leases with fencing tokens", NATIVE, lease),
        ("waiting for work", _woken(can), wake),
        ("signals", _woken(can), told),
        ("locks and leaders", NATIVE, "with leases and fencing tokens"),
        ("counters and rate limits", NATIVE, "each call is one atomic step"),
        ("cache", NATIVE, "values that expire"),
        ("live progress", NATIVE, "what is known of a run before history has it"),
        ("several processes", _declared(can.shared), _sharing(can)),
    ]
    return [Feature(name, "hot", how, says) for name, how, says in rows]


def _durable_features(can: Capabilities) -> list[Feature]:
    reach = "any records" if can.atomic_scope == "scope" else "records of one namespace"
    atomic = (
        f"up to {can.max_atomic_batch}, {reach}"
        if can.atomic
        else "each item by itself: no dead letters, requeues, schedules or topics"
    )
    bind = "add(transaction=…)" if can.transactions else "add without transaction="
    ended = "a query skips it" if can.expiry_filter else "read, and passed over"
    rows = [
        ("history that outlives the process", _declared(_outlives(can)), _outliving(can)),
        ("queries, counts, retention", NATIVE, "by the same conditions in every mode"),
        ("batches", NATIVE, f"{can.max_batch} records a step; larger ones are split"),
        ("atomic batches", _declared(can.atomic), atomic),
        ("jobs in the caller's transaction", _declared(can.transactions), bind),
        ("expiry", NATIVE, f"{can.clock} clock; what has ended is absent at once"),
        ("skipping what has ended", NATIVE if can.expiry_filter else EMULATED, ended),
        ("several processes", _declared(can.shared), _sharing(can)),
        ("size of a field", NATIVE, f"up to {can.max_value_bytes} bytes"),
        ("length of a name", NATIVE, f"up to {can.max_name_bytes} bytes"),
    ]
    return [Feature(name, "durable", how, says) for name, how, says in rows]


def _outlives(can: Capabilities) -> bool:
    return Durability.PROCESS not in _levels(can).values()


def _outliving(can: Capabilities) -> str:
    gone = [kind.value for kind, level in _levels(can).items() if level is Durability.PROCESS]
    if not gone:
        return "records of every kind"
    return "none" if len(gone) == len(RecordKind) else f"all but {', '.join(gone)}"


def _sharing(can: Capabilities) -> str:
    return "any number share the store" if can.shared else "one process has the store to itself"


def _defaults(found: Probe) -> list[Feature]:
    return [
        Feature(name, found.plane, EMULATED, "by the contract's default, one by one")
        for name in found.emulated
    ]


# --- what it can lose --------------------------------------------------------------


def _levels(can: Capabilities | None) -> dict[RecordKind, Durability]:
    return {} if can is None else {kind: can.durability_of(kind) for kind in RecordKind}


def _losses(hot: Probe, durable: Probe) -> list[Loss]:
    """Say what is lost when this or that dies."""
    passing, truth = hot.capabilities, durable.capabilities
    if passing is None or truth is None:
        return []
    kept = [kind for kind, level in _levels(truth).items() if level is not Durability.PROCESS]
    rows = [_of_worker(passing, truth), _of_processes(passing, truth)]
    if hot.backend == durable.backend:
        if kept:
            rows.append(_of_store("store", f"the store ({durable.backend})", truth))
    else:
        if passing.durability is not Durability.PROCESS:
            gone = _KEPT if passing.durability is Durability.DISK else _REBUILT
            rows.append(Loss("hot", f"the hot store ({hot.backend}), or its machine", gone))
        if kept:
            rows.append(_of_store("durable", f"the durable store ({durable.backend})", truth))
    if kept:
        gone = "what is in no backup and no replica" + _only(kept)
        rows.append(Loss("disk", f"the disk of {durable.backend}", gone))
    return rows


def _in_process(can: Capabilities) -> bool:
    return can.durability is Durability.PROCESS or not can.shared


def _of_worker(passing: Capabilities, truth: Capabilities) -> Loss:
    inside = _in_process(passing) or _in_process(truth)
    return Loss("worker", "a worker in this process" if inside else "a worker", _LATE)


def _of_processes(passing: Capabilities, truth: Capabilities) -> Loss:
    inside = _in_process(passing) or _in_process(truth)
    dies = "this process" if inside else "all processes at once"
    gone = [kind for kind, level in _levels(truth).items() if level is Durability.PROCESS]
    if len(gone) == len(RecordKind):
        return Loss("processes", dies, f"everything: {_WHOLE}")
    if gone:
        return Loss("processes", dies, f"records of {_names(gone)}; {_PASSING}")
    if passing.durability is Durability.PROCESS:
        return Loss("processes", dies, f"{_REBUILT}; the last moments of runs and their logs")
    return Loss("processes", dies, "no job: leases lapse; the last moments of runs and their logs")


def _of_store(event: str, name: str, truth: Capabilities) -> Loss:
    """Say what a crash of the durable store takes, by kind where kinds differ."""
    dies = f"{name}, or its machine"
    unsafe = [kind for kind, level in _levels(truth).items() if level is Durability.SERVER]
    return Loss(event, dies, _UNWRITTEN + _only(unsafe) if unsafe else _KEPT)


def _only(kinds: list[RecordKind]) -> str:
    return "" if len(kinds) == len(RecordKind) else f", of {_names(kinds)}"


def _names(kinds: list[RecordKind]) -> str:
    return ", ".join(kind.value for kind in kinds)
