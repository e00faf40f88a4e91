"""
The blocking twins of the services. Written by ``python -m oqron_core._syncgen``.

Every class here serves the same calls as the service it is named after, with the
same arguments, results and errors; see `oqron_core.sync` for how to get them.
"""

# Written by a program: change the services, then run it again.
# ruff: noqa: A002 - the words of the contract

from __future__ import annotations

import logging

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from oqron_core._portal import Portal
from oqron_core.models import Backoff, Breaker, Control, Job, LogEntry, Run
from oqron_core.models.group import Group
from oqron_core.models.records import Message
from oqron_core.models.schedule import Schedule
from oqron_core.planes.limits import Decision, RateLimit
from oqron_core.planes.values import Lease, Order, Page
from oqron_core.protocol.claims import Claim
from oqron_core.protocol.copies import LocalCache
from oqron_core.protocol.holding import HeldLease
from oqron_core.protocol.pauses import Pause
from oqron_core.protocol.pointers import GRACE, Move, NextAfter
from oqron_core.protocol.retaining import Prunable, Rule
from oqron_core.protocol.run_handle import RunHandle
from oqron_core.services.breakers import _POLICY, BreakerPolicy, Breakers, Permit
from oqron_core.services.cache import Cache
from oqron_core.services.controls import Controls
from oqron_core.services.dead_letters import DeadLetters
from oqron_core.services.definitions import Defined, Definitions
from oqron_core.services.jobs import Jobs
from oqron_core.services.limits import Ban, Limits
from oqron_core.services.locks import Locks
from oqron_core.services.logs import LogHandler, Logs
from oqron_core.services.maintenance import Maintenance, Report
from oqron_core.services.retention import Retention
from oqron_core.services.runs import Runs
from oqron_core.services.schedules import Schedules
from oqron_core.services.topics import Topics


__all__ = [
    "SyncBreakers",
    "SyncCache",
    "SyncControls",
    "SyncDeadLetters",
    "SyncDefinitions",
    "SyncJobs",
    "SyncLimits",
    "SyncLocks",
    "SyncLogs",
    "SyncMaintenance",
    "SyncRetention",
    "SyncRuns",
    "SyncSchedules",
    "SyncTopics",
]


