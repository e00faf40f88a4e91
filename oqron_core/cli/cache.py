"""``oqron cache``: look at cached values, and get rid of them."""

from __future__ import annotations

import json

from typing import Any

import click

from oqron_core.cli._invocation import (
    Invocation,
    common_options,
    json_option,
    opened,
    run_async,
)
from oqron_core.cli._output import print_json, print_line
from oqron_core.planes.values import MISSING


__all__ = ["cache"]


@click.group()
@common_options
def cache() -> None:
    """Look at cached values, and get rid of them."""


@cache.command()
@click.argument("key")
@common_options
@json_option
@click.pass_obj
def get(invocation: Invocation, *, key: str, as_json: bool) -> None:
    """Print the value of KEY as JSON; exit status 1 where there is none."""

    async def read() -> Any:
        async with opened(invocation) as storage:
            return await storage.cache.get(key, MISSING)

    value = run_async(read())
    if value is MISSING:
        msg = f"the cache has no {key!r}, or not any more"
        raise click.ClickException(msg)
    if as_json:
        print_json({"key": key, "value": value})
        return
    for line in json.dumps(value, indent=2, ensure_ascii=False).splitlines():
        print_line(line)


@cache.command()
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@common_options
@json_option
@click.pass_obj
def delete(invocation: Invocation, *, keys: tuple[str, ...], as_json: bool) -> None:
    """Remove the values of each KEY, also from copies and what is being built."""
    names = list(dict.fromkeys(keys))

    async def change() -> list[bool]:
        async with opened(invocation) as storage:
            return await storage.cache.delete_many(names)

    gone = dict(zip(names, run_async(change()), strict=True))
    if as_json:
        print_json({"items": [{"key": key, "deleted": there} for key, there in gone.items()]})
    else:
        for key in (name for name, there in gone.items() if there):
            print_line(f"{key} deleted")
    absent = [key for key, there in gone.items() if not there]
    if absent:
        msg = f"the cache had no value of {', '.join(absent)}"
        raise click.ClickException(msg)


@cache.command(name="invalidate-tag")
@click.argument("tags", nargs=-1, required=True, metavar="TAG...")
@common_options
@json_option
@click.pass_obj
def invalidate_tag(invocation: Invocation, *, tags: tuple[str, ...], as_json: bool) -> None:
    """Make every value with TAG absent, however many there are."""
    names = list(dict.fromkeys(tags))

    async def change() -> None:
        async with opened(invocation) as storage:
            for tag in names:
                await storage.cache.invalidate_tag(tag)

    run_async(change())
    if as_json:
        print_json({"invalidated": names})
    else:
        for tag in names:
            print_line(f"what has the tag {tag} is gone")
