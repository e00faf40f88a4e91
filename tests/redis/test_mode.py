"""Redis mode, as a whole."""

from __future__ import annotations

from typing import Any

import pytest

from oqron_core.testing import servers
from oqron_core.testing.contracts.mode import ModeContract


class TestRedisMode(ModeContract):
    """One server serves both planes."""

    mode = "redis"
    url = ""

    @pytest.fixture(autouse=True)
    def _server(self, redis: servers.RedisServer) -> None:
        self.url = redis.url

    def settings(self) -> dict[str, Any]:
        """Point every storage of a test at the server."""
        return {"redis": {"url": self.url}}
