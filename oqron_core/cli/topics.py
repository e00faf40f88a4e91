"""``oqron topics``: logs of messages, and the groups that work on them."""

from __future__ import annotations

import asyncio
import sys

from typing import Any

import click

from oqron_core.cli._instants import parse_since
from oqron_core.cli._invocation import (
    Invocation,
    common_options,
    json_option,
    opened,
    page_options,
    run_async,
)
from oqron_core.cli._output import (
    Column,
    counted,
    note,
    plain,
    print_json,
    print_line,
    print_page,
    print_table,
    short_time_text,
    wire,
)
from oqron_core.cli._payload import parse_json
from oqron_core.models import Control, Group, Message
from oqron_core.planes.values import Page, Query
from oqron_core.protocol.lanes import queue_of
from oqron_core.storage import Storage
from oqron_core.taxonomy import RecordKind


__all__ = ["topics"]

_STATE = "topic_state"
_MESSAGES = "topic_msg:"
_TEXT = 80


@click.group()
@common_options
def topics() -> None:
    """Look at topics and their groups, publish, replay, pause."""


# --- look ------------------------------------------------------------------------


@topics.command(name="list")
@common_options
@json_option
@click.pass_obj
def list_topics(invocation: Invocation, *, as_json: bool) -> None:
    """List the topics: how many groups each has, and how many messages in its log."""

    async def read() -> list[dict[str, Any]]:
        async with opened(invocation) as storage:
            found = Query(kind=RecordKind.MESSAGE)
            messages = await storage.durable.count(found, by="namespace")
            return [
                {
                    "topic": topic,
                    "groups": len(await storage.topics.groups(topic)),
                    "messages": messages.get(_MESSAGES + topic, 0),
                }
                for topic in await _names(storage)
            ]

    rows = run_async(read())
    if as_json:
        print_json({"items": rows})
        return
    columns = [
        Column("topic", style="cyan", whole=True),
        Column("groups", right=True),
        Column("messages", right=True),
    ]
    print_table(columns, [tuple(row.values()) for row in rows], empty="there is no topic")


async def _names(storage: Storage) -> list[str]:
    """Name the topics that something was published to, or that have a group; sorted."""
    names = set(await storage.topics.topics())
    after: str | None = None
    while True:
        page = await storage.controls.query(_STATE, limit=1000, after=after)
        names.update(control.name for control in page)
        after = page.next
        if after is None:
            return sorted(names)


@topics.command()
@click.argument("topic")
@common_options
@json_option
@click.pass_obj
def groups(invocation: Invocation, *, topic: str, as_json: bool) -> None:
    """List the groups of TOPIC: what each has still to do, and what died."""

    async def read() -> list[tuple[Group, dict[str, Any]]]:
        async with opened(invocation) as storage:
            found = await storage.topics.groups(topic)
            dead = await storage.dead_letters.counts()
            return [(group, await _state_of(storage, group, dead)) for group in found]

    rows = run_async(read())
    if as_json:
        print_json({"items": [{**wire(group), **state} for group, state in rows]})
        return
    columns = [
        Column("group", style="cyan", whole=True),
        Column("lag", right=True),
        Column("dead", right=True, style="red"),
        Column("tries", right=True),
        Column("made", whole=True),
        Column(""),
    ]
    table = [
        (
            group.name,
            state["lag"],
            state["dead"],
            group.max_attempts,
            short_time_text(group.created_at),
            _words(group, paused=state["paused"]),
        )
        for group, state in rows
    ]
    print_table(columns, table, empty=f"the topic {topic!r} has no group")


async def _state_of(storage: Storage, group: Group, dead: dict[str, int]) -> dict[str, Any]:
    queue = queue_of(group.topic, group.name)
    lag, control = await asyncio.gather(
        storage.topics.lag(group.topic, group.name), storage.controls.get_queue(queue)
    )
    paused = control is not None and control.paused
    return {"lag": lag, "dead": dead.get(queue, 0), "paused": paused, "deliveryQueue": queue}


def _words(group: Group, *, paused: bool) -> str:
    said = ["paused"] if paused else []
    if not group.caught_up:
        said.append("catching up")
    return ", ".join(said)


@topics.command()
@click.argument("topic")
@click.argument("group", required=False)
@common_options
@json_option
@click.pass_obj
def lag(invocation: Invocation, *, topic: str, group: str | None, as_json: bool) -> None:
    """Count the messages that GROUP of TOPIC has still to work on; each without it."""

    async def read() -> dict[str, int]:
        async with opened(invocation) as storage:
            if group is None:
                names = [found.name for found in await storage.topics.groups(topic)]
            else:
                names = [await _require(storage, topic, group)]
            return {name: await storage.topics.lag(topic, name) for name in names}

    found = run_async(read())
    if as_json:
        print_json({"items": [{"group": name, "lag": count} for name, count in found.items()]})
        return
    columns = [Column("group", style="cyan", whole=True), Column("lag", right=True)]
    print_table(columns, list(found.items()), empty=f"the topic {topic!r} has no group")


async def _require(storage: Storage, topic: str, group: str) -> str:
    # A name that was mistyped has no lag and can be paused; that helps nobody.
    if group in {found.name for found in await storage.topics.groups(topic)}:
        return group
    msg = f"the topic {topic!r} has no group {group!r} (see oqron topics groups)"
    raise click.ClickException(msg)


