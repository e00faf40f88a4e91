"""Adding a file of payloads, one per line, in batches."""

from __future__ import annotations

import contextlib
import itertools
import sys

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

import attrs

from oqron_core.cli._output import bar
from oqron_core.cli._payload import parse_json
from oqron_core.exceptions import InvalidValueError
from oqron_core.models import JobSpec
from oqron_core.storage import Storage


__all__ = ["Added", "add_lines"]

_BATCH: Final = 1000

_Line = tuple[int, bytes]


@attrs.frozen
class Added:
    """
    What was added.

    Attributes:
        ids: The ids of the jobs, in the order of the lines.
        unpublished: How many the hot plane was not told of.
    """

    ids: list[str]
    unpublished: int


async def add_lines(storage: Storage, queue: str, source: Path, defaults: JobSpec) -> Added:
    """
    Add one job per line of a file; empty lines are skipped.

    Each batch is checked before any of it is added. The file is read as it goes.

    Args:
        storage: The storage.
        queue: The queue.
        source: The file; ``-`` is standard input.
        defaults: What all the jobs have in common.

    Raises:
        InvalidValueError: A line is no portable JSON; names the line, and says how
            many jobs were added before.
    """
    ids: list[str] = []
    unpublished = 0
    with _opened(source) as file, bar(f"adding to {queue}", _size(source)) as progress:
        for batch in _batches(file):
            payloads = _checked(batch, added=len(ids))
            specs = [attrs.evolve(defaults, data=payload) for payload in payloads]
            jobs = await storage.jobs.add_many(queue, specs)
            ids.extend(job.id for job in jobs)
            unpublished += sum(not job.published for job in jobs)
            if progress is not None:
                size = sum(len(line) for _, line in batch)
                progress.advance(progress.task_ids[0], size)
    return Added(ids, unpublished)


@contextlib.contextmanager
def _opened(source: Path) -> Iterator[IO[bytes]]:
    if str(source) == "-":
        yield sys.stdin.buffer
        return
    with source.open("rb") as file:
        yield file


def _size(source: Path) -> int | None:
    """Give the bytes of a file; None for what has no end that is known."""
    return source.stat().st_size if source.is_file() else None


def _batches(lines: Iterable[bytes]) -> Iterator[Sequence[_Line]]:
    numbered = ((number, line) for number, line in enumerate(lines, start=1) if line.strip())
    while batch := list(itertools.islice(numbered, _BATCH)):
        yield batch


def _checked(batch: Sequence[_Line], *, added: int) -> list[Any]:
    payloads = []
    for number, line in batch:
        try:
            payloads.append(parse_json(line, f"line {number}"))
        except InvalidValueError as error:
            before = f"{added or 'no'} jobs were added"
            raise InvalidValueError(error.path, f"{error.reason}; {before}") from None
    return payloads
