"""Named locks with leases."""

from __future__ import annotations

from typing import Any, Final

from oqron_core.planes import INT_MAX, Lease, Locks, check_key, check_name, lease_ms
from oqron_sqlite._facet import Place, tickets
from oqron_sqlite._lane import Transaction


__all__ = ["SqliteLocks"]

_TAKE: Final = """
INSERT INTO oqron_hot_locks VALUES (:scope, :key, :owner, :token, :at)
ON CONFLICT (scope, key) DO UPDATE
SET owner = excluded.owner, token = excluded.token, expires_at = excluded.expires_at
WHERE oqron_hot_locks.expires_at <= :now
"""
_HELD: Final = "WHERE scope = :scope AND key = :key AND token = :token AND expires_at > :now"
_RENEW: Final = f"UPDATE oqron_hot_locks SET expires_at = :at {_HELD}"  # noqa: S608 - of constants
_RELEASE: Final = f"DELETE FROM oqron_hot_locks {_HELD}"  # noqa: S608 - of constants
_HOLDER: Final = """
SELECT owner, token, expires_at FROM oqron_hot_locks
WHERE scope = :scope AND key = :key AND expires_at > :now
"""


class SqliteLocks(Locks):
    """The locks of one scope."""

    __slots__ = ("_place",)

    def __init__(self, place: Place) -> None:
        self._place = place

    async def acquire(self, key: str, *, owner: str, lease_for: float) -> Lease | None:
        self._place.gate.check()
        check_key(key)
        check_name("owner", owner)
        lasts = lease_ms(lease_for)

        def work(step: Transaction) -> Lease | None:
            token = tickets(step, 1) + 1
            at = step.now + lasts
            params = {"scope": self._place.number, "key": key, "owner": owner}
            params |= {"token": token, "at": at, "now": step.now}
            taken = step.driver.execute(_TAKE, params).rowcount == 1
            return Lease("", key, owner, token, at) if taken else None

        return await self._place.write(work)

    async def renew(self, lease: Lease, *, lease_for: float) -> bool:
        self._place.gate.check()
        return await self._settle(_RENEW, lease, lease_ms(lease_for))

    async def release(self, lease: Lease) -> bool:
        self._place.gate.check()
        return await self._settle(_RELEASE, lease, 0)

    async def _settle(self, statement: str, lease: Lease, lasts: int) -> bool:
        # A lease of a queue holds no lock.
        if lease.queue or not 0 <= lease.token <= INT_MAX:
            return False
        params: dict[str, Any] = {"scope": self._place.number, "key": lease.id}

        def work(step: Transaction) -> bool:
            more = {"token": lease.token, "now": step.now, "at": step.now + lasts}
            return step.driver.execute(statement, params | more).rowcount == 1

        return await self._place.write(work)

    async def holder(self, key: str) -> Lease | None:
        self._place.gate.check()
        check_key(key)
        params = {"scope": self._place.number, "key": key}
        found = await self._place.read(
            lambda driver, now: driver.execute(_HOLDER, params | {"now": now}).fetchone()
        )
        return None if found is None else Lease("", key, *found)
