"""Strict reading of values into attrs classes, with every problem at once."""

# Why an own walk and not cattrs' converters: each leaf comes from another source
# and is strict or text by that source, a problem has to name that source, and what
# was refused must not be shown where it may be a secret, neither in the message
# nor in a chained cause. cattrs' errors are built around the refused value.

from __future__ import annotations

import enum
import math
import re
import types
import typing

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, Union

import attrs

from oqron_core._plugins import suggest
from oqron_core.config._leaves import ABSENT, Leaf, fold, source_of
from oqron_core.exceptions import ConfigError, InvalidValueError, PluginError


__all__ = ["HIDDEN", "Field", "Refused", "Walk", "attrs_of", "fields_of", "redact_url", "take"]

HIDDEN: Final = "***"
"""What stands for a value that is not shown."""

_SettingsT = TypeVar("_SettingsT")


class Refused(Exception):  # noqa: N818 - control flow, never leaves this module
    """A value is not what its setting takes; the text never shows the value."""


@attrs.frozen
class Field:
    """A setting of an attrs class: what it takes and how much may be shown."""

    name: str
    type: Any
    attribute: attrs.Attribute[Any]

    @property
    def secret(self) -> bool:
        return self.attribute.repr is False

    @property
    def text(self) -> bool:
        return bool(self.attribute.metadata.get("text", True))


_FIELDS: Final[dict[type[Any], Mapping[str, Field]]] = {}
"""What is known of the classes that were asked for: a class does not change."""


def fields_of(cls: type[Any]) -> Mapping[str, Field]:
    found = _FIELDS.get(cls)
    if found is None:
        found = _FIELDS[cls] = types.MappingProxyType(_fields(cls))
    return found


def _fields(cls: type[Any]) -> dict[str, Field]:
    try:
        hints = typing.get_type_hints(cls)
    except NameError as error:
        msg = (
            f"the settings class {cls.__qualname__} has a type that cannot be resolved "
            f"({error}); import it outside of TYPE_CHECKING"
        )
        raise PluginError(msg) from error
    return {
        attribute.alias: Field(attribute.alias, hints.get(attribute.name, Any), attribute)
        for attribute in attrs.fields(cls)
        if attribute.init and attribute.metadata.get("setting", True)
    }


_WORDS: Final = types.MappingProxyType(
    {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
)
_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})


def _expected(kind: Any) -> str:
    origin = typing.get_origin(kind)
    if origin in {Union, types.UnionType}:
        parts = [part for part in typing.get_args(kind) if part is not type(None)]
        words = " or ".join(_expected(part) for part in parts)
        optional = len(parts) < len(typing.get_args(kind)) and str not in parts
        return f'{words}, or "none"' if optional else words
    if origin is Literal:
        return " or ".join(f'"{choice}"' for choice in typing.get_args(kind))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return " or ".join(f'"{member.value}"' for member in kind)
    if origin is not None:
        return "a table" if issubclass(origin, Mapping) else "a list"
    return _WORDS.get(kind) or str(getattr(kind, "__name__", kind))


def _got(value: Any) -> str:
    """Say what was given, by its kind alone."""
    names = {str: "text", bool: "a boolean", int: "a whole number", float: "a number"}
    if isinstance(value, Mapping):
        return "a table"
    return names.get(type(value)) or f"a {type(value).__name__}"


def _parse(text: str, kind: Any) -> Any:
    """Turn text into a plain value of the scalar type *kind*, or refuse it."""
    if text != text.strip():
        msg = "has white space at its start or end; remove it"
        raise Refused(msg)
    if kind is bool:
        lower = text.lower()
        if lower in _TRUE or lower in _FALSE:
            return lower in _TRUE
    elif kind is int and re.fullmatch(r"[+-]?\d{1,30}(_\d{1,30})*", text, re.ASCII):
        return int(text)
    elif kind is float:
        try:
            return float(text)
        except ValueError:
            pass
    elif kind not in {int, float}:
        return text
    msg = f"must be {_expected(kind)}"
    raise Refused(msg)


def _read(leaf: Leaf, kind: Any) -> Any:
    return _parse(leaf.value, kind) if leaf.text and isinstance(leaf.value, str) else leaf.value


def _take_scalar(value: Any, kind: Any) -> Any:
    if kind is float and type(value) is int:
        value = float(value) if abs(value) <= 2**53 else value
    if type(value) is not kind:
        msg = f"must be {_expected(kind)}, not {_got(value)}"
        raise Refused(msg)
    if kind is float and not math.isfinite(value):
        msg = "must be a finite number"
        raise Refused(msg)
    return value


def _take_choice(value: Any, choices: Mapping[Any, Any]) -> Any:
    """Pick one of *choices*; these are words of ours, so they may be shown."""
    for word, choice in choices.items():
        if type(word) is type(value) and word == value:
            return choice
    listed = ", ".join(f'"{word}"' for word in choices)
    near = suggest(value, [str(word) for word in choices]) if isinstance(value, str) else ""
    msg = f"is none of {listed}{near}"
    raise Refused(msg)


