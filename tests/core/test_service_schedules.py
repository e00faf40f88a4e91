"""Schedules in memory mode, planning by itself, and cron text over real changes of clocks."""

from __future__ import annotations

import itertools
import time

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from hypothesis import given, settings
from hypothesis import strategies as st

from fix_memory import MemoryMode
from oqron_core.cronspec import CronSpec
from oqron_core.exceptions import InvalidValueError
from oqron_core.models.schedule import Schedule
from oqron_core.protocol.pointers import plan, slot_id
from oqron_core.testing.contracts.mode_schedules import SchedulesContract


CRONS = Path(__file__).parents[3] / "shared" / "data" / "kubernetes-crons.txt"


class TestMemorySchedules(MemoryMode, SchedulesContract):
    """Several processes are several storages over one store."""

    async def test_all_fields_are_on_the_wire_in_camel_case(self) -> None:
        """A dashboard reads the pointer from the record without the library."""
        await self.storage.schedules.put("cron", "n", next_run_at=7, spec={"a": 1}, zone="UTC")
        record = (await self.storage.durable.get("cron", ["n"]))[0]
        assert record is not None

        assert record.value == {
            "kind": "cron", "name": "n", "nextRunAt": 7, "spec": {"a": 1}, "zone": "UTC",
            "catchUp": "one", "maxCatchUp": 100, "paused": False, "version": 1,
            "lastRunAt": None, "runCount": 0, "skipBefore": None,
            "createdAt": self.clock.now(), "updatedAt": self.clock.now(),
        }  # fmt: skip


# --- slots ---------------------------------------------------------------------------------


