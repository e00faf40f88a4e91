"""Retention: how long what has ended is kept, and what would go now."""

from __future__ import annotations

from oqron_core.protocol.retaining import Prunable, Retaining, Rule, check_rule, check_target
from oqron_core.protocol.session import Session


__all__ = ["Retention"]


class Retention:
    """
    What has ended goes after a while; what waits or runs never does.

    The settings say for how long completed and cancelled jobs, dead letters, runs
    and messages are kept; it is written with each of them as its expiry when it
    ends. A rule shortens that, by age or by count, for a kind of record and the
    namespaces of a pattern. Rules are durable and the same for every process.
    Where several are about a namespace, the most exact one counts alone.
    """

    def __init__(self, session: Session, retaining: Retaining) -> None:
        self._session = session
        self._retaining = retaining

    async def set(
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
        self._session.check_open()
        rule = Rule(kind=kind, namespace=namespace, keep_for=keep_for, keep=keep)
        return await self._retaining.set_rule(check_rule(rule))

    async def unset(self, kind: str, namespace: str = "*") -> bool:
        """Remove a rule; False where there was none."""
        self._session.check_open()
        check_target(kind, namespace)
        return await self._retaining.unset_rule(kind, namespace)

    async def rules(self) -> list[Rule]:
        """Read the rules, by kind and namespace."""
        self._session.check_open()
        return await self._retaining.rules()

    async def preview(self) -> list[Prunable]:
        """
        Say what `prune` would delete now: records and bytes, by kind and namespace.

        Raises:
            CapabilityError: The durable backend cannot tell.
            UnavailableError: The durable plane did not answer.
        """
        self._session.check_open()
        return await self._retaining.preview()

    async def prune(self) -> int:
        """
        Delete what has expired, and what the rules do not keep, in bounded steps.

        Maintenance does it every few seconds. Where another process is at it now,
        nothing is done here.

        Returns:
            How many records were deleted.
        """
        self._session.check_open()
        batch = self._session.settings.maintenance.batch
        return await self._retaining.prune(batch=batch)
