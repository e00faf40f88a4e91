"""JSON from the command line and from files: strict, complete, in one line of error."""

from __future__ import annotations

import json

from typing import Any, NoReturn

from oqron_core._codec import check_value
from oqron_core.exceptions import InvalidValueError


__all__ = ["parse_json"]


def _no_constant(text: str) -> NoReturn:
    msg = f"{text} is no JSON; send null or a string"
    raise ValueError(msg)


def parse_json(text: str | bytes, path: str) -> Any:
    """
    Parse one JSON value and check that every backend can keep it.

    Numbers keep their type: 1 is an int, 1.0 a float, and an integer is never
    rounded. Where an object has a key twice the last one counts.

    Args:
        text: The text; bytes are UTF-8.
        path: What to call it in an error.

    Raises:
        InvalidValueError: No JSON, or not portable; says where.
    """
    # The standard parser, not the codec's: that one turns an integer beyond 64 bits
    # into a float, and what a person typed must be refused, not rounded.
    problem: str
    try:
        value = json.loads(
            text.decode() if isinstance(text, bytes) else text, parse_constant=_no_constant
        )
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 at byte {error.start}"
    except json.JSONDecodeError as error:
        problem = f"is no JSON: {_where(error)}"
    except RecursionError:
        problem = "is nested too deep; flatten it"
    except ValueError as error:
        problem = f"is no JSON: {error}"
    else:
        check_value(value, path)
        return value
    # Outside of the except blocks: their errors hold the whole text.
    raise InvalidValueError(path, problem)


def _where(error: json.JSONDecodeError) -> str:
    place = f"column {error.colno}"
    if error.lineno > 1:
        place = f"line {error.lineno}, {place}"
    hint = ""
    if error.pos == 0 and error.doc[:1].isalpha():
        hint = "; a text needs quotes, as in '\"text\"'"
    return f"{error.msg[0].lower()}{error.msg[1:]} at {place}{hint}"
