"""The ``oqron`` command. Needs the extra ``cli``; importing oqron_core does not."""

from __future__ import annotations

import sys

from collections.abc import Sequence


__all__ = ["main"]

_NEEDED = frozenset({"click", "rich"})


def main(argv: Sequence[str] | None = None) -> None:
    """
    Run the command and end the process with its exit status.

    Args:
        argv: The arguments; None for those of the process.
    """
    try:
        import rich  # noqa: F401, PLC0415 - what is missing is said in one place

        from oqron_core.cli._app import cli  # noqa: PLC0415 - the extra may be absent
    except ModuleNotFoundError as error:
        if error.name not in _NEEDED:
            raise
        sys.stderr.write(f"oqron: the command needs {error.name}: pip install 'oqron-core[cli]'\n")
        raise SystemExit(1) from None
    cli.main(args=None if argv is None else list(argv), prog_name="oqron")
