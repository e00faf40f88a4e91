"""Circuit breakers: stop calling what fails, and let one probe find out."""

from __future__ import annotations

import contextlib
import logging

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import attrs

from oqron_core._names import check_name
from oqron_core.exceptions import ConflictError, InvalidValueError, OqronError
from oqron_core.models import Backoff, Breaker, structure, unstructure
from oqron_core.planes.checks import seconds
from oqron_core.planes.values import Insert, Page, Patch, Query
from oqron_core.protocol.session import Session


__all__ = ["BreakerPolicy", "Breakers", "Permit"]

log: logging.Logger = logging.getLogger("oqron.breakers")

NAMESPACE: Final = "webhook_cb"
CLOSED: Final = "closed"
OPEN: Final = "open"
HALF_OPEN: Final = "half_open"
_TRIES: Final = 20
_FORGET_AFTER: Final = 30 * 86_400_000
"""Milliseconds after which a closed breaker that nobody uses is forgotten."""


@attrs.frozen(kw_only=True)
class BreakerPolicy:
    """
    When a breaker opens, and for how long.

    Attributes:
        failures: After how many failures in a row it opens, 1 to 1,000,000.
        open_for: How long it stays open: after the first time by ``delay_after(1)``,
            after a probe that failed by ``delay_after(2)``, and so on.
        probe_for: Seconds that a probe may take, >= 0.05; one that says nothing by
            then counts as dead, and another is let through.

    Raises:
        InvalidValueError: A value is out of range.
    """

    failures: int = 5
    open_for: Backoff = attrs.field(factory=lambda: Backoff.exponential(30.0, cap=600.0))
    probe_for: float = 30.0

    def __attrs_post_init__(self) -> None:
        if type(self.failures) is not int or not 1 <= self.failures <= 1_000_000:  # noqa: PLR2004 - a sane range
            raise InvalidValueError("policy.failures", "must be an int from 1 to 1,000,000")
        if not isinstance(self.open_for, Backoff):
            raise InvalidValueError("policy.open_for", "must be a Backoff")
        seconds("policy.probe_for", self.probe_for, least=0.05)


@attrs.frozen(kw_only=True)
class Permit:
    """
    Whether a call may be made now. True if it may.

    Attributes:
        name: What is protected.
        allowed: Whether the call may be made.
        state: The state of the breaker: ``closed``, ``open`` or ``half_open``.
        probe: Whether this call is the one that finds out.
        retry_after: Seconds until another is allowed, as far as known; 0.0 if this
            one is.
        failures: In a row, when it was asked.
        version: Of the record, when it was asked; 0 where there was none.
    """

    name: str
    allowed: bool
    state: str = CLOSED
    probe: bool = False
    retry_after: float = 0.0
    failures: int = 0
    version: int = 0

    def __bool__(self) -> bool:
        return self.allowed


_POLICY: Final = BreakerPolicy()


