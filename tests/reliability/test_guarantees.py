"""Every promise in the documentation names tests that are there."""

from __future__ import annotations

import re

from pathlib import Path


ROOT = Path(__file__).parents[2]


def test_every_promise_is_held_by_tests_that_exist() -> None:
    """A row without a test, or with one that was renamed, is no promise."""
    page = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    promises = page.partition("## What is promised")[2].partition("\n## ")[0]
    rows = [line for line in promises.splitlines() if line.startswith("| ")][1:]
    known: set[str] = set()
    for folder in ("tests", "oqron_core/testing/contracts"):
        for path in (ROOT / folder).rglob("*.py"):
            known.update(re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8")))

    rows = [row for row in rows if not row.startswith("| ---")]
    assert len(rows) > 15
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named, row
        assert set() == {*named} - known, row
