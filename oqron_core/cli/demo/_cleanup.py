"""Emptying a scope that the demo made for itself."""

from __future__ import annotations

from typing import Final

from oqron_core.planes.values import Query
from oqron_core.protocol.recovery import EPOCH
from oqron_core.storage import Storage
from oqron_core.taxonomy import RecordKind


__all__ = ["wipe"]

_STEP: Final = 1000


async def wipe(storage: Storage) -> int:
    """
    Delete everything in the scope of *storage*.

    Returns:
        How many records, queues and live runs are still there; 0 if all went well.
    """
    await storage.runs.flush()
    hot = storage.hot
    for queue in await hot.broker.queues():
        await hot.broker.purge(queue)
        await hot.broker.resume(queue)
    await hot.live.drop(await hot.live.active())
    await hot.counters.reset(EPOCH)
    for kind in RecordKind:
        while await storage.durable.prune(Query(kind=kind), limit=_STEP) == _STEP:
            pass
    left: list[int] = [await storage.durable.count(Query(kind=kind)) for kind in RecordKind]
    return sum(left) + len(await hot.broker.queues()) + len(await hot.live.active())
