"""The durable plane on Redis."""

from __future__ import annotations

import asyncio

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, final

from oqron_core.exceptions import ConflictError, InvalidValueError
from oqron_core.planes import (
    MISSING,
    Capabilities,
    Durability,
    DurablePlane,
    Health,
    HotPlane,
    Json,
    Page,
    Patch,
    PlaneContext,
    Query,
    Record,
    Scope,
    Write,
    WriteResult,
    canonical,
    check_limit,
    check_names,
    check_namespace,
)
from oqron_redis._checks import health
from oqron_redis._hot import RedisHotPlane
from oqron_redis._items import Encoder, Group, Item
from oqron_redis._joined import RedisJoinedPlanes
from oqron_redis._joint import Joint
from oqron_redis._lane import Arguments
from oqron_redis._query import Reader
from oqron_redis._records import names_of, record_from, stored_of
from oqron_redis._session import Session, chunks
from oqron_redis._store import Store
from oqron_redis._writes import (
    MAX_ATOMIC,
    STEP,
    Batch,
    Returning,
    check_atomic,
    conflict_of,
    group_steps,
    grouped,
    item_steps,
)


__all__ = ["RedisDurablePlane", "open_durable_plane"]

_AT_ONCE: Final = 2
"""How many steps of one batch are under way: one is prepared while the server has another."""
_READ_STEP: Final = 100
_TRIES: Final = 20
_SMALL: Final = 20
_SMALL_BYTES: Final = 64 * 1024
_MAX_JOINTS: Final = 64


