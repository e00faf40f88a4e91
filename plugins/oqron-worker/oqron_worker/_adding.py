"""What a job may be added with, beyond its payload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypedDict

import attrs

from oqron_core import Backoff, Job
from oqron_core.exceptions import InvalidValueError


__all__ = ["AddOptions", "AddWords", "OnConflict", "OnParentFailure", "Unique", "split"]

OnConflict = Literal["keep", "replace", "refuse"]
"""What becomes of a job whose key is taken."""
OnParentFailure = Literal["fail", "ignore", "block"]
"""What becomes of a job when one that it depends on fails."""


def _one_of(*words: str) -> Any:
    def check(_instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value not in words:
            raise InvalidValueError(attribute.name, f"must be one of {', '.join(words)}")

    return check


@attrs.frozen
class Unique:
    """
    Lets a job be there once.

    Attributes:
        key: What is unique in the queue.
        window: The key stays taken for so many seconds after it was taken, also
            when the job has ended; None lets it go with the end of the job.
        on_conflict: Where the key is taken: ``keep`` gives the job that is there,
            with ``duplicate`` set; ``replace`` cancels it for the new one;
            ``refuse`` raises `ConflictError`.
    """

    key: str
    window: float | None = attrs.field(default=None, kw_only=True)
    on_conflict: OnConflict = attrs.field(
        default="keep", kw_only=True, validator=_one_of("keep", "replace", "refuse")
    )

    def __attrs_post_init__(self) -> None:
        if type(self.key) is not str or not 1 <= len(self.key) <= 200:  # noqa: PLR2004 - leaves room in a tag
            raise InvalidValueError("unique.key", "must be a str of 1 to 200 characters")
        if self.window is not None and not (type(self.window) in {int, float} and self.window > 0):
            raise InvalidValueError("unique.window", "must be seconds above 0, or None")


def _unique(value: Unique | str | None) -> Unique | None:
    if isinstance(value, str):
        return Unique(value)
    if value is not None and not isinstance(value, Unique):
        raise InvalidValueError("unique", "must be a key or a Unique")
    return value


@attrs.frozen(kw_only=True)
class AddOptions:
    """
    Everything of a job but its payload. None is what the handler says.

    Attributes:
        id: The id; None for a new one.
        delay: Seconds until it may run.
        run_at: The same as an instant, milliseconds since the epoch.
        priority: Lower is sooner.
        max_attempts: How often it is tried.
        backoff: How long it waits between attempts.
        tags: Labels.
        correlation_id: What it belongs to.
        unique: A key, or a `Unique`, that lets it be there once.
        depends_on: Jobs that must have completed before it may run.
        on_parent_failure: Where one of them fails: ``fail`` makes this job a dead
            letter, ``ignore`` runs it all the same, ``block`` waits for a requeue.
        transaction: Your own transaction, where the durable backend can join one:
            the job is there when you commit, and never if you roll back.
    """

    id: str | None = None
    delay: float | None = None
    run_at: int | None = None
    priority: int | None = None
    max_attempts: int | None = None
    backoff: Backoff | None = None
    tags: Sequence[str] = ()
    correlation_id: str | None = None
    unique: Unique | None = attrs.field(default=None, converter=_unique)
    depends_on: Sequence[Job] = ()
    on_parent_failure: OnParentFailure = attrs.field(
        default="fail", validator=_one_of("fail", "ignore", "block")
    )
    transaction: Any = attrs.field(default=None, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.unique is not None and (self.id is not None or self.depends_on):
            reason = "makes the id, and does not go together with id or depends_on"
            raise InvalidValueError("unique", reason)
        if self.transaction is not None and (self.unique is not None or self.depends_on):
            reason = "does not go together with unique or depends_on"
            raise InvalidValueError("transaction", reason)
        for index, parent in enumerate(self.depends_on):
            if not isinstance(parent, Job):
                raise InvalidValueError(f"depends_on[{index}]", "must be a Job, as add gave it")


class AddWords(TypedDict, total=False):
    """The keywords of `AddOptions`."""

    id: str | None
    delay: float | None
    run_at: int | None
    priority: int | None
    max_attempts: int | None
    backoff: Backoff | None
    tags: Sequence[str]
    correlation_id: str | None
    unique: Unique | str | None
    depends_on: Sequence[Job]
    on_parent_failure: OnParentFailure
    transaction: Any


_WORDS: Final = frozenset(field.name for field in attrs.fields(AddOptions))


def split(
    names: frozenset[str], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """
    Tell the payload from the options of a call.

    Args:
        names: The parts of the payload: they win.
        kwargs: Both.

    Returns:
        The payload's part, and the options.
    """
    payload = {}
    options = {}
    for key, value in kwargs.items():
        if key in names or key not in _WORDS:
            payload[key] = value
        else:
            options[key] = value
    return payload, options
