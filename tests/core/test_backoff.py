"""How long a job waits for its next attempt, however many there were."""

from __future__ import annotations

import math

import pytest

from oqron_core.exceptions import InvalidValueError
from oqron_core.models import Backoff


@pytest.mark.parametrize("factor", [1.5, 2, 2.0, 10, 1000.0])
@pytest.mark.parametrize("cap", [300.0, 366 * 86400.0])
def test_a_backoff_grows_to_its_cap_and_stays_there(factor: float, cap: float) -> None:
    """It neither overflows nor turns round, up to five thousand attempts and beyond."""
    backoff = Backoff.exponential(1.0, factor=factor, cap=cap)
    waits = [backoff.delay_after(attempt) for attempt in (*range(1, 5001), 10**6)]

    assert 1.0 == waits[0]
    assert sorted(waits) == waits
    assert cap == waits[100] == waits[-1]
    assert all(math.isfinite(wait) for wait in waits)


@pytest.mark.parametrize("attempt", [1, 46, 64, 1023, 1024, 1025, 5000])
def test_chance_stays_within_its_share(attempt: int) -> None:
    """The wait is never negative, also where all of it is drawn by chance."""
    backoff = Backoff.exponential(1.0, cap=300.0, jitter=1.0)
    most = 2 * min(300.0, 2.0 ** min(attempt - 1, 10))

    assert all(0 <= backoff.delay_after(attempt) <= most for _ in range(200))


@pytest.mark.parametrize("delay", [0, 0.0, -0.0])
def test_no_delay_stays_none(delay: float) -> None:
    """Zero times whatever is zero, and not what an overflow gives."""
    backoff = Backoff.exponential(delay, factor=1000.0)

    assert {0.0} == {backoff.delay_after(attempt) for attempt in (1, 2, 1000, 5000)}


@pytest.mark.parametrize("wrong", [-1, math.nan, math.inf, 2**63, "1", None, True])
def test_what_is_no_backoff_is_refused(wrong: object) -> None:
    """When it is made, and not when a job fails; what is stored and odd has the default."""
    for options in ({"delay": wrong}, {"cap": wrong}):
        with pytest.raises(InvalidValueError, match="backoff"):
            Backoff("exponential", **{"delay": 1.0, **options})  # type: ignore[arg-type]
    stored = {"type": "exponential", "delay": wrong}

    assert Backoff.exponential() == Backoff.from_wire(stored)