@final
class RedisDurablePlane(DurablePlane):
    """
    Records as hashes, in one slot per scope.

    Every field is its own JSON text, which no script ever encodes anew. Indexes are
    kept by the script that writes.
    """

    __slots__ = ("_capabilities", "_encoder", "_joints", "_reader", "_session")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._encoder = Encoder(session.keys, session.context.max_value_bytes)
        self._reader = Reader(session, self._encoder)
        self._joints: dict[Returning, Joint[Item]] = {}
        facts = session.store.facts
        self._capabilities = Capabilities(
            backend="redis",
            durability=Durability.SERVER if facts is None else facts.durability,
            shared=True,
            max_batch=STEP,
            max_atomic_batch=MAX_ATOMIC,
            max_value_bytes=session.context.max_value_bytes,
        )

    @property
    def scope(self) -> Scope:
        return self._session.context.scope

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def get(self, namespace: str, ids: Sequence[str]) -> Sequence[Record | None]:
        self._session.check_open()
        check_namespace(namespace)
        check_names("id", ids)
        if not ids:
            return []
        prefix = self._session.keys.records(namespace)
        calls = [
            ([prefix + id_.encode() for id_ in step], (0, -1)) for step in chunks(ids, _READ_STEP)
        ]
        answers = await self._session.run_all("read", calls, again=True)
        found = [flat for answer in answers for flat in answer]
        return [
            None if not flat else _record(namespace, id_, flat)
            for id_, flat in zip(ids, found, strict=True)
        ]

    async def write(
        self,
        writes: Sequence[Write],
        *,
        atomic: bool = False,
        returning: Sequence[str] | None = None,
    ) -> Sequence[WriteResult]:
        self._session.check_open()
        wanted: Returning = None if returning is None else tuple(returning)
        if wanted:
            names_of(wanted)
        groups = None if atomic else self._encoder.groups(writes)
        if groups is not None and (steps := group_steps(groups, fair=True)) is not None:
            return await self._send(steps, wanted)
        encode = self._encoder.encode
        items = [encode(write) for write in writes]
        if atomic:
            check_atomic(len(items))
        if not items:
            return []
        guarded = [index for index, item in enumerate(items) if item.guarded]
        if guarded:
            return await self._write_guarded(items, guarded, atomic, wanted)
        if not atomic and _is_small(items):
            joined: list[WriteResult] = await self._join(items, wanted)
            return joined
        return await self._apply(items, atomic, wanted)

    async def _apply(
        self,
        items: Sequence[Item],
        atomic: bool,  # noqa: FBT001 - as `write` was called
        wanted: Returning,
    ) -> list[WriteResult]:
        nothing = self._session.keys.durable_nothing
        if not atomic:
            return await self._send([grouped(step) for step in item_steps(items)], wanted)
        batch = Batch(self._encoder, grouped(items), wanted)
        keys, arguments = batch.call(nothing, atomic=True)
        answer = await self._session.run("write", keys, arguments)
        if answer[0] == b"-1":
            index = int(answer[1])
            raise conflict_of(items[index].write, index)
        return batch.results(answer)

    async def _send(self, steps: Sequence[Sequence[Group]], wanted: Returning) -> list[WriteResult]:
        nothing = self._session.keys.durable_nothing
        batches = [Batch(self._encoder, step, wanted) for step in steps]
        # All are built before any is sent, so a refusal comes before any write.
        calls = [batch.call(nothing, atomic=False) for batch in batches]
        if len(batches) == 1:
            return batches[0].results(await self._session.run("write", *calls[0]))
        # A script that the server has forgotten is sent once more, behind others: steps
        # that touch one record wait for each other.
        keys = [key for step in steps for group in step for key in group.keys]
        repeats = len(set(keys)) < len(keys)
        answers = await self._session.run_all(
            "write",
            calls,
            at_once=1 if repeats else _AT_ONCE,
        )
        return [
            result
            for batch, answer in zip(batches, answers, strict=True)
            for result in batch.results(answer)
        ]

    def _join(self, items: Sequence[Item], wanted: Returning) -> asyncio.Future[Any]:
        joint = self._joints.get(wanted)
        if joint is not None and joint.is_open:
            return joint.join(items)
        encoder, nothing = self._encoder, self._session.keys.durable_nothing

        batch = Batch(encoder, (), wanted)

        def build(items: Sequence[Item]) -> Arguments:
            nonlocal batch
            batch = Batch(encoder, grouped(items), wanted)
            keys, arguments = batch.call(nothing, atomic=False)
            return (len(keys), *keys, *arguments)

        def split(_: Sequence[Item], answer: Any) -> Sequence[WriteResult]:
            return batch.results(answer)

        joint = Joint(build, split)
        if len(self._joints) >= _MAX_JOINTS:
            self._joints.clear()
        self._joints[wanted] = joint
        return self._session.join(joint, "write", nothing, items)

    async def _write_guarded(
        self,
        items: Sequence[Item],
        guarded: Sequence[int],
        atomic: bool,  # noqa: FBT001 - as `write` was called
        wanted: Returning,
    ) -> list[WriteResult]:
        # The script compares texts, and one list or object has many. The text that is
        # stored is read first, and where it means the same it is what the guard
        # expects; if it changed meanwhile, once more.
        results: list[WriteResult] | None = None
        pending = [*range(len(items))]
        todo = [*guarded]
        for _ in range(_TRIES):
            changed = await self._expect_stored([items[index] for index in todo])
            todo = [index for index, new in zip(todo, changed, strict=True) if new]
            if results is not None and not todo:
                break
            pending = pending if results is None else todo
            try:
                found = await self._apply([items[index] for index in pending], atomic, wanted)
            except ConflictError as conflict:
                if conflict.index not in guarded:
                    raise
                again = await self._expect_stored([items[index] for index in guarded])
                if not any(again):
                    raise
                todo = [*guarded]
                continue
            if results is None:
                results = found
            else:
                for index, result in zip(pending, found, strict=True):
                    results[index] = result
            todo = [index for index in guarded if not results[index].applied]
            if not todo:
                break
        if results is None:
            reason = "the records kept changing while their guards were compared"
            raise ConflictError(reason)
        return results

    async def _expect_stored(self, items: Sequence[Item]) -> list[bool]:
        """Put the stored texts into guards that mean the same; whether any is new."""
        calls = []
        for item in items:
            names = item.group[2]
            arguments = (0, len(names), *names)
            calls.append(self._session.run("read", (item.key,), arguments, again=True))
        answers = await self._session.gather(calls) if calls else []
        changed = []
        for item, (flat,) in zip(items, answers, strict=True):
            changed.append(bool(flat) and _expect_texts(item, flat[1:]))
        return changed

    def joined(self, hot: HotPlane) -> RedisJoinedPlanes | None:
        store = self._session.store
        sister = hot.session_on(store) if isinstance(hot, RedisHotPlane) else None
        if store.is_cluster or sister is None or hot.scope != self.scope:
            return None
        return RedisJoinedPlanes(self._session, sister, self._encoder, self.get)

    async def query(self, query: Query) -> Page[Record]:
        self._session.check_open()
        return await self._reader.query(query)

    async def count(self, query: Query, *, by: str | None = None) -> Any:
        self._session.check_open()
        return await self._reader.count(query, by)

    async def prune(self, query: Query, *, limit: int = 1000) -> int:
        self._session.check_open()
        if check_limit(limit) < 1:
            raise InvalidValueError("limit", "must be at least 1")
        return await self._reader.prune(query, limit)

    async def prunable(self, query: Query) -> tuple[int, int]:
        self._session.check_open()
        return await self._reader.prunable(query)

    async def now(self) -> int:
        return await self._session.now()

    async def check(self) -> Health:
        self._session.check_open()
        return await health(self._session.store, persistent=True)


def _record(namespace: str, id_: str, flat: list[bytes]) -> Record:
    return record_from(namespace, id_, *stored_of(flat))


def _is_small(items: Sequence[Item]) -> bool:
    return len(items) <= _SMALL and sum([item.size for item in items]) < _SMALL_BYTES


def _expect_texts(item: Item, stored: Sequence[bytes | None]) -> bool:
    expect = item.write.expect  # type: ignore[union-attr]  # it guards
    changed = False
    start = 1 if type(item.write) is Patch else 0
    for place, (value, text) in enumerate(zip(expect.values(), stored, strict=True), start):
        if value is MISSING or text is None or item.arguments[place] == text:
            continue
        if text[:1] in {b"[", b"{"} and canonical(Json(text)) == canonical(value):
            item.arguments = [*item.arguments[:place], text, *item.arguments[place + 1 :]]
            changed = True
    return changed


@asynccontextmanager
async def open_durable_plane(
    store: Store, context: PlaneContext
) -> AsyncIterator[RedisDurablePlane]:
    """Open the durable plane, and close it on leaving."""
    await store.check_server(persistent=True)
    session = Session(store, context, lane=1)
    try:
        yield RedisDurablePlane(session)
    finally:
        session.close()
