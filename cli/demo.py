"""`managed-agents demo`: a first agent does a small task, and one watches.

Speaks to the platform as any client does: over HTTP, with nothing but its public API.
"""

import asyncio
import sys
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import orjson
from rich.console import Console
from rich.text import Text

from cli import config, health
from cli.api import Api
from cli.errors import CommandFailed, KeyNeeded
from cli.event_lines import event_line, plain, text_of
from cli.supervisor import Options, Supervisor
from cli.up import for_ever, serve

TASK = "Write a small Python script to a file, run it with the result going into another file, and read the result."
_AGENT_NAME = "First agent"
_MARK = {"made_by": "managed-agents demo"}
_SYSTEM = (
    "You work in a sandbox with a shell and files. Do the task with your tools, check the result, "
    "and answer in one or two sentences with what you found."
)
# Longer than the stream's own pings are apart: silence means that nobody is there.
_SILENCE_SECONDS = 60.0
_TASK_SECONDS = 600.0


class Narrator:
    """Prints events, for people or, as JSON lines, for programs."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._console = Console(highlight=False, soft_wrap=True)

    def tell(self, text: str, style: str = "") -> None:
        """Something that is no event; not part of the data."""
        if self._as_json:
            print(text, file=sys.stderr, flush=True)
        else:
            self._console.print(Text(text, style=style))

    def show(self, event: dict[str, Any]) -> None:
        if self._as_json:
            print(orjson.dumps(event).decode(), flush=True)
        elif (line := event_line(event)) is not None:
            self._console.print(line)


async def run(options: Options, *, task: str, keep_serving: bool, as_json: bool, say: Callable[[str], None]) -> None:
    """Use the platform that answers at the port, or start one for the time of the demo."""
    narrator = Narrator(as_json=as_json)
    status, _ = await health.http_get(options.host, options.port, "/v1/x/health")
    if status == 200:
        url = health.url(options.host, options.port)
        narrator.tell(f"Using the platform that already runs at {url}.", "dim")
        await perform(url, task, narrator)
        narrator.tell(
            f"It keeps running: console {url}/console, API {url}/v1, docs {url}/docs. Stop it in its own terminal.",
            "bold",
        )
        return

    async def work(supervisor: Supervisor) -> None:
        narrator.tell(f"The platform is up at {supervisor.url}.", "dim")
        try:
            await perform(supervisor.url, task, narrator)
        except KeyNeeded:
            if not keep_serving:
                raise
            say("The demo is left out: this platform asks for a key now, and this shell holds none that it takes.")
        except CommandFailed as reason:
            if not keep_serving:
                raise
            say(f"The demo did not succeed: {reason}")
        if keep_serving:
            narrator.tell(
                f"Serving: API {supervisor.url}/v1, console {supervisor.url}/console, docs {supervisor.url}/docs, "
                f"logs {supervisor.folder.path / 'logs'}. Ctrl-C stops everything.",
                "bold",
            )
            await for_ever()

    narrator.tell("Starting the platform …", "dim")
    await serve(options, say=say, work=work)


async def perform(url: str, task: str, narrator: Narrator) -> None:
    """Let the first agent do the task. CommandFailed when it doesn't get to its end."""
    async with Api(url, config.api_key()) as api:
        model = _model_of(await api.get("/v1/x/runtime"))
        narrator.tell(_about_model(model), "dim")
        agent = await _first_agent(api)
        session = await api.post(
            "/v1/sessions", {"agent": agent["id"], "environment_id": "env_default", "title": "Demo", "metadata": _MARK}
        )
        narrator.tell(f"Agent {agent['id']}, session {session['id']}:", "dim")
        message = {"type": "user.message", "content": [{"type": "text", "text": task}]}
        await api.post(f"/v1/sessions/{session['id']}/events", {"events": [message]})
        try:
            async with asyncio.timeout(_TASK_SECONDS):
                failures = await _follow(api, session["id"], narrator)
        except TimeoutError:
            raise CommandFailed(f"The agent did not finish within {_TASK_SECONDS / 60:.0f} minutes.") from None
        if failures and model["provider"] == "demo":
            # A real model may try and err; the built-in one only errs where the platform does.
            raise CommandFailed(f"A tool failed: {failures[0]}")


async def _first_agent(api: Api) -> dict[str, Any]:
    """The agent of an earlier demo, or a new one."""
    for agent in (await api.get("/v1/agents", limit="100")).get("data", []):
        if agent.get("name") == _AGENT_NAME and (agent.get("metadata") or {}) == _MARK:
            return agent
    tools = [{"type": "agent_toolset_20260401"}]
    body = {"name": _AGENT_NAME, "model": "default", "system": _SYSTEM, "tools": tools, "metadata": _MARK}
    return await api.post("/v1/agents", body)


async def _follow(api: Api, session_id: str, narrator: Narrator) -> list[str]:
    """Show every event until the session is idle; what failed tools said."""
    failures = []
    async with aclosing(api.events(session_id, silence_seconds=_SILENCE_SECONDS)) as events:
        async for event in events:
            narrator.show(event)
            match event.get("type"):
                case "agent.tool_result" if event.get("is_error"):
                    failures.append(plain(text_of(event)))
                case "session.status_idle":
                    reason = (event.get("stop_reason") or {}).get("type")
                    if reason != "end_turn":
                        raise CommandFailed(f"The turn ended early ({reason}).")
                    return failures
                case "session.status_terminated" | "session.deleted":
                    raise CommandFailed("The session was ended.")
    raise CommandFailed("The event stream ended.")


def _model_of(runtime: dict[str, Any]) -> dict[str, str]:
    return {"provider": "unknown", "model": "unknown", **next(iter(runtime.get("models") or []), {})}


def _about_model(model: dict[str, str]) -> str:
    if model["provider"] != "demo":
        return f"Model: {model['model']} ({model['provider']})."
    return (
        "Model: demo, built in. It follows simple rules and is no language model; "
        "set ANTHROPIC_API_KEY or OPENAI_API_KEY for a real one."
    )
