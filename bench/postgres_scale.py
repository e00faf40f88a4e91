"""
Mode ``redis-postgres`` with a long history, without statistics, and while it is pruned.

.. code-block:: text

    python bench/postgres_scale.py [--runs 1000000] [--jobs 5000] [--rounds 5] [--quick]
    python bench/postgres_scale.py --prune [--runs 1000000] [--workers 8]

Throwaway servers of its own; Linux, for it reads the CPU and memory of processes from
``/proc``. Both need about 5 GB of disk for a million runs.

Without ``--prune``, the loop of ``bench/modes_path.py`` is measured on three PostgreSQL
servers in turn, each time in another order:

* **empty**: the tables were truncated and analyzed. Measured twice a round: the mean of
  both is what the others are compared with, and what they differ by is the noise.
* **fresh**: the tables have just been made, autovacuum is off, and so nothing is known
  of them.
* **filled**: `--runs` finished runs and `--finished` finished jobs are there, vacuumed
  and analyzed. They are rows that the services wrote, with ids and instants of their
  own, spread over the time for which they are kept.

A ratio is the median of those within each round; for **again**, to the first of both.
CPU is that of this process with all its threads, and of PostgreSQL with all its
processes, also those in the background. Blocks and bytes of the log depend on no load,
and show a plan that has changed.

With ``--prune``, all runs have expired, and one process deletes them as maintenance
does, while others add, claim and complete at a steady pace. PostgreSQL writes down
every wait for a lock that takes a millisecond, with who held it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import multiprocessing
import os
import platform
import re
import statistics
import time

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import modes_path
import psycopg

from modes_path import CLAIM, OUTPUT, PAYLOAD, QUEUE, Place, at, load, say

from oqron_core import Query, Storage, open_storage
from oqron_core.testing import servers


DAY_MS = 86_400_000
SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
TICKS = os.sysconf("SC_CLK_TCK")
LIMIT: Final = 1.15
"""How much worse a filled or a fresh database may be."""
AT_ONCE = 50_000


# --- what a process has used -----------------------------------------------------


def _used(pid: str) -> tuple[int, float, float]:
    """Give the parent of a process, its seconds of CPU, and those of its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    # To the nanosecond; the other file counts ticks, which are too rough for many processes.
    own = int(Path(f"/proc/{pid}/schedstat").read_text("utf-8").split()[0]) / 1e9
    return int(fields[1]), own, (int(fields[13]) + int(fields[14])) / TICKS


def postgres_cpu(server: servers.PostgresServer) -> float:
    """Give the seconds of CPU that a server has used, with processes that ended."""
    _, used, ended = _used(str(server.pid))
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent, own, _ = _used(entry.name)
                used += own if parent == server.pid else 0.0
    return used + ended


