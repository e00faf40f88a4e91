"""How the backend presents itself."""

from __future__ import annotations

import subprocess
import sys

from typing import Any

import pytest

import oqron_memory

from oqron_core.exceptions import InvalidValueError
from oqron_core.planes import CONTRACT_VERSION, Durability, SystemClock
from oqron_core.testing.clock import ManualClock
from oqron_memory import BACKEND, MemorySettings, MemoryStore


def test_both_planes_are_registered_under_one_backend() -> None:
    """One connection can serve both planes."""
    found: list[Any] = []
    oqron_memory.oqron_register_hot_planes(lambda backend, opener: found.append((backend, opener)))
    oqron_memory.oqron_register_durable_planes(
        lambda backend, opener: found.append((backend, opener))
    )
    assert [(BACKEND, oqron_memory.open_hot), (BACKEND, oqron_memory.open_durable)] == found
    assert ("memory", CONTRACT_VERSION) == (BACKEND.name, BACKEND.contract_version)


async def test_the_doctor_says_what_is_lost_when() -> None:
    """One check, which passes and names the limit."""
    checks: list[Any] = []
    oqron_memory.oqron_doctor(lambda name, check: checks.append((name, check)))
    ((name, check),) = checks
    assert "memory store" == name
    well, sentence = await check(MemorySettings(max_bytes=5000))
    assert well
    assert "5000" in sentence
    assert "process" in sentence


async def test_nothing_is_declared_that_a_process_cannot_keep(opened: Any) -> None:
    """Not shared, not durable, no transactions of the caller's."""
    async with opened() as planes:
        for plane in (planes.hot, planes.durable):
            assert Durability.PROCESS == plane.capabilities.durability
            assert not plane.capabilities.shared
            assert not plane.capabilities.transactions
            assert plane.capabilities.max_atomic_batch >= 10_000


@pytest.mark.parametrize(
    "settings, name",
    [
        ({"store": "shared"}, "memory.store"),
        ({"clock": "utc"}, "memory.clock"),
        ({"store": MemoryStore(), "max_bytes": 10}, "memory.store"),
        ({"store": MemoryStore(), "clock": SystemClock()}, "memory.store"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], name: str) -> None:
    """Text is no store and no clock; a store has a clock and a limit already."""
    with pytest.raises(InvalidValueError, match=name):
        MemorySettings(**settings)


def test_a_store_keeps_the_clock_it_was_made_with() -> None:
    """The clock can be replaced in tests."""
    clock = ManualClock()
    assert clock is MemoryStore(clock=clock).clock
    assert isinstance(MemoryStore().clock, SystemClock)


def test_importing_is_light() -> None:
    """Discovery loads neither the planes nor anything that only they need."""
    code = "import sys, oqron_memory; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "oqron_memory._store" in loaded
    assert loaded.isdisjoint({"oqron_memory._durable", "oqron_memory._hot", "pytest", "redis"})
