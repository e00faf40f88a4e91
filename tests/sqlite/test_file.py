"""One file: who may open it, what it keeps, what happens when others hold it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from oqron_core import open_storage
from oqron_core.exceptions import (
    ClosedError,
    ConflictError,
    InvalidValueError,
    SchemaError,
    StorageError,
    TimedOutError,
    UnavailableError,
)
from oqron_core.planes import (
    Capabilities,
    Durability,
    Entry,
    HotPlane,
    Insert,
    PlaneContext,
    Put,
    Query,
    Scope,
)
from oqron_sqlite import BACKEND, SqliteSettings, connect, open_durable, open_hot
from oqron_sqlite._clock import WallClock
from oqron_sqlite._doctor import check_file
from oqron_sqlite._lane import Transaction
from oqron_sqlite._store import SqliteStore


SCOPE = Scope("file", "test")
CONTEXT = PlaneContext(SCOPE)


@asynccontextmanager
async def opened(path: Path, **more: Any) -> AsyncIterator[tuple[SqliteStore, HotPlane, Any]]:
    """Open a file and both of its planes."""
    async with (
        connect(SqliteSettings(path=str(path), **more)) as store,
        open_hot(store, CONTEXT) as hot,
        open_durable(store, CONTEXT) as durable,
    ):
        yield store, hot, durable


# --- settings --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": ""},
        {"path": ":memory:"},
        {"path": "file:x?mode=memory"},
        {"path": 1},
        {"hot_path": ""},
        {"path": "a.db", "hot_path": "./a.db"},
        {"synchronous": "off"},
        {"busy_timeout": 0},
        {"busy_timeout": float("nan")},
        {"poll_interval": "0.1"},
        {"poll_interval": True},
    ],
    ids=repr,
)
def test_a_wrong_setting_is_refused(wrong: dict[str, Any]) -> None:
    """By name, before any file is touched."""
    with pytest.raises(InvalidValueError, match=f"sqlite.{[*wrong][-1]}"):
        SqliteSettings(**wrong)


def test_what_is_acknowledged_is_called_durable_as_it_is(folder: Path) -> None:
    """A power cut may take the last moments, unless every commit is flushed."""

    async def declared(**more: Any) -> Capabilities:
        async with opened(folder / "oqron.db", **more) as (_, _, durable):
            found: Capabilities = durable.capabilities
            return found

    assert Durability.SERVER is asyncio.run(declared()).durability
    assert Durability.DISK is asyncio.run(declared(synchronous="full")).durability


# --- opening -----------------------------------------------------------------------------


async def enter(path: Path) -> None:
    """Open and close."""
    async with connect(SqliteSettings(path=str(path), busy_timeout=0.1)):
        pass


def test_a_file_that_cannot_be_opened_is_told(folder: Path) -> None:
    """A missing folder, a file of another kind, tables of a newer version."""
    with pytest.raises(UnavailableError, match="folder"):
        asyncio.run(enter(folder / "missing" / "oqron.db"))
    (folder / "text").write_text("no database, but long enough to be read as one" * 50)
    with pytest.raises(SchemaError, match="no SQLite file"):
        asyncio.run(enter(folder / "text"))
    asyncio.run(enter(folder / "newer"))
    with sqlite3.connect(folder / "newer") as driver:
        driver.execute("UPDATE oqron_meta SET value = '99' WHERE name = 'version'")
    driver.close()
    with pytest.raises(SchemaError, match="version 99"):
        asyncio.run(enter(folder / "newer"))


def test_tables_of_others_are_left_alone(folder: Path) -> None:
    """The file may be the application's own."""
    with sqlite3.connect(folder / "app.db") as driver:
        driver.execute("CREATE TABLE jobs (id)")
        driver.execute("PRAGMA user_version = 7")
    asyncio.run(enter(folder / "app.db"))

    assert (7,) == driver.execute("PRAGMA user_version").fetchone()
    assert [] == driver.execute("SELECT * FROM jobs").fetchall()
    driver.close()


def test_many_open_a_new_file_at_once(folder: Path) -> None:
    """Each finds the tables, whoever made them."""

    async def main() -> list[bool]:
        async def one(number: int) -> bool:
            async with opened(folder / "oqron.db") as (_, _, durable):
                [result] = await durable.write([Insert("n", f"{number}", {})])
                return bool(result.applied)

        return list(await asyncio.gather(*map(one, range(12))))

    assert [True] * 12 == asyncio.run(main())


