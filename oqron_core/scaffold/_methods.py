"""Methods of the contract as source text: signatures to the letter, bodies to be written."""

from __future__ import annotations

import ast
import inspect
import textwrap

from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from oqron_core.planes import (
    Broker,
    Cache,
    Counters,
    LiveRuns,
    Locks,
    Signals,
)


__all__ = ["FACETS", "Class", "class_of", "imports_of"]

FACETS: Final = (Broker, Locks, Counters, Cache, LiveRuns, Signals)
_WIDTH: Final = 100
_WRITTEN: Final = frozenset({"scope", "capabilities"})
"""Properties that the templates hold ready."""


@attrs.frozen
class Class:
    """
    One ABC, as a class that implements nothing yet.

    Attributes:
        base: The name of the ABC.
        methods: The source of its abstract methods, indented.
        names: Every name that their signatures use.
    """

    base: str
    methods: str
    names: frozenset[str]


def class_of(abc: type) -> Class:
    """Write the abstract methods of *abc*, in the order of the contract."""
    source = textwrap.dedent(inspect.getsource(abc))
    [definition] = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)  # noqa: S101 - getsource gave a class
    methods: list[str] = []
    names: set[str] = set()
    for node in definition.body:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if node.name in _WRITTEN or node.name not in _abstract(abc):
            continue
        methods.append(_method(abc, node))
        names |= {*_names(node)}
    return Class(abc.__name__, "\n\n".join(methods), frozenset(names))


def _abstract(abc: type) -> frozenset[str]:
    return getattr(abc, "__abstractmethods__", frozenset())


def _names(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    annotations = [argument.annotation for argument in _arguments(node)]
    for annotation in (*annotations, node.returns):
        if annotation is not None:
            for part in ast.walk(annotation):
                if isinstance(part, ast.Name):
                    yield part.id


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def _method(abc: type, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    head = f"    {word} {node.name}("
    returns = "None" if node.returns is None else ast.unparse(node.returns)
    tail = f") -> {returns}:"
    doc = (ast.get_docstring(node) or "").partition("\n\n")[0]
    lines = [
        *_signature(head, _parameters(node), tail),
        *_docstring(" ".join(doc.split()), f"{abc.__name__}.{node.name}"),
        f'        raise NotImplementedError("{abc.__name__}.{node.name}")',
    ]
    return "\n".join(lines)


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    arguments = node.args
    plain = arguments.args
    gap = len(plain) - len(arguments.defaults)
    found = [
        _parameter(argument, arguments.defaults[index - gap] if index >= gap else None)
        for index, argument in enumerate(plain)
    ]
    if arguments.kwonlyargs:
        found.append("*")
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [*found, *(_parameter(argument, default) for argument, default in pairs)]


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    if argument.annotation is None:
        return argument.arg
    text = f"{argument.arg}: {ast.unparse(argument.annotation)}"
    return text if default is None else f"{text} = {_literal(default)}"


def _literal(default: ast.expr) -> str:
    # Strings come with single quotes, and ours have double ones.
    return ast.unparse(default).replace("'", '"')


def _signature(head: str, parameters: list[str], tail: str) -> list[str]:
    """Break a signature as the formatter would."""
    one = f"{head}{', '.join(parameters)}{tail}"
    if len(one) <= _WIDTH:
        return [one]
    inner = f"        {', '.join(parameters)}"
    if len(inner) <= _WIDTH:
        return [head, inner, f"    {tail}"]
    return [head, *(f"        {parameter}," for parameter in parameters), f"    {tail}"]


def _docstring(summary: str, where: str) -> list[str]:
    one = f'        """{summary}"""'
    if len(one) <= _WIDTH:
        return [one]
    return [
        '        """',
        f"        {where}:",
        *textwrap.wrap(summary, _WIDTH - 8, initial_indent=" " * 8, subsequent_indent=" " * 8),
        '        """',
    ]


_FROM: Final = {
    "Any": "typing",
    "AbstractAsyncContextManager": "contextlib",
    "AsyncIterator": "collections.abc",
    "Mapping": "collections.abc",
    "Sequence": "collections.abc",
}
_BUILTINS: Final = frozenset({"bool", "dict", "float", "int", "list", "str", "tuple"})


def imports_of(names: Iterable[str], *more: str) -> str:
    """Write the imports that *names* need: the standard library, then the planes."""
    by_module: dict[str, set[str]] = {}
    for name in {*names, *more} - _BUILTINS:
        by_module.setdefault(_FROM.get(name, "oqron_core.planes"), set()).add(name)
    planes = by_module.pop("oqron_core.planes", set())
    lines = [
        f"from {module} import {', '.join(sorted(found, key=_isort))}"
        for module, found in sorted(by_module.items())
    ]
    listed = "".join(f"    {name},\n" for name in sorted(planes, key=_isort))
    return "\n".join([*lines, "", f"from oqron_core.planes import (\n{listed})"])


def _isort(name: str) -> tuple[bool, str]:
    return not name.isupper(), name
