"""Requests to addresses that somebody else chose."""

from __future__ import annotations

import asyncio
import email.utils
import ipaddress
import socket
import time

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import attrs


try:
    import httpx
except ImportError as _error:
    raise ImportError(
        "webhooks need the extra of that name: pip install 'oqron-worker[webhooks]'"
    ) from _error


__all__ = ["Answer", "Sender", "UnsafeAddressError", "address_is_public"]

_MOST_BYTES: Final = 64 * 1024
_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


class UnsafeAddressError(Exception):
    """
    An endpoint has an address that no outsider may make us call.

    Args:
        host: The host of the endpoint.
    """

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host = host

    def __str__(self) -> str:
        return f"{self.host} has a private address; allow_private=True would call it"


@attrs.frozen
class Answer:
    """
    What an endpoint answered.

    Attributes:
        status: The HTTP status.
        text: The beginning of the body.
        retry_after: Seconds that it asks to wait; None where it does not.
    """

    status: int
    text: str
    retry_after: float | None

    @property
    def ok(self) -> bool:
        """Whether it took the event."""
        return 200 <= self.status < 300  # noqa: PLR2004 - the class of success


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Give the IPv4 address that an IPv6 one stands for."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def address_is_public(text: str) -> bool:
    """Whether an address belongs to the public internet, also one inside another."""
    address: _Address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        embedded = _embedded(address)
        if embedded is not None:
            return address_is_public(str(embedded))
    return address.is_global and not address.is_multicast


class Sender:
    """
    Posts to endpoints.

    A host is resolved once and called by the address that was checked: what a name
    server says a moment later changes nothing. Redirects are not followed.

    Args:
        allow_private: Whether addresses that are not public may be called.
    """

    def __init__(self, *, allow_private: bool) -> None:
        self._allow_private = allow_private
        self._client: httpx.AsyncClient | None = None

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, *, timeout: float
    ) -> Answer:
        """
        Post once.

        Raises:
            UnsafeAddressError: The address is not public.
            OSError: It could not be reached, or did not answer in time.
        """
        client = self._client
        if client is None:
            # Proxies of the environment would make the checked address meaningless.
            client = self._client = httpx.AsyncClient(trust_env=False, follow_redirects=False)
        target = httpx.URL(url)
        try:
            async with asyncio.timeout(timeout):
                address = await self._resolve(target)
                return await self._post(client, target, address, headers, body)
        except TimeoutError:
            raise TimeoutError(f"{target.host} did not answer within {timeout:g} seconds") from None
        except httpx.HTTPError as error:
            raise ConnectionError(f"{target.host}: {error or type(error).__name__}") from error

    async def _resolve(self, url: httpx.URL) -> str:
        port = url.port or (443 if url.scheme == "https" else 80)
        found = await asyncio.get_running_loop().getaddrinfo(
            url.host, port, type=socket.SOCK_STREAM
        )
        addresses = [str(entry[4][0]) for entry in found]
        # All of them: which one is called must not be up to chance.
        if not (self._allow_private or all(map(address_is_public, addresses))):
            raise UnsafeAddressError(url.host)
        return addresses[0]

    async def _post(
        self,
        client: httpx.AsyncClient,
        url: httpx.URL,
        address: str,
        headers: Mapping[str, str],
        body: bytes,
    ) -> Answer:
        extensions: dict[str, Any] = {}
        if url.scheme == "https":
            extensions["sni_hostname"] = url.host
        request = client.build_request(
            "POST",
            url.copy_with(host=address),
            headers={**headers, "host": url.netloc.decode().rpartition("@")[2]},
            content=body,
            extensions=extensions,
            timeout=None,
        )
        response = await client.send(request, stream=True)
        try:
            text = await _beginning(response)
        finally:
            await response.aclose()
        return Answer(response.status_code, text, _retry_after(response.headers.get("retry-after")))

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


async def _beginning(response: httpx.Response) -> str:
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size >= _MOST_BYTES:
            break
    return b"".join(parts)[:_MOST_BYTES].decode(errors="replace")


def _retry_after(value: str | None) -> float | None:
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        then = email.utils.parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    return max(0.0, then.timestamp() - time.time())
