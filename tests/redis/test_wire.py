"""The stream below the calls: in order, side by side, and given up when it is odd."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import warnings

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from oqron_core import open_storage
from oqron_core.exceptions import ClosedError, ConfigError, OqronError, UnavailableError
from oqron_core.planes import Put
from oqron_core.testing.servers import RedisServer
from oqron_redis import RedisSettings
from oqron_redis._lane import Lane
from oqron_redis._scripts import script
from oqron_redis._store import Store, open_store
from oqron_redis._wire import take_over


@contextlib.asynccontextmanager
async def opened(url: str, **more: Any) -> AsyncIterator[Store]:
    """Give a store without planes."""
    async with open_store(RedisSettings(url=url, **more)) as store:
        yield store


def command(store: Store, *words: bytes, again: bool = False) -> asyncio.Future[Any]:
    """Send one command."""
    return store.command(*words, key=b"k", again=again)


def test_a_call_does_not_wait_for_the_one_before(redis: RedisServer) -> None:
    """What comes while another is under way is on its way before that is answered."""

    async def main() -> None:
        async with opened(redis.url) as store, opened(redis.url) as other:
            await command(store, b"DEL", b"blocked")
            held = command(store, b"BLPOP", b"blocked", b"20")
            await asyncio.sleep(0.05)
            behind = command(store, b"SET", b"behind", b"1")
            await asyncio.sleep(0.05)
            assert not held.done()
            assert not behind.done()
            await command(other, b"RPUSH", b"blocked", b"x")
            # Redis had it already: nothing else has to be sent for its answer.
            assert await held == [b"blocked", b"x"]
            assert await behind == b"OK"

    asyncio.run(main())


def test_answers_stay_in_order_however_they_arrive(redis: RedisServer) -> None:
    """Large and small, many at a time, errors and cancelled callers among them."""

    async def main() -> None:
        async with opened(redis.url) as store:
            await command(store, b"SET", b"text", b"x")
            calls: list[asyncio.Future[Any]] = []
            for n in range(3000):
                if n % 7 == 3:
                    calls.append(command(store, b"INCR", b"text"))
                elif n % 100 == 50:
                    calls.append(command(store, b"ECHO", b"%d" % n * 50_000))
                else:
                    calls.append(command(store, b"ECHO", b"%d" % n))
                if n % 11 == 5:
                    await asyncio.sleep(0)
                if n % 13 == 6:
                    calls[-1].cancel()
            found = await asyncio.gather(*calls, return_exceptions=True)
            for n, answer in enumerate(found):
                if n % 13 == 6:
                    assert isinstance(answer, asyncio.CancelledError)
                elif n % 7 == 3:
                    assert isinstance(answer, OqronError)
                elif n % 100 == 50:
                    assert answer == b"%d" % n * 50_000
                else:
                    assert answer == b"%d" % n

    asyncio.run(main())


def test_forgotten_scripts_are_done_in_the_order_of_the_calls(own_redis: RedisServer) -> None:
    """Those under way and those that come meanwhile: none overtakes another."""

    async def main() -> None:
        async with opened(own_redis.url) as store:
            for round_ in range(20):
                await command(store, b"SCRIPT", b"FLUSH")
                places = [b"k%d:%d" % (round_, n) for n in range(7)]
                calls = []
                for n in range(30):
                    words = (b"c", b"q", 60_000, b"%03d" % n, 0, b"")
                    calls.append(store.run("publish", places, words))
                    if n % 3 == 0:
                        await asyncio.sleep(0)
                await asyncio.gather(*calls)
                ready = await command(store, b"ZRANGE", places[0], b"0", b"-1")
                assert [member[16:] for member in ready] == [b"%03d" % n for n in range(30)]

    assert script("publish").sha
    asyncio.run(main())


@contextlib.asynccontextmanager
async def answering(reply: Callable[[bytes], bytes | None]) -> AsyncIterator[str]:
    """Serve somebody who says *reply* to whatever comes, and hangs up at None."""
    serving: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(writer)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                said = reply(data)
                if said is None:
                    break
                writer.write(said)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in serving:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


def greeted(then: Callable[[bytes], bytes | None]) -> Callable[[bytes], bytes | None]:
    """Answer what a driver says first, then do as *then* says."""

    def reply(data: bytes) -> bytes | None:
        if b"CLIENT" in data or b"HELLO" in data or b"SELECT" in data:
            return b"+OK\r\n" * data.count(b"*")
        return then(data)

    return reply


@pytest.mark.parametrize(
    ("said", "error"),
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", OqronError, id="another-protocol"),
        pytest.param(b"+1\r\n+2\r\n", None, id="an-answer-too-many"),
        pytest.param(None, UnavailableError, id="hung-up"),
        pytest.param(b"-LOADING Redis is loading\r\n", UnavailableError, id="loading"),
        pytest.param(b"-READONLY no\r\n", UnavailableError, id="read-only"),
        pytest.param(b"$10\r\nhalf", UnavailableError, id="half-an-answer"),
    ],
)
def test_an_odd_server_is_given_up(said: bytes | None, error: type[Exception] | None) -> None:
    """Each caller hears of it once, in time, and the next call connects anew."""
    greetings = 0

    def reply(data: bytes) -> bytes | None:
        return said

    def greet(data: bytes) -> bytes | None:
        nonlocal greetings
        greetings += b"HELLO" in data or b"CLIENT" in data
        return greeted(reply)(data)

    async def main() -> None:
        options = {"timeout": 0.3, "retries": 0, "connect_timeout": 5.0}
        async with answering(greet) as url, opened(url, **options) as store:
            for _ in range(2):
                before = greetings
                async with asyncio.timeout(30):
                    if error is None:
                        assert await command(store, b"GET", b"k") == b"1"
                    else:
                        with pytest.raises(error):
                            await command(store, b"GET", b"k")
                assert greetings > before

    asyncio.run(main())


def test_a_server_that_does_not_read_holds_nobody_for_ever(own_redis: RedisServer) -> None:
    """More than the buffers take is sent to a server that is stopped."""

    async def main() -> None:
        async with opened(own_redis.url, timeout=1.0, retries=0) as store:
            await command(store, b"PING")
            with own_redis.paused():
                calls: list[Awaitable[Any]] = [
                    command(store, b"SET", b"k%d" % n, b"x" * 1_000_000) for n in range(40)
                ]
                async with asyncio.timeout(60):
                    found = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(answer, UnavailableError) for answer in found)
            assert await command(store, b"SET", b"k", b"x") == b"OK"

    asyncio.run(main())


def test_more_calls_are_no_sign_of_life(own_redis: RedisServer) -> None:
    """A server that is stopped is given up in time, however often it is asked."""

    async def main() -> None:
        async with opened(own_redis.url, timeout=0.5, retries=0) as store:
            await command(store, b"PING")
            with own_redis.paused():
                async with asyncio.timeout(20):
                    first = command(store, b"PING")
                    calls = [first]
                    while not first.done():
                        await asyncio.sleep(0.05)
                        calls.append(command(store, b"PING"))
                found = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(answer, UnavailableError) for answer in found)
            assert await command(store, b"PING") == b"PONG"

    asyncio.run(main())


@pytest.mark.parametrize("calls", [1, 3])
def test_whatever_connecting_raises_is_told(calls: int) -> None:
    """Also what no driver should raise; nobody is left waiting."""

    def broken() -> Any:
        raise RuntimeError

    async def main() -> None:
        lane = Lane(broken, timeout=1.0, connect_timeout=1.0, retries=1, pause=lambda _: 0.0)
        async with asyncio.timeout(20):
            found = await asyncio.gather(
                *(lane.call((b"PING",)) for _ in range(calls)), return_exceptions=True
            )
        assert all(isinstance(answer, OqronError) for answer in found)
        await lane.close()

    asyncio.run(main())


def test_closing_tells_whoever_waits(redis: RedisServer) -> None:
    """Under way or not sent yet; the server is left in peace."""

    async def main() -> None:
        async with opened(redis.url) as store:
            await command(store, b"PING")
            held = command(store, b"BLPOP", b"nobody", b"20")
            await asyncio.sleep(0.02)
            late = command(store, b"PING")
            await store.close()
            for call in (held, late):
                with pytest.raises(ClosedError):
                    await call
            with pytest.raises(ClosedError):
                command(store, b"PING")

    asyncio.run(main())


def test_a_driver_that_keeps_its_stream_elsewhere_is_named() -> None:
    """Before anything is sent, with what to install."""

    class Stranger:
        async def connect(self) -> None:
            """Connect to nothing."""

        async def disconnect(self, *, nowait: bool = False) -> None:
            """Leave nothing."""

    with pytest.raises(ConfigError, match="redis<9"):
        take_over(Stranger(), answered=print, lost=print, resumed=print)

    async def main() -> None:
        lane = Lane(Stranger, timeout=1.0, connect_timeout=1.0, retries=0, pause=float)
        with pytest.raises(ConfigError, match="redis<9"):
            await lane.call((b"PING",))
        await lane.close()

    asyncio.run(main())


def test_closing_leaves_nothing_open_where_the_server_takes_nothing(own_redis: RedisServer) -> None:
    """What has not gone out by then never will: nothing waits for it behind the loop."""

    async def main(stack: contextlib.ExitStack) -> None:
        said = {"mode": "redis", "project": "p", "environment": "e", "close_timeout": 1.0}
        async with open_storage(**said, redis={"url": own_redis.url}) as storage:
            stack.enter_context(own_redis.paused())
            puts = [Put("n", f"{n}", {"x": "y" * 900_000}) for n in range(40)]
            writing = [asyncio.ensure_future(storage.durable.write([put])) for put in puts]
            await asyncio.sleep(0.1)
        failed = await asyncio.gather(*writing, return_exceptions=True)
        assert all(isinstance(error, OqronError) for error in failed)

    with warnings.catch_warnings(record=True) as seen, contextlib.ExitStack() as stack:
        warnings.simplefilter("always")
        asyncio.run(main(stack))
        gc.collect()
    assert [str(warning.message) for warning in seen] == []
