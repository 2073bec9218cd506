"""Two messages of the same words are two events; two tries of one message are one, for published clients too."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from kit.errors import Unavailable
from tests.integration.gateway.conftest import Gateway

pytestmark = pytest.mark.asyncio(loop_scope="package")

AGENT = {"name": "assistant", "model": "default", "system": "You are helpful."}
PUBLISHED = {"anthropic-version": "2023-06-01", "anthropic-beta": "managed-agents-2026-04-01"}
YES = {"events": [{"type": "user.message", "content": [{"type": "text", "text": "yes"}]}]}


class Sender:
    """Sends the same words to one session, as the published client would."""

    def __init__(self, gateway: Gateway, http: httpx2.AsyncClient, session_id: str) -> None:
        self._events = gateway.clients.events
        self._http = http
        self._url = f"/v1/sessions/{session_id}/events"

    async def send(self, count: int) -> str:
        """One try; the id of the event that it was answered with."""
        headers = PUBLISHED | {"x-stainless-retry-count": str(count)}
        answer = await self._http.post(self._url, json=YES, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"][0]["id"]

    async def fail(self, count: int, monkeypatch: pytest.MonkeyPatch, *, stored: bool) -> None:
        """One try that is answered by 503, with or without an effect."""
        append = self._events.AppendEvents

        async def away(request: Any, **options: Any) -> Any:
            if stored:
                await append(request, **options)
            raise Unavailable("The sessions service is away.")

        with monkeypatch.context() as patched:
            patched.setattr(self._events, "AppendEvents", away, raising=False)
            headers = PUBLISHED | {"x-stainless-retry-count": str(count)}
            assert (await self._http.post(self._url, json=YES, headers=headers)).status_code == 503

    async def log(self) -> list[str]:
        """The messages of the session."""
        page = (await self._http.get(self._url, params={"types[]": "user.message"})).json()
        return [event["id"] for event in page["data"]]


@pytest_asyncio.fixture(loop_scope="package")
async def sender(gateway: Gateway, http: httpx2.AsyncClient) -> Sender:
    agent = (await http.post("/v1/agents", json=AGENT)).json()
    session = (await http.post("/v1/sessions", json={"agent": agent["id"]})).json()
    return Sender(gateway, http, session["id"])


async def test_each_first_try_is_an_event_of_its_own(sender: Sender) -> None:
    sent = [await sender.send(0) for _ in range(3)]
    sent += await asyncio.gather(*(sender.send(0) for _ in range(10)))
    assert len(set(sent)) == 13
    assert sorted(await sender.log()) == sorted(sent)


async def test_a_retry_after_a_lost_answer_is_answered_as_the_try_was(sender: Sender) -> None:
    first = await sender.send(0)
    assert [await sender.send(count) for count in (1, 2)] == [first, first]
    assert await sender.log() == [first]


@pytest.mark.parametrize("stored", [False, True])
async def test_a_message_that_repeats_an_earlier_one_is_not_lost_when_its_first_try_fails(
    sender: Sender, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    earlier = await sender.send(0)
    await sender.fail(0, monkeypatch, stored=stored)
    later = await sender.send(1)
    assert later != earlier
    assert await sender.send(2) == later
    assert await sender.log() == [earlier, later]


async def test_two_callers_with_the_same_words_get_an_event_each_whatever_fails(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The answer to the one caller is lost; then the other one's first try has no effect.
    await sender.fail(0, monkeypatch, stored=True)
    await sender.fail(0, monkeypatch, stored=False)
    answers = [await sender.send(1), await sender.send(1)]
    log = await sender.log()
    assert len(log) == 2 and set(answers) <= set(log)


async def test_a_retry_that_fails_too_does_not_hide_the_next(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = await sender.send(0)
    await sender.fail(0, monkeypatch, stored=False)
    await sender.fail(1, monkeypatch, stored=False)
    later = await sender.send(2)
    assert await sender.log() == [earlier, later]
