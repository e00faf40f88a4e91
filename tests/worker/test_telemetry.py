"""Spans of attempts: children of the span that added the job."""

from __future__ import annotations

from typing import Any

import pytest

from oqron_worker import App


sdk = pytest.importorskip("opentelemetry.sdk.trace")


@pytest.fixture(scope="module")
def spans() -> Any:
    """Give what the process's tracer exports."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


async def test_the_context_travels_in_the_job(oqron_tester: Any, spans: Any) -> None:
    """From adding to each attempt, by queue and by topic, with errors on the span."""
    from opentelemetry import trace

    app = App(opentelemetry=True)

    @app.queue("mail", max_attempts=1)
    async def mail(n: int) -> None:
        if n < 0:
            raise ValueError("negative")

    @app.topic("events", group="g")
    async def event(message: dict[str, Any]) -> None: ...

    async with oqron_tester(app) as tester:
        tracer = trace.get_tracer("test")
        with tracer.start_as_current_span("request") as parent:
            job = await mail.add(n=1)
            await mail.add(n=-1)
            await app.publish("events", {"a": 1})
        await tester.drain()

    found = [span for span in spans.get_finished_spans() if span.name != "request"]
    assert 3 == len(found)
    trace_id = parent.get_span_context().trace_id
    assert {trace_id} == {span.context.trace_id for span in found}
    assert {parent.get_span_context().span_id} == {span.parent.span_id for span in found}
    first = next(s for s in found if s.attributes.get("messaging.message.id") == job.id)
    assert "process mail" == first.name
    assert "mail" == first.attributes["messaging.destination.name"]
    assert 1 == first.attributes["oqron.attempt"]
    assert 1 == sum(not span.status.is_ok and bool(span.events) for span in found)
