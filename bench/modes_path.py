"""
Modes ``redis`` and ``redis-postgres`` from end to end, beside the same writes by hand.

.. code-block:: text

    python bench/modes_path.py [--mode redis] [--jobs 20000] [--rounds 3] [--quick]

Throwaway servers of its own. One worker process and one loop of the public API: up to
a hundred jobs a claim, each payload decoded, five log lines for each run, nothing else
to do, then `complete_many` (and, for comparison, a hundred `complete` at once) until
the last run of the history is durable. The floor does the same writes by hand: job
record, lease, result and full run record, in two scripts or statements for each
hundred. It has no retries, limits, signals, delays, queries or recovery, and checks
nothing but its token. For ``redis`` it is redis-py with three Lua scripts; for
``redis-postgres`` psycopg on tables of the same shape, indexes and storage settings,
with COPY for adding, and redis-py for leases. Both sides run in turn;
every figure is the median of the rounds. On a machine with more to do than it has
cores, CPU per job holds and rates do not: whoever needs more CPU waits more often
for its turn, and the ratio of rates looks worse than it is. What was imported is set
aside for the collector, for both sides, as ``oqron worker`` does; ``--no-freeze`` is
without it.

PostgreSQL waits for the disk at every commit, as in production; Redis keeps no file.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import platform
import statistics
import sys
import time

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import attrs
import orjson
import psycopg

from pickups import OUTPUT, QUEUE, Oqron, Popped, between_processes, in_one_process
from psycopg_pool import AsyncConnectionPool
from redis.asyncio import Redis

from oqron_core import Query, Storage, open_storage
from oqron_core.planes import (
    BoundDurablePlane,
    Capabilities,
    DurablePlane,
    Health,
    Page,
    Record,
    Scope,
    Write,
    WriteResult,
)
from oqron_core.testing import servers


T = TypeVar("T")

PAYLOAD = {
    "to": "someone@example.com",
    "subject": "Your order has been shipped",
    "locale": "en",
    "ratio": 0.25,
    "tags": ["new", "trial"],
    "body": "x" * 470,
}
CLAIM = 100
BULK = 1000
LINES = 5
TASKS = 20
LEASE_MS = 30_000
KEEP_MS = 30 * 86_400_000
MODES = ("redis", "redis-postgres")


@attrs.frozen
class Times:
    """
    What one round took.

    Attributes:
        add: Seconds for adding all jobs.
        work: Seconds from the first claim to the last durable run.
        cpu: Seconds of this process's CPU in that time, all threads.
        redis: Seconds of the CPU of Redis in that time.
        waiting: Bytes kept when all jobs wait, by place.
        ended: Bytes kept when all have ended, by place.
    """

    add: float
    work: float
    cpu: float
    redis: float
    waiting: dict[str, int]
    ended: dict[str, int]


# --- the servers -----------------------------------------------------------------


@attrs.frozen
class Place:
    """
    The servers of a mode.

    Attributes:
        mode: The mode.
        redis: Its Redis.
        postgres: Its PostgreSQL, where it has one.
    """

    mode: str
    redis: servers.RedisServer
    postgres: servers.PostgresServer | None

    def settings(self, **more: Any) -> dict[str, Any]:
        """Give what `open_storage` needs."""
        found: dict[str, Any] = {
            "mode": self.mode,
            "project": "bench",
            "environment": "bench",
            "redis": {"url": self.redis.url},
        }
        if self.postgres is not None:
            found["postgres"] = {"url": self.postgres.url()} | more
        return found

    async def empty(self) -> None:
        """Throw everything away, so that all rounds begin alike."""
        self.redis.command("FLUSHALL")
        if self.postgres is not None:
            async with await self.connection() as connection:
                await connection.execute(
                    "TRUNCATE oqron_records, oqron_jobs, oqron_runs, "
                    "hand_records, hand_jobs, hand_runs"
                )
                await connection.execute("CHECKPOINT")

    async def connection(self) -> psycopg.AsyncConnection[Any]:
        """Connect to PostgreSQL."""
        assert self.postgres is not None
        return await psycopg.AsyncConnection.connect(self.postgres.url(), autocommit=True)

    def redis_cpu(self) -> float:
        """Give the seconds of CPU that Redis has used."""
        info = str(self.redis.command("INFO", "cpu"))
        parts = dict(line.split(":", 1) for line in info.split() if ":" in line)
        return float(parts["used_cpu_user"]) + float(parts["used_cpu_sys"])

    async def kept(self, prefix: str) -> dict[str, int]:
        """Give the bytes that are kept now, indexes and dead versions included."""
        info = str(self.redis.command("INFO", "memory"))
        found = {"redis": int(info.partition("used_memory:")[2].split()[0])}
        if self.postgres is not None:
            async with await self.connection() as connection:
                for table in ("jobs", "runs"):
                    name = f"{prefix}_{table}"
                    cursor = await connection.execute(
                        "SELECT pg_total_relation_size(%s::regclass)", (name,)
                    )
                    row = await cursor.fetchone()
                    assert row is not None
                    found[table] = row[0]
        return found


@contextlib.contextmanager
def place(mode: str) -> Iterator[Place]:
    """Start the servers of a mode."""
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(servers.redis_server())
        postgres = None
        if mode == "redis-postgres":
            settings = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
            postgres = stack.enter_context(servers.postgres_server(settings=settings, durable=True))
        yield Place(mode, redis, postgres)


# --- oqron -----------------------------------------------------------------------


class Through(DurablePlane):
    """A durable plane that may leave the run history out, and is thin either way."""

    def __init__(self, inner: DurablePlane, *, history: bool) -> None:
        self._inner = inner
        self._history = history

    @property
    def scope(self) -> Scope:
        """The scope of the plane behind."""
        return self._inner.scope

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the plane behind."""
        return self._inner.capabilities

    async def get(self, namespace: str, ids: Sequence[str]) -> Sequence[Record | None]:
        """Read records."""
        return await self._inner.get(namespace, ids)

    async def write(
        self,
        writes: Sequence[Write],
        *,
        atomic: bool = False,
        returning: Sequence[str] | None = None,
    ) -> Sequence[WriteResult]:
        """Write; a batch of runs is said to be written where history is left out."""
        if not self._history and writes and all(write.namespace == "runs" for write in writes):
            return [WriteResult(applied=True)] * len(writes)
        return await self._inner.write(writes, atomic=atomic, returning=returning)

    async def query(self, query: Query) -> Page[Record]:
        """Read a page."""
        return await self._inner.query(query)

    async def count(self, query: Query, *, by: str | None = None) -> Any:
        """Count."""
        return await self._inner.count(query, by=by)

    async def prune(self, query: Query, *, limit: int = 1000) -> int:
        """Prune."""
        return await self._inner.prune(query, limit=limit)

    async def prunable(self, query: Query) -> tuple[int, int]:
        """Say what `prune` would do."""
        return await self._inner.prunable(query)

    async def now(self) -> int:
        """Read the clock."""
        return await self._inner.now()

    async def check(self) -> Health:
        """Look after the store."""
        return await self._inner.check()

    def bind(self, transaction: Any) -> BoundDurablePlane:
        """Join a transaction."""
        return self._inner.bind(transaction)


