"""The body of a record: fields kept as one text until they change, seen by nobody."""

from __future__ import annotations

import asyncio

from typing import Any

import pytest

from hypothesis import given
from hypothesis import strategies as st

from oqron_core.exceptions import CorruptRecordError, InvalidValueError, OqronError
from oqron_core.planes import (
    MISSING,
    Delete,
    Insert,
    Json,
    Patch,
    Put,
    Query,
    Scope,
    Write,
)
from oqron_core.testing.hostile import BAD_VALUES, VALUES
from oqron_core.testing.servers import RedisServer
from oqron_redis._items import Encoder
from oqron_redis._keys import Keys
from oqron_redis._records import BODY
from oqron_redis._writes import Batch, grouped


# --- what stands in a body behaves as what stands apart ------------------------------


async def _in_body(durable: Any, id_: str, value: dict[str, Any]) -> None:
    assert all(await durable.write([Put("n", id_, value)]))


async def _apart(durable: Any, id_: str, value: dict[str, Any]) -> None:
    """Write the same record so that every field is one of the hash."""
    await durable.write([Put("n", id_, dict.fromkeys(value))])
    assert all(await durable.write([Patch("n", id_, set=value)]))


VALUE = {"a": 1, "b": "x", "c": [1], "d": {"k": None}, "e": None, "": "empty", "f": 2**62}
STEPS: list[list[Write]] = [
    [Patch("n", "1", set={"a": 2})],
    [Patch("n", "1", unset=["a", "c", "gone"])],
    [Patch("n", "1", unset=[""]), Patch("n", "1", set={"": 1})],
    [Patch("n", "1", unset=["a"]), Patch("n", "1", increment={"a": 5})],
    [Patch("n", "1", unset=["a"]), Patch("n", "1", increment={"a": 2**62, "f": 2**62})],
    [Patch("n", "1", unset=["c"]), Patch("n", "1", append={"c": [2]})],
    [Patch("n", "1", unset=["c"], expect={"c": [1]}), Patch("n", "1", expect={"c": MISSING})],
    [Patch("n", "1", unset=["b"]), Patch("n", "1", set={"z": 1}, expect={"b": "x"})],
    [Patch("n", "1", increment={"a": 1}), Patch("n", "1", increment={"a": 1})],
    [Patch("n", "1", increment={"f": 1, "a": 1}), Patch("n", "1", increment={"f": 2**62})],
    [Patch("n", "1", increment={"a": 1, "f": 2**62})],
    [Patch("n", "1", increment={"b": 1})],
    [Patch("n", "1", append={"c": [[], {}]}), Patch("n", "1", append={"d": [1]})],
    [Patch("n", "1", set={"a": 3}, expect={"a": 1, "b": "x", "e": None, "": "empty"})],
    [Patch("n", "1", set={"a": 3}, expect={"a": 2})],
    [Patch("n", "1", set={"a": 3}, expect={"d": {"k": None}})],
    [Patch("n", "1", set={"a": 3}, expect={"a": MISSING})],
    [Delete("n", "1", expect={"b": "x", "none": MISSING})],
    [Delete("n", "1", expect={"b": "y"})],
    [Put("n", "1", {"q": 1})],
    [Insert("n", "1", {"q": 1})],
    [Patch("n", "1", set={"a": 9}, expires_at=2**42), Patch("n", "1", expires_at=None)],
]


