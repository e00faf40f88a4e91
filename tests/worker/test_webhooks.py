"""Webhooks: signed, tried again, behind a breaker, and never to where they must not go."""

from __future__ import annotations

import asyncio
import contextlib
import json

from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest

from oqron_core import InvalidValueError
from oqron_worker import App, Context
from oqron_worker._signing import new_secret, signature_headers, verify


@attrs.define
class Receiver:
    """A small HTTP server: answers what it is told to, and keeps what it got."""

    port: int = 0
    requests: list[tuple[str, dict[str, str], bytes]] = attrs.field(factory=list)
    answers: list[str] = attrs.field(factory=list)

    @property
    def url(self) -> str:
        """The address."""
        return f"http://127.0.0.1:{self.port}/hook"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.requests.append((first, headers, body))
        answer = self.answers.pop(0) if self.answers else "200 OK"
        status, _, more = answer.partition("\n")
        extra = f"{more}\r\n" if more else ""
        text = f"HTTP/1.1 {status}\r\n{extra}content-length: 2\r\nconnection: close\r\n\r\nok"
        writer.write(text.encode())
        await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def receiver() -> AsyncIterator[Receiver]:
    """Run one on a free port."""
    found = Receiver()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    async with server:
        yield found


async def test_an_event_is_sent_signed(oqron_tester: Any, oqron_clock: Any) -> None:
    """The receiver can verify it by Standard Webhooks, and gets what the function made."""
    secret = new_secret()
    async with receiver() as there:
        app = App()

        @app.webhook("partner", url=there.url, secret=secret, allow_private=True)
        def partner(data: dict[str, Any]) -> dict[str, Any]:
            return {"order": data["id"], "note": "Grüße"}

        async with oqron_tester(app) as tester:
            [job] = await app.emit("order.created", {"id": 7}, id="evt-1")
            await tester.drain()

            assert 200 == (await tester.completed(job))["status"]
            [(first, headers, body)] = there.requests
            assert "POST /hook HTTP/1.1" == first
            assert {"order": 7, "note": "Grüße"} == json.loads(body)
            assert "evt-1" == headers["webhook-id"]
            assert f"127.0.0.1:{there.port}" == headers["host"]
            now = oqron_clock.now() / 1000
            assert verify(secret, headers, body, now=now)
            assert not verify(secret, headers, body + b" ", now=now)
            assert not verify(new_secret(), headers, body, now=now)
            assert not verify(secret, headers, body, now=now + 400)
            assert verify(f"{new_secret()} {secret}", headers, body, now=now)
            [again] = await app.emit("order.created", {"id": 7}, id="evt-1")
            assert again.duplicate


def test_the_signature_is_the_published_one() -> None:
    """The example of the specification gives its signature."""
    headers = signature_headers(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
    )

    assert "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" == headers["webhook-signature"]


async def test_each_endpoint_gets_the_events_it_asked_for(oqron_tester: Any) -> None:
    """One that is down keeps no other from getting them."""
    async with receiver() as one, receiver() as two:
        app = App()

        @app.webhook("orders", allow_private=True)
        async def orders(ctx: Context, data: dict[str, Any]) -> dict[str, Any] | None:
            assert "webhook:orders" == ctx.queue
            return None if data.get("quiet") else data

        async with oqron_tester(app) as tester:
            first = await orders.subscribe("one", one.url, events=["order.*"])
            await orders.subscribe("two", two.url, events=["order.paid", "user.*"])
            assert (first.secret or "").startswith("whsec_")
            assert first.secret not in repr(first)
            assert 1 == len(await orders.send("order.created", {"n": 1}))
            assert 2 == len(await orders.send("order.paid", {"n": 2}))
            assert 0 == len(await orders.send("stock.low", {"n": 3}))
            [quiet] = await orders.send("user.left", {"quiet": True})
            await tester.drain()

            assert {"sent": False} == await tester.completed(quiet)
            assert [1, 2] == sorted(json.loads(body)["n"] for _, _, body in one.requests)
            assert [2] == [json.loads(body)["n"] for _, _, body in two.requests]

            [waiting] = await orders.send("order.created", {"n": 4})
            assert await orders.unsubscribe("one")
            await tester.drain()
            await tester.died(waiting, error="gone or disabled")


