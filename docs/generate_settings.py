"""
Makes docs/settings.md out of the settings classes and the exceptions.

``python docs/generate_settings.py`` writes it; a test holds it up to date.
"""

from __future__ import annotations

import enum
import inspect
import re
import types
import typing

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs

from oqron_core import OqronError, Settings, exceptions
from oqron_core._plugins import discover
from oqron_core.config._strict import Field, fields_of


PAGE: Final = Path(__file__).with_name("settings.md")
BACKENDS: Final = ("memory", "sqlite", "redis", "postgres")
"""Ours, in the order of the page."""

_HEAD: Final = """\
<!-- Made by generate_settings.py; change that, or the docstrings of the classes. -->

# Settings

Every setting comes from the highest of these sources that names it:

1. an argument: `open_storage(project="my-app", redis={"url": …})`;
2. an environment variable, as in the tables: two underscores between section and key;
3. the nearest `oqron.toml`, from the working directory upward;
4. `[tool.oqron]` of the nearest `pyproject.toml` that has it;
5. its default.

`mode` (`memory`, `sqlite`, `redis`, `redis-postgres`) stands for `hot` and `durable`, any
pair of installed backends; where none of the three is set, it is `memory`.

What is wrong anywhere is reported all at once, as `ConfigError`, with the path of the
setting, its source and the mend. A name that nothing knows is wrong too. `oqron doctor`
shows the effective settings, each with its source, without secrets.

TOML is taken as it is typed: `"30"` is no number. In a variable, `true`, `1`, `yes` and
`on` are true, a list has commas between its items, and a number that may be absent is
absent as `none`. Seconds may have a fraction.

```toml
project = "my-app"
environment = "production"
mode = "redis-postgres"

[retention]
completed_for = 3600

[redis]
url = "redis://localhost:6379/0"

[postgres]
url = "postgresql://localhost/app"
```

`OQRON_PLUGINS` is no setting: where it is set, only the plugins that it names, with
commas between, are loaded at all.
"""
_ERRORS: Final = """\
## Errors

All are `OqronError`, importable from `oqron_core`. Those marked may succeed when the same
call is made again, unchanged; their `retryable` is true.

| error | is a | again? | |
| --- | --- | --- | --- |
"""


def settings_page() -> str:
    """Give the whole page."""
    parts = [_HEAD, "## Core\n", _table(Settings, "")]
    for name, field in fields_of(Settings).items():
        section = field.type
        if attrs.has(section):
            parts += [f"### `[{name}]`\n", f"{_summary(section)}\n", _table(section, name)]
    plugins = discover(only=())
    for name in BACKENDS:
        backend = plugins.backend(name)
        if backend is None:
            msg = f"the backend {name} must be installed to make this page"
            raise LookupError(msg)
        cls = backend.settings
        parts += [f"## `[{name}]`\n", f"{_summary(cls)}\n", _table(cls, name)]
    parts += [_ERRORS + "\n".join(_error_rows()) + "\n"]
    return "\n".join(parts)


def _table(cls: type[Any], section: str) -> str:
    said = _attributes(cls)
    rows = ["| key | variable | default | |", "| --- | --- | --- | --- |"]
    for name, field in fields_of(cls).items():
        if attrs.has(field.type):
            continue
        path = f"{section}__{name}" if section else name
        variable = f"`OQRON_{path.upper()}`" if _is_text(field.type) else "only from code"
        row = (f"`{name}`", variable, _default(field), said[name])
        rows.append(f"| {' | '.join(row)} |")
    return "\n".join(rows) + "\n"


def _is_text(kind: Any) -> bool:
    """Say whether a value of *kind* can be written in a file or a variable."""
    parts = [part for part in _parts(kind) if part is not type(None)]
    return all(
        part in {str, int, float, bool}
        or (isinstance(part, type) and issubclass(part, enum.Enum))
        or typing.get_origin(part) in {tuple, list}
        for part in parts
    )


def _parts(kind: Any) -> tuple[Any, ...]:
    union = typing.get_origin(kind) in {typing.Union, types.UnionType}
    return typing.get_args(kind) if union else (kind,)


def _default(field: Field) -> str:
    value = field.attribute.default
    if value is attrs.NOTHING:
        return "required"
    if value is None or value in ("", ()):
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.15g}" if isinstance(value, (int, float)) else f"`{value}`"


def _paragraphs(cls: type[Any]) -> tuple[str, str]:
    """Give a docstring in two: what stands before its attributes, and these."""
    text = inspect.cleandoc(cls.__doc__ or "")
    before, _, after = text.partition("\nAttributes:\n")
    return before, re.split(r"\n(?=\w)", after)[0]


def _summary(cls: type[Any]) -> str:
    return _flat(_paragraphs(cls)[0].split("\n\n")[0])


def _attributes(cls: type[Any]) -> dict[str, str]:
    """Give what the docstring of a class says about each attribute."""
    _, listed = _paragraphs(cls)
    found = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", listed, re.MULTILINE)
    return {name: _flat(text) for name, text in found}


def _flat(text: str) -> str:
    # A docstring has code in two backticks and the names of parameters in stars.
    words = re.sub(r"``(.+?)``", r"`\1`", " ".join(text.split()))
    return re.sub(r"(?<![\w*])\*(\w+)\*(?![\w*])", r"`\1`", words).replace("|", "\\|")


def _error_rows() -> Iterator[str]:
    for name in exceptions.__all__:
        error = getattr(exceptions, name)
        bases = [base.__name__ for base in error.__bases__ if base.__name__ != "Exception"]
        parents = ", ".join(f"`{base}`" for base in bases) or "–"
        again = "yes" if issubclass(error, OqronError) and error.retryable else ""
        text = _flat(inspect.cleandoc(error.__doc__ or "").split("\n\n")[0])
        yield f"| `{name}` | {parents} | {again} | {text} |"


if __name__ == "__main__":
    PAGE.write_text(settings_page(), encoding="utf-8")
