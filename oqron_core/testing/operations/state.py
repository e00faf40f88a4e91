"""What a scope looks like from outside, so that two of them can be compared."""

from __future__ import annotations

import asyncio
import json
import re

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

import attrs

from oqron_core.exceptions import TimedOutError
from oqron_core.planes import Query
from oqron_core.protocol.claims import Claim
from oqron_core.protocol.lanes import broker_id, is_topic_queue, split_queue
from oqron_core.protocol.transitions import JOB, OPEN
from oqron_core.storage import Storage
from oqron_core.taxonomy import RecordKind


__all__ = [
    "LEASE",
    "State",
    "busy",
    "check_books",
    "check_known",
    "check_runs",
    "handed_of",
    "queues_of",
    "records_of",
    "take",
]

LEASE: Final = 2.0
"""Seconds. Long enough for a step on a busy machine, short enough to let lapse."""
_PAGE: Final = 1000
_ROUNDS: Final = 100
_NEAR: Final = 60 * 86_400_000
"""Instants this close to now are made by a clock; a scenario's own are further off."""
_TOKENS: Final = 10**15
_UNLIKE: Final = frozenset(
    {"leaseToken", "movedBy", "position", "replays", "runId", "stacktrace", "workerId"}
)
"""Fields that differ each time something is done."""
_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_PLACE: Final = re.compile(r"\.\d{14}\.\d{6}\.([^.]*)(\.\d+)?$")


@attrs.frozen
class State:
    """
    What a scope has come to.

    Attributes:
        records: Every durable record but runs, without what differs each time.
        handed: What workers were handed, by queue: for keys in their order.
        later: What they were handed after every pause had ended.
        view: What the scenario looks at besides.
    """

    records: tuple[str, ...]
    handed: tuple[tuple[str, tuple[str, ...]], ...]
    later: tuple[tuple[str, tuple[str, ...]], ...]
    view: Any = None

    def differs(self, other: State) -> str:
        """Say in what this state differs from another; empty where in nothing."""
        parts = []
        for name in ("records", "handed", "later"):
            mine, theirs = [*getattr(self, name)], [*getattr(other, name)]
            extra, lacks = _surplus(mine, theirs), _surplus(theirs, mine)
            parts += [f"{name} has {item}" for item in extra]
            parts += [f"{name} lacks {item}" for item in lacks]
        if self.view != other.view:
            parts.append(f"the view is {self.view!r}, not {other.view!r}")
        return "; ".join(parts)


def _surplus(items: Iterable[Any], others: Iterable[Any]) -> list[Any]:
    left = [*others]
    found = []
    for item in items:
        if item in left:
            left.remove(item)
        else:
            found.append(item)
    return found


# --- reading ----------------------------------------------------------------------------


async def records_of(storage: Storage, loose: Iterable[str] = ()) -> tuple[str, ...]:
    """
    Read every durable record but runs, without what differs each time.

    Args:
        storage: Any storage over the scope.
        loose: Further fields to leave out.
    """
    now = await storage.durable.now()
    found: list[str] = []
    for kind in RecordKind:
        if kind is RecordKind.RUN:
            continue  # a killed process may lose the last of its history
        after: str | None = None
        while True:
            page = await storage.durable.query(Query(kind=kind, limit=_PAGE, after=after))
            found += [_shown(record, now, {*loose}) for record in page.items]
            after = page.next
            if after is None:
                break
    return tuple(sorted(found))


def _shown(record: Any, now: int, loose: set[str]) -> str:
    value = {
        name: _plain(field, now)
        for name, field in record.value.items()
        if name not in _UNLIKE and name not in loose
    }
    made = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return f"{record.namespace}/{_name(record.id)} {made}"


def _plain(value: Any, now: int) -> Any:
    """Replace what is made by a clock or by chance."""
    if isinstance(value, dict):
        return {name: _plain(item, now) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, now) for item in value]
    if isinstance(value, str):
        return _name(value)
    if type(value) is int and (abs(value - now) < _NEAR or value > _TOKENS):
        return "<time>"
    return value


def _name(text: str) -> str:
    return _ID.sub("<id>", _PLACE.sub(r".<place>.\1", text))


async def queues_of(storage: Storage) -> list[str]:
    """Name every queue that has jobs, or that the broker knows, sorted."""
    counted: dict[str, int] = await storage.durable.count(
        Query(kind=RecordKind.JOB), by="namespace"
    )
    names = {name[len(JOB) :] for name in counted}
    return sorted(names | {*await storage.hot.broker.queues()})


