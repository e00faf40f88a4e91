"""Adding a file of payloads, one per line, in batches."""

from __future__ import annotations

import contextlib
import itertools

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import click

from oqron_core.cli._output import bar
from oqron_core.cli._payload import parse_json
from oqron_core.exceptions import InvalidValueError
from oqron_core.models import JobSpec
from oqron_core.storage import Storage


__all__ = ["Added", "add_lines"]

_BATCH: Final = 1000


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

    Each batch is checked before any of it is added. The file is not held in memory.

    Args:
        storage: The storage.
        queue: The queue.
        source: The file; ``-`` is standard input.
        defaults: What all the jobs have in common.

    Raises:
        InvalidValueError: A line is no portable JSON; names the line, and says which
            lines before it were added.
    """
    ids: list[str] = []
    unpublished = 0
    with _lines(source) as lines, bar(f"adding to {queue}", _size(source)) as progress:
        for batch in itertools.batched(_filled(lines), _BATCH) if False else _batches(lines):
            payloads = _checked(batch, added=len(ids))
            specs = [attrs.evolve(defaults, data=payload) for payload in payloads]
            jobs = await storage.jobs.add_many(queue, specs)
            ids.extend(job.id for job in jobs)
            unpublished += sum(not job.published for job in jobs)
            if progress is not None:
                done = sum(len(line) for _, line in batch)
                progress.advance(progress.task_ids[0], done)
    return Added(ids, unpublished)
