"""The one translator of driver errors."""

from __future__ import annotations

import asyncio
import re

from typing import Final

from oqron_core.exceptions import (
    ConfigError,
    OqronError,
    StorageError,
    TimedOutError,
    UnavailableError,
)
from redis import exceptions as driver


__all__ = ["is_stale_primary", "translate"]

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


def translate(error: BaseException, what: str = "Redis") -> OqronError:
    """
    Give the error of ours for one of the driver's, without its text.

    The driver's error is the cause, for whoever has to look closer; what we say
    ourselves holds neither arguments nor secrets.

    Args:
        error: What the driver raised.
        what: What was spoken to.
    """
    if isinstance(error, OqronError):
        return error
    ours: OqronError
    code = _code(error)
    if isinstance(error, (asyncio.TimeoutError, TimeoutError, driver.TimeoutError)):
        ours = TimedOutError(f"{what} did not answer in time; it may have been done")
    elif isinstance(error, driver.AuthenticationError) or code in _REFUSED:
        ours = StorageError(_REFUSED.get(code, _REFUSED["WRONGPASS"]))
    elif code in _WAIT:
        ours = UnavailableError(_WAIT[code])
    elif isinstance(error, (driver.ConnectionError, OSError)):
        ours = UnavailableError(f"{what} cannot be reached")
    elif isinstance(error, (driver.ClusterError, driver.RedisClusterException)):
        ours = UnavailableError("the Redis cluster cannot be reached")
    elif isinstance(error, driver.DataError):
        ours = ConfigError("redis: the connection settings do not fit together")
    else:
        kind = type(error).__name__
        ours = StorageError(f"Redis refused a command ({kind}); the cause says why")
    ours.__cause__ = error
    return ours
