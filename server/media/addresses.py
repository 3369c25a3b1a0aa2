"""Which hosts media may be fetched from: a name becomes one address, checked, and that very address is connected to.

Without a list of domains every public address is allowed; with one, only the hosts in it, wherever they lie. Knows
nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Collection

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Public by their number, and yet a cloud's own service for the machines in it.
_CLOUD_SERVICES = frozenset({ipaddress.ip_address("168.63.129.16")})
_PROTOCOL_ASSIGNMENTS = ipaddress.ip_network("192.0.0.0/24")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")


class AddressRefusedError(ValueError):
    """The message is for whoever sent the link, and tells nothing about this network but what it named."""


class Hosts:
    def __init__(self, allowed: Collection[str] = ()) -> None:
        self._allowed = frozenset(map(_normal, allowed))

    async def address_of(self, host: str, port: int) -> str:
        """Resolves once. Whoever connects must use the answer, and ask again for every redirect."""
        name = _normal(host)
        if self._allowed and name not in self._allowed:
            raise AddressRefusedError(f"media may not be fetched from the host {host}: it is not one that is allowed")
        try:
            found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise AddressRefusedError(f"the host {host} cannot be found") from error
        addresses = [str(entry[4][0]) for entry in found]
        if not self._allowed and not all(is_public(ipaddress.ip_address(_unscoped(one))) for one in addresses):
            raise AddressRefusedError(f"media may not be fetched from the host {host}: its address is not public")
        return addresses[0]


def is_public(address: Address) -> bool:
    """Looks through the IPv6 forms that carry an IPv4 address."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        return address.is_global and address in _GLOBAL_UNICAST
    is_special = address.is_multicast or address in _PROTOCOL_ASSIGNMENTS or address in _CLOUD_SERVICES
    return address.is_global and not is_special


def _normal(host: str) -> str:
    return host.strip("[]").rstrip(".").lower()


def _unscoped(address: str) -> str:
    return address.partition("%")[0]
