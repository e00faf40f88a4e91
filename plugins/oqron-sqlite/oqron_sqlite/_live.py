"""The live overlay of running runs: a row a field and a row an entry, so O(change)."""

from __future__ import annotations

import itertools
import sqlite3

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import (
    LiveChange,
    LiveRuns,
    check_limit,
    check_name,
    check_names,
    encode,
    encode_fields,
    encode_object,
    seconds,
)
from oqron_sqlite._facet import Place, tickets
from oqron_sqlite._lane import Transaction


__all__ = ["SqliteLiveRuns"]

_LISTS: Final = ("logs", "timeline")
_RUN: Final = """
INSERT INTO oqron_hot_live VALUES (?, ?, ?, ?)
ON CONFLICT (scope, run_id) DO UPDATE SET seq = excluded.seq, merged_at = excluded.merged_at
"""
_FIELD: Final = """
INSERT INTO oqron_hot_live_fields VALUES (?, ?, ?, ?)
ON CONFLICT (scope, run_id, name) DO UPDATE SET value = excluded.value
"""
_ENTRY: Final = "INSERT INTO oqron_hot_live_entries VALUES (?, ?, ?, ?, ?)"
_DROP: Final = "DELETE FROM oqron_hot_live WHERE scope = :scope AND run_id = :run_id"
_DROP_FIELDS: Final = _DROP.replace("oqron_hot_live", "oqron_hot_live_fields")
_DROP_ENTRIES: Final = _DROP.replace("oqron_hot_live", "oqron_hot_live_entries")
_THERE: Final = """
SELECT r.run_id FROM json_each(:run_ids) AS j CROSS JOIN oqron_hot_live AS r
ON r.scope = :scope AND r.run_id = j.value
"""
_FIELDS: Final = """
SELECT f.run_id, f.name, f.value
FROM json_each(:run_ids) AS j CROSS JOIN oqron_hot_live_fields AS f
ON f.scope = :scope AND f.run_id = j.value
"""
_ENTRIES: Final = """
SELECT e.run_id, e.list, e.value
FROM json_each(:run_ids) AS j CROSS JOIN oqron_hot_live_entries AS e
ON e.scope = :scope AND e.run_id = j.value ORDER BY e.run_id, e.list, e.seq
"""
_ACTIVE: Final = """
SELECT run_id FROM oqron_hot_live WHERE scope = :scope ORDER BY seq DESC LIMIT :limit
"""
# The order of merging is that of time, so the walk ends at the first young one.
_STALE: Final = """
SELECT run_id, merged_at FROM oqron_hot_live WHERE scope = :scope ORDER BY seq LIMIT :limit
"""


