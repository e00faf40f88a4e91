"""A server that stops, freezes, refuses: typed errors, and recovery by itself."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fix_postgres import opened, run

from oqron_core.exceptions import (
    ClosedError,
    OqronError,
    SchemaError,
    StorageError,
    TimedOutError,
    UnavailableError,
)
from oqron_core.planes import Insert, Patch, PlaneContext, Put, Query, Scope
from oqron_core.testing.servers import PostgresServer
from oqron_postgres import BACKEND, PostgresSettings, connect, open_durable, oqron_doctor
from oqron_postgres._connection import CLOSE_WITHIN


@pytest.fixture(scope="module")
def server(postgres_server_factory: Callable[..., PostgresServer]) -> PostgresServer:
    """Give a server that tests of this module may ill-treat."""
    return postgres_server_factory()


async def _until(call: Callable[[], Any], within: float = 20.0) -> Any:
    """Call until it answers; only unavailability is excused."""
    deadline = time.monotonic() + within
    while True:
        try:
            return await call()
        except UnavailableError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


async def _ids_of_jobs(plane: Any) -> set[str]:
    found: set[str] = set()
    after = None
    while True:
        page = await plane.query(Query(kind="job", limit=1000, after=after))
        found |= {record.id for record in page}
        after = page.next
        if after is None:
            return found


def test_a_restart_under_load_loses_nothing(server: PostgresServer, prefix: str) -> None:
    """Writers see typed errors only, and go on when the server is back."""

    async def main() -> None:
        async with opened(server.url(), prefix, pool_size=8) as plane:
            stop = False
            acknowledged: set[str] = set()
            refused = 0

            async def writer(number: int) -> None:
                nonlocal refused
                step = 0
                while not stop:
                    step += 1
                    id_ = f"{number}-{step}"
                    try:
                        [result] = await plane.write([Insert("queue_job:q", id_, {})])
                    except UnavailableError:
                        refused += 1
                        await asyncio.sleep(0.01)
                    else:
                        assert result
                        acknowledged.add(id_)

            async with asyncio.TaskGroup() as group:
                for number in range(8):
                    group.create_task(writer(number))
                await asyncio.sleep(0.3)
                await asyncio.to_thread(server.stop)
                before = len(acknowledged)
                assert not (await plane.check()).ok
                await asyncio.to_thread(server.start)
                deadline = time.monotonic() + 20
                while len(acknowledged) < before + 100:
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.02)
                stop = True
            assert refused > 0
            assert acknowledged <= await _ids_of_jobs(plane)
            assert (await plane.check()).ok

    run(main())


def test_connections_that_were_terminated_are_replaced(server: PostgresServer, prefix: str) -> None:
    """Idle ones are noticed before they are used: no caller is told."""

    async def main() -> None:
        async with opened(server.url(), prefix, pool_size=4) as plane:
            await asyncio.gather(*(plane.now() for _ in range(20)))
            for _ in range(5):
                with psycopg.connect(server.url(), autocommit=True) as admin:
                    admin.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                        "WHERE application_name = 'oqron'"
                    )
                await asyncio.sleep(0.05)
                results = await asyncio.gather(
                    *(plane.write([Put("n", f"{number}", {})]) for number in range(8))
                )
                assert all(result[0] for result in results)

    run(main())


def test_a_read_only_server_is_a_typed_error(server: PostgresServer, prefix: str) -> None:
    """Writes are refused as unavailable, reads go on, and so do writes afterwards."""

    def switch(value: str) -> None:
        with psycopg.connect(server.url(), autocommit=True) as admin:
            admin.execute("SET default_transaction_read_only = off")
            admin.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}".encode())
            admin.execute("SELECT pg_reload_conf()")

    async def main() -> None:
        async with opened(server.url(), prefix) as plane:
            await plane.write([Put("n", "a", {})])
            switch("on")
            try:
                await asyncio.sleep(0.3)
                with pytest.raises(UnavailableError, match="read-only") as caught:
                    await plane.write([Put("n", "b", {})])
                assert caught.value.retryable
                with pytest.raises(UnavailableError, match="read-only"):
                    await plane.write([Put("n", "b", {}), Insert("runs", "b", {})], atomic=True)
                assert 1 == await plane.count(Query(namespace="n"))
                health = await plane.check()
                assert not health.ok
                assert "read-only" in health.reasons[0]
            finally:
                switch("off")
            await _until(lambda: plane.write([Put("n", "b", {})]))

    run(main())


def test_a_statement_that_takes_too_long_is_ended(server: PostgresServer, prefix: str) -> None:
    """By the server, with a typed error; the connection stays good."""

    async def main() -> None:
        async with opened(server.url(), prefix, statement_timeout=0.3, pool_size=1) as plane:
            await plane.write([Put("n", "a", {})])
            with psycopg.connect(server.url()) as other:
                other.execute(
                    f"SELECT * FROM public.{prefix}_records FOR UPDATE".encode()
                ).fetchall()
                with pytest.raises(TimedOutError, match="statement_timeout"):
                    await plane.write([Patch("n", "a", set={"x": 1})])
            assert all(await plane.write([Patch("n", "a", set={"x": 1})]))

    run(main())


def test_without_session_settings_the_client_ends_it(server: PostgresServer, prefix: str) -> None:
    """Behind a pooler no timeout is sent; the limit holds all the same."""

    async def main() -> None:
        async with opened(
            server.url(), prefix, statement_timeout=0.2, prepared_statements=False
        ) as plane:
            await plane.write([Put("n", "a", {})])
            with psycopg.connect(server.url()) as other:
                other.execute(
                    f"SELECT * FROM public.{prefix}_records FOR UPDATE".encode()
                ).fetchall()
                with pytest.raises(TimedOutError):
                    await plane.write([Patch("n", "a", set={"x": 1})])
            assert all(await plane.write([Patch("n", "a", set={"x": 1})]))

    run(main())


def test_an_exhausted_pool_says_how_large_it_is(server: PostgresServer, prefix: str) -> None:
    """Instead of hanging."""

    async def main() -> None:
        settings = PostgresSettings(
            url=server.url(), table_prefix=prefix, pool_size=2, pool_timeout=0.2
        )
        async with connect(settings) as connection, connection.acquire():
            context = PlaneContext(Scope("p", "e"))
            async with connection.acquire(), open_durable(connection, context) as plane:
                with pytest.raises(TimedOutError, match="2 of the pool"):
                    await plane.now()
                assert not (await plane.check()).ok

    run(main())


def test_cancelling_anywhere_leaves_the_pool_whole(server: PostgresServer, prefix: str) -> None:
    """Hundreds of times; no connection is lost and no answer is another's."""

    async def main() -> None:
        async with opened(server.url(), prefix, pool_size=2) as plane:
            ids = [f"{number}" for number in range(20)]
            await plane.write([Put("n", id_, {"id": id_}) for id_ in ids])

            async def call(number: int) -> None:
                if number % 3 == 0:
                    await plane.get("n", ids)
                elif number % 3 == 1:
                    await plane.write([Put("n", ids[number % 20], {"id": ids[number % 20]})])
                else:
                    await plane.write(
                        [Put("n", ids[0], {"id": ids[0]}), Put("runs", "r", {})], atomic=True
                    )

            for number in range(300):
                task = asyncio.create_task(call(number))
                await asyncio.sleep((number % 30) * 0.0001)
                task.cancel()
                await asyncio.wait([task])
            answers = await asyncio.gather(*(plane.get("n", [id_]) for id_ in ids * 5))
            assert ids * 5 == [record.value["id"] for [record] in answers if record]

    run(main())


