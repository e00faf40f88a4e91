"""What the demo works on: a file of JSON lines, or a sample of its own."""

from __future__ import annotations

import contextlib
import hashlib
import sys

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from oqron_core._names import check_name
from oqron_core.cli._payload import parse_json
from oqron_core.exceptions import InvalidValueError


__all__ = ["LATER", "MAX_ATTEMPTS", "Cast", "Item", "cast", "later", "read_items", "sample"]

MAX_ATTEMPTS: Final = 3
LATER: Final = "reminders"
"""The queue of the job that is not due yet."""
_ONCE_IN: Final = 7


@attrs.frozen
class Item:
    """
    One payload.

    Attributes:
        queue: Where it goes.
        id: The id of its job.
        payload: The payload.
        tags: Labels of its job.
        poison: Whether no attempt at it can succeed.
    """

    queue: str
    id: str
    payload: Any = attrs.field(repr=False)
    tags: tuple[str, ...] = ()
    poison: bool = False


@attrs.frozen
class Cast:
    """
    Who fails, and how often. Made from the ids alone, so it is the same each time.

    Attributes:
        items: Everything to be worked on.
        failures: For an id, how many attempts fail; the others succeed at once.
    """

    items: Sequence[Item]
    failures: dict[str, int]

    @property
    def queues(self) -> list[str]:
        """The queues, in the order in which they first occur."""
        return list(dict.fromkeys(item.queue for item in self.items))


def cast(items: Sequence[Item]) -> Cast:
    """Pick one that fails twice, one that never succeeds, and some that fail once."""
    ranked = sorted(items, key=_rank)
    failures: dict[str, int] = {}
    poison = next((item for item in ranked if item.poison), None)
    if poison is None and len(ranked) > 1:
        poison = ranked[1]
    if poison is not None:
        failures[poison.id] = MAX_ATTEMPTS
    others = [item for item in ranked if item is not poison]
    for item in others[:1]:
        failures[item.id] = MAX_ATTEMPTS - 1
    for item in others[1 : 1 + len(items) // _ONCE_IN]:
        failures[item.id] = 1
    return Cast(items, failures)


def _rank(item: Item) -> bytes:
    return hashlib.sha256(item.id.encode()).digest()


def later() -> Item:
    """Make the job that is not due yet, so that no run of it exists."""
    payload = {"remind": "renew the certificate", "days_left": 30}
    return Item(LATER, "reminder-01", payload, ("later",))


# --- a file ---------------------------------------------------------------------


def read_items(source: Path) -> list[Item]:
    """
    Read one payload per line.

    A line that is an object with a ``payload`` gives that, and its ``event`` as a
    label; every other line is the payload itself. Empty lines are skipped.

    Args:
        source: A file; ``-`` is standard input.

    Raises:
        InvalidValueError: A line is no portable JSON, or there is none.
        OSError: The file cannot be read.
    """
    queue = _queue_name(source)
    items = [
        _item(queue, number, parse_json(line, f"line {number}"))
        for number, line in _lines(source)
        if line.strip()
    ]
    if not items:
        raise InvalidValueError(str(source), "holds no line of JSON; give one payload per line")
    return items


def _lines(source: Path) -> Iterator[tuple[int, bytes]]:
    if str(source) == "-":
        yield from enumerate(sys.stdin.buffer, start=1)
        return
    with source.open("rb") as file:
        yield from enumerate(file, start=1)


def _queue_name(source: Path) -> str:
    with contextlib.suppress(InvalidValueError):
        name = "input" if str(source) == "-" else source.stem
        if name != LATER:
            return check_name("queue", name)
    return "input"


def _item(queue: str, number: int, line: Any) -> Item:
    payload = line
    tags: tuple[str, ...] = ()
    if isinstance(line, dict) and "payload" in line:
        payload = line["payload"]
        event = line.get("event")
        tags = (event,) if isinstance(event, str) else ()
    return Item(queue, f"line-{number:04d}", payload, tags)


# --- the sample -----------------------------------------------------------------

_PEOPLE: Final = (
    "ada@example.org",
    "Łukasz <lukasz@example.org>",
    "grace@example.org",
    "玉@example.org",
    "linus@example.org",
    "margaret@example.org",
    "zoë@example.org",
)
_TEMPLATES: Final = ("welcome", "receipt", "password-reset", "weekly-digest")
_REPORTS: Final = ("revenue", "churn", "signups", "latency")
_POISONED: Final = 7
_EVENTS: Final = ("order.created", "order.paid", "order.shipped", "refund.opened")


def sample() -> list[Item]:
    """Make about sixty small jobs for three queues."""
    return [
        *(_email(number) for number in range(1, 31)),
        *(_report(number) for number in range(1, 11)),
        *(_webhook(number) for number in range(1, 21)),
    ]


def _email(number: int) -> Item:
    template = _TEMPLATES[number % len(_TEMPLATES)]
    payload: dict[str, Any] = {
        "to": _PEOPLE[number % len(_PEOPLE)],
        "template": template,
        "locale": ("en", "pl", "zh-Hant")[number % 3],
        "params": {"order": 1000 + number, "total": number * 3.5, "gift": number % 5 == 0},
        "attachments": [] if number % 4 else [{"name": f"receipt-{number}.pdf", "bytes": 48_213}],
        "reply_to": None,
    }
    return Item("emails", f"email-{number:02d}", payload, (template,))


def _report(number: int) -> Item:
    name = _REPORTS[number % len(_REPORTS)]
    poison = number == _POISONED
    payload: dict[str, Any] = {
        "report": name,
        "range": ["2024-01-01", f"2024-01-{number + 10:02d}"],
        "rows": "twelve thousand" if poison else number * 12_500,
        "share": number / 10,
        "filters": {},
    }
    return Item("reports", f"report-{number:02d}", payload, (name,), poison)


def _webhook(number: int) -> Item:
    event = _EVENTS[number % len(_EVENTS)]
    signature = hashlib.sha256(str(number).encode()).hexdigest()[:16]
    payload: dict[str, Any] = {
        "event": event,
        "url": f"https://shop-{number % 6}.example.com/hooks",
        "body": {"id": 2**53 + number, "amount": number * 99.5, "lines": [number, [], {}]},
        "headers": {"X-Signature": f"sha256={signature}"},
        "retried": False,
    }
    return Item("webhooks", f"webhook-{number:02d}", payload, (event,))
