"""Webhooks: endpoints, and what their receivers check. Needs the extra ``webhooks``."""

from __future__ import annotations

from oqron_worker._sending import UnsafeAddressError
from oqron_worker._signing import new_secret, verify
from oqron_worker._webhooks import Endpoint, WebhookHandler


__all__ = ["Endpoint", "UnsafeAddressError", "WebhookHandler", "new_secret", "verify"]
