"""Locks, counters, limits and cache: small keys that expire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, final

from oqron_core.exceptions import CorruptRecordError, InvalidValueError
from oqron_core.planes import (
    INT_MAX,
    INT_MIN,
    MISSING,
    Cache,
    Counters,
    Decision,
    FixedWindow,
    Lease,
    Locks,
    Missing,
    RateLimit,
    SlidingWindow,
    TokenBucket,
    check_key,
    check_keys,
    check_name,
    check_take,
    decode,
    encode,
    lease_ms,
    ttl_ms,
)
from oqron_redis._session import Session


__all__ = ["RedisCache", "RedisCounters", "RedisLocks"]

_TOKEN_TTL_MS: Final = 86_400_000
"""How long a lock's token counter outlives its last use; a lost one goes on from the clock."""


@final
class RedisLocks(Locks):
    """Locks on Redis: one key with an expiry each, set in the same step."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    async def acquire(self, key: str, *, owner: str, lease_for: float) -> Lease | None:
        check_key(key)
        check_name("owner", owner)
        lease = lease_ms(lease_for)
        lock, token, _ = self._session.keys.lock(key)
        arguments = (owner.encode(), lease, _TOKEN_TTL_MS)
        answer = await self._session.run("lock", (lock, token), arguments)
        if answer is None:
            return None
        return Lease("", key, owner, int(answer[0]), int(answer[1]))

    async def renew(self, lease: Lease, *, lease_for: float) -> bool:
        return await self._settle(b"renew", lease, lease_ms(lease_for))

    async def release(self, lease: Lease) -> bool:
        return await self._settle(b"release", lease, 0)

    async def _settle(self, verb: bytes, lease: Lease, span: int) -> bool:
        check_key(lease.id)
        lock, _, nothing = self._session.keys.lock(lease.id)
        arguments = (verb, lease.token, span)
        return bool(await self._session.run("unlock", (lock, nothing), arguments))

    async def holder(self, key: str) -> Lease | None:
        check_key(key)
        lock, _, _ = self._session.keys.lock(key)
        held = await self._session.run("holder", (lock,), again=True)
        if held is None:
            return None
        token, expires_at, owner = held.split(b"|", 2)
        return Lease("", key, owner.decode(), int(token), int(expires_at))


@final
class RedisCounters(Counters):
    """Counters and limits on Redis."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    async def increment(self, key: str, *, by: int = 1, expires_in: float | None = None) -> int:
        check_key(key)
        if type(by) is not int or not INT_MIN <= by <= INT_MAX:
            raise InvalidValueError("by", "must be an int of at most 64 bits")
        ttl = ttl_ms(expires_in, "expires_in")
        place = self._session.keys.counter(key, b"sum")
        arguments = (b"%d" % by, b"" if ttl is None else ttl)
        answer = await self._session.run("increment", (place,), arguments)
        if answer is None:
            raise InvalidValueError("by", "would take the counter out of 64 bits")
        return int(answer)

    async def get(self, key: str) -> int | None:
        check_key(key)
        place = self._session.keys.counter(key, b"sum")
        answer = await self._session.command(b"GET", place, key=place, again=True)
        try:
            return None if answer is None else int(answer)
        except ValueError:
            raise CorruptRecordError(f"counter {key!r}") from None

    async def reset(self, key: str) -> bool:
        check_key(key)
        kinds = (b"sum", b"fixed", b"sliding", b"bucket")
        places = [self._session.keys.counter(key, kind) for kind in kinds]
        return bool(await self._session.command(b"UNLINK", *places, key=places[0]))

    async def take(self, key: str, limit: RateLimit, *, cost: int = 1) -> Decision:
        check_key(key)
        check_take(limit, cost)
        per = max(1, round(limit.per * 1000))
        name, kind = _ALGORITHMS[type(limit)]
        place = self._session.keys.counter(key, kind)
        numbers = (limit.limit, per, cost)
        if isinstance(limit, TokenBucket):
            numbers = (limit.limit, per, limit.capacity, cost)  # type: ignore[assignment]  # one more
        answer = await self._session.run(name, (place,), numbers)
        return Decision(
            allowed=answer[0] == 1,
            remaining=int(answer[1]),
            retry_after=int(answer[2]) / 1000,
            reset_at=int(answer[3]),
        )


_ALGORITHMS: Final[Mapping[type[RateLimit], tuple[str, bytes]]] = {
    FixedWindow: ("fixed_window", b"fixed"),
    SlidingWindow: ("sliding_window", b"sliding"),
    TokenBucket: ("token_bucket", b"bucket"),
}


@final
class RedisCache(Cache):
    """A cache on Redis: JSON text per key; the calls of a batch share a round trip."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    async def get_many(self, keys: Sequence[str]) -> Sequence[Any | Missing]:
        self._session.check_open()
        check_keys(keys)
        if not keys:
            return []
        calls = []
        for key in keys:
            place = self._session.keys.cached(key)
            calls.append(self._session.command(b"GET", place, key=place, again=True))
        found = await self._session.gather(calls)
        return [
            MISSING if data is None else decode(data, f"cache entry {key!r}")
            for key, data in zip(keys, found, strict=True)
        ]

    async def set_many(self, entries: Mapping[str, Any], *, ttl: float | None = None) -> None:
        self._session.check_open()
        check_keys(entries)
        expiry = ttl_ms(ttl)
        texts = {key: self._encode(key, value) for key, value in entries.items()}
        if not texts:
            return
        more = () if expiry is None else (b"PX", expiry)
        calls = []
        for key, text in texts.items():
            place = self._session.keys.cached(key)
            calls.append(self._session.command(b"SET", place, text, *more, key=place))
        await self._session.gather(calls)

    async def add(self, key: str, value: Any, *, ttl: float | None = None) -> bool:
        check_key(key)
        expiry = ttl_ms(ttl)
        text = self._encode(key, value)
        place = self._session.keys.cached(key)
        more = () if expiry is None else (b"PX", expiry)
        answer = await self._session.command(b"SET", place, text, b"NX", *more, key=place)
        return answer is not None

    async def delete_many(self, keys: Sequence[str]) -> Sequence[bool]:
        self._session.check_open()
        check_keys(keys)
        if not keys:
            return []
        calls = []
        for key in keys:
            place = self._session.keys.cached(key)
            calls.append(self._session.command(b"UNLINK", place, key=place))
        return [bool(gone) for gone in await self._session.gather(calls)]

    def _encode(self, key: str, value: Any) -> bytes:
        limit = self._session.context.max_value_bytes
        return encode(value, f"cache[{key!r}]", max_bytes=limit).data
