"""Errors survive pickling, keep what they carry, and form one tree."""

from __future__ import annotations

import copy
import inspect
import pickle

from typing import Any

import pytest

from oqron_core import exceptions
from oqron_core.exceptions import (
    BackendNotFoundError,
    BlockingCallError,
    CapabilityError,
    ClosedError,
    ConfigError,
    ConflictError,
    ContractMismatchError,
    CorruptRecordError,
    DuplicateBackendError,
    InvalidValueError,
    LeaseLostError,
    OqronError,
    PausedError,
    PluginError,
    SchemaError,
    StorageError,
    TimedOutError,
    UnavailableError,
)


SAMPLES: list[tuple[OqronError, str, dict[str, Any]]] = [
    (OqronError("plain"), "plain", {}),
    (ConfigError(("a: x", "b: y")), "a: x; b: y", {"problems": ("a: x", "b: y")}),
    (ConfigError("a: x"), "a: x", {"problems": ("a: x",)}),
    (PluginError("p"), "p", {}),
    (BackendNotFoundError("no redis"), "no redis", {}),
    (DuplicateBackendError("two"), "two", {}),
    (ContractMismatchError("1 is not 2"), "1 is not 2", {}),
    (CapabilityError("cannot"), "cannot", {}),
    (
        PausedError("queue 'q'", "audit"),
        "queue 'q' is paused and refuses what arrives (audit); try again later",
        {"what": "queue 'q'", "reason": "audit"},
    ),
    (BlockingCallError("inside"), "inside", {}),
    (StorageError("s"), "s", {}),
    (UnavailableError("down"), "down", {}),
    (TimedOutError("late"), "late", {}),
    (SchemaError("old"), "old", {}),
    (CorruptRecordError("runs/1"), "what is stored at runs/1 cannot be decoded", {"key": "runs/1"}),
    (ConflictError("taken", 3), "taken", {"reason": "taken", "index": 3}),
    (ConflictError("taken"), "taken", {"reason": "taken", "index": None}),
    (
        InvalidValueError("data.a", "is bad"),
        "data.a: is bad",
        {"path": "data.a", "reason": "is bad"},
    ),
    (
        LeaseLostError("job 1", 7),
        "lease on job 1 (token 7) is lost: someone took over",
        {"what": "job 1", "token": 7, "reason": "someone took over"},
    ),
    (
        LeaseLostError("lock k", 2**62, "it lapsed"),
        f"lease on lock k (token {2**62}) is lost: it lapsed",
        {"what": "lock k", "token": 2**62, "reason": "it lapsed"},
    ),
    (ClosedError("closed"), "closed", {}),
]


def own_classes() -> set[type]:
    return {
        value
        for value in vars(exceptions).values()
        if inspect.isclass(value) and issubclass(value, BaseException)
    }


def test_every_class_is_exported_and_has_a_sample_here() -> None:
    assert {cls.__name__ for cls in own_classes()} == set(exceptions.__all__)
    assert {type(error) for error, _, _ in SAMPLES} == own_classes()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("error, text, carried", SAMPLES, ids=lambda part: type(part).__name__)
def test_an_error_comes_back_whole_from_another_process(
    error: OqronError, text: str, carried: dict[str, Any], protocol: int
) -> None:
    back = pickle.loads(pickle.dumps(error, protocol))  # noqa: S301 - our own bytes
    assert type(back) is type(error)
    assert back.args == error.args
    assert str(back) == str(error) == text
    assert {name: getattr(back, name) for name in carried} == carried


@pytest.mark.parametrize("error, text, carried", SAMPLES, ids=lambda part: type(part).__name__)
def test_an_error_can_be_copied(error: OqronError, text: str, carried: dict[str, Any]) -> None:
    for back in (copy.copy(error), copy.deepcopy(error)):
        assert type(back) is type(error)
        assert str(back) == text
        assert {name: getattr(back, name) for name in carried} == carried


@pytest.mark.parametrize("error, text, carried", SAMPLES, ids=lambda part: type(part).__name__)
def test_pickling_keeps_what_was_attached(
    error: OqronError, text: str, carried: dict[str, Any]
) -> None:
    """A note that somebody adds on the way up is not lost with the process."""
    noted = copy.copy(error)
    noted.add_note("while adding to emails")
    back = pickle.loads(pickle.dumps(noted))  # noqa: S301 - our own bytes
    assert back.__notes__ == ["while adding to emails"]


def test_every_error_has_one_base_and_ends_in_error() -> None:
    for cls in own_classes():
        assert issubclass(cls, OqronError)
        assert issubclass(cls, Exception)
        assert cls.__name__.endswith("Error")
        assert cls.__doc__


@pytest.mark.parametrize(
    "child, parent",
    [
        (ConfigError, OqronError),
        (BackendNotFoundError, PluginError),
        (BackendNotFoundError, LookupError),
        (DuplicateBackendError, PluginError),
        (ContractMismatchError, PluginError),
        (CapabilityError, PluginError),
        (UnavailableError, StorageError),
        (TimedOutError, UnavailableError),
        (SchemaError, StorageError),
        (CorruptRecordError, StorageError),
        (ConflictError, StorageError),
        (InvalidValueError, OqronError),
        (InvalidValueError, ValueError),
        (LeaseLostError, OqronError),
        (ClosedError, OqronError),
    ],
)
def test_the_tree_is_the_documented_one(child: type, parent: type) -> None:
    assert issubclass(child, parent)


def test_a_lost_lease_and_a_refused_value_are_no_storage_errors() -> None:
    """Whoever retries on a storage error must not retry these."""
    for cls in (LeaseLostError, InvalidValueError, ClosedError, ConfigError, PluginError):
        assert not issubclass(cls, StorageError)


def test_only_what_may_succeed_later_is_retryable() -> None:
    retryable = {cls.__name__ for cls in own_classes() if getattr(cls, "retryable", False)}
    assert retryable == {"UnavailableError", "TimedOutError", "PausedError"}


def test_a_missing_backend_reads_as_a_sentence_and_not_as_a_quoted_key() -> None:
    assert str(BackendNotFoundError("pip install oqron-redis")) == "pip install oqron-redis"
    assert str(BackendNotFoundError()) == ""


def test_problems_are_kept_apart() -> None:
    """A list given by a caller is not shared with the error."""
    problems = ["a: x"]
    error = ConfigError(tuple(problems))
    problems.append("b: y")
    assert error.problems == ("a: x",)
