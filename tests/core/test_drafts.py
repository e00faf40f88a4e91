"""Frozen objects that are made fast are the same as others."""

from __future__ import annotations

import copy
import pickle

from typing import Any

import attrs
import pytest

from oqron_core._drafts import drafted
from oqron_core.models.job import Job
from oqron_core.planes import Form, Insert


@pytest.mark.parametrize(
    ("cls", "arguments", "named"),
    [
        (Job, (), {"id": "a", "queue_name": "q", "data": [1], "priority": 3}),
        (Insert, ("n", "a", {"x": 1}), {}),
        (Insert, ("n", "a", {"x": 1}), {"expires_at": 5}),
    ],
)
def test_what_is_made_fast_is_what_the_class_makes(
    cls: type[Any], arguments: tuple[Any, ...], named: dict[str, Any]
) -> None:
    """Of the class itself, equal, frozen, with the defaults and factories of the class."""
    make = drafted(cls)
    made, other = make(*arguments, **named), make(*arguments, **named)

    assert type(made) is cls
    assert made == cls(*arguments, **named) == pickle.loads(pickle.dumps(made))  # noqa: S301 - our own
    assert copy.copy(made) == attrs.evolve(made) == made
    assert repr(made) == repr(cls(*arguments, **named))
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        made.id = "b"
    if cls is Job:
        assert made.tags is not other.tags
        with pytest.raises(TypeError, match="queue_name"):
            make(id="a")


def test_a_value_of_a_form_is_the_mapping_that_it_stands_for() -> None:
    """The open fields as they were given, in the order of the form."""
    value = Form({"id": None, "same": 1, "data": None}, ("id", "data")).fill({"data": 2, "id": "x"})

    assert {**value} == value == {"id": "x", "same": 1, "data": 2}
    assert [*value] == ["id", "same", "data"]
    assert len(value) == 3
    assert "x" not in repr(value).replace("fields", "")
    with pytest.raises(KeyError):
        value["other"]
