"""A step that fails leaves everything as it was, also what had expired."""

from __future__ import annotations

import asyncio

from typing import Any

import pytest

from hypothesis import given
from hypothesis import strategies as st

import oqron_memory

from oqron_core.exceptions import ConflictError, InvalidValueError
from oqron_core.planes import (
    Delete,
    Insert,
    Json,
    Patch,
    PlaneContext,
    Put,
    Query,
    Scope,
    Write,
)
from oqron_core.testing.clock import ManualClock
from oqron_memory import MemorySettings


def _write(step: tuple[str, int, bool], now: int) -> Write:
    what, number, expires = step
    expires_at = now + 1000 if expires else None
    name = f"{number}"
    if what == "put":
        return Put("a", name, {"v": what, "n": 1}, expires_at)
    if what == "insert":
        return Insert("b" if expires else "a", name, {"v": what}, expires_at)
    if what == "delete":
        return Delete("a", name)
    return Patch(
        "a",
        name,
        set={"v": what},
        increment={"n": 1},
        append={"l": [number]},
        expires_at=expires_at,
    )


writes = st.lists(
    st.tuples(
        st.sampled_from(["put", "insert", "delete", "patch"]),
        st.integers(0, 3),
        st.booleans(),
    ),
    max_size=12,
)


@given(writes, writes, st.sampled_from([0.0, 2.0]), st.booleans())
def test_a_refused_atomic_batch_changes_nothing(
    before: Any, batch: Any, passed: float, metered: bool
) -> None:
    """Records, times, expiries, indexes and bytes are what they were."""

    async def scenario() -> None:
        clock = ManualClock()
        settings = MemorySettings(clock=clock, max_bytes=10**6 if metered else None)
        context = PlaneContext(Scope("p", "e"))
        async with (
            oqron_memory.connect(settings) as store,
            oqron_memory.open_durable(store, context) as durable,
        ):
            await durable.write([_write(step, clock.now()) for step in before])
            await durable.query(Query(namespace="a"))
            clock.advance(passed)
            was = await everything(durable)
            used = store.used
            final = Patch("a", "absent", set={"x": 1})
            with pytest.raises(ConflictError):
                await durable.write(
                    [*(_write(step, clock.now()) for step in batch), final], atomic=True
                )
            assert was == await everything(durable)
            assert used == store.used
            # What expired before is there to be counted still.
            clock.advance(2.0)
            await everything(durable)

    asyncio.run(scenario())


async def everything(durable: Any) -> list[Any]:
    """Read all records of the test in two orders."""
    found = []
    for namespace in ("a", "b"):
        found += list(await durable.query(Query(namespace=namespace)))
        found += list(await durable.query(Query(namespace=namespace, order_by=[("v", "desc")])))
    return found


async def test_a_list_that_would_outgrow_the_limit_undoes_its_step(opened: Any) -> None:
    """Appending is held to the size of a value, and the batch around it is undone."""
    async with opened() as planes:
        big = "x" * 600_000
        await planes.durable.write([Insert("things", "a", {"l": [big]})])
        with pytest.raises(InvalidValueError, match=r"append\.l"):
            await planes.durable.write(
                [Insert("things", "b", {}), Patch("things", "a", append={"l": [big]})]
            )
        a, b = await planes.durable.get("things", ["a", "b"])
        assert [big] == a.value["l"]
        assert b is None


async def test_a_scalar_given_as_json_text_is_that_scalar(opened: Any) -> None:
    """Guards, increments, conditions and orders see through a `Json`."""
    async with opened() as planes:
        durable = planes.durable
        value = {
            "n": Json(b" 5"),
            "s": Json(b'"five"'),
            "z": Json(b"null"),
            "l": Json(b" [ ]"),
        }
        await durable.write([Insert("things", "a", value), Insert("things", "b", {"n": 4})])
        patch = Patch(
            "things",
            "a",
            increment={"n": 1},
            append={"l": [1]},
            expect={"n": 5, "s": "five", "z": None, "l": []},
        )
        (result,) = await durable.write([patch])
        assert result.applied
        assert {"n": 6, "s": "five", "z": None, "l": [1]} == result.value
        page = await durable.query(Query(namespace="things", where=[("s", ">", "fiv")]))
        assert ["a"] == [record.id for record in page]
        assert {"five": 1, "": 1} == await durable.count(Query(namespace="things"), by="s")
