"""The effective settings, for people to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import attrs

from oqron_core.config._leaves import Section
from oqron_core.config._load import structure_section
from oqron_core.config._settings import Settings
from oqron_core.config._strict import HIDDEN, Field, fields_of, redact_url
from oqron_core.hookspecs import Backend


__all__ = ["describe"]


def describe(settings: Settings, backends: Iterable[Backend] = ()) -> dict[str, dict[str, Any]]:
    """
    Show the effective settings, each with its source, without secrets.

    Args:
        settings: The settings.
        backends: The backends in use: their settings are shown in full, those of
            other sections by name only.

    Returns:
        For each path such as ``runs.buffer`` a dict of ``value``, which is JSON,
        and ``source``; core's settings first.
    """
    shown: dict[str, dict[str, Any]] = {}
    for name in fields_of(Settings):
        value = getattr(settings, name)
        if attrs.has(type(value)):
            for inner in attrs.fields(type(value)):
                path = f"{name}.{inner.name}"
                shown[path] = _row(getattr(value, inner.name), settings.sources.get(path))
        else:
            source = settings.sources.get(name)
            shown[name] = _row(value, source or _mode_source(name, settings))
    known = {backend.name: backend for backend in backends}
    for name in sorted({*settings.sections, *known}):
        section = settings.section_for(name)
        if name in known:
            shown.update(_describe_backend(known[name], section))
        else:
            for key in section:
                shown[f"{name}.{key}"] = _row(HIDDEN, _section_source(section, key))
    return shown


def _mode_source(name: str, settings: Settings) -> str | None:
    return settings.sources.get("hot") if name == "mode" else None


def _row(value: Any, source: str | None) -> dict[str, Any]:
    shown = str(value) if isinstance(value, StrEnum) else value
    return {"value": shown, "source": source or "default"}


def _section_source(section: Mapping[str, Any], key: str) -> str | None:
    if not isinstance(section, Section):
        return "argument" if key in section else None
    found = [leaf.source for path, leaf in section.leaves.items() if path[0] == key]
    return ", ".join(dict.fromkeys(found)) or None


def _describe_backend(backend: Backend, section: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    built = structure_section(backend, section)
    rows: dict[str, dict[str, Any]] = {}
    for key, field in fields_of(backend.settings).items():
        value = _safe(field, getattr(built, field.attribute.name))
        rows[f"{backend.name}.{key}"] = _row(value, _section_source(section, key))
    return rows


def _safe(field: Field, value: Any) -> Any:
    """Give what of a value may be shown, as JSON."""
    if isinstance(value, str) and "://" in value and field.name.endswith(("url", "uri", "dsn")):
        return redact_url(value)
    if value is None:
        return None
    if field.secret:
        return HIDDEN
    if isinstance(value, str):
        return redact_url(value)
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [_safe(field, item) for item in value]
    return f"<{type(value).__name__}>"
