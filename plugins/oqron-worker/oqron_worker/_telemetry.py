"""Spans and metrics by the messaging conventions of OpenTelemetry."""

from __future__ import annotations

import contextlib
import time

from collections.abc import Iterator, Mapping
from typing import Any, Final

from oqron_worker._context import Context


try:
    from opentelemetry import metrics, propagate, trace
except ImportError as _error:
    raise ImportError(
        "spans and metrics need the extra of that name: pip install 'oqron-worker[opentelemetry]'"
    ) from _error


__all__ = ["Telemetry"]

_NAME: Final = "oqron_worker"
_SYSTEM: Final = "oqron"
_TAG: Final = "otel:"


class Telemetry:
    """
    Makes a span per attempt, whose parent is the span that added the job.

    The trace's context travels in a tag of the job, or a header of the message. Who
    exports what is up to the application's own set-up of OpenTelemetry.
    """

    def __init__(self) -> None:
        self._tracer = trace.get_tracer(_NAME)
        meter = metrics.get_meter(_NAME)
        self._duration = meter.create_histogram(
            "messaging.process.duration", unit="s", description="How long attempts took."
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", description="Jobs that were made."
        )

    def headers(self) -> dict[str, str]:
        """Give the context of the current span, as headers."""
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        return carrier

    def outgoing(self, queue: str) -> list[str]:
        """Give the tags of a job that is added now, and count it."""
        self._sent.add(1, _attributes(queue, "send"))
        return [f"{_TAG}{key}={value}" for key, value in self.headers().items()]

    @contextlib.contextmanager
    def attempt(self, context: Context) -> Iterator[None]:
        """Be in the span of an attempt."""
        attributes = _attributes(context.queue, "process")
        began = time.perf_counter()
        details: dict[str, str | int] = {**attributes}
        details |= {"oqron.attempt": context.attempt, "oqron.run.id": context.run.id}
        if context.claim is not None:
            details["messaging.message.id"] = context.claim.id
        try:
            with self._tracer.start_as_current_span(
                f"process {context.queue}",
                context=propagate.extract(_carrier(context)),
                kind=trace.SpanKind.CONSUMER,
                attributes=details,
            ):
                yield
        except BaseException as error:
            attributes["error.type"] = type(error).__qualname__
            raise
        finally:
            self._duration.record(time.perf_counter() - began, attributes)


def _attributes(queue: str, operation: str) -> dict[str, str]:
    return {
        "messaging.system": _SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.name": operation,
    }


def _carrier(context: Context) -> Mapping[str, Any]:
    if context.claim is None:
        return {}
    if context.message is not None:
        return {key: value for key, value in context.message.headers.items() if type(value) is str}
    found = {}
    for tag in context.claim.tags:
        if tag.startswith(_TAG):
            key, _, value = tag[len(_TAG) :].partition("=")
            found[key] = value
    return found
