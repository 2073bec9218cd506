"""Which addresses may be connected to: public ones, and private ones only where an operator says so."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.addresses import (
    AddressRefused,
    AddressUnresolved,
    PrivateHosts,
    checked_address,
    checked_url,
    is_private,
    is_public,
    split_url,
)

INSIDE = [
    *("127.0.0.1", "127.255.0.1", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1"),
    *("169.254.169.254", "0.0.0.0", "224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1"),
    *("::1", "::", "fe80::1", "fc00::1", "fd12::1", "ff02::1", "fec0::1", "2001:db8::1", "::ffff:127.0.0.1"),
    *("::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::1", "2002:7f00:1::"),
    *("2002:a00:1::", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "100::1"),
    *("192.0.0.1", "192.0.0.8", "192.0.0.192", "192.88.99.1", "168.63.129.16", "3fff::1", "5f00::1"),
    *("::ffff:192.0.0.192", "::ffff:168.63.129.16", "64:ff9b::a83f:8110", "2002:c000:c0::1"),
]
ODD = ["0x7f000001", "0x7f.1", "2130706433", "127.1", "0177.0.0.1", "127.0.0.0x1", "1.2.3.4.5", "a.0x", "017700000001"]
PUBLIC = ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "93.184.216.34"]


@pytest.mark.parametrize("host", [*INSIDE, *(f"[{host}]" for host in INSIDE if ":" in host), "127.0.0.1."])
async def test_what_lies_inside_is_refused(host: str) -> None:
    with pytest.raises(AddressRefused):
        await checked_address(host, 443)


@pytest.mark.parametrize(
    "host", [*ODD, "", " ", "a b", "a/b", "user@a", "a#b", "a?b", "fe80::1%eth0", "a%2e", "1::2::3"]
)
@pytest.mark.parametrize("allow_private", [False, True])
async def test_what_is_no_plain_name_or_address_is_refused_whoever_asks(host: str, allow_private: bool) -> None:
    with pytest.raises(AddressRefused):
        await checked_address(host, 443, allow_private=allow_private)


@pytest.mark.parametrize("host", PUBLIC)
async def test_what_is_public_is_given_back(host: str) -> None:
    (found,) = await checked_address(host, 443)
    assert ipaddress.ip_address(found) == ipaddress.ip_address(host)


@pytest.mark.parametrize("host", INSIDE)
async def test_a_private_host_may_be_allowed_and_metadata_may_not(host: str) -> None:
    address = ipaddress.ip_address(host)
    may = is_private(address)
    never = ("169.254.", "0.0.0.0", "224.", "240.", "255.", "fe80", "ff02", "fec0", "::ffff:169")
    never += ("192.0.0.", "168.63.129.16")
    assert not (may and host.startswith(never)) and not (may and host == "::")
    if may:
        assert await checked_address(host, 443, allow_private=True) == [str(address)]
    else:
        with pytest.raises(AddressRefused):
            await checked_address(host, 443, allow_private=True)


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_judged_the_same_inside_ipv6(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    mapped = ipaddress.IPv6Address(0xFFFF << 32 | number)
    translated = ipaddress.IPv6Address(0x64FF9B << 96 | number)
    tunnelled = ipaddress.IPv6Address(0x2002 << 112 | number << 80)
    assert is_public(mapped) == is_public(translated) == is_public(tunnelled) == is_public(address)
    assert not is_public(ipaddress.IPv6Address(number)), "compatible addresses lead nowhere"


@given(st.ip_addresses())
def test_no_address_is_public_and_private(address: Any) -> None:
    assert not (is_public(address) and is_private(address))
    # A tunnel is judged by where it leads; newer Pythons call every one of them private.
    if is_public(address) and getattr(address, "sixtofour", None) is None:
        assert not (address.is_private or address.is_loopback or address.is_link_local or address.is_multicast)


def resolver(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    async def getaddrinfo(self: Any, host: str, port: int, **_: Any) -> list[Any]:
        if not addresses:
            raise socket.gaierror
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)


async def test_a_name_is_refused_where_any_of_its_addresses_is_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    resolver(monkeypatch, "8.8.8.8", "10.0.0.1")
    with pytest.raises(AddressRefused):
        await checked_address("mixed.example", 443)
    resolver(monkeypatch, "8.8.8.8", "8.8.4.4", "8.8.8.8")
    assert await checked_address("public.example.", 443) == ["8.8.8.8", "8.8.4.4"]
    resolver(monkeypatch)
    with pytest.raises(AddressUnresolved):
        await checked_address("nowhere.example", 443)


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://a.example", "a.example", "//a.example", "http://", "http://u@a.example", "http://u:p@a.example"),
        *(
            "http://a.example:0",
            "http://a.example:x",
            "http://a.example:99999",
            "http://a b",
            "http://a\\b",
            "http://a\n",
        ),
        *("javascript:alert(1)", "http://[::1", "http://a.example/" + "x" * 3000, ""),
    ],
)
def test_what_is_no_plain_url_is_refused(url: str) -> None:
    with pytest.raises(AddressRefused):
        split_url(url)


def test_a_url_is_taken_apart() -> None:
    assert split_url("https://A.Example./x?y") == ("a.example", 443, "https")
    assert split_url("http://[2606:4700::1111]:8080/") == ("2606:4700::1111", 8080, "http")


async def test_private_hosts_are_allowed_by_name_and_port() -> None:
    allowed = PrivateHosts.parse(" 127.0.0.1:8080, Build.Internal ,[::1]:9000,::1,")
    assert allowed.allows("127.0.0.1", 8080) and not allowed.allows("127.0.0.1", 8081)
    assert allowed.allows("build.internal.", 1) and not allowed.allows("x.build.internal", 1)
    assert allowed.allows("::1", 9000) and allowed.allows("[::1]", 1)
    assert not PrivateHosts.parse("").allows("", 0)
    target = await checked_url("http://127.0.0.1:8080/x", allowed=allowed)
    assert (target.host, target.port, target.addresses) == ("127.0.0.1", 8080, ("127.0.0.1",))
    with pytest.raises(AddressRefused):
        await checked_url("http://127.0.0.1:8081/x", allowed=allowed)
