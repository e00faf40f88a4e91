"""
The same no-op jobs through other libraries, on servers of the same kind.

``python bench/worker_peers.py --python PATH`` runs each in a process of *PATH*, an
environment that has them installed. One worker process, concurrency 100, their
documented way of running; the time is from the start of the worker to the last
handler, jobs added before. What each keeps of a job that is done is in the table.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time

from collections.abc import Callable
from typing import Any, Final


KEEPS: Final = {
    "saq": "result for 10 minutes",
    "arq": "result for an hour",
    "streaq": "result for 5 minutes",
    "taskiq": "nothing",
    "dramatiq": "nothing",
    "procrastinate": "job row",
    "pgqueuer": "log rows",
    "chancy": "job row",
}
"""What a library keeps with the settings used here."""
POSTGRES: Final = frozenset({"procrastinate", "pgqueuer", "chancy"})


class _Count:
    """Counts handlers, and takes the time of the last."""

    def __init__(self, total: int) -> None:
        self.left = total
        self.began = 0.0
        self.took = 0.0
        self.over = threading.Event()

    def start(self) -> None:
        self.began = time.perf_counter()

    def one(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.took = time.perf_counter() - self.began
            self.over.set()

    async def wait(self) -> None:
        while not self.over.is_set():  # noqa: ASYNC110 - looks from outside
            await asyncio.sleep(0.005)


async def _until(count: _Count, work: Any) -> None:
    task = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(count.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    task.cancel()
    waiting.cancel()
    await asyncio.gather(task, waiting, return_exceptions=True)


async def saq(url: str, total: int) -> float:
    from saq import Queue, Worker  # noqa: PLC0415 - of the other environment

    count = _Count(total)

    async def noop(_: Any, *, n: int) -> None:  # noqa: ARG001 - a payload
        count.one()

    queue = Queue.from_url(url)
    await queue.connect()
    for first in range(0, total, 1000):
        await asyncio.gather(*(queue.enqueue("noop", n=n) for n in range(first, first + 1000)))
    worker = Worker(queue, [("noop", noop)], concurrency=100)
    count.start()
    await _until(count, worker.start())
    return count.took


async def arq(url: str, total: int) -> float:
    from arq import Worker, create_pool, func  # noqa: PLC0415
    from arq.connections import RedisSettings  # noqa: PLC0415

    count = _Count(total)

    async def noop(_: Any, n: int) -> None:  # noqa: ARG001 - a payload
        count.one()

    settings = RedisSettings.from_dsn(url)
    pool = await create_pool(settings)
    for first in range(0, total, 500):
        await asyncio.gather(*(pool.enqueue_job("noop", n) for n in range(first, first + 500)))
    worker = Worker(
        [func(noop, name="noop")],
        redis_settings=settings,
        max_jobs=100,
        poll_delay=0.01,
        handle_signals=False,
    )
    count.start()
    await _until(count, worker.async_run())
    return count.took


async def streaq(url: str, total: int) -> float:
    from streaq import Worker  # noqa: PLC0415

    count = _Count(total)
    worker: Any = Worker(redis_url=url, concurrency=100, handle_signals=False)

    @worker.task()
    async def noop(n: int) -> None:  # noqa: ARG001 - a payload
        count.one()

    async with worker:
        for first in range(0, total, 1000):
            await worker.enqueue_many([noop.enqueue(n) for n in range(first, first + 1000)])
    count.start()
    await _until(count, worker.run_async())
    return count.took


async def taskiq(url: str, total: int) -> float:
    from taskiq.api import run_receiver_task  # noqa: PLC0415
    from taskiq_redis import RedisStreamBroker  # noqa: PLC0415

    count = _Count(total)
    broker: Any = RedisStreamBroker(url=url)

    @broker.task
    async def noop(n: int) -> None:  # noqa: ARG001 - a payload
        count.one()

    await broker.startup()
    for first in range(0, total, 500):
        await asyncio.gather(*(noop.kiq(n) for n in range(first, first + 500)))
    count.start()
    await _until(count, run_receiver_task(broker, max_async_tasks=100, max_prefetch=100))
    return count.took


async def dramatiq(url: str, total: int) -> float:
    import dramatiq as library  # noqa: PLC0415

    from dramatiq.brokers.redis import RedisBroker  # noqa: PLC0415

    count = _Count(total)
    lock = threading.Lock()
    broker = RedisBroker(url=url)
    library.set_broker(broker)

    @library.actor
    def noop(n: int) -> None:  # noqa: ARG001 - a payload
        with lock:
            count.one()

    for n in range(total):
        noop.send(n)
    worker = library.Worker(broker, worker_threads=8)
    count.start()
    worker.start()
    await count.wait()
    await asyncio.to_thread(worker.stop)
    return count.took


async def procrastinate(url: str, total: int) -> float:
    import procrastinate as library  # noqa: PLC0415

    count = _Count(total)
    app = library.App(connector=library.PsycopgConnector(conninfo=url, max_size=20))

    @app.task
    async def noop(n: int) -> None:  # noqa: ARG001 - a payload
        count.one()

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for first in range(0, total, 1000):
            await noop.batch_defer_async(*({"n": n} for n in range(first, first + 1000)))
        count.start()
        await _until(count, app.run_worker_async(concurrency=100, install_signal_handlers=False))
    return count.took


async def pgqueuer(url: str, total: int) -> float:
    import asyncpg  # noqa: PLC0415

    from pgqueuer import PgQueuer  # noqa: PLC0415
    from pgqueuer.db import AsyncpgDriver  # noqa: PLC0415
    from pgqueuer.queries import Queries  # noqa: PLC0415

    count = _Count(total)
    connection = await asyncpg.connect(url)
    driver = AsyncpgDriver(connection)
    await Queries(driver).install()
    queuer = PgQueuer(driver)

    @queuer.entrypoint("noop")
    async def noop(_: Any) -> None:
        count.one()

    await Queries(driver).enqueue(["noop"] * total, [b"{}"] * total, [0] * total)
    count.start()

    async def written() -> None:
        # Completions are buffered: the last handler is not the last write.
        other = await asyncpg.connect(url)
        await count.wait()
        while await other.fetchval("SELECT count(*) FROM pgqueuer"):  # noqa: ASYNC110 - looks from outside
            await asyncio.sleep(0.01)
        count.took = time.perf_counter() - count.began
        await other.close()

    running = asyncio.ensure_future(queuer.run(batch_size=100))
    await written()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await connection.close()
    return count.took


_chancy: list[_Count] = []
"""Chancy imports a handler by name, so what it counts with is found by name too."""


async def chancy_noop(*, n: int) -> None:  # noqa: ARG001 - a payload
    """Count."""
    _chancy[0].one()


async def chancy(url: str, total: int) -> float:
    from chancy import Chancy, Queue, Worker, job  # noqa: PLC0415

    count = _Count(total)
    _chancy.append(count)
    async with Chancy(url, max_connection_pool_size=20) as app:
        await app.migrate()
        await app.declare(
            Queue(
                "default",
                concurrency=100,
                executor=Chancy.Executor.Async,
                polling_interval=1,
                eager_polling=True,
            )
        )
        noop = job()(chancy_noop)
        jobs = [noop.job.with_kwargs(n=n) for n in range(total)]
        async for _ in app.push_many(jobs):
            pass
        count.start()
        async with Worker(app, register_signal_handlers=False):
            await count.wait()
    return count.took


RUNS: dict[str, Callable[[str, int], Any]] = {
    "saq": saq,
    "arq": arq,
    "streaq": streaq,
    "taskiq": taskiq,
    "dramatiq": dramatiq,
    "procrastinate": procrastinate,
    "pgqueuer": pgqueuer,
    "chancy": chancy,
}


def _alone(name: str, url: str, total: int) -> None:
    try:
        import uvloop  # noqa: PLC0415

        factory = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        took = runner.run(RUNS[name](url, total))
    figures = {
        "library": name,
        "jobs_per_s": round(total / took),
        "keeps": KEEPS[name],
    }
    print(json.dumps(figures), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--only", nargs="*", default=list(RUNS))
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        _alone(*given.alone, given.count)
        return
    from oqron_core.testing import servers  # noqa: PLC0415 - not in the other environment

    for name in given.only:
        with contextlib.ExitStack() as stack:
            if name in POSTGRES:
                url = stack.enter_context(servers.postgres_server()).url()
            else:
                url = stack.enter_context(servers.redis_server()).url
            command = [given.python, __file__, "--alone", name, url, "--count", str(given.count)]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=180, check=False
                )
            except subprocess.TimeoutExpired:
                print(json.dumps({"library": name, "error": "not done within 180 seconds"}))
                continue
            if done.returncode:
                lines = (done.stderr.strip() or "no message").splitlines()
                print(json.dumps({"library": name, "error": lines[-1]}))
            else:
                print(done.stdout.strip().splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
