"""History, logs, retention and maintenance: what repairs may die as well."""

from __future__ import annotations

import asyncio

from typing import Any, Final

from oqron_core.planes import Patch, Put
from oqron_core.protocol.recovery import EPOCH
from oqron_core.storage import Storage
from oqron_core.testing.operations.state import LEASE
from oqron_core.testing.operations.walk import Case


__all__ = ["CASES"]

QUEUE: Final = "q"
TOPIC: Final = "t"
LATER: Final = 3600.0
LED: Final = 0.1
"""Seconds for which somebody leads maintenance: a pass takes less."""


# --- history and logs -------------------------------------------------------------------


async def _run(storage: Storage, given: Any) -> None:
    del given
    run = await storage.runs.start("heartbeat", module="cron", trigger="cron")
    run.log("info", "beating")
    run.finish({"beat": 1})
    await storage.runs.flush()


async def _runs(storage: Storage) -> Any:
    page = await storage.runs.query(name="heartbeat", status="completed")
    return sorted(str(run.output) for run in page)


async def _a_run_is_there(storage: Storage) -> None:
    assert await _runs(storage), "a run that was flushed is not in history"


async def _write(storage: Storage, given: Any) -> None:
    del given
    storage.logs.write("m", "info", "written", n=1)
    await storage.logs.flush()


async def _some_lines(storage: Storage, given: Any) -> None:
    del given
    for n in range(4):
        storage.logs.write("m", "info", f"{n}")
    await storage.logs.flush()


async def _prune_logs(storage: Storage, given: Any) -> None:
    del given
    await storage.logs.prune("m", max_entries=2)


async def _a_line_is_there(storage: Storage) -> None:
    assert len(await storage.logs.query("m")), "a line that was flushed is not in the log"


# --- retention ---------------------------------------------------------------------------------


async def _dead_letters(storage: Storage, given: Any) -> None:
    del given
    for job_id in ("a", "b"):
        await storage.jobs.add(QUEUE, {"id": job_id}, id=job_id, max_attempts=1)
        [claim] = await storage.jobs.claim(QUEUE, lease_for=LEASE)
        await storage.jobs.fail(claim, "boom")
    await storage.jobs.add(QUEUE, {"id": "c"}, id="c")


async def _outlived(storage: Storage, given: Any) -> None:
    await _dead_letters(storage, given)
    await storage.retention.set("dlq", keep=0)


async def _set_rule(storage: Storage, given: Any) -> None:
    del given
    await storage.retention.set("dlq", "queue_dlq:q", keep=1000)


async def _unset_rule(storage: Storage, given: Any) -> None:
    del given
    await storage.retention.unset("dlq", "queue_dlq:q")


async def _prune_retention(storage: Storage, given: Any) -> None:
    del given
    await storage.retention.prune()


async def _prune_maintenance(storage: Storage, given: Any) -> None:
    del given
    await storage.maintenance.prune()


# --- maintenance ---------------------------------------------------------------------------------


async def _unpublished(storage: Storage, given: Any) -> None:
    del given
    await storage.jobs.add_many(QUEUE, [{"n": n} for n in range(3)])
    ids = [job.id for job in await storage.jobs.query(QUEUE)]
    await storage.hot.broker.remove(QUEUE, ids[:2])


async def _lost(storage: Storage, given: Any) -> None:
    """Everything the hot plane knew is gone: jobs, a lease, a pause, deliveries."""
    del given
    await storage.jobs.add_many(QUEUE, [{"n": n} for n in range(2)])
    await storage.jobs.add(QUEUE, {"n": 2}, delay=LATER)
    await storage.jobs.claim(QUEUE, lease_for=LEASE)
    await storage.jobs.add("paused", {"n": 3})
    await storage.jobs.pause("paused")
    await storage.topics.subscribe(TOPIC, "g")
    await storage.topics.publish_many(TOPIC, [1, 2], key="k")
    for queue in await storage.hot.broker.queues():
        await storage.hot.broker.purge(queue)
        await storage.hot.broker.resume(queue)
    await storage.hot.counters.reset(EPOCH)


