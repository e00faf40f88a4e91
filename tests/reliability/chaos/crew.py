"""The processes of a run: started anew whenever they die, until told to end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys

from pathlib import Path

from chaos.ledger import Ledger
from chaos.plan import Plan


__all__ = ["Crew"]

_HERE = Path(__file__).parent
_END_WITHIN = 20.0


class Crew:
    """
    Workers and a producer.

    Attributes:
        alive: The running processes by name, such as ``worker2-17``: its seventeenth
            life.
        stuck: Names of those that did not end when they were told to.
    """

    def __init__(self, plan: Plan, ledger: Ledger, until: float) -> None:
        self.alive: dict[str, asyncio.subprocess.Process] = {}
        self.stuck: list[str] = []
        self._plan = plan
        self._ledger = ledger
        self._until = until
        self._ending: set[str] = set()
        self._keepers: list[asyncio.Task[None]] = []

    def start(self, workers: int) -> None:
        """Start everybody."""
        roles = [f"worker{number}" for number in range(workers)]
        self._keepers = [asyncio.create_task(self._keep(role)) for role in [*roles, "producer"]]

    async def _keep(self, role: str) -> None:
        life = 0
        while role.rstrip("0123456789") not in self._ending:
            life += 1
            name = f"{role}-{life}"
            process = await self._spawn(role, name, life)
            self.alive[name] = process
            self._ledger.put("born", w=name, pid=process.pid)
            code = await process.wait()
            del self.alive[name]
            self._ledger.put("died", w=name, code=code)
            if role == "producer" and code == 0:
                return  # it has produced for as long as it was to
            if code > 0:
                await asyncio.sleep(0.2)

    async def _spawn(self, role: str, name: str, life: int) -> asyncio.subprocess.Process:
        producer = role == "producer"
        script = "producer.py" if producer else "worker.py"
        words = [f"p{life}", str(self._until)] if producer else [name]
        with self._plan.file(name).with_suffix(".err").open("wb") as errors:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                str(_HERE / script),
                *words,
                stdout=errors,
                stderr=errors,
                cwd=self._plan.folder,
                env=self._plan.environ(),
                start_new_session=True,
            )

    def of(self, role: str) -> list[str]:
        """Name the living of a role."""
        return [name for name in self.alive if name.startswith(role)]

    def send(self, name: str, number: signal.Signals) -> bool:
        """Send a signal; False where it is gone already."""
        process = self.alive.get(name)
        if process is None or process.returncode is not None:
            return False
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
            return True
        return False

    async def producer_done(self, within: float) -> bool:
        """Wait until the producer has produced everything."""
        done, _ = await asyncio.wait([self._keepers[-1]], timeout=within)
        return bool(done)

    async def end(self) -> None:
        """Tell everybody to end, and note who does not."""
        self._ending |= {"worker", "producer"}
        for name in [*self.alive]:
            self.send(name, signal.SIGCONT)
            self.send(name, signal.SIGTERM)
        _, pending = await asyncio.wait(self._keepers, timeout=_END_WITHIN)
        if pending:
            self.stuck += [*self.alive]
            self.kill()
            await asyncio.wait(self._keepers)

    def kill(self) -> None:
        """End everybody who is left, by their process ids."""
        self._ending |= {"worker", "producer"}
        for name in [*self.alive]:
            self.send(name, signal.SIGKILL)
