"""
Every error that oqron raises.

.. code-block:: text

    OqronError
    ├── ConfigError                settings, all problems at once
    ├── PluginError
    │   ├── BackendNotFoundError   no such backend is installed, or it cannot load
    │   ├── DuplicateBackendError  two distributions claim one name
    │   ├── ContractMismatchError  built for another contract version
    │   └── CapabilityError        asked for what the backend does not declare
    ├── StorageError               a plane could not do it
    │   ├── UnavailableError       it did not answer; try again
    │   │   └── TimedOutError      no answer in time; it may have been done
    │   ├── SchemaError            tables missing, older, newer, or of the v1 layout
    │   ├── CorruptRecordError     what is stored cannot be read
    │   └── ConflictError          a guard or an atomic batch did not hold
    ├── InvalidValueError          a value or name outside the portable domain
    ├── LeaseLostError             someone else holds it now
    ├── PausedError                what is paused rejects what arrives
    ├── ClosedError                used after closing
    └── BlockingCallError          a blocking call inside a running event loop

An error carries what its attributes say, never a payload and never a secret.
Arguments of the exceptions are positional, so every one of them pickles.
"""

from __future__ import annotations

from typing import ClassVar


__all__ = [
    "BackendNotFoundError",
    "BlockingCallError",
    "CapabilityError",
    "ClosedError",
    "ConfigError",
    "ConflictError",
    "ContractMismatchError",
    "CorruptRecordError",
    "DuplicateBackendError",
    "InvalidValueError",
    "LeaseLostError",
    "OqronError",
    "PausedError",
    "PluginError",
    "SchemaError",
    "StorageError",
    "TimedOutError",
    "UnavailableError",
]


class OqronError(Exception):
    """The base of every error that oqron raises."""

    retryable: ClassVar[bool] = False
    """Whether the same call may succeed later without a change."""


class ConfigError(OqronError):
    """
    Settings are wrong. All problems are reported at once.

    Attributes:
        problems: One line each, with the path of the setting and the mend.
    """

    def __init__(self, problems: tuple[str, ...] | str) -> None:
        self.problems: tuple[str, ...] = (
            (problems,) if isinstance(problems, str) else tuple(problems)
        )
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "; ".join(self.problems)


class PluginError(OqronError):
    """A plugin cannot be used."""


class BackendNotFoundError(PluginError, LookupError):
    """
    No usable backend of that name: none is installed, or it failed to load.

    Where it failed to load, ``__cause__`` is what it raised.
    """

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class DuplicateBackendError(PluginError):
    """Two distributions register the same backend; the message names both."""


class ContractMismatchError(PluginError):
    """A plugin was built for another version of the contract, or lacks a method."""


class CapabilityError(PluginError):
    """Something was asked of a backend that it does not declare."""


class StorageError(OqronError):
    """A plane could not do what was asked."""


class UnavailableError(StorageError):
    """The store did not answer, or refuses for now; ``__cause__`` says why."""

    retryable = True


class TimedOutError(UnavailableError):
    """No answer in time. The outcome is unknown: it may have been done."""


class SchemaError(StorageError):
    """The tables are missing, older, newer, or of the v1 layout; says what to run."""


class CorruptRecordError(StorageError):
    """
    Something stored cannot be decoded.

    Attributes:
        key: Where it stands, never what it holds.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(key)

    def __str__(self) -> str:
        return f"what is stored at {self.key} cannot be decoded"


class ConflictError(StorageError):
    """
    An atomic batch was refused because one of its guards did not hold.

    Attributes:
        reason: What did not hold.
        index: The position of the item in the batch, or None.
    """

    def __init__(self, reason: str, index: int | None = None) -> None:
        self.reason = reason
        self.index = index
        super().__init__(reason, index)

    def __str__(self) -> str:
        return self.reason


class InvalidValueError(OqronError, ValueError):
    """
    A value or a name is outside what every backend can keep.

    Attributes:
        path: Where, such as ``data.items[3]``.
        reason: What is wrong with it, and what would be right.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(path, reason)

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class LeaseLostError(OqronError):
    """
    The lease is not yours any more: it lapsed, was taken over, or was cancelled.

    Nothing was changed.

    Attributes:
        what: What the lease was on.
        token: The fencing token that was refused.
        reason: Why, as far as the store shows it.
    """

    def __init__(self, what: str, token: int, reason: str = "someone took over") -> None:
        self.what = what
        self.token = token
        self.reason = reason
        super().__init__(what, token, reason)

    def __str__(self) -> str:
        return f"lease on {self.what} (token {self.token}) is lost: {self.reason}"


class PausedError(OqronError):
    """
    What it was sent to is paused, and refuses what arrives. Nothing was written.

    Attributes:
        what: What is paused.
        reason: Why, as the person said who paused it, or None.
    """

    retryable = True

    def __init__(self, what: str, reason: str | None = None) -> None:
        self.what = what
        self.reason = reason
        super().__init__(what, reason)

    def __str__(self) -> str:
        because = f" ({self.reason})" if self.reason else ""
        return f"{self.what} is paused and refuses what arrives{because}; try again later"


class ClosedError(OqronError):
    """The storage was closed, or never opened."""


class BlockingCallError(OqronError, RuntimeError):
    """A blocking call was made where an event loop runs: it would stop the loop."""