async def _lapsed(storage: Storage, given: Any) -> None:
    """One lease that has lapsed with attempts left, and one with none."""
    del given
    await storage.jobs.add(QUEUE, {"id": "a"}, id="a", max_attempts=1)
    await storage.jobs.add(QUEUE, {"id": "b"}, id="b")
    await storage.jobs.claim(QUEUE, limit=2, lease_for=0.05)


async def _behind(storage: Storage, given: Any) -> None:
    """A group whose subscriber died before it had caught up."""
    del given
    await storage.topics.subscribe(TOPIC, "g")
    await storage.topics.publish_many(TOPIC, [1, 2], key="k")
    await storage.topics.subscribe(TOPIC, "late", start="earliest")
    await storage.topics.seek(TOPIC, "late", to="latest")
    change = {"caughtUp": False, "cursor": None, "createdAt": 1}
    await storage.durable.write([Patch(f"topic_groups:{TOPIC}", "late", set=change)])


async def _abandoned(storage: Storage, given: Any) -> None:
    """A run that began long ago, and that no worker shows as alive."""
    del given
    value = {"id": "r", "name": "old", "status": "running", "startedAt": 1, "attempts": 1}
    await storage.durable.write([Put("runs", "r", value)])


async def _abandoned_run(storage: Storage) -> Any:
    run = await storage.runs.get("r")
    return None if run is None else (run.status, run.error)


async def _reap(storage: Storage, given: Any) -> None:
    del given
    await storage.maintenance.reap()


async def _reconcile(storage: Storage, given: Any) -> None:
    del given
    await storage.maintenance.reconcile()


async def _rebuild(storage: Storage, given: Any) -> None:
    del given
    await storage.maintenance.rebuild_hot()


async def _catch_up(storage: Storage, given: Any) -> None:
    del given
    await storage.maintenance.catch_up()


async def _close_stale_runs(storage: Storage, given: Any) -> None:
    del given
    await storage.maintenance.close_stale_runs()


async def _pass(storage: Storage, given: Any) -> None:
    del given
    await storage.maintenance.run_once()


async def _lead(storage: Storage, given: Any) -> None:
    """Lead for a moment, in which there is a pass."""
    del given
    task = asyncio.ensure_future(storage.maintenance.run_forever())
    try:
        await asyncio.wait([task], timeout=LED)
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()


CASES: Final[tuple[Case, ...]] = (
    Case(
        name="start and finish a run",
        covers=("runs.start", "runs.flush"),
        act=_run,
        twice=True,
        view=_runs,
        holds=_a_run_is_there,
    ),
    Case(
        name="write a line",
        covers=("logs.write", "logs.flush"),
        act=_write,
        twice=True,
        holds=_a_line_is_there,
    ),
    Case(
        name="prune a log",
        covers=("logs.prune",),
        prepare=_some_lines,
        act=_prune_logs,
    ),
    Case(name="set a rule of retention", covers=("retention.set",), act=_set_rule),
    Case(
        name="unset a rule of retention",
        covers=("retention.unset",),
        prepare=_set_rule,
        act=_unset_rule,
    ),
    Case(
        name="prune by retention",
        covers=("retention.prune",),
        prepare=_outlived,
        act=_prune_retention,
    ),
    Case(
        name="prune by maintenance",
        covers=("maintenance.prune",),
        prepare=_outlived,
        act=_prune_maintenance,
        sample=20,
    ),
    Case(name="reap", covers=("maintenance.reap",), prepare=_lapsed, act=_reap),
    Case(
        name="reconcile",
        covers=("maintenance.reconcile",),
        prepare=_unpublished,
        act=_reconcile,
    ),
    Case(
        name="rebuild the hot plane",
        covers=("maintenance.rebuild_hot",),
        prepare=_lost,
        act=_rebuild,
    ),
    Case(
        name="let groups catch up",
        covers=("maintenance.catch_up",),
        prepare=_behind,
        act=_catch_up,
    ),
    Case(
        name="close runs of the dead",
        covers=("maintenance.close_stale_runs",),
        prepare=_abandoned,
        act=_close_stale_runs,
        view=_abandoned_run,
    ),
    Case(
        name="a pass of maintenance",
        covers=("maintenance.run_once",),
        prepare=_lost,
        act=_pass,
        sample=80,
    ),
    Case(
        name="lead maintenance",
        covers=("maintenance.run_forever",),
        prepare=_unpublished,
        act=_lead,
        sample=12,
    ),
)
