"""Every public coroutine of every service, with arguments that make it work."""

from __future__ import annotations

import inspect
import itertools

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import attrs

from oqron_core import FixedWindow, Storage


__all__ = ["Call", "calls"]

QUEUE: Final = "q"
LEASE: Final = 0.4
TOPIC: Final = "t"
GROUP: Final = "g"

Perform = Callable[[Storage, dict[str, Any]], Awaitable[Any]]

_NOT_SERVICES: Final = frozenset({"hot", "durable", "settings", "unwritten"})
_LEFT_OUT: Final = frozenset({"logs.close"})
"""What only closing calls; after it nothing is logged any more."""


@attrs.frozen
class Call:
    """
    One public coroutine.

    Attributes:
        name: Such as ``jobs.add``.
        needs: Which arguments it cannot do without.
        perform: Does it.
    """

    name: str
    needs: tuple[str, ...]
    perform: Perform

    async def given(self, storage: Storage) -> dict[str, Any]:
        """Make the arguments, new ones for every call."""
        service = self.name.partition(".")[0]
        found: dict[str, Any] = {}
        for name in self.needs:
            value = _VALUES.get(f"{service}.{name}", _VALUES.get(name, _MISSING))
            if value is _MISSING:
                msg = f"{self.name}: say what {name!r} is to be, in _VALUES"
                raise LookupError(msg)
            found[name] = await value(storage) if inspect.iscoroutinefunction(value) else value
        return found


_MISSING: Final = object()
_numbers = itertools.count()


_OFTEN: Final = 300
"""How often one is asked for, before what keeps it away is told."""


async def _claim(storage: Storage) -> Any:
    for _ in range(_OFTEN):
        await storage.jobs.add(QUEUE, {"n": 1}, max_attempts=1000)
        if claims := await storage.jobs.claim(QUEUE, lease_for=LEASE):
            return claims[0]
        # One of the calls is to pause it.
        await storage.jobs.resume(QUEUE)
    raise AssertionError(f"no job to claim: {await storage.hot.broker.counts(QUEUE)}")


async def _delivery(storage: Storage) -> Any:
    await storage.topics.subscribe(TOPIC, GROUP)
    for _ in range(_OFTEN):
        await storage.topics.publish(TOPIC, {"n": 1})
        if claims := await storage.topics.claim(TOPIC, GROUP, lease_for=LEASE):
            return claims[0]
        # Likewise, and a pause that was cancelled may come late.
        await storage.topics.resume(TOPIC, GROUP)
    queue = storage.topics.delivery_queue(TOPIC, GROUP)
    raise AssertionError(f"no delivery to claim: {await storage.hot.broker.counts(queue)}")


async def _held(storage: Storage) -> Any:
    return await storage.locks.acquire("held", lease_for=LEASE, wait=None)


async def _schedule_name(storage: Storage) -> Any:
    name = f"s{next(_numbers)}"
    await storage.schedules.put("cron", name, next_run_at=1)
    return name


async def _schedule(storage: Storage) -> Any:
    return await storage.schedules.get("cron", await _schedule_name(storage))


async def _claims(storage: Storage) -> Any:
    return [await _claim(storage)]


async def _pairs(storage: Storage) -> Any:
    return [(await _claim(storage), {"done": True})]


def _build() -> str:
    return "built"


# A function that is a value, and not called to make one, is synchronous.
_VALUES: Final[dict[str, Any]] = {
    "queue": QUEUE,
    "id": "a",
    "jobs": [1, 2, 3],
    "lease_for": LEASE,
    "timeout": 0.05,
    "claim": _claim,
    "topics.claim": _delivery,
    "claims": _claims,
    "pairs": _pairs,
    "error": "boom",
    "name": "n",
    "namespace": "cron",
    "retention.kind": "run",
    "kind": "cron",
    "keep_for": 3600.0,
    "key": "k",
    "keys": ["k", "l"],
    "value": 1,
    "entries": {"k": 1},
    "ttl": 60.0,
    "tag": "t",
    "tags": ["t"],
    "builder": _build,
    "limit": FixedWindow(1000, per=60.0),
    "count": 3,
    "seconds": 0.2,
    "lease": _held,
    "module": "m",
    "next_run_at": 1,
    "expected": 1,
    "schedule": _schedule,
    "schedules.name": _schedule_name,
    "schedules.next_run_at": 2,
    "enqueue": ("q", {"n": 1}),
    "topic": TOPIC,
    "group": GROUP,
    "message": {"n": 1},
    "messages": [{"n": 1}, {"n": 2}],
    "to": "latest",
}


def calls(storage: Storage) -> Iterator[Call]:
    """Find them all, so that a new one is tried without a word said here."""
    for service_name, service in sorted(vars(storage).items()):
        if service_name.startswith("_") or service_name in _NOT_SERVICES:
            continue
        for name, method in inspect.getmembers(type(service), inspect.iscoroutinefunction):
            full = f"{service_name}.{name}"
            if not name.startswith("_") and full not in _LEFT_OUT:
                yield Call(full, _needs(method), _performer(service_name, name))
    yield from _CONTEXTS


def _needs(method: Callable[..., Any]) -> tuple[str, ...]:
    parameters = [*inspect.signature(method).parameters.values()][1:]
    # Short leases, so that the test sees them lapse.
    return tuple(p.name for p in parameters if p.default is p.empty or p.name == "lease_for")


def _performer(service_name: str, name: str) -> Perform:
    async def perform(storage: Storage, given: dict[str, Any]) -> Any:
        method = getattr(getattr(storage, service_name), name)
        operands = {
            p.name
            for p in inspect.signature(method).parameters.values()
            if p.kind is not p.KEYWORD_ONLY
        }
        words = {key: value for key, value in given.items() if key not in operands}
        return await method(*[v for k, v in given.items() if k in operands], **words)

    return perform


async def _hold(storage: Storage, given: dict[str, Any]) -> None:
    del given
    async with storage.locks.hold("hold", lease_for=LEASE):
        await storage.jobs.counts(QUEUE)


async def _lead(storage: Storage, given: dict[str, Any]) -> None:
    del given
    async with storage.locks.lead("lead", lease_for=LEASE):
        await storage.jobs.counts(QUEUE)


async def _slot(storage: Storage, given: dict[str, Any]) -> None:
    del given
    async with storage.limits.slots("slot", 2, lease_for=LEASE, wait=None):
        await storage.jobs.counts(QUEUE)


async def _guard(storage: Storage, given: dict[str, Any]) -> None:
    del given
    async with storage.breakers.guard("n"):
        await storage.jobs.counts(QUEUE)


async def _keep(storage: Storage, given: dict[str, Any]) -> None:
    async with storage.jobs.keep(given["claims"], lease_for=LEASE):
        await storage.jobs.counts(QUEUE)


async def _wait(storage: Storage, given: dict[str, Any]) -> None:
    del given
    await storage.jobs.claim("empty", wait=0.05)


_CONTEXTS: Final = (
    Call("locks.hold", (), _hold),
    Call("locks.lead", (), _lead),
    Call("limits.slots", (), _slot),
    Call("breakers.guard", (), _guard),
    Call("jobs.keep", ("claims",), _keep),
    Call("jobs.claim, waiting", (), _wait),
)