@pytest.mark.parametrize("atomic", [False, True])
def test_it_makes_no_difference_where_a_field_stands(
    open_planes: Any, redis: RedisServer, atomic: bool
) -> None:
    """Every kind of change gives the same record and the same answer."""

    async def scenario() -> None:
        async with open_planes(redis.url) as planes:
            durable = planes.durable
            for steps in STEPS:
                told = []
                for make in (_in_body, _apart):
                    await make(durable, "1", VALUE)
                    outcome: list[Any] = []
                    for step in steps:
                        try:
                            (result,) = await durable.write([step], atomic=atomic)
                            outcome.append((result.applied, result.value))
                        except OqronError as error:
                            outcome.append(type(error))
                    (record,) = await durable.get("n", ["1"])
                    outcome.append(None if record is None else record.value)
                    for query in (
                        Query(namespace="n", where=[("b", "=", "x")], fields=("a", "b")),
                        Query(namespace="n", where=[("a", ">=", 2)]),
                        Query(namespace="n", order_by=[("f", "desc")]),
                    ):
                        page = await durable.query(query)
                        outcome.append([item.value for item in page.items])
                        outcome.append(await durable.count(query))
                    told.append(outcome)
                assert told[0] == told[1], steps

    asyncio.run(scenario())


def test_what_is_pruned_may_be_named_by_the_body(open_planes: Any, redis: RedisServer) -> None:
    """A condition on a field of the body finds the record, and its index entries go."""

    async def scenario() -> None:
        async with open_planes(redis.url) as planes:
            durable = planes.durable
            runs = [
                Insert("runs", str(n), {"status": "failed", "startedAt": n, "mood": str(n % 2)})
                for n in range(40)
            ]
            assert all(await durable.write(runs))
            # Other tests leave runs of their own on this server.
            mine = b"*%b*runs*" % durable.scope.project.encode()
            assert len(await planes.store.command(b"KEYS", mine, key=b"")) > 40
            where = [("mood", "=", "1")]
            assert await durable.prune(Query(namespace="runs", where=where)) == 20
            assert await durable.count(Query(namespace="runs"), by="status") == {"failed": 20}
            await durable.prune(Query(namespace="runs"))
            left = await planes.store.command(b"KEYS", mine, key=b"")
            assert left == []

    asyncio.run(scenario())


def test_records_of_the_earlier_form_are_read_and_changed(
    open_planes: Any, redis: RedisServer
) -> None:
    """A hash without a body is a record whose fields all stand apart."""

    async def scenario() -> None:
        async with open_planes(redis.url) as planes:
            durable = planes.durable
            await durable.write(
                [Insert("queue_job:q", "1", {"status": "waiting", "x": [1], "y": 2})]
            )
            key = durable._session.keys.records("queue_job:q") + b"1"
            await planes.store.command(b"HDEL", key, BODY, key=key)
            await planes.store.command(b"HSET", key, b"x", b"[1]", b"y", b"2", key=key)
            patch = Patch(
                "queue_job:q", "1", set={"status": "active"}, unset=["y"],
                expect={"y": 2, "gone": MISSING},
            )  # fmt: skip
            (result,) = await durable.write([patch])
            assert result.applied
            assert result.value == {"status": "active", "x": [1]}
            counts = await durable.count(Query(kind="job"), by="status")
            assert counts == {"active": 1}

    asyncio.run(scenario())


@pytest.mark.parametrize("foreign", [b"x", b"\x80\x04", b"a\0b\0c", b"\0\0"])
def test_a_foreign_body_is_one_broken_record(
    open_planes: Any, redis: RedisServer, foreign: bytes
) -> None:
    """Its neighbours are read, it is told by name, and it can be replaced and deleted."""

    async def scenario() -> None:
        async with open_planes(redis.url) as planes:
            durable = planes.durable
            value = {"status": "failed", "startedAt": 1, "x": 1}
            await durable.write([Put("runs", "1", value), Put("runs", "2", value)])
            key = durable._session.keys.records("runs") + b"1"
            await planes.store.command(b"HSET", key, BODY, foreign, key=key)
            found = (await durable.query(Query(namespace="runs"))).items
            assert [record.id for record in found] == ["1", "2"]
            assert found[1].value == value
            assert "error" in found[0].readable()
            assert found[0].field("status") == "failed"
            with pytest.raises(CorruptRecordError, match="runs/1"):
                _ = found[0].value
            (result,) = await durable.write([Patch("runs", "1", set={"status": "done"})])
            assert result.applied
            (result,) = await durable.write([Put("runs", "1", value)])
            assert result.applied
            assert (await durable.get("runs", ["1"]))[0].value == value
            assert all(await durable.write([Delete("runs", "1"), Delete("runs", "2")]))

    asyncio.run(scenario())


