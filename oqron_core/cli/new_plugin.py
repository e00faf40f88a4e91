"""``oqron new-plugin``: a distribution for a new backend, to be filled in."""

from __future__ import annotations

from pathlib import Path

import click

from oqron_core.cli._invocation import common_options, json_option
from oqron_core.cli._output import print_json, print_line
from oqron_core.scaffold import Plan, generate, planned


__all__ = ["new_plugin"]


@click.command("new-plugin")
@click.argument("name", metavar="NAME")
@click.option(
    "--planes",
    default="hot,durable",
    show_default=True,
    metavar="PLANES",
    help="Which planes it will serve: hot, durable, or both with a comma.",
)
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where its folder is made; here if not given.",
)
@common_options
@json_option
def new_plugin(name: str, *, planes: str, directory: Path | None, as_json: bool) -> None:
    """Make the distribution of a backend called NAME.

    It installs, is listed by `oqron plugins`, type-checks and lints; its conformance
    run says, method by method, what is not implemented yet.
    """
    plan = planned(
        name,
        planes=[part.strip() for part in planes.split(",") if part.strip()],
        directory=directory,
    )
    try:
        written = generate(plan)
    except FileExistsError:
        msg = f"{plan.folder} is there already; choose another --directory or NAME"
        raise click.ClickException(msg) from None
    if as_json:
        print_json(_document(plan, written))
        return
    print_line(f"made {plan.folder}, {len(written)} files:")
    for path in written:
        print_line(f"  {path.relative_to(plan.folder)}")
    print_line(f"now: cd {plan.folder} && pip install -e '.[test,lint]' && pytest")


def _document(plan: Plan, written: list[Path]) -> dict[str, object]:
    return {
        "backend": plan.backend,
        "distribution": plan.distribution,
        "package": plan.package,
        "planes": list(plan.planes),
        "folder": str(plan.folder),
        "files": [str(path.relative_to(plan.folder)) for path in written],
    }
