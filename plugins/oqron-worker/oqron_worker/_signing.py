"""Signatures by Standard Webhooks: what a receiver checks."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets

from typing import Final

from oqron_core.exceptions import InvalidValueError


__all__ = ["new_secret", "signature_headers", "verify"]

_PREFIX: Final = "whsec_"
_LEAST_BYTES: Final = 16


def new_secret() -> str:
    """Make a secret of 32 bytes."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def _key(secret: str) -> bytes:
    problem = f"must be {_PREFIX} and base64 of at least {_LEAST_BYTES} bytes"
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) < _LEAST_BYTES:
        # Outside of the except block, whose error holds the secret.
        raise InvalidValueError("secret", problem)
    return key


def _sign(secret: str, event_id: str, timestamp: int, body: bytes) -> str:
    signed = f"{event_id}.{timestamp}.".encode() + body
    digest = hmac.new(_key(secret), signed, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def signature_headers(
    secret: str | None, event_id: str, timestamp: int, body: bytes
) -> dict[str, str]:
    """
    Give the headers of a request.

    Args:
        secret: One secret, or several with spaces between; None signs nothing.
        event_id: Of the event: the same for each try.
        timestamp: Of this try, in seconds since the epoch.
        body: What is sent.

    Raises:
        InvalidValueError: A secret is not legal.
    """
    headers = {"webhook-id": event_id, "webhook-timestamp": str(timestamp)}
    if secret:
        signatures = [_sign(one, event_id, timestamp, body) for one in secret.split()]
        headers["webhook-signature"] = " ".join(signatures)
    return headers


def verify(
    secret: str, headers: dict[str, str], body: bytes, *, now: float, tolerance: float = 300.0
) -> bool:
    """
    Check a request, as its receiver does.

    Args:
        secret: One secret, or several with spaces between.
        headers: Of the request, with names in lower case.
        body: As it was received.
        now: Seconds since the epoch.
        tolerance: How old or early it may be, in seconds.
    """
    event_id = headers.get("webhook-id", "")
    stamp = headers.get("webhook-timestamp", "")
    if not stamp.isdecimal() or abs(now - int(stamp)) > tolerance:
        return False
    given = headers.get("webhook-signature", "").split()
    wanted = [_sign(one, event_id, int(stamp), body) for one in secret.split()]
    return any(hmac.compare_digest(one, other) for one in given for other in wanted)
