"""Values that expire."""

from __future__ import annotations

import sqlite3

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from oqron_core.planes import MISSING, Cache, Missing, check_key, check_keys, encode, ttl_ms
from oqron_sqlite._facet import Place
from oqron_sqlite._lane import Transaction


__all__ = ["SqliteCache"]

_PUT: Final = """
INSERT INTO oqron_hot_cache VALUES (?, ?, ?, ?)
ON CONFLICT (scope, key) DO UPDATE
SET value = excluded.value, expires_at = excluded.expires_at
"""
_ADD: Final = """
INSERT INTO oqron_hot_cache VALUES (:scope, :key, :value, :at)
ON CONFLICT (scope, key) DO UPDATE
SET value = excluded.value, expires_at = excluded.expires_at
WHERE oqron_hot_cache.expires_at <= :now
"""
_GET: Final = """
SELECT c.key, c.value FROM json_each(:keys) AS j CROSS JOIN oqron_hot_cache AS c
ON c.scope = :scope AND c.key = j.value
WHERE c.expires_at IS NULL OR c.expires_at > :now
"""
_DELETE: Final = """
DELETE FROM oqron_hot_cache WHERE scope = :scope AND key = :key
AND (expires_at IS NULL OR expires_at > :now)
"""


class SqliteCache(Cache):
    """The cache of one scope."""

    __slots__ = ("_place",)

    def __init__(self, place: Place) -> None:
        self._place = place

    async def get_many(self, keys: Sequence[str]) -> Sequence[Any | Missing]:
        self._place.gate.check()
        check_keys(keys)
        if not keys:
            return []
        mine = [*keys]
        asked = orjson.dumps([*dict.fromkeys(mine)]).decode()
        params = {"scope": self._place.number, "keys": asked}

        def read(driver: sqlite3.Connection, now: int) -> dict[str, str]:
            return dict(driver.execute(_GET, params | {"now": now}).fetchall())

        found = await self._place.read(read)
        return [orjson.loads(found[key]) if key in found else MISSING for key in mine]

    async def set_many(self, entries: Mapping[str, Any], *, ttl: float | None = None) -> None:
        self._place.gate.check()
        lasts = ttl_ms(ttl)
        encoded = {key: self._encode(key, value) for key, value in entries.items()}
        if not encoded:
            return
        scope = self._place.number

        def work(step: Transaction) -> None:
            at = None if lasts is None else step.now + lasts
            rows = [(scope, key, text, at) for key, text in encoded.items()]
            step.driver.executemany(_PUT, rows)

        await self._place.write(work)

    async def add(self, key: str, value: Any, *, ttl: float | None = None) -> bool:
        self._place.gate.check()
        lasts = ttl_ms(ttl)
        params = {"scope": self._place.number, "key": key, "value": self._encode(key, value)}

        def work(step: Transaction) -> bool:
            at = None if lasts is None else step.now + lasts
            more = {"at": at, "now": step.now}
            return step.driver.execute(_ADD, params | more).rowcount == 1

        return await self._place.write(work)

    async def delete_many(self, keys: Sequence[str]) -> Sequence[bool]:
        self._place.gate.check()
        check_keys(keys)
        if not keys:
            return []
        mine = [*keys]
        scope = self._place.number

        def work(step: Transaction) -> list[bool]:
            base = {"scope": scope, "now": step.now}
            return [step.driver.execute(_DELETE, base | {"key": key}).rowcount == 1 for key in mine]

        return await self._place.write(work)

    def _encode(self, key: str, value: Any) -> str:
        check_key(key)
        return encode(value, "value", max_bytes=self._place.max_bytes).data.decode()
