"""
How many no-op jobs a worker process does per second, and what a pickup takes.

``python bench/worker_noop.py --mode redis`` starts throwaway servers of its own.
One process, one queue, concurrency 100; the time is from the first claim to the
last durable completion. Latency is from before ``add`` to the handler's first line,
one job at a time, on an idle worker.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import resource
import time

from typing import Any

from oqron_core.testing import servers
from oqron_worker import App


def _settings(mode: str, stack: contextlib.ExitStack) -> dict[str, Any]:
    found: dict[str, Any] = {"mode": mode, "project": "bench", "environment": "noop"}
    if mode != "memory":
        found["redis"] = {"url": stack.enter_context(servers.redis_server()).url}
    if mode == "redis-postgres":
        found["postgres"] = {"url": stack.enter_context(servers.postgres_server()).url()}
    return found


async def throughput(settings: dict[str, Any], count: int, concurrency: int) -> dict[str, Any]:
    app = App(**settings)
    done = asyncio.Event()
    left = count

    @app.queue("noop", concurrency=concurrency)
    async def noop(n: int) -> None:  # noqa: ARG001 - a payload
        nonlocal left
        left -= 1
        if left == 0:
            done.set()

    async with app:
        # As `oqron worker` does when it has begun.
        gc.collect()
        gc.freeze()
        began = time.perf_counter()
        await noop.add_many([{"n": n} for n in range(count)])
        added = time.perf_counter() - began
        cpu = time.process_time()
        began = time.perf_counter()
        async with app.worker(concurrency=concurrency, grace=60.0):
            await done.wait()
            while (await app.storage.jobs.counts("noop"))["active"]:  # noqa: ASYNC110 - looks from outside
                await asyncio.sleep(0.001)
            taken = time.perf_counter() - began
            cpu = time.process_time() - cpu
            await app.storage.runs.flush()
            flushed = time.perf_counter() - began
        runs = await app.storage.durable.count(_runs())
    assert runs == count, (runs, count)
    return {
        "add_many_per_s": round(count / added),
        "jobs_per_s": round(count / taken),
        "with_history_per_s": round(count / flushed),
        "cpu_us_per_job": round(cpu / count * 1e6, 1),
    }


def _runs() -> Any:
    from oqron_core import Query  # noqa: PLC0415 - beside its use

    return Query(namespace="runs", where=[("status", "=", "completed")])


async def pickup(settings: dict[str, Any], count: int) -> dict[str, Any]:
    app = App(**settings)
    times: list[float] = []
    ran = asyncio.Event()
    began = 0.0

    @app.queue("pickup")
    async def noop() -> None:
        times.append(time.perf_counter() - began)
        ran.set()

    async with app, app.worker():
        await asyncio.sleep(0.3)
        for _ in range(count):
            ran.clear()
            began = time.perf_counter()
            await noop.add()
            await ran.wait()
            await asyncio.sleep(0.005)
    times.sort()
    return {
        "pickup_p50_ms": round(times[len(times) // 2] * 1000, 2),
        "pickup_p99_ms": round(times[int(len(times) * 0.99)] * 1000, 2),
    }


async def idle(settings: dict[str, Any], seconds: float) -> dict[str, Any]:
    app = App(**settings)

    @app.queue("idle")
    async def noop() -> None: ...

    async with app, app.worker():
        await asyncio.sleep(1.0)
        before = resource.getrusage(resource.RUSAGE_SELF)
        await asyncio.sleep(seconds)
        after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"idle_cpu_percent": round(used / seconds * 100, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", default="memory")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], default="asyncio")
    parser.add_argument("--idle", type=float, default=5.0)
    parser.add_argument("--only", choices=["throughput", "pickup", "idle"])
    given = parser.parse_args()
    factory = None
    if given.loop == "uvloop":
        import uvloop  # noqa: PLC0415 - an extra

        factory = uvloop.new_event_loop
    found: dict[str, Any] = {"mode": given.mode, "loop": given.loop}
    with contextlib.ExitStack() as stack:
        settings = _settings(given.mode, stack)
        parts = {
            "throughput": lambda: throughput(settings, given.count, given.concurrency),
            "pickup": lambda: pickup(settings, 300),
            "idle": lambda: idle(settings, given.idle),
        }
        for name, part in parts.items():
            if given.only in {None, name}:
                with asyncio.Runner(loop_factory=factory) as runner:
                    found |= runner.run(part())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
