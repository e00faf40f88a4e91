"""What is looked at when a plane is opened, and by ``oqron doctor``."""

from __future__ import annotations

import asyncio
import logging
import time

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from oqron_core.exceptions import ConfigError, OqronError, StorageError
from oqron_core.hookspecs import DoctorReport
from oqron_core.planes import Durability, Health


if TYPE_CHECKING:
    from oqron_redis._settings import RedisSettings
    from oqron_redis._store import Store


__all__ = ["Facts", "add_checks", "health", "look_at", "refuse", "warn"]

_log = logging.getLogger("oqron.redis")

_OLDEST: Final = (6, 2)
_NEEDED: Final = "Redis 6.2 or later, or Valkey, is needed"
_SKEW: Final = 5.0
_KEY: Final = b"oqron:{check}"


@attrs.frozen(kw_only=True)
class Facts:
    """
    What a server says about itself. None where it does not say.

    Attributes:
        version: Such as ``7.0.15``.
        product: ``redis`` or ``valkey``.
        round_trip_ms: One round trip.
        skew_s: How far its clock is ahead of ours, in seconds.
        policy: ``maxmemory-policy``.
        maxmemory: The limit in bytes, 0 for none.
        used_memory: Bytes in use.
        aof: Whether it appends to a file.
        fsync: ``appendfsync``.
        save: The points of its snapshots; empty for none.
        role: ``master`` or ``slave``.
    """

    version: str | None = None
    product: str = "redis"
    round_trip_ms: float = 0.0
    skew_s: float = 0.0
    policy: str | None = None
    maxmemory: int | None = None
    used_memory: int | None = None
    aof: bool | None = None
    fsync: str | None = None
    save: str | None = None
    role: str | None = None

    @property
    def durability(self) -> Durability:
        """What its content survives, as far as it says."""
        if self.aof and self.fsync == "always":
            return Durability.DISK
        return Durability.SERVER

    @property
    def persists(self) -> bool | None:
        """Whether it persists at all."""
        if self.aof:
            return True
        if self.save is None or self.aof is None:
            return None
        return bool(self.save.strip())


async def look_at(store: Store) -> Facts:
    """
    Ask the server about itself; what it refuses to say stays None.

    Raises:
        UnavailableError: It does not answer.
    """
    started = time.monotonic()
    seconds, micros = await store.command(b"TIME", key=_KEY, again=True)
    took = time.monotonic() - started
    ahead = int(seconds) + int(micros) / 1e6 - (time.time() - took / 2)
    info = _info(await _try(store, b"INFO"))
    aof = info.get("aof_enabled")
    return Facts(
        version=info.get("valkey_version") or info.get("redis_version"),
        product="valkey" if "valkey_version" in info else "redis",
        round_trip_ms=took * 1000,
        skew_s=ahead,
        policy=info.get("maxmemory_policy") or await _config(store, b"maxmemory-policy"),
        maxmemory=_number(info.get("maxmemory")),
        used_memory=_number(info.get("used_memory")),
        aof=None if aof is None else aof == "1",
        fsync=await _config(store, b"appendfsync"),
        save=await _config(store, b"save"),
        role=info.get("role"),
    )


async def _try(store: Store, *words: bytes) -> Any:
    # Managed servers forbid some of this; what they refuse is left open.
    try:
        return await store.command(*words, key=_KEY, again=True)
    except StorageError as error:
        if error.retryable:
            raise
        return None


async def _config(store: Store, name: bytes) -> str | None:
    answer = await _try(store, b"CONFIG", b"GET", name)
    if not isinstance(answer, list) or len(answer) < 2:  # noqa: PLR2004 - a pair
        return None
    return bytes(answer[1]).decode(errors="replace")


def _info(data: Any) -> Mapping[str, str]:
    if not isinstance(data, bytes):
        return {}
    lines = data.decode(errors="replace").splitlines()
    pairs = (line.partition(":") for line in lines if line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _version(facts: Facts) -> tuple[int, ...] | None:
    if facts.version is None:
        return None
    parts = facts.version.split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit())


def refuse(facts: Facts, settings: RedisSettings) -> None:
    """
    Refuse a server that loses jobs.

    Raises:
        ConfigError: It may evict keys, or is too old.
    """
    problems = []
    version = _version(facts)
    if facts.product == "redis" and version is not None and version < _OLDEST:
        problems.append(f"redis: the server is {facts.version}; 6.2 or later is needed")
    if facts.policy not in {None, "noeviction"} and not settings.allow_eviction:
        problems.append(
            f"redis: the server's maxmemory-policy is {facts.policy}, so it may throw jobs "
            "away; set it to noeviction, or redis.allow_eviction = true"
        )
    if problems:
        raise ConfigError(tuple(problems))


