"""Connections of aiohttp that go to addresses which were checked, under the name that was asked for.

    address_list = await checked_address(host, port)        # kit.addresses
    connector = aiohttp.TCPConnector(resolver=Pinned(address_list), use_dns_cache=False, force_close=True)

A second look-up could be answered otherwise than the one that was judged; with this there is none. Apart from
`kit.addresses`, since loading aiohttp takes longer than most processes have a use for.
"""

import socket
from collections.abc import Sequence

from aiohttp.abc import AbstractResolver, ResolveResult


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
