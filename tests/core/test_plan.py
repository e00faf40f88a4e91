"""What ``oqron plan`` says of each mode: features, durability, losses."""

from __future__ import annotations

import json
import os

from pathlib import Path
from typing import Any

import pytest

from click.testing import CliRunner

from oqron_core.cli._app import cli
from oqron_core.cli._planning import Plan, make_plan
from oqron_core.cli._probe import Probe
from oqron_core.config import Settings
from oqron_core.planes import Capabilities, Durability, Health
from oqron_core.taxonomy import RecordKind


PROCESS, SERVER, DISK = Durability.PROCESS, Durability.SERVER, Durability.DISK

# hot, durable, durability of records, durability of the hot plane, what can die
PAIRS = [
    ("memory", "memory", PROCESS, PROCESS, ["worker", "processes"]),
    ("sqlite", "sqlite", SERVER, SERVER, ["worker", "processes", "store", "disk"]),
    ("redis", "redis", SERVER, SERVER, ["worker", "processes", "store", "disk"]),
    ("redis", "postgres", DISK, SERVER, ["worker", "processes", "hot", "durable", "disk"]),
    ("memory", "sqlite", SERVER, PROCESS, ["worker", "processes", "durable", "disk"]),
    ("memory", "postgres", DISK, PROCESS, ["worker", "processes", "durable", "disk"]),
]

REFUSED = {
    "hot: memory": {"several processes"},
    "hot: redis": set(),
    "hot: sqlite": set(),
    "durable: memory": {
        "several processes",
        "jobs in the caller's transaction",
        "history that outlives the process",
    },
    "durable: redis": {"jobs in the caller's transaction"},
    "durable: sqlite": {"jobs in the caller's transaction"},
    "durable: postgres": set(),
}


@pytest.fixture
def plan_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """Run the command for a pair, and give its JSON."""

    def run(hot: str, durable: str, *args: str, **urls: str) -> Any:
        monkeypatch.chdir(tmp_path)
        for name in list(os.environ):
            if name.startswith("OQRON_") and not name.startswith("OQRON_TEST_"):
                monkeypatch.delenv(name)
        monkeypatch.setenv("OQRON_HOT", hot)
        monkeypatch.setenv("OQRON_DURABLE", durable)
        for backend in {hot, durable} & {"redis", "postgres"}:
            url = urls.get(backend) or request.getfixturevalue(f"{backend}_url")
            monkeypatch.setenv(f"OQRON_{backend.upper()}__URL", url)
        result = CliRunner().invoke(cli, ["plan", *args])
        assert 0 == result.exit_code, result.stderr
        return json.loads(result.stdout) if "--json" in args else result.stdout

    return run


@pytest.mark.parametrize("hot, durable, truth, passing, events", PAIRS)
def test_a_plan_is_whole_for_every_pair(
    plan_of: Any,
    hot: str,
    durable: str,
    truth: Durability,
    passing: Durability,
    events: list[str],
) -> None:
    """What it can do, by plane; what each record kind survives; what is lost when."""
    found = plan_of(hot, durable, "--json")

    refused = {
        plane: {
            item["name"]
            for item in found["features"]
            if item["plane"] == plane and item["support"] == "refused"
        }
        for plane in ("hot", "durable")
    }
    assert REFUSED[f"hot: {hot}"] == refused["hot"]
    assert REFUSED[f"durable: {durable}"] == refused["durable"]
    assert {kind.value: truth.value for kind in RecordKind} == found["durability"]
    assert passing.value == found["hotDurability"]
    assert events == [item["event"] for item in found["losses"]]


@pytest.mark.parametrize(("hot", "durable"), [pair[:2] for pair in PAIRS])
def test_a_plan_names_every_service(plan_of: Any, hot: str, durable: str) -> None:
    """Each feature says how it is done: natively, in a slower way, or not at all."""
    found = plan_of(hot, durable, "--json")

    named = {(item["plane"], item["name"]) for item in found["features"]}
    assert {item["support"] for item in found["features"]} <= {"native", "emulated", "refused"}
    assert all(item["detail"] for item in found["features"])
    assert {
        *(("hot", name) for name in ("queues", "waiting for work", "signals", "cache")),
        *(("hot", name) for name in ("locks and leaders", "counters and rate limits")),
        *(("durable", name) for name in ("batches", "atomic batches", "expiry")),
        ("hot", "live progress"),
        ("durable", "queries, counts, retention"),
    } <= named


