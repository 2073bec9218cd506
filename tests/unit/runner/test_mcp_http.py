"""Requests to MCP servers go to the address that was checked, whatever a name says later, and never without bounds."""

from collections.abc import AsyncIterator

import httpx2
import pytest

from kit.addresses import AddressRefused, PrivateHosts
from services.worker.runner.mcp import http
from services.worker.runner.mcp.http import ATTEMPT, Attempt, GuardedTransport

URL = "https://mcp.example.com/mcp"


class Wire(httpx2.AsyncBaseTransport):
    """Notes what would be sent, and answers."""

    def __init__(self, answer: httpx2.Response | Exception | None = None, *, unreachable: str = "") -> None:
        self.sent: list[httpx2.Request] = []
        self._answer = answer or httpx2.Response(200, json={})
        self._unreachable = unreachable

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.sent.append(request)
        if request.url.host == self._unreachable:
            raise httpx2.ConnectError("nobody there")
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> list[list[str] | Exception]:
    """What the resolver says, one answer after another; the last one repeats."""
    answers: list[list[str] | Exception] = [["203.0.113.7"]]

    async def checked(_host: str, _port: int, *, allow_private: bool = False) -> list[str]:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(http, "checked_address", checked)
    return answers


def over(wire: Wire, *, allowed: bool = True) -> httpx2.AsyncClient:
    guarded = GuardedTransport(wire, allows=lambda _host, _port: allowed, private=PrivateHosts())
    return httpx2.AsyncClient(transport=guarded, trust_env=False)


async def test_a_request_goes_to_the_checked_address_under_its_name(names: list) -> None:
    wire = Wire()
    async with over(wire) as client:
        response = await client.post(URL, json={"id": 1})
    (sent,) = wire.sent
    assert (sent.url.host, sent.headers["host"]) == ("203.0.113.7", "mcp.example.com")
    assert sent.extensions["sni_hostname"] == "mcp.example.com"
    assert str(response.request.url) == URL


async def test_a_name_that_leads_inside_later_is_not_followed_there(names: list) -> None:
    names.append(AddressRefused("mcp.example.com leads to an address that may not be connected to."))
    wire = Wire()
    async with over(wire) as client:
        for number in range(3):
            await client.post(URL, json={"id": number})
        assert {sent.url.host for sent in wire.sent} == {"203.0.113.7"}
        # Asked again after a while, it is refused.
        for number in range(http._ADDRESS_KEPT_REQUESTS):
            attempt = Attempt()
            token = ATTEMPT.set(attempt)
            response = await client.post(URL, json={"id": number})
            ATTEMPT.reset(token)
    assert response.status_code == 503 and "may not be connected to" in attempt.failure
    assert {sent.url.host for sent in wire.sent} == {"203.0.113.7"}


async def test_the_next_address_is_tried_and_a_host_that_is_away_is_looked_up_again(names: list) -> None:
    names[:] = [["203.0.113.7", "203.0.113.8"], ["203.0.113.9"]]
    wire = Wire(unreachable="203.0.113.7")
    async with over(wire) as client:
        assert (await client.post(URL, json={"id": 1})).status_code == 200
    assert [sent.url.host for sent in wire.sent] == ["203.0.113.7", "203.0.113.8"]
    wire = Wire(unreachable="203.0.113.9")
    async with over(wire) as client:
        for _ in range(2):
            attempt = Attempt()
            token = ATTEMPT.set(attempt)
            assert (await client.post(URL, json={"id": 1})).status_code == 503
            ATTEMPT.reset(token)
            assert (attempt.reached, attempt.status) == (False, 0)
            assert "can't be connected to" in attempt.failure


async def test_a_request_that_broke_off_may_have_arrived(names: list) -> None:
    attempt = Attempt()
    token = ATTEMPT.set(attempt)
    async with over(Wire(httpx2.ReadError("gone"))) as client:
        assert (await client.post(URL, json={"id": 1})).status_code == 503
    ATTEMPT.reset(token)
    assert attempt.reached and "broke off" in attempt.failure


async def test_a_host_that_the_environment_does_not_allow_is_not_even_looked_up(names: list) -> None:
    names[:] = [AssertionError("nobody asks")]
    wire = Wire()
    async with over(wire, allowed=False) as client:
        assert (await client.post(URL, json={"id": 1})).status_code == 503
    assert not wire.sent


async def test_an_answer_without_end_ends(names: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MOST_ANSWER_BYTES", 1000)

    class Endless(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 100

    async with over(Wire(httpx2.Response(200, stream=Endless()))) as client:
        with pytest.raises(httpx2.StreamError, match="longer than"):
            await client.post(URL, json={"id": 1})


async def test_what_nobody_waits_for_does_not_hold_up_what_comes_next(names: list) -> None:
    wire = Wire()
    async with over(wire) as client:
        await client.post(URL, json={"method": "notifications/cancelled"})
        await client.post(URL, json={"id": 1, "method": "tools/call"})
    assert [sent.extensions["timeout"]["read"] == http.NOTICE_SECONDS for sent in wire.sent] == [True, False]
