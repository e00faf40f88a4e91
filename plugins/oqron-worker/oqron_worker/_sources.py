"""Where attempts come from: queues, and groups of topics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from oqron_core import Claim
from oqron_worker._handlers import Handler


if TYPE_CHECKING:
    from oqron_worker._app import App


__all__ = ["QueueSource", "Source", "TopicSource"]

_WAIT: Final = 60.0
"""Seconds after which a waiting loop asks again; what wakes it is the broker."""


class Source(ABC):
    """
    Something that attempts are claimed from.

    Attributes:
        name: For people and metrics.
        handler: What runs them.
    """

    def __init__(self, app: App, name: str, handler: Handler, worker: str) -> None:
        self._app = app
        self.name = name
        self.handler = handler
        self._worker = worker
        self._lease_for = handler.options.lease_for

    @abstractmethod
    async def claim(self, limit: int) -> list[Claim]:
        """Claim at once, at most *limit*."""

    async def ready(self) -> int:
        """Say about how many could be claimed now; 1 where that is not known."""
        return 1

    @abstractmethod
    async def wait(self, free: int) -> list[Claim]:
        """
        Return when there may be something to claim; sleeps without polling.

        Args:
            free: How many attempts could be started; what cannot wait without
                claiming claims at most this many.
        """


class QueueSource(Source):
    """A queue."""

    async def claim(self, limit: int) -> list[Claim]:
        """Claim at once, at most *limit*."""
        return await self._app.storage.jobs.claim(
            self.name, limit=limit, lease_for=self._lease_for, worker=self._worker
        )

    async def ready(self) -> int:
        """Say about how many could be claimed now."""
        return (await self._app.storage.hot.broker.counts(self.name)).ready

    async def wait(self, free: int) -> list[Claim]:  # noqa: ARG002 - nothing is claimed
        """Return when there may be something to claim."""
        await self._app.storage.hot.broker.wait([self.name], timeout=_WAIT)
        return []


class TopicSource(Source):
    """The deliveries of a topic to one group."""

    def __init__(self, app: App, topic: str, group: str, handler: Handler, worker: str) -> None:
        super().__init__(app, f"{topic}/{group}", handler, worker)
        self.topic = topic
        self.group = group

    async def claim(self, limit: int, wait: float = 0.0) -> list[Claim]:
        """Claim at once, or after up to *wait* seconds, at most *limit*."""
        return await self._app.storage.topics.claim(
            self.topic,
            self.group,
            limit=limit,
            lease_for=self._lease_for,
            worker=self._worker,
            wait=wait,
        )

    async def wait(self, free: int) -> list[Claim]:
        """Return with what came, at most *free*: a topic is waited for by claiming."""
        return await self.claim(free, _WAIT)
