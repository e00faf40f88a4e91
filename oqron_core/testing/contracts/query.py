"""The contract of `DurablePlane.query`, `count` and `prune`."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import pytest

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import (
    LAST,
    MISSING,
    Delete,
    DurablePlane,
    Insert,
    Patch,
    Put,
    Query,
    Record,
    canonical,
    rank,
)
from oqron_core.taxonomy import RecordKind
from oqron_core.testing.contracts.base import Contract
from oqron_core.testing.hostile import NAMES


__all__ = ["ODD", "QueryContract", "holds", "in_order"]

ODD: Final[tuple[Any, ...]] = (
    MISSING,
    None,
    True,
    False,
    0,
    1,
    -1.5,
    1e300,
    -(2**63),
    2**53,
    2**53 + 1,
    1751587201000,
    "",
    "0",
    "1",
    "10",
    "9",
    "soon",
    "Soon",
    "null",
    "a%",
    "a_",
    "a\\",
    "a'b",
    "\u00e9",
    "\uffff",
    "\U0001f4a5",
    [],
    [1],
    {},
    {"a": 1},
)
"""One field's values, as careless writers leave them."""

_OPERATORS: Final = {
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}


def holds(value: Any, operator: str, operand: Any) -> bool:
    """Say whether a condition holds, as `Query` describes it."""
    if value is MISSING:
        return False
    if operator == "=":
        return canonical(value) == canonical(operand)
    if operator == "!=":
        return canonical(value) != canonical(operand)
    if operator == "in":
        return any(canonical(value) == canonical(item) for item in operand)
    left, right = rank(value), rank(operand)
    comparable = left[0] == right[0] and left[0] in {2, 3}
    return comparable and bool(_OPERATORS[operator](left[1], right[1]))


def in_order(records: list[Record], *order_by: tuple[str, str]) -> list[Record]:
    """Sort records as `Query` describes it."""
    result = sorted(records, key=lambda record: (record.namespace, record.id))
    for field, direction in reversed(order_by):
        placed = [(rank(record.value.get(field)), record) for record in result]
        known = [pair for pair in placed if pair[0][0] != LAST]
        rest = [record for place, record in placed if place[0] == LAST]
        # Sorting is stable in both directions, so ties keep the order below.
        known.sort(key=lambda pair: pair[0], reverse=direction == "desc")
        result = [record for _, record in known] + rest
    return result