@pytest.mark.parametrize("held", [True, False])
def test_a_connection_that_comes_with_the_cancel_goes_back(
    server: PostgresServer, prefix: str, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    """In the moment in which it is there and its caller is not any more, it is not lost."""

    async def main() -> None:
        async with opened(server.url(), prefix, pool_size=1, pool_timeout=2.0) as plane:
            await plane.write([Put("n", "a", {})])
            connection = plane._core.connection
            first_of = connection._first_of

            async def too_late(getting: asyncio.Future[Any]) -> Any:
                if not held:
                    await asyncio.wait([getting])
                raise asyncio.CancelledError

            for _ in range(3):
                async with connection.acquire():
                    monkeypatch.setattr(connection, "_first_of", too_late)
                    waiting = asyncio.create_task(plane.get("n", ["a"]))
                    await asyncio.sleep(0.05)
                monkeypatch.setattr(connection, "_first_of", first_of)
                await asyncio.wait([waiting])
                assert waiting.cancelled()
                assert await plane.get("n", ["a"]) != [None]

    run(main())


def test_closing_on_a_frozen_server_is_bounded(server: PostgresServer, prefix: str) -> None:
    """A call in flight is timed out and close returns."""
    pids: list[int] = []

    async def main() -> None:
        async with opened(server.url(), prefix, statement_timeout=0.5, pool_size=2) as plane:
            await asyncio.gather(*(plane.now() for _ in range(4)))
            with psycopg.connect(server.url(), autocommit=True) as admin:
                rows = admin.execute(
                    "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' "
                    "AND pid <> pg_backend_pid()"
                ).fetchall()
            pids.extend(row[0] for row in rows)
            postmaster = int((server.data / "postmaster.pid").read_text().splitlines()[0])
            pids.append(postmaster)
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            with pytest.raises(TimedOutError):
                await plane.now()
            started.append(time.monotonic())

    started: list[float] = []
    try:
        run(main())
        assert time.monotonic() - started[0] < CLOSE_WITHIN + 3
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("statement_timeout", [600.0, None])
def test_who_waits_for_a_frozen_server_is_told_when_the_storage_closes(
    server: PostgresServer, prefix: str, statement_timeout: float | None
) -> None:
    """Not when the statement would have been given up, long after."""

    async def main() -> None:
        options: Any = {"statement_timeout": statement_timeout, "pool_timeout": 600.0}
        async with opened(server.url(), prefix, pool_size=2, **options) as plane:
            await plane.now()
            server.pause()
            calls = [asyncio.ensure_future(plane.now()) for _ in range(4)]
            await asyncio.sleep(0.2)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert {ClosedError} == {type(answer) for answer in answers}

    try:
        run(main())
    finally:
        server.resume()


def _open_files() -> int:
    """Count them, where the system tells."""
    folder = Path("/proc/self/fd")
    return len([*folder.iterdir()]) if folder.is_dir() else 0


def test_closing_leaves_nothing_behind(server: PostgresServer, prefix: str) -> None:
    """No task, no thread, no open file."""

    async def main() -> None:
        async with opened(server.url(), prefix):
            pass
        before = _open_files()
        tasks, threads = len(asyncio.all_tasks()), threading.active_count()
        for _ in range(10):
            async with opened(server.url(), prefix) as plane:
                await plane.now()
        assert tasks == len(asyncio.all_tasks())
        assert threads == threading.active_count()
        assert before == _open_files()

    run(main())


def test_use_after_closing_is_refused(server: PostgresServer, prefix: str) -> None:
    """By a typed error, also of the health check's parts."""

    async def main() -> None:
        async with opened(server.url(), prefix) as plane:
            pass
        with pytest.raises(ClosedError):
            await plane.now()

    run(main())


def test_another_loop_is_refused_and_a_second_run_opens_anew(
    server: PostgresServer, prefix: str
) -> None:
    """A clear sentence instead of a hang."""
    kept: list[Any] = []

    async def first() -> None:
        async with opened(server.url(), prefix) as plane:
            kept.append(plane)
            with pytest.raises(ClosedError, match="event loop"):
                await asyncio.to_thread(lambda: asyncio.run(plane.now()))
            await plane.now()

    run(first())
    run(first())


def test_a_fork_is_refused_in_the_child(server: PostgresServer, prefix: str) -> None:
    """The parent's connections are the parent's."""

    async def main() -> None:
        async with opened(server.url(), prefix) as plane:
            await plane.now()
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                said = b"nothing"
                try:
                    plane.now().send(None)
                except ClosedError as error:
                    said = str(error).encode()
                finally:
                    os.write(write, said)
                    os._exit(0)
            os.waitpid(pid, 0)  # noqa: ASYNC222 - the child ends at once
            assert b"fork" in os.read(read, 1000)
            os.close(read)
            os.close(write)
            await plane.now()

    run(main())


def test_a_server_that_is_not_there_fails_and_a_later_opening_works(
    server: PostgresServer, prefix: str
) -> None:
    """Quickly, with the cause, and without a secret anywhere."""
    nowhere = "postgresql://someone:s3cret@127.0.0.1:1/db"
    started = time.monotonic()
    with pytest.raises(UnavailableError) as caught:
        run(_open(nowhere))
    assert time.monotonic() - started < 5
    assert isinstance(caught.value.__cause__, psycopg.OperationalError)
    error: BaseException | None = caught.value
    while error is not None:
        assert "s3cret" not in f"{error!r} {error}"
        frame = error.__traceback__
        while frame is not None:
            if "oqron_postgres" in frame.tb_frame.f_code.co_filename:
                assert "s3cret" not in repr(frame.tb_frame.f_locals)
            frame = frame.tb_next
        error = error.__cause__
    run(_open(server.url()))


@pytest.mark.parametrize("wrong", ["password", "database"])
def test_a_wrong_address_is_an_error_at_opening(server: PostgresServer, wrong: str) -> None:
    """Not a wait for the pool's timeout."""
    url = server.url("nothing-here") if wrong == "database" else ""
    if wrong == "password":
        url = f"postgresql://postgres:wrong-s3cret@127.0.0.1:{server.port}/postgres"
    started = time.monotonic()
    with pytest.raises(StorageError) as caught:
        run(_open(url))
    assert time.monotonic() - started < 5
    assert "s3cret" not in str(caught.value)
    # Trying again is of no use, and the mend is said.
    assert not caught.value.retryable
    assert isinstance(caught.value, SchemaError) == (wrong == "database")
    assert wrong in str(caught.value)
    assert "postgres.url" in str(caught.value)


def test_texts_are_utf8_whatever_the_url_says(server: PostgresServer, prefix: str) -> None:
    """Another encoding of the client would come back as other characters."""

    async def main() -> None:
        url = f"{server.url()}{'&' if '?' in server.url() else '?'}client_encoding=latin1"
        async with opened(url, prefix) as plane:
            value = {"text": "é€😀"}
            many = [Insert("custom", f"é{n}", value) for n in range(60)]
            assert all(await plane.write(many, returning=()))
            await plane.write([Put("custom", "€", value)])
            found = await plane.get("custom", ["é7", "€"])
            assert [value, value] == [record.value for record in found if record]

    run(main())


async def _open(url: str) -> None:
    async with connect(PostgresSettings(url=url)):
        pass


def test_an_error_of_a_value_quotes_no_row(server: PostgresServer, prefix: str) -> None:
    """The driver's text holds the row; it is not chained."""

    async def main() -> None:
        async with opened(server.url(), prefix) as plane:
            with psycopg.connect(server.url(), autocommit=True) as admin:
                admin.execute(
                    f"ALTER TABLE public.{prefix}_records ADD CHECK (id <> 'bad')".encode()
                )
            with pytest.raises(OqronError) as caught:
                await plane.write([Put("n", "bad", {"x": "s3cret"})])
            assert caught.value.__suppress_context__
            assert "s3cret" not in str(caught.value)

    run(main())


def test_the_doctor_tells_a_good_server_from_a_bad_one(server: PostgresServer, prefix: str) -> None:
    """One sentence a check; the driver is loaded when a check runs."""
    checks: dict[str, Any] = {}
    oqron_doctor(lambda name, check: checks.update({name: check}))
    # Where opening may make the tables, that there are none is no trouble.
    settings = BACKEND.settings(url=server.url(), table_prefix=prefix, create_schema=False)

    async def verdicts() -> dict[str, tuple[bool | None, str]]:
        return {name: await check(settings) for name, check in checks.items()}

    said = run(verdicts())
    assert "PostgreSQL" in said["postgres server"][1]
    assert (False, True) == (
        said["postgres schema"][0],
        "oqron schema apply" in said["postgres schema"][1],
    )

    async def make() -> None:
        async with opened(server.url(), prefix):
            pass

    run(make())
    assert run(verdicts())["postgres schema"][0]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://me:s3cret@127.0.0.1:1/d", "at 127.0.0.1:1: connection refused"),
        ("postgresql://me:s3cret@nowhere.invalid/d", "at nowhere.invalid:5432: the name is not"),
        ("postgresql://me:s3cret@/d?host=/nowhere", "at /nowhere/.s.PGSQL.5432: no such socket"),
        ("postgresql://me:s3cret@127.0.0.1:1,[::1]:2/d", "at 127.0.0.1:1, [::1]:2: "),
    ],
)
def test_a_server_that_is_away_is_named_with_the_reason(url: str, says: str) -> None:
    """On opening, and in both checks of the doctor; what is secret is not in it."""
    checks: dict[str, Any] = {}
    oqron_doctor(lambda name, check: checks.update({name: check}))
    settings = BACKEND.settings(url=url)

    async def main() -> list[str]:
        said = []
        with pytest.raises(UnavailableError) as caught:
            async with connect(settings):
                pass
        said.append(str(caught.value))
        for check in checks.values():
            with pytest.raises(UnavailableError) as caught:
                await check(settings)
            said.append(str(caught.value))
        return said

    for text in run(main()):
        assert f"PostgreSQL takes no connections {says}" in text
        assert "s3cret" not in text


def test_a_server_without_autovacuum_is_a_warning_of_the_doctor(
    postgres_server_factory: Callable[..., PostgresServer],
) -> None:
    """As it is where a plane is looked at: one fact has one severity."""
    checks: dict[str, Any] = {}
    oqron_doctor(lambda name, check: checks.update({name: check}))
    server = postgres_server_factory(settings={"autovacuum": "off"})

    verdict, says = run(checks["postgres server"](BACKEND.settings(url=server.url())))

    assert verdict is None
    assert "autovacuum is off" in says