def test_what_was_written_is_there_after_a_restart(folder: Path) -> None:
    """Records, queues with their order and pause, and live runs."""
    path = folder / "oqron.db"

    async def first() -> None:
        async with opened(path) as (_, hot, durable):
            await durable.write([Put("n", "a", {"x": 1})])
            await hot.broker.publish("q", [Entry("b", 1), Entry("a")])
            await hot.broker.pause("p")
            await hot.live.merge("r", {"n": 1}, ["line"])

    async def second() -> None:
        async with opened(path) as (_, hot, durable):
            [record] = await durable.get("n", ["a"])
            assert {"x": 1} == record.value
            leases = await hot.broker.claim("q", owner="w", lease_for=30, limit=9)
            assert ["a", "b"] == [lease.id for lease in leases]
            assert (await hot.broker.counts("p")).paused
            assert {"n": 1, "logs": ["line"], "timeline": []} == await hot.live.get("r")

    asyncio.run(first())
    asyncio.run(second())


def test_tokens_grow_over_the_loss_of_the_file(folder: Path) -> None:
    """A queue that is lost starts its tokens beyond all that it gave before."""

    async def token(path: Path) -> int:
        async with opened(path) as (_, hot, _):
            await hot.broker.publish("q", [Entry("a")])
            [lease] = await hot.broker.claim("q", owner="w", lease_for=30)
            return lease.token

    assert asyncio.run(token(folder / "a.db")) < asyncio.run(token(folder / "b.db"))


# --- others hold it ------------------------------------------------------------------------


def test_a_file_that_others_hold_times_out(folder: Path) -> None:
    """With one typed error, and works again when they let go; reading goes on."""

    async def main() -> None:
        async with opened(folder / "oqron.db", busy_timeout=0.1) as (_, hot, durable):
            other = sqlite3.connect(folder / "oqron.db", isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(TimedOutError, match="busy_timeout"):
                await durable.write([Put("n", "a", {})])
            assert 0 == await durable.count(Query(namespace="n"))
            other.execute("ROLLBACK")
            other.close()
            await durable.write([Put("n", "a", {})])
            assert (await hot.check()).ok

    asyncio.run(main())


def test_a_process_is_woken_by_what_another_does(folder: Path) -> None:
    """Between two looks at the file, also where it had been still for long."""

    async def main() -> None:
        path = folder / "oqron.db"
        async with opened(path) as (_, here, _), opened(path, poll_interval=0.02) as (_, there, _):
            waiting = asyncio.create_task(there.broker.wait(["q"], timeout=30))
            # Long enough for the looks to have become slow.
            await asyncio.sleep(0.2)
            assert not waiting.done()
            await here.broker.publish("q", [Entry("a")])
            assert ["q"] == list(await asyncio.wait_for(waiting, 10))

    asyncio.run(main())


def test_nobody_looks_where_nobody_waits(folder: Path) -> None:
    """An idle storage costs nothing."""

    async def main() -> None:
        async with opened(folder / "oqron.db") as (store, hot, _):
            await hot.broker.wait(["q"], timeout=0)
            async with hot.signals.subscribe(["c"]):
                assert store.hub._timer is not None or store.hub._looking
            assert store.hub._timer is None

    asyncio.run(main())


# --- groups of writes ----------------------------------------------------------------------


def test_calls_that_arrive_together_share_a_transaction(folder: Path) -> None:
    """One commit for many; each call has its own answer, and its own failure."""

    async def main() -> None:
        async with opened(folder / "oqron.db") as (store, hot, durable):
            begun: list[str] = []
            await store.hot.ask_writer(lambda driver: driver.set_trace_callback(begun.append))
            calls = [durable.write([Insert("n", f"{n}", {})], atomic=True) for n in range(50)]
            calls += [durable.write([Insert("n", "0", {})], atomic=True)]
            calls += [hot.counters.increment("c", by=2**63 - 1) for _ in range(2)]
            answers: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
            await store.hot.ask_writer(lambda driver: driver.set_trace_callback(None))

            assert [True] * 50 == [bool(answer[0].applied) for answer in answers[:50]]
            assert [ConflictError, int, InvalidValueError] == [type(a) for a in answers[50:]]
            assert begun.count("COMMIT") < 10
            assert 50 == await durable.count(Query(namespace="n"))

    asyncio.run(main())


def test_a_call_that_breaks_takes_nobody_with_it(folder: Path) -> None:
    """Its group is undone and done again one by one."""

    async def main() -> None:
        async with opened(folder / "oqron.db") as (store, _, durable):

            def breaks(step: Transaction) -> None:
                step.driver.execute("DELETE FROM oqron_records")
                step.driver.execute("INSERT INTO nowhere VALUES (1)")

            calls = [
                durable.write([Put("n", "a", {})]),
                store.durable.write(breaks),
                durable.write([Put("n", "b", {})]),
            ]
            answers: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
            first, broken, last = answers

            assert first[0].applied
            assert last[0].applied
            assert isinstance(broken, StorageError)
            assert 2 == await durable.count(Query(namespace="n"))

    asyncio.run(main())


def test_closing_finishes_what_was_asked_for(folder: Path) -> None:
    """And refuses what comes after."""
    path = folder / "oqron.db"

    async def main() -> None:
        async with opened(path) as (store, _, durable):
            writing = asyncio.create_task(durable.write([Put("n", "a", {})]))
            await asyncio.sleep(0)
        assert (await writing)[0].applied
        with pytest.raises(ClosedError):
            await store.durable.read(lambda driver, _: driver)
        async with opened(path) as (_, _, durable):
            assert 1 == await durable.count(Query(namespace="n"))

    asyncio.run(main())


# --- what expires ----------------------------------------------------------------------------


def test_what_has_expired_is_swept_away(folder: Path) -> None:
    """The file does not grow by what nobody asks for again."""
    now = [1_700_000_000_000_000_000]

    async def main() -> list[int]:
        store = SqliteStore(SqliteSettings(path=str(folder / "oqron.db")), lambda: now[0])
        await store.open()
        async with open_hot(store, CONTEXT) as hot:
            await hot.cache.set_many({f"{n}": n for n in range(50)}, ttl=1.0)
            await hot.locks.acquire("k", owner="w", lease_for=1.0)
            await hot.counters.increment("k", expires_in=1.0)
            await hot.signals.publish("c", 1)
            now[0] += 70_000_000_000
            await hot.signals.publish("c", 2)
            await hot.cache.set_many({"kept": 1})
            counts = [
                await store.hot.read(
                    lambda driver, _, table=table: driver.execute(  # type: ignore[misc]
                        f"SELECT count(*) FROM oqron_hot_{table}"
                    ).fetchone()[0]
                )
                for table in ("cache", "locks", "counters", "signals")
            ]
        await store.close()
        return counts

    assert [1, 0, 0, 1] == asyncio.run(main())


def test_a_clock_that_is_set_back_stands_still() -> None:
    """What is held is held longer; no instant is given twice in the wrong order."""
    times = [5_000_000, 9_000_000, 3_000_000, 10_000_000]
    clock = WallClock(iter(times).__next__)

    assert [5, 9, 9, 10] == [clock.now() for _ in times]


# --- doctor ---------------------------------------------------------------------------------


def test_the_doctor_looks_and_touches_nothing(folder: Path) -> None:
    """No file is made; a whole one is told from a damaged one."""
    path = folder / "oqron.db"
    ok, told = asyncio.run(check_file(SqliteSettings(path=str(path))))
    assert (True, True, False) == (ok, "is made when" in told, path.exists())
    ok, told = asyncio.run(check_file(SqliteSettings(path=str(folder / "x" / "y.db"))))
    assert (False, True) == (ok, "folder" in told)
    asyncio.run(enter(path))
    assert asyncio.run(check_file(SqliteSettings(path=str(path))))[0]
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)

    assert not asyncio.run(check_file(SqliteSettings(path=str(path))))[0]