def test_a_plan_for_people_holds_what_the_document_holds(plan_of: Any) -> None:
    """The mode, a feature, a record kind, a loss."""
    text = plan_of("sqlite", "sqlite")

    assert text.startswith("mode sqlite: hot plane sqlite, durable plane sqlite")
    for part in ("live progress", "emulated", "oqron_runs", "server survives", "a worker"):
        assert part in text


@pytest.mark.parametrize(("persistent", "warned"), [(False, True), (True, False)])
def test_a_plan_says_what_the_planes_warn_of(
    plan_of: Any,
    redis_server_factory: Any,
    persistent: bool,
    warned: bool,
) -> None:
    """A store that keeps nothing is named beside what it would survive else."""
    server = redis_server_factory(persistent=persistent)

    planes = plan_of("redis", "redis", "--json", redis=server.url)["planes"]
    text = plan_of("redis", "redis", redis=server.url)

    assert [] == planes[0]["reasons"]
    assert warned == any("Redis does not persist" in reason for reason in planes[1]["reasons"])
    assert warned == ("Redis does not persist" in text)


# --- backends that are not ours ------------------------------------------------------


def planned(hot: Capabilities, durable: Capabilities, **found: Any) -> Plan:
    """Plan with planes that declare these."""
    return make_plan(
        Settings(hot=hot.backend, durable=durable.backend),
        Probe(plane="hot", backend=hot.backend, capabilities=hot),
        Probe(plane="durable", backend=durable.backend, capabilities=durable, **found),
    )


def lost(plan: Plan) -> dict[str, str]:
    """Give what is lost, by event."""
    return {item.event: item.lost for item in plan.losses}


FAST = Capabilities(backend="fast", durability=SERVER, shared=True)


def test_kinds_that_survive_less_are_named() -> None:
    """A backend may keep some kinds more carefully than others."""
    kinds = {RecordKind.RUN: SERVER, RecordKind.LOG: PROCESS}
    durable = Capabilities(backend="mixed", durability=DISK, kinds=kinds, shared=True)

    plan = planned(FAST, durable)

    assert "log" in lost(plan)["processes"]
    assert lost(plan)["durable"].endswith("of run")
    assert "job" in lost(plan)["disk"]
    assert "log" not in lost(plan)["disk"]
    [outlives] = [item for item in plan.features if item.name.startswith("history")]
    assert ("refused", "all but log") == (outlives.support, outlives.detail)


def test_a_hot_store_that_is_on_disk_loses_nothing_in_a_crash() -> None:
    """What it declares is what is said, whatever it is called."""
    hot = Capabilities(backend="solid", durability=DISK, shared=True)
    durable = Capabilities(backend="slow", durability=DISK, shared=True)

    assert lost(planned(hot, durable))["hot"] == "nothing that was acknowledged"


def test_what_is_left_to_the_contract_is_emulated() -> None:
    """Methods that a backend does not write itself work, one by one."""
    durable = Capabilities(backend="lazy", durability=DISK, atomic=False, notify=False)

    plan = planned(FAST, durable, emulated=("live.merge_many",))

    support = {item.name: item.support for item in plan.features}
    assert "emulated" == support["live.merge_many"]
    assert "refused" == support["atomic batches"]


def test_a_plane_that_does_not_open_says_nothing_and_the_other_one_does() -> None:
    """Half a plan is given as such: no loss is guessed."""
    plan = make_plan(
        Settings(hot="fast", durable="away"),
        Probe(plane="hot", backend="fast", capabilities=FAST, health=Health(ok=True)),
        Probe(plane="durable", backend="away", error="no answer"),
    )

    assert {"hot"} == {item.plane for item in plan.features}
    assert ({}, ()) == (plan.durability, plan.losses)
    assert "no answer" == plan.document()["planes"][1]["error"]


def test_settings_that_are_missing_are_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 2, as wrong settings are everywhere, and the variable is named."""
    monkeypatch.chdir(tmp_path)
    for name, value in (("HOT", "memory"), ("DURABLE", "postgres")):
        monkeypatch.setenv(f"OQRON_{name}", value)
    monkeypatch.delenv("OQRON_MODE", raising=False)
    monkeypatch.delenv("OQRON_POSTGRES__URL", raising=False)
    result = CliRunner().invoke(cli, ["plan"])

    assert 2 == result.exit_code
    assert "postgres.url: is required and not set; OQRON_POSTGRES__URL may hold it" in result.stderr
