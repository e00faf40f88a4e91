"""How tests of the Redis backend open a storage."""

from __future__ import annotations

from typing import Any

from oqron_core.planes import Scope
from oqron_core.testing.contracts.base import fresh_scope


def options(url: str, scope: Scope | None = None, **more: Any) -> dict[str, Any]:
    """Give what opens a storage of its own, or of a scope, on one Redis."""
    scope = scope or fresh_scope("redis")
    return {
        "mode": "redis",
        "project": scope.project,
        "environment": scope.environment,
        "redis": {"url": url},
        **more,
    }
