"""The contract of `LiveRuns`: the live overlay of running runs."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import LiveChange, LiveRuns
from oqron_core.testing.contracts.base import Contract, gather
from oqron_core.testing.hostile import BAD_NAMES, BAD_VALUES, NAMES, VALUES, same


__all__ = ["LiveRunsContract"]


class LiveRunsContract(Contract):
    """What every live overlay must do."""

    _wants_hot: ClassVar[bool] = True

    @property
    def live(self) -> LiveRuns:
        """The overlay under test."""
        return self.hot.live

    async def begin_runs(self, *ids: str) -> None:
        """Merge runs one after the other, at different times."""
        for id in ids:  # noqa: A001
            await self.live.merge(id, {"id": id})
            await self.elapse(0.01)

    async def test_a_merge_creates_a_run(self) -> None:
        """Its logs and timeline are lists, also where nothing was appended."""
        assert await self.live.get("r") is None
        await self.live.merge("r", {"status": "running"})

        assert {"status": "running", "logs": [], "timeline": []} == await self.live.get("r")

    async def test_fields_are_set_one_by_one(self) -> None:
        """What a merge does not name stays."""
        await self.live.merge("r", {"a": 1, "b": {"x": 1}, "c": None})
        await self.live.merge("r", {"b": {"y": 2}, "d": []})

        expected = {"a": 1, "b": {"y": 2}, "c": None, "d": [], "logs": [], "timeline": []}
        assert expected == await self.live.get("r")

    async def test_entries_are_appended_in_order(self) -> None:
        """Logs and timeline grow at their ends, apart."""
        await self.live.merge("r", {}, [{"msg": "1"}, {"msg": "2"}], [{"to": "running"}])
        await self.live.merge("r", {}, [{"msg": "3"}])
        await self.live.merge("r", {}, (), [{"to": "completed"}])

        expected = {
            "logs": [{"msg": "1"}, {"msg": "2"}, {"msg": "3"}],
            "timeline": [{"to": "running"}, {"to": "completed"}],
        }
        assert expected == await self.live.get("r")

    async def test_concurrent_merges_lose_nothing(self) -> None:
        """Fifty writers of one run: fifty fields and fifty log lines."""
        await gather(
            self.live.merge("r", {f"f{number}": number}, [{"n": number}]) for number in range(50)
        )
        run = await self.live.get("r")

        assert run is not None
        assert [*range(50)] == sorted(entry["n"] for entry in run["logs"])
        assert [*range(50)] == [run[f"f{number}"] for number in range(50)]

    async def test_a_batch_merges_each_item(self) -> None:
        """Also several changes of one run, in their order."""
        await self.live.merge_many(
            [
                LiveChange("a", {"n": 1}, [1], [10]),
                LiveChange("b", {"n": 1}),
                LiveChange("a", {"n": 2}, [2]),
            ]
        )

        assert {"n": 2, "logs": [1, 2], "timeline": [10]} == await self.live.get("a")
        assert {"n": 1, "logs": [], "timeline": []} == await self.live.get("b")

    async def test_a_batch_reads_in_order(self) -> None:
        """Absent ones are None, repetitions are repeated."""
        await self.live.merge("a", {"n": 1})
        run = {"n": 1, "logs": [], "timeline": []}

        assert [None, run, run] == list(await self.live.get_many(["x", "a", "a"]))

    async def test_live_values_come_back_equal(self) -> None:
        """Every portable value, as a field and as an entry."""
        fields = {f"f{number}": value for number, value in enumerate(VALUES)}
        await self.live.merge("r", fields, VALUES, VALUES)
        run = await self.live.get("r")

        assert run is not None
        for number, value in enumerate(VALUES):
            assert same(value, run[f"f{number}"]), repr(value)[:80]
        assert same([*VALUES], run["logs"])
        assert same([*VALUES], run["timeline"])

    async def test_a_live_run_is_handed_out_as_a_copy(self) -> None:
        """Changing what was merged or got changes nothing in the overlay."""
        value = [1]
        entry = {"x": [1]}
        await self.live.merge("r", {"v": value}, [entry])
        value.append(2)
        entry["x"].append(2)
        got = await self.live.get("r")
        assert got is not None
        got["v"].append(3)
        got["logs"].append(3)

        assert {"v": [1], "logs": [{"x": [1]}], "timeline": []} == await self.live.get("r")

    async def test_a_dropped_run_is_gone(self) -> None:
        """From every reading; it says what was there."""
        await self.begin_runs("a", "b")

        assert [True, False, False] == list(await self.live.drop(["a", "x", "a"]))
        assert await self.live.get("a") is None
        assert ["b"] == list(await self.live.active())
        assert ["b"] == list(await self.live.stale(older_than=0))

    async def test_a_dropped_run_keeps_nothing_for_its_next_life(self) -> None:
        """Old fields and log lines do not come back."""
        await self.live.merge("r", {"old": 1}, [1], [1])
        await self.live.drop(["r"])
        await self.live.merge("r", {"new": 1})

        assert {"new": 1, "logs": [], "timeline": []} == await self.live.get("r")

    async def test_active_runs_are_newest_first(self) -> None:
        """By their last merge, up to a limit."""
        await self.begin_runs("a", "b", "c")
        await self.live.merge("a", {})

        assert ["a", "c", "b"] == list(await self.live.active())
        assert ["a", "c"] == list(await self.live.active(limit=2))
        assert [] == list(await self.live.active(limit=0))

    async def test_stale_runs_are_oldest_first(self) -> None:
        """Without a merge for a time; up to a limit."""
        await self.begin_runs("a", "b", "c")
        assert [] == list(await self.live.stale(older_than=30))
        await self.elapse(0.5)
        await self.live.merge("fresh", {})

        assert ["a", "b", "c"] == list(await self.live.stale(older_than=0.4))
        assert ["a", "b"] == list(await self.live.stale(older_than=0.4, limit=2))
        assert ["a", "b", "c", "fresh"] == list(await self.live.stale(older_than=0))

    async def test_a_merge_of_nothing_is_a_sign_of_life(self) -> None:
        """An idle handler that reports is not lost."""
        await self.begin_runs("a", "b")
        await self.elapse(0.5)
        await self.live.merge("a", {})

        assert ["b"] == list(await self.live.stale(older_than=0.4))
        assert ["a", "b"] == list(await self.live.active())

    async def test_reading_is_no_sign_of_life(self) -> None:
        """A dashboard does not keep a dead run alive."""
        await self.begin_runs("a")
        await self.elapse(0.3)
        await self.live.get("a")
        await self.live.active()

        assert ["a"] == list(await self.live.stale(older_than=0.2))

    async def test_every_legal_name_is_a_run_of_its_own(self) -> None:
        """No two ids meet."""
        await self.live.merge_many([LiveChange(name, {"id": name}, [name]) for name in NAMES])

        for name, run in zip(NAMES, await self.live.get_many(NAMES), strict=True):
            assert {"id": name, "logs": [name], "timeline": []} == run
        assert set(NAMES) == set(await self.live.active())

    async def test_every_field_name_is_kept(self) -> None:
        """Names of fields are data, whatever they look like."""
        fields = {name: name for name in (*NAMES, "")}
        await self.live.merge("r", fields)

        assert {**fields, "logs": [], "timeline": []} == await self.live.get("r")

    @pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
    async def test_a_bad_run_id_is_refused(self, name: Any) -> None:
        """In every call."""
        live = self.live
        for call in (
            lambda: live.merge(name, {}),
            lambda: live.merge_many([LiveChange(name)]),
            lambda: live.get(name),
            lambda: live.get_many([name]),
            lambda: live.drop([name]),
        ):
            with pytest.raises(InvalidValueError):
                await call()

        assert [] == list(await live.active())

    @pytest.mark.parametrize("number", range(len(BAD_VALUES)))
    async def test_what_is_not_portable_is_not_merged(self, number: int) -> None:
        """Neither as a field nor as an entry; nothing of the call is done."""
        value = BAD_VALUES[number]
        with pytest.raises(InvalidValueError):
            await self.live.merge("r", {"good": 1, "bad": value})
        with pytest.raises(InvalidValueError):
            await self.live.merge("r", {"good": 1}, [1, value])
        with pytest.raises(InvalidValueError):
            await self.live.merge("r", {"good": 1}, (), [1, value])

        assert await self.live.get("r") is None

    @pytest.mark.parametrize("name", ["logs", "timeline"])
    async def test_lists_are_not_fields(self, name: str) -> None:
        """What is appended to cannot be set."""
        with pytest.raises(InvalidValueError):
            await self.live.merge("r", {name: []})

        assert await self.live.get("r") is None

    @pytest.mark.parametrize("bad", [-1, float("nan"), "1", None, True], ids=repr)
    async def test_a_bad_age_or_limit_is_refused(self, bad: Any) -> None:
        """An age is a duration and a limit is a count."""
        with pytest.raises(InvalidValueError):
            await self.live.stale(older_than=bad)
        with pytest.raises(InvalidValueError):
            await self.live.stale(older_than=0, limit=bad)
        with pytest.raises(InvalidValueError):
            await self.live.active(limit=bad)

    async def test_empty_live_batches_do_nothing(self) -> None:
        """An empty list in, an empty list out."""
        await self.live.merge_many([])

        assert [] == list(await self.live.get_many([]))
        assert [] == list(await self.live.drop([]))
        assert [] == list(await self.live.active())