@given(
    st.tuples(st.sampled_from(["cron", "schedule"]), st.text(min_size=1), st.integers(0, 10**15)),
    st.tuples(st.sampled_from(["cron", "schedule"]), st.text(min_size=1), st.integers(0, 10**15)),
)
def test_no_two_slots_share_an_id(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    """Whatever the names look like."""
    assert (slot_id(*one) == slot_id(*other)) == (one == other)


def test_names_that_look_like_ids_make_ids_of_their_own() -> None:
    """Colons and digits in a name move nothing into another part."""
    names = ["1", "1:1", "a:1", "a", "1:a", "#" + "0" * 64, ":", "3:a:1"]
    ids = {slot_id("cron", name, slot) for name in names for slot in (1, 11, 111)}

    assert len(ids) == 3 * len(names)


@pytest.mark.parametrize("name", ["x" * 255, "é" * 255, "漢" * 170, "🙂" * 128])
def test_ids_of_long_names_are_legal(name: str) -> None:
    """At most 255 characters and 512 bytes, and still one per slot."""
    made = [slot_id("schedule", name, slot) for slot in (1, 253_402_300_799_999)]

    assert len(set(made)) == 2
    assert all(len(one) <= 255 and len(one.encode()) <= 512 for one in made)


# --- planning ---------------------------------------------------------------------------


class Grid:
    """Slots at every multiple of a step, counting how often it is asked."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.asked = 0

    def __call__(self, after: int) -> int:
        self.asked += 1
        return (after // self.step + 1) * self.step


@given(
    step=st.integers(1, 1000),
    behind=st.integers(0, 3000),
    most=st.integers(1, 40),
    policy=st.sampled_from(["skip", "one", "all"]),
    skip=st.one_of(st.none(), st.integers(900_000, 1_100_000)),
    grace=st.sampled_from([0.0, 0.5, 60.0]),
)
def test_a_plan_is_what_walking_every_slot_gives(
    step: int, behind: int, most: int, policy: str, skip: int | None, grace: float
) -> None:
    """Moves hang together, go forward, end after now, and run what the policy says."""
    now = 1_000_000
    grid = Grid(step)
    pointer = ((now - behind) // step) * step
    schedule = Schedule("cron", "n", pointer, catch_up=policy, max_catch_up=most, skip_before=skip)
    moves = plan(schedule, now, grid, grace=grace)

    every = list(range(pointer, now + 1, step))
    wanted = [slot for slot in every if slot >= (skip or 0)]
    if policy == "all":
        wanted = wanted[-most:]
    elif policy == "one":
        wanted = wanted[:1] if pointer >= (skip or 0) else wanted[-1:]
    else:
        wanted = [slot for slot in wanted if slot >= now - grace * 1000][-1:]
    assert [move.expected for move in moves if move.run] == wanted
    assert moves[0].expected == pointer
    assert moves[-1].next_run_at == (now // step + 1) * step
    for move, following in itertools.pairwise(moves):
        assert move.next_run_at == following.expected > move.expected


def test_a_pointer_to_come_has_no_plan() -> None:
    """Nor one that has ended; one that is due this millisecond has."""
    assert plan(Schedule("cron", "n", 11), 10, Grid(1)) == []
    assert plan(Schedule("cron", "n", None), 10, Grid(1)) == []
    assert len(plan(Schedule("cron", "n", 10), 10, Grid(1))) == 1


@pytest.mark.parametrize("policy", ["skip", "one", "all"])
def test_a_pointer_that_is_years_behind_costs_little(policy: str) -> None:
    """Ten years of minutes: no walk over five million slots, and no storm."""
    now = 10 * 366 * 86_400_000
    grid = Grid(60_000)
    schedule = Schedule("cron", "n", 0, catch_up=policy, max_catch_up=100)

    moves = plan(schedule, now, grid)

    assert len([move for move in moves if move.run]) == {"skip": 1, "one": 1, "all": 100}[policy]
    assert grid.asked < 3000


def test_a_burst_long_ago_is_found_and_stays_bounded() -> None:
    """Slots that are as uneven as can be are counted right."""

    def burst(after: int) -> int:
        # Every millisecond of the first thousand, then never until much later.
        return after + 1 if after < 1000 else max(10**12, after + 1)

    schedule = Schedule("cron", "n", 1, catch_up="all", max_catch_up=5)
    moves = plan(schedule, 10**11, burst)

    assert [move.expected for move in moves if move.run] == [996, 997, 998, 999, 1000]
    assert moves[-1].next_run_at == 10**12


@pytest.mark.parametrize("wrong", [10, 9, 10.5, "11", True])
def test_a_grid_that_stands_still_is_refused(wrong: Any) -> None:
    """What does not go forward would be run for ever."""
    with pytest.raises(InvalidValueError, match="next_after"):
        plan(Schedule("cron", "n", 5), 10, lambda _: wrong)


# --- cron text ------------------------------------------------------------------------------


def at(text: str, zone: str, fold: int = 0) -> int:
    """Give the instant of a time on the wall."""
    local = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return int(local.timestamp()) * 1000


def walls(text: str, zone: str, after: int, count: int) -> list[str]:
    """List the next slots as the wall shows them, with the distance to UTC."""
    spec = CronSpec(text, zone)
    found = []
    for _ in range(count):
        following = spec.next(after)
        assert following is not None
        assert following > after
        after = following
        found.append(f"{datetime.fromtimestamp(after / 1000, ZoneInfo(zone)):%m-%d %H:%M %z}")
    return found


def test_an_hour_that_comes_twice_does_not_stop_the_pointer() -> None:
    """Half past each hour in Helsinki, from the second 03:45 on."""
    start = at("2017-10-29T03:45", "Europe/Helsinki", fold=1)
    assert walls("30 * * * *", "Europe/Helsinki", start, 10)[:2] == [
        "10-29 04:30 +0200",
        "10-29 05:30 +0200",
    ]
    before = at("2017-10-29T02:45", "Europe/Helsinki")

    assert walls("30 * * * *", "Europe/Helsinki", before, 3) == [
        "10-29 03:30 +0300",
        "10-29 03:30 +0200",
        "10-29 04:30 +0200",
    ]


def test_no_day_is_left_out_when_clocks_go_forward() -> None:
    """Midnight in California, through the second Sunday of March."""
    start = at("2022-03-12T00:00", "US/Pacific")

    assert walls("0 0 * * *", "US/Pacific", start, 3) == [
        "03-13 00:00 -0800",
        "03-14 00:00 -0700",
        "03-15 00:00 -0700",
    ]


def test_a_time_that_is_left_out_runs_right_after_the_gap() -> None:
    """Half past two in Berlin, on the day that has none."""
    start = at("2026-03-28T12:00", "Europe/Berlin")

    assert walls("30 2 * * *", "Europe/Berlin", start, 2) == [
        "03-29 03:00 +0200",
        "03-30 02:30 +0200",
    ]


def test_a_time_that_comes_twice_runs_once() -> None:
    """Half past two in Berlin, in the night of October; asked from anywhere in it."""
    start = at("2026-10-24T12:00", "Europe/Berlin")
    assert walls("30 2 * * *", "Europe/Berlin", start, 2) == [
        "10-25 02:30 +0200",
        "10-26 02:30 +0100",
    ]
    for text, fold in (("02:30", 0), ("02:59", 0), ("02:00", 1), ("02:30", 1)):
        within = at(f"2026-10-25T{text}", "Europe/Berlin", fold)
        assert walls("30 2 * * *", "Europe/Berlin", within, 1) == ["10-26 02:30 +0100"]


def test_a_midnight_that_is_left_out_runs_after_it() -> None:
    """Where clocks change at midnight, and where a whole day was left out."""
    start = at("2018-11-03T12:00", "America/Sao_Paulo")
    assert walls("0 0 * * *", "America/Sao_Paulo", start, 1) == ["11-04 01:00 -0200"]
    apia = at("2011-12-29T12:00", "Pacific/Apia")

    assert walls("0 0 * * *", "Pacific/Apia", apia, 2) == [
        "12-31 00:00 +1400",
        "01-01 00:00 +1400",
    ]


@settings(max_examples=60, deadline=None)
@given(
    zone=st.sampled_from(
        ["Europe/Berlin", "Australia/Lord_Howe", "America/Sao_Paulo", "Africa/Casablanca", "UTC"]
    ),
    text=st.sampled_from(
        ["30 2 * * *", "*/7 * * * *", "0 */5 * * *", "15,45 1-3 * * *", "0 0 * * *", "59 23 L * *"]
    ),
    start=st.integers(1_000_000_000_000, 1_900_000_000_000),
)
def test_slots_only_go_forward(zone: str, text: str, start: int) -> None:
    """In every zone and from every instant, and each is a whole minute."""
    spec = CronSpec(text, zone)
    for _ in range(20):
        following = spec.next(start)
        assert following is not None
        assert following > start
        assert following % 60_000 == 0
        start = following


@pytest.mark.parametrize(
    "text", ["0 0 30 2 *", "0 0 31 2 *", "0 0 31 2,4,6,9,11 *", "0 0 30/1 FEB *"]
)
def test_what_never_comes_is_none_without_a_search(text: str) -> None:
    """Days that no month has are known when the text is read, whatever the zone."""
    spec = CronSpec(text, "Europe/Berlin")

    assert spec.never
    assert spec.next(1_750_000_000_000) is None


def test_a_day_in_fifty_years_is_found() -> None:
    """A fifth Monday in February comes in leap years only."""
    spec = CronSpec("0 0 * 2 MON#5")

    assert spec.next(at("2020-01-01T00:00", "UTC")) == at("2044-02-29T00:00", "UTC")


@pytest.mark.parametrize(
    "text", ["@hourly", "@daily", "@weekly", "@monthly", "@yearly", "@Midnight"]
)
def test_macros_stand_for_their_fields(text: str) -> None:
    """Each comes on a whole hour within a year and a day."""
    start = at("2026-01-01T00:00", "UTC")
    following = CronSpec(text).next(start)

    assert following is not None
    assert 0 < following - start <= 366 * 86_400_000
    assert following % 3_600_000 == 0


@pytest.mark.parametrize(
    "text",
    ["", " ", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *",
     "* * * * 8", "a * * * *", "5-1 * * * *", "*/0 * * * *", "@often", "0 0 30 13 *", "{{ $cron }}",
     "0 0 32 2 *", "1-L * * * *", 5, None],
)  # fmt: skip
def test_text_that_cannot_be_read_is_refused(text: Any) -> None:
    """With what is wrong, and never by another error."""
    with pytest.raises(InvalidValueError, match="cron"):
        CronSpec(text)


@pytest.mark.parametrize("zone", ["", "Berlin", "../etc/passwd", "/etc/localtime", "a\0b", 5])
def test_zones_that_are_none_are_refused(zone: Any) -> None:
    """By name only, wherever the database of zones is."""
    with pytest.raises(InvalidValueError, match="zone"):
        CronSpec("* * * * *", zone)


@pytest.mark.parametrize("after", [-(10**18), -1, 253_402_300_799_999, 10**18])
def test_instants_at_the_edge_of_time_raise_nothing(after: int) -> None:
    """Where the calendar ends there is no next slot."""
    following = CronSpec("0 0 1 1 *", "Europe/Berlin").next(after)

    assert following is None or following > after


@pytest.mark.skipif(not CRONS.exists(), reason="the file of real cron texts is not here")
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_texts_of_the_real_world_are_read(zone: str) -> None:
    """All of them through a year with both changes; two never fire, templates are refused."""
    texts = CRONS.read_text(encoding="utf-8").splitlines()
    never = []
    for text in texts:
        if "{" in text:
            with pytest.raises(InvalidValueError, match="cron"):
                CronSpec(text, zone)
            continue
        spec = CronSpec(text, zone)
        instant: int | None = at("2026-03-28T00:00", "UTC")
        for _ in range(12):
            assert instant is not None
            following = spec.next(instant)
            assert following is None or following > instant
            instant = following
            if instant is None:
                never.append(text)
                break

    assert len(texts) == 231
    assert never == ["0 0 30 2 *", "0 0 31 2 *"]


def test_text_is_read_the_same_wherever_the_process_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The zone of the machine plays no part."""
    found = set()
    for zone in ("America/New_York", "Asia/Tokyo", "UTC"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        found.add((CronSpec("30 2 * * *").next(0), CronSpec("30 2 * * *", "Europe/Berlin").next(0)))
    monkeypatch.delenv("TZ")
    time.tzset()

    assert len(found) == 1
    assert datetime.fromtimestamp(9000, UTC).hour == 2