async def _with(storage: Storage, queue: str, *statuses: str) -> list[str]:
    page = await storage.durable.query(
        Query(namespace=JOB + queue, where=[("status", "in", list(statuses))], limit=_PAGE)
    )
    return [record.id for record in page.items]


# --- working ----------------------------------------------------------------------------


async def take(storage: Storage) -> list[Claim]:
    """Work off whatever can be claimed, as workers would, and give the claims."""
    claims: list[Claim] = []
    for queue in await queues_of(storage):
        for _ in range(_ROUNDS):
            batch = await _claim(storage, queue)
            if not batch:
                break
            claims += batch
            done = await storage.jobs.complete_many([(claim, None) for claim in batch])
            assert all(done), f"{queue}: a job that was just claimed could not be completed"
        else:
            raise AssertionError(f"{queue} hands out without an end")
    return claims


async def _claim(storage: Storage, queue: str) -> list[Claim]:
    while True:
        try:
            if is_topic_queue(queue):
                topic, group = split_queue(queue)
                return await storage.topics.claim(topic, group, limit=100, lease_for=LEASE)
            return await storage.jobs.claim(queue, limit=100, lease_for=LEASE)
        except TimedOutError:
            # A slow machine: what lapsed on the way comes again.
            await asyncio.sleep(LEASE)


def handed_of(claims: Iterable[Claim]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Give the payloads that were handed out, by queue; those of one key in their order."""
    handed: dict[str, list[str]] = defaultdict(list)
    for claim in claims:
        message = claim.message
        key = "" if message is None or message.key is None else f" {message.key}"
        payload = claim.data if message is None else message.message
        handed[claim.lease.queue + key].append(json.dumps(payload, sort_keys=True))
    return tuple(
        (place, tuple(items if " " in place else sorted(items)))
        for place, items in sorted(handed.items())
    )


async def busy(storage: Storage) -> bool:
    """Say whether anything is under a lease, by either plane."""
    for queue in await queues_of(storage):
        if await _with(storage, queue, "active"):
            return True
        if (await storage.hot.broker.counts(queue)).leased:
            return True
    return False


# --- what must hold of every scope -----------------------------------------------------------


async def check_known(storage: Storage) -> None:
    """
    Check that the broker knows every job that should be there.

    Raises:
        AssertionError: A job cannot be claimed.
    """
    for queue in await queues_of(storage):
        ids = await _with(storage, queue, *OPEN)
        wanted = [*dict.fromkeys(broker_id(queue, job_id) for job_id in ids)]
        known = await storage.hot.broker.contains(queue, wanted)
        lost = [name for name, there in zip(wanted, known, strict=True) if not there]
        assert not lost, f"jobs of {queue} that no broker knows: {lost}"


async def check_books(storage: Storage) -> None:
    """
    Check that counts agree with queries, and the broker with the durable plane.

    Raises:
        AssertionError: Something is counted twice, lacking, or left behind.
    """
    for queue in await queues_of(storage):
        counts = await storage.jobs.counts(queue)
        for status, count in counts.items():
            if status != "failed":
                listed = await storage.jobs.query(queue, status=status, limit=_PAGE)
                assert count == len(listed), f"{queue}: {count} {status} counted"
        ids = await _with(storage, queue, *OPEN)
        there = await storage.hot.broker.counts(queue)
        wanted = len({broker_id(queue, job_id) for job_id in ids})
        left = there.ready + there.delayed + there.leased
        assert left == wanted, f"the broker knows {left} ids of {queue}, and {wanted} are open"
        control = await storage.controls.get_queue(queue)
        assert there.paused == (control is not None and control.paused), f"{queue}: {there}"


async def check_runs(storage: Storage) -> None:
    """
    Check that no job was done twice, by its history.

    Raises:
        AssertionError: A job has more than one run that completed.
    """
    done: dict[tuple[str | None, str], int] = defaultdict(int)
    for run in await storage.runs.query(status="completed", limit=_PAGE):
        if run.job_id is not None:
            # Deliveries of a message to several groups are of one id.
            done[run.queue_name, run.job_id] += 1
    twice = {place: count for place, count in done.items() if count > 1}
    assert not twice, f"jobs with more than one completed run: {twice}"
