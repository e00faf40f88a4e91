"""The commands that this distribution adds: ``oqron schema`` and ``oqron migrate-v1``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import click

from oqron_core.cli.extending import (
    Invocation,
    backend_settings,
    bar,
    common_options,
    core_settings,
    counted,
    json_option,
    note,
    print_json,
    print_line,
    run_async,
)
from oqron_postgres.schema import SchemaStatus, apply_schema, roles_sql, schema_sql, schema_status
from oqron_postgres.settings import PostgresSettings
from oqron_postgres.v1 import V1Report, dismiss_v1, migrate_v1


__all__ = ["migrate", "schema"]


def _settings(invocation: Invocation) -> PostgresSettings:
    found: PostgresSettings = backend_settings(invocation, "postgres")
    return found


def _document(status: SchemaStatus) -> dict[str, Any]:
    return {
        **attrs.asdict(status),
        "ok": status.ok,
        "problem": status.problem(),
        "remarks": status.remarks(),
    }


@click.group()
def schema() -> None:
    """Read, apply and look after the tables in PostgreSQL."""


@schema.command()
@click.option("--since", type=click.IntRange(min=0), default=0, help="The version that is there.")
@common_options
@click.pass_obj
def sql(invocation: Invocation, *, since: int) -> None:
    """Print the SQL that apply runs, to read or to run with psql."""
    click.echo(schema_sql(_settings(invocation), since=since))


@schema.command()
@common_options
@json_option
@click.pass_obj
def apply(invocation: Invocation, *, as_json: bool) -> None:
    """Bring the tables up to the version of this distribution.

    May be repeated, and run by several at once.
    """
    done = run_async(apply_schema(_settings(invocation)))
    if as_json:
        print_json(attrs.asdict(done))
    elif done.steps:
        print_line(f"schema version {done.before or 0} → {done.after}")
    else:
        print_line(f"schema version {done.after}, nothing to do")


@schema.command()
@common_options
@json_option
@click.pass_context
def status(context: click.Context, *, as_json: bool) -> None:
    """Show the version of the tables; exit status 1 where no storage would open."""
    found = run_async(schema_status(_settings(context.obj)))
    if as_json:
        print_json(_document(found))
    else:
        print_line(f"tables     {found.schema}.{found.table_prefix}_*: {found.state}")
        print_line(f"installed  {'none' if found.installed is None else found.installed}")
        print_line(f"wanted     {found.wanted}")
        print_line(f"v1 table   {found.v1}")
    for remark in found.remarks():
        note(remark)
    problem = found.problem()
    if problem is not None:
        note(problem)
        context.exit(1)


@schema.command()
@click.option("--reader", default="oqron_reader", show_default=True, help="The role that reads.")
@click.option("--worker", default="oqron_worker", show_default=True, help="The role that works.")
@click.option(
    "--migrator", default="oqron_migrator", show_default=True, help="The role that owns the tables."
)
@common_options
@click.pass_obj
def roles(invocation: Invocation, *, reader: str, worker: str, migrator: str) -> None:
    """Print SQL that makes roles with no more than they need.

    The tables will belong to the migrator: a process that logs in as the owner of
    before needs the worker role from then on. The reader may see one project and
    environment: those of --project and --environment, or of the settings.
    """
    settings = core_settings(invocation)
    click.echo(
        roles_sql(
            _settings(invocation),
            project=settings.project,
            environment=settings.environment,
            reader=reader,
            worker=worker,
            migrator=migrator,
        )
    )


@click.command(name="migrate-v1")
@click.option("--dry-run", is_flag=True, help="Report what would move, and write nothing.")
@click.option("--dismiss", is_flag=True, help="Say that the old rows are not needed.")
@click.option(
    "--again", is_flag=True, help="Move what is gone from the new tables since, to be worked again."
)
@common_options
@json_option
@click.pass_context
def migrate(
    context: click.Context, *, dry_run: bool, dismiss: bool, again: bool, as_json: bool
) -> None:
    """Move the rows of the single-table layout to the three tables.

    Rows whose namespace names no scope go to --project and --environment, or to
    those of the settings. What has ended expires as [retention] says.
    Resumable, every row is looked for; the old table stays for you to drop.
    """
    invocation: Invocation = context.obj
    settings = _settings(invocation)
    if dismiss:
        if dry_run or again:
            other = "--dry-run" if dry_run else "--again"
            raise click.UsageError(f"--dismiss and {other} exclude each other")
        left = run_async(dismiss_v1(settings))
        line = f"the old table is dismissed; nothing was deleted, it holds {counted(left, 'row')}"
        _say(as_json, {"dismissed": True, "rows": left}, line)
        return
    core = core_settings(invocation)
    with bar("reading" if dry_run else "moving", None) as progress:

        def tell(done: int, total: int) -> None:
            if progress is not None:
                progress.update(progress.task_ids[0], completed=done, total=total)

        report = run_async(
            migrate_v1(
                settings,
                # A scope that nobody gave is no answer, even if it has a default.
                project=core.project if "project" in core.sources else None,
                environment=core.environment if "environment" in core.sources else None,
                core=core,
                dry_run=dry_run,
                again=again,
                on_progress=tell,
            )
        )
    _show(report, as_json=as_json)
    if report.refused_count or report.missing:
        context.exit(1)


def _say(as_json: bool, document: dict[str, Any], line: str) -> None:  # noqa: FBT001 - as the option
    if as_json:
        print_json(document)
    else:
        print_line(line)


def _list(say: Callable[[str], None], lines: Sequence[str], count: int) -> None:
    for line in lines:
        say(line)
    if count > len(lines):
        say(f"and {count - len(lines)} more")


def _show(report: V1Report, *, as_json: bool) -> None:
    if as_json:
        moved = {str(kind): count for kind, count in report.moved.items()}
        print_json({**attrs.asdict(report), "moved": moved})
        return
    if not report.total:
        print_line("there is no old table, or it is empty: nothing to move")
        return
    would = report.dry_run
    number = sum(report.moved.values())
    verb = f"would move {number}" if would else f"moved {number} now"
    print_line(f"{counted(report.total, 'row')} in the old table; {verb}")
    for kind, count in sorted(report.moved.items()):
        print_line(f"  {kind:<12} {count}")
    if report.kept:
        are = "was there already and is left as it is"
        if report.kept != 1:
            are = "were there already and are left as they are"
        print_line(f"{report.kept} {are}")
    if report.unscoped:
        names = "names" if report.unscoped == 1 else "name"
        belongs = "belongs" if report.unscoped == 1 else "belong"
        print_line(
            f"{counted(report.unscoped, 'row')} that {names} no scope {belongs} to project "
            f"{report.project} and environment {report.environment}"
        )
    if report.mended_count:
        verb = "would be" if would else "was" if report.mended_count == 1 else "were"
        mended = counted(report.mended_count, "row")
        print_line(f"{mended} {verb} mended beyond the dates, in these fields:")
        _list(lambda line: print_line(f"  {line}"), report.mended, report.mended_count)
    if report.refused_count:
        note(f"{counted(report.refused_count, 'row')} cannot be moved:")
        _list(note, report.refused, report.refused_count)
    if report.missing:
        seen = "could not be read" if would else "could not be read, or not found in the new tables"
        note(f"{counted(report.missing, 'row')} {seen}")
    left = report.refused_count + report.missing
    if report.verified:
        print_line("every row was found in its table; the old one is yours to drop")
    elif not would:
        are = "row is" if left == 1 else "rows are"
        print_line(f"keep the old table: {left} {are} only there")