class SyncBreakers:
    """
    Durable breakers, one per name among all processes of a scope.

    Closed, calls pass and failures in a row are counted. Open, none passes until
    the time is over. Then exactly one caller gets the probe, and the breaker is half
    open until that caller says how it went: success closes it, failure opens it for
    longer. A probe whose process dies is given to another after a while.

    Calls that began before the breaker opened change nothing when they end after.
    """

    __slots__ = ("_portal", "_service")

    def __init__(self, portal: Portal, service: Breakers) -> None:
        self._portal = portal
        self._service = service

    def allow(self, name: str, *, policy: BreakerPolicy = _POLICY) -> Permit:
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
        return self._portal.call(self._service.allow, name, policy=policy)

    def success(self, name: str, *, permit: Permit | None = None) -> None:
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
        return self._portal.call(self._service.success, name, permit=permit)

    def failure(
        self,
        name: str,
        *,
        policy: BreakerPolicy = _POLICY,
        permit: Permit | None = None,
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
        return self._portal.call(self._service.failure, name, policy=policy, permit=permit)

    def guard(
        self,
        name: str,
        *,
        policy: BreakerPolicy = _POLICY,
        on: tuple[type[Exception], ...] = (Exception,),
    ) -> AbstractContextManager[Permit]:
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
        return self._portal.hold(self._service.guard(name, policy=policy, on=on))

    def state(self, name: str) -> Breaker:
        """Read a breaker; one that was never used is closed."""
        return self._portal.call(self._service.state, name)

    def query(
        self,
        *,
        state: str | None = None,
        limit: int = 50,
        after: str | None = None,
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
        return self._portal.call(self._service.query, state=state, limit=limit, after=after)

    def reset(self, name: str) -> bool:
        """
        Close a breaker by hand; False where it was never used.

        Raises:
            ConflictError: Others kept changing it.
        """
        return self._portal.call(self._service.reset, name)


class SyncCache:
    """
    Values that expire, shared by all processes of a scope. None is a value.

    Ephemeral: everything may be gone at any moment. A time to live is at least
    0.001 seconds; 0 and less are refused, None is for ever.
    """

    __slots__ = ("_portal", "_service")

    def __init__(self, portal: Portal, service: Cache) -> None:
        self._portal = portal
        self._service = service

    def get(self, key: str, default: Any = None) -> Any:
        """
        Read a value, as a copy of your own; *default* where there is none.

        Give `MISSING` as *default* to tell a miss from a stored None.

        Raises:
            InvalidValueError: *key* is not legal.
            UnavailableError: The hot plane did not answer.
        """
        return self._portal.call(self._service.get, key, default)

    def get_many(self, keys: Sequence[str], default: Any = None) -> list[Any]:
        """
        Read values, in the order of *keys*, in one round trip and one for tags.

        Raises:
            InvalidValueError: A key is not legal.
            UnavailableError: The hot plane did not answer.
        """
        return self._portal.call(self._service.get_many, keys, default)

    def set(self, key: str, value: Any, *, ttl: float | None, tags: Sequence[str] = ()) -> None:
        """
        Write a value, replacing what is there, and tell local copies.

        A value that is being built for the key does not replace it, unless the key
        had a stale value.

        Args:
            key: 1 to 255 characters.
            value: Anything portable.
            ttl: Seconds until it is absent, >= 0.001; None for ever.
            tags: What invalidates it, at most 100.

        Raises:
            InvalidValueError: An argument is not legal; nothing is written.
            UnavailableError: The hot plane did not answer; it may be written.
        """
        return self._portal.call(self._service.set, key, value, ttl=ttl, tags=tags)

    def set_many(
        self,
        entries: Mapping[str, Any],
        *,
        ttl: float | None,
        tags: Sequence[str] = (),
    ) -> None:
        """
        Write values, all with the same *ttl* and *tags*; see `set`. Not atomic.

        Raises:
            InvalidValueError: An argument is not legal; nothing is written.
            UnavailableError: The hot plane did not answer; some may be written.
        """
        return self._portal.call(self._service.set_many, entries, ttl=ttl, tags=tags)

    def get_or_set(
        self,
        key: str,
        builder: Callable[[], Any],
        *,
        ttl: float | None = None,
        stale_for: float = 0.0,
        tags: Sequence[str] = (),
        negative_ttl: float | None = None,
        lease_for: float = 10.0,
    ) -> Any:
        """
        Read a value; where there is none, build it, once among all processes.

        Who asks meanwhile waits for that builder, without polling. A builder that
        raises leaves nothing behind: each caller of its process gets what it raised,
        and another process builds. One whose process dies is replaced after
        *lease_for* seconds. A builder all of whose callers were cancelled is
        cancelled too.

        A call that began before an invalidation may give what was built before it;
        such a value is not kept.

        Args:
            key: 1 to 255 characters.
            builder: Makes the value: a coroutine function, or a function, which is
                run in a thread.
            ttl: Seconds that the value is fresh, >= 0.001; None for ever.
            stale_for: Seconds after that in which the old value is given at once,
                while one process builds a new one in the background.
            tags: What invalidates it, at most 100.
            negative_ttl: Instead of *ttl* where the builder gives None; that is
                never served stale. None makes no difference.
            lease_for: Seconds until a builder that died is replaced, >= 0.05; a
                living one may take as long as it needs.

        Raises:
            InvalidValueError: An argument is not legal, or what was built is not
                portable.
            UnavailableError: The hot plane did not answer.
            Exception: Whatever the builder raised.
        """
        return self._portal.call(
            self._service.get_or_set,
            key,
            builder,
            ttl=ttl,
            stale_for=stale_for,
            tags=tags,
            negative_ttl=negative_ttl,
            lease_for=lease_for,
        )

    def delete(self, key: str) -> bool:
        """Remove a value, as `invalidate` does; whether it was there."""
        return self._portal.call(self._service.delete, key)

    def delete_many(self, keys: Sequence[str]) -> list[bool]:
        """
        Remove values, as `invalidate` does; for each key whether it was there.

        Raises:
            InvalidValueError: A key is not legal.
            UnavailableError: The hot plane did not answer; some may be removed.
        """
        return self._portal.call(self._service.delete_many, keys)

    def invalidate(self, key: str) -> None:
        """
        Make sure that nothing older than this call is found under *key*.

        Also not what is being built now: its callers get it, but it is not kept.
        Local copies everywhere are told.

        Raises:
            InvalidValueError: *key* is not legal.
            UnavailableError: The hot plane did not answer; call again.
        """
        return self._portal.call(self._service.invalidate, key)

    def invalidate_tag(self, tag: str) -> None:
        """
        Make every value with *tag* absent, however many there are, in one step.

        Raises:
            InvalidValueError: *tag* is not legal.
            UnavailableError: The hot plane did not answer; call again.
        """
        return self._portal.call(self._service.invalidate_tag, tag)

    def invalidate_tags(self, tags: Sequence[str]) -> None:
        """
        Make every value with one of *tags* absent, in one step per tag.

        Raises:
            InvalidValueError: A tag is not legal.
            UnavailableError: The hot plane did not answer; call again.
        """
        return self._portal.call(self._service.invalidate_tags, tags)

    def local(self, *, max_entries: int = 1000, max_age: float = 5.0) -> LocalCache:
        """
        Give a view of this cache that keeps copies in this process.

        For asyncio alone: the view has no blocking twin.

        Copies follow `set`, `delete` and every invalidation by signal, usually
        within a millisecond. Signals may be lost, so a copy is at most *max_age*
        seconds old; for that long it may also outlive its time to live.

        Args:
            max_entries: How many copies are kept; those not read for longest go.
            max_age: Seconds, > 0, by the local clock.

        Raises:
            InvalidValueError: An argument is not legal.
        """
        return self._service.local(max_entries=max_entries, max_age=max_age)


class SyncControls:
    """
    Pause state, durable and versioned; the source of truth of any board.

    The namespaces are ``queue``, ``worker``, ``webhook``, ``topic_state``,
    ``cron_durable`` and ``schedule_durable``. A paused queue is not claimed from,
    and a paused cron or schedule is never due; what ``worker``, ``webhook`` and
    ``topic_state`` mean is up to whoever runs them, with `admit`.
    """

    __slots__ = ("_portal", "_service")

    def __init__(self, portal: Portal, service: Controls) -> None:
        self._portal = portal
        self._service = service

    def pause(
        self,
        namespace: str,
        name: str,
        *,
        behaviour: str | None = "hold",
        reason: str | None = None,
    ) -> Pause:
        """
        Pause something, and say what becomes of what arrives meanwhile.

        For a queue: after this returned nothing is handed out. With ``hold``,
        jobs that are added are kept apart as ``held`` until the resume; with
        ``skip``, `Jobs.add` gives a job with the status ``cancelled`` that was
        not stored; with ``reject`` it raises `PausedError`; with None jobs are
        added and wait. Other processes may take up to a second to notice the
        behaviour; what they add until then waits.

        For a cron or a schedule: with ``hold`` or None, the pointer stands, and
        the resume leaves what was missed to the schedule's catch-up; with
        ``skip`` or ``reject``, slots that come due meanwhile never run, and
        ``reject`` lets `Schedules.advance` raise `PausedError`.

        Pausing what is paused changes behaviour and reason.

        Args:
            namespace: What kind of thing, as above.
            name: Which.
            behaviour: ``hold``, ``skip``, ``reject`` or None.
            reason: Why, for people.

        Raises:
            InvalidValueError: An argument is not legal.
            ConflictError: Others kept changing it.
            UnavailableError: A plane did not answer. If only the hot one did not,
                the pause is recorded and comes into force with maintenance.
        """
        return self._portal.call(
            self._service.pause, namespace, name, behaviour=behaviour, reason=reason
        )

    def resume(self, namespace: str, name: str) -> Pause:
        """
        Let it go on. What a queue held is released in order before anything newer.

        Raises:
            InvalidValueError: An argument is not legal.
            ConflictError: Others kept changing it.
            UnavailableError: A plane did not answer. If only the hot one did not,
                maintenance resumes and releases.
        """
        return self._portal.call(self._service.resume, namespace, name)

    def get(self, namespace: str, name: str) -> Pause | None:
        """Read the state of something; None where it was never paused."""
        return self._portal.call(self._service.get, namespace, name)

    def query(
        self,
        namespace: str | None = None,
        *,
        paused: bool | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Page[Pause]:
        """
        Read pause states, by namespace and name.

        Args:
            namespace: Only of these; None for all of them.
            paused: Only what is paused, or only what is not; None for both.
            limit: At most this many, 1 to 10,000.
            after: The ``next`` of the page before.
        """
        return self._portal.call(
            self._service.query, namespace, paused=paused, limit=limit, after=after
        )

    def admit(self, namespace: str, name: str) -> str | None:
        """
        Ask what is to become of something that arrives now.

        Returns:
            None to take it; else what the pause says: ``hold`` or ``skip``.

        Raises:
            PausedError: It rejects what arrives.
        """
        return self._portal.call(self._service.admit, namespace, name)

    def release(self, queue: str) -> int:
        """
        Release what a queue holds now, in order; what arrives later is held again.

        Claims stay stopped, so nothing runs before the resume.

        Returns:
            How many jobs were released here; another process that is at it already is
            waited for, and counts its own.

        Raises:
            UnavailableError: A plane did not answer; call again.
        """
        return self._portal.call(self._service.release, queue)

    def pause_queue(self, queue: str, *, reason: str | None = None) -> Control:
        """Pause a queue; see `Jobs.pause`."""
        return self._portal.call(self._service.pause_queue, queue, reason=reason)

    def resume_queue(self, queue: str) -> Control:
        """Resume a queue; see `Jobs.resume`."""
        return self._portal.call(self._service.resume_queue, queue)

    def get_queue(self, queue: str) -> Control | None:
        """Read the state of a queue; None where it was never paused."""
        return self._portal.call(self._service.get_queue, queue)

    def queues(self, *, limit: int = 50, after: str | None = None) -> Page[Pause]:
        """Read the control records of queues, by name."""
        return self._portal.call(self._service.queues, limit=limit, after=after)


class SyncDeadLetters:
    """
    Jobs that ended as failed, kept for people to decide.

    A dead letter is a `Job` with ``dead_at``, ``reason`` and ``error``. Where an
    id died, was added anew and died again, the later one is kept.
    """

    __slots__ = ("_portal", "_service")

    def __init__(self, portal: Portal, service: DeadLetters) -> None:
        self._portal = portal
        self._service = service

    def get(self, queue: str, id: str) -> Job | None:
        """Read a dead letter; None where there is none."""
        return self._portal.call(self._service.get, queue, id)

    def query(self, queue: str, *, limit: int = 50, after: str | None = None) -> Page[Job]:
        """
        Read the dead letters of a queue, in the order of their ids.

        Args:
            queue: The queue.
            limit: At most this many, 1 to 10,000.
            after: The ``next`` of the page before.
        """
        return self._portal.call(self._service.query, queue, limit=limit, after=after)

    def counts(self) -> dict[str, int]:
        """Count the dead letters of each queue that has some."""
        return self._portal.call(self._service.counts)

    def requeue(self, queue: str, id: str) -> Job | None:
        """
        Make a dead letter a job again, with fresh attempts, in one atomic write.

        Returns:
            The job, or None where there is no such dead letter (any more): of two
            callers one gets the job.

        Raises:
            ConflictError: The queue has a job of that id again.
            UnavailableError: The durable plane did not answer.
        """
        return self._portal.call(self._service.requeue, queue, id)

    def delete(self, queue: str, id: str) -> bool:
        """Throw a dead letter away; False where there is none."""
        return self._portal.call(self._service.delete, queue, id)


class SyncDefinitions:
    """
    Versioned definitions in the namespaces ``cron``, ``schedule``, ``cache``,
    ``ratelimit``, ``topic`` and ``webhook_endpoints:<dispatcher>``.

    Meant to be written at every start: what has not changed writes nothing.
    """

    __slots__ = ("_portal", "_service")

    def __init__(self, portal: Portal, service: Definitions) -> None:
        self._portal = portal
        self._service = service

    def put(
        self,
        namespace: str,
        name: str,
        spec: Mapping[str, Any] | None = None,
        *,
        version: int | None = None,
    ) -> Defined:
        """
        Define something, or change its definition.

        Args:
            namespace: One of those above.
            name: Unique in the namespace.
            spec: What it is, an object; None for an empty one.
            version: Which version of the definition this is; None counts the
                stored one up where the spec has changed, and starts with 1.

        Returns:
            The definition as it is stored now. Where the spec is as it was, it
            is the one of before, and keeps its version unless *version* is higher.

        Raises:
            InvalidValueError: An argument is not legal; or the spec of a schedule
                that has a pointer would change, which `Schedules.put` does.
            ConflictError: A higher version is stored, or the same version with
                another spec; or others kept changing it.
            UnavailableError: The durable plane did not answer; repeat the call.
        """
        return self._portal.call(self._service.put, namespace, name, spec, version=version)

    def get(self, namespace: str, name: str) -> Defined | None:
        """Read a definition; None where there is none."""
        return self._portal.call(self._service.get, namespace, name)

    def delete(self, namespace: str, name: str) -> bool:
        """
        Remove a definition; of a schedule also its pointer. Its pause state stays.

        Returns:
            False where there was none.
        """
        return self._portal.call(self._service.delete, namespace, name)

    def query(
        self,
        namespace: str | None = None,
        *,
        limit: int = 50,
        after: str | None = None,
    ) -> Page[Defined]:
        """
        Read definitions, by namespace and name.

        Args:
            namespace: Only of this one; None for all.
            limit: At most this many, 1 to 10,000.
            after: The ``next`` of the page before.
        """
        return self._portal.call(self._service.query, namespace, limit=limit, after=after)


class SyncJobs:
    """
    Work orders. A job is durable before `add` returns.

    An id is taken as long as its job is there: until retention removes a job
    that has ended, or until it becomes a dead letter. Adding a taken id changes
    nothing and gives the job that is there, with ``duplicate`` set.
    """

    __slots__ = ("_portal", "_service")

    def __init__(self, portal: Portal, service: Jobs) -> None:
        self._portal = portal
        self._service = service

    def add(
        self,
        queue: str,
        data: Any = None,
        *,
        id: str | None = None,
        delay: float | None = None,
        run_at: int | None = None,
        priority: int = 0,
        max_attempts: int = 3,
        backoff: Backoff | None = None,
        tags: Sequence[str] = (),
        correlation_id: str | None = None,
        transaction: Any = None,
    ) -> Job:
        """
        Add one job: durable first, then claimable.

        Calls that run at the same time share their round trips. Where the hot
        plane does not answer the job is safe all the same; ``published`` is then
        False and maintenance makes it claimable.

        Args:
            queue: The queue, 1 to 255 characters.
            data: The payload: anything portable.
            id: The id; None makes a UUIDv7.
            delay: Seconds until it may be claimed; 0 and None mean at once.
            run_at: The same as an instant in milliseconds since the epoch; not
                together with *delay*.
            priority: Lower is sooner; 32 bits.
            max_attempts: 1 to 1,000. 1 means at most once, more at least once.
            backoff: The delay between attempts; None for one second, doubled
                each time, at most 300.
            tags: Labels.
            correlation_id: What it belongs to.
            transaction: Your own transaction, where the durable backend can join
                one: a connection or session as it documents. The job is there when
                you commit and never if you roll back; it is claimable at once
                after the commit, and ``published`` is False here.

        Returns:
            The job; with ``duplicate`` set, the one that had the id before.

        Raises:
            InvalidValueError: An argument is not legal; nothing was written.
            CapabilityError: The durable backend cannot join *transaction*.
            PausedError: The queue is paused and rejects what arrives.
            UnavailableError: The durable plane did not answer. Adding again with
                the same *id* is safe.
        """
        return self._portal.call(
            self._service.add,
            queue,
            data,
            id=id,
            delay=delay,
            run_at=run_at,
            priority=priority,
            max_attempts=max_attempts,
            backoff=backoff,
            tags=tags,
            correlation_id=correlation_id,
            transaction=transaction,
        )

    def add_many(
        self,
        queue: str,
        jobs: Iterable[Any],
        *,
        delay: float | None = None,
        run_at: int | None = None,
        priority: int = 0,
        max_attempts: int = 3,
        backoff: Backoff | None = None,
        tags: Sequence[str] = (),
        correlation_id: str | None = None,
        transaction: Any = None,
    ) -> list[Job]:
        """
        Add any number of jobs in large batches.

        All are checked before the first is written. The batch is not atomic: if
        the durable plane fails in the middle, the part before it is added, and
        perhaps up to 2,000 behind it; adding again is safe for jobs with an id.

        Args:
            queue: The queue.
            jobs: Payloads, or `JobSpec` where one differs from the batch.
            delay: The default for the batch, as are the following: see `add`.
            run_at: See `add`.
            priority: See `add`.
            max_attempts: See `add`.
            backoff: See `add`.
            tags: See `add`.
            correlation_id: See `add`.
            transaction: See `add`.

        Returns:
            The jobs, in order; an id that was taken, or stands twice in the
            batch, gives a ``duplicate``.

        Raises:
            InvalidValueError: An argument is not legal; nothing was written.
            CapabilityError: The durable backend cannot join *transaction*.
            PausedError: The queue is paused and rejects what arrives.
            UnavailableError: The durable plane did not answer.
        """
        return self._portal.call(
            self._service.add_many,
            queue,
            jobs,
            delay=delay,
            run_at=run_at,
            priority=priority,
            max_attempts=max_attempts,
            backoff=backoff,
            tags=tags,
            correlation_id=correlation_id,
            transaction=transaction,
        )

    def claim(
        self,
        queue: str,
        *,
        limit: int = 1,
        lease_for: float = 30.0,
        worker: str | None = None,
        wait: float = 0.0,
        order: Order = "fifo",
    ) -> list[Claim]:
        """
        Claim up to *limit* jobs under leases, lower priority number first.

        Each job was confirmed by the durable plane and counts one attempt more;
        its run has started. Jobs whose lease lapsed come again, with a larger
        token. A caller that is cancelled loses nothing.

        Args:
            queue: The queue.
            limit: At most this many; 0 gives none.
            lease_for: Seconds until the leases lapse unless renewed; >= 0.05.
            worker: Who asks, for people; None for a name of this storage.
            wait: Seconds to wait for a job where there is none; 0 for not at all.
            order: ``lifo`` for the youngest of a priority first.

        Returns:
            Claims in the order of the queue; empty where there was none.

        Raises:
            InvalidValueError: An argument is not legal.
            UnavailableError: A plane did not answer; nothing runs.
        """
        return self._portal.call(
            self._service.claim,
            queue,
            limit=limit,
            lease_for=lease_for,
            worker=worker,
            wait=wait,
            order=order,
        )

    def renew(self, claims: Sequence[Claim], *, lease_for: float = 30.0) -> list[bool]:
        """
        Let the leases last *lease_for* seconds from now.

        Renew at a third of the lease or faster; `keep` does it for you.

        Returns:
            For each claim, True, or False where the lease is lost.

        Raises:
            InvalidValueError: *lease_for* is not legal.
            UnavailableError: The hot plane did not answer; try again in time.
        """
        return self._portal.call(self._service.renew, claims, lease_for=lease_for)

    def keep(
        self,
        claims: Sequence[Claim],
        *,
        lease_for: float = 30.0,
        every: float | None = None,
    ) -> AbstractContextManager[None]:
        """
        Renew the leases in the background while the context is open.

        A renewal that fails or is refused is tried again until the lease has lapsed:
        a hot plane that was lost is rebuilt with the same leases. Then the claim is
        marked ``lost`` and not renewed any more, nor is one that is settled.

        Args:
            claims: The claims.
            lease_for: Seconds, as claimed.
            every: Seconds between renewals; None for a third of *lease_for*,
                which is also the most.

        Raises:
            InvalidValueError: *every* is more than a third of *lease_for*.
        """
        return self._portal.hold(self._service.keep(claims, lease_for=lease_for, every=every))

    def complete(self, claim: Claim, output: Any = None) -> None:
        """
        End the job as done. Repeating it with the same claim changes nothing.

        While the durable plane does not answer, the result waits and the lease is
        renewed; calls that run at the same time share their round trips.

        Args:
            claim: The claim.
            output: What the handler gave. What cannot be stored never fails the
                job: a marker takes its place and the run says so.

        Raises:
            LeaseLostError: Someone took over, or it was cancelled; nothing changed.
            UnavailableError: The durable plane did not answer for as long as the
                lease could be kept.
        """
        return self._portal.call(self._service.complete, claim, output)

    def complete_many(self, pairs: Sequence[tuple[Claim, Any]]) -> list[bool]:
        """
        End many jobs in one batch.

        Args:
            pairs: Claims with their outputs.

        Returns:
            For each, True, or False where the lease is lost.

        Raises:
            InvalidValueError: *pairs* are no pairs of a claim and an output.
            UnavailableError: The durable plane did not answer; repeat the call.
        """
        return self._portal.call(self._service.complete_many, pairs)

    def fail(
        self,
        claim: Claim,
        error: object,
        *,
        retry_in: float | None = None,
        retry: bool = True,
    ) -> Job:
        """
        End the attempt as failed.

        Where attempts are left the job is delayed for the next one; otherwise
        it becomes a dead letter, in one atomic write.

        Args:
            claim: The claim.
            error: An exception, or a text; made portable.
            retry_in: Seconds until the next attempt; 0 for at once, None for what
                the job's backoff says.
            retry: False makes it a dead letter at once.

        Returns:
            The job as it is now, or the dead letter.

        Raises:
            InvalidValueError: *retry_in* is not legal; the claim is still yours.
            LeaseLostError: Someone took over, or it was cancelled; nothing changed.
            UnavailableError: The durable plane did not answer for as long as the
                lease could be kept.
        """
        return self._portal.call(self._service.fail, claim, error, retry_in=retry_in, retry=retry)

    def release(self, claim: Claim, *, delay: float = 0.0) -> None:
        """
        Give the job back; the attempt does not count. For shutdowns and limits.

        Args:
            claim: The claim.
            delay: Seconds until it may be claimed again.

        Raises:
            InvalidValueError: *delay* is not legal.
            LeaseLostError: Someone took over, or it was cancelled; nothing changed.
            UnavailableError: The durable plane did not answer.
        """
        return self._portal.call(self._service.release, claim, delay=delay)

    def get(self, queue: str, id: str) -> Job | None:
        """Read a job; None where there is none. Dead letters are elsewhere."""
        return self._portal.call(self._service.get, queue, id)

    def cancel(self, queue: str, id: str) -> bool:
        """
        Call a job off, whatever it is doing. Idempotent.

        The record is cancelled at once. A worker that has the job is told, and
        whatever it reports afterwards is refused; the job never runs again.

        Returns:
            True if the job is cancelled now, also if it was before; False where
            there is no such job, or it has ended otherwise.

        Raises:
            UnavailableError: The durable plane did not answer.
        """
        return self._portal.call(self._service.cancel, queue, id)

    def reschedule(
        self,
        queue: str,
        id: str,
        *,
        delay: float | None = None,
        run_at: int | None = None,
    ) -> bool:
        """
        Change when a job that waits may be claimed; without a time, at once.

        It keeps its place in the order.

        Args:
            queue: The queue.
            id: The job.
            delay: Seconds from now.
            run_at: An instant in milliseconds since the epoch; not with *delay*.

        Returns:
            False where there is no such job, or it is not waiting or delayed.

        Raises:
            InvalidValueError: An argument is not legal.
            UnavailableError: The durable plane did not answer.
        """
        return self._portal.call(self._service.reschedule, queue, id, delay=delay, run_at=run_at)

    def query(
        self,
        queue: str,
        *,
        status: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Page[Job]:
        """
        Read jobs of a queue, in the order of their ids.

        Ids that were made here sort by the time of adding.

        Args:
            queue: The queue.
            status: Only these: see `JobStatus`; None for all.
            limit: At most this many, 1 to 10,000.
            after: The ``next`` of the page before.

        Raises:
            InvalidValueError: An argument is not legal.
        """
        return self._portal.call(
            self._service.query, queue, status=status, limit=limit, after=after
        )

    def counts(self, queue: str) -> dict[str, int]:
        """
        Count the jobs of a queue by status, as the durable plane has them.

        Every status is there, also with 0. A job whose delay is over stays
        ``delayed`` until it is claimed. ``failed`` is there because it is a status,
        and stays 0: a job whose attempts ran out is a dead letter, a record of another
        kind, which `DeadLetters.counts` counts and ``oqron queues`` shows as ``dead``.
        """
        return self._portal.call(self._service.counts, queue)

    def pause(self, queue: str, *, reason: str | None = None) -> Control:
        """
        Stop claims of a queue. After this returned nothing is handed out.

        Jobs can still be added, and what is being worked on goes on. The state
        is durable: it survives restarts and the loss of the hot plane.

        Raises:
            UnavailableError: A plane did not answer. If only the hot one did not,
                the pause is recorded and comes into force with maintenance.
        """
        return self._portal.call(self._service.pause, queue, reason=reason)

    def resume(self, queue: str) -> Control:
        """Allow claims of a queue again; otherwise as `pause`."""
        return self._portal.call(self._service.resume, queue)


class SyncLimits:
    """
    How often and how many at a time, per key, among all processes of a scope.

    Judged by the hot plane's clock, each decision in one atomic step there. What a
    key leaves behind expires by itself.
    """

    __slots__ = ("_portal", "_service")

    def __init__(self, portal: Portal, service: Limits) -> None:
        self._portal = portal
        self._service = service

    def take(self, key: str, limit: RateLimit, *, cost: int = 1) -> Decision:
        """
        Take *cost* from the limit of *key* if it allows it.

        What is not allowed is not counted. A key that is banned is refused whatever
        the limit says, with ``retry_after`` until the end of the ban.

        Args:
            key: What is limited, 1 to 255 characters.
            limit: `FixedWindow`, `SlidingWindow` or `TokenBucket`. Limits of
                different types do not share what they count.
            cost: How much to take; 0 looks without taking.

        Returns:
            The decision, with the numbers HTTP headers need.

        Raises:
            InvalidValueError: An argument is not legal, or *cost* is more than the
                limit can ever allow.
            UnavailableError: The hot plane did not answer; it may have been taken.
        """
        return self._portal.call(self._service.take, key, limit, cost=cost)

    def peek(self, key: str, limit: RateLimit) -> Decision:
        """Say what `take` would, without taking."""
        return self._portal.call(self._service.peek, key, limit)

    def reset(self, key: str) -> bool:
        """
        Forget what was taken for *key*, by limits of every type; a ban stays.

        Returns:
            Whether there was something to forget.
        """
        return self._portal.call(self._service.reset, key)

    def ban(self, key: str, seconds: float, *, reason: str | None = None) -> None:
        """
        Shut *key* out for a while; replaces a ban that is there.

        Args:
            key: What is banned, 1 to 255 characters.
            seconds: How long, >= 0.001.
            reason: Why, for people.

        Raises:
            InvalidValueError: An argument is not legal.
            UnavailableError: The hot plane did not answer; it may be banned.
        """
        return self._portal.call(self._service.ban, key, seconds, reason=reason)

    def unban(self, key: str) -> bool:
        """Let *key* in again; whether it was banned."""
        return self._portal.call(self._service.unban, key)

    def banned(self, key: str) -> float | None:
        """Say for how many seconds more *key* is banned; None where it is not."""
        return self._portal.call(self._service.banned, key)

    def get_ban(self, key: str) -> Ban | None:
        """Show the ban of *key*, with its reason; None where there is none."""
        return self._portal.call(self._service.get_ban, key)

    def slots(
        self,
        key: str,
        count: int,
        *,
        lease_for: float = 30.0,
        wait: float | None = 0.0,
    ) -> AbstractContextManager[HeldLease]:
        """
        Hold one of *count* slots of *key* while the context is open.

        It is renewed in the background; the slot of a holder that dies is free
        again after its lease. Where it is lost the body is cancelled and the context
        raises `LeaseLostError`, as with a lock.

        Args:
            key: What is limited, 1 to 255 characters.
            count: How many may run at the same time, 1 to 10,000; all callers
                should say the same.
            lease_for: Seconds until the slot lapses unless renewed; >= 0.05.
            wait: Seconds to wait for one; 0 for not at all, None for as long as it
                takes.

        Raises:
            InvalidValueError: An argument is not legal.
            ConflictError: All were taken, still after *wait* seconds.
            LeaseLostError: The slot was lost; the body was cut short.
            UnavailableError: The hot plane did not answer on entering.
        """
        return self._portal.hold(self._service.slots(key, count, lease_for=lease_for, wait=wait))

    def in_use(self, key: str, count: int) -> int:
        """
        Count how many of *count* slots of *key* are held now.

        Raises:
            InvalidValueError: An argument is not legal.
            UnavailableError: The hot plane did not answer.
        """
        return self._portal.call(self._service.in_use, key, count)


class SyncLocks:
    """
    One holder per key among all processes of a scope. Not re-entrant.

    A lock that nobody renews lapses after its lease, by the plane's clock. Because
    a process may stand still without knowing it, what must never be done by two
    carries the fencing token along.
    """

    __slots__ = ("_portal", "_service")

    def __init__(self, portal: Portal, service: Locks) -> None:
        self._portal = portal
        self._service = service

    def acquire(
        self,
        key: str,
        *,
        lease_for: float = 30.0,
        wait: float | None = 0.0,
    ) -> HeldLease | None:
        """
        Take a lock; it is yours to `renew` and to `release`.

        Waiting does not poll: who gives the lock back wakes who waits, and a lease
        that is not renewed ends by itself. A caller that is cancelled holds nothing.

        Args:
            key: The lock, 1 to 255 characters.
            lease_for: Seconds until it lapses unless renewed; >= 0.05.
            wait: Seconds to wait for it; 0, the default, for not at all, None for as
                long as it takes.

        Returns:
            What is held, or None where another has it.

        Raises:
            InvalidValueError: An argument is not legal.
            UnavailableError: The hot plane did not answer; what may have been taken
                lapses.
        """
        return self._portal.call(self._service.acquire, key, lease_for=lease_for, wait=wait)

    def hold(
        self,
        key: str,
        *,
        lease_for: float = 30.0,
        wait: float | None = None,
    ) -> AbstractContextManager[HeldLease]:
        """
        Hold a lock while the context is open.

        It is renewed in the background at a third of the lease; a renewal that fails
        is tried again for as long as the lease lasts. Where the lock is lost the
        body is cancelled and the context raises `LeaseLostError`; it also raises it
        where the body ends and the lock turns out to have lapsed unnoticed.

        Args:
            key: The lock, 1 to 255 characters.
            lease_for: Seconds until it lapses unless renewed; >= 0.05.
            wait: Seconds to wait for it; 0 for not at all. None, the default here
                and not in `acquire`, is for as long as it takes.

        Raises:
            InvalidValueError: An argument is not legal.
            ConflictError: Another has it still; names the holder. Or this very task
                holds it, by a context of the same storage: it would wait for itself.
            LeaseLostError: It was lost; the body was cut short.
            UnavailableError: The hot plane did not answer on entering.
        """
        return self._portal.hold(self._service.hold(key, lease_for=lease_for, wait=wait))

    def renew(self, lease: HeldLease, *, lease_for: float | None = None) -> bool:
        """
        Let the lease last *lease_for* seconds from now; None as it was taken.

        Returns:
            Whether it is held; False for good where it is lost or was released.

        Raises:
            InvalidValueError: *lease_for* is not legal.
            UnavailableError: The hot plane did not answer; try again in time.
        """
        return self._portal.call(self._service.renew, lease, lease_for=lease_for)

    def release(self, lease: HeldLease) -> bool:
        """
        Give it back, and wake who waits. May be repeated.

        Where the hot plane does not answer it lapses.

        Returns:
            False where it was lost before.
        """
        return self._portal.call(self._service.release, lease)

    def holder(self, key: str) -> Lease | None:
        """
        Show who has a lock: the lease, under the caller's key; None where it is free.

        Raises:
            UnavailableError: The hot plane did not answer.
        """
        return self._portal.call(self._service.holder, key)

    def lead(
        self,
        name: str,
        *,
        lease_for: float = 15.0,
        wait: float | None = None,
    ) -> AbstractContextManager[HeldLease]:
        """
        Lead while the context is open: of any number of candidates one does.

        As `hold`. ``term`` of what it gives is larger for every leader than for the
        one before; a leader that dies is replaced after its lease.

        Args:
            name: What is led, 1 to 255 characters.
            lease_for: Seconds until the lead lapses unless renewed; >= 0.05.
            wait: Seconds to stand by; None, the default, for as long as it takes.

        Raises:
            InvalidValueError: An argument is not legal.
            ConflictError: Another leads still; names the leader. Or this very task
                leads already.
            LeaseLostError: The lead was lost; the body was cut short.
            UnavailableError: The hot plane did not answer on entering.
        """
        return self._portal.hold(self._service.lead(name, lease_for=lease_for, wait=wait))

    def leader(self, name: str) -> Lease | None:
        """
        Show who leads: the lease, under *name*, its token the term; None where nobody does.

        Raises:
            UnavailableError: The hot plane did not answer.
        """
        return self._portal.call(self._service.leader, name)


class SyncLogs:
    """
    Durable logs of an application's modules. Nothing is here but what is written.

    Writing queues a line in memory; a background writer stores what waits, in
    batches. The queue is bounded: where the durable plane is too slow the oldest
    lines are dropped, and counted. A process that is killed loses what waited.

    A module keeps 10,000 lines and seven days, unless `keep` says otherwise.
    """

    __slots__ = ("_portal", "_service")

    def __init__(self, portal: Portal, service: Logs) -> None:
        self._portal = portal
        self._service = service

    @property
    def dropped(self) -> int:
        """How many lines were dropped here because too many waited."""
        return self._service.dropped

    def write(self, module: str, level: str, msg: object, /, **fields: Any) -> None:
        """
        Write a line, from any thread. Does not wait.

        Args:
            module: Whose log it is, 1 to 255 characters.
            level: ``debug``, ``info``, ``warning`` or ``error``.
            msg: The text; made portable, and cut at 10,000 characters.
            **fields: What stands beside it; what is not portable becomes text.

        Raises:
            InvalidValueError: *module* or *level* is not legal.
            ClosedError: The storage is closed.
        """
        return self._service.write(module, level, msg, **fields)

    def query(
        self,
        module: str,
        *,
        level: str | None = None,
        since: int | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Page[LogEntry]:
        """
        Read the lines of a module, the newest in front.

        What was written here before is stored first.

        Args:
            module: Whose log.
            level: Only lines of this level or above; None for all.
            since: Only lines of this instant, in milliseconds since the epoch, or
                later; None for all.
            limit: At most this many, 1 to 10,000.
            after: The ``next`` of the page before.

        Returns:
            A page of `LogEntry`.

        Raises:
            InvalidValueError: An argument is not legal.
            UnavailableError: The durable plane did not answer.
        """
        return self._portal.call(
            self._service.query, module, level=level, since=since, limit=limit, after=after
        )

    def modules(self) -> dict[str, int]:
        """
        Count the lines of each module that has some.

        Raises:
            UnavailableError: The durable plane did not answer.
        """
        return self._portal.call(self._service.modules)

    def keep(
        self,
        module: str,
        *,
        keep_for: float | None = 7 * 86400.0,
        max_entries: int | None = 10_000,
    ) -> None:
        """
        Say how much of a module's log this process keeps from now on.

        Args:
            module: Whose log.
            keep_for: Seconds that a line is kept, >= 0.001; None for ever.
            max_entries: About how many lines are kept, >= 1; None for any number.
                The oldest go when a tenth more was written.

        Raises:
            InvalidValueError: An argument is not legal.
        """
        return self._service.keep(module, keep_for=keep_for, max_entries=max_entries)

    def prune(self, module: str, *, max_entries: int | None = None) -> int:
        """
        Delete the oldest lines of a module, in bounded steps.

        Lines whose time is over go with `Maintenance.prune`.

        Args:
            module: Whose log.
            max_entries: How many to leave, >= 0; None for what `keep` says.

        Returns:
            How many were deleted.

        Raises:
            InvalidValueError: An argument is not legal.
            UnavailableError: The durable plane did not answer.
        """
        return self._portal.call(self._service.prune, module, max_entries=max_entries)

    def flush(self) -> None:
        """
        Return when every line that was written here is durable.

        Raises:
            UnavailableError: The durable plane did not answer; all stays queued.
        """
        return self._portal.call(self._service.flush)

    def handler(self, module: str, *, level: int = logging.INFO) -> LogHandler:
        """
        Give a `logging.Handler` that writes to a module's log.

        Args:
            module: Whose log.
            level: The least level of `logging` that is written.

        Raises:
            InvalidValueError: *module* is not legal.
        """
        return self._service.handler(module, level=level)

    def close(self, timeout: float) -> int:
        """
        Write what waits, for up to *timeout* seconds, and take no more.

        Called by the storage when it closes, before the planes are closed.

        Returns:
            How many lines could not be written.
        """
        return self._portal.call(self._service.close, timeout)


class SyncMaintenance:
    """Repairs, each idempotent and safe while workers run."""

    __slots__ = ("_portal", "_service")

    def __init__(self, portal: Portal, service: Maintenance) -> None:
        self._portal = portal
        self._service = service

    def reap(self) -> int:
        """
        Return lapsed leases to their queues, and bury jobs without attempts left.

        `Jobs.claim` does the same for its own queue; this is for queues that
        nobody claims from.

        Returns:
            How many leases had lapsed.
        """
        return self._portal.call(self._service.reap)

    def reconcile(self) -> int:
        """
        Publish durable jobs that the broker does not know; carry over pauses.

        Returns:
            How many jobs were put back.
        """
        return self._portal.call(self._service.reconcile)

    def rebuild_hot(self) -> int:
        """
        Build the hot plane anew from the durable one.

        Puts back every job with its priority and remaining delay, the leases of
        jobs in flight with their tokens, and the pauses. What is there already is
        left alone.

        Returns:
            How many jobs were put back.
        """
        return self._portal.call(self._service.rebuild_hot)

    def close_stale_runs(self) -> int:
        """
        Close runs whose worker is gone as failed, *worker lost*.

        Returns:
            How many runs were closed.
        """
        return self._portal.call(self._service.close_stale_runs)

    def prune(self) -> int:
        """
        Delete records whose retention is over, in bounded steps.

        Never touches what is waiting, held or active.

        Returns:
            How many records were deleted.
        """
        return self._portal.call(self._service.prune)

    def release_held(self) -> int:
        """
        Release held jobs of queues that hold nothing any more.

        Resuming a queue does so; this is for what a crash left in between.

        Returns:
            How many jobs were released.
        """
        return self._portal.call(self._service.release_held)

    def catch_up(self) -> int:
        """
        Let groups of topics catch up whose subscriber died on the way.

        Returns:
            How many groups had something left.
        """
        return self._portal.call(self._service.catch_up)

    def run_once(self) -> Report:
        """Do one pass of everything, without asking who leads."""
        return self._portal.call(self._service.run_once)

    def run_forever(self) -> None:
        """
        Do a pass every few seconds for as long as this storage leads its scope.

        Any number of processes may call it: one leads, the others stand by. The lead
        is renewed in the background; a plane that does not answer is waited for, and
        a pass that fails is logged and followed by the next. Returns when the storage
        closes.
        """
        return self._portal.call(self._service.run_forever)


class SyncRetention:
    """
    What has ended goes after a while; what waits or runs never does.

    The settings say for how long completed and cancelled jobs, dead letters, runs
    and messages are kept; it is written with each of them as its expiry when it
    ends. A rule shortens that, by age or by count, for a kind of record and the
    namespaces of a pattern. Rules are durable and the same for every process.
    Where several are about a namespace, the most exact one counts alone.
    """

    __slots__ = ("_portal", "_service")

    def __init__(self, portal: Portal, service: Retention) -> None:
        self._portal = portal
        self._service = service

    def set(
        self,
        kind: str,
        namespace: str = "*",
        *,
        keep_for: float | None = None,
        keep: int | None = None,
    ) -> Rule:
        """
        Set a rule; one of the same kind and namespace is replaced. Either limit deletes.

        Args:
            kind: ``job`` for completed and cancelled jobs, ``dlq``, ``run`` for
                runs that have ended, ``message``, or ``log``.
            namespace: A whole name such as ``queue_job:emails``, or the beginning
                of names and a star, ``queue_job:mail-*``; ``*`` for all.
            keep_for: For how many seconds after the end; 0 for not at all beyond
                the next prune, None for no limit.
            keep: How many of the newest in each namespace; None for no limit.

        Returns:
            The rule.

        Raises:
            InvalidValueError: An argument is not legal, or no limit is given.
            UnavailableError: The durable plane did not answer.
        """
        return self._portal.call(self._service.set, kind, namespace, keep_for=keep_for, keep=keep)

    def unset(self, kind: str, namespace: str = "*") -> bool:
        """Remove a rule; False where there was none."""
        return self._portal.call(self._service.unset, kind, namespace)

    def rules(self) -> list[Rule]:
        """Read the rules, by kind and namespace."""
        return self._portal.call(self._service.rules)

    def preview(self) -> list[Prunable]:
        """
        Say what `prune` would delete now: records and bytes, by kind and namespace.

        Raises:
            CapabilityError: The durable backend cannot tell.
            UnavailableError: The durable plane did not answer.
        """
        return self._portal.call(self._service.preview)

    def prune(self) -> int:
        """
        Delete what has expired, and what the rules do not keep, in bounded steps.

        Maintenance does it every few seconds. Where another process is at it now,
        nothing is done here.

        Returns:
            How many records were deleted.
        """
        return self._portal.call(self._service.prune)


class SyncRuns:
    """
    Run history: written behind the work, never in its way.

    Starting, logging and finishing are calls in memory; a background writer
    carries them to the planes within moments. `flush` waits for it.
    """

    __slots__ = ("_portal", "_service")

    def __init__(self, portal: Portal, service: Runs) -> None:
        self._portal = portal
        self._service = service

    def start(
        self,
        name: str,
        *,
        module: str = "worker",
        trigger: str = "manual",
        input: Any = None,
        worker: str | None = None,
    ) -> RunHandle:
        """
        Start a run that has no job, such as a cron tick.

        Args:
            name: The definition, 1 to 255 characters.
            module: ``cron``, ``schedule``, ``queue``, ``worker``, ``webhook`` or
                ``topic``.
            trigger: What started it.
            input: What it is given: anything portable.
            worker: Who runs it; None for a name of this storage.

        Returns:
            The handle; end it with ``finish`` or ``fail``.

        Raises:
            InvalidValueError: An argument is not legal.
        """
        return self._portal.call(
            self._service.start, name, module=module, trigger=trigger, input=input, worker=worker
        )

    def get(self, id: str) -> Run | None:
        """
        Read a run: the durable row, overlaid with what is live.

        Returns:
            The run, or None where no plane knows it.

        Raises:
            UnavailableError: The durable plane did not answer. Where only the hot
                one does not, the row is given as history has it.
        """
        return self._portal.call(self._service.get, id)

    def query(
        self,
        *,
        status: str | None = None,
        name: str | None = None,
        module: str | None = None,
        since: int | None = None,
        job_id: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Page[Run]:
        """
        Read runs from history, those that started last in front.

        What this storage has finished is written first; what is running appears
        within a second of its start, overlaid with what is live.

        Args:
            status: Only these: see `RunStatus`.
            name: Only runs of this definition or queue.
            module: Only runs of this module.
            since: Only runs that started at or after this instant.
            job_id: Only the runs of this job.
            limit: At most this many, 1 to 10,000.
            after: The ``next`` of the page before.

        Raises:
            InvalidValueError: An argument is not legal.
            UnavailableError: The durable plane did not answer.
        """
        return self._portal.call(
            self._service.query,
            status=status,
            name=name,
            module=module,
            since=since,
            job_id=job_id,
            limit=limit,
            after=after,
        )

    def active(self, *, limit: int = 1000) -> list[Run]:
        """
        Read what is running now, from the live overlay.

        Raises:
            UnavailableError: The hot plane did not answer.
        """
        return self._portal.call(self._service.active, limit=limit)

    def flush(self) -> None:
        """
        Return when every run that has ended here is durable.

        Raises:
            UnavailableError: The durable plane did not answer; all stays queued.
        """
        return self._portal.call(self._service.flush)


class SyncSchedules:
    """
    When what is to run. Two kinds: ``cron``, which repeats, and ``schedule``.

    A schedule has a pointer, its next slot. Any number of processes may look for
    what is due and `advance` it: one of them wins each slot, and the slot's job is
    there if and only if the pointer moved. What a spec means is up to the caller;
    `oqron_core.cronspec` reads cron text.
    """

    __slots__ = ("_portal", "_service")

    def __init__(self, portal: Portal, service: Schedules) -> None:
        self._portal = portal
        self._service = service

    def put(
        self,
        kind: str,
        name: str,
        *,
        next_run_at: int | None,
        spec: Mapping[str, Any] | None = None,
        zone: str | None = None,
        catch_up: str = "one",
        max_catch_up: int = 100,
        paused: bool = False,
    ) -> Schedule:
        """
        Define a schedule, or change its definition. Meant for every start.

        Where spec and zone are as they were, the pointer stays, and *next_run_at*
        is left aside; where one has changed, the pointer becomes *next_run_at*.
        Whether it is paused and what it counted stay in any case.

        Args:
            kind: ``cron`` or ``schedule``.
            name: Unique in the kind.
            next_run_at: The first slot, milliseconds since the epoch; None for a
                schedule that has none.
            spec: What it is, an object; None for an empty one.
            zone: The name of the time zone that the spec is read in.
            catch_up: What becomes of slots that were missed: ``skip``, ``one``
                run for all, or ``all`` of them.
            max_catch_up: How many ``all`` runs at most, 1 to 10,000: the last.
            paused: Whether a schedule that is new starts paused.

        Returns:
            The schedule as it is now.

        Raises:
            InvalidValueError: An argument is not legal, or a changed spec would
                move the pointer back to a slot that has run.
            ConflictError: Others kept changing it.
            UnavailableError: The durable plane did not answer; repeat the call.
        """
        return self._portal.call(
            self._service.put,
            kind,
            name,
            next_run_at=next_run_at,
            spec=spec,
            zone=zone,
            catch_up=catch_up,
            max_catch_up=max_catch_up,
            paused=paused,
        )

    def get(self, kind: str, name: str) -> Schedule | None:
        """Read a schedule; None where there is none."""
        return self._portal.call(self._service.get, kind, name)

    def query(
        self,
        kind: str,
        *,
        paused: bool | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Page[Schedule]:
        """
        Read the schedules of a kind, by name.

        Args:
            kind: ``cron`` or ``schedule``.
            paused: Only what is paused, or only what is not; None for both.
            limit: At most this many, 1 to 10,000.
            after: The ``next`` of the page before.
        """
        return self._portal.call(self._service.query, kind, paused=paused, limit=limit, after=after)

    def delete(self, kind: str, name: str) -> bool:
        """
        Remove a schedule with its pause state; jobs of its slots stay.

        Returns:
            False where there was none.
        """
        return self._portal.call(self._service.delete, kind, name)

    def due(self, *, limit: int = 100, kind: str | None = None) -> list[Schedule]:
        """
        List schedules whose slot has come, by the durable plane's clock.

        Args:
            limit: At most this many; 0 gives none.
            kind: Only of this kind; None for both.

        Returns:
            The oldest slot first; nothing that is paused.
        """
        return self._portal.call(self._service.due, limit=limit, kind=kind)

    def advance(
        self,
        kind: str,
        name: str,
        *,
        expected: int,
        next_run_at: int | None,
        enqueue: tuple[str, Any] | None = None,
        ran: bool = False,
    ) -> bool:
        """
        Move the pointer on from a slot and add the slot's job, or neither.

        One atomic write. The job's id is made of kind, name and slot; where a job
        of that id is there already, the pointer moves and the job stays as it is.
        A queue that is paused keeps to its behaviour: ``hold`` holds the job,
        ``skip`` moves the pointer without one.

        Args:
            kind: ``cron`` or ``schedule``.
            name: Which.
            expected: The slot: where the caller saw the pointer.
            next_run_at: The next slot, after *expected*; None where it ends.
            enqueue: The queue and the payload, or a `JobSpec` without an id;
                None to leave the slot out.
            ran: Where there is no job: whether the caller runs the slot itself, so
                that it counts as one that ran. A slot with a job does in any case.

        Returns:
            True for the one who moved it. False where the pointer is elsewhere,
            the schedule is paused, or it is gone.

        Raises:
            InvalidValueError: An argument is not legal, or *next_run_at* is not
                after *expected*.
            PausedError: The queue or the schedule rejects what arrives; the
                pointer stands.
            UnavailableError: The durable plane did not answer. Repeating the call
                is safe, but may give False although it was this call that won.
        """
        return self._portal.call(
            self._service.advance,
            kind,
            name,
            expected=expected,
            next_run_at=next_run_at,
            enqueue=enqueue,
            ran=ran,
        )

    def fire(
        self,
        schedule: Schedule,
        enqueue: tuple[str, Any] | Callable[[int], tuple[str, Any]],
        *,
        next_after: NextAfter | None = None,
        grace: float = GRACE,
    ) -> list[int]:
        """
        Do what a due schedule asks for: its slots by its catch-up, one by one.

        Each slot is an `advance`, so a crash in between leaves the rest due.

        Args:
            schedule: As `due` gave it.
            enqueue: The queue and the payload, as in `advance`; or what gives
                them for a slot.
            next_after: Gives the first slot after an instant, as `CronSpec.next`
                does; None where there is only one.
            grace: For how many seconds a slot is on time; see `plan`.

        Returns:
            The slots that this caller moved on from with a job; fewer where
            another one was at it.
        """
        return self._portal.call(
            self._service.fire, schedule, enqueue, next_after=next_after, grace=grace
        )

    def plan(
        self,
        schedule: Schedule,
        *,
        next_after: NextAfter | None = None,
        grace: float = GRACE,
    ) -> list[Move]:
        """
        Say how the pointer is to move past now, by the schedule's catch-up.

        ``one`` runs the slot at the pointer for all that were missed, ``all`` runs
        each, but of more than ``max_catch_up`` only the last; ``skip`` runs the
        last slot where it is no older than *grace*, and nothing else. The work is
        bounded however far behind the pointer is.

        Args:
            schedule: The schedule.
            next_after: As in `fire`.
            grace: Seconds for which a slot is on time.

        Returns:
            Moves for `advance`, in order; none where it is not due.
        """
        return self._portal.call(self._service.plan, schedule, next_after=next_after, grace=grace)

    def reschedule(self, kind: str, name: str, *, next_run_at: int | None) -> bool:
        """
        Set the pointer by hand; the way to give a schedule that ended a new slot.

        Args:
            kind: ``cron`` or ``schedule``.
            name: Which.
            next_run_at: The next slot; None to end it.

        Returns:
            False where there is no such schedule.

        Raises:
            InvalidValueError: The slot is not after the last one that ran.
            ConflictError: Others kept moving it.
        """
        return self._portal.call(self._service.reschedule, kind, name, next_run_at=next_run_at)

    def pause(
        self,
        kind: str,
        name: str,
        *,
        behaviour: str = "hold",
        reason: str | None = None,
    ) -> Pause:
        """
        Let a schedule never be due. The state survives restarts.

        After this returned no slot runs. With ``hold`` the resume leaves what was
        missed to the schedule's catch-up; with ``skip`` and ``reject`` what was
        missed never runs, and ``reject`` lets `advance` raise `PausedError`.
        The same as pausing ``cron_durable`` or ``schedule_durable`` in `Controls`.

        Raises:
            InvalidValueError: An argument is not legal.
            UnavailableError: The durable plane did not answer.
        """
        return self._portal.call(
            self._service.pause, kind, name, behaviour=behaviour, reason=reason
        )

    def resume(self, kind: str, name: str) -> Pause:
        """Let a schedule be due again; what was missed, see `pause`."""
        return self._portal.call(self._service.resume, kind, name)


class SyncTopics:
    """
    Messages for everybody who subscribed.

    A message stays in the topic's log until retention removes it. For each group
    there is one delivery of it, which is a job: it is claimed under a lease, tried
    again, and becomes a dead letter in the end. Messages with the same key are
    delivered to a group one after the other, in the order of publishing.
    """

    __slots__ = ("_portal", "_service")

    def __init__(self, portal: Portal, service: Topics) -> None:
        self._portal = portal
        self._service = service

    def publish(
        self,
        topic: str,
        message: Any,
        *,
        key: str | None = None,
        idempotency_key: str | None = None,
        headers: dict[str, Any] | None = None,
    ) -> Message:
        """
        Put a message into the log, with a delivery for every group, atomically.

        Calls that run at the same time share their round trips.

        Args:
            topic: The topic, 1 to 255 characters; with a group at most 230.
            message: Anything portable.
            key: Keeps order: 1 to 255 characters.
            idempotency_key: A second message with it gives the first one, with
                ``duplicate`` set, as long as that is retained.
            headers: What travels beside the message.

        Returns:
            The message as it stands in the log.

        Raises:
            InvalidValueError: An argument is not legal; nothing was written.
            UnavailableError: The durable plane did not answer. Publishing again
                with an *idempotency_key* is safe.
        """
        return self._portal.call(
            self._service.publish,
            topic,
            message,
            key=key,
            idempotency_key=idempotency_key,
            headers=headers,
        )

    def publish_many(
        self,
        topic: str,
        messages: Sequence[Any],
        *,
        key: str | None = None,
        headers: dict[str, Any] | None = None,
    ) -> list[Message]:
        """
        Publish any number of messages, in order, in large atomic batches.

        Args:
            topic: The topic.
            messages: The messages.
            key: The key of all of them.
            headers: The headers of all of them.
        """
        return self._portal.call(
            self._service.publish_many, topic, messages, key=key, headers=headers
        )

    def subscribe(
        self,
        topic: str,
        group: str,
        *,
        start: str | int = "latest",
        max_attempts: int = 3,
    ) -> Group:
        """
        Make a group. Everything that is published after this returned reaches it.

        With another *start* than ``latest`` it also gets what is in the log from
        there on, before this returns. A group that exists keeps its place; where a
        crash cut its catching up short, that is finished.

        Args:
            topic: The topic.
            group: The group, 1 to 255 characters; with the topic at most 230.
            start: ``latest``, ``earliest``, an instant in milliseconds since the
                epoch, or the id of a message.
            max_attempts: How often a delivery is tried, 1 to 1,000.

        Raises:
            InvalidValueError: An argument is not legal, or there is no such message.
            ConflictError: Others kept changing the groups; try again.
        """
        return self._portal.call(
            self._service.subscribe, topic, group, start=start, max_attempts=max_attempts
        )

    def unsubscribe(self, topic: str, group: str) -> bool:
        """
        Remove a group with the deliveries that wait; False where there is none.

        What is being worked on is worked on to its end. A pause of the group goes with
        it, so one of the same name begins anew.
        """
        return self._portal.call(self._service.unsubscribe, topic, group)

    def delivery_queue(self, topic: str, group: str) -> str:
        """
        Name the queue that holds the deliveries of a group.

        By it `DeadLetters` and `Jobs.counts` know them.
        """
        return self._service.delivery_queue(topic, group)

    def groups(self, topic: str) -> list[Group]:
        """Read the groups of a topic, by name."""
        return self._portal.call(self._service.groups, topic)

    def lag(self, topic: str, group: str) -> int:
        """Count the messages that a group has still to work on, those in hand included."""
        return self._portal.call(self._service.lag, topic, group)

    def pause(self, topic: str, group: str, *, reason: str | None = None) -> Control:
        """Stop claims of a group; messages go on arriving. As `Jobs.pause`."""
        return self._portal.call(self._service.pause, topic, group, reason=reason)

    def resume(self, topic: str, group: str) -> Control:
        """Allow claims of a group again."""
        return self._portal.call(self._service.resume, topic, group)

    def claim(
        self,
        topic: str,
        group: str,
        *,
        limit: int = 1,
        lease_for: float = 30.0,
        worker: str | None = None,
        wait: float = 0.0,
    ) -> list[Claim]:
        """
        Claim up to *limit* deliveries of a group; of each key at most one.

        Args:
            topic: The topic.
            group: The group.
            limit: At most this many; 0 gives none.
            lease_for: Seconds until the leases lapse unless renewed; >= 0.05.
            worker: Who asks, for people; None for a name of this storage.
            wait: Seconds to wait where there is none; 0 for not at all.

        A group that nobody has subscribed has nothing to claim; the log says so, once.

        Returns:
            Claims with ``message``; settle them here or as jobs. It is None where
            somebody else made a delivery that cannot be read.

        Raises:
            InvalidValueError: An argument is not legal.
            UnavailableError: A plane did not answer; nothing runs.
        """
        return self._portal.call(
            self._service.claim,
            topic,
            group,
            limit=limit,
            lease_for=lease_for,
            worker=worker,
            wait=wait,
        )

    def wait(self, topic: str, group: str, *, timeout: float) -> bool:
        """
        Sleep until a group may have something to claim. Takes nothing.

        Args:
            topic: The topic.
            group: The group.
            timeout: Seconds, >= 0.

        Returns:
            False when the time is over.
        """
        return self._portal.call(self._service.wait, topic, group, timeout=timeout)

    def complete(self, claim: Claim, output: Any = None) -> None:
        """End a delivery as done; as `Jobs.complete`."""
        return self._portal.call(self._service.complete, claim, output)

    def fail(
        self,
        claim: Claim,
        error: object,
        *,
        retry_in: float | None = None,
        retry: bool = True,
    ) -> Job:
        """
        End an attempt as failed; as `Jobs.fail`.

        Until the next attempt the other messages of its key wait; once it is a
        dead letter they go on.
        """
        return self._portal.call(self._service.fail, claim, error, retry_in=retry_in, retry=retry)

    def release(self, claim: Claim, *, delay: float = 0.0) -> None:
        """Give a delivery back; as `Jobs.release`."""
        return self._portal.call(self._service.release, claim, delay=delay)

    def read(self, topic: str, *, limit: int = 50, after: str | None = None) -> Page[Message]:
        """
        Read the log of a topic, oldest messages first.

        Args:
            topic: The topic.
            limit: At most this many, 1 to 10,000.
            after: The ``next`` of the page before.
        """
        return self._portal.call(self._service.read, topic, limit=limit, after=after)

    def replay(
        self,
        topic: str,
        group: str,
        *,
        since: str | int = 0,
        until: int | None = None,
    ) -> int:
        """
        Deliver messages to a group again, besides what it has still to do.

        Args:
            topic: The topic.
            group: The group.
            since: From this instant, in milliseconds since the epoch, or message on.
            until: Up to this instant; None for now.

        Returns:
            How many messages.

        Raises:
            InvalidValueError: There is no such group.
        """
        return self._portal.call(self._service.replay, topic, group, since=since, until=until)

    def seek(self, topic: str, group: str, *, to: str | int) -> int:
        """
        Let a group go on from another place in the log.

        What waits for it is dropped, and what is in the log from *to* on is
        delivered. What is being worked on is worked on to its end.

        Args:
            topic: The topic.
            group: The group.
            to: ``latest``, ``earliest``, an instant, or the id of a message.

        Returns:
            How many messages it has before it.
        """
        return self._portal.call(self._service.seek, topic, group, to=to)

    def topics(self) -> list[str]:
        """Name the topics that have a group, sorted."""
        return self._portal.call(self._service.topics)
