"""Webhooks: events sent to endpoints, signed, tried again, behind a breaker."""

from __future__ import annotations

import asyncio
import fnmatch
import hashlib
import inspect
import json
import secrets
import time

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from oqron_core import Job, JobSpec
from oqron_core.exceptions import InvalidValueError
from oqron_worker._context import Context
from oqron_worker._convert import dump
from oqron_worker._handlers import Options
from oqron_worker._outcomes import Discard, Retry, Snooze
from oqron_worker._queues import QueueHandler
from oqron_worker._sending import Answer, Sender, UnsafeAddressError
from oqron_worker._signing import new_secret, signature_headers


if TYPE_CHECKING:
    from oqron_worker._app import App


__all__ = ["Endpoint", "WebhookHandler"]

_PAGE: Final = 1000
_GONE: Final = 410
_ASKS_TO_WAIT: Final = frozenset({429, 503})
_SERVER_ERROR: Final = 500
_LONGEST_WAIT: Final = 86400.0
_SHOWN: Final = 500


@attrs.frozen(kw_only=True)
class Endpoint:
    """
    Where events are sent to.

    Attributes:
        name: Unique in its webhook.
        url: An ``http`` or ``https`` address.
        secret: What signs, ``whsec_`` and base64; several in one text with spaces
            between sign all, for a change of secrets. None for no signature.
        events: Patterns of the events it gets, such as ``order.*``.
        headers: Sent along.
        enabled: Whether it gets any.
    """

    name: str
    url: str
    secret: str | None = attrs.field(default=None, repr=False)
    events: tuple[str, ...] = ("*",)
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    enabled: bool = True

    def __attrs_post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise InvalidValueError("url", "must begin with http:// or https://")
        if not self.events or not all(isinstance(e, str) and e for e in self.events):
            raise InvalidValueError("events", "must be patterns such as order.*")
        if self.secret is not None:
            signature_headers(self.secret, "check", 0, b"")

    def wants(self, event: str) -> bool:
        """Whether it gets *event*."""
        return self.enabled and any(fnmatch.fnmatchcase(event, p) for p in self.events)

    def spec(self) -> dict[str, Any]:
        """Give the form that is stored."""
        return {
            "url": self.url,
            "secret": self.secret,
            "events": list(self.events),
            "headers": dict(self.headers),
            "enabled": self.enabled,
        }

    @classmethod
    def of(cls, name: str, spec: Mapping[str, Any]) -> Endpoint:
        """Read what is stored."""
        return cls(
            name=name,
            url=spec["url"],
            secret=spec.get("secret"),
            events=tuple(spec.get("events") or ("*",)),
            headers=spec.get("headers") or {},
            enabled=spec.get("enabled", True),
        )


