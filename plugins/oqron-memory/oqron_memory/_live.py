"""The live overlay of running runs."""

from __future__ import annotations

import itertools

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import (
    Json,
    LiveChange,
    LiveRuns,
    check_limit,
    check_name,
    check_names,
    decode_fields,
    encode,
    encode_fields,
    encode_object,
    seconds,
)
from oqron_memory._store import LiveRun, MemoryStore, ScopeState
from oqron_memory._wake import Gate


__all__ = ["MemoryLiveRuns"]

_LISTS = ("logs", "timeline")


@attrs.frozen
class _Merge:
    """A change, checked and encoded."""

    run_id: str
    fields: dict[str, Any]
    logs: list[Json]
    timeline: list[Json]


class MemoryLiveRuns(LiveRuns):
    """The live runs of one scope."""

    __slots__ = ("_gate", "_live", "_max_bytes", "_store")

    def __init__(self, store: MemoryStore, state: ScopeState, gate: Gate, max_bytes: int) -> None:
        self._store = store
        self._live = state.live
        self._gate = gate
        self._max_bytes = max_bytes

    async def merge(
        self,
        run_id: str,
        fields: Mapping[str, Any],
        logs: Sequence[Any] = (),
        timeline: Sequence[Any] = (),
    ) -> None:
        await self.merge_many([LiveChange(run_id, fields, logs, timeline)])

    async def merge_many(self, changes: Sequence[LiveChange]) -> None:
        self._gate.check()
        merges = [self._prepare(change) for change in changes]
        if not merges:
            return
        store = self._store
        with store.lock:
            now = store.clock.now()
            store.sweep(now)
            for merge in merges:
                self._merge(merge, now)

    def _prepare(self, change: LiveChange) -> _Merge:
        check_name("run_id", change.run_id)
        for name in _LISTS:
            if name in change.fields:
                reason = f"{name} is appended to, not set; pass {name}=[...]"
                path = f"fields.{name}"
                raise InvalidValueError(path, reason)
        return _Merge(
            change.run_id,
            encode_fields(change.fields, "fields", max_bytes=self._max_bytes),
            [encode(entry, "logs", max_bytes=self._max_bytes) for entry in change.logs],
            [encode(entry, "timeline", max_bytes=self._max_bytes) for entry in change.timeline],
        )

    def _merge(self, merge: _Merge, now: int) -> None:
        run = self._live.get(merge.run_id)
        grown = 0
        if self._store.max_bytes is not None:
            grown = self._grown(run, merge)
            self._store.charge_or_make_room(lambda: grown, now)
        if run is None:
            run = self._live[merge.run_id] = LiveRun()
        else:
            self._live.move_to_end(merge.run_id)
        run.fields.update(merge.fields)
        run.logs += merge.logs
        run.timeline += merge.timeline
        run.merged_at = now
        run.size += grown

    @staticmethod
    def _grown(run: LiveRun | None, merge: _Merge) -> int:
        """Count the bytes that *merge* adds, looking only at what changes."""
        replaced = {}
        grown = len(merge.run_id)
        if run is not None:
            grown = 0
            replaced = {n: run.fields[n] for n in merge.fields if n in run.fields}
        grown += len(encode_object(merge.fields)) - len(encode_object(replaced))
        return grown + sum(len(entry.data) for entry in (*merge.logs, *merge.timeline))

    async def get(self, run_id: str) -> dict[str, Any] | None:
        return (await self.get_many([run_id]))[0]

    async def get_many(self, run_ids: Sequence[str]) -> Sequence[dict[str, Any] | None]:
        self._gate.check()
        check_names("run_id", run_ids)
        if not run_ids:
            return []
        with self._store.lock:
            found = [
                None
                if (run := self._live.get(run_id)) is None
                else (dict(run.fields), list(run.logs), list(run.timeline))
                for run_id in run_ids
            ]
        return [None if parts is None else _decode(*parts) for parts in found]

    async def drop(self, run_ids: Sequence[str]) -> Sequence[bool]:
        self._gate.check()
        check_names("run_id", run_ids)
        if not run_ids:
            return []
        results = []
        with self._store.lock:
            for run_id in run_ids:
                run = self._live.pop(run_id, None)
                if run is not None:
                    self._store.used -= run.size
                results.append(run is not None)
        return results

    async def active(self, *, limit: int = 1000) -> Sequence[str]:
        self._gate.check()
        check_limit(limit)
        with self._store.lock:
            return list(itertools.islice(reversed(self._live), limit))

    async def stale(self, *, older_than: float, limit: int = 1000) -> Sequence[str]:
        self._gate.check()
        age = seconds("older_than", older_than) * 1000
        check_limit(limit)
        with self._store.lock:
            before = self._store.clock.now() - age
            # The oldest stand in front: the first young one ends the search.
            old = itertools.takewhile(lambda pair: pair[1].merged_at <= before, self._live.items())
            return [run_id for run_id, _ in itertools.islice(old, limit)]


def _decode(fields: dict[str, Any], logs: list[Json], timeline: list[Json]) -> dict[str, Any]:
    value = decode_fields(fields)
    value["logs"] = [entry.load() for entry in logs]
    value["timeline"] = [entry.load() for entry in timeline]
    return value
