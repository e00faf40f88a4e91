"""Writes inside a caller's own transaction, of every kind that is supported."""

from __future__ import annotations

import asyncio

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import psycopg
import pytest

from fix_postgres import opened, run
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from oqron_core.exceptions import (
    CapabilityError,
    ConflictError,
    InvalidValueError,
    StorageError,
    UnavailableError,
)
from oqron_core.planes import Delete, Insert, Patch, Put, Query
from oqron_core.testing.hostile import stable_id


Begin = Callable[[str], AbstractAsyncContextManager[Any]]


def _alchemy(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://")


@asynccontextmanager
async def psycopg_async(url: str) -> AsyncIterator[Any]:
    """Begin with psycopg."""
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection


@asynccontextmanager
async def psycopg_block(url: str) -> AsyncIterator[Any]:
    """Begin with a transaction block on a connection in autocommit."""
    connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
    async with connection, connection.transaction():
        yield connection


@asynccontextmanager
async def psycopg_sync(url: str) -> AsyncIterator[Any]:
    """Begin with a blocking psycopg connection."""
    with psycopg.connect(url) as connection:
        yield connection


@asynccontextmanager
async def alchemy_async(url: str) -> AsyncIterator[Any]:
    """Begin with SQLAlchemy's AsyncConnection."""
    engine = create_async_engine(_alchemy(url))
    try:
        async with engine.begin() as connection:
            yield connection
    finally:
        await engine.dispose()


@asynccontextmanager
async def alchemy_async_session(url: str) -> AsyncIterator[Any]:
    """Begin with SQLAlchemy's AsyncSession."""
    engine = create_async_engine(_alchemy(url))
    try:
        async with AsyncSession(engine) as session, session.begin():
            yield session
    finally:
        await engine.dispose()


@asynccontextmanager
async def alchemy_sync(url: str) -> AsyncIterator[Any]:
    """Begin with SQLAlchemy's Connection."""
    engine = create_engine(_alchemy(url))
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


@asynccontextmanager
async def alchemy_sync_session(url: str) -> AsyncIterator[Any]:
    """Begin with SQLAlchemy's Session."""
    engine = create_engine(_alchemy(url))
    try:
        with Session(engine) as session, session.begin():
            yield session
    finally:
        engine.dispose()


BEGINS = [
    psycopg_async,
    psycopg_block,
    psycopg_sync,
    alchemy_async,
    alchemy_async_session,
    alchemy_sync,
    alchemy_sync_session,
]

each_kind = pytest.mark.parametrize("begin", BEGINS, ids=lambda begin: begin.__name__)


@each_kind
def test_a_commit_takes_the_writes_along(postgres_url: str, prefix: str, begin: Begin) -> None:
    """Every kind of write, reading what was written, and nobody sees it before."""

    async def main() -> None:
        async with opened(postgres_url, prefix) as plane:
            await plane.write([Put("n", "old", {"x": 1}), Put("n", "gone", {})])
            async with begin(postgres_url) as transaction:
                bound = plane.bind(transaction)
                results = await bound.write(
                    [
                        Insert("queue_job:q", "a", {"d": "é'\"%s :x"}),
                        Insert("n", "old", {}),
                        Patch("n", "old", increment={"x": 1}, expect={"x": 1}),
                        Delete("n", "gone"),
                        Put("runs", "r", {"startedAt": 1}),
                    ]
                )
                assert [True, False, True, True, True] == [item.applied for item in results]
                assert {"x": 1} == results[1].value
                [job] = await bound.get("queue_job:q", ["a"])
                assert job is not None
                assert {"d": "é'\"%s :x"} == job.value
                page = await bound.query(Query(kind="run", where=[("startedAt", "<", 2)]))
                assert ["r"] == [record.id for record in page]
                assert 1 == await bound.count(Query(kind="job"))
                assert abs(await bound.now() - await plane.now()) < 10_000
                assert (await bound.check()).ok
                assert [None, None] == [
                    *await plane.get("queue_job:q", ["a"]),
                    *await plane.get("runs", ["r"]),
                ]
            assert 1 == await plane.count(Query(kind="job"))
            [old, gone] = await plane.get("n", ["old", "gone"])
            assert old is not None
            assert {"x": 2} == old.value
            assert gone is None

    run(main())


@each_kind
def test_a_rollback_leaves_nothing(postgres_url: str, prefix: str, begin: Begin) -> None:
    """Neither rows nor a callback."""

    async def main() -> None:
        called: list[int] = []

        async def callback() -> None:
            called.append(1)

        async with opened(postgres_url, prefix) as plane:
            with pytest.raises(ZeroDivisionError):
                async with begin(postgres_url) as transaction:
                    bound = plane.bind(transaction)
                    await bound.write([Insert("n", "a", {})])
                    await bound.after_commit(callback)
                    raise ZeroDivisionError
            async with begin(postgres_url) as transaction:
                bound = plane.bind(transaction)
                await bound.write([Insert("n", "b", {})])
                done = asyncio.Event()

                async def last() -> None:
                    done.set()

                await bound.after_commit(last)
            await done.wait()
            assert [] == called
            assert 1 == await plane.count(Query(namespace="n"))

    run(main())


@each_kind
def test_a_callback_follows_the_commit(postgres_url: str, prefix: str, begin: Begin) -> None:
    """Once, after others can see the rows, and not before."""

    async def main() -> None:
        async with opened(postgres_url, prefix) as plane:
            seen: list[int] = []
            done = asyncio.Event()

            async def callback() -> None:
                seen.append(await plane.count(Query(namespace="n")))

            async def fails() -> None:
                raise ZeroDivisionError

            async def last() -> None:
                done.set()

            async with begin(postgres_url) as transaction:
                bound = plane.bind(transaction)
                await bound.write([Insert("n", "a", {})])
                for follow in (callback, fails, last):
                    await bound.after_commit(follow)
                await asyncio.sleep(0.05)
                assert [] == seen
            await done.wait()
            assert [1] == seen

    run(main())


@each_kind
def test_a_refused_atomic_batch_leaves_the_transaction_usable(
    postgres_url: str, prefix: str, begin: Begin
) -> None:
    """It is undone up to where it began; what came before and after commits."""

    async def main() -> None:
        async with opened(postgres_url, prefix) as plane:
            async with begin(postgres_url) as transaction:
                bound = plane.bind(transaction)
                await bound.write([Insert("n", "a", {})])
                with pytest.raises(ConflictError) as caught:
                    await bound.write([Insert("n", "b", {}), Insert("n", "a", {})], atomic=True)
                assert 1 == caught.value.index
                await bound.write([Insert("n", "c", {}), Insert("n", "d", {})], atomic=True)
            page = await plane.query(Query(namespace="n"))
            assert ["a", "c", "d"] == [record.id for record in page]

    run(main())


def test_the_callers_own_statements_share_the_transaction(postgres_url: str, prefix: str) -> None:
    """The row of the application and the job commit together."""

    async def main() -> None:
        engine = create_async_engine(_alchemy(postgres_url))
        async with opened(postgres_url, prefix) as plane:
            async with engine.begin() as connection:
                await connection.execute(text(f"CREATE TABLE {prefix}_orders (id int)"))
            with pytest.raises(ZeroDivisionError):
                async with engine.begin() as connection:
                    await connection.execute(text(f"INSERT INTO {prefix}_orders VALUES (1)"))
                    await plane.bind(connection).write([Insert("queue_job:q", "a", {})])
                    raise ZeroDivisionError
            async with engine.begin() as connection:
                rows = await connection.execute(text(f"SELECT count(*) FROM {prefix}_orders"))
                assert 0 == rows.scalar_one()
                await connection.execute(text(f"DROP TABLE {prefix}_orders"))
            assert 0 == await plane.count(Query(kind="job"))
        await engine.dispose()

    run(main())


def test_a_failed_transaction_says_so(postgres_url: str, prefix: str) -> None:
    """What the caller broke is the caller's to roll back."""

    async def main() -> None:
        async with opened(postgres_url, prefix) as plane, psycopg_async(postgres_url) as mine:
            with pytest.raises(psycopg.errors.DivisionByZero):
                await mine.execute("SELECT 1/0")
            with pytest.raises(StorageError, match="roll it back"):
                await plane.bind(mine).write([Insert("n", "a", {})])
            await mine.rollback()
            await plane.bind(mine).write([Insert("n", "a", {})])

    run(main())


def test_a_lost_connection_of_the_caller_is_a_typed_error(postgres_url: str, prefix: str) -> None:
    """The driver's error does not escape."""

    async def main() -> None:
        async with opened(postgres_url, prefix) as plane:
            mine = await psycopg.AsyncConnection.connect(postgres_url)
            await mine.close()
            with pytest.raises(UnavailableError):
                await plane.bind(mine).write([Insert("n", "a", {})])

    run(main())


def test_autocommit_without_a_transaction_is_refused(postgres_url: str, prefix: str) -> None:
    """There would be nothing to roll back."""

    async def main() -> None:
        async with opened(postgres_url, prefix) as plane:
            async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as mine:
                with pytest.raises(InvalidValueError, match="autocommit"):
                    plane.bind(mine)

    run(main())


@pytest.mark.parametrize("thing", [None, object(), "postgresql://x"], ids=stable_id)
def test_what_is_no_transaction_is_refused(postgres_url: str, prefix: str, thing: object) -> None:
    """With the list of what may be given."""

    async def main() -> None:
        async with opened(postgres_url, prefix) as plane:
            with pytest.raises(CapabilityError, match="AsyncSession"):
                plane.bind(thing)

    run(main())


@each_kind
def test_a_transaction_of_another_database_is_refused(
    postgres_url: str, database: str, prefix: str, begin: Begin
) -> None:
    """Before anything is written there, though tables of the same names are there."""

    async def main() -> None:
        async with opened(database, prefix) as other, opened(postgres_url, prefix) as plane:
            async with begin(database) as mine:
                bound = plane.bind(mine)
                with pytest.raises(InvalidValueError, match="is in the database"):
                    await bound.write([Insert("n", "a", {})])
                with pytest.raises(InvalidValueError, match="is in the database"):
                    await bound.after_commit(asyncio.sleep)  # type: ignore[arg-type]  # never called
            assert [None] == [*await other.get("n", ["a"])]
            assert [None] == [*await plane.get("n", ["a"])]

    run(main())