def test_a_named_mode_is_the_file_of_the_settings(folder: Path) -> None:
    """`mode = "sqlite"` serves both planes, connected once."""

    async def main() -> None:
        async with open_storage(
            mode="sqlite", sqlite={"path": str(folder / "oqron.db")}
        ) as storage:
            assert ("sqlite", "sqlite") == (storage.settings.hot, storage.settings.durable)
            job = await storage.jobs.add("q", {"n": 1})
            [claim] = await storage.jobs.claim("q")
            assert job.id == claim.job.id

    asyncio.run(main())
    assert "sqlite" == BACKEND.name


def test_the_demo_keeps_its_jobs_over_a_restart(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`oqron demo --mode sqlite --keep`, and a second process reads what it left."""
    monkeypatch.chdir(folder)

    def oqron(*arguments: str) -> Any:
        found = subprocess.run(
            [sys.executable, "-m", "oqron_core.cli", *arguments, "--mode", "sqlite", "--json"],
            check=True, capture_output=True,
        )  # fmt: skip
        return json.loads(found.stdout)

    told = oqron("demo", "--keep", "--project", "kept")["jobs"]
    counted = oqron("jobs", "counts", "--project", "kept")["items"]

    assert {"oqron.db"} == {path.name for path in folder.iterdir()}
    assert told == {one["queueName"]: {n: one[n] for n in told["emails"]} for one in counted}
    assert told["emails"]["completed"] > 0