async def test_an_answer_says_whether_and_when_to_try_again(oqron_tester: Any) -> None:
    """503 with Retry-After is honoured, 410 ends it, a redirect is not followed."""
    async with receiver() as there:
        app = App()

        @app.webhook("partner", url=there.url, allow_private=True)
        def partner(data: Any) -> Any:
            return data

        async with oqron_tester(app) as tester:
            there.answers = ["503 Busy\nretry-after: 77", "302 Found\nlocation: /other", "200 OK"]
            [job] = await partner.send("e", {})
            await tester.drain()
            assert 77_000 == (await tester.job(job)).run_at - tester.clock.now()
            await tester.advance(76)
            assert 1 == len(there.requests)
            await tester.advance(200)
            await tester.completed(job)
            assert ["POST /hook HTTP/1.1"] * 3 == [first for first, _, _ in there.requests]
            assert 1 == len({headers["webhook-id"] for _, headers, _ in there.requests})

            there.answers = ["410 Gone"]
            [job] = await partner.send("e", {})
            await tester.drain()
            await tester.died(job, error="410")


async def test_a_breaker_spares_what_is_down(oqron_tester: Any) -> None:
    """After five failures in a row nothing is sent and no attempt counts, then one probe."""
    async with receiver() as there:
        app = App()

        @app.webhook("partner", url=there.url, allow_private=True, max_attempts=3)
        def partner(data: Any) -> Any:
            return data

        async with oqron_tester(app) as tester:
            there.answers = ["500 Oops"] * 5
            jobs = [(await partner.send("e", n))[0] for n in range(12)]
            await tester.drain()
            assert 5 == len(there.requests)
            assert {0, 1} == {(await tester.job(job)).attempt_made for job in jobs}
            await tester.advance(3600)

            assert {"completed"} == {
                run.status for job in jobs for run in (await tester.runs("webhook:partner"))[-1:]
            }
            assert [] == await tester.dead("webhook:partner")


async def test_a_run_is_sent_once_more(oqron_tester: Any) -> None:
    """With the same id, as a job of its own."""
    async with receiver() as there:
        app = App()

        @app.webhook("partner", url=there.url, allow_private=True)
        def partner(data: Any) -> Any:
            return data

        async with oqron_tester(app) as tester:
            await partner.send("e", {"n": 1})
            await tester.drain()
            [run] = await tester.runs("webhook:partner")
            await partner.replay(run.id)
            await tester.drain()

            assert there.requests[0][2] == there.requests[1][2]
            assert there.requests[0][1]["webhook-id"] == there.requests[1][1]["webhook-id"]
            with pytest.raises(InvalidValueError, match="no run of webhook"):
                await partner.replay("nothing")


async def test_private_addresses_are_not_called(oqron_tester: Any) -> None:
    """Neither by number nor by a name that leads there."""
    async with receiver() as there:
        app = App()

        @app.webhook("partner")
        def partner(data: Any) -> Any:
            return data

        async with oqron_tester(app) as tester:
            await partner.subscribe("number", there.url)
            await partner.subscribe("name", f"http://localhost:{there.port}/")
            await partner.subscribe("odd", f"http://[::ffff:127.0.0.1]:{there.port}/")
            jobs = await partner.send("e", {})
            await tester.drain()

            for job in jobs:
                await tester.died(job, error="private address")
            assert [] == there.requests


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("10.0.0.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("::ffff:10.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
    ],
)
def test_which_addresses_are_public(address: str, public: bool) -> None:
    """Also those of private hosts inside of others."""
    from oqron_worker._sending import address_is_public

    assert public is address_is_public(address)


def test_what_is_no_endpoint_is_refused() -> None:
    """Other schemes, and secrets that are none, without showing them."""
    app = App()

    with pytest.raises(InvalidValueError, match="url"):
        app.webhook("a", url="ftp://x")
    with pytest.raises(InvalidValueError, match="secret") as caught:
        app.webhook("a", url="https://x", secret="whsec_hush!")
    assert "hush" not in str(caught.value)
