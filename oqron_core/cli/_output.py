"""What is printed: one JSON document, or tables and lines for people."""

from __future__ import annotations

import os
import sys

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import attrs
import click
import orjson

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from oqron_core.models import unstructure
from oqron_core.planes.values import Page


__all__ = [
    "Column",
    "bar",
    "console",
    "counted",
    "make_table",
    "note",
    "plain",
    "print_json",
    "print_line",
    "print_page",
    "print_rich",
    "print_table",
    "seconds_text",
    "short_time_text",
    "time_text",
    "tracked",
    "wire",
]

ItemT = TypeVar("ItemT")

_WIDE: Final = 10_000
_SPARE: Final = 8


def plain(value: object, *, limit: int | None = None) -> str:
    """
    Give *value* as text of one line that a terminal cannot be steered with.

    Args:
        value: Anything; None is a dash.
        limit: At most this many characters.
    """
    text = "–" if value is None else str(value)
    shown = "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
    if limit is not None and len(shown) > limit:
        shown = f"{shown[: limit - 1]}…"
    return shown


def print_json(document: Any) -> None:
    """Print one JSON document, UTF-8 whatever the locale is."""
    click.echo(orjson.dumps(document, default=str, option=orjson.OPT_INDENT_2))


def print_line(text: str) -> None:
    """Print a line for people on standard output."""
    click.echo(plain(text))


def note(text: str) -> None:
    """Say something beside the data, on standard error."""
    click.echo(f"oqron: {plain(text)}", err=True)


def console(*, stderr: bool = False) -> Console:
    """Make a console that takes text as it is: no markup, emoji or guessing."""
    file = sys.stderr if stderr else sys.stdout
    return Console(file=file, markup=False, highlight=False, emoji=False)


def print_rich(what: RenderableType, *, whole: bool = True) -> None:
    """
    Print what rich can draw on standard output, without blanks at line ends.

    Args:
        what: What is drawn.
        whole: Where it is piped, fold no line and cut no word: a program reads it, or a
            person with a width of their own. Not for what is as wide as the screen.
    """
    screen = console()
    if "COLUMNS" in os.environ or screen.is_terminal:
        if isinstance(what, Table):
            # A name is copied, so a terminal that is too narrow wraps the whole line.
            least = Measurement.get(screen, screen.options, what).minimum
            screen.width = max(screen.width, least + _SPARE)
    elif whole:
        screen.width = _WIDE
    _print(screen, what)


def _print(screen: Console, what: RenderableType) -> None:
    if screen.is_terminal:
        screen.print(what)
        return
    with screen.capture() as captured:
        screen.print(what)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


@attrs.frozen
class Column:
    """
    One column of a table.

    Attributes:
        name: Its heading.
        right: Whether it holds numbers.
        style: How it looks where there is colour.
        fold: Whether what is too long goes on in the next line; it is cut else.
        whole: Whether it is to be copied, so neither folded nor cut.
    """

    name: str
    right: bool = False
    style: str = ""
    fold: bool = True
    whole: bool = False


def make_table(columns: Sequence[Column], rows: Iterable[Sequence[object]]) -> Table:
    """Make a table without a frame, with one rule under its heading."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(
            column.name,
            justify="right" if column.right else "left",
            style=column.style,
            overflow="fold" if column.fold else "ellipsis",
            no_wrap=column.right or column.whole or not column.fold,
        )
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(plain(cell)) for cell in row))
    return table


def print_table(
    columns: Sequence[Column], rows: Iterable[Sequence[object]], *, empty: str = "nothing there"
) -> None:
    """
    Print a table on standard output.

    Args:
        columns: The columns.
        rows: Cells; text that is styled may be `rich.text.Text`.
        empty: What to say on standard error where there are no rows.
    """
    listed = list(rows)
    if not listed:
        note(empty)
        return
    print_rich(make_table(columns, listed))


def print_page(
    page: Page[ItemT],
    columns: Sequence[Column],
    row: Callable[[ItemT], Sequence[object]],
    *,
    empty: str,
    as_json: bool,
) -> None:
    """
    Print one page of many, and how to see the next.

    Args:
        page: The page.
        columns: The columns of the table for people.
        row: Gives the cells of an item.
        empty: What to say on standard error where the page has nothing.
        as_json: Print ``items``, as they are stored, and ``next``, the cursor.
    """
    if as_json:
        print_json({"items": [wire(item) for item in page], "next": page.next})
        return
    print_table(columns, [row(item) for item in page], empty=empty)
    if page.next is not None:
        note(f"there are more: --after {page.next}")


def wire(model: Any) -> dict[str, Any]:
    """Give a model as the JSON that is stored."""
    return unstructure(model)


def counted(count: int, thing: str) -> str:
    """Give a number with what it counts, in the plural unless it is one."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def time_text(instant: int | None) -> str:
    """Give an instant in milliseconds as UTC to the second; a dash for None."""
    if instant is None:
        return "–"
    try:
        moment = datetime.fromtimestamp(instant / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(instant)
    return moment.strftime("%Y-%m-%d %H:%M:%SZ")


def short_time_text(instant: int | None) -> str:
    """Give an instant as `time_text` does, for lists: without the year and the zone."""
    text = time_text(instant)
    return text[5:-1] if text.endswith("Z") else text


def seconds_text(milliseconds: float | None) -> str:
    """Give a duration in milliseconds in the unit that reads best."""
    if milliseconds is None:
        return "–"
    if milliseconds < 1000:  # noqa: PLR2004 - below a second
        return f"{milliseconds:.0f} ms"
    if milliseconds < 120_000:  # noqa: PLR2004 - below two minutes
        return f"{milliseconds / 1000:.1f} s"
    return f"{milliseconds / 60_000:.1f} min"


@contextmanager
def bar(title: str, total: int | None) -> Iterator[Progress | None]:
    """
    Show progress on standard error while the context is open, on a terminal only.

    Args:
        title: What is done.
        total: How many steps, or None where that is not known.
    """
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=screen, transient=True) as progress:
        progress.add_task(title, total=total)
        yield progress


def tracked(items: Sequence[ItemT], title: str) -> Iterator[ItemT]:
    """Give *items* one by one with a progress bar."""
    with bar(title, len(items)) as progress:
        for item in items:
            yield item
            if progress is not None:
                progress.advance(progress.task_ids[0])
