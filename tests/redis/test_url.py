"""What stands behind the question mark of a URL is heard or refused."""

from __future__ import annotations

import asyncio

import pytest

from oqron_core.exceptions import ConfigError
from oqron_redis import BACKEND, RedisSettings


async def _connect(url: str) -> None:
    async with BACKEND.connect(RedisSettings(url=url)):
        pass


@pytest.mark.parametrize("query", ["no_such=3", "socket_timeout=soon", "db=zero", "pool_size=3"])
@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_a_parameter_that_nobody_knows_is_an_error(scheme: str, query: str) -> None:
    """At opening, by the setting, and without the URL and its password."""
    with pytest.raises(ConfigError, match=r"redis\.url") as caught:
        asyncio.run(_connect(f"{scheme}://user:s3cret@127.0.0.1:1/0?{query}"))

    error: BaseException | None = caught.value
    while error is not None:
        assert "s3cret" not in repr(error)
        step = error.__traceback__
        while step is not None:
            if "oqron_" in step.tb_frame.f_code.co_filename:
                assert "s3cret" not in repr(step.tb_frame.f_locals)
            step = step.tb_next
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize(
    "query",
    ["db=3", "max_connections=5", "socket_connect_timeout=2", "client_name=x", "protocol=3"],
)
def test_a_parameter_that_is_known_is_taken(query: str) -> None:
    """As redis-py takes it."""
    asyncio.run(_connect(f"redis://127.0.0.1:1/0?{query}"))
