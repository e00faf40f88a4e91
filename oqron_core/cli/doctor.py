"""``oqron doctor``: settings, planes and plugins, looked at one by one."""

from __future__ import annotations

import asyncio

from typing import Any, Final

import attrs
import click

from rich.text import Text

from oqron_core._plugins import DoctorCheck, Plugins, discover, one_line
from oqron_core.cli._invocation import Invocation, common_options, json_option, run_async
from oqron_core.cli._output import Column, make_table, plain, print_json, print_rich
from oqron_core.cli._probe import Probe, capabilities_document, probe
from oqron_core.config import Settings, describe, structure_section


__all__ = ["doctor"]

_PATIENCE: Final = 30.0
_OK = Text("ok", style="green")
_WARNING = Text("warning", style="yellow")
_TROUBLE = Text("trouble", style="red")
_SKIPPED = Text("skipped", style="yellow")


@attrs.frozen
class _Finding:
    """One thing that was looked at."""

    what: str
    ok: bool
    says: str
    warns: bool = False
    skipped: bool = False


@click.command()
@common_options
@json_option
@click.pass_obj
def doctor(invocation: Invocation, *, as_json: bool) -> None:
    """Show the effective settings and check both planes and every plugin in use.

    Secrets are not shown. Exit status 1 where there is trouble; a warning is none.
    """
    plugins = discover(only=())
    settings = invocation.settings(plugins)
    shown, probes, checks = run_async(_examine(plugins, settings))
    findings = [*(_of_probe(found) for found in probes), *checks]
    ok = all(finding.ok for finding in findings)
    if as_json:
        print_json(
            {
                "ok": ok,
                "settings": shown,
                "planes": [_plane_document(found) for found in probes],
                "checks": [
                    {
                        "what": finding.what,
                        "ok": finding.ok,
                        "warns": finding.warns,
                        "says": finding.says,
                    }
                    for finding in checks
                ],
            }
        )
    else:
        _show(shown, probes, findings)
    if not ok:
        raise SystemExit(1)


async def _examine(
    plugins: Plugins, settings: Settings
) -> tuple[dict[str, dict[str, Any]], tuple[Probe, Probe], list[_Finding]]:
    probes = await probe(plugins, settings)
    backends = [
        backend
        for name in dict.fromkeys((settings.hot, settings.durable))
        if (backend := plugins.backend(name)) is not None
    ]
    shown = describe(settings, backends)
    serves = {
        name: {plane for plane in ("hot", "durable") if getattr(settings, plane) == name}
        for name in (settings.hot, settings.durable)
    }
    away = {found.backend: found for found in reversed(probes) if found.away}
    checks = [
        _skipped(check, away[check.plugin])
        if check.plugin in away
        else await _run(check, plugins, settings)
        for check in plugins.doctor_checks()
        # A backend that is not in use is looked at whole.
        if not serves.get(check.plugin) or serves[check.plugin].intersection(check.planes)
    ]
    return shown, probes, checks


def _skipped(check: DoctorCheck, found: Probe) -> _Finding:
    # A server that did not answer a plane would not answer these either, only slower.
    says = f"not looked at: see {_name(found)}"
    return _Finding(check.name, ok=False, says=says, skipped=True)


async def _run(check: DoctorCheck, plugins: Plugins, settings: Settings) -> _Finding:
    try:
        backend = plugins.backend(check.plugin)
        section = None
        if backend is not None:
            section = structure_section(backend, settings.section_for(backend.name), backend.name)
        ok: bool | None
        async with asyncio.timeout(_PATIENCE):
            ok, says = await check.check(section)
    except TimeoutError:
        ok, says = False, f"gave no answer within {_PATIENCE:g} seconds"
    except Exception as error:  # noqa: BLE001 - a check that raises is a check that failed
        ok, says = False, one_line(error)
    return _Finding(check.name, ok is None or bool(ok), str(says), warns=ok is None)


def _name(found: Probe) -> str:
    return f"{found.plane} plane ({found.backend})"


def _of_probe(found: Probe) -> _Finding:
    what = _name(found)
    if found.error is not None or found.health is None:
        return _Finding(what, ok=False, says=found.error or "it could not be opened")
    says = "; ".join(found.health.reasons) or "serves calls"
    ok = found.health.ok
    return _Finding(what, ok, says, warns=ok and bool(found.health.reasons))


def _plane_document(found: Probe) -> dict[str, Any]:
    health, capabilities = found.health, found.capabilities
    return {
        "plane": found.plane,
        "backend": found.backend,
        "ok": health is not None and health.ok,
        "error": found.error,
        "reasons": [] if health is None else list(health.reasons),
        "details": {} if health is None else dict(health.details),
        "capabilities": None if capabilities is None else capabilities_document(capabilities),
    }


def _state(item: _Finding) -> Text:
    if item.skipped:
        return _SKIPPED
    if not item.ok:
        return _TROUBLE
    return _WARNING if item.warns else _OK


def _told(findings: list[_Finding]) -> list[str]:
    """Give what is said of each; what was said of one before is not said again."""
    first: dict[str, str] = {}
    told = []
    for item in findings:
        known = None if item.ok or item.skipped else first.get(item.says)
        told.append(item.says if known is None else f"as the {known}")
        first.setdefault(item.says, item.what)
    return told


def _show(
    shown: dict[str, dict[str, Any]], probes: tuple[Probe, Probe], findings: list[_Finding]
) -> None:
    settings = [
        Column("setting", style="cyan", whole=True),
        Column("value"),
        Column("from", style="dim"),
    ]
    print_rich(
        make_table(settings, [(path, row["value"], row["source"]) for path, row in shown.items()])
    )
    print_rich("")
    columns = [Column("checked", style="cyan", whole=True), Column("", whole=True), Column("")]
    rows = [
        (item.what, _state(item), says)
        for item, says in zip(findings, _told(findings), strict=True)
    ]
    print_rich(make_table(columns, rows))
    for found in probes:
        details = {} if found.health is None else found.health.details
        if details:
            facts = ", ".join(f"{name} {value}" for name, value in details.items())
            print_rich(Text(f"\n{found.plane}: {plain(facts)}", style="dim"))