class Breakers:
    """
    Durable breakers, one per name among all processes of a scope.

    Closed, calls pass and failures in a row are counted. Open, none passes until
    the time is over. Then exactly one caller gets the probe, and the breaker is half
    open until that caller says how it went: success closes it, failure opens it for
    longer. A probe whose process dies is given to another after a while.

    Calls that began before the breaker opened change nothing when they end after.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    # --- ask and tell ---

    async def allow(self, name: str, *, policy: BreakerPolicy = _POLICY) -> Permit:
        """
        Ask whether to call; tell `success` or `failure` how it went.

        Args:
            name: What is protected, 1 to 255 characters.
            policy: How long a probe may take.

        Returns:
            The permit; true if the call may be made. Of any number of callers that
            ask when the time is over, one gets ``probe``.

        Raises:
            InvalidValueError: An argument is not legal.
            UnavailableError: The durable plane did not answer. A probe that may have
                been given so is given again after ``probe_for``.
        """
        self._check(name, policy)
        breaker = await self._read(name)
        if breaker is None:
            return Permit(name=name, allowed=True)
        if breaker.state == CLOSED:
            return _permit(breaker, allowed=True)
        now = await self._session.durable_time.now()
        if breaker.retry_at is not None and now < breaker.retry_at:
            return _permit(breaker, now=now)
        given = await self._change(
            breaker, state=HALF_OPEN, retry_at=now + round(policy.probe_for * 1000)
        )
        if given is not None:
            return _permit(given, allowed=True, probe=True)
        # Somebody else was faster; what is true now is for them to decide.
        later = await self._read(name)
        if later is None or later.state == CLOSED:
            return Permit(name=name, allowed=True, version=0 if later is None else later.version)
        return _permit(later, now=await self._session.durable_time.now())

    async def success(self, name: str, *, permit: Permit | None = None) -> None:
        """
        Tell that a call went well: ends the row of failures, or closes the breaker.

        Args:
            name: What is protected.
            permit: What `allow` gave. With it a call is known for the probe or for
                an old one, and the success of a breaker without failures costs no
                round trip.

        Raises:
            InvalidValueError: *name* is not legal, or the permit is of another.
            UnavailableError: The durable plane did not answer.
        """
        self._check(name, permit=permit)
        if permit is not None and permit.state == CLOSED and permit.failures == 0:
            return
        for _ in range(_TRIES):
            breaker = await self._read(name)
            if breaker is None or (breaker.state == CLOSED and breaker.failures == 0):
                return
            if breaker.state != CLOSED and not _is_probe(breaker, permit):
                return
            done = await self._change(
                breaker, state=CLOSED, failures=0, opened_at=None, retry_at=None
            )
            if done is not None:
                return

    async def failure(
        self, name: str, *, policy: BreakerPolicy = _POLICY, permit: Permit | None = None
    ) -> Breaker:
        """
        Tell that a call failed: counts it, and opens the breaker where it must.

        Args:
            name: What is protected, 1 to 255 characters.
            policy: When to open, and for how long.
            permit: What `allow` gave, so that the probe is told from an old call.

        Returns:
            The breaker as it is now.

        Raises:
            InvalidValueError: An argument is not legal, or the permit is of another.
            ConflictError: Others kept changing it.
            UnavailableError: The durable plane did not answer; it may have counted.
        """
        self._check(name, policy, permit)
        for _ in range(_TRIES):
            breaker = await self._counted(name)
            if breaker is None:
                continue
            if breaker.state == CLOSED and breaker.failures < policy.failures:
                return breaker
            if breaker.state != CLOSED and not _is_probe(breaker, permit):
                # Opened by others meanwhile, or by the probe that this is not.
                return breaker
            opened = await self._open(breaker, policy)
            if opened is not None:
                log.info("a breaker opened: %s", name)
                return opened
        msg = f"breaker {name!r} kept changing while a failure was counted; try again"
        raise ConflictError(msg)

    @contextlib.asynccontextmanager
    async def guard(
        self,
        name: str,
        *,
        policy: BreakerPolicy = _POLICY,
        on: tuple[type[Exception], ...] = (Exception,),
    ) -> AsyncIterator[Permit]:
        """
        Ask, make the call in the body, and tell how it went.

        A body that is cancelled tells nothing, and a probe goes back at once.

        Args:
            name: What is protected, 1 to 255 characters.
            policy: When to open, and for how long.
            on: Which exceptions of the body are failures; with others what is
                protected has answered, so they count as success.

        Raises:
            ConflictError: The breaker is open; says for how long.
            UnavailableError: The durable plane did not answer on entering.
        """
        permit = await self.allow(name, policy=policy)
        if not permit:
            msg = f"breaker {name!r} is {permit.state}; try again in {permit.retry_after:.3g} s"
            raise ConflictError(msg)
        try:
            yield permit
        except on:
            with _unless_untold(name):
                await self.failure(name, policy=policy, permit=permit)
            raise
        except Exception:
            with _unless_untold(name):
                await self.success(name, permit=permit)
            raise
        except BaseException:
            with _unless_untold(name):
                await self._put_back(permit)
            raise
        else:
            with _unless_untold(name):
                await self.success(name, permit=permit)

    # --- look and steer ---

    async def state(self, name: str) -> Breaker:
        """Read a breaker; one that was never used is closed."""
        self._check(name)
        return await self._read(name) or Breaker(name=name, version=0)

    async def query(
        self, *, state: str | None = None, limit: int = 50, after: str | None = None
    ) -> Page[Breaker]:
        """
        Read breakers, by name.

        Args:
            state: Only these: ``closed``, ``open`` or ``half_open``; None for all.
            limit: At most this many, 1 to 10,000.
            after: The ``next`` of the page before.

        Raises:
            InvalidValueError: An argument is not legal.
        """
        self._session.check_open()
        if state is not None and state not in {CLOSED, OPEN, HALF_OPEN}:
            reason = f"{state!r} is none of {CLOSED}, {OPEN}, {HALF_OPEN}"
            raise InvalidValueError("state", reason)
        where = [] if state is None else [("state", "=", state)]
        page = await self._session.durable.query(
            Query(namespace=NAMESPACE, where=where, limit=limit, after=after)
        )
        return Page([structure(Breaker, record.readable()) for record in page.items], page.next)

    async def reset(self, name: str) -> bool:
        """
        Close a breaker by hand; False where it was never used.

        Raises:
            ConflictError: Others kept changing it.
        """
        self._check(name)
        for _ in range(_TRIES):
            breaker = await self._read(name)
            if breaker is None:
                return False
            closed = await self._change(
                breaker, state=CLOSED, failures=0, opened_at=None, retry_at=None
            )
            if closed is not None:
                return True
        msg = f"breaker {name!r} kept changing while it was reset; try again"
        raise ConflictError(msg)

    # --- inside ---

    def _check(
        self, name: str, policy: BreakerPolicy = _POLICY, permit: Permit | None = None
    ) -> None:
        self._session.check_open()
        check_name("name", name)
        if not isinstance(policy, BreakerPolicy):
            raise InvalidValueError("policy", "must be a BreakerPolicy")
        if permit is not None and permit.name != name:
            raise InvalidValueError("permit", f"is for {permit.name!r}, not for {name!r}")

    async def _read(self, name: str) -> Breaker | None:
        record = (await self._session.durable.get(NAMESPACE, [name]))[0]
        return None if record is None else structure(Breaker, record.value)

    async def _counted(self, name: str) -> Breaker | None:
        """
        Count a failure where the breaker is closed; gives it as it is then.

        One increment, not a read and a write: a burst of failures is counted whole,
        and nobody has to try again.
        """
        expires_at = await self._session.durable_time.now() + _FORGET_AFTER
        patch = Patch(
            NAMESPACE,
            name,
            increment={"failures": 1, "version": 1},
            expect={"state": CLOSED},
            expires_at=expires_at,
        )
        result = (await self._session.durable.write([patch]))[0]
        if result.record is None:
            first = Insert(NAMESPACE, name, unstructure(Breaker(name=name, failures=1)), expires_at)
            result = (await self._session.durable.write([first]))[0]
            if not result.applied:
                return None
        return None if result.record is None else structure(Breaker, result.record.value)

    async def _change(
        self,
        breaker: Breaker,
        *,
        state: str,
        retry_at: int | None,
        failures: int | None = None,
        opened_at: int | None = None,
    ) -> Breaker | None:
        """Change a breaker if it is still as it was read; None where it is not."""
        changes: dict[str, Any] = {"state": state, "retryAt": retry_at}
        if state != HALF_OPEN:
            changes |= {"failures": failures, "openedAt": opened_at}
        expires_at = None
        if state == CLOSED:
            expires_at = await self._session.durable_time.now() + _FORGET_AFTER
        patch = Patch(
            NAMESPACE,
            breaker.name,
            set=changes,
            increment={"version": 1},
            expect={"state": breaker.state, "version": breaker.version},
            expires_at=expires_at,
        )
        result = (await self._session.durable.write([patch]))[0]
        if not result.applied or result.record is None:
            return None
        return structure(Breaker, result.record.value)

    async def _open(self, breaker: Breaker, policy: BreakerPolicy) -> Breaker | None:
        """Open a breaker that has counted enough, or whose probe failed."""
        now = await self._session.durable_time.now()
        expect: dict[str, Any] = {"state": breaker.state}
        increment = {"version": 1}
        failures = breaker.failures
        if breaker.state == HALF_OPEN:
            expect["version"] = breaker.version
            increment["failures"] = 1
            failures += 1
        open_for = policy.open_for.delay_after(max(1, failures - policy.failures + 1))
        patch = Patch(
            NAMESPACE,
            breaker.name,
            set={"state": OPEN, "openedAt": now, "retryAt": now + round(open_for * 1000)},
            increment=increment,
            expect=expect,
            expires_at=None,
        )
        result = (await self._session.durable.write([patch]))[0]
        if not result.applied or result.record is None:
            return None
        return structure(Breaker, result.record.value)

    async def _put_back(self, permit: Permit) -> None:
        """Let another have the probe at once: nothing was found out."""
        if not permit.probe:
            return
        breaker = await self._read(permit.name)
        if breaker is not None and _is_probe(breaker, permit):
            now = await self._session.durable_time.now()
            await self._change(breaker, state=HALF_OPEN, retry_at=now)


def _permit(
    breaker: Breaker, *, allowed: bool = False, probe: bool = False, now: int = 0
) -> Permit:
    wait = 0.0
    if not allowed and breaker.retry_at is not None:
        wait = max(1, breaker.retry_at - now) / 1000
    return Permit(
        name=breaker.name,
        allowed=allowed,
        state=breaker.state,
        probe=probe,
        retry_after=wait,
        failures=breaker.failures,
        version=breaker.version,
    )


def _is_probe(breaker: Breaker, permit: Permit | None) -> bool:
    """Whether the one who tells is the one who was let through to find out."""
    if breaker.state != HALF_OPEN:
        return False
    # Without a permit it must be believed: half open, only a probe calls.
    return permit is None or (permit.probe and permit.version == breaker.version)


@contextlib.contextmanager
def _unless_untold(name: str) -> Iterator[None]:
    """Let the call's own outcome stand where the plane cannot be told of it."""
    try:
        yield
    except OqronError as error:
        log.warning("how a call of %r went could not be told: %s", name, error)
