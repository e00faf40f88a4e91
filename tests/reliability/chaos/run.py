"""
Run chaos: ``python tests/reliability/chaos/run.py --mode redis-postgres --seconds 60``.

Prints a table, and ends with 1 where anything was lost, doubled without a reason,
or left over; the evidence is then kept, and its folder named.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import contextlib
import json
import random
import shutil
import sys
import tempfile
import time
import uuid

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import attrs


sys.path.insert(0, str(Path(__file__).parent.parent))

from chaos.crew import Crew
from chaos.history import Evidence, Verdict, judge
from chaos.ledger import Ledger, read
from chaos.nemesis import Nemesis
from chaos.plan import QUEUES, Plan
from chaos.proxy import Proxy
from chaos.report import table
from oqron_core import Query
from oqron_core.storage import Storage
from oqron_core.testing import servers


_TRACE = Path(__file__).parents[3].parent / "shared/data/azure-llm-trace-code.csv"
_DRAIN_WITHIN = 180.0
_OPEN = ("waiting", "delayed", "active")


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--mode", choices=("redis", "redis-postgres"), default="redis-postgres")
    parser.add_argument("--seconds", type=float, default=60.0, help="the budget for faults")
    parser.add_argument("--rate", type=float, default=60.0, help="jobs a second")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--lease", type=float, default=3.0, help="seconds")
    parser.add_argument("--seed", type=int, default=None, help="default: another every time")
    parser.add_argument("--evidence", type=Path, default=None, help="keep it in this folder")
    parser.add_argument("--again", type=Path, default=None, help="only judge this evidence again")
    return parser.parse_args(words)


@attrs.define
class _Stage:
    """Everything that runs."""

    plan: Plan
    direct: Plan
    crew: Crew
    nemesis: Nemesis


@contextlib.asynccontextmanager
async def _stage(given: argparse.Namespace, folder: Path) -> AsyncIterator[_Stage]:
    """Start servers, proxies and processes."""
    durable = given.mode == "redis-postgres"
    chance = random.Random(given.seed)
    # Where Redis has the truth, an acknowledged write is on the disk.
    options = () if durable else ("--appendfsync", "always")
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(servers.redis_server(persistent=not durable, args=options))
        postgres = stack.enter_context(servers.postgres_server()) if durable else None
        proxies = {"redis": Proxy(redis.port, chance)}
        if postgres is not None:
            proxies["postgres"] = Proxy(postgres.port, chance)
        for proxy in proxies.values():
            await proxy.start()
        direct = Plan(
            mode=given.mode,
            project=f"chaos-{uuid.uuid4().hex[:8]}",
            folder=str(folder),
            redis_url=redis.url,
            postgres_url="" if postgres is None else postgres.url(),
            seconds=given.seconds,
            rate=given.rate,
            lease=given.lease,
            slots=24,
            trace=str(_TRACE) if _TRACE.exists() else "",
            seed=given.seed,
        )
        plan = _through(direct, redis, postgres, proxies)
        async with direct.open():
            pass  # makes the tables, once and undisturbed
        ledger = Ledger(folder / "faults.jsonl")
        crew = Crew(plan, ledger, time.time() + given.seconds)
        nemesis = Nemesis(plan, crew, ledger, redis, postgres, proxies, chance)
        try:
            yield _Stage(plan, direct, crew, nemesis)
        finally:
            crew.kill()
            for proxy in proxies.values():
                await proxy.close()


def _through(
    direct: Plan,
    redis: servers.RedisServer,
    postgres: servers.PostgresServer | None,
    proxies: dict[str, Proxy],
) -> Plan:
    """Give the plan of those who go through the proxies."""
    redis_url = direct.redis_url.replace(f":{redis.port}/", f":{proxies['redis'].port}/")
    if postgres is None:
        return attrs.evolve(direct, redis_url=redis_url)
    port = proxies["postgres"].port
    postgres_url = direct.postgres_url.replace(f":{postgres.port}/", f":{port}/")
    return attrs.evolve(direct, redis_url=redis_url, postgres_url=postgres_url)


async def _left(storage: Storage) -> int:
    counts = [await storage.jobs.counts(queue) for queue in QUEUES]
    return sum(count[status] for count in counts for status in _OPEN)


async def _drain(stage: _Stage) -> list[str]:
    """Let the workers finish what is left, in peace; gives what is wrong."""
    wrong: list[str] = []
    if not await stage.crew.producer_done(_DRAIN_WITHIN):
        wrong.append("the producer hangs")
    async with stage.direct.open() as storage:
        deadline = time.monotonic() + _DRAIN_WITHIN
        while left := await _left(storage):
            if time.monotonic() > deadline:
                wrong.append(f"{left} jobs are stuck after {_DRAIN_WITHIN:.0f} quiet seconds")
                break
            await asyncio.sleep(0.2)
    await stage.crew.end()
    wrong += [f"{name} did not end when it was told to" for name in stage.crew.stuck]
    return wrong


async def _look(stage: _Stage) -> list[str]:
    """Keep what the store says; gives what is wrong with what is left."""
    wrong: list[str] = []
    async with stage.direct.open() as storage:
        # Whoever was killed last: its runs go stale, and are closed.
        for _ in range(12):
            await storage.maintenance.run_once()
            await asyncio.sleep(1.0)
        for queue in QUEUES:
            # The claimer drops ended jobs whose acknowledgement did not arrive.
            if await storage.jobs.claim(queue, limit=10_000):
                wrong.append(f"{queue} hands out jobs, though none is left")
            counts = await storage.hot.broker.counts(queue)
            if counts.ready + counts.delayed + counts.leased:
                wrong.append(f"the broker still knows ended jobs of {queue}: {counts}")
        live = await storage.hot.live.active(limit=100)
        if live:
            wrong.append(f"{len(live)} runs are live for ever")
        values = [{"lease": stage.plan.lease * 1000}]
        for namespace in (
            "runs",
            *(f"queue_{kind}:{q}" for kind in ("job", "dlq") for q in QUEUES),
        ):
            values += [record async for record in _records(storage, namespace)]
    _keep(Path(stage.plan.folder) / "store.jsonl", values)
    return wrong


def _evidence(folder: Path) -> Evidence:
    """Read everything that everybody said."""
    jobs, dead, runs, lease = {}, {}, {}, 0.0
    for record in read(folder / "store.jsonl"):
        if "lease" in record:
            lease = record["lease"]
        elif "module" in record:
            runs[record["id"]] = record
        elif "deadAt" in record:
            dead[record["queueName"], record["id"]] = record
        else:
            jobs[record["queueName"], record["id"]] = record
    faults = [*read(folder / "faults.jsonl")]
    return Evidence(_notes(folder), faults, jobs, dead, runs, lease)


def _notes(folder: Path) -> list[dict[str, Any]]:
    notes: list[dict[str, Any]] = []
    for pattern in ("producer-*.jsonl", "worker*.jsonl"):
        for path in sorted(folder.glob(pattern)):
            notes += [{"w": path.stem, **note} for note in read(path)]
    return notes


async def _records(storage: Storage, namespace: str) -> AsyncIterator[dict[str, Any]]:
    after: str | None = None
    while True:
        query = Query(namespace=namespace, limit=5000, after=after)
        page = await storage.durable.query(query)
        for record in page.items:
            yield record.value
        after = page.next
        if after is None:
            return


def _keep(path: Path, values: Sequence[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(value) + "\n" for value in values)


def _recoveries(evidence: Evidence, verdict: Verdict) -> dict[str, list[float]]:
    """Say how long it took after each fault, in seconds, from its begin."""
    done = sorted(n["t"] for n in evidence.notes if n["e"] == "settle" and n["ok"] == "yes")
    waits = _waits(evidence)
    found: dict[str, list[float]] = defaultdict(list)
    for fault in evidence.faults:
        kind = fault["e"]
        if "since" not in fault or "worker" in kind:
            continue
        since = fault["since"]
        if (place := bisect.bisect_left(done, fault["t"])) < len(done):
            found[f"{kind}: until a job was settled again"].append((done[place] - since) / 1000)
        waiting = [start for accept, start in waits if accept < since < start]
        if fault.get("lost") and waiting:
            found[f"{kind}: until all that waited had started"].append(
                (max(waiting) - since) / 1000
            )
    found["kill worker: until its attempt was taken over"] = [
        gap / 1000 for gap in verdict.taken_over
    ]
    return dict(sorted(found.items()))


def _waits(evidence: Evidence) -> list[tuple[float, float]]:
    """Give when each job was acknowledged, and when it first started; not delayed ones."""
    late: set[str] = set()
    accepts: dict[str, float] = {}
    starts: dict[str, float] = {}
    for note in evidence.notes:
        if note["e"] == "offer" and note["kind"] == "late":
            late.add(note["j"])
        elif note["e"] == "accept":
            accepts[note["j"]] = note["t"]
        elif note["e"] == "start":
            starts[note["j"]] = min(note["t"], starts.get(note["j"], note["t"]))
    return [(t, starts[job]) for job, t in accepts.items() if job in starts and job not in late]


async def run(given: argparse.Namespace, folder: Path) -> bool:
    """Run, judge and print; True where nothing is wrong."""
    async with _stage(given, folder) as stage:
        stage.crew.start(given.workers)
        await stage.nemesis.rage(given.seconds)
        wrong = await _drain(stage)
        wrong += await _look(stage)
    _keep(folder / "wrong.json", [{"text": text} for text in wrong])
    return report(folder)


def report(folder: Path) -> bool:
    """Judge evidence and print the table; True where nothing is wrong."""
    evidence = _evidence(folder)
    verdict = judge(evidence)
    said = (folder / "wrong.json").read_text(encoding="utf-8").splitlines()
    wrong = [json.loads(line)["text"] for line in said]
    wrong += _crashes(folder) + verdict.violations
    faults = Counter(f["e"] for f in evidence.faults if f["e"] not in {"born", "died"})
    sys.stdout.write(table(verdict, faults, _recoveries(evidence, verdict)) + "\n")
    sys.stdout.writelines(f"VIOLATION: {line}\n" for line in wrong[:50])
    if wrong:
        sys.stdout.write(f"{len(wrong)} violations; evidence: {folder}\n")
    return not wrong


def _crashes(folder: Path) -> list[str]:
    """List what went wrong inside of processes, where faults are no excuse."""
    found = []
    for path in sorted([*folder.glob("*.err"), *folder.glob("*.log")]):
        said = path.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = said if path.suffix == ".err" else [x for x in said if " ERROR " in x[:30]]
        # What closing could not write it says, and is counted.
        errors = [line for line in errors if not line.endswith("not written to history")]
        found += [f"{path.stem} said: {line[:200]}" for line in errors[-1:]]
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Run with these words of the command line; gives the exit status."""
    given = _arguments(words)
    if given.again is not None:
        return 0 if report(given.again) else 1
    if given.seed is None:
        given.seed = random.randrange(10**9)
    folder = given.evidence or Path(tempfile.mkdtemp(prefix="oqron-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(f"mode {given.mode}, {given.seconds:g} seconds, seed {given.seed}\n\n")
    well = asyncio.run(run(given, folder))
    if well and given.evidence is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
