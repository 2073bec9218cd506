"""The main job, as a program written against the published Python client would do it.

Runs in a process of its own, so that any version of the client can be put under it:
`python journey.py BASE_URL [--strict] [--drops TYPE]`. Prints one JSON object on
success; any exception is a failure. Uses nothing but the client, unchanged but for
`base_url`. `--drops` names a type that this version leaves out of its streams by itself.
"""

from __future__ import annotations

import json
import sys
import threading

import anthropic


def main(base_url: str, *, strict: bool, drops: str) -> None:
    client = anthropic.Anthropic(api_key="journey", base_url=base_url, timeout=60, _strict_response_validation=strict)
    agent = client.beta.agents.create(
        name="journey",
        model="demo",
        system="You do small tasks.",
        tools=[{"type": "agent_toolset_20260401"}],
        metadata={"purpose": "journey"},
    )
    agent = client.beta.agents.update(agent.id, version=agent.version, description="Does a journey.")
    assert agent.version == 2 and client.beta.agents.retrieve(agent.id).description == "Does a journey."
    assert [one.version for one in client.beta.agents.versions.list(agent.id)] == [2, 1]
    assert any(one.id == agent.id for one in client.beta.agents.list())

    environment = client.beta.environments.create(
        name="journey", config={"type": "cloud", "networking": {"type": "unrestricted"}}
    )
    assert client.beta.environments.retrieve(environment.id).config.type == "cloud"
    session = client.beta.sessions.create(agent=agent.id, environment_id=environment.id, title="A journey")
    assert session.status == "idle" and session.agent.version == 2

    streamed = converse(client, session.id, "Write a small script, run it and read its result.")
    types = [event.type for event in streamed]
    assert types[-1] == "session.status_idle", types
    assert {"user.message", "session.status_running", "agent.tool_use", "agent.tool_result", "agent.message"} <= set(
        types
    ), types
    assert streamed[-1].stop_reason.type == "end_turn"

    listed = list(client.beta.sessions.events.list(session.id, limit=3))
    expected = [event.id for event in listed if event.type != drops]
    assert expected == [event.id for event in streamed], (types, [event.type for event in listed])
    for event in listed + streamed:
        assert event.type == type(event).model_fields["type"].annotation.__args__[0], (event.type, type(event))

    session = client.beta.sessions.retrieve(session.id)
    assert session.status == "idle" and session.usage.output_tokens
    client.beta.sessions.update(session.id, title="Another title", metadata={"seen": "yes"})
    assert any(one.id == session.id for one in client.beta.sessions.list(limit=5))
    client.beta.sessions.archive(session.id)
    client.beta.sessions.delete(session.id)
    client.beta.agents.archive(agent.id)
    client.beta.environments.archive(environment.id)
    poll_in_vain(client)
    assert [model.id for model in client.models.list()]
    try:
        client.beta.sessions.retrieve(session.id)
    except anthropic.NotFoundError as error:
        assert error.body["error"]["type"] == "not_found_error"
    else:
        raise AssertionError("a deleted session was found")
    print(json.dumps({"types": types}))


def poll_in_vain(client: anthropic.Anthropic) -> None:
    """A queue with nothing in it answers again and again, and no client trips over the answer."""
    served = client.beta.environments.create(name="journey of a worker", config={"type": "self_hosted"})
    for block_ms in (1, 300, 999):
        assert client.beta.environments.work.poll(served.id, block_ms=block_ms, anthropic_worker_id="w") is None
    assert client.beta.environments.work.poll(served.id) is None
    client.beta.environments.archive(served.id)


def converse(client: anthropic.Anthropic, session_id: str, text: str) -> list:
    """Opens the stream, then sends, as the client's documentation asks; returns the
    events up to the idle one."""
    events: list = []
    with client.beta.sessions.events.stream(session_id) as stream:
        sender = threading.Thread(
            target=lambda: client.beta.sessions.events.send(
                session_id, events=[{"type": "user.message", "content": [{"type": "text", "text": text}]}]
            )
        )
        sender.start()
        for event in stream:
            events.append(event)
            if event.type in ("session.status_idle", "session.status_terminated"):
                break
        sender.join()
    return events


if __name__ == "__main__":
    dropped = sys.argv[sys.argv.index("--drops") + 1] if "--drops" in sys.argv else ""
    main(sys.argv[1], strict="--strict" in sys.argv, drops=dropped)