def _take_union(leaf: Leaf, kinds: Sequence[Any]) -> Any:
    if type(None) in kinds and leaf.value is None:
        return None
    # Neither TOML nor a variable can say None. Where text may be text, "none" is.
    if type(None) in kinds and str not in kinds and leaf.value == "none":
        return None
    first: Refused | None = None
    for kind in kinds:
        if kind is not type(None):
            try:
                return take(leaf, kind)
            except Refused as refused:
                first = first or refused
    raise first or Refused('must be "none"')


def _take_many(leaf: Leaf, origin: type, arguments: Sequence[Any]) -> Any:
    value = leaf.value
    if issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            msg = f"must be a table, not {_got(value)}"
            raise Refused(msg)
        inner = arguments[1] if len(arguments) > 1 else Any
        return {key: take(attrs.evolve(leaf, value=item), inner) for key, item in value.items()}
    if leaf.text and isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, (list, tuple)):
        msg = f"must be a list, not {_got(value)}"
        raise Refused(msg)
    inner = arguments[0] if arguments else Any
    items = [take(attrs.evolve(leaf, value=item), inner) for item in value]
    return items if issubclass(origin, list) else tuple(items)


def take(leaf: Leaf, kind: Any) -> Any:
    """
    Give the value of *leaf* as *kind*.

    Raises:
        Refused: It is not one.
    """
    origin = typing.get_origin(kind)
    if kind is Any:
        return leaf.value
    if origin in {Union, types.UnionType}:
        return _take_union(leaf, typing.get_args(kind))
    if origin is Literal:
        return _take_choice(_read(leaf, str), {word: word for word in typing.get_args(kind)})
    if isinstance(origin, type) and issubclass(origin, (Sequence, Mapping)):
        return _take_many(leaf, origin, typing.get_args(kind))
    return _take_plain(leaf, kind)


def _take_plain(leaf: Leaf, kind: Any) -> Any:
    """Take what is one value of one class."""
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        if leaf.argument and isinstance(leaf.value, kind):
            return leaf.value
        return _take_choice(_read(leaf, str), {member.value: member for member in kind})
    if kind in _WORDS:
        return _take_scalar(_read(leaf, kind), kind)
    if kind is Path and isinstance(leaf.value, str):
        return Path(_read(leaf, str))
    if isinstance(kind, type) and isinstance(leaf.value, kind):
        return leaf.value
    if not leaf.argument:
        msg = "can only be given as an argument, not as text"
        raise Refused(msg)
    if isinstance(kind, type):
        msg = f"must be a {kind.__name__}, not {_got(leaf.value)}"
        raise Refused(msg)
    # A callable or a protocol: what it takes is the program's own business.
    return leaf.value


def _shown(field: Field, value: Any) -> str:
    """Show a refused value where it cannot be a secret: `` (it is 5)``."""
    if field.secret or not isinstance(value, (str, int, float, bool)):
        return ""
    text = repr(redact_url(value) if isinstance(value, str) else value)
    return f" (it is {text[:100]})"


def redact_url(text: str) -> str:
    """
    Give a URL back without userinfo, query and fragment.

    Text without ``://`` is given back as it is.
    """
    scheme, mark, rest = text.partition("://")
    if not mark:
        return text
    head, *tail = re.split(r"[?#]", rest, maxsplit=1)
    if tail and "@" in tail[0]:
        # Either a query with an @, or a password with an unquoted ? or #: nobody
        # can tell where the host is.
        return f"{scheme}://{HIDDEN}"
    return f"{scheme}://{head.rpartition('@')[2]}"


