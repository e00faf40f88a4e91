"""Identifiers: in order, never twice, and what RFC 9562 says they are."""

from __future__ import annotations

import itertools
import threading
import uuid

import pytest

from oqron_core import _ids
from oqron_core._ids import uuid7, uuid7_block


def of_block(block: str) -> list[str]:
    """Give the first, the second and the last identifier of a block."""
    return [f"{block}{number:04x}" for number in (0, 1, 0xFFFF)]


def mixed(count: int) -> list[str]:
    """Make single identifiers and some of blocks, in turn."""
    made: list[str] = []
    for number in range(count):
        made += [uuid7()] if number % 3 else of_block(uuid7_block())
    return made


def test_they_sort_in_the_order_in_which_they_are_made() -> None:
    """Within a millisecond, across milliseconds, single ones and blocks."""
    made = mixed(20_000)

    assert made == sorted(made)
    assert len({*made}) == len(made)
    for text in itertools.islice(made, 0, None, 97):
        parsed = uuid.UUID(text)
        assert (str(parsed), parsed.version, parsed.variant) == (text, 7, uuid.RFC_4122)


@pytest.mark.parametrize("tail", [(1 << 74) - 1, (1 << 74) - 3, (1 << 74) - 0x1_0000, 0xFFFF])
def test_they_go_on_where_a_millisecond_is_used_up(tail: int) -> None:
    """The next ones are of the next millisecond, and still in order."""
    for make in (mixed, lambda _: of_block(uuid7_block())):
        before = uuid7()
        # A clock that is ahead; it is not put back, as what was given out is not.
        _ids._begin(_ids._last_ms + 1000)
        _ids._tail = tail
        made = [before, *make(20), uuid7()]

        assert made == sorted({*made})


def test_threads_share_one_sequence() -> None:
    """No identifier is made twice."""
    made: list[list[str]] = [[] for _ in range(4)]
    threads = [threading.Thread(target=lambda into=into: into.extend(mixed(3000))) for into in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    together = [text for part in made for text in part]
    assert len({*together}) == len(together)
    assert all(part == sorted(part) for part in made)