async def work(storage: Storage, *, one_by_one: bool) -> int:
    """Work off the queue; give how many jobs there were."""
    done = 0
    while claims := await storage.jobs.claim(QUEUE, limit=CLAIM):
        for claim in claims:
            assert claim.data["locale"] == "en"
            for n in range(LINES):
                claim.run.log("info", "line", n=n)
        if one_by_one:
            await asyncio.gather(*[storage.jobs.complete(claim, OUTPUT) for claim in claims])
        else:
            assert all(await storage.jobs.complete_many([(claim, OUTPUT) for claim in claims]))
        done += len(claims)
    await storage.runs.flush()
    return done


async def oqron(
    where: Place, jobs: int, *, one_by_one: bool = False, history: bool = True, bare: bool = True
) -> Times:
    """Take jobs through their life; *bare* puts no proxy around the durable plane."""
    await where.empty()
    wrap = None if bare else lambda plane: Through(plane, history=history)
    async with open_storage(**where.settings(), wrap_durable=wrap) as storage:
        base = await where.kept("oqron")
        gc.collect()
        start = time.perf_counter()
        await storage.jobs.add_many(QUEUE, [PAYLOAD] * jobs)
        add = time.perf_counter() - start
        waiting = _less(await where.kept("oqron"), base)
        gc.collect()
        redis = where.redis_cpu()
        start, cpu = time.perf_counter(), time.process_time()
        done = await work(storage, one_by_one=one_by_one)
        took, cpu = time.perf_counter() - start, time.process_time() - cpu
        redis = where.redis_cpu() - redis
        assert done == jobs, (done, jobs)
        found = await storage.durable.count(
            Query(namespace="runs", where=[("status", "=", "completed")])
        )
        assert found == (jobs if history else 0), (found, jobs)
        ended = _less(await where.kept("oqron"), base)
        return Times(add, took, cpu, redis, waiting, ended)


