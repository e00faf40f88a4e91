"""Modes with servers, through random lives."""

from __future__ import annotations

import pytest

from fix_modes import MemoryPostgres, Redis, RedisPostgres, depth

from oqron_core.testing.contracts.lives import LivesContract


pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200 if depth(1) > 1 else 240)]


class TestRedisLives(Redis, LivesContract):
    """Redis is the truth."""

    mode = "redis"
    hang_after = 1200.0
    examples = depth(10)
    steps = 25


class TestRedisPostgresLives(RedisPostgres, LivesContract):
    """Two servers that fail apart."""

    mode = "redis-postgres"
    hang_after = 1200.0
    examples = depth(10)
    steps = 25


class TestMemoryPostgresLives(MemoryPostgres, LivesContract):
    """One process with a durable history."""

    hang_after = 1200.0
    examples = depth(10)
    steps = 25
