"""Every Python example in the papers and the documentation runs as it is written."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re

from pathlib import Path

import pytest


ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def documents() -> list[Path]:
    """List the Markdown files that hold an example."""
    papers = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")]
    return [path for path in sorted(papers) if FENCE.search(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_examples_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The examples of one document run in order and share their names, in an empty folder.

    They may await at the top, as in ``python -m asyncio``.
    """
    monkeypatch.chdir(tmp_path)
    text = path.read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "__main__"}

    for example in FENCE.finditer(text):
        # Blank lines before it, so that a traceback has the line of the document.
        above = "\n" * text[: example.start(1)].count("\n")
        code = compile(above + example[1], path, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)  # noqa: S307 -- our own words
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(result)


def test_the_readme_is_among_them() -> None:
    """The quickstart is found, so the test above tests something."""
    assert ROOT / "README.md" in documents()


def test_the_first_forty_lines_make_three_readers_at_home() -> None:
    """A user, a backend author and a dashboard person each find themselves at the top."""
    top = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:40])

    assert "**You build or run a job system.**" in top
    assert "**You write a backend.**" in top
    assert "**You build a dashboard.**" in top
