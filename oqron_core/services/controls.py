"""Control state: what is paused."""

from __future__ import annotations

from oqron_core._names import check_name
from oqron_core.exceptions import InvalidValueError, PausedError
from oqron_core.models import Control
from oqron_core.planes.values import Page, Query
from oqron_core.protocol.pauses import (
    CONTROLS,
    QUEUE,
    Behaviour,
    Pause,
    admit,
    count_held,
    pause_of,
    queue_control,
    read_control,
    release_held,
    set_paused,
    set_queue_paused,
)
from oqron_core.protocol.session import Session
from oqron_core.taxonomy import RecordKind


__all__ = ["Controls"]


class Controls:
    """
    Pause state, durable and versioned; the source of truth of any board.

    The namespaces are ``queue``, ``worker``, ``webhook``, ``topic_state``,
    ``cron_durable`` and ``schedule_durable``. A paused queue is not claimed from,
    and a paused cron or schedule is never due; what ``worker``, ``webhook`` and
    ``topic_state`` mean is up to whoever runs them, with `admit`.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    async def pause(
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
        self._check(namespace, name)
        if behaviour is not None:
            behaviour = _check_behaviour(behaviour)
        return await set_paused(
            self._session, namespace, name, paused=True, reason=reason, behaviour=behaviour
        )

    async def resume(self, namespace: str, name: str) -> Pause:
        """
        Let it go on. What a queue held is released in order before anything newer.

        Raises:
            InvalidValueError: An argument is not legal.
            ConflictError: Others kept changing it.
            UnavailableError: A plane did not answer. If only the hot one did not,
                maintenance resumes and releases.
        """
        self._check(namespace, name)
        return await set_paused(self._session, namespace, name, paused=False)

    async def get(self, namespace: str, name: str) -> Pause | None:
        """Read the state of something; None where it was never paused."""
        self._check(namespace, name)
        return await read_control(self._session, namespace, name)

    async def query(
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
        self._session.check_open()
        where: list[tuple[str, str, object]] = []
        if namespace is None:
            where.append(("namespace", "in", list(CONTROLS)))
        else:
            _check_namespace(namespace)
        if paused is not None:
            where.append(("paused", "=", paused))
        kind = RecordKind.CONTROL
        query = Query(kind=kind, namespace=namespace, where=where, limit=limit, after=after)
        page = await self._session.durable.query(query)
        return Page([pause_of(record) for record in page.items], page.next)

    async def admit(self, namespace: str, name: str) -> str | None:
        """
        Ask what is to become of something that arrives now.

        Returns:
            None to take it; else what the pause says: ``hold`` or ``skip``.

        Raises:
            PausedError: It rejects what arrives.
        """
        self._check(namespace, name)
        if namespace == QUEUE:
            return await admit(self._session, name)
        control = await read_control(self._session, namespace, name)
        if control is None or not control.paused:
            return None
        if control.behaviour == Behaviour.REJECT:
            raise PausedError(f"{namespace} {name!r}", control.reason)
        return control.behaviour

    async def release(self, queue: str) -> int:
        """
        Release what a queue holds now, in order; what arrives later is held again.

        Claims stay stopped, so nothing runs before the resume.

        Returns:
            How many jobs were released here; another process that is at it already is
            waited for, and counts its own.

        Raises:
            UnavailableError: A plane did not answer; call again.
        """
        self._check(QUEUE, queue)
        # What arrives meanwhile may be held again, and there is no end to wait for.
        most = await count_held(self._session, queue)
        return await release_held(self._session, queue, later=False, wait=True, most=most)

    # --- queues, as `Jobs.pause` and the commands know them ---

    async def pause_queue(self, queue: str, *, reason: str | None = None) -> Control:
        """Pause a queue; see `Jobs.pause`."""
        self._check(QUEUE, queue)
        return await set_queue_paused(self._session, queue, paused=True, reason=reason)

    async def resume_queue(self, queue: str) -> Control:
        """Resume a queue; see `Jobs.resume`."""
        self._check(QUEUE, queue)
        return await set_queue_paused(self._session, queue, paused=False, reason=None)

    async def get_queue(self, queue: str) -> Control | None:
        """Read the state of a queue; None where it was never paused."""
        self._check(QUEUE, queue)
        return await queue_control(self._session, queue)

    async def queues(self, *, limit: int = 50, after: str | None = None) -> Page[Pause]:
        """Read the control records of queues, by name."""
        return await self.query(QUEUE, limit=limit, after=after)

    def _check(self, namespace: str, name: str) -> None:
        self._session.check_open()
        _check_namespace(namespace)
        check_name("queue" if namespace == QUEUE else "name", name)


def _check_namespace(namespace: object) -> None:
    if namespace not in CONTROLS:
        reason = f"{namespace!r} is none of {', '.join(CONTROLS)}"
        raise InvalidValueError("namespace", reason)


def _check_behaviour(behaviour: object) -> str:
    try:
        return str(Behaviour(behaviour))  # type: ignore[arg-type]  # what is no string is refused
    except ValueError:
        known = ", ".join(Behaviour)
        reason = f"{behaviour!r} is none of {known}, or None"
        raise InvalidValueError("behaviour", reason) from None