def resident(pid: int) -> float:
    """Give the memory of a process in MB, what it shares included."""
    pages = int(Path(f"/proc/{pid}/statm").read_text("utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@attrs.define
class Cost:
    """
    What something took.

    Attributes:
        wall: Seconds.
        own: Seconds of CPU of this process.
        postgres: Seconds of CPU of PostgreSQL.
        blocks: Blocks that its clients touched, in memory or on disk.
        log: Bytes of its write-ahead log.
    """

    wall: float = 0.0
    own: float = 0.0
    postgres: float = 0.0
    blocks: int = 0
    log: int = 0


TOUCHED = """
SELECT sum(coalesce(hits, 0) + coalesce(reads, 0))::bigint,
  pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint
FROM pg_stat_io WHERE backend_type = 'client backend' AND object = 'relation'
"""


async def touched(where: Place) -> tuple[int, int]:
    """Give the blocks that clients have touched, and the bytes of the log."""
    async with await where.connection() as connection:
        return await (await connection.execute(TOUCHED)).fetchone() or (0, 0)


@contextlib.asynccontextmanager
async def cost(where: Place) -> AsyncIterator[tuple[Storage, Cost]]:
    """Open a storage, and measure what happens inside."""
    assert where.postgres is not None
    found = Cost()
    blocks, log = await touched(where)
    async with open_storage(**where.settings()) as storage:
        before = postgres_cpu(where.postgres)
        wall, own = time.perf_counter(), time.process_time()
        yield storage, found
        found.wall, found.own = time.perf_counter() - wall, time.process_time() - own
        found.postgres = postgres_cpu(where.postgres) - before
    # What a connection has touched is only known for certain when it is closed; that
    # opening is in these two figures makes no difference between databases.
    after = await touched(where)
    found.blocks, found.log = after[0] - blocks, after[1] - log


# --- the three databases ---------------------------------------------------------


@attrs.frozen
class Empty(Place):
    """Tables with nothing in them, and statistics that say so."""

    async def empty(self) -> None:
        """Throw everything away."""
        self.redis.command("FLUSHALL")
        async with await self.connection() as connection:
            await connection.execute("TRUNCATE oqron_records, oqron_jobs, oqron_runs")
            await connection.execute("ANALYZE oqron_records, oqron_jobs, oqron_runs")
            await connection.execute("CHECKPOINT")


@attrs.frozen
class Fresh(Place):
    """Tables that have just been made."""

    async def empty(self) -> None:
        """Make the tables anew."""
        self.redis.command("FLUSHALL")
        async with await self.connection() as connection:
            await connection.execute("DROP SCHEMA public CASCADE")
            await connection.execute("CREATE SCHEMA public")
        async with open_storage(**self.settings()):
            pass
        async with await self.connection() as connection:
            await connection.execute("CHECKPOINT")


@attrs.frozen
class Filled(Place):
    """A long history, which stays."""

    async def empty(self) -> None:
        """Throw away what is not finished."""
        self.redis.command("FLUSHALL")
        async with await self.connection() as connection:
            await connection.execute("DELETE FROM oqron_jobs WHERE expires_at IS NULL")
            await connection.execute("CHECKPOINT")


# As `oqron_core._ids` makes them: the instant, the version, and chance.
FILL_ID = """
overlay(overlay(
  lpad(to_hex(ms), 12, '0') || md5(n::text)
  PLACING '7' FROM 13) PLACING '8' FROM 17)::char(32)::uuid::text
"""
# Most are of the one queue that is worked on, and a few have failed.
FILL_RUNS = f"""
INSERT INTO oqron_runs
  (project, environment, namespace, record_kind, id, value, inserted_at, expires_at)
SELECT t.project, t.environment, t.namespace, t.record_kind, {FILL_ID},
  t.value || jsonb_build_object(
    'id', {FILL_ID}, 'jobId', {FILL_ID}, 'startedAt', ms, 'endedAt', ms + 35,
    'status', CASE WHEN n %% 20 = 0 THEN 'failed' ELSE 'completed' END,
    'name', CASE WHEN n %% 4 = 0 THEN 'queue' || n %% 19 ELSE t.value ->> 'name' END
  ),
  ms + 40, ms + 35 + %(keep)s
FROM (SELECT * FROM oqron_runs WHERE id = %(template)s) AS t
CROSS JOIN (
  SELECT n, %(first)s + n::bigint * %(over)s / %(rows)s AS ms
  FROM generate_series(%(start)s::int, %(end)s::int) AS n
) AS s
"""  # noqa: S608 - a constant
FILL_JOBS = f"""
INSERT INTO oqron_jobs
  (project, environment, namespace, record_kind, id, value, inserted_at, expires_at)
SELECT t.project, t.environment, t.namespace, t.record_kind, {FILL_ID},
  t.value || jsonb_build_object(
    'id', {FILL_ID}, 'runId', {FILL_ID}, 'createdAt', ms, 'startedAt', ms + 20,
    'processedOn', ms + 20, 'finishedAt', ms + 40
  ),
  ms + 5, ms + 40 + %(keep)s
FROM (SELECT * FROM oqron_jobs WHERE id = %(template)s) AS t
CROSS JOIN (
  SELECT n, %(first)s + n::bigint * %(over)s / %(rows)s AS ms
  FROM generate_series(%(start)s::int, %(end)s::int) AS n
) AS s
"""  # noqa: S608 - a constant


async def fill(where: Place, runs: int, jobs: int, *, expired: bool = False) -> None:
    """Let the services write a finished job and its run, and multiply both."""
    async with open_storage(**where.settings()) as storage:
        await storage.jobs.add(QUEUE, PAYLOAD)
        assert await modes_path.work(storage, one_by_one=False) == 1
    async with await where.connection() as connection:
        await _multiply(connection, "runs", FILL_RUNS, runs, 30 * DAY_MS, expired=expired)
        await _multiply(connection, "jobs", FILL_JOBS, jobs, DAY_MS, expired=False)
        await connection.execute("VACUUM ANALYZE oqron_records, oqron_jobs, oqron_runs")
        await connection.execute("CHECKPOINT")


async def _multiply(
    connection: psycopg.AsyncConnection[Any],
    table: str,
    statement: str,
    rows: int,
    keep: int,
    *,
    expired: bool,
) -> None:
    cursor = await connection.execute(f"SELECT id FROM oqron_{table}")  # noqa: S608 - our own
    (template,) = await cursor.fetchone() or ("",)
    # Over the time for which they are kept, up to an hour from either end of it.
    first = modes_path.milliseconds() - (2 if expired else 1) * keep + DAY_MS // 24
    over = keep - DAY_MS // 12
    for start in range(1, rows + 1, AT_ONCE):
        end = min(rows, start + AT_ONCE - 1)
        params = {"template": template, "first": first, "over": over, "rows": rows,
                  "keep": keep, "start": start, "end": end}  # fmt: skip
        await connection.execute(statement, params)
    await connection.execute(f"DELETE FROM oqron_{table} WHERE id = %s", (template,))  # noqa: S608


# --- one measurement -------------------------------------------------------------


@attrs.define
class Taken:
    """
    What one database took in one round.

    Attributes:
        add: `add_many` of all jobs.
        work: From the first claim to the last durable run.
        single: Calls of `add` from twenty tasks.
        waits: Seconds of each pickup.
    """

    add: Cost
    work: Cost
    single: Cost
    waits: list[float]


async def take(where: Place, jobs: int, pickups: int) -> Taken:
    """Measure a database with the steps of ``modes_path``."""
    await where.empty()
    async with cost(where) as (storage, add):
        await storage.jobs.add_many(QUEUE, [PAYLOAD] * jobs)
    async with cost(where) as (storage, work):
        done = await modes_path.work(storage, one_by_one=False)
    assert done == jobs, (done, jobs)
    await where.empty()
    async with cost(where) as (storage, single):
        await modes_path.rate(jobs // 2, lambda _: storage.jobs.add(QUEUE, PAYLOAD))
    return Taken(add, work, single, await modes_path.pickup(where, pickups))


# --- the comparison --------------------------------------------------------------

NAMES = ("empty", "again", "fresh", "filled")
Found = dict[str, list[Taken]]


async def compare(places: dict[str, Place], options: argparse.Namespace) -> Found:
    """Measure all in turn, each round from another one on."""
    for place in places.values():
        async with open_storage(**place.settings()):
            pass
    start = time.perf_counter()
    await fill(places["filled"], options.runs, options.finished)
    say(f"filled in {time.perf_counter() - start:.0f} s, {load()}")
    for place in places.values():
        # Not counted: whoever is first would pay for what is read and compiled once.
        await take(place, min(options.jobs, 1000), 5)
    found: Found = {name: [] for name in NAMES}
    for number in range(options.rounds):
        turn = number % len(NAMES)
        for name in NAMES[turn:] + NAMES[:turn]:
            place = places.get(name, places["empty"])
            found[name].append(await take(place, options.jobs, options.pickups))
        say(f"round {number + 1} of {options.rounds}, {load()}")
    return found


Figure = tuple[str, str, bool | None, Callable[[Taken], float]]


def figures(jobs: int) -> list[Figure]:
    """Give what is compared: words, unit, whether more is worse (None: neither), and the figure."""
    calls = jobs // 2 + 2 * modes_path.TASKS + 1
    found: list[Figure] = []
    parts: list[tuple[str, int, Callable[[Taken], Cost]]] = [
        ("add_many", jobs, lambda one: one.add),
        ("work", jobs, lambda one: one.work),
        ("add from 20 tasks", calls, lambda one: one.single),
    ]
    for words, number, part in parts:

        def each(
            name: str, number: int = number, part: Callable[[Taken], Cost] = part
        ) -> Callable[[Taken], float]:
            return lambda one: getattr(part(one), name) / number

        wall, own, postgres = each("wall"), each("own"), each("postgres")
        found += [
            (words, "a second", False, lambda one, wall=wall: 1 / wall(one)),
            ("  own CPU", "µs each", True, lambda one, own=own: own(one) * 1e6),
            ("  PostgreSQL", "µs each", True, lambda one, cpu=postgres: cpu(one) * 1e6),
            ("  blocks", "each", None, each("blocks")),
            ("  log", "bytes each", None, each("log")),
        ]
    found += [
        ("pickup p50", "ms", True, lambda one: at(one.waits, 0.5)),
        ("pickup p90", "ms", True, lambda one: at(one.waits, 0.9)),
    ]
    return found


def report(found: Found, jobs: int) -> None:
    """Print the table; a star marks what is more than 15 % worse than empty."""
    say(f"\n{'':<24}" + "".join(f"{name:>18}" for name in NAMES))
    for words, unit, more_is_worse, figure in figures(jobs):
        first = [figure(one) for one in found["empty"]]
        both = [(a + figure(one)) / 2 for a, one in zip(first, found["again"], strict=True)]
        line = f"{words:<24}"
        for name in NAMES:
            here = both if name == "empty" else [figure(one) for one in found[name]]
            base = first if name == "again" else both
            ratio = statistics.median(a / b if b else 1.0 for a, b in zip(here, base, strict=True))
            worse = 1.0 if more_is_worse is None else ratio if more_is_worse else 1 / ratio
            line += f"{statistics.median(here):>11,.1f}"
            line += " " * 7 if name == "empty" else f"{ratio:>6.2f}{'*' if worse > LIMIT else ' '}"
        say(f"{line}  {unit}")


def compared(options: argparse.Namespace) -> None:
    """Start the servers, compare, and print."""
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(servers.redis_server())
        places: dict[str, Place] = {}
        for name, kind in (("empty", Empty), ("fresh", Fresh), ("filled", Filled)):
            more = {"autovacuum": "off"} if kind is Fresh else {}
            postgres = servers.postgres_server(settings=SETTINGS | more, durable=True)
            places[name] = kind("redis-postgres", redis, stack.enter_context(postgres))
        before = load()
        say(f"{asyncio.run(modes_path.versions(places['empty']))}; {options.runs:,} runs and "
            f"{options.finished:,} jobs in the filled one; {options.jobs:,} jobs, "
            f"{options.rounds} rounds")  # fmt: skip
        found = asyncio.run(compare(places, options))
        say(f"{before} before, {load()} after")
        report(found, options.jobs)


# --- pruning beside workers ------------------------------------------------------


def worker(settings: dict[str, Any], pace: float, size: int, stop: Any, answers: Any) -> None:
    """Add, claim and complete a few at a time, until told to stop; answer with the waits."""
    logging.getLogger("oqron").setLevel(logging.ERROR)

    async def main() -> tuple[int, list[tuple[float, float]]]:
        done, waits = 0, []
        async with open_storage(**settings) as storage:
            while not stop.is_set():
                begin = time.monotonic()
                await storage.jobs.add_many(QUEUE, [PAYLOAD] * size)
                start = time.monotonic()
                claims = await storage.jobs.claim(QUEUE, limit=size)
                waits.append((start, time.monotonic() - start))
                done += sum(await storage.jobs.complete_many([(one, OUTPUT) for one in claims]))
                await asyncio.sleep(max(0.0, begin + pace - time.monotonic()))
            while claims := await storage.jobs.claim(QUEUE, limit=CLAIM):
                done += sum(await storage.jobs.complete_many([(one, OUTPUT) for one in claims]))
        return done, waits

    answers.put(asyncio.run(main()))


def pruner(settings: dict[str, Any], ready: Any, begin: Any, answers: Any) -> None:
    """Prune once when told to, as maintenance does."""
    logging.getLogger("oqron").setLevel(logging.ERROR)

    async def main() -> tuple[int, float, float, float]:
        async with open_storage(**settings) as storage:
            ready.set()
            await asyncio.to_thread(begin.wait)
            start, cpu = time.monotonic(), time.process_time()
            gone = await storage.retention.prune()
            return gone, start, time.monotonic(), time.process_time() - cpu

    answers.put(asyncio.run(main()))


@attrs.define
class Watch:
    """
    What was seen from outside, time and again.

    Attributes:
        memory: Instant and MB of the pruning process.
        holders: Backends of the pruning process.
        samples: How often the server was asked.
        blocked: How often somebody was found to wait for a lock of such a backend.
        waiting: How often somebody was found to wait for any lock.
    """

    memory: list[tuple[float, float]] = attrs.field(factory=list)
    holders: set[int] = attrs.field(factory=set)
    samples: int = 0
    blocked: int = 0
    waiting: int = 0

    def look(self, connection: psycopg.Connection[Any], pid: int) -> None:
        """Look once."""
        with contextlib.suppress(OSError, IndexError):
            self.memory.append((time.monotonic(), resident(pid)))
        rows = connection.execute(
            "SELECT pid, application_name, wait_event_type = 'Lock', pg_blocking_pids(pid) "
            "FROM pg_stat_activity WHERE backend_type = 'client backend'"
        ).fetchall()
        self.samples += 1
        self.holders |= {pid for pid, name, _, _ in rows if name == "pruner"}
        for _, name, waits, blockers in rows:
            self.waiting += bool(waits)
            self.blocked += name != "pruner" and bool(self.holders & set(blockers))


_WAIT = re.compile(
    r"^(\w*) .*process \d+ still waiting for (.+?) after .*\n"
    r".*DETAIL:  Process(?:es)? holding the lock: ([\d, ]+)\.",
    re.MULTILINE,
)


def lock_waits(server: servers.PostgresServer) -> list[tuple[str, str, set[int]]]:
    """Give who waited for a lock for a millisecond or more, for which, and who held it."""
    text = server.log.read_text("utf-8", errors="replace")
    return [
        (match[1], match[2], {int(pid) for pid in match[3].split(",")})
        for match in _WAIT.finditer(text)
    ]


@attrs.frozen
class Pruning:
    """What a prune beside workers gave: that of `pruner` and `worker`, and what was seen."""

    gone: int
    start: float
    end: float
    cpu: float
    done: int
    waits: list[tuple[float, float]]
    watch: Watch


def prune_beside(where: Place, options: argparse.Namespace) -> Pruning:
    """Let workers work, prune meanwhile, and watch."""
    assert where.postgres is not None
    spawn = multiprocessing.get_context("spawn")
    stop, ready, begin = spawn.Event(), spawn.Event(), spawn.Event()
    answers, pruned = spawn.SimpleQueue(), spawn.SimpleQueue()
    mine = where.settings(application_name="worker", pool_size=4)
    workers = [
        spawn.Process(target=worker, args=(mine, options.pace, options.size, stop, answers))
        for _ in range(options.workers)
    ]
    its = where.settings(application_name="pruner", pool_size=4)
    prune = spawn.Process(target=pruner, args=(its, ready, begin, pruned))
    watch = Watch()
    for process in (*workers, prune):
        process.start()
    assert prune.pid is not None
    ready.wait()
    with psycopg.connect(where.postgres.url(), autocommit=True) as connection:
        deadline = time.monotonic() + options.before
        while time.monotonic() < deadline or pruned.empty():
            if time.monotonic() >= deadline:
                begin.set()
            watch.look(connection, prune.pid)
            assert prune.is_alive() or not pruned.empty()
            time.sleep(0.05)
        gone, start, end, cpu = pruned.get()
        time.sleep(options.before / 4)
    stop.set()
    done, waits = 0, []
    for _ in workers:
        each, latencies = answers.get()
        done += each
        waits += latencies
    for process in (*workers, prune):
        process.join()
    return Pruning(gone, start, end, cpu, done, waits, watch)


async def left(where: Place) -> tuple[int, int]:
    """Count what is completed: jobs and runs."""
    async with open_storage(**where.settings()) as storage:
        ended = [("status", "=", "completed")]
        jobs = await storage.durable.count(Query(kind="job", where=ended))
        return jobs, await storage.durable.count(Query(kind="run"))


def pruned(options: argparse.Namespace) -> None:
    """Fill with expired runs, prune them beside workers, and print."""
    settings = SETTINGS | {
        "log_lock_waits": "on",
        "deadlock_timeout": "1ms",
        "log_line_prefix": "%a ",
    }
    with (
        servers.redis_server() as redis,
        servers.postgres_server(settings=settings, durable=True) as postgres,
    ):
        where = Filled("redis-postgres", redis, postgres)
        asyncio.run(fill(where, options.runs, options.finished, expired=True))
        say(f"{asyncio.run(modes_path.versions(where))}; {options.runs:,} runs have expired; "
            f"{options.workers} workers, each {options.size} jobs every "
            f"{options.pace:g} s")  # fmt: skip
        before, used = load(), postgres_cpu(postgres)
        found = prune_beside(where, options)
        used = postgres_cpu(postgres) - used
        say(f"{before} before, {load()} after")
        report_prune(found, used, options)
        waits = lock_waits(postgres)
        theirs = [lock for name, lock, held in waits if name == "worker"
                  and held & found.watch.holders]  # fmt: skip
        say(f"waits for a lock of 1 ms or more: {len(waits)}, of those of workers for the "
            f"prune: {len(theirs)} {sorted(set(theirs))[:3] or ''}")  # fmt: skip
        say(f"samples: {found.watch.samples}, with a wait for a lock: {found.watch.waiting}, "
            f"for one of the prune: {found.watch.blocked}")  # fmt: skip
        jobs, runs = asyncio.run(left(where))
        assert (jobs, runs) == (options.finished + found.done, found.done), (jobs, runs)
        assert found.gone == options.runs, found.gone


def report_prune(found: Pruning, used: float, options: argparse.Namespace) -> None:
    """Print how long it took, how long claims took meanwhile, and the memory."""
    took = found.end - found.start
    say(f"{found.gone:,} runs pruned in {took:.1f} s, {found.gone / took:,.0f} a second; "
        f"{found.cpu / found.gone * 1e6:.1f} µs of its CPU each; PostgreSQL used {used:.1f} s "
        f"for all")  # fmt: skip
    say(f"{'claims':<10}{'number':>8}{'p50':>10}{'p99':>10}{'max':>10}  ms")
    parts = {
        "before": [took for start, took in found.waits if start < found.start],
        "during": [took for start, took in found.waits if found.start <= start < found.end],
        "after": [took for start, took in found.waits if start >= found.end],
    }
    # The first claims of each worker open its connections.
    parts["before"] = parts["before"][4 * options.workers :]
    for name, took_each in parts.items():
        if took_each:
            say(f"{name:<10}{len(took_each):>8,}" + "".join(
                f"{figure:>10.1f}" for figure in
                (at(took_each, 0.5), at(took_each, 0.99), max(took_each) * 1000)))  # fmt: skip
    memory = [mb for when, mb in found.watch.memory if found.start <= when <= found.end]
    idle = [mb for when, mb in found.watch.memory if when < found.start]
    say(f"memory of the pruning process: {_last(idle):.1f} MB before, {memory[0]:.1f} at the "
        f"start, {memory[len(memory) // 2]:.1f} in the middle, {memory[-1]:.1f} at the end, "
        f"{max(memory):.1f} at most")  # fmt: skip


def _last(values: Sequence[float]) -> float:
    return values[-1] if values else 0.0


def main() -> None:
    """Measure one or the other."""
    logging.getLogger("oqron").setLevel(logging.ERROR)
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().partition("\n")[0])
    parser.add_argument("--runs", type=int, default=1_000_000, help="finished, in the filled one")
    parser.add_argument("--finished", type=int, default=200_000, help="jobs, in the filled one")
    parser.add_argument("--jobs", type=int, default=5_000, help="worked off in each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pickups", type=int, default=100, help="for each round")
    parser.add_argument("--quick", action="store_true", help="a fiftieth of it, one round")
    parser.add_argument("--prune", action="store_true", help="prune beside workers instead")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--pace", type=float, default=0.25, help="seconds between two claims")
    parser.add_argument("--size", type=int, default=5, help="jobs of each claim")
    parser.add_argument("--before", type=float, default=20.0, help="seconds of work before")
    options = parser.parse_args()
    if options.quick:
        options.runs, options.finished, options.rounds = 20_000, 4_000, 1
        options.jobs, options.before = 1_000, 4.0
    say(f"Python {platform.python_version()}")
    if options.prune:
        pruned(options)
    else:
        compared(options)


if __name__ == "__main__":
    main()
