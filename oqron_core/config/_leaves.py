"""Values with their sources, as they were written."""

from __future__ import annotations

import types

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import attrs


__all__ = [
    "ABSENT",
    "Leaf",
    "Leaves",
    "Section",
    "flatten",
    "fold",
    "leaves_of",
    "merge",
    "nest",
    "plain",
    "source_of",
]

ABSENT: Final = object()
"""What stands where there is no value."""


@attrs.frozen
class Leaf:
    """One value and where it was written. Its repr does not show the value."""

    value: Any = attrs.field(repr=False)
    source: str
    text: bool = False
    """Whether the value is text to be parsed, as in the environment."""
    argument: bool = False
    """Whether the program gave it, so it may be any object."""


Leaves: TypeAlias = dict[tuple[str, ...], Leaf]
"""Values by their paths."""


def flatten(
    table: Mapping[str, Any], source: str, path: tuple[str, ...] = (), *, argument: bool = False
) -> Iterator[tuple[tuple[str, ...], Leaf]]:
    """Give every value of a nested table with its path; an empty table is a value."""
    for key, value in table.items():
        here = (*path, key)
        if isinstance(value, Mapping) and value:
            yield from flatten(value, source, here, argument=argument)
        else:
            yield here, Leaf(value, source, argument=argument)


def nest(leaves: Mapping[tuple[str, ...], Leaf]) -> dict[str, Any]:
    """Turn paths into a tree whose leaves are `Leaf`."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        table = tree
        for key in path[:-1]:
            inner = table.get(key)
            if not isinstance(inner, dict):
                # A table wins over a single value of a lower source.
                inner = table[key] = {}
            table = inner
        table[path[-1]] = leaf
    return tree


def plain(node: Any) -> Any:
    """Turn a tree of `Leaf` back into what was written."""
    if isinstance(node, Leaf):
        return node.value
    return {key: plain(child) for key, child in node.items()}


def merge(layers: Iterable[Leaves]) -> Leaves:
    """Merge layers, the highest first; a value hides what is under its path."""
    merged: Leaves = {}
    for layer in layers:
        for path, leaf in layer.items():
            heads = {path[:size] for size in range(1, len(path) + 1)}
            tails = any(known[: len(path)] == path for known in merged)
            if not heads & merged.keys() and not tails:
                merged[path] = leaf
    return merged


def fold(node: Mapping[str, Any]) -> Leaf:
    """Fold a table back into one value, for a setting that is a mapping."""
    leaves = list(leaves_of(node))
    text = any(leaf.text for leaf in leaves)
    argument = all(leaf.argument for leaf in leaves)
    return Leaf(plain(node), source_of(node), text=text, argument=argument)


def leaves_of(node: Any) -> Iterator[Leaf]:
    """Give every leaf of a tree."""
    if isinstance(node, Leaf):
        yield node
        return
    for child in node.values():
        yield from leaves_of(child)


def source_of(node: Any) -> str:
    """Name every source that a tree was written in."""
    return ", ".join(dict.fromkeys(leaf.source for leaf in leaves_of(node)))


class Section(Mapping[str, Any]):
    """
    The settings of one backend as they were written, with their sources.

    Not checked yet: that takes the backend's own settings class, see
    `structure_section`. Its repr shows the keys and no value.
    """

    __slots__ = ("_leaves",)

    def __init__(self, leaves: Mapping[tuple[str, ...], Leaf] | None = None) -> None:
        self._leaves = dict(leaves or {})

    def __getitem__(self, key: str) -> Any:
        found = nest(self._leaves).get(key, ABSENT)
        if found is ABSENT:
            raise KeyError(key)
        return plain(found)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(path[0] for path in self._leaves))

    def __len__(self) -> int:
        return len({path[0] for path in self._leaves})

    def __repr__(self) -> str:
        return f"Section({', '.join(self)})"

    @property
    def leaves(self) -> Mapping[tuple[str, ...], Leaf]:
        """Every value by its path in the section."""
        return types.MappingProxyType(self._leaves)
