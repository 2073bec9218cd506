"""On which hosts a secret may be used: a rule allows what it says, and nothing beside it."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kit.errors import InvalidArgument
from services.vault.domain.networking import MAX_HOSTS, Networking, parse, stored

LABELS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
NAMES = st.builds(
    lambda labels, end: ".".join([*labels, end]),
    st.lists(LABELS, min_size=1, max_size=3),
    st.from_regex(r"[a-z]{2,6}", fullmatch=True),
)
PORTS = st.integers(1, 65535)


def limited(*hosts: str) -> Networking:
    return parse({"type": "limited", "allowed_hosts": list(hosts)}, "networking")


@given(NAMES, NAMES, PORTS)
def test_a_name_allows_itself_at_every_port_and_nothing_else(name: str, other: str, port: int) -> None:
    policy = limited(name)
    assert policy.allows(name, port) and policy.allows(name.upper(), port) and policy.allows(f"{name}.", port)
    assume(other != name)
    assert not policy.allows(other, port)
    for near in (f"x{name}", f"x.{name}", f"{name}x", f"{name}.x", f"{name}:80", f"@{name}", f" {name}", ""):
        assert not policy.allows(near, port)


@given(NAMES, NAMES, LABELS, PORTS)
def test_a_star_allows_what_is_below_and_not_the_name(name: str, other: str, label: str, port: int) -> None:
    policy = limited(f"*.{name}")
    assert policy.allows(f"{label}.{name}", port) and policy.allows(f"{label}.{label}.{name}", port)
    for near in (name, f".{name}", f"x{name}", f"{label}.{name}.elsewhere", "*", f"*.{name}x", ""):
        assert not policy.allows(near, port)
    assume(not other.endswith(f".{name}"))
    assert not policy.allows(other, port)


@given(NAMES, PORTS, PORTS, st.booleans())
def test_a_port_allows_only_itself(name: str, port: int, other: int, below: bool) -> None:
    policy = limited(f"*.{name}:{port}" if below else f"{name}:{port}")
    host = f"a.{name}" if below else name
    assert policy.allows(host, port)
    assert policy.allows(host, other) == (port == other)


@given(st.ip_addresses(v=4).map(str), PORTS)
def test_an_address_allows_itself_and_is_below_nothing(address: str, port: int) -> None:
    assert limited(address).allows(address, port)
    tail = address.split(".", 1)[1]
    for entry in (f"*.{tail}", f"*.{address}", "*.1"):
        with pytest.raises(InvalidArgument):
            limited(entry)


@given(NAMES, PORTS)
def test_unrestricted_allows_every_target_and_none_that_is_named(name: str, port: int) -> None:
    policy = parse({"type": "unrestricted"}, "networking")
    assert policy.allows(name, port) and policy.allows("", 0)
    assert not limited().allows(name, port) and not limited().allows("", 0)


@given(st.text(max_size=40))
def test_whatever_an_entry_says_it_never_allows_a_host_without_a_name(entry: str) -> None:
    try:
        policy = limited(entry)
    except InvalidArgument:
        return
    assert not policy.allows("", 443)
    assert "example" in entry or not policy.allows("an-unrelated.example", 443)


@pytest.mark.parametrize(
    "entry",
    [
        *("*", "*.", "*.*", "*.*.example.com", "a.*.example.com", "*example.com", "https://a.example", "a.example/"),
        *("a.example:0", "a.example:65536", "a.example:", ":80", "a..example", "-a.example", "a-.example", "a b"),
        *("[::1]", "::1", "2001:db8::1", "user@a.example", "a.example?x", "0x7f000001", "127.1", "256.1.1.1", "1.2.3"),
        *("", " a.example", "a.example ", "a\n.example", "münchen.example", "a" * 64, "a." * 130 + "example", None, 1),
    ],
)
def test_what_is_no_host_is_refused_by_its_place(entry: object) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        parse({"type": "limited", "allowed_hosts": ["a.example", entry]}, "auth.networking")
    assert refusal.value.field == "auth.networking.allowed_hosts.1"


def test_there_are_at_most_sixteen_and_each_counts_once() -> None:
    hosts = [f"h{number}.example" for number in range(MAX_HOSTS)]
    assert limited(*hosts).allowed_hosts == tuple(hosts) and MAX_HOSTS == 16
    assert limited("A.example", "a.example").allowed_hosts == ("a.example",)
    with pytest.raises(InvalidArgument):
        limited(*hosts, "one-more.example")


@given(st.one_of(st.none(), st.text(max_size=60), st.recursive(st.none() | st.booleans(), st.lists).map(str)))
def test_what_is_stored_and_can_t_be_read_is_no_policy(text: str | None) -> None:
    assert stored(text) is None


@given(st.lists(NAMES, max_size=4), st.booleans())
def test_a_policy_is_read_as_it_was_stored(hosts: list[str], unrestricted: bool) -> None:
    policy = Networking(True) if unrestricted else limited(*hosts)
    assert stored(orjson.dumps(policy.document()).decode()) == policy
