"""Loops, processes and closing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pickle
import re
import threading
import warnings

from pathlib import Path
from typing import Any

import pytest

from oqron_core.exceptions import ClosedError, OqronError, StorageError, UnavailableError
from oqron_core.planes import Entry, PlaneContext, Put, Scope
from oqron_core.testing.servers import RedisServer
from oqron_redis import BACKEND, RedisSettings, open_hot
from oqron_redis._errors import translate
from oqron_redis._scripts import NAMES, script
from oqron_redis._store import Store


def test_a_child_of_a_fork_is_refused_and_the_parent_goes_on(
    open_planes: Any, own_redis: RedisServer
) -> None:
    """Two processes on one connection would read each other's answers."""

    async def scenario() -> None:
        async with open_planes(own_redis.url) as planes:
            counters = planes.hot.counters
            assert await counters.increment("c") == 1
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                # Only exit statuses come back from here.
                status = 1
                with contextlib.suppress(BaseException):
                    try:
                        counters.increment("c").send(None)
                    except ClosedError as error:
                        status = 0 if "fork" in str(error) else 2
                os._exit(status)
            for n in range(2, 100):
                assert await counters.increment("c") == n
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            assert await counters.increment("c") == 100

    asyncio.run(scenario())


def test_a_second_loop_is_refused_with_a_clear_error(open_planes: Any, redis: RedisServer) -> None:
    """A connection belongs to the loop that made it."""
    planes: Any = None
    stack = contextlib.AsyncExitStack()

    async def first() -> None:
        nonlocal planes
        planes = await stack.enter_async_context(open_planes(redis.url))
        await planes.hot.counters.increment("c")

    async def second() -> None:
        with pytest.raises(ClosedError, match="another event loop"):
            await planes.hot.counters.increment("c")
        with pytest.raises(ClosedError, match="another event loop"):
            await planes.durable.get("n", ["1"])

    with asyncio.Runner() as runner:
        runner.run(first())
        thread = threading.Thread(target=lambda: asyncio.run(second()))
        thread.start()
        thread.join()
        runner.run(stack.aclose())


def test_every_loop_may_open_its_own(open_planes: Any, redis: RedisServer) -> None:
    """One after the other, and at the same time in threads."""

    async def use() -> None:
        async with open_planes(redis.url) as planes:
            await planes.hot.broker.publish("q", [Entry("1")])
            await planes.durable.write([Put("n", "1", {})])
            assert await planes.hot.broker.wait(["q"], timeout=1.0) == ["q"]

    asyncio.run(use())
    asyncio.run(use())
    failures: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(use())
        except BaseException as error:  # noqa: BLE001 - told to the test
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_opening_and_closing_leaves_nothing(open_planes: Any, own_redis: RedisServer) -> None:
    """No task, thread, descriptor or connection stays, also after failed openings."""

    def descriptors() -> int:
        return len([*Path("/proc/self/fd").iterdir()])

    async def scenario() -> None:
        async def use() -> None:
            async with open_planes(own_redis.url) as planes:
                await planes.hot.broker.wait(["q"], timeout=0.001)
                async with planes.hot.signals.subscribe(["c"]):
                    await planes.durable.write([Put("n", "1", {})])

        await use()
        tasks, threads, files = asyncio.all_tasks(), threading.enumerate(), descriptors()
        for _ in range(50):
            await use()
        own_redis.kill()
        for _ in range(10):
            with pytest.raises(UnavailableError):
                async with open_planes(own_redis.url, retries=0):
                    pass
        own_redis.start()
        await use()
        await asyncio.sleep(0.05)
        assert asyncio.all_tasks() == tasks
        assert threading.enumerate() == threads
        assert descriptors() <= files + 1
        clients = str(own_redis.command("CLIENT", "LIST"))
        assert len([line for line in clients.splitlines() if "cmd=client" not in line]) == 0

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("counts descriptors in /proc")
    asyncio.run(scenario())


def test_a_storage_that_is_dropped_makes_no_noise(redis: RedisServer) -> None:
    """A loop that ends without a close leaves no task that was never awaited."""

    async def scenario() -> None:
        store = Store(RedisSettings(url=redis.url))
        opened = open_hot(store, PlaneContext(Scope("p", "e")))
        hot = await opened.__aenter__()
        await hot.counters.increment("c")
        assert [task for task in asyncio.all_tasks() if "oqron" in task.get_name()] == []
        await opened.__aexit__(None, None, None)
        await store.close()

    asyncio.run(scenario())
    gc.collect()


@pytest.mark.parametrize("name", NAMES)
def test_scripts_declare_their_keys_and_touch_no_json(name: str) -> None:
    """No names are searched by pattern, no record is encoded anew, no key is made up."""
    source = script(name).source.decode()
    code = "\n".join(line for line in source.splitlines() if not line.startswith("--"))
    assert "-- KEYS:" in source
    for word in ("cjson", "cmsgpack", "'KEYS'", "'SCAN'", "loadstring", "FLUSH", "'EVAL"):
        assert word not in code, word
    # A key that is put together in a script is one that a cluster does not know of.
    assert "KEYS[1] .." not in code
    assert ".. KEYS" not in code


@pytest.mark.parametrize("name", NAMES)
def test_a_script_takes_a_part_in_once_where_it_is_in_sight(name: str) -> None:
    """The clock of a step is read once, whatever the step is made of."""
    source = script(name).source.decode()
    assert not re.search(r"^ *-- (needs|calls):", source, re.MULTILINE)
    assert source.count("redis.call('TIME')") <= 1
    for part in re.findall(r"^ *(local function \w+)", source, re.MULTILINE):
        assert source.count(f"{part}(") == 1, part


class ReadOnlyError(Exception):
    """As redis-py names it."""


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (TimeoutError("x"), True),
        (ConnectionRefusedError("x"), True),
        (ReadOnlyError("x"), True),
        (Exception("ERR Error running script: -READONLY You can't write"), True),
        (Exception("OOM command not allowed"), True),
        (Exception("NOPERM this user has no permissions"), False),
        (Exception("WRONGTYPE Operation against a key"), False),
        (Exception("something new"), False),
    ],
)
def test_driver_errors_become_ours(error: Exception, retryable: bool) -> None:
    """With the driver's as the cause, without its text, and they pickle."""
    ours = translate(error)
    assert isinstance(ours, StorageError)
    assert ours.retryable is retryable
    assert ours.__cause__ is error
    assert isinstance(pickle.loads(pickle.dumps(ours)), OqronError)  # noqa: S301 - our own
    assert translate(ours) is ours


def test_the_backend_connects_without_waiting_for_a_server() -> None:
    """Whether it answers is asked by whoever opens a plane."""

    async def scenario() -> None:
        async with BACKEND.connect(RedisSettings(url="redis://127.0.0.1:1/0")):
            pass

    asyncio.run(scenario())
