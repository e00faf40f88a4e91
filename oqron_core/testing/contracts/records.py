"""The contract of `DurablePlane.get` and `DurablePlane.write`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import pytest

from oqron_core.exceptions import CapabilityError, ConflictError, InvalidValueError
from oqron_core.planes import (
    DEFAULT_MAX_VALUE_BYTES,
    MISSING,
    Delete,
    Form,
    Insert,
    Patch,
    Put,
    Query,
    Record,
    Write,
    WriteResult,
    encode,
)
from oqron_core.taxonomy import classify_namespace
from oqron_core.testing.contracts.base import Contract, gather, requires
from oqron_core.testing.hostile import BAD_NAMES, BAD_VALUES, NAMES, VALUES, nested, same


__all__ = ["GUARDS", "RecordsContract"]

NAMESPACES: Final = (
    "custom",
    "cron",
    "queue",
    "webhook_cb",
    "runs",
    "queue_job:emails",
    "queue_dlq:emails",
    "topic_msg:orders",
    "topic_groups:orders",
    "webhook_endpoints:x",
    "module_logs:x",
    "queue_job:",
    "queue_jobs",
    "Runs",
)

GUARDS: Final[tuple[tuple[Any, Any, bool], ...]] = (
    (1, 1, True),
    (1, 1.0, True),
    (1.0, 1, True),
    (1, 2, False),
    (1, True, False),
    (True, 1, False),
    (0, False, False),
    (0, None, False),
    (0, "", False),
    (0, -0.0, True),
    ("1", 1, False),
    (1, "1", False),
    ("a", "a", True),
    ("a", "A", False),
    ("a", "a ", False),
    ("", None, False),
    ("", MISSING, False),
    ("\u00e9", "e\u0301", False),
    ("a'b\"c\\", "a'b\"c\\", True),
    (None, None, True),
    (None, MISSING, False),
    (None, False, False),
    (MISSING, MISSING, True),
    (MISSING, None, False),
    (MISSING, "", False),
    (MISSING, [], False),
    ([], [], True),
    ([], {}, False),
    ([], MISSING, False),
    ([1], [], False),
    ([], [1], False),
    ([1, 2], [1], False),
    ([1, 2], [2, 1], False),
    ([1, [2.0]], [1.0, [2]], True),
    ([None], [], False),
    ({}, {}, True),
    ({"a": 1}, {}, False),
    ({}, {"a": 1}, False),
    ({"a": 1, "b": 2}, {"a": 1}, False),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
    ({"a": {"c": [1.0], "b": None}}, {"a": {"b": None, "c": [1]}}, True),
    ({"a": None}, {}, False),
    (2**53 + 1, 2**53 + 1, True),
    (2**53 + 1, 2**53, False),
    (2**63 - 1, 2**63 - 2, False),
    (2**53, 9007199254740992.0, True),
    (0.1 + 0.2, 0.1 + 0.2, True),
    (0.1 + 0.2, 0.3, False),
    (1e22, 1e22, True),
    (5e-324, 5e-324, True),
    (1751587201000123, 1751587201000124, False),
)
"""What is stored, what is expected, and whether the guard holds."""


class RecordsContract(Contract):
    """What every durable plane must do with records by id."""

    _wants_durable: ClassVar[bool] = True

    async def write(self, *writes: Write, atomic: bool = False) -> list[WriteResult]:
        """Write a batch."""
        return list(await self.durable.write(writes, atomic=atomic))

    async def applied(self, *writes: Write, atomic: bool = False) -> list[bool]:
        """Write a batch, and say what was applied."""
        return [result.applied for result in await self.write(*writes, atomic=atomic)]

    async def read(self, id: str = "a", namespace: str = "n") -> Record | None:  # noqa: A002
        """Read one record."""
        [record] = await self.durable.get(namespace, [id])
        return record

    async def value(self, id: str = "a", namespace: str = "n") -> dict[str, Any] | None:  # noqa: A002
        """Read one record's value."""
        record = await self.read(id, namespace)
        return None if record is None else record.value

    async def ids(self, namespace: str = "n") -> list[str]:
        """List a namespace."""
        page = await self.durable.query(Query(namespace=namespace, limit=10_000))
        return [record.id for record in page]

    # --- get, put, insert, delete ----------------------------------------------------

    async def test_records_are_read_in_order(self) -> None:
        """Absent ones are None, repetitions are repeated."""
        await self.write(Put("n", "a", {"x": 1}), Put("n", "b", {"x": 2}))
        found = await self.durable.get("n", ["b", "x", "a", "b"])

        assert [2, None, 1, 2] == [None if r is None else r.value["x"] for r in found]

    async def test_a_record_says_what_it_is(self) -> None:
        """Every attribute is right."""
        before = await self.durable.now()
        await self.write(Put("queue_job:q", "a", {"x": 1}, before + 60_000))
        record = await self.read("a", "queue_job:q")
        after = await self.durable.now()

        assert record is not None
        assert ("queue_job:q", "a", "job") == (record.namespace, record.id, record.kind)
        assert {"x": 1} == record.value
        assert before - 5 <= record.inserted_at <= after + 5
        assert before + 60_000 == record.expires_at

    @pytest.mark.parametrize("namespace", NAMESPACES)
    async def test_the_kind_is_stamped_from_the_namespace(self, namespace: str) -> None:
        """Whatever the value says of itself."""
        [result] = await self.write(Put(namespace, "a", {"kind": "run", "record_kind": "log"}))
        found = await self.read("a", namespace)
        page = await self.durable.query(Query(kind=classify_namespace(namespace)))

        assert found is not None
        assert result.record is not None
        assert classify_namespace(namespace) is found.kind is result.record.kind
        assert [found] == list(page)

    async def test_put_replaces_a_whole_value(self) -> None:
        """Nothing of the old value is left, and put is always applied."""
        assert [True] == await self.applied(Put("n", "a", {"x": 1, "y": 2}))
        assert [True] == await self.applied(Put("n", "a", {"z": 3}))

        assert {"z": 3} == await self.value()

    async def test_updates_keep_the_time_of_insertion(self) -> None:
        """Put and patch change what is there; they insert nothing."""
        await self.write(Put("n", "a", {"x": 1}))
        first = await self.read()
        await self.elapse(0.05)
        await self.write(Put("n", "a", {"x": 2}))
        await self.write(Patch("n", "a", set={"x": 3}))
        last = await self.read()

        assert first is not None
        assert last is not None
        assert first.inserted_at == last.inserted_at

    async def test_insert_writes_only_where_nothing_is(self) -> None:
        """The record that stands in the way is shown and stays."""
        assert [True] == await self.applied(Insert("n", "a", {"x": 1}))
        [result] = await self.write(Insert("n", "a", {"x": 2}))

        assert (False, {"x": 1}) == (result.applied, result.value)
        assert {"x": 1} == await self.value()

    async def test_delete_removes(self) -> None:
        """It says whether something was there; the id is free again."""
        await self.write(Put("n", "a", {"x": 1}))
        results = await self.write(Delete("n", "a"), Delete("n", "b"))

        assert [(True, None), (False, None)] == [(r.applied, r.value) for r in results]
        assert await self.value() is None
        assert [True] == await self.applied(Insert("n", "a", {"x": 2}))

    async def test_an_empty_object_is_a_value(self) -> None:
        """It is not absence."""
        await self.write(Put("n", "a", {}))

        assert {} == await self.value()
        assert [False] == await self.applied(Insert("n", "a", {"x": 1}))

    async def test_a_result_is_true_if_it_was_applied(self) -> None:
        """And shows the record after the write."""
        results = await self.write(
            Put("n", "a", {"x": 1}), Insert("n", "a", {}), Patch("n", "a", increment={"x": 2})
        )

        assert [True, False, True] == [bool(result) for result in results]
        assert {"x": 3} == results[2].value

    # --- patch ------------------------------------------------------------------------

    async def test_patch_changes_what_it_names(self) -> None:
        """Set, unset, increment and append, in one step."""
        await self.write(Put("n", "a", {"s": 1, "u": 2, "i": 3, "l": [4], "kept": {"x": []}}))
        patch = Patch(
            "n", "a", set={"s": "new"}, unset=["u"], increment={"i": -10}, append={"l": [5, [6]]}
        )
        [result] = await self.write(patch)

        expected = {"s": "new", "i": -7, "l": [4, 5, [6]], "kept": {"x": []}}
        assert expected == result.value == await self.value()

    async def test_patch_never_creates(self) -> None:
        """A late write to a deleted record leaves no ghost."""
        await self.write(Put("n", "a", {"x": 1}))
        await self.write(Delete("n", "a"))
        results = await self.write(
            Patch("n", "a", set={"x": 2}),
            Patch("n", "a", increment={"x": 1}),
            Patch("n", "a", append={"x": [1]}),
            Patch("n", "a"),
        )

        assert [(False, None)] * 4 == [(r.applied, r.value) for r in results]
        assert [] == await self.ids()
        assert [True] == await self.applied(Insert("n", "a", {}))

    async def test_patch_leaves_every_other_field_as_it_is(self) -> None:
        """Digits, empty lists and empty objects survive a write beside them."""
        value = {f"f{number}": value for number, value in enumerate(VALUES)}
        await self.write(Put("n", "a", {**value, "n": 0}))
        for _ in range(3):
            await self.write(
                Patch("n", "a", increment={"n": 1}, set={"s": [1]}, append={"l": [{}]})
            )

        assert same({**value, "n": 3, "s": [1], "l": [{}, {}, {}]}, await self.value())

    async def test_increment_counts_absence_as_zero(self) -> None:
        """And is exact to 64 bits."""
        await self.write(Put("n", "a", {"big": 2**53}))
        [result] = await self.write(Patch("n", "a", increment={"new": 5, "big": 1}))
        assert {"big": 2**53 + 1, "new": 5} == result.value
        await self.write(Patch("n", "a", increment={"big": 2**63 - 1 - 2**53 - 1}))

        assert {"big": 2**63 - 1, "new": 5} == await self.value()

    @pytest.mark.parametrize("field", ["1", "", None, True, 1.5, [], [1], {}], ids=repr)
    async def test_increment_of_what_is_no_integer_is_not_applied(self, field: Any) -> None:
        """Nothing of the patch is done."""
        await self.write(Put("n", "a", {"x": field}))
        [result] = await self.write(Patch("n", "a", increment={"x": 1}, set={"y": 1}))

        assert not result
        assert same({"x": field}, result.value)
        assert same({"x": field}, await self.value())

    async def test_a_whole_float_is_an_integer_to_increment(self) -> None:
        """JSON has one kind of number."""
        await self.write(Put("n", "a", {"x": 1.0}))

        assert [True] == await self.applied(Patch("n", "a", increment={"x": 2}))
        assert {"x": 3} == await self.value()

    async def test_an_increment_beyond_64_bits_is_not_applied(self) -> None:
        """In both directions; the record stays as it was."""
        await self.write(Put("n", "a", {"x": 2**63 - 1, "y": -(2**63)}))

        assert [False, False] == await self.applied(
            Patch("n", "a", increment={"x": 1}), Patch("n", "a", increment={"y": -1})
        )
        assert {"x": 2**63 - 1, "y": -(2**63)} == await self.value()

    async def test_append_counts_absence_as_empty(self) -> None:
        """Items stand in their order; nothing appended makes an empty list."""
        await self.write(Put("n", "a", {}))
        await self.write(Patch("n", "a", append={"l": [1], "none": []}))
        await self.write(Patch("n", "a", append={"l": [None, [2], {"x": 3}]}))

        assert {"l": [1, None, [2], {"x": 3}], "none": []} == await self.value()

    @pytest.mark.parametrize("field", ["a", 1, None, True, {}, {"0": 1}], ids=repr)
    async def test_append_to_what_is_no_list_is_not_applied(self, field: Any) -> None:
        """Nothing of the patch is done."""
        await self.write(Put("n", "a", {"x": field}))

        assert [False] == await self.applied(Patch("n", "a", append={"x": [1]}, set={"y": 1}))
        assert same({"x": field}, await self.value())

    async def test_unsetting_makes_a_field_missing(self) -> None:
        """Not null; and an absent one may be unset."""
        await self.write(Put("n", "a", {"x": 1, "y": None}))

        assert [True] == await self.applied(Patch("n", "a", unset=["x", "y", "z"]))
        assert {} == await self.value()

    async def test_an_empty_patch_is_applied_where_its_guards_hold(self) -> None:
        """It is a question."""
        await self.write(Put("n", "a", {"x": 1}))

        assert [True, True, False] == await self.applied(
            Patch("n", "a"), Patch("n", "a", expect={"x": 1}), Patch("n", "a", expect={"x": 2})
        )

    async def test_every_field_name_can_be_patched(self) -> None:
        """Names of fields are data: never a path, never code."""
        names = [*NAMES, "", "a.b.c", "$", "[0]", "-", "__index"]
        await self.write(Put("n", "a", dict.fromkeys(names, 0)))
        await self.write(Patch("n", "a", increment=dict.fromkeys(names, 5)))
        patch = Patch("n", "a", set={n: [n] for n in names}, expect=dict.fromkeys(names, 5))
        assert [True] == await self.applied(patch)
        await self.write(Patch("n", "a", append={name: [1] for name in names}))
        assert {name: [name, 1] for name in names} == await self.value()
        await self.write(Patch("n", "a", unset=names))

        assert {} == await self.value()

    # --- guards --------------------------------------------------------------------------

    async def test_guards_compare_as_json(self) -> None:
        """One table of truth for every backend."""
        await self.write(
            *(
                Put("n", f"{number}", {} if stored is MISSING else {"f": stored})
                for number, (stored, _, _) in enumerate(GUARDS)
            )
        )
        patches = [
            Patch("n", f"{number}", expect={"f": expected}, set={"hit": True})
            for number, (_, expected, _) in enumerate(GUARDS)
        ]
        results = await self.write(*patches)

        for result, (stored, expected, holds) in zip(results, GUARDS, strict=True):
            assert holds is result.applied, f"{stored!r} expected {expected!r}"
            assert result.value is not None
            assert holds is ("hit" in result.value)

    async def test_guards_of_a_delete_compare_as_json(self) -> None:
        """The same table as for a patch."""
        await self.write(
            *(
                Put("n", f"{number}", {} if stored is MISSING else {"f": stored})
                for number, (stored, _, _) in enumerate(GUARDS)
            )
        )
        for number, (stored, expected, holds) in enumerate(GUARDS):
            [result] = await self.write(Delete("n", f"{number}", expect={"f": expected}))
            assert holds is result.applied, f"{stored!r} expected {expected!r}"
            assert holds is (result.value is None)

    async def test_all_guards_must_hold(self) -> None:
        """One that fails refuses the write; the record is shown."""
        await self.write(Put("n", "a", {"x": 1, "y": 2}))
        results = await self.write(
            Patch("n", "a", expect={"x": 1, "y": 3}, set={"z": 1}),
            Delete("n", "a", expect={"x": 1, "y": MISSING}),
            Patch("n", "a", expect={"x": 1, "y": 2, "w": MISSING}, set={"z": 2}),
        )

        assert [False, False, True] == [result.applied for result in results]
        assert {"x": 1, "y": 2} == results[0].value == results[1].value

    async def test_a_guard_sees_earlier_writes_of_its_batch(self) -> None:
        """Writes to one record take place in the order of the batch."""
        results = await self.write(
            Insert("n", "a", {"v": 0}),
            Patch("n", "a", expect={"v": 0}, set={"v": 1}),
            Patch("n", "a", expect={"v": 0}, set={"v": 9}),
            Patch("n", "a", expect={"v": 1}, increment={"v": 1}),
            Insert("n", "a", {"v": 8}),
            Patch("n", "a", increment={"v": 1}),
            Patch("n", "a", append={"l": [1]}),
            Patch("n", "a", append={"l": [2]}),
        )

        applied = [True, True, False, True, False, True, True, True]
        assert applied == [result.applied for result in results]
        assert [0, 1, 1, 2, 2, 3, 3, 3] == [(r.value or {})["v"] for r in results]
        assert {"v": 3, "l": [1, 2]} == await self.value()

    async def test_a_record_may_come_and_go_inside_a_batch(self) -> None:
        """Deleted, inserted anew, deleted: each write meets what is there."""
        applied = await self.applied(
            Put("n", "a", {"v": 1}),
            Delete("n", "a"),
            Delete("n", "a"),
            Patch("n", "a", set={"v": 2}),
            Insert("n", "a", {"v": 3}),
            Put("n", "b", {"v": 4}),
            Delete("n", "b"),
        )

        assert [True, True, False, False, True, True, True] == applied
        assert {"v": 3} == await self.value()
        assert await self.value("b") is None

    async def test_an_id_may_be_twice_in_a_batch(self) -> None:
        """The last put and the first insert count."""
        applied = await self.applied(
            Put("n", "p", {"v": 1}),
            Put("n", "other", {"v": 0}),
            Put("n", "p", {"v": 2}),
            Insert("n", "i", {"v": 1}),
            Insert("n", "i", {"v": 2}),
        )

        assert [True, True, True, True, False] == applied
        assert [{"v": 2}, {"v": 1}] == [await self.value("p"), await self.value("i")]

    # --- expiry ----------------------------------------------------------------------

    async def expired(self) -> None:
        """Leave a record that has just expired."""
        await self.write(Put("n", "a", {"old": 1}, await self.durable.now() + 100))
        await self.elapse(0.3)

    async def test_an_expired_record_is_absent(self) -> None:
        """From every reading and every write at once."""
        await self.expired()
        results = await self.write(Patch("n", "a", set={"x": 1}), Delete("n", "a"))

        assert [(False, None), (False, None)] == [(r.applied, r.value) for r in results]
        assert await self.value() is None
        assert [] == await self.ids()
        assert 0 == await self.durable.count(Query(namespace="n"))
        assert {} == await self.durable.count(Query(namespace="n"), by="namespace")

    @pytest.mark.parametrize("kind", [Insert, Put])
    async def test_an_expired_record_may_be_written_anew(self, kind: type[Insert | Put]) -> None:
        """As a new record: new value, new time of insertion, no old expiry."""
        # Long enough to be read by a real server on a busy machine.
        lasts = 100 if self.manual_clock else 2000
        await self.write(Put("n", "a", {"old": 1}, await self.durable.now() + lasts))
        old = await self.read()
        await self.elapse(lasts / 1000 + 0.2)

        assert [True] == await self.applied(kind("n", "a", {"new": 1}))
        new = await self.read()
        assert old is not None
        assert new is not None
        assert ({"new": 1}, None) == (new.value, new.expires_at)
        assert new.inserted_at > old.inserted_at

    @pytest.mark.parametrize("ago", [0, 1, 60_000])
    async def test_an_expiry_that_has_passed_is_legal(self, ago: int) -> None:
        """The record is absent from the instant it names."""
        now = await self.durable.now()
        assert [True] == await self.applied(Put("n", "a", {"x": 1}, now - ago))

        assert await self.value() is None

    async def test_a_record_is_there_until_it_expires(self) -> None:
        """An expiry in the future hides nothing."""
        await self.write(Put("n", "a", {"x": 1}, await self.durable.now() + 30_000))

        assert {"x": 1} == await self.value()
        assert [False] == await self.applied(Insert("n", "a", {}))
        assert ["a"] == await self.ids()

    async def test_patch_keeps_the_expiry_unless_told(self) -> None:
        """None takes it away, an instant replaces it."""
        now = await self.durable.now()
        await self.write(Put("n", "a", {}, now + 30_000))
        seen = []
        for patch in (
            Patch("n", "a", set={"x": 1}),
            Patch("n", "a", expires_at=now + 60_000),
            Patch("n", "a", expires_at=None),
            Patch("n", "a", set={"x": 2}),
        ):
            [result] = await self.write(patch)
            record = await self.read()
            assert record is not None
            assert result.record is not None
            assert record.expires_at == result.record.expires_at
            seen.append(record.expires_at)

        assert [now + 30_000, now + 60_000, None, None] == seen

    async def test_a_patch_may_end_a_record(self) -> None:
        """With an expiry that has come, it is gone."""
        await self.write(Put("n", "a", {}))
        assert [True] == await self.applied(
            Patch("n", "a", expires_at=await self.durable.now() - 1)
        )

        assert await self.value() is None
        assert [True] == await self.applied(Insert("n", "a", {}))

    async def test_put_without_expiry_takes_it_away(self) -> None:
        """A put is the whole record."""
        await self.write(Put("n", "a", {}, await self.durable.now() + 100))
        await self.write(Put("n", "a", {"x": 1}))
        await self.elapse(0.3)

        assert {"x": 1} == await self.value()

    # --- values -----------------------------------------------------------------------

    async def test_values_come_back_equal(self) -> None:
        """Every portable value, with its types, however it was written."""
        for number, value in enumerate(VALUES):
            results = await self.write(
                Put("n", f"put{number}", {"v": value}),
                Insert("n", f"ins{number}", {"v": value}),
                Put("n", f"pat{number}", {}),
                Patch("n", f"pat{number}", set={"v": value}, append={"l": [value]}),
            )
            for result in results:
                if result.value:
                    assert same(value, result.value["v"]), repr(value)[:80]
        names = [f"{how}{n}" for n in range(len(VALUES)) for how in ("put", "ins", "pat")]
        for index, record in enumerate(await self.durable.get("n", names)):
            assert record is not None
            value = VALUES[index // 3]
            assert same(value, record.value["v"]), repr(value)[:80]
            assert same([value], record.value.get("l", [value])), repr(value)[:80]

    async def test_encoded_fields_are_written_as_they_are(self) -> None:
        """A field may be given as JSON text that is already checked."""
        field = encode({"b": [1, 2.5, "é"], "a": {}})
        await self.write(
            Put("n", "a", {"f": field, "x": 1}),
            Put("n", "b", {}),
            Patch("n", "b", set={"f": field}),
            Insert("n", "c", {"f": field}),
        )

        for name in "abc":
            assert (await self.value(name) or {})["f"] == {"b": [1, 2.5, "é"], "a": {}}
        assert [True] == await self.applied(Patch("n", "a", expect={"f": field}))

    @pytest.mark.parametrize("count", [1, 30])
    @pytest.mark.parametrize("namespace", ["custom", "queue_job:q", "topic_msg:t"])
    async def test_values_of_one_form_are_written_as_others_are(
        self, namespace: str, count: int
    ) -> None:
        """Whatever stands in it, and whether a field of it is open or not."""
        fixed = {f"v{n}": value for n, value in enumerate(VALUES)}
        fields = {
            "id": None,
            **fixed,
            "status": "100 %s %% %b",
            "% %s %(x)s": [],
            "data": None,
            "publishedAt": None,
            "priority": 0,
        }
        form = Form(fields, ("id", "data", "publishedAt"))
        payloads = [VALUES[n % len(VALUES)] for n in range(count)]
        given = [
            {"id": f"{n} %d", "data": payload, "publishedAt": n}
            for n, payload in enumerate(payloads)
        ]
        ids = [f"{n}" for n in range(count)]
        inserts = [
            Insert(namespace, id_, form.fill(more)) for id_, more in zip(ids, given, strict=True)
        ]
        puts = [
            Put(namespace, f"p{id_}", form.fill(more)) for id_, more in zip(ids, given, strict=True)
        ]
        results = await self.durable.write(inserts)

        assert all(results)
        assert all(await self.durable.write(puts))
        assert not any(await self.durable.write(inserts))
        for prefix in ("", "p"):
            found = await self.durable.get(namespace, [prefix + id_ for id_ in ids])
            for record, more in zip(found, given, strict=True):
                assert record is not None
                assert same({**fields, **more}, record.value)
        for result, more in zip(results, given, strict=True):
            assert same({**fields, **more}, result.value)
        with pytest.raises(InvalidValueError, match="data"):
            await self.durable.write(
                [*inserts, Insert(namespace, "x", form.fill({**given[0], "data": {1}}))]
            )
        with pytest.raises(InvalidValueError, match=r"value\.odd"):
            await self.durable.write(
                [Insert(namespace, "x", Form({"odd": {1}, "id": 1}, ["id"]).fill({"id": 2}))]
            )
        assert [None] == [*await self.durable.get(namespace, ["x"])]

    async def test_what_is_written_and_read_is_a_copy(self) -> None:
        """Changing what was put or got changes nothing in the store."""
        value: dict[str, Any] = {"list": [1], "deep": {"x": []}}
        items = [[1]]
        await self.write(
            Put("n", "a", value), Put("n", "b", {}), Patch("n", "b", append={"l": items})
        )
        value["list"].append(2)
        value["new"] = 1
        items[0].append(2)
        [result] = await self.write(Patch("n", "a"))
        assert result.value is not None
        result.value["list"].append(3)
        for record in (await self.read(), await self.read()):
            assert record is not None
            record.value["deep"]["x"].append(3)
        page = await self.durable.query(Query(namespace="n"))
        page.items[0].value["deep"]["x"].append(4)

        assert {"list": [1], "deep": {"x": []}} == await self.value()
        assert {"l": [[1]]} == await self.value("b")

    @pytest.mark.parametrize("number", range(len(BAD_VALUES)))
    async def test_what_is_not_portable_is_refused_before_any_write(self, number: int) -> None:
        """In every place that a value can stand; nothing of the batch is written."""
        bad = BAD_VALUES[number]
        await self.write(Put("n", "there", {"x": 1}))
        for build in (
            lambda: Put("n", "bad", {"f": bad}),
            lambda: Insert("n", "bad", {"f": bad}),
            lambda: Patch("n", "there", set={"f": bad}),
            lambda: Patch("n", "there", append={"f": [1, bad]}),
            lambda: Patch("n", "there", set={"x": 2}, expect={"f": bad}),
            lambda: Delete("n", "there", expect={"f": bad}),
        ):
            with pytest.raises(InvalidValueError):
                await self.write(Put("n", "good", {"x": 1}), build())

        assert ["there"] == await self.ids()
        assert {"x": 1} == await self.value("there")

    @pytest.mark.parametrize("value", [None, 1, "text", [], [("a", 1)]], ids=repr)
    async def test_a_value_is_an_object(self, value: Any) -> None:
        """Nothing else is a record."""
        for kind in (Put, Insert):
            with pytest.raises(InvalidValueError):
                await self.write(kind("n", "a", value))

        assert [] == await self.ids()

    @pytest.mark.parametrize("name", [1, None, True, "a\0", "\ud800"], ids=repr)
    async def test_a_field_name_is_portable_text(self, name: Any) -> None:
        """Other keys are refused, never converted."""
        for build in (
            lambda: Put("n", "a", {name: 1}),
            lambda: Patch("n", "a", set={name: 1}),
        ):
            with pytest.raises(InvalidValueError):
                await self.write(build())

        assert [] == await self.ids()

    async def test_a_field_may_be_as_large_as_declared(self) -> None:
        """And no larger; several large fields are legal."""
        most = "x" * (DEFAULT_MAX_VALUE_BYTES - 2)
        await self.write(Put("n", "a", {"f": most, "g": [most[:-2]]}))
        assert {"f": most, "g": [most[:-2]]} == await self.value()
        for build in (
            lambda: Put("n", "b", {"f": most + "x"}),
            lambda: Put("n", "b", {"f": [most]}),
            lambda: Patch("n", "a", set={"f": most + "x"}),
        ):
            with pytest.raises(InvalidValueError):
                await self.write(build())

        assert ["a"] == await self.ids()

    async def test_a_field_may_be_nested_as_deep_as_the_domain_allows(self) -> None:
        """One hundred deep, and no deeper."""
        await self.write(Put("n", "a", {"f": nested(100)}))

        assert {"f": nested(100)} == await self.value()

    async def test_records_have_the_places_they_are_given(self) -> None:
        """Every legal name is a namespace and an id of its own."""
        await self.write(
            *(Put(name, "x", {"ns": number}) for number, name in enumerate(NAMES)),
            *(Put("n", name, {"id": number}) for number, name in enumerate(NAMES)),
        )

        for number, name in enumerate(NAMES):
            assert {"ns": number} == await self.value("x", name), name
        found = await self.durable.get("n", NAMES)
        assert [*range(len(NAMES))] == [record and record.value["id"] for record in found]
        await self.write(Delete("a*c", "x"), Delete("%", "x"), Delete("a", "x"))
        gone = {"a*c", "%", "a"}
        for name in NAMES:
            assert (await self.value("x", name) is None) is (name in gone), name

    async def test_namespace_and_id_are_kept_apart(self) -> None:
        """What stands left and right of a separator matters."""
        await self.write(Put("a", "b:c", {"x": 1}), Put("a:b", "c", {"x": 2}))
        await self.write(Delete("a:b", "c"))

        assert {"x": 1} == await self.value("b:c", "a")

    async def test_every_queue_name_makes_a_namespace(self) -> None:
        """A prefix of the taxonomy is not measured with the name behind it."""
        for name in ("x" * 255, "💥" * 128):
            for head in ("queue_job:", "queue_dlq:", "topic_msg:"):
                await self.write(Put(head + name, name, {"x": head}))
                assert {"x": head} == await self.value(name, head + name)

    @pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
    async def test_a_bad_place_is_refused(self, name: Any) -> None:
        """As a namespace and as an id, in every call."""
        for build in (
            lambda: Put(name, "a", {}),
            lambda: Put("n", name, {}),
            lambda: Insert("n", name, {}),
            lambda: Patch("n", name),
            lambda: Delete("n", name),
        ):
            with pytest.raises(InvalidValueError):
                await self.write(Put("n", "good", {}), build())
        with pytest.raises(InvalidValueError):
            await self.durable.get(name, ["a"])
        with pytest.raises(InvalidValueError):
            await self.durable.get("n", ["good", name])

        assert [] == await self.ids()

    # --- batches ------------------------------------------------------------------------

    async def test_empty_record_batches_do_nothing(self) -> None:
        """An empty list in, an empty list out, atomic or not."""
        assert [] == list(await self.durable.get("n", []))
        assert [] == list(await self.durable.write([]))
        if self.durable.capabilities.atomic:
            assert [] == list(await self.durable.write([], atomic=True))

    async def test_a_batch_of_any_size_is_written_whole(self) -> None:
        """Beyond the largest step it is split, and the answers stay in order."""
        size = self.durable.capabilities.max_batch * 2 + 500
        await self.write(Insert("n", "7", {"v": "old"}))
        results = await self.write(
            *(Insert("n", f"{number}", {"v": number}) for number in range(size))
        )

        assert [number != 7 for number in range(size)] == [r.applied for r in results]
        assert size == await self.durable.count(Query(namespace="n"))
        records = await self.durable.get("n", [f"{number}" for number in range(size)])
        values = [record.value["v"] for record in records if record is not None]
        assert [*range(7), "old", *range(8, size)] == values

    async def test_order_for_one_record_holds_over_the_steps_of_a_batch(self) -> None:
        """Splitting a batch never turns two writes round."""
        size = self.durable.capabilities.max_batch
        writes: list[Write] = [Put("n", "a", {"v": 0})]
        writes += [Put("n", f"filler{number}", {}) for number in range(size)]
        writes += [Patch("n", "a", expect={"v": n}, set={"v": n + 1}) for n in range(2)]
        results = await self.write(*writes)

        assert [True, True] == [result.applied for result in results[-2:]]
        assert {"v": 2} == await self.value()

    async def test_a_mixed_batch_answers_each_item(self) -> None:
        """Over namespaces, tables and kinds of write; failures stop nobody."""
        await self.write(Put("queue_job:q", "a", {"status": "active"}), Put("cron", "c", {}))
        applied = await self.applied(
            Patch("queue_job:q", "a", expect={"status": "waiting"}, set={"status": "x"}),
            Insert("runs", "r", {"n": 1}),
            Insert("cron", "c", {"n": 2}),
            Delete("queue_job:q", "a", expect={"status": "active"}),
            Put("queue_dlq:q", "a", {"n": 3}),
            Delete("custom", "x"),
        )

        assert [False, True, False, True, True, False] == applied
        assert {"n": 3} == await self.value("a", "queue_dlq:q")
        assert {"n": 1} == await self.value("r", "runs")
        assert await self.value("a", "queue_job:q") is None

    @pytest.mark.parametrize(
        ("returning", "expected"),
        [
            (None, {"x": 1, "y": [2], "z": None}),
            ((), {}),
            (["x"], {"x": 1}),
            (["y", "nope"], {"y": [2]}),
            (["z"], {"z": None}),
        ],
    )
    async def test_results_hold_the_fields_that_are_asked_for(
        self, returning: Sequence[str] | None, expected: dict[str, Any]
    ) -> None:
        """Also where the write was not applied."""
        value = {"x": 1, "y": [2], "z": None}
        results = await self.durable.write(
            [
                Put("n", "a", value),
                Insert("n", "a", {"x": 9}),
                Patch("n", "a", expect={"x": 1}),
                Patch("n", "a", expect={"x": 2}),
                Delete("n", "a", expect={"x": 2}),
                Insert("n", "b", value),
            ],
            returning=returning,
        )

        assert [expected] * 6 == [result.value for result in results]

    # --- atomic -----------------------------------------------------------------------

    @requires("durable.atomic")
    async def test_an_atomic_batch_is_applied_whole(self) -> None:
        """Over namespaces and tables, with the answers in order."""
        await self.write(Put("queue_dlq:q", "a", {"n": 1}))
        results = await self.write(
            Delete("queue_dlq:q", "a", expect={"n": 1}),
            Insert("queue_job:q", "a", {"n": 2}),
            Put("runs", "r", {"n": 3}),
            Put("cron", "c", {"n": 4}),
            Patch("cron", "c", increment={"n": 1}),
            atomic=True,
        )

        assert [None, {"n": 2}, {"n": 3}, {"n": 4}, {"n": 5}] == [r.value for r in results]
        assert await self.value("a", "queue_dlq:q") is None
        assert {"n": 2} == await self.value("a", "queue_job:q")

    @requires("durable.atomic")
    @pytest.mark.parametrize(
        "refused",
        [
            Insert("cron", "there", {"n": 9}),
            Patch("cron", "absent", set={"n": 9}),
            Patch("cron", "there", set={"n": 9}, expect={"n": 2}),
            Patch("cron", "there", increment={"text": 1}),
            Patch("cron", "there", append={"text": [1]}),
            Delete("cron", "absent"),
            Delete("cron", "there", expect={"n": 2}),
        ],
        ids=lambda write: type(write).__name__,
    )
    async def test_an_atomic_batch_is_refused_whole(self, refused: Write) -> None:
        """The conflict names the item, and no other item has taken place."""
        await self.write(Put("cron", "there", {"n": 1, "text": "x"}), Put("runs", "r", {"n": 1}))
        with pytest.raises(ConflictError) as caught:
            await self.write(
                Put("queue_job:q", "a", {}),
                Patch("runs", "r", increment={"n": 1}),
                Put("zzz", "z", {}),
                refused,
                Delete("runs", "r"),
                atomic=True,
            )

        assert 3 == caught.value.index
        assert {"n": 1, "text": "x"} == await self.value("there", "cron")
        assert {"n": 1} == await self.value("r", "runs")
        assert await self.value("a", "queue_job:q") is None
        assert await self.value("z", "zzz") is None

    @requires("durable.atomic")
    async def test_an_atomic_batch_may_be_large(self) -> None:
        """Ten thousand writes are one step; the last one can refuse them all."""
        largest = self.durable.capabilities.max_atomic_batch
        assert largest >= 10_000
        writes = [Insert("n", f"{number}", {"v": number}) for number in range(10_000)]
        with pytest.raises(ConflictError) as caught:
            await self.write(*writes[:-1], Delete("n", "absent"), atomic=True)
        assert 9999 == caught.value.index
        assert 0 == await self.durable.count(Query(namespace="n"))
        await self.write(*writes, atomic=True)

        assert 10_000 == await self.durable.count(Query(namespace="n"))

    @requires("durable.atomic")
    async def test_an_atomic_batch_beyond_the_limit_is_refused(self) -> None:
        """Nothing of it is written."""
        largest = self.durable.capabilities.max_atomic_batch
        assert largest < 10**7, "a limit that cannot be reached is no limit"
        with pytest.raises(InvalidValueError):
            await self.write(*[Put("n", "a", {})] * (largest + 1), atomic=True)

        assert [] == await self.ids()

    async def test_atomic_without_the_capability_is_refused(self) -> None:
        """An argument is never ignored."""
        if self.durable.capabilities.atomic:
            assert [True] == await self.applied(Put("n", "a", {}), atomic=True)
            return
        with pytest.raises(CapabilityError):
            await self.write(Put("n", "a", {}), atomic=True)

        assert [] == await self.ids()

    @requires("durable.atomic")
    async def test_of_many_atomic_batches_one_wins(self) -> None:
        """Two places move together, or not at all."""
        await self.write(Put("queue_dlq:q", "a", {"n": 1}))

        async def move(number: int) -> bool:
            try:
                await self.write(
                    Delete("queue_dlq:q", "a"),
                    Insert("queue_job:q", f"{number}", {}),
                    atomic=True,
                )
            except ConflictError:
                return False
            return True

        won = await gather(move(number) for number in range(20))

        assert 1 == sum(won)
        assert [f"{won.index(True)}"] == await self.ids("queue_job:q")

    # --- together ----------------------------------------------------------------------

    async def test_of_fifty_inserts_one_wins(self) -> None:
        """The others see the winner's record."""
        results = await gather(self.write(Insert("n", "a", {"n": n})) for n in range(50))
        won = [result for [result] in results if result.applied]

        assert 1 == len(won)
        assert {str(won[0].value)} == {str(result.value) for [result] in results}

    async def test_concurrent_updates_are_not_lost(self) -> None:
        """Sums and lists hold what everybody added."""
        await self.write(Put("n", "a", {"n": 0}))
        await gather(
            self.write(Patch("n", "a", increment={"n": 1}, append={"l": [number]}))
            for number in range(60)
        )
        value = await self.value() or {}

        assert 60 == value["n"]
        assert [*range(60)] == sorted(value["l"])

    async def test_guarded_counting_loses_no_update(self) -> None:
        """Compare-and-set from many tasks counts exactly."""
        await self.write(Put("n", "a", {"n": 0, "kept": [[], {}, 2**53 + 1]}))

        async def count() -> None:
            done = 0
            seen = 0
            while done < 10:
                patch = Patch("n", "a", expect={"n": seen}, set={"n": seen + 1})
                [result] = await self.write(patch)
                assert result.value is not None
                seen = result.value["n"]
                done += result.applied

        await gather(count() for _ in range(8))

        assert {"n": 80, "kept": [[], {}, 2**53 + 1]} == await self.value()

    async def test_batches_in_opposite_order_do_not_deadlock(self) -> None:
        """All of them take place, whichever way round they name the records."""
        ids = [f"{number:03}" for number in range(60)]
        await self.write(*(Put("n", id, {"n": 0}) for id in ids))  # noqa: A001

        async def bump(step: int) -> None:
            order = ids[::step]
            writes = [Patch("n", id, increment={"n": 1}) for id in order]  # noqa: A001
            await self.write(*writes, atomic=self.durable.capabilities.atomic and step % 2 == 0)

        steps = [1, -1] * 12
        await gather(bump(step) for step in steps)
        records = await self.durable.get("n", ids)

        assert {24} == {record.value["n"] for record in records if record is not None}

    # --- transactions --------------------------------------------------------------------

    @requires("durable.transactions")
    async def test_a_bound_plane_writes_inside_the_transaction(self) -> None:
        """Others see it when the caller commits."""
        async with self.begin() as transaction:
            bound = self.durable.bind(transaction)
            await bound.write([Insert("n", "a", {"x": 1})])
            [seen] = await bound.get("n", ["a"])
            assert seen is not None
            assert await self.value() is None

        assert {"x": 1} == await self.value()

    @requires("durable.transactions")
    async def test_what_is_rolled_back_was_never_written(self) -> None:
        """The caller's failure takes the write with it."""

        async def fail() -> None:
            async with self.begin() as transaction:
                await self.durable.bind(transaction).write([Insert("n", "a", {"x": 1})])
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()

        assert await self.value() is None

    async def test_binding_without_the_capability_is_refused(self) -> None:
        """With a sentence that names the backend."""
        if self.durable.capabilities.transactions:
            return
        with pytest.raises(CapabilityError, match=self.durable.capabilities.backend):
            self.durable.bind(object())