class SqliteLiveRuns(LiveRuns):
    """The live runs of one scope."""

    __slots__ = ("_place",)

    def __init__(self, place: Place) -> None:
        self._place = place

    async def merge(
        self,
        run_id: str,
        fields: Mapping[str, Any],
        logs: Sequence[Any] = (),
        timeline: Sequence[Any] = (),
    ) -> None:
        await self.merge_many([LiveChange(run_id, fields, logs, timeline)])

    async def merge_many(self, changes: Sequence[LiveChange]) -> None:
        self._place.gate.check()
        fields: list[tuple[Any, ...]] = []
        entries: list[tuple[Any, ...]] = []
        run_ids: list[str] = []
        for change in changes:
            self._prepare(change, fields, entries)
            run_ids.append(change.run_id)
        if not run_ids:
            return
        scope = self._place.number

        def work(step: Transaction) -> None:
            seq = itertools.count(tickets(step, len(run_ids) + len(entries)) + 1)
            runs = [(scope, run_id, next(seq), step.now) for run_id in run_ids]
            step.driver.executemany(_RUN, runs)
            step.driver.executemany(_FIELD, fields)
            rows = [(*where, next(seq), text) for *where, text in entries]
            step.driver.executemany(_ENTRY, rows)

        await self._place.write(work)

    def _prepare(
        self,
        change: LiveChange,
        fields: list[tuple[Any, ...]],
        entries: list[tuple[Any, ...]],
    ) -> None:
        """Check and encode a change into rows."""
        most = self._place.max_bytes
        run_id, scope = change.run_id, self._place.number
        check_name("run_id", run_id)
        for name in _LISTS:
            if name in change.fields:
                reason = f"{name} is appended to, not set; pass {name}=[...]"
                path = f"fields.{name}"
                raise InvalidValueError(path, reason)
        for name, value in encode_fields(change.fields, "fields", max_bytes=most).items():
            fields.append((scope, run_id, name, encode_object({"": value})[4:-1].decode()))
        for number, more in enumerate((change.logs, change.timeline)):
            for entry in more:
                text = encode(entry, _LISTS[number], max_bytes=most).data.decode()
                entries.append((scope, run_id, number, text))

    async def get(self, run_id: str) -> dict[str, Any] | None:
        return (await self.get_many([run_id]))[0]

    async def get_many(self, run_ids: Sequence[str]) -> Sequence[dict[str, Any] | None]:
        self._place.gate.check()
        check_names("run_id", run_ids)
        if not run_ids:
            return []
        mine = [*run_ids]
        asked = orjson.dumps([*dict.fromkeys(mine)]).decode()
        params = {"scope": self._place.number, "run_ids": asked}

        def read(driver: sqlite3.Connection, now: int) -> dict[str, dict[str, str]]:
            del now
            driver.execute("BEGIN")
            try:
                return _texts(driver, params)
            finally:
                driver.execute("COMMIT")

        texts = await self._place.read(read)
        return [_decoded(texts[run_id]) if run_id in texts else None for run_id in mine]

    async def drop(self, run_ids: Sequence[str]) -> Sequence[bool]:
        self._place.gate.check()
        check_names("run_id", run_ids)
        if not run_ids:
            return []
        mine = [*run_ids]
        scope = self._place.number

        def work(step: Transaction) -> list[bool]:
            results = []
            for run_id in mine:
                params = {"scope": scope, "run_id": run_id}
                there = step.driver.execute(_DROP, params).rowcount == 1
                if there:
                    step.driver.execute(_DROP_FIELDS, params)
                    step.driver.execute(_DROP_ENTRIES, params)
                results.append(there)
            return results

        return await self._place.write(work)

    async def active(self, *, limit: int = 1000) -> Sequence[str]:
        self._place.gate.check()
        check_limit(limit)
        params = {"scope": self._place.number, "limit": limit}
        return await self._place.read(
            lambda driver, _: [row[0] for row in driver.execute(_ACTIVE, params)]
        )

    async def stale(self, *, older_than: float, limit: int = 1000) -> Sequence[str]:
        self._place.gate.check()
        age = seconds("older_than", older_than) * 1000
        check_limit(limit)
        params = {"scope": self._place.number, "limit": limit}

        def read(driver: sqlite3.Connection, now: int) -> list[str]:
            old = itertools.takewhile(
                lambda row: row[1] <= now - age, driver.execute(_STALE, params)
            )
            return [run_id for run_id, _ in old]

        return await self._place.read(read)


def _texts(driver: sqlite3.Connection, params: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Read the encoded fields and lists of runs; those that are not there are not."""
    found: dict[str, dict[str, str]] = {run_id: {} for (run_id,) in driver.execute(_THERE, params)}
    for run_id, name, text in driver.execute(_FIELDS, params):
        found[run_id][name] = text
    lists: dict[tuple[str, int], list[str]] = {}
    for run_id, number, text in driver.execute(_ENTRIES, params):
        lists.setdefault((run_id, number), []).append(text)
    for run_id, texts in found.items():
        for number, name in enumerate(_LISTS):
            texts[name] = f"[{','.join(lists.get((run_id, number), ()))}]"
    return found


def _decoded(texts: Mapping[str, str]) -> dict[str, Any]:
    return {name: orjson.loads(text) for name, text in texts.items()}
