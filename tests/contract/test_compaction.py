"""A conversation longer than its model takes, as a published client sees it, and after a restart of the platform."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from anthropic import Anthropic

from tests.support.chat import environment
from tests.support.platform import Platform, running_platform
from tests.support.vendor import Answer, sse, vendor

COMPACTED = "agent.thread_context_compacted"
# The demo model's first message makes it nearly full.
WINDOW = {"MANAGED_AGENTS_CONTEXT_WINDOW_TOKENS": "3000"}
LONG = "LEN:5 " + "word " * 2_000


def client_of(platform: Platform) -> Anthropic:
    return Anthropic(base_url=platform.url, api_key="any", max_retries=0, _strict_response_validation=True)


def ask(client: Anthropic, session_id: str, text: str) -> list[str]:
    """One turn: the types of the events that its stream brings."""
    events = client.beta.sessions.events
    with events.stream(session_id) as stream:
        events.send(session_id, events=[{"type": "user.message", "content": [{"type": "text", "text": text}]}])
        seen: list[str] = []
        for event in stream:
            seen.append(event.type)
            if event.type == "session.status_idle":
                return seen
    raise AssertionError(f"the stream ended after {seen}")


def new_session(client: Anthropic) -> str:
    agent = client.beta.agents.create(name="talker", model="default")
    return client.beta.sessions.create(agent=agent.id, environment_id="env_default").id


def test_a_published_client_sees_that_a_context_was_compacted(tmp_path: Path) -> None:
    with running_platform(tmp_path / "data", environment=WINDOW) as platform, client_of(platform) as client:
        session_id = new_session(client)
        assert COMPACTED not in ask(client, session_id, LONG)
        assert ask(client, session_id, "LEN:3")[-9:] == [
            "span.model_request_start",
            COMPACTED,
            "span.model_request_end",
            "span.model_request_start",
            "agent.message",
            "span.model_request_end",
            "session.thread_status_idle",
            "session.usage",
            "session.status_idle",
        ]
        logged = list(client.beta.sessions.events.list(session_id, limit=100))
        (compacted,) = [event for event in logged if event.type == COMPACTED]
        assert compacted.id.startswith("sevt_") and compacted.processed_at
        # Its summary is the platform's own; the log has everything that was said.
        assert set(compacted.model_extra) == {"seq", "created_at"}
        assert [event.content[0].text for event in logged if event.type == "user.message"] == [LONG, "LEN:3"]
        spent = client.beta.sessions.retrieve(session_id).usage
        ends = [event.model_usage for event in logged if event.type == "span.model_request_end"]
        assert len(ends) == 3 and spent.output_tokens == sum(end.output_tokens for end in ends)


def answer(body: dict[str, Any]) -> Answer:
    """A summary where one is asked for; the answer to the long message takes most of the window."""
    said = "the summary" if "about to be replaced" in body["messages"][-1]["content"] else "an answer"
    choice = {"index": 0, "delta": {"content": said}, "finish_reason": "stop"}
    usage = {"prompt_tokens": len(str(body["messages"])) // 4, "completion_tokens": 2}
    return Answer(200, sse({"model": "m", "choices": [choice], "usage": usage}, "[DONE]"))


async def test_a_turn_goes_on_from_the_compacted_context_after_a_restart(tmp_path: Path) -> None:
    async with vendor() as model:
        model.plan = answer
        variables = WINDOW | environment(model)
        await asyncio.to_thread(_play, tmp_path / "data", variables)
    texts = [message["content"] for message in model.requests[-1]["messages"][1:]]
    assert "the summary" in texts[0] and texts[0].endswith("two")
    assert texts[1:] == ["an answer", "three"]


def _play(data_dir: Path, variables: dict[str, str]) -> None:
    with running_platform(data_dir, environment=variables) as platform, client_of(platform) as client:
        session_id = new_session(client)
        ask(client, session_id, "word " * 2_000)
        assert COMPACTED in ask(client, session_id, "two")
    with (
        running_platform(data_dir, environment=variables, port=platform.port) as platform,
        client_of(platform) as client,
    ):
        assert COMPACTED not in ask(client, session_id, "three")
