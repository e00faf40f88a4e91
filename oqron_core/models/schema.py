"""
JSON Schemas of the records, made from the models.

They are shipped in ``oqron_core/models/schemas``; ``python -m
oqron_core.models.schema`` writes them anew.
"""

from __future__ import annotations

import json
import types
import typing

from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any, Final

import attrs

from oqron_core.models._wire import LOCAL, camel
from oqron_core.models.job import Job, JobStatus
from oqron_core.models.records import Breaker, Control, Definition, LogEntry, Message
from oqron_core.models.run import Run, RunStatus


__all__ = ["MODELS", "load_schema", "make_schema"]

MODELS: Final[dict[str, type[Any]]] = {
    "breaker": Breaker,
    "control": Control,
    "definition": Definition,
    "job": Job,
    "log": LogEntry,
    "message": Message,
    "run": Run,
}
_STATUS: Final[dict[type[Any], type[StrEnum]]] = {Job: JobStatus, Run: RunStatus}
_TYPES: Final[dict[Any, str]] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}
_LOG: Final = {
    "type": "object",
    "required": ["level", "msg", "ts"],
    "properties": {
        "level": {"type": "string"},
        "msg": {"type": "string"},
        "ts": {"type": "integer"},
    },
}
_TIMELINE: Final = {
    "type": "object",
    "required": ["ts", "to"],
    "properties": {
        "ts": {"type": "integer"},
        "from": {"type": ["string", "null"]},
        "to": {"type": "string"},
        "reason": {"type": ["string", "null"]},
    },
}


def _of_type(annotation: Any) -> dict[str, Any]:
    if annotation is Any:
        return {}
    origin = typing.get_origin(annotation)
    if origin is types.UnionType or origin is typing.Union:
        return {"type": [_TYPES[part] for part in typing.get_args(annotation)]}
    if origin is list:
        return {"type": "array", "items": _of_type(typing.get_args(annotation)[0])}
    if origin is dict:
        return {"type": "object"}
    return {"type": _TYPES[annotation]}


def make_schema(name: str) -> dict[str, Any]:
    """
    Make the schema of a record: ``job``, ``run``, ``message`` and the like.

    A reader should accept fields that are not named; later versions add some.
    """
    model = MODELS[name]
    hints = typing.get_type_hints(model)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for field in attrs.fields(model):
        if LOCAL in field.metadata:
            continue
        properties[camel(field.name)] = _of_type(hints[field.name])
        if field.default is attrs.NOTHING:
            required.append(camel(field.name))
    if model in _STATUS:
        properties["status"] = {"enum": [str(status) for status in _STATUS[model]]}
    if "logs" in properties:
        properties["logs"] = {"type": "array", "items": _LOG}
        properties["timeline"] = {"type": "array", "items": _TIMELINE}
    summary = (model.__doc__ or "").strip().splitlines()[0]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": model.__name__,
        "description": summary,
        "type": "object",
        "required": required,
        "properties": properties,
    }


def load_schema(name: str) -> dict[str, Any]:
    """Read the shipped schema of a record."""
    file = resources.files("oqron_core.models") / "schemas" / f"{name}.json"
    schema: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return schema


def _write_all() -> None:
    folder = Path(__file__).with_name("schemas")
    folder.mkdir(exist_ok=True)
    for name in MODELS:
        text = json.dumps(make_schema(name), indent=2) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _write_all()
