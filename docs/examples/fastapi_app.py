"""
A FastAPI application that adds a job in its own SQLAlchemy transaction.

The job is there if and only if the order is: both commit together, or neither. The
durable plane must be PostgreSQL, and the same database. Needs fastapi.

``uvicorn fastapi_app:api`` serves, and ``oqron worker fastapi_app:work`` works.
"""

from __future__ import annotations

import contextlib

from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, HTTPException
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from oqron_worker import App, Context


work = App(mode="redis-postgres")


@work.queue("confirmations")
async def confirm(ctx: Context, order: int) -> str:
    """Confirm an order, some time after it was placed."""
    return f"order {order} confirmed by {ctx.job.id}"


def engine_for(app: App) -> AsyncEngine:
    """Connect SQLAlchemy to the database of the storage."""
    url = app.storage.settings.section_for("postgres")["url"]
    return create_async_engine(str(url).replace("postgresql://", "postgresql+psycopg://", 1))


@contextlib.asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncIterator[None]:
    """Open the storage and the engine with the application."""
    async with work:
        engine = engine_for(work)
        async with engine.begin() as connection:
            await connection.execute(
                text("CREATE TABLE IF NOT EXISTS orders (id serial PRIMARY KEY, item text)")
            )
        api.state.engine = engine
        yield
        await engine.dispose()


api = FastAPI(lifespan=lifespan)


@api.post("/orders/{item}")
async def place(item: str) -> dict[str, Any]:
    """Place an order; its confirmation follows if, and only if, it is placed."""
    async with api.state.engine.begin() as connection:
        result = await connection.execute(
            text("INSERT INTO orders (item) VALUES (:item) RETURNING id"), {"item": item}
        )
        order = result.scalar_one()
        job = await confirm.add(order=order, transaction=connection)
        if item == "unicorn":
            # Rolls back the order and the job alike.
            raise HTTPException(409, "sold out")
    return {"order": order, "job": job.id}
