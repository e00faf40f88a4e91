"""Letting go of what has expired and is never asked for again."""

from __future__ import annotations

from typing import Final

from oqron_sqlite._lane import Transaction


__all__ = ["sweep"]

_MOST: Final = 500
_SWEEPS: Final = tuple(
    f"DELETE FROM {table} WHERE ({key}) IN "  # noqa: S608 - of constants
    f"(SELECT {key} FROM {table} WHERE expires_at <= :now LIMIT :most)"
    for table, key in (
        ("oqron_hot_cache", "scope, key"),
        ("oqron_hot_counters", "scope, key"),
        ("oqron_hot_limits", "scope, kind, key"),
        ("oqron_hot_locks", "scope, key"),
    )
)


def sweep(step: Transaction) -> int:
    """Delete up to 500 expired rows of each table of the hot plane; say how many."""
    params = {"now": step.now, "most": _MOST}
    return sum(step.driver.execute(one, params).rowcount for one in _SWEEPS)
