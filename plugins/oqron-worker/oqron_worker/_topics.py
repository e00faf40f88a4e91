"""Topics: handlers that messages are delivered to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from oqron_core import Message
from oqron_worker._handlers import Handler, Options


if TYPE_CHECKING:
    from oqron_worker._app import App


__all__ = ["TopicHandler"]


class TopicHandler(Handler):
    """
    A function that gets every message of a topic, once for its group.

    Attributes:
        topic: The topic.
        group: The group.
        start: From where a group that is new reads.
    """

    def __init__(
        self,
        app: App,
        topic: str,
        group: str,
        function: Callable[..., Any],
        options: Options,
        *,
        start: str | int,
        names: Mapping[str, Any] | None,
    ) -> None:
        super().__init__(app, f"{topic}/{group}", function, options, whole=True, names=names)
        self.topic = topic
        self.group = group
        self.start = start

    def arguments(self, context: Any, data: Any) -> dict[str, Any]:
        """Take the message; the payload of a delivery holds it."""
        message = context.message
        return self.signature.unpack(data if message is None else message.message)

    def retry_in(self, attempt: int) -> float | None:
        """Say how long to wait after *attempt* failed: deliveries carry no backoff."""
        return self.options.backoff.delay_after(attempt)

    async def define(self) -> None:
        """Subscribe the group; one that is there keeps its place."""
        await self.app.storage.topics.subscribe(
            self.topic, self.group, start=self.start, max_attempts=self.options.max_attempts
        )

    async def publish(
        self,
        message: Any,
        *,
        key: str | None = None,
        idempotency_key: str | None = None,
        headers: dict[str, Any] | None = None,
    ) -> Message:
        """
        Publish to the topic, for all of its groups; checked as this one's message.

        Raises:
            InvalidValueError: The message is not what the function takes.
        """
        data = self.signature.pack((message,), {})
        return await self.app.publish(
            self.topic, data, key=key, idempotency_key=idempotency_key, headers=headers
        )
