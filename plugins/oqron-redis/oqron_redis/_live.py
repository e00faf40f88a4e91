"""The live overlay: a hash and two lists per run, and an index by sign of life."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, final

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import (
    LiveChange,
    LiveRuns,
    check_limit,
    check_name,
    check_names,
    decode,
    encode,
    seconds,
)
from oqron_redis._records import names_of, texts_of
from oqron_redis._session import Session, chunks, flags


__all__ = ["RedisLiveRuns"]

_STEP: Final = 200
_META: Final = b"\0"
_LISTS: Final = ("logs", "timeline")


@final
class RedisLiveRuns(LiveRuns):
    """Live runs on Redis; each expires ``live_for`` seconds after its last merge."""

    __slots__ = ("_session", "_ttl")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ttl = max(1, round(session.store.settings.live_for * 1000))

    async def merge(
        self,
        run_id: str,
        fields: Mapping[str, Any],
        logs: Sequence[Any] = (),
        timeline: Sequence[Any] = (),
    ) -> None:
        await self.merge_many([LiveChange(run_id, fields, logs, timeline)])

    async def merge_many(self, changes: Sequence[LiveChange]) -> None:
        self._session.check_open()
        encoded = [self._encode(change) for change in changes]
        if not changes:
            return
        calls = []
        for step in chunks([*zip(changes, encoded, strict=True)], _STEP):
            places = [self._session.keys.active]
            arguments: list[bytes | int] = [self._ttl]
            for change, data in step:
                places += self._session.keys.live(change.run_id)
                arguments += data
            calls.append(self._session.run("live_merge", places, arguments))
        await self._session.gather(calls)

    def _encode(self, change: LiveChange) -> list[bytes | int]:
        check_name("run_id", change.run_id)
        for name in _LISTS:
            if name in change.fields:
                raise InvalidValueError(f"fields.{name}", "is given apart, as entries to append")
        limit = self._session.context.max_value_bytes
        words: list[bytes | int] = [
            change.run_id.encode(),
            len(change.fields),
            len(change.logs),
            len(change.timeline),
        ]
        names = names_of(tuple(change.fields))
        for pair in zip(names, texts_of(change.fields, "fields", limit), strict=True):
            words += pair
        for name, entries in zip(_LISTS, (change.logs, change.timeline), strict=True):
            words += [
                encode(entry, f"{name}[{index}]", max_bytes=limit).data
                for index, entry in enumerate(entries)
            ]
        return words

    async def get(self, run_id: str) -> dict[str, Any] | None:
        return (await self.get_many([run_id]))[0]

    async def get_many(self, run_ids: Sequence[str]) -> Sequence[dict[str, Any] | None]:
        self._session.check_open()
        check_names("run_id", run_ids)
        if not run_ids:
            return []
        calls = []
        for step in chunks(run_ids, _STEP):
            places = [place for run_id in step for place in self._session.keys.live(run_id)]
            calls.append(self._session.run("live_get", places, again=True))
        answers = await self._session.gather(calls)
        found = [parts for answer in answers for parts in answer]
        return [_run(run_id, parts) for run_id, parts in zip(run_ids, found, strict=True)]

    async def drop(self, run_ids: Sequence[str]) -> Sequence[bool]:
        self._session.check_open()
        check_names("run_id", run_ids)
        if not run_ids:
            return []
        calls = []
        for step in chunks(run_ids, _STEP):
            places = [self._session.keys.active]
            places += [place for run_id in step for place in self._session.keys.live(run_id)]
            names = [run_id.encode() for run_id in step]
            calls.append(self._session.run("live_drop", places, names))
        return flags(b"".join(await self._session.gather(calls)))

    async def active(self, *, limit: int = 1000) -> Sequence[str]:
        return await self._list(b"newest", check_limit(limit), 0)

    async def stale(self, *, older_than: float, limit: int = 1000) -> Sequence[str]:
        silence = round(seconds("older_than", older_than) * 1000)
        return await self._list(b"oldest", check_limit(limit), silence)

    async def _list(self, order: bytes, limit: int, silence: int) -> Sequence[str]:
        self._session.check_open()
        if limit == 0:
            return []
        places = (self._session.keys.active,)
        arguments = (order, limit, silence, self._ttl)
        answer = await self._session.run("live_list", places, arguments, again=True)
        return [run_id.decode() for run_id in answer]


def _run(run_id: str, parts: list[Any] | None) -> dict[str, Any] | None:
    if parts is None:
        return None
    flat, logs, timeline = parts
    where = f"live run {run_id!r}"
    run = {
        name.decode(): decode(text, where)
        for name, text in zip(flat[::2], flat[1::2], strict=True)
        if name != _META
    }
    run["logs"] = [decode(text, where) for text in logs]
    run["timeline"] = [decode(text, where) for text in timeline]
    return run