# --- columns say the same as rows ----------------------------------------------------


ENCODER_KEYS = Keys("t", Scope("p", "e"))
NOTHING = b"nothing"

# Those of a readable length: an example is shown whole.
_odd = st.sampled_from([value for value in VALUES if value is not None and len(repr(value)) < 500])
_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=50),
    _odd,
    st.just(Json(b"[1]")),
    st.just(Json(b'"\\u0041"')),
)


@st.composite
def _batches(draw: st.DrawFn) -> list[Write]:
    names = draw(st.lists(st.sampled_from(["status", "startedAt", "data", "x", ""]), unique=True))
    namespace = draw(st.sampled_from(["n", "runs", "queue_job:q"]))
    kind = draw(st.sampled_from([Insert, Put, Patch]))
    pool = draw(st.lists(_values, min_size=1, max_size=3))
    count = draw(st.integers(8, 12))

    def fields() -> dict[str, Any]:
        return {name: draw(st.sampled_from(pool)) for name in names}

    expires = st.sampled_from([None, 2**42])
    if kind is not Patch:
        return [kind(namespace, str(n), fields(), draw(expires)) for n in range(count)]
    guard = draw(st.sampled_from([{}, {"g": 1}, {"g": MISSING, "h": "x"}]))
    raised = draw(st.sampled_from([{}, {"k": 1}, {"k": -(2**63)}]))
    return [
        Patch(namespace, str(n), set=fields(), expect=guard, increment=raised, unset=("u",))
        for n in range(count)
    ]


@given(_batches(), st.sampled_from([None, (), ("status", "x")]))
def test_columns_make_the_same_call_as_rows(writes: list[Write], wanted: Any) -> None:
    """Word for word, so that whatever holds for single writes holds for batches."""
    encoder = Encoder(ENCODER_KEYS, 1000)
    groups = encoder.groups(writes)
    assert groups is not None
    rows = grouped([encoder.encode(write) for write in writes])
    by_columns = Batch(encoder, groups, wanted).call(NOTHING, atomic=False)
    by_rows = Batch(encoder, rows, wanted).call(NOTHING, atomic=False)
    assert by_columns == by_rows
    replies = [b"1", *[1] * len(writes)]
    told = [
        [result.value for result in Batch(encoder, made, wanted).results(replies)]
        for made in (groups, rows)
    ]
    if not isinstance(writes[0], Patch):
        assert told[0] == told[1]
    for group in groups:
        halves = [group.part(0, 3), group.part(3, len(group.writes))]
        assert [*halves[0].sizes(), *halves[1].sizes()] == group.sizes()
        assert [*halves[0].keys, *halves[1].keys] == [*group.keys]
        if group.sent is not None and halves[1].sent is not None:
            assert halves[1].sent(0) == group.sent(3)


@pytest.mark.parametrize("bad", [*BAD_VALUES, "x" * 2000, Json(b"[" + b"1," * 600 + b"1]")])
def test_columns_refuse_what_rows_refuse(bad: Any) -> None:
    """The error is the same, and names the same field."""
    encoder = Encoder(ENCODER_KEYS, 1000)
    for place in (0, 5):
        writes: list[Write] = [
            Insert("n", str(n), {"a": 1, "v": bad if n == place else "fine"}) for n in range(9)
        ]
        with pytest.raises(InvalidValueError) as by_columns:
            encoder.groups(writes)
        with pytest.raises(InvalidValueError) as by_rows:
            [encoder.encode(write) for write in writes]
        assert str(by_columns.value) == str(by_rows.value)
