"""The report of a conformance run as a table of Markdown, for a README or a release."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final


__all__ = ["declared", "markdown"]

_SHOWN: Final = (
    "durability",
    "shared",
    "clock",
    "notify",
    "atomic",
    "atomic_scope",
    "transactions",
    "max_batch",
    "max_atomic_batch",
    "max_value_bytes",
    "min_lease_for",
)
"""Which capabilities are shown, in this order."""


def declared(instance: Any) -> dict[str, dict[str, Any]]:
    """Read what the planes of a contract test declare, by plane; of what it has opened."""
    storage = getattr(instance, "storage", instance)
    found: dict[str, dict[str, Any]] = {}
    for name in ("hot", "durable"):
        capabilities = getattr(getattr(storage, name, None), "capabilities", None)
        if capabilities is not None:
            found[name] = {one: _plain(getattr(capabilities, one)) for one in _SHOWN}
    return found


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, str) else value


def markdown(document: Mapping[str, Any]) -> str:
    """
    Write the JSON document of a run as Markdown: results, then capabilities.

    Args:
        document: What ``--oqron-report=FILE.json`` holds.
    """
    return "\n".join([*_results(document), *_capabilities(document)]) + "\n"


def _results(document: Mapping[str, Any]) -> Iterator[str]:
    yield f"# oqron contract {document['contract']}"
    yield ""
    yield "| backend | result | passed | failed | skipped | undeclared | overridden |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for backend, result in document["backends"].items():
        cells = (
            _cell(backend),
            "ok" if result["ok"] else "**not ok**",
            *(str(result[key]) for key in ("passed", "failed", "skipped")),
            ", ".join(f"`{name}`" for name in sorted(result["undeclared"])) or "none",
            str(len(result["overridden"]) or "none"),
        )
        yield f"| {' | '.join(cells)} |"
    for backend, result in document["backends"].items():
        for test, reason in sorted(result["overridden"].items()):
            yield f"\n{_cell(backend)} replaces `{test}`: {_cell(reason)}"


def _capabilities(document: Mapping[str, Any]) -> Iterator[str]:
    planes = [
        (f"{_cell(backend)}, {plane}", values)
        for backend, result in document["backends"].items()
        for plane, values in result.get("capabilities", {}).items()
    ]
    if not planes:
        return
    yield ""
    yield f"| capability | {' | '.join(title for title, _ in planes)} |"
    yield f"| --- |{' --- |' * len(planes)}"
    for name in _SHOWN:
        cells = [_shown(values.get(name)) for _, values in planes]
        yield f"| `{name}` | {' | '.join(cells)} |"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else _cell(str(value))


def _cell(text: str) -> str:
    """Keep a text within its cell."""
    return " ".join(text.split()).replace("|", "\\|")