@topics.command()
@click.argument("topic")
@page_options
@common_options
@json_option
@click.pass_obj
def read(
    invocation: Invocation, *, topic: str, limit: int, after: str | None, as_json: bool
) -> None:
    """Read the log of TOPIC, oldest messages first, one page. Takes nothing."""

    async def look() -> Page[Message]:
        async with opened(invocation) as storage:
            return await storage.topics.read(topic, limit=limit, after=after)

    page = run_async(look())
    columns = [
        Column("id", style="cyan", whole=True),
        Column("published", whole=True),
        Column("key"),
        Column("message"),
    ]
    print_page(
        page,
        columns,
        lambda one: (
            one.id,
            short_time_text(one.published_at),
            one.key,
            plain(one.message, limit=_TEXT),
        ),
        empty=f"the log of the topic {topic!r} is empty",
        as_json=as_json,
    )


# --- steer -----------------------------------------------------------------------


@topics.command()
@click.argument("topic")
@click.argument("message", required=False)
@click.option("--key", help="Messages of one key reach a group in order.")
@click.option("--idempotency-key", help="A second message with it changes nothing.")
@click.option(
    "--header", "headers", multiple=True, metavar="NAME=TEXT", help="May be given more than once."
)
@common_options
@json_option
@click.pass_obj
def publish(
    invocation: Invocation,
    *,
    topic: str,
    message: str | None,
    key: str | None,
    idempotency_key: str | None,
    headers: tuple[str, ...],
    as_json: bool,
) -> None:
    """Publish the JSON text MESSAGE to every group of TOPIC.

    MESSAGE is null where it is left out; - reads it from standard input.
    """
    payload = None
    if message is not None:
        text = sys.stdin.buffer.read() if message == "-" else message
        payload = parse_json(text, "MESSAGE")
    beside = _headers(headers)

    async def change() -> Message:
        async with opened(invocation) as storage:
            return await storage.topics.publish(
                topic, payload, key=key, idempotency_key=idempotency_key, headers=beside
            )

    done = run_async(change())
    if done.duplicate:
        note(f"the topic has a message of that key already, {done.id}; nothing was changed")
    if as_json:
        print_json({**wire(done), "duplicate": done.duplicate})
    else:
        print_line(done.id)


def _headers(given: tuple[str, ...]) -> dict[str, Any] | None:
    made: dict[str, Any] = {}
    for item in given:
        name, equals, text = item.partition("=")
        if not equals or not name:
            msg = f"{item!r} is not of the form NAME=TEXT"
            raise click.BadParameter(msg, param_hint="--header")
        made[name] = text
    return made or None


@topics.command()
@click.argument("topic")
@click.argument("group")
@click.option("--since", help="From then on: 15m, 2024-05-01T12:00, milliseconds.")
@click.option("--from-message", metavar="ID", help="From this message on.")
@click.option("--until", help="Up to then, likewise; now without it.")
@common_options
@json_option
@click.pass_obj
def replay(
    invocation: Invocation,
    *,
    topic: str,
    group: str,
    since: str | None,
    from_message: str | None,
    until: str | None,
    as_json: bool,
) -> None:
    """Deliver messages of TOPIC to GROUP again, besides what it has still to do.

    Without --since and --from-message it is the whole log.
    """
    if since is not None and from_message is not None:
        msg = "--since and --from-message both say where to begin; leave one out"
        raise click.UsageError(msg)
    start: str | int = 0 if since is None else parse_since(since)
    if from_message is not None:
        start = from_message
    end = None if until is None else parse_since(until)

    async def change() -> int:
        async with opened(invocation) as storage:
            await _require(storage, topic, group)
            return await storage.topics.replay(topic, group, since=start, until=end)

    count = run_async(change())
    if as_json:
        print_json({"topic": topic, "group": group, "replayed": count})
    else:
        verb = "is" if count == 1 else "are"
        print_line(f"{counted(count, 'message')} of {topic} {verb} delivered to {group} again")


@topics.command()
@click.argument("topic")
@click.argument("group")
@click.option("--reason", help="Why, for whoever looks.")
@common_options
@json_option
@click.pass_obj
def pause(
    invocation: Invocation, *, topic: str, group: str, reason: str | None, as_json: bool
) -> None:
    """Stop deliveries of TOPIC to GROUP; messages go on arriving."""

    async def change() -> Control:
        async with opened(invocation) as storage:
            await _require(storage, topic, group)
            return await storage.topics.pause(topic, group, reason=reason)

    _say(run_async(change()), topic, group, as_json=as_json)


@topics.command()
@click.argument("topic")
@click.argument("group")
@common_options
@json_option
@click.pass_obj
def resume(invocation: Invocation, *, topic: str, group: str, as_json: bool) -> None:
    """Allow deliveries of TOPIC to GROUP again."""

    async def change() -> Control:
        async with opened(invocation) as storage:
            await _require(storage, topic, group)
            return await storage.topics.resume(topic, group)

    _say(run_async(change()), topic, group, as_json=as_json)


def _say(control: Control, topic: str, group: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"topic": topic, "group": group, **wire(control)})
    else:
        print_line(f"{group} of {topic} is {'paused' if control.paused else 'open'}")