@attrs.frozen
class Walk:
    """One pass over leaves that fills attrs classes and collects problems."""

    problems: list[str]

    def report(self, path: str, reason: str, source: str) -> None:
        line = f"{path}: {reason} [{source}]"
        if line not in self.problems:
            self.problems.append(line)

    def values(
        self, cls: type[Any], tree: Mapping[str, Any], path: str, *, complete: bool = True
    ) -> dict[str, Any]:
        """Give the arguments for *cls* that could be read from *tree*."""
        fields = fields_of(cls)
        values: dict[str, Any] = {}
        for key, node in tree.items():
            here = f"{path}{key}"
            field = fields.get(key)
            if field is None:
                reason = f"is no setting{suggest(key, fields)}"
                self.report(here, reason, source_of(node))
                continue
            taken = self._value(field, node, here, complete=complete)
            if taken is not ABSENT:
                values[key] = taken
        self._validate(cls, fields, values, tree, path)
        return values

    def _value(self, field: Field, node: Any, here: str, *, complete: bool) -> Any:
        nested = attrs_of(field.type)
        if nested is not None and isinstance(node, Leaf) and node.value == {}:
            return ABSENT
        if nested is not None and isinstance(node, dict):
            values = self.values(nested, node, f"{here}.", complete=complete)
            return self.build(nested, values, here, source_of(node), complete=complete)
        if nested is not None and not (node.argument and isinstance(node.value, nested)):
            self.report(here, f"must be a table, not {_got(node.value)}", node.source)
            return ABSENT
        leaf = node if isinstance(node, Leaf) else fold(node)
        if not field.text and not leaf.argument:
            self.report(here, "can only be given as an argument", leaf.source)
            return ABSENT
        try:
            return leaf.value if nested is not None else take(leaf, field.type)
        except Refused as refused:
            self.report(here, f"{refused}{_shown(field, leaf.value)}", leaf.source)
            return ABSENT

    def _validate(
        self,
        cls: type[Any],
        fields: Mapping[str, Field],
        values: dict[str, Any],
        tree: Mapping[str, Any],
        path: str,
    ) -> None:
        """Run the validators one by one: a class stops at its first problem."""
        # A shape of the class that was never initialised: a validator that looks at
        # other fields finds what was given for them.
        shadow = object.__new__(cls)
        for name, value in values.items():
            object.__setattr__(shadow, fields[name].attribute.name, value)
        for name in list(values):
            field = fields[name]
            if field.attribute.validator is None or field.attribute.converter is not None:
                continue
            try:
                field.attribute.validator(shadow, field.attribute, values[name])
            except AttributeError:
                # It looks at a field that was not given: the class itself decides.
                continue
            except Exception as error:  # noqa: BLE001 - an author's validator raises what it likes
                here = f"{path}{name}"
                reason = _reason(error, field, values[name], here)
                self.report(here, reason, source_of(tree[name]))
                del values[name]

    def build(
        self,
        cls: type[_SettingsT],
        values: dict[str, Any],
        path: str,
        source: str,
        *,
        complete: bool = True,
    ) -> _SettingsT | Any:
        """Make the object, or report why that cannot be."""
        fields = fields_of(cls)
        missing = [
            name
            for name, field in fields.items()
            if field.attribute.default is attrs.NOTHING and name not in values
        ]
        if missing:
            if complete:
                for name in missing:
                    if not any(line.startswith(f"{path}.{name}: ") for line in self.problems):
                        variable = f"OQRON_{path}__{name}".replace(".", "__").upper()
                        reason = f"is required and not set; {variable} may hold it"
                        self.report(f"{path}.{name}", reason, source)
            return ABSENT
        try:
            return cls(**values)
        except Exception as error:  # noqa: BLE001 - as above
            secrets = [_secret_text(fields[name], value) for name, value in values.items()]
            for here, text in _problems_of(error, path, fields):
                self.report(here, _scrub(text, secrets), source)
        return ABSENT


def attrs_of(kind: Any) -> type[Any] | None:
    """Give the attrs class that *kind* is, alone or beside None."""
    for part in typing.get_args(kind) if _is_union(kind) else (kind,):
        if isinstance(part, type) and attrs.has(part):
            return part
    return None


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in {Union, types.UnionType}


def _problems_of(
    error: Exception, path: str, fields: Mapping[str, Field]
) -> Iterator[tuple[str, str]]:
    """Give what a class says against its values, each with the path it is of."""
    if isinstance(error, ConfigError):
        for problem in error.problems:
            head, colon, text = problem.partition(": ")
            if colon and (head == path or head.startswith(f"{path}.")):
                yield head, text
            else:
                yield path, problem
    elif isinstance(error, InvalidValueError):
        inner = error.path.removeprefix(f"{path}.")
        known = re.split(r"[.\[]", inner, maxsplit=1)[0] in fields
        yield (f"{path}.{inner}" if known else path), error.reason
    else:
        yield path, _text_of(error, path)


def _text_of(error: Exception, path: str) -> str:
    if isinstance(error, InvalidValueError):
        return error.reason
    if isinstance(error, ConfigError):
        # Whoever raised it may have named the path already.
        return "; ".join(problem.removeprefix(f"{path}: ") for problem in error.problems)
    # attrs' own validators put the attribute and the value behind the sentence.
    return str(error.args[0]) if error.args else type(error).__name__


def _secret_text(field: Field, value: Any) -> str:
    secret = field.secret or (isinstance(value, str) and "://" in value)
    return str(value) if secret and value is not None else ""


def _scrub(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        if secret:
            text = text.replace(repr(secret), HIDDEN).replace(secret, HIDDEN)
    return re.sub(r"(\w+://)\S*@", r"\1", text)


def _reason(error: Exception, field: Field, value: Any, path: str) -> str:
    if field.secret:
        # Whatever the validator says may quote the value, whole or in part.
        return "is not valid"
    return _scrub(_text_of(error, path), [_secret_text(field, value)])
