"""``oqron limits``: look at rates, and shut out or let in."""

from __future__ import annotations

from typing import Any, Final

import click

from oqron_core.cli._durations import duration
from oqron_core.cli._invocation import (
    Invocation,
    common_options,
    json_option,
    opened,
    run_async,
)
from oqron_core.cli._output import print_json, print_line, seconds_text, time_text
from oqron_core.planes.limits import Decision, FixedWindow, RateLimit, SlidingWindow, TokenBucket
from oqron_core.services.limits import Ban


__all__ = ["limits"]

_TYPES: Final = ("sliding-window", "fixed-window", "token-bucket")


@click.group()
@common_options
def limits() -> None:
    """Look at rate limits, ban, unban and reset."""


@limits.command()
@click.argument("key")
@click.option("--limit", type=int, help="How many the application allows…")
@click.option("--per", type=duration, metavar="DURATION", help="…in how long: 60, 15m, 1h.")
@click.option(
    "--type",
    "how",
    type=click.Choice(_TYPES),
    default=_TYPES[0],
    show_default=True,
    help="How the application counts.",
)
@click.option("--burst", type=int, help="What a token bucket holds, where it differs.")
@common_options
@json_option
@click.pass_obj
def peek(
    invocation: Invocation,
    *,
    key: str,
    limit: int | None,
    per: float | None,
    how: str,
    burst: int | None,
    as_json: bool,
) -> None:
    """Say whether KEY is banned and what its limit allows now, taking nothing.

    The limit itself is in the application's code, so it is given here as it is there;
    without --limit and --per only the ban is shown.
    """
    rate = _rate(limit, per, how, burst)

    async def read() -> tuple[Ban | None, Decision | None]:
        async with opened(invocation) as storage:
            ban = await storage.limits.get_ban(key)
            return ban, None if rate is None else await storage.limits.peek(key, rate)

    ban, decision = run_async(read())
    if as_json:
        print_json({"key": key, "ban": _ban(ban), "decision": _decision(decision)})
        return
    print_line(f"{key} is not banned" if ban is None else f"{key} is {_banned(ban)}")
    if decision is not None:
        print_line(_told(decision))


def _rate(limit: int | None, per: float | None, how: str, burst: int | None) -> RateLimit | None:
    if burst is not None and how != "token-bucket":
        msg = "only a token bucket has a --burst"
        raise click.UsageError(msg)
    if limit is None or per is None:
        if (limit, per) != (None, None):
            msg = "--limit and --per belong together"
            raise click.UsageError(msg)
        return None
    if how == "token-bucket":
        return TokenBucket(limit, per=per, burst=burst)
    return FixedWindow(limit, per=per) if how == "fixed-window" else SlidingWindow(limit, per=per)


def _ban(ban: Ban | None) -> dict[str, Any] | None:
    if ban is None:
        return None
    return {"until": ban.until, "remaining": ban.remaining, "reason": ban.reason}


def _decision(decision: Decision | None) -> dict[str, Any] | None:
    if decision is None:
        return None
    return {
        "allowed": decision.allowed,
        "remaining": decision.remaining,
        "retryAfter": decision.retry_after,
        "resetAt": decision.reset_at,
    }


def _banned(ban: Ban) -> str:
    because = f", {ban.reason}" if ban.reason else ""
    left = seconds_text(ban.remaining * 1000)
    return f"banned until {time_text(ban.until)}, for {left} more{because}"


def _told(decision: Decision) -> str:
    if decision.remaining > 0:
        return f"{decision.remaining} more are allowed now"
    whole = f"whole again at {time_text(decision.reset_at)}"
    return f"nothing more is allowed now; {whole}"


@limits.command()
@click.argument("key")
@click.argument("lasts", type=duration, metavar="DURATION")
@click.option("--reason", help="Why, for whoever looks.")
@common_options
@json_option
@click.pass_obj
def ban(
    invocation: Invocation, *, key: str, lasts: float, reason: str | None, as_json: bool
) -> None:
    """Shut KEY out for DURATION: 90, 15m, 12h, 30d. Replaces a ban that is there."""

    async def change() -> Ban | None:
        async with opened(invocation) as storage:
            await storage.limits.ban(key, lasts, reason=reason)
            return await storage.limits.get_ban(key)

    made = run_async(change())
    if as_json:
        print_json({"key": key, "ban": _ban(made)})
    else:
        print_line(f"{key} is {'banned no more' if made is None else _banned(made)}")


@limits.command()
@click.argument("key")
@common_options
@json_option
@click.pass_obj
def unban(invocation: Invocation, *, key: str, as_json: bool) -> None:
    """Let KEY in again."""

    async def change() -> bool:
        async with opened(invocation) as storage:
            return await storage.limits.unban(key)

    _done(
        key,
        "unbanned",
        "was not banned (see oqron limits peek)",
        done=run_async(change()),
        as_json=as_json,
    )


@limits.command()
@click.argument("key")
@common_options
@json_option
@click.pass_obj
def reset(invocation: Invocation, *, key: str, as_json: bool) -> None:
    """Forget what was taken for KEY, by limits of every type; a ban stays."""

    async def change() -> bool:
        async with opened(invocation) as storage:
            return await storage.limits.reset(key)

    _done(
        key,
        "reset",
        "had nothing to forget (see oqron limits peek)",
        done=run_async(change()),
        as_json=as_json,
    )


def _done(key: str, word: str, otherwise: str, *, done: bool, as_json: bool) -> None:
    if as_json:
        print_json({"key": key, word: done})
    elif done:
        print_line(f"{key} {word}")
    if not done:
        msg = f"{key!r} {otherwise}"
        raise click.ClickException(msg)
