"""
Writes `oqron_core._sync_services`: the blocking twins of the services.

``python -m oqron_core._syncgen`` writes the file, ``--check`` only compares. The
source of the services is read, not imported, and every annotation and default is
taken as it is spelt there, so the result depends on nothing else.

What becomes of a public method:

* a coroutine function blocks and returns what it returned;
* an async context manager becomes a context manager;
* an async iterator becomes an iterator;
* everything else is passed through, as it does not wait.
"""

from __future__ import annotations

import ast
import sys

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs


__all__ = ["SOURCES", "TARGET", "generate", "main"]

_HERE: Final = Path(__file__).parent
TARGET: Final = _HERE / "_sync_services.py"
"""The file that is written."""
SOURCES: Final = _HERE / "services"
"""The folder whose modules are read."""

_WIDTH: Final = 100
_MANAGERS: Final = frozenset({"AbstractAsyncContextManager", "AsyncContextManager"})
_ITERATORS: Final = frozenset({"AsyncIterator", "AsyncGenerator", "AsyncIterable"})
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_Function = ast.FunctionDef | ast.AsyncFunctionDef

_HEADER: Final = '''\
"""
The blocking twins of the services. Written by ``python -m oqron_core._syncgen``.

Every class here serves the same calls as the service it is named after, with the
same arguments, results and errors; see `oqron_core.sync` for how to get them.
"""

# Written by a program: change the services, then run it again.
# ruff: noqa: A002 - the words of the contract

from __future__ import annotations
'''


class GenerationError(Exception):
    """A service is written in a way that the generator does not know."""


@attrs.frozen
class _Module:
    """One module of services: its text, its tree, and what its names mean."""

    name: str
    text: str
    tree: ast.Module
    imports: dict[str, tuple[str, str | None]]
    """Of each name the module, and what is imported from it; None is the module."""
    defined: frozenset[str]

    @classmethod
    def parse(cls, name: str, text: str) -> _Module:
        tree = ast.parse(text)
        imports: dict[str, tuple[str, str | None]] = {}
        defined: set[str] = set()
        for node in _top_level(tree.body):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    imports[alias.asname or alias.name.partition(".")[0]] = (alias.name, None)
            elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
                for alias in node.names:
                    imports[alias.asname or alias.name] = (node.module or "", alias.name)
            else:
                defined.update(_bound(node))
        return cls(name, text, tree, imports, frozenset(defined))

    def source(self, node: ast.AST) -> str:
        """Give the text of *node* on one line, as it is spelt."""
        segment = ast.get_source_segment(self.text, node)
        if segment is None:
            msg = f"{self.name}: a node without a place in the source"
            raise GenerationError(msg)
        return " ".join(segment.split())


@attrs.define
class _Imports:
    """The imports that the written file needs."""

    names: dict[str, tuple[str, str | None]] = attrs.field(factory=dict)

    def add(self, name: str, origin: tuple[str, str | None]) -> None:
        known = self.names.setdefault(name, origin)
        if known != origin:
            msg = f"the name {name} means {known} in one service and {origin} in another"
            raise GenerationError(msg)

    def lines(self) -> Iterator[str]:
        modules = sorted(
            module if module == name else f"{module} as {name}"
            for name, (module, what) in self.names.items()
            if what is None
        )
        groups: dict[str, set[str]] = {}
        for name, (module, what) in self.names.items():
            if what is not None:
                groups.setdefault(module, set()).add(name if name == what else f"{what} as {name}")
        own = sorted(module for module in groups if _is_own(module))
        others = sorted(module for module in groups if not _is_own(module))
        plain = [f"import {module}" for module in modules]
        standard = [line for module in others for line in _import(module, groups[module])]
        ours = [line for module in own for line in _import(module, groups[module])]
        for block in (plain, standard, ours):
            if block:
                yield ""
                yield from block


def _is_own(module: str) -> bool:
    return module.partition(".")[0] == "oqron_core"


