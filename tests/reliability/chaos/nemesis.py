"""The nemesis: one loop per kind of fault, each at its own random intervals."""

from __future__ import annotations

import asyncio
import functools
import random
import signal

from collections.abc import Awaitable, Callable

import attrs

from chaos.crew import Crew
from chaos.ledger import Ledger, now
from chaos.plan import Plan
from chaos.proxy import CUTS, Proxy
from oqron_core.testing.servers import PostgresServer, RedisServer, Server


__all__ = ["Nemesis"]


@attrs.define(eq=False)
class Nemesis:
    """
    Breaks things.

    Attributes:
        plan: The run.
        crew: The processes.
        ledger: Where each fault is noted.
        redis: The server.
        postgres: The server, where there is one.
        proxies: What stands before each, by the server's name.
        chance: Decides.
    """

    plan: Plan
    crew: Crew
    ledger: Ledger
    redis: RedisServer
    postgres: PostgresServer | None
    proxies: dict[str, Proxy]
    chance: random.Random
    _stopped: set[str] = attrs.Factory(set)
    _locks: dict[str, asyncio.Lock] = attrs.Factory(
        lambda: {"redis": asyncio.Lock(), "postgres": asyncio.Lock()}
    )

    @property
    def forgetful(self) -> bool:
        """Whether Redis may lose everything: where another plane has the truth."""
        return self.postgres is not None

    async def rage(self, seconds: float) -> None:
        """Break things for so long, then leave everything running."""
        for name, proxy in self.proxies.items():
            proxy.on_cut = functools.partial(self._note, "cut connection", name)
        kinds: list[tuple[float, Callable[[], Awaitable[None]]]] = [
            (4.0, self.kill_worker),
            (30.0, self.end_worker),
            (15.0, self.stop_worker),
            (45.0, self.kill_producer),
            (35.0, self.restart_redis),
            (80.0, self.freeze_redis),
            (5.0, self.cut),
            (10.0, self.delay),
        ]
        if self.forgetful:
            kinds += [
                (40.0, self.flush),
                (55.0, self.restart_postgres),
                (90.0, self.freeze_postgres),
            ]
        tasks = [asyncio.create_task(self._again(every, what)) for every, what in kinds]
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._mend()
        for task in done:
            task.result()

    async def _again(self, every: float, what: Callable[[], Awaitable[None]]) -> None:
        # Short runs see the rare kinds too: the first comes early.
        pause = min(every, self.plan.seconds / 3) * self.chance.uniform(0.4, 1.0)
        while True:
            await asyncio.sleep(pause)
            await what()
            pause = every * self.chance.uniform(0.6, 1.4)

    async def _mend(self) -> None:
        for name in [*self._stopped]:
            self.crew.send(name, signal.SIGCONT)
        for server in (self.redis, self.postgres):
            if server is not None and server.running:
                server.resume()
            elif server is not None:
                await asyncio.to_thread(server.start)

    def _note(self, kind: str, *words: str, **facts: object) -> None:
        self.ledger.put(kind, words=words, **facts)

    # --- processes ---

    def _victim(self, role: str) -> str | None:
        names = [name for name in self.crew.of(role) if name not in self._stopped]
        return self.chance.choice(names) if names else None

    async def kill_worker(self) -> None:
        """SIGKILL, in the middle of whatever it does."""
        name = self._victim("worker")
        if name is not None and self.crew.send(name, signal.SIGKILL):
            self._note("kill worker", w=name)

    async def kill_producer(self) -> None:
        """SIGKILL, in the middle of an add."""
        name = self._victim("producer")
        if name is not None and self.crew.send(name, signal.SIGKILL):
            self._note("kill producer", w=name)

    async def end_worker(self) -> None:
        """SIGTERM, as a deploy does."""
        name = self._victim("worker")
        if name is not None and self.crew.send(name, signal.SIGTERM):
            self._note("end worker", w=name)

    async def stop_worker(self) -> None:
        """SIGSTOP past its leases, then SIGCONT: it does not know that it slept."""
        name = self._victim("worker")
        if name is None or not self.crew.send(name, signal.SIGSTOP):
            return
        self._stopped.add(name)
        since = now()
        try:
            await asyncio.sleep(self.plan.lease * self.chance.uniform(1.1, 2.0))
        finally:
            self._stopped.discard(name)
            self.crew.send(name, signal.SIGCONT)
            self._note("stop worker", w=name, since=since)

    # --- servers ---

    async def flush(self) -> None:
        """FLUSHALL: the hot plane is gone, and the server says nothing."""
        async with self._locks["redis"]:
            since = now()
            await asyncio.to_thread(self.redis.command, "FLUSHALL")
            self._note("flush redis", since=since, lost=True)

    async def restart_redis(self) -> None:
        """SIGKILL and start; without persistence it comes back empty."""
        async with self._locks["redis"]:
            await self._restart("redis", self.redis, lost=self.forgetful)

    async def restart_postgres(self) -> None:
        """SIGKILL of all its processes, and a start that recovers from the log."""
        assert self.postgres is not None
        async with self._locks["postgres"]:
            await self._restart("postgres", self.postgres, lost=False)

    async def _restart(self, what: str, server: Server, *, lost: bool) -> None:
        since = now()
        work = asyncio.create_task(self._down_and_up(server, self.chance.uniform(0.0, 3.0)))
        # Cancelled in the middle, it must not leave the server half up.
        try:
            await asyncio.shield(work)
        finally:
            await work
            self._note(f"restart {what}", since=since, lost=lost)

    @staticmethod
    async def _down_and_up(server: Server, away: float) -> None:
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(away)
        await asyncio.to_thread(server.start)

    async def freeze_redis(self) -> None:
        """SIGSTOP of the server: connections stay open, nothing answers."""
        async with self._locks["redis"]:
            await self._freeze("redis", self.redis)

    async def freeze_postgres(self) -> None:
        """As `freeze_redis`."""
        assert self.postgres is not None
        async with self._locks["postgres"]:
            await self._freeze("postgres", self.postgres)

    async def _freeze(self, what: str, server: Server) -> None:
        since = now()
        server.pause()
        try:
            await asyncio.sleep(self.chance.uniform(0.5, 6.0))
        finally:
            server.resume()
            self._note(f"freeze {what}", since=since)

    # --- connections ---

    async def cut(self) -> None:
        """Cut a few connections at once."""
        for _ in range(self.chance.randint(1, 3)):
            name = self.chance.choice([*self.proxies])
            how = self.chance.choice(CUTS)
            self.proxies[name].cut(how)

    async def delay(self) -> None:
        """Hold one answer back, at times beyond the client's patience."""
        name = self.chance.choice([*self.proxies])
        seconds = self.chance.choice((0.2, 1.0, 3.0))
        if self.proxies[name].delay(seconds):
            self._note("delay answer", to=name, seconds=seconds)
