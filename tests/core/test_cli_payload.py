"""JSON from the command line: strict, complete, refused in one line."""

from __future__ import annotations

import json

from pathlib import Path

import pytest

from click.testing import CliRunner

from oqron_core.cli._app import cli
from oqron_core.cli._payload import parse_json
from oqron_core.exceptions import InvalidValueError


SUITE = Path(__file__).parents[3] / "shared" / "data" / "json-test-suite"


def files(prefix: str) -> list[Path]:
    """Give the files of the suite with this verdict, or skip."""
    found = sorted(SUITE.glob(f"{prefix}_*.json"))
    if not found:
        pytest.skip(f"the JSON test suite is not at {SUITE}")
    return found


@pytest.mark.parametrize("text", ["1", "1.0", "true", "null", '"a"', "[]", "{}", " [1, {}] \n"])
def test_types_are_kept(text: str) -> None:
    """One is not one point nought, and true is neither."""
    found = parse_json(text, "DATA")

    assert repr(json.loads(text)) == repr(found)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is no JSON: expecting value at column 1"),
        ("hello", "quotes"),
        ("-Infinity", "-Infinity is no JSON"),
        ('"\\u0000"', "NUL"),
        ('"\\ud800"', "lone surrogate"),
        ("18446744073709551616", "64 bits"),
        ("-1e400", "finite"),
        ('[1,\n2,\n"x]', "line 3"),
        ("9" * 5000, "is no JSON"),
        ("[" * 101 + "]" * 101, "nested deeper than 100"),
        ("[" * 100_000, "nested too deep"),
        (b"\xff", "is not UTF-8 at byte 0"),
        (b"\xef\xbb\xbf1", "BOM"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_what_cannot_be_kept_is_refused_with_its_place(text: str | bytes, says: str) -> None:
    """The error names the payload and what is wrong with it."""
    with pytest.raises(InvalidValueError) as caught:
        parse_json(text, "DATA")

    assert str(caught.value).startswith("DATA")
    assert says in str(caught.value)


def test_an_error_does_not_carry_the_text_along() -> None:
    """A payload may be a secret; what failed to parse stays out of the chain."""
    with pytest.raises(InvalidValueError) as caught:
        parse_json('{"password": "hunter2"', "DATA")

    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def add(path: Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(
        cli, ["jobs", "add", "q", "-", "--mode", "memory", "--json"], input=path.read_bytes()
    )
    return result.exit_code, result.stdout, result.stderr


def test_every_good_document_of_the_suite_is_added_as_it_is() -> None:
    """What is portable comes back equal; the rest is refused for being not portable."""
    for path in files("y"):
        status, stdout, stderr = add(path)
        raw = path.read_bytes()
        if b"\\u0000" in raw and b"\\\\u0000" not in raw:
            assert 2 == status, path.name
            assert "NUL" in stderr
        else:
            assert 0 == status, (path.name, stderr)
            assert repr(json.loads(raw)) == repr(json.loads(stdout)["data"]), path.name


def test_every_bad_document_of_the_suite_is_refused_in_one_line() -> None:
    """No document that is no JSON becomes a job, or a traceback."""
    for path in files("n"):
        status, stdout, stderr = add(path)

        assert 2 == status, path.name
        assert "" == stdout
        assert 1 == len(stderr.splitlines()), (path.name, stderr)


def test_documents_that_may_be_either_never_crash() -> None:
    """What JSON leaves open is added or refused, and nothing else."""
    for path in files("i"):
        status, _, stderr = add(path)

        assert status in {0, 2}, path.name
        assert "Traceback" not in stderr
