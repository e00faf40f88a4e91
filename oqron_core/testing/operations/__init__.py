"""
Every public operation of a storage, and what it is called with.

A method that changes something has a `Case` in `CASES`, which the walk lets die at each
call that it makes. One that only looks is called by `READS`, and one that touches no
plane is named in `LOCAL`. Nothing else is there: `unregistered` finds what is new.
"""

from __future__ import annotations

import inspect

from collections.abc import Iterator, Mapping
from typing import Final

from oqron_core.storage import Storage
from oqron_core.testing.operations import jobs, schedules, shared, topics, upkeep
from oqron_core.testing.operations.reads import LOCAL, LOOKS, READS
from oqron_core.testing.operations.walk import Case, Walk


__all__ = [
    "CASES",
    "LOCAL",
    "LOOKS",
    "PARTS",
    "READS",
    "Case",
    "Walk",
    "public_operations",
    "unregistered",
]

PARTS: Final[Mapping[str, tuple[Case, ...]]] = {
    "jobs": jobs.CASES,
    "topics": topics.CASES,
    "schedules": schedules.CASES,
    "shared": shared.CASES,
    "upkeep": upkeep.CASES,
}
"""The cases by what they are about: one operation each, and what it starts from."""
CASES: Final[tuple[Case, ...]] = tuple(case for cases in PARTS.values() for case in cases)

_NO_SERVICES: Final = frozenset({"hot", "durable", "settings", "unwritten"})
"""What a storage has besides services."""


def public_operations(storage: Storage) -> Iterator[str]:
    """
    Name every public method of every service, such as ``topics.publish``.

    Raises:
        AssertionError: The storage has something that is no service.
    """
    for place, service in vars(storage).items():
        if place.startswith("_") or place in _NO_SERVICES:
            continue
        kind = type(service)
        assert kind.__module__.startswith("oqron_core.services."), f"{place} is no service"
        for name, _ in inspect.getmembers(kind, callable):
            if not name.startswith("_"):
                yield f"{place}.{name}"


def unregistered(storage: Storage) -> tuple[list[str], list[str]]:
    """
    Compare what a storage offers with what is registered here.

    Returns:
        The methods that nobody has said anything about, and those that are registered
        and are not there.
    """
    there = {*public_operations(storage)}
    known = {name for case in CASES for name in case.covers} | {*READS} | {*LOCAL}
    return sorted(there - known), sorted(known - there)