class WebhookHandler:
    """
    A function that makes bodies of events, and the endpoints that they go to.

    Each delivery is a job of its own: one endpoint that is down keeps no other from
    getting the event.

    Attributes:
        name: Its name; the jobs are in the queue ``webhook:<name>``.
        queue: The queue of its deliveries.
    """

    def __init__(
        self,
        app: App,
        name: str,
        function: Callable[..., Any],
        options: Options,
        *,
        fixed: Sequence[Endpoint],
        allow_private: bool,
        names: Mapping[str, Any],  # noqa: ARG002 - bodies are not checked
    ) -> None:
        self.app = app
        self.name = name
        self.function = function
        self.__name__ = self.__qualname__ = getattr(function, "__qualname__", name)
        self.__doc__ = function.__doc__
        self._context = len(inspect.signature(function).parameters) > 1
        self._fixed = {endpoint.name: endpoint for endpoint in fixed}
        self._place = f"webhook_endpoints:{name}"
        self._sender = Sender(allow_private=allow_private)
        self.queue = QueueHandler(app, f"webhook:{name}", self._deliver, options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself; nothing is sent."""
        return self.function(*args, **kwargs)

    # --- endpoints ---

    async def subscribe(
        self,
        name: str,
        url: str,
        *,
        secret: str | None = None,
        events: Sequence[str] = ("*",),
        headers: Mapping[str, str] | None = None,
    ) -> Endpoint:
        """
        Add an endpoint, or change one; stored as a definition.

        Args:
            name: Unique in the webhook.
            url: Where to.
            secret: What signs; None makes a new one.
            events: Patterns of events.
            headers: Sent along.

        Returns:
            The endpoint, with its secret.

        Raises:
            InvalidValueError: An argument is not legal.
        """
        endpoint = Endpoint(
            name=name,
            url=url,
            secret=secret or new_secret(),
            events=tuple(events),
            headers=headers or {},
        )
        await self.app.storage.definitions.put(self._place, name, endpoint.spec())
        return endpoint

    async def unsubscribe(self, name: str) -> bool:
        """Remove an endpoint; what waits for it is discarded. False where there is none."""
        return await self.app.storage.definitions.delete(self._place, name)

    async def enable(self, name: str, *, enabled: bool = True) -> Endpoint | None:
        """Let an endpoint get events, or not; None where there is none."""
        found = await self.endpoint(name)
        if found is None or name in self._fixed:
            return None
        changed = attrs.evolve(found, enabled=enabled)
        await self.app.storage.definitions.put(self._place, name, changed.spec())
        return changed

    async def endpoint(self, name: str) -> Endpoint | None:
        """Read an endpoint; None where there is none."""
        if name in self._fixed:
            return self._fixed[name]
        found = await self.app.storage.definitions.get(self._place, name)
        return None if found is None else Endpoint.of(name, found.spec)

    async def endpoints(self) -> list[Endpoint]:
        """Read every endpoint."""
        found = list(self._fixed.values())
        after: str | None = None
        while True:
            page = await self.app.storage.definitions.query(self._place, limit=_PAGE, after=after)
            found += [Endpoint.of(defined.name, defined.spec) for defined in page.items]
            after = page.next
            if after is None:
                return found

    # --- send ---

    async def send(self, event: str, data: Any, *, id: str | None = None) -> list[Job]:  # noqa: A002 - the word of the contract
        """
        Send an event to every endpoint that wants it.

        Args:
            event: Such as ``order.created``.
            data: Anything portable; attrs classes become JSON.
            id: Of the event; the same id is sent once to each endpoint, and is what
                receivers know repeats by.

        Returns:
            The deliveries, one per endpoint.

        Raises:
            InvalidValueError: An argument is not legal; nothing was added.
        """
        if not event or not isinstance(event, str):
            raise InvalidValueError("event", "must be a name such as order.created")
        event_id = id or f"msg_{secrets.token_urlsafe(18)}"
        wanted = [endpoint for endpoint in await self.endpoints() if endpoint.wants(event)]
        payload = dump(data, Any, "data")
        specs = [self._delivery(event, event_id, endpoint, payload) for endpoint in wanted]
        return await self.app.storage.jobs.add_many(self.queue.name, specs) if specs else []

    def _delivery(self, event: str, event_id: str, endpoint: Endpoint, data: Any) -> JobSpec:
        mixed = hashlib.sha256(f"{len(event_id)}:{event_id}:{endpoint.name}".encode())
        spec = self.queue.spec(event=event, event_id=event_id, endpoint=endpoint.name, data=data)
        return attrs.evolve(spec, id=mixed.hexdigest()[:40], tags=[*(spec.tags or ()), event])

    async def replay(self, run_id: str) -> Job:
        """
        Send once more what a run sent, with the same id for its receiver.

        Raises:
            InvalidValueError: There is no such run, or it was none of this webhook.
        """
        run = await self.app.storage.runs.get(run_id)
        if run is None or run.queue_name != self.queue.name or not isinstance(run.input, dict):
            reason = f"{run_id!r} is no run of webhook {self.name!r}"
            raise InvalidValueError("run_id", reason)
        return await self.queue.add(**run.input)

    async def close(self) -> None:
        """Close the connections; the next delivery opens others."""
        await self._sender.close()

    # --- one delivery ---

    async def _deliver(
        self, ctx: Context, event: str, event_id: str, endpoint: str, data: Any
    ) -> dict[str, Any]:
        found = await self.endpoint(endpoint)
        if found is None or not found.enabled:
            msg = f"the endpoint {endpoint!r} is gone or disabled"
            raise Discard(msg)
        body = await self._body(ctx, data)
        if body is None:
            return {"sent": False}
        breakers = self.app.storage.breakers
        name = f"{self.name}/{endpoint}"[:255]
        permit = await breakers.allow(name)
        if not permit:
            raise Snooze(max(0.05, permit.retry_after), f"the breaker of {endpoint!r} is open")
        began = time.perf_counter()
        try:
            answer = await self._post(found, event, event_id, body)
        except UnsafeAddressError as error:
            await breakers.success(name, permit=permit)
            raise Discard(str(error)) from None
        except OSError:
            await breakers.failure(name, permit=permit)
            raise
        if answer.status >= _SERVER_ERROR:
            await breakers.failure(name, permit=permit)
        else:
            await breakers.success(name, permit=permit)
        _judge(ctx, answer)
        return {"status": answer.status, "ms": round((time.perf_counter() - began) * 1000)}

    async def _body(self, ctx: Context, data: Any) -> bytes | None:
        made = self.function(ctx, data) if self._context else self.function(data)
        if asyncio.iscoroutine(made):
            made = await made
        if made is None:
            return None
        plain = dump(made, Any, "body")
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()

    async def _post(self, endpoint: Endpoint, event: str, event_id: str, body: bytes) -> Answer:
        now = await self.app.storage.durable.now()
        headers = {
            "content-type": "application/json",
            "user-agent": "oqron-worker",
            "webhook-event": event,
            **endpoint.headers,
            **signature_headers(endpoint.secret, event_id, now // 1000, body),
        }
        timeout = self.queue.options.timeout or 30.0
        return await self._sender.post(endpoint.url, headers, body, timeout=timeout * 0.9)


def _judge(ctx: Context, answer: Answer) -> None:
    """Say whether an answer ends the delivery, or when it is tried again."""
    if answer.ok:
        return
    ctx.log("warning", f"answered {answer.status}", body=answer.text[:_SHOWN])
    if answer.status == _GONE:
        raise Discard("the endpoint answered 410: it is gone")
    delay = None
    if answer.status in _ASKS_TO_WAIT and answer.retry_after is not None:
        delay = min(_LONGEST_WAIT, answer.retry_after)
    msg = f"the endpoint answered {answer.status}"
    raise Retry(msg, delay=delay)
