"""What is shown while the work goes on: a live picture, or plain lines."""

from __future__ import annotations

import asyncio

from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

import click

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from oqron_core.cli._output import console, plain


__all__ = ["LineScreen", "LiveScreen", "QuietScreen", "Screen", "open_screen"]

_EVENTS: Final = 8
_EVERY: Final = 1.0
_SHOWN: Final = ("waiting", "delayed", "active", "completed")


class Screen:
    """
    Shows how far the work is. A context manager; this one shows nothing.

    Attributes:
        total: How many jobs there are to be done.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return self._loop.time() - self._began

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def tell(self, text: str) -> None:
        """Show one event."""

    def update(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Show how many jobs of each queue have which status; ``dead`` is one."""

    def stage(self, text: str, done: int | None = None, total: int | None = None) -> None:
        """Show what is going on now, and how far it is."""


QuietScreen = Screen


class LineScreen(Screen):
    """Writes lines to standard error, for logs and pipes."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self._last = 0.0

    def tell(self, text: str) -> None:
        click.echo(f"{self.elapsed:6.2f} s  {plain(text)}", err=True)

    def update(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        if self.elapsed - self._last >= _EVERY:
            self._last = self.elapsed
            done = sum(queue["completed"] + queue["dead"] for queue in counts.values())
            self.tell(f"{done} of {self.total} jobs done")

    def stage(self, text: str, done: int | None = None, total: int | None = None) -> None:
        if done is None or done == total:
            self.tell(text if done is None else f"{text}: {done} of {total}")


class LiveScreen(Screen):
    """Draws a picture on the terminal of standard error, and takes it away again."""

    def __init__(self, total: int, terminal: Console) -> None:
        super().__init__(total)
        self._events: deque[str] = deque(maxlen=_EVENTS)
        self._counts: Mapping[str, Mapping[str, int]] = {}
        self._stage = ("adding jobs", 0, total)
        self._console = terminal
        self._live = Live(console=terminal, get_renderable=self._picture, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()
        # The picture goes; what happened stays above the report.
        for event in self._events:
            click.echo(event, err=True)

    def tell(self, text: str) -> None:
        self._events.append(f"{self.elapsed:6.2f} s  {plain(text)}")

    def update(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        self._counts = counts
        done = sum(queue["completed"] + queue["dead"] for queue in counts.values())
        self._stage = ("working", done, self.total)

    def stage(self, text: str, done: int | None = None, total: int | None = None) -> None:
        self._stage = (text, done or 0, total or self.total)

    def _picture(self) -> RenderableType:
        text, done, total = self._stage
        progress = Table.grid(padding=(0, 2))
        progress.add_column(min_width=14)
        progress.add_row(
            Text(text, style="bold"),
            ProgressBar(total=max(1, total), completed=done, width=30),
            Text(f"{done}/{total}"),
            Text(f"{self.elapsed:.1f} s", style="dim"),
        )
        events = Text("\n".join(self._events), style="dim", no_wrap=True, overflow="ellipsis")
        return Group(progress, Text(), self._queues(), Text(), events)

    def _queues(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("queue", min_width=14, style="cyan")
        for name in (*_SHOWN, "dead"):
            table.add_column(name, justify="right")
        for queue, counts in self._counts.items():
            cells = [str(counts.get(name, 0)) for name in (*_SHOWN, "dead")]
            table.add_row(Text(plain(queue, limit=40)), *cells)
        return table


def open_screen(total: int, *, quiet: bool) -> Screen:
    """
    Make the screen that fits where standard error goes.

    Args:
        total: How many jobs there are to be done.
        quiet: Whether to show nothing but on a terminal.
    """
    terminal = console(stderr=True)
    if terminal.is_terminal:
        return LiveScreen(total, terminal)
    return QuietScreen(total) if quiet else LineScreen(total)
