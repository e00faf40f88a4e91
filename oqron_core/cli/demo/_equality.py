"""Whether what comes out is what went in, types included."""

from __future__ import annotations

from typing import Any, Final

import attrs


__all__ = ["PLACES", "Ledger", "difference"]

PLACES: Final = ("job", "claim", "run", "retry", "dead letter", "requeue", "cancel")
"""Where a payload is read back, in the order of a job's life."""


def difference(sent: Any, found: Any, path: str = "payload") -> str | None:
    """
    Give the path of the first place where two JSON values differ, or None.

    Types count: true is not 1, 1 is not 1.0, null is not absent. A float may come
    back as the integer of the same value, since JSON has a single kind of number.
    """
    if type(sent) is float and type(found) is int:
        return None if sent == found else path
    if type(sent) is not type(found):
        return path
    if isinstance(sent, dict):
        if sent.keys() != found.keys():
            return path
        parts: Any = ((f"{path}.{key}", sent[key], found[key]) for key in sent)
    elif isinstance(sent, list):
        if len(sent) != len(found):
            return path
        pairs = enumerate(zip(sent, found, strict=True))
        parts = ((f"{path}[{index}]", *pair) for index, pair in pairs)
    else:
        return None if sent == found else path
    return next((bad for place, a, b in parts if (bad := difference(a, b, place))), None)


@attrs.define
class Ledger:
    """
    Every comparison of a payload that was read back.

    Attributes:
        payloads: What was sent, by id.
    """

    payloads: dict[str, Any] = attrs.field(repr=False)
    _seen: dict[str, set[str]] = attrs.field(factory=lambda: {place: set() for place in PLACES})
    _wrong: dict[tuple[str, str], str] = attrs.field(factory=dict)

    def compare(self, place: str, key: str, found: Any) -> None:
        """Compare what *place* holds with what was sent under the id *key*."""
        if key not in self.payloads:
            return
        self._seen[place].add(key)
        bad = difference(self.payloads[key], found)
        if bad is not None:
            self._wrong.setdefault((place, key), bad)

    def missing(self, place: str, key: str) -> None:
        """Note that *place* holds nothing where the payload should be."""
        self._seen[place].add(key)
        self._wrong.setdefault((place, key), "it is not there")

    def equal(self) -> dict[str, int]:
        """Count, for each place, the payloads that were equal at every look."""
        wrong = self._wrong
        return {
            place: sum((place, key) not in wrong for key in seen)
            for place, seen in self._seen.items()
        }

    def different(self) -> list[dict[str, str]]:
        """Name what was not equal: the place, the id and the path in the payload."""
        return [
            {"place": place, "id": key, "path": path}
            for (place, key), path in sorted(self._wrong.items())
        ]

    @property
    def whole(self) -> bool:
        """Whether every payload was read back equal in every place."""
        return not self._wrong and all(
            len(seen) == len(self.payloads) for seen in self._seen.values()
        )
