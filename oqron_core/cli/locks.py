"""``oqron locks``: who holds, and who leads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import click

from oqron_core.cli._invocation import (
    Invocation,
    common_options,
    json_option,
    opened,
    run_async,
)
from oqron_core.cli._output import print_json, print_line, seconds_text
from oqron_core.planes.values import Lease
from oqron_core.storage import Storage


__all__ = ["locks"]


@click.group()
@common_options
def locks() -> None:
    """See who holds a lock, and who leads."""


@attrs.frozen
class _Held:
    """A lease, and how long it still lasts."""

    lease: Lease
    left_ms: int


@locks.command()
@click.argument("key")
@common_options
@json_option
@click.pass_obj
def show(invocation: Invocation, *, key: str, as_json: bool) -> None:
    """Show who holds the lock KEY."""
    held = _look(invocation, lambda storage: storage.locks.holder(key))
    if as_json:
        print_json({"key": key, "held": held is not None, **_document(held, "token")})
    else:
        print_line(f"{key} is {'free' if held is None else f'held by {_told(held)}'}")


@locks.command()
@click.argument("name")
@common_options
@json_option
@click.pass_obj
def leader(invocation: Invocation, *, name: str, as_json: bool) -> None:
    """Show who leads NAME; whoever repairs the scope leads as maintenance."""
    held = _look(invocation, lambda storage: storage.locks.leader(name))
    if as_json:
        print_json({"name": name, "held": held is not None, **_document(held, "term")})
    else:
        print_line(f"{name} is led by {'nobody' if held is None else _told(held)}")


def _look(
    invocation: Invocation, look: Callable[[Storage], Awaitable[Lease | None]]
) -> _Held | None:
    async def read() -> _Held | None:
        async with opened(invocation) as storage:
            lease = await look(storage)
            if lease is None:
                return None
            return _Held(lease, max(0, lease.expires_at - await storage.hot.now()))

    return run_async(read())


def _document(held: _Held | None, token: str) -> dict[str, object]:
    if held is None:
        return {"owner": None, token: None, "expiresAt": None, "remaining": None}
    lease = held.lease
    return {
        "owner": lease.owner,
        token: lease.token,
        "expiresAt": lease.expires_at,
        "remaining": held.left_ms / 1000,
    }


def _told(held: _Held) -> str:
    lasts = seconds_text(held.left_ms)
    return f"{held.lease.owner}, token {held.lease.token}, {lasts} left unless it is renewed"