def _order(name: str) -> tuple[int, str]:
    """Order names as linters do: constants, classes, the others."""
    plain = name.partition(" as ")[0]
    if plain.isupper() and len(plain) > 1:
        return 0, name
    return (1 if plain[:1].isupper() else 2), name


def _import(module: str, names: Iterable[str]) -> Iterator[str]:
    ordered = sorted(names, key=_order)
    line = f"from {module} import {', '.join(ordered)}"
    if len(line) <= _WIDTH:
        yield line
        return
    yield f"from {module} import ("
    yield from (f"    {name}," for name in ordered)
    yield ")"


def _top_level(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Give the statements of a module, those under ``if TYPE_CHECKING`` too."""
    for node in body:
        if isinstance(node, ast.If):
            yield from _top_level(node.body)
        else:
            yield node


def _bound(node: ast.stmt) -> set[str]:
    """Give the names that a statement binds in its module."""
    if isinstance(node, (ast.ClassDef, *_FUNCTIONS)):
        return {node.name}
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _names(node: ast.expr) -> set[str]:
    """Give every name that an annotation or a default uses, in strings too."""
    found: set[str] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            found.add(inner.id)
        elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            # A forward reference, or a plain string default, which names nothing.
            try:
                quoted = ast.parse(inner.value, mode="eval").body
            except SyntaxError:
                continue
            found.update(name.id for name in ast.walk(quoted) if isinstance(name, ast.Name))
    return found


def _decorators(function: _Function) -> set[str]:
    return {ast.unparse(each).rpartition(".")[2] for each in function.decorator_list}


def _head(annotation: ast.expr | None) -> str:
    """Give the outermost name of an annotation: ``Page`` of ``m.Page[Job]``."""
    if isinstance(annotation, ast.Subscript):
        annotation = annotation.value
    if isinstance(annotation, ast.Attribute):
        return annotation.attr
    return annotation.id if isinstance(annotation, ast.Name) else ""


def _yields(function: _Function) -> bool:
    """Whether the body itself yields; a nested function's yield is not its own."""
    pending: list[ast.AST] = list(function.body)
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(node, (*_FUNCTIONS, ast.Lambda, ast.ClassDef)):
            pending.extend(ast.iter_child_nodes(node))
    return False


def _kind(function: _Function) -> str:
    """Say what a method is: ``wait``, ``hold``, ``iterate``, ``property`` or ``pass``."""
    decorators = _decorators(function)
    if decorators & {"property", "cached_property"}:
        return "property"
    if "asynccontextmanager" in decorators:
        return "hold"
    head = _head(function.returns)
    asynchronous = isinstance(function, ast.AsyncFunctionDef)
    if head in _MANAGERS and not asynchronous:
        return "hold"
    if head in _ITERATORS and (not asynchronous or _yields(function)):
        return "iterate"
    return "wait" if asynchronous else "pass"


def _parameters(module: _Module, function: _Function) -> tuple[list[str], list[str], set[str]]:
    """Give the parameters behind self, how to pass them on, and the names in them."""
    spec = function.args
    positional = [*spec.posonlyargs, *spec.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(spec.defaults))
    defaults += spec.defaults
    shown: list[str] = []
    passed: list[str] = []
    used: set[str] = set()

    def show(argument: ast.arg, default: ast.expr | None, stars: str = "") -> str:
        text = f"{stars}{argument.arg}"
        if argument.annotation is not None:
            text += f": {module.source(argument.annotation)}"
            used.update(_names(argument.annotation))
        if default is not None:
            text += f" = {module.source(default)}" if argument.annotation else ""
            used.update(_names(default))
        return text

    for index, (argument, default) in enumerate(zip(positional, defaults, strict=True)):
        if index > 0:
            shown.append(show(argument, default))
            passed.append(argument.arg)
        if spec.posonlyargs and index == len(spec.posonlyargs) - 1 and index > 0:
            shown.append("/")
    if spec.vararg is not None:
        shown.append(show(spec.vararg, None, "*"))
        passed.append(f"*{spec.vararg.arg}")
    elif spec.kwonlyargs:
        shown.append("*")
    for argument, default in zip(spec.kwonlyargs, spec.kw_defaults, strict=True):
        shown.append(show(argument, default))
        passed.append(f"{argument.arg}={argument.arg}")
    if spec.kwarg is not None:
        shown.append(show(spec.kwarg, None, "**"))
        passed.append(f"**{spec.kwarg.arg}")
    return shown, passed, used


def _signature(name: str, parameters: Sequence[str], returns: str, end: str) -> Iterator[str]:
    line = f"    def {name}({', '.join(['self', *parameters])}) -> {returns}:{end}"
    if len(line) <= _WIDTH:
        yield line
        return
    # As the formatter breaks it: all parameters on one line of their own, or each.
    yield f"    def {name}("
    inner = f"        {', '.join(['self', *parameters])}"
    if len(inner) <= _WIDTH and not any(part == "*" or "=" in part for part in parameters):
        yield inner
    else:
        yield from (f"        {part}," for part in ["self", *parameters])
    yield f"    ) -> {returns}:{end}"


def _call(opening: str, arguments: Sequence[str]) -> Iterator[str]:
    line = f"        {opening}({', '.join(arguments)})"
    if len(line) <= _WIDTH:
        yield line
        return
    yield f"        {opening}("
    inner = f"            {', '.join(arguments)}"
    if len(inner) <= _WIDTH:
        yield inner
    else:
        yield from (f"            {argument}," for argument in arguments)
    yield "        )"


def _docstring(module: _Module, node: _Function | ast.ClassDef, indent: str) -> Iterator[str]:
    first = node.body[0] if node.body else None
    if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
        return
    if not isinstance(first.value.value, str):
        return
    segment = ast.get_source_segment(module.text, first.value)
    if segment is not None:
        # Both classes stand at the same depth, so the lines stay as they are.
        yield from f"{indent}{segment}".split("\n")


@attrs.define
class _Writer:
    """Writes the twins of one module."""

    module: _Module
    imports: _Imports
    twins: frozenset[str]

    def use(self, names: Iterable[str]) -> None:
        """Import *names* of the source module in the written one."""
        for name in sorted(names):
            if name in self.module.imports:
                self.imports.add(name, self.module.imports[name])
            elif name in self.module.defined:
                self.imports.add(name, (self.module.name, name))

    def returned(self, function: _Function, kind: str) -> str:
        """Spell what the twin of *function* returns."""
        annotation = function.returns
        if annotation is None:
            msg = f"{self.module.name}: {function.name} says nothing of what it returns"
            raise GenerationError(msg)
        if kind not in {"hold", "iterate"}:
            self.use(_names(annotation))
            return self.module.source(annotation)
        if not isinstance(annotation, ast.Subscript):
            msg = f"{self.module.name}: {function.name} must say what it gives, in brackets"
            raise GenerationError(msg)
        inner = annotation.slice
        if isinstance(inner, ast.Tuple):
            inner = inner.elts[0]
        self.use(_names(inner))
        if kind == "hold":
            self.imports.add("AbstractContextManager", ("contextlib", "AbstractContextManager"))
            return f"AbstractContextManager[{self.module.source(inner)}]"
        self.imports.add("Iterator", ("collections.abc", "Iterator"))
        return f"Iterator[{self.module.source(inner)}]"

    def method(self, function: _Function, *, overloaded: bool) -> Iterator[str]:
        kind = _kind(function)
        shown, passed, used = _parameters(self.module, function)
        self.use(used)
        returns = self.returned(function, kind)
        yield ""
        if "overload" in _decorators(function):
            self.imports.add("overload", ("typing", "overload"))
            yield "    @overload"
            yield from _signature(function.name, shown, returns, " ...")
            return
        if kind == "property":
            yield "    @property"
        yield from _signature(function.name, shown, returns, "")
        yield from _docstring(self.module, function, "        ")
        yield from self.body(function.name, kind, passed, overloaded=overloaded)

    def body(
        self, name: str, kind: str, passed: Sequence[str], *, overloaded: bool
    ) -> Iterator[str]:
        target = f"self._service.{name}"
        if kind == "property":
            yield f"        return {target}"
        elif kind == "pass":
            yield from _call(f"return {target}", passed)
        elif kind == "wait":
            if overloaded:
                # A parameter specification cannot stand for overloads.
                self.imports.add("Any", ("typing", "Any"))
                yield f"        method: Any = {target}"
                target = "method"
            yield from _call("return self._portal.call", [target, *passed])
        else:
            made = f"{target}({', '.join(passed)})"
            yield from _call(f"return self._portal.{kind}", [made])

    def twin(self, node: ast.ClassDef) -> Iterator[str]:
        bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
        kept = [f"Sync{base}" for base in bases if base in self.twins]
        self.imports.add(node.name, (self.module.name, node.name))
        self.imports.add("Portal", ("oqron_core._portal", "Portal"))
        yield ""
        yield ""
        heading = f"({', '.join(kept)})" if kept else ""
        yield f"class Sync{node.name}{heading}:"
        yield from _docstring(self.module, node, "    ")
        yield ""
        yield '    __slots__ = ("_portal", "_service")'
        yield ""
        yield f"    def __init__(self, portal: Portal, service: {node.name}) -> None:"
        yield "        self._portal = portal"
        yield "        self._service = service"
        functions = [each for each in node.body if isinstance(each, _FUNCTIONS)]
        overloads = {each.name for each in functions if "overload" in _decorators(each)}
        for function in functions:
            if not function.name.startswith("_"):
                yield from self.method(function, overloaded=function.name in overloads)


def _public(module: _Module) -> list[ast.ClassDef]:
    """Give the classes that have a coroutine or the like to be blocked on."""
    found = []
    for node in module.tree.body:
        if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
            continue
        kinds = {_kind(each) for each in node.body if isinstance(each, _FUNCTIONS)}
        if kinds & {"wait", "hold", "iterate"}:
            found.append(node)
    return found


def generate(sources: Iterable[tuple[str, str]]) -> str:
    """
    Write the blocking twins of every service.

    Args:
        sources: The dotted name and the text of each module.

    Returns:
        The text of one module, the same for the same sources.

    Raises:
        GenerationError: A service is written in a way that cannot be turned.
    """
    modules = [_Module.parse(name, text) for name, text in sorted(sources)]
    classes = [(module, node) for module in modules for node in _public(module)]
    twins = frozenset(node.name for _, node in classes)
    imports = _Imports()
    body: list[str] = []
    for module, node in classes:
        body.extend(_Writer(module, imports, twins).twin(node))
    exported = sorted(f"Sync{name}" for name in twins)
    lines = [*_HEADER.rstrip("\n").split("\n"), *imports.lines(), "", ""]
    lines += ["__all__ = [", *(f'    "{name}",' for name in exported), "]"]
    return "\n".join([*lines, *body, ""])


def read_sources(folder: Path = SOURCES) -> list[tuple[str, str]]:
    """Give the dotted name and the text of every module of services."""
    return [
        (f"oqron_core.services.{path.stem}", path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*.py"))
        if not path.stem.startswith("_")
    ]


def main(arguments: Sequence[str]) -> int:
    """
    Write the file, or with ``--check`` say by the exit status whether it is fresh.

    Returns:
        0 if all is well, 1 if the file is stale.
    """
    text = generate(read_sources())
    if "--check" not in arguments:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    fresh = TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text
    if not fresh:
        sys.stderr.write(f"{TARGET} is stale: run python -m oqron_core._syncgen\n")
    return 0 if fresh else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
