"""Locks, limits, cache and breakers: nothing blocks for ever, nothing old comes back."""

from __future__ import annotations

from typing import Any, Final

from oqron_core.models import Backoff
from oqron_core.planes import MISSING, FixedWindow
from oqron_core.protocol.holding import HeldLease
from oqron_core.services.breakers import BreakerPolicy, Permit
from oqron_core.storage import Storage
from oqron_core.testing.operations.walk import Case


__all__ = ["CASES"]

KEY: Final = "k"
LASTS: Final = 3600.0
"""Seconds for which what is meant to last does so, whatever else lapses."""
LIMIT: Final = FixedWindow(10, per=10.0**6)
OPENS: Final = BreakerPolicy(failures=1, open_for=Backoff.fixed(LASTS))
PROBES: Final = BreakerPolicy(failures=1, open_for=Backoff.fixed(0.0), probe_for=0.05)


# --- locks ------------------------------------------------------------------------------


async def _acquire(storage: Storage, given: Any) -> None:
    del given
    await storage.locks.acquire(KEY)


async def _acquired(storage: Storage, given: Any) -> HeldLease:
    del given
    held = await storage.locks.acquire(KEY)
    assert held is not None
    return held


async def _renew(storage: Storage, held: Any) -> None:
    await storage.locks.renew(held)


async def _release(storage: Storage, held: Any) -> None:
    await storage.locks.release(held)


async def _hold(storage: Storage, given: Any) -> None:
    del given
    async with storage.locks.hold(KEY, wait=0.0) as held:
        held.check()


async def _lead(storage: Storage, given: Any) -> None:
    del given
    async with storage.locks.lead(KEY, wait=0.0) as held:
        held.check()


async def _locks(storage: Storage) -> Any:
    """Anybody gets the lock and the lead, sooner or later."""
    taken = await storage.locks.acquire(KEY)
    assert taken is not None, "a lock that nobody gets any more"
    await storage.locks.release(taken)
    return await storage.locks.leader(KEY)


# --- limits -----------------------------------------------------------------------------------


async def _taken(storage: Storage, given: Any) -> None:
    del given
    await storage.limits.take(KEY, LIMIT, cost=3)


async def _banned(storage: Storage, given: Any) -> None:
    await _taken(storage, given)
    await storage.limits.ban(KEY, LASTS)


async def _reset(storage: Storage, given: Any) -> None:
    del given
    await storage.limits.reset(KEY)


async def _ban(storage: Storage, given: Any) -> None:
    del given
    await storage.limits.ban(KEY, LASTS, reason="a test")


async def _unban(storage: Storage, given: Any) -> None:
    del given
    await storage.limits.unban(KEY)


async def _slot(storage: Storage, given: Any) -> None:
    del given
    async with storage.limits.slots(KEY, 2) as held:
        held.check()


async def _limits(storage: Storage) -> Any:
    ban = await storage.limits.get_ban(KEY)
    decision = await storage.limits.peek(KEY, LIMIT)
    return decision.remaining, None if ban is None else ban.reason


async def _is_banned(storage: Storage) -> None:
    assert await storage.limits.banned(KEY) is not None, "a ban does not hold"


async def _is_let_in(storage: Storage) -> None:
    assert await storage.limits.banned(KEY) is None, "a ban that was lifted holds"


async def _slots(storage: Storage) -> Any:
    return await storage.limits.in_use(KEY, 2)


# --- cache ---------------------------------------------------------------------------------


async def _filled(storage: Storage, given: Any) -> None:
    del given
    await storage.cache.set("a", "old", ttl=LASTS, tags=["x"])
    await storage.cache.set("b", "old", ttl=LASTS, tags=["y"])
    await storage.cache.set("c", "old", ttl=LASTS)


async def _set(storage: Storage, given: Any) -> None:
    del given
    await storage.cache.set("a", "new", ttl=LASTS, tags=["x"])


async def _set_many(storage: Storage, given: Any) -> None:
    del given
    await storage.cache.set_many({"a": "new", "c": "new"}, ttl=LASTS, tags=["x", "z"])


async def _get_or_set(storage: Storage, given: Any) -> None:
    del given
    assert "built" == await storage.cache.get_or_set("d", _build, ttl=LASTS, tags=["x"])


async def _build() -> str:
    return "built"


async def _delete(storage: Storage, given: Any) -> None:
    del given
    await storage.cache.delete("a")


async def _delete_many(storage: Storage, given: Any) -> None:
    del given
    await storage.cache.delete_many(["a", "b"])


async def _invalidate(storage: Storage, given: Any) -> None:
    del given
    await storage.cache.invalidate("a")


async def _invalidate_tag(storage: Storage, given: Any) -> None:
    del given
    await storage.cache.invalidate_tag("x")


async def _invalidate_tags(storage: Storage, given: Any) -> None:
    del given
    await storage.cache.invalidate_tags(["x", "y"])


async def _cache(storage: Storage) -> Any:
    """What is there; and whether it was kept or not, a value is built by anybody."""
    found = await storage.cache.get_many(["a", "b", "c"], "missing")
    built = await storage.cache.get_or_set("d", _build, ttl=LASTS, lease_for=LASTS)
    return found, built


async def _old_is_gone(storage: Storage) -> None:
    assert await storage.cache.get("a", MISSING) is MISSING, "an old value is served"


async def _new_is_there(storage: Storage) -> None:
    assert "new" == await storage.cache.get("a"), "the value that was set is not there"


# --- breakers ------------------------------------------------------------------------------


async def _failing(storage: Storage, given: Any) -> None:
    del given
    await storage.breakers.failure(KEY)


