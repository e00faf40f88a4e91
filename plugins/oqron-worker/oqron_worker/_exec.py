"""Commands as handlers: a payload on standard input, an exit status as the outcome."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal

from typing import Any, Final

from oqron_worker._context import Context
from oqron_worker._outcomes import Discard, Retry, Snooze


__all__ = ["LATER", "run_command"]

log = logging.getLogger("oqron.worker")

LATER: Final = 75
"""The exit status that asks to try again later: ``EX_TEMPFAIL`` of sysexits.h."""
_MOST_OUTPUT: Final = 1024 * 1024
_LINE: Final = 64 * 1024
_LAST_WORD: Final = 2.0


async def run_command(ctx: Context, command: str, payload: Any, *, later: float) -> Any:
    """
    Run a command for a payload.

    It gets the payload as one line of JSON, and ``JOB_ID``, ``JOB_QUEUE`` and
    ``JOB_ATTEMPT`` in its environment. Where the attempt is to end, its whole
    process group is terminated, then killed.

    Args:
        ctx: The context.
        command: What a shell runs.
        payload: The payload.
        later: Seconds until the next try where it exits with 75.

    Returns:
        Its standard output: as JSON if it is, else as text.

    Raises:
        Snooze: It exited with 75; no attempt counts.
        Retry: It exited with another status; the attempt failed.
    """
    process = await asyncio.create_subprocess_shell(
        command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        limit=_LINE,
        env={**os.environ, **_environment(ctx)},
    )
    try:
        _, output, _ = await asyncio.gather(
            _feed(process, payload), _read_output(process), _read_log(process, ctx)
        )
        status = await process.wait()
    except BaseException:
        await asyncio.shield(_end(process))
        raise
    return _judge(status, output, later)


def _environment(ctx: Context) -> dict[str, str]:
    claim = ctx.claim
    return {
        "JOB_ID": "" if claim is None else claim.id,
        "JOB_QUEUE": ctx.queue,
        "JOB_ATTEMPT": str(ctx.attempt),
    }


async def _feed(process: asyncio.subprocess.Process, payload: Any) -> None:
    stdin = process.stdin
    assert stdin is not None  # noqa: S101 - it was asked for
    text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    try:
        stdin.write(text.encode(errors="surrogatepass") + b"\n")
        await stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        log.debug("a command did not read its payload")
    finally:
        stdin.close()


async def _read_output(process: asyncio.subprocess.Process) -> bytes:
    stdout = process.stdout
    assert stdout is not None  # noqa: S101 - it was asked for
    kept = b""
    while part := await stdout.read(_LINE):
        # Read to the end in any case, or the command would stand still.
        if len(kept) <= _MOST_OUTPUT:
            kept += part
    return kept


async def _read_log(process: asyncio.subprocess.Process, ctx: Context) -> None:
    stderr = process.stderr
    assert stderr is not None  # noqa: S101 - it was asked for
    while True:
        try:
            line = await stderr.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            line = error.partial
        except asyncio.LimitOverrunError as error:
            line = await stderr.readexactly(error.consumed)
        if not line:
            return
        text = line.decode(errors="replace").rstrip("\r\n")
        if text:
            ctx.log("info", text)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Terminate a command with everything it has started, then kill it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is not None:
            return
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            async with asyncio.timeout(_LAST_WORD):
                await process.wait()
        except TimeoutError:
            continue


def _judge(status: int, output: bytes, later: float) -> Any:
    if status == LATER:
        raise Snooze(later, "the command asks to be run later")
    if status != 0:
        what = f"signal {-status}" if status < 0 else f"status {status}"
        raise Retry(f"the command ended with {what}")
    if len(output) > _MOST_OUTPUT:
        raise Discard(f"the command printed more than {_MOST_OUTPUT} bytes")
    text = output.decode(errors="replace")
    try:
        return json.loads(text)
    except ValueError:
        return text.rstrip("\n")
