"""Downloads over http and https: pinned to the address that was checked, bounded in bytes, time, redirects and number.

Follows redirects itself, so that each target is checked like the first. Knows no media.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

import httpx

from server.media.addresses import AddressRefusedError, Hosts
from server.media.sources import SourceError

_REDIRECTS = (301, 302, 303, 307, 308)
_AGENT = "dots3"
_PORT_MAX = 65535


@dataclass(frozen=True)
class FetchLimits:
    max_bytes: int = 256 * 2**20
    timeout_s: float = 60.0  # for one download with all its redirects
    connect_timeout_s: float = 10.0
    max_redirects: int = 5
    at_once: int = 16  # downloads of the whole gateway


class Downloads:
    """Used from one event loop."""

    def __init__(self, hosts: Hosts, limits: FetchLimits = FetchLimits()) -> None:
        self._hosts = hosts
        self._limits = limits
        self._places = asyncio.Semaphore(limits.at_once)
        self._certificates: asyncio.Task[ssl.SSLContext] | None = None

    def warm(self) -> None:
        """Before the first download, rather than with it."""
        if self._certificates is None:
            self._certificates = asyncio.create_task(asyncio.to_thread(httpx.create_ssl_context, trust_env=False))

    async def get(self, link: str, count: Callable[[int], None]) -> bytearray:
        """`count` is told of bytes as they come, and may raise. SourceError where the link is to blame."""
        async with self._places:
            try:
                async with asyncio.timeout(self._limits.timeout_s):
                    return await self._follow(link, count)
            except TimeoutError as error:
                raise SourceError(f"a download may take {self._limits.timeout_s:g} s, and took longer") from error
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise SourceError(f"the link cannot be downloaded: {type(error).__name__}") from error

    async def _follow(self, link: str, count: Callable[[int], None]) -> bytearray:
        url = _url(link)
        # No proxy from the environment, no cookie, and no connection kept for another name on the same address.
        limits, timeout = httpx.Limits(max_keepalive_connections=0), httpx.Timeout(self._limits.timeout_s)
        timeout.connect = self._limits.connect_timeout_s
        certificates = await self._known_certificates()
        async with httpx.AsyncClient(verify=certificates, trust_env=False, limits=limits, timeout=timeout) as client:
            for _ in range(self._limits.max_redirects + 1):
                request = await self._pinned(client, url)
                response = await client.send(request, stream=True)
                try:
                    if response.status_code not in _REDIRECTS or "location" not in response.headers:
                        return await self._content(response, count)
                    url = _url(str(url.join(response.headers["location"])))
                finally:
                    await response.aclose()
        raise SourceError(f"a link may be redirected {self._limits.max_redirects} times at most, and was more often")

    async def _known_certificates(self) -> ssl.SSLContext:
        """Read once, and not here: it takes longer than the event loop may wait."""
        self.warm()
        assert self._certificates is not None
        return await asyncio.shield(self._certificates)

    async def _pinned(self, client: httpx.AsyncClient, url: httpx.URL) -> httpx.Request:
        """A request for `url` to the one address that was checked; certificates are checked against the name."""
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            address = await self._hosts.address_of(_host(url), port)
        except AddressRefusedError as error:
            raise SourceError(str(error)) from error
        literal = f"[{address}]" if isinstance(ip_address(address.partition("%")[0]), IPv6Address) else address
        return client.build_request(
            "GET",
            url.copy_with(host=literal),
            headers={"Host": url.netloc.decode("ascii"), "Accept-Encoding": "identity", "User-Agent": _AGENT},
            extensions={"sni_hostname": _host(url)},
        )

    async def _content(self, response: httpx.Response, count: Callable[[int], None]) -> bytearray:
        if response.status_code != httpx.codes.OK:
            raise SourceError(f"the link must answer 200, got {response.status_code}")
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise SourceError("the link must answer without a Content-Encoding")
        told = response.headers.get("content-length", "0")
        self._check(int(told) if told.isdecimal() and len(told) < 20 else 0)
        content = bytearray()
        async for piece in response.aiter_raw():
            content += piece
            self._check(len(content))
            count(len(piece))
        return content

    def _check(self, size: int) -> None:
        if size > self._limits.max_bytes:
            raise SourceError(f"a media file may have {self._limits.max_bytes} bytes at most, got {size} or more")


def _host(url: httpx.URL) -> str:
    """In ASCII, as it is looked up; an international name is `xn--…`."""
    return url.raw_host.decode("ascii")


def _url(link: str) -> httpx.URL:
    try:
        url = httpx.URL(link)
    except (httpx.InvalidURL, UnicodeError, ValueError) as error:
        raise SourceError("the link is no URL") from error
    if url.scheme not in ("http", "https"):
        raise SourceError(f"a link must be http:, https:, data: or file:, got {url.scheme[:20] or 'none'}")
    if not _host(url) or url.userinfo:
        raise SourceError("a link must name a host, and no user")
    if url.port is not None and not 0 < url.port <= _PORT_MAX:
        raise SourceError(f"a link's port must be from 1 to {_PORT_MAX}, got {url.port}")
    return url