def _worries(facts: Facts, *, persistent: bool) -> list[str]:
    worries = []
    if facts.policy is None:
        worries.append("Redis does not say its maxmemory-policy; make sure that it is noeviction")
    elif facts.policy != "noeviction":
        worries.append(
            f"Redis may evict keys (maxmemory-policy {facts.policy}), and with them jobs"
        )
    if persistent and facts.persists is False:
        worries.append(
            "Redis does not persist (no appendonly, no save): as the durable plane it "
            "loses every job and all history when it restarts; set appendonly yes"
        )
    elif persistent and facts.persists is None:
        worries.append("Redis does not say whether it persists; make sure that appendonly is yes")
    if facts.role == "slave":
        worries.append("this Redis is a replica and will refuse writes")
    if abs(facts.skew_s) > _SKEW:
        worries.append(
            f"the clock of Redis is {facts.skew_s:+.1f} s from this machine's; leases and "
            "delays go by the clock of Redis"
        )
    return worries


def warn(facts: Facts, *, persistent: bool) -> None:
    """Log what is risky about a server."""
    for worry in _worries(facts, persistent=persistent):
        _log.warning("%s", worry)


async def health(store: Store, *, persistent: bool) -> Health:
    """Say how the server is. Does not raise."""
    try:
        await store.ready()
        facts = await look_at(store)
    except OqronError as error:
        return Health(ok=False, reasons=(f"{error}.",))
    details = {name: value for name, value in attrs.asdict(facts).items() if value is not None}
    writable = facts.role != "slave"
    return Health(
        ok=writable, reasons=tuple(_worries(facts, persistent=persistent)), details=details
    )


# --- oqron doctor ---------------------------------------------------------------

Verdict = tuple[bool | None, str]


def _mib(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 2**20:.1f} MiB"


def _on_round_trip(facts: Facts, _: RedisSettings) -> Verdict:
    return True, f"One round trip takes {facts.round_trip_ms:.2f} ms."


def _on_version(facts: Facts, _: RedisSettings) -> Verdict:
    version = _version(facts)
    if version is None:
        return True, f"The server does not say its version; {_NEEDED}."
    fine = facts.product != "redis" or version >= _OLDEST
    return fine, f"{facts.product.capitalize()} {facts.version} ({_NEEDED})."


def _on_policy(facts: Facts, settings: RedisSettings) -> Verdict:
    if facts.policy is None:
        return None, "The server does not say its maxmemory-policy; it must be noeviction."
    if facts.policy == "noeviction":
        return True, "maxmemory-policy is noeviction."
    said = f"maxmemory-policy is {facts.policy}; set noeviction."
    return (None if settings.allow_eviction else False), said


def _on_persistence(facts: Facts, _: RedisSettings) -> Verdict:
    if facts.persists is None:
        return None, "The server does not say whether it persists."
    if not facts.persists:
        return None, "Nothing is persisted; set appendonly yes where Redis is durable."
    how = f"append-only, fsync {facts.fsync}" if facts.aof else "snapshots only"
    return True, f"Persistence: {how}."


def _on_memory(facts: Facts, _: RedisSettings) -> Verdict:
    used, limit = facts.used_memory, facts.maxmemory
    if not limit:
        return True, f"{_mib(used)} in use, without a limit."
    fine = used is None or used < limit * 0.9
    return fine, f"{_mib(used)} of {_mib(limit)} in use{'' if fine else '; make room'}."


async def _on_scripts(store: Store) -> Verdict:
    answer = await store.run("look", [_KEY + b":%d" % n for n in range(5)], [0], again=True)
    return answer == [0, -1], "Scripts can be run."


_CHECKS: Final[Mapping[str, Callable[[Facts, RedisSettings], Verdict]]] = {
    "redis round trip": _on_round_trip,
    "redis version": _on_version,
    "redis policy": _on_policy,
    "redis persistence": _on_persistence,
    "redis memory": _on_memory,
}


def add_checks(report: DoctorReport) -> None:
    """Add the checks; each connects by itself when it is run."""
    for name, judge in _CHECKS.items():
        # What is only hot can be rebuilt, and need not be persisted.
        planes = ("durable",) if judge is _on_persistence else ("hot", "durable")
        report(name, _facts_check(judge), planes=planes)
    report("redis scripts", _scripts_check)


def _facts_check(
    judge: Callable[[Facts, RedisSettings], Verdict],
) -> Callable[[Any], Awaitable[Verdict]]:
    async def check(settings: RedisSettings) -> Verdict:
        from oqron_redis._store import open_store  # noqa: PLC0415 - it imports this module

        async with open_store(settings) as store:
            await store.ready()
            return judge(await look_at(store), settings)

    return check


async def _scripts_check(settings: RedisSettings) -> Verdict:
    from oqron_redis._store import open_store  # noqa: PLC0415 - it imports this module

    async with open_store(settings) as store:
        await store.ready()
        async with asyncio.timeout(settings.timeout + settings.connect_timeout):
            return await _on_scripts(store)
