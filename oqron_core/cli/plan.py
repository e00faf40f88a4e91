"""``oqron plan``: what a mode is made of, what it can do, and what it can lose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import attrs
import click

from rich.text import Text

from oqron_core._plugins import discover
from oqron_core.cli._invocation import Invocation, common_options, json_option, run_async
from oqron_core.cli._output import Column, make_table, print_json, print_rich
from oqron_core.cli._probe import Probe, capabilities_document, probe
from oqron_core.config import Settings
from oqron_core.planes.capabilities import Capabilities, Durability
from oqron_core.taxonomy import RecordKind, table_for_kind


__all__ = ["plan"]

_NATIVE: Final = "native"
_EMULATED: Final = "emulated"
_REFUSED: Final = "refused"
_STYLES: Final = {_NATIVE: "green", _EMULATED: "yellow", _REFUSED: "red"}

_SURVIVES: Final = {
    Durability.PROCESS: "nothing: it is gone with the process",
    Durability.SERVER: "the end of every client; a crash of its server may take the last writes",
    Durability.DISK: "a crash of its server: what was acknowledged is on disk",
}


@attrs.frozen
class _Feature:
    """One thing that a mode does."""

    name: str
    plane: str
    how: str
    says: str


@click.command()
@common_options
@json_option
@click.pass_obj
def plan(invocation: Invocation, *, as_json: bool) -> None:
    """Show what a mode is made of: backends, features, durability, losses.

    A plane says only when it is open what it can do, so both are opened and closed
    again; nothing is written. Exit status 1 where one cannot be opened.
    """
    plugins = discover(only=())
    settings = invocation.settings(plugins)
    hot, durable = run_async(probe(plugins, settings))
    features = [*_hot_features(hot), *_durable_features(durable)]
    losses = _losses(settings, hot, durable)
    if as_json:
        print_json(_document(settings, (hot, durable), features, losses))
    else:
        _show(settings, (hot, durable), features, losses)
    failed = [found for found in (hot, durable) if found.error is not None]
    if failed:
        said = [f"{found.plane} plane ({found.backend}): {found.error}" for found in failed]
        raise click.ClickException("; ".join(said))


# --- what it can do ----------------------------------------------------------------


def _declared(flag: bool) -> str:
    return _NATIVE if flag else _REFUSED


def _hot_features(found: Probe) -> list[_Feature]:
    can = found.capabilities
    if can is None:
        return []
    wake = "the store wakes who waits" if can.notify else "waiting polls"
    rows = [
        ("leases with fencing tokens", _NATIVE, f"from {can.min_lease_for:g} s, {can.clock} clock"),
        ("waiting for work", _NATIVE if can.notify else _EMULATED, wake),
        ("several processes", _declared(can.shared), _sharing(can)),
    ]
    return [_Feature(name, "hot", how, says) for name, how, says in rows] + _defaults(found)


def _durable_features(found: Probe) -> list[_Feature]:
    can = found.capabilities
    if can is None:
        return []
    reach = "any records" if can.atomic_scope == "scope" else "records of one namespace"
    rows = [
        ("batches", _NATIVE, f"{can.max_batch} records a step; larger ones are split"),
        (
            "atomic batches",
            _declared(can.atomic),
            f"up to {can.max_atomic_batch}, {reach}" if can.atomic else "each item by itself",
        ),
        (
            "jobs in the caller's transaction",
            _declared(can.transactions),
            "add(transaction=…)" if can.transactions else "add without transaction=",
        ),
        ("several processes", _declared(can.shared), _sharing(can)),
        ("size of a field", _NATIVE, f"up to {can.max_value_bytes} bytes"),
    ]
    return [_Feature(name, "durable", how, says) for name, how, says in rows] + _defaults(found)


def _sharing(can: Capabilities) -> str:
    return "any number share the store" if can.shared else "one process has the store to itself"


def _defaults(found: Probe) -> list[_Feature]:
    return [
        _Feature(name, found.plane, _EMULATED, "by the contract's default, one by one")
        for name in found.emulated
    ]


# --- what it can lose --------------------------------------------------------------


def _losses(settings: Settings, hot: Probe, durable: Probe) -> list[tuple[str, str]]:
    """Say what is lost when this or that dies."""
    if hot.capabilities is None or durable.capabilities is None:
        return []
    same = settings.hot == settings.durable
    truth = durable.capabilities.durability
    if truth is Durability.PROCESS:
        return [("this process", "everything: jobs, dead letters, runs, definitions")]
    worker = "no job: leases lapse and others take over; the last moments of its runs' logs"
    rows = [("a worker", worker)]
    gone = "locks, counters, cache and live progress; queues are rebuilt from the durable plane"
    if hot.capabilities.durability is Durability.PROCESS:
        rows.append(("the process with the hot plane", gone))
    elif not same:
        rows.append((f"the hot store ({settings.hot})", gone))
    store = "the store" if same else "the durable store"
    lost = (
        "nothing that was acknowledged"
        if truth is Durability.DISK
        else "the last writes, as its persistence is set; everything where that is off"
    )
    rows.append((f"{store} ({settings.durable}) crashes", lost))
    return rows


# --- showing -------------------------------------------------------------------------


def _document(
    settings: Settings,
    probes: Sequence[Probe],
    features: Sequence[_Feature],
    losses: Sequence[tuple[str, str]],
) -> dict[str, Any]:
    durable = probes[1].capabilities
    return {
        "mode": None if settings.mode is None else str(settings.mode),
        "hot": settings.hot,
        "durable": settings.durable,
        "planes": [
            {
                "plane": found.plane,
                "backend": found.backend,
                "error": found.error,
                "capabilities": None
                if found.capabilities is None
                else capabilities_document(found.capabilities),
            }
            for found in probes
        ],
        "features": [
            {"name": item.name, "plane": item.plane, "support": item.how, "detail": item.says}
            for item in features
        ],
        "durability": {}
        if durable is None
        else {kind.value: durable.durability_of(kind).value for kind in RecordKind},
        "losses": [{"dies": what, "lost": lost} for what, lost in losses],
    }


def _show(
    settings: Settings,
    probes: Sequence[Probe],
    features: Sequence[_Feature],
    losses: Sequence[tuple[str, str]],
) -> None:
    mode = "a pair without a name" if settings.mode is None else f"mode {settings.mode}"
    pair = f": hot plane {settings.hot}, durable plane {settings.durable}"
    print_rich(Text.assemble((mode, "bold"), pair))
    if features:
        columns = [Column("feature", style="cyan"), Column("plane"), Column("support"), Column("")]
        rows = [
            (item.name, item.plane, Text(item.how, style=_STYLES[item.how]), item.says)
            for item in features
        ]
        print_rich("")
        print_rich(make_table(columns, rows))
    durable = probes[1].capabilities
    if durable is not None:
        columns = [Column("record kind", style="cyan"), Column("table"), Column("durability")]
        levels = {kind: durable.durability_of(kind) for kind in RecordKind}
        kinds = [
            (kind.value, f"oqron_{table_for_kind(kind)}", level.value)
            for kind, level in levels.items()
        ]
        print_rich("")
        print_rich(make_table(columns, kinds))
        for level in dict.fromkeys(levels.values()):
            print_rich(Text(f"{level} survives {_SURVIVES[level]}", style="dim"))
    if losses:
        print_rich("")
        columns = [Column("when this dies", style="cyan"), Column("this is lost")]
        print_rich(make_table(columns, losses))