async def _opened(storage: Storage, given: Any) -> None:
    del given
    await storage.breakers.failure(KEY, policy=OPENS)


async def _due(storage: Storage, given: Any) -> None:
    """Open, and its time is over."""
    del given
    await storage.breakers.failure(KEY, policy=PROBES)


async def _probing(storage: Storage, given: Any) -> Permit:
    await _due(storage, given)
    return await storage.breakers.allow(KEY, policy=PROBES)


async def _allow(storage: Storage, given: Any) -> None:
    del given
    await storage.breakers.allow(KEY, policy=PROBES)


async def _success(storage: Storage, permit: Any) -> None:
    await storage.breakers.success(KEY, permit=permit)


async def _failure(storage: Storage, given: Any) -> None:
    del given
    await storage.breakers.failure(KEY)


async def _open(storage: Storage, given: Any) -> None:
    del given
    await storage.breakers.failure(KEY, policy=OPENS)


async def _guard(storage: Storage, given: Any) -> None:
    del given
    async with storage.breakers.guard(KEY):
        pass


async def _guard_in_vain(storage: Storage, given: Any) -> None:
    del given
    try:
        async with storage.breakers.guard(KEY):
            raise LookupError  # noqa: TRY301 - the call that is guarded fails
    except LookupError:
        pass


async def _reset_breaker(storage: Storage, given: Any) -> None:
    del given
    await storage.breakers.reset(KEY)


async def _is_open(storage: Storage) -> None:
    assert not await storage.breakers.allow(KEY, policy=OPENS), "a breaker that opened is closed"


_COUNTED: Final = ("version", "retryAt", "failures")

CASES: Final[tuple[Case, ...]] = (
    Case(
        name="acquire a lock",
        covers=("locks.acquire",),
        act=_acquire,
        view=_locks,
    ),
    Case(
        name="renew a lock",
        covers=("locks.renew",),
        prepare=_acquired,
        act=_renew,
        again="here",
        view=_locks,
    ),
    Case(
        name="release a lock",
        covers=("locks.release",),
        prepare=_acquired,
        act=_release,
        again="here",
        view=_locks,
    ),
    Case(name="hold a lock", covers=("locks.hold",), act=_hold, patient=True, view=_locks),
    Case(name="lead", covers=("locks.lead",), act=_lead, patient=True, view=_locks),
    Case(name="take", covers=("limits.take",), act=_taken, twice=True, view=_limits),
    Case(
        name="reset a limit",
        covers=("limits.reset",),
        prepare=_taken,
        act=_reset,
        view=_limits,
    ),
    Case(name="ban", covers=("limits.ban",), act=_ban, view=_limits, holds=_is_banned),
    Case(
        name="unban",
        covers=("limits.unban",),
        prepare=_banned,
        act=_unban,
        view=_limits,
        holds=_is_let_in,
    ),
    Case(name="use a slot", covers=("limits.slots",), act=_slot, view=_slots),
    Case(
        name="set a value",
        covers=("cache.set",),
        prepare=_filled,
        act=_set,
        view=_cache,
        holds=_new_is_there,
    ),
    Case(
        name="set many values",
        covers=("cache.set_many",),
        prepare=_filled,
        act=_set_many,
        view=_cache,
        holds=_new_is_there,
    ),
    Case(
        name="build a value",
        covers=("cache.get_or_set",),
        prepare=_filled,
        act=_get_or_set,
        patient=True,
        view=_cache,
    ),
    Case(
        name="delete a value",
        covers=("cache.delete",),
        prepare=_filled,
        act=_delete,
        view=_cache,
        holds=_old_is_gone,
    ),
    Case(
        name="delete many values",
        covers=("cache.delete_many",),
        prepare=_filled,
        act=_delete_many,
        view=_cache,
        holds=_old_is_gone,
    ),
    Case(
        name="invalidate a value",
        covers=("cache.invalidate",),
        prepare=_filled,
        act=_invalidate,
        view=_cache,
        holds=_old_is_gone,
    ),
    Case(
        name="invalidate a tag",
        covers=("cache.invalidate_tag",),
        prepare=_filled,
        act=_invalidate_tag,
        view=_cache,
        holds=_old_is_gone,
    ),
    Case(
        name="invalidate tags",
        covers=("cache.invalidate_tags",),
        prepare=_filled,
        act=_invalidate_tags,
        view=_cache,
        holds=_old_is_gone,
    ),
    Case(
        name="ask a breaker for a probe",
        covers=("breakers.allow",),
        prepare=_due,
        act=_allow,
        loose=_COUNTED,
    ),
    Case(
        name="a probe that went well",
        covers=("breakers.success",),
        prepare=_probing,
        act=_success,
    ),
    Case(
        name="a success after a failure",
        covers=("breakers.success",),
        prepare=_failing,
        act=_success,
    ),
    Case(
        name="a failure",
        covers=("breakers.failure",),
        prepare=_failing,
        act=_failure,
        twice=True,
    ),
    Case(
        name="a failure that opens a breaker",
        covers=("breakers.failure",),
        act=_open,
        loose=_COUNTED,
        holds=_is_open,
    ),
    Case(
        name="a guarded call",
        covers=("breakers.guard",),
        prepare=_failing,
        act=_guard,
        loose=_COUNTED,
    ),
    Case(
        name="a guarded call that fails",
        covers=("breakers.guard",),
        prepare=_failing,
        act=_guard_in_vain,
        loose=_COUNTED,
    ),
    Case(
        name="reset a breaker",
        covers=("breakers.reset",),
        prepare=_opened,
        act=_reset_breaker,
        loose=_COUNTED,
    ),
)
