"""Waits grow and differ, proxies are what the environment says, and signals mean what they are told to mean."""

import asyncio
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.fleet.backoff import CAP_SECONDS, FIRST_SECONDS, Backoff
from services.worker.fleet.errors import OptionUnusable
from services.worker.fleet.proxies import proxy_for
from services.worker.fleet.reporter import Seldom
from services.worker.fleet.stopping import Stopping


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=60))
def test_a_wait_doubles_up_to_the_cap_and_is_never_less_than_half(chances: list[float]) -> None:
    left = iter(chances)
    backoff = Backoff(chance=lambda: next(left))
    for failures in range(len(chances)):
        longest = min(CAP_SECONDS, FIRST_SECONDS * 2 ** min(failures, 30))
        assert longest / 2 <= backoff.next_seconds() <= longest
    backoff.reset()
    assert Backoff(chance=lambda: 0.0).next_seconds() == FIRST_SECONDS / 2


def test_two_workers_that_fail_together_do_not_come_back_together() -> None:
    one, other = Backoff(), Backoff()
    assert [one.next_seconds() for _ in range(8)] != [other.next_seconds() for _ in range(8)]


def test_what_the_platform_asks_for_is_waited_within_reason() -> None:
    assert Backoff().next_seconds(5.0) == 5.0
    assert Backoff().next_seconds(86_400.0) <= 2 * CAP_SECONDS


def test_it_does_not_wear_out() -> None:
    backoff = Backoff()
    backoff.failures = 10**9
    assert backoff.next_seconds() <= CAP_SECONDS


PROXY = {"HTTPS_PROXY": "http://proxy.example:8080", "http_proxy": "plain.example:3128"}


@pytest.mark.parametrize(
    ("url", "exceptions", "proxy"),
    [
        ("https://agents.example", "", "http://proxy.example:8080"),
        ("http://agents.example", "", "http://plain.example:3128"),
        ("https://agents.example", "other.example", "http://proxy.example:8080"),
        ("https://agents.example", "agents.example", None),
        ("https://a.agents.example", "agents.example", None),
        ("https://a.agents.example", ".agents.example", None),
        ("https://a.agents.example", "*.agents.example", None),
        ("https://myagents.example", "agents.example", "http://proxy.example:8080"),
        ("https://agents.example", "*", None),
        ("https://AGENTS.example", "Agents.Example", None),
        ("https://agents.example:8443", "agents.example:8443", None),
        ("https://agents.example", "agents.example:8443", "http://proxy.example:8080"),
        ("https://agents.example", "agents.example:443", None),
        ("https://10.1.2.3", "10.0.0.0/8", None),
        ("https://11.1.2.3", "10.0.0.0/8", "http://proxy.example:8080"),
        ("https://10.1.2.3", "10.1.2.3", None),
        ("https://[2001:db8::1]", "2001:db8::/32", None),
        ("https://[2001:db8::1]:8443", "[2001:db8::1]:8443", None),
        ("http://127.0.0.1:3000", "", None),
        ("http://localhost:3000", "", None),
        ("http://[::1]:3000", "", None),
    ],
)
def test_the_way_out(url: str, exceptions: str, proxy: str | None) -> None:
    assert proxy_for(url, PROXY | {"NO_PROXY": exceptions}) == proxy


def test_a_proxy_for_everything_and_none() -> None:
    assert proxy_for("https://x.example", {"ALL_PROXY": "http://p:1"}) == "http://p:1"
    assert proxy_for("https://x.example", {}) is None
    assert proxy_for("https://x.example", {"HTTPS_PROXY": " "}) is None


@pytest.mark.parametrize("proxy", ["socks5://p:1", "http://", "ftp://p"])
def test_a_proxy_that_cannot_be_spoken_to_is_named(proxy: str) -> None:
    with pytest.raises(OptionUnusable, match="HTTPS_PROXY"):
        proxy_for("https://x.example", {"https_proxy": proxy})


async def test_the_first_signal_asks_and_the_second_ends() -> None:
    said: list[str] = []
    left: list[int] = []
    stopping = Stopping(said.append, left.append)
    stopping.handle(signal.SIGTERM)
    assert stopping.asked.is_set() and not left
    # A terminal and a service manager may both tell the same.
    stopping.handle(signal.SIGINT)
    assert not left
    assert stopping._first_at is not None
    stopping._first_at -= 1
    stopping.handle(signal.SIGINT)
    assert left == [128 + signal.SIGINT]
    assert len(said) == 2


async def test_a_pause_ends_when_asked_to_stop() -> None:
    stopping = Stopping(lambda _: None)
    assert not await stopping.sleep(0.0)
    pausing = asyncio.create_task(stopping.sleep(60))
    await asyncio.sleep(0)
    stopping.handle(signal.SIGTERM)
    assert await pausing
    assert await stopping.sleep(60)


def test_the_same_words_are_said_once_a_minute() -> None:
    now = 0.0
    seldom = Seldom(60.0, lambda: now)
    assert [seldom.now("away"), seldom.now("away"), seldom.now("else")] == [True, False, True]
    now = 61.0
    assert seldom.now("else")
    seldom.forget()
    assert seldom.now("else")
