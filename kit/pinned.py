"""Connections of aiohttp that go to addresses which were checked, under the name that was asked for.

    target = await checked_url(url)                         # kit.addresses
    connector = aiohttp.TCPConnector(resolver=Pinned(target.addresses), use_dns_cache=False, force_close=True)
    session.post(as_judged(url, target), …)

A second look-up could be answered otherwise than the one that was judged; with this there is none. Apart from
`kit.addresses`, since loading aiohttp takes longer than most processes have a use for.
"""

import socket
from collections.abc import Sequence

from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from kit.addresses import AddressRefused, Target


class Pinned(AbstractResolver):
    """Answers with the addresses that were checked, whatever is asked."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = tuple(addresses)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for address in self._addresses
        ]

    async def close(self) -> None:
        """There is nothing to close."""


def as_judged(url: str, target: Target) -> URL:
    """The URL as aiohttp reads it. AddressRefused where that is another host or port than was judged.

    For a host that it takes for an address aiohttp asks no resolver, so a second reading could lead anywhere.
    """
    address = URL(url, encoded=True)
    if address.raw_host is None or address.raw_host.lower().strip("[]") != target.host or address.port != target.port:
        raise AddressRefused("This URL can be read in two ways.")
    return address
