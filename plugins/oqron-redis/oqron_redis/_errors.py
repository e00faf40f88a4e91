"""The one translator of driver errors."""

from __future__ import annotations

import asyncio
import os
import re
import ssl

from collections.abc import Iterator
from typing import Final

from oqron_core.exceptions import (
    ConfigError,
    OqronError,
    StorageError,
    TimedOutError,
    UnavailableError,
)
from redis import exceptions as driver


__all__ = ["is_stale_primary", "not_connected", "translate"]

_CODE: Final = re.compile(
    r"\b(READONLY|OOM|LOADING|MASTERDOWN|BUSY|NOREPLICAS|MISCONF|CLUSTERDOWN|TRYAGAIN"
    r"|MOVED|ASK|NOAUTH|NOPERM|WRONGPASS|WRONGTYPE|UNKILLABLE|CROSSSLOT)\b"
)

_WAIT: Final = {
    "READONLY": "this Redis is a replica and refuses writes; a failover is under way",
    "OOM": "Redis is at its maxmemory and refuses writes; free memory or raise the limit",
    "LOADING": "Redis is loading its data",
    "MASTERDOWN": "this Redis is a replica that lost its master",
    "BUSY": "Redis is busy with a script",
    "NOREPLICAS": "Redis has too few replicas to take writes",
    "MISCONF": "Redis cannot persist and refuses writes; look at its log and disk",
    "CLUSTERDOWN": "the Redis cluster does not serve all slots",
    "TRYAGAIN": "the Redis cluster is moving a slot",
    "MOVED": "the Redis cluster has moved a slot",
    "ASK": "the Redis cluster is moving a slot",
    "UNKILLABLE": "Redis is busy with a script",
}
_REFUSED: Final = {
    "NOAUTH": "Redis asks for a password; set redis.password",
    "WRONGPASS": "Redis refused the user or the password",
    "NOPERM": "the Redis user may not run a command or touch a key that oqron needs",
    "WRONGTYPE": "a key of oqron holds something else; another program wrote to it",
    "CROSSSLOT": "this is a Redis Cluster; set redis.cluster = true",
}


# The driver takes the code off the text where it has a class for it. By name, as
# older drivers lack some.
_CLASSES: Final = {
    "ReadOnlyError": "READONLY",
    "OutOfMemoryError": "OOM",
    "BusyLoadingError": "LOADING",
    "MasterDownError": "MASTERDOWN",
    "ClusterDownError": "CLUSTERDOWN",
    "SlotNotCoveredError": "CLUSTERDOWN",
    "TryAgainError": "TRYAGAIN",
    "MovedError": "MOVED",
    "AskError": "ASK",
    "NoPermissionError": "NOPERM",
    "AuthenticationWrongNumberOfArgsError": "WRONGPASS",
    "ClusterCrossSlotError": "CROSSSLOT",
}


def _code(error: BaseException) -> str:
    for cls in type(error).__mro__:
        if cls.__name__ in _CLASSES:
            return _CLASSES[cls.__name__]
    found = _CODE.search(str(error))
    return found.group(1) if found else ""


def is_stale_primary(error: BaseException) -> bool:
    """Say whether another server may be the primary by now."""
    return _code(error) in {"READONLY", "MASTERDOWN"}


_ERRNO: Final = re.compile(r"\bErr(?:no|or) (-?\d+)\b")


def _chain(error: BaseException) -> Iterator[BaseException]:
    # The driver raises its own error while it handles that of the system.
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def _reason(error: BaseException) -> str:
    """Say in plain words why nothing was reached; empty where that is not known."""
    for found in _chain(error):
        if isinstance(found, ssl.SSLCertVerificationError):
            return "its certificate is not trusted"
        if isinstance(found, ssl.SSLError):
            return "TLS failed"
        if isinstance(found, (TimeoutError, driver.TimeoutError)):
            return "timed out"
        if type(found).__name__ in {"MasterNotFoundError", "SlaveNotFoundError"}:
            return "no sentinel that answers knows it"
        if number := _number_of(found):
            return os.strerror(number).lower() if number > 0 else "the name is not known"
    return ""


def _number_of(error: BaseException) -> int | None:
    """Give the number of the system's error; the resolver's are below 0."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    # Where several addresses were tried, or a cluster was, the text alone has it.
    told = _ERRNO.search(str(error))
    return int(told.group(1)) if told else None


def _unreachable(error: BaseException, what: str = "Redis", at: str = "") -> UnavailableError:
    """
    Say that nothing is there to speak to, where that is, and why.

    Args:
        error: What the driver raised.
        what: What was spoken to.
        at: Its address; never with a user or a password.
    """
    text = f"{what} cannot be reached at {at}" if at else f"{what} cannot be reached"
    reason = _reason(error)
    ours = UnavailableError(f"{text}: {reason}" if reason else text)
    ours.__cause__ = error
    return ours


def translate(error: BaseException, at: str = "") -> OqronError:
    """
    Give the error of ours for one of the driver's, without its text.

    The driver's error is the cause, for whoever has to look closer; what we say
    ourselves holds neither arguments nor secrets.

    Args:
        error: What the driver raised.
        at: The address of what was spoken to; never with a user or a password.
    """
    if isinstance(error, OqronError):
        return error
    ours: OqronError
    code = _code(error)
    if isinstance(error, (asyncio.TimeoutError, TimeoutError, driver.TimeoutError)):
        ours = TimedOutError("Redis did not answer in time; it may have been done")
    elif isinstance(error, driver.AuthenticationError) or code in _REFUSED:
        ours = StorageError(_REFUSED.get(code, _REFUSED["WRONGPASS"]))
    elif code in _WAIT:
        ours = UnavailableError(_WAIT[code])
    elif isinstance(error, (driver.ConnectionError, OSError)):
        ours = _unreachable(error, at=at)
    elif isinstance(error, (driver.ClusterError, driver.RedisClusterException)):
        ours = _unreachable(error, "the Redis cluster", at)
    elif isinstance(error, driver.DataError):
        ours = ConfigError("redis: the connection settings do not fit together")
    else:
        kind = type(error).__name__
        ours = StorageError(f"Redis refused a command ({kind}); the cause says why")
    ours.__cause__ = error
    return ours


def not_connected(error: BaseException, at: str) -> OqronError:
    """
    Give the error of ours for a connection that was not made: nothing was sent on it.

    Args:
        error: What the driver raised.
        at: The address; never with a user or a password.
    """
    if isinstance(error, (TimeoutError, driver.TimeoutError)):
        return _unreachable(error, at=at)
    if isinstance(error, driver.ResponseError) and "DB index" in str(error):
        ours = ConfigError(
            "redis: the server has no database of that number; mend redis.database, or the end "
            "of redis.url"
        )
        ours.__cause__ = error
        return ours
    return translate(error, at)