def _less(now: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {name: value - before[name] for name, value in now.items()}


# --- by hand ---------------------------------------------------------------------


def job_record(job_id: str, now: int) -> dict[str, Any]:
    """Make a job as somebody would who wants the same fields."""
    return {
        "id": job_id, "queueName": QUEUE, "status": "waiting", "data": PAYLOAD, "opts": {},
        "attemptMade": 0, "maxAttempts": 3, "priority": 0, "runAt": None, "createdAt": now,
        "processedOn": None, "startedAt": None, "finishedAt": None, "workerId": None,
        "leaseToken": None, "leaseMs": None, "runId": None, "progressPercent": 0,
        "returnValue": None, "error": None, "stacktrace": [], "tags": [],
        "correlationId": None,
    }  # fmt: skip


def run_record(run_id: str, job_id: str, data: Any, started: int, now: int) -> dict[str, Any]:
    """Make the full record of a run."""
    return {
        "id": run_id, "name": QUEUE, "module": "queue", "status": "completed",
        "trigger": "queue", "input": data, "output": OUTPUT, "attempts": 1,
        "progressPercent": 100,
        "logs": [{"level": "info", "msg": "line", "ts": now, "n": n} for n in range(LINES)],
        "timeline": [{"ts": started, "from": "queued", "to": "running", "reason": "claimed"},
                     {"ts": now, "from": "running", "to": "completed", "reason": "finished"}],
        "error": None, "app": "bench", "environment": "hand", "workerId": "w",
        "startedAt": started, "endedAt": now, "durationMs": now - started, "jobId": job_id,
        "queueName": QUEUE,
    }  # fmt: skip


def hand_ids(jobs: int) -> list[str]:
    """Make ids of the usual length, in order."""
    return [f"0192f0c0-0000-7000-8000-{n:012}" for n in range(jobs)]


def milliseconds() -> int:
    """Read this machine's clock."""
    return time.time_ns() // 1_000_000


class Floor(ABC):
    """What both floors have in common."""

    def __init__(self, where: Place, redis: Redis) -> None:
        self.where = where
        self.redis = redis

    @abstractmethod
    async def add(self, ids: Sequence[str]) -> None:
        """Write job records and make them claimable, a thousand at a time."""

    @abstractmethod
    async def step(self) -> int:
        """Claim up to a hundred, and complete them; give how many."""

    @abstractmethod
    async def runs(self) -> int:
        """Count the runs that were recorded."""

    @abstractmethod
    async def single(self, job_id: str) -> None:
        """Write one thing, as one call of its own."""

    async def settle(self) -> None:  # noqa: B027 - one floor has nothing to do
        """Do what makes the steps that follow fast, outside of what is measured."""

    async def life(self, jobs: int) -> Times:
        """Take jobs through their life."""
        base = await self.where.kept("hand")
        gc.collect()
        start = time.perf_counter()
        await self.add(hand_ids(jobs))
        add = time.perf_counter() - start
        await self.settle()
        waiting = _less(await self.where.kept("hand"), base)
        gc.collect()
        redis = self.where.redis_cpu()
        start, cpu = time.perf_counter(), time.process_time()
        done = 0
        while took := await self.step():
            done += took
        work_time, cpu = time.perf_counter() - start, time.process_time() - cpu
        redis = self.where.redis_cpu() - redis
        assert done == await self.runs() == jobs, (done, jobs)
        ended = _less(await self.where.kept("hand"), base)
        return Times(add, work_time, cpu, redis, waiting, ended)


ADD_LUA = """
for i = 1, #ARGV, 2 do
  redis.call('HSET', 'hand:job:' .. ARGV[i], 'status', 'waiting', 'record', ARGV[i + 1])
  redis.call('ZADD', 'hand:ready', 0, ARGV[i])
end
"""

CLAIM_LUA = """
local limit, now, expires = ARGV[1], ARGV[2], ARGV[3]
local taken = redis.call('ZPOPMIN', 'hand:ready', limit)
local answer = {}
for i = 1, #taken, 2 do
  local id = taken[i]
  local token = redis.call('INCR', 'hand:token')
  redis.call('ZADD', 'hand:leased', expires, id)
  local key = 'hand:job:' .. id
  redis.call('HINCRBY', key, 'attemptMade', 1)
  redis.call('HSET', key, 'status', 'active', 'leaseToken', token, 'workerId', 'w',
    'runId', 'r' .. id, 'startedAt', now, 'processedOn', now, 'leaseMs', 30000)
  answer[#answer + 1] = id
  answer[#answer + 1] = token
  answer[#answer + 1] = redis.call('HGET', key, 'record')
end
return answer
"""

DONE_LUA = """
local now, output, keep = ARGV[1], ARGV[2], ARGV[3]
local done = 0
for i = 4, #ARGV, 4 do
  local id, run = ARGV[i], ARGV[i + 2]
  local key = 'hand:job:' .. id
  if redis.call('HGET', key, 'leaseToken') == ARGV[i + 1] then
    redis.call('HSET', key, 'status', 'completed', 'returnValue', output,
      'finishedAt', now, 'progressPercent', 100)
    redis.call('PEXPIRE', key, keep)
    redis.call('ZREM', 'hand:leased', id)
    redis.call('SET', 'hand:run:' .. run, ARGV[i + 3], 'PX', keep)
    redis.call('ZADD', 'hand:runs', now, run)
    done = done + 1
  end
end
return done
"""


class RedisFloor(Floor):
    """Three scripts: add, claim, done. History is listed by time, and by nothing else."""

    def __init__(self, where: Place, redis: Redis) -> None:
        super().__init__(where, redis)
        self._add = redis.register_script(ADD_LUA)
        self._claim = redis.register_script(CLAIM_LUA)
        self._done = redis.register_script(DONE_LUA)

    async def add(self, ids: Sequence[str]) -> None:
        """Write and publish, a script call for each thousand."""
        for first in range(0, len(ids), BULK):
            now = milliseconds()
            args: list[Any] = []
            for job_id in ids[first : first + BULK]:
                args += (job_id, orjson.dumps(job_record(job_id, now)))
            await self._add(args=args)

    async def step(self) -> int:
        """Two script calls."""
        started = milliseconds()
        found = await self._claim(args=[CLAIM, started, started + LEASE_MS])
        if not found:
            return 0
        now = milliseconds()
        args: list[Any] = [now, orjson.dumps(OUTPUT), KEEP_MS]
        for place_ in range(0, len(found), 3):
            job_id, token, record = found[place_ : place_ + 3]
            name = job_id.decode()
            data = orjson.loads(record)["data"]
            run = orjson.dumps(run_record(f"r{name}", name, data, started, now))
            args += (job_id, token, f"r{name}", run)
        done: int = await self._done(args=args)
        assert done == len(found) // 3
        return done

    async def runs(self) -> int:
        """Count them."""
        count: int = await self.redis.zcard("hand:runs")
        return count

    async def single(self, job_id: str) -> None:
        """SET the payload."""
        await self.redis.set(f"hand:one:{job_id}", orjson.dumps(PAYLOAD))


LEASE_LUA = """
local taken = redis.call('ZPOPMIN', 'hand:ready', ARGV[1])
local answer = {}
for i = 1, #taken, 2 do
  redis.call('ZADD', 'hand:leased', ARGV[2], taken[i])
  answer[#answer + 1] = taken[i]
  answer[#answer + 1] = redis.call('INCR', 'hand:token')
end
return answer
"""

COPY_SQL = (
    "COPY hand_jobs (project, environment, namespace, record_kind, id, value, inserted_at) "
    "FROM STDIN"
)
MARK_SQL = """
UPDATE hand_jobs AS t
SET value = t.value || d.s
  || jsonb_build_object('attemptMade', (t.value ->> 'attemptMade')::int + 1)
FROM jsonb_to_recordset(%s::jsonb) AS d(i text, s jsonb)
WHERE t.project = 'bench' AND t.environment = 'hand' AND t.namespace = 'queue_job:bench'
  AND t.id = d.i AND t.value ->> 'status' = 'waiting'
RETURNING t.id, t.value::text
"""
DONE_SQL = """
WITH d AS (
  SELECT * FROM jsonb_to_recordset(%s::jsonb) AS d(i text, t text, s jsonb, r text, v jsonb)
), done AS (
  UPDATE hand_jobs AS t
  SET value = t.value || d.s, expires_at = %s
  FROM d
  WHERE t.project = 'bench' AND t.environment = 'hand' AND t.namespace = 'queue_job:bench'
    AND t.id = d.i AND t.value ->> 'leaseToken' = d.t
  RETURNING d.r, d.v
)
INSERT INTO hand_runs
  (project, environment, namespace, record_kind, id, value, inserted_at, expires_at)
SELECT 'bench', 'hand', 'runs', 'run', r, v, %s, %s FROM done
"""
ONE_SQL = (
    "INSERT INTO hand_jobs (project, environment, namespace, record_kind, id, value, "
    "inserted_at) VALUES ('bench', 'hand', 'queue_job:one', 'job', %s, %s, %s)"
)


async def by_key(connection: psycopg.AsyncConnection[Any]) -> None:
    """Give the floor the best plan there is, whatever the statistics say."""
    await connection.set_autocommit(True)
    for setting in ("enable_seqscan", "enable_hashjoin", "enable_mergejoin"):
        await connection.execute("SELECT set_config(%s, 'off', false)", (setting,))


class PostgresFloor(Floor):
    """COPY, then one statement for a claim's marks and one for ends and history."""

    def __init__(self, where: Place, redis: Redis, pool: AsyncConnectionPool[Any]) -> None:
        super().__init__(where, redis)
        self._pool = pool
        self._lease = redis.register_script(LEASE_LUA)

    async def add(self, ids: Sequence[str]) -> None:
        """COPY, then ZADD, for each thousand."""
        async with self._pool.connection() as connection:
            for first in range(0, len(ids), BULK):
                part = ids[first : first + BULK]
                await self._copy(connection, part)
                await self.redis.zadd("hand:ready", dict.fromkeys(part, 0))

    async def _copy(self, connection: psycopg.AsyncConnection[Any], ids: Sequence[str]) -> None:
        now = milliseconds()
        async with connection.cursor() as cursor, cursor.copy(COPY_SQL) as copy:
            for job_id in ids:
                value = orjson.dumps(job_record(job_id, now)).decode()
                await copy.write_row(
                    ("bench", "hand", "queue_job:bench", "job", job_id, value, now)
                )

    async def settle(self) -> None:
        """Without statistics the plain joins of the steps would walk the whole queue."""
        async with self._pool.connection() as connection:
            await connection.execute("ANALYZE hand_jobs")

    async def copy_only(self, ids: Sequence[str]) -> float:
        """Give the seconds that COPY alone takes, with nothing made claimable."""
        start = time.perf_counter()
        async with self._pool.connection() as connection:
            for first in range(0, len(ids), BULK):
                await self._copy(connection, ids[first : first + BULK])
        return time.perf_counter() - start

    async def step(self) -> int:
        """A script, two statements, each a commit, and a ZREM."""
        started = milliseconds()
        found = await self._lease(args=[CLAIM, started + LEASE_MS])
        if not found:
            return 0
        tokens = {found[n].decode(): str(found[n + 1]) for n in range(0, len(found), 2)}
        marks = [
            {"i": job_id, "s": {"status": "active", "leaseToken": token, "workerId": "w",
                                "runId": f"r{job_id}", "startedAt": started,
                                "processedOn": started, "leaseMs": LEASE_MS}}
            for job_id, token in tokens.items()
        ]  # fmt: skip
        async with self._pool.connection() as connection:
            cursor = await connection.execute(MARK_SQL, (orjson.dumps(marks).decode(),))
            rows = await cursor.fetchall()
            now = milliseconds()
            ends = self._ends(rows, tokens, started, now)
            keep = now + KEEP_MS
            document = orjson.dumps(ends).decode()
            cursor = await connection.execute(DONE_SQL, (document, keep, now, keep))
            assert cursor.rowcount == len(tokens)
        await self.redis.zrem("hand:leased", *tokens)
        return len(tokens)

    @staticmethod
    def _ends(
        rows: Sequence[tuple[str, str]], tokens: dict[str, str], started: int, now: int
    ) -> list[dict[str, Any]]:
        end = {
            "status": "completed",
            "returnValue": OUTPUT,
            "finishedAt": now,
            "progressPercent": 100,
        }
        return [
            {
                "i": job_id, "t": tokens[job_id], "s": end, "r": f"r{job_id}",
                "v": run_record(f"r{job_id}", job_id, orjson.loads(value)["data"], started, now),
            }
            for job_id, value in rows
        ]  # fmt: skip

    async def runs(self) -> int:
        """Count them."""
        async with self._pool.connection() as connection:
            row = await (await connection.execute("SELECT count(*) FROM hand_runs")).fetchone()
            assert row is not None
            return int(row[0])

    async def single(self, job_id: str) -> None:
        """INSERT one job row over the pool."""
        now = milliseconds()
        value = orjson.dumps(job_record(job_id, now)).decode()
        async with self._pool.connection() as connection:
            await connection.execute(ONE_SQL, (job_id, value, now))


@contextlib.asynccontextmanager
async def floor(where: Place) -> AsyncIterator[Floor]:
    """Open a floor on servers that are empty."""
    await where.empty()
    async with Redis.from_url(where.redis.url) as redis:
        if where.postgres is None:
            yield RedisFloor(where, redis)
            return
        async with AsyncConnectionPool(
            where.postgres.url(), min_size=10, max_size=10, configure=by_key, open=False
        ) as pool:
            await pool.wait()
            yield PostgresFloor(where, redis, pool)


# --- single adds and pickup ------------------------------------------------------

PICKUPS: Final = {"by another process": between_processes, "in one loop": in_one_process}


async def rate(calls: int, call: Callable[[str], Awaitable[Any]]) -> float:
    """Let twenty tasks make *calls* calls, each one after the other; give calls per second."""
    first, *rest = hand_ids(calls + 2 * TASKS)
    await call(first)
    # Connections are opened, and statements prepared, before it counts.
    await asyncio.gather(*(call(job_id) for job_id in rest[calls:]))
    ids = iter(rest[:calls])

    async def task() -> None:
        for job_id in ids:
            await call(job_id)

    start = time.perf_counter()
    await asyncio.gather(*(task() for _ in range(TASKS)))
    return calls / (time.perf_counter() - start)


async def singles(where: Place, calls: int) -> tuple[float, float]:
    """Give single adds per second, and what the floor's bare writes reach."""
    async with floor(where) as hand:
        base = await rate(calls, hand.single)
    await where.empty()
    async with open_storage(**where.settings()) as storage:
        ours = await rate(calls, lambda _: storage.jobs.add(QUEUE, PAYLOAD))
    return ours, base


# --- the rounds ------------------------------------------------------------------


@attrs.define
class Rounds:
    """What was measured, a list entry for each round."""

    hand: list[Times] = attrs.field(factory=list)
    copy: list[float] = attrs.field(factory=list)
    many: list[Times] = attrs.field(factory=list)
    gathered: list[Times] = attrs.field(factory=list)
    kept: list[Times] = attrs.field(factory=list)
    dropped: list[Times] = attrs.field(factory=list)
    singles: list[tuple[float, float]] = attrs.field(factory=list)
    popped: dict[str, list[float]] = attrs.field(factory=lambda: defaultdict(list))
    picked: dict[str, list[float]] = attrs.field(factory=lambda: defaultdict(list))


async def one_round(where: Place, options: argparse.Namespace, found: Rounds) -> None:
    """Measure both sides once."""
    jobs = options.jobs
    async with floor(where) as hand:
        found.hand.append(await hand.life(jobs))
    found.many.append(await oqron(where, jobs))
    found.kept.append(await oqron(where, jobs, bare=False))
    found.dropped.append(await oqron(where, jobs, bare=False, history=False))
    found.gathered.append(await oqron(where, jobs, one_by_one=True))
    async with floor(where) as hand:
        if isinstance(hand, PostgresFloor):
            found.copy.append(await hand.copy_only(hand_ids(jobs)))
    found.singles.append(await singles(where, options.jobs // 4))
    for words, measured in PICKUPS.items():
        popped = Popped(where.redis.url)
        found.popped[words] += await measured(popped, options.pickups)
        await where.empty()
        picked = Oqron(where.settings(), PAYLOAD)
        found.picked[words] += await measured(picked, options.pickups)


async def measure(where: Place, options: argparse.Namespace) -> Rounds:
    """Measure one mode."""
    if where.postgres is not None:
        # The floor's tables are ours under another name: same shape, same indexes.
        for prefix in ("hand", "oqron"):
            async with open_storage(**where.settings(table_prefix=prefix)):
                pass
    found = Rounds()
    for number in range(options.rounds):
        await one_round(where, options, found)
        progress(found, options.jobs, number + 1)
    return found


# --- the report ------------------------------------------------------------------


def say(line: str = "") -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def row(name: str, ours: float, base: float | None, unit: str, *, digits: int = 0) -> None:
    """Print a figure, the floor's, and their ratio."""
    line = f"{name:<46}{ours:>10,.{digits}f}"
    if base is not None:
        line += f"{base:>12,.{digits}f}{ours / base:>8.2f}"
    else:
        line += " " * 20
    say(f"{line}  {unit}")


def median(times: Sequence[T], figure: Callable[[T], float]) -> float:
    """Give the median of a figure."""
    return statistics.median(figure(one) for one in times)


def at(took: Sequence[float], part: float) -> float:
    """Give a percentile in milliseconds."""
    ordered = sorted(took)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] * 1000


def progress(found: Rounds, jobs: int, number: int) -> None:
    """Say how the last round went; it is not part of the report."""
    ours, base = found.many[-1], found.hand[-1]
    sys.stderr.write(
        f"round {number}: {jobs / ours.work:,.0f} jobs/s at {ours.cpu / jobs * 1e6:.0f} µs, by "
        f"hand {jobs / base.work:,.0f} at {base.cpu / jobs * 1e6:.0f} µs; {load()}\n"
    )
    sys.stderr.flush()


def report(found: Rounds, jobs: int) -> None:
    """Print the table of a mode."""
    say(f"{'':<46}{'oqron':>10}{'by hand':>12}{'ratio':>8}")

    def cpu(times: Sequence[Times]) -> float:
        return median(times, lambda one: one.cpu) / jobs * 1e6

    def rate_of(times: Sequence[Times]) -> float:
        return jobs / median(times, lambda one: one.work)

    row("worker CPU, complete_many", cpu(found.many), cpu(found.hand), "µs a job", digits=1)
    row("worker CPU, complete() x 100", cpu(found.gathered), cpu(found.hand), "µs a job", digits=1)
    for words, times in (("complete_many", found.many), ("complete() x 100", found.gathered)):
        ours, base = (
            median(side, lambda one: one.redis) / jobs * 1e6 for side in (times, found.hand)
        )
        row(f"CPU of Redis, {words}", ours, base, "µs a job", digits=1)
    row("work, complete_many", rate_of(found.many), rate_of(found.hand), "jobs/s")
    row("work, complete() x 100", rate_of(found.gathered), rate_of(found.hand), "jobs/s")
    add = jobs / median([*found.many, *found.gathered], lambda one: one.add)
    row("add_many, beside bulk add", add, jobs / median(found.hand, lambda one: one.add), "jobs/s")
    if found.copy:
        row("add_many, beside COPY alone", add, jobs / statistics.median(found.copy), "jobs/s")
    row(
        "add() from 20 tasks, beside one bare write each",
        median(found.singles, lambda pair: pair[0]),
        median(found.singles, lambda pair: pair[1]),
        "calls/s",
    )
    for words in PICKUPS:
        for name, part in (("p50", 0.5), ("p99", 0.99)):
            ours, base = at(found.picked[words], part), at(found.popped[words], part)
            row(f"pickup {words}, {name}, beside a bare pop", ours, base, "ms", digits=2)
    with_runs, without = rate_of(found.kept), rate_of(found.dropped)
    row("work behind a proxy, with history", with_runs, None, "jobs/s")
    row("work behind a proxy, history dropped", without, None, "jobs/s")
    row("with history, of without", with_runs / without * 100, None, "%")
    report_bytes(found, jobs)


def report_bytes(found: Rounds, jobs: int) -> None:
    """Print what is kept, by place."""
    for name in found.many[0].waiting:

        def size(times: Sequence[Times], when: str, name: str = name) -> float:
            return median(times, lambda one: getattr(one, when)[name]) / jobs

        for when, words in (("waiting", "waiting job"), ("ended", "ended job and its run")):
            ours, base = size(found.many, when), size(found.hand, when)
            say(f"{f'bytes in {name}, for each {words}':<46}{ours:>10,.0f}{base:>12,.0f}")
        if name == "redis":
            without = size(found.dropped, "ended")
            say(f"{'bytes in redis, of that the job alone':<46}{without:>10,.0f}")


async def versions(where: Place) -> str:
    """Name the servers."""
    info = str(where.redis.command("INFO", "server"))
    names = [f"Redis {info.partition('redis_version:')[2].split()[0]}"]
    if where.postgres is not None:
        async with await where.connection() as connection:
            answer = await (await connection.execute("SHOW server_version")).fetchone()
            assert answer is not None
            names.append(f"PostgreSQL {answer[0]}")
    return ", ".join(names)


def load() -> str:
    """Give the load of the machine over the last minute."""
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def main() -> None:
    """Measure the modes, one after the other."""
    # It warns, rightly, of a Redis that keeps no file; here both sides have the same.
    logging.getLogger("oqron").setLevel(logging.ERROR)
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().partition("\n")[0])
    parser.add_argument("--mode", choices=MODES, action="append")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pickups", type=int, default=200, help="for each round")
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], default="asyncio")
    parser.add_argument("--quick", action="store_true", help="2,000 jobs, one round")
    parser.add_argument(
        "--no-freeze", action="store_true", help="let the collector walk what was imported"
    )
    options = parser.parse_args()
    if options.quick:
        options.jobs, options.rounds, options.pickups = 2_000, 1, 50
    factory = None
    if options.loop == "uvloop":
        import uvloop  # noqa: PLC0415 - an extra

        factory = uvloop.new_event_loop
    size = len(orjson.dumps(PAYLOAD))
    say(
        f"Python {platform.python_version()}, {options.loop}; {options.jobs:,} jobs of {size} "
        f"bytes, median of {options.rounds} rounds"
    )
    for mode in options.mode or MODES:
        with place(mode) as where, asyncio.Runner(loop_factory=factory) as runner:
            before = load()
            names = runner.run(versions(where))
            if not options.no_freeze:
                # For both sides, as a worker process does.
                gc.collect()
                gc.freeze()
            found = runner.run(measure(where, options))
            say(f"\n{mode}: {names}; {before} before, {load()} after")
            report(found, options.jobs)


if __name__ == "__main__":
    main()
