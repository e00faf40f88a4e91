"""The taxonomy says of every namespace exactly what the storage model's table says."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hypothesis import given
from hypothesis import strategies as st

from oqron_core.taxonomy import RecordKind, Table, classify_namespace, table_for_kind


# Written out from the storage model, and not taken from the code that is tested.
EXACT = {
    "cron": "definition",
    "schedule": "definition",
    "cache": "definition",
    "ratelimit": "definition",
    "topic": "definition",
    "queue": "control",
    "worker": "control",
    "webhook": "control",
    "topic_state": "control",
    "cron_durable": "control",
    "schedule_durable": "control",
    "runs": "run",
    "webhook_cb": "state",
}
PREFIXED = {
    "webhook_endpoints": "definition",
    "topic_groups": "control",
    "queue_job": "job",
    "queue_dlq": "dlq",
    "topic_msg": "message",
    "module_logs": "log",
}
TABLES = {
    "definition": "records",
    "control": "records",
    "job": "jobs",
    "dlq": "jobs",
    "run": "runs",
    "message": "runs",
    "log": "records",
    "state": "records",
    "record": "records",
}
NEAR_MISSES = [
    "",
    ":",
    " ",
    "Runs",
    "RUNS",
    "runs ",
    " runs",
    "runs\n",
    "run",
    "runs:",
    "runs:x",
    "cron:nightly",
    "queue:emails",
    "queue_job",
    "queue_jobs:emails",
    "Queue_job:emails",
    "queue_job :emails",
    " queue_job:emails",
    "queue-job:emails",
    "queue_job：emails",  # noqa: RUF001 - a full-width colon is no colon
    "queue_job;emails",
    "queue_dlq",
    "topic_msg",
    "topic_groups",
    "topic_state:x",
    "module_logs",
    "webhook_endpoints",
    "webhook_cb:x",
    "my:queue_job:emails",
    "webhook_endpoint:x",
    "definition",
    "record",
    "job",
    "constructor",
    "__proto__",
]


@pytest.mark.parametrize("namespace, kind", EXACT.items())
def test_exact_names_have_the_kind_of_the_model(namespace: str, kind: str) -> None:
    assert classify_namespace(namespace) == kind


@pytest.mark.parametrize("head, kind", PREFIXED.items())
@pytest.mark.parametrize(
    "rest",
    [
        "emails",
        "",
        ":",
        "a:b:c",
        "*",
        "{x}",
        " ",
        "🚀",
        "runs",
        "queue_dlq:x",
        "%_",
        "\n",
        "x" * 255,
    ],
)
def test_a_prefix_form_holds_whatever_follows(head: str, kind: str, rest: str) -> None:
    assert classify_namespace(f"{head}:{rest}") == kind


@pytest.mark.parametrize("namespace", NEAR_MISSES)
def test_near_misses_are_custom_namespaces(namespace: str) -> None:
    assert classify_namespace(namespace) is RecordKind.RECORD


@given(st.sampled_from(sorted(PREFIXED)), st.text())
def test_nothing_behind_a_prefix_changes_the_kind(head: str, rest: str) -> None:
    assert classify_namespace(f"{head}:{rest}") == PREFIXED[head]


@given(st.text())
def test_every_other_text_is_a_custom_namespace(namespace: str) -> None:
    expected = EXACT.get(namespace)
    head, colon, _ = namespace.partition(":")
    if expected is None:
        expected = PREFIXED.get(head, "record") if colon else "record"
    assert classify_namespace(namespace) == expected


@pytest.mark.parametrize("kind, table", TABLES.items())
def test_every_kind_lives_in_the_table_of_the_model(kind: str, table: str) -> None:
    assert table_for_kind(kind) == table
    assert table_for_kind(RecordKind(kind)) is Table(table)


def test_the_kinds_and_tables_are_closed() -> None:
    assert {str(kind) for kind in RecordKind} == set(TABLES)
    assert {str(table) for table in Table} == {"records", "jobs", "runs"}


@pytest.mark.parametrize("kind", ["", "Job", "jobs", "JOB", "queue_job:x", None, 1, object()])
def test_what_is_no_kind_is_refused_with_the_kinds_there_are(kind: object) -> None:
    with pytest.raises(ValueError, match=r"control, definition, dlq, job, log") as caught:
        table_for_kind(kind)  # type: ignore[arg-type]
    assert repr(kind) in str(caught.value)
    assert caught.value.__suppress_context__


def test_both_are_plain_strings_for_those_who_only_have_strings() -> None:
    assert str(RecordKind.JOB) == "job"
    assert {RecordKind.JOB: 1}["job"] == 1  # type: ignore[index]
    assert f"{Table.JOBS}" == "jobs"
    assert classify_namespace("queue_job:emails") is RecordKind.JOB


def test_the_module_needs_nothing_but_the_standard_library() -> None:
    """A dashboard imports it alone: no third-party package comes along."""
    program = (
        "import importlib.util, sys\n"
        "spec = importlib.util.spec_from_file_location('taxonomy', sys.argv[1])\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "before = set(sys.modules)\n"
        "spec.loader.exec_module(module)\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names)))\n"
    )
    path = sys.modules[classify_namespace.__module__].__file__
    assert path is not None
    shown = subprocess.run(
        [sys.executable, "-I", "-c", program, path], check=True, capture_output=True, text=True
    )
    assert shown.stdout.strip() == "[]"