class QueryContract(Contract):
    """What every durable plane must do with many records."""

    _wants_durable: ClassVar[bool] = True

    async def fill(self, *values: dict[str, Any], namespace: str = "n") -> None:
        """Put values under the ids 00, 01, …"""
        await self.durable.write(
            [Put(namespace, f"{number:02}", value) for number, value in enumerate(values)]
        )

    async def fill_odd(self) -> None:
        """Put one record for every odd value of the field `v`."""
        await self.fill(*({} if value is MISSING else {"v": value} for value in ODD))

    async def found(self, **query: Any) -> list[str]:
        """Query one page, and give the ids."""
        query.setdefault("namespace", "n")
        query.setdefault("limit", 1000)
        return [record.id for record in await self.durable.query(Query(**query))]

    async def walk(self, limit: int, **query: Any) -> list[Record]:
        """Query page after page."""
        query.setdefault("namespace", "n")
        records: list[Record] = []
        after = None
        while True:
            page = await self.durable.query(Query(limit=limit, after=after, **query))
            assert len(page) <= limit
            records.extend(page)
            if page.next is None:
                return records
            assert page.items, "a cursor after an empty page leads nowhere"
            after = page.next

    # --- which -------------------------------------------------------------------------

    async def test_what_never_expires_can_be_asked_for(self) -> None:
        """`expires_at` equal to None is a condition of its own; records ignore it."""
        later = await self.durable.now() + 3_600_000
        await self.durable.write(
            [Put("n", "a", {"s": 1}), Put("n", "b", {"s": 1}, later), Put("n", "c", {"s": 2})]
        )
        query = Query(namespace="n", where=[("s", "=", 1), ("expires_at", "=", None)])
        assert ["a"] == [record.id for record in await self.durable.query(query)]
        assert 1 == await self.durable.count(query)

    async def test_a_query_lists_a_namespace(self) -> None:
        """By id, in the order of code points, and nothing else."""
        ids = ["b", "a", "B", "\u00e9", "Z", "10", "9", "_", "\uffff", "\U0001f4a5", "a b", "a"]
        await self.durable.write([Put("n", id, {}) for id in ids])  # noqa: A001
        await self.durable.write([Put("n2", "other", {}), Put("N", "other", {})])

        assert sorted(set(ids)) == await self.found()

    async def test_a_query_lists_a_kind(self) -> None:
        """Over all its namespaces, ordered by namespace and id."""
        for namespace in ("queue_job:b", "queue_job:a", "queue_dlq:a", "queue_job", "runs"):
            await self.fill({}, {}, namespace=namespace)
        page = await self.durable.query(Query(kind=RecordKind.JOB))

        expected = [(f"queue_job:{queue}", f"0{number}") for queue in "ab" for number in (0, 1)]
        assert expected == [(record.namespace, record.id) for record in page]
        assert {RecordKind.JOB} == {record.kind for record in page}

    async def test_kind_and_namespace_must_both_hold(self) -> None:
        """A namespace of another kind matches nothing."""
        await self.fill({}, namespace="runs")

        assert ["00"] == await self.found(kind="run", namespace="runs")
        assert [] == await self.found(kind="job", namespace="runs")

    @pytest.mark.parametrize("operator", ["=", "!=", "<", "<=", ">", ">="])
    async def test_conditions_hold_as_described(self, operator: str) -> None:
        """Every operator with every operand, over a field full of odd values."""
        await self.fill_odd()
        for operand in (*ODD, 1.0, "s", "zzz", 0.5, 2**63 - 1):
            ordered = operator not in {"=", "!="}
            if operand is MISSING or (ordered and type(operand) not in {int, float, str}):
                continue
            expected = [
                f"{number:02}"
                for number, value in enumerate(ODD)
                if holds(value, operator, operand)
            ]
            assert expected == await self.found(where=[("v", operator, operand)]), operand

    async def test_in_holds_for_each_of_its_values(self) -> None:
        """Of any types; an empty list matches nothing."""
        await self.fill_odd()
        operand = [1, "10", None, [], {"a": 1.0}, "nowhere", False]
        expected = [f"{n:02}" for n, value in enumerate(ODD) if holds(value, "in", operand)]

        assert expected == await self.found(where=[("v", "in", operand)])
        assert [] == await self.found(where=[("v", "in", [])])
        many = [f"x{number}" for number in range(1000)]
        assert ["17"] == await self.found(where=[("v", "in", (*many, "soon"))])

    async def test_all_conditions_must_hold(self) -> None:
        """On one field and on several."""
        await self.fill(*({"a": n, "b": n % 3, "c": "x"} for n in range(12)))

        where = [("a", ">", 2), ("a", "<=", 9), ("b", "in", [0, 1]), ("c", "=", "x")]
        assert ["03", "04", "06", "07", "09"] == await self.found(where=where)
        assert [] == await self.found(where=[*where, ("absent", "!=", 1)])

    async def test_columns_can_be_asked_for(self) -> None:
        """They are the record's own, whatever fields the value has."""
        now = await self.durable.now()
        await self.durable.write(
            [
                Put("n", "a", {"id": "b", "expires_at": 1, "inserted_at": 1}, now + 60_000),
                Put("n", "b", {"id": "a"}, now + 90_000),
                Put("n", "c", {"id": "a"}),
            ]
        )

        assert ["a"] == await self.found(where=[("id", "=", "a")])
        assert ["b", "c"] == await self.found(where=[("id", ">", "a")])
        assert ["a", "c"] == await self.found(where=[("id", "in", ["c", "a", "x"])])
        assert ["a"] == await self.found(where=[("expires_at", "<", now + 90_000)])
        assert ["b"] == await self.found(where=[("expires_at", "=", now + 90_000)])
        assert ["a", "b", "c"] == await self.found(where=[("inserted_at", ">=", now - 5)])
        assert [] == await self.found(where=[("inserted_at", "<", now - 60_000)])

    @pytest.mark.parametrize("text", ["'", "a'b", '"', "\\", "%", "_", "a_b", "$1", ":x", "--"])
    async def test_operands_are_data(self, text: str) -> None:
        """No text is a wildcard, a placeholder or code."""
        await self.fill({"v": text}, {"v": text + "x"}, {"v": "x" * len(text)})

        assert ["00"] == await self.found(where=[("v", "=", text)])
        assert ["00"] == await self.found(where=[("v", "in", [text])])

    async def test_hostile_ids_can_be_asked_for(self) -> None:
        """Each finds only itself."""
        await self.durable.write([Put("n", name, {}) for name in NAMES])

        assert sorted(NAMES) == await self.found()
        for name in NAMES:
            assert [name] == await self.found(where=[("id", "=", name)])

    # --- in which order ---------------------------------------------------------------

    @pytest.mark.parametrize("direction", ["asc", "desc"])
    async def test_odd_values_have_a_place(self, direction: str) -> None:
        """One order over all types; what has no value comes last both ways."""
        await self.fill_odd()
        everything = list(await self.durable.query(Query(namespace="n", limit=1000)))
        expected = [record.id for record in in_order(everything, ("v", direction))]

        assert expected == await self.found(order_by=[("v", direction)])

    async def test_ties_are_in_the_order_of_ids(self) -> None:
        """Ascending, also where the order is descending."""
        await self.fill(*({"v": n % 2} for n in range(6)))

        assert ["00", "02", "04", "01", "03", "05"] == await self.found(order_by=[("v", "asc")])
        assert ["01", "03", "05", "00", "02", "04"] == await self.found(order_by=[("v", "desc")])

    async def test_several_fields_order_in_turn(self) -> None:
        """Up to four, in their own directions, columns among them."""
        values = [{"a": n % 2, "b": n % 3, "c": None if n % 5 else n} for n in range(20)]
        await self.fill(*values)
        everything = list(await self.durable.query(Query(namespace="n")))
        order = [("a", "desc"), ("c", "asc"), ("b", "desc")]
        expected = [record.id for record in in_order(everything, *order)]

        assert expected == await self.found(order_by=order)
        reverse = [f"{number:02}" for number in reversed(range(20))]
        assert reverse == await self.found(order_by=[("id", "desc")])
        last = [f"{number:02}" for number in range(1, 20, 2)]
        assert last == (await self.found(order_by=[("a", "desc"), ("id", "asc")]))[:10]

    async def test_order_by_time_of_insertion_is_exact(self) -> None:
        """Newest first, and updates do not move a record."""
        for id in ("b", "c", "a"):  # noqa: A001
            await self.durable.write([Put("n", id, {})])
            await self.elapse(0.01)
        await self.durable.write([Patch("n", "b", set={"x": 1})])

        assert ["a", "c", "b"] == await self.found(order_by=[("inserted_at", "desc")])

    # --- pages -----------------------------------------------------------------------

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 30, 31, 1000])
    @pytest.mark.parametrize("direction", ["asc", "desc", None])
    async def test_pages_add_up_to_the_whole(self, limit: int, direction: str | None) -> None:
        """Under ties and odd values, nothing is skipped or repeated."""
        await self.fill_odd()
        await self.durable.write([Put("n", f"tie{number}", {"v": 1}) for number in range(9)])
        order = [] if direction is None else [("v", direction)]
        whole = await self.found(order_by=order)
        walked = [record.id for record in await self.walk(limit, order_by=order)]

        assert len(ODD) + 9 == len(whole)
        assert whole == walked

    async def test_the_last_page_has_no_cursor(self) -> None:
        """Also where it is exactly full, and where nothing matches."""
        await self.fill({}, {}, {}, {})

        assert (await self.durable.query(Query(namespace="n", limit=3))).next is not None
        assert (await self.durable.query(Query(namespace="n", limit=4))).next is None
        assert (await self.durable.query(Query(namespace="n", limit=5))).next is None
        assert (await self.durable.query(Query(namespace="empty"))).next is None

    async def test_pages_of_a_kind_cross_namespaces(self) -> None:
        """The namespace is part of the place."""
        for namespace in ("queue_job:a", "queue_job:b", "queue_job:c"):
            await self.fill({"v": 1}, {"v": 1}, {"v": 0}, namespace=namespace)
        walked = await self.walk(2, kind="job", namespace=None, order_by=[("v", "desc")])
        places = [(-r.value["v"], r.namespace, r.id) for r in walked]

        assert 9 == len(places)
        assert sorted(places) == places

    async def test_pages_hold_under_writes(self) -> None:
        """What keeps its place is seen once, whatever comes and goes meanwhile."""
        await self.fill(*({"v": n // 3} for n in range(30)))
        seen: list[str] = []
        after = None
        for step in range(100):
            page = await self.durable.query(
                Query(namespace="n", order_by=[("v", "asc")], limit=4, after=after)
            )
            seen.extend(record.id for record in page)
            if page.next is None:
                break
            after = page.next
            await self.durable.write(
                [
                    Delete("n", seen[-1]),
                    Put("n", f"behind{step}", {"v": -1}),
                    Put("n", f"tie{step}", {"v": 0}),
                    Insert("n", f"zz-ahead{step}", {"v": 100}),
                ]
            )
        olds = [id for id in seen if id.isdigit()]  # noqa: A001

        assert [f"{number:02}" for number in range(30)] == olds
        assert len(seen) == len(set(seen))
        assert not any(id.startswith("behind") for id in seen)  # noqa: A001

    async def test_a_cursor_is_of_its_query(self) -> None:
        """Another order, or no cursor at all, is refused."""
        await self.fill({"v": 1}, {"v": 2}, {"v": 3})
        page = await self.durable.query(Query(namespace="n", order_by=[("v", "asc")], limit=1))
        assert page.next is not None
        for order, after in (
            ([("v", "desc")], page.next),
            ([], page.next),
            ([("v", "asc"), ("id", "asc")], page.next),
            ([("v", "asc")], "nonsense"),
            ([("v", "asc")], ""),
            ([("v", "asc")], "é'; --"),
            ([("v", "asc")], page.next[:-3]),
        ):
            with pytest.raises(InvalidValueError):
                await self.durable.query(Query(namespace="n", order_by=order, after=after))

    async def test_a_page_is_limited(self) -> None:
        """Fifty unless told otherwise."""
        await self.fill(*({} for _ in range(60)))

        assert 50 == len(await self.durable.query(Query(namespace="n")))
        assert 60 == len(await self.durable.query(Query(namespace="n", limit=10_000)))

    # --- fields ----------------------------------------------------------------------

    async def test_only_the_fields_that_are_asked_for_are_read(self) -> None:
        """Absent ones stay absent; the order may be by another field."""
        await self.fill({"a": 1, "b": [1], "v": 2}, {"a": None, "v": 1}, {"v": 0})
        page = await self.durable.query(
            Query(namespace="n", fields=["a", "b"], order_by=[("v", "asc")])
        )

        assert [{}, {"a": None}, {"a": 1, "b": [1]}] == [record.value for record in page]
        page = await self.durable.query(Query(namespace="n", fields=[]))
        assert [{}, {}, {}] == [record.value for record in page]

    async def test_a_query_shows_whole_records(self) -> None:
        """The same as reading them by id."""
        await self.fill({"v": [1, {"x": None}]}, {"v": 2.5})

        assert list(await self.durable.get("n", ["00", "01"])) == list(
            await self.durable.query(Query(namespace="n"))
        )

    @pytest.mark.parametrize("name", ["a b", "a'b", 'a"b', "a.b", "", "1a", "é", "x;--", None, 1])
    async def test_a_malformed_field_name_is_refused(self, name: Any) -> None:
        """Everywhere that a field can be named."""
        plane: DurablePlane = self.durable
        queries: tuple[dict[str, Any], ...] = (
            {"where": [(name, "=", 1)]},
            {"order_by": [(name, "asc")]},
            {"fields": [name]},
        )
        for query in queries:
            with pytest.raises(InvalidValueError):
                await plane.query(Query(namespace="n", **query))
        if name is not None:
            with pytest.raises(InvalidValueError):
                await plane.count(Query(namespace="n"), by=name)

    # --- count -----------------------------------------------------------------------

    async def test_a_count_is_the_size_of_the_query(self) -> None:
        """Limit, order and cursor are left aside."""
        await self.fill(*({"v": n} for n in range(12)))
        page = await self.durable.query(Query(namespace="n", limit=2))
        query = Query(namespace="n", where=[("v", ">=", 5)], limit=2, order_by=[("v", "asc")])

        assert 7 == await self.durable.count(query)
        assert 12 == await self.durable.count(Query(namespace="n", limit=1, after=page.next))
        assert 0 == await self.durable.count(Query(namespace="empty"))

    async def test_a_count_by_namespace_names_each(self) -> None:
        """Those that hold something."""
        await self.fill({"s": "a"}, {"s": "b"}, namespace="queue_dlq:x")
        await self.fill({"s": "a"}, namespace="queue_dlq:y")
        await self.fill({"s": "a"}, namespace="queue_job:x")

        assert {"queue_dlq:x": 2, "queue_dlq:y": 1} == await self.durable.count(
            Query(kind="dlq"), by="namespace"
        )
        assert {"queue_dlq:x": 1} == await self.durable.count(
            Query(kind="dlq", where=[("s", "=", "b")]), by="namespace"
        )
        assert {} == await self.durable.count(Query(kind="log"), by="namespace")

    async def test_a_count_by_field_tells_strings_apart(self) -> None:
        """What has no string there is counted under the empty one."""
        values = ("a", "b", "a", "A", "", None, 1, ["a"], {"a": 1}, True, MISSING, "\u00e9")
        await self.fill(*({} if v is MISSING else {"s": v} for v in values))

        assert {"a": 2, "b": 1, "A": 1, "": 7, "\u00e9": 1} == await self.durable.count(
            Query(namespace="n"), by="s"
        )

    # --- prune -----------------------------------------------------------------------

    async def test_prune_deletes_what_matches(self) -> None:
        """In this namespace only, and says how many."""
        await self.fill(*({"v": n} for n in range(10)))
        await self.fill(*({"v": n} for n in range(10)), namespace="n2")

        assert 6 == await self.durable.prune(Query(namespace="n", where=[("v", "<", 6)]))
        assert ["06", "07", "08", "09"] == await self.found()
        assert 10 == await self.durable.count(Query(namespace="n2"))
        assert 0 == await self.durable.prune(Query(namespace="n", where=[("v", "<", 6)]))

    async def test_prune_is_bounded(self) -> None:
        """The query's own limit, order and cursor are left aside."""
        await self.fill(*({"v": n} for n in range(10)))
        query = Query(namespace="n", limit=1, order_by=[("v", "desc")])
        steps = [await self.durable.prune(query, limit=4) for _ in range(3)]

        assert [4, 4, 2] == steps
        assert [] == await self.found()

    async def test_prune_reaches_what_has_expired(self) -> None:
        """Only what matches, and what lives stays; a store may have been quicker."""
        now = await self.durable.now()
        await self.durable.write(
            [
                Put("n", "old", {"v": 1}, now - 60_000),
                Put("n", "older", {"v": 1}, now - 90_000),
                Put("n", "later", {"v": 1}, now + 60_000),
                Put("n", "never", {"v": 1}),
                Put("n2", "old", {"v": 1}, now - 60_000),
            ]
        )
        expired = Query(namespace="n", where=[("expires_at", "<=", now)])

        assert await self.durable.prune(expired) in {0, 2}
        assert 0 == await self.durable.prune(expired)
        assert ["later", "never"] == await self.found()
        assert await self.durable.prune(Query(namespace="n2")) in {0, 1}
        assert 0 == await self.durable.prune(Query(namespace="n2"))

    async def test_prune_of_a_kind_spares_the_others(self) -> None:
        """Also where they share a table."""
        for namespace in ("queue_job:q", "queue_dlq:q", "runs", "topic_msg:t", "cron"):
            await self.fill({}, {}, namespace=namespace)

        assert 2 == await self.durable.prune(Query(kind="dlq"))
        assert 2 == await self.durable.prune(Query(kind="run"))
        for namespace, left in (("queue_job:q", 2), ("queue_dlq:q", 0), ("topic_msg:t", 2)):
            assert left == await self.durable.count(Query(namespace=namespace))

    async def test_a_pruned_id_is_free_again(self) -> None:
        """And a late patch does not bring it back."""
        await self.fill({"v": 1})
        await self.durable.prune(Query(namespace="n"))
        results = await self.durable.write(
            [Patch("n", "00", set={"v": 2}), Insert("n", "00", {"v": 3})]
        )

        assert [False, True] == [result.applied for result in results]

    @pytest.mark.parametrize("bad", [0, -1, 1.5, True, "1", None], ids=repr)
    async def test_a_prune_without_a_bound_is_refused(self, bad: Any) -> None:
        """Nothing is deleted."""
        await self.fill({})
        with pytest.raises(InvalidValueError):
            await self.durable.prune(Query(namespace="n"), limit=bad)

        assert ["00"] == await self.found()

    # --- prunable --------------------------------------------------------------------

    async def test_a_preview_says_what_a_prune_deletes(self) -> None:
        """And deletes nothing; the query's limit, order and cursor are left aside."""
        await self.fill(*({"v": n, "text": "x" * 100} for n in range(10)))
        await self.fill({"v": 1}, namespace="n2")
        query = Query(namespace="n", where=[("v", "<", 6)], limit=1, order_by=[("v", "desc")])
        count, size = await self.durable.prunable(query)
        whole, most = await self.durable.prunable(Query(namespace="n"))

        assert (6, 10) == (count, whole)
        assert 600 <= size < most
        assert 10 == await self.durable.count(Query(namespace="n"))
        assert 6 == await self.durable.prune(query)
        assert (0, 0) == await self.durable.prunable(query)

    async def test_a_preview_counts_what_has_expired(self) -> None:
        """As many as a prune deletes, and none that lives."""
        now = await self.durable.now()
        await self.durable.write(
            [
                Put("n", "soon", {"v": 1}, now + 100),
                Put("n", "sooner", {"v": 1}, now + 90),
                Put("n", "later", {"v": 1}, now + 60_000),
                Put("n", "never", {"v": 1}),
            ]
        )
        await self.elapse(0.3)
        expired = Query(namespace="n", where=[("expires_at", "<=", await self.durable.now())])
        count, size = await self.durable.prunable(expired)

        assert (count > 0) is (size > 0)
        assert count == await self.durable.prune(expired)
        assert ["later", "never"] == await self.found()

    async def test_a_preview_is_of_a_kind(self) -> None:
        """Over its namespaces, and of no other that shares the table."""
        for namespace in ("queue_dlq:a", "queue_dlq:b", "queue_job:a"):
            await self.fill({}, {}, namespace=namespace)

        assert 4 == (await self.durable.prunable(Query(kind="dlq")))[0]
        assert (0, 0) == await self.durable.prunable(Query(kind="log"))
