"""``python -m oqron_worker``: the worker's commands by themselves."""

from __future__ import annotations

import click

from oqron_worker.cli import work, worker


@click.group()
def main() -> None:
    """Put functions and commands to work on an oqron storage."""


main.add_command(worker)
main.add_command(work)

if __name__ == "__main__":
    main(prog_name="oqron")
